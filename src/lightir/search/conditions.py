"""The conditions of a query and the documents that it names, over one view. lightir.search.query_syntax parses it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lightir.index import View
from lightir.index.metadata_filters import json_path
from lightir.index.names import MAX_NAME, holds_key, with_id, with_key
from lightir.index.phrases import Phrase
from lightir.index.segments.columns import Mask
from lightir.kernel import DocOrds
from lightir.search.query_syntax import FieldCondition, ParsedQuery, parse_query

MAX_NAMED_WORDS = 16
"""Maximum number of words of a query that are looked up as names."""

NO_DOCUMENTS: DocOrds = np.zeros(0, dtype=np.uint32)

_AROUND_WORDS = ".,;:!?()[]{}'\"“”"


@dataclass(frozen=True, slots=True)
class QueryReading:
    """The words, matching documents and named documents of a query over one view.

    Attributes:
        text: words to rank by.
        matching: mask of each segment's live documents that meet the conditions; None without conditions.
        named: documents that the query names, ascending.
    """

    text: str
    matching: list[Mask] | None
    named: DocOrds


def read_query(view: View, query: str) -> QueryReading:
    """Return the words, the matching documents and the named documents of a query."""
    parsed = parse_query(query, {} if view.schema is None else view.schema.fields)
    return QueryReading(parsed.text, matching(view, parsed), named(view, query, parsed))


class Lookup(NamedTuple):
    """A text of a query that may be the name of documents.

    Attributes:
        name: the text.
        is_key: whether it is looked up in the key fields, not among the ids.
        any_case: whether documents whose id differs in case alone are found if no document has the id.
    """

    name: str
    is_key: bool = False
    any_case: bool = True

    def find(self, view: View) -> list[int]:
        """Return the doc_ords of the documents with the name, else of those whose name differs in case alone."""
        return with_key(view, self.name) if self.is_key else with_id(view, self.name, any_case=self.any_case)

    def is_exact(self, view: View) -> bool:
        """Whether a document has the name in the same case."""
        return holds_key(view, self.name) if self.is_key else bool(view.doc_ords(self.name))


def named(view: View, query: str, parsed: ParsedQuery) -> DocOrds:
    """Return the documents that a query names, ascending."""
    doc_ords = {doc_ord for lookup in lookups(query, parsed) for doc_ord in lookup.find(view)}
    return np.array(sorted(doc_ords), dtype=np.uint32) if doc_ords else NO_DOCUMENTS


def lookups(query: str, parsed: ParsedQuery) -> Iterator[Lookup]:
    """Yield the texts of a query that may be names.

    The whole query may be an id or the value of a key field. So may a word of it that is not letters alone; digits
    alone are only looked up in key fields, because numbers are the ids of many collections. Several words of letters
    alone may only be an id, in the same case, so that plain questions cost one lookup.
    """
    whole, words = query.strip(), _code_words(parsed.text)
    is_code = bool(words) or len(whole.split()) == 1
    yield Lookup(whole, any_case=is_code)
    if is_code:
        yield Lookup(whole, is_key=True)
    for word in words:
        if word != whole:
            yield Lookup(word, is_key=True)
            if not word.isdecimal():
                yield Lookup(word)


def _code_words(text: str) -> list[str]:
    words: dict[str, None] = {}
    for word in text.split():
        stripped = word.strip(_AROUND_WORDS)
        if len(word) <= MAX_NAME and stripped and not stripped.isalpha():
            words |= {word: None, stripped: None}
        if len(words) >= MAX_NAMED_WORDS:
            break
    return [*words][:MAX_NAMED_WORDS]


def matching(view: View, parsed: ParsedQuery) -> list[Mask] | None:
    """Return for each segment the mask of the live documents that meet a query's conditions; None if it has none.

    A passage meets the conditions that it contains a phrase and that its document has a field's value. An excluded
    phrase excludes all passages of a document if one of them contains it.
    """
    if not parsed.has_conditions:
        return None
    masks = [live.live.copy() for live in view.segments]
    for phrase in parsed.phrases:
        _keep(masks, view.with_phrase(phrase))
    for phrase in parsed.without:
        if Phrase(phrase, view.word_analyzer).units:
            _keep(masks, _without(_whole_documents(view, view.with_phrase(phrase))))
    for condition in parsed.fields:
        having = with_field(view, condition)
        _keep(masks, _without(having) if condition.excluded else having)
    return masks


def with_field(view: View, condition: FieldCondition) -> list[Mask]:
    """Return for each segment the mask of the documents whose field has the condition's value.

    Keywords are compared but for case. A text field contains the words of the value next to each other.
    """
    name, value = condition.name, condition.value
    assert view.schema is not None  # the condition names a field of it
    kind = view.schema.require(name).type
    if not isinstance(value, str) or kind == "date":
        return view.matching({name: value}) or []
    phrase = Phrase(value, view.word_analyzer) if kind == "text" else None
    masks = []
    for live in view.segments:
        column = live.segment.columns.column(json_path(name, name), view.metadata_source)
        mask = np.zeros(len(live.segment), dtype=np.bool_)
        if phrase is None:
            texts = column.texts_like(value)
        else:
            distinct = column.texts
            texts = [text for text, occurs in zip(distinct, phrase.occurs_in(distinct).tolist(), strict=True) if occurs]
        mask[column.rows_with(texts)] = True
        masks.append(mask & live.live)
    return masks


def _whole_documents(view: View, masks: Sequence[Mask]) -> Sequence[Mask]:
    """Return masks that have all passages of each document of which the given ones have a passage."""
    if not view.has_passages:
        return masks
    numbers = view.document_numbers
    chosen = np.zeros(1 + max((int(of_segment.max(initial=-1)) for of_segment in numbers), default=0), np.bool_)
    for of_segment, mask in zip(numbers, masks, strict=True):
        chosen[of_segment[mask]] = True
    return [chosen[of_segment] for of_segment in numbers]


def _without(masks: Iterable[Mask]) -> Iterator[Mask]:
    return (~mask for mask in masks)


def _keep(masks: Sequence[Mask], others: Iterable[Mask]) -> None:
    for mask, other in zip(masks, others, strict=True):
        mask &= other
