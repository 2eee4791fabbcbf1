"""Late search: the documents that are encoded for a query within its time limit, and how they are ranked."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightir.errors import ContractMismatch, InvalidInput
from lightir.index import Index, IndexWriter, build_index, document_shards
from lightir.pending import Queue, WorkOptions, failures_of, work
from lightir.search import LateOptions, LateSearcher, Searcher, SearchOptions
from lightir.types import Document
from pending_documents import POISON, FakeEncoder, documents, pending_index, require_right_vectors, vector
from small_collections import GivenVectors, word_contract

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


def test_the_best_pending_documents_are_encoded_once_and_ranked_by_their_vectors(searcher: Searcher) -> None:
    encoder = FakeEncoder()
    late = LateSearcher(searcher, encoder, LateOptions(m=7, budget_ms=60_000))
    best = list(searcher.search(["the cat 7 runs"], 7, SearchOptions(mode="tokens"))["0"].doc_ids)
    hits, report = late.hits("the cat 7 runs", options=SearchOptions(mode="dense"))
    assert list(report.encoded) == best
    assert (report.left, report.failed, report.parked) == (0, {}, ())
    texts = {document.doc_id: document.text for document in searcher.index.documents(best)}
    scores = {doc_id: float(np.dot(vector(text), QUERY)) for doc_id, text in texts.items()}
    assert [hit.doc_id for hit in hits] == sorted(best, key=lambda doc_id: (-scores[doc_id], doc_id))
    assert all(hit.late for hit in hits)
    assert require_right_vectors(searcher.index) == set(best)

    again, report = late.hits("the cat 7 runs", options=SearchOptions(mode="dense"))
    assert report.encoded == ()
    assert [hit.doc_id for hit in again] == [hit.doc_id for hit in hits]
    assert not any(hit.late for hit in again)
    assert sorted(encoder.encoded) == sorted(best)
    with Index.open(searcher.index.folder) as other:
        assert other.info().pending == 33


@pytest.mark.parametrize("budget_ms", [10, 150, 400, 1000])
def test_a_document_that_would_exceed_the_budget_is_not_encoded(searcher: Searcher, budget_ms: int) -> None:
    clock = Clock()
    encoder = encoder_on(clock, s_a_character=0.004)
    late = LateSearcher(searcher, encoder, LateOptions(m=8, budget_ms=budget_ms), clock=clock)
    for number, query in enumerate(["the cat 3 runs", "cat 11 runs", "12 runs runs", "30 the"]):
        best = searcher.search([query], 8, SearchOptions(mode="tokens"))["0"].doc_ids
        pending = [document for document in searcher.index.documents(best) if document.doc_id not in encoder.encoded]
        start = clock.now
        report = late.encode_for(query)
        spent = clock.now - start
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
    report = LateSearcher(searcher, FakeEncoder(), LateOptions(m=3, budget_ms=60_000)).encode_for("the cat 7 runs")
    assert (len(report.encoded), report.left) == (2, 0)


def test_a_long_text_is_expected_to_cost_only_what_the_model_reads(folder: Path) -> None:
    with IndexWriter.open(folder) as writer:
        writer.upsert([Document("long", "whale " * 100_000), Document("short", "whale")])
    clock = Clock()
    with Index.open(folder) as index:
        encoder = FakeEncoder(watch=lambda batch: setattr(clock, "now", clock.now + 0.1))
        late = LateSearcher(Searcher(index, AnyQuery()), encoder, LateOptions(m=2, budget_ms=1e6), clock=clock)
        late.encode_for("cat 7")
        assert set(late.encode_for("whale").encoded) == {"long", "short"}


def test_documents_claimed_by_a_worker_are_skipped(folder: Path, searcher: Searcher) -> None:
    late = LateSearcher(searcher, FakeEncoder(), LateOptions(m=5, budget_ms=60_000))
    with Queue.open(folder) as queue:
        claimed = queue.claim(searcher.index, 39)
        assert len(claimed.keys) == 39
        report = late.encode_for("39 cat")
    assert report.encoded == ("d0039",)
    assert report.left == 4


def test_vectors_that_cannot_be_committed_are_parked_and_not_encoded_again(folder: Path, searcher: Searcher) -> None:
    encoder = FakeEncoder()
    late = LateSearcher(searcher, encoder, LateOptions(m=3, budget_ms=60_000))
    with IndexWriter.open(folder):
        hits, report = late.hits("cat 7", options=SearchOptions(mode="tokens"))
        assert (report.encoded, len(report.parked)) == ((), 3)
        assert hits
        assert not any(hit.late for hit in hits)
        assert late.encode_for("cat 7").left == 3
    assert len(encoder.encoded) == 3
    worker = FakeEncoder()
    assert work(folder, worker, WorkOptions(once=True), progress=False).committed == 40
    assert not set(worker.encoded) & set(encoder.encoded)


def test_a_document_that_fails_is_recorded_and_stays_searchable(folder: Path) -> None:
    with IndexWriter.open(folder) as writer:
        writer.upsert([Document("bad", f"cat {POISON}")])
    with Index.open(folder) as index:
        late = LateSearcher(Searcher(index, AnyQuery()), FakeEncoder(), LateOptions(m=2, budget_ms=60_000))
        hits, report = late.hits(POISON, options=SearchOptions(mode="tokens"))
        assert [hit.doc_id for hit in hits] == ["bad"]
        assert report.failed == {"bad": "ValueError: cannot read ['bad']"}
        assert [failure.doc_id for failure in failures_of(index.view)] == ["bad"]
        assert late.encode_for(POISON).left == 1


def test_filter_and_exclusions_apply_to_late_encoding(folder: Path) -> None:
    with IndexWriter.open(folder) as writer:
        writer.upsert([Document(f"m{i}", "a marked cat", metadata={"n": i}) for i in range(4)])
    with Index.open(folder) as index:
        late = LateSearcher(Searcher(index, AnyQuery()), FakeEncoder(), LateOptions(m=20, budget_ms=60_000))
        hits, report = late.hits(
            "marked", options=SearchOptions(mode="tokens", filter={"n": {"gte": 2}}, exclude=["m2"])
        )
        assert report.encoded == ("m3",)
        assert [hit.doc_id for hit in hits] == ["m3"]


def test_a_busy_queue_skips_the_encoding_but_not_the_search(folder: Path, searcher: Searcher) -> None:
    Queue.open(folder).close()
    late = LateSearcher(searcher, FakeEncoder(), LateOptions(m=3, budget_ms=20))
    busy = sqlite3.connect(folder / "queue" / "queue.sqlite", isolation_level=None)
    busy.execute("BEGIN IMMEDIATE")
    hits, report = late.hits("cat 7", options=SearchOptions(mode="tokens"))
    assert (report.encoded, report.left, len(hits)) == ((), 3, 10)
    busy.execute("ROLLBACK")
    assert len(late.encode_for("cat 7").encoded) <= 3
    busy.close()


def test_an_index_without_pending_documents_is_searched_without_encoding(tmp_path: Path) -> None:
    folder = pending_index(tmp_path / "index", 0)
    with IndexWriter.open(folder) as writer:
        shard = FakeEncoder().encode(documents(3))
        writer.add(shard.documents, dense=shard.dense, sparse=shard.sparse)
    with Index.open(folder) as index:
        report = LateSearcher(Searcher(index, AnyQuery()), FakeEncoder()).encode_for("cat")
    assert (report.encoded, report.left) == ((), 0)
    assert not (folder / "queue").exists()


def test_bad_options_encoders_and_indexes_are_refused(searcher: Searcher, tmp_path: Path) -> None:
    for options in ({"m": 0}, {"budget_ms": 0}, {"budget_ms": float("nan")}):
        with pytest.raises(InvalidInput, match="both must be above 0"):
            LateOptions(**options)
    with pytest.raises(ContractMismatch, match="attention is 'causal' in the index but 'bidirectional' in the model"):
        LateSearcher(searcher, FakeEncoder(contract=word_contract(attention="bidirectional")))
    build_index(document_shards(documents(3)), tmp_path / "plain", progress=False)
    with Index.open(tmp_path / "plain") as plain, pytest.raises(InvalidInput, match="no model's contract"):
        LateSearcher(Searcher(plain), FakeEncoder())
