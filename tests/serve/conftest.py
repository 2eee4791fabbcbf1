"""Small indexes, and their services in this process or in one of their own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")

from starlette.testclient import TestClient

from lightir.index import Field, IndexOptions, Schema, build_index, document_shards
from lightir.serve.api_keys import ApiKeys
from lightir.serve.http_app import create_app
from lightir.serve.serve_options import ServeOptions
from lightir.serve.service import SearchService
from lightir.types import Document
from small_collections import animal_shard, word_contract, word_table, write_folder

ADDRESS = "http://127.0.0.1"
Connect = Callable[..., contextlib.AbstractContextManager[TestClient]]

KETTLES = [
    Document("kettle-1", "A steel kettle that holds one liter.", "Steel kettle", {"brand": "Norda", "price": 39.5}),
    Document("kettle-2", "A glass kettle with a blue light.", "Glass kettle", {"brand": "Vidra", "price": 59}),
    Document("shop/pot", "A pot of steel. " * 30 + "It is no kettle.", "Pot", {"brand": "Norda", "price": 20}),
    Document("ünï", "Кофе 咖啡 coffee", "", {}),
]


def build_shop(folder: Path) -> Path:
    """Build a BM25 index of four documents with typed fields in a folder."""
    schema = Schema({"brand": Field("keyword"), "price": Field("number")})
    build_index(document_shards(KETTLES), folder / "shop", options=IndexOptions(schema=schema), progress=False)
    return folder / "shop"


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A BM25 index of four documents with typed fields."""
    return build_shop(tmp_path)


@pytest.fixture(scope="session")
def make_shop() -> Callable[[Path], Path]:
    """Return a function that builds that index in a folder."""
    return build_shop


@pytest.fixture
def animals(tmp_path: Path) -> Path:
    """An index with dense and sparse vectors and a query encoder."""
    encoder = write_folder(tmp_path / "q", word_contract(), {"": {"embeddings": word_table()}})
    build_index([animal_shard()], tmp_path / "animals", query_encoder=encoder, progress=False)
    return tmp_path / "animals"


@contextlib.contextmanager
def connected(folder: Path, *, key: str | None = None, **options: Any) -> Iterator[TestClient]:
    """Serve an index in this process."""
    made = ServeOptions(**options)
    service = SearchService(folder, made)
    keys = None if made.keys is None else ApiKeys.load(made.keys)
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    with TestClient(
        create_app(service, keys), base_url=ADDRESS, headers=headers, raise_server_exceptions=False
    ) as client:
        yield client


@pytest.fixture
def connect() -> Connect:
    """Return a function that serves an index in this process."""
    return connected


@pytest.fixture(scope="module")
def connect_module() -> Connect:
    """Return a function that serves an index in this process for all tests of a module."""
    return connected


@contextlib.contextmanager
def served(folder: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Serve an index in another process; yield the process and its address."""
    command = [sys.executable, "-m", "lightir", "serve", str(folder), "--port", "0", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert " at http://" in line, line
        yield process, line.rpartition(" at ")[2].strip()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGKILL)
        process.communicate()


@pytest.fixture(scope="module")
def serve_module() -> Callable[..., contextlib.AbstractContextManager[tuple[subprocess.Popen[str], str]]]:
    """Return a function that serves an index in another process for all tests of a module."""
    return served


@pytest.fixture
def serve() -> Callable[..., contextlib.AbstractContextManager[tuple[subprocess.Popen[str], str]]]:
    """Return a function that serves an index in another process."""
    return served
