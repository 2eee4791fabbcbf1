"""The vectors/ folder: documents with their vectors in shards, which are written and read one by one."""

from __future__ import annotations

import bisect
import contextlib
import itertools
import json
import os
import secrets
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from lightir.contract import FILE_NAME, Contract
from lightir.errors import (
    AlreadyExists,
    ContractMismatch,
    FormatError,
    InvalidInput,
    NotFound,
    WriteFailed,
    storage_errors,
)
from lightir.files import (
    atomic_folder,
    child_path,
    exclusive_writer,
    fsync_path,
    make_folder,
    read_json,
    sha256_file,
    write_json,
)
from lightir.quantities import counted
from lightir.types import Cells, Document
from lightir.vectors import SparseVectors

MANIFEST, DOCUMENTS = "manifest.json", "documents.jsonl"
FORMAT_VERSION = 1
CELLS = "cells"
"""Key of a shard in the manifest whose metadata come from a table without types, see `lightir.types.Cells`."""

ARRAYS = {"dense": (np.float16, 2), "indptr": (np.int64, 1), "term_ids": (np.uint32, 1), "impacts": (np.uint8, 1)}
"""Dtype and number of dimensions of a shard's .npy files."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Documents with their vectors.

    Attributes:
        documents: n documents.
        dense: (n, dim) float16 vectors, or None.
        sparse: n sparse vectors of uint8 impacts, or None.
    """

    documents: Sequence[Document]
    dense: npt.NDArray[np.float16] | None
    sparse: SparseVectors | None

    def __post_init__(self) -> None:
        if not isinstance(self.documents, Sequence):
            raise InvalidInput(f"a shard's documents are {type(self.documents).__name__}; expected a list")
        for name, rows in (("dense", self.dense), ("sparse", self.sparse)):
            if rows is not None and len(rows) != len(self.documents):
                raise InvalidInput(f"{counted(len(self.documents), 'document')} but {len(rows)} {name} vectors")
        if self.dense is not None and not np.all(np.isfinite(self.dense)):
            raise InvalidInput("a dense vector contains NaN or infinity; check the model and its precision")

    @classmethod
    def concatenate(cls, shards: Sequence[Shard]) -> Shard:
        """Return the documents of all shards, in order, as one shard.

        Args:
            shards: one or more shards with the same branches.
        """
        dense = [shard.dense for shard in shards if shard.dense is not None]
        sparse = [shard.sparse for shard in shards if shard.sparse is not None]
        return cls(
            [document for shard in shards for document in shard.documents],
            np.concatenate(dense) if dense else None,
            SparseVectors.concatenate(sparse) if sparse else None,
        )

    def take(self, positions: npt.NDArray[np.int64]) -> Shard:
        """Return the documents at the given positions, in their order."""
        return Shard(
            [self.documents[position] for position in positions.tolist()],
            None if self.dense is None else self.dense[positions],
            None if self.sparse is None else self.sparse.take(positions),
        )


@dataclass(frozen=True, slots=True)
class WrittenShard:
    """A shard on disk under a temporary name, which `VectorsWriter.adopt` makes part of the folder.

    Attributes:
        folder: name of the shard's folder inside the vectors folder; it begins with a dot.
        doc_ids: ids of its documents, in order.
        files: size in bytes and SHA-256 of each file, by name.
        has_cells: whether metadata come from a table without types, see `lightir.types.Cells`.
    """

    folder: str
    doc_ids: tuple[str, ...]
    files: dict[str, dict[str, Any]]
    has_cells: bool


def write_aside(vectors: Path, number: int, shard: Shard) -> WrittenShard:
    """Write a shard durably into a vectors folder under a temporary name, which no other call uses.

    Any process can call this, on any machine that shares the folder. `VectorsWriter` removes what is never adopted.

    Args:
        vectors: existing vectors folder.
        number: number that the shard gets.
        shard: documents with their vectors.

    Raises:
        WriteFailed: the disk is full or broken; nothing is left behind.
    """
    name = f".{_shard_name(number)}.{secrets.token_hex(8)}"
    with storage_errors(f"cannot write {vectors}", kind=WriteFailed), atomic_folder(vectors / name) as folder:
        files = _write_shard(folder, shard)
    return WrittenShard(name, tuple(document.doc_id for document in shard.documents), files, _has_cells(shard))


class DocumentEncoder(Protocol):
    """A model as the modules without torch use it: it encodes documents as vectors."""

    @property
    def contract(self) -> Contract:
        """Contract of the model."""
        ...

    def encode(self, documents: Sequence[Document]) -> Shard:
        """Return the documents, in their order, with vectors for the contract's branches.

        Callers treat any exception as caused by one of the documents.
        """
        ...


class VectorsWriter:
    """Appends shards to a vectors/ folder; a shard is durable when `add` returns.

    resume=True continues the folder of an interrupted writer: complete shards are kept, incomplete ones removed. A
    folder has at most one writer at a time, until it finishes, is closed, or its process ends. Shards are numbered in
    the order of the input. If other processes write them (`write_aside`), they are adopted in any order, so an
    interrupted folder may lack numbers; the next writer fills these first.

    Attributes:
        folder: path of the folder.
        contract: contract of the model that computes the vectors.
        doc_ids: ids of the documents in the folder.
        numbers: the unused numbers of shards, in ascending order; `next` takes one.
    """

    def __init__(
        self, folder: Path | str, contract: Contract, *, quantized: str | None = None, resume: bool = False
    ) -> None:
        """Open a folder for writing.

        Args:
            folder: path of the folder, created if it does not exist.
            contract: contract of the model that computes the vectors.
            quantized: quantization of the model's layers, recorded in the manifest; None if they are not quantized.
            resume: keep existing complete shards.

        Raises:
            AlreadyExists: the folder is not empty and resume is off, or another process writes to it.
            ContractMismatch: the folder has another contract, or vectors of layers with another quantization.
            WriteFailed: the folder cannot be written.
        """
        self.folder = Path(folder)
        self.contract = contract
        self.doc_ids: set[str] = set()
        self.numbers: Iterator[int] = itertools.count()
        self._earlier: dict[str, int] = {}  # documents of an earlier run, with hashes of their texts
        with self._writing():
            make_folder(self.folder)
        self._held = contextlib.ExitStack()
        self._held.enter_context(exclusive_writer(self.folder))
        try:
            with self._writing():
                self._begin(quantized, resume)
        except BaseException:
            self.close()
            raise

    def _begin(self, quantized: str | None, resume: bool) -> None:
        if resume:
            _remove_incomplete_files(self.folder)
        if any(self.folder.iterdir()):
            self._reopen(quantized, resume)
        else:
            self.contract.save(self.folder)
            self._manifest: dict[str, Any] = {
                "format_version": FORMAT_VERSION,
                "complete": False,
                "quantized": quantized,
                "shards": [],
            }
            self._save_manifest()

    def _reopen(self, quantized: str | None, resume: bool) -> None:
        if not resume:
            raise AlreadyExists(f"{self.folder} contains vectors; continue with --resume, or choose another folder")
        reader = VectorsReader(self.folder, allow_incomplete=True)
        if reader.contract.fingerprint != self.contract.fingerprint:
            raise ContractMismatch(
                f"the vectors in {self.folder} have contract {reader.contract.fingerprint}, "
                f"but the model has {self.contract.fingerprint}; choose another folder"
            )
        if (begun := reader.manifest.get("quantized")) != quantized:
            raise ContractMismatch(
                f"the vectors in {self.folder} are of layers quantized to {begun}, but this run uses {quantized}; "
                "use the same quantization, or choose another folder"
            )
        self._manifest = reader.manifest
        kept = {shard["name"] for shard in self._manifest["shards"]}
        self.numbers = (number for number in itertools.count() if _shard_name(number) not in kept)
        for path in self.folder.iterdir():
            if path.is_dir() and path.name.lstrip(".").startswith("shard-") and path.name not in kept:
                shutil.rmtree(path)
        self._earlier = {document.doc_id: _text_hash(document) for shard in reader for document in shard.documents}
        self.doc_ids.update(self._earlier)

    def has(self, document: Document) -> bool:
        """Return whether the folder contains a document.

        Raises:
            InvalidInput: the folder contains it from an earlier run with another title or text.
        """
        earlier = self._earlier.get(document.doc_id)
        if earlier is not None and earlier != _text_hash(document):
            raise InvalidInput(
                f"document {document.doc_id!r} is in {self.folder} with another title or text: a resumed run requires "
                "the same documents; encode changed ones into a new folder"
            )
        return document.doc_id in self.doc_ids

    def add(self, shard: Shard) -> None:
        """Write a shard atomically.

        Raises:
            InvalidInput: duplicate document in the shard or the folder.
            WriteFailed: the disk is full or broken; earlier shards are complete.
        """
        doc_ids = tuple(document.doc_id for document in shard.documents)
        self._refuse_duplicates(doc_ids)
        name = _shard_name(next(self.numbers))
        with self._writing(), atomic_folder(self.folder / name, overwrite=True) as folder:
            files = _write_shard(folder, shard)
        self._record(name, WrittenShard(name, doc_ids, files, _has_cells(shard)))

    def adopt(self, number: int, written: WrittenShard) -> None:
        """Make a shard that `write_aside` has written part of the folder, under its number.

        Args:
            number: number that was taken from `numbers`.
            written: result of `write_aside` on this folder, from any process.

        Raises:
            InvalidInput: duplicate document in the shard or the folder.
            NotFound: the shard is not in the folder: the storage is not shared with the process that wrote it.
            WriteFailed: the shard cannot be renamed; earlier shards are complete.
        """
        self._refuse_duplicates(written.doc_ids)
        aside = child_path(self.folder, written.folder)
        if not aside.is_dir():
            raise NotFound(f"{aside} does not exist: another machine wrote it, which does not share {self.folder}")
        name = _shard_name(number)
        with self._writing():
            os.rename(aside, self.folder / name)
            fsync_path(self.folder)
        self._record(name, written)

    def _refuse_duplicates(self, doc_ids: Sequence[str]) -> None:
        counts = Counter(doc_ids)
        repeated = [doc_id for doc_id in counts if counts[doc_id] > 1 or doc_id in self.doc_ids]
        if repeated:
            raise InvalidInput(f"duplicate document id {repeated[0]!r}: it is already encoded")

    def _record(self, name: str, written: WrittenShard) -> None:
        """List a shard in the manifest, by its number."""
        entry = {"name": name, "documents": len(written.doc_ids), "files": written.files}
        if written.has_cells:
            entry[CELLS] = True
        bisect.insort(self._manifest["shards"], entry, key=lambda listed: (len(listed["name"]), listed["name"]))
        self._manifest["complete"] = False  # a folder that grows is incomplete until `finish` is called again
        self._save_manifest()
        self.doc_ids.update(written.doc_ids)

    def _writing(self) -> contextlib.AbstractContextManager[None]:
        return storage_errors(f"cannot write {self.folder}", kind=WriteFailed)

    def finish(self) -> None:
        """Remove shards that were not adopted, mark the folder as complete, which an index requires, and close it."""
        for abandoned in self.folder.glob(".*shard-*"):
            shutil.rmtree(abandoned, ignore_errors=True)
        self._manifest["complete"] = True
        self._save_manifest()
        self.close()

    def close(self) -> None:
        """Release the folder, so that another writer can continue it."""
        self._held.close()

    def __enter__(self) -> VectorsWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _save_manifest(self) -> None:
        write_json(self.folder / MANIFEST, self._manifest)


def _text_hash(document: Document) -> int:
    """Return a hash of title and text that is valid within this process."""
    return hash((document.title, document.text))


def _remove_incomplete_files(folder: Path) -> None:
    """Remove partly written files of a killed writer, and the contract of a folder that has no manifest yet."""
    if not folder.is_dir():
        return
    for name in (FILE_NAME, MANIFEST):
        for path in folder.glob(f".{name}.*"):
            path.unlink()
    if [path.name for path in folder.iterdir()] == [FILE_NAME]:
        (folder / FILE_NAME).unlink()


class VectorsReader:
    """Reads a vectors/ folder shard by shard; iteration verifies the checksum of every file."""

    def __init__(self, folder: Path | str, *, allow_incomplete: bool = False) -> None:
        """Open a folder.

        Raises:
            NotFound: the folder is not a vectors folder.
            FormatError: unsupported version, or incomplete because encoding was interrupted (resume it).
            StorageError: the system refuses to read a file; iteration raises it too.
        """
        self.folder = Path(folder)
        self.contract = Contract.load(self.folder)
        self.manifest: dict[str, Any] = read_json(self.folder / MANIFEST)
        if not isinstance(self.manifest, dict):
            kind = type(self.manifest).__name__
            raise FormatError(f"{self.folder / MANIFEST} holds {kind}; expected a JSON object")
        version = self.manifest.get("format_version")
        if version != FORMAT_VERSION:
            raise FormatError(f"{self.folder} has vectors format {version!r}; this release reads {FORMAT_VERSION}")
        _check_shards(self.folder, self.manifest.get("shards"))
        if not self.manifest.get("complete") and not allow_incomplete:
            raise FormatError(f"{self.folder} is incomplete; continue with: lightir encode … --resume")

    def __len__(self) -> int:
        """Return the number of documents."""
        return sum(int(shard["documents"]) for shard in self.manifest["shards"])

    def __iter__(self) -> Iterator[Shard]:
        for entry in self.manifest["shards"]:
            yield self._read(entry)

    def documents(self) -> Iterator[Document]:
        """Iterate over all documents in order, without vectors and without verifying checksums."""
        for entry in self.manifest["shards"]:
            yield from _read_documents(child_path(self.folder, entry["name"]) / DOCUMENTS, cells=CELLS in entry)

    def _read(self, entry: dict[str, Any]) -> Shard:
        with storage_errors(f"cannot read {self.folder}"):
            return self._checked(entry)

    def _checked(self, entry: dict[str, Any]) -> Shard:
        folder = child_path(self.folder, entry["name"])
        for name, expected in entry["files"].items():
            path = child_path(folder, name)
            if (
                not path.is_file()
                or path.stat().st_size != expected["bytes"]
                or sha256_file(path) != expected["sha256"]
            ):
                raise FormatError(f"{path} is damaged or missing; encode into a new folder")
        documents = _read_documents(folder / DOCUMENTS, cells=CELLS in entry)
        if len(documents) != int(entry["documents"]):
            raise FormatError(f"{folder} has {len(documents)} documents; the manifest says {entry['documents']}")
        dense = _read_array(folder, "dense") if "dense.npy" in entry["files"] else None
        sparse = None
        try:
            if "indptr.npy" in entry["files"]:
                indptr, term_ids, impacts = (_read_array(folder, name) for name in ("indptr", "term_ids", "impacts"))
                sparse = SparseVectors(indptr, term_ids, impacts, self.contract.backbone.vocab_size)
            return Shard(documents, dense, sparse)
        except InvalidInput as error:
            raise FormatError(f"{folder} is damaged: {error}; encode into a new folder") from error


def _read_documents(path: Path, *, cells: bool) -> list[Document]:
    with storage_errors(f"cannot read {path}"), path.open("rb") as file:
        try:
            documents = [Document(**json.loads(line)) for line in file]
        except (ValueError, TypeError, RecursionError) as error:
            raise FormatError(f"{path} does not hold documents: {error}; encode into a new folder") from error
    for document in documents:
        texts = (document.doc_id, document.title, document.text)
        if not all(isinstance(text, str) for text in texts) or not isinstance(document.metadata, dict):
            raise FormatError(f"{path} does not hold documents: {str(document)[:80]}; encode into a new folder")
    if cells:
        documents = [replace(document, metadata=Cells(document.metadata)) for document in documents]
    return documents


def _read_array(folder: Path, name: str) -> npt.NDArray[Any]:
    """Read one of ARRAYS; it is mapped first, so that a damaged header cannot cause a huge allocation."""
    path, (dtype, n_dims) = folder / f"{name}.npy", ARRAYS[name]
    try:
        mapped = np.load(path, mmap_mode="r")
    except OSError:
        raise
    except Exception as error:  # numpy's parser passes on any error of tokenize, ast and mmap
        raise FormatError(f"{path} does not hold an array: {error}; encode into a new folder") from error
    if mapped.dtype != dtype or mapped.ndim != n_dims:
        actual = f"{mapped.dtype} of shape {mapped.shape}"
        raise FormatError(f"{path} holds {actual}; expected {np.dtype(dtype)} of {n_dims} dimensions")
    return np.array(mapped)


def _check_shards(folder: Path, shards: Any) -> None:
    """Check that the manifest lists shards with their files.

    Raises:
        FormatError: it does not.
    """
    try:
        for entry in shards:
            child_path(folder, entry["name"])
            known = [(expected["bytes"], expected["sha256"]) for expected in entry["files"].values()]
            documents = child_path(folder, entry["name"]) / DOCUMENTS
            if not documents.is_file():
                raise FormatError(f"{documents} is damaged or missing; encode into a new folder")
            if not known or not 0 <= int(entry["documents"]) <= documents.stat().st_size:
                raise ValueError("a shard without files, or with an impossible number of documents")
    except (TypeError, KeyError, ValueError, AttributeError, OverflowError) as error:
        raise FormatError(f"{folder / MANIFEST} is damaged: {error!r}; encode into a new folder") from error


def _shard_name(number: int) -> str:
    return f"shard-{number:05d}"


def _has_cells(shard: Shard) -> bool:
    return any(isinstance(document.metadata, Cells) for document in shard.documents)


def _write_shard(folder: Path, shard: Shard) -> dict[str, dict[str, Any]]:
    """Write the files of a shard, and return their sizes and checksums."""
    with (folder / DOCUMENTS).open("w", encoding="utf-8") as file:
        for document in shard.documents:
            record = {"doc_id": document.doc_id, "title": document.title, "text": document.text}
            file.write(json.dumps({**record, "metadata": dict(document.metadata)}, ensure_ascii=False) + "\n")
    if shard.dense is not None:
        np.save(folder / "dense.npy", shard.dense.astype(np.float16))
    if shard.sparse is not None:
        np.save(folder / "indptr.npy", shard.sparse.indptr)
        np.save(folder / "term_ids.npy", shard.sparse.term_ids)
        np.save(folder / "impacts.npy", shard.sparse.weights)
    return {path.name: {"bytes": path.stat().st_size, "sha256": sha256_file(path)} for path in sorted(folder.iterdir())}
