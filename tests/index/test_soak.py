"""The soak finds nothing in a short run, and finds every fault that is planted in the library."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "bench" / "bench_soak.py"

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux") or not SCRIPT.is_file(), reason="the soak needs Linux and a checkout"
)

VIEWS = "every view is one committed state: no acknowledged change is missing, none shows partly"
RANKINGS = "every ranking is the k best of one committed state, by definition"
OUTCOMES = "a change that was acknowledged is there, one that was refused is not, an interrupted one is whole or absent"
ERRORS = "every error is one of lightir's, and has a cause"
HOLDINGS = "a closed index leaves no file open and none mapped"
GROWTH = "memory, open files and mapped files of a process do not grow"
ALIVE = "no process hangs or crashes"
END = "in the end nothing is lost and nothing is left behind"


def soak(*options: str) -> tuple[int, dict[str, Any]]:
    """Run the soak; return its exit code and its report."""
    command = [sys.executable, str(SCRIPT), "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.stdout, done.stderr[-3000:]
    return done.returncode, json.loads(done.stdout)


@pytest.mark.skipif(shutil.which("cc") is None, reason="a C compiler named cc is needed to let file-system calls fail")
def test_a_short_soak_breaks_no_promise() -> None:
    for seed in range(1, 5):  # until all has happened: faults are random, and a loaded machine has few in 15 s
        _, report = soak("--minutes", "0.25", "--seed", str(seed))
        # 15 s cannot tell growth from views that wait for garbage collection; a soak of minutes does.
        assert [violation for violation in report["violations"] if violation["promise"] != GROWTH] == []
        if not (missing := missing_events(report)):
            return
    raise AssertionError(f"the soak is blind: {missing}")


def missing_events(report: dict[str, Any]) -> list[str]:
    """Return what a soak should have met and has not."""
    counts = report["counts"]
    missing = [name for name in ("changes acknowledged", "processes killed") if not counts.get(name)]
    if not any(name.startswith("operations with the fault") for name in counts):
        missing.append("operations with a fault")
    return missing + [promise for promise, checked in report["promises"].items() if not checked["checks"]]


# Each planted fault, and the promises of which it breaks one first.
PLANTED = {
    "lost": {VIEWS, RANKINGS, OUTCOMES},
    "torn": {VIEWS, RANKINGS},
    "stale": {VIEWS, RANKINGS},
    "refused": {VIEWS, RANKINGS, OUTCOMES},
    "ranking": {RANKINGS},
    "vectors": {RANKINGS},
    "raw": {ERRORS},
    "leak": {HOLDINGS},
    "litter": {END},
    "crash": {ALIVE},
}


BY_DEFAULT = ("lost", "torn", "stale", "ranking", "litter")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in BY_DEFAULT else pytest.mark.long) for name in PLANTED]
)
def test_the_soak_notices_a_planted_fault(name: str) -> None:
    minutes = "0.02" if name == "litter" else "1"  # what is left behind is noticed in the end
    quiet = ["--fault-rate", "0", "--kill-every-s", "1000", "--searchers", "1", "--workers", "1", "--openers", "1"]
    code, report = soak("--plant", name, "--minutes", minutes, "--stop-at-first", *quiet)
    assert code == 1
    broken = {promise for promise, counts in report["promises"].items() if counts["violations"]}
    assert broken & PLANTED[name], (broken, report["violations"])
    assert {violation["promise"] for violation in report["violations"]} == broken
