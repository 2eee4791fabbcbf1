"""Workers: what they commit, drop, park and record as failed, and what survives kill -9."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import subprocess
import sys
import threading
import time
import types
from pathlib import Path
from typing import Any

import pytest

from lightir.errors import ContractMismatch, InvalidInput
from lightir.index import Index, IndexWriter, build_index, document_shards
from lightir.pending import Queue, WorkOptions, WorkReport, deliver, encode_documents, failures_of, work, worker_loop
from lightir.search import Searcher, SearchOptions
from lightir.types import Document
from pending_documents import POISON, FakeEncoder, documents, pending_index, require_right_vectors
from small_collections import word_contract

PROGRAM = Path(__file__).with_name("killed_worker.py")


def run_program(*arguments: object) -> dict[str, Any]:
    command = [sys.executable, PROGRAM, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(PROGRAM.parents[1])}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def test_kill_9_loses_and_repeats_no_committed_document(tmp_path: Path) -> None:
    report = run_program("kills", tmp_path / "index", 40, 1)
    assert report["committed"] > 5, "every worker was killed before its first commit: the test is blind"
    assert report["lost"] > 0, "no worker was killed between encoding and committing: the test is blind"


def test_kill_9_loses_no_parked_vectors(tmp_path: Path) -> None:
    report = run_program("parked_kills", tmp_path / "index", 8, 1)
    assert report["parked"] > 0, "every worker was killed before it parked anything: the test is blind"
    assert report["killed_in_delivery"] > 0, "no worker was killed while it committed parked batches: the test is blind"


def test_a_worker_removes_what_a_killed_one_left_of_a_batch_that_it_was_removing(tmp_path: Path) -> None:
    folder = pending_index(tmp_path / "index", 3)
    left = folder / "queue" / "parked" / f".parked-{'0' * 16}.new-removed"
    (left / "vectors").mkdir(parents=True)
    work(folder, FakeEncoder(), WorkOptions(once=True), progress=False)
    assert not left.exists()


def test_workers_side_by_side_encode_each_document_once(tmp_path: Path) -> None:
    assert run_program("side_by_side", tmp_path / "index", 3, 100)["workers"] > 1


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return pending_index(tmp_path / "index", 40)


def once(folder: Path, encoder: FakeEncoder, *, stop: threading.Event | None = None, **options: Any) -> WorkReport:
    return work(folder, encoder, WorkOptions(once=True, **options), stop=stop, progress=False)


def test_all_pending_documents_get_their_vectors_and_nothing_else_changes(folder: Path) -> None:
    with Index.open(folder) as index:
        before = Searcher(index).search(["cat 7 runs"], 50, SearchOptions(mode="tokens"))["0"]
        assert (index.info().encoded, index.info().pending, failures_of(index.view)) == (0, 40, [])
    encoder = FakeEncoder()
    report = once(folder, encoder, batch_size=16, encode_size=5)
    assert (report.committed, report.dropped, report.failed, report.pending) == (40, 0, {}, 0)
    assert sorted(encoder.encoded) == [document.doc_id for document in documents(40)]
    with Index.open(folder) as index:
        assert len(require_right_vectors(index)) == 40
        assert (index.info().encoded, index.info().pending) == (40, 0)
        after = Searcher(index).search(["cat 7 runs"], 50, SearchOptions(mode="tokens"))["0"]
        assert list(after.doc_ids) == list(before.doc_ids)
        assert after.scores.tolist() == before.scores.tolist()
    assert once(folder, encoder).committed == 0
    assert len(encoder.encoded) == 40


@pytest.mark.parametrize("sizes", [{"batch_size": 0}, {"encode_size": 0}, {"batch_size": -1, "encode_size": 1}])
def test_sizes_below_one_are_refused(folder: Path, sizes: dict[str, int]) -> None:
    with pytest.raises(InvalidInput, match="both must be at least 1"):
        once(folder, FakeEncoder(), **sizes)


def test_one_document_at_a_time_is_enough(folder: Path) -> None:
    assert once(folder, FakeEncoder(), batch_size=1, encode_size=1).committed == 40


def test_texts_of_like_lengths_go_to_the_encoder_together(folder: Path) -> None:
    pieces: list[list[int]] = []
    watching = FakeEncoder(watch=lambda batch: pieces.append([len(document.text) for document in batch]))
    once(folder, watching, batch_size=40, encode_size=10)
    assert [max(after) <= min(before) for before, after in itertools.pairwise(pieces[1:])] == [True] * 2
    assert all(lengths == sorted(lengths, reverse=True) for lengths in pieces)


def test_a_text_that_is_changed_or_deleted_while_it_is_encoded_gets_no_old_vectors(folder: Path) -> None:
    changed = threading.Event()

    def change(batch: Any) -> None:
        if not changed.is_set():
            changed.set()
            with IndexWriter.open(folder) as writer:
                writer.upsert([Document("d0003", "the new text")])
                writer.delete(["d0004"])

    encoder = FakeEncoder(watch=change)
    report = once(folder, encoder)
    assert (report.committed, report.dropped) == (39, 2)
    assert encoder.encoded.count("d0003") == 2
    with Index.open(folder) as index:
        assert len(require_right_vectors(index)) == len(index) == 39


def test_vectors_that_another_writer_committed_are_not_committed_again(folder: Path) -> None:
    def bring(batch: Any) -> None:
        with IndexWriter.open(folder) as writer:
            document = next(document for document in batch if document.doc_id == "d0000")
            shard = FakeEncoder().encode([document])
            writer.set_vectors([document], dense=shard.dense, sparse=shard.sparse)

    report = once(folder, FakeEncoder(watch=bring), batch_size=64, encode_size=64)
    assert (report.committed, report.dropped, report.pending) == (39, 1, 0)


def test_a_document_that_fails_is_recorded_with_its_error_and_stays_searchable(folder: Path) -> None:
    with IndexWriter.open(folder) as writer:
        writer.upsert([Document("d0011", f"a cat with {POISON}"), Document("d0012", f"the {POISON} of cats")])
    report = once(folder, FakeEncoder())
    assert report.committed == 38
    assert report.failed == {doc_id: f"ValueError: cannot read ['{doc_id}']" for doc_id in ("d0011", "d0012")}
    with Index.open(folder) as index:
        assert (index.info().encoded, index.info().pending) == (38, 2)
        assert {failure.doc_id: failure.error for failure in failures_of(index.view)} == report.failed
        assert set(Searcher(index).search([POISON], options=SearchOptions(mode="tokens"))["0"].doc_ids) == {
            "d0011",
            "d0012",
        }
    again = FakeEncoder()
    assert once(folder, again).failed == {}
    assert again.encoded == [], "what failed was tried again without being asked"
    with IndexWriter.open(folder) as writer:
        writer.upsert([Document("d0011", "a healthy cat")])
    assert once(folder, again).committed == 1
    with Index.open(folder) as index:
        assert [failure.doc_id for failure in failures_of(index.view)] == ["d0012"]
    report = once(folder, FakeEncoder(), retry_failed=True)
    assert list(report.failed) == ["d0012"]


def test_a_worker_whose_documents_all_fail_ends_with_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_loop, "MOST_FAILURES_IN_A_ROW", 8)

    def fail(batch: Any) -> None:
        raise RuntimeError("no memory left on the device")

    with pytest.raises(InvalidInput, match=r"8 documents failed in a row, .* no memory left on the device"):
        once(folder, FakeEncoder(watch=fail), encode_size=4)
    with Index.open(folder) as index:
        assert len(failures_of(index.view)) == 8 < index.info().pending
    assert once(folder, FakeEncoder(), retry_failed=True).pending == 0


def test_another_model_is_refused_with_both_values(folder: Path, tmp_path: Path) -> None:
    other = word_contract(attention="bidirectional")
    with pytest.raises(ContractMismatch, match="attention is 'causal' in the index but 'bidirectional' in the model"):
        once(folder, FakeEncoder(contract=other))
    build_index(document_shards(documents(3)), tmp_path / "plain", progress=False)
    with pytest.raises(InvalidInput, match="no model's contract"):
        once(tmp_path / "plain", FakeEncoder())


def test_an_index_that_replaces_the_worker_s_index_gets_none_of_its_vectors(folder: Path) -> None:
    other = word_contract(attention="bidirectional")

    def replace(batch: Any) -> None:
        IndexWriter.create(folder, contract=other, overwrite=True).close()

    with pytest.raises(ContractMismatch, match="attention"):
        once(folder, FakeEncoder(watch=replace))


def test_a_stopped_worker_commits_what_is_encoded_and_releases_the_rest(folder: Path) -> None:
    stop = threading.Event()
    encoder = FakeEncoder(watch=lambda batch: stop.set())
    report = once(folder, encoder, encode_size=6, batch_size=30, stop=stop)
    assert (report.committed, report.pending, len(encoder.encoded)) == (6, 34, 6)
    assert once(folder, FakeEncoder()).committed == 34


def test_idle_time_is_not_counted_as_work(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            now[0] += 1000.0
            self.set()
            return True

    def pass_time(batch: Any) -> None:
        now[0] += 2.0

    clock = types.SimpleNamespace(perf_counter=lambda: now[0], monotonic=time.monotonic)
    monkeypatch.setattr(worker_loop, "time", clock)
    options = WorkOptions(batch_size=8, encode_size=8)
    report = work(folder, FakeEncoder(watch=pass_time), options, stop=Stop(), progress=False)
    assert (report.committed, report.seconds, report.documents_per_s) == (40, 10.0, 4.0)


def test_vectors_are_parked_during_a_long_change_and_not_encoded_twice(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_loop, "LOCK_WAIT_S", 0.0)
    stop = threading.Event()
    encoder = FakeEncoder(watch=lambda batch: stop.set())
    with IndexWriter.open(folder) as long:
        assert once(folder, encoder, encode_size=6, stop=stop).committed == 0
        with Queue.open(folder) as queue:
            assert len(queue.parked()) == 1
        long.upsert([Document(encoder.encoded[0], "it has changed meanwhile")])
    later = FakeEncoder()
    report = once(folder, later)
    assert (report.committed, report.dropped, report.pending) == (40, 1, 0)
    assert set(later.encoded) & set(encoder.encoded) == {encoder.encoded[0]}
    with Index.open(folder) as index:
        assert len(require_right_vectors(index)) == 40


def test_parked_vectors_are_committed_without_new_ones(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_loop, "LOCK_WAIT_S", 0.0)
    stop = threading.Event()
    with IndexWriter.open(folder):
        once(folder, FakeEncoder(watch=lambda batch: stop.set()), encode_size=40, batch_size=40, stop=stop)
    assert once(folder, later := FakeEncoder()).committed == 40
    assert later.encoded == []


def test_a_model_of_one_branch_fills_an_index_of_one_branch(tmp_path: Path) -> None:
    for name, contract in (("dense", word_contract(sparse=None)), ("sparse", word_contract(dense=None))):

        class OneBranch(FakeEncoder):
            def encode(self, documents: Any, name: str = name) -> Any:
                return dataclasses.replace(super().encode(documents), **{{"dense": "sparse"}.get(name, "dense"): None})

        with IndexWriter.create(tmp_path / name, contract=contract) as writer:
            writer.add(documents(5))
        monkey = OneBranch(contract=contract)
        with (
            IndexWriter.open(tmp_path / name),
            Queue.open(tmp_path / name) as queue,
            Index.open(tmp_path / name) as index,
        ):
            claim = queue.claim(index, 2)
            encoded = encode_documents(monkey, index.view.store.documents.of(claim.keys))
            outcome = deliver(tmp_path / name, queue, contract, encoded, wait_s=0.0)
            assert outcome.parked == ["d0000", "d0001"]
        assert once(tmp_path / name, monkey).committed == 5
        with Index.open(tmp_path / name) as index:
            assert index.branches == (name, "tokens")
            index.verify()


@pytest.mark.parametrize("lacking", ["dense", "sparse"])
def test_an_encoder_that_lacks_a_branch_of_its_model_is_refused(folder: Path, lacking: str) -> None:
    """Its vectors would fix the branches of the index, which later vectors could not change."""

    class Lacking(FakeEncoder):
        def encode(self, documents: Any) -> Any:
            return dataclasses.replace(super().encode(documents), **{lacking: None})

    with pytest.raises(InvalidInput, match=r"vectors have \(dense, sparse\) = .*, but the model's have \(True, True\)"):
        once(folder, Lacking())
    assert once(folder, FakeEncoder()).committed == 40
