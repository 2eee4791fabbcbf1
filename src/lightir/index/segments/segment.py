"""A segment: an immutable folder of memory-mapped raw arrays with a manifest of sizes and checksums."""

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
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from lightir import kernel
from lightir.errors import FormatError, LightirError, storage_error, storage_errors
from lightir.files import child_path
from lightir.index.segments.columns import Columns, Mask
from lightir.index.segments.dictionary import SortedIds, SortedStrings
from lightir.index.segments.graph import GraphFacts, open_graph
from lightir.index.segments.layout import MANIFEST, SEGMENT_VERSION, file_of
from lightir.index.segments.rows import DenseMatrix, DocumentRows, TokenRows
from lightir.kernel.segments import ScannedRows, StoredGraph
from lightir.vectors import TermIds

RUN_DOCUMENTS = 65_536
"""Number of documents of a block of postings, see `lightir.kernel.Postings`."""

DenseArray = npt.NDArray[np.float16] | npt.NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class SparseBranch:
    """A sparse branch, both inverted for searching and by document for single scores.

    Attributes:
        postings: inverted file.
        indptr: (n_docs + 1,) int64, start of each document.
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
        """Return the term ids and weights of a document."""
        span = slice(self.indptr[doc_ord], self.indptr[doc_ord + 1])
        return self.term_ids[span], self.weights[span]

    def documents_with(self, term_ids: npt.NDArray[np.uint32]) -> Mask:
        """Return the (n_docs,) mask of the documents that have one of some terms."""
        postings = self.postings
        mask = np.zeros(postings.n_docs, dtype=np.bool_)
        terms = np.searchsorted(postings.term_ids, term_ids)
        for term, term_id in zip(terms.tolist(), term_ids.tolist(), strict=True):
            if term == len(postings.term_ids) or postings.term_ids[term] != term_id:
                continue
            first, last = postings.term_indptr[term : term + 2].tolist()
            starts = postings.run_indptr[first : last + 1]
            blocks = np.repeat(postings.run_blocks[first:last].astype(np.int64), np.diff(starts))
            mask[blocks * RUN_DOCUMENTS + postings.offsets[starts[0] : starts[-1]]] = True
        return mask


class Segment:
    """The arrays of a segment, memory-mapped when it is opened and read on use.

    On Linux a mapped file remains readable after its removal, so a reader keeps segments that were merged meanwhile.
    """

    def __init__(self, folder: Path, manifest_sha256: str) -> None:
        """Open a segment and check the sizes of its files.

        Args:
            folder: folder of the segment.
            manifest_sha256: expected checksum of the manifest.

        Raises:
            FormatError: a file is missing, damaged or of another version.
        """
        self.folder = folder
        path = folder / MANIFEST
        with storage_errors(f"cannot read {path}"), _opened(path) as file:
            content = file.read()
        if hashlib.sha256(content).hexdigest() != manifest_sha256:
            raise FormatError(f"{path} is damaged: its checksum differs from that in the store")
        self._manifest_bytes = content
        self.manifest = _checked_manifest(path, content)
        self.buffers = {
            name: _mapped(child_path(folder, name), int(entry["bytes"]))
            for name, entry in self.manifest["files"].items()
        }
        self._ask_for_huge_pages()

    def _ask_for_huge_pages(self) -> None:
        """Ask for huge pages for dense rows that searches read whole; ignored where the system has none."""
        dense = self.buffers.get("dense.bin")
        if isinstance(dense, mmap.mmap) and "graph" not in self.manifest and hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):
                dense.madvise(mmap.MADV_HUGEPAGE)

    def __len__(self) -> int:
        """Number of documents, deleted ones included."""
        return int(self.manifest["documents"])

    def array(self, name: str) -> npt.NDArray[Any]:
        """Return a memory-mapped, read-only array."""
        entry = self.manifest["arrays"].get(name)
        if entry is None:
            raise FormatError(f"{self.folder / MANIFEST} lacks the array {name}, which its other arrays require")
        dtype, shape = np.dtype(entry["dtype"]), tuple(entry["shape"])
        count = math.prod(shape)
        if not count:
            return np.zeros(shape, dtype)
        buffer = self.buffers[file_of(name)]
        return np.frombuffer(buffer, dtype, count, offset=int(entry["offset"])).reshape(shape)

    def has(self, branch: str) -> bool:
        """Return whether the segment has a branch."""
        return f"{branch}.bin" in self.manifest["files"]

    @cached_property
    def doc_ids(self) -> SortedStrings:
        """Ids of the documents, ascending."""
        return SortedStrings(self.array("documents.ids.text"), self.array("documents.ids.indptr"))

    @cached_property
    def doc_keys(self) -> npt.NDArray[np.int64]:
        """(n,) keys of the documents in the store."""
        return self.array("documents.keys")

    @cached_property
    def columns(self) -> Columns:
        """Metadata of the documents, for filters; read on demand."""
        return Columns(self.doc_keys)

    @cached_property
    def pending(self) -> npt.NDArray[np.bool_]:
        """(n,) bool, whether a document is pending."""
        if "documents.pending" not in self.manifest["arrays"]:
            return np.zeros(len(self), dtype=np.bool_)
        return self.array("documents.pending")

    @cached_property
    def dense(self) -> tuple[DenseArray, npt.NDArray[np.float32] | None] | None:
        """The (n, dim) dense rows, and the scales of int8 rows; None if all documents are pending."""
        if not self.has("dense"):
            return None
        rows = self.array("dense.rows")
        return rows, self.array("dense.scales") if rows.dtype == np.int8 else None

    @cached_property
    def dense_copies(self) -> kernel.Copies | None:
        """int8 copies of the dense rows, which are scanned first if there are no codes; None without copies."""
        if "dense.copies" not in self.manifest["arrays"]:
            return None
        return kernel.Copies(*(self.array(f"dense.{name}") for name in ("copies", "copy_scales", "copy_errors")))

    @cached_property
    def dense_codes(self) -> kernel.RowCodes | None:
        """2-bit codes of the dense rows, which are scanned first; None without codes."""
        if "dense.rotated_codes" not in self.manifest["arrays"]:
            return None
        names = ("codes", "scales", "errors", "center")
        return kernel.RowCodes(*(self.array(f"dense.rotated_{name}") for name in names))

    @property
    def dense_rows(self) -> ScannedRows | None:
        """The dense rows with their copies and codes, for the kernel; None if all documents are pending."""
        return None if self.dense is None else ScannedRows(*self.dense, self.dense_copies, self.dense_codes)

    @cached_property
    def graph(self) -> StoredGraph | None:
        """The graph over the dense rows; None without graphs, or for a small segment.

        The checksum of its file and the bounds of its links are verified first, once per process.

        Raises:
            FormatError: the graph is damaged.
        """
        if "graph" not in self.manifest or self.dense is None:
            return None
        rows = self.dense[0]
        try:
            self._verify_file("graph.bin")
            facts = GraphFacts(**self.manifest["graph"])
            if not 0 < facts.documents <= len(rows):
                raise FormatError(f"the manifest counts {facts.documents} documents in a graph over {len(rows)} rows")
            return open_graph(self.array("graph.hnsw"), (len(rows), rows.shape[1]), facts)
        except FormatError as error:
            raise FormatError(f"{error}; to search without the graph, use Index.open(exact=True) or --exact") from None

    @cached_property
    def sparse(self) -> SparseBranch | None:
        """The learned sparse branch; None if all documents are pending."""
        return self.sparse_branch("sparse") if self.has("sparse") else None

    @cached_property
    def tokens(self) -> SparseBranch | None:
        """The tokens branch.

        For BM25, weights of postings are saturations for `mean_length`, and weights by document are counts. For bags
        all weights are 1.
        """
        return self.sparse_branch("tokens") if self.has("tokens") else None

    @cached_property
    def counts(self) -> kernel.Postings | None:
        """The inverted file of term counts, computed in memory on first use; None for bags."""
        tokens = self.tokens
        if tokens is None or self.holds_bags:
            return None
        vocab_size = tokens.postings.vocab_size
        return kernel.invert(tokens.indptr, tokens.term_ids, tokens.weights, vocab_size=vocab_size, n_docs=len(self))

    @property
    def holds_bags(self) -> bool:
        """Whether the tokens branch holds bags: which terms occur in a document, without counts and lengths."""
        return self.has("tokens") and "tokens.lengths" not in self.manifest["arrays"]

    @cached_property
    def terms(self) -> SortedStrings | SortedIds:
        """The dictionary of the tokens branch; the position of a term is its id."""
        if "tokens.terms.ids" in self.manifest["arrays"]:
            return SortedIds(self.array("tokens.terms.ids"))
        return SortedStrings(self.array("tokens.terms.text"), self.array("tokens.terms.indptr"))

    def term_positions(self, term_ids: TermIds) -> npt.NDArray[np.int64]:
        """Return the (n,) positions of the model's term ids in the dictionary; -1 for a term that does not occur."""
        if not self.has("tokens"):
            return np.full(len(term_ids), -1, dtype=np.int64)
        return SortedIds(self.array("tokens.terms.ids")).positions(term_ids)

    @cached_property
    def df(self) -> npt.NDArray[np.uint32]:
        """(n_terms,) document frequency of each term of the tokens branch, deleted documents included."""
        return self.array("tokens.df")

    @cached_property
    def lengths(self) -> npt.NDArray[np.uint32]:
        """(n,) number of terms of each document, including repetitions."""
        return self.array("tokens.lengths")

    @property
    def mean_length(self) -> float:
        """Mean document length for which the postings of the tokens branch are computed."""
        return float(self.manifest["mean_length"])

    @property
    def total_length(self) -> int:
        """Sum of the lengths, deleted documents included."""
        return int(self.manifest["total_length"])

    def sparse_branch(self, name: str) -> SparseBranch:
        """Return the arrays of a sparse branch."""
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
        """Return the size in bytes of the file of a branch; 0 without the branch."""
        entry = self.manifest["files"].get(f"{branch}.bin")
        return 0 if entry is None else int(entry["bytes"])

    def verify(self) -> None:
        """Verify the checksum of every file.

        Raises:
            FormatError: a file is damaged; the message names it.
        """
        for name in self.manifest["files"]:
            self._verify_file(name)

    def _verify_file(self, name: str) -> None:
        if hashlib.sha256(self.buffers[name]).hexdigest() != self.manifest["files"][name]["sha256"]:
            raise FormatError(f"{self.folder / name} is damaged: its checksum differs from the manifest")

    @contextlib.contextmanager
    def naming_damage(self) -> Iterator[None]:
        """Turn numpy's errors on inconsistent arrays inside the block into the name of the damaged file.

        Raises:
            FormatError: a file is damaged; the message names it.
        """
        try:
            yield
        except LightirError:
            raise
        except (IndexError, ValueError, MemoryError, OverflowError):
            self.verify()
            raise

    def copy(self, folder: Path) -> None:
        """Write a copy of the segment to a new folder, from the mapped files, which may have been removed."""
        folder.mkdir(parents=True)
        for name, buffer in self.buffers.items():
            (folder / name).write_bytes(buffer)
        (folder / MANIFEST).write_bytes(self._manifest_bytes)


def _checked_manifest(path: Path, content: bytes) -> dict[str, Any]:
    """Return the manifest after checking that all arrays are inside its files."""
    try:
        manifest: dict[str, Any] = json.loads(content)
        if (version := manifest["format_version"]) != SEGMENT_VERSION:
            raise FormatError(f"{path} has segment format {version}; this release reads {SEGMENT_VERSION}")
        sizes = {name: int(entry["bytes"]) for name, entry in manifest["files"].items()}
        for name, entry in manifest["arrays"].items():
            dtype, offset, shape = np.dtype(entry["dtype"]), entry["offset"], entry["shape"]
            numbers = (offset, *shape)
            if not all(type(number) is int and number >= 0 for number in numbers) or dtype.kind not in "biuf":
                raise ValueError(f"{name} is {entry}")
            if offset % dtype.itemsize or offset + math.prod(shape) * dtype.itemsize > sizes[file_of(name)]:
                raise ValueError(f"{name} exceeds its file")
        if manifest["arrays"]["documents.keys"]["shape"] != [manifest["documents"]]:
            raise ValueError("the numbers of keys and documents differ")
        if lacking := {name.split(".")[0] for name in sizes} & {"sparse", "tokens"} - manifest["vocab_sizes"].keys():
            raise ValueError(f"missing vocabulary size: {lacking}")
        for number in (manifest["mean_length"], manifest["total_length"], *manifest["vocab_sizes"].values()):
            if not 0 <= number < math.inf:
                raise ValueError(f"{number} is not a length or size")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FormatError(f"{path} is damaged: {error!r}") from error
    return manifest


def _mapped(path: Path, n_bytes: int) -> mmap.mmap | bytes:
    with storage_errors(f"cannot read {path}"), _opened(path) as file:
        actual = os.fstat(file.fileno()).st_size
        if actual != n_bytes:
            raise FormatError(f"{path} has {actual} bytes; expected {n_bytes}")
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if n_bytes else b""


def _opened(path: Path) -> BinaryIO:
    """Open a file.

    This is no generator with @contextmanager, because from Python 3.12 on its error would keep itself alive, with the
    segments that were opened before, until garbage collection.

    Raises:
        FormatError: the file is missing.
        StorageError: the system refuses to open it.
    """
    try:
        return path.open("rb")
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise FormatError(f"{path} is missing") from None
    except OSError as error:
        raise storage_error(f"cannot read {path}", error) from error
