"""What queries list high is encoded first."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from lightir.cli import main
from lightir.index import Index, IndexWriter
from lightir.pending import DEMAND_TOP, Demand, Queue, WorkOptions, work
from lightir.search import Searcher, SearchOptions
from lightir.types import Document
from pending_documents import FakeEncoder, pending_index


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return pending_index(tmp_path / "index", 60)


def order_of_encoding(folder: Path) -> list[str]:
    with Index.open(folder) as index, Queue.open(folder) as queue:
        keys = queue.claim(index, 100).keys
        found = index.view.store.documents_of(keys)
        return [found[key].doc_id for key in keys]


def test_what_queries_list_high_is_encoded_first(folder: Path) -> None:
    with Index.open(folder) as index, Demand(folder) as demand:
        searcher = Searcher(index, demand=demand)
        searcher.search(["57", "44"], options=SearchOptions(mode="tokens"))
        searcher.hits("57", options=SearchOptions(mode="tokens"))
    stop, encoder = threading.Event(), FakeEncoder()
    encoder.watch = lambda batch: stop.set() if len(encoder.encoded) == 2 else None
    work(folder, encoder, WorkOptions(batch_size=1), stop=stop, progress=False)
    assert encoder.encoded == ["d0057", "d0044", "d0000"]


def test_a_query_asks_for_its_best_documents_alone_and_searchers_without_demand_for_none(folder: Path) -> None:
    with Index.open(folder) as index, Demand(folder) as demand:
        Searcher(index).search(["33"], options=SearchOptions(mode="tokens"))
        best = list(Searcher(index, demand=demand).search(["cat"], 60, SearchOptions(mode="tokens"))["0"].doc_ids)
    assert len(best) == 60
    found = order_of_encoding(folder)
    assert found[:DEMAND_TOP] == sorted(best[:DEMAND_TOP])
    assert found[DEMAND_TOP:] == sorted(best[DEMAND_TOP:])


def test_a_damaged_queue_keeps_nobody_from_searching(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    Queue.open(folder).close()
    (folder / "queue" / "queue.sqlite").write_bytes(b"nonsense" * 1000)
    with Index.open(folder) as index, Demand(folder) as demand:
        for _ in range(2):
            assert Searcher(index, demand=demand).search(["57"], options=SearchOptions(mode="tokens"))["0"].doc_ids == [
                "d0057"
            ]
    (told,) = caplog.messages
    assert "queue.sqlite is damaged" in told
    assert "Remove" in told


def test_documents_that_have_vectors_are_not_asked_for(folder: Path) -> None:
    work(folder, FakeEncoder(), WorkOptions(once=True), progress=False)
    with Index.open(folder) as index, Demand(folder) as demand:
        Searcher(index, demand=demand).search(["57"], options=SearchOptions(mode="tokens"))
        with Queue.open(folder) as queue:
            assert queue._select("SELECT * FROM demand") == []


def test_the_command_line_s_searches_ask_and_its_runs_do_not(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "queries.txt").write_text("31\n")
    run = ["--queries", str(tmp_path / "queries.txt"), "--run", str(tmp_path / "run"), "--mode", "tokens"]
    assert main(["search", str(folder), *run]) == 0
    assert main(["search", str(folder), "42", "--mode", "tokens"]) == 0
    assert order_of_encoding(folder)[:2] == ["d0042", "d0000"]


def test_a_replaced_document_is_asked_for_no_more(folder: Path) -> None:
    with Index.open(folder) as index, Demand(folder) as demand:
        Searcher(index, demand=demand).search(["57"], options=SearchOptions(mode="tokens"))
    with IndexWriter.open(folder) as writer:
        writer.upsert([Document("d0057", "new text")])
    assert order_of_encoding(folder)[-1] == "d0057"
