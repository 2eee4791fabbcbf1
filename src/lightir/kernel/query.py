"""Queries from text to vectors in one call of the kernel: tokenise, average the terms' table rows, count the terms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lightir.errors import InvalidInput
from lightir.kernel import Rows, _native
from lightir.kernel.tokenizer import TextPolicy

ByLibrary = Callable[[Sequence[int]], tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]]
"""From positions of a batch to the term ids and indptr of those texts, by the tokenizers library alone."""


@dataclass(frozen=True, slots=True)
class EncodedTexts:
    """What the kernel made of a batch of n texts.

    Attributes:
        term_ids: (total,) uint32, in the order of the texts.
        indptr: (n + 1,) int64; text i has the terms indptr[i] to indptr[i + 1].
        dense: (n, dim) float32 rows of length 1, zeros for a text without terms; None without a table.
        sparse_indptr: (n + 1,) int64; None, like the next two, without a vocabulary.
        sparse_term_ids: (nnz,) uint32, ascending and different within a text.
        sparse_weights: (nnz,) float32, none of them 0.
    """

    term_ids: npt.NDArray[np.uint32]
    indptr: npt.NDArray[np.int64]
    dense: npt.NDArray[np.float32] | None
    sparse_indptr: npt.NDArray[np.int64] | None
    sparse_term_ids: npt.NDArray[np.uint32] | None
    sparse_weights: npt.NDArray[np.float32] | None


class TextEncoder:
    """A tokenizer, a policy, a table and term weights, ready for texts. Any number of threads may call it at a time."""

    def __init__(
        self,
        tokenizer: _native.Tokenizer | None,
        policy: TextPolicy,
        *,
        table: Rows | npt.NDArray[np.uint16] | None = None,
        scales: npt.NDArray[np.float32] | None = None,
        dim: int | None = None,
        vocab_size: int | None = None,
        binary: bool = False,
        term_weights: npt.NDArray[np.float32] | None = None,
    ) -> None:
        """Borrow the arrays.

        Args:
            tokenizer: the kernel's, or None where all texts go to the library.
            policy: what is done to each text and its ids.
            table, scales, dim: as in `lightir.kernel.mean_rows`; without a table there are no dense vectors.
            vocab_size: width of the sparse vectors; None for none.
            binary: a term's weight is 1, not its count.
            term_weights: (vocab_size,) float32 that the weights are multiplied by, or None.
        """
        self._tokenizer = tokenizer
        self._policy = policy
        self._has_table = table is not None
        self._dim = dim if dim is not None or table is None else int(table.shape[1])
        self._native = _native.QueryEncoder(table, scales, vocab_size, binary, term_weights)

    def encode(
        self, texts: Sequence[str], by_library: ByLibrary, *, threads: int, out: npt.NDArray[np.float32] | None = None
    ) -> EncodedTexts:
        """The texts' terms and vectors; the GIL is released but for by_library.

        Args:
            texts: n texts.
            by_library: reads those that the kernel refuses.
            threads: at most this many work at the same time; the result is the same with any number.
            out: (n, dim) float32, C-contiguous, that the dense vectors are written to; None for a new array.

        Raises:
            InvalidInput: a term id beyond the table or the vocabulary, or an out that does not fit.
        """
        dense = self._out(len(texts), out) if self._has_table else None
        found = self._native.encode(self._tokenizer, texts, self._policy, threads, by_library, dense)
        return EncodedTexts(found[0], found[1], dense, *found[2:])

    def _out(self, n_texts: int, out: Any) -> npt.NDArray[np.float32]:
        if out is None:
            return np.empty((n_texts, self._dim or 0), dtype=np.float32)
        if (
            not isinstance(out, np.ndarray)
            or out.shape != (n_texts, self._dim)
            or out.dtype != np.float32
            or not (out.flags.c_contiguous and out.flags.writeable)
        ):
            raise InvalidInput(f"out must be a writable C-contiguous float32 array of ({n_texts}, {self._dim})")
        return out
