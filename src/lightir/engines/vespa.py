"""Vespa 8.293 or later, over HTTP: a schema that lightir.engines.vespa_package describes, and that was deployed.

A document's id in Vespa is a hash, since ids are parts of paths there. The record of the collection is one more
document, in a namespace of its own. Sparse weights are integers in Vespa, as the index's impacts are.
"""

from __future__ import annotations

import hashlib
import json
import math
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

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
    EngineFailed,
    EngineList,
    EngineRows,
    payload_of,
    sparse_dict,
    sparse_of_dicts,
)
from lightir.engines.filters import condition
from lightir.engines.http_json import JsonOverHttp, RequestRefused
from lightir.engines.vespa_package import IDS, MAX_HITS, PROFILE, ROW, VALUES, schema_name
from lightir.errors import InvalidInput, NotFound
from lightir.index.metadata_filters import Among, Compared, Node
from lightir.types import Branch, Document
from lightir.vectors import Floats, SparseVectors

CONNECTIONS = 8
"""Number of requests at a time; each adds or deletes one document."""

PAGE = 1000
QUERY_TIMEOUT = "55s"
NAMESPACE_OF_RECORD, RECORD = "lightir", "record"
FIELDS = (DOC_ID, TITLE, TEXT, METADATA, VERSION)
BAD_REQUEST = 400
MIN_EXPLORED = 200
WEIGHT_BITS = 30
"""Number of bits of a query's largest weight, if its weights are not whole numbers."""


class Vespa:
    """The documents of a schema in Vespa."""

    max_listed = MAX_HITS

    def __init__(self, address: EngineAddress) -> None:
        """Keep the address; nothing is sent."""
        self.address = address
        self._schema = schema_name(address)
        self._server = JsonOverHttp(address.url, key=engine_key(), key_scheme="Bearer")
        self._rows_path = f"/document/v1/{self._schema}/{self._schema}/docid"
        self._record_path = f"/document/v1/{NAMESPACE_OF_RECORD}/{self._schema}/docid/{RECORD}"
        self._present = CollectionRecord(None, None)
        self._filter: str | None = None

    def collection(self) -> CollectionRecord | None:
        """Return what the schema's documents hold; None if it is not deployed, or has no record."""
        try:
            answer = self._server.ask("GET", self._record_path)
        except RequestRefused as error:
            if error.status == BAD_REQUEST:  # there is no such schema
                return None
            raise
        if answer is None:
            return None
        record = CollectionRecord.from_json(json.loads(answer["fields"][METADATA]), str(self.address))
        if record is not None:
            self._present = record
        return record

    def create(self, record: CollectionRecord) -> None:
        """Write the record of a schema that is deployed.

        Raises:
            NotFound: the schema is not deployed.
        """
        try:
            self._server.ask("POST", self._record_path, {"fields": {METADATA: json.dumps(record.to_json())}})
        except RequestRefused as error:
            if error.status != BAD_REQUEST:
                raise
            raise NotFound(
                f"{error}. Write an application package with the schema {self._schema!r} (lightir push INDEX "
                f"{self.address} --package FOLDER), deploy it (vespa deploy FOLDER), then push again"
            ) from None
        self._present = record

    def drop(self) -> None:
        """Remove all rows and the record, if the schema is deployed; it remains."""
        try:
            for page in self._pages((DOC_ID,), PAGE):
                self.delete([str(row["fields"][DOC_ID]) for row in page])
            self._server.ask("DELETE", self._record_path)
        except RequestRefused as error:
            if error.status != BAD_REQUEST:
                raise

    def count(self) -> int:
        """Return the number of rows."""
        answer = self._search({"yql": f"select {DOC_ID} from sources * where true", "hits": 0})
        return int(answer["fields"]["totalCount"]) - 1  # without the record

    def versions(self) -> Iterator[tuple[str, str]]:
        """Yield the doc_id and the version of every row."""
        for page in self._pages((DOC_ID, VERSION), PAGE):
            for row in page:
                yield str(row["fields"][DOC_ID]), str(row["fields"].get(VERSION, ""))

    def _pages(self, fields: Sequence[str], size: int) -> Iterator[list[Any]]:
        """Yield all documents but the record in lists of any length, of about `size` at most."""
        asked = {"fieldSet": f"{self._schema}:{','.join(fields)}", "wantedDocumentCount": str(size)}
        while True:
            answer = self._server.ask("GET", f"{self._rows_path}?{urllib.parse.urlencode(asked)}")
            if answer is None:
                raise EngineFailed(f"{self.address} does not exist any more")
            yield answer.get("documents", [])
            if not answer.get("continuation"):
                return
            asked["continuation"] = answer["continuation"]

    def upsert(self, rows: EngineRows) -> None:
        """Add rows, several at a time; each replaces the row with its doc_id."""
        _all_at_once(lambda at: self._put(rows, at), range(len(rows)))

    def _put(self, rows: EngineRows, at: int) -> None:
        document = rows.documents[at]
        fields = payload_of(document, rows.versions[at])
        fields |= {
            METADATA: json.dumps(fields[METADATA]),
            ROW: row_number(document.doc_id),
            VALUES: sorted(set(values_of(document.metadata))),
        }
        if rows.dense is not None:
            fields[DENSE] = rows.dense[at].tolist()
        if rows.sparse is not None:
            weights = sparse_dict(rows.sparse, at)
            if any(weight != int(weight) for weight in weights.values()):
                raise InvalidInput(f"{document.doc_id!r} has weights that are no whole numbers, which Vespa requires")
            fields[SPARSE] = {str(term): int(weight) for term, weight in weights.items()}
        try:
            self._server.ask("POST", f"{self._rows_path}/{row_id(document.doc_id)}", {"fields": fields})
        except RequestRefused as error:
            if error.status != BAD_REQUEST:
                raise
            raise InvalidInput(
                f"{self.address} refused the row {document.doc_id!r}: {error}. If the deployed schema is of another "
                "index, write its package again (--package) and deploy it"
            ) from None

    def delete(self, doc_ids: Sequence[str]) -> None:
        """Delete the rows with these ids, several at a time."""
        _all_at_once(lambda doc_id: self._server.ask("DELETE", f"{self._rows_path}/{row_id(doc_id)}"), doc_ids)

    def finish(self) -> None:
        """Do nothing: a change is visible when its request is answered."""

    def restrict(self, wanted: Node | None) -> bool:
        """Let the following searches return rows that match a filter, and others that the server cannot tell from them.

        The server keeps hashes of the metadata's values: it finds equal ones, and cannot order them.
        """
        self._filter = None
        if wanted is None:
            return False
        self._filter = condition(wanted, _among, _joined)
        return True

    def _where(self, clause: str) -> str:
        return f"{clause} and {self._filter}" if self._filter is not None else clause

    def dense(self, queries: Floats, k: int, *, exact: bool) -> list[EngineList]:
        """Return each query's k rows of the highest inner products."""
        approximate = not exact and self._present.index == "hnsw"
        explored = f"hnsw.exploreAdditionalHits: {max(k, MIN_EXPLORED - k)}" if approximate else "approximate: false"
        where = self._where(f"({{targetHits: {k}, {explored}}}nearestNeighbor({DENSE}, q))")
        return [self._list(where, k, DENSE, 1.0, {"input.query(q)": row.tolist()}) for row in queries]

    def sparse(self, queries: SparseVectors, k: int) -> list[EngineList]:
        """Return each query's k rows of the highest inner products above 0."""
        where = self._where(f"({{targetHits: {k}}}wand({SPARSE}, @terms))")
        lists = []
        for row in range(len(queries)):
            weights, scale = whole_weights(sparse_dict(queries, row))
            terms = ", ".join(f"{term}: {weight}" for term, weight in weights.items())
            asked = {"terms": f"{{{terms}}}"}
            nothing = EngineList([], np.zeros(0, np.float32))
            lists.append(self._list(where, k, SPARSE, scale, asked) if weights else nothing)
        return lists

    def _list(self, where: str, k: int, profile: str, scale: float, inputs: Mapping[str, Any]) -> EngineList:
        asked = {
            "yql": f"select {DOC_ID} from sources * where {where}",
            "hits": k,
            "ranking.profile": profile,
            **inputs,
        }
        hits = self._search({**asked, "presentation.summary": IDS}).get("children", [])
        scores = np.array([float(hit["relevance"]) / scale for hit in hits], dtype=np.float32)
        return EngineList([str(hit["fields"][DOC_ID]) for hit in hits], scores)

    def _search(self, asked: Mapping[str, Any]) -> Any:
        """Return the root of an answer that covers all documents.

        Raises:
            EngineFailed: the search failed, or left out documents.
        """
        common = {"queryProfile": PROFILE, "model.restrict": self._schema, "timeout": QUERY_TIMEOUT}
        answer = self._server.ask("POST", "/search/", {**common, "ranking.softtimeout.enable": False, **asked})
        root = (answer or {}).get("root", {})
        if errors := root.get("errors"):
            raise EngineFailed(f"{self.address} failed: {errors[0].get('message') or errors[0].get('summary')}")
        if not root.get("coverage", {}).get("full", False):
            raise EngineFailed(f"{self.address} searched only some documents: {root.get('coverage')}")
        return root

    def fused(self, dense: Floats, sparse: SparseVectors, k: int, depth: int) -> list[EngineList]:
        """Refuse: fusion by Vespa requires a rank profile that the application package does not have.

        Raises:
            InvalidInput: always.
        """
        raise InvalidInput(f"fusion in the engine is not supported for {self.address.kind}; search without it")

    def fetch(self, doc_ids: Sequence[str], branches: Sequence[Branch]) -> EngineRows:
        """Return rows with the vectors of some branches, in any order; ids without a row are omitted."""
        names = ", ".join((*FIELDS, *branches))
        wanted: set[str] = {*doc_ids}
        stored: list[Any] = []
        for first in range(0, len(doc_ids), PAGE):
            numbers = ",".join(str(row_number(doc_id)) for doc_id in doc_ids[first : first + PAGE])
            yql = f"select {names} from sources * where {ROW} in (@rows)"
            asked = {"yql": yql, "rows": numbers, "hits": PAGE, "ranking.profile": "unranked"}
            stored += [hit["fields"] for hit in self._search(asked).get("children", [])]
        return self._rows([fields for fields in stored if fields[DOC_ID] in wanted], branches)

    def rows(self, batch: int) -> Iterator[EngineRows]:
        """Yield all rows with their dense vectors, in batches."""
        for page in self._pages((*FIELDS, DENSE), batch):
            if page:
                yield self._rows([row["fields"] for row in page], ("dense",))

    def _rows(self, rows: Sequence[Mapping[str, Any]], branches: Sequence[Branch]) -> EngineRows:
        """Return rows of fields as Vespa gives them, which leaves out empty ones."""
        documents = [
            Document(row[DOC_ID], row.get(TEXT, ""), row.get(TITLE, ""), json.loads(row[METADATA])) for row in rows
        ]
        dense = sparse = None
        if "dense" in branches:
            dense = np.array([row[DENSE]["values"] for row in rows], dtype=np.float32).reshape(len(rows), -1)
        if "sparse" in branches:
            pairs = [{int(term): float(weight) for term, weight in row.get(SPARSE, {}).items()} for row in rows]
            sparse = sparse_of_dicts(pairs, self._present.vocab_size or 0)
        return EngineRows(documents, [row.get(VERSION, "") for row in rows], dense, sparse)

    def close(self) -> None:
        """Close the connections."""
        self._server.close()


def row_id(doc_id: str) -> str:
    """Return the document's id in Vespa, 32 hexadecimal digits: an id may have characters that no path takes."""
    return hashlib.blake2b(doc_id.encode(errors="surrogatepass"), digest_size=16).hexdigest()


def row_number(doc_id: str) -> int:
    """Return a number of 63 bits by which queries look up a document."""
    return _hash(doc_id)


def values_of(metadata: Any, keys: tuple[str, ...] = ()) -> Iterator[int]:
    """Yield a number of 63 bits for each value of the metadata that a filter can be equal to."""
    if isinstance(metadata, Mapping):
        for key, value in metadata.items():
            yield from values_of(value, (*keys, key))
        return
    for value in metadata if isinstance(metadata, list) else [metadata]:
        if not isinstance(value, Mapping | list):
            yield _value_number(keys, value)


def whole_weights(weights: Mapping[int, float]) -> tuple[dict[int, int], float]:
    """Return a query's weights above 0 as whole numbers, and what they were multiplied by, a power of 2."""
    positive = {term: weight for term, weight in weights.items() if weight > 0}
    if not positive:
        return {}, 1.0
    largest = max(positive.values())
    is_whole = largest < 2**WEIGHT_BITS and all(weight.is_integer() for weight in positive.values())
    scale = 1.0 if is_whole else math.ldexp(1.0, WEIGHT_BITS - math.frexp(largest)[1])
    return {term: max(1, round(weight * scale)) for term, weight in positive.items()}, scale


def _value_number(keys: Sequence[str], value: Any) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # 1.0 is equal to 1
    return _hash(json.dumps([*keys, value]))


def _hash(text: str) -> int:
    digest = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def _among(keys: list[str], test: Among | Compared) -> str | None:
    """Return a condition that every row meets which matches a test; None for an order."""
    if isinstance(test, Compared):
        return None
    values = [*map(json.loads, test.constants), *test.numbers, *test.texts]
    numbers = dict.fromkeys(_value_number(keys, value) for value in values)
    return f"{VALUES} in ({', '.join(f'{number}L' for number in numbers)})"


def _joined(parts: Sequence[str], is_all: bool) -> str:
    """Join conditions; any one of none is met by no row, since no row's number is negative."""
    return f"({(' and ' if is_all else ' or ').join(parts)})" if parts else f"{ROW} in (-1)"


def _all_at_once(change: Callable[[Any], None], items: Iterable[Any]) -> None:
    """Make changes, several at a time; return when all are made."""
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        for _ in pool.map(change, items):
            pass
