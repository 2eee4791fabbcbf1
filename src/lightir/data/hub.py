"""Training sets and corpora from Hugging Face data sets, by name or from a folder, through the `datasets` library."""

from __future__ import annotations

import hashlib
import importlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lightir.data.examples import TrainingRow, parse_document, parse_scores, read_rows
from lightir.data.training_set import TrainingSet
from lightir.errors import InvalidInput, MissingExtra, NotFound
from lightir.quantities import counted
from lightir.text import check_text
from lightir.types import Document

PREFIX = "hf:"
"""Prefix of a data set's address: `hf:owner/name`, `hf:owner/name:config`, or `hf:` and a folder."""

QUERY_COLUMNS = ("query", "anchor", "question")
POSITIVE_COLUMNS = ("positive_passages", "positive", "pos")
NEGATIVE_COLUMNS = ("negative_passages", "negative", "neg")
SCORE_COLUMNS = ("scores", "score")
ID_COLUMNS = ("query_id", "qid")
TEXT_COLUMNS = ("text", "passage", "contents")
DOCUMENT_ID_COLUMNS = ("docid", "_id", "id", "passage_id")
NUMBERED = re.compile(r"negative_(\d+)")


def open_hub(address: str, *, split: str = "train", instructions: Sequence[str]) -> TrainingSet:
    """Open a split of a Hugging Face data set as a training set that reads rows from its Arrow files on access.

    Two layouts are supported. Tevatron: query, positive_passages and negative_passages (lists of objects with docid,
    title and text), optional query_id. Sentence-transformers: anchor (or query, question), positive, negative or
    negative_1, negative_2, …, each a text or a list of texts; optional score or scores, a teacher's scores of the
    positives and then of the negatives. All rows of a query form one example; rows without an id are grouped by text.

    Args:
        address: `hf:owner/name`, `hf:owner/name:config`, or `hf:` and a folder that `save_to_disk` wrote.
        split: name of the split; a saved data set without splits has only "train".
        instructions: instructions that training draws from.

    Raises:
        MissingExtra: the `datasets` library is not installed.
        NotFound: the data set, configuration or split cannot be loaded.
        InvalidInput: unsupported columns, or an invalid row.
    """
    name = address.removeprefix(PREFIX)
    table = _load(name, split)
    short = Path(name.partition(":")[0]).name
    rows = read_rows(TableRows(table, f"{address}, split {split}"), name=short)
    return TrainingSet.from_rows(short, rows, instructions=instructions)


def read_hub_documents(address: str, *, split: str = "train") -> Iterator[Document]:
    """Yield the documents of a split of a Hugging Face data set, from its Arrow files, a batch of rows at a time.

    The text is in one of the columns TEXT_COLUMNS, such as Tevatron's corpora with docid, title and text. A row without
    an id has its number, from 0. Rows without text are skipped.

    Args:
        address: `hf:owner/name`, `hf:owner/name:config`, or `hf:` and a folder that `save_to_disk` wrote.
        split: name of the split; a saved data set without splits has only "train".

    Raises:
        MissingExtra: the `datasets` library is not installed.
        NotFound: the data set, configuration or split cannot be loaded.
        InvalidInput: no column with text, or an invalid row.
    """
    table, where = _load(address.removeprefix(PREFIX), split), f"{address}, split {split}"
    columns = list(table.column_names)
    text = _column(columns, TEXT_COLUMNS, where)
    name = next((column for column in DOCUMENT_ID_COLUMNS if column in columns), None)
    used = [column for column in (name, "title", text) if column in columns]
    for number, record in enumerate(table.select_columns(used)):
        location = f"{where}, row {number + 1}"
        if record[text] and str(record[text]).strip():
            title = check_text(record.get("title") or "", f"{location}: title")
            doc_id = str(number if name is None else record[name])
            yield Document(doc_id, check_text(record[text], f"{location}: {text}"), title)


def _load(name: str, split: str) -> Any:
    try:
        datasets = importlib.import_module("datasets")
    except ImportError:
        raise MissingExtra("reading hub data sets requires datasets: pip install 'lightir[datasets]'") from None
    folder = Path(name)
    try:
        if folder.is_dir() and any((folder / f).is_file() for f in ("dataset_dict.json", "state.json")):
            loaded = datasets.load_from_disk(name)
        else:
            owner_and_name, _, config = name.partition(":")
            loaded = datasets.load_dataset(owner_and_name, config or None)
    except (OSError, ValueError) as error:  # no such data set, no network, no such configuration
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise NotFound(
            f"cannot load data set {name!r}: {reason}. Without access to the hub, save it with save_to_disk elsewhere "
            f"and give the folder: {PREFIX}FOLDER"
        ) from error
    splits = loaded if isinstance(loaded, datasets.DatasetDict) else {"train": loaded}
    if split not in splits:
        raise NotFound(f"data set {name!r} has no split {split!r}; it has {', '.join(map(str, splits))}")
    return splits[split]


class TableRows:
    """The rows of a `datasets.Dataset`; a row's location is its number, from 0."""

    def __init__(self, table: Any, name: str) -> None:
        """Wrap a table.

        Raises:
            InvalidInput: unsupported columns.
        """
        self._table, self._name = table, name
        columns = list(table.column_names)
        self._query = _column(columns, QUERY_COLUMNS, name)
        self._positive = _column(columns, POSITIVE_COLUMNS, name)
        numbered = sorted((int(match[1]), match[0]) for match in map(NUMBERED.fullmatch, columns) if match)
        self._negatives = [*filter(columns.__contains__, NEGATIVE_COLUMNS), *(column for _, column in numbered)]
        self._id = next((column for column in ID_COLUMNS if column in columns), None)
        self._scores = next((column for column in SCORE_COLUMNS if column in columns), None)

    def rows(self) -> Iterator[tuple[int, TrainingRow]]:
        """Iterate over the rows."""
        return ((number, self._parse(number, record)) for number, record in enumerate(self._table))

    def row(self, location: int) -> TrainingRow:
        """Parse a row."""
        return self._parse(location, self._table[location])

    def describe(self, location: int) -> str:
        """Return the data set's name and the row's number, from 1."""
        return f"{self._name}, row {location + 1}"

    def _parse(self, location: int, record: Mapping[str, Any]) -> TrainingRow:
        where = self.describe(location)
        query = check_text(record[self._query], f"{where}: {self._query}")
        query_id = hashlib.sha256(query.encode()).hexdigest()[:16] if self._id is None else str(record[self._id])
        positives = _documents(record[self._positive], f"{where}: {self._positive}")
        negatives = [document for name in self._negatives for document in _documents(record[name], f"{where}: {name}")]
        if not positives:
            raise InvalidInput(f"{where}: {self._positive} is empty; an example requires a relevant document")
        scores: tuple[float, ...] = ()
        if self._scores is not None:
            scores = parse_scores(_as_list(record[self._scores]), f"{where}: {self._scores}")
        if scores and len(scores) != len(positives) + len(negatives):
            raise InvalidInput(
                f"{where}: {counted(len(scores), 'score')} for {counted(len(positives) + len(negatives), 'document')}"
            )
        return TrainingRow(
            query_id,
            query,
            tuple(document.doc_id for document in positives),
            tuple(document.doc_id for document in negatives),
            (*positives, *negatives),
            scores,
        )


def _column(columns: Sequence[str], names: Sequence[str], where: str) -> str:
    """Return the first of the names that is a column."""
    for name in names:
        if name in columns:
            return name
    raise InvalidInput(f"{where}: the columns are {list(columns)}; expected one of {', '.join(names)}")


def _documents(value: Any, where: str) -> list[Document]:
    if isinstance(value, dict) and isinstance(value.get("text"), list):  # how `datasets` returns a Sequence of objects
        value = [dict(zip(value, fields, strict=True)) for fields in zip(*value.values(), strict=True)]
    return [parse_document(item, where) for item in _as_list(value)]


def _as_list(value: Any) -> list[Any]:
    """Return a list unchanged, another value as a list of one, and None as an empty list."""
    return value if isinstance(value, list) else [] if value is None else [value]
