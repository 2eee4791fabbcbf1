"""An engine in memory, by the definition of the interface."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from lightir.engines import CollectionRecord, EngineAddress, EngineFailed, EngineRows
from lightir.engines.engine import EngineList
from lightir.engines.qdrant import row_id
from lightir.index.metadata_filters import Node
from lightir.types import Branch
from lightir.vectors import Floats, SparseVectors


class EngineInMemory:
    """The interface of an engine by definition: inner products of all rows, ties in any order."""

    max_listed = 10_000

    def __init__(self) -> None:
        self.address = EngineAddress.parse("qdrant://localhost/docs")
        self.stored: dict[str, EngineRows] = {}
        self.present: CollectionRecord | None = None
        self.failures = 0
        self.requests: list[int] = []

    def collection(self) -> CollectionRecord | None:
        return self.present

    def create(self, collection: CollectionRecord) -> None:
        self.present = CollectionRecord.from_json(collection.to_json(), "memory")

    def drop(self) -> None:
        self.present, self.stored = None, {}

    def count(self) -> int:
        return len(self.stored)

    def versions(self) -> Iterator[tuple[str, str]]:
        yield from [(doc_id, rows.versions[0]) for doc_id, rows in self.stored.items()]

    def upsert(self, rows: EngineRows) -> None:
        if self.failures:
            self.failures -= 1
            raise EngineFailed("busy")
        self.requests.append(len(rows))
        for at, document in enumerate(rows.documents):
            one = np.array([at], dtype=np.int64)
            dense = None if rows.dense is None else rows.dense[one]
            sparse = None if rows.sparse is None else rows.sparse.take(one)
            self.stored[document.doc_id] = EngineRows([document], [rows.versions[at]], dense, sparse)

    def delete(self, doc_ids: Sequence[str]) -> None:
        for doc_id in doc_ids:
            del self.stored[doc_id]

    def finish(self) -> None: ...

    def restrict(self, wanted: Node | None) -> bool:
        return wanted is not None

    def dense(self, queries: Floats, k: int, *, exact: bool) -> list[EngineList]:
        return [self._best({i: float(row.dense[0] @ query) for i, row in self.stored.items()}, k) for query in queries]

    def sparse(self, queries: SparseVectors, k: int) -> list[EngineList]:
        every = {i: row.sparse.to_dense()[0] for i, row in self.stored.items()}
        lists = []
        for query in queries.to_dense():
            scores = {i: float(row @ query) for i, row in every.items()}
            lists.append(self._best({i: score for i, score in scores.items() if score > 0}, k))
        return lists

    def _best(self, scores: dict[str, float], k: int) -> EngineList:
        best = sorted(scores, key=lambda i: (-scores[i], row_id(i)))[:k]
        return EngineList(best, np.array([scores[i] for i in best], dtype=np.float32))

    def fused(self, dense: Floats, sparse: SparseVectors, k: int, depth: int) -> list[EngineList]:
        sums: dict[str, float] = {}
        for listed in (self.dense(dense, depth, exact=True)[0], self.sparse(sparse, depth)[0]):
            for rank, doc_id in enumerate(listed.doc_ids, 1):
                sums[doc_id] = sums.get(doc_id, 0.0) + 1 / (60 + rank)
        return [self._best(sums, k)]

    def fetch(self, doc_ids: Sequence[str], branches: Sequence[Branch]) -> EngineRows:
        return self._joined([self.stored[doc_id] for doc_id in doc_ids if doc_id in self.stored])

    def rows(self, batch: int) -> Iterator[EngineRows]:
        every = list(self.stored.values())
        for first in range(0, len(every), batch):
            yield self._joined(every[first : first + batch])

    def _joined(self, rows: Sequence[EngineRows]) -> EngineRows:
        documents = [row.documents[0] for row in rows]
        dense = [row.dense for row in rows if row.dense is not None]
        sparse = [row.sparse for row in rows if row.sparse is not None]
        return EngineRows(
            documents,
            [row.versions[0] for row in rows],
            np.concatenate(dense) if dense else None,
            SparseVectors.concatenate(sparse) if sparse else None,
        )

    def close(self) -> None: ...
