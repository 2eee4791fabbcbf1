"""A server with lightir's tools and those that the conformance suite of MCP calls. A script; it takes an index."""

from __future__ import annotations

import asyncio
import base64
import sys
from pathlib import Path
from typing import Any

import mcp.types as types
from mcp.server.mcpserver import Context, MCPServer
from pydantic import BaseModel, Field

from lightir.serve.mcp_server import create_server, guarded_app
from lightir.serve.serve_options import ServeOptions
from lightir.serve.server import run_app
from lightir.serve.service import SearchService

PIXEL = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()
SOUND = base64.b64encode(b"RIFF\x24\0\0\0WAVE").decode()


class Contact(BaseModel):
    username: str = Field(description="User's response")
    email: str = Field(description="User's email address")


def text(value: str) -> types.TextContent:
    return types.TextContent(type="text", text=value)


def picture() -> types.ImageContent:
    return types.ImageContent(type="image", data=PIXEL, mime_type="image/png")


def resource(uri: str, kind: str, value: str) -> types.EmbeddedResource:
    return types.EmbeddedResource(
        type="resource", resource=types.TextResourceContents(uri=uri, mime_type=kind, text=value)
    )


def add_contents(server: MCPServer[Any]) -> None:
    """Add the tools that return content of each kind."""

    @server.tool()
    def test_simple_text() -> str:
        """A tool of the conformance suite."""
        return "This is a simple text response for testing."

    @server.tool()
    def test_image_content() -> list[types.ImageContent]:
        """A tool of the conformance suite."""
        return [picture()]

    @server.tool()
    def test_audio_content() -> list[types.AudioContent]:
        """A tool of the conformance suite."""
        return [types.AudioContent(type="audio", data=SOUND, mime_type="audio/wav")]

    @server.tool()
    def test_embedded_resource() -> list[types.EmbeddedResource]:
        """A tool of the conformance suite."""
        return [resource("test://embedded-resource", "text/plain", "This is an embedded resource content.")]

    @server.tool()
    def test_multiple_content_types() -> list[types.ContentBlock]:
        """A tool of the conformance suite."""
        kinds = resource("test://mixed-content-resource", "application/json", '{"test":"data","value":123}')
        return [text("Multiple content types test:"), picture(), kinds]

    @server.tool()
    def test_error_handling() -> str:
        """A tool of the conformance suite."""
        raise ValueError("This tool intentionally returns an error for testing")


def add_messages(server: MCPServer[Any]) -> None:
    """Add the tools that send messages while they run, and the request that some clients send before."""

    async def set_level(context: Any, params: types.SetLevelRequestParams) -> types.EmptyResult:
        return types.EmptyResult()

    server._lowlevel_server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, set_level)

    @server.tool()
    async def test_tool_with_logging(context: Context[Any, Any]) -> str:
        """A tool of the conformance suite."""
        for message in ("Tool execution started", "Tool processing data", "Tool execution completed"):
            await context.info(message)
            await asyncio.sleep(0.05)
        return "logged"

    @server.tool()
    async def test_tool_with_progress(context: Context[Any, Any]) -> str:
        """A tool of the conformance suite."""
        for done in (0, 50, 100):
            await context.report_progress(done, 100)
            await asyncio.sleep(0.05)
        return "done"

    @server.tool()
    async def test_sampling(prompt: str, context: Context[Any, Any]) -> str:
        """A tool of the conformance suite."""
        asked = [types.SamplingMessage(role="user", content=text(prompt))]
        answer = await context.session.create_message(
            messages=asked, max_tokens=100, related_request_id=context.request_id
        )
        return f"LLM response: {answer.content}"

    @server.tool()
    async def test_elicitation(message: str, context: Context[Any, Any]) -> str:
        """A tool of the conformance suite."""
        answer = await context.elicit(message, Contact)
        return f"User response: {answer}"


def main(index: Path) -> None:
    """Serve until a signal comes."""
    options = ServeOptions(port=0)
    service = SearchService(index, options)
    server = create_server(service)
    add_contents(server)
    add_messages(server)

    def tell(address: str) -> None:
        print(f"{address}/mcp", flush=True)

    run_app(guarded_app(server, service, None), options, started=tell)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
