"""Hints for a query whose words no document has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lightir.index.view import View


def why_no_word(view: View, query: str) -> Iterator[str]:
    """Yield why no document matches a query by its words: it has none, they are unknown, or of an uncut script."""
    from lightir.words.scripts import is_unspaced

    if view.analyzer is None or view.counts_model_terms or not query.strip():
        return
    terms = view.analyzer.terms([query])[0]
    if not terms:
        yield "the query has no word to search; stop words, single letters and signs are none"
    elif not any(map(view.words.frequency, terms)):
        if any(map(is_unspaced, query)) and not view.analyzer.cuts_pairs:
            yield (
                f"the index was built with the analyzer {view.analyzer.name!r}, which does not cut this script into "
                "words; build it again with --analyzer auto"
            )
            return
        only = " (the index has BM25 only; one with --model also finds other words)" if len(view.branches) == 1 else ""
        yield f"no document has a word of the query{only}"
