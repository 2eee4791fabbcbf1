"""The order in which documents are encoded follows the demand of queries."""

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
        documents = index.view.store.documents.of(keys)
        return [documents[key].doc_id for key in keys]


def test_documents_that_queries_list_first_are_encoded_first(folder: Path) -> None:
    with Index.open(folder) as index, Demand(folder) as demand:
        searcher = Searcher(index, demand=demand)
        searcher.search(["57", "44"], options=SearchOptions(mode="tokens"))
        searcher.hits("57", options=SearchOptions(mode="tokens"))
    stop, encoder = threading.Event(), FakeEncoder()
    encoder.watch = lambda batch: stop.set() if len(encoder.encoded) == 2 else None
    work(folder, encoder, WorkOptions(batch_size=1), stop=stop, progress=False)
    assert encoder.encoded == ["d0057", "d0044", "d0000"]


def test_a_query_raises_the_demand_of_its_best_documents_only_and_only_with_demand(folder: Path) -> None:
    with Index.open(folder) as index, Demand(folder) as demand:
        Searcher(index).search(["33"], options=SearchOptions(mode="tokens"))
        best = list(Searcher(index, demand=demand).search(["cat"], 60, SearchOptions(mode="tokens"))["0"].doc_ids)
    assert len(best) == 60
    order = order_of_encoding(folder)
    assert order[:DEMAND_TOP] == sorted(best[:DEMAND_TOP])
    assert order[DEMAND_TOP:] == sorted(best[DEMAND_TOP:])


def test_a_damaged_queue_does_not_stop_searches(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    Queue.open(folder).close()
    (folder / "queue" / "queue.sqlite").write_bytes(b"nonsense" * 1000)
    with Index.open(folder) as index, Demand(folder) as demand:
        for _ in range(2):
            assert Searcher(index, demand=demand).search(["57"], options=SearchOptions(mode="tokens"))["0"].doc_ids == [
                "d0057"
            ]
    (message,) = caplog.messages
    assert "queue.sqlite is damaged" in message
    assert "Remove" in message


def test_encoded_documents_have_no_demand(folder: Path) -> None:
    work(folder, FakeEncoder(), WorkOptions(once=True), progress=False)
    with Index.open(folder) as index, Demand(folder) as demand:
        Searcher(index, demand=demand).search(["57"], options=SearchOptions(mode="tokens"))
        with Queue.open(folder) as queue:
            assert queue._select("SELECT * FROM demand") == []


def test_lightir_search_records_demand_unless_it_writes_a_run(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "queries.txt").write_text("31\n")
    run = ["--queries", str(tmp_path / "queries.txt"), "--run", str(tmp_path / "run"), "--mode", "tokens"]
    assert main(["search", str(folder), *run]) == 0
    assert main(["search", str(folder), "42", "--mode", "tokens"]) == 0
    assert order_of_encoding(folder)[:2] == ["d0042", "d0000"]


def test_a_replaced_document_has_no_demand(folder: Path) -> None:
    with Index.open(folder) as index, Demand(folder) as demand:
        Searcher(index, demand=demand).search(["57"], options=SearchOptions(mode="tokens"))
    with IndexWriter.open(folder) as writer:
        writer.upsert([Document("d0057", "new text")])
    assert order_of_encoding(folder)[-1] == "d0057"
