"""Jelinek-Mercer and Dirichlet over an index, whatever it went through, against the corpus ranked in memory."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from lightir.data import Dataset, read_documents
from lightir.errors import InvalidInput
from lightir.index import Index, IndexOptions, IndexWriter, build_index, document_shards
from lightir.query import CachedQueryEncoder, CachedTable
from lightir.search import Searcher, SearchOptions
from lightir.search.language_model import LanguageModel, Smoothing, parse_smoothing
from lightir.shards import Shard
from lightir.types import Document, Query, Ranking
from real_collections import real_collection
from small_collections import csr, word_contract, word_table, word_tokenizer

WORDS = ("river", "bridge", "copper", "winter", "island", "harbour")
METHODS = [Smoothing("jelinek-mercer", 0.1), Smoothing("jelinek-mercer", 0.7), Smoothing("dirichlet", 20.0)]
QUERIES = [
    Query(f"q{i}", text)
    for i, text in enumerate(
        ["river", "the rivers, rivers of copper", "winter nowhere", "nowhere", "", "island harbour bridge winter"]
    )
]
EITHER = pytest.mark.parametrize("smoothing", METHODS, ids=str)


def random_documents(n: int, *, seed: int = 0) -> list[Document]:
    """Short texts of few words, so that ties abound; some are empty, one repeats a word 300 times."""
    rng = np.random.default_rng(seed)
    texts = [" ".join(rng.choice(WORDS, size=rng.integers(0, 7))) for _ in range(n)]
    texts[:1] = ["copper " * 300][: len(texts)]
    return [Document(f"d{i:02d}", text, metadata={"third": i % 3}) for i, text in enumerate(texts)]


def require_same(ranking: Ranking, wanted: Ranking) -> None:
    """Require the same documents and scores but for float32's rounding; those that tie in float32 go by doc_id."""
    assert sorted(ranking.doc_ids) == sorted(wanted.doc_ids)
    scores = dict(zip(wanted.doc_ids, wanted.scores, strict=True))
    assert ranking.scores.tolist() == pytest.approx([scores[doc_id] for doc_id in ranking.doc_ids], rel=1e-6)
    assert all(a < b for a, b in pairwise(zip(-ranking.scores, ranking.doc_ids, strict=True)))


def require_ranked(folder: Path, documents: Sequence[Document], smoothing: Smoothing) -> None:
    model = LanguageModel(iter(documents))
    with Index.open(folder) as index:
        index.verify()
        searcher, options = Searcher(index), SearchOptions(smoothing=smoothing)
        run = searcher.search(QUERIES, 100, options)
        for query_id, ranking in model.search(QUERIES, 100, smoothing=smoothing).items():
            require_same(run[query_id], ranking)
        for query_id, first in searcher.search(QUERIES, 4, options).items():
            assert list(first.doc_ids) == list(run[query_id].doc_ids)[:4]
            assert first.scores.tolist() == run[query_id].scores.tolist()[:4]


@EITHER
@pytest.mark.parametrize(("n", "size"), [(0, 1), (1, 1), (40, 40), (40, 7)])
def test_an_index_ranks_as_the_whole_corpus_in_memory(tmp_path: Path, n: int, size: int, smoothing: Smoothing) -> None:
    documents = random_documents(n)
    build_index(
        document_shards(documents), tmp_path / "index", options=IndexOptions(segment_documents=size), progress=False
    )
    require_ranked(tmp_path / "index", documents, smoothing)


@pytest.mark.data
@pytest.mark.long
@pytest.mark.parametrize("name", ["scifact", "nfcorpus"])
def test_real_collections_are_ranked_as_in_memory(tmp_path: Path, name: str) -> None:
    folder = real_collection(name)
    dataset, documents = Dataset.open(folder), list(read_documents([str(folder)]))
    queries = list(dataset.queries("test"))
    build_index(document_shards(documents), tmp_path / "index", progress=False)
    model = LanguageModel(documents, analyzer="auto")
    with Index.open(tmp_path / "index") as index:
        for smoothing in (Smoothing("dirichlet", 1000.0), Smoothing("jelinek-mercer", 0.1)):
            run = Searcher(index).search(queries, len(documents), SearchOptions(smoothing=smoothing))
            for query_id, ranking in model.search(queries, len(documents), smoothing=smoothing).items():
                require_same(run[query_id], ranking)


@EITHER
def test_an_index_that_changed_ranks_to_the_bit_as_one_built_at_once(tmp_path: Path, smoothing: Smoothing) -> None:
    documents = random_documents(40)
    changed = [
        Document("d03", "island island winter") if document.doc_id == "d03" else document for document in documents
    ]
    left = [document for document in changed if document.doc_id not in ("d07", "d11")]
    with IndexWriter.create(tmp_path / "index") as writer:
        writer.add(documents[:25])
        writer.add(documents[25:33])
        writer.add(documents[33:])
        writer.upsert([changed[3]])
        writer.delete(["d07", "d11"])
        assert len(writer.view.segments) > 1
        assert writer.info().deleted
    require_ranked(tmp_path / "index", left, smoothing)
    build_index(document_shards(left), tmp_path / "once", progress=False)
    with Index.open(tmp_path / "index") as index, Index.open(tmp_path / "once") as once:
        options = SearchOptions(smoothing=smoothing)
        run, wanted = (Searcher(opened).search(QUERIES, 100, options) for opened in (index, once))
        for query_id, ranking in wanted.items():
            assert list(run[query_id].doc_ids) == list(ranking.doc_ids)
            assert run[query_id].scores.tolist() == ranking.scores.tolist()


@EITHER
def test_a_filter_takes_documents_out_of_the_ranking_and_leaves_scores(tmp_path: Path, smoothing: Smoothing) -> None:
    documents = random_documents(30)
    build_index(
        document_shards(documents), tmp_path / "index", options=IndexOptions(segment_documents=11), progress=False
    )
    thirds = {document.doc_id: document.metadata["third"] for document in documents}
    with Index.open(tmp_path / "index") as index:
        options = [SearchOptions(filter=condition, smoothing=smoothing) for condition in (None, {"third": 1})]
        whole, some = (Searcher(index).search(QUERIES, 100, option) for option in options)
        assert any(len(ranking) for ranking in some.values())
        for query_id, ranking in whole.items():
            pairs = [pair for pair in zip(ranking.doc_ids, ranking.scores, strict=True) if thirds[pair[0]] == 1]
            assert list(zip(some[query_id].doc_ids, some[query_id].scores, strict=True)) == pairs


@EITHER
def test_an_explanation_has_every_word_of_the_query_and_adds_up(tmp_path: Path, smoothing: Smoothing) -> None:
    documents = random_documents(30)
    build_index(
        document_shards(documents), tmp_path / "index", options=IndexOptions(segment_documents=11), progress=False
    )
    with Index.open(tmp_path / "index") as index:
        searcher, options = Searcher(index), SearchOptions(smoothing=smoothing)
        for query in QUERIES:
            for rank, hit in enumerate(searcher.hits(query.text, 20, options, explain=True), 1):
                told = searcher.explain(query.text, hit.doc_id, options)
                assert (told.score, told.rank, told.terms["tokens"]) == (hit.score, rank, hit.terms)
                assert sum(term.score for term in hit.terms) == pytest.approx(hit.score, rel=1e-5)
        hit = searcher.hits(QUERIES[1].text, 1, options, explain=True)[0]
        assert {(term.term, term.weight) for term in hit.terms} == {("river", 2.0), ("copper", 1.0)}
        silent = searcher.explain("river", "d00", options)
        assert silent.rank is None
        assert silent.score == pytest.approx(
            LanguageModel(documents)
            .rerank({"q": Ranking("q", ["d00"], np.ones(1))}, [Query("q", "river")], smoothing=smoothing)["q"]
            .scores[0],
            rel=1e-6,
        )


@EITHER
def test_hybrid_search_joins_likelihoods_and_explains_them(tmp_path: Path, smoothing: Smoothing) -> None:
    rng = np.random.default_rng(1)
    texts = [" ".join(rng.choice(("cat", "dog", "fish", "runs"), rng.integers(0, 6))) for _ in range(30)]
    documents = [Document(f"d{i:02d}", text) for i, text in enumerate(texts)]
    rows = [{int(t): int(rng.integers(1, 4)) for t in rng.choice(8, 3, replace=False)} for _ in documents]
    dense = rng.standard_normal((30, 4)).astype(np.float16)
    shard = Shard(documents, dense, csr(rows, vocab_size=8, dtype=np.uint8))
    contract = word_contract()
    build_index(
        [shard], tmp_path / "index", contract=contract, options=IndexOptions(segment_documents=13), progress=False
    )
    encoder = CachedQueryEncoder(contract, word_tokenizer(), tables={"": CachedTable(word_table())})
    with Index.open(tmp_path / "index") as index:
        searcher = Searcher(index, encoder)
        text = "the cat and the fish"
        alone = searcher.search([text], 30, SearchOptions(mode="tokens", smoothing=smoothing))["0"]
        likelihoods = dict(zip(alone.doc_ids, alone.scores, strict=True))
        for fusion in ("linear", "linear:none", "rrf"):
            options = SearchOptions(mode="hybrid+tokens", fusion=fusion, depth=9, smoothing=smoothing)
            hits = searcher.hits(text, 9, options)
            assert any(hit.branches["tokens"].rank is None for hit in hits)
            for rank, hit in enumerate(hits, 1):
                if hit.doc_id in likelihoods:
                    assert hit.branches["tokens"].score == likelihoods[hit.doc_id]
                told = searcher.explain(text, hit.doc_id, options)
                assert (told.score, told.rank, told.branches) == (hit.score, rank, hit.branches)


@EITHER
def test_pending_documents_keep_their_places_by_likelihood(tmp_path: Path, smoothing: Smoothing) -> None:
    contract = word_contract(sparse=None)
    encoder = CachedQueryEncoder(contract, word_tokenizer(), tables={"": CachedTable(word_table())})
    texts = {"a": "cat", "b": "cat cat dog", "c": "cat dog", "d": "fish", "e": "cat fish fish", "f": "dog"}
    with IndexWriter.create(tmp_path / "index", contract=contract) as writer:
        writer.add([Document(i, texts[i]) for i in "ace"], dense=np.eye(4, dtype=np.float16)[:3])
        writer.add([Document(i, texts[i]) for i in "bdf"])
    with Index.open(tmp_path / "index") as index:
        searcher = Searcher(index, encoder)
        by_tokens, hybrid = (
            list(searcher.search(["cat dog"], 6, SearchOptions(mode=mode, smoothing=smoothing))["0"].doc_ids)
            for mode in ("tokens", "hybrid")
        )
        assert sorted(by_tokens) == sorted(hybrid) == list("abcef")
        assert [hybrid.index(doc_id) for doc_id in "bf"] == [by_tokens.index(doc_id) for doc_id in "bf"]
        hits = searcher.hits("cat dog", 6, SearchOptions(smoothing=smoothing), explain=True)
        assert [hit.doc_id for hit in hits] == hybrid
        assert {hit.doc_id for hit in hits if hit.pending} == {"b", "f"}


def test_what_scores_words_is_named_and_needs_words(tmp_path: Path) -> None:
    assert parse_smoothing("bm25") is None
    assert parse_smoothing("dirichlet") == Smoothing("dirichlet", 1000.0)
    assert parse_smoothing("jelinek-mercer:0.7") == Smoothing("jelinek-mercer", 0.7)
    for text in ("", "bm25:2", "dirichlet:", "dirichlet:x", "dirichlet:-1", "jelinek-mercer:1", "jelinek-mercer:nan"):
        with pytest.raises(InvalidInput):
            parse_smoothing(text)
    shard = Shard([Document("a", "cat")], np.ones((1, 4), dtype=np.float16), None)
    build_index(
        [shard],
        tmp_path / "index",
        contract=word_contract(sparse=None),
        options=IndexOptions(analyzer=None),
        progress=False,
    )
    with Index.open(tmp_path / "index") as index, pytest.raises(InvalidInput, match="counted words"):
        Searcher(index).search(["cat"], options=SearchOptions(smoothing=METHODS[0]))
