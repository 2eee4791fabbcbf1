"""Queries as means of cached sparse expansions, compared with a plain average; and the folder that stores them."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from lightir.contract import SparseHead
from lightir.errors import ContractMismatch, InvalidInput, LightirError
from lightir.query import CachedExpansions, CachedQueryEncoder, CachedTable
from lightir.text import QueryPolicy
from lightir.vectors import Ragged
from small_collections import VOCAB_SIZE, word_contract, word_table, word_tokenizer, write_folder

POLICY = QueryPolicy("Find it", leading_blank=False, drop=(0,), weighting="expansion")
CONTRACT = word_contract(dense=None, query=POLICY)
QUERIES = ["the cat the cat", "dog", "", "zebra", "Well FISH runs sleeps dog the cat"]


def random_expansions(seed: int, *, n_terms: int = VOCAB_SIZE, width: int = 3, vocab_size: int = VOCAB_SIZE) -> Any:
    rng = np.random.default_rng(seed)
    ids = np.stack([np.sort(rng.choice(vocab_size, width, replace=False)) for _ in range(n_terms)]).astype(np.uint32)
    return CachedExpansions(ids, (rng.integers(0, 6, (n_terms, width)) / 4).astype(np.float16))


def one_expansion(term_id: int) -> CachedExpansions:
    """Return a table in which every term expands to the given one."""
    return CachedExpansions(np.full((VOCAB_SIZE, 1), term_id, np.uint32), np.ones((VOCAB_SIZE, 1), np.float16))


def plain_mean(expansions: CachedExpansions, terms: list[int]) -> dict[int, float]:
    """Return the average of the terms' rows, one entry at a time."""
    total: Counter[int] = Counter()
    for term in terms:
        for term_id, weight in zip(expansions.term_ids[term].tolist(), expansions.weights[term].tolist(), strict=True):
            total[term_id] += weight / len(terms)  # type: ignore[assignment]
    return {term_id: weight for term_id, weight in sorted(total.items()) if weight}


@pytest.mark.parametrize("seed", range(8))
def test_a_query_is_the_mean_of_its_terms_rows(seed: int) -> None:
    rng = np.random.default_rng(seed)
    wide = 200_000
    expansions = random_expansions(seed, n_terms=30, width=1 + seed, vocab_size=wide)
    queries = [rng.integers(0, 30, n).tolist() for n in rng.integers(0, 6, 5)]
    means = expansions.means(Ragged.from_lists(queries), vocab_size=wide)
    assert len(means) == 5
    for row, terms in enumerate(queries):
        term_ids, weights = means.row(row)
        expected = plain_mean(expansions, terms)
        assert term_ids.tolist() == list(expected)
        np.testing.assert_allclose(weights, list(expected.values()), rtol=1e-6)


def test_a_batch_equals_its_queries_one_by_one_and_repeats_weigh() -> None:
    encoder = CachedQueryEncoder(CONTRACT, word_tokenizer(), expansions=random_expansions(0))
    together = encoder.encode(QUERIES).sparse
    assert together is not None
    for row, query in enumerate(QUERIES):
        alone = encoder.encode([query]).sparse
        assert alone is not None
        for a, b in zip(together.row(row), alone.row(0), strict=True):
            np.testing.assert_array_equal(a, b)
    assert [len(together.row(row)[0]) > 0 for row in range(5)] == [True, True, False, False, True]
    assert len(encoder.encode([])) == 0
    once, thrice = encoder.encode(["cat the"]).sparse, encoder.encode(["cat cat cat the"]).sparse
    assert once is not None
    assert thrice is not None
    assert once.to_dense().tolist() != thrice.to_dense().tolist()


def folder(tmp_path: Path, contract: Any, expansions: CachedExpansions | None) -> Path:
    out = write_folder(tmp_path / "q", contract, {} if contract.dense is None else {"": {"embeddings": word_table()}})
    if expansions is not None:
        save_file({"term_ids": expansions.term_ids, "weights": expansions.weights}, out / "expansions.safetensors")
    return out


@pytest.mark.parametrize("dense", [False, True])
def test_the_folder_stores_its_expansions(tmp_path: Path, dense: bool) -> None:
    expansions = random_expansions(1)
    contract = word_contract(query=POLICY) if dense else CONTRACT
    tables = {"": CachedTable(word_table())} if dense else {}
    loaded = CachedQueryEncoder.load(folder(tmp_path, contract, expansions)).encode(QUERIES)
    made = CachedQueryEncoder(contract, word_tokenizer(), tables=tables, expansions=expansions).encode(QUERIES)
    assert loaded.sparse is not None
    assert made.sparse is not None
    np.testing.assert_array_equal(loaded.sparse.to_dense(), made.sparse.to_dense())
    assert (loaded.dense is None) != dense


@pytest.mark.parametrize(
    ("contract", "expansions", "error", "says"),
    [
        (CONTRACT, None, LightirError, "expansions"),
        (CONTRACT, random_expansions(0, n_terms=5), ContractMismatch, "5 expansions"),
        (CONTRACT, random_expansions(0, vocab_size=900), ContractMismatch, "vocabulary has 8"),
        (CONTRACT, one_expansion(VOCAB_SIZE), ContractMismatch, f"contains term id {VOCAB_SIZE}"),
        (dataclasses.replace(CONTRACT, sparse=None), random_expansions(0), InvalidInput, "no sparse branch"),
    ],
)
def test_expansions_that_do_not_fit_the_contract_are_refused(
    tmp_path: Path, contract: Any, expansions: CachedExpansions | None, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        CachedQueryEncoder.load(folder(tmp_path, contract, expansions))


def test_expansions_without_a_policy_for_them_are_refused() -> None:
    contract = word_contract(dense=None, sparse=SparseHead())
    with pytest.raises(InvalidInput, match="'count'"):
        CachedQueryEncoder(contract, word_tokenizer(), expansions=random_expansions(0))
    with pytest.raises(InvalidInput, match="term_weights"):
        QueryPolicy(weighting="expansion", term_weights="idf")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0])
def test_weights_must_be_finite_and_not_negative(bad: float) -> None:
    weights = np.ones((2, 3), dtype=np.float16)
    weights[1, 2] = bad
    with pytest.raises(InvalidInput, match="finite"):
        CachedExpansions(np.zeros((2, 3), np.uint32), weights)


@pytest.mark.parametrize(
    ("ids", "weights"),
    [
        (np.zeros((2, 3), np.int64), np.ones((2, 3), np.float16)),
        (np.zeros((2, 3), np.uint32), np.ones((2, 2), np.float16)),
        (np.zeros(3, np.uint32), np.ones(3, np.float16)),
        (np.zeros((2, 3), np.uint32), np.ones((2, 3), np.float64)),
    ],
)
def test_expansions_of_other_types_are_refused(ids: np.ndarray, weights: np.ndarray) -> None:
    with pytest.raises(InvalidInput, match="expected"):
        CachedExpansions(ids, weights)


def test_expansions_may_be_single_precision_and_empty() -> None:
    single = CachedExpansions(np.zeros((VOCAB_SIZE, 1), np.uint32), np.ones((VOCAB_SIZE, 1), np.float32))
    none = CachedExpansions(np.zeros((VOCAB_SIZE, 0), np.uint32), np.ones((VOCAB_SIZE, 0), np.float16))
    for expansions, n_terms in ((single, 1), (none, 0)):
        sparse = CachedQueryEncoder(CONTRACT, word_tokenizer(), expansions=expansions).encode(["cat dog"]).sparse
        assert sparse is not None
        assert len(sparse.row(0)[0]) == n_terms


def test_encoding_with_expansions_needs_no_torch(tmp_path: Path) -> None:
    out = folder(tmp_path, CONTRACT, random_expansions(2))
    program = (
        "import sys; from lightir.query import CachedQueryEncoder\n"
        f"assert len(CachedQueryEncoder.load({str(out)!r}).encode(['cat']).sparse.term_ids)\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
