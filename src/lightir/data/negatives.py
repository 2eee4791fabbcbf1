"""Mined negatives, stored as JSON lines."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from lightir.data.records import json_records, list_field, record_location
from lightir.errors import InvalidInput, NotFound
from lightir.files import write_bytes
from lightir.lines import read_nonblank_lines
from lightir.text import check_text
from lightir.types import Qrels, Ranking, Run


def write_negatives(path: Path | str, negatives: Mapping[str, Sequence[str]]) -> None:
    """Write JSON lines {"query_id", "negatives": [doc_id, …]}, best first, atomically."""
    lines = (
        json.dumps({"query_id": query_id, "negatives": list(doc_ids)}, ensure_ascii=False) + "\n"
        for query_id, doc_ids in negatives.items()
    )
    write_bytes(Path(path), "".join(lines).encode())


def read_negatives(path: Path | str) -> dict[str, tuple[str, ...]]:
    """Read a file that `write_negatives` wrote: query_id -> document ids, best first.

    Raises:
        NotFound: the file does not exist.
        InvalidInput: invalid line; the message names file and line.
    """
    path = Path(path)
    if not path.is_file():
        raise NotFound(f"{path} does not exist; mine negatives first: lightir mine")
    negatives: dict[str, tuple[str, ...]] = {}
    for number, record in json_records(str(path), read_nonblank_lines(path)):
        where = record_location(str(path), number)
        query_id = check_text(record.get("query_id"), f"{where}: query_id")
        if query_id in negatives:
            raise InvalidInput(f"{where}: duplicate query id {query_id!r}")
        negatives[query_id] = tuple(
            check_text(doc_id, f"{where}: a negative") for doc_id in list_field(record, "negatives", where)
        )
    return negatives


def collect_candidates(qrels: Qrels, negatives: Mapping[str, Sequence[str]]) -> Run:
    """Return the documents that a teacher scores for training: each query's relevant ones, then its negatives.

    Returns:
        A run whose scores only express this order.
    """
    run: Run = {}
    for query_id, grades in qrels.items():
        relevant = sorted((d for d, grade in grades.items() if grade > 0), key=lambda d: (-grades[d], d))
        doc_ids = list(dict.fromkeys([*relevant, *negatives.get(query_id, ())]))
        run[query_id] = Ranking(query_id, doc_ids, np.arange(len(doc_ids), 0, -1, dtype=np.float64))
    return run
