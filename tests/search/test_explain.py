"""Explanations add up to what a search returns, for documents that it finds and for those that it does not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from lightir.errors import InvalidInput, NotFound
from lightir.index import Index, IndexOptions, build_index
from lightir.query import CachedQueryEncoder, CachedTable
from lightir.search import Searcher, SearchOptions
from lightir.search.explain import Explanation, term_vectors
from lightir.shards import Shard
from lightir.types import Document
from small_collections import WORDS, GivenVectors, animal_shard, csr, word_contract, word_table, word_tokenizer

QUERY = "the cat and the dog at the well"
MODES = ("dense", "sparse", "tokens", "hybrid", "hybrid+tokens")
FUSIONS = ("linear", "linear:min-max", "linear:z-score", "linear:none", "rrf:3", "dbsf")
N_DOCS = 30


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    """Thirty documents of few words and random vectors."""
    rng = np.random.default_rng(0)
    documents = [
        Document(f"d{i:02d}", " ".join(rng.choice(WORDS[1:], rng.integers(0, 6))), metadata={"third": i % 3})
        for i in range(N_DOCS)
    ]
    rows = [{int(t): int(rng.integers(1, 4)) for t in rng.choice(8, 3, replace=False)} for _ in documents]
    shard = Shard(
        documents, rng.standard_normal((N_DOCS, 4)).astype(np.float16), csr(rows, vocab_size=8, dtype=np.uint8)
    )
    build_index(
        [shard], tmp_path / "index", contract=word_contract(), options=IndexOptions(analyzer="words"), progress=False
    )
    with Index.open(tmp_path / "index") as opened:
        yield opened


@pytest.fixture
def searcher(index: Index) -> Searcher:
    encoder = CachedQueryEncoder(word_contract(), word_tokenizer(), tables={"": CachedTable(word_table())})
    return Searcher(index, encoder)


def added(explanation: Explanation) -> float:
    total = 0.0
    for branch in explanation.branches.values():
        total += branch.weight * branch.normalized
    return total


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fusion", FUSIONS)
def test_an_explanation_is_what_the_search_returned_and_adds_up(searcher: Searcher, mode: str, fusion: str) -> None:
    hits = searcher.hits(QUERY, 20, SearchOptions(mode=mode, fusion=fusion, depth=20), explain=True)
    assert hits
    for rank, hit in enumerate(hits, 1):
        explanation = searcher.explain(QUERY, hit.doc_id, SearchOptions(mode=mode, fusion=fusion, depth=20))
        assert explanation.score == hit.score == added(explanation)
        assert explanation.rank == rank
        assert explanation.branches == hit.branches
        for branch, terms in explanation.terms.items():
            raw = explanation.branches[branch].score
            assert sum(term.score for term in terms) == pytest.approx(raw, rel=1e-5, abs=1e-6)
        assert hit.terms == tuple(
            t for b, branch_terms in explanation.terms.items() if b != "dense" for t in branch_terms
        )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fusion", FUSIONS)
def test_a_document_that_no_branch_lists_is_explained_and_said_to_be_none(
    searcher: Searcher, mode: str, fusion: str
) -> None:
    ranks = {
        searcher.explain(QUERY, f"d{i:02d}", SearchOptions(mode=mode, fusion=fusion, depth=2)).rank
        for i in range(N_DOCS)
    }
    assert None in ranks
    candidates = len(ranks) - 1
    for i in range(N_DOCS):
        explanation = searcher.explain(QUERY, f"d{i:02d}", SearchOptions(mode=mode, fusion=fusion, depth=2))
        assert explanation.n_candidates == candidates
        assert explanation.score == added(explanation)
        listed = [branch.rank for branch in explanation.branches.values() if branch.rank is not None]
        assert (explanation.rank is None) == (listed == [])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fusion", FUSIONS)
def test_an_explanation_under_a_filter_is_that_of_the_filtered_search(
    searcher: Searcher, mode: str, fusion: str
) -> None:
    how, wanted = {"mode": mode, "fusion": fusion, "depth": 20}, {"third": {"in": [0, 2]}}
    hits = searcher.hits(QUERY, 30, SearchOptions(filter=wanted, **how))
    assert hits
    for rank, hit in enumerate(hits, 1):
        explanation = searcher.explain(QUERY, hit.doc_id, SearchOptions(filter=wanted, **how))
        assert (explanation.score, explanation.rank) == (hit.score, rank)
        assert explanation.n_candidates == len(hits)
        assert explanation.branches == hit.branches


def test_a_document_that_the_filter_leaves_out_is_not_explained(searcher: Searcher) -> None:
    with pytest.raises(InvalidInput, match="'d04' does not match the filter"):
        searcher.explain(QUERY, "d04", SearchOptions(filter={"third": 0}))
    with pytest.raises(InvalidInput, match="malformed at third"):
        searcher.explain(QUERY, "d03", SearchOptions(filter={"third": {"near": 0}}))


def test_what_a_branch_alone_says_is_its_raw_score(searcher: Searcher) -> None:
    explanation = searcher.explain(QUERY, "d03", SearchOptions(mode="sparse"))
    branch = explanation.branches["sparse"]
    assert explanation.fusion == "linear:none"
    assert (branch.weight, branch.normalized) == (1.0, branch.score)
    assert explanation.score == branch.score


def test_dense_scores_are_told_term_by_term(searcher: Searcher) -> None:
    terms = searcher.explain("the cat the cat the well zebra", "d03", SearchOptions(mode="dense")).terms["dense"]
    assert {term.term: term.weight for term in terms} == {"the": 3, "cat": 2, "well": 1}
    assert [term.score for term in terms] == sorted((term.score for term in terms), reverse=True)


@pytest.mark.parametrize("dim", [None, 2])
def test_parts_of_the_query_s_vector_add_up_to_it(dim: int | None) -> None:
    encoder = CachedQueryEncoder(word_contract(), word_tokenizer(), tables={"": CachedTable(word_table())}, dim=dim)
    whole = encoder.encode([QUERY]).dense
    assert whole is not None
    _, counts, parts = term_vectors(encoder, QUERY, task=None, dim=None)
    assert counts.sum() == 6
    np.testing.assert_allclose(parts.sum(axis=0), whole[0], atol=1e-6)
    assert term_vectors(encoder, "zebra", task=None, dim=dim)[2].shape == (0, dim or 4)


def test_other_encoders_dense_scores_are_told_whole(index: Index) -> None:
    encoder = GivenVectors(word_contract(), {"cat": np.ones(4, np.float32)}, {"cat": {1: 1.0}})
    explanation = Searcher(index, encoder).explain("cat", "d03")
    assert list(explanation.terms) == ["sparse"]
    assert list(explanation.branches) == ["dense", "sparse"]


@pytest.mark.parametrize("mode", MODES)
def test_a_query_without_known_terms_explains_nothing(searcher: Searcher, mode: str) -> None:
    explanation = searcher.explain("zebra", "d03", SearchOptions(mode=mode))
    assert (explanation.score, explanation.rank, explanation.n_candidates) == (0.0, None, 0)
    assert not any(explanation.terms.values())


def test_what_cannot_be_explained_is_refused(searcher: Searcher) -> None:
    with pytest.raises(NotFound, match="no document 'nowhere'"):
        searcher.explain(QUERY, "nowhere")
    with pytest.raises(InvalidInput, match="depth is 0"):
        searcher.explain(QUERY, "d03", SearchOptions(depth=0))


def test_the_explained_hits_of_a_narrow_index_add_up(tmp_path: Path) -> None:
    build_index(
        [animal_shard()], tmp_path / "i", contract=word_contract(), options=IndexOptions(dense_dim=2), progress=False
    )
    encoder = CachedQueryEncoder(word_contract(), word_tokenizer(), tables={"": CachedTable(word_table())})
    with Index.open(tmp_path / "i") as narrow:
        explanation = Searcher(narrow, encoder).explain("cat dog", "a", SearchOptions(mode="dense"))
    assert sum(term.score for term in explanation.terms["dense"]) == pytest.approx(explanation.score, abs=1e-6)
