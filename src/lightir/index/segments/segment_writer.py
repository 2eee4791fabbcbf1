"""Writing a segment: rows become named arrays, the arrays files, the files an immutable folder with a manifest."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lightir import kernel
from lightir.files import atomic_folder, sha256_file
from lightir.index.bm25 import saturation
from lightir.index.options import IndexOptions
from lightir.index.segments import dictionary
from lightir.index.segments.dictionary import SortedStrings
from lightir.index.segments.graph import LEAST_DOCUMENTS, build_graph
from lightir.index.segments.join import Joined, Part, Streamed, whole
from lightir.index.segments.rows import DenseMatrix, DocumentRows, TokenRows
from lightir.index.segments.segment import ALIGNMENT, MANIFEST, SEGMENT_VERSION, file_of
from lightir.index.store import SEGMENTS_FOLDER, StoredSegment, segment_name
from lightir.vectors import SparseVectors


def write_rows(index: Path, rows: DocumentRows, *, number: int, mean: float, options: IndexOptions) -> StoredSegment:
    """Write documents as a new segment of an index; returns the entry that its store lists it by.

    Args:
        index: the index folder.
        rows: documents with their keys.
        number: of the segment; it must not have been used before.
        mean: the mean document length that BM25's saturation is stored for.
        options: whether dense rows get int8 copies and a graph.
    """
    dense_copies = options.dense_dtype == "fp16+int8"
    arrays, record = segment_arrays(rows, mean=mean, dense_copies=dense_copies, dense_graph=options.dense_graph)
    checksum = write_segment(index / SEGMENTS_FOLDER / segment_name(number), arrays, record=record)
    return StoredSegment(number, len(rows), checksum, None)


def write_joined(
    index: Path,
    parts: Sequence[Part],
    *,
    number: int,
    mean: float,
    options: IndexOptions,
    told: Callable[[int], object] = lambda _: None,
) -> StoredSegment:
    """Write documents of segments as one new segment: what `write_rows` writes of their `join`, in little memory.

    Args:
        index: see `write_rows`.
        parts: whose documents they are, each doc_id once.
        number: see `write_rows`.
        mean: see `write_rows`.
        options: see `write_rows`.
        told: is called with numbers of bytes as they are written.
    """
    documents, segments = Joined(parts), index / SEGMENTS_FOLDER
    arrays, record = joined_arrays(documents, segments, mean=mean, options=options)
    checksum = write_segment(segments / segment_name(number), arrays, record=record, told=told)
    return StoredSegment(number, len(documents), checksum, None)


def joined_arrays(
    documents: Joined, scratch: Path, *, mean: float, options: IndexOptions
) -> tuple[dict[str, npt.NDArray[Any] | Streamed], dict[str, Any]]:
    """What `segment_arrays` gives, with the large arrays streamed.

    Args:
        documents: their order is that of the segment.
        scratch: a folder for temporary files, which have no names there.
        mean: see `segment_arrays`.
        options: whether dense rows get int8 copies and a graph.
    """
    text, indptr = documents.doc_ids()
    arrays: dict[str, npt.NDArray[Any] | Streamed] = {
        "documents.ids.text": text,
        "documents.ids.indptr": indptr,
        "documents.keys": documents.doc_keys,
    }
    if documents.pending.any():
        arrays["documents.pending"] = documents.pending
    record: dict[str, Any] = {"documents": len(documents), "vocab_sizes": {}, "mean_length": mean, "total_length": 0}
    if documents.having("dense"):
        rows, scales = documents.dense()
        n_encoded = int(np.count_nonzero(~documents.pending))
        if options.dense_graph and n_encoded >= LEAST_DOCUMENTS:
            mapped = whole(rows, scratch)
            arrays["graph.hnsw"], facts = build_graph(mapped, scales, ~documents.pending)
            record["graph"] = dataclasses.asdict(facts)
        arrays |= _streamed_dense(rows, scales, copies=options.dense_dtype == "fp16+int8")
    if documents.having("sparse"):
        sparse, record["vocab_sizes"]["sparse"] = documents.sparse(scratch)
        arrays |= sparse
    if documents.having("tokens"):
        tokens, record["vocab_sizes"]["tokens"], record["total_length"] = documents.tokens(mean, scratch)
        arrays |= tokens
    return arrays, record


def _streamed_dense(
    rows: Streamed, scales: npt.NDArray[np.float32] | None, *, copies: bool
) -> dict[str, npt.NDArray[Any] | Streamed]:
    if scales is not None:
        return {"dense.rows": rows, "dense.scales": scales}
    if not copies:
        return {"dense.rows": rows}
    n = rows.shape[:1]

    def made(field: str, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> Streamed:
        return Streamed(
            np.dtype(dtype), shape, lambda: (getattr(kernel.copy_rows(piece), field) for piece in rows.pieces())
        )

    return {
        "dense.rows": rows,
        "dense.copies": made("rows", np.int8, rows.shape),
        "dense.copy_scales": made("scales", np.float32, n),
        "dense.copy_errors": made("errors", np.float32, n),
    }


def segment_arrays(
    rows: DocumentRows, *, mean: float, dense_copies: bool = False, dense_graph: bool = False
) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
    """A segment's arrays by name, and what its manifest says of them; documents are sorted by doc_id.

    Args:
        rows: documents with their keys.
        mean: the mean document length that BM25's saturation is stored for.
        dense_copies: add int8 copies of float16 rows.
        dense_graph: build a graph over the dense rows if at least LEAST_DOCUMENTS documents have vectors.
    """
    rows = rows.in_order()
    text, indptr = SortedStrings.pack(rows.doc_ids)
    arrays: dict[str, npt.NDArray[Any]] = {
        "documents.ids.text": text,
        "documents.ids.indptr": indptr,
        "documents.keys": rows.doc_keys,
    }
    if rows.pending.any():
        arrays["documents.pending"] = rows.pending
    vocab_sizes: dict[str, int] = {}
    if rows.dense is not None:
        arrays |= _dense_arrays(rows.dense, copies=dense_copies)
    if rows.sparse is not None:
        vocab_sizes["sparse"] = rows.sparse.vocab_size
        arrays |= _sparse_arrays("sparse", rows.sparse)
    if rows.tokens is not None:
        vocab_sizes["tokens"] = len(rows.tokens.terms)
        arrays |= _token_arrays(rows.tokens, mean)
    record = {
        "documents": len(rows),
        "vocab_sizes": vocab_sizes,
        "mean_length": mean,
        "total_length": rows.total_length,
    }
    encoded = ~rows.pending
    if dense_graph and rows.dense is not None and np.count_nonzero(encoded) >= LEAST_DOCUMENTS:
        arrays["graph.hnsw"], facts = build_graph(rows.dense.rows, rows.dense.scales, encoded)
        record["graph"] = dataclasses.asdict(facts)
    return arrays, record


def _dense_arrays(dense: DenseMatrix, *, copies: bool) -> dict[str, npt.NDArray[Any]]:
    if dense.scales is not None:
        return {"dense.rows": dense.rows, "dense.scales": dense.scales}
    if not copies:
        return {"dense.rows": dense.rows}
    made = kernel.copy_rows(dense.rows)
    return {
        "dense.rows": dense.rows,
        "dense.copies": made.rows,
        "dense.copy_scales": made.scales,
        "dense.copy_errors": made.errors,
    }


def _token_arrays(tokens: TokenRows, mean: float) -> dict[str, npt.NDArray[Any]]:
    counts = tokens.counts
    if tokens.lengths is None:
        return {**_sparse_arrays("tokens", counts), **dictionary.pack(tokens.terms)}
    weights = saturation(counts.weights, counts.indptr, tokens.lengths, mean)
    return {
        **_sparse_arrays("tokens", counts.with_weights(weights)),
        # Documents keep their counts, from which the saturation for any mean is made.
        "tokens.forward.weights": counts.weights,
        "tokens.lengths": tokens.lengths,
        "tokens.df": np.bincount(counts.term_ids, minlength=len(tokens.terms)).astype(np.uint32),
        **dictionary.pack(tokens.terms),
    }


def _sparse_arrays(name: str, vectors: SparseVectors) -> dict[str, npt.NDArray[Any]]:
    """A sparse branch twice: inverted for searching, and document by document for single scores."""
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


def write_segment(
    folder: Path,
    arrays: Mapping[str, npt.NDArray[Any] | Streamed],
    *,
    record: dict[str, Any],
    told: Callable[[int], object] = lambda _: None,
) -> str:
    """Write the arrays and the manifest into a new folder, whole or not at all; returns the manifest's checksum.

    Args:
        folder: of the segment.
        arrays: by name, see `file_of`.
        record: what else the manifest says.
        told: is called with numbers of bytes as they are written.
    """
    with atomic_folder(folder) as aside:
        places: dict[str, Any] = {}
        files: dict[str, Any] = {}
        for file in sorted({file_of(name) for name in arrays}):
            path = aside / file
            here = {name: arrays[name] for name in sorted(arrays) if file_of(name) == file}
            places |= _write_arrays(path, here, told)
            files[path.name] = {"bytes": path.stat().st_size, "sha256": sha256_file(path)}
        manifest = {"format_version": SEGMENT_VERSION, **record, "files": files, "arrays": places}
        content = json.dumps(manifest, ensure_ascii=False).encode()
        (aside / MANIFEST).write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def _write_arrays(
    path: Path, arrays: Mapping[str, npt.NDArray[Any] | Streamed], told: Callable[[int], object]
) -> dict[str, Any]:
    places = {}
    with path.open("xb") as file:
        for name, array in arrays.items():
            file.write(bytes(-file.tell() % ALIGNMENT))
            offset = file.tell()
            places[name] = {"offset": offset, "dtype": array.dtype.str, "shape": list(array.shape)}
            for piece in array.pieces() if isinstance(array, Streamed) else (array,):
                told(file.write(np.ascontiguousarray(piece, array.dtype).data))
            expected = math.prod(array.shape) * array.dtype.itemsize
            if file.tell() - offset != expected:
                raise AssertionError(f"{path}: {name} has {file.tell() - offset} bytes, not {expected}")
    return places
