"""The files of a folder whose text can be read; symbolic links are followed only if that is asked for."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeAlias

from lightir.data.formats import FORMATS
from lightir.errors import InvalidInput
from lightir.lines import ReadOptions, SkippedFiles

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

IGNORE_FILES = (".gitignore", ".ignore", ".lightirignore")
"""Files with patterns of what to leave out of their folder and its subfolders. The later of these names decides, an
inner folder before an outer one, and `ReadOptions.exclude` before all of them."""

_Rules: TypeAlias = "tuple[tuple[Path, GitIgnoreSpec], ...]"
"""Folders with the patterns that hold in them, outermost first."""


@dataclass(frozen=True, slots=True)
class FolderFiles:
    """The files of a folder.

    Attributes:
        paths: paths of the files whose text can be read, sorted.
        skipped: the others.
    """

    paths: list[Path]
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
    """One walk through a folder."""

    def __init__(self, folder: Path, options: ReadOptions) -> None:
        self._options = options
        self._paths: list[Path] = []
        self._skipped = SkippedFiles()
        self._seen: set[tuple[int, int]] = set()
        self._folder = folder
        self._excluded = _patterns(options.exclude, "--exclude")

    def files(self) -> FolderFiles:
        links = self._enter(self._folder, ())
        while links:
            links = [further for link, rules in sorted(links, key=_path) for further in self._link(link, rules)]
        return FolderFiles(sorted(self._paths), self._skipped)

    def _link(self, link: Path, rules: _Rules) -> list[tuple[Path, _Rules]]:
        """Follow or count a symbolic link; return the links behind it."""
        if not self._options.follow_links:
            self._skipped.n_links += is_readable(link) or link.is_dir()
        elif link.is_dir():
            return self._enter(link, rules)
        elif not link.exists():
            self._skipped.n_links += 1
        elif link.is_file():
            self._add(link)
        return []

    def _enter(self, folder: Path, rules: _Rules) -> list[tuple[Path, _Rules]]:
        """Add the files of a folder and its subfolders, unless the folder was seen; return its symbolic links."""
        links: list[tuple[Path, _Rules]] = []
        rules_of = {str(folder): rules}
        for parent, subfolders, names in os.walk(folder, onerror=_raise):
            status = os.stat(parent)
            if (status.st_dev, status.st_ino) in self._seen:
                subfolders.clear()
                continue
            self._seen.add((status.st_dev, status.st_ino))
            inner = rules_of.pop(parent) + self._rules(Path(parent), names)
            kept = [name for name in (*subfolders, *names) if not self._leaves_out(Path(parent, name), inner)]
            links += [(path, inner) for name in kept if (path := Path(parent, name)).is_symlink()]
            subfolders[:] = sorted({*kept}.intersection(subfolders))  # os.walk enters no links
            rules_of |= {os.path.join(parent, name): inner for name in subfolders}
            for name in {*kept}.intersection(names):
                path = Path(parent, name)
                if not path.is_symlink() and path.is_file():
                    self._add(path)
        return links

    def _add(self, path: Path) -> None:
        if is_readable(path):
            self._paths.append(path)
        else:
            suffix, counts = path.suffix.lower(), self._skipped.other_types
            counts[suffix] = counts.get(suffix, 0) + 1

    def _leaves_out(self, path: Path, rules: _Rules) -> bool:
        if path.name.startswith("."):
            return True
        is_folder = path.is_dir()
        for base, spec in ((self._folder, self._excluded), *reversed(rules)):
            if (decided := _decides(spec, path, base, is_folder)) is not None:
                self._skipped.n_excluded += decided
                return decided
        return False

    def _rules(self, folder: Path, names: Sequence[str]) -> _Rules:
        if not self._options.ignore_files:
            return ()
        present = [folder / name for name in IGNORE_FILES if name in names]
        return tuple((folder, _patterns(_lines(path), str(path))) for path in present)


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


def _path(link: tuple[Path, _Rules]) -> Path:
    return link[0]


def _raise(error: OSError) -> NoReturn:
    raise error
