"""Phrases: the documents in which a field that BM25 counts, such as title or text, has words next to each other.

Words are those of the index's analyzer: stems match stems, and stop words do not count, in the phrase or in the text.
Characters of scripts without blanks are compared one by one. The postings say which documents have all terms of the
phrase. Their stored texts are then analyzed again, because postings have no positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from lightir.analysis import Analyzer
from lightir.index.segments.columns import Mask
from lightir.index.segments.live_segment import LiveSegment
from lightir.index.stored_documents import TEXTS_AT_ONCE, DocKeys
from lightir.index.text_fields import counted_fields, field_text, metadata_fields

if TYPE_CHECKING:
    from lightir.index.view import View

WORDS_ALONE = Analyzer("chinese")
"""Analyzer of phrases for an index that does not count words. It knows no language, but cuts Chinese as well."""


class Phrase:
    """One word or several next to each other, as an analyzer sees them.

    Attributes:
        units: words of the phrase in order, see `Analyzer.units`; empty for stop words alone, which every text has.
    """

    def __init__(self, phrase: str, analyzer: Analyzer) -> None:
        """Analyze a phrase.

        Args:
            phrase: text of the phrase.
            analyzer: analyzer of words, not of a model's terms.
        """
        self._analyzer = analyzer
        self.units = tuple(analyzer.units(phrase))
        self._terms = sorted(set(analyzer.terms([phrase])[0]))
        self._is_spaced = not any(map(analyzer.is_unspaced, "".join(self.units)))

    def occurs_in(self, texts: Sequence[str]) -> Mask:
        """Return the (n,) mask of the texts that contain the phrase."""
        if not self.units:
            return np.ones(len(texts), dtype=np.bool_)
        if self._is_spaced and self._analyzer.name != "chinese":
            return self._in_terms(texts)
        return np.array([contains(self._analyzer.units(text), self.units) for text in texts], dtype=np.bool_)

    def _in_terms(self, texts: Sequence[str]) -> Mask:
        """Return the same as `occurs_in` by array operations, for a phrase whose units are terms."""
        number_of = {unit: number for number, unit in enumerate(dict.fromkeys(self.units))}
        rows, others = self._analyzer.term_positions(texts, number_of)
        mask = np.zeros(len(texts), dtype=np.bool_)
        wanted = [number_of[unit] for unit in self.units]
        starts = np.flatnonzero(rows.term_ids == wanted[0])
        starts = starts[starts + len(wanted) <= len(rows.term_ids)]
        for i, number in enumerate(wanted):
            starts = starts[rows.term_ids[starts + i] == number]
        row_of = np.searchsorted(rows.indptr, starts, side="right") - 1
        mask[row_of[starts + len(wanted) <= rows.indptr[row_of + 1]]] = True
        for row in others:
            mask[row] = contains(self._analyzer.units(texts[row]), self.units)
        return mask

    def documents(self, view: View) -> list[Mask]:
        """Return for each segment the mask of the live documents in which a counted field contains the phrase."""
        return [self._of_segment(view, live) for live in view.segments]

    def _of_segment(self, view: View, live: LiveSegment) -> Mask:
        if not self.units:
            return live.live
        counted = view.analyzer is not None and not view.counts_model_terms
        mask = self._having_terms(live) if counted else live.live.copy()
        if counted and len(self._terms) == 1 and len(self.units) == 1:
            return mask
        rows = np.flatnonzero(mask)
        mask[:] = False
        batch: list[tuple[int, Sequence[str]]] = []
        for i, fields in _fields(view, live.segment.doc_keys[rows]):
            if counted or self._may_occur(fields):
                batch.append((int(rows[i]), fields))
            if len(batch) == TEXTS_AT_ONCE:
                self._mark(batch, mask)
                batch = []
        self._mark(batch, mask)
        return mask

    def _having_terms(self, live: LiveSegment) -> Mask:
        """Return the mask of the live documents that have all terms of the phrase."""
        stored = live.segment.tokens
        positions = [live.segment.terms.find(term) for term in self._terms]  # type: ignore[arg-type]
        if stored is None or None in positions:
            return np.zeros(len(live.segment), dtype=np.bool_)
        mask = live.live.copy()
        with live.segment.naming_damage():
            for position in positions:
                mask &= stored.documents_with(np.array([position], dtype=np.uint32))
        return mask

    def _may_occur(self, fields: Sequence[str]) -> bool:
        """Whether the words are anywhere in a document: a fast test in place of postings, for terms without stems."""
        lower = " ".join(fields).lower()
        return all(unit in lower for unit in self.units)

    def _mark(self, batch: Sequence[tuple[int, Sequence[str]]], mask: Mask) -> None:
        rows = np.array([row for row, _ in batch], dtype=np.int64)
        for texts in zip(*(fields for _, fields in batch), strict=True):
            mask[rows[self.occurs_in(texts)]] = True


def _fields(view: View, keys: DocKeys) -> Iterator[tuple[int, Sequence[str]]]:
    """Yield the position of each key in `keys`, and the texts of the document's fields that BM25 counts."""
    boosts = view.options.boosts
    if not metadata_fields(boosts):
        yield from ((i, (title, text)) for i, title, text in view.store.documents.texts_of(keys))
        return
    for i, key in enumerate(keys.tolist()):
        document = view.store.documents.of([key]).get(key)
        if document is not None:
            yield i, [field_text(document, name) for name in counted_fields(boosts)]


def contains(units: Sequence[str], wanted: Sequence[str]) -> bool:
    """Return whether units have wanted ones next to each other in their order."""
    # No unit contains a NUL, which is no character of a word.
    return "\0".join(("", *wanted, "")) in "\0".join(("", *units, ""))
