"""TREC run and judgement files."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from lightir.errors import InvalidInput, NotFound
from lightir.files import write_bytes
from lightir.lines import read_lines
from lightir.types import Qrels, Ranking, Run, escape_id, unescape_id


def write_run(path: Path | str, run: Run, *, tag: str = "lightir") -> None:
    """Write the run in TREC's six columns (query id, Q0, document id, rank from 1, score, tag), whole or not at all.

    Scores are written so that they fall strictly, also in the single precision that trec_eval reads them with: an
    equal one is lowered by the least step. So every tool sees the order that we measured, whatever it does with ties.
    Blanks and "%" in ids, which the format has no room for, are written %XX as in a URL; read_run undoes it.

    Raises:
        InvalidInput: an empty id, a score that is no finite number, a document twice for one query, scores that rise,
            or a tag that is empty or holds blanks.
    """
    if not tag or re.search(r"\s", tag):
        raise InvalidInput(f"the run's tag {tag!r} must be one word")
    write_bytes(Path(path), "".join(_run_lines(run, tag)).encode())


def _run_lines(run: Run, tag: str) -> Iterator[str]:
    for query_id, ranking in run.items():
        name = escape_id(query_id)
        if len(set(ranking.doc_ids)) < len(ranking):
            raise InvalidInput(f"query {query_id!r}: a document stands twice in its ranking")
        if not np.all(np.isfinite(ranking.scores)) or np.any(np.diff(ranking.scores) > 0):
            raise InvalidInput(f"query {query_id!r}: scores must be finite and must not rise down the ranking")
        last = np.float32(np.inf)
        for rank, (doc_id, score) in enumerate(zip(ranking.doc_ids, ranking.scores, strict=True), 1):
            last = min(np.float32(score), np.nextafter(last, np.float32(-np.inf)))
            yield f"{name} Q0 {escape_id(doc_id)} {rank} {last!s} {tag}\n"


def read_run(path: Path | str) -> Run:
    """The run in a TREC file: every ranking by score down, then document id up; the rank column is not read.

    The file may be gzipped. Ids' %XX escapes of blanks and of "%" (%20, %09, %25, …) are undone, all others stay.

    Raises:
        NotFound: there is no such file.
        InvalidInput: file and line are named: not six columns, a score that is no number, a document twice, bytes that
            are not UTF-8, a broken gzip stream.
    """
    found: dict[str, dict[str, float]] = {}
    for number, columns in _columns(Path(path), 6):
        query_id, doc_id = unescape_id(columns[0]), unescape_id(columns[2])
        where = f"{path}, line {number}"
        try:
            score = float(columns[4])
        except ValueError:
            score = math.nan
        if not math.isfinite(score):
            raise InvalidInput(f"{where}: the score is {columns[4]!r}; expected a finite number")
        scores = found.setdefault(query_id, {})
        if doc_id in scores:
            raise InvalidInput(f"{where}: document {doc_id!r} came before for query {query_id!r}")
        scores[doc_id] = score
    return {query_id: rank_by_score(query_id, scores) for query_id, scores in found.items()}


def rank_by_score(query_id: str, scores: dict[str, float]) -> Ranking:
    """The documents in total order: score down, then id up."""
    ordered = sorted(scores.items(), key=lambda item: (-item[1], item[0]))
    return Ranking(query_id, [doc_id for doc_id, _ in ordered], np.array([s for _, s in ordered], dtype=np.float64))


def write_qrels(path: Path | str, qrels: Qrels) -> None:
    """Write judgements in TREC's four columns, ids escaped as write_run does; read_qrels undoes it."""
    lines = [
        f"{escape_id(query_id)} 0 {escape_id(doc_id)} {grade}\n"
        for query_id, grades in qrels.items()
        for doc_id, grade in grades.items()
    ]
    write_bytes(Path(path), "".join(lines).encode())


def _columns(path: Path, n_columns: int) -> Iterator[tuple[int, list[str]]]:
    if not path.exists() or path.is_dir():  # a pipe may be read, as a shell's <(zcat run.gz) is one
        raise NotFound(f"{path} does not exist; a TREC file is needed")
    for number, line in read_lines(path):
        columns = line.split()
        if columns and len(columns) != n_columns:
            raise InvalidInput(f"{path}, line {number}: {len(columns)} columns; expected {n_columns}")
        if columns:
            yield number, columns
