"""Dense vectors that also hold the light vector of a document's first words, as a query of these words would have it.

A light query averages vectors of tokens. A document that a language model encoded whole may lie far from the average of
its own words, although title and beginning name its subject. So a row becomes

    normalize(d + w * e(first words))

with the model's vector d, the query encoder e and the weight w. A query then scores q.d + w q.e(first words), up to the
length. The row depends on nothing else, so documents can be added one by one. The query encoder alone computes e, and a
search costs the same as before.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from lightir.contract import Contract
from lightir.errors import InvalidInput
from lightir.index.index_options import IndexOptions
from lightir.query import CachedQueryEncoder
from lightir.types import Document
from lightir.vectors import normalized

LEAD_WORDS = 32
"""Number of words of title and text that the light vector is made of. 16 to 64 were tried on development queries."""

LEAD_CHARACTERS = 1024
"""Most characters that are searched for these words, so that a text without blanks costs little."""


def with_lead_weight(
    options: IndexOptions, contract: Contract | None, encoder: CachedQueryEncoder | None
) -> IndexOptions:
    """Return the options of a new index with the weight that its rows are made with.

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
    usable = by_cosine and encoder is not None and bool(encoder.tables)
    if options.lead and not usable:
        raise InvalidInput(
            f"lead is {options.lead}, but the index has no dense vectors that are compared by cosine, or no query "
            "encoder with dense rows, which makes the vectors of the first words"
        )
    if options.lead is not None:
        return options
    return dataclasses.replace(options, lead=encoder.contract.lead if usable and encoder is not None else 0.0)


def with_leads(
    rows: npt.NDArray[np.float16],
    documents: Sequence[Document],
    encoder: CachedQueryEncoder,
    joiner: str,
    weight: float,
) -> npt.NDArray[np.float16]:
    """Return rows of length 1: the given ones plus the weighted light vectors of the documents' first words.

    Args:
        rows: (n, dim) float16 dense vectors of length 1 of n documents.
        documents: the documents.
        encoder: query encoder, whose default table is used, of the same width.
        joiner: text between title and text.
        weight: weight of the light vectors.
    """
    beginnings = [" ".join(document.full_text(joiner)[:LEAD_CHARACTERS].split()[:LEAD_WORDS]) for document in documents]
    light = encoder.encode(beginnings).dense
    assert light is not None  # with_lead_weight requires dense rows
    return normalized(rows.astype(np.float32) + np.float32(weight) * light).astype(np.float16)
