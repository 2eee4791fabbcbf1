"""Provenance of a result: the code's commit, the machine, the date and the command that made it."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from lightir.version import __version__

SOURCE_ROOT = Path(__file__).resolve().parents[2]
"""Root of the checkout, where the package runs from one."""


def provenance() -> dict[str, Any]:
    """Return what a stored result needs to be traced and repeated, as JSON values.

    Returns:
        "lightir", "python": versions; "commit": see `source_commit`; "date": now, in UTC, ISO 8601; "command": this
        process's command line; "machine": "processor", "cores" (that this process may use) and "memory_gib".
    """
    return {
        "lightir": __version__,
        "python": platform.python_version(),
        "commit": source_commit(SOURCE_ROOT),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": command_line(sys.argv),
        "machine": {
            "processor": processor_name(),
            "cores": usable_cores(),
            "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        },
    }


def usable_cores() -> int:
    """Return the number of cores that this process may use, or of all where the system tells no more (macOS)."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def command_line(argv: list[str]) -> str:
    """Return a command line as one would type it: a script inside the checkout is named relative to it."""
    script = Path(argv[0]).resolve()
    if not script.is_relative_to(SOURCE_ROOT) or script.parent.name == "bin":
        return shlex.join([script.name, *argv[1:]])
    return shlex.join(["python", str(script.relative_to(SOURCE_ROOT)), *argv[1:]])


def processor_name() -> str:
    """Return the processor's model name as Linux reports it, else the architecture."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def source_commit(root: Path) -> str | None:
    """Return the code's git commit, with "-dirty" appended if tracked files differ from it.

    Args:
        root: checkout that the code runs from. If it is not one, the commit is what pip recorded when it installed
            lightir from git.

    Returns:
        None if neither is known; the version identifies the code then.
    """
    if (root / ".git").exists():
        command = ("git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
        try:
            return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()
        except (OSError, subprocess.SubprocessError):  # git is missing, or does not trust the folder's owner
            return None
    recorded = importlib.metadata.distribution("lightir").read_text("direct_url.json")
    commit = json.loads(recorded).get("vcs_info", {}).get("commit_id") if recorded else None
    return str(commit) if commit else None
