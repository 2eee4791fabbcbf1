"""The kernel's encoder against the definition of BERT in float64, with products of rounded numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightir.errors import InvalidInput
from lightir.kernel import _native
from lightir.kernel.bert import Embeddings, Encoder, LayerWeights, activation, has_tiles

Array = npt.NDArray[Any]
LOOPS_AND_TILES = [False, pytest.param(True, marks=pytest.mark.skipif(not has_tiles(), reason="no tiles of bfloat16"))]
EPSILON = 1e-6


def rounded(values: Array) -> Array:
    """The nearest bfloat16, ties to even, by the definition: 8 bits of precision."""
    mantissa, exponent = np.frexp(values.astype(np.float64))
    return np.ldexp(np.rint(mantissa * 256) / 256, exponent)


def normalized(states: Array, norm: tuple[Array, Array]) -> Array:
    centered = states - states.mean(axis=1, keepdims=True)
    return centered / np.sqrt((centered**2).mean(axis=1, keepdims=True) + EPSILON) * norm[0] + norm[1]


def integers(rows: Array) -> Array:
    """Each row as integers of 8 bits times a scale: the nearest multiples of a 127th of its largest number."""
    scales = np.abs(rows).max(axis=1, keepdims=True) / 127
    return np.rint(rows / np.where(scales == 0, 1, scales)) * scales


def gelu(x: Array, *, by_tanh: bool) -> Array:
    if by_tanh:
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


class Model:
    """A random encoder, and its states by the definition."""

    def __init__(
        self,
        seed: int,
        hidden: int,
        n_heads: int,
        wide: int,
        n_layers: int,
        *,
        by_tanh: bool = False,
        int8: bool = False,
    ) -> None:
        random = np.random.default_rng(seed)
        self.n_heads, self.by_tanh, self.int8 = n_heads, by_tanh, int8

        def linear(rows: int, columns: int) -> tuple[Array, Array]:
            weight = random.normal(scale=1 / math.sqrt(columns), size=(rows, columns))
            return weight.astype(np.float32), random.normal(scale=0.3, size=rows).astype(np.float32)

        def norm() -> tuple[Array, Array]:
            return random.uniform(0.5, 2, hidden).astype(np.float32), random.normal(size=hidden).astype(np.float32)

        words = random.normal(size=(50, hidden)).astype(np.float32)
        positions = random.normal(size=(140, hidden)).astype(np.float32)
        self.embeddings = Embeddings(words, positions, norm())
        square = (hidden, hidden)
        self.layers = [
            LayerWeights(
                *(linear(*square) for _ in range(4)), linear(wide, hidden), linear(hidden, wide), norm(), norm()
            )
            for _ in range(n_layers)
        ]
        self.encoder = Encoder(
            self.embeddings,
            self.layers,
            n_heads=n_heads,
            epsilon=EPSILON,
            by_tanh=by_tanh,
            int8=int8,
        )

    def states(self, ids: Array) -> Array:
        if not len(ids):
            return np.zeros((0, self.embeddings.words.shape[1]))
        words, positions, norm = self.embeddings
        states = normalized(words[ids].astype(np.float64) + positions[: len(ids)], norm)
        for layer in self.layers:
            attended = self.attended(*(self.product(states, part) for part in layer[:3]))
            states = normalized(states + self.product(attended, layer.attended), layer.attention_norm)
            wide = gelu(self.product(states, layer.wide), by_tanh=self.by_tanh)
            states = normalized(states + self.product(wide, layer.narrow), layer.output_norm)
        return states

    def product(self, states: Array, layer: tuple[Array, Array]) -> Array:
        if self.int8:
            return integers(rounded(states)) @ integers(layer[0].astype(np.float64)).T + layer[1]
        return rounded(states) @ rounded(layer[0]).T + layer[1]

    def attended(self, queries: Array, keys: Array, values: Array) -> Array:
        size = queries.shape[1] // self.n_heads
        mixed = np.zeros_like(queries)
        for first in range(0, queries.shape[1], size):
            columns = slice(first, first + size)
            scores = rounded(queries[:, columns]) @ rounded(keys[:, columns]).T / math.sqrt(size)
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            mixed[:, columns] = rounded(weights) @ rounded(values[:, columns]) / weights.sum(axis=1, keepdims=True)
        return mixed


def encode(model: Model, texts: list[Array], *, threads: int = 1, tiles: bool = False) -> Array:
    offsets = np.cumsum([0, *map(len, texts)]).astype(np.int64)
    return model.encoder.states(np.concatenate(texts).astype(np.uint32), offsets, threads=threads, tiles=tiles)


@pytest.mark.parametrize("tiles", LOOPS_AND_TILES)
@pytest.mark.parametrize("int8", [False, True])
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_states_are_those_of_the_definition(int8: bool, tiles: bool, data: st.DataObject) -> None:
    hidden = 32 * data.draw(st.integers(1, 3))
    n_heads = data.draw(st.sampled_from([n for n in (1, 2, 3, 4, 8) if hidden % n == 0]))
    by_tanh = data.draw(st.booleans())
    seed = data.draw(st.integers(0, 1000))
    wide, n_layers = data.draw(st.integers(1, 100)), data.draw(st.integers(0, 2))
    model = Model(seed, hidden, n_heads, wide, n_layers, by_tanh=by_tanh, int8=int8)
    lengths = data.draw(st.lists(st.integers(0, 140), min_size=1, max_size=4))
    random = np.random.default_rng(seed)
    texts = [random.integers(0, 50, n) for n in lengths]
    states = encode(model, texts, tiles=tiles)
    expected = np.concatenate([model.states(ids) for ids in texts])
    # Sums in another order round some numbers to the other neighbor, 2^-8 of it away, or a 127th of the largest.
    np.testing.assert_allclose(states, expected, atol=0.2 if int8 else 0.1)
    if len(expected):
        assert np.abs(states - expected).mean() < (0.02 if int8 else 0.004)


@pytest.mark.parametrize("tiles", LOOPS_AND_TILES)
@pytest.mark.parametrize("int8", [False, True])
def test_a_text_has_the_same_states_in_every_batch_and_with_any_threads(int8: bool, tiles: bool) -> None:
    model, random = Model(3, 64, 2, 128, 2, int8=int8), np.random.default_rng(3)
    texts = [random.integers(0, 50, n) for n in (1, 140, 17, 33, 140, 140, 90, 32, 16, 5)]
    together = encode(model, texts, threads=1, tiles=tiles)
    np.testing.assert_array_equal(encode(model, texts, threads=4, tiles=tiles), together)
    np.testing.assert_array_equal(np.concatenate([encode(model, [ids], tiles=tiles) for ids in texts]), together)


@pytest.mark.skipif(not has_tiles(), reason="no tiles of bfloat16")
def test_a_lower_level_has_no_tiles() -> None:
    best = _native.dispatch()
    try:
        _native.use_level("scalar")
        assert not has_tiles()
        with pytest.raises(InvalidInput, match="no tiles of bfloat16"):
            encode(Model(0, 32, 1, 32, 1), [np.array([1])], tiles=True)
    finally:
        _native.use_level(best)


@pytest.mark.parametrize("by_tanh", [False, True])
def test_the_activations_polynomial_is_near_gelu(by_tanh: bool) -> None:
    limit, *coefficients = activation(by_tanh=by_tanh).astype(np.float64)
    x = np.linspace(-10, 10, 20_001)
    u = np.clip(x, -limit, limit)
    polynomial = x * (0.5 + u * np.polynomial.Polynomial(coefficients)(u**2))
    np.testing.assert_allclose(polynomial, gelu(x, by_tanh=by_tanh), atol=2.5e-4)


def test_large_scores_and_equal_ones_are_weighted() -> None:
    model = Model(1, 32, 1, 32, 1)
    layer = model.layers[0]._replace(query=(model.layers[0].query[0] * 300, model.layers[0].query[1]))
    model.layers = [layer]
    model.encoder = Encoder(model.embeddings, [layer], n_heads=1, epsilon=EPSILON)
    for ids in (np.arange(40), np.zeros(40, np.int64)):
        np.testing.assert_allclose(encode(model, [ids]), model.states(ids), atol=0.1)


def test_bad_input_is_refused() -> None:
    model = Model(0, 32, 1, 32, 1)
    ids, offsets = np.array([1, 2], np.uint32), np.array([0, 2])
    run = model.encoder.states
    bad: list[tuple[Any, Any, str]] = [
        (np.array([1, 50], np.uint32), offsets, "id 50 is beyond the 50 words"),
        (ids.astype(np.int64), offsets, "ids must be uint32"),
        (ids, np.array([0, 1]), "offsets must start at 0, never fall and end at 2"),
        (ids, np.array([0, 3, 2]), "offsets must start at 0, never fall"),
        (ids, np.array([], np.int64), "offsets must start at 0"),
        (np.zeros(141, np.uint32), np.array([0, 141]), "a text has 141 tokens, but there are 140 positions"),
    ]
    for given_ids, given_offsets, message in bad:
        with pytest.raises(InvalidInput, match=message):
            run(given_ids, given_offsets, threads=1, tiles=False)
    assert run(ids[:0], np.array([0, 0]), threads=1, tiles=False).shape == (0, 32)
    assert run(ids[:0], np.array([0]), threads=1, tiles=False).shape == (0, 32)
    narrow = Model(0, 32, 1, 32, 1)
    words, positions, norm = narrow.embeddings
    with pytest.raises(InvalidInput, match="multiples of 32 columns"):
        Encoder(Embeddings(words[:, :20], positions[:, :20], norm), [], n_heads=1, epsilon=EPSILON)
    with pytest.raises(InvalidInput, match="columns of words and positions differ in length"):
        Encoder(Embeddings(words, np.zeros((5, 64), np.float32), norm), [], n_heads=1, epsilon=EPSILON)
    wrong = narrow.layers[0]._replace(narrow=(np.zeros((64, 32), np.float32), narrow.layers[0].narrow[1]))
    with pytest.raises(InvalidInput, match="rows of a weight and its layer differ in length: 32 and 64"):
        Encoder(narrow.embeddings, [wrong], n_heads=1, epsilon=EPSILON)
