"""Query syntax: phrases, excluded words and conditions on fields in the text of a query.

    "steel kettle"      the document contains these words next to each other
    -plastic            the document does not contain the word
    -"made in"          the document does not contain the phrase
    brand:Norda         the field has this value, or contains this word if it is a text field
    brand:"Norda Home"  a value of several words
    -brand:Norda        the field does not have this value

An item begins at the start of the query or after a blank. Text that is no such item is plain words: a quote without a
second one, a dash alone, two dashes, a name that is no field with a type, a value that does not fit the field's type.
So https://example.org, C++: and 12:30 are words. Every text can be parsed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from lightir.index.schema import Field, number, span

MAX_CONDITIONS = 32
"""Maximum number of phrases, exclusions and conditions of a query; further ones are plain words."""

MAX_PHRASE = 500
"""Maximum number of characters of a phrase or value; a longer one is plain words."""

FieldValue: TypeAlias = str | int | float | bool

_MARK = re.compile(r'["“:]|(?<!\S)-')
_ITEM_START = re.compile(r'(?<!\S)(-?)(?:([^\s":“”]+):)?(["“])?')
_WORD = re.compile(r"\S+")
_CLOSING = {'"': '"', "“": "”"}


@dataclass(frozen=True, slots=True)
class FieldCondition:
    """A condition on a metadata field.

    Attributes:
        name: name of the field, which has a type in the schema.
        value: wanted value: a number, a boolean, or a string (dates too).
        excluded: whether documents with the value are left out.
    """

    name: str
    value: FieldValue
    excluded: bool = False


@dataclass(frozen=True, slots=True)
class ParsedQuery:
    """A query in its parts.

    Attributes:
        text: words to rank by, those of phrases among them; the whole query if it has no other parts.
        phrases: phrases that a document must contain.
        without: words and phrases that a document must not contain.
        fields: conditions on fields.
    """

    text: str
    phrases: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    fields: tuple[FieldCondition, ...] = ()

    @property
    def has_conditions(self) -> bool:
        """Whether any part limits which documents match."""
        return bool(self.phrases or self.without or self.fields)


def parse_query(query: str, fields: Mapping[str, Field]) -> ParsedQuery:
    """Return the parts of a query.

    Args:
        query: any text.
        fields: the fields that conditions can name, with their types.
    """
    if _MARK.search(query) is None:
        return ParsedQuery(query)
    last_closing = {mark: query.rfind(mark) for mark in _CLOSING.values()}
    parts: list[str] = []
    items: list[_Item] = []
    end = 0
    for start in _ITEM_START.finditer(query):
        if start.start() < end or start.end() == start.start():
            continue
        item = _item(query, start, fields, last_closing)
        if item is None:
            continue
        parts += (query[end : start.start()], item.words)
        items.append(item)
        end = item.end
        if len(items) == MAX_CONDITIONS:
            break
    if not items:
        return ParsedQuery(query)
    phrases = dict.fromkeys(item.words for item in items if item.words)
    without = dict.fromkeys(item.excluded for item in items if item.excluded)
    conditions = dict.fromkeys(item.condition for item in items if item.condition is not None)
    text = ("".join(parts) + query[end:]).lstrip()
    return ParsedQuery(text, tuple(phrases), tuple(without), tuple(conditions))


@dataclass(frozen=True, slots=True)
class _Item:
    """A part of the syntax; of the first three attributes one is filled in.

    Attributes:
        words: words of a phrase.
        excluded: excluded word or phrase.
        condition: condition on a field.
        end: index of the first character after the part.
    """

    words: str
    excluded: str
    condition: FieldCondition | None
    end: int


def _item(
    query: str, start: re.Match[str], fields: Mapping[str, Field], last_closing: Mapping[str, int]
) -> _Item | None:
    """Return the part that begins at a match of _ITEM_START; None for plain words."""
    dash, name, quote = start.groups()
    known = fields.get(name) if name else None
    if quote and (known is not None or not name):
        close = _CLOSING[quote]
        stop = query.find(close, start.end()) if last_closing[close] >= start.end() else -1
        text, end = query[start.end() : max(stop, start.end())], stop + 1
    else:
        at = start.end(2) + 1 if known is not None else start.end(1)
        word = _WORD.match(query, at)
        text, end = (word[0], word.end()) if word is not None else ("", at)
    text = text.strip()
    if not _names_something(text) or len(text) > MAX_PHRASE:
        return None
    if known is not None:
        value = _value(text, known)
        return None if value is None else _Item("", "", FieldCondition(name, value, bool(dash)), end)
    if dash:
        is_word = text[0].isalnum() and _CLOSING.keys().isdisjoint(text)
        return _Item("", text, None, end) if is_word or (quote and not name) else None
    return _Item(text, "", None, end) if quote and not name else None


def _names_something(text: str) -> bool:
    return any(map(str.isalnum, text))


def _value(text: str, known: Field) -> FieldValue | None:
    """Return the value of a field that a text stands for; None if it does not fit the field's type."""
    if known.type == "number":
        return number(text)
    if known.type == "boolean":
        return {"true": True, "false": False}.get(text.lower())
    if known.type == "date":
        return None if span(text) is None else text
    return text
