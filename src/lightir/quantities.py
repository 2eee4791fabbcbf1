"""Counts with their noun, durations and sizes, as messages print them."""

from __future__ import annotations


def counted(n: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless it is 1: "1 document", "1,200 documents", "0 queries".

    Args:
        n: number, printed with separators of thousands.
        noun: noun in the singular, perhaps with words before it.
    """
    return f"{n:,} {noun if n == 1 else plural(noun)}"


def plural(noun: str) -> str:
    """Return the regular plural: "documents", "queries", "batches"."""
    if noun.endswith("y") and noun[-2:-1] not in tuple("aeiou"):
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith(("s", "x", "ch", "sh")) else f"{noun}s"


def format_duration(seconds: float) -> str:
    """Format a duration: "0.8 ms", "3.2 s", "4 min 05 s"."""
    if seconds < 1:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s"


def format_size(n_bytes: float) -> str:
    """Format a number of bytes: "512 B", "1.4 MB"."""
    for unit in ("B", "kB", "MB"):
        if n_bytes < 1000:
            return f"{n_bytes:.0f} {unit}" if unit == "B" else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.1f} GB"
