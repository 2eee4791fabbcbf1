"""Runs the service with uvicorn until a signal stops it."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Callable
from pathlib import Path

import uvicorn
import uvloop
from starlette.types import ASGIApp

from lightir.errors import StorageError
from lightir.serve.api_keys import ApiKeys
from lightir.serve.folder_index import FolderOptions
from lightir.serve.http_app import create_app
from lightir.serve.serve_options import ServeOptions
from lightir.serve.targets import opened

STOP_S = 30
"""Maximum time that requests have to end when the service stops."""


def serve(
    target: Path,
    options: ServeOptions,
    *,
    folder: FolderOptions | None = None,
    started: Callable[[str], None] = lambda address: None,
    say: Callable[[str], None] = lambda message: None,
) -> None:
    """Serve an index or a folder until SIGINT or SIGTERM. Changes that wait are committed before the function returns.

    Args:
        target: index folder, or folder of files.
        options: options and limits.
        folder: how a folder of files is served; None for the defaults.
        started: function that is called with the service's address once it accepts connections.
        say: function that is called with messages about the files of a folder.

    Raises:
        NotFound: there is no such path or model.
        InvalidInput: the path is neither an index nor a folder of files, or options of a folder are given for an index.
        StorageError: the address cannot be listened on.
        FormatError: a file of the index or of keys is damaged.
    """
    keys = None if options.keys is None else ApiKeys.load(options.keys)
    with opened(target, options, folder or FolderOptions(), say=say) as (service, follow):

        def tell(address: str) -> None:
            started(address)
            follow()

        run_app(create_app(service, keys), options, started=tell)


def run_app(app: ASGIApp, options: ServeOptions, *, started: Callable[[str], None], stop_s: int = STOP_S) -> None:
    """Run an app until SIGINT or SIGTERM.

    Args:
        app: the app.
        options: address to listen on.
        started: function that is called with the address once connections are accepted.
        stop_s: maximum time that requests have to end when the service stops.

    Raises:
        StorageError: the address cannot be listened on.
    """
    listening = _listen(options.host, options.port)
    config = uvicorn.Config(
        app,
        http="httptools",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=stop_s,
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(uvicorn.Server(config), listening, started))


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
