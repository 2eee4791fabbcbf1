"""Places of pending documents in an index that is partly encoded."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from lightir.contract import Fusion
from lightir.errors import InvalidInput
from lightir.eval import read_run, write_run
from lightir.index import Index, IndexOptions, IndexWriter, build_index
from lightir.kernel import reference
from lightir.query import CachedQueryEncoder, CachedTable
from lightir.search import Searcher, SearchOptions
from lightir.shards import Shard
from lightir.types import Document, Query
from lightir.vectors import QueryVectors
from small_collections import WORDS, GivenVectors, csr, word_contract, word_table, word_tokenizer

MODES = ("hybrid", "hybrid+tokens", "dense+tokens", "sparse+tokens", None)
FUSIONS = ("linear", "linear:min-max", "linear:z-score", "linear:none", "rrf:3", "dbsf")
N_DOCS = 24
QUERY = "the cat and the dog at the well"


@given(st.permutations(range(9)), st.sets(st.integers(0, 8)), st.permutations(range(9)), st.integers(0, 9))
def test_places_by_definition(by_tokens: list[int], pending: set[int], fused: list[int], n_listed: int) -> None:
    """A pending document has its lexical place, or a better one only where no fused document is left to fill it."""
    listed = by_tokens[:n_listed]
    encoded = [doc for doc in fused if doc not in pending]
    waiting = {slot: (doc, -1.0 * slot, []) for slot, doc in enumerate(listed, 1) if doc in pending}
    rows = reference.in_places([(doc, 9.0 - i, []) for i, doc in enumerate(encoded)], dict(waiting))
    docs, scores = [row[0] for row in rows], [row[1] for row in rows]
    assert [doc for doc in docs if doc not in pending] == encoded
    assert [doc for doc in docs if doc in pending] == [doc for doc in listed if doc in pending]
    n_fused = 0
    for slot, doc in enumerate(docs, 1):
        n_fused += doc not in pending
        if doc in pending:
            assert slot <= listed.index(doc) + 1
            assert slot == listed.index(doc) + 1 or n_fused == len(encoded)
    assert scores == sorted(scores, reverse=True)


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


def ids_by(searcher: Searcher, k: int = N_DOCS, **options: object) -> list[str]:
    """Return the documents that a search of QUERY finds, best first."""
    return list(searcher.search([QUERY], k, SearchOptions(**options))["0"].doc_ids)  # type: ignore[arg-type]


@pytest.mark.parametrize("n_encoded", [1, 2, 3, 12, 16, 23])
@pytest.mark.parametrize("mode", ["hybrid", "hybrid+tokens", "dense+tokens"])
@pytest.mark.parametrize("fusion", FUSIONS)
def test_pending_documents_keep_their_places_in_the_tokens_branch(
    tmp_path: Path, mode: str, n_encoded: int, fusion: str
) -> None:
    build_partly_encoded(tmp_path / "index", n_encoded)
    with Index.open(tmp_path / "index") as index:
        pending = set(index.view.pending())
        searcher = Searcher(index, encoder())
        ranked, by_tokens = ids_by(searcher, mode=mode, fusion=fusion), ids_by(searcher, mode="tokens")
        n_encoded_before = [sum(i not in pending for i in ranked[:slot]) for slot in range(len(ranked))]
        for doc_id in pending & set(by_tokens):
            slot = ranked.index(doc_id)
            all_before = n_encoded_before[slot] == sum(i not in pending for i in ranked)
            assert slot == by_tokens.index(doc_id) or (slot < by_tokens.index(doc_id) and all_before)
        for k in (1, 3, 10):
            assert ids_by(searcher, k, mode=mode, fusion=fusion) == ranked[:k]


@pytest.mark.parametrize("n_encoded", [1, 2, 3, 16])
def test_the_best_documents_stay_the_best_when_they_are_encoded(tmp_path: Path, n_encoded: int) -> None:
    """The n best documents of the tokens branch get vectors, far from the query: they stay the n best."""
    shard = shard_of()
    assert shard.sparse is not None
    build_partly_encoded(tmp_path / "index", 0)
    with Index.open(tmp_path / "index") as index:
        by_tokens = ids_by(Searcher(index, encoder()))
    assert len(by_tokens) > 16
    at = np.array([int(doc_id[1:]) for doc_id in by_tokens[:n_encoded]])
    away = np.tile(np.array([-0.1, 0.1, -0.2, 0], np.float16), (n_encoded, 1))
    with IndexWriter.open(tmp_path / "index") as writer:
        writer.set_vectors([shard.documents[i] for i in at], dense=away, sparse=shard.sparse.take(at))
    with Index.open(tmp_path / "index") as index:
        ranked = ids_by(Searcher(index, encoder()), mode="dense+tokens")
    assert set(ranked[:n_encoded]) == set(by_tokens[:n_encoded])
    assert ranked[n_encoded:] == by_tokens[n_encoded:]


@pytest.mark.parametrize("encoded", range(0, N_DOCS, 5))
def test_one_encoded_document_changes_no_order(tmp_path: Path, encoded: int) -> None:
    shard, at = shard_of(), np.array([encoded])
    assert shard.dense is not None
    assert shard.sparse is not None
    build_partly_encoded(tmp_path / "index", 0)
    with IndexWriter.open(tmp_path / "index") as writer:
        writer.set_vectors([shard.documents[encoded]], dense=shard.dense[at], sparse=shard.sparse.take(at))
    with Index.open(tmp_path / "index") as index:
        searcher = Searcher(index, encoder())
        by_tokens = ids_by(searcher, mode="tokens")
        ranked = ids_by(searcher, mode="dense+tokens")
    matching = [i for i in ranked if i in by_tokens]
    assert matching == by_tokens
    assert set(ranked) == {*by_tokens, f"d{encoded:02d}"}


def test_a_relevant_document_is_not_demoted_because_it_is_new(tmp_path: Path) -> None:
    """All documents are encoded except for one at a time, which must rank as in the tokens branch or better."""
    shard = shard_of()
    assert shard.dense is not None
    assert shard.sparse is not None
    build_partly_encoded(tmp_path / "index", 0)
    with Index.open(tmp_path / "index") as index:
        by_tokens = ids_by(Searcher(index, encoder()))
    for new in by_tokens[:8]:
        folder = tmp_path / new
        at = np.array([i for i in range(N_DOCS) if shard.documents[i].doc_id != new])
        build_partly_encoded(folder, 0)
        with IndexWriter.open(folder) as writer:
            chosen = [shard.documents[i] for i in at]
            writer.set_vectors(chosen, dense=shard.dense[at], sparse=shard.sparse.take(at))
        with Index.open(folder) as index:
            for mode in ("hybrid", "dense+tokens"):
                assert ids_by(Searcher(index, encoder()), mode=mode).index(new) == by_tokens.index(new)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fusion", FUSIONS)
def test_pending_documents_show_no_vector_score(half: Index, mode: str | None, fusion: str) -> None:
    searcher, pending = Searcher(half, encoder()), set(half.view.pending())
    options = SearchOptions(mode=mode, fusion=fusion, depth=N_DOCS)
    hits = searcher.hits(QUERY, N_DOCS, options, explain=True)
    by_tokens = ids_by(searcher, mode="tokens")
    assert {hit.doc_id for hit in hits if hit.pending} == pending & {hit.doc_id for hit in hits} != set()
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    for rank, hit in enumerate(hits, 1):
        explanation = searcher.explain(QUERY, hit.doc_id, options)
        assert (explanation.score, explanation.rank, explanation.branches) == (hit.score, rank, hit.branches)
        assert explanation.pending == hit.pending == (hit.doc_id in pending)
        if not hit.pending:
            total = 0.0
            for part in hit.branches.values():
                assert part.normalized is not None
                total += part.weight * part.normalized
            assert total == hit.score
            continue
        parts = dict(hit.branches)
        by_words = parts.pop("tokens")
        assert (by_words.rank, by_words.normalized) == (by_tokens.index(hit.doc_id) + 1, None)
        assert by_words.score == pytest.approx(sum(term.score for term in hit.terms), rel=1e-6)
        assert set(explanation.terms) == {"tokens"}
        for part in parts.values():
            assert part.pending
            assert (part.score, part.normalized, part.rank) == (None, None, None)


def test_a_score_of_a_pending_document_is_that_of_the_encoded_one_before_it(half: Index) -> None:
    searcher, pending = Searcher(half, encoder()), set(half.view.pending())
    ranking = searcher.search([QUERY], N_DOCS, SearchOptions(mode="dense+tokens"))["0"]
    scores = dict(zip(ranking.doc_ids, ranking.scores.tolist(), strict=True))
    last = next(scores[i] for i in ranking.doc_ids if i not in pending)
    for doc_id in ranking.doc_ids:
        last = last if doc_id in pending else scores[doc_id]
        assert scores[doc_id] == last


def test_without_an_encoded_candidate_scores_are_those_of_the_tokens_branch(tmp_path: Path) -> None:
    build_partly_encoded(tmp_path / "index", 1)
    with Index.open(tmp_path / "index") as index:
        searcher = Searcher(index, encoder())
        options = {"exclude": [f"d{N_DOCS - 1:02d}"]}
        rankings = [
            searcher.search([QUERY], 9, SearchOptions(mode=mode, **options))["0"]  # type: ignore[arg-type]
            for mode in ("hybrid", "tokens")
        ]
    assert list(rankings[0].doc_ids) == list(rankings[1].doc_ids) != []
    np.testing.assert_array_equal(rankings[0].scores, rankings[1].scores)


def test_a_run_file_keeps_the_places(half: Index, tmp_path: Path) -> None:
    run = Searcher(half, encoder()).search([QUERY], N_DOCS, SearchOptions(mode="dense+tokens"))
    write_run(tmp_path / "run", run)
    assert list(read_run(tmp_path / "run")["0"].doc_ids) == list(run["0"].doc_ids)


@pytest.mark.parametrize("first", [0, 1])
def test_excluded_documents_do_not_count_for_the_places(half: Index, first: int) -> None:
    """A document at its lexical place stays there if others before it are excluded, whatever their hybrid ranks."""
    searcher, pending = Searcher(half, encoder()), set(half.view.pending())
    by_tokens = ids_by(searcher, mode="tokens")
    for excluded in itertools.combinations(by_tokens[first : first + 6], 2):
        rest: Sequence[str] = [i for i in by_tokens if i not in excluded]
        ranked = ids_by(searcher, 8, mode="dense+tokens", exclude=excluded)
        assert not set(excluded) & set(ranked)
        for slot, doc_id in enumerate(rest[:8]):
            assert (ranked[slot] == doc_id) or doc_id not in pending


def test_a_pending_document_outside_the_lists_is_explained(half: Index) -> None:
    searcher = Searcher(half, encoder())
    options = SearchOptions(mode="hybrid", depth=2)
    explanations = [searcher.explain(QUERY, i, options) for i in half.view.pending()]
    assert {explanation.rank is None for explanation in explanations} == {True, False}
    for explanation in explanations:
        assert explanation.pending
        assert explanation.branches["dense"].score is None
        assert explanation.branches["tokens"].score is not None
        assert (explanation.rank is None) == (explanation.branches["tokens"].rank is None)


@pytest.mark.parametrize("mode", ["dense", "sparse", "dense+sparse"])
def test_modes_of_vector_branches_find_encoded_documents_only(half: Index, mode: str) -> None:
    hits = Searcher(half, encoder()).hits(QUERY, N_DOCS, SearchOptions(mode=mode))
    assert hits
    assert not {hit.doc_id for hit in hits} & set(half.view.pending())
    assert not any(hit.pending for hit in hits)


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
    assert [hit for hit in hits if hit.pending]
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


class Unknown:
    """An encoder whose vectors the kernel does not make, so that every search asks the tokens branch for the places."""

    def __init__(self, encoder: CachedQueryEncoder) -> None:
        self._encoder = encoder
        self.document_fingerprint = encoder.document_fingerprint

    def encode(self, texts: Sequence[str], *, task: str | None = None) -> QueryVectors:
        return self._encoder.encode(texts, task=task)


@pytest.mark.parametrize("where", [None, {"kind": "old"}])
def test_queries_that_match_no_pending_document_skip_the_tokens_branch(
    tmp_path: Path, where: dict[str, str] | None
) -> None:
    shard = shard_of()
    contract = word_contract(fusion=Fusion(weights={"dense": 0.5, "sparse": 0.5}))
    with IndexWriter.create(tmp_path / "i", contract=contract, options=IndexOptions(analyzer="words")) as writer:
        encoded = [dataclasses.replace(document, metadata={"kind": "old"}) for document in shard.documents]
        writer.add(encoded, dense=shard.dense, sparse=shard.sparse)
        texts = {"p1": "cat cat", "p2": "zebra cat", "p3": "well"}
        writer.add([Document(name, text, metadata={"kind": "new"}) for name, text in texts.items()])
        writer.delete(["p3"])
    cached = CachedQueryEncoder(contract, word_tokenizer(), tables={"": CachedTable(word_table())})
    matching = {"cat": True, "dog": False, "zebra runs": True, "": False, "unknown": False, "the well": False}
    with Index.open(tmp_path / "i") as index:
        assert {text: index.view.words.pending_match([text.split()]) for text in matching} == matching
        skipping, asking = Searcher(index, cached), Searcher(index, Unknown(cached))
        for k, excluded in itertools.product((1, 3, N_DOCS + 3), ([], ["d03", "p1"])):
            options = SearchOptions(mode="hybrid", filter=where, exclude=excluded)
            for texts_asked in ([*matching], *([text] for text in matching)):
                runs = [searcher.search(texts_asked, k, options) for searcher in (skipping, asking)]
                for query_id, ranking in runs[1].items():
                    assert runs[0][query_id].doc_ids == ranking.doc_ids
                    np.testing.assert_array_equal(runs[0][query_id].scores, ranking.scores)
        ranking = skipping.search(["zebra"], 1, SearchOptions(mode="hybrid"))["0"]
        assert list(ranking.doc_ids) == ["p2"]


def test_many_pending_documents_are_not_asked_for_their_words(half: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not half.view.words.pending_match([["zebra"]])
    monkeypatch.setattr("lightir.index.view_words.PENDING_ASKED", N_DOCS // 2 - 1)
    assert half.view.words.pending_match([["zebra"]])
