"""OpenSearch 2.19 or later, over HTTP: Elasticsearch's interface with other vectors.

Sparse vectors are `rank_features`, and a query is a sum of linear `rank_feature` clauses, which every server has; they
need neither the neural-search plugin nor a pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lightir.data.stored_vectors import Similarity
from lightir.engines.elasticsearch import FIELDS, Elasticsearch, of_cosine, of_inner_product
from lightir.engines.engine import SPARSE, CollectionRecord, EngineRows
from lightir.errors import InvalidInput
from lightir.types import Branch

MAX_CLAUSES = 1024
"""Maximum number of terms of a query (indices.query.bool.max_clause_count)."""


class OpenSearch(Elasticsearch):
    """An index of OpenSearch."""

    vector_type = "knn_vector"
    key_scheme = "Bearer"
    similarities: Mapping[str, tuple[Similarity, Callable[[float], float]]] = {
        "innerproduct": ("dot", of_inner_product),
        "cosinesimil": ("cosine", of_cosine),
    }

    def _shape(self, field: Mapping[str, Any]) -> tuple[int, str]:
        space = field.get("space_type") or field.get("method", {}).get("space_type", "l2")
        return int(field["dimension"]), str(space)

    def _settings(self) -> dict[str, Any]:
        return {"index": {"knn": True}}

    def _metadata_field(self) -> dict[str, Any]:
        return {"type": "flat_object"}

    def _dense_field(self, record: CollectionRecord) -> dict[str, Any]:
        common = {"type": "knn_vector", "dimension": record.dense_dim, "space_type": "innerproduct"}
        return {**common, "method": {"name": "hnsw", "engine": "faiss"}}

    def _sparse_field(self) -> dict[str, Any]:
        return {"type": "rank_features"}

    def _nearest(self, vector: list[float], k: int) -> dict[str, Any]:
        if self._present.index == "flat":
            return self._exact(vector)
        nearest = {"vector": vector, "k": k}
        return {
            "query": {"knn": {self._vector: nearest if self._filter is None else {**nearest, "filter": self._filter}}}
        }

    def _exact(self, vector: list[float]) -> dict[str, Any]:
        params = {"field": self._vector, "query_value": vector, "space_type": "innerproduct"}
        script = {"lang": "knn", "source": "knn_score", "params": params}
        return {
            "query": {
                "script_score": {"query": self._restricted({"exists": {"field": self._vector}}), "script": script}
            }
        }

    def _sparse_query(self, terms: Mapping[str, float]) -> dict[str, Any]:
        if len(terms) > MAX_CLAUSES:
            raise InvalidInput(f"a query has {len(terms):,} terms, and OpenSearch takes at most {MAX_CLAUSES:,}")
        clauses = [
            {"rank_feature": {"field": f"{SPARSE}.{term}", "linear": {}, "boost": weight}}
            for term, weight in terms.items()
        ]
        return {"bool": {"should": clauses}}

    def _wanted(self, branches: Sequence[Branch]) -> dict[str, Any]:
        names = {"dense": self._vector, "sparse": SPARSE}
        vectors = [names[branch] for branch in branches]
        own: Any = [*FIELDS, *vectors]
        return {"_source": own if self._present.fingerprint else True}

    def _rows(self, hits: Sequence[Any], branches: Sequence[Branch]) -> EngineRows:
        """Return rows whose vectors are in their source."""
        moved = []
        for hit in hits:
            source = dict(hit["_source"])
            vectors = {name: source.pop(name, None) for name in (self._vector, SPARSE)}
            present = {name: value for name, value in vectors.items() if value is not None}
            fields = {name: [value] if name == SPARSE else value for name, value in present.items()}
            moved.append({"_id": hit["_id"], "_source": source, "fields": fields})
        return super()._rows(moved, branches)
