"""The target of a service: an index, or a folder of files and its index."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from lightir.errors import InvalidInput, NotFound
from lightir.index.splitting import ShardedManifest, is_sharded
from lightir.search.shard_set import LocalShards, Shards
from lightir.serve.folder_follower import FolderFollower
from lightir.serve.folder_index import FolderOptions, is_index, prepare_index
from lightir.serve.member import Member
from lightir.serve.ray_shards import RayServing, ray_shards
from lightir.serve.serve_options import ServeOptions
from lightir.serve.service import SearchService
from lightir.serve.sharded_service import ShardedService

SHARD_THREADS = 32
"""Number of requests that may wait for shards at once."""


@contextmanager
def opened_shards(folder: Path, options: ServeOptions, cluster: RayServing | None) -> Iterator[ShardedService]:
    """Yield the service of a folder of shards; close it, and stop what runs on a cluster.

    Args:
        folder: folder of shards.
        options: options of the service.
        cluster: cluster that the shards are served from; None for this process.

    Raises:
        NotFound: the folder has no manifest.
        InvalidInput: a shard was changed after it was counted, or there is no cluster at the address.
        FormatError: a file of a shard is damaged.
        MissingExtra: Ray is not installed.
        LightirError: a shard does not start on the cluster.
    """
    manifest = ShardedManifest.read(folder)
    with ExitStack() as stack:
        shards: Shards
        if cluster is None:
            shards = stack.enter_context(closing(LocalShards.open(manifest)))
        else:
            shards = stack.enter_context(ray_shards(folder, manifest, cluster, timeout_s=options.timeout_s))
        threads = max(options.threads, SHARD_THREADS)
        yield stack.enter_context(
            closing(ShardedService(manifest, shards, dataclasses.replace(options, threads=threads)))
        )


def refuse_folder_options(target: Path, folder: FolderOptions) -> None:
    """Raise InvalidInput for options of a folder of files, because the target is none."""
    if folder.index is not None or folder.model is not None or folder.watch or folder.delete_any:
        raise InvalidInput(f"{target} is an index; --index, --model, --watch and --yes require a folder of files")


@contextmanager
def opened(
    target: Path,
    options: ServeOptions,
    folder: FolderOptions,
    *,
    say: Callable[[str], None],
    member: Member | None = None,
) -> Iterator[tuple[SearchService, Callable[[], None]]]:
    """Yield the service of an index or a folder of files, and a function that starts to follow the files; close both.

    Args:
        target: index folder, or folder of files.
        options: options of the service.
        folder: how a folder of files is served.
        say: function that is called with messages about the files.
        member: this process, if the service has several.

    Raises:
        NotFound: there is no such path or model.
        InvalidInput: the path is neither, or options of a folder are given for an index, or these are shards.
        FormatError: a file of the index is damaged.
    """
    if not target.exists():
        raise NotFound(f"there is no index {target}; create one with: lightir index CORPUS --out {target}")
    if is_sharded(target):
        raise InvalidInput(f"{target} is an index split into shards, which one process serves")
    if is_index(target):
        refuse_folder_options(target, folder)
        service = SearchService(target, options, member=member)
        try:
            yield service, lambda: None
        finally:
            service.close()
        return
    service = SearchService(prepare_index(target, folder), options, source=target.resolve(), member=member)
    follower = FolderFollower(target, service, folder, say)
    try:
        yield service, follower.start
    finally:
        follower.close()
        service.close()
