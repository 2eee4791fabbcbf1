"""The fit against closed forms that can be written down in three lines."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightir.errors import InvalidInput
from lightir.query import CachedGate
from lightir.query.bigrams import Bigrams
from lightir.train.distill.fit_config import FitConfig
from lightir.train.distill.fitted_rows import FittedRows, entry_weights
from lightir.train.distill.kl_fit import fit_table, kl_table
from lightir.train.distill.table_fit import (
    bigrams_by_error,
    ridge_table,
    select_rows,
    term_probabilities,
    weighted_start,
    with_bigrams,
)
from lightir.vectors import Ragged

VOCAB, WIDTH = 30, 6


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def random_queries(rng: np.random.Generator, n: int, *, largest: int = VOCAB) -> Ragged:
    return Ragged.from_lists([rng.integers(0, largest, size=rng.integers(1, 8)).tolist() for _ in range(n)])


def unit(rows: np.ndarray) -> np.ndarray:
    return (rows / np.linalg.norm(rows, axis=-1, keepdims=True)).astype(np.float32)


def shares(queries: Ragged) -> np.ndarray:
    matrix = np.zeros((len(queries), VOCAB))
    for row in range(len(queries)):
        for term in queries.row(row):
            matrix[row, term] += 1 / len(queries.row(row))
    return matrix


def means(table: np.ndarray, queries: Ragged) -> np.ndarray:
    return unit(np.stack([table[queries.row(i)].mean(axis=0) for i in range(len(queries))]))


def kl(table: np.ndarray, queries: Ragged, targets: np.ndarray, documents: np.ndarray, temperature: float) -> float:
    def log_softmax(scores: np.ndarray) -> np.ndarray:
        shifted = scores - scores.max(axis=1, keepdims=True)
        return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))

    wanted = log_softmax(targets @ documents.T / temperature)
    given = log_softmax(means(table, queries) @ documents.T / temperature)
    return float((np.exp(wanted) * (wanted - given)).sum(axis=1).mean())


def random_gate(rng: np.random.Generator, n_rows: int = VOCAB, columns: int = 3) -> CachedGate:
    keys, values = rng.normal(size=(2, n_rows, columns)).astype(np.float32)
    return CachedGate(keys, values)


def test_sums_and_weights_of_a_gate_are_those_of_its_definition(rng: np.random.Generator) -> None:
    queries = Ragged.from_lists([[1, 2, 2], [], [5], [29, 0, 7, 7, 1]])
    gate, rows = random_gate(rng), rng.normal(size=(VOCAB, WIDTH)).astype(np.float32)
    weights = [gate.weights(queries.row(i)) for i in range(4)]
    np.testing.assert_allclose(entry_weights(gate, queries), np.concatenate(weights), rtol=1e-5)
    sums = FittedRows(rows, gate).sums(queries)
    for i in range(4):
        np.testing.assert_allclose(sums[i], weights[i] @ rows[queries.row(i)], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(FittedRows(rows).sums(queries)[3], rows[queries.row(3)].sum(axis=0), rtol=1e-5)


def test_added_rows_of_zeros_change_no_query(rng: np.random.Generator) -> None:
    queries = random_queries(rng, 20)
    for gate in (None, random_gate(rng)):
        table = FittedRows(rng.normal(size=(VOCAB, WIDTH)).astype(np.float32), gate)
        wider = table.with_zeros(4)
        np.testing.assert_array_equal(wider.sums(queries), table.sums(queries))
        assert len(wider.rows) == VOCAB + 4
        assert wider.gate is None or len(wider.gate) == VOCAB + 4


def test_ridge_weighs_the_rows_as_the_gate_does(rng: np.random.Generator) -> None:
    queries, gate = random_queries(rng, 200), random_gate(rng)
    start, targets = rng.normal(size=(VOCAB, WIDTH)).astype(np.float32), unit(rng.normal(size=(200, WIDTH)))
    matrix = np.zeros((200, VOCAB))
    for row in range(200):
        weights = gate.weights(queries.row(row))
        for term, weight in zip(queries.row(row), weights / weights.sum(), strict=True):
            matrix[row, term] += weight
    means = matrix @ start
    scale = (means * targets).sum() / (means * means).sum()
    rest = np.linalg.solve(matrix.T @ matrix + 0.1 * np.eye(VOCAB), matrix.T @ (targets - scale * means))
    config = FitConfig(ridge=0.1, ridge_iterations=200)
    result = ridge_table(FittedRows(start, gate), queries, targets, config, fitted_start=True)
    np.testing.assert_allclose(result.rows, scale * start + rest, atol=2e-4)
    assert result.gate is gate


def test_a_gate_learns_which_row_drowns_another(rng: np.random.Generator) -> None:
    """The target of a query with term 0 is term 0's; else the mean. No table of rows alone has that for all pairs."""
    rows = unit(rng.normal(size=(8, WIDTH)))
    texts = [[a, b] for a in range(8) for b in range(8) if a != b] + [[a] for a in range(8)]
    targets = unit(np.stack([rows[0] if 0 in text else rows[text].mean(axis=0) for text in texts]))
    errors = []
    for gate in (0, 4):
        config = FitConfig(
            steps=600, batch_size=32, candidates=0, cosine=5.0, learning_rate=0.01, gate=gate, gate_learning_rate=0.03
        )
        fitted = kl_table(FittedRows(rows), Ragged.from_lists(texts), targets, rows, config)
        errors.append(1 - (unit(fitted.sums(Ragged.from_lists(texts))) * targets).sum(axis=1).mean())
    assert errors[1] < 0.3 * errors[0]


def test_training_goes_on_with_the_gate_of_the_start(rng: np.random.Generator) -> None:
    queries, gate = random_queries(rng, 30), random_gate(rng)
    table = FittedRows(rng.normal(size=(VOCAB, WIDTH)).astype(np.float32), gate)
    targets, documents = unit(rng.normal(size=(30, WIDTH))), unit(rng.normal(size=(12, WIDTH)))
    fitted = kl_table(table, queries, targets, documents, FitConfig(steps=1, gate_learning_rate=1e-3))
    assert fitted.gate is not None
    assert 0 < np.abs(fitted.gate.keys - gate.keys).max() < 2e-3
    with pytest.raises(InvalidInput, match="gate is 5, but the start's gate has 3 columns"):
        kl_table(table, queries, targets, documents, FitConfig(steps=1, gate=5))


def test_ridge_equals_the_normal_equations(rng: np.random.Generator) -> None:
    queries, start = random_queries(rng, 200), rng.normal(size=(VOCAB, WIDTH)).astype(np.float32)
    targets = unit(rng.normal(size=(200, WIDTH)))
    matrix = shares(queries)
    projected = matrix @ start
    gram = projected.T @ projected
    mapping = np.linalg.solve(gram + 1e-3 * np.diag(gram).mean() * np.eye(WIDTH), projected.T @ targets)
    rest = np.linalg.solve(matrix.T @ matrix + 0.03 * np.eye(VOCAB), matrix.T @ (targets - projected @ mapping))
    result = ridge_table(FittedRows(start), queries, targets, FitConfig(ridge=0.03, ridge_iterations=200))
    np.testing.assert_allclose(result.rows, start @ mapping + rest, atol=2e-4)


def test_terms_that_no_query_holds_keep_their_mapped_start(rng: np.random.Generator) -> None:
    queries, start = random_queries(rng, 80, largest=20), rng.normal(size=(VOCAB, WIDTH)).astype(np.float32)
    mixing = rng.normal(size=(WIDTH, WIDTH))
    targets = (shares(queries) @ start @ mixing).astype(np.float32)
    result = ridge_table(FittedRows(start), queries, targets, FitConfig())
    np.testing.assert_allclose(result.rows[20:], start[20:] @ mixing, atol=0.02)


def test_kl_falls_and_labels_raise_their_documents(rng: np.random.Generator) -> None:
    queries, start = random_queries(rng, 60), rng.normal(size=(VOCAB, WIDTH)).astype(np.float32)
    targets, documents = unit(rng.normal(size=(60, WIDTH))), unit(rng.normal(size=(25, WIDTH)))
    config = FitConfig(steps=150, batch_size=32, candidates=0, contrastive=0.0, learning_rate=0.02)
    fitted = kl_table(FittedRows(start), queries, targets, documents, config)
    assert kl(fitted.rows, queries, targets, documents, 0.05) < 0.5 * kl(start, queries, targets, documents, 0.05)
    labels = Ragged.from_lists([[i % 25] if i % 2 else [] for i in range(60)])
    weighted = FitConfig(steps=150, batch_size=32, candidates=10, contrastive=5.0, learning_rate=0.02)
    pulled = kl_table(FittedRows(start), queries, targets, documents, weighted, positives=labels)
    labeled = np.arange(1, 60, 2)
    score = [
        (means(table, queries) * documents[np.arange(60) % 25]).sum(axis=1)[labeled].mean()
        for table in (fitted.rows, pulled.rows)
    ]
    assert score[1] > score[0] + 0.1


def test_the_same_input_gives_the_same_bytes_and_another_seed_does_not(rng: np.random.Generator) -> None:
    queries, start = random_queries(rng, 50), rng.normal(size=(VOCAB, WIDTH)).astype(np.float32)
    targets, documents = unit(rng.normal(size=(50, WIDTH))), unit(rng.normal(size=(40, WIDTH)))
    for gate in (0, 2):
        configs = [FitConfig(steps=20, batch_size=8, candidates=16, seed=seed, gate=gate) for seed in (0, 0, 1)]
        tables = [fit_table(FittedRows(start), queries, targets, documents, config) for config in configs]
        assert tables[0].rows.tobytes() == tables[1].rows.tobytes()
        assert tables[0].rows.tobytes() != tables[2].rows.tobytes()
        gates = [table.gate for table in tables]
        assert (gates[0] is None) == (gate == 0)
        if gates[0] is not None and gates[1] is not None:
            assert gates[0].hash == gates[1].hash


def test_queries_without_terms_change_nothing(rng: np.random.Generator) -> None:
    start, documents = rng.normal(size=(VOCAB, WIDTH)).astype(np.float32), unit(rng.normal(size=(9, WIDTH)))
    targets = unit(rng.normal(size=(4, WIDTH)))
    config = FitConfig(steps=3, batch_size=2)
    with_empty = Ragged.from_lists([[], [1, 2], [], [3]])
    without = Ragged.from_lists([[1, 2], [3]])
    np.testing.assert_array_equal(
        fit_table(FittedRows(start), with_empty, targets, documents, config).rows,
        fit_table(FittedRows(start), without, targets[[1, 3]], documents, config).rows,
    )


def test_a_fitted_start_without_ridge_iterations_stays_as_it_is(rng: np.random.Generator) -> None:
    start, targets = rng.standard_normal((6, 4)).astype(np.float32), rng.standard_normal((2, 4)).astype(np.float32)
    config, queries = FitConfig(ridge_iterations=0, steps=0), Ragged.from_lists([[1, 2], [3]])
    for fitted_start in (True, False):
        fitted = fit_table(FittedRows(start), queries, targets, targets, config, fitted_start=fitted_start)
        assert np.array_equal(fitted.rows, start) == fitted_start


def test_the_start_is_centred_and_frequent_terms_shrink() -> None:
    rows = np.array([[1, 0], [0, 1], [1, 1]], dtype=np.float32)
    probabilities = term_probabilities(Ragged.from_lists([[0, 0], [0, 1]]), vocab_size=3)
    np.testing.assert_allclose(probabilities, [0.75, 0.25, 0])
    start = weighted_start(rows, probabilities)
    np.testing.assert_allclose(start[2], rows[2] - [0.75, 0.25])
    np.testing.assert_allclose(start[0], (rows[0] - [0.75, 0.25]) * 1e-3 / 0.751, rtol=1e-5)
    assert np.isfinite(weighted_start(rows, np.zeros(3, np.float32))).all()


@pytest.mark.parametrize(
    ("queries", "message"),
    [([[], []], "no query has a term"), ([[VOCAB], [1]], "outside the table"), ([[1]], "1 queries but 2")],
)
def test_what_cannot_be_fitted_is_refused(queries: list[list[int]], message: str) -> None:
    start, targets = np.ones((VOCAB, 2), np.float32), np.ones((2, 2), np.float32)
    with pytest.raises(InvalidInput, match=message):
        fit_table(
            FittedRows(start), Ragged.from_lists(queries), targets, np.ones((3, 2), np.float32), FitConfig(steps=1)
        )


@pytest.mark.parametrize(
    "change",
    [
        {"ridge": 0.0},
        {"steps": -1},
        {"batch_size": 0},
        {"temperature": float("nan")},
        {"cosine": -1.0},
        {"candidates_from": "texts"},
        {"gate": -1},
        {"gate_learning_rate": 0.0},
    ],
)
def test_settings_that_make_no_sense_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(change))):
        FitConfig(**change)  # type: ignore[arg-type]


def test_pairs_with_the_largest_possible_gain_are_chosen(rng: np.random.Generator) -> None:
    queries = random_queries(rng, 120, largest=5)
    table, targets = rng.normal(size=(5, WIDTH)).astype(np.float32), unit(rng.normal(size=(120, WIDTH)))
    sums, masses, counts = {}, {}, Counter()
    for row in range(len(queries)):
        terms = queries.row(row).tolist()
        error = targets[row] - unit(table[terms].mean(axis=0, keepdims=True))[0]
        for pair in itertools.pairwise(terms):
            sums[pair] = sums.get(pair, 0) + error / math.sqrt(len(terms))
            masses[pair] = masses.get(pair, 0) + 1 / len(terms)
            counts[pair] += 1
    gains = {pair: (sums[pair] @ sums[pair]) / (masses[pair] + 0.3) for pair in sums if counts[pair] >= 3}
    best = sorted(gains, key=lambda pair: -gains[pair])[:7]
    chosen = bigrams_by_error(FittedRows(table), queries, targets, 7, ridge=0.3)
    assert [tuple(pair) for pair in chosen.pairs.tolist()] == sorted(best)
    assert len(bigrams_by_error(FittedRows(table), queries, targets, 7, ridge=0.3, min_count=200)) == 0


def test_cosine_pulls_the_means_towards_the_teacher(rng: np.random.Generator) -> None:
    queries, start = random_queries(rng, 40), rng.normal(size=(VOCAB, WIDTH)).astype(np.float32)
    targets, documents = unit(rng.normal(size=(40, WIDTH))), unit(rng.normal(size=(12, WIDTH)))
    cosines = []
    for weight in (0.0, 20.0):
        config = FitConfig(steps=120, batch_size=20, candidates=0, cosine=weight, learning_rate=0.02)
        fitted = kl_table(FittedRows(start), queries, targets, documents, config)
        cosines.append((means(fitted.rows, queries) * targets).sum(axis=1).mean())
    assert cosines[1] > cosines[0] + 0.01


@given(st.lists(st.lists(st.integers(0, 3), max_size=5), min_size=1, max_size=6), st.data())
def test_rows_are_selected_and_extended_by_pairs_as_by_loops(texts: list[list[int]], data: st.DataObject) -> None:
    queries = Ragged.from_lists(texts)
    chosen = data.draw(st.lists(st.integers(0, len(texts) - 1), max_size=8))
    selected = select_rows(queries, np.array(chosen, dtype=np.int64))
    assert [selected.row(i).tolist() for i in range(len(chosen))] == [texts[i] for i in chosen]
    pairs = sorted({(1, 2), (3, 3), (0, 1)})
    extended = with_bigrams(queries, Bigrams(np.array(pairs, dtype=np.uint32)), vocab_size=4)
    expected = [[*text, *(4 + pairs.index(p) for p in itertools.pairwise(text) if p in pairs)] for text in texts]
    assert [extended.row(i).tolist() for i in range(len(texts))] == expected
