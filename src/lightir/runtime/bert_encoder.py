"""Encoders of the BERT family, run by ONNX Runtime or the kernel: document vectors without torch."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from lightir.addresses import SPARSE_ENCODER
from lightir.contract import Contract, DenseHead, hash_arrays
from lightir.errors import ContractMismatch, FormatError, InvalidInput, NotFound
from lightir.runtime.backbone_files import backbone_path, weights_hash
from lightir.runtime.bert_files import BertFiles, MaskedHead
from lightir.runtime.bert_graph import STATES, bert_graph
from lightir.runtime.encode_options import BATCH_TOKENS, RUNTIME_NAMES, EncodeOptions, Program
from lightir.runtime.frames import Framed, Framing
from lightir.runtime.kernel_session import KernelSession, require_tiles
from lightir.runtime.onnx_session import OnnxSession
from lightir.runtime.onnx_sparse import OnnxSparseHead
from lightir.text import TextTokenizer
from lightir.types import Document
from lightir.vectors import Floats, SparseVectors


@dataclasses.dataclass(frozen=True, slots=True)
class Standardization:
    """Mean and deviation that pooled states are standardized by, (H,) float32 each; None for none."""

    mean: Floats | None = None
    deviation: Floats | None = None


class BertEncoder:
    """A dense model over an encoder of the BERT family, as a `lightir.runtime.document_model.DocumentModel`."""

    def __init__(
        self,
        files: BertFiles,
        contract: Contract,
        standardization: Standardization,
        *,
        sparse: OnnxSparseHead | None = None,
        int8: bool = False,
        by_kernel: bool = False,
    ) -> None:
        """Start a session on all cores of the process.

        Args:
            files: settings, weights and tokenizer of the encoder.
            contract: contract with a dense head.
            standardization: standardization of the dense head.
            sparse: sparse head, if the contract has one.
            int8: whether the layers multiply 8-bit integers, see `bert_graph` and `lightir.kernel.bert.Encoder`.
            by_kernel: whether the kernel runs the encoder, else ONNX Runtime.

        Raises:
            InvalidInput: the kernel does not support the encoder's width or activation.
        """
        assert contract.dense is not None
        self.contract = contract
        self._files, self._dense, self._standardization = files, contract.dense, standardization
        self._sparse = sparse
        self._by_kernel = by_kernel
        if by_kernel:
            self._session: KernelSession | OnnxSession = KernelSession(files, int8=int8)
        else:
            self._session = OnnxSession(bert_graph(files, int8=int8), STATES, padding=files.eos_id)

    @classmethod
    def load(cls, folder: Path, options: EncodeOptions) -> BertEncoder:
        """Load a model folder whose contract needs no torch.

        Raises:
            InvalidInput: an option, an architecture or a setting of the model that the runtime does not support here.
            NotFound: the encoder is not installed, or a file is missing.
            MissingExtra: the package of the encoder is not installed.
            ContractMismatch: the files differ from the contract's.
            FormatError: a file is damaged.
        """
        require_supported(options)
        contract = Contract.load(folder)
        int8, by_kernel = options.quantize == "int8-dynamic", options.runtime == "kernel"
        if by_kernel and contract.sparse is not None:
            raise InvalidInput("the runtime 'kernel' has no learned sparse vectors; use --runtime onnx or torch")
        files = _read_encoder(folder, contract)
        heads, sparse = _standardization(folder, contract), _sparse_head(folder, contract, int8=int8)
        return cls(files, contract, heads, sparse=sparse, int8=int8, by_kernel=by_kernel)

    @property
    def runtime(self) -> Program:
        """Program that runs the model."""
        return "kernel" if self._by_kernel else "onnx"

    @property
    def tokenizer(self) -> TextTokenizer:
        """Tokenizer of the encoder."""
        return self._files.tokenizer

    @property
    def batch_tokens(self) -> int:
        """Default maximum number of tokens of a forward pass, which fits the caches of a CPU."""
        return BATCH_TOKENS["cpu"]

    @property
    def encode_size(self) -> int | None:
        """Number of documents that a worker encodes together: the worker's default."""
        return None

    def prepared(self, compile: bool | None, expected_tokens: float) -> AbstractContextManager[None]:
        """Return a context that does nothing: the session prepared its layers when it started.

        Raises:
            InvalidInput: compiling is asked for.
        """
        if compile:
            raise InvalidInput(
                f"--compile is for the runtime torch; {RUNTIME_NAMES[self.runtime]} has nothing to compile"
            )
        return contextlib.nullcontext()

    def frame_documents(self, documents: Sequence[Document]) -> list[Framed]:
        """Return the ids of framed and truncated documents, with the span of each text's own tokens."""
        return Framing(self._files, self.contract).documents(documents)

    def encode_framed(self, framed: Sequence[Framed]) -> tuple[Floats | None, SparseVectors | None]:
        """Return the stored vectors of framed documents: (n, dim) float32, quantized impacts; None without."""
        states = self._session.run([ids for ids, _, _ in framed])
        spans = [pooled_span(text, self._dense, self.contract.document.ends) for text in framed]
        pooled = np.stack([rows[a:b].mean(axis=0) for rows, (a, b) in zip(states, spans, strict=True)])
        return self._comparable(pooled), None if self._sparse is None else self._sparse.encode(framed)

    def _comparable(self, pooled: Floats) -> Floats:
        mean, deviation = self._standardization.mean, self._standardization.deviation
        if mean is not None and deviation is not None:
            pooled = (pooled - mean) / deviation
        vectors = pooled[:, : self._dense.dims[0] if self._dense.dims else None]
        if self._dense.similarity == "dot":
            return vectors
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        unit: Floats = vectors / np.maximum(lengths, np.float32(1e-12))
        return unit


def pooled_span(framed: Framed, head: DenseHead, ends: int) -> tuple[int, int]:
    """Return the span of positions whose mean state is a text's vector (see `lightir.models.pooling.pool`)."""
    ids, start, stop = framed
    if start == stop:  # without text everything is pooled
        start, stop = 0, len(ids)
    spans = {
        "eos": (max(len(ids) - ends, 0), len(ids)),
        "last": (stop - 1, stop),
        "mean": (start, stop),
        "mean_all": (0, len(ids)),
        "first": (0, 1),
    }
    return spans[head.pooling]


def load_framing(folder: Path, options: EncodeOptions) -> Framing:
    """Load the tokenizer and contract of a model folder, as `BertEncoder.load` checks them, without a session.

    Raises:
        InvalidInput, NotFound, MissingExtra, ContractMismatch, FormatError: as `BertEncoder.load`.
    """
    require_supported(options)
    contract = Contract.load(folder)
    return Framing(_read_encoder(folder, contract).without_weights(), contract)


def _read_encoder(folder: Path, contract: Contract) -> BertFiles:
    """Read the encoder of a model folder, and compare it with the contract."""
    record = contract.backbone
    encoder = backbone_path(folder, contract)
    if encoder is None:
        raise NotFound(f"{record.address} is a model hub's name, which needs torch: pip install 'lightir[train]'")
    _require("backbone.weights_hash", record.weights_hash, weights_hash(encoder), folder)
    files = BertFiles.read(encoder, record.address)
    _require("backbone.tokenizer_hash", record.tokenizer_hash, files.tokenizer.hash, folder)
    return files


def require_supported(options: EncodeOptions) -> None:
    """Refuse options that the runtime does not support here.

    Raises:
        InvalidInput: another device than the CPU, a dtype or a quantization that the runtime lacks, or a processor
            without tiles for the kernel.
    """
    if options.device not in ("auto", "cpu"):
        name = options.runtime
        raise InvalidInput(
            f"the runtime {name!r} runs on the CPU, not on device {options.device!r}; use --runtime torch"
        )
    if options.quantize not in (None, "int8-dynamic"):
        raise InvalidInput(
            f"the runtime {options.runtime!r} supports the quantization int8-dynamic, not {options.quantize}"
        )
    if options.runtime == "kernel":
        if options.dtype == "fp32":
            raise InvalidInput("the runtime 'kernel' computes in bfloat16; for float32 use --runtime onnx or torch")
        require_tiles()
    elif options.dtype == "bf16":
        raise InvalidInput("the runtime 'onnx' has no bfloat16; use --dtype fp32, or --quantize int8-dynamic for speed")


def _standardization(folder: Path, contract: Contract) -> Standardization:
    """Read the mean and deviation of a model folder and compare them with the contract's hash."""
    path = folder / "head.safetensors"
    try:
        arrays = load_file(path) if path.is_file() else {}
    except SafetensorError as error:
        raise FormatError(f"{path} is not a complete safetensors file: {error}") from error
    heads = Standardization(arrays.get("mean"), arrays.get("deviation"))
    both = [array for array in (heads.mean, heads.deviation) if array is not None]
    assert contract.dense is not None
    _require("dense.standardized", contract.dense.standardized, hash_arrays(*both) if both else "", folder)
    return heads


def _sparse_head(folder: Path, contract: Contract, *, int8: bool) -> OnnxSparseHead | None:
    """Read the sparse head's own encoder; None without a sparse head."""
    if contract.sparse is None:
        return None
    encoder = folder / SPARSE_ENCODER
    _require("sparse.encoder_hash", contract.sparse.encoder_hash, weights_hash(encoder), folder)
    files = BertFiles.read(encoder, str(encoder))
    _require("backbone.tokenizer_hash", contract.backbone.tokenizer_hash, files.tokenizer.hash, folder)
    return OnnxSparseHead(files, MaskedHead.read(encoder, str(encoder)), contract.sparse, int8=int8)


def _require(name: str, expected: str, actual: str, folder: Path) -> None:
    if expected != actual:
        raise ContractMismatch(f"{folder}: {name} is {actual!r}, but the contract has {expected!r}")
