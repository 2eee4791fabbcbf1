"""The target of a service: an index, or a folder of files and its index."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from lightir.errors import InvalidInput, NotFound
from lightir.serve.folder_follower import FolderFollower
from lightir.serve.folder_index import FolderOptions, is_index, prepare_index
from lightir.serve.member import Member
from lightir.serve.serve_options import ServeOptions
from lightir.serve.service import SearchService


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
        InvalidInput: the path is neither, or options of a folder are given for an index.
        FormatError: a file of the index is damaged.
    """
    if not target.exists():
        raise NotFound(f"there is no index {target}; create one with: lightir index CORPUS --out {target}")
    if is_index(target):
        if folder.index is not None or folder.model is not None or folder.watch or folder.delete_any:
            raise InvalidInput(f"{target} is an index; --index, --model, --watch and --yes require a folder of files")
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
