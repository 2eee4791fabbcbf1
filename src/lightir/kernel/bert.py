"""Encoders of the BERT family (Devlin et al., NAACL 2019) by the processor's tiles of bfloat16 (Intel AMX)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lightir.kernel import _native

Weight = npt.NDArray[np.float32]

PANEL = 32
"""Columns of a panel: widths are padded with zeros to multiples of it."""

ACTIVATION_LIMIT, ACTIVATION_TERMS = 3.8, 7
"""The activation is x (1/2 + u P(u^2)) with u the x nearest within the limit, P of that many terms: within 2.5e-4 of
GELU at -10 to 10, a tenth of the error of rounding 1 to bfloat16."""


class Embeddings(NamedTuple):
    """Embeddings of V terms, (V, H), and of P positions, (P, H); weight and bias of their sum's norm; all float32."""

    words: Weight
    positions: Weight
    norm: tuple[Weight, Weight]


class LayerWeights(NamedTuple):
    """Weights of a layer: (out, in) matrices, (out,) biases, and weight and bias of the norms, all float32."""

    query: tuple[Weight, Weight]
    key: tuple[Weight, Weight]
    value: tuple[Weight, Weight]
    attended: tuple[Weight, Weight]
    wide: tuple[Weight, Weight]
    narrow: tuple[Weight, Weight]
    attention_norm: tuple[Weight, Weight]
    output_norm: tuple[Weight, Weight]


def has_tiles() -> bool:
    """Return whether this processor multiplies tiles of bfloat16, and this process may use them."""
    return bool(_native.has_bfloat16_tiles())


class Encoder:
    """An encoder with GELU, whose products round their inputs to bfloat16 and sum in float32.

    With int8 the four products of a layer round further, to 8 bits: the weights with a scale of each output, the inputs
    with a scale of each token. A text's states depend on it alone: not on its batch, nor on the number of threads.
    """

    def __init__(
        self,
        embeddings: Embeddings,
        layers: Sequence[LayerWeights],
        *,
        n_heads: int,
        epsilon: float,
        by_tanh: bool = False,
        int8: bool = False,
    ) -> None:
        """Round the weights, and arrange them for the tiles.

        Args:
            embeddings: embeddings, whose arrays are kept; H must be a multiple of 32.
            layers: weights of the layers.
            n_heads: number of attention heads.
            epsilon: constant of the layer norms.
            by_tanh: whether GELU is the one that is computed by tanh.
            int8: whether the layers' products are those of integers.

        Raises:
            InvalidInput: H is no multiple of 32, or arrays do not fit each other.
        """
        head = embeddings.words.shape[1] // n_heads
        self._native = _native.Encoder(
            _contiguous(embeddings.words),
            _contiguous(embeddings.positions),
            tuple(map(_contiguous, embeddings.norm)),
            [_arranged(layer, n_heads) for layer in layers],
            activation(by_tanh=by_tanh),
            (n_heads, _padded(head)),
            (1 / math.sqrt(head), epsilon),
            int8,
        )

    def states(
        self, ids: npt.NDArray[np.uint32], offsets: npt.NDArray[np.int64], *, threads: int, tiles: bool = True
    ) -> Weight:
        """Return the last states of texts, (n, H) float32.

        Args:
            ids: (n,) term ids of all texts.
            offsets: (n_texts + 1,) where each text begins and ends.
            threads: number of threads.
            tiles: whether to use the processor's tiles, or the plain loops that define what they do.

        Raises:
            InvalidInput: an id is beyond the words, a text longer than the positions, or there are no tiles.
        """
        return self._native.encode(ids, offsets, threads, tiles)


def activation(*, by_tanh: bool) -> Weight:
    """Return the limit and the coefficients of GELU's polynomial, (8,) float32.

    It is fitted at the Chebyshev nodes of u^2, by least squares of u P(u^2) against Phi(u) - 1/2.
    """
    n = 4000
    nodes = (np.cos((2 * np.arange(n) + 1) * np.pi / (2 * n)) + 1) / 2
    u = ACTIVATION_LIMIT * np.sqrt(nodes)
    inner = [math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)) if by_tanh else math.erf(x / 2**0.5) for x in u]
    fitted = np.polynomial.Chebyshev.fit(u**2, np.array(inner) / 2 / u, ACTIVATION_TERMS - 1, w=u)
    powers = fitted.convert(kind=np.polynomial.Polynomial).coef
    return np.array([ACTIVATION_LIMIT, *powers], dtype=np.float32)


def _arranged(layer: LayerWeights, n_heads: int) -> tuple[Weight, ...]:
    """Return the arrays of a layer as the kernel reads them: queries, keys and values in one, widths padded."""
    hidden = layer.query[0].shape[0]
    head = hidden // n_heads
    padded_head, n_wide = _padded(head), layer.wide[0].shape[0]
    qkv_weight, qkv_bias = [], []
    for weight, bias in (layer.query, layer.key, layer.value):
        by_head = np.zeros((n_heads, padded_head, hidden), np.float32)
        by_head[:, :head] = weight.reshape(n_heads, head, hidden)
        of_bias = np.zeros((n_heads, padded_head), np.float32)
        of_bias[:, :head] = bias.reshape(n_heads, head)
        qkv_weight.append(by_head.reshape(-1, hidden))
        qkv_bias.append(of_bias.reshape(-1))
    attended = np.zeros((hidden, n_heads, padded_head), np.float32)
    attended[:, :, :head] = layer.attended[0].reshape(hidden, n_heads, head)
    missing = _padded(n_wide) - n_wide
    arrays = (
        np.concatenate(qkv_weight),
        np.concatenate(qkv_bias),
        attended.reshape(hidden, -1),
        layer.attended[1],
        np.pad(layer.wide[0], ((0, missing), (0, 0))),
        np.pad(layer.wide[1], (0, missing)),
        np.pad(layer.narrow[0], ((0, 0), (0, missing))),
        layer.narrow[1],
        *layer.attention_norm,
        *layer.output_norm,
    )
    return tuple(map(_contiguous, arrays))


def _padded(width: int) -> int:
    return -(-width // PANEL) * PANEL


def _contiguous(array: Weight) -> Weight:
    return np.ascontiguousarray(array, dtype=np.float32)
