import enum
from collections.abc import Mapping, Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from lightir.kernel.query import ByLibrary
from lightir.types import BranchScore, Hit, Ranking
from lightir.vectors import QueryVectors, Ragged, SparseVectors

_Array = npt.NDArray[Any]
_Lists = tuple[npt.NDArray[np.int64], npt.NDArray[np.uint32], npt.NDArray[np.float32]]
_Column = tuple[npt.NDArray[np.float32], npt.NDArray[np.float64], npt.NDArray[np.int64]]
Rankings = tuple[npt.NDArray[np.int64], npt.NDArray[np.uint32], npt.NDArray[np.float64], list[_Column]]

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
def dense_top_k(
    rows: _Array,
    scales: _Array | None,
    queries: _Array,
    k: int,
    n_threads: int,
    allowed: _Array | None,
    copies: tuple[_Array, _Array, _Array] | None,
    codes: tuple[_Array, ...] | None,
    /,
) -> _Lists: ...
def code_rows(
    rows: _Array, scales: _Array | None, center: _Array, /
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint16], npt.NDArray[np.uint16]]: ...
def dense_pair_scores(
    rows: _Array, scales: _Array | None, doc_ords: _Array, query: _Array, /
) -> npt.NDArray[np.float32]: ...
def near_terms(text: _Array, indptr: _Array, word: str, distance: int, prefix: bool, /) -> tuple[_Array, _Array]: ...
def split_words(texts: Sequence[object], /) -> tuple[list[str], _Array, _Array, list[int]]: ...

class PassageFinder:
    def __init__(self, han_terms: bool, same_beginnings: bool, /) -> None: ...
    def learn_block(self, block: int, classes: bytes, /) -> None: ...
    def learn_words(self, words: list[str], terms: list[list[str]], /) -> None: ...
    def find(
        self, texts: Sequence[str], wanted: list[str], length: int, lead: int, /
    ) -> tuple[list[tuple[str, tuple[tuple[int, int], ...]] | None], list[int], list[str]]: ...

class WordKind(enum.Enum):
    no_term = 0
    other = 2

class KnownWords:
    def __init__(self, n_segments: int, /) -> None: ...
    def learn(
        self, words: list[str], terms: list[tuple[str, float, tuple[int, ...], bool] | WordKind], asking: list[bool], /
    ) -> None: ...
    def read(
        self, texts: Sequence[str], counts_asking: bool, /
    ) -> tuple[
        tuple[
            list[str],
            npt.NDArray[np.int64],
            npt.NDArray[np.uint32],
            npt.NDArray[np.float32],
            npt.NDArray[np.int64],
            npt.NDArray[np.float64],
            list[list[str]],
        ]
        | None,
        list[str],
    ]: ...

class HitMaker:
    def __init__(self, hit: type[Hit], branch: type[BranchScore], /) -> None: ...
    def make(
        self,
        documents: list[tuple[str, str, dict[str, Any]]],
        passages: list[tuple[str, tuple[tuple[int, int], ...]]],
        scores: _Array,
        columns: list[tuple[str, float, _Array, _Array, _Array]],
        pending: list[bool] | None,
        named: list[bool] | None,
        /,
    ) -> list[Hit]: ...

def mean_rows(
    table: _Array,
    scales: _Array | None,
    token_ids: _Array,
    indptr: _Array,
    normalize: bool,
    n_threads: int,
    out: npt.NDArray[np.float32],
    /,
) -> None: ...
def mean_expansions(
    row_ids: _Array,
    row_weights: _Array,
    token_ids: _Array,
    indptr: _Array,
    vocab_size: int,
    n_threads: int,
    /,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint32], npt.NDArray[np.float32]]: ...
def pair_scores(
    doc_ords: npt.NDArray[np.uint32], queries: tuple[Any, ...], query: int, /
) -> npt.NDArray[np.float32]: ...
def normalize(
    scores: _Array, listed: _Array, ranks: _Array, scale: str, rrf_k: float, /
) -> npt.NDArray[np.float64]: ...

class DocumentIds:
    def __init__(self, segments: list[Any], first_ords: list[int], /) -> None: ...
    def order(self, doc_ords: _Array, scores: _Array, /) -> npt.NDArray[np.int64]: ...
    def texts(self, doc_ords: _Array, /) -> list[str]: ...

class GraphBuilder:
    def __init__(
        self, stored: npt.NDArray[np.uint8], rows: _Array, element: str, shape: tuple[int, int], candidates: int, /
    ) -> None: ...
    def add(self, n_threads: int, /) -> int: ...
    def n_bytes(self) -> int: ...

def most_graph_bytes(n: int, element: str, shape: tuple[int, int], /) -> int: ...
def has_bfloat16_tiles() -> bool: ...

class Encoder:
    def __init__(
        self,
        words: _Array,
        positions: _Array,
        norm: tuple[_Array, ...],
        layers: list[tuple[npt.NDArray[np.float32], ...]],
        activation: _Array,
        sizes: tuple[int, int],
        numbers: tuple[float, float],
        int8: bool,
        /,
    ) -> None: ...
    def encode(
        self, ids: npt.NDArray[np.uint32], offsets: npt.NDArray[np.int64], n_threads: int, tiles: bool, /
    ) -> npt.NDArray[np.float32]: ...

class StoredGraph:
    def __init__(self, stored: _Array, element: str, width: int, n_rows: int, most_neighbors: int, /) -> None: ...

class DenseSegments:
    def __init__(self, segments: list[Any], first_ords: list[int], costs: tuple[int, int], /) -> None: ...

class SparseSegments:
    def __init__(self, segments: list[Any], first_ords: list[int], k1: float, b: float, /) -> None: ...

class CandidateSearch:
    def __init__(
        self,
        branches: list[tuple[DenseSegments | SparseSegments, float, bool, list[Any] | None, tuple[float, float]]],
        scale: str,
        rrf_k: float,
        ids: DocumentIds | None,
        texts: tuple[QueryEncoder, ByLibrary, int | None] | None,
        named: tuple[DocumentIds, type[Ranking]] | None,
        pending: tuple[npt.NDArray[np.uint8], bool] | None,
        /,
    ) -> None: ...
    @overload
    def search(
        self,
        queries: list[Any],
        lists: list[Any] | None,
        allowed: list[Any] | None,
        request: tuple[Any, ...],
        query_ids: None,
        /,
    ) -> Rankings: ...
    @overload
    def search(
        self,
        queries: list[Any],
        lists: list[Any] | None,
        allowed: list[Any] | None,
        request: tuple[Any, ...],
        query_ids: list[str],
        /,
    ) -> list[Ranking]: ...
    @overload
    def search_texts(
        self, texts: tuple[str, ...], allowed: list[Any] | None, request: tuple[Any, ...], query_ids: None, /
    ) -> Rankings: ...
    @overload
    def search_texts(
        self, texts: tuple[str, ...], allowed: list[Any] | None, request: tuple[Any, ...], query_ids: list[str], /
    ) -> list[Ranking]: ...

class QueryEncoder:
    def __init__(
        self,
        tokenizer: Tokenizer | None,
        policy: TextPolicy,
        dense: tuple[_Array, _Array | None, tuple[_Array, _Array, _Array | None] | None, tuple[_Array, _Array] | None]
        | None,
        dim: int,
        vocab_size: int | None,
        binary: bool,
        term_weights: _Array | None,
        records: tuple[type[Ragged], type[SparseVectors], type[QueryVectors]],
        /,
    ) -> None: ...
    def encode(
        self, texts: Sequence[object], n_threads: int, fallback: ByLibrary, out: npt.NDArray[np.float32] | None, /
    ) -> QueryVectors: ...
    def encode_terms(
        self, term_ids: _Array, indptr: _Array, n_threads: int, out: npt.NDArray[np.float32], /
    ) -> None: ...

class TextPolicy:
    def __init__(self, strip: bool, lower_case: bool, leading_blank: bool, max_ids: int, drop: _Array, /) -> None: ...

class Tokenizer:
    @overload
    def __init__(
        self,
        split: str,
        bytes: bytes,
        literals: Sequence[str],
        byte_ids: _Array,
        left: _Array,
        right: _Array,
        merged: _Array,
        whole: Mapping[str, int],
        /,
    ) -> None: ...
    @overload
    def __init__(
        self, bytes: bytes, first: Mapping[str, int], further: Mapping[str, int], unknown: int, max_bytes: int, /
    ) -> None: ...
    def tokenize(
        self,
        texts: Sequence[object],
        policy: TextPolicy,
        n_threads: int,
        fallback: ByLibrary,
        /,
    ) -> tuple[_Array, _Array]: ...
