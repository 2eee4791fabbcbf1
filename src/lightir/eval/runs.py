"""Run and qrels files: TREC's, and ranx's JSON."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lightir.errors import InvalidInput, NotFound
from lightir.files import write_bytes
from lightir.lines import holds_json, read_json_numbers, read_lines
from lightir.types import Qrels, Ranking, Run, escape_id, unescape_id


def write_run(path: Path | str, run: Run, *, tag: str = "lightir") -> None:
    """Write a run in TREC's six columns (query id, Q0, document id, rank from 1, score, tag), atomically.

    Written scores are strictly descending in single precision, which trec_eval reads them in: an equal score is lowered
    by the smallest step. Every tool therefore sees the same order, however it breaks ties. Blanks and "%" in ids, which
    the format does not allow, are escaped as %XX; `read_run` reverts that. A path that ends in .json gets ranx's format
    instead: an object of query ids, of objects of document ids and scores, without the tag.

    Raises:
        InvalidInput: an empty id, a score that is not finite, a duplicate document for one query, ascending scores, or
            a tag that is empty or contains blanks.
    """
    if not tag or re.search(r"\s", tag):
        raise InvalidInput(f"the run's tag is {tag!r}; expected one word")
    if holds_json(path):
        table = {query_id: dict(_checked(ranking)) for query_id, ranking in run.items()}
        write_bytes(Path(path), json.dumps(table, ensure_ascii=False).encode())
        return
    write_bytes(Path(path), "".join(_run_lines(run, tag)).encode())


def _checked(ranking: Ranking) -> list[tuple[str, float]]:
    """Return documents and their strictly descending scores."""
    query_id = ranking.query_id
    if len(set(ranking.doc_ids)) < len(ranking):
        raise InvalidInput(f"query {query_id!r}: duplicate document in the ranking")
    if not np.all(np.isfinite(ranking.scores)) or np.any(np.diff(ranking.scores) > 0):
        raise InvalidInput(f"query {query_id!r}: scores must be finite and not ascend within the ranking")
    return list(zip(ranking.doc_ids, distinct_scores(ranking.scores).astype(np.float64).tolist(), strict=True))


def _run_lines(run: Run, tag: str) -> Iterator[str]:
    for query_id, ranking in run.items():
        name = escape_id(query_id)
        for rank, (doc_id, score) in enumerate(_checked(ranking), 1):
            yield f"{name} Q0 {escape_id(doc_id)} {rank} {np.float32(score)!s} {tag}\n"


def distinct_scores(scores: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    """Return descending scores as strictly descending float32: an equal score is lowered by the smallest step."""
    lowered = np.empty(len(scores), dtype=np.float32)
    last = np.float32(np.inf)
    for rank, score in enumerate(scores):
        last = min(np.float32(score), np.nextafter(last, np.float32(-np.inf)))
        lowered[rank] = last
    return lowered


def read_run(path: Path | str) -> Run:
    """Read a run file, plain or gzipped; rankings are sorted by descending score, then ascending document id.

    A file whose name ends in .json or .json.gz has ranx's format, another one TREC's. The rank column is ignored.
    Escaped blanks and "%" in ids of TREC's format (%20, %09, %25, …) are restored, other escapes are kept.

    Raises:
        NotFound: the file does not exist.
        InvalidInput: a line without six columns, a score that is not a number, a duplicate document, invalid UTF-8, or
            a damaged gzip stream. The message names file and line.
    """
    if holds_json(path):
        _require_file(Path(path))
        return {
            query_id: rank_by_score(query_id, row) for query_id, row in read_json_numbers(Path(path), float).items()
        }
    by_query: dict[str, dict[str, float]] = {}
    for number, columns in _columns(Path(path), 6):
        query_id, doc_id = unescape_id(columns[0]), unescape_id(columns[2])
        where = f"{path}, line {number}"
        try:
            score = float(columns[4])
        except ValueError:
            score = math.nan
        if not math.isfinite(score):
            raise InvalidInput(f"{where}: the score is {columns[4]!r}; expected a finite number")
        scores = by_query.setdefault(query_id, {})
        if doc_id in scores:
            raise InvalidInput(f"{where}: duplicate document {doc_id!r} for query {query_id!r}")
        scores[doc_id] = score
    return {query_id: rank_by_score(query_id, scores) for query_id, scores in by_query.items()}


def rank_by_score(query_id: str, scores: dict[str, float]) -> Ranking:
    """Return a ranking of documents by descending score, then ascending id."""
    ordered = sorted(scores.items(), key=lambda item: (-item[1], item[0]))
    return Ranking(query_id, [doc_id for doc_id, _ in ordered], np.array([s for _, s in ordered], dtype=np.float64))


def write_qrels(path: Path | str, qrels: Qrels) -> None:
    """Write qrels in TREC's four columns, with ids escaped as in `write_run`; `read_qrels` restores them.

    A path that ends in .json gets ranx's format: an object of query ids, of objects of document ids and grades.
    """
    if holds_json(path):
        write_bytes(Path(path), json.dumps(qrels, ensure_ascii=False).encode())
        return
    lines = [
        f"{escape_id(query_id)} 0 {escape_id(doc_id)} {grade}\n"
        for query_id, grades in qrels.items()
        for doc_id, grade in grades.items()
    ]
    write_bytes(Path(path), "".join(lines).encode())


def _columns(path: Path, n_columns: int) -> Iterator[tuple[int, list[str]]]:
    _require_file(path)
    for number, line in read_lines(path):
        columns = line.split()
        if columns and len(columns) != n_columns:
            raise InvalidInput(f"{path}, line {number}: {len(columns)} columns; expected {n_columns}")
        if columns:
            yield number, columns


def _require_file(path: Path) -> None:
    if not path.exists() or path.is_dir():  # pipes such as <(zcat run.gz) are allowed
        raise NotFound(f"{path} does not exist; expected a run file")
