"""Encoding of documents into a vectors/ folder: batches by length, whole shards, resumable, each document once."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lightir.addresses import QUERY_ENCODER, resolve_model_folder
from lightir.contract import MAX_IMPACT, SparseHead
from lightir.errors import InvalidInput
from lightir.files import atomic_folder, copy_folder
from lightir.index.passages.lengths import n_longer
from lightir.progress import Progress
from lightir.runtime.document_model import DocumentModel
from lightir.runtime.encode_options import DEFAULT_OPTIONS, EncodeOptions
from lightir.runtime.frames import Framed
from lightir.runtime.loading import load_model
from lightir.shards import Shard, VectorsWriter
from lightir.types import Document
from lightir.vectors import SparseVectors

SHARD_BATCHES = 64
"""Number of full batches in a shard: enough to sort by length, and about a minute of a small LLM on a CPU."""
FRAMING_BATCH = 64
MAX_CLIPPED_SHARE = 1e-3
"""Share of impacts at the maximum above which `encode_corpus` warns."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EncodeReport:
    """Counts and duration of one call of `encode_corpus`.

    Attributes:
        documents: number of documents encoded by this call.
        already_there: number of documents in the folder that were skipped.
        tokens: number of input tokens of this call's documents, with frames, without padding.
        seconds: time from the first document to the last shard on disk, without loading the model.
        impacts: number of sparse weights that this call stored.
        clipped: number of these that are 255, the maximum: the model's weight is 255 / scale or more.
        longer: number of documents encoded by this call of which the model reads the beginning only.
    """

    documents: int
    already_there: int
    tokens: int
    seconds: float
    impacts: int = 0
    clipped: int = 0
    longer: int = 0

    @property
    def documents_per_s(self) -> float:
        """Documents encoded per second; 0 if none."""
        return self.documents / self.seconds if self.documents else 0.0

    @property
    def clips(self) -> bool:
        """Whether more than a tiny share of the impacts is at the maximum."""
        return self.clipped > MAX_CLIPPED_SHARE * self.impacts


def encode_corpus(
    model: DocumentModel | str | os.PathLike[str],
    documents: Iterable[Document],
    out: Path | str,
    *,
    options: EncodeOptions = DEFAULT_OPTIONS,
    resume: bool = False,
    n_documents: int | None = None,
) -> EncodeReport:
    """Encode documents into a vectors/ folder, in input order, which a resumed run continues.

    A document without text is encoded as its bare frame: a dense vector like any other, and no sparse terms. Text far
    beyond the model's length is cut before it is tokenized.

    Args:
        model: loaded model, model folder, or name of a shipped model. The folder's query encoder is copied beside the
            vectors.
        documents: documents with distinct ids. To resume, pass the same documents in the same order.
        out: vectors/ folder to write.
        options: options of loading the model and encoding.
        resume: continue an interrupted folder; a complete one is left unchanged.
        n_documents: number of documents, for the progress bar; None if unknown.

    Raises:
        AlreadyExists: the folder holds vectors and resume is off, or another process is writing them.
        ContractMismatch: the folder was begun with another model or another quantization.
        InvalidInput: a duplicate id, a document whose text changed since the folder was begun, or layers that
            cannot be compiled with compile=True.
        MissingExtra: neither torch nor ONNX Runtime is installed, or what the model, the runtime or the quantization
            requires is missing.
    """
    folder = resolve_model_folder(model) if isinstance(model, str | os.PathLike) else None
    encoder = load_model(model, options)
    batch_tokens = options.batch_tokens or encoder.batch_tokens
    with VectorsWriter(out, encoder.contract, quantized=options.quantize, resume=resume) as writer:
        before, tokens, impacts, start = len(writer.doc_ids), 0, np.zeros(2, dtype=np.int64), time.perf_counter()
        longer = 0
        with (
            Progress("encode", unit="document", total=n_documents, done=before, smooth=True) as bar,
            contextlib.ExitStack() as compiled,
        ):
            unwritten = unwritten_documents(documents, writer)
            size = SHARD_BATCHES * batch_tokens
            for window in document_windows(encoder.frame_documents, unwritten, options.shard_size, size):
                if tokens == 0:
                    expected = window.tokens * max((n_documents or 0) - before, len(window.documents))
                    compiled.enter_context(encoder.prepared(options.compile, expected / len(window.documents)))
                shard = _encode_window(encoder, window, batch_tokens, bar)
                writer.add(shard)
                tokens += window.tokens
                impacts += count_impacts(shard)
                longer += n_longer(window.documents, encoder.contract, encoder.tokenizer)
        if folder is not None:
            copy_query_encoder(folder, Path(out))
        writer.finish()
        seconds = time.perf_counter() - start
        n_impacts, n_clipped = impacts.tolist()
        report = EncodeReport(len(writer.doc_ids) - before, before, tokens, seconds, n_impacts, n_clipped, longer)
    warn_if_clipped(report, encoder.contract.sparse)
    return report


def copy_query_encoder(model: Path, vectors: Path) -> None:
    """Copy the query encoder of a model folder, if it has one, beside the vectors."""
    if (model / QUERY_ENCODER).is_dir():
        with atomic_folder(vectors / QUERY_ENCODER, overwrite=True) as copy:
            copy_folder(model / QUERY_ENCODER, copy)


def count_impacts(shard: Shard) -> tuple[int, int]:
    """Return the number of a shard's impacts, and of those at the maximum."""
    if shard.sparse is None:
        return 0, 0
    return len(shard.sparse.weights), int((shard.sparse.weights == MAX_IMPACT).sum())


def warn_if_clipped(report: EncodeReport, sparse: SparseHead | None) -> None:
    """Log a warning if the quantizer's scale is too large for the model's weights."""
    if sparse is not None and report.clips:
        logger.warning(
            "%s of %s sparse weights (%.2f %%) are clipped: the contract's scale %g stores none above %.3g, so a "
            "document's strongest terms look alike. Train the model with heads.scale: 0, or call fit_scale on a loaded "
            "one, to choose the scale by the model's weights",
            f"{report.clipped:,}",
            f"{report.impacts:,}",
            100 * report.clipped / report.impacts,
            sparse.scale,
            MAX_IMPACT / sparse.scale,
        )


def encode_shard(model: DocumentModel, documents: Sequence[Document], *, batch_tokens: int | None = None) -> Shard:
    """Encode a few documents into a shard in memory, in their order.

    Args:
        model: loaded model.
        documents: documents to encode.
        batch_tokens: maximum number of tokens of a forward pass; None is the device's default.
    """
    framed = model.frame_documents(documents)
    window = Window(list(documents), framed, sum(len(ids) for ids, _, _ in framed))
    with Progress("encode", unit="document", shown=False) as bar:
        return _encode_window(model, window, batch_tokens or model.batch_tokens, bar)


def length_batches(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Yield positions in batches of similar length, longest first, with rows x longest <= batch_tokens or one row."""
    order = sorted(range(len(lengths)), key=lambda position: (-lengths[position], position))
    start = 0
    while start < len(order):
        rows = max(1, batch_tokens // max(lengths[order[start]], 1))
        yield order[start : start + rows]
        start += rows


def unwritten_documents(documents: Iterable[Document], writer: VectorsWriter) -> Iterator[Document]:
    """Yield the documents that no earlier run has written."""
    seen: set[str] = set()
    for document in documents:
        if document.doc_id in seen:
            raise InvalidInput(f"duplicate document id {document.doc_id!r}")
        seen.add(document.doc_id)
        if not writer.has(document):
            yield document


@dataclass(slots=True)
class Window:
    """Documents of one shard, framed, with their number of tokens."""

    documents: list[Document]
    framed: list[Framed]
    tokens: int


def document_windows(
    frame: Callable[[Sequence[Document]], list[Framed]], documents: Iterator[Document], size: int, tokens: int
) -> Iterator[Window]:
    """Yield documents in order, in windows of `size` documents or slightly more than `tokens` tokens.

    Args:
        frame: function that frames documents, as `DocumentModel.frame_documents`.
        documents: documents to divide.
        size: maximum number of documents of a window.
        tokens: number of tokens that completes a window.
    """
    window = Window([], [], 0)
    while batch := list(islice(documents, min(FRAMING_BATCH, size - len(window.documents)))):
        framed = frame(batch)
        window.documents += batch
        window.framed += framed
        window.tokens += sum(len(ids) for ids, _, _ in framed)
        if len(window.documents) == size or window.tokens >= tokens:
            yield window
            window = Window([], [], 0)
    if window.documents:
        yield window


def _encode_window(model: DocumentModel, window: Window, batch_tokens: int, bar: Progress) -> Shard:
    documents, framed = window.documents, window.framed
    lengths = [len(ids) for ids, _, _ in framed]
    head = model.contract.dense
    width = 0 if head is None else (head.dims[0] if head.dims else model.contract.backbone.hidden_size)
    dense = np.zeros((len(documents), width), dtype=np.float16)
    rows: dict[int, tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint8]]] = {}
    vocab_size = model.contract.backbone.vocab_size
    for positions in length_batches(lengths, batch_tokens):
        vectors, sparse = model.encode_framed([framed[position] for position in positions])
        if vectors is not None:
            dense[positions] = vectors
        if sparse is not None:
            rows.update((position, sparse.row(i)) for i, position in enumerate(positions))  # type: ignore[misc]
        bar.update(len(positions))
    gathered = _join_rows(rows, len(documents), vocab_size) if model.contract.sparse is not None else None
    return Shard(documents, None if head is None else dense, gathered)


def _join_rows(
    rows: dict[int, tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint8]]], n: int, vocab_size: int
) -> SparseVectors:
    indptr = np.zeros(n + 1, dtype=np.int64)
    np.cumsum([len(rows[position][0]) for position in range(n)], out=indptr[1:])
    term_ids = np.concatenate([np.zeros(0, np.uint32), *(rows[position][0] for position in range(n))])
    impacts = np.concatenate([np.zeros(0, np.uint8), *(rows[position][1] for position in range(n))])
    return SparseVectors(indptr, term_ids, impacts, vocab_size)
