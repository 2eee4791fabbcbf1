"""From shards of documents and vectors to an index folder, written aside and renamed when it is whole."""

from __future__ import annotations

import dataclasses
import itertools
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

import lightir
from lightir.analysis import MODEL, Analyzer
from lightir.contract import Contract, require_same_documents, to_json
from lightir.errors import ContractMismatch, InvalidInput
from lightir.files import new_folder
from lightir.index.bm25 import bm25_weights
from lightir.index.reader import ENCODER_FOLDER, INDEX_VERSION, SEGMENTS_FOLDER, Index, IndexInfo
from lightir.index.segment import sparse_arrays, write_segment
from lightir.index.store import STORE_FILE, StoreWriter
from lightir.index.strings import SortedStrings
from lightir.query import CachedQueryEncoder
from lightir.shards import Shard
from lightir.text import query_term_ids
from lightir.types import Document
from lightir.vectors import Floats, Ragged, SparseVectors

SHARD_DOCUMENTS = 4096
WHOLE_TEXT_TOKENS = 2**31 - 1

DenseDtype = Literal["fp16", "int8"]


def document_shards(documents: Iterable[Document], *, size: int = SHARD_DOCUMENTS) -> Iterator[Shard]:
    """Documents without vectors as shards, for an index of tokens alone."""
    remaining = iter(documents)
    while batch := list(itertools.islice(remaining, size)):
        yield Shard(batch, None, None)


def build_index(
    shards: Iterable[Shard],
    out: Path | str,
    *,
    contract: Contract | None = None,
    query_encoder: Path | str | None = None,
    dense_dim: int | None = None,
    dense_dtype: DenseDtype = "fp16",
    sparse_top_k: int | None = None,
    analyzer: str | None = "english",
    progress: bool = True,
    overwrite: bool = False,
) -> IndexInfo:
    """Build an index of all documents; returns what it holds. The same shards give the same bytes.

    Args:
        shards: documents with dense vectors, sparse impacts, both or neither, but all shards alike.
        out: the index folder.
        contract: the model's; needed when there are vectors.
        query_encoder: a query-encoder folder that is copied into the index; its document side must be the contract's.
        dense_dim: keep so many first columns, renormalised (Matryoshka); None for all.
        dense_dtype: "fp16", or "int8" with one scale a row (its largest absolute value / 127).
        sparse_top_k: keep so many strongest impacts of a document (ties to the smaller term id); None for all.
        analyzer: cuts title and text for BM25, see `Analyzer`; None leaves the tokens branch out.
        progress: show a bar when standard error is a terminal.
        overwrite: replace an index that is there.

    Raises:
        InvalidInput: a doc_id comes twice or is empty; vectors without a contract, or not of its width; no branch.
        ContractMismatch: contract and query encoder are of different models.
        AlreadyExists: `out` is there and overwrite is off.
    """
    encoder = None if query_encoder is None else CachedQueryEncoder.load(query_encoder)
    contract = _joint_contract(contract, encoder)
    if dense_dtype not in ("fp16", "int8"):
        raise InvalidInput(f"dense_dtype is {dense_dtype!r}; expected 'fp16' or 'int8'")
    if sparse_top_k is not None and sparse_top_k < 1:
        raise InvalidInput(f"sparse_top_k is {sparse_top_k}; at least 1 is needed")
    collected = _Collected(contract, _token_counter(analyzer, encoder), dense_dim, dense_dtype, sparse_top_k)
    with new_folder(Path(out), overwrite=overwrite) as folder:
        _write(folder, shards, collected, progress)
        if query_encoder is not None:
            shutil.copytree(query_encoder, folder / ENCODER_FOLDER)
    with Index.open(out) as index:
        return index.info()


def _write(folder: Path, shards: Iterable[Shard], collected: _Collected, progress: bool) -> None:
    store = StoreWriter(folder / STORE_FILE)
    try:
        with tqdm(desc="index", unit=" documents", disable=None if progress else True) as bar:
            for shard in shards:
                store.add(shard.documents)
                collected.add(shard)
                bar.update(len(shard.documents))
        name = "segment-00000"
        arrays, record = collected.finish()
        checksum = write_segment(folder / SEGMENTS_FOLDER / name, arrays, record=record)
        store.finish(collected.index_record(), [(name, len(collected.doc_ids), checksum)])
    finally:
        store.close()


def _joint_contract(contract: Contract | None, encoder: CachedQueryEncoder | None) -> Contract | None:
    if encoder is None:
        return contract
    if contract is None:
        return encoder.contract
    require_same_documents(contract, encoder.contract, names=("the vectors", "the query encoder"))
    return contract


class _WordCounter:
    """Counts words; ids are given as words come, and put in the words' order at the end."""

    def __init__(self, analyzer: Analyzer) -> None:
        self.analyzer = analyzer
        self._ids: dict[str, int] = {}
        self._rows: list[Ragged] = []

    def add(self, texts: Sequence[str]) -> None:
        ids = self._ids
        rows = self.analyzer.terms(texts)
        self._rows.append(Ragged.from_lists([[ids.setdefault(term, len(ids)) for term in row] for row in rows]))

    def finish(self) -> tuple[list[Ragged], int, dict[str, npt.NDArray[Any]]]:
        terms = sorted(self._ids)
        new_ids = np.zeros(len(terms), dtype=np.uint32)
        new_ids[[self._ids[term] for term in terms]] = np.arange(len(terms), dtype=np.uint32)
        text, indptr = SortedStrings.pack(terms)
        rows = [Ragged(new_ids[row.term_ids], row.indptr) for row in self._rows]
        return rows, len(terms), {"tokens.terms.text": text, "tokens.terms.indptr": indptr}


class _ModelTermCounter:
    """Counts the model's own terms; text is prepared as a query's is, but never cut."""

    def __init__(self, encoder: CachedQueryEncoder) -> None:
        self.analyzer = Analyzer(MODEL)
        self._encoder = encoder
        self._policy = dataclasses.replace(encoder.contract.query, max_tokens=WHOLE_TEXT_TOKENS)
        self._rows: list[Ragged] = []

    def add(self, texts: Sequence[str]) -> None:
        self._rows.append(query_term_ids(self._encoder.tokenizer, self._policy, texts))

    def finish(self) -> tuple[list[Ragged], int, dict[str, npt.NDArray[Any]]]:
        return self._rows, self._encoder.contract.backbone.vocab_size, {}


def _token_counter(analyzer: str | None, encoder: CachedQueryEncoder | None) -> _WordCounter | _ModelTermCounter | None:
    if analyzer is None:
        return None
    if analyzer != MODEL:
        return _WordCounter(Analyzer(analyzer))
    if encoder is None:
        raise InvalidInput("the 'model' analyzer needs a query encoder: its tokenizer cuts the text")
    return _ModelTermCounter(encoder)


class _Collected:
    """What the shards brought, until all are there and the documents can be put in the order of their ids.

    doc_ord follows doc_id, so the kernel's order (score down, doc_ord up) is the product's (score down, doc_id up).
    """

    def __init__(
        self,
        contract: Contract | None,
        counter: _WordCounter | _ModelTermCounter | None,
        dense_dim: int | None,
        dense_dtype: DenseDtype,
        sparse_top_k: int | None,
    ) -> None:
        self.contract = contract
        self.counter = counter
        self.dense_dim = dense_dim
        self.dense_dtype = dense_dtype
        self.sparse_top_k = sparse_top_k
        self.doc_ids: list[str] = []
        self._dense: list[npt.NDArray[np.float16]] = []
        self._sparse: list[SparseVectors] = []
        self._has: tuple[bool, bool] | None = None

    def add(self, shard: Shard) -> None:
        has = (shard.dense is not None, shard.sparse is not None)
        if self._has not in (None, has):
            raise InvalidInput(f"a shard has (dense, sparse) = {has}, but those before had {self._has}")
        self._has = has
        self.doc_ids += [document.doc_id for document in shard.documents]
        if shard.dense is not None:
            self._dense.append(_narrow(self._checked_dense(shard.dense), self.dense_dim))
        if shard.sparse is not None:
            self._sparse.append(_strongest(self._checked_sparse(shard.sparse), self.sparse_top_k))
        if self.counter is not None:
            self.counter.add([document.full_text() for document in shard.documents])

    def finish(self) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
        if not self._dense and not self._sparse and self.counter is None:
            raise InvalidInput("nothing to search: no dense vectors, no sparse vectors, and no analyzer for tokens")
        order = np.array(sorted(range(len(self.doc_ids)), key=self.doc_ids.__getitem__), dtype=np.int64)
        text, indptr = SortedStrings.pack([self.doc_ids[i] for i in order])
        arrays: dict[str, npt.NDArray[Any]] = {"doc_ids.text": text, "doc_ids.indptr": indptr}
        vocab_sizes: dict[str, int] = {}
        if self._dense:
            arrays |= _dense_arrays(np.concatenate(self._dense)[order], self.dense_dtype)
        if self._sparse:
            sparse = _take(_concatenate(self._sparse), order)
            vocab_sizes["sparse"] = sparse.vocab_size
            arrays |= sparse_arrays("sparse", sparse)
        if self.counter is not None:
            rows, vocab_size, dictionary = self.counter.finish()
            vocab_sizes["tokens"] = vocab_size
            arrays |= dictionary | sparse_arrays("tokens", _take(_token_weights(rows, vocab_size), order))
        return arrays, {"documents": len(order), "vocab_sizes": vocab_sizes}

    def index_record(self) -> dict[str, Any]:
        return {
            "format_version": INDEX_VERSION,
            "written_by": lightir.__version__,
            "contract": None if self.contract is None else to_json(self.contract),
            "analyzer": None if self.counter is None else dataclasses.asdict(self.counter.analyzer),
            "options": {"dense_dtype": self.dense_dtype, "sparse_top_k": self.sparse_top_k},
        }

    def _checked_dense(self, rows: npt.NDArray[np.float16]) -> npt.NDArray[np.float16]:
        if self.contract is None or self.contract.dense is None:
            raise InvalidInput(f"there are dense vectors, but {'no' if self.contract is None else 'a sparse'} contract")
        width = (self.contract.dense.dims or (self.contract.backbone.hidden_size,))[0]
        if rows.ndim != 2 or rows.shape[1] != width:
            raise ContractMismatch(f"dense vectors have shape {rows.shape}, but the contract says width {width}")
        if self.dense_dim is not None and not 1 <= self.dense_dim <= width:
            raise InvalidInput(f"dense_dim is {self.dense_dim}; the vectors have 1 to {width} columns")
        return rows

    def _checked_sparse(self, rows: SparseVectors) -> SparseVectors:
        if self.contract is None or self.contract.sparse is None:
            raise InvalidInput(f"there are sparse vectors, but {'no' if self.contract is None else 'a dense'} contract")
        if rows.vocab_size != self.contract.backbone.vocab_size:
            raise ContractMismatch(
                f"sparse vectors have vocabulary {rows.vocab_size}, "
                f"but the contract says {self.contract.backbone.vocab_size}"
            )
        if rows.weights.dtype != np.uint8:
            raise InvalidInput(f"sparse impacts are {rows.weights.dtype}; expected uint8")
        return rows


def _narrow(rows: npt.NDArray[np.float16], dim: int | None) -> npt.NDArray[np.float16]:
    if dim is None or dim == rows.shape[1]:
        return rows.astype(np.float16, copy=False)
    return normalized(rows[:, :dim].astype(np.float32)).astype(np.float16)


def normalized(rows: Floats) -> Floats:
    """The rows scaled to length 1; a row of zeros stays."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    out: Floats = np.divide(rows, lengths, out=np.zeros(rows.shape, np.float32), where=lengths > 0)
    return out


def _dense_arrays(rows: npt.NDArray[np.float16], dtype: DenseDtype) -> dict[str, npt.NDArray[Any]]:
    if dtype == "fp16":
        return {"dense.rows": rows}
    values = rows.astype(np.float32)
    scales = np.abs(values).max(axis=1, initial=0.0).astype(np.float32) / np.float32(127)
    divisors = np.where(scales > 0, scales, np.float32(1))
    return {"dense.rows": np.rint(values / divisors[:, None]).astype(np.int8), "dense.scales": scales}


def _strongest(vectors: SparseVectors, k: int | None) -> SparseVectors:
    vectors = vectors.without_zeros()
    lengths = np.diff(vectors.indptr)
    if k is None or not len(lengths) or lengths.max() <= k:
        return vectors
    row_of = np.repeat(np.arange(len(vectors)), lengths)
    order = np.lexsort((vectors.term_ids, -vectors.weights.astype(np.int64), row_of))
    rank = np.arange(len(order)) - np.repeat(vectors.indptr[:-1], lengths)
    kept = np.sort(order[rank < k])
    indptr = np.concatenate([[0], np.cumsum(np.minimum(lengths, k))]).astype(np.int64)
    return SparseVectors(indptr, vectors.term_ids[kept], vectors.weights[kept], vectors.vocab_size)


def _token_weights(rows: Sequence[Ragged], vocab_size: int) -> SparseVectors:
    counted = [SparseVectors.count(row, vocab_size=vocab_size) for row in rows]
    lengths = np.concatenate([np.zeros(0, np.int64), *(row.lengths for row in rows)])
    return bm25_weights(_concatenate(counted or [SparseVectors.empty(0, vocab_size=vocab_size)]), lengths)


def _concatenate(parts: Sequence[SparseVectors]) -> SparseVectors:
    lengths = np.concatenate([np.diff(part.indptr) for part in parts])
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    term_ids = np.concatenate([part.term_ids for part in parts])
    return SparseVectors(indptr, term_ids, np.concatenate([part.weights for part in parts]), parts[0].vocab_size)


def _take(vectors: SparseVectors, order: npt.NDArray[np.int64]) -> SparseVectors:
    lengths = np.diff(vectors.indptr)[order]
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    places = np.arange(indptr[-1]) + np.repeat(vectors.indptr[order] - indptr[:-1], lengths)
    return SparseVectors(indptr, vectors.term_ids[places], vectors.weights[places], vectors.vocab_size)
