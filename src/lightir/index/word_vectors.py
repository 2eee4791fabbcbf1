"""Dense vectors that also hold the light vector of a document's own words, the first ones most.

A light query is an average of tokens' vectors. The vector that a language model makes of a whole document may lie far
from the average of its tokens, although a query has some of them. So a row of an index becomes

    normalize(d + w * normalize(e(first words) + 0.3 * e(text)))

with the model's vector d, the query encoder e, which needs no model, and the weight w. The row depends on nothing else,
so documents are added one by one, and a search does and costs what it does without.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from lightir.contract import CHARACTERS_PER_TOKEN, Contract
from lightir.errors import InvalidInput
from lightir.index.index_options import IndexOptions
from lightir.query import CachedQueryEncoder
from lightir.types import Document
from lightir.vectors import Floats, normalized

FIRST_WORDS = 32
SHARE_OF_TEXT = np.float32(0.3)
"""Number of first words, and weight of the whole text beside them; chosen on development queries (docs/distill.md)."""


def with_word_weight(
    options: IndexOptions, contract: Contract | None, encoder: CachedQueryEncoder | None
) -> IndexOptions:
    """Return the options of a new index with the weight of words that its rows are made with.

    Args:
        options: options as asked for.
        contract: contract of the vectors; None without.
        encoder: query encoder of the index; None without.

    Raises:
        InvalidInput: a weight is asked for, but the index has no query encoder with dense rows, or compares vectors by
            dot product.
    """
    dense = None if contract is None else contract.dense
    by_cosine = dense is not None and dense.similarity == "cosine"
    makes_vectors = encoder is not None and bool(encoder.tables) and by_cosine
    if options.word_weight and not makes_vectors:
        raise InvalidInput(
            f"word_weight is {options.word_weight}, but the index has no dense vectors that are compared by cosine, or "
            "no query encoder with dense rows, which makes the vectors of words"
        )
    if options.word_weight is not None:
        return options
    usual = encoder.contract.word_weight if encoder is not None and makes_vectors else 0.0
    return dataclasses.replace(options, word_weight=usual)


def with_word_vectors(
    rows: npt.NDArray[np.float16], documents: Sequence[Document], encoder: CachedQueryEncoder, weight: float
) -> npt.NDArray[np.float16]:
    """Return rows of length 1: the given ones plus the weighted light vectors of the documents' words.

    Args:
        rows: (n, dim) float16 dense vectors of length 1 of n documents.
        documents: the documents.
        encoder: query encoder of the same width. Its default table is used, and it reads as many tokens of a text as of
            a query.
        weight: weight of the light vectors.
    """
    first, whole = (encoder.encode(texts).dense for texts in own_texts(documents, encoder.contract))
    assert first is not None
    assert whole is not None  # with_word_weight requires dense rows
    return with_own_words(rows.astype(np.float32), first, whole, weight).astype(np.float16)


def own_texts(documents: Sequence[Document], contract: Contract) -> tuple[list[str], list[str]]:
    """Return the first words of each document, and its whole text as far as a query encoder reads it."""
    most = contract.query.max_tokens * CHARACTERS_PER_TOKEN  # tokenizing 10 MB takes long
    joiner = contract.document.title_joiner
    texts = [document.full_text(joiner)[:most] for document in documents]
    return list(map(_first_words, texts)), texts


def with_own_words(rows: Floats, first: Floats, whole: Floats, weight: float) -> Floats:
    """Return the sums of vectors and weighted light vectors of words, scaled to length 1.

    Args:
        rows: (n, dim) float32 vectors of length 1 of n documents.
        first: (n, dim) float32 light vectors of length 1 of their first words.
        whole: (n, dim) float32 light vectors of length 1 of their texts.
        weight: weight of the light vectors.
    """
    return normalized(rows + np.float32(weight) * normalized(first + SHARE_OF_TEXT * whole))


def _first_words(text: str) -> str:
    return " ".join(text.split(maxsplit=FIRST_WORDS)[:FIRST_WORDS])
