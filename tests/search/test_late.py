"""Late search: the documents that are encoded for a query within its time limit, and their order."""

from __future__ import annotations

import itertools
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightir.errors import ContractMismatch, InvalidInput
from lightir.index import Index, IndexOptions, IndexWriter, build_index, document_shards
from lightir.pending import Queue, WorkOptions, failures_of, work
from lightir.search import LateOptions, LateSearcher, OtherStage, OwnStage, Searcher, SearchOptions
from lightir.search.late import LateReport, SecondScores, joined
from lightir.types import Document
from pending_documents import POISON, FakeEncoder, documents, pending_index, require_right_vectors, vector
from small_collections import GivenVectors, word_contract, word_table, write_folder

QUERY = np.array([4, 3, 2, 1], np.float32)


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class AnyQuery(GivenVectors):
    """A query encoder that gives every query the same vectors."""

    def __init__(self) -> None:
        class Same(dict[str, Any]):
            def __missing__(self, text: str) -> Any:
                return QUERY if self["kind"] == "dense" else {1: 1.0}

        super().__init__(word_contract(), Same(kind="dense"), Same(kind="sparse"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return pending_index(tmp_path / "index", 40)


@pytest.fixture
def searcher(folder: Path) -> Iterator[Searcher]:
    with Index.open(folder) as index:
        yield Searcher(index, AnyQuery())


def encoder_on(clock: Clock, *, s_a_character: float) -> FakeEncoder:
    def pass_time(batch: Any) -> None:
        clock.now += s_a_character * sum(1 + len(document.text) for document in batch)

    return FakeEncoder(watch=pass_time)


def late_search(
    searcher: Searcher,
    encoder: FakeEncoder,
    late: LateOptions,
    *,
    mode: str = "full",
    clock: Callable[[], float] = time.monotonic,
) -> LateSearcher:
    return LateSearcher(searcher, OwnStage(searcher, encoder, mode=mode, clock=clock), late, clock=clock)


def inner_product(text: str) -> float:
    """<V(q), V(d)> for the one query of these tests."""
    return float(np.dot(np.array(vector(text), np.float16).astype(np.float32), QUERY))


def expected_order(searcher: Searcher, query: str, m: int, n: int) -> list[str]:
    """The paper's late search: the first stage's m best by <V(q), V(d)>, then its others."""
    first = list(searcher.search([query], n, SearchOptions(mode="tokens"))["0"].doc_ids)
    texts = {document.doc_id: document.text for document in searcher.index.documents(first)}
    return sorted(first[:m], key=lambda doc_id: (-inner_product(texts[doc_id]), doc_id)) + first[m:]


def test_the_best_documents_are_encoded_once_and_ordered_by_the_inner_product(searcher: Searcher) -> None:
    encoder = FakeEncoder()
    late = late_search(searcher, encoder, LateOptions(m=7))
    expected = expected_order(searcher, "the cat 7 runs", 7, 10)
    hits, report = late.hits("the cat 7 runs", 10)
    assert [hit.doc_id for hit in hits] == expected
    assert sorted(report.encoded) == sorted(expected[:7])
    assert (report.left, report.failed, report.parked) == (0, {}, ())
    assert 0 < report.encoding_seconds < report.seconds
    texts = {document.doc_id: document.text for document in searcher.index.documents(expected)}
    for rank, hit in enumerate(hits[:7], 1):
        assert hit.score == pytest.approx(inner_product(texts[hit.doc_id]), rel=1e-3)
        assert (hit.branches["dense"].rank, hit.branches["dense"].weight, hit.branches["tokens"].weight) == (rank, 1, 0)
        assert hit.score == sum(part.weight * part.normalized for part in hit.branches.values())
    assert [hit.late for hit in hits] == [True] * 7 + [False] * 3
    assert [hit.pending for hit in hits] == [False] * 7 + [True] * 3
    scores = [hit.score for hit in hits]
    assert scores == sorted(scores, reverse=True)
    assert require_right_vectors(searcher.index) == set(expected[:7])

    run, reports = late.search(["the cat 7 runs"], 10)
    assert (list(run["0"].doc_ids), run["0"].scores.tolist()) == (expected, scores)
    assert (reports["0"].encoded, reports["0"].encoding_seconds) == ((), 0)
    assert sorted(encoder.encoded) == sorted(expected[:7])
    with Index.open(searcher.index.folder) as other:
        assert other.info().pending == 33


def test_over_bags_the_first_stage_is_beta_search(tmp_path: Path) -> None:
    encoder = write_folder(tmp_path / "encoder", word_contract(), {"search": {"embeddings": word_table()}})
    texts = ["the cat runs", "a dog", "cat and dog run", "the dog runs", "cat", "a bird"]
    shards = document_shards([Document(f"d{i}", text) for i, text in enumerate(texts)])
    options = IndexOptions(analyzer="bag")
    build_index(shards, tmp_path / "index", query_encoder=encoder, options=options, progress=False)
    with Index.open(tmp_path / "index") as index:
        late = late_search(Searcher(index, AnyQuery()), FakeEncoder(), LateOptions(m=2))
        assert late.first_mode == "beta"
        first = list(late.searcher.search(["any"], 10, SearchOptions(mode="beta"))["0"].doc_ids)
        hits, report = late.hits("any", 10)
    assert len(first) > 2
    assert set(report.encoded) == set(first[:2])
    assert {hit.doc_id for hit in hits} == set(first)
    assert [hit.doc_id for hit in hits[2:]] == first[2:]


def test_late_search_of_everything_is_full_search(searcher: Searcher) -> None:
    hits, _ = late_search(searcher, FakeEncoder(), LateOptions(m=100)).hits("cat", 40)
    full = searcher.hits("cat", 40, SearchOptions(mode="full"))
    assert [(hit.doc_id, hit.score) for hit in hits] == [(hit.doc_id, hit.score) for hit in full]


@pytest.mark.parametrize("k", [1, 3, 50])
@pytest.mark.parametrize("m", [1, 4, 39, 60])
def test_any_number_of_documents_is_ordered(searcher: Searcher, m: int, k: int) -> None:
    late = late_search(searcher, FakeEncoder(), LateOptions(m=m))
    expected = expected_order(searcher, "cat 11", m, max(k, m))[:k]
    run, _ = late.search(["cat 11"], k)
    assert list(run["0"].doc_ids) == expected
    assert [hit.doc_id for hit in late.hits("cat 11", k)[0]] == expected
    assert late.search(["whale"], k)[0]["0"].doc_ids == []


def test_another_model_orders_the_documents_without_changing_the_index(searcher: Searcher) -> None:
    other = word_contract(dense=None, attention="bidirectional")
    encoder = FakeEncoder(contract=other)
    queries = GivenVectors(other, {"cat 7": np.zeros(0)}, {"cat 7": {1: 2.0}})
    stage = OtherStage(searcher, encoder, queries, kept=6)
    late = LateSearcher(searcher, stage, LateOptions(m=6))
    first = list(searcher.search(["cat 7"], 9, SearchOptions(mode="tokens"))["0"].doc_ids)
    texts = {document.doc_id: document.text for document in searcher.index.documents(first)}
    impacts = {doc_id: int(vector(text)[0]) + 1 for doc_id, text in texts.items()}
    hits, report = late.hits("cat 7", 9)
    ordered = sorted(first[:6], key=lambda doc_id: (-impacts[doc_id], doc_id))
    assert [hit.doc_id for hit in hits] == ordered + first[6:]
    assert [hit.score for hit in hits[:6]] == [2.0 * impacts[doc_id] for doc_id in ordered]
    assert [hit.branches["sparse"].rank for hit in hits[:6]] == [1, 2, 3, 4, 5, 6]
    assert sorted(report.encoded) == sorted(first[:6])
    assert searcher.index.view.n_pending == 40
    assert late.hits("cat 7", 9)[1].encoded == ()
    with IndexWriter.open(searcher.index.folder) as writer:
        writer.upsert([Document(first[0], "cat 7")])
    searcher.index.refresh()
    assert late.hits("cat 7", 9)[1].encoded == (first[0],)  # its text changed
    with pytest.raises(InvalidInput, match="different models"):
        OtherStage(searcher, FakeEncoder(), queries)


def test_another_model_orders_plain_text_by_dense_vectors(tmp_path: Path) -> None:
    build_index(document_shards(documents(12)), tmp_path / "plain", progress=False)
    clock = Clock()
    with Index.open(tmp_path / "plain") as index:
        searcher = Searcher(index)
        stage = OtherStage(searcher, encoder_on(clock, s_a_character=0.01), AnyQuery(), clock=clock)
        late = LateSearcher(searcher, stage, LateOptions(m=5), clock=clock)
        run, _ = late.search(["cat 3"], 8)
        assert list(run["0"].doc_ids) == expected_order(searcher, "cat 3", 5, 8)
        hurried = LateSearcher(searcher, stage, LateOptions(m=9, budget_ms=250), clock=clock)
        _, report = hurried.hits("cat 3", 9)
        assert report.left + len(report.encoded) == 4
        assert 0 < report.left < 4


@pytest.mark.parametrize("seed", range(20))
def test_documents_without_a_second_score_keep_their_place(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, m = int(rng.integers(0, 12)), int(rng.integers(1, 9))
    doc_ids = [f"d{i}" for i in rng.permutation(n)]
    first_scores = np.sort(rng.integers(0, 9, n))[::-1].tolist()
    scores = {doc_id: float(rng.integers(-3, 4)) for doc_id in doc_ids[:m] if rng.random() < 0.6}
    ordered, result = joined(doc_ids, first_scores, scores, m=m)
    assert sorted(ordered) == sorted(doc_ids)
    assert all(a >= b for a, b in itertools.pairwise(result))
    for position, doc_id in enumerate(doc_ids):
        assert (ordered[position] == doc_id) or doc_id in scores
    moved = [doc_id for doc_id in ordered if doc_id in scores]
    assert moved == sorted(scores, key=lambda doc_id: (-scores[doc_id], doc_id))
    assert all(result[ordered.index(doc_id)] == score for doc_id, score in scores.items())


@pytest.mark.parametrize("budget_ms", [10, 150, 400, 1000])
def test_a_document_that_would_exceed_the_budget_is_not_encoded(searcher: Searcher, budget_ms: int) -> None:
    clock = Clock()
    encoder = encoder_on(clock, s_a_character=0.004)
    late = late_search(searcher, encoder, LateOptions(m=8, budget_ms=budget_ms), clock=clock)
    for number, query in enumerate(["the cat 3 runs", "cat 11 runs", "12 runs runs", "30 the"]):
        best = searcher.search([query], 8, SearchOptions(mode="tokens"))["0"].doc_ids
        pending = [document for document in searcher.index.documents(best) if document.doc_id not in encoder.encoded]
        start = clock.now
        hits, report = late.hits(query, 8)
        spent = clock.now - start
        for hit, doc_id in zip(hits, best, strict=True):
            assert hit.doc_id == doc_id or doc_id in encoder.encoded  # the others keep their place
        assert report.encoding_seconds == pytest.approx(spent)
        assert report.seconds == pytest.approx(spent)
        assert [document.doc_id for document in pending][: len(report.encoded)] == list(report.encoded)
        assert report.left == len(pending) - len(report.encoded)
        if number == 0:
            assert report.encoded, "the first document ever is always encoded"
        else:
            assert spent <= budget_ms / 1000
        if report.left:  # the next one would have exceeded the budget
            assert spent + 0.004 * (1 + len(pending[len(report.encoded)].text)) > budget_ms / 1000


def test_a_document_deleted_between_search_and_encoding_is_skipped(
    searcher: Searcher, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = searcher.search

    def searched(*arguments: Any, **keywords: Any) -> Any:
        run = search(*arguments, **keywords)
        with IndexWriter.open(folder) as writer:
            writer.delete(run["0"].doc_ids[:1])
        searcher.index.refresh()  # as another thread's search does
        return run

    monkeypatch.setattr(searcher, "search", searched)
    run, reports = late_search(searcher, FakeEncoder(), LateOptions(m=3)).search(["the cat 7 runs"], 3)
    assert (len(reports["0"].encoded), reports["0"].left, len(run["0"])) == (2, 0, 3)


def test_a_long_text_is_expected_to_cost_only_what_the_model_reads(folder: Path) -> None:
    with IndexWriter.open(folder) as writer:
        writer.upsert([Document("long", "whale " * 100_000), Document("short", "whale")])
    clock = Clock()
    with Index.open(folder) as index:
        encoder = FakeEncoder(watch=lambda batch: setattr(clock, "now", clock.now + 0.1))
        late = late_search(Searcher(index, AnyQuery()), encoder, LateOptions(m=2, budget_ms=1e6), clock=clock)
        late.hits("cat 7")
        assert set(late.hits("whale")[1].encoded) == {"long", "short"}


def test_documents_claimed_by_a_worker_are_skipped(folder: Path, searcher: Searcher) -> None:
    late = late_search(searcher, FakeEncoder(), LateOptions(m=5))
    with Queue.open(folder) as queue:
        claimed = queue.claim(searcher.index, 39)
        assert len(claimed.keys) == 39
        _, report = late.hits("39 cat")
    assert report.encoded == ("d0039",)
    assert report.left == 4


def test_vectors_that_cannot_be_committed_are_parked_and_not_encoded_again(folder: Path, searcher: Searcher) -> None:
    encoder = FakeEncoder()
    late = late_search(searcher, encoder, LateOptions(m=3))
    with IndexWriter.open(folder):
        hits, report = late.hits("cat 7")
        assert (report.encoded, len(report.parked)) == ((), 3)
        first = searcher.hits("cat 7", options=SearchOptions(mode="tokens"))
        assert [(hit.doc_id, hit.score) for hit in hits] == [(hit.doc_id, hit.score) for hit in first]
        assert not any(hit.late for hit in hits)
        assert late.hits("cat 7")[1].left == 3
    assert len(encoder.encoded) == 3
    worker = FakeEncoder()
    assert work(folder, worker, WorkOptions(once=True), progress=False).committed == 40
    assert not set(worker.encoded) & set(encoder.encoded)


def test_a_document_that_fails_is_recorded_and_stays_searchable(folder: Path) -> None:
    with IndexWriter.open(folder) as writer:
        writer.upsert([Document("bad", f"cat {POISON}")])
    with Index.open(folder) as index:
        late = late_search(Searcher(index, AnyQuery()), FakeEncoder(), LateOptions(m=2))
        hits, report = late.hits(POISON)
        assert [hit.doc_id for hit in hits] == ["bad"]
        assert report.failed == {"bad": "ValueError: cannot read ['bad']"}
        assert [failure.doc_id for failure in failures_of(index.view)] == ["bad"]
        assert late.hits(POISON)[1].left == 1


def test_filter_and_exclusions_apply_to_late_encoding(folder: Path) -> None:
    with IndexWriter.open(folder) as writer:
        writer.upsert([Document(f"m{i}", "a marked cat", metadata={"n": i}) for i in range(4)])
    with Index.open(folder) as index:
        late = late_search(Searcher(index, AnyQuery()), FakeEncoder(), LateOptions(m=20))
        hits, report = late.hits("marked", options=SearchOptions(filter={"n": {"gte": 2}}, exclude=["m2"]))
        assert report.encoded == ("m3",)
        assert [hit.doc_id for hit in hits] == ["m3"]


def test_a_busy_queue_skips_the_encoding_but_not_the_search(folder: Path, searcher: Searcher) -> None:
    Queue.open(folder).close()
    late = late_search(searcher, FakeEncoder(), LateOptions(m=3, budget_ms=20))
    busy = sqlite3.connect(folder / "queue" / "queue.sqlite", isolation_level=None)
    busy.execute("BEGIN IMMEDIATE")
    hits, report = late.hits("cat 7")
    assert (report.encoded, report.left, len(hits)) == ((), 3, 10)
    busy.execute("ROLLBACK")
    assert len(late.hits("cat 7")[1].encoded) <= 3
    busy.close()


def test_an_index_without_pending_documents_is_searched_without_encoding(tmp_path: Path) -> None:
    folder = pending_index(tmp_path / "index", 0)
    with IndexWriter.open(folder) as writer:
        shard = FakeEncoder().encode(documents(3))
        writer.add(shard.documents, dense=shard.dense, sparse=shard.sparse)
    with Index.open(folder) as index:
        hits, report = late_search(Searcher(index, AnyQuery()), FakeEncoder(), LateOptions()).hits("cat")
    assert (report.encoded, report.left, len(hits)) == ((), 0, 3)
    assert not (folder / "queue").exists()


def test_bad_options_encoders_and_indexes_are_refused(searcher: Searcher, tmp_path: Path) -> None:
    for options in ({"m": 0}, {"budget_ms": 0}, {"budget_ms": float("nan")}):
        with pytest.raises(InvalidInput, match="both must be above 0"):
            LateOptions(**options)
    with pytest.raises(ContractMismatch, match="attention is 'causal' in the index but 'bidirectional' in the model"):
        OwnStage(searcher, FakeEncoder(contract=word_contract(attention="bidirectional")))
    build_index(document_shards(documents(3)), tmp_path / "plain", progress=False)
    with Index.open(tmp_path / "plain") as plain, pytest.raises(InvalidInput, match="no model's contract"):
        OwnStage(Searcher(plain), FakeEncoder())


def test_the_time_of_the_first_stage_counts_against_the_limit(
    searcher: Searcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, given = Clock(), []
    search = Searcher.search

    def slowly(*arguments: Any, **options: Any) -> Any:
        clock.now += 3.0
        return search(*arguments, **options)

    class Second:
        def score(self, query: str, doc_ids: Sequence[str], *, seconds: float | None) -> SecondScores:
            given.append(seconds)
            return SecondScores({}, {}, LateReport())

    monkeypatch.setattr(Searcher, "search", slowly)
    late = LateSearcher(searcher, Second(), LateOptions(budget_ms=8000), clock=clock)
    late.search(["cat"])
    assert given == [pytest.approx(5.0)]
