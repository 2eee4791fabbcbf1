"""Variants of a measurement, each in a process of its own, and the memory that such a process takes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path


class ExtraMemory:
    """The resident bytes that are added while something runs, at their highest."""

    def __init__(self) -> None:
        """Begin here."""
        self._before = _resident("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM

    def peak(self) -> int:
        """Bytes, until now."""
        return _resident("VmHWM") - self._before


def _resident(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def in_own_process(script: str, variant: str, shape: Mapping[str, int]) -> dict[str, float]:
    """What a script prints as JSON when it is asked to measure one variant."""
    command = [sys.executable, script, "--variant", variant, *(f"--{name}={value}" for name, value in shape.items())]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    result: dict[str, float] = json.loads(done.stdout)
    return result
