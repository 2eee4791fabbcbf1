"""From shards of documents and vectors to an index folder, written aside and renamed when it is whole."""

from __future__ import annotations

import dataclasses
import itertools
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

import lightir
from lightir.addresses import QUERY_ENCODER, resolve_query_encoder
from lightir.analysis import Analyzer
from lightir.contract import Contract, require_same_documents, to_json
from lightir.errors import InvalidInput
from lightir.files import copy_folder, new_folder
from lightir.index.bm25 import mean_length
from lightir.index.graph import require_usearch
from lightir.index.intake import GRAPH_SEGMENT_DOCUMENTS, SEGMENT_DOCUMENTS, DenseDtype, Intake, Sizes, sliced
from lightir.index.reader import Index, IndexInfo
from lightir.index.rows import Rows, join, of_segment
from lightir.index.segment import Segment
from lightir.index.segment_writer import write_rows
from lightir.index.store import SEGMENTS_FOLDER, STORE_FILE, Store, StoredSegment, StoreRow, creating, store_row
from lightir.index.view import INDEX_VERSION
from lightir.query import CachedQueryEncoder
from lightir.shards import Shard, VectorsReader
from lightir.types import Document

SHARD_DOCUMENTS = 4096


def document_shards(documents: Iterable[Document], *, size: int = SHARD_DOCUMENTS) -> Iterator[Shard]:
    """Documents without vectors as shards, for an index of tokens alone."""
    remaining = iter(documents)
    while batch := list(itertools.islice(remaining, size)):
        yield Shard(batch, None, None)


def build_index(
    shards: Iterable[Shard] | Path | str,
    out: Path | str,
    *,
    contract: Contract | None = None,
    query_encoder: Path | str | None = None,
    dense_dim: int | None = None,
    dense_dtype: DenseDtype = "fp16",
    sparse_top_k: int | None = None,
    dense_graph: bool = False,
    analyzer: str | None = "english",
    segment_documents: int | None = None,
    progress: bool = True,
    overwrite: bool = False,
) -> IndexInfo:
    """Build an index of all documents; returns what it holds. The same shards give the same bytes.

    Documents go into segments as they come, so memory holds one segment of documents whatever the collection's size:
    with the defaults about 250 MB for documents of 60 words (bench/bench_index.py), and 400 kB a dense column; with
    dense_graph segments are sixteen times as large.

    Args:
        shards: documents with dense vectors, sparse impacts, both or neither; all shards with vectors alike. Or a
            vectors folder, which brings its contract, and the query encoder that lies in it, unless others are given.
        out: the index folder.
        contract: the model's; needed when there are vectors.
        query_encoder: a query-encoder folder, or a model (its folder, or a shipped one's name) that has one. It is
            copied into the index; its document side must be the contract's.
        dense_dim: see `Sizes`; it holds for what is added later too.
        dense_dtype: see `Sizes`.
        sparse_top_k: see `Sizes`.
        dense_graph: see `Sizes` and lightir.index.graph.
        analyzer: cuts title and text for BM25, see `Analyzer`; None leaves the tokens branch out.
        segment_documents: the most documents of a segment, of which memory holds one; None for 65,536, or 1,048,576
            with dense_graph, see lightir.index.intake.
        progress: show a bar when standard error is a terminal.
        overwrite: replace an index that is there.

    Raises:
        InvalidInput: a doc_id comes twice or is empty; vectors without a contract, or not of its width; no branch.
        NotFound, FormatError: the vectors folder or the query encoder is not there, not complete or damaged.
        ContractMismatch: contract and query encoder are of different models.
        AlreadyExists: `out` is there and overwrite is off.
        MissingExtra: dense_graph without usearch.
        WriteFailed: the disk is full or broken; nothing is left behind.
    """
    if dense_graph:
        require_usearch()
    if isinstance(shards, Path | str):
        shards = VectorsReader(shards)
        contract = contract or shards.contract
        query_encoder = query_encoder or _carried_encoder(shards.folder)
    query_encoder = None if query_encoder is None else resolve_query_encoder(query_encoder)
    encoder = None if query_encoder is None else CachedQueryEncoder.load(query_encoder)
    contract = _joint_contract(contract, encoder)
    sizes = Sizes(dense_dim, dense_dtype, sparse_top_k, dense_graph)
    if segment_documents is None:
        segment_documents = GRAPH_SEGMENT_DOCUMENTS if dense_graph else SEGMENT_DOCUMENTS
    intake = Intake(contract, None if analyzer is None else Analyzer(analyzer), encoder, sizes)
    with creating(Path(out)), new_folder(Path(out), overwrite=overwrite, replaces=STORE_FILE) as folder:
        build = _Build(folder, intake, segment_documents)
        try:
            build.run(shards, progress)
        finally:
            build.store.close()
        if query_encoder is not None:
            copy_folder(query_encoder, folder / QUERY_ENCODER)
    with Index.open(out) as index:
        return index.info()


def _carried_encoder(vectors: Path) -> Path | None:
    folder = vectors / QUERY_ENCODER
    return folder if folder.is_dir() else None


def _joint_contract(contract: Contract | None, encoder: CachedQueryEncoder | None) -> Contract | None:
    if encoder is None:
        return contract
    if contract is None:
        return encoder.contract
    require_same_documents(contract, encoder.contract, names=("the vectors", "the query encoder"))
    return contract


class _Build:
    """A folder that fills with segments."""

    def __init__(self, folder: Path, intake: Intake, segment_documents: int) -> None:
        if segment_documents < 1:
            raise InvalidInput(f"segment_documents is {segment_documents}; at least 1 is needed")
        self.folder = folder
        self.intake = intake
        self.segment_documents = segment_documents
        self.store = Store.create(folder / STORE_FILE)
        self._documents: list[StoreRow] = []
        self._rows: list[Rows] = []
        self._segments: list[StoredSegment] = []
        self._total_length = 0
        self._n_documents = 0
        self._has: tuple[bool, bool] | None = None

    def run(self, shards: Iterable[Shard], progress: bool) -> None:
        (self.folder / SEGMENTS_FOLDER).mkdir()
        with tqdm(desc="index", unit=" documents", disable=None if progress else True) as bar:
            for shard in shards:
                self._add(shard)
                bar.update(len(shard.documents))
        self._flush()
        if self._has is None and self.intake.analyzer is None and (self.intake.contract is None or self._segments):
            raise InvalidInput("nothing to search: no dense vectors, no sparse vectors, and no analyzer for tokens")
        if self.intake.analyzer is not None and len(self._segments) > 1:
            self._finish_tokens()
        for segment in self._segments:
            self.store.add_segment(segment)
        self.store.finish(index_record(self.intake, self.segment_documents))

    def _add(self, shard: Shard) -> None:
        has = (shard.dense is not None, shard.sparse is not None)
        if any(has) and self._has not in (None, has):
            raise InvalidInput(f"a shard has (dense, sparse) = {has}, but those before had {self._has}")
        self._has = has if any(has) else self._has
        for piece in sliced(shard, self.segment_documents):
            if len(self._documents) + len(piece.documents) > self.segment_documents:
                self._flush()
            self._documents += [store_row(document) for document in piece.documents]
            self._rows.append(self.intake.rows(piece))

    def _flush(self) -> None:
        """Write a segment of what has gathered; its documents get keys in the order of their ids."""
        if not self._documents:
            return
        rows = join(self._rows)
        order = sorted(range(len(rows)), key=rows.doc_ids.__getitem__)
        keys = self.store.insert([self._documents[i] for i in order])
        rows = dataclasses.replace(rows.take(np.array(order, dtype=np.int64)), doc_keys=keys)
        self._documents, self._rows = [], []
        self._n_documents += len(rows)
        self._total_length += rows.total_length
        number = len(self._segments) + 1
        self._segments.append(self._write(rows, number))

    def _write(self, rows: Rows, number: int) -> StoredSegment:
        mean = mean_length(self._total_length, self._n_documents)
        return write_rows(self.folder, rows, number=number, mean=mean, sizes=self.intake.sizes)

    def _finish_tokens(self) -> None:
        """The mean length is known at the end: segments that were written for another one are written again."""
        mean = mean_length(self._total_length, self._n_documents)
        for i, stored in enumerate(self._segments):
            folder = self.folder / SEGMENTS_FOLDER / stored.name
            segment = Segment(folder, stored.manifest_sha256)
            if segment.mean_length == mean:
                continue
            rows = of_segment(segment, np.arange(len(segment)))
            shutil.rmtree(folder)
            self._segments[i] = self._write(rows, stored.number)


def index_record(intake: Intake, segment_documents: int) -> dict[str, Any]:
    """What the store keeps about the index as a whole."""
    return {
        "format_version": INDEX_VERSION,
        "written_by": lightir.__version__,
        "contract": None if intake.contract is None else to_json(intake.contract),
        "analyzer": None if intake.analyzer is None else dataclasses.asdict(intake.analyzer),
        "sizes": dataclasses.asdict(intake.sizes),
        "segment_documents": segment_documents,
    }
