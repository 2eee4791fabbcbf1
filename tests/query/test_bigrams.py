"""Pairs of terms with their own rows: found like by a loop, averaged with the terms' rows, refused by name."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from lightir.contract import Contract
from lightir.errors import ContractMismatch, FormatError, InvalidInput, NotFound
from lightir.query import CachedQueryEncoder, CachedTable
from lightir.query.bigrams import LONGER, Bigrams
from lightir.query.tables import CachedBigrams
from lightir.search.explain import term_vectors
from lightir.vectors import Ragged
from small_collections import DIM, VOCAB_SIZE, WORDS, word_contract, word_table, word_tokenizer, write_folder

PAIRS = [[1, 4], [1, 6], [6, 1], [6, 6]]
QUERIES = ["the cat the cat", "cat runs", "", "dog", "the the the", "the zebra cat"]
TERMS = [[6, 1, 6, 1], [1, 4], [], [2], [6, 6, 6], [6, 1]]  # an unknown word is dropped before pairs are formed


def known(pairs: list[list[int]]) -> Bigrams:
    return Bigrams(np.asarray(pairs, dtype=np.uint32).reshape(-1, 2))


def contract_with(bigrams: Bigrams) -> Contract:
    contract = word_contract()
    return dataclasses.replace(contract, query=dataclasses.replace(contract.query, bigrams=bigrams.hash))


def cached(seed: int = 1, *, dtype: type = np.float32) -> CachedBigrams:
    rows = np.random.default_rng(seed).standard_normal((len(PAIRS), DIM)).astype(dtype)
    return CachedBigrams(known(PAIRS), CachedTable(rows))


def encoder(**changes: Any) -> CachedQueryEncoder:
    tables = {"": CachedTable(word_table(dtype=np.float32))}
    options = {"tables": tables, "bigrams": cached(), **changes}
    return CachedQueryEncoder(contract_with(known(PAIRS)), word_tokenizer(), **options)


def expected(dim: int = DIM) -> np.ndarray:
    """Return the mean of the terms' and the pairs' rows, by loops in double precision."""
    rows, pairs = word_table(dtype=np.float32).astype(np.float64), cached().table.embeddings.astype(np.float64)
    expected = np.zeros((len(TERMS), dim))
    for i, terms in enumerate(TERMS):
        chosen = [rows[term, :dim] for term in terms]
        chosen += [pairs[PAIRS.index([*pair]), :dim] for pair in itertools.pairwise(terms) if [*pair] in PAIRS]
        if chosen:
            mean = np.mean(chosen, axis=0)
            expected[i] = mean / np.linalg.norm(mean)
    return expected


TEXTS = st.lists(st.lists(st.integers(1, 4), max_size=7), max_size=6)


RUNS = st.sets(st.lists(st.integers(1, 4), min_size=2, max_size=5).map(tuple), max_size=9)


def numbered(runs: set[tuple[int, ...]]) -> tuple[Bigrams, list[tuple[int, ...]]]:
    """Return bigrams of runs and of their beginnings, and the run of each row."""
    every = {run[:n] for run in runs for n in range(2, len(run) + 1)}
    rows: list[tuple[int, ...]] = []
    for length in range(2, 6):
        level = [run for run in every if len(run) == length]
        rows += sorted(level, key=lambda run: (rows.index(run[:-1]) if len(run) > 2 else run[0], run[-1]))
    pairs = [[LONGER + rows.index(run[:-1]) if len(run) > 2 else run[0], run[-1]] for run in rows]
    return known(pairs), rows


@given(TEXTS, RUNS)
def test_pairs_and_longer_runs_are_found_as_by_a_loop(texts: list[list[int]], runs: set[tuple[int, ...]]) -> None:
    bigrams, rows = numbered(runs)
    runs_of_texts = bigrams.find(Ragged.from_lists(texts))
    wanted = [
        [(start, n) for start in range(len(text)) for n in range(2, 6) if tuple(text[start : start + n]) in rows]
        for text in texts
    ]
    wanted = [[run for run in row if sum(run) <= len(text)] for row, text in zip(wanted, texts, strict=True)]
    flat = [term for text in texts for term in text]
    places = list(zip(runs_of_texts.starts.tolist(), runs_of_texts.lengths.tolist(), strict=True))
    assert [len(runs_of_texts.rows.row(i)) for i in range(len(texts))] == [len(row) for row in wanted]
    offsets = np.cumsum([0, *(len(text) for text in texts)])
    assert places == [(int(offsets[i]) + start, n) for i, row in enumerate(wanted) for start, n in row]
    assert [tuple(flat[start : start + n]) for start, n in places] == [rows[row] for row in runs_of_texts.rows.term_ids]


@given(TEXTS, RUNS)
def test_the_kernel_and_explanations_find_the_same_runs(texts: list[list[int]], runs: set[tuple[int, ...]]) -> None:
    bigrams, _ = numbered(runs)
    stored = np.random.default_rng(2).standard_normal((len(bigrams), DIM)).astype(np.float32)
    queries = [" ".join(WORDS[term] for term in text) for text in texts]
    loaded = encoder_of(bigrams, stored)
    encoded = loaded.encode(queries)
    numbers, terms = bigrams.find(Ragged.from_lists(texts)).rows, word_table(dtype=np.float32)
    for i, text in enumerate(texts):
        total = terms[text].sum(axis=0, dtype=np.float64) + stored[numbers.row(i)].sum(axis=0, dtype=np.float64)
        length = float(np.linalg.norm(total))
        np.testing.assert_allclose(encoded.dense[i], total / (length or 1.0), atol=1e-5)
        _, _, parts = term_vectors(loaded, queries[i], task=None, dim=None)
        np.testing.assert_allclose(parts.sum(axis=0), encoded.dense[i], atol=1e-5)


def test_runs_of_the_widest_term_ids_are_distinct() -> None:
    last = LONGER - 1
    bigrams = known([[0, last], [last, 0], [last, last], [LONGER + 1, last]])
    rows = bigrams.find(Ragged.from_lists([[last, 0, last, last]])).rows
    assert rows.term_ids.tolist() == [1, 3, 0, 2]
    for pairs in ([[0, 1], [LONGER + 1, 1]], [[0, 1], [LONGER + 7, 1]]):
        with pytest.raises(InvalidInput, match="does not come before it"):
            known(pairs)


def test_dense_is_the_mean_of_terms_and_pairs_and_sparse_is_as_without() -> None:
    vectors = encoder().encode(QUERIES)
    assert [vectors.term_ids.row(i).tolist() for i in range(len(TERMS))] == TERMS
    np.testing.assert_allclose(vectors.dense, expected(), atol=1e-6)
    plain = CachedQueryEncoder(
        word_contract(), word_tokenizer(), tables={"": CachedTable(word_table(dtype=np.float32))}
    )
    without = plain.encode(QUERIES)
    assert vectors.sparse is not None
    assert without.sparse is not None
    np.testing.assert_array_equal(vectors.sparse.weights, without.sparse.weights)
    assert np.abs(vectors.dense - without.dense).max() > 0.1
    np.testing.assert_allclose(encoder(dim=2).encode(QUERIES).dense, expected(2), atol=1e-6)
    np.testing.assert_array_equal(np.concatenate([encoder().encode([q]).dense for q in QUERIES]), vectors.dense)
    out = np.empty((len(QUERIES), DIM), dtype=np.float32)
    assert encoder(threads=3).encode(QUERIES, out=out).dense is out
    np.testing.assert_array_equal(out, vectors.dense)


def test_explanations_divide_pairs_between_their_terms() -> None:
    for query, terms in zip(QUERIES, TERMS, strict=True):
        ids, counts, parts = term_vectors(encoder(), query, task=None, dim=None)
        assert dict(zip(ids.tolist(), counts.tolist(), strict=True)) == Counter(terms)
        np.testing.assert_allclose(parts.sum(axis=0), encoder().encode([query]).dense[0], atol=1e-6)


def test_scaled_pairs_are_explained_as_they_are_encoded() -> None:
    rng = np.random.default_rng(3)
    rows, scales = rng.integers(-127, 128, (len(PAIRS), DIM)).astype(np.int8), rng.random(len(PAIRS), np.float32)
    scaled = encoder(bigrams=CachedBigrams(known(PAIRS), CachedTable(rows, scales)))
    for query in QUERIES:
        _, _, parts = term_vectors(scaled, query, task=None, dim=None)
        np.testing.assert_allclose(parts.sum(axis=0), scaled.encode([query]).dense[0], atol=1e-5)


def write(tmp_path: Path, contract: Contract, **tensors: np.ndarray) -> Path:
    folder = write_folder(tmp_path / "q", contract, {"": {"embeddings": word_table()}})
    if tensors:
        save_file(tensors, str(folder / "bigrams.safetensors"))
    return folder


def test_a_folder_stores_pairs_and_mismatches_are_refused(tmp_path: Path) -> None:
    bigrams = known(PAIRS)
    rows = np.random.default_rng(0).integers(-127, 127, (len(PAIRS), DIM)).astype(np.int8)
    scales = np.full(len(PAIRS), 0.5, dtype=np.float32)
    folder = write(tmp_path, contract_with(bigrams), pairs=bigrams.pairs, embeddings=rows, weights=scales)
    loaded = CachedQueryEncoder.load(folder)
    by_hand = CachedBigrams(bigrams, CachedTable(rows.astype(np.float32) / 2))
    expecting = encoder(tables={"": CachedTable(word_table())}, bigrams=by_hand)
    np.testing.assert_allclose(loaded.encode(QUERIES).dense, expecting.encode(QUERIES).dense, atol=1e-6)
    (folder / "bigrams.safetensors").unlink()
    with pytest.raises(NotFound, match="bigrams"):
        CachedQueryEncoder.load(folder)
    save_file({"pairs": bigrams.pairs}, str(folder / "bigrams.safetensors"))
    with pytest.raises(FormatError, match="and 'embeddings'"):
        CachedQueryEncoder.load(folder)
    save_file(
        {"pairs": bigrams.pairs[::-1].copy(), "embeddings": word_table()[:4]}, str(folder / "bigrams.safetensors")
    )
    with pytest.raises(FormatError, match="ascending"):
        CachedQueryEncoder.load(folder)
    save_file({"pairs": bigrams.pairs[1:].copy(), "embeddings": word_table()[:3]}, str(folder / "bigrams.safetensors"))
    with pytest.raises(ContractMismatch, match=bigrams.hash):
        CachedQueryEncoder.load(folder)


def test_arrays_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InvalidInput, match="4 bigrams, but 3 rows"):
        CachedBigrams(known(PAIRS), CachedTable(word_table()[:3]))
    with pytest.raises(InvalidInput, match="uint32 of"):
        Bigrams(np.zeros((2, 2), dtype=np.int64))
    with pytest.raises(InvalidInput, match="2 wide, the terms' 4"):
        encoder(bigrams=CachedBigrams(known(PAIRS), CachedTable(word_table()[:4, :2].copy())))
    with pytest.raises(ContractMismatch, match="bigrams have hash ''"):
        encoder(bigrams=None)
    tables = {name: CachedTable(word_table(dtype=np.float32)) for name in ("a", "b")}
    with pytest.raises(InvalidInput, match="one table, but there are 2"):
        encoder(tables=tables)
    beyond = known([[1, 99]])
    with pytest.raises(ContractMismatch, match="contains term id 99"):
        encoder_of(beyond)
    for out in (np.empty((2, DIM), dtype=np.float32), np.empty((1, DIM), dtype=np.float64)):
        with pytest.raises(InvalidInput, match="out must be"):
            encoder().encode(["cat"], out=out)
    last = known([[1, VOCAB_SIZE]])
    with pytest.raises(ContractMismatch, match=f"contains term id {VOCAB_SIZE}"):
        encoder_of(last)
    assert len(encoder_of(known([])).encode(["cat"])) == 1


def encoder_of(bigrams: Bigrams, rows: np.ndarray | None = None) -> CachedQueryEncoder:
    """Return a query encoder with rows for the pairs, or zeros."""
    return CachedQueryEncoder(
        contract_with(bigrams),
        word_tokenizer(),
        tables={"": CachedTable(word_table(dtype=np.float32))},
        bigrams=CachedBigrams(
            bigrams, CachedTable(np.zeros((len(bigrams), DIM), dtype=np.float32) if rows is None else rows)
        ),
    )
