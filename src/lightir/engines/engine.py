"""The interface of an engine: what a push, a search and a reader of a collection need of it."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, cast

import numpy as np

from lightir.engines.address import EngineAddress, field_of
from lightir.errors import FormatError, InvalidInput, LightirError, MissingExtra
from lightir.index.metadata_filters import Node
from lightir.types import Branch, Document
from lightir.vectors import Floats, SparseVectors

MODULES: Mapping[str, str] = {
    "qdrant": "lightir.engines.qdrant:Qdrant",
    "milvus": "lightir.engines.milvus:Milvus",
    "postgresql": "lightir.engines.postgres:Postgres",
    "elasticsearch": "lightir.engines.elasticsearch:Elasticsearch",
    "opensearch": "lightir.engines.opensearch:OpenSearch",
    "vespa": "lightir.engines.vespa:Vespa",
}
"""Module and class of each kind of engine."""

EXTRAS: Mapping[str, str] = {"postgresql": "postgres"}
"""Extra of an engine whose name differs."""

DOC_ID, TITLE, TEXT, METADATA, VERSION = "doc_id", "title", "text", "metadata", "lightir_version"
"""Names of a row's fields in an engine."""

DENSE, SPARSE = "dense", "sparse"
"""Names of a row's vectors in an engine."""

USUAL_TEXTS = (TEXT, "page_content", "content", "document", "body", "chunk")
USUAL_TITLES = (TITLE, "name")
RECORD_VERSION = 1


class EngineFailed(LightirError):
    """An engine that refused a request or could not be reached; the message has the engine's own words."""


@dataclass(frozen=True, slots=True)
class CollectionRecord:
    """The record of what a collection holds; a pushed one keeps it in the engine.

    Attributes:
        dense_dim: width of the dense vectors; None without.
        vocab_size: width of the sparse vectors; None without.
        similarity: similarity of the dense vectors; inner products rank both, since cosines are of vectors of length 1.
        fingerprint: fingerprint of the document side of the model, which queries must have too; "" for unknown.
        model: name of the model that made the vectors; "" for unknown.
        index: "hnsw" for approximate dense search by a graph, "flat" for an exact scan.
        passages: whether long documents are stored as passages, each of which is a row.
        dates: names of the metadata fields that are dates; filters compare them as spans of time.
    """

    dense_dim: int | None
    vocab_size: int | None
    similarity: Literal["cosine", "dot"] = "cosine"
    fingerprint: str = ""
    model: str = ""
    index: Literal["hnsw", "flat"] = "hnsw"
    passages: bool = False
    dates: tuple[str, ...] = ()

    @property
    def branches(self) -> tuple[Branch, ...]:
        """The branches that can be searched."""
        branches: dict[Branch, int | None] = {"dense": self.dense_dim, "sparse": self.vocab_size}
        return tuple(branch for branch, width in branches.items() if width is not None)

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON."""
        values = {"lightir": RECORD_VERSION, **dataclasses.asdict(self)}
        dates = values.pop("dates")
        return {**values, "dates": [*dates]} if dates else values  # without dates older releases can read it

    @classmethod
    def from_json(cls, record: Any, where: str) -> CollectionRecord | None:
        """Read a record; None if it is not one of lightir.

        Raises:
            FormatError: a record of another version, or a damaged one.
        """
        if not isinstance(record, dict) or "lightir" not in record:
            return None
        if record["lightir"] != RECORD_VERSION:
            raise FormatError(f"{where} has the format {record['lightir']!r}; this release reads {RECORD_VERSION}")
        try:
            values = {name: value for name, value in record.items() if name != "lightir"}
            return cls(**{**values, "dates": tuple(values.get("dates", ()))})
        except TypeError:
            raise FormatError(f"{where} has a damaged record: {record}; push with --overwrite") from None


@dataclass(frozen=True, slots=True)
class EngineRows:
    """Documents with their vectors, as an engine stores them.

    Attributes:
        documents: n documents.
        versions: version of each row, which depends on its document, its vectors and the model; "" for rows of others.
        dense: (n, dense_dim) float32, or None.
        sparse: n sparse vectors with float32 weights, or None.
    """

    documents: Sequence[Document]
    versions: Sequence[str]
    dense: Floats | None
    sparse: SparseVectors | None

    def __len__(self) -> int:
        return len(self.documents)


class EngineList(NamedTuple):
    """A branch's best rows for one query, in the engine's order.

    Attributes:
        doc_ids: ids of n documents.
        scores: (n,) float32 inner products.
    """

    doc_ids: Sequence[str]
    scores: Floats


class Engine(Protocol):
    """A collection in an engine. Every method raises EngineFailed if the engine fails."""

    address: EngineAddress
    max_listed: int
    """Maximum number of rows that one search returns."""

    def collection(self) -> CollectionRecord | None:
        """Return what the collection holds; None if there is none."""
        ...

    def create(self, collection: CollectionRecord) -> None:
        """Create the collection, which must not exist."""
        ...

    def drop(self) -> None:
        """Remove the collection with all its rows, if it exists."""
        ...

    def count(self) -> int:
        """Return the number of rows."""
        ...

    def versions(self) -> Iterator[tuple[str, str]]:
        """Yield the doc_id and the version of every row."""
        ...

    def upsert(self, rows: EngineRows) -> None:
        """Add rows; each replaces the row with its doc_id. It is durable when the call returns."""
        ...

    def delete(self, doc_ids: Sequence[str]) -> None:
        """Delete the rows with these ids."""
        ...

    def finish(self) -> None:
        """Make all changes visible to searches, and build what they need."""
        ...

    def restrict(self, wanted: Node | None) -> bool:
        """Let the following searches return rows that match a metadata filter, which is parsed; None for all rows.

        Returns:
            Whether they may return other rows too, so that the caller has to test each one.

        Raises:
            InvalidInput: the engine cannot take the filter, or the collection has no metadata.
        """
        ...

    def dense(self, queries: Floats, k: int, *, exact: bool) -> list[EngineList]:
        """Return each query's k rows of the highest inner products."""
        ...

    def sparse(self, queries: SparseVectors, k: int) -> list[EngineList]:
        """Return each query's k rows of the highest inner products above 0."""
        ...

    def fused(self, dense: Floats, sparse: SparseVectors, k: int, depth: int) -> list[EngineList]:
        """Return each query's k rows by the engine's own reciprocal rank fusion with the constant 60."""
        ...

    def fetch(self, doc_ids: Sequence[str], branches: Sequence[Branch]) -> EngineRows:
        """Return rows with the vectors of some branches, in any order; ids without a row are omitted."""
        ...

    def rows(self, batch: int) -> Iterator[EngineRows]:
        """Yield all rows with their dense vectors, in batches."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


def open_engine(address: EngineAddress | str) -> Engine:
    """Connect to the engine of an address.

    Raises:
        InvalidInput: a malformed address.
        MissingExtra: the client is not installed.
        EngineFailed: the engine cannot be reached.
    """
    chosen = EngineAddress.parse(address) if isinstance(address, str) else address
    module, _, name = MODULES[chosen.kind].partition(":")
    return cast(Engine, getattr(importlib.import_module(module), name)(chosen))


def client_module(name: str, kind: str) -> Any:
    """Import a module of an engine's client.

    Raises:
        MissingExtra: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        extra = EXTRAS.get(kind, kind)
        raise MissingExtra(f"{kind} requires {error.name}: pip install 'lightir[{extra}]'") from None


@contextlib.contextmanager
def engine_errors(address: EngineAddress, action: str) -> Iterator[None]:
    """Turn the errors of a client inside a `with` block into EngineFailed; errors of lightir pass."""
    try:
        yield
    except LightirError:
        raise
    except Exception as error:
        words = " ".join(str(error).split())[:500] or type(error).__name__
        raise EngineFailed(f"{address.kind} failed to {action} {address.collection!r}: {words}") from error


def payload_of(document: Document, version: str) -> dict[str, Any]:
    """Return a document as the payload of a row."""
    return {
        DOC_ID: document.doc_id,
        TITLE: document.title,
        TEXT: document.text,
        METADATA: dict(document.metadata),
        VERSION: version,
    }


def document_of_payload(address: EngineAddress, payload: Mapping[str, Any], doc_id: str) -> Document:
    """Return the document of a payload, which lightir or another program has written.

    Args:
        address: address whose options may name the fields of title and text.
        payload: fields of the row.
        doc_id: id of the document.

    Raises:
        InvalidInput: there is no text.
    """
    text_field = field_of(address, payload, "text", USUAL_TEXTS)
    title_field = field_of(address, payload, "title", USUAL_TITLES)
    if text_field is None or not isinstance(payload.get(text_field), str):
        raise InvalidInput(
            f"row {doc_id!r} of {address.collection!r} has the fields {sorted(payload)}; name the one with its text in "
            "the address: ?text=FIELD"
        )
    title = payload.get(title_field) if title_field else None
    known = {text_field, title_field, DOC_ID, VERSION, METADATA}
    metadata = payload.get(METADATA)
    others = {name: _plain(value) for name, value in payload.items() if name not in known and value is not None}
    return Document(
        doc_id,
        payload[text_field],
        title if isinstance(title, str) else "",
        {**others, **(metadata if isinstance(metadata, dict) else {})},
    )


def _plain(value: Any) -> Any:
    """Return a value as JSON has it; dates and the like become strings."""
    return value if isinstance(value, str | int | float | bool | list | dict) else str(value)


def sparse_dict(sparse: SparseVectors, row: int) -> dict[int, float]:
    """Return a sparse vector as term id -> weight."""
    term_ids, weights = sparse.row(row)
    return dict(zip(term_ids.tolist(), weights.astype(np.float32).tolist(), strict=True))


def sparse_of_dicts(rows: Sequence[Mapping[int, float]], vocab_size: int) -> SparseVectors:
    """Return dicts of term id -> weight as sparse vectors."""
    ordered = [sorted(row.items()) for row in rows]
    indptr = np.cumsum([0, *map(len, ordered)], dtype=np.int64)
    term_ids = np.array([term for row in ordered for term, _ in row], dtype=np.uint32)
    weights = np.array([weight for row in ordered for _, weight in row], dtype=np.float32)
    return SparseVectors(indptr, term_ids, weights, vocab_size)
