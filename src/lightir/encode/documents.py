"""Encoding of documents into a vectors/ folder: batches by length, whole shards, resumable, each document once."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from lightir.addresses import QUERY_ENCODER, resolve_model_folder
from lightir.contract import MAX_IMPACT, SparseHead
from lightir.errors import InvalidInput
from lightir.files import atomic_folder, copy_folder
from lightir.index.passages.lengths import n_longer
from lightir.models.compilation import layer_parameters
from lightir.models.devices import usable_device, weights_dtype
from lightir.models.encoder import LightRetriever
from lightir.models.framing import Framed
from lightir.models.quantization import Quantizer, quantize_layers
from lightir.progress import Progress
from lightir.shards import Shard, VectorsWriter
from lightir.types import Document
from lightir.vectors import SparseVectors

BATCH_TOKENS = {"cpu": 2048, "cuda": 8192}
"""Default maximum number of tokens of a forward pass: it fits the caches of a CPU, and fills a GPU."""
SHARD_BATCHES = 64
"""Number of full batches in a shard: enough to sort by length, and about a minute of a small LLM on a CPU."""
FRAMING_BATCH = 64
WORTH_COMPILING = 2e13
"""Tokens times weights of the layers above which layers are compiled by default. Compiling takes 10 to 15 s of one core
and then saves 25 to 40 % of the time. This is twice the break-even work (a second call finds half of the compilation in
torch's cache)."""

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


@dataclass(frozen=True, slots=True)
class EncodeOptions:
    """Options of loading a model and encoding documents.

    Attributes:
        batch_tokens: maximum number of tokens of a forward pass, padding included; a longer document is a batch by
            itself. None is 2,048 on a CPU and 8,192 on a GPU.
        dtype: dtype of the weights. "auto" is bfloat16 on a GPU and on CPUs that multiply it natively, else float32.
            Must be "auto" for a loaded model.
        device: torch device; "auto" is a GPU if there is one, else the CPU. Must be "auto" for a loaded model.
        compile: whether the model's layers are compiled, which requires a C++ compiler and makes encoding on a CPU 1.3
            to 1.7 times as fast. None compiles on a CPU if the corpus is large enough to repay the seconds that
            compiling takes; if that fails, a warning is logged and the layers run as they are.
        quantize: rounding of the layers' weights ("int8", "int4", "nf4") or of weights and activations
            ("int8-dynamic"): less memory, slightly lower quality. Recorded in the folder. Must be None for a loaded
            model.
        shard_size: maximum number of documents that are written together, and the most that an interruption loses.
            Shards are smaller if 64 full batches of tokens hold fewer documents.
    """

    batch_tokens: int | None = None
    dtype: Literal["auto", "bf16", "fp32"] = "auto"
    device: str = "auto"
    compile: bool | None = None
    quantize: Quantizer | None = None
    shard_size: int = 4096

    def __post_init__(self) -> None:
        """Refuse sizes below 1."""
        if (self.batch_tokens is not None and self.batch_tokens < 1) or self.shard_size < 1:
            raise InvalidInput(
                f"batch_tokens is {self.batch_tokens} and shard_size {self.shard_size}; both must be at least 1"
            )


DEFAULT_OPTIONS = EncodeOptions()


def encode_corpus(
    model: LightRetriever | str | os.PathLike[str],
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
        MissingExtra: torchao, or bitsandbytes for "nf4", is required for quantization and not installed.
    """
    folder = None if isinstance(model, LightRetriever) else resolve_model_folder(model)
    retriever = load_encoder(model, options)
    batch_tokens = options.batch_tokens or default_batch_tokens(retriever)
    with VectorsWriter(out, retriever.contract, quantized=options.quantize, resume=resume) as writer:
        before, tokens, impacts, start = len(writer.doc_ids), 0, np.zeros(2, dtype=np.int64), time.perf_counter()
        longer = 0
        with (
            Progress("encode", unit="document", total=n_documents, done=before, smooth=True) as bar,
            contextlib.ExitStack() as compiled,
        ):
            unwritten = unwritten_documents(documents, writer)
            for window in document_windows(retriever, unwritten, options.shard_size, SHARD_BATCHES * batch_tokens):
                if tokens == 0:
                    expected = window.tokens * max((n_documents or 0) - before, len(window.documents))
                    compile_if_worth(retriever, compiled, options.compile, expected / len(window.documents))
                shard = _encode_window(retriever, window, batch_tokens, bar)
                writer.add(shard)
                tokens += window.tokens
                impacts += count_impacts(shard)
                longer += n_longer(window.documents, retriever.contract, retriever.backbone.tokenizer)
        if folder is not None:
            copy_query_encoder(folder, Path(out))
        writer.finish()
        seconds = time.perf_counter() - start
        n_impacts, n_clipped = impacts.tolist()
        report = EncodeReport(len(writer.doc_ids) - before, before, tokens, seconds, n_impacts, n_clipped, longer)
    warn_if_clipped(report, retriever.contract.sparse)
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


def encode_shard(model: LightRetriever, documents: Sequence[Document], *, batch_tokens: int | None = None) -> Shard:
    """Encode a few documents into a shard in memory, in their order.

    Args:
        model: loaded model.
        documents: documents to encode.
        batch_tokens: maximum number of tokens of a forward pass; None is the device's default.
    """
    framed = model.frame_documents(documents)
    window = Window(list(documents), framed, sum(len(ids) for ids, _, _ in framed))
    with Progress("encode", unit="document", shown=False) as bar:
        return _encode_window(model, window, batch_tokens or default_batch_tokens(model), bar)


def default_batch_tokens(model: LightRetriever) -> int:
    """Return the default maximum number of tokens of a forward pass on the model's device."""
    return BATCH_TOKENS.get(model.backbone.device.type, 8192)


def length_batches(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Yield positions in batches of similar length, longest first, with rows x longest <= batch_tokens or one row."""
    order = sorted(range(len(lengths)), key=lambda position: (-lengths[position], position))
    start = 0
    while start < len(order):
        rows = max(1, batch_tokens // max(lengths[order[start]], 1))
        yield order[start : start + rows]
        start += rows


def load_encoder(model: LightRetriever | str | os.PathLike[str], options: EncodeOptions) -> LightRetriever:
    """Load the model of a folder with the dtype, device and quantization of the options; return a loaded one unchanged.

    Raises:
        InvalidInput: the options name a dtype, device or quantization for a loaded model.
    """
    if isinstance(model, LightRetriever):
        if options.dtype != "auto" or options.device != "auto" or options.quantize:
            raise InvalidInput("a loaded model keeps its weights, dtype and device; give its folder to choose others")
        return model
    device = usable_device(options.device)
    retriever = LightRetriever.load(
        resolve_model_folder(model), dtype=weights_dtype(options.dtype, device), device=device
    )
    if options.quantize:
        quantize_layers(retriever.backbone, options.quantize)
    return retriever


def compile_if_worth(
    model: LightRetriever, stack: contextlib.ExitStack, wanted: bool | None, expected_tokens: float
) -> None:
    """Compile the layers until the stack closes, if `wanted`; None compiles if the expected tokens repay it."""
    backbone = model.backbone
    if wanted is None:
        worth = expected_tokens * layer_parameters(backbone) >= WORTH_COMPILING
        if backbone.device.type != "cpu" or not worth:
            return
    elif not wanted:
        return
    start = time.perf_counter()
    try:
        stack.enter_context(model.compiled())
    except InvalidInput as error:
        if wanted:
            raise
        logger.warning("layers run uncompiled, at 0.5 to 0.8 times the speed: %s", error)
        return
    logger.info("layers were compiled in %.1f s", time.perf_counter() - start)


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


def document_windows(model: LightRetriever, documents: Iterator[Document], size: int, tokens: int) -> Iterator[Window]:
    """Yield documents in order, in windows of `size` documents or slightly more than `tokens` tokens."""
    window = Window([], [], 0)
    while batch := list(islice(documents, min(FRAMING_BATCH, size - len(window.documents)))):
        framed = model.frame_documents(batch)
        window.documents += batch
        window.framed += framed
        window.tokens += sum(len(ids) for ids, _, _ in framed)
        if len(window.documents) == size or window.tokens >= tokens:
            yield window
            window = Window([], [], 0)
    if window.documents:
        yield window


def _encode_window(model: LightRetriever, window: Window, batch_tokens: int, bar: Progress) -> Shard:
    documents, framed = window.documents, window.framed
    lengths = [len(ids) for ids, _, _ in framed]
    head = model.contract.dense
    width = 0 if head is None else (head.dims[0] if head.dims else model.backbone.hidden_size)
    dense = np.zeros((len(documents), width), dtype=np.float16)
    rows: dict[int, tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint8]]] = {}
    vocab_size = model.contract.backbone.vocab_size
    for positions in length_batches(lengths, batch_tokens):
        vectors, sparse = model.encode_batch(model.batch([framed[position] for position in positions]))
        if vectors is not None:
            dense[positions] = vectors.float().cpu().numpy()
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
