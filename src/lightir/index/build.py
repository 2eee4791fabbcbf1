"""Building an index of shards of documents and vectors, in a temporary folder that is renamed when complete."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from lightir.addresses import QUERY_ENCODER, resolve_query_encoder
from lightir.analysis import Analyzer
from lightir.contract import Contract, require_same_documents, to_json
from lightir.errors import InvalidInput, WriteFailed, storage_errors
from lightir.files import checksums_of_files, copy_folder
from lightir.index.bm25 import mean_length
from lightir.index.index_options import IndexOptions
from lightir.index.index_record import ENCODER_FILES, INDEX_VERSION
from lightir.index.intake import GATHERED_DOCUMENTS, Intake, require_shard, sliced
from lightir.index.merging import joining_bar
from lightir.index.reader import Index, IndexInfo
from lightir.index.segments.join import Join
from lightir.index.segments.layout import SEGMENTS_FOLDER, StoredSegment
from lightir.index.segments.rows import DocumentRows
from lightir.index.segments.segment import Segment
from lightir.index.segments.segment_writer import write_segment
from lightir.index.store import Store
from lightir.index.store_file import STORE_FILE, new_index
from lightir.index.store_row import StoreRow, store_row
from lightir.index.word_vectors import with_word_weight
from lightir.progress import Progress
from lightir.query import CachedQueryEncoder
from lightir.shards import Shard, VectorsReader
from lightir.types import Document
from lightir.version import __version__

logger = logging.getLogger(__name__)

SHARD_DOCUMENTS = 4096


def document_shards(documents: Iterable[Document], *, size: int = SHARD_DOCUMENTS) -> Iterator[Shard]:
    """Yield documents without vectors as shards of `size` documents, at least 1."""
    if size < 1:
        raise InvalidInput(f"size is {size}; expected at least 1")
    remaining = iter(documents)
    while batch := list(itertools.islice(remaining, size)):
        yield Shard(batch, None, None)


def build_index(
    source: Iterable[Shard] | Path | str,
    out: Path | str,
    *,
    options: IndexOptions | None = None,
    contract: Contract | None = None,
    query_encoder: Path | str | None = None,
    progress: bool = True,
    overwrite: bool = False,
) -> IndexInfo:
    """Build an index of all documents and return its info. The same shards give the same bytes.

    Pieces of GATHERED_DOCUMENTS documents are written to disk and joined into segments at the end. Memory holds one
    piece: about 250 MB for documents of 60 words (bench/bench_index.py), and 400 kB per dense column. It also holds a
    few numbers per document of a segment, and with dense_graph the graph of a segment. The disk holds one segment twice
    for a while.

    Args:
        source: shards of documents with dense vectors, sparse impacts, both or neither; the kinds of vectors must not
            differ. Or a vectors folder, whose contract and query encoder are used unless others are given.
        out: index folder to write.
        options: options of the index; None for the defaults.
        contract: contract of the model; required if there are vectors.
        query_encoder: query-encoder folder, or the folder or name of a model that has one. It is copied into the index.
            Its document side must be that of the contract.
        progress: show a progress bar, or log messages if stderr is no terminal.
        overwrite: replace an existing index without a writer. Its readers keep the old index until they refresh.

    Raises:
        InvalidInput: a doc_id is repeated or empty; vectors have no contract, or another width; there is no branch; a
            word_weight is asked for without a query encoder of dense rows.
        NotFound, FormatError: the vectors folder or the query encoder is missing, incomplete or damaged.
        ContractMismatch: contract and query encoder belong to different models.
        AlreadyExists: `out` exists and overwrite is off.
        IndexLocked: the index to replace has a writer; the message names its process.
        WriteFailed: the disk is full or broken; nothing is left behind, and an existing index is unchanged.
        OutcomeUnknown: the new index is in its place, but a power failure may undo that.
        StorageError: the system refuses to read the vectors or the query encoder.
    """
    options = options or IndexOptions()
    if isinstance(source, Path | str):
        source = VectorsReader(source)
        contract = contract or source.contract
        query_encoder = query_encoder or _carried_encoder(source.folder)
    query_encoder = query_encoder and resolve_query_encoder(query_encoder)
    encoder = CachedQueryEncoder.load(query_encoder) if query_encoder else None
    contract = _joint_contract(contract, encoder)
    _warn_of_width(contract, options.dense_dim)
    analyzer = None if options.analyzer is None else Analyzer(options.analyzer)
    intake = Intake(contract, analyzer, encoder, with_word_weight(options, contract, encoder))
    return run_build(intake, source, out, query_encoder=query_encoder, progress=progress, overwrite=overwrite)


def run_build(
    intake: Intake,
    shards: Iterable[Shard],
    out: Path | str,
    *,
    query_encoder: Path | str | None = None,
    progress: bool = True,
    overwrite: bool = False,
) -> IndexInfo:
    """Build an index by a given maker of rows; arguments and errors are those of `build_index`."""
    with new_index(Path(out), overwrite=overwrite) as folder:
        if query_encoder:
            copy_folder(query_encoder, folder / QUERY_ENCODER)
        build = _Build(Path(out), folder, intake)
        with closing(build.store):
            build.run(shards, progress)
        return build.info()  # before the rename, after which nothing may fail


def _warn_of_width(contract: Contract | None, dim: int | None) -> None:
    """Log a warning if vectors are cut to a width that the model was not trained at."""
    if contract is not None and dim is not None and (warning := contract.width_warning(dim)):
        logger.warning("dense_dim: %s", warning)


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
    """A build under way: a temporary folder of segments that becomes `out` when it is complete."""

    def __init__(self, out: Path, folder: Path, intake: Intake) -> None:
        self.out = out
        self.folder = folder
        self.intake = intake
        self.segment_documents = intake.options.segment_documents
        self.store = Store.create(folder / STORE_FILE)
        self._documents: list[StoreRow] = []
        self._rows: list[DocumentRows] = []
        self._segments: list[StoredSegment] = []
        self._total_length = 0
        self._n_documents = 0
        self._has: tuple[bool, bool] | None = None

    def run(self, shards: Iterable[Shard], progress: bool) -> None:
        with self.writing():
            (self.folder / SEGMENTS_FOLDER).mkdir()
        with Progress("index", unit="document", shown=progress) as bar:
            for shard in shards:
                require_shard(shard)
                if shard.documents:
                    self.intake.detect_languages(shard.documents)
                self._add(shard)
                bar.update(len(shard.documents))
        self._flush(last=True)
        if self._has is None and self.intake.analyzer is None and (self.intake.contract is None or self._segments):
            raise InvalidInput("nothing to search: there are no dense vectors, no sparse vectors, and no analyzer")
        if len(self._segments) > 1:
            with self.writing():
                self._join(progress)
        for segment in self._segments:
            self.store.add_segment(segment)
        files = checksums_of_files(self.folder / QUERY_ENCODER)
        self.store.finish({**index_record(self.intake), ENCODER_FILES: files})

    def info(self) -> IndexInfo:
        """Open the complete index in its temporary folder, and return its info."""
        with self.writing(), Index.open(self.folder) as index:
            return index.info()

    def _add(self, shard: Shard) -> None:
        has = (shard.dense is not None, shard.sparse is not None)
        if any(has) and self._has not in (None, has):
            raise InvalidInput(f"a shard has (dense, sparse) = {has}, but earlier shards have {self._has}")
        self._has = has if any(has) else self._has
        most = min(self.segment_documents, GATHERED_DOCUMENTS)
        for piece in sliced(self.intake.prepared(shard), most):
            if len(self._documents) + len(piece.documents) > most:
                self._flush()
            self._documents += [store_row(document) for document in piece.documents]
            self._rows.append(self.intake.rows(piece))

    def _flush(self, *, last: bool = False) -> None:
        """Write the gathered documents as a segment; their keys follow the order of their ids.

        Only a segment that is both the first and the last gets its graph, because others are joined later.
        """
        if not self._documents:
            return
        documents = Join([(rows, np.arange(len(rows))) for rows in self._rows])
        documents.doc_keys = self.store.documents.insert([self._documents[i] for i in documents.order.tolist()])
        self._n_documents += len(documents)
        self._total_length += sum(rows.total_length for rows in self._rows)
        self._documents, self._rows = [], []
        number, options = len(self._segments) + 1, self.intake.options
        if self._segments or not last:
            options = dataclasses.replace(options, dense_graph=False)
        with self.writing():
            written = write_segment(self.folder, documents, number=number, mean=self._mean, options=options)
            self._segments.append(written)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Turn errors of the system into WriteFailed; errors of reading the shards stay as they are."""
        with storage_errors(f"cannot write {self.out}", kind=WriteFailed, outcome="it is unchanged"):
            yield

    @property
    def _mean(self) -> float:
        return mean_length(self._total_length, self._n_documents)

    def _join(self, progress: bool) -> None:
        """Join pieces into segments, whose postings are written for the mean length that is now known."""
        pieces, self._segments = self._segments, []
        options, aside = self.intake.options, len(pieces) + 1
        with joining_bar("join", progress) as bar:
            for group in _groups(pieces, self.segment_documents):
                opened = [Segment(self._folder_of(piece), piece.manifest_sha256) for piece in group]
                joined = group[0]
                if len(group) > 1 or opened[0].mean_length != self._mean or options.dense_graph:
                    documents = Join([(segment.rows(), np.arange(len(segment))) for segment in opened])
                    joined = write_segment(
                        self.folder,
                        documents,
                        number=aside,
                        mean=self._mean,
                        options=options,
                        on_bytes=bar.update,
                        progress=progress,
                    )
                    for piece in group:
                        shutil.rmtree(self._folder_of(piece))
                named = dataclasses.replace(joined, number=len(self._segments) + 1)
                self._folder_of(joined).rename(self._folder_of(named))
                self._segments.append(named)

    def _folder_of(self, segment: StoredSegment) -> Path:
        return self.folder / SEGMENTS_FOLDER / segment.name


def _groups(pieces: Sequence[StoredSegment], size: int) -> Iterator[list[StoredSegment]]:
    """Yield the pieces in order, as many at a time as have at most `size` documents together."""
    group: list[StoredSegment] = []
    for piece in pieces:
        if group and sum(member.documents for member in group) + piece.documents > size:
            yield group
            group = []
        group.append(piece)
    yield group


def index_record(intake: Intake) -> dict[str, Any]:
    """Return the record that the store keeps of an index."""
    return {
        "format_version": INDEX_VERSION,
        "written_by": __version__,
        "contract": None if intake.contract is None else to_json(intake.contract),
        "analyzer": None if intake.analyzer is None else dataclasses.asdict(intake.analyzer),
        "sizes": intake.options.sizes(),
        "segment_documents": intake.options.segment_documents,
        **({} if intake.options.schema is None else {"schema": dataclasses.asdict(intake.options.schema)}),
        **({} if intake.options.passages is None else {"passages": dataclasses.asdict(intake.options.passages)}),
        **({"boosts": dict(intake.options.boosts)} if intake.options.boosts else {}),
        **({"word_weight": intake.options.word_weight} if intake.options.word_weight else {}),
    }
