"""Training pairs out of documents alone: titles and spans as queries."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from lightir.data.training_set import Pair
from lightir.errors import InvalidInput
from lightir.types import Document, Query

CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
"""Inside a character class: kana and Han characters, which stand for words where no blanks do."""

_WORD = re.compile(rf"[{CJK}]|[^\s{CJK}]+")


def title_pairs(documents: Iterable[Document]) -> Iterator[Pair]:
    """Each title as the query for its own text; the positive is the document without its title.

    The query's id is "title:" and the document's. Documents with a blank title or text give none.
    """
    for document in documents:
        if document.title.strip() and document.text.strip():
            yield Pair(Query(f"title:{document.doc_id}", document.title), replace(document, title=""))


def span_pairs(
    documents: Iterable[Document],
    rng: np.random.Generator,
    *,
    min_words: int = 4,
    max_words: int = 16,
    per_document: int = 1,
) -> Iterator[Pair]:
    """Random spans of a document's text as pseudo-queries for it.

    A span is min_words to max_words words in a row, its length and place drawn evenly, cut out with the punctuation
    between them; a Han character or kana counts as a word. Texts of fewer than min_words words give none. The query's
    id is "span:", its number within the document, ":" and the document's id.
    """
    if not 1 <= min_words <= max_words or per_document < 1:
        raise InvalidInput(f"spans of {min_words} to {max_words} words, {per_document} a document, make no sense")
    for document in documents:
        words = [match.span() for match in _WORD.finditer(document.text)]
        if len(words) < min_words:
            continue
        for number in range(per_document):
            length = int(rng.integers(min_words, min(max_words, len(words)) + 1))
            first = int(rng.integers(len(words) - length + 1))
            text = document.text[words[first][0] : words[first + length - 1][1]]
            yield Pair(Query(f"span:{number}:{document.doc_id}", text), document)
