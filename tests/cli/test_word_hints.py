"""A search that finds nothing says why, where the reason is in its words."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightir.cli.word_hints import why_no_word
from lightir.index import Index, IndexOptions, build_index, document_shards
from lightir.types import Document


@pytest.mark.parametrize(
    ("analyzer", "query", "hint"),
    [
        ("auto", "zebra", "no document has a word of the query (the index has BM25 only"),
        ("auto", "the of", "the query has no word to search"),
        ("english", "北京", "the analyzer 'english', which does not cut this script"),
        ("auto", "北京", "no document has a word of the query"),
        ("auto", "cats", None),
        ("auto", " ", None),
    ],
)
def test_the_hint_names_the_reason(tmp_path: Path, analyzer: str, query: str, hint: str | None) -> None:
    options = IndexOptions(analyzer=analyzer)
    build_index(document_shards([Document("1", "the cat")]), tmp_path / "i", options=options, progress=False)
    with Index.open(tmp_path / "i") as index:
        hints = [*why_no_word(index.view, query)]
    assert len(hints) == (hint is not None)
    assert hint is None or hint in hints[0]
