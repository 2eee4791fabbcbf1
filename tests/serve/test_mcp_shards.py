"""The tools of agents over shards answer as over the index that was split."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp")

from mcp import Client, StdioServerParameters
from pydantic import BaseModel

from lightir.errors import InvalidInput, NotFound
from lightir.index.splitting import ShardedManifest, split_index
from lightir.search.shard_set import LocalShards, ShardsMissing
from lightir.serve.agent_tools import AgentTools
from lightir.serve.mcp_server import create_server
from lightir.serve.serve_options import ServeOptions
from lightir.serve.service import SearchService
from lightir.serve.sharded_service import ShardedService
from sharded_indexes import Pickled, build_random

OPTIONS = ServeOptions(read_only=True)


@pytest.fixture(scope="module", params=["pending", "words in passages"])
def manifest(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ShardedManifest:
    folder = tmp_path_factory.mktemp("shards")
    pending = request.param == "pending"
    build_random(folder / "index", 1, 60, model=pending, encoded=0.8, long=not pending)
    return split_index(folder / "index", folder / "shards", 3, progress=False)


@contextlib.contextmanager
def tools_of(manifest: ShardedManifest, shards: LocalShards) -> Iterator[tuple[AgentTools, AgentTools]]:
    """Yield the tools of the index and of its shards."""
    one = SearchService(manifest.folder.with_name("index"), OPTIONS)
    sharded = ShardedService(manifest, shards, OPTIONS)
    with contextlib.closing(one), contextlib.closing(shards), contextlib.closing(sharded):
        yield AgentTools(one), AgentTools(sharded)


def test_answers_are_those_of_one_index(manifest: ShardedManifest) -> None:
    with tools_of(manifest, LocalShards.open(manifest)) as (one, sharded):
        results: list[BaseModel] = []
        for query, limit, budget, wanted in itertools.product(
            ("the cat and the dog", "sleeps brand:a", "xyz"), (1, 5, 50), (200, 5000), (None, {"n": {"gte": 2}})
        ):
            results.append(one.search(query, limit, budget, wanted))
            assert sharded.search(query, limit, budget, wanted) == results[-1]
        for field, n in itertools.product((None, "n", "brand", "ean"), (1, 10)):
            results.append(one.list_filters(field, n))
            assert sharded.list_filters(field, n) == results[-1]
        assert sum(len(getattr(answer, "results", [])) for answer in results) > 100  # there was something to compare
        for doc_id, start in itertools.product(("d-2", "d-7", "D-30"), (0, 3)):
            expected: Any
            try:
                expected = one.get(doc_id, start, 200)
            except (InvalidInput, NotFound) as error:
                with pytest.raises(type(error)):
                    sharded.get(doc_id, start, 200)
                continue
            assert sharded.get(doc_id, start, 200) == expected


def test_a_field_without_a_type_is_refused(manifest: ShardedManifest) -> None:
    with tools_of(manifest, LocalShards.open(manifest)) as (_, sharded), pytest.raises(InvalidInput, match="no type"):
        sharded.list_filters("none", 10)


def test_without_a_shard_the_agent_gets_its_number(manifest: ShardedManifest) -> None:
    shards = Pickled.open(manifest)
    with tools_of(manifest, shards) as (_, sharded):
        shards.silent = frozenset([1])
        with pytest.raises(ShardsMissing, match="do not answer: 1"):
            sharded.search("cat", 5, 2000, None)


def test_a_client_is_served_from_shards(manifest: ShardedManifest) -> None:
    async def run() -> tuple[Any, Any]:
        command = StdioServerParameters(command=sys.executable, args=["-m", "lightir", "mcp", str(manifest.folder)])
        async with Client(command) as client:
            over_stdio = await client.call_tool("search", {"query": "cat dog"})
        one = SearchService(manifest.folder.with_name("index"), OPTIONS)
        with contextlib.closing(one):
            async with Client(create_server(one)) as client:
                return over_stdio, await client.call_tool("search", {"query": "cat dog"})

    over_stdio, expected = asyncio.run(run())
    assert json.loads(over_stdio.content[0].text)["results"]
    assert over_stdio.structured_content == expected.structured_content


def test_options_of_a_folder_of_files_are_refused(manifest: ShardedManifest, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "lightir", "mcp", str(manifest.folder), "--watch"]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert "require a folder of files" in refused.stderr
