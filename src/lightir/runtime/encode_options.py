"""Options of loading a model and encoding documents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from lightir.errors import InvalidInput

Program = Literal["torch", "onnx", "kernel"]
Runtime = Literal["auto", "torch", "onnx", "kernel"]
RUNTIMES: tuple[Runtime, ...] = get_args(Runtime)
RUNTIME_NAMES: dict[Program, str] = {"torch": "torch", "onnx": "ONNX Runtime", "kernel": "lightir's kernel"}
"""Names of the runtimes in messages."""

Quantizer = Literal["int8", "int8-dynamic", "int4", "nf4"]
QUANTIZERS: tuple[Quantizer, ...] = get_args(Quantizer)

BATCH_TOKENS = {"cpu": 2048, "cuda": 8192}
"""Default maximum number of tokens of a forward pass: it fits the caches of a CPU, and fills a GPU."""


@dataclass(frozen=True, slots=True)
class EncodeOptions:
    """Options of loading a model and encoding documents.

    Attributes:
        batch_tokens: maximum number of tokens of a forward pass, padding included; a longer document is a batch by
            itself. None is 2,048 on a CPU and 8,192 on a GPU.
        dtype: dtype of the weights. "auto" is bfloat16 on a GPU and on CPUs that multiply it natively, else float32.
            Always float32 by ONNX Runtime, bfloat16 by the kernel. Must be "auto" for a loaded model.
        device: torch device; "auto" is a GPU if there is one, else the CPU. Must be "auto" for a loaded model.
        compile: whether the model's layers are compiled, which requires a C++ compiler and makes encoding on a CPU 1.3
            to 1.7 times as fast. None compiles on a CPU if the corpus is large enough to repay the seconds that
            compiling takes; if that fails, a warning is logged and the layers run as they are.
        quantize: rounding of the layers' weights ("int8", "int4", "nf4") or of weights and activations
            ("int8-dynamic", the only one of the runtimes "onnx" and "kernel"): less memory, slightly lower quality.
            Recorded in the folder. Must be None for a loaded model.
        shard_size: maximum number of documents that are written together, and the most that an interruption loses.
            Shards are smaller if 64 full batches of tokens hold fewer documents.
        runtime: program that runs the model: "torch"; for encoders of the BERT family also "onnx" (ONNX Runtime, the
            extra `encode`), and "kernel" (nothing to install, and the fastest, on processors with AMX). "auto" is torch
            if it is installed, else ONNX Runtime, else the kernel. Must be "auto" for a loaded model.
    """

    batch_tokens: int | None = None
    dtype: Literal["auto", "bf16", "fp32"] = "auto"
    device: str = "auto"
    compile: bool | None = None
    quantize: Quantizer | None = None
    shard_size: int = 4096
    runtime: Runtime = "auto"

    def __post_init__(self) -> None:
        """Refuse sizes below 1."""
        if (self.batch_tokens is not None and self.batch_tokens < 1) or self.shard_size < 1:
            raise InvalidInput(
                f"batch_tokens is {self.batch_tokens} and shard_size {self.shard_size}; both must be at least 1"
            )


DEFAULT_OPTIONS = EncodeOptions()
