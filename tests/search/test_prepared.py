"""Prepared searches: one query, a batch, hits and explanations go one way and have the same bits."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightir.errors import InvalidInput, NotFound
from lightir.index import Index, IndexOptions, IndexWriter
from lightir.query import CachedQueryEncoder, CachedTable
from lightir.query.bigrams import Bigrams
from lightir.query.tables import CachedBigrams
from lightir.search import Searcher, SearchOptions, branches
from lightir.search.encoding import QueryCoding
from lightir.search.prepared import bind
from lightir.types import Document, Query
from lightir.vectors import QueryVectors
from small_collections import VOCAB_SIZE, csr, word_contract, word_table, word_tokenizer

QUERIES = ("the cat", "cat", "dog runs dog", "fish sleeps well the cat", "", "unknown words", "cat ünknown", "the the")
MODES = ("hybrid", "dense", "sparse", "tokens", "hybrid+tokens", "sparse+tokens")
FUSIONS = ("linear", "linear:min-max", "linear:z-score", "linear:none", "rrf:2", "dbsf")


class OtherKind:
    """An encoder of which a searcher knows its vectors alone."""

    def __init__(self, encoder: CachedQueryEncoder) -> None:
        self._encoder = encoder
        self.document_fingerprint = encoder.document_fingerprint

    def encode(self, texts: Sequence[str], *, task: str | None = None) -> QueryVectors:
        return self._encoder.encode(texts, task=task)


def encoder(**changes: Any) -> CachedQueryEncoder:
    return CachedQueryEncoder(word_contract(**changes), word_tokenizer(), tables={"": CachedTable(word_table())})


@pytest.fixture(params=["ascending", "mixed", "deleted"])
def index(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Index]:
    """Three segments with many ties, whose ids ascend over all of them or do not; with tombstones in two."""
    rng = np.random.default_rng(7)
    names = [f"d{i:02d}" for i in range(36)]
    order = names if request.param == "ascending" else [names[i] for i in rng.permutation(36)]
    words = ("cat", "dog", "fish", "runs", "sleeps", "the", "well")
    with IndexWriter.create(
        tmp_path / "index", contract=word_contract(), options=IndexOptions(analyzer="words")
    ) as writer:
        for first, size in ((0, 20), (20, 10), (30, 6)):  # a new segment absorbs those that are no larger
            ids = order[first : first + size]
            shown = [Document(i, " ".join(rng.choice(words, 3)), metadata={"even": int(i[1:]) % 2 == 0}) for i in ids]
            rows = rng.integers(-1, 2, (size, 4)).astype(np.float16)
            impacts = [{int(term): int(rng.integers(1, 3)) for term in rng.integers(1, VOCAB_SIZE, 3)} for _ in ids]
            writer.add(shown, dense=rows, sparse=csr(impacts, vocab_size=VOCAB_SIZE, dtype=np.uint8))
        if request.param == "deleted":
            writer.delete([order[0], order[5], order[31]])
    with Index.open(tmp_path / "index") as opened:
        assert len(opened.view.segments) == 3
        assert opened.view.ids_ascend == (request.param == "ascending")
        yield opened


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["text", "vectors"])
def test_a_query_by_itself_is_ranked_as_in_a_batch(index: Index, mode: str, kind: str) -> None:
    own = encoder()
    searcher = Searcher(index, own if kind == "text" else OtherKind(own))
    wanted: list[dict[str, Any]] = [
        {},
        {"filter": {"even": True}},
        {"exclude": {text: ("d03", "d07", "nobody", "d11")[:i] for i, text in enumerate(QUERIES)}},
    ]
    for fusion, (k, depth), more in itertools.product(FUSIONS, ((1, 1), (3, 5), (10, 4), (40, 1000)), wanted):
        how = {"mode": mode, "fusion": fusion, "depth": depth, **more}
        together = searcher.search([Query(text, text) for text in QUERIES], k, SearchOptions(**how))
        for text in QUERIES:
            alone = searcher.search([Query(text, text)], k, SearchOptions(**how))
            assert list(alone) == [text]
            assert list(alone[text].doc_ids) == list(together[text].doc_ids)
            np.testing.assert_array_equal(alone[text].scores, together[text].scores)
            assert alone[text].scores.dtype == np.float64


@pytest.mark.parametrize("fusion", FUSIONS)
def test_hits_say_what_explanations_say(index: Index, fusion: str) -> None:
    searcher = Searcher(index, encoder())
    for text in ("the cat", "dog runs dog"):
        for hit in searcher.hits(text, 5, SearchOptions(mode="hybrid+tokens", fusion=fusion, depth=6)):
            explained = searcher.explain(text, hit.doc_id, SearchOptions(mode="hybrid+tokens", fusion=fusion, depth=6))
            assert hit.score == explained.score
            for branch, branch_score in hit.branches.items():
                assert branch_score == explained.branches[branch]


@pytest.mark.parametrize("mode", MODES)
def test_search_hits_batches_and_explanations_have_the_same_bits(index: Index, mode: str) -> None:
    searcher = Searcher(index, encoder())
    for fusion in FUSIONS:
        options = SearchOptions(mode=mode, fusion=fusion, depth=6)
        together = searcher.search(list(QUERIES), 5, options)
        for i, text in enumerate(QUERIES):
            alone, batch = searcher.search([text], 5, options)["0"], together[str(i)]
            hits = searcher.hits(text, 5, options)
            assert list(alone.doc_ids) == list(batch.doc_ids) == [hit.doc_id for hit in hits]
            assert alone.scores.tolist() == batch.scores.tolist() == [hit.score for hit in hits]
            explained = searcher.hits(text, 5, options, explain=True)
            assert [(hit.doc_id, hit.score, hit.branches) for hit in hits] == [
                (hit.doc_id, hit.score, hit.branches) for hit in explained
            ]


class CountingEncoder(OtherKind):
    """An encoder that counts the texts that it encodes."""

    n_texts = 0

    def encode(self, texts: Sequence[str], *, task: str | None = None) -> QueryVectors:
        self.n_texts += len(texts)
        return super().encode(texts, task=task)


def test_every_way_of_asking_encodes_a_query_once(index: Index) -> None:
    counting = CountingEncoder(encoder())
    searcher = Searcher(index, counting)
    for ask in (
        lambda: searcher.search(["the cat"]),
        lambda: searcher.hits("the cat"),
        lambda: searcher.hits("the cat", explain=True),
        lambda: searcher.explain("the cat", "d03"),
        lambda: list(searcher.candidates([Query("q", "the cat")])),
    ):
        before = counting.n_texts
        assert ask()
        assert counting.n_texts == before + 1


def test_one_call_of_the_kernel_answers_a_search(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither filters nor exclusions make the search of several branches more than one call, for one query or many."""

    def refuse(*_: object) -> Any:
        raise AssertionError("a list was made outside the kernel")

    own = encoder()
    monkeypatch.setattr(branches.BranchSearch, "top", refuse)
    for searcher in (Searcher(index, own), Searcher(index, OtherKind(own))):
        for mode in MODES:
            limited = SearchOptions(mode=mode, filter={"even": True}, exclude={"0": ["d02"]})
            for options in (SearchOptions(mode=mode), limited):
                assert searcher.search(["the cat"], 3, options)["0"].doc_ids
                assert searcher.search(["the cat", "dog"], 3, options)["0"].doc_ids
                assert searcher.hits("the cat", 3, options)


def test_texts_go_to_the_kernel_where_it_makes_all_vectors(index: Index) -> None:
    def takes_texts(own: Any, mode: str, task: str | None = None) -> bool:
        prepared = Searcher(index, own).prepare(SearchOptions(mode=mode))
        return bind(index.view, prepared.plan, QueryCoding(own, task, None)).takes_texts

    assert takes_texts(encoder(), "hybrid")
    assert not takes_texts(encoder(), "tokens")
    assert not takes_texts(OtherKind(encoder()), "hybrid")
    with pytest.raises(NotFound, match="unknown task 'other'"):
        takes_texts(encoder(), "hybrid", "other")


def test_excluded_documents_leave_room_for_others(index: Index) -> None:
    searcher = Searcher(index, encoder())
    every = searcher.search(["the cat"], 40)["0"].doc_ids
    for exclude in (every[:3], {"0": every[:3], "1": every[3:]}):
        rest = searcher.search(["the cat"], 40, SearchOptions(exclude=exclude))["0"].doc_ids
        assert sorted(rest) == sorted(every[3:])
    assert [hit.doc_id for hit in searcher.hits("the cat", 1, SearchOptions(exclude=every[:1]))] == every[1:2]
    own = searcher.search([Query(every[0], "the cat")], 40, SearchOptions(exclude_same_id=True))
    assert sorted(own[every[0]].doc_ids) == sorted(every[1:])


def test_a_text_that_is_none_is_refused_by_its_query(index: Index) -> None:
    searcher = Searcher(index, encoder())
    with pytest.raises(InvalidInput, match="query 'q7' is int; expected str"):
        searcher.search([Query("q7", 3)])  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="query 'q8' is not representable in UTF-8"):
        searcher.search([Query("q8", "cat \ud800")])
    with pytest.raises(InvalidInput, match="k is 0"):
        searcher.search(["cat"], 0)


def test_what_was_made_ready_goes_with_the_view(index: Index) -> None:
    """A searcher finds what came after its first search; many ways of asking keep no more than some of them bound."""
    searcher = Searcher(index, encoder())
    before = searcher.search(["the cat"], 100, SearchOptions(mode="hybrid"))["0"].doc_ids
    with IndexWriter.open(index.folder) as writer:
        writer.delete([before[0]])
    assert searcher.search(["the cat"], 100, SearchOptions(mode="hybrid"))["0"].doc_ids == before
    assert index.refresh()
    after = searcher.search(["the cat"], 100, SearchOptions(mode="hybrid"))["0"].doc_ids
    with Index.open(index.folder) as anew:
        assert after == Searcher(anew, encoder()).search(["the cat"], 100, SearchOptions(mode="hybrid"))["0"].doc_ids
    assert sorted(after) == sorted(before[1:])
    for i in range(200):
        searcher.search(["the cat"], options=SearchOptions(mode="hybrid", fusion=f"rrf:{i}"))
    assert len(index.view.prepared) <= 64


def test_two_searchers_of_a_view_keep_to_their_own_encoders(index: Index) -> None:
    one = encoder()
    turned = CachedQueryEncoder(word_contract(), word_tokenizer(), tables={"": CachedTable(-word_table())})
    first, second = (
        Searcher(index, query_encoder).search(["the cat"], 5, SearchOptions(mode="dense"))["0"]
        for query_encoder in (one, turned)
    )
    assert list(first.doc_ids) != list(second.doc_ids)


def test_rows_of_bigrams_are_in_a_single_query_s_vector(index: Index) -> None:
    the_cat = Bigrams(np.array([[6, 1]], np.uint32))
    contract = word_contract()
    policy = dataclasses.replace(contract.query, bigrams=the_cat.hash)
    own = CachedQueryEncoder(
        dataclasses.replace(contract, query=policy),
        word_tokenizer(),
        tables={"": CachedTable(word_table())},
        bigrams=CachedBigrams(the_cat, CachedTable(np.full((1, 4), 5, np.float16))),
    )
    assert own.text_encoder() is not None
    searcher = Searcher(index, own)
    alone, together = (
        searcher.search(["the cat"], options=SearchOptions(mode="dense")),
        searcher.search(["the cat", "dog"], options=SearchOptions(mode="dense")),
    )
    assert list(alone["0"].doc_ids) == list(together["0"].doc_ids)
    np.testing.assert_array_equal(alone["0"].scores, together["0"].scores)
