"""Parked vectors: encoded documents kept in the queue's folder until a process that has the writer's lock commits them.

Each batch is a `vectors/` folder (shards.py) with documents, contract and checksums, so it can be committed whatever
becomes of the queue's database.

    queue/parked/parked-0123456789abcdef/vectors/    lightir.json, manifest.json, shard-00000/
"""

from __future__ import annotations

import re
import secrets
import shutil
from pathlib import Path

from lightir.contract import Contract
from lightir.errors import WriteFailed, storage_error
from lightir.files import atomic_folder, remove_abandoned
from lightir.shards import Shard, VectorsReader, VectorsWriter

PARKED_FOLDER = "parked"
VECTORS = "vectors"
PARKED_NAME = re.compile(r"parked-[0-9a-f]{16}")


def write_parked(parent: Path, contract: Contract, shard: Shard) -> Path:
    """Write one batch to a new folder in `parent`, complete or not at all, and return the folder.

    Raises:
        WriteFailed: the disk is full or the folder cannot be written.
    """
    folder = parent / f"parked-{secrets.token_hex(8)}"
    try:
        with atomic_folder(folder) as unfinished, VectorsWriter(unfinished / VECTORS, contract) as writer:
            writer.add(shard)
            writer.finish()
    except OSError as error:
        raise storage_error(f"cannot park vectors in {parent}", error, kind=WriteFailed) from error
    return folder


def parked_folders(parent: Path) -> list[Path]:
    """Return the folders of all parked batches, by name."""
    if not parent.is_dir():
        return []
    return sorted(path for path in parent.iterdir() if PARKED_NAME.fullmatch(path.name))


def read_parked(folder: Path) -> tuple[Contract, Shard]:
    """Read a batch and check it against its checksums.

    Returns:
        The contract of the model that encoded the documents, and the documents with their vectors.

    Raises:
        FormatError, NotFound: a file is damaged or missing.
        StorageError: the system refuses to read a file.
    """
    reader = VectorsReader(folder / VECTORS)
    return reader.contract, Shard.concatenate(list(reader))


def remove_parked(folder: Path) -> None:
    """Remove a batch, and the unfinished folders that killed processes left beside it.

    Raises:
        WriteFailed: the folder cannot be written.
    """
    # Renamed first: if this process is killed here, the rest is swept later and is never read as a damaged batch.
    removed = folder.with_name(f".{folder.name}.new-removed")
    try:
        folder.rename(removed)
    except FileNotFoundError:
        return
    except OSError as error:
        raise storage_error(f"cannot remove {folder}", error, kind=WriteFailed) from error
    shutil.rmtree(removed, ignore_errors=True)
    remove_abandoned(folder.parent)
