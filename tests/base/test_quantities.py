"""Counts with their noun, durations and sizes."""

from __future__ import annotations

from lightir.quantities import counted, format_duration, format_size, plural


def test_a_count_of_one_has_a_singular_noun():
    assert [counted(n, "deleted document") for n in (0, 1, 2, 1200)] == [
        "0 deleted documents",
        "1 deleted document",
        "2 deleted documents",
        "1,200 deleted documents",
    ]
    assert [plural(noun) for noun in ("query", "key", "batch", "box", "index entry", "pass")] == [
        "queries",
        "keys",
        "batches",
        "boxes",
        "index entries",
        "passes",
    ]


def test_durations_and_sizes_have_readable_units():
    assert [format_duration(s) for s in (0.0008, 3.21, 245)] == ["0.8 ms", "3.2 s", "4 min 05 s"]
    assert [format_size(n) for n in (0, 999, 1400, 2_500_000, 3e9)] == ["0 B", "999 B", "1.4 kB", "2.5 MB", "3.0 GB"]
