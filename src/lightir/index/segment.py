"""A segment: an immutable folder of raw arrays with a manifest of sizes and checksums, memory-mapped when read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lightir import kernel
from lightir.errors import FormatError
from lightir.files import read_json, sha256_file, write_json
from lightir.vectors import SparseVectors

MANIFEST = "manifest.json"
SEGMENT_VERSION = 1


@dataclass(frozen=True, slots=True)
class SparseBranch:
    """One sparse branch twice: term by term for searching, document by document for single scores.

    Attributes:
        postings: the inverted file.
        indptr: (n_docs + 1,) int64.
        term_ids: (nnz,) uint32, ascending within a document.
        weights: (nnz,) uint8 impacts or float32 weights.
    """

    postings: kernel.Postings
    indptr: npt.NDArray[np.int64]
    term_ids: npt.NDArray[np.uint32]
    weights: kernel.Weights

    def row(self, doc_ord: int) -> tuple[npt.NDArray[np.uint32], kernel.Weights]:
        """One document's term ids and weights."""
        span = slice(self.indptr[doc_ord], self.indptr[doc_ord + 1])
        return self.term_ids[span], self.weights[span]


def sparse_arrays(name: str, vectors: SparseVectors) -> dict[str, npt.NDArray[Any]]:
    """A branch's arrays by file name (without .npy)."""
    forward: dict[str, npt.NDArray[Any]] = {
        "indptr": vectors.indptr,
        "term_ids": vectors.term_ids,
        "weights": vectors.weights,
    }
    postings = kernel.invert(
        vectors.indptr, vectors.term_ids, vectors.weights, vocab_size=vectors.vocab_size, n_docs=len(vectors)
    )
    return {
        **{f"{name}.forward.{key}": array for key, array in forward.items()},
        **{f"{name}.postings.{key}": array for key, array in postings.arrays().items()},
    }


def write_segment(folder: Path, arrays: dict[str, npt.NDArray[Any]], *, record: dict[str, Any]) -> str:
    """Write the arrays and the manifest; returns the manifest's checksum."""
    folder.mkdir(parents=True)
    files = {}
    for name in sorted(arrays):
        path = folder / f"{name}.npy"
        np.save(path, arrays[name])
        files[path.name] = {"bytes": path.stat().st_size, "sha256": sha256_file(path)}
    write_json(folder / MANIFEST, {"format_version": SEGMENT_VERSION, **record, "files": files})
    return sha256_file(folder / MANIFEST)


class Segment:
    """A segment's arrays; nothing is read before it is used."""

    def __init__(self, folder: Path, manifest_sha256: str) -> None:
        """Open a segment and check the sizes of its files.

        Raises:
            FormatError: a file is missing, damaged or of another version.
        """
        self.folder = folder
        path = folder / MANIFEST
        if not path.is_file() or sha256_file(path) != manifest_sha256:
            raise FormatError(f"{path} is missing or not the one that the index was saved with")
        self.manifest: dict[str, Any] = read_json(path)
        if self.manifest["format_version"] != SEGMENT_VERSION:
            version = self.manifest["format_version"]
            raise FormatError(f"{path} has segment format {version}; this release reads {SEGMENT_VERSION}")
        for name, expected in self.manifest["files"].items():
            self._check_size(name, int(expected["bytes"]))

    def __len__(self) -> int:
        """Number of documents."""
        return int(self.manifest["documents"])

    def array(self, name: str) -> npt.NDArray[Any]:
        """One array, memory-mapped, read-only."""
        path = self.folder / f"{name}.npy"
        try:
            array: npt.NDArray[Any] = np.load(path, mmap_mode="r")
        except (ValueError, OSError) as error:
            raise FormatError(f"{path} is damaged: {error}") from error
        return array

    def has(self, branch: str) -> bool:
        """Whether the segment holds the branch."""
        return any(name.startswith(f"{branch}.") for name in self.manifest["files"])

    def sparse_branch(self, name: str) -> SparseBranch:
        """A sparse branch's arrays."""
        fields = ("term_ids", "term_indptr", "run_blocks", "run_indptr", "offsets", "weights")
        postings = kernel.Postings(
            int(self.manifest["vocab_sizes"][name]),
            len(self),
            **{field: self.array(f"{name}.postings.{field}") for field in fields},
        )
        return SparseBranch(postings, *(self.array(f"{name}.forward.{f}") for f in ("indptr", "term_ids", "weights")))

    def n_bytes(self, prefix: str) -> int:
        """Bytes on the disk of the files with a prefix."""
        files = self.manifest["files"].items()
        return sum(int(entry["bytes"]) for name, entry in files if name.startswith(f"{prefix}."))

    def verify(self) -> None:
        """Read every file against its checksum.

        Raises:
            FormatError: names the file that is damaged.
        """
        for name, expected in self.manifest["files"].items():
            if sha256_file(self.folder / name) != expected["sha256"]:
                raise FormatError(f"{self.folder / name} is damaged: its checksum is not the manifest's")

    def _check_size(self, name: str, n_bytes: int) -> None:
        path = self.folder / name
        if not path.is_file():
            raise FormatError(f"{path} is missing")
        if path.stat().st_size != n_bytes:
            raise FormatError(f"{path} has {path.stat().st_size} bytes; expected {n_bytes}")
