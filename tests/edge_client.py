"""The part of qdrant-client's interface that lightir uses, over Qdrant's own engine in this process (qdrant-edge)."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import qdrant_edge as edge


class EdgeClient:
    """One collection in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.shard: edge.EdgeShard | None = None
        self.config: Any = None
        self.generation = 0

    def collection_exists(self, name: str) -> bool:
        return self.shard is not None

    def get_collection(self, name: str) -> Any:
        return SimpleNamespace(config=self.config)

    def create_collection(
        self, name: str, *, vectors_config: Any, sparse_vectors_config: Any, hnsw_config: Any, metadata: Any
    ) -> None:
        dense = {name: edge.EdgeVectorParams(params.size, edge.Distance.Dot) for name, params in vectors_config.items()}
        sparse = {name: edge.EdgeSparseVectorParams() for name in sparse_vectors_config or {}}
        self.generation += 1
        folder = self.folder / str(self.generation)
        folder.mkdir(parents=True)
        self.shard = edge.EdgeShard.create(str(folder), edge.EdgeConfig(dense, sparse))
        self.config = SimpleNamespace(metadata=metadata)

    def delete_collection(self, name: str) -> None:
        if self.shard is not None:
            self.shard.close()
            self.shard = None

    def count(self, name: str, *, exact: bool) -> Any:
        return SimpleNamespace(count=self.shard.count(edge.CountRequest(exact=exact)))

    def upsert(self, name: str, *, points: list[Any], wait: bool) -> None:
        rows = [
            edge.Point(point.id, {k: _vector(v) for k, v in point.vector.items()}, point.payload) for point in points
        ]
        self.shard.update(edge.UpdateOperation.upsert_points(rows))

    def delete(self, name: str, *, points_selector: Any, wait: bool) -> None:
        self.shard.update(edge.UpdateOperation.delete_points(points_selector.points))

    def scroll(self, name: str, *, limit: int, offset: Any, with_payload: Any, with_vectors: Any) -> tuple[Any, Any]:
        request = edge.ScrollRequest(offset=offset, limit=limit, with_payload=with_payload, with_vector=with_vectors)
        return self.shard.scroll(request)

    def retrieve(self, name: str, *, ids: list[Any], with_payload: Any, with_vectors: Any) -> list[Any]:
        return self.shard.retrieve(ids, with_payload, with_vectors)

    def query_points(self, name: str, *, query: Any, limit: int, with_payload: Any, **more: Any) -> Any:
        asked: Any = edge.Fusion.Rrf(query.rrf.k) if hasattr(query, "rrf") else _nearest(query, more["using"])
        prefetches = [edge.Prefetch(part.limit, _nearest(part.query, part.using)) for part in more.get("prefetch", [])]
        params = None if more.get("search_params") is None else edge.SearchParams(exact=more["search_params"].exact)
        wanted = None if more.get("query_filter") is None else _condition(more["query_filter"])
        request = edge.QueryRequest(
            limit,
            query=asked,
            prefetches=prefetches or None,
            with_payload=with_payload,
            params=params,
            filter=wanted,
        )
        return SimpleNamespace(points=self.shard.query(request))

    def close(self) -> None:
        if self.shard is not None:
            self.shard.close()


def _vector(value: Any) -> Any:
    return edge.SparseVector(value.indices, value.values) if hasattr(value, "indices") else value


def _nearest(value: Any, using: str) -> Any:
    return edge.Query.Nearest(_vector(value), using)


def _condition(wanted: Any) -> Any:
    """Return a condition of the client as one of the engine."""
    kind = type(wanted).__name__
    if kind == "Filter":
        assert not wanted.must_not
        assert not wanted.min_should
        must, should = ([_condition(part) for part in parts or []] for parts in (wanted.must, wanted.should))
        return edge.Filter(must=must or None, should=should or None)
    if kind == "HasIdCondition":
        return edge.HasIdCondition(set(wanted.has_id))
    assert kind == "FieldCondition", kind
    if wanted.range is not None:
        limits = wanted.range
        return edge.FieldCondition(
            wanted.key, range=edge.RangeFloat(gte=limits.gte, gt=limits.gt, lte=limits.lte, lt=limits.lt)
        )
    match = wanted.match
    if isinstance(getattr(match, "value", None), bool):
        return edge.Filter()  # all rows: qdrant-edge's binding takes true for the integer 1
    is_any = type(match).__name__ == "MatchAny"
    return edge.FieldCondition(wanted.key, match=edge.MatchAny(match.any) if is_any else edge.MatchValue(match.value))
