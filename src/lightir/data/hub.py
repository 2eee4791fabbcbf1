"""Training sets out of Hugging Face data sets, by name or out of a folder, through the `datasets` library."""

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
from lightir.text import check_text
from lightir.types import Document

PREFIX = "hf:"
"""In front of a data set's name: `hf:owner/name`, `hf:owner/name:config`, or `hf:` and a folder."""

QUERY_COLUMNS = ("query", "anchor", "question")
POSITIVE_COLUMNS = ("positive_passages", "positive", "pos")
NEGATIVE_COLUMNS = ("negative_passages", "negative", "neg")
SCORE_COLUMNS = ("scores", "score")
ID_COLUMNS = ("query_id", "qid")
NUMBERED = re.compile(r"negative_(\d+)")


def open_hub(address: str, *, split: str = "train", instructions: Sequence[str]) -> TrainingSet:
    """A split of a Hugging Face data set, whose rows stay in its Arrow files.

    Two kinds of columns are known. Tevatron's: query, positive_passages and negative_passages, lists of objects with
    docid, title and text, perhaps query_id. Sentence-transformers': anchor (or query, question), positive, negative or
    negative_1, negative_2 and on, each a text or a list of texts, perhaps score or scores: a teacher's of the
    positives, then of the negatives. All rows of a query are one example; without an id its text says which they are.

    Args:
        address: `hf:owner/name`, `hf:owner/name:config`, or `hf:` and a folder that `save_to_disk` wrote.
        split: its split; a saved data set without splits has only "train".
        instructions: to draw from.

    Raises:
        MissingExtra: the `datasets` library is not installed.
        NotFound: no such data set, configuration or split can be reached.
        InvalidInput: columns that are not known, or a row that is not as they say.
    """
    name = address.removeprefix(PREFIX)
    table = _load(name, split)
    short = Path(name.partition(":")[0]).name
    rows = read_rows(TableRows(table, f"{address}, split {split}"), name=short)
    return TrainingSet.from_rows(short, rows, instructions=instructions)


def _load(name: str, split: str) -> Any:
    try:
        datasets = importlib.import_module("datasets")
    except ImportError:
        raise MissingExtra("the data set is read by the datasets library: pip install 'lightir[datasets]'") from None
    folder = Path(name)
    try:
        if folder.is_dir() and any((folder / f).is_file() for f in ("dataset_dict.json", "state.json")):
            found = datasets.load_from_disk(name)
        else:
            owner_and_name, _, config = name.partition(":")
            found = datasets.load_dataset(owner_and_name, config or None)
    except (OSError, ValueError) as error:  # no such data set, no network, no such configuration
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise NotFound(
            f"data set {name!r} cannot be loaded: {reason}; where the hub cannot be reached, a folder that "
            f"save_to_disk wrote does as well: {PREFIX}FOLDER"
        ) from error
    splits = found if isinstance(found, datasets.DatasetDict) else {"train": found}
    if split not in splits:
        raise NotFound(f"data set {name!r} has no split {split!r}; it has {', '.join(map(str, splits))}")
    return splits[split]


class TableRows:
    """The rows of a `datasets.Dataset`; a place is a row's number from 0."""

    def __init__(self, table: Any, name: str) -> None:
        """Over a table.

        Raises:
            InvalidInput: its columns are not known.
        """
        self._table, self._name = table, name
        columns = list(table.column_names)
        self._query = self._column(columns, QUERY_COLUMNS)
        self._positive = self._column(columns, POSITIVE_COLUMNS)
        numbered = sorted((int(match[1]), match[0]) for match in map(NUMBERED.fullmatch, columns) if match)
        self._negatives = [each for each in NEGATIVE_COLUMNS if each in columns] + [each for _, each in numbered]
        self._id = next((each for each in ID_COLUMNS if each in columns), None)
        self._scores = next((each for each in SCORE_COLUMNS if each in columns), None)

    def rows(self) -> Iterator[tuple[int, TrainingRow]]:
        """All rows."""
        return ((place, self._row(place, record)) for place, record in enumerate(self._table))

    def row(self, place: int) -> TrainingRow:
        """One row."""
        return self._row(place, self._table[place])

    def where(self, place: int) -> str:
        """The data set and the row's number, from 1."""
        return f"{self._name}, row {place + 1}"

    def _column(self, columns: Sequence[str], names: Sequence[str]) -> str:
        for name in names:
            if name in columns:
                return name
        raise InvalidInput(f"{self._name}: its columns are {list(columns)}; expected one of {', '.join(names)}")

    def _row(self, place: int, record: Mapping[str, Any]) -> TrainingRow:
        where = self.where(place)
        query = check_text(record[self._query], f"{where}: {self._query}")
        query_id = hashlib.sha256(query.encode()).hexdigest()[:16] if self._id is None else str(record[self._id])
        positives = _documents(record[self._positive], f"{where}: {self._positive}")
        negatives = [each for name in self._negatives for each in _documents(record[name], f"{where}: {name}")]
        if not positives:
            raise InvalidInput(f"{where}: {self._positive} is empty; an example needs a relevant document")
        scores = () if self._scores is None else parse_scores(_listed(record[self._scores]), f"{where}: {self._scores}")
        if scores and len(scores) != len(positives) + len(negatives):
            raise InvalidInput(f"{where}: {len(scores)} scores for {len(positives) + len(negatives)} documents")
        return TrainingRow(
            query_id,
            query,
            tuple(each.doc_id for each in positives),
            tuple(each.doc_id for each in negatives),
            (*positives, *negatives),
            scores,
        )


def _documents(value: Any, where: str) -> list[Document]:
    if isinstance(value, dict) and isinstance(value.get("text"), list):  # how `datasets` shows a Sequence of objects
        value = [dict(zip(value, each, strict=True)) for each in zip(*value.values(), strict=True)]
    return [parse_document(each, where) for each in _listed(value)]


def _listed(value: Any) -> list[Any]:
    """A column's value as a list: a list as it is, one value as a list of it, and none for None."""
    return value if isinstance(value, list) else [] if value is None else [value]
