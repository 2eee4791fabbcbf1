"""A searcher's modes, refusals, explanations, exclusions and snippets."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightir.contract import DenseHead, Fusion
from lightir.errors import ContractMismatch, InvalidInput
from lightir.index import Index, IndexOptions, IndexWriter, build_index, document_shards
from lightir.query import CachedQueryEncoder, CachedTable
from lightir.search import Searcher, SearchOptions
from lightir.types import Query
from lightir.words.synonyms import Synonyms
from small_collections import GivenVectors, animal_shard, word_contract, word_table, word_tokenizer, write_folder

QUERY = "the cat and the dog at the well"


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    folder = write_folder(tmp_path / "q", word_contract(), {"": {"embeddings": word_table()}})
    build_index([animal_shard()], tmp_path / "index", query_encoder=folder, progress=False)
    with Index.open(tmp_path / "index") as opened:
        yield opened


@pytest.fixture
def tokens_only(tmp_path: Path) -> Iterator[Index]:
    build_index(document_shards(animal_shard().documents), tmp_path / "tokens", progress=False)
    with Index.open(tmp_path / "tokens") as opened:
        yield opened


@pytest.mark.parametrize(
    ("mode", "branches"),
    [
        (None, ["dense", "sparse"]),
        ("hybrid", ["dense", "sparse"]),
        ("dense", ["dense"]),
        ("sparse", ["sparse"]),
        ("tokens", ["tokens"]),
        ("hybrid+tokens", ["dense", "sparse", "tokens"]),
        ("dense+tokens", ["dense", "tokens"]),
        (("tokens", "sparse"), ["sparse", "tokens"]),
    ],
)
def test_a_mode_searches_its_branches(index: Index, mode: Any, branches: list[str]) -> None:
    hits = Searcher(index).hits(QUERY, options=SearchOptions(mode=mode))
    assert hits
    assert all(list(hit.branches) == branches for hit in hits)


def test_options_that_are_used_again_see_what_changed_since(tmp_path: Path, tokens_only: Index) -> None:
    filter_value = {"page": 1}
    options, filtered = SearchOptions(), SearchOptions(filter=filter_value)
    searcher = Searcher(tokens_only)

    def found(k: Any, options: SearchOptions) -> list[str]:
        return searcher.search([QUERY], k, options)["0"].doc_ids

    assert [len(found(k, options)) for k in (1, 2, 2, 1)] == [1, 2, 2, 1]
    with pytest.raises(InvalidInput, match="k is"):
        found(2.0, options)
    assert found(10, filtered) == ["a"]
    filter_value["page"] = 2
    assert found(10, filtered) == ["b"]
    assert {*found(10, options)} == {"a", "b"}
    (tmp_path / "synonyms").write_text("cat, dog, well => runs", encoding="utf-8")
    searcher.synonyms = Synonyms.read(tmp_path / "synonyms")
    assert found(10, options) == ["a"]
    searcher.synonyms = None
    assert {*found(10, options)} == {"a", "b"}
    with IndexWriter.open(tokens_only.folder) as writer:
        writer.delete(["b"])
    tokens_only.refresh()
    assert found(10, options) == ["a"]


def test_hybrid_takes_the_branches_that_the_weights_name(index: Index) -> None:
    hits = Searcher(index).hits(QUERY, options=SearchOptions(weights={"dense": 0.5, "tokens": 0.5}))
    assert list(hits[0].branches) == ["dense", "tokens"]


def test_hybrid_without_a_sparse_branch_joins_dense_and_tokens(tmp_path: Path) -> None:
    contract = word_contract(sparse=None)
    shard = dataclasses.replace(animal_shard(), sparse=None)
    build_index([shard], tmp_path / "index", contract=contract, progress=False)
    encoder = CachedQueryEncoder(contract, word_tokenizer(), tables={"": CachedTable(word_table())})
    with Index.open(tmp_path / "index") as index:
        assert list(Searcher(index, encoder).hits(QUERY)[0].branches) == ["dense", "tokens"]


def test_the_contract_s_fusion_is_the_default(tmp_path: Path) -> None:
    contract = word_contract(fusion=Fusion("rrf", {"dense": 1.0, "sparse": 3.0}))
    build_index([animal_shard()], tmp_path / "index", contract=contract, progress=False)
    encoder = CachedQueryEncoder(contract, word_tokenizer(), tables={"": CachedTable(word_table())})
    with Index.open(tmp_path / "index") as index:
        for hit in Searcher(index, encoder).hits("cat"):
            ranks = [branch.rank for branch in hit.branches.values()]
            expected = [weight / (60 + rank) if rank else 0.0 for weight, rank in zip((1.0, 3.0), ranks, strict=True)]
            assert hit.score == pytest.approx(sum(expected))


def test_an_index_of_tokens_is_searched_by_tokens(tokens_only: Index) -> None:
    run = Searcher(tokens_only).search(["cats", "dogs"])
    assert [list(ranking.doc_ids) for ranking in run.values()] == [["b", "a"], ["a"]]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"mode": "hybrid"}, "two branches; the index has tokens"),
        ({"mode": "dense"}, "no dense branch; it has tokens"),
        ({"mode": "gamma"}, "'gamma' is unknown"),
        ({"mode": "tokens+tokens"}, r"'tokens\+tokens' names tokens twice"),
        ({"mode": ("dense", "sparse", "dense")}, "names dense twice"),
        ({"mode": "hybrid+hybrid"}, "names hybrid twice"),
        ({"mode": ()}, "no branch"),
        ({"fusion": "max"}, "'max'"),
        ({"weights": {"tokens": 1.0, "dense": 1.0}}, "weights name"),
        ({"weights": {"words": 1.0}}, "'words'"),
        ({"weights": {"tokens": -1.0}}, "-1.0"),
        ({"weights": {"tokens": math.nan}}, "nan"),
        ({"weights": {"tokens": 0.0}}, "all weights are 0"),
        ({"k": 0}, "k is 0"),
        ({"depth": 0}, "depth is 0"),
        ({"k": 2**31}, "k is 2147483648; expected .* from 1 to 2147483647"),
        ({"k": None}, "k is None; expected a whole number"),
        ({"k": 2.0}, "k is 2.0"),
        ({"depth": "3"}, "depth is '3'"),
        ({"mode": 5}, "mode is 5"),
        ({"mode": [["tokens"]]}, r"mode \['tokens'\] is unknown"),
        ({"fusion": 5}, "fusion is int"),
        ({"fusion": ["rrf"]}, "fusion is list"),
        ({"weights": 3}, "weights is int"),
        ({"weights": ["tokens"]}, "weights is list"),
        ({"weights": {"tokens": [1.0]}}, r"weight of tokens is \[1.0\]"),
        ({"weights": {"tokens": "1"}}, "weight of tokens is '1'"),
        ({"exclude": 5}, "the documents to exclude is int"),
        ({"exclude": {"0": "a"}}, "the documents to exclude is a str, 'a'"),
        ({"exclude": {"0": None}}, "the documents to exclude is NoneType"),
        ({"exclude": {"0": [3]}}, "a doc_id is int; expected str"),
    ],
)
def test_what_cannot_be_searched_is_refused(tokens_only: Index, options: dict[str, Any], says: str) -> None:
    others = {name: value for name, value in options.items() if name != "k"}
    with pytest.raises(InvalidInput, match=says):
        Searcher(tokens_only).search(["cat"], options.get("k", 10), SearchOptions(**others))


def test_whole_numbers_of_numpy_are_numbers(tokens_only: Index) -> None:
    run = Searcher(tokens_only, threads=np.int64(1)).search(["cat"], np.int64(1), SearchOptions(depth=np.uint8(9)))  # type: ignore[arg-type]
    assert len(run["0"]) == 1


def test_queries_must_be_text_and_different(tokens_only: Index) -> None:
    searcher = Searcher(tokens_only)
    with pytest.raises(InvalidInput, match="repeated"):
        searcher.search([Query("1", "a"), Query("1", "b")])
    with pytest.raises(InvalidInput, match="surrogate"):
        searcher.search(["\ud800"])
    with pytest.raises(InvalidInput, match="int"):
        searcher.search([Query("1", 5)])  # type: ignore[arg-type]


def test_vectors_of_another_model_are_refused_at_the_door(index: Index) -> None:
    contract = word_contract(dense=DenseHead(pooling="mean"))
    encoder = CachedQueryEncoder(contract, word_tokenizer(), tables={"": CachedTable(word_table())})
    with pytest.raises(ContractMismatch, match=r"pooling is 'eos'.*'mean'"):
        Searcher(index, encoder)
    with pytest.raises(ContractMismatch, match=contract.document_fingerprint):
        Searcher(index, GivenVectors(contract, {}, {}))


def test_an_encoder_is_needed_unless_words_are_searched(tmp_path: Path) -> None:
    build_index([animal_shard()], tmp_path / "index", contract=word_contract(), progress=False)
    with Index.open(tmp_path / "index") as index:
        with pytest.raises(InvalidInput, match="dense needs a query encoder"):
            Searcher(index).search(["cat"])
        assert list(Searcher(index).search(["cat"], options=SearchOptions(mode="tokens"))["0"].doc_ids) == ["b", "a"]


@pytest.mark.parametrize("mode", ["dense", "sparse", "tokens", "hybrid", "hybrid+tokens"])
def test_a_query_without_known_terms_finds_nothing(index: Index, mode: str) -> None:
    run = Searcher(index).search(["", " \n", "zebra", "!?"], options=SearchOptions(mode=mode))
    assert [len(ranking) for ranking in run.values()] == [0, 0, 0, 0]
    assert Searcher(index).hits("", options=SearchOptions(mode=mode)) == []


@pytest.mark.parametrize("mode", ["dense", "sparse", "tokens", "hybrid", "hybrid+tokens"])
@pytest.mark.parametrize("analyzer", ["english", "model"])
def test_unknown_terms_alone_find_nothing_where_the_contract_keeps_them_too(tmp_path, mode: str, analyzer: str) -> None:
    keeping = word_contract(query=dataclasses.replace(word_contract().query, drop=()))
    folder = write_folder(tmp_path / "q", keeping, {"": {"embeddings": word_table()}})
    build_index(
        [animal_shard()], tmp_path / "i", query_encoder=folder, options=IndexOptions(analyzer=analyzer), progress=False
    )
    with Index.open(tmp_path / "i") as index:
        searcher = Searcher(index)
        assert searcher.encoder is not None
        unknown, known = searcher.encoder.encode(["zebra !?", "zebra cat"]).term_ids, ["cat", "dog zebra"]
        assert unknown.row(0).tolist() == [0, 0]
        run = searcher.search([known[0], "zebra !?", known[1], ""], options=SearchOptions(mode=mode))
        assert [len(run[query_id]) > 0 for query_id in "0123"] == [True, False, True, False]
        for query_id, query in zip("02", known, strict=True):
            alone = searcher.search([query], options=SearchOptions(mode=mode))["0"]
            assert (list(run[query_id].doc_ids), run[query_id].scores.tolist()) == (
                list(alone.doc_ids),
                alone.scores.tolist(),
            )
        explained = searcher.explain("zebra !?", "a", SearchOptions(mode=mode))
        assert explained.score == 0
        assert not [term for terms in explained.terms.values() for term in terms]


@pytest.mark.parametrize("mode", ["dense", "sparse", "tokens", "hybrid+tokens"])
def test_ten_thousand_words_are_a_query(index: Index, mode: str) -> None:
    assert len(Searcher(index).search(["cat dog well runs zebra " * 2000], options=SearchOptions(mode=mode))["0"]) >= 2


@pytest.mark.parametrize("texts", [["cat"], ["cat", "dog zebra"]])
def test_queries_may_be_generated(index: Index, texts: list[str]) -> None:
    run, expected = Searcher(index).search(text for text in texts), Searcher(index).search(texts)
    assert {q: list(r.doc_ids) for q, r in run.items()} == {q: list(r.doc_ids) for q, r in expected.items()}


def test_what_python_would_take_letter_by_letter_or_by_its_keys_is_refused(index: Index) -> None:
    searcher = Searcher(index)
    for queries, message in (("cat", "queries is a str, 'cat'"), ({"q": "cat"}, "queries is a dict"), ([3], "is int")):
        with pytest.raises(InvalidInput, match=message):
            searcher.search(queries)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="a query is int; expected str or Query"):
        searcher.search(["cat", 3])  # type: ignore[list-item]
    with pytest.raises(InvalidInput, match="doc_ids is a str, 'b'"):
        index.documents("b")
    with pytest.raises(InvalidInput, match="doc_ids is NoneType; expected a list"):
        index.documents(None)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="the documents to exclude is a str, 'b'"):
        searcher.hits("cat", options=SearchOptions(exclude="b"))
    with pytest.raises(InvalidInput, match="a doc_id is int; expected str"):
        searcher.explain("cat", 3)  # type: ignore[arg-type]
    for threads in (0, 1.5, None):
        with pytest.raises(InvalidInput, match=f"threads is {threads}; expected a whole number"):
            Searcher(index, threads=threads)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"open it first: Searcher\(Index.open\('folder'\)\)"):
        Searcher("folder")  # type: ignore[arg-type]


def test_terms_are_named_and_only_told_when_asked_for(index: Index) -> None:
    searcher = Searcher(index)
    assert [
        term.term
        for term in searcher.hits("the cat at the well", 1, SearchOptions(mode="sparse"), explain=True)[0].terms
    ] == ["cat"]
    assert {t.term for t in searcher.hits("cats sleeping", 1, SearchOptions(mode="tokens"), explain=True)[0].terms} == {
        "cat",
        "sleep",
    }
    assert searcher.hits("cat", 1, SearchOptions(mode="sparse"))[0].terms == ()


def test_a_stem_comes_with_the_querys_word(index: Index) -> None:
    """People read "Sleeping" where BM25 counts "sleep"."""
    searcher = Searcher(index)
    (hit,) = searcher.hits("cat Sleeping sleeps", 1, SearchOptions(mode="tokens"), explain=True)
    assert {term.term: term.word for term in hit.terms} == {"cat": "", "sleep": "Sleeping"}
    assert (
        searcher.explain("cat Sleeping sleeps", hit.doc_id, SearchOptions(mode="tokens")).terms["tokens"] == hit.terms
    )


def test_hits_and_search_agree_and_hits_carry_the_document(index: Index) -> None:
    searcher = Searcher(index)
    ranking = searcher.search([QUERY], options=SearchOptions(mode="hybrid+tokens"))["0"]
    hits = searcher.hits(QUERY, options=SearchOptions(mode="hybrid+tokens"))
    assert [(hit.doc_id, hit.score) for hit in hits] == list(zip(ranking.doc_ids, ranking.scores, strict=True))
    by_id = {hit.doc_id: hit for hit in hits}
    assert (by_id["b"].title, by_id["b"].metadata, by_id["b"].snippet) == (
        "Cat",
        {"page": 2},
        "the cat sleeps at the well",
    )


@pytest.mark.parametrize("mode", ["dense", "sparse", "tokens", "hybrid", "hybrid+tokens"])
def test_excluded_documents_go_in_every_mode_and_others_move_up(index: Index, mode: str) -> None:
    searcher = Searcher(index)
    whole = list(searcher.search([Query("b", "cat")], options=SearchOptions(mode=mode))["b"].doc_ids)
    same = searcher.search([Query("b", "cat")], 1, SearchOptions(mode=mode, exclude_same_id=True))["b"]
    named = searcher.search([Query("b", "cat")], 1, SearchOptions(mode=mode, exclude={"b": ["b", "not there"]}))["b"]
    assert "b" in whole
    assert list(same.doc_ids) == list(named.doc_ids) == [doc_id for doc_id in whole if doc_id != "b"][:1]
    assert [hit.doc_id for hit in searcher.hits("cat", 1, SearchOptions(mode=mode, exclude=["b"]))] == list(
        same.doc_ids
    )


def test_a_batch_equals_its_queries_one_by_one_with_any_number_of_threads(index: Index) -> None:
    queries = [Query(str(i), " ".join(QUERY.split()[i % 5 :])) for i in range(300)]
    together = Searcher(index, threads=3).search(queries, options=SearchOptions(mode="hybrid+tokens"))
    for query in queries[:5] + queries[-5:]:
        alone = Searcher(index).search([query], options=SearchOptions(mode="hybrid+tokens"))[query.query_id]
        assert list(together[query.query_id].doc_ids) == list(alone.doc_ids)
        np.testing.assert_array_equal(together[query.query_id].scores, alone.scores)
    assert list(together) == [query.query_id for query in queries]


def test_a_wide_query_meets_a_narrow_index_and_not_the_other_way(tmp_path: Path) -> None:
    contract = word_contract()
    build_index(
        [animal_shard()], tmp_path / "index", contract=contract, options=IndexOptions(dense_dim=2), progress=False
    )
    tables = {"": CachedTable(word_table())}
    with Index.open(tmp_path / "index") as index:
        wide, narrow, narrower = (
            CachedQueryEncoder(contract, word_tokenizer(), tables=tables, dim=d) for d in (4, 2, 1)
        )
        ranking, same = (
            Searcher(index, encoder).search(["cat"], options=SearchOptions(mode="dense"))["0"]
            for encoder in (wide, narrow)
        )
        assert list(ranking.doc_ids) == list(same.doc_ids)
        np.testing.assert_allclose(ranking.scores, same.scores, atol=1e-6)
        with pytest.raises(InvalidInput, match="1 wide, but the index's 2"):
            Searcher(index, narrower).search(["cat"], options=SearchOptions(mode="dense"))


def test_bm25_over_the_model_s_terms(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "q", word_contract(), {"": {"embeddings": word_table()}})
    build_index(
        [animal_shard()],
        tmp_path / "index",
        query_encoder=folder,
        options=IndexOptions(analyzer="model"),
        progress=False,
    )
    with Index.open(tmp_path / "index") as index:
        hits = Searcher(index).hits("RUNS zebra", explain=True, options=SearchOptions(mode="tokens"))
        assert [(hit.doc_id, [term.term for term in hit.terms]) for hit in hits] == [("a", ["runs"])]


def test_a_hit_shows_where_the_query_s_terms_stand(index: Index) -> None:
    hit = Searcher(index).hits("cats sleeping", 1, SearchOptions(mode="tokens"))[0]
    assert [hit.snippet[start:end] for start, end in hit.highlights] == ["cat", "sleeps"]
