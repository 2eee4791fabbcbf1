"""Milvus: a server, a hosted one, or a local file by milvus-lite.

The description of the collection keeps its record, or a property. A text field of Milvus holds at most 65,535 bytes.
Milvus refuses sparse vectors without terms, so they get a term beyond the vocabulary, which no query has.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

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
    EngineList,
    EngineRows,
    client_module,
    document_of_payload,
    engine_errors,
    payload_of,
    sparse_dict,
    sparse_of_dicts,
)
from lightir.engines.filters import condition
from lightir.errors import InvalidInput
from lightir.index.metadata_filters import Among, Compared, Node
from lightir.types import Branch
from lightir.vectors import Floats, SparseVectors

MAX_ID_BYTES, MAX_TEXT_BYTES = 1024, 65_535
RRF_K = 60
PAGE = 1000
SIMILARITIES: Mapping[str, Literal["cosine", "dot"]] = {"COSINE": "cosine", "IP": "dot"}
RECORD = "lightir"
"""Property with the record, where the server keeps no descriptions (milvus-lite)."""

FLOAT_VECTOR = "FLOAT_VECTOR"
MAX_EXACT = 2**53
PLAIN_TEXT = re.compile(r"[^\x00-\x1f\"\\]*")
"""Strings that an expression holds as they are."""


class Milvus:
    """A collection of Milvus."""

    max_listed = 16_384

    def __init__(self, address: EngineAddress) -> None:
        """Connect.

        Raises:
            MissingExtra: pymilvus is not installed.
            EngineFailed: the server cannot be reached.
        """
        self.address = address
        self._library = client_module("pymilvus", "milvus")
        self._vector, self._sparse = address.options.get("vector", ""), address.options.get("sparse", SPARSE)
        self._id, self._present = DOC_ID, CollectionRecord(None, None)
        self._filter = ""
        with engine_errors(address, "connect to"):
            if address.is_local:
                self._client = self._library.MilvusClient(address.path)
            else:
                self._client = self._library.MilvusClient(uri=address.url, token=engine_key() or "")

    def collection(self) -> CollectionRecord | None:
        """Return what the collection holds; None if there is none."""
        name = self.address.collection
        with engine_errors(self.address, "read"):
            if not self._client.has_collection(name):
                return None
            described = self._client.describe_collection(name)
            self._client.load_collection(name)
        try:
            record = json.loads(described.get("description") or described.get("properties", {}).get(RECORD) or "null")
        except ValueError:
            record = None
        present = CollectionRecord.from_json(record, str(self.address))
        if present is None:
            present = self._foreign(described["fields"])
        else:
            self._vector = DENSE
        self._present = present
        return present

    def _foreign(self, fields: Sequence[dict[str, Any]]) -> CollectionRecord:
        """Return what a collection of another program holds."""
        kinds = {field["name"]: getattr(field["type"], "name", str(field["type"])) for field in fields}
        dense = [field for field in fields if kinds[field["name"]] == FLOAT_VECTOR]
        dims = {field["name"]: field["params"].get("dim", 0) for field in dense}
        if self._vector not in dims and len(dims) == 1:
            self._vector = next(iter(dims))
        if self._vector not in dims:
            raise InvalidInput(
                f"{self.address.collection!r} has the vectors {sorted(dims)}; choose one in the address: ?vector=NAME"
            )
        self._id = next(field["name"] for field in fields if field.get("is_primary"))
        with engine_errors(self.address, "read"):
            names = self._client.list_indexes(self.address.collection, self._vector)
            metrics = [self._client.describe_index(self.address.collection, name)["metric_type"] for name in names]
        similarity = SIMILARITIES.get(metrics[0] if metrics else "")
        if similarity is None:
            raise InvalidInput(
                f"{self.address.collection!r} compares vectors by {metrics}; expected one of {', '.join(SIMILARITIES)}"
            )
        return CollectionRecord(int(dims[self._vector]), None, similarity)

    def create(self, collection: CollectionRecord) -> None:
        """Create the collection, which must not exist."""
        kinds = self._library.DataType
        schema = self._client.create_schema(
            auto_id=False, enable_dynamic_field=False, description=json.dumps(collection.to_json())
        )
        schema.add_field(DOC_ID, kinds.VARCHAR, is_primary=True, max_length=MAX_ID_BYTES)
        schema.add_field(TITLE, kinds.VARCHAR, max_length=MAX_TEXT_BYTES)
        schema.add_field(TEXT, kinds.VARCHAR, max_length=MAX_TEXT_BYTES)
        schema.add_field(METADATA, kinds.JSON)
        schema.add_field(VERSION, kinds.VARCHAR, max_length=16)
        indexes = self._client.prepare_index_params()
        if collection.dense_dim is not None:
            schema.add_field(DENSE, kinds.FLOAT_VECTOR, dim=collection.dense_dim)
            graph = {"M": 16, "efConstruction": 200}
            if collection.index == "hnsw":
                indexes.add_index(DENSE, index_type="HNSW", metric_type="IP", params=graph)
            else:
                indexes.add_index(DENSE, index_type="FLAT", metric_type="IP")
        if collection.vocab_size is not None:
            schema.add_field(SPARSE, kinds.SPARSE_FLOAT_VECTOR)
            indexes.add_index(SPARSE, index_type="SPARSE_INVERTED_INDEX", metric_type="IP")
        with engine_errors(self.address, "create"):
            name = self.address.collection
            self._client.create_collection(name, schema=schema, index_params=indexes, consistency_level="Strong")
            if not self._client.describe_collection(name).get("description"):
                self._client.alter_collection_properties(name, properties={RECORD: json.dumps(collection.to_json())})
        self._vector, self._id, self._present = DENSE, DOC_ID, collection

    def drop(self) -> None:
        """Remove the collection with all its rows, if it exists."""
        with engine_errors(self.address, "remove"):
            if self._client.has_collection(self.address.collection):
                self._client.drop_collection(self.address.collection)

    def count(self) -> int:
        """Return the number of rows."""
        with engine_errors(self.address, "count"):
            (row,) = self._client.query(self.address.collection, filter="", output_fields=["count(*)"])
            return int(row["count(*)"])

    def versions(self) -> Iterator[tuple[str, str]]:
        """Yield the doc_id and the version of every row."""
        for rows in self._pages(PAGE, [DOC_ID, VERSION]):
            for row in rows:
                yield str(row[DOC_ID]), str(row[VERSION])

    def _pages(self, size: int, fields: list[str]) -> Iterator[list[dict[str, Any]]]:
        with engine_errors(self.address, "read"):
            pages = self._client.query_iterator(self.address.collection, batch_size=size, output_fields=fields)
            while rows := pages.next():
                yield list(rows)
            pages.close()

    def upsert(self, rows: EngineRows) -> None:
        """Add rows; each replaces the row with its doc_id."""
        data = []
        for at, (document, version) in enumerate(zip(rows.documents, rows.versions, strict=True)):
            row = payload_of(document, version)
            for name, limit in ((DOC_ID, MAX_ID_BYTES), (TITLE, MAX_TEXT_BYTES), (TEXT, MAX_TEXT_BYTES)):
                if (n_bytes := len(row[name].encode(errors="surrogatepass"))) > limit:
                    raise InvalidInput(
                        f"the {name} of document {document.doc_id[:80]!r} has {n_bytes:,} bytes, and Milvus stores at "
                        f"most {limit:,}; index with --passages, which splits long documents"
                    )
            if rows.dense is not None:
                row[DENSE] = rows.dense[at].tolist()
            if rows.sparse is not None:
                row[SPARSE] = sparse_dict(rows.sparse, at) or {rows.sparse.vocab_size: 1.0}
            data.append(row)
        with engine_errors(self.address, "write to"):
            self._client.upsert(self.address.collection, data)

    def delete(self, doc_ids: Sequence[str]) -> None:
        """Delete the rows with these ids."""
        with engine_errors(self.address, "delete from"):
            self._client.delete(self.address.collection, ids=list(doc_ids))

    def finish(self) -> None:
        """Seal the rows, so that the server indexes them."""
        with engine_errors(self.address, "flush"):
            self._client.flush(self.address.collection)

    def restrict(self, wanted: Node | None) -> bool:
        """Let the following searches return rows that match a filter, and others that Milvus cannot tell from them."""
        self._filter = ""
        if wanted is None:
            return False
        if self._present.fingerprint:
            self._filter = condition(wanted, _expression, _joined) or ""
        return True

    def dense(self, queries: Floats, k: int, *, exact: bool) -> list[EngineList]:
        """Return each query's k rows of the highest inner products."""
        if exact and self._present.index != "flat":
            raise InvalidInput(
                f"{self.address} has a graph, which Milvus cannot leave out of a search; push with --index flat for "
                "exact search"
            )
        params = {"params": {"ef": max(k, 100)}} if self._present.index == "hnsw" else {}
        return self._search(queries.tolist(), self._vector, k, params)

    def sparse(self, queries: SparseVectors, k: int) -> list[EngineList]:
        """Return each query's k rows of the highest inner products above 0."""
        return self._search([sparse_dict(queries, row) for row in range(len(queries))], self._sparse, k, {})

    def _search(self, vectors: list[Any], field: str, k: int, params: dict[str, Any]) -> list[EngineList]:
        with engine_errors(self.address, "search"):
            answers = self._client.search(
                self.address.collection,
                data=vectors,
                anns_field=field,
                limit=k,
                search_params=params,
                filter=self._filter,
            )
        return [self._listed(hits) for hits in answers]

    def _listed(self, hits: Any) -> EngineList:
        scores = np.array([hit["distance"] for hit in hits], dtype=np.float32)
        return EngineList([str(hit[self._id] if self._id in hit else hit["id"]) for hit in hits], scores)

    def fused(self, dense: Floats, sparse: SparseVectors, k: int, depth: int) -> list[EngineList]:
        """Return each query's k rows by Milvus's reciprocal rank fusion with the constant 60."""
        request, lists = self._library.AnnSearchRequest, []
        for row in range(len(dense)):
            parts = [
                request([dense[row].tolist()], self._vector, {"params": {"ef": max(depth, 100)}}, depth),
                request([sparse_dict(sparse, row)], self._sparse, {}, depth),
            ]
            with engine_errors(self.address, "search"):
                answers = self._client.hybrid_search(
                    self.address.collection, reqs=parts, ranker=self._library.RRFRanker(RRF_K), limit=k
                )
            lists.append(self._listed(answers[0]))
        return lists

    def fetch(self, doc_ids: Sequence[str], branches: Sequence[Branch]) -> EngineRows:
        """Return rows with the vectors of some branches, in any order; ids without a row are omitted."""
        names = {"dense": self._vector, "sparse": self._sparse}
        fields = [*self._fields(), *(names[branch] for branch in branches)]
        with engine_errors(self.address, "read"):
            rows = self._client.get(self.address.collection, ids=list(doc_ids), output_fields=fields)
        return self._rows(rows, branches)

    def rows(self, batch: int) -> Iterator[EngineRows]:
        """Yield all rows with their dense vectors, in batches."""
        for rows in self._pages(batch, [*self._fields(), self._vector]):
            yield self._rows(rows, ("dense",))

    def _fields(self) -> list[str]:
        return [DOC_ID, TITLE, TEXT, METADATA, VERSION] if self._present.fingerprint else ["*"]

    def _rows(self, rows: Sequence[dict[str, Any]], branches: Sequence[Branch]) -> EngineRows:
        vectors = {self._vector, self._sparse}
        documents, versions = [], []
        for row in rows:
            payload = {name: value for name, value in row.items() if name not in vectors and name != self._id}
            documents.append(document_of_payload(self.address, payload, str(row[self._id])))
            versions.append(str(payload.get(VERSION, "")))
        dense = sparse = None
        if "dense" in branches:
            dense = np.array([row[self._vector] for row in rows], dtype=np.float32).reshape(len(rows), -1)
        if "sparse" in branches:
            width = self._present.vocab_size or 0
            stored = [{term: weight for term, weight in row[self._sparse].items() if term < width} for row in rows]
            sparse = sparse_of_dicts(stored, width)
        return EngineRows(documents, versions, dense, sparse)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


def _expression(keys: list[str], test: Among | Compared) -> str | None:
    """Return an expression that every row meets which matches a test; None for what Milvus cannot express.

    Milvus cannot compare the elements of a list by order, and milvus-lite does not parse lists of negative numbers.
    """
    if isinstance(test, Compared) or "null" in test.constants:
        return None
    if not all(map(PLAIN_TEXT.fullmatch, test.texts)) or not all(0 <= number < MAX_EXACT for number in test.numbers):
        return None
    field = METADATA + "".join(f'["{key}"]' for key in keys)
    literals = [*test.constants, *(f'"{text}"' for text in test.texts)]
    for number in test.numbers:
        literals += [str(int(number)), f"{float(number) + 0.0:.1f}"] if number == int(number) else [repr(number)]
    return _joined([f"{field} == {literal} or json_contains({field}, {literal})" for literal in literals], False)


def _joined(parts: Sequence[str], is_all: bool) -> str:
    if not parts:
        return f'{DOC_ID} == ""'  # no document has the empty id
    return "(" + (") and (" if is_all else ") or (").join(parts) + ")"
