"""The version of this release, which pyproject.toml reads from here."""

from __future__ import annotations

from pathlib import Path

__version__ = "0.1.0"

SOURCE_ROOT = Path(__file__).resolve().parents[2]
"""Root of the checkout, where the package runs from one."""
