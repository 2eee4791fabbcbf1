"""Files, and the files of a folder, as documents."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path, PurePosixPath

from lightir.data.folders import folder_files, open_without_links
from lightir.data.formats import extract, format_suffix
from lightir.errors import InvalidInput, MissingExtra, NotFound, StorageError
from lightir.lines import ReadOptions, SkippedFiles
from lightir.text import check_text
from lightir.types import Document

logger = logging.getLogger(__name__)

MOST_SUFFIXES = 6
"""Maximum number of suffixes that a report of skipped files names."""


def file_ids(path: Path, options: ReadOptions) -> list[str]:
    """Return the ids of the documents of `files_as_documents`, those of unreadable files among them."""
    return [doc_id for _, doc_id in _named_files(path, options)[0]]


def files_as_documents(path: Path, options: ReadOptions) -> Iterator[tuple[Path, Document]]:
    """Yield a file, or each file of a folder that can be read, with its document.

    The id of a file is its name; that of a folder's file is its path, beginning with the folder's name. The metadata
    are those that the format has, and `folder` (of a folder's file), `type` (the suffix), and `modified` (UTC).

    A file of a folder that cannot be read is skipped and reported, unless the options are strict.

    Raises:
        InvalidInput: an unreadable file, if it is named or the options are strict; a folder without a readable file.
    """
    files, skipped = _named_files(path, options)
    if not path.is_dir():
        yield path, _document(path, files[0][1], options)
        return
    n_read = 0
    for file, document in readable_documents(files, options, skipped):
        n_read += 1
        yield file, document
    if options.skipped is not None:
        options.skipped.add(skipped)
    if text := skipped_text(skipped, options):
        logger.warning("%s: %s", path, text)
    if not n_read:
        reason = next(iter(skipped.unreadable.values()))
        raise InvalidInput(f"{path}: none of the {len(files):,} files can be read; the first: {reason}")


def readable_documents(
    files: Iterable[tuple[Path, str]], options: ReadOptions, skipped: SkippedFiles
) -> Iterator[tuple[Path, Document]]:
    """Yield files, given with their ids, and their documents; those that cannot be read are reported and counted.

    Raises:
        InvalidInput, MissingExtra, StorageError: a file cannot be read, and the options are strict.
    """
    missing: set[str] = set()
    for file, doc_id in files:
        try:
            document = _document(file, doc_id, options)
        except (InvalidInput, MissingExtra, StorageError) as error:
            if options.strict:
                raise
            skipped.unreadable[doc_id] = str(error)
            if not isinstance(error, MissingExtra) or file.suffix not in missing:
                logger.warning("skipped: %s", error)
            if isinstance(error, MissingExtra):
                missing.add(file.suffix)
            continue
        yield file, document


def listed_files(paths: Iterable[str | Path], options: ReadOptions) -> dict[str, Path]:
    """Return files and the files of folders by the ids of their documents.

    Raises:
        NotFound: a path does not exist.
        InvalidInput: two files have the same id, as those of two folders of one name.
    """
    files: dict[str, Path] = {}
    for path in map(Path, paths):
        if not path.exists():
            raise NotFound(f"{path} does not exist")
        for file, doc_id in _named_files(path, options)[0]:
            if doc_id in files:
                raise InvalidInput(f"{files[doc_id]} and {file} have the same id {doc_id!r}; rename a folder")
            files[doc_id] = file
    return files


def _named_files(path: Path, options: ReadOptions) -> tuple[list[tuple[Path, str]], SkippedFiles]:
    """Return files with their ids, and what of a folder is left out."""
    if not path.is_dir():
        return [(path, path.name)], SkippedFiles()
    listed, name = folder_files(path, options), path.resolve().name
    doc_ids = (str(PurePosixPath(name, file)) for file in listed.names)
    return [*zip(listed.paths, doc_ids, strict=True)], listed.skipped


def _document(file: Path, doc_id: str, options: ReadOptions) -> Document:
    check_text(doc_id, f"the name of {str(file)!r}")
    n_names = 0 if options.follow_links else doc_id.count("/")  # of a folder's file, below the folder
    content = extract(file, options, opener=partial(open_without_links, n_names=n_names) if n_names else None)
    status = file.stat(follow_symlinks=not n_names)
    folder, modified = doc_id.rpartition("/")[0], datetime.fromtimestamp(int(status.st_mtime), UTC)
    metadata = {
        **content.metadata,
        **({"folder": folder} if folder else {}),
        "type": format_suffix(file)[1:],
        "modified": modified.isoformat().replace("+00:00", "Z"),
    }
    return Document(doc_id, check_text(content.text, str(file)), check_text(content.title, str(file)), metadata)


def skipped_text(skipped: SkippedFiles, options: ReadOptions) -> str:
    """Say what of a folder was not read, "" if that is nothing."""
    parts = []
    if skipped.unreadable:
        parts.append(f"files that cannot be read: {len(skipped.unreadable):,}")
    if skipped.other_types:
        by_count = sorted(skipped.other_types.items(), key=lambda item: (-item[1], item[0]))
        named = ", ".join(f"{count:,} {suffix or 'without a suffix'}" for suffix, count in by_count[:MOST_SUFFIXES])
        more = ", ..." * (len(by_count) > MOST_SUFFIXES)
        parts.append(f"files of other types: {named}{more}")
    if skipped.n_excluded:
        parts.append(f"excluded files and folders: {skipped.n_excluded:,}")
    if skipped.n_links and options.follow_links:
        parts.append(f"symbolic links that lead to no file or folder: {skipped.n_links:,}")
    elif skipped.n_links:
        hint = "read them with --follow-links, in Python: ReadOptions(follow_links=True)"
        parts.append(f"symbolic links: {skipped.n_links:,} ({hint})")
    return f"skipped {'; '.join(parts)}" if parts else ""
