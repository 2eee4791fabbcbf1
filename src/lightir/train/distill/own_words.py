"""Documents' own words as an index adds them to the documents' vectors, for a table that is being fitted.

The light vector of a document's words is made by the query table (`lightir.index.word_vectors`). So each table has rows
of its own, over which its queries are compared with the teacher's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lightir.contract import Contract
from lightir.index.word_vectors import own_texts, with_own_words
from lightir.query.bigrams import Bigrams
from lightir.text import TextTokenizer, query_term_ids
from lightir.train.distill.fitted_rows import FittedRows
from lightir.train.distill.table_fit import with_bigrams
from lightir.types import Document
from lightir.vectors import Floats, Ragged, normalized

MAX_DOCUMENTS = 100_000
"""Maximum number of documents whose words are read; of larger collections as many are drawn."""


@dataclass(frozen=True, slots=True)
class OwnWords:
    """Words of some of the documents, as rows of a table.

    Attributes:
        documents: positions of n documents among all, ascending.
        first: rows of their first words.
        whole: rows of their texts.
        weight: weight of the light vectors in a stored vector, above 0.
    """

    documents: npt.NDArray[np.int64]
    first: Ragged
    whole: Ragged
    weight: float

    def searched(self, table: FittedRows, vectors: Floats) -> Floats:
        """Return the (n, dim) float32 vectors that an index with a table has of the n documents.

        Args:
            table: rows of terms, then of pairs, and their gate.
            vectors: (N, dim) float32 vectors of length 1 of all documents, as they were encoded.
        """
        first, whole = (normalized(table.sums(words)) for words in (self.first, self.whole))
        return with_own_words(vectors[self.documents], first, whole, self.weight)


def own_words(
    documents: Sequence[Document],
    contract: Contract,
    tokenizer: TextTokenizer,
    bigrams: Bigrams | None,
    *,
    seed: int,
) -> OwnWords | None:
    """Read the words of at most MAX_DOCUMENTS documents; None if an index of the contract has none.

    Args:
        documents: all documents.
        contract: contract of the fitted table, with its query policy.
        tokenizer: tokenizer of the table's queries.
        bigrams: pairs of terms with rows after those of terms; None without.
        seed: seed of the draw.
    """
    by_cosine = contract.dense is not None and contract.dense.similarity == "cosine"
    if not (documents and contract.word_weight and by_cosine):
        return None
    drawn = np.random.default_rng(seed).permutation(len(documents))[:MAX_DOCUMENTS]
    chosen = np.sort(drawn)
    first, whole = (
        query_term_ids(tokenizer, contract.query, texts)
        for texts in own_texts([documents[at] for at in chosen.tolist()], contract)
    )
    if bigrams is not None:
        first, whole = (with_bigrams(words, bigrams, vocab_size=tokenizer.vocab_size) for words in (first, whole))
    return OwnWords(chosen, first, whole, contract.word_weight)
