"""Real questions: the queries of BEIR folders."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import cycle, islice
from pathlib import Path

from lightir.data import Dataset


def read_questions(data: Path, collections: Iterable[str], n: int) -> tuple[list[str], int]:
    """The collections' different questions one after the other, repeated to the number wanted; how many differ."""
    texts = dict.fromkeys(query.text for name in collections for query in Dataset.open(data / name).queries())
    return list(islice(cycle(texts), n)), min(len(texts), n)
