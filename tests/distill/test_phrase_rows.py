"""Rows of phrases: each phrase alone gets the teacher's direction, and everything else stays as it was."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")

from lightir.errors import InvalidInput
from lightir.query import CachedGate
from lightir.query.bigrams import LONGER, Bigrams
from lightir.train.distill.fitted_rows import FittedRows
from lightir.train.distill.phrase_rows import with_phrases
from lightir.train.distill.start import StartTable
from lightir.train.distill.table_fit import with_bigrams
from lightir.vectors import Floats, Ragged

N_TERMS, DIM = 5, 4
PAIRS = [(0, 1), (1, 1), (2, 0)]
RUNS = st.lists(st.lists(st.integers(0, N_TERMS - 1), min_size=1, max_size=5), min_size=1, max_size=8)


def table(*, gate: bool, pairs: bool = True) -> StartTable:
    rng = np.random.default_rng(4)
    n = N_TERMS + len(PAIRS) * pairs
    columns = [rng.standard_normal((n, 2)).astype(np.float32) for _ in range(2)]
    rows = FittedRows(rng.standard_normal((n, DIM)).astype(np.float32), CachedGate(*columns) if gate else None)
    return StartTable("minilm", rows, Bigrams(np.array(PAIRS, dtype=np.uint32)) if pairs else None)


def goals(n: int) -> Floats:
    vectors = np.random.default_rng(5).standard_normal((n, DIM)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def sums(of: StartTable, texts: list[list[int]]) -> Floats:
    terms = Ragged.from_lists(texts)
    return of.rows.sums(terms if of.bigrams is None else with_bigrams(terms, of.bigrams, vocab_size=N_TERMS))


@pytest.mark.parametrize("gate", [False, True])
@pytest.mark.parametrize("pairs", [False, True])
@given(runs=RUNS)
def test_each_phrase_gets_the_teachers_direction_and_keeps_its_length(
    gate: bool, pairs: bool, runs: list[list[int]]
) -> None:
    start, vectors = table(gate=gate, pairs=pairs), goals(len(runs))
    grown = with_phrases(start, Ragged.from_lists(runs), vectors)
    before, after = sums(start, runs), sums(grown, runs)
    for i, run in enumerate(runs):
        wanted = before[i] if len(run) == 1 else np.linalg.norm(before[i]) * vectors[runs.index(run)]
        np.testing.assert_allclose(after[i], wanted, atol=2e-4)


def test_other_texts_keep_their_vectors_and_other_pairs_their_rows() -> None:
    start = table(gate=True)
    grown = with_phrases(start, Ragged.from_lists([[0, 1, 3], [4, 4]]), goals(2))
    assert grown.bigrams is not None
    assert grown.bigrams.pairs.tolist() == [[0, 1], [1, 1], [2, 0], [4, 4], [LONGER, 3]]
    np.testing.assert_array_equal(grown.rows.rows[: N_TERMS + 3], start.rows.rows)
    others = [[0], [0, 1], [3, 1, 1, 2, 0], [4, 0, 4]]
    np.testing.assert_allclose(sums(grown, others), sums(start, others), atol=1e-6)


def test_phrases_of_many_terms_get_no_row_and_vectors_have_to_be_as_many() -> None:
    start = table(gate=False)
    grown = with_phrases(start, Ragged.from_lists([[3] * 17]), goals(1))
    assert grown.bigrams is not None
    assert len(grown.bigrams) == len(PAIRS)
    with pytest.raises(InvalidInput, match="1 phrases but 2"):
        with_phrases(start, Ragged.from_lists([[3, 3]]), goals(2))
