"""The version of this release, which pyproject.toml reads from here."""

from __future__ import annotations

__version__ = "0.1.0"
