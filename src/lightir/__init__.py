"""lightir: text retrieval where documents meet a language model offline and queries need none."""

from __future__ import annotations

__version__ = "0.1.0"
