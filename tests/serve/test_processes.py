"""A service of several processes: it answers as one, and survives the end of any of them."""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from lightir.errors import InvalidInput, StorageError
from lightir.index import Field, Index, IndexOptions, Schema, build_index, document_shards
from lightir.serve.listening import listen_together
from lightir.serve.member import CommitCounter, Member
from lightir.serve.request_gate import is_forwarded
from lightir.serve.serve_options import ServeOptions
from lightir.types import Document
from service_client import send, write_until_it_fails

PROCESSES = 2


def ids_of(process: subprocess.Popen[str]) -> list[int]:
    """Return the ids of the processes of a service as it says them, the one that commits changes first."""
    assert process.stderr is not None
    line = process.stderr.readline()
    assert "commits changes" in line, line
    return [int(number) for number in re.findall(r"\d+", line)]


def is_running(pid: int) -> bool:
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2][:4]
    except OSError:
        return False


def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    for _ in range(600):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("it does not come true")


def retried(address: str, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """Send a request until it is answered and not refused, as a client does that knows Retry-After."""
    for _ in range(100):
        try:
            status, answer = send(address, method, path, body)
        except (OSError, http.client.HTTPException):
            continue
        if status not in (429, 503):
            return status, answer
        time.sleep(0.1)
    raise AssertionError(f"{method} {path} is refused")


def ids_found(address: str, query: str) -> list[str]:
    return sorted(hit["doc_id"] for hit in send(address, "POST", "/v1/search", {"query": query, "k": 100})[1]["hits"])


@pytest.fixture
def service(shop: Path, serve: Any) -> Iterator[tuple[subprocess.Popen[str], str, list[int]]]:
    """A service of several processes: the one that started them, the address, and their ids."""
    with serve(shop, "--processes", str(PROCESSES)) as (process, address):
        yield process, address, ids_of(process)


def metrics_of(address: str) -> dict[str, float]:
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=30)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    connection.close()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}


def test_every_process_finds_what_any_has_acknowledged(service: Any) -> None:
    """Each request has a connection of its own, which the system gives to any process."""
    _, address, _ = service
    for number in range(12):
        status, job = send(address, "PUT", f"/v1/documents/z{number}", {"text": "zebra"})
        assert (status, job["state"], job["id"]) == (200, "done", number + 1)
        assert ids_found(address, "zebra") == sorted(f"z{i}" for i in range(number + 1))
    for number in range(12):
        assert send(address, "GET", f"/v1/jobs/{number + 1}", None)[1]["documents"] == 1
    lines = b"".join(b'{"doc_id": "b%d", "text": "bison"}\n' % i for i in range(1200))
    for _ in range(4):
        assert send(address, "POST", "/v1/bulk", lines, "application/x-ndjson") == (200, {"documents": 1200})
        assert send(address, "POST", "/v1/list", {"limit": 1})[1]["total"] == 4 + 12 + 1200
    assert send(address, "POST", "/v1/delete", {"doc_ids": ["z1", "none"]})[1]["documents"] == 1
    for _ in range(6):
        assert "z1" not in ids_found(address, "zebra")
        status, problem = send(address, "PUT", "/v1/documents/x", {"text": "x", "metadata": {"price": "much"}})
        assert status == 400
        assert "price" in problem["detail"]
        assert send(address, "PATCH", "/v1/documents/none", {"metadata": {"price": 1}})[0] == 404
        assert send(address, "POST", "/v1/bulk", b"{}\n", "application/x-ndjson")[1]["committed"] == 0
        assert send(address, "GET", "/v1/jobs/9999", None)[0] == 404
    counted = metrics_of(address)
    search = 'lightir_request_seconds_count{method="POST",route="/v1/search",status="200"}'
    assert counted[search] == 12 + 6  # of all processes
    assert counted["lightir_documents"] == 4 + 11 + 1200
    assert sum(value for name, value in counted.items() if 'count{method="PUT",route="forwarded"' in name) > 0


def test_a_killed_process_is_started_again(service: Any) -> None:
    process, address, pids = service
    for killed in (pids[0], pids[1]):
        os.kill(killed, signal.SIGKILL)
        line = process.stderr.readline()
        assert f"process {killed} was ended by SIGKILL and is started again" in line
        for i in range(6):
            assert retried(address, "PUT", f"/v1/documents/k{killed}-{i}", {"text": "koala"})[0] == 200
        assert re.search(r"process \d+ accepts connections", process.stderr.readline())
    assert len(ids_found(address, "koala")) == 12
    assert send(address, "POST", "/v1/list", {"limit": 1})[1]["total"] == 4 + 12
    assert process.poll() is None


@pytest.mark.parametrize("victim", [0, 1])
def test_a_kill_of_a_process_under_writes_loses_nothing_acknowledged(shop: Path, service: Any, victim: int) -> None:
    process, address, pids = service
    acknowledged: list[dict[str, str]] = [{} for _ in range(6)]
    writers = [
        threading.Thread(target=write_until_it_fails, args=(address, f"w{i}", noted))
        for i, noted in enumerate(acknowledged)
    ]
    for writer in writers:
        writer.start()
    until(lambda: sum(map(len, acknowledged)) >= 30)
    os.kill(pids[victim], signal.SIGKILL)
    assert "SIGKILL" in process.stderr.readline()
    n_before = sum(map(len, acknowledged))
    if any(writer.is_alive() for writer in writers):
        until(lambda: sum(map(len, acknowledged)) > n_before + 10 or not any(w.is_alive() for w in writers))
    process.send_signal(signal.SIGTERM)
    process.wait(timeout=60)
    for writer in writers:
        writer.join()
    expected = {doc_id: text for noted in acknowledged for doc_id, text in noted.items()}
    assert len(expected) >= 30
    with Index.open(shop) as index:
        index.verify()
        documents = index.get([*expected])
    assert {doc_id: document.text for doc_id, document in documents.items()} == expected


def test_sigterm_ends_all_after_what_they_accepted(shop: Path, service: Any) -> None:
    process, address, pids = service
    statuses = [send(address, "PUT", f"/v1/documents/n{i}?wait=false", {"text": "x"})[0] for i in range(20)]
    assert statuses == [202] * 20
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 143
    assert not any(map(is_running, pids))
    with Index.open(shop) as index:
        assert {f"n{i}" for i in range(20)} <= set(index.ids())


def test_they_end_with_the_process_that_started_them(service: Any) -> None:
    process, _, pids = service
    process.send_signal(signal.SIGKILL)
    process.wait()
    until(lambda: not any(map(is_running, pids)))


def test_all_move_to_an_index_that_replaces_theirs(shop: Path, service: Any) -> None:
    _, address, _ = service
    options = IndexOptions(schema=Schema({"brand": Field("keyword")}))
    documents = [Document("other", "A teapot.", "", {"brand": "x"})]
    build_index(document_shards(documents), shop, options=options, overwrite=True, progress=False)
    until(lambda: all(ids_found(address, "teapot") == ["other"] for _ in range(8)))
    assert send(address, "PUT", "/v1/documents/second", {"text": "teapot"})[0] == 200
    assert all(ids_found(address, "teapot") == ["other", "second"] for _ in range(8))


def test_what_several_processes_cannot_serve_is_said(tmp_path: Path, shop: Path, serve: Any) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(StorageError, match="in use"):
            listen_together("127.0.0.1", taken.getsockname()[1], 2)
    with pytest.raises(AssertionError, match="there is no index"), serve(tmp_path / "none", "--processes", "2"):
        pass
    with pytest.raises(InvalidInput, match="processes is 1000"):
        ServeOptions(processes=1000)


def test_changes_jobs_and_metrics_are_forwarded() -> None:
    forwarded = [("PUT", "/v1/documents/x"), ("POST", "/v1/bulk"), ("GET", "/v1/jobs/3"), ("GET", "/metrics")]
    own = [("GET", "/v1/documents/x"), ("POST", "/v1/search"), ("GET", "/ready"), ("POST", "/v1/get"), ("GET", "/")]
    assert [is_forwarded(*request) for request in forwarded] == [True] * 4
    assert [is_forwarded(*request) for request in own] == [False] * 5


def test_commits_are_counted_for_all(tmp_path: Path) -> None:
    member = Member(tmp_path, 0)
    member.prepare()
    counters = [CommitCounter(member.counter_path) for _ in range(2)]
    for number in (1, 2, 3):
        counters[0].increase()
        assert [counter.value for counter in counters] == [number] * 2
