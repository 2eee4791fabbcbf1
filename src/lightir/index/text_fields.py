"""The text fields whose words BM25 counts, and their boosts (BM25F).

After Robertson, Zaragoza & Taylor, "Simple BM25 extension to multiple weighted fields" (CIKM 2004): the frequency of a
term in a document is the sum of its frequencies in the fields, each times the boost of the field. The length of a
document is the sum of the lengths of the fields, each times the boost. So a boost of 3 counts as if the field stood
three times in the document.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lightir.analysis import OF_A_MODEL
from lightir.errors import InvalidInput
from lightir.index.schema import Schema
from lightir.types import Document

TITLE, TEXT = "title", "text"
MAX_BOOST = 100

USUAL_BOOST_OF_TITLES = 5
"""Boost of titles that `lightir index` has by default, see docs/known-items.md."""

Boosts = Mapping[str, int]
"""Boost by field: "title", "text", or the name of a metadata field."""


def require_boosts(boosts: Boosts, schema: Schema | None, analyzer: str | None) -> None:
    """Check the boosts of an index.

    Raises:
        InvalidInput: a boost is not an integer from 1 to MAX_BOOST; a field is neither title, text nor a metadata field
            of text or keywords in the schema; or the index counts no words.
    """
    if boosts and (analyzer is None or analyzer in OF_A_MODEL):
        raise InvalidInput(f"boosts are weights of counted words, and an index with the analyzer {analyzer} has none")
    for name, boost in boosts.items():
        if not isinstance(boost, int) or isinstance(boost, bool) or not 1 <= boost <= MAX_BOOST:
            raise InvalidInput(f"the boost of {name!r} is {boost!r}; expected an integer from 1 to {MAX_BOOST}")
    typed = {} if schema is None else schema.fields
    for name in metadata_fields(boosts):
        known = typed.get(name)
        if known is None:
            fields = ", ".join([TITLE, TEXT, *(other for other, field in typed.items() if field.holds_words)])
            raise InvalidInput(
                f"boosts name {name!r}, which has no type in the schema; fields of words are {fields}. Declare its "
                f"type, such as --type {name}=text"
            )
        if not known.holds_words:
            raise InvalidInput(f"boosts name {name!r}, a {known.type} field; expected a field of text or keywords")


def counted_fields(boosts: Boosts) -> dict[str, int]:
    """Return the boost of each field whose words are counted: title and text, at least 1, and those with a boost."""
    return {TITLE: 1, TEXT: 1, **boosts}


def metadata_fields(boosts: Boosts) -> list[str]:
    """Return the metadata fields whose words are counted."""
    return [name for name in boosts if name not in (TITLE, TEXT)]


def field_text(document: Document, name: str) -> str:
    """Return the words of a field of a document; "" without the field.

    The strings of a list are joined by blanks. "author.name" is the field "name" of an object "author".
    """
    if name in (TITLE, TEXT):
        return document.title if name == TITLE else document.text
    value: Any = document.metadata
    for key in name.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return " ".join(_strings(value))


def metadata_texts(document: Document, boosts: Boosts) -> list[str]:
    """Return the words of each metadata field that has a boost."""
    return [field_text(document, name) for name in metadata_fields(boosts)]


def _strings(value: Any) -> Iterator[str]:
    """Yield a string, or the strings of a list and of lists in it."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        for element in value:
            yield from _strings(element)
