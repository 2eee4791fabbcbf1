"""Serve an index or a folder of files to agents, by the Model Context Protocol (MCP).

The tools search, get and list_filters return passages with ids and places to cite, within a budget of tokens. An agent
starts this command and talks to it over stdin and stdout. With --http it listens at an address instead, for several
agents, at the path /mcp.

A folder is indexed by BM25 at once and encoded while it is searched, as by lightir serve. A folder of shards (lightir
split) is searched as one index.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from lightir.cli.serve import (
    add_access,
    add_address,
    add_folder,
    add_request_limits,
    folder_options,
    service_options,
)
from lightir.cli.terminal import print_status, printable

HELP = "serve an index or a folder of files to agents (MCP)"
EXAMPLES = """
  lightir mcp index
  lightir mcp handbook/ --watch
  lightir mcp index --http --port 8081
  claude mcp add handbook -- lightir mcp /home/me/handbook --watch
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("path", metavar="PATH", help="index folder, folder of shards, or folder of files to serve")
    add_folder(parser.add_argument_group("folder of files"))
    http = parser.add_argument_group("streamable HTTP")
    http.add_argument("--http", action="store_true", help="listen at an address (default: stdin and stdout)")
    add_address(http, port=8081)
    add_access(http)
    add_request_limits(http)


def run(args: argparse.Namespace) -> None:
    """Serve until stdin ends or a signal comes."""
    from lightir.errors import MissingExtra

    try:
        from lightir.serve.mcp_server import serve_http, serve_stdio
    except ModuleNotFoundError as error:
        raise MissingExtra(f"MCP needs {error.name}: pip install 'lightir[mcp]'") from error
    target, options, folder = Path(args.path), service_options(args), folder_options(args)

    def say(message: str) -> None:
        print_status(printable(message))

    if args.http:
        serve_http(
            target, options, folder, started=lambda address: print_status(f"serving {args.path} at {address}"), say=say
        )
    else:
        serve_stdio(target, options, folder, say=say)
