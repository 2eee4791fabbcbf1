"""Training pairs made from unlabeled documents: titles and spans as queries."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from lightir.data.training_set import Pair
from lightir.errors import InvalidInput
from lightir.types import Document, Query

CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
"""Ranges of kana and Han characters for a character class; each counts as a word."""

_WORD = re.compile(rf"[{CJK}]|[^\s{CJK}]+")


def title_pairs(documents: Iterable[Document]) -> Iterator[Pair]:
    """Yield each title as a query whose positive is the document without its title.

    The query's id is "title:" followed by the document's id. Documents with a blank title or text are skipped.
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
    """Yield random spans of each document's text as pseudo-queries for it.

    Length and position of a span are drawn uniformly. A Han character or kana counts as a word. Documents of fewer than
    min_words words are skipped. The query's id is "span:", its number within the document, ":" and the document's id.

    Args:
        documents: documents to cut spans from.
        rng: generator that the spans are drawn with.
        min_words: minimum number of consecutive words in a span.
        max_words: maximum number of words.
        per_document: number of spans per document.

    Raises:
        InvalidInput: min_words or per_document below 1, or max_words below min_words.
    """
    if not 1 <= min_words <= max_words or per_document < 1:
        raise InvalidInput(
            f"min_words {min_words}, max_words {max_words}, per_document {per_document}: expected "
            "1 <= min_words <= max_words and per_document >= 1"
        )
    for document in documents:
        words = [match.span() for match in _WORD.finditer(document.text)]
        if len(words) < min_words:
            continue
        for number in range(per_document):
            length = int(rng.integers(min_words, min(max_words, len(words)) + 1))
            first = int(rng.integers(len(words) - length + 1))
            text = document.text[words[first][0] : words[first + length - 1][1]]
            yield Pair(Query(f"span:{number}:{document.doc_id}", text), document)
