from typing import Any

import numpy as np
import numpy.typing as npt

_Array = npt.NDArray[Any]
_Lists = tuple[npt.NDArray[np.int64], npt.NDArray[np.uint32], npt.NDArray[np.float32]]

def dispatch() -> str: ...
def available() -> list[str]: ...
def use_level(name: str) -> None: ...
def invert(
    indptr: _Array, term_ids: _Array, weights: _Array, vocab_size: int, n_docs: int, /
) -> tuple[_Array, _Array, _Array, _Array, _Array, _Array]: ...
def sparse_top_k(
    postings: tuple[_Array, ...],
    vocab_size: int,
    n_docs: int,
    query_indptr: _Array,
    query_term_ids: _Array,
    query_weights: _Array,
    k: int,
    n_threads: int,
    allowed: _Array | None,
    /,
) -> _Lists: ...
def sparse_pair_scores(
    indptr: _Array,
    term_ids: _Array,
    weights: _Array,
    doc_ords: _Array,
    query_term_ids: _Array,
    query_weights: _Array,
    /,
) -> npt.NDArray[np.float32]: ...
def dense_top_k(
    rows: _Array, scales: _Array | None, queries: _Array, k: int, n_threads: int, allowed: _Array | None, /
) -> _Lists: ...
def dense_pair_scores(
    rows: _Array, scales: _Array | None, doc_ords: _Array, query: _Array, /
) -> npt.NDArray[np.float32]: ...
def mean_rows(
    table: _Array,
    scales: _Array | None,
    weights: _Array | None,
    token_ids: _Array,
    indptr: _Array,
    normalize: bool,
    n_threads: int,
    out: npt.NDArray[np.float32],
    /,
) -> None: ...
