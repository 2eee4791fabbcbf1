"""The files of a folder whose text can be read; symbolic links are followed only if that is asked for."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from lightir.data.formats import FORMATS
from lightir.errors import InvalidInput
from lightir.lines import ReadOptions, SkippedFiles

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

IGNORE_FILES = (".gitignore", ".ignore", ".lightirignore")
"""Files with patterns of what to leave out of their folder and its subfolders. The later of these names decides, an
inner folder before an outer one, and `ReadOptions.exclude` before all of them."""

_Rules: TypeAlias = "tuple[tuple[str, GitIgnoreSpec], ...]"
"""Folders with the patterns that hold in them, outermost first."""


@dataclass(frozen=True, slots=True)
class FolderFiles:
    """The files of a folder.

    Attributes:
        paths: paths of the files whose text can be read, sorted.
        names: path of each file relative to the folder, in the same order.
        skipped: the others.
    """

    paths: list[Path]
    names: list[str]
    skipped: SkippedFiles


def folder_files(folder: Path, options: ReadOptions) -> FolderFiles:
    """List the files of a folder and its subfolders whose suffix is in FORMATS, without hidden ones.

    Files and folders that match a pattern of `options.exclude` (in the syntax of .gitignore, relative to the folder) or
    of an ignore file (IGNORE_FILES, unless `options.ignore_files` is False) are left out. With `follow_links`, links to
    files and folders anywhere are followed. Each folder is read once, under the path that leads to it through the
    fewest links, so that links in a circle end.

    Raises:
        OSError: a folder cannot be read.
        InvalidInput: a malformed pattern.
    """
    return _Walk(folder, options).files()


class _Walk:
    """One walk through a folder. Paths are strings, which cost a fraction of `Path` objects, until it ends."""

    def __init__(self, folder: Path, options: ReadOptions) -> None:
        self._options = options
        self._paths: list[str] = []
        self._skipped = SkippedFiles()
        self._seen: set[tuple[int, int]] = set()
        self._folder = str(folder)
        self._excluded: _Rules = ((self._folder, _patterns(options.exclude, "--exclude")),) if options.exclude else ()

    def files(self) -> FolderFiles:
        links = self._enter(self._folder, ())
        while links:
            links = [further for link, rules in sorted(links, key=_path) for further in self._link(link, rules)]
        beginning = len(os.path.join(self._folder, ""))
        paths = sorted(self._paths, key=_parts)
        return FolderFiles([*map(Path, paths)], [path[beginning:] for path in paths], self._skipped)

    def _link(self, link: str, rules: _Rules) -> list[tuple[str, _Rules]]:
        """Follow or count a symbolic link; return the links behind it."""
        path = Path(link)
        if not self._options.follow_links:
            self._skipped.n_links += is_readable(path) or path.is_dir()
        elif path.is_dir():
            return self._enter(link, rules)
        elif not path.exists():
            self._skipped.n_links += 1
        elif path.is_file():
            self._add(link)
        return []

    def _enter(self, top: str, rules: _Rules) -> list[tuple[str, _Rules]]:
        """Add the files of a folder and its subfolders, unless the folder was seen; return its symbolic links."""
        links: list[tuple[str, _Rules]] = []
        folders = [(top, rules)]
        while folders:
            folder, outer = folders.pop()
            status = os.stat(folder)
            if (status.st_dev, status.st_ino) in self._seen:
                continue
            self._seen.add((status.st_dev, status.st_ino))
            with os.scandir(folder) as entries:
                visible = {entry.name: entry for entry in entries}
            inner = outer + self._rules(folder, visible)
            for entry in visible.values():
                is_link = entry.is_symlink()
                is_folder = Path(entry.path).is_dir() if is_link else entry.is_dir()
                if entry.name.startswith(".") or self._leaves_out(entry.path, inner, is_folder):
                    continue
                if is_link:
                    links.append((entry.path, inner))
                elif is_folder:
                    folders.append((entry.path, inner))
                elif entry.is_file():
                    self._add(entry.path)
        return links

    def _add(self, path: str) -> None:
        suffix = os.path.splitext(path)[1].lower()
        if suffix in FORMATS:
            self._paths.append(path)
        else:
            suffix = "" if suffix == "." else suffix
            self._skipped.other_types[suffix] = self._skipped.other_types.get(suffix, 0) + 1

    def _leaves_out(self, path: str, rules: _Rules, is_folder: bool) -> bool:
        for base, spec in (*self._excluded, *reversed(rules)):
            if (decided := _decides(spec, Path(path), Path(base), is_folder)) is not None:
                self._skipped.n_excluded += decided
                return decided
        return False

    def _rules(self, folder: str, names: Collection[str]) -> _Rules:
        if not self._options.ignore_files:
            return ()
        present = [Path(folder, name) for name in IGNORE_FILES if name in names]
        return tuple((folder, _patterns(_lines(path), str(path))) for path in present)


def open_without_links(path: str, flags: int, *, n_names: int) -> int:
    """Open a regular file, and return its descriptor. The last names of its path must not be symbolic links.

    A folder is listed before its files are opened. What has become a link meanwhile may lead anywhere.

    Args:
        path: path of the file.
        flags: flags of `os.open`.
        n_names: number of names of the path, the file's own among them, that are not followed, at least 1.

    Raises:
        OSError: the file cannot be opened, is no regular file, or is reached through a link.
    """
    file = Path(path)
    names = file.parts[-n_names:]
    descriptor = os.open(file.parents[n_names - 1], os.O_RDONLY | os.O_DIRECTORY)
    for i, name in enumerate(names):
        kind = os.O_DIRECTORY if i + 1 < len(names) else flags | os.O_NONBLOCK  # a pipe would wait for a writer
        try:
            inner = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | kind, dir_fd=descriptor)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise OSError(error.errno, f"{name!r} is a symbolic link or no folder by now", path) from None
            raise
        finally:
            os.close(descriptor)
        descriptor = inner
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file by now", path)
    return descriptor


def is_readable(path: Path) -> bool:
    """Whether the text of a file of this name can be read."""
    return path.suffix.lower() in FORMATS


def _decides(spec: GitIgnoreSpec, path: Path, base: Path, is_folder: bool) -> bool | None:
    """Return whether patterns exclude a path, None if none of them matches."""
    if not path.is_relative_to(base):
        return None  # behind a symbolic link
    return spec.check_file(path.relative_to(base).as_posix() + "/" * is_folder).include


def _patterns(lines: Sequence[str], where: str) -> GitIgnoreSpec:
    from pathspec import GitIgnoreSpec  # takes milliseconds, and few sources are folders

    try:
        return GitIgnoreSpec.from_lines(lines)
    except ValueError as error:
        raise InvalidInput(f"{where}: {error}") from None


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8", errors="replace").splitlines()


def _path(link: tuple[str, _Rules]) -> list[str]:
    return _parts(link[0])


def _parts(path: str) -> list[str]:
    """Return the parts of a path, in whose order paths are sorted."""
    return path.split(os.sep)
