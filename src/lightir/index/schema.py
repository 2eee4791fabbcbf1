"""The schema of an index: the type of each metadata field, by which values are checked and filters compare.

A type is declared (`Field`) or inferred from documents (`infer`). An index without a schema stores any values, and its
filters compare values by their JSON types.
"""

from __future__ import annotations

import datetime
import itertools
import json
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast, get_args

from lightir.errors import InvalidInput
from lightir.files import read_json
from lightir.types import Cells, Document

FieldType = Literal["number", "boolean", "date", "keyword", "text"]

FIELD_TYPES: tuple[FieldType, ...] = get_args(FieldType)
KEY = "key"
"""Short name of a keyword field with the flag `key`, in --type and schema files."""

INFERRED_DOCUMENTS = 65_536
"""Number of documents from which types are inferred; a build holds as many in memory anyway."""

MAX_FIELDS, MAX_LEVELS = 1000, 8
"""Maximum number of fields of an inferred schema, and of keys in the name of a field."""

TEXT_WORDS = 8
"""Strings with more words than this in the mean are inferred to be text, others keywords."""

_NUMBER = re.compile(r"[+-]?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3})?")
_DATE = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?:[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,9})?)?(?:Z|[+-][0-9]{2}:?[0-9]{2})?)?"
)
_DIGITS = 15  # float64 represents all such numbers exactly
_EPOCH = datetime.datetime(1970, 1, 1)
_MICROSECOND, _DAY = datetime.timedelta(microseconds=1), 86_400_000_000
_EXPECTED = {
    "number": "a number (in 64 bits, and in a string without leading zeros and of at most 15 digits)",
    "boolean": "true or false",
    "date": 'an ISO 8601 date or date-time, such as "2024-05-31" or "2024-05-31T08:00:00Z"',
    "keyword": "a string",
    "text": "a string",
}


@dataclass(frozen=True, slots=True)
class Span:
    """A span of time: a whole day for a date, one microsecond for a date-time.

    Attributes:
        start: first microsecond since 1970, in UTC.
        end: first microsecond after the span.
    """

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Field:
    """The type of a metadata field, or of the elements of its lists. A value may always be null or missing.

    Attributes:
        type: "number"; "boolean"; "date" (ISO 8601 dates and date-times; without a time zone they are UTC); "keyword"
            (a string that is compared as a whole); or "text" (a string of words).
        key: whether a value names one document, as a part number does; keywords only. A query with the value finds
            that document first, see `SearchOptions.syntax`.

    Raises:
        InvalidInput: an unknown type, or a key that is no keyword.
    """

    type: FieldType
    key: bool = False

    def __post_init__(self) -> None:
        if self.type not in FIELD_TYPES:
            raise InvalidInput(f"type {self.type!r} is unknown; expected {', '.join((*FIELD_TYPES, KEY))}")
        if self.key and self.type != "keyword":
            raise InvalidInput(f"a key field is a keyword; this one has the type {self.type}")

    @property
    def holds_words(self) -> bool:
        """Whether the values are strings of words, which BM25 can count."""
        return self.type in ("text", "keyword")

    def __str__(self) -> str:
        """Return the type, and whether it is a key."""
        return f"{self.type}{', key' * self.key}"


@dataclass(frozen=True, slots=True)
class Schema:
    """The types of metadata fields. Fields without a type hold any JSON values.

    Attributes:
        fields: type of each field by its name; "author.name" is the field "name" of an object "author".
    """

    fields: Mapping[str, Field] = field(default_factory=dict)

    def with_fields(self, declared: Mapping[str, Field]) -> Schema:
        """Return the schema with further fields, which replace those of the same name."""
        return replace(self, fields={**self.fields, **declared})

    def require(self, name: str) -> Field:
        """Return the type of a field.

        Raises:
            InvalidInput: the schema does not have the field.
        """
        if name not in self.fields:
            known = ", ".join(self.fields) or "none"
            raise InvalidInput(f"the field {name!r} has no type; the fields with one: {known}")
        return self.fields[name]

    def value(self, name: str, value: Any, doc_id: str) -> Any:
        """Return a value of a field with the field's type, as `typed` does; unchanged if the field has none."""
        known = self.fields.get(name)
        return value if known is None else _typed(value, known, name, doc_id)

    def typed(self, document: Document) -> Document:
        """Return a document whose metadata have the types of the schema.

        A string becomes the number or boolean that it reads as, and a number or boolean in a field of strings becomes
        its JSON text. An empty cell of a table is a missing value.

        Raises:
            InvalidInput: a value of another type; the message names document and field.
        """
        if not document.metadata or not isinstance(document.metadata, Mapping):
            return document  # the store refuses what is no object
        return replace(document, metadata=self._typed_object(document.metadata, "", document.doc_id))

    def _typed_object(self, values: Mapping[str, Any], prefix: str, doc_id: str) -> dict[str, Any]:
        typed = {}
        for key, value in values.items():
            if isinstance(values, Cells) and value == "":
                continue
            known = self.fields.get(f"{prefix}{key}") if isinstance(key, str) else None
            if known is not None:
                value = _typed(value, known, f"{prefix}{key}", doc_id)
            elif isinstance(value, Mapping) and prefix.count(".") < MAX_LEVELS:
                value = self._typed_object(value, f"{prefix}{key}.", doc_id)
            typed[key] = value
        return typed


def _typed(value: Any, known: Field, name: str, doc_id: str) -> Any:
    if value is None:
        return None
    if isinstance(value, list | tuple):
        return [_typed(element, known, name, doc_id) for element in value]
    typed = _converted(value, known.type)
    if typed is None:
        shown = json.dumps(value, ensure_ascii=False, default=repr)
        raise InvalidInput(
            f"document {doc_id!r}: the field {name!r} is {shown if len(shown) <= 60 else shown[:57] + '...'}; expected "
            f"{_EXPECTED[known.type]}. Correct it, or build the index with another type for the field, such as --type "
            f"{name}=keyword"
        )
    return typed


def _converted(value: Any, kind: FieldType) -> Any:
    """Return a scalar as a value of a type; None if it is not one."""
    if kind in ("keyword", "text"):
        return value if isinstance(value, str) else json.dumps(value) if isinstance(value, bool | int | float) else None
    if isinstance(value, str):
        text = value.strip()
        if kind == "date":
            return None if span(text) is None else text
        return number(text) if kind == "number" else {"true": True, "false": False}.get(text.lower())
    if kind == "number" and isinstance(value, int | float) and not isinstance(value, bool):
        return value if isinstance(value, float) or -(2**63) <= value < 2**63 else None
    return value if kind == "boolean" and isinstance(value, bool) else None


def number(text: str) -> int | float | None:
    """Return the number that a text reads as; None if it is none, has leading zeros or more than 15 digits."""
    if _NUMBER.fullmatch(text) is None or len(re.sub(r"[eE].*|[^0-9]", "", text)) > _DIGITS:
        return None
    value = float(text)
    if value.is_integer() and abs(value) < 10**_DIGITS:
        return int(value)  # 24.00 is 24
    return value if abs(value) < float("inf") else None


def span(text: str) -> Span | None:
    """Return the span of time that an ISO 8601 date or date-time names; None if the text is neither."""
    if _DATE.fullmatch(text) is None:
        return None
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        return None
    offset = moment.utcoffset() or datetime.timedelta()
    start = (moment.replace(tzinfo=None) - _EPOCH - offset) // _MICROSECOND
    return Span(start, start + (_DAY if len(text) == 10 else 1))


class _Values:
    """The types that fit all values of a field so far."""

    def __init__(self) -> None:
        self.possible = {"number", "boolean", "date", "string"}
        self.n_values = self.n_words = 0

    def add(self, value: Any, *, cell: bool) -> None:
        """Note a value that is not null; `cell` is whether it is a string that may stand for another type."""
        for kind in [*self.possible]:
            fits: bool
            if kind == "string":
                fits = isinstance(value, str)
            elif kind == "date" or cell or not isinstance(value, str):
                fits = _converted(value, cast(FieldType, kind)) is not None
            else:
                fits = False
            if not fits:
                self.possible.discard(kind)
        if isinstance(value, str):
            self.n_values += 1
            self.n_words += len(value.split())

    def field(self) -> Field | None:
        """Return the type that fits all values; None if there is none."""
        for kind in ("number", "boolean", "date"):
            if kind in self.possible:
                return Field(cast(FieldType, kind))
        if "string" not in self.possible:
            return None
        return Field("text" if self.n_words > TEXT_WORDS * self.n_values else "keyword")


def infer(documents: Iterable[Document]) -> Schema:
    """Return the schema that fits documents.

    A field has a type if one fits all its values. The strings of a table without types (`Cells`) may be numbers,
    without leading zeros and of at most 15 digits, or booleans. Strings that are all ISO 8601 dates are dates. Other
    strings are text if they have more than TEXT_WORDS words in the mean, otherwise keywords. An object holds fields. A
    field has no type if its values have several, or if its name contains a dot or a double quote.

    Args:
        documents: documents; of more than MAX_FIELDS fields the first ones get types.
    """
    by_name: dict[str, _Values] = {}
    for document in documents:
        for name, value in _scalars(document.metadata, ""):
            if value is None or (value == "" and isinstance(document.metadata, Cells)):
                continue
            if name in by_name or len(by_name) < MAX_FIELDS:
                by_name.setdefault(name, _Values()).add(value, cell=isinstance(document.metadata, Cells))
    fields = {name: values.field() for name, values in by_name.items()}
    return Schema({name: known for name, known in fields.items() if known is not None})


def _scalars(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield the name and value of each field, objects included, and of each element of a list."""
    for key, value in values.items():
        if not isinstance(key, str) or not key or re.search(r'[."\0]', key):
            continue
        if isinstance(value, list | tuple):
            yield from ((prefix + key, element) for element in value)
        else:
            yield prefix + key, value
        if isinstance(value, Mapping) and prefix.count(".") < MAX_LEVELS - 1:
            yield from _scalars(value, f"{prefix}{key}.")


def infer_from_first(documents: Iterable[Document]) -> tuple[Schema, Iterator[Document]]:
    """Return the schema of the first INFERRED_DOCUMENTS documents, and an iterator over all documents."""
    remaining = iter(documents)
    first = deque(itertools.islice(remaining, INFERRED_DOCUMENTS))
    return infer(first), _drained(first, remaining)


def _drained(first: deque[Document], remaining: Iterator[Document]) -> Iterator[Document]:
    while first:
        yield first.popleft()
    yield from remaining


def read_schema(path: Path | str) -> dict[str, Field]:
    """Read declared fields from a JSON file: {"price": "number", "sku": {"type": "keyword", "key": true}}.

    Raises:
        InvalidInput: the file does not have this form; the message names the field.
        NotFound, FormatError: the file does not exist, or is not JSON.
    """
    content = read_json(Path(path))
    if not isinstance(content, dict):
        raise InvalidInput(f"{path} holds {type(content).__name__}; expected an object of field -> type")
    return {name: declared_field(name, value, str(path)) for name, value in content.items()}


def require_name(name: Any, where: str) -> None:
    """Raise InvalidInput unless a field is one key or several joined by dots; the message begins with `where`."""
    if not isinstance(name, str) or not all(name.split(".")) or re.search(r'["\0]', name):
        raise InvalidInput(f"{where}: the field {name!r} is not one key or several joined by dots, without quotes")


def declared_field(name: str, value: Any, where: str) -> Field:
    """Return the field that a type's name, or an object with the attributes of `Field`, declares.

    Raises:
        InvalidInput: a malformed name or type; the message begins with `where`.
    """
    require_name(name, where)
    try:
        if value == KEY:
            return Field("keyword", key=True)
        if isinstance(value, str):
            return Field(cast(FieldType, value))
        kinds = {"type": str, "key": bool}
        known = isinstance(value, dict) and "type" in value and value.keys() <= kinds.keys()
        if known and all(isinstance(value[part], kinds[part]) for part in value):
            return Field(**value)
    except InvalidInput as error:
        raise InvalidInput(f"{where}: the field {name!r}: {error}") from None
    shown = json.dumps(value, ensure_ascii=False)[:60]
    raise InvalidInput(
        f"{where}: the field {name!r} is {shown}; expected one of {', '.join((*FIELD_TYPES, KEY))}, or an object with "
        "type, and perhaps key"
    )
