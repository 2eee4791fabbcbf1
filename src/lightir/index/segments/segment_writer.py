"""Writing a segment: a join becomes named arrays, the arrays files, the files an immutable folder with a manifest."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lightir import kernel
from lightir.errors import OutcomeUnknown, WriteFailed, storage_error
from lightir.files import atomic_folder, sha256_file
from lightir.index.index_options import IndexOptions
from lightir.index.segments.graph import LEAST_DOCUMENTS, build_graph
from lightir.index.segments.join import AnyArray, Array, Join, Streamed, mapped
from lightir.index.segments.layout import (
    ALIGNMENT,
    CODED_ABOVE,
    MANIFEST,
    SEGMENT_VERSION,
    SEGMENTS_FOLDER,
    StoredSegment,
    file_of,
    segment_name,
)
from lightir.progress import Progress


def write_segment(
    index: Path,
    documents: Join,
    *,
    number: int,
    mean: float,
    options: IndexOptions,
    on_bytes: Callable[[int], object] = lambda _: None,
    progress: bool = False,
) -> StoredSegment:
    """Write documents as a new segment of an index and return its entry for the store.

    Args:
        index: index folder.
        documents: documents of the segment.
        number: number of the segment, never used before.
        mean: mean document length for which BM25's saturation is stored.
        options: options of the index.
        on_bytes: called with numbers of bytes as they are written.
        progress: show the progress of building a graph.
    """
    folder = index / SEGMENTS_FOLDER
    arrays, facts = segment_arrays(documents, folder, mean=mean, options=options, progress=progress)
    checksum = write_arrays(folder / segment_name(number), arrays, facts=facts, on_bytes=on_bytes)
    return StoredSegment(number, len(documents), checksum, None)


def segment_arrays(
    documents: Join, scratch: Path, *, mean: float, options: IndexOptions, progress: bool = False
) -> tuple[dict[str, AnyArray], dict[str, Any]]:
    """Return the arrays of a segment by name, and the facts for its manifest.

    Args:
        documents: documents of the segment.
        scratch: folder for temporary files, which are unlinked at once.
        mean: mean document length for which BM25's saturation is stored.
        options: options of the index.
        progress: show the progress of building a graph.
    """
    text, indptr = documents.doc_ids()
    arrays: dict[str, AnyArray] = {
        "documents.ids.text": text,
        "documents.ids.indptr": indptr,
        "documents.keys": documents.doc_keys,
    }
    if documents.pending.any():
        arrays["documents.pending"] = documents.pending
    facts: dict[str, Any] = {"documents": len(documents), "vocab_sizes": {}, "mean_length": mean, "total_length": 0}
    if documents.has("dense"):
        rows, scales = documents.dense()
        encoded = ~documents.pending
        if options.dense_graph and np.count_nonzero(encoded) >= LEAST_DOCUMENTS:
            matrix = mapped(rows, scratch) if isinstance(rows, Streamed) else rows
            with Progress("graph", unit="document", total=int(encoded.sum()), shown=progress) as bar:
                arrays["graph.hnsw"], graph_facts = build_graph(matrix, scales, encoded, on_nodes=bar.update)
            facts["graph"] = dataclasses.asdict(graph_facts)
        arrays |= _dense_arrays(rows, scales, copies=options.dense_dtype == "fp16+int8")
        if len(documents) > CODED_ABOVE:
            arrays |= _code_arrays(rows, scales, scratch)
    if documents.has("sparse"):
        sparse, facts["vocab_sizes"]["sparse"] = documents.sparse(scratch)
        arrays |= sparse
    if documents.has("tokens"):
        tokens, facts["vocab_sizes"]["tokens"], facts["total_length"] = documents.tokens(mean, scratch)
        arrays |= tokens
    return arrays, facts


def _dense_arrays(rows: AnyArray, scales: npt.NDArray[np.float32] | None, *, copies: bool) -> dict[str, AnyArray]:
    if scales is not None:
        return {"dense.rows": rows, "dense.scales": scales}
    if not copies:
        return {"dense.rows": rows}
    if not isinstance(rows, Streamed):
        made = kernel.copy_rows(rows)
        return {
            "dense.rows": rows,
            "dense.copies": made.rows,
            "dense.copy_scales": made.scales,
            "dense.copy_errors": made.errors,
        }
    pieces = rows.pieces

    def streamed(field: str, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> Streamed:
        return Streamed(np.dtype(dtype), shape, lambda: (getattr(kernel.copy_rows(piece), field) for piece in pieces()))

    return {
        "dense.rows": rows,
        "dense.copies": streamed("rows", np.int8, rows.shape),
        "dense.copy_scales": streamed("scales", np.float32, rows.shape[:1]),
        "dense.copy_errors": streamed("errors", np.float32, rows.shape[:1]),
    }


def _code_arrays(rows: AnyArray, scales: npt.NDArray[np.float32] | None, scratch: Path) -> dict[str, AnyArray]:
    """Return the 2-bit codes of rows; those of streamed rows go through a temporary file."""
    center = kernel.code_center(_first_rows(rows, kernel.CODED_SAMPLE), scales=scales)
    row_scales, errors = np.empty(rows.shape[0], np.uint16), np.empty(rows.shape[0], np.uint16)

    def pieces() -> Iterator[Array]:
        first = 0
        for piece in _blocks(rows.pieces()) if isinstance(rows, Streamed) else (rows,):
            span = slice(first, first + len(piece))
            made = kernel.code_rows(piece, scales=None if scales is None else scales[span], center=center)
            row_scales[span], errors[span] = made.scales, made.errors
            first += len(piece)
            yield made.rows

    if isinstance(rows, Streamed):
        n_blocks, n_columns = -(-rows.shape[0] // kernel.CODED_BLOCK), -(-rows.shape[1] // 4)
        codes = mapped(Streamed(np.dtype(np.uint8), (n_blocks, n_columns, kernel.CODED_BLOCK), pieces), scratch)
    else:
        (codes,) = pieces()
    return {
        "dense.rotated_codes": codes,
        "dense.rotated_scales": row_scales,
        "dense.rotated_errors": errors,
        "dense.rotated_center": center,
    }


def _blocks(pieces: Iterable[Array]) -> Iterator[Array]:
    """Yield the same rows in pieces of whole blocks of codes; the last one has what remains."""
    rest: list[Array] = []
    for piece in pieces:
        rows = np.concatenate([*rest, piece])
        whole = len(rows) // kernel.CODED_BLOCK * kernel.CODED_BLOCK
        if whole:
            yield rows[:whole]
        rest = [rows[whole:]]
    if rest and len(rest[0]):
        yield rest[0]


def _first_rows(rows: AnyArray, n: int) -> Array:
    if not isinstance(rows, Streamed):
        return rows[:n]
    pieces: list[Array] = []
    for piece in rows.pieces():
        pieces.append(piece)
        if sum(map(len, pieces)) >= n:
            break
    return np.concatenate(pieces)[:n]


def write_arrays(
    folder: Path,
    arrays: Mapping[str, AnyArray],
    *,
    facts: Mapping[str, Any],
    on_bytes: Callable[[int], object] = lambda _: None,
) -> str:
    """Write arrays and a manifest into a new folder, whole or not at all, and return the manifest's checksum.

    Args:
        folder: folder of the segment.
        arrays: arrays by name; `file_of` names the file of each.
        facts: further entries of the manifest.
        on_bytes: called with numbers of bytes as they are written.
    """
    try:
        return _write_folder(folder, arrays, facts, on_bytes)
    except OutcomeUnknown as error:  # no store lists the segment yet
        raise storage_error(f"cannot write {folder}", error, kind=WriteFailed) from error


def _write_folder(
    folder: Path, arrays: Mapping[str, AnyArray], facts: Mapping[str, Any], on_bytes: Callable[[int], object]
) -> str:
    with atomic_folder(folder) as aside:
        entries: dict[str, Any] = {}
        files: dict[str, Any] = {}
        for file in sorted({file_of(name) for name in arrays}):
            path = aside / file
            of_file = {name: arrays[name] for name in sorted(arrays) if file_of(name) == file}
            entries |= _write_file(path, of_file, on_bytes)
            files[path.name] = {"bytes": path.stat().st_size, "sha256": sha256_file(path)}
        manifest = {"format_version": SEGMENT_VERSION, **facts, "files": files, "arrays": entries}
        content = json.dumps(manifest, ensure_ascii=False).encode()
        (aside / MANIFEST).write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def _write_file(path: Path, arrays: Mapping[str, AnyArray], on_bytes: Callable[[int], object]) -> dict[str, Any]:
    """Write one file of arrays and return their entries in the manifest."""
    entries = {}
    with path.open("xb") as file:
        for name, array in arrays.items():
            file.write(bytes(-file.tell() % ALIGNMENT))
            offset = file.tell()
            entries[name] = {"offset": offset, "dtype": array.dtype.str, "shape": list(array.shape)}
            for piece in array.pieces() if isinstance(array, Streamed) else (array,):
                on_bytes(file.write(np.ascontiguousarray(piece, array.dtype).data))
            expected = math.prod(array.shape) * array.dtype.itemsize
            if file.tell() - offset != expected:
                raise AssertionError(f"{path}: {name} has {file.tell() - offset} bytes, not {expected}")
    return entries
