"""A segment: an immutable folder of raw arrays with a manifest of sizes and checksums, memory-mapped when read."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lightir import kernel
from lightir.errors import FormatError, LightirError
from lightir.files import child_path
from lightir.index.segments.columns import Columns
from lightir.index.segments.dictionary import SortedIds, SortedStrings
from lightir.index.segments.graph import Graph, GraphFacts
from lightir.index.segments.layout import MANIFEST, SEGMENT_VERSION, file_of
from lightir.index.segments.rows import DenseMatrix, DocumentRows, TokenRows
from lightir.vectors import TermIds

DenseArray = npt.NDArray[np.float16] | npt.NDArray[np.int8]


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

    @property
    def vocab_size(self) -> int:
        """Upper bound of the term ids."""
        return self.postings.vocab_size

    def row(self, doc_ord: int) -> tuple[npt.NDArray[np.uint32], kernel.Weights]:
        """One document's term ids and weights."""
        span = slice(self.indptr[doc_ord], self.indptr[doc_ord + 1])
        return self.term_ids[span], self.weights[span]


class Segment:
    """A segment's arrays, memory-mapped as a whole when it is opened; nothing is read before it is used.

    On Linux mapped files live on when they are removed, so a reader may go on with a segment that was merged away.
    """

    def __init__(self, folder: Path, manifest_sha256: str) -> None:
        """Open a segment and check the sizes of its files.

        Raises:
            FormatError: a file is missing, damaged or of another version.
        """
        self.folder = folder
        path = folder / MANIFEST
        content = path.read_bytes() if path.is_file() else b""
        if hashlib.sha256(content).hexdigest() != manifest_sha256:
            raise FormatError(f"{path} is missing or not the one that the index was saved with")
        self._manifest_bytes = content
        self.manifest = _checked_manifest(path, content)
        self.buffers = {
            name: _mapped(child_path(folder, name), int(entry["bytes"]))
            for name, entry in self.manifest["files"].items()
        }
        self._ask_for_huge_pages()

    def _ask_for_huge_pages(self) -> None:
        """For dense rows, of which a search without a graph reads all; nothing where the system has none."""
        dense = self.buffers.get("dense.bin")
        if isinstance(dense, mmap.mmap) and "graph" not in self.manifest and hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):
                dense.madvise(mmap.MADV_HUGEPAGE)

    def __len__(self) -> int:
        """Number of documents, deleted ones too."""
        return int(self.manifest["documents"])

    def array(self, name: str) -> npt.NDArray[Any]:
        """One array, memory-mapped, read-only."""
        place = self.manifest["arrays"].get(name)
        if place is None:
            raise FormatError(f"{self.folder / MANIFEST} lists no {name}, which belongs to what it lists")
        dtype, shape = np.dtype(place["dtype"]), tuple(place["shape"])
        count = math.prod(shape)
        if not count:
            return np.zeros(shape, dtype)
        buffer = self.buffers[file_of(name)]
        return np.frombuffer(buffer, dtype, count, offset=int(place["offset"])).reshape(shape)

    def has(self, branch: str) -> bool:
        """Whether the segment holds the branch."""
        return f"{branch}.bin" in self.manifest["files"]

    @cached_property
    def doc_ids(self) -> SortedStrings:
        """The documents' ids, ascending."""
        return SortedStrings(self.array("documents.ids.text"), self.array("documents.ids.indptr"))

    @cached_property
    def doc_keys(self) -> npt.NDArray[np.int64]:
        """(n,) the documents' keys in the store."""
        return self.array("documents.keys")

    @cached_property
    def columns(self) -> Columns:
        """The documents' metadata, as far as filters have asked for it."""
        return Columns(self.doc_keys)

    @cached_property
    def pending(self) -> npt.NDArray[np.bool_]:
        """(n,) whether a document waits for its vectors."""
        if "documents.pending" not in self.manifest["arrays"]:
            return np.zeros(len(self), dtype=np.bool_)
        return self.array("documents.pending")

    @cached_property
    def dense(self) -> tuple[DenseArray, npt.NDArray[np.float32] | None] | None:
        """The dense rows (n, dim), and their scales where they are int8; None where all are pending."""
        if not self.has("dense"):
            return None
        rows = self.array("dense.rows")
        return rows, self.array("dense.scales") if rows.dtype == np.int8 else None

    @cached_property
    def dense_copies(self) -> kernel.Copies | None:
        """int8 copies of the dense rows, which are scanned first; None without them."""
        if "dense.copies" not in self.manifest["arrays"]:
            return None
        return kernel.Copies(*(self.array(f"dense.{name}") for name in ("copies", "copy_scales", "copy_errors")))

    @cached_property
    def graph(self) -> Graph | None:
        """The graph over the dense rows; None where the index has none, or the segment is small.

        Its file is read against its checksum first, once a process: usearch follows a damaged graph out of memory.

        Raises:
            FormatError: it is damaged.
            MissingExtra: there is one, but usearch is not installed.
        """
        if "graph" not in self.manifest or self.dense is None:
            return None
        try:
            self._verify_file("graph.bin")
        except FormatError as error:
            raise FormatError(f"{error}; Index.open(exact=True) or --exact searches without it") from None
        rows, scales = self.dense
        return Graph(self.array("graph.hnsw"), rows, scales, GraphFacts(**self.manifest["graph"]))

    @cached_property
    def sparse(self) -> SparseBranch | None:
        """The learned sparse branch; None where all are pending."""
        return self.sparse_branch("sparse") if self.has("sparse") else None

    @cached_property
    def tokens(self) -> SparseBranch | None:
        """The tokens branch.

        BM25's: the postings' weights are saturations for `mean_length`, the documents' weights counts. Of bags: all 1.
        """
        return self.sparse_branch("tokens") if self.has("tokens") else None

    @cached_property
    def counts(self) -> kernel.Postings | None:
        """The inverted file of how often each term occurs, made in memory when it is first asked for; None of bags."""
        tokens = self.tokens
        if tokens is None or self.holds_bags:
            return None
        vocab_size = tokens.postings.vocab_size
        return kernel.invert(tokens.indptr, tokens.term_ids, tokens.weights, vocab_size=vocab_size, n_docs=len(self))

    @property
    def holds_bags(self) -> bool:
        """Whether the tokens branch says only which terms stand in a document: no counts, no lengths."""
        return self.has("tokens") and "tokens.lengths" not in self.manifest["arrays"]

    @cached_property
    def terms(self) -> SortedStrings | SortedIds:
        """The dictionary of the tokens branch; a term's place in it is its id there."""
        if "tokens.terms.ids" in self.manifest["arrays"]:
            return SortedIds(self.array("tokens.terms.ids"))
        return SortedStrings(self.array("tokens.terms.text"), self.array("tokens.terms.indptr"))

    def term_positions(self, term_ids: TermIds) -> npt.NDArray[np.int64]:
        """(n,) the places of the model's term ids in a dictionary of such; -1 for a term that no document has."""
        if not self.has("tokens"):
            return np.full(len(term_ids), -1, dtype=np.int64)
        return SortedIds(self.array("tokens.terms.ids")).positions(term_ids)

    @cached_property
    def df(self) -> npt.NDArray[np.uint32]:
        """(n_terms,) in how many documents each term of the tokens branch occurs, deleted ones too."""
        return self.array("tokens.df")

    @cached_property
    def lengths(self) -> npt.NDArray[np.uint32]:
        """(n,) the documents' numbers of terms, repeats counted."""
        return self.array("tokens.lengths")

    @property
    def mean_length(self) -> float:
        """What the tokens branch's postings are computed for."""
        return float(self.manifest["mean_length"])

    @property
    def total_length(self) -> int:
        """The sum of lengths, deleted documents too."""
        return int(self.manifest["total_length"])

    def sparse_branch(self, name: str) -> SparseBranch:
        """A sparse branch's arrays."""
        fields = ("term_ids", "term_indptr", "run_blocks", "run_indptr", "offsets", "weights")
        postings = kernel.Postings(
            int(self.manifest["vocab_sizes"][name]),
            len(self),
            **{field: self.array(f"{name}.postings.{field}") for field in fields},
        )
        return SparseBranch(postings, *(self.array(f"{name}.forward.{f}") for f in ("indptr", "term_ids", "weights")))

    def rows(self) -> DocumentRows:
        """Return the documents as a source of a join; nothing is copied or read."""
        dense = None if self.dense is None else DenseMatrix(*self.dense)
        tokens = None
        if self.tokens is not None:
            tokens = TokenRows(self.terms, self.tokens, None if self.holds_bags else self.lengths)
        return DocumentRows(self.doc_ids, self.doc_keys, self.pending, dense, self.sparse, tokens)

    def n_bytes(self, branch: str) -> int:
        """Bytes on the disk of a branch's file; 0 where the segment lacks it."""
        entry = self.manifest["files"].get(f"{branch}.bin")
        return 0 if entry is None else int(entry["bytes"])

    def verify(self) -> None:
        """Read every file against its checksum.

        Raises:
            FormatError: names the file that is damaged.
        """
        for name in self.manifest["files"]:
            self._verify_file(name)

    def _verify_file(self, name: str) -> None:
        if hashlib.sha256(self.buffers[name]).hexdigest() != self.manifest["files"][name]["sha256"]:
            raise FormatError(f"{self.folder / name} is damaged: its checksum is not the manifest's")

    @contextlib.contextmanager
    def naming_damage(self) -> Iterator[None]:
        """Inside, what numpy says of arrays that cannot be right becomes the name of the file that is damaged.

        Raises:
            FormatError: as `verify`.
        """
        try:
            yield
        except LightirError:
            raise
        except (IndexError, ValueError, MemoryError, OverflowError):
            self.verify()
            raise

    def copy(self, folder: Path) -> None:
        """Write the same segment elsewhere, out of the mapped files, even when they were removed meanwhile."""
        folder.mkdir(parents=True)
        for name, buffer in self.buffers.items():
            (folder / name).write_bytes(buffer)
        (folder / MANIFEST).write_bytes(self._manifest_bytes)


def _checked_manifest(path: Path, content: bytes) -> dict[str, Any]:
    """The manifest, whose arrays lie in its files, so that nothing that is read of a segment lies outside them."""
    try:
        manifest: dict[str, Any] = json.loads(content)
        if (version := manifest["format_version"]) != SEGMENT_VERSION:
            raise FormatError(f"{path} has segment format {version}; this release reads {SEGMENT_VERSION}")
        sizes = {name: int(entry["bytes"]) for name, entry in manifest["files"].items()}
        for name, place in manifest["arrays"].items():
            dtype, offset, shape = np.dtype(place["dtype"]), place["offset"], place["shape"]
            numbers = (offset, *shape)
            if not all(type(each) is int and each >= 0 for each in numbers) or dtype.kind not in "biuf":
                raise ValueError(f"{name} is {place}")
            if offset % dtype.itemsize or offset + math.prod(shape) * dtype.itemsize > sizes[file_of(name)]:
                raise ValueError(f"{name} does not lie in its file")
        if manifest["arrays"]["documents.keys"]["shape"] != [manifest["documents"]]:
            raise ValueError("there are not as many keys as documents")
        if lacking := {name.split(".")[0] for name in sizes} & {"sparse", "tokens"} - manifest["vocab_sizes"].keys():
            raise ValueError(f"no vocabulary size of {lacking}")
        for number in (manifest["mean_length"], manifest["total_length"], *manifest["vocab_sizes"].values()):
            if not 0 <= number < math.inf:
                raise ValueError(f"{number} is no length or size")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FormatError(f"{path} is damaged: {error!r}") from error
    return manifest


def _mapped(path: Path, n_bytes: int) -> mmap.mmap | bytes:
    if not path.is_file():
        raise FormatError(f"{path} is missing")
    with path.open("rb") as file:
        found = os.fstat(file.fileno()).st_size
        if found != n_bytes:
            raise FormatError(f"{path} has {found} bytes; expected {n_bytes}")
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if n_bytes else b""
