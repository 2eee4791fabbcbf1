"""Elasticsearch 8.15 or later, over HTTP.

The mapping's `_meta` keeps the record. Sparse weights have 9 significant bits in Elasticsearch, and the index's impacts
have 8. Dense vectors are compared by `max_inner_product`, since rows in float16 are not exactly of length 1, which
`dot_product` requires.
"""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from lightir.data.stored_vectors import Similarity
from lightir.engines.address import EngineAddress, engine_key
from lightir.engines.engine import (
    DENSE,
    DOC_ID,
    METADATA,
    SPARSE,
    TEXT,
    TITLE,
    VERSION,
    CollectionRecord,
    EngineFailed,
    EngineList,
    EngineRows,
    document_of_payload,
    payload_of,
    sparse_dict,
    sparse_of_dicts,
)
from lightir.engines.filters import condition
from lightir.engines.http_json import JsonOverHttp
from lightir.errors import InvalidInput
from lightir.index.metadata_filters import Among, Compared, Node
from lightir.types import Branch
from lightir.vectors import Floats, SparseVectors

MAX_ID_BYTES = 512
MAX_CANDIDATES = 10_000
MAX_VALUE_CHARACTERS = 8191
PAGE = 1000
SCROLL = "5m"
FIELDS = [DOC_ID, TITLE, TEXT, METADATA, VERSION]


def of_inner_product(score: float) -> float:
    """Return the inner product of a score: 1 + x, or 1 / (1 - x) for x below 0."""
    return score - 1 if score >= 1 else 1 - 1 / score


def of_cosine(score: float) -> float:
    """Return the cosine, or the product of vectors of length 1, of a score (1 + x) / 2."""
    return 2 * score - 1


class Elasticsearch:
    """An index of Elasticsearch."""

    max_listed = 10_000
    vector_type = "dense_vector"
    key_scheme = "ApiKey"
    similarities: Mapping[str, tuple[Similarity, Callable[[float], float]]] = {
        "max_inner_product": ("dot", of_inner_product),
        "dot_product": ("cosine", of_cosine),
        "cosine": ("cosine", of_cosine),
    }
    """By the name of a similarity what it compares, and the inner product of a score."""

    def __init__(self, address: EngineAddress) -> None:
        """Keep the address; nothing is sent."""
        self.address = address
        self._server = JsonOverHttp(address.url, key=engine_key(), key_scheme=self.key_scheme)
        self._path = f"/{urllib.parse.quote(address.collection, safe='')}"
        self._vector = address.options.get("vector", "")
        self._product: Callable[[float], float] = of_inner_product
        self._present = CollectionRecord(None, None)
        self._filter: dict[str, Any] | None = None

    def collection(self) -> CollectionRecord | None:
        """Return what the index holds; None if there is none."""
        answer = self._server.ask("GET", f"{self._path}/_mapping")
        if answer is None:
            return None
        mapping = next(iter(answer.values()))["mappings"]
        present = CollectionRecord.from_json(mapping.get("_meta"), str(self.address))
        if present is None:
            present = self._foreign(mapping.get("properties", {}))
        else:
            self._vector, self._product = DENSE, of_inner_product
        self._present = present
        return present

    def _foreign(self, properties: Mapping[str, Any]) -> CollectionRecord:
        """Return what an index of another program holds."""
        dense = {name: field for name, field in properties.items() if field.get("type") == self.vector_type}
        if self._vector not in dense and len(dense) == 1:
            self._vector = next(iter(dense))
        if self._vector not in dense:
            raise InvalidInput(
                f"{self.address.collection!r} has the vectors {sorted(dense)}; choose one in the address: ?vector=NAME"
            )
        width, name = self._shape(dense[self._vector])
        if name not in self.similarities:
            raise InvalidInput(
                f"{self.address.collection!r} compares vectors by {name}; expected one of "
                f"{', '.join(self.similarities)}"
            )
        similarity, self._product = self.similarities[name]
        return CollectionRecord(width, None, similarity)

    def _shape(self, field: Mapping[str, Any]) -> tuple[int, str]:
        """Return width and similarity of a field of vectors."""
        return int(field["dims"]), str(field.get("similarity", "cosine"))

    def _mapping(self, record: CollectionRecord) -> dict[str, Any]:
        """Return the mapping of an index."""
        properties: dict[str, Any] = {
            DOC_ID: {"type": "keyword"},
            TITLE: {"type": "text"},
            TEXT: {"type": "text"},
            METADATA: self._metadata_field(),
            VERSION: {"type": "keyword", "index": False},
        }
        if record.dense_dim is not None:
            properties[DENSE] = self._dense_field(record)
        if record.vocab_size is not None:
            properties[SPARSE] = self._sparse_field()
        return {"_meta": record.to_json(), "dynamic": "strict", "properties": properties}

    def _metadata_field(self) -> dict[str, Any]:
        return {"type": "flattened", "ignore_above": MAX_VALUE_CHARACTERS}

    def _dense_field(self, record: CollectionRecord) -> dict[str, Any]:
        """Return the field of dense vectors; without a kind of graph the server would round their numbers to int8."""
        common = {"type": "dense_vector", "dims": record.dense_dim, "index": True}
        return {**common, "similarity": "max_inner_product", "index_options": {"type": record.index}}

    def _sparse_field(self) -> dict[str, Any]:
        return {"type": "sparse_vector"}

    def _settings(self) -> dict[str, Any]:
        return {}

    def create(self, record: CollectionRecord) -> None:
        """Create the index, which must not exist."""
        body = {"settings": self._settings(), "mappings": self._mapping(record)}
        if self._server.ask("PUT", self._path, body) is None:
            raise EngineFailed(f"{self.address} cannot be created: the server has no such path")
        self._vector, self._product, self._present = DENSE, of_inner_product, record

    def drop(self) -> None:
        """Remove the index with all its rows, if it exists."""
        self._server.ask("DELETE", self._path)

    def count(self) -> int:
        """Return the number of rows that searches see."""
        self._server.ask("POST", f"{self._path}/_refresh")
        return int(self._there(self._server.ask("GET", f"{self._path}/_count"))["count"])

    def _there(self, answer: Any) -> Any:
        if answer is None:
            raise EngineFailed(f"{self.address} does not exist any more")
        return answer

    def versions(self) -> Iterator[tuple[str, str]]:
        """Yield the doc_id and the version of every row."""
        for hits in self._pages(PAGE, {"_source": [VERSION]}):
            for hit in hits:
                yield str(hit["_id"]), str(hit["_source"].get(VERSION, ""))

    def _pages(self, size: int, wanted: Mapping[str, Any]) -> Iterator[list[Any]]:
        self._server.ask("POST", f"{self._path}/_refresh")
        body = {"size": size, "sort": ["_doc"], "query": {"match_all": {}}, **wanted}
        answer = self._there(self._server.ask("POST", f"{self._path}/_search?scroll={SCROLL}", body))
        while hits := answer["hits"]["hits"]:
            yield hits
            next_page = {"scroll": SCROLL, "scroll_id": answer["_scroll_id"]}
            answer = self._there(self._server.ask("POST", "/_search/scroll", next_page))
        self._server.ask("DELETE", "/_search/scroll", {"scroll_id": [answer["_scroll_id"]]})

    def upsert(self, rows: EngineRows) -> None:
        """Add rows; each replaces the row with its doc_id."""
        lines: list[dict[str, Any]] = []
        for at, (document, version) in enumerate(zip(rows.documents, rows.versions, strict=True)):
            if (n_bytes := len(document.doc_id.encode(errors="surrogatepass"))) > MAX_ID_BYTES:
                raise InvalidInput(
                    f"the id {document.doc_id[:80]!r} has {n_bytes:,} bytes, and {self.address.kind} takes at most "
                    f"{MAX_ID_BYTES}"
                )
            row = payload_of(document, version)
            if rows.dense is not None:
                row[DENSE] = rows.dense[at].tolist()
            if rows.sparse is not None and (weights := sparse_dict(rows.sparse, at)):
                row[SPARSE] = {str(term): weight for term, weight in weights.items()}
            lines += [{"index": {"_id": document.doc_id}}, row]
        self._bulk(lines)

    def delete(self, doc_ids: Sequence[str]) -> None:
        """Delete the rows with these ids."""
        self._bulk([{"delete": {"_id": doc_id}} for doc_id in doc_ids])

    def _bulk(self, lines: list[dict[str, Any]]) -> None:
        answer = self._there(self._server.ask("POST", f"{self._path}/_bulk", lines))
        if not answer["errors"]:
            return
        for item in answer["items"]:
            ((action, outcome),) = item.items()
            if "error" in outcome and not (action == "delete" and outcome.get("status") == 404):
                problem = outcome["error"]
                reason = problem.get("reason", problem) if isinstance(problem, dict) else problem
                raise EngineFailed(f"{self.address.kind} refused the row {outcome['_id']!r}: {reason}")

    def finish(self) -> None:
        """Make all changes visible to searches."""
        self._server.ask("POST", f"{self._path}/_refresh")

    def restrict(self, wanted: Node | None) -> bool:
        """Let the following searches return rows that match a filter, and others that the server cannot tell from them.

        The server keeps all values of the metadata as strings: it finds equal ones, and cannot order them.
        """
        self._filter = None
        if wanted is None:
            return False
        if self._present.fingerprint:
            self._filter = condition(wanted, _terms, _joined)
        return True

    def _restricted(self, query: dict[str, Any]) -> dict[str, Any]:
        """Return a query of the rows that meet the filter's condition; their scores remain."""
        return query if self._filter is None else {"bool": {"must": [query], "filter": [self._filter]}}

    def dense(self, queries: Floats, k: int, *, exact: bool) -> list[EngineList]:
        """Return each query's k rows of the highest inner products."""
        bodies = [self._exact(row.tolist()) if exact else self._nearest(row.tolist(), k) for row in queries]
        return [self._search(body, k, self._product) for body in bodies]

    def _nearest(self, vector: list[float], k: int) -> dict[str, Any]:
        n_candidates = min(max(2 * k, 200), MAX_CANDIDATES)
        knn = {"field": self._vector, "query_vector": vector, "k": k, "num_candidates": n_candidates}
        return {"knn": knn if self._filter is None else {**knn, "filter": self._filter}}

    def _exact(self, vector: list[float]) -> dict[str, Any]:
        """Return a query that scores all rows as `max_inner_product` does."""
        if not self._present.fingerprint:
            raise InvalidInput("exact search is supported in collections that lightir pushed")
        source = "double x = dotProduct(params.q, params.f); return x < 0 ? 1 / (1 - x) : x + 1"
        script = {"source": source.replace("params.f", f"'{self._vector}'"), "params": {"q": vector}}
        return {
            "query": {
                "script_score": {"query": self._restricted({"exists": {"field": self._vector}}), "script": script}
            }
        }

    def sparse(self, queries: SparseVectors, k: int) -> list[EngineList]:
        """Return each query's k rows of the highest inner products above 0."""
        asked = [sparse_dict(queries, row) for row in range(len(queries))]
        terms = [{str(term): weight for term, weight in row.items() if weight > 0} for row in asked]
        queries_of_terms = [{"query": self._restricted(self._sparse_query(row))} if row else None for row in terms]
        return [_nothing() if body is None else self._search(body, k, float) for body in queries_of_terms]

    def _sparse_query(self, terms: Mapping[str, float]) -> dict[str, Any]:
        """Return a query of a sparse vector; by default the server would prune its terms."""
        return {"sparse_vector": {"field": SPARSE, "query_vector": terms, "prune": False}}

    def _search(self, body: dict[str, Any], k: int, product: Callable[[float], float]) -> EngineList:
        answer = self._there(self._server.ask("POST", f"{self._path}/_search", {**body, "size": k, "_source": False}))
        hits = answer["hits"]["hits"]
        scores = np.array([product(float(hit["_score"])) for hit in hits], dtype=np.float32)
        return EngineList([str(hit["_id"]) for hit in hits], scores)

    def fused(self, dense: Floats, sparse: SparseVectors, k: int, depth: int) -> list[EngineList]:
        """Refuse: fusion by the server requires a license or a pipeline that lightir does not make.

        Raises:
            InvalidInput: always.
        """
        raise InvalidInput(f"fusion in the engine is not supported for {self.address.kind}; search without it")

    def fetch(self, doc_ids: Sequence[str], branches: Sequence[Branch]) -> EngineRows:
        """Return rows with the vectors of some branches, in any order; ids without a row are omitted."""
        body = {"size": len(doc_ids), "query": {"ids": {"values": list(doc_ids)}}, **self._wanted(branches)}
        answer = self._there(self._server.ask("POST", f"{self._path}/_search", body))
        return self._rows(answer["hits"]["hits"], branches)

    def rows(self, batch: int) -> Iterator[EngineRows]:
        """Yield all rows with their dense vectors, in batches."""
        for hits in self._pages(batch, self._wanted(("dense",))):
            yield self._rows(hits, ("dense",))

    def _wanted(self, branches: Sequence[Branch]) -> dict[str, Any]:
        """Return what a search has to return; since Elasticsearch 9.2 vectors are no part of the source."""
        names = {"dense": self._vector, "sparse": SPARSE}
        source: Any = FIELDS if self._present.fingerprint else {"excludes": [self._vector]}
        return {"_source": source, "fields": [names[branch] for branch in branches]}

    def _rows(self, hits: Sequence[Any], branches: Sequence[Branch]) -> EngineRows:
        documents = [document_of_payload(self.address, hit["_source"], str(hit["_id"])) for hit in hits]
        versions = [str(hit["_source"].get(VERSION, "")) for hit in hits]
        dense = sparse = None
        if "dense" in branches:
            vectors = [hit.get("fields", {}).get(self._vector) for hit in hits]
            if None in vectors:
                raise InvalidInput(
                    f"row {hits[vectors.index(None)]['_id']!r} of {self.address.collection!r} has no dense vector"
                )
            dense = np.array(vectors, dtype=np.float32).reshape(len(hits), -1)
        if "sparse" in branches:
            stored = [hit.get("fields", {}).get(SPARSE) or [{}] for hit in hits]
            pairs = [{int(term): float(weight) for term, weight in row[0].items()} for row in stored]
            sparse = sparse_of_dicts(pairs, self._present.vocab_size or 0)
        return EngineRows(documents, versions, dense, sparse)

    def close(self) -> None:
        """Close the connections."""
        self._server.close()


def _nothing() -> EngineList:
    return EngineList([], np.zeros(0, np.float32))


def _terms(keys: list[str], test: Among | Compared) -> dict[str, Any] | None:
    """Return a condition that every row meets which matches a test; None for an order, and null."""
    if isinstance(test, Compared) or "null" in test.constants:
        return None
    if any(len(text) >= MAX_VALUE_CHARACTERS for text in test.texts):
        return None
    terms = [*test.texts, *test.constants]
    for number in test.numbers:
        terms += [json.dumps(form) for form in (int(number), float(number)) if form == number]
        terms += ["-0.0"] if number == 0 else []
    return {"terms": {".".join([METADATA, *keys]): terms}}


def _joined(parts: Sequence[dict[str, Any]], is_all: bool) -> dict[str, Any]:
    if not parts:
        return {"match_none": {}}
    return {"bool": {"filter": list(parts)} if is_all else {"should": list(parts), "minimum_should_match": 1}}
