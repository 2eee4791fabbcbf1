"""`make audit` fails for a known vulnerability, and never says that all is well where it could not ask."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "requirements" / "audit.py"


def audit(folder: Path, answer: str) -> subprocess.CompletedProcess[str]:
    """Run the audit with a program that prints an answer in place of pip-audit."""
    program = folder / "pip-audit"
    program.write_text(f"#!{sys.executable}\nprint({answer!r})\n")
    program.chmod(0o755)
    command = [sys.executable, str(SCRIPT), "--program", str(program)]
    return subprocess.run(command, capture_output=True, text=True)


def listed(*packages: dict[str, Any]) -> str:
    return json.dumps({"dependencies": packages})


SAFE = {"name": "safe", "version": "1", "vulns": []}
SKIPPED = {"name": "skipped", "skip_reason": "Dependency not found"}
VULNERABLE = {"name": "bad", "version": "2", "vulns": [{"id": "PYSEC-1"}, {"id": "PYSEC-2"}]}


def test_a_known_vulnerability_fails_and_is_named(tmp_path: Path) -> None:
    result = audit(tmp_path, listed(SAFE, VULNERABLE, SKIPPED))
    assert result.returncode == 1
    assert result.stdout.splitlines() == [
        "bad 2: PYSEC-1",
        "bad 2: PYSEC-2",
        "audit: 2 packages compared, 2 known vulnerabilities; not compared: skipped",
    ]


def test_compared_packages_without_a_vulnerability_pass(tmp_path: Path) -> None:
    result = audit(tmp_path, listed(SAFE))
    assert (result.returncode, result.stdout) == (0, "audit: 1 packages compared, 0 known vulnerabilities\n")


@pytest.mark.parametrize("answer", [listed(SKIPPED), listed(), "no connection"])
def test_an_audit_that_could_not_ask_says_so(answer: str, tmp_path: Path) -> None:
    result = audit(tmp_path, answer)
    assert result.returncode == 0
    assert "audit: NOT DONE" in result.stdout
    assert "packages compared" not in result.stdout
