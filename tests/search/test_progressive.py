"""Estimated scores of pending documents in an index that is partly encoded."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from lightir.errors import InvalidInput
from lightir.index import Index, IndexOptions, IndexWriter, build_index
from lightir.kernel.candidates import BranchList
from lightir.search import Searcher, SearchOptions
from lightir.search.progressive import LEAST_RISE, PRIOR_DOCUMENTS, PRIOR_RISE, fitted, with_estimates
from lightir.shards import Shard
from lightir.types import Branch, Document, Query
from small_collections import WORDS, GivenVectors, csr, word_contract

MODES = ("hybrid", "hybrid+tokens", "dense+tokens", "sparse+tokens", None)
N_DOCS = 24
QUERY = "the cat and the dog at the well"

values = st.lists(st.tuples(st.integers(1, 8), st.integers(-4, 4)), max_size=12)


@settings(deadline=None)
@given(values, st.lists(st.integers(-3, 3), max_size=6), st.integers(8, 9))
def test_the_line_is_a_least_squares_fit_with_two_artificial_documents(
    pairs: list[tuple[int, int]], listed: list[int], most: int
) -> None:
    tokens, scores = (np.array([pair[i] for pair in pairs], np.float32) for i in (0, 1))
    line = fitted(tokens, scores, np.array(listed, np.float32), float(most))
    mean, deviation = (float(np.mean(listed)), float(np.std(listed))) if listed else (0.0, 0.0)
    deviation = deviation or abs(mean) or 1.0
    x = np.array([*tokens, 0.0, most])
    y = np.array([*scores, mean, mean + PRIOR_RISE * deviation])
    root = np.sqrt([1.0] * len(pairs) + [PRIOR_DOCUMENTS / 2] * 2)
    slope, at_zero = np.polyfit(x, y, 1, w=root)
    if slope * most > LEAST_RISE * deviation:
        assert (line.slope, line.at_zero) == pytest.approx((slope, at_zero), rel=1e-6, abs=1e-6)
    else:
        assert line.slope * most == pytest.approx(LEAST_RISE * deviation)
        assert line.at_zero + line.slope * np.average(x, weights=root**2) == pytest.approx(
            np.average(y, weights=root**2), abs=1e-6
        )


@settings(deadline=None)
@given(values, st.randoms(use_true_random=False))
def test_the_line_does_not_depend_on_the_documents_order(pairs: list[tuple[int, int]], random: object) -> None:
    shuffled = pairs.copy()
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    listed = np.array([0.5, 0.25], np.float32)
    lines = [
        fitted(*(np.array([pair[i] / 7 for pair in points], np.float32) for i in (0, 1)), listed, 8 / 7)
        for points in (pairs, shuffled)
    ]
    assert lines[0] == lines[1]


def shard_of(seed: int = 0) -> Shard:
    """Return documents of a few words each with random vectors."""
    rng = np.random.default_rng(seed)
    documents = [Document(f"d{i:02d}", " ".join(rng.choice(WORDS[1:], rng.integers(1, 6)))) for i in range(N_DOCS)]
    rows = [{int(t): int(rng.integers(1, 4)) for t in rng.choice(8, 3, replace=False)} for _ in documents]
    dense = rng.standard_normal((N_DOCS, 4)).astype(np.float16)
    return Shard(documents, dense, csr(rows, vocab_size=8, dtype=np.uint8))


def encoder() -> GivenVectors:
    dense = {QUERY: np.array([1, -1, 2, 0.5], np.float32), "fish": np.array([0, 1, 0, 0], np.float32)}
    return GivenVectors(word_contract(), dense, {QUERY: {1: 2.0, 2: 1.0}, "fish": {3: 1.0}})


def build_partly_encoded(folder: Path, n_encoded: int) -> None:
    """Build an index of `shard_of` in which only the last documents have vectors."""
    shard = shard_of()
    build_index([], folder, contract=word_contract(), options=IndexOptions(analyzer="words"), progress=False)
    with IndexWriter.open(folder) as writer:
        writer.add(shard.documents)
        at = np.arange(N_DOCS - n_encoded, N_DOCS)
        assert shard.dense is not None
        assert shard.sparse is not None
        if n_encoded:
            chosen = [shard.documents[i] for i in at]
            assert writer.set_vectors(chosen, dense=shard.dense[at], sparse=shard.sparse.take(at)) == []


@pytest.fixture
def half(tmp_path: Path) -> Iterator[Index]:
    """An index in which half of the documents have vectors."""
    build_partly_encoded(tmp_path / "half", N_DOCS // 2)
    with Index.open(tmp_path / "half") as index:
        yield index


@pytest.mark.parametrize("mode", ["hybrid", "hybrid+tokens", None])
def test_without_any_vectors_a_search_equals_the_tokens_branch(tmp_path: Path, mode: str | None) -> None:
    build_partly_encoded(tmp_path / "none", 0)
    with Index.open(tmp_path / "none") as index:
        searcher = Searcher(index, encoder())
        ranking = searcher.search([QUERY], N_DOCS, SearchOptions(mode=mode, weights={"dense": 0.5, "tokens": 0.5}))["0"]
        by_tokens = searcher.search([QUERY], N_DOCS, SearchOptions(mode="tokens"))["0"]
        assert ranking.doc_ids == by_tokens.doc_ids
        np.testing.assert_array_equal(ranking.scores, by_tokens.scores)
        with pytest.raises(InvalidInput, match="index has tokens"):
            searcher.search([QUERY], options=SearchOptions(mode="hybrid+dense"))


@pytest.mark.parametrize("mode", MODES)
def test_with_all_vectors_every_bit_equals_an_index_built_at_once(tmp_path: Path, mode: str | None) -> None:
    build_partly_encoded(tmp_path / "all", N_DOCS)
    build_index(
        [shard_of()],
        tmp_path / "once",
        contract=word_contract(),
        options=IndexOptions(analyzer="words"),
        progress=False,
    )
    with Index.open(tmp_path / "all") as late, Index.open(tmp_path / "once") as once:
        rankings = [
            Searcher(index, encoder()).search([QUERY], N_DOCS, SearchOptions(mode=mode))["0"] for index in (late, once)
        ]
    assert list(rankings[0].doc_ids) == list(rankings[1].doc_ids)
    np.testing.assert_array_equal(rankings[0].scores, rankings[1].scores)


@pytest.mark.parametrize("n_encoded", [1, 2, 12, 23])
@pytest.mark.parametrize("mode", ["hybrid", "hybrid+tokens", "dense+tokens"])
def test_pending_documents_keep_the_order_of_the_tokens_branch(tmp_path: Path, mode: str, n_encoded: int) -> None:
    build_partly_encoded(tmp_path / "index", n_encoded)
    with Index.open(tmp_path / "index") as index:
        pending = set(index.view.pending())
        searcher = Searcher(index, encoder())
        by_mode = [i for i in searcher.search([QUERY], N_DOCS, SearchOptions(mode=mode))["0"].doc_ids if i in pending]
        by_tokens = [
            i for i in searcher.search([QUERY], N_DOCS, SearchOptions(mode="tokens"))["0"].doc_ids if i in pending
        ]
    assert by_mode == by_tokens != []


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fusion", ["linear", "linear:min-max", "linear:z-score", "linear:none", "rrf:3", "dbsf"])
def test_estimates_are_marked_and_add_up(half: Index, mode: str | None, fusion: str) -> None:
    searcher, pending = Searcher(half, encoder()), set(half.view.pending())
    hits = searcher.hits(QUERY, N_DOCS, SearchOptions(mode=mode, fusion=fusion, depth=N_DOCS), explain=True)
    assert {hit.doc_id for hit in hits if hit.estimated} == pending & {hit.doc_id for hit in hits} != set()
    for rank, hit in enumerate(hits, 1):
        explanation = searcher.explain(QUERY, hit.doc_id, SearchOptions(mode=mode, fusion=fusion, depth=N_DOCS))
        assert (explanation.score, explanation.rank, explanation.branches) == (hit.score, rank, hit.branches)
        assert explanation.estimated == hit.estimated == (hit.doc_id in pending)
        total = 0.0
        for branch, branch_score in hit.branches.items():
            assert branch_score.estimated == (hit.estimated and branch != "tokens")
            assert not (branch_score.estimated and explanation.terms.get(branch))
            total += branch_score.weight * branch_score.normalized
        assert total == hit.score


def test_a_pending_document_outside_the_lists_is_explained(half: Index) -> None:
    searcher = Searcher(half, encoder())
    explanations = {i: searcher.explain(QUERY, i, SearchOptions(mode="hybrid", depth=2)) for i in half.view.pending()}
    assert any(explanation.rank is None for explanation in explanations.values())
    by_tokens = searcher.search([QUERY], N_DOCS, SearchOptions(mode="tokens"))["0"]
    order = [i for i in by_tokens.doc_ids if i in explanations]
    for branch in ("dense", "sparse"):
        estimates = [explanations[i].branches[branch].score for i in order]
        assert estimates == sorted(estimates, reverse=True)
    unknown = searcher.explain("fish", next(iter(explanations)), SearchOptions(mode="hybrid"))
    assert unknown.estimated


@pytest.mark.parametrize("mode", ["dense", "sparse", "dense+sparse"])
def test_modes_of_vector_branches_find_encoded_documents_only(half: Index, mode: str) -> None:
    hits = Searcher(half, encoder()).hits(QUERY, N_DOCS, SearchOptions(mode=mode))
    assert hits
    assert not {hit.doc_id for hit in hits} & set(half.view.pending())
    assert not any(hit.estimated for hit in hits)


def test_fusion_is_fitted_on_encoded_documents_only(half: Index) -> None:
    ids, fused = next(Searcher(half, encoder()).candidates([Query("1", QUERY)], SearchOptions(mode="dense+tokens")))
    assert len(ids) == len(fused.doc_ords) == N_DOCS // 2
    assert not set(ids) & set(half.view.pending())


def test_filters_apply_to_pending_documents(tmp_path: Path) -> None:
    shard = shard_of()
    documents = [Document(d.doc_id, d.text, metadata={"even": i % 2 == 0}) for i, d in enumerate(shard.documents)]
    build_index([], tmp_path / "i", contract=word_contract(), options=IndexOptions(analyzer="words"), progress=False)
    with IndexWriter.open(tmp_path / "i") as writer:
        writer.add(documents)
        at = np.arange(8)
        assert shard.dense is not None
        assert shard.sparse is not None
        writer.set_vectors(documents[:8], dense=shard.dense[at], sparse=shard.sparse.take(at))
    with Index.open(tmp_path / "i") as index:
        hits = Searcher(index, encoder()).hits(QUERY, N_DOCS, SearchOptions(filter={"even": True}))
    assert [hit for hit in hits if hit.estimated]
    assert all(hit.metadata["even"] for hit in hits)


def test_quality_rises_with_the_share_that_is_encoded(tmp_path: Path) -> None:
    """Queries share a word and a direction with their documents, and words with many others."""
    rng = np.random.default_rng(5)
    n_docs, n_queries, dim = 400, 40, 16
    topics = rng.standard_normal((n_queries, dim))
    topics /= np.linalg.norm(topics, axis=1, keepdims=True)
    topic = rng.integers(0, n_queries, n_docs)
    dense = (topics[topic] + 0.35 * rng.standard_normal((n_docs, dim))).astype(np.float16)
    words = [f"w{t}" if rng.random() < 0.9 else f"w{rng.integers(0, n_queries)}" for t in topic]
    documents = [
        Document(f"{i:03d}", " ".join([word, word, *rng.choice([f"w{q}" for q in range(n_queries)], 2)]))
        for i, word in enumerate(words)
    ]
    contract = word_contract(dim=dim)
    queries = [Query(str(q), f"w{q} w{(q + 1) % n_queries}") for q in range(n_queries)]
    given_dense = {query.text: topics[q].astype(np.float32) for q, query in enumerate(queries)}
    vectors = GivenVectors(contract, given_dense, {query.text: {} for query in queries})
    order, empty = rng.permutation(n_docs), [{} for _ in range(n_docs)]
    sparse = csr(empty, vocab_size=8, dtype=np.uint8)
    build_index([], tmp_path / "i", contract=contract, options=IndexOptions(analyzer="words"), progress=False)
    precisions = []
    with IndexWriter.open(tmp_path / "i") as writer:
        writer.add(documents)
        for quarter in range(5):
            at = order[(quarter - 1) * 100 : quarter * 100] if quarter else order[:0]
            if quarter:
                writer.set_vectors([documents[i] for i in at], dense=dense[at], sparse=sparse.take(at))
            with Index.open(tmp_path / "i") as index:
                run = Searcher(index, vectors).search(queries, 10, SearchOptions(mode="hybrid"))
            right = [np.mean([topic[int(i)] == int(q) for i in ranking.doc_ids]) for q, ranking in run.items()]
            precisions.append(float(np.mean(right)))
    assert all(later > earlier - 0.01 for earlier, later in itertools.pairwise(precisions)), precisions
    assert precisions[-1] > precisions[0] + 0.04


def test_only_pending_documents_of_vector_branches_are_estimated() -> None:
    raw = {"dense": {1: 4.0, 2: 2.0, 3: 0.0, 4: 0.0}, "tokens": {1: 2.0, 2: 1.0, 3: 3.0, 4: 0.5}}

    class Searched:
        """Two branches of five documents, of which the last two are pending."""

        view = SimpleNamespace(waits=np.array([False, False, False, True, True]))

        def pair_scores(self, branch: Branch, docs: np.ndarray, query: int) -> np.ndarray:
            assert query == 5
            return np.array([raw[branch][int(doc)] for doc in docs], np.float32)

        def merge(self, lists: list[BranchList], k: int) -> BranchList:
            ords, scores = (
                np.concatenate([getattr(listed, name) for listed in lists]) for name in ("doc_ords", "scores")
            )
            order = np.argsort(-scores, kind="stable")[:k]
            return BranchList(ords[order], scores[order])

    tokens = BranchList(np.array([3, 1, 2, 4], np.uint32), np.array([3, 2, 1, 0.5], np.float32))
    dense = BranchList(np.array([1, 2], np.uint32), np.array([4, 2], np.float32))
    searched: Any = Searched()
    estimated = with_estimates(searched, 5, {"dense": dense, "tokens": tokens}, tokens, 9)
    lists, pairs = estimated.lists, estimated.pair_scores
    line = fitted(np.array([2, 1], np.float32), np.array([4, 2], np.float32), dense.scores, 3.0)
    estimates = line.at(np.array([3, 0.5], np.float32)).tolist()
    assert lists["tokens"] is tokens
    assert dict(zip(lists["dense"].doc_ords.tolist(), lists["dense"].scores.tolist(), strict=True)) == {
        1: 4.0, 2: 2.0, 3: estimates[0], 4: estimates[1]
    }  # fmt: skip
    asked = np.array([4, 2, 3, 1], np.uint32)
    assert pairs("dense", asked).tolist() == [estimates[1], 2.0, estimates[0], 4.0]
    assert pairs("tokens", asked).tolist() == [0.5, 1.0, 3.0, 2.0]
    assert pairs("dense", asked[1:2]).tolist() == [2.0]
