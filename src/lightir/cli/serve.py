"""Serve an index, its shards or a folder of files over HTTP: searches, documents, query vectors, and embedding APIs.

A folder is indexed by BM25 when the service starts, and found at once. Then a worker encodes its files, those that
searches find first. The index is in the cache folder (LIGHTIR_CACHE, else ~/.cache/lightir), or where --index says.

A folder of shards (lightir split) is searched as one index, without changes. With --ray, Ray Serve runs the shards on
the machines of a cluster, which must have the folder at the same path, and this process asks them.

The service listens on this machine alone unless --host says otherwise, and then requires API keys. It stops on Ctrl-C
and SIGTERM, after the changes that it has accepted.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from lightir.cli.arguments import MODEL_HELP, Arguments, add_folder_options, add_limits, positive
from lightir.cli.terminal import print_status, printable
from lightir.lines import read_options

if TYPE_CHECKING:
    from lightir.serve.folder_index import FolderOptions
    from lightir.serve.ray_shards import RayServing
    from lightir.serve.serve_options import ServeOptions

HELP = "serve an index or a folder of files over HTTP"
EXAMPLES = """
  lightir serve index
  lightir serve handbook/ --watch
  lightir serve index --port 9000 --read-only
  lightir serve index --processes 4
  lightir key keys.json --name app
  lightir serve /shared/shards --ray auto --replicas 2
  lightir serve index --host 0.0.0.0 --keys keys.json --allow-host search.example.org
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("path", metavar="PATH", help="index folder, folder of shards, or folder of files")
    add_address(parser, port=8080)
    parser.add_argument("--read-only", action="store_true", help="refuse all changes, as for a folder of files")
    add_folder(parser.add_argument_group("folder of files"))
    add_cluster(parser.add_argument_group("folder of shards"))
    add_access(parser.add_argument_group("access"))
    parser.add_argument(
        "--processes", type=positive, default=1, metavar="N", help="number of processes that answer (default 1)"
    )
    limits = parser.add_argument_group("limits")
    add_request_limits(limits)
    limits.add_argument(
        "--max-writes", type=positive, default=64, metavar="N", help="maximum number of waiting changes (default 64)"
    )


def add_address(parser: Arguments, *, port: int) -> None:
    """Declare --host and --port."""
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    parser.add_argument(
        "--port", type=int, default=port, metavar="N", help="port to listen on, 0 for a free one (default %(default)s)"
    )


def add_access(access: Arguments) -> None:
    """Declare who may use a service: --keys and so on."""
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


def add_request_limits(limits: Arguments) -> None:
    """Declare the limits of requests."""
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
        "--timeout", type=positive, default=30, metavar="S", help="maximum seconds for an answer (default %(default)s)"
    )


def add_folder(group: Arguments) -> None:
    """Declare how a folder of files is served."""
    group.add_argument("--watch", action="store_true", help="follow changes of the files (default: read them once)")
    group.add_argument(
        "--index", metavar="INDEX", help="index folder, created if there is none (default: in the cache folder)"
    )
    group.add_argument(
        "--model", metavar="MODEL", help=f"{MODEL_HELP}, for a new index (default: minilm if it is installed, or none)"
    )
    group.add_argument("--no-encode", action="store_true", help="do not encode the files here")
    group.add_argument("--yes", action="store_true", help="delete any number of documents whose files have disappeared")
    add_folder_options(group)
    add_limits(group)


def add_cluster(group: Arguments) -> None:
    """Declare how shards are served from a cluster."""
    group.add_argument(
        "--ray",
        metavar="ADDRESS",
        help="serve the shards from the Ray cluster at HOST:PORT, or auto, of which this machine is a part; needs "
        "lightir[ray-serve] (default: from this process)",
    )
    group.add_argument(
        "--replicas", type=positive, metavar="N", help="number of replicas per shard on the cluster (default: 1)"
    )
    group.add_argument(
        "--ray-cpus",
        type=positive,
        metavar="N",
        help="number of CPU cores that Ray reserves per replica, which limits nothing (default: none)",
    )


def cluster_options(args: argparse.Namespace) -> RayServing | None:
    """Return the cluster among the arguments; None for this process.

    Raises:
        InvalidInput: options of a cluster without one.
    """
    from lightir.errors import InvalidInput
    from lightir.serve.ray_shards import RayServing

    if args.ray is None:
        if args.replicas is not None or args.ray_cpus is not None:
            raise InvalidInput("--replicas and --ray-cpus are about a cluster; name it with --ray ADDRESS")
        return None
    return RayServing(args.ray, args.replicas or 1, args.ray_cpus or 0)


def folder_options(args: argparse.Namespace) -> FolderOptions:
    """Return the options of a folder among the arguments."""
    from lightir.serve.folder_index import FolderOptions

    return FolderOptions(
        index=None if args.index is None else Path(args.index),
        model=args.model,
        watch=args.watch,
        encode=not args.no_encode,
        delete_any=args.yes,
        reading=read_options(),
    )


def service_options(args: argparse.Namespace) -> ServeOptions:
    """Return the options of a service among the arguments."""
    from lightir.serve.serve_options import ServeOptions

    return ServeOptions(
        host=args.host,
        port=args.port,
        keys=None if args.keys is None else Path(args.keys),
        without_keys=args.without_keys,
        allow_hosts=tuple(args.allow_host),
        allow_origins=tuple(args.allow_origin),
        max_body_bytes=args.max_body_mb << 20,
        max_requests=args.max_requests,
        timeout_s=float(args.timeout),
    )


def run(args: argparse.Namespace) -> None:
    """Serve until a signal comes."""
    from lightir.errors import MissingExtra

    options = dataclasses.replace(
        service_options(args), read_only=args.read_only, max_writes=args.max_writes, processes=args.processes
    )
    try:
        from lightir.serve.server import serve
    except ModuleNotFoundError as error:
        raise MissingExtra(f"serving needs {error.name}: pip install 'lightir[serve]'") from error
    serve(
        Path(args.path),
        options,
        folder=folder_options(args),
        cluster=cluster_options(args),
        started=lambda address: print_status(f"serving {args.path} at {address}"),
        say=lambda message: print_status(printable(message)),
    )
