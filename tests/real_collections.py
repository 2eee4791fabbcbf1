"""Real collections, which are no part of the repository."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("LIGHTIR_DATA", Path(__file__).parents[2] / "shared" / "data"))


def real_collection(name: str) -> Path:
    """Return the folder of a collection; skip the test without it."""
    if not (FOLDER / name).is_dir():
        pytest.skip(f"{FOLDER} has no {name}; LIGHTIR_DATA names the folder of collections")
    return FOLDER / name
