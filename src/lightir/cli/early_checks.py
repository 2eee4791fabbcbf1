"""Checks of a command's arguments that need no torch, so that a wrong path fails in under a second."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from lightir.errors import AlreadyExists, MissingExtra
from lightir.files import check_new_folder


def require_sources(sources: Sequence[str], fields: dict[str, str] | None = None) -> None:
    """Refuse sources of documents that do not exist; their documents are not read.

    Raises:
        NotFound, InvalidInput: as `lightir.data.read_documents`.
    """
    from lightir.cli.pipeline import are_vectors
    from lightir.data import read_documents

    for source in sources:
        if not are_vectors([source]):
            read_documents([source], fields=fields)


def require_new_vectors(folder: str, *, resume: bool) -> None:
    """Refuse a vectors folder that cannot be written, or that holds something and is not resumed.

    Raises:
        AlreadyExists: the folder contains vectors, and resume is off.
        WriteFailed: the folder cannot be written.
    """
    check_new_folder(folder, overwrite=True)
    path = Path(folder)
    if not resume and path.is_dir() and any(path.iterdir()):
        raise AlreadyExists(f"{folder} contains vectors; continue with --resume, or choose another folder")


def require_ray() -> None:
    """Refuse a cluster if Ray is not installed; it is not imported.

    Raises:
        MissingExtra: Ray is not installed.
    """
    if importlib.util.find_spec("ray") is None:
        raise MissingExtra("Ray is needed to encode on a cluster: pip install 'lightir[ray]'")
