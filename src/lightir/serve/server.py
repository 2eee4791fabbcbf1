"""Runs the service with uvicorn until a signal stops it."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Callable
from pathlib import Path

import uvicorn
import uvloop

from lightir.errors import InvalidInput, NotFound, StorageError
from lightir.index.store_file import STORE_FILE
from lightir.serve.api_keys import ApiKeys
from lightir.serve.http_app import create_app
from lightir.serve.serve_options import ServeOptions
from lightir.serve.service import SearchService

STOP_S = 30
"""Maximum time that requests have to end when the service stops."""


def serve(target: Path, options: ServeOptions, *, started: Callable[[str], None] = lambda address: None) -> None:
    """Serve an index until SIGINT or SIGTERM. Changes that wait are committed before the function returns.

    Args:
        target: index folder.
        options: options and limits.
        started: function that is called with the service's address once it accepts connections.

    Raises:
        NotFound: the folder is not an index.
        StorageError: the address cannot be listened on.
        FormatError: a file of the index or of keys is damaged.
    """
    keys = None if options.keys is None else ApiKeys.load(options.keys)
    service = SearchService(index_folder(target), options)
    try:
        listening = _listen(options.host, options.port)
        app = create_app(service, keys)
        config = uvicorn.Config(
            app,
            http="httptools",
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=STOP_S,
        )
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run(uvicorn.Server(config), listening, started))
    finally:
        service.close()


def index_folder(target: Path) -> Path:
    """Return the index that a path names.

    Raises:
        NotFound: there is no such path.
        InvalidInput: it is a folder or file of documents.
    """
    if (target / STORE_FILE).is_file():
        return target
    if not target.exists():
        raise NotFound(f"there is no index {target}; create one with: lightir index CORPUS --out {target}")
    raise InvalidInput(
        f"{target} is not an index (no {STORE_FILE}); make one of it first: lightir index {target} --out index"
    )


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.socket(family)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
    except OSError as error:
        raise StorageError(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another address with --host and --port"
        ) from error
    return listening


async def _run(server: uvicorn.Server, listening: socket.socket, started: Callable[[str], None]) -> None:
    running = asyncio.create_task(server.serve([listening]))
    while not server.started and not running.done():
        await asyncio.sleep(0.01)
    if server.started:
        gc.collect()
        gc.freeze()  # what lives as long as the process is not looked at again, which takes longer than a search
        host, port = listening.getsockname()[:2]
        started(f"http://{f'[{host}]' if ':' in host else host}:{port}")
    await running
