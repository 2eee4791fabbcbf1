"""Qdrant: a server, or a local folder by the client's own implementation.

Qdrant's ids are integers or UUIDs, so a row's id is the UUID of its doc_id, which is in the payload. In a collection of
another program the id of a row is that of its document.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from lightir.engines.address import EngineAddress, engine_key
from lightir.engines.engine import (
    DENSE,
    DOC_ID,
    METADATA,
    SPARSE,
    VERSION,
    CollectionRecord,
    EngineList,
    EngineRows,
    client_module,
    document_of_payload,
    engine_errors,
    payload_of,
    sparse_of_dicts,
)
from lightir.engines.filters import condition
from lightir.errors import InvalidInput
from lightir.index.metadata_filters import Among, Compared, Node
from lightir.types import Branch
from lightir.vectors import Floats, SparseVectors

NAMESPACE = uuid.UUID("5e0b4f0e-6a3d-5d6c-9a55-8f9f6c1b7a10")
"""Namespace of the UUIDs of doc_ids."""

PAGE = 1000
SIMILARITIES: Mapping[str, Literal["cosine", "dot"]] = {"Cosine": "cosine", "Dot": "dot"}
RRF_K = 61
"""Qdrant counts ranks from 0: its constant 61 is the usual 60 with ranks from 1."""

TIMEOUT_S = 60


class Qdrant:
    """A collection of Qdrant."""

    max_listed = 10_000

    def __init__(self, address: EngineAddress, client: Any = None) -> None:
        """Connect.

        Args:
            address: address of the collection.
            client: client to use in place of a new one.

        Raises:
            MissingExtra: qdrant-client is not installed.
            EngineFailed: a local folder cannot be opened.
        """
        self.address = address
        library = client_module("qdrant_client", "qdrant")
        self._models = library.models
        self._vector = address.options.get("vector", "")
        self._sparse = address.options.get("sparse", SPARSE)
        self._vocab_size = 0
        self._is_own = True
        self._filter: Any = None
        with engine_errors(address, "open"):
            if client is not None:
                self._client = client
            elif address.is_local:
                self._client = library.QdrantClient(path=address.path)
            else:
                self._client = library.QdrantClient(url=address.url, api_key=engine_key(), timeout=TIMEOUT_S)

    def collection(self) -> CollectionRecord | None:
        """Return what the collection holds; None if there is none."""
        name = self.address.collection
        with engine_errors(self.address, "read"):
            if not self._client.collection_exists(name):
                return None
            config = self._client.get_collection(name).config
            record = CollectionRecord.from_json(getattr(config, "metadata", None), str(self.address))
            self._is_own = record is not None
            if record is not None:
                self._vector = DENSE
            else:
                record = self._foreign(config.params.vectors, config.params.sparse_vectors or {})
        self._vocab_size = record.vocab_size or 0
        return record

    def _foreign(self, dense: Any, sparse: dict[str, Any]) -> CollectionRecord:
        """Return what a collection of another program holds."""
        unnamed = dense is not None and not isinstance(dense, dict)
        named = {"": dense} if unnamed else dict(dense or {})
        if self._vector not in named and len(named) == 1:
            self._vector = next(iter(named))
        chosen = named.get(self._vector)
        if named and chosen is None:
            raise InvalidInput(
                f"{self.address.collection!r} has the vectors {sorted(named)}; choose one in the address: ?vector=NAME"
            )
        vocab_size = 2**32 - 1 if self._sparse in sparse else None
        if chosen is None:
            return CollectionRecord(None, vocab_size)
        similarity = SIMILARITIES.get(str(getattr(chosen.distance, "value", chosen.distance)))
        if similarity is None:
            raise InvalidInput(
                f"{self.address.collection!r} compares vectors by {chosen.distance}; expected one of "
                f"{', '.join(SIMILARITIES)}"
            )
        return CollectionRecord(int(chosen.size), vocab_size, similarity)

    def create(self, collection: CollectionRecord) -> None:
        """Create the collection, which must not exist."""
        models = self._models
        dense = {}
        if collection.dense_dim is not None:
            dense[DENSE] = models.VectorParams(size=collection.dense_dim, distance=models.Distance.DOT)
        sparse = {} if collection.vocab_size is None else {SPARSE: models.SparseVectorParams()}
        graph = models.HnswConfigDiff(m=0) if collection.index == "flat" else None
        with engine_errors(self.address, "create"):
            self._client.create_collection(
                self.address.collection,
                vectors_config=dense,
                sparse_vectors_config=sparse or None,
                hnsw_config=graph,
                metadata=collection.to_json(),
            )
        self._is_own, self._vector, self._vocab_size = True, DENSE, collection.vocab_size or 0

    def drop(self) -> None:
        """Remove the collection with all its rows, if it exists."""
        with engine_errors(self.address, "remove"):
            self._client.delete_collection(self.address.collection)

    def count(self) -> int:
        """Return the number of rows."""
        with engine_errors(self.address, "count"):
            return int(self._client.count(self.address.collection, exact=True).count)

    def versions(self) -> Iterator[tuple[str, str]]:
        """Yield the doc_id and the version of every row."""
        for points in self._pages(PAGE, [DOC_ID, VERSION], vectors=False):
            for point in points:
                yield self._doc_id(point), str((point.payload or {}).get(VERSION, ""))

    def _pages(self, size: int, payload: list[str] | bool, *, vectors: list[str] | bool) -> Iterator[list[Any]]:
        offset = None
        while True:
            with engine_errors(self.address, "read"):
                points, offset = self._client.scroll(
                    self.address.collection, limit=size, offset=offset, with_payload=payload, with_vectors=vectors
                )
            if points:
                yield points
            if offset is None:
                return

    def upsert(self, rows: EngineRows) -> None:
        """Add rows; each replaces the row with its doc_id."""
        models = self._models
        points = []
        for at, (document, version) in enumerate(zip(rows.documents, rows.versions, strict=True)):
            vector: dict[str, Any] = {}
            if rows.dense is not None:
                vector[DENSE] = rows.dense[at].tolist()
            if rows.sparse is not None:
                term_ids, weights = rows.sparse.row(at)
                vector[SPARSE] = models.SparseVector(indices=term_ids.tolist(), values=weights.tolist())
            points.append(
                models.PointStruct(id=row_id(document.doc_id), vector=vector, payload=payload_of(document, version))
            )
        with engine_errors(self.address, "write to"):
            self._client.upsert(self.address.collection, points=points, wait=True)

    def delete(self, doc_ids: Sequence[str]) -> None:
        """Delete the rows with these ids."""
        with engine_errors(self.address, "delete from"):
            self._client.delete(
                self.address.collection,
                points_selector=self._models.PointIdsList(points=self._row_ids(doc_ids)),
                wait=True,
            )

    def finish(self) -> None:
        """Do nothing: a written row can be searched at once, and the server builds its graph by itself."""

    def restrict(self, wanted: Node | None) -> bool:
        """Let the following searches return rows that match a filter, and others that Qdrant cannot tell from them."""
        self._filter = None
        if wanted is None:
            return False
        if self._is_own:
            wanted_of_all = condition(wanted, self._condition, self._joined)
            self._filter = None if wanted_of_all is None else self._joined([wanted_of_all], True)
        return True

    def _condition(self, keys: list[str], test: Among | Compared) -> Any:
        """Return a condition that every row meets which matches a test; Qdrant compares numbers as float64."""
        models, key = self._models, ".".join([METADATA, *keys])
        if isinstance(test, Compared):
            if not isinstance(test.value, int | float):
                return None
            limit = {f"{test.operator[:2]}e": float(test.value)}
            return models.FieldCondition(key=key, range=models.Range(**limit))
        if "null" in test.constants:
            return None
        parts = [models.FieldCondition(key=key, range=models.Range(gte=float(n), lte=float(n))) for n in test.numbers]
        parts += [
            models.FieldCondition(key=key, match=models.MatchValue(value=constant == "true"))
            for constant in test.constants
        ]
        if test.texts:
            parts.append(models.FieldCondition(key=key, match=models.MatchAny(any=list(test.texts))))
        return self._joined(parts, False)

    def _joined(self, parts: Sequence[Any], is_all: bool) -> Any:
        if is_all:
            return self._models.Filter(must=list(parts))
        return self._models.Filter(should=list(parts)) if parts else self._models.Filter(must=[self._nothing()])

    def _nothing(self) -> Any:
        return self._models.HasIdCondition(has_id=[])

    def dense(self, queries: Floats, k: int, *, exact: bool) -> list[EngineList]:
        """Return each query's k rows of the highest inner products."""
        params = self._models.SearchParams(exact=True) if exact else None
        using = self._vector or None
        return [self._search(query=row.tolist(), using=using, limit=k, search_params=params) for row in queries]

    def sparse(self, queries: SparseVectors, k: int) -> list[EngineList]:
        """Return each query's k rows of the highest inner products above 0."""
        lists = []
        for row in range(len(queries)):
            term_ids, weights = queries.row(row)
            vector = self._models.SparseVector(indices=term_ids.tolist(), values=weights.tolist())
            lists.append(self._search(query=vector, using=self._sparse, limit=k))
        return lists

    def fused(self, dense: Floats, sparse: SparseVectors, k: int, depth: int) -> list[EngineList]:
        """Return each query's k rows by Qdrant's reciprocal rank fusion with the constant 60."""
        models, lists = self._models, []
        fusion = models.RrfQuery(rrf=models.Rrf(k=RRF_K))
        for row in range(len(dense)):
            term_ids, weights = sparse.row(row)
            vector = models.SparseVector(indices=term_ids.tolist(), values=weights.tolist())
            parts = [
                models.Prefetch(query=dense[row].tolist(), using=self._vector or None, limit=depth),
                models.Prefetch(query=vector, using=self._sparse, limit=depth),
            ]
            lists.append(self._search(query=fusion, prefetch=parts, limit=k))
        return lists

    def _search(self, **arguments: Any) -> EngineList:
        with engine_errors(self.address, "search"):
            answer = self._client.query_points(
                self.address.collection, with_payload=[DOC_ID], query_filter=self._filter, **arguments
            )
        doc_ids = [self._doc_id(point) for point in answer.points]
        return EngineList(doc_ids, np.array([point.score for point in answer.points], dtype=np.float32))

    def fetch(self, doc_ids: Sequence[str], branches: Sequence[Branch]) -> EngineRows:
        """Return rows with the vectors of some branches; ids without a row are omitted."""
        names = {"dense": self._vector or "", "sparse": self._sparse}
        wanted = [names[branch] for branch in branches]
        with engine_errors(self.address, "read"):
            points = self._client.retrieve(
                self.address.collection,
                ids=self._row_ids(doc_ids),
                with_payload=True,
                with_vectors=wanted if wanted and "" not in wanted else bool(wanted),
            )
        return self._rows(points, branches)

    def rows(self, batch: int) -> Iterator[EngineRows]:
        """Yield all rows with their dense vectors, in batches."""
        vectors: list[str] | bool = [self._vector] if self._vector else True
        for points in self._pages(batch, True, vectors=vectors):
            yield self._rows(points, ("dense",))

    def _rows(self, points: Sequence[Any], branches: Sequence[Branch]) -> EngineRows:
        documents = [document_of_payload(self.address, point.payload or {}, self._doc_id(point)) for point in points]
        versions = [str((point.payload or {}).get(VERSION, "")) for point in points]
        dense = sparse = None
        if "dense" in branches:
            vectors = [self._named_vector(point, self._vector) for point in points]
            dense = np.array(vectors, dtype=np.float32).reshape(len(points), -1)
        if "sparse" in branches:
            stored = [self._named_vector(point, self._sparse) for point in points]
            pairs = [{} if v is None else dict(zip(v.indices, v.values, strict=True)) for v in stored]
            sparse = sparse_of_dicts(pairs, self._vocab_size)
        return EngineRows(documents, versions, dense, sparse)

    def _doc_id(self, point: Any) -> str:
        return str((point.payload or {}).get(DOC_ID, point.id)) if self._is_own else str(point.id)

    def _row_ids(self, doc_ids: Sequence[str]) -> list[str | int]:
        if self._is_own:
            return [row_id(doc_id) for doc_id in doc_ids]
        return [int(doc_id) if doc_id.isdecimal() else doc_id for doc_id in doc_ids]

    def _named_vector(self, point: Any, name: str) -> Any:
        vector = point.vector
        if isinstance(vector, dict):
            vector = vector.get(name)
        if vector is None and name != self._sparse:
            raise InvalidInput(f"row {point.id} of {self.address.collection!r} has no dense vector")
        return vector

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


def row_id(doc_id: str) -> str:
    """Return the id of a document's row: the UUID of its doc_id in NAMESPACE."""
    return str(uuid.uuid5(NAMESPACE, doc_id))
