"""Vectors of documents that were made elsewhere, in a .npy or Parquet file, joined to the documents of a corpus."""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from lightir.data.readers import DOC_ID_FIELDS
from lightir.data.records import parquet_file
from lightir.errors import FormatError, InvalidInput, NotFound, storage_errors
from lightir.lines import read_nonblank_lines
from lightir.quantities import counted
from lightir.shards import Shard
from lightir.types import Document
from lightir.vectors import Floats

logger = logging.getLogger(__name__)

SUFFIXES = (".npy", ".parquet")
VECTOR_FIELDS = ("vector", "embedding", "embeddings", "emb", "dense")
"""Names of the column of vectors in a Parquet file, the first that it has."""

SHARD_DOCUMENTS = 4096
MAX_FLOAT16 = float(np.finfo(np.float16).max)

Similarity = Literal["cosine", "dot"]


@dataclass(frozen=True, slots=True)
class StoredVectors:
    """Vectors of documents, by id or in the order of a corpus.

    Attributes:
        path: file that they were read from, for messages.
        rows: (n, dim) float16, float32 or float64 vectors; those of a .npy file are mapped.
        ids: ids of the documents of the rows; None if row i is the i-th document of the corpus.
        column: name of the column of a Parquet file that holds them; None for a .npy file.
    """

    path: Path
    rows: npt.NDArray[Any]
    ids: Sequence[str] | None
    column: str | None = None

    @classmethod
    def read(cls, path: Path | str, *, ids: Path | str | None = None) -> StoredVectors:
        """Open a file of vectors.

        Args:
            path: .npy file with an array of two dimensions, or Parquet file with a column of lists of numbers
                (VECTOR_FIELDS) and, unless its rows are in the order of the corpus, one of ids (DOC_ID_FIELDS).
            ids: text file with the id of each row of a .npy file, one per line; None for the order of the corpus.

        Raises:
            NotFound: a file does not exist.
            InvalidInput: another kind of file, no column of vectors, a repeated id, or another number of ids than rows.
            FormatError: a damaged file.
            MissingExtra: Parquet requires pyarrow.
        """
        path = Path(path)
        if path.suffix not in SUFFIXES:
            raise InvalidInput(f"{path} is not a file of vectors; expected {' or '.join(SUFFIXES)}")
        if not path.is_file():
            raise NotFound(f"{path} does not exist; expected a file of vectors")
        if path.suffix == ".npy":
            rows, own, column = _read_npy(path), None if ids is None else _read_ids(Path(ids)), None
        elif ids is not None:
            raise InvalidInput(f"{ids}: a Parquet file of vectors has its ids in a column ({', '.join(DOC_ID_FIELDS)})")
        else:
            rows, own, column = _read_parquet(path)
        if own is not None and len(own) != len(rows):
            raise InvalidInput(f"{ids or path} has {counted(len(own), 'id')}, but {path} has {len(rows):,} vectors")
        if own is not None and len(set(own)) < len(own):
            raise InvalidInput(
                f"{ids or path} has the id {_first_repeated(own)!r} twice; expected one vector per document"
            )
        return cls(path, rows, own, column)

    def without_own_column(self, documents: Iterable[Document]) -> Iterator[Document]:
        """Yield documents that were read from the same Parquet file, without the vectors as metadata."""
        for document in documents:
            kept = {name: value for name, value in document.metadata.items() if name != self.column}
            yield dataclasses.replace(document, metadata=kept)

    @property
    def dim(self) -> int:
        """Width of the vectors."""
        return int(self.rows.shape[1])

    def shards(
        self, documents: Iterable[Document], *, similarity: Similarity, size: int = SHARD_DOCUMENTS
    ) -> Iterator[Shard]:
        """Yield the documents in shards, those with vectors and those without apart.

        A vector whose document is not among them is skipped, and a log message says how many were. Vectors without ids
        must be as many as the documents.

        Args:
            documents: documents of the corpus, in its order.
            similarity: "cosine" scales the vectors to length 1; "dot" leaves them.
            size: maximum number of documents per shard.

        Raises:
            InvalidInput: another number of documents than of vectors without ids, NaN, infinity, a vector of zeros for
                "cosine", or one that is too large for float16. The message names the document.
        """
        row_of = None if self.ids is None else {doc_id: row for row, doc_id in enumerate(self.ids)}
        remaining, first, n_used = iter(documents), 0, 0
        while batch := list(itertools.islice(remaining, size)):
            if row_of is None:
                rows = np.arange(first, first + len(batch), dtype=np.int64)
                rows[rows >= len(self.rows)] = -1
            else:
                rows = np.array([row_of.get(document.doc_id, -1) for document in batch], dtype=np.int64)
            first += len(batch)
            if row_of is None and first > len(self.rows):
                raise self._wrong_number(first + sum(1 for _ in remaining))
            has = rows >= 0
            n_used += int(has.sum())
            if has.any():
                encoded = [batch[at] for at in np.flatnonzero(has).tolist()]
                yield Shard(encoded, self._checked(rows[has], encoded, similarity).astype(np.float16), None)
            if not has.all():
                yield Shard([batch[at] for at in np.flatnonzero(~has).tolist()], None, None)
        if row_of is None and first < len(self.rows):
            raise self._wrong_number(first)
        if unused := len(self.rows) - n_used:
            logger.warning("%s: %s of no document of the corpus skipped", self.path, counted(unused, "vector"))

    def _checked(self, rows: npt.NDArray[np.int64], documents: Sequence[Document], similarity: Similarity) -> Floats:
        """Return the vectors of documents, (n, dim) float32, of length 1 for cosines."""
        with storage_errors(f"cannot read {self.path}"):
            values = np.asarray(self.rows[rows], dtype=np.float32)
        return storable_vectors(values, documents, similarity, source=str(self.path))

    def _wrong_number(self, n_documents: int) -> InvalidInput:
        vectors, documents = counted(len(self.rows), "vector"), counted(n_documents, "document")
        return InvalidInput(
            f"{self.path} has {vectors}, but the corpus has {documents}: without ids, row i is the vector of document "
            "i. Give ids (--vector-ids FILE, or an id column in Parquet)"
        )


def storable_vectors(values: Floats, documents: Sequence[Document], similarity: Similarity, *, source: str) -> Floats:
    """Return vectors as an index stores them, (n, dim) float32: within float16's range, of length 1 for cosines.

    Args:
        values: (n, dim) float32, one row per document.
        documents: the n documents, whose ids the messages name.
        similarity: "cosine" scales the vectors to length 1; "dot" leaves them.
        source: origin of the vectors, for the messages.

    Raises:
        InvalidInput: NaN, infinity, a vector of zeros for "cosine", or one that is too large for float16.
    """
    lengths = np.linalg.norm(values.astype(np.float64), axis=1)
    if not np.isfinite(lengths).all():
        at = int(np.flatnonzero(~np.isfinite(lengths))[0])
        raise InvalidInput(f"{source}: the vector of document {documents[at].doc_id!r} holds NaN or infinity")
    if similarity == "cosine":
        if not lengths.all():
            at = int(np.flatnonzero(lengths == 0)[0])
            raise InvalidInput(
                f"{source}: the vector of document {documents[at].doc_id!r} is zero, which has no cosine; leave "
                "the vector out, so that the document is pending"
            )
        values = np.asarray(values / lengths[:, None], dtype=np.float32)
    elif (too_large := np.abs(values).max(axis=1, initial=0) > MAX_FLOAT16).any():
        doc_id = documents[int(np.flatnonzero(too_large)[0])].doc_id
        raise InvalidInput(f"{source}: the vector of document {doc_id!r} is too large for float16; scale them all")
    return values


def _read_npy(path: Path) -> npt.NDArray[Any]:
    try:
        rows = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError:
        raise
    except Exception as error:  # numpy's parser passes on any error of tokenize, ast and mmap
        raise FormatError(f"{path} does not hold an array: {error}") from error
    return _checked_array(path, rows)


def _checked_array(path: Path, rows: Any) -> npt.NDArray[Any]:
    if rows.ndim != 2 or rows.dtype.kind != "f" or not rows.shape[1]:
        raise InvalidInput(f"{path} holds {rows.dtype} of shape {rows.shape}; expected floats (documents, width)")
    return np.asanyarray(rows)


def _read_ids(path: Path) -> list[str]:
    if not path.is_file():
        raise NotFound(f"{path} does not exist; expected a text file with one id per line")
    return [line.strip() for _, line in read_nonblank_lines(path)]


def _read_parquet(path: Path) -> tuple[npt.NDArray[Any], list[str] | None, str]:
    """Return vectors and ids of a Parquet file, None for ids in the order of the corpus, and the vectors' column."""
    file = parquet_file(path)
    names = file.schema_arrow.names
    column = next((name for name in VECTOR_FIELDS if name in names), None)
    if column is None:
        raise InvalidInput(f"{path} has the columns {names}; expected one of vectors: {', '.join(VECTOR_FIELDS)}")
    id_column = next((name for name in DOC_ID_FIELDS if name in names), None)
    blocks: list[npt.NDArray[np.float32]] = []
    ids: list[str] = []
    try:
        for batch in file.iter_batches(batch_size=4096, columns=[column] + ([id_column] if id_column else [])):
            blocks.append(_list_rows(path, column, batch.column(column)))
            ids += [str(doc_id) for doc_id in batch.column(id_column).to_pylist()] if id_column else []
    except OSError as error:
        raise FormatError(f"{path} is damaged: {error}") from error
    if len({block.shape[1] for block in blocks}) > 1:
        raise InvalidInput(f"{path}: vectors in the column {column!r} differ in width")
    rows = np.concatenate(blocks) if blocks else np.zeros((0, 1), np.float32)
    return _checked_array(path, rows), ids if id_column else None, column


def _list_rows(path: Path, column: str, values: Any) -> npt.NDArray[np.float32]:
    """Return a column of lists of numbers of one width as (n, dim) float32.

    Raises:
        InvalidInput: another type, a missing vector, or vectors of different widths.
    """
    compute, types = importlib.import_module("pyarrow.compute"), importlib.import_module("pyarrow.types")
    kind = values.type
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    if not is_list or not (types.is_floating(kind.value_type) or types.is_integer(kind.value_type)):
        raise InvalidInput(f"{path}: the column {column!r} holds {kind}; expected lists of numbers")
    if values.null_count:
        raise InvalidInput(f"{path}: the column {column!r} lacks a vector; leave out such rows")
    widths = compute.list_value_length(values).to_numpy(zero_copy_only=False)
    flat = compute.list_flatten(values).to_numpy(zero_copy_only=False).astype(np.float32)
    if len(widths) and (widths != widths[0]).any():
        raise InvalidInput(f"{path}: vectors in the column {column!r} differ in width")
    return np.asarray(flat.reshape(len(widths), -1), dtype=np.float32)


def _first_repeated(ids: Sequence[str]) -> str:
    counts = Counter(ids)
    return next(doc_id for doc_id in ids if counts[doc_id] > 1)
