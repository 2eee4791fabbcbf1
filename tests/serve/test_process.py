"""The service as a process: what it answered survives a kill, and SIGTERM ends it after what it accepted."""

from __future__ import annotations

import http.client
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from lightir.index import Index
from service_client import send, write_until_it_fails


@pytest.mark.parametrize("seed", range(3))
def test_a_kill_under_writes_loses_nothing_acknowledged(shop: Path, serve: Any, seed: int) -> None:
    rng = random.Random(seed)
    acknowledged: list[dict[str, str]] = [{} for _ in range(4)]
    with serve(shop) as (process, address):
        writers = [
            threading.Thread(target=write_until_it_fails, args=(address, f"w{i}", noted))
            for i, noted in enumerate(acknowledged)
        ]
        for writer in writers:
            writer.start()
        while sum(map(len, acknowledged)) < 20:
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.5))
        process.send_signal(signal.SIGKILL)
        for writer in writers:
            writer.join()
    expected = {doc_id: text for noted in acknowledged for doc_id, text in noted.items()}
    assert len(expected) >= 20
    with Index.open(shop) as index:
        index.verify()
        documents = index.get([*expected])
    assert {doc_id: document.text for doc_id, document in documents.items()} == expected


def test_sigterm_ends_it_after_what_it_accepted(shop: Path, serve: Any) -> None:
    with serve(shop) as (process, address):
        statuses = [send(address, "PUT", f"/v1/documents/n{i}?wait=false", {"text": "x"})[0] for i in range(20)]
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) in (0, 143, -signal.SIGTERM)
    assert statuses == [202] * 20
    with Index.open(shop) as index:
        assert {f"n{i}" for i in range(20)} <= set(index.ids())


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lightir", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_what_cannot_be_served_is_said(shop: Path, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for arguments, words in (
            ([tmp_path / "none"], "there is no index"),
            ([tmp_path / "notes"], "no files whose text can be read"),
            ([shop, "--watch"], "require a folder of files"),
            ([shop, "--port", port], "cannot listen on 127.0.0.1"),
            ([shop, "--port", "70000"], "port"),
            ([shop, "--host", "0.0.0.0"], "no API keys are set"),
            ([shop, "--keys", tmp_path / "none.json"], "there is no file of API keys"),
        ):
            done = run("serve", *arguments)
            assert done.returncode in (1, 2), done.stderr
            assert words in done.stderr
            assert len(done.stderr.strip().splitlines()) == 1


def test_keys_are_made_and_used(shop: Path, tmp_path: Path, serve: Any) -> None:
    file = tmp_path / "keys.json"
    key = run("key", file, "--name", "app").stdout.strip()
    assert run("key", file, "--name", "app").returncode == 1
    with serve(shop, "--keys", str(file)) as (_, address):
        connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=30)
        for headers, status in (({}, 401), ({"authorization": f"Bearer {key}"}, 200)):
            connection.request("GET", "/v1/info", headers=headers)
            answer = connection.getresponse()
            answer.read()
            assert answer.status == status
        connection.close()
    assert run("key", file, "--name", "app", "--remove").returncode == 0
