"""Text files in a folder; symbolic links are followed only if that is asked for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

TEXT_SUFFIXES = (".txt", ".text", ".md", ".rst")


@dataclass(frozen=True, slots=True)
class TextFiles:
    """The text files of a folder.

    Attributes:
        paths: paths of the files, sorted.
        n_skipped: number of symbolic links that were not followed: those that lead to a folder or have the name of a
            text file, or with `follow_links` those that lead to nothing, or through more links than the system allows.
    """

    paths: list[Path]
    n_skipped: int


def text_files(folder: Path, *, follow_links: bool) -> TextFiles:
    """List the text files of a folder and its subfolders, without hidden ones.

    With `follow_links`, links to files and folders anywhere are followed. Each folder is read once, under the path that
    leads to it through the fewest links, so that links in a circle end.

    Raises:
        OSError: a folder cannot be read.
    """
    paths: list[Path] = []
    seen: set[tuple[int, int]] = set()
    links = _walk(folder, paths, seen)
    n_skipped = 0
    while links:
        further: list[Path] = []
        for link in sorted(links):
            if not follow_links:
                n_skipped += _is_text(link) or link.is_dir()
            elif link.is_dir():
                further += _walk(link, paths, seen)
            elif not link.exists():
                n_skipped += 1
            elif _is_text(link) and link.is_file():
                paths.append(link)
        links = further
    return TextFiles(sorted(paths), n_skipped)


def _walk(folder: Path, paths: list[Path], seen: set[tuple[int, int]]) -> list[Path]:
    """Append the text files of a folder and its subfolders, unless a folder was seen; return the symbolic links."""
    links: list[Path] = []
    for parent, subfolders, names in os.walk(folder, onerror=_raise):
        status = os.stat(parent)
        if (status.st_dev, status.st_ino) in seen:
            subfolders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        inside = [Path(parent, name) for name in (*subfolders, *names) if not name.startswith(".")]
        links += [path for path in inside if path.is_symlink()]
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]  # os.walk enters no links
        paths += _plain_files(parent, names)
    return links


def _plain_files(parent: str, names: list[str]) -> Iterator[Path]:
    for name in names:
        path = Path(parent, name)
        if not name.startswith(".") and _is_text(path) and not path.is_symlink() and path.is_file():
            yield path


def _is_text(path: Path) -> bool:
    return path.suffix.lower() in TEXT_SUFFIXES


def _raise(error: OSError) -> NoReturn:
    raise error
