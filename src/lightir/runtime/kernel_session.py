"""Encoders of the BERT family by lightir's own kernel, on processors with tiles of bfloat16."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lightir.errors import InvalidInput
from lightir.kernel.bert import PANEL, Embeddings, Encoder, LayerWeights, has_tiles
from lightir.runtime.bert_files import BertFiles
from lightir.runtime.onnx_session import n_threads
from lightir.vectors import Floats

PARTS = ("query", "key", "value", "attended", "wide", "narrow", "attention_norm", "output_norm")
BY_TANH = {"gelu": False, "gelu_new": True, "gelu_fast": True, "gelu_pytorch_tanh": True}


class KernelSession:
    """An encoder from term ids to last states, on all cores of the process."""

    def __init__(self, files: BertFiles, *, int8: bool = False) -> None:
        """Arrange the weights.

        Args:
            files: settings and weights of the encoder.
            int8: whether the layers multiply 8-bit integers, see `Encoder`.

        Raises:
            InvalidInput: the states' width or the activation is one that the kernel does not support.
        """
        hidden = files.words.shape[1]
        if hidden % PANEL or files.activation not in BY_TANH:
            raise InvalidInput(
                f"{files.address} has states of width {hidden} and the activation {files.activation!r}; the kernel "
                f"encodes with a multiple of {PANEL} and GELU. Use --runtime onnx or torch"
            )
        layers = [
            LayerWeights(*((weights[f"{part}.weight"], weights[f"{part}.bias"]) for part in PARTS))
            for weights in files.layers
        ]
        self._encoder = Encoder(
            Embeddings(files.words, files.positions, files.embedding_norm),
            layers,
            n_heads=files.n_heads,
            epsilon=files.epsilon,
            by_tanh=BY_TANH[files.activation],
            int8=int8,
        )

    def run(self, texts: Sequence[Sequence[int]]) -> list[Floats]:
        """Return the states of texts of term ids, (n, H) float32 each."""
        offsets = np.cumsum([0, *map(len, texts)], dtype=np.int64)
        ids = np.fromiter((term_id for ids in texts for term_id in ids), np.uint32, count=int(offsets[-1]))
        states = self._encoder.states(ids, offsets, threads=n_threads(), tiles=has_tiles())
        return np.split(states, offsets[1:-1])


def require_tiles() -> None:
    """Refuse processors on which the kernel does not encode.

    Raises:
        InvalidInput: no tiles.
    """
    if not has_tiles():
        raise InvalidInput(
            "the runtime 'kernel' needs a processor with tiles of bfloat16 (AMX; Intel Xeon since 2023) and Linux; "
            "use --runtime onnx or torch"
        )
