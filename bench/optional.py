"""Optional peers of the benchmarks: a benchmark skips those that are not installed, and says so."""

from __future__ import annotations

import importlib.util


def is_installed(*packages: str) -> bool:
    """Return whether all packages are installed, and print the missing ones."""
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    for package in missing:
        print(f"{package} is not installed and is skipped (see requirements/bench.lock)", flush=True)
    return not missing
