"""Which peers are installed. None has to be: a benchmark goes on without those that are missing, and says so."""

from __future__ import annotations

import importlib.util


def is_installed(*packages: str) -> bool:
    """Whether all of these packages are; the missing ones are named on standard output."""
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    for package in missing:
        print(f"{package} is not installed: left out of what follows (requirements/bench.txt)", flush=True)
    return not missing
