"""Training examples from JSON lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightir.data.examples import TrainingExample, parse_document, parse_scores
from lightir.data.records import json_records, list_field, record_location
from lightir.errors import InvalidInput, NotFound
from lightir.lines import read_nonblank_lines
from lightir.text import check_text
from lightir.types import Document


def read_jsonl_examples(path: Path, name: str) -> tuple[list[TrainingExample], dict[str, Document]]:
    """Read the examples of the data set `name` and their documents by id, in the format of `TrainingSet.open_jsonl`.

    Raises:
        NotFound: the file does not exist.
        InvalidInput: invalid line; the message names file and line.
    """
    if not path.is_file():
        raise NotFound(f"{path} does not exist; expected a file of training examples")
    documents: dict[str, Document] = {}
    examples = [
        _example(record, number, name, documents, record_location(str(path), number))
        for number, record in json_records(str(path), read_nonblank_lines(path))
    ]
    return examples, documents


def _example(
    record: dict[str, Any], number: int, name: str, documents: dict[str, Document], where: str
) -> TrainingExample:
    if unknown := sorted(record.keys() - {"query_id", "query", "positives", "negatives", "scores"}):
        raise InvalidInput(
            f"{where}: unknown field {unknown[0]!r}; expected query, positives, negatives, scores, query_id"
        )
    query = check_text(record.get("query"), f"{where}: query")
    positives, negatives = (
        tuple(_add_document(value, documents, f"{where}: {role}") for value in list_field(record, role, where))
        for role in ("positives", "negatives")
    )
    query_id = check_text(record.get("query_id", str(number)), f"{where}: query_id")
    scores = _scores(record, len(positives) + len(negatives), where)
    return TrainingExample(query_id, query, positives, negatives, name, scores=scores)


def _scores(record: dict[str, Any], n: int, where: str) -> tuple[float, ...]:
    values = list_field(record, "scores", where)
    if values and len(values) != n:
        raise InvalidInput(f"{where}: {len(values)} scores for {n} positives and negatives")
    return parse_scores(values, where)


def _add_document(value: Any, documents: dict[str, Document], where: str) -> str:
    """Parse a document, add it to the documents, and return its id."""
    document = parse_document(value, where)
    if documents.setdefault(document.doc_id, document) != document:
        raise InvalidInput(f"{where}: duplicate document id {document.doc_id!r} with another text")
    return document.doc_id
