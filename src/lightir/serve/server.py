"""Runs the service with uvicorn until a signal stops it."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

import uvicorn
import uvloop
from fastapi import FastAPI
from starlette.types import ASGIApp

from lightir.errors import InvalidInput
from lightir.index.splitting import is_sharded
from lightir.serve.api_keys import ApiKeys
from lightir.serve.connection import connections
from lightir.serve.folder_index import FolderOptions
from lightir.serve.http_app import create_app
from lightir.serve.listening import address_of, listen
from lightir.serve.member import Member
from lightir.serve.process_group import Processes
from lightir.serve.ray_shards import RayServing
from lightir.serve.serve_options import ServeOptions
from lightir.serve.targets import opened, opened_shards, refuse_folder_options

STOP_S = 30
"""Maximum time that requests have to end when the service stops."""


def serve(
    target: Path,
    options: ServeOptions,
    *,
    folder: FolderOptions | None = None,
    cluster: RayServing | None = None,
    started: Callable[[str], None] = lambda address: None,
    say: Callable[[str], None] = lambda message: None,
) -> None:
    """Serve an index, its shards, or a folder until SIGINT or SIGTERM.

    Changes that wait are committed before the function returns.

    Args:
        target: index folder, folder of shards, or folder of files.
        options: options and limits.
        folder: how a folder of files is served; None for the defaults.
        cluster: cluster that shards are served from; None for this process.
        started: function that is called with the service's address once it accepts connections.
        say: function that is called with messages about the files of a folder.

    Raises:
        NotFound: there is no such path or model.
        InvalidInput: the path is neither an index nor a folder of files, or options of a folder are given for an index.
        StorageError: the address cannot be listened on.
        FormatError: a file of the index or of keys is damaged.
        MissingExtra: Ray is not installed.
        LightirError: a shard does not start on the cluster.
    """
    if cluster is not None and not is_sharded(target):
        raise InvalidInput(
            f"{target} is not split into shards, which a cluster serves; split an index with: "
            "lightir split INDEX --shards 2 --out FOLDER"
        )
    if options.processes > 1:
        Processes(target, options, folder or FolderOptions(), started, say).run()
        return
    keys = None if options.keys is None else ApiKeys.load(options.keys)
    if is_sharded(target):
        refuse_folder_options(target, folder or FolderOptions())
        with opened_shards(target, options, cluster) as shards:
            run_app(create_app(shards, keys), options, started=started)
        return
    with opened(target, options, folder or FolderOptions(), say=say) as (service, follow):

        def tell(address: str) -> None:
            started(address)
            follow()

        run_app(create_app(service, keys), options, started=tell)


def serve_member(
    member: Member,
    target: Path,
    options: ServeOptions,
    *,
    folder: FolderOptions,
    sockets: Sequence[socket.socket],
    started: Callable[[], None],
    say: Callable[[str], None],
) -> None:
    """Serve in one of several processes until SIGINT or SIGTERM.

    Args:
        member: this process.
        target: index folder, or folder of files.
        options: options and limits.
        folder: how a folder of files is served; the process that commits changes follows the files.
        sockets: sockets that listen.
        started: function that is called once connections are accepted.
        say: function that is called with messages about the files of a folder.

    Raises:
        LightirError: the errors of `serve`.
    """
    keys = None if options.keys is None else ApiKeys.load(options.keys)
    with opened(target, options, folder, say=say, member=member) as (service, follow):

        def tell() -> None:
            started()
            if member.commits_changes:
                follow()

        _run_until_signal(create_app(service, keys), sockets, tell, options.timeout_s, STOP_S)


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
    listening = listen(options.host, options.port)
    _run_until_signal(app, [listening], lambda: started(address_of(listening)), options.timeout_s, stop_s)


def _run_until_signal(
    app: ASGIApp, sockets: Sequence[socket.socket], started: Callable[[], None], head_s: float, stop_s: int
) -> None:
    direct = app.state.direct if isinstance(app, FastAPI) else None
    config = uvicorn.Config(
        app,
        http=connections(head_s, direct),
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=stop_s,
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(uvicorn.Server(config), sockets, started))


async def _run(server: uvicorn.Server, sockets: Sequence[socket.socket], started: Callable[[], None]) -> None:
    running = asyncio.create_task(server.serve([*sockets]))
    while not server.started and not running.done():
        await asyncio.sleep(0.01)
    if server.started:
        gc.collect()
        gc.freeze()  # what lives as long as the process is not looked at again, which takes longer than a search
        started()
    await running
