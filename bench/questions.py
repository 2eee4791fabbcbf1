"""Real questions: the queries of BEIR folders."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import cycle, islice
from pathlib import Path

from lightir.data import Dataset
from lightir.errors import NotFound


def read_questions(data: Path, collections: Iterable[str], n: int) -> tuple[list[str], int]:
    """The collections' different questions one after the other, repeated to the number wanted; how many differ."""
    try:
        texts = dict.fromkeys(query.text for name in collections for query in Dataset.open(data / name).queries())
    except NotFound as error:
        sys.exit(f"{error}; --data or LIGHTIR_DATA names the folder of the collections, --collections others")
    return list(islice(cycle(texts), n)), min(len(texts), n)
