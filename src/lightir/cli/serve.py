"""Serve an index over HTTP: searches, documents, query vectors, and the embedding APIs of other services.

The service listens on this machine alone unless --host says otherwise, and then requires API keys. It stops on Ctrl-C
and SIGTERM, after the changes that it has accepted.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from lightir.cli.arguments import positive
from lightir.cli.terminal import print_status

HELP = "serve an index over HTTP"
EXAMPLES = """
  lightir serve index
  lightir serve index --port 9000 --read-only
  lightir key keys.json --name app
  lightir serve index --host 0.0.0.0 --keys keys.json --allow-host search.example.org
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("path", metavar="INDEX", help="index folder to serve")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    parser.add_argument(
        "--port", type=int, default=8080, metavar="N", help="port to listen on, 0 for a free one (default %(default)s)"
    )
    parser.add_argument("--read-only", action="store_true", help="refuse all changes")
    access = parser.add_argument_group("access")
    access.add_argument("--keys", metavar="FILE", help="file of API keys, see lightir key (default: no keys)")
    access.add_argument("--without-keys", action="store_true", help="listen on other addresses without keys")
    access.add_argument(
        "--allow-host", action="append", default=[], metavar="NAME", help="further name in the Host header of requests"
    )
    access.add_argument(
        "--allow-origin",
        action="append",
        default=[],
        metavar="URL",
        help="origin of web pages that may use it (CORS)",
    )
    limits = parser.add_argument_group("limits")
    limits.add_argument(
        "--max-body-mb",
        type=positive,
        default=8,
        metavar="N",
        help="maximum MiB of a body (default %(default)s)",
    )
    limits.add_argument(
        "--max-requests", type=positive, default=256, metavar="N", help="maximum requests at once (default %(default)s)"
    )
    limits.add_argument(
        "--max-writes", type=positive, default=64, metavar="N", help="maximum number of waiting changes (default 64)"
    )
    limits.add_argument(
        "--timeout", type=positive, default=30, metavar="S", help="maximum seconds for an answer (default %(default)s)"
    )


def run(args: argparse.Namespace) -> None:
    """Serve until a signal comes."""
    from lightir.errors import MissingExtra
    from lightir.serve.serve_options import ServeOptions

    options = ServeOptions(
        host=args.host,
        port=args.port,
        keys=None if args.keys is None else Path(args.keys),
        without_keys=args.without_keys,
        read_only=args.read_only,
        allow_hosts=tuple(args.allow_host),
        allow_origins=tuple(args.allow_origin),
        max_body_bytes=args.max_body_mb << 20,
        max_requests=args.max_requests,
        max_writes=args.max_writes,
        timeout_s=float(args.timeout),
    )
    try:
        from lightir.serve.server import serve
    except ModuleNotFoundError as error:
        raise MissingExtra(f"serving needs {error.name}: pip install 'lightir[serve]'") from error
    serve(Path(args.path), options, started=lambda address: print_status(f"serving {args.path} at {address}"))
