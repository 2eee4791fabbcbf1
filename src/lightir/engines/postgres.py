"""PostgreSQL with pgvector: a table with columns for the fields of a document, its vectors, and the row's version.

The table's comment keeps the record of the collection. Sparse vectors are scanned, because pgvector's graphs take at
most 1,000 terms a row.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
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
    EngineList,
    EngineRows,
    client_module,
    document_of_payload,
    engine_errors,
    payload_of,
    sparse_of_dicts,
)
from lightir.engines.filters import has_dates
from lightir.engines.postgres_filters import filter_sql
from lightir.errors import InvalidInput
from lightir.index.metadata_filters import AllOf, Node, field_tests
from lightir.types import Branch
from lightir.vectors import Floats, SparseVectors

COLUMNS = (DOC_ID, TITLE, TEXT, METADATA, VERSION)
MAX_GRAPH_DIM = 2000
"""Maximum width of vectors with a graph."""

MAX_TERMS = 16_000
"""Maximum number of terms of a sparsevec."""

MIN_EF, MAX_EF = 100, 1000
"""Limits of hnsw.ef_search; a search of more rows than MAX_EF goes on iteratively."""

RRF_K = 60
MAX_NAME = 63
VECTOR_TYPES = ("vector", "halfvec")


class Postgres:
    """A table of PostgreSQL."""

    max_listed = 100_000

    def __init__(self, address: EngineAddress) -> None:
        """Connect.

        Raises:
            MissingExtra: psycopg is not installed.
            EngineFailed: the server refuses the connection.
        """
        self.address = address
        psycopg = client_module("psycopg", "postgresql")
        self._sql = client_module("psycopg.sql", "postgresql")
        self._table = self._sql.Identifier(*address.collection.split("."))
        self._names = {"id": DOC_ID, "vector": DENSE, "sparse": SPARSE}
        self._columns: Sequence[str] = COLUMNS
        self._present: CollectionRecord | None = None
        self._where, self._filter_values = "", list[Any]()
        host = address.options.get("host", address.host)
        given = {"host": host, "dbname": address.path, "user": address.user, "password": engine_key()}
        arguments: dict[str, Any] = {name: value for name, value in given.items() if value}
        if address.has_tls:
            arguments["sslmode"] = "require"
        with engine_errors(address, "connect to"):
            self._connection = psycopg.connect(port=address.port, autocommit=True, connect_timeout=30, **arguments)

    def collection(self) -> CollectionRecord | None:
        """Return what the table holds; None if there is none."""
        with engine_errors(self.address, "read"):
            (described,) = self._all(
                "SELECT to_regclass({name})::oid, obj_description(to_regclass({name}), 'pg_class')"
            )
            if described[0] is None:
                return None
            columns = self._all(
                "SELECT attname, typname, atttypmod FROM pg_attribute JOIN pg_type ON pg_type.oid = atttypid "
                "WHERE attrelid = to_regclass({name})::oid AND attnum > 0 AND NOT attisdropped"
            )
        try:
            record = json.loads(described[1] or "null")
        except ValueError:
            record = None
        self._present = CollectionRecord.from_json(record, str(self.address)) or self._foreign(columns)
        return self._present

    def _foreign(self, columns: Sequence[tuple[Any, ...]]) -> CollectionRecord:
        """Return what a table of another program holds."""
        where, options = self.address.collection, self.address.options
        dims = {name: dim for name, kind, dim in columns if kind in VECTOR_TYPES}
        chosen = options.get("vector") or (next(iter(dims)) if len(dims) == 1 else "")
        if chosen not in dims:
            raise InvalidInput(
                f"table {where!r} has the vector columns {sorted(dims)}; choose one in the address: ?vector=NAME"
            )
        names = [name for name, _, _ in columns]
        id_name = options.get("id") or next((name for name in (DOC_ID, "id", "_id") if name in names), None)
        if id_name not in names:
            raise InvalidInput(f"table {where!r} has the columns {names}; name the one of ids in the address: ?id=NAME")
        self._names = {"id": str(id_name), "vector": chosen, "sparse": ""}
        others = [name for name, kind, _ in columns if kind not in (*VECTOR_TYPES, "sparsevec") and name != id_name]
        self._columns = [str(id_name), *others]
        dim = dims[chosen]
        if dim < 1:
            with engine_errors(self.address, "read"):
                first = self._all("SELECT vector_dims({vector}) FROM {table} WHERE {vector} IS NOT NULL LIMIT 1")
            dim = first[0][0] if first else 0
        return CollectionRecord(int(dim), None)

    def create(self, collection: CollectionRecord) -> None:
        """Create the table, which must not exist."""
        dim = collection.dense_dim
        if dim is not None and dim > MAX_GRAPH_DIM and collection.index == "hnsw":
            raise InvalidInput(
                f"pgvector has graphs of vectors of up to {MAX_GRAPH_DIM:,} numbers, and these have {dim:,}; push with "
                "--index flat"
            )
        columns = '{id} text COLLATE "C" PRIMARY KEY, title text NOT NULL, text text NOT NULL, '
        columns += f"metadata jsonb NOT NULL, {VERSION} text NOT NULL"
        columns += f", dense vector({dim:d})" if dim is not None else ""
        columns += f", sparse sparsevec({collection.vocab_size:d})" if collection.vocab_size is not None else ""
        with engine_errors(self.address, "create"):
            if not self._all("SELECT 1 FROM pg_extension WHERE extname = 'vector'"):
                self._do("CREATE EXTENSION vector")
            with self._connection.transaction():
                self._do(f"CREATE TABLE {{table}} ({columns})")
                self._do("COMMENT ON TABLE {table} IS {record}", record=json.dumps(collection.to_json()))
        self._present, self._columns = collection, COLUMNS

    def drop(self) -> None:
        """Remove the table with all its rows, if it exists."""
        with engine_errors(self.address, "remove"):
            self._do("DROP TABLE IF EXISTS {table}")

    def count(self) -> int:
        """Return the number of rows."""
        with engine_errors(self.address, "count"):
            return int(self._all("SELECT count(*) FROM {table}")[0][0])

    def versions(self) -> Iterator[tuple[str, str]]:
        """Yield the doc_id and the version of every row."""
        for rows in self._pages(f"SELECT {{id}}, {VERSION} FROM {{table}}", 10_000):
            yield from rows

    def _pages(self, statement: str, size: int) -> Iterator[list[tuple[Any, ...]]]:
        with (
            engine_errors(self.address, "read"),
            self._connection.transaction(),
            self._connection.cursor(name="lightir") as cursor,
        ):
            cursor.execute(self._composed(statement))
            while rows := cursor.fetchmany(size):
                yield rows

    def upsert(self, rows: EngineRows) -> None:
        """Add rows in one transaction; each replaces the row with its doc_id."""
        vectors = [name for name, part in ((DENSE, rows.dense), (SPARSE, rows.sparse)) if part is not None]
        names = [*COLUMNS, *vectors]
        listed = self._sql.SQL(", ").join(map(self._sql.Identifier, names))
        updates = ", ".join(f"{name} = EXCLUDED.{name}" for name in names[1:])
        with engine_errors(self.address, "write to"), self._connection.transaction():
            self._do("CREATE TEMP TABLE IF NOT EXISTS lightir_rows (LIKE {table}) ON COMMIT DELETE ROWS")
            statement = self._sql.SQL("COPY pg_temp.lightir_rows ({}) FROM STDIN").format(listed)
            with self._connection.cursor() as cursor, cursor.copy(statement) as copy:
                for at in range(len(rows)):
                    copy.write_row(self._values(rows, at))
            self._do(
                "INSERT INTO {table} ({columns}) SELECT {columns} FROM pg_temp.lightir_rows "
                f"ON CONFLICT ({{id}}) DO UPDATE SET {updates}",
                columns=listed,
            )

    def _values(self, rows: EngineRows, at: int) -> list[str]:
        payload = payload_of(rows.documents[at], rows.versions[at])
        payload[METADATA] = json.dumps(payload[METADATA], ensure_ascii=False)
        doc_id = rows.documents[at].doc_id
        if any("\0" in payload[name] for name in (DOC_ID, TITLE, TEXT)) or "\\u0000" in payload[METADATA]:
            raise InvalidInput(f"document {doc_id!r} holds the character NUL, which PostgreSQL cannot store; remove it")
        values = [payload[name] for name in COLUMNS]
        if rows.dense is not None:
            values.append(_vector_text(rows.dense[at]))
        if rows.sparse is not None:
            term_ids, _ = rows.sparse.row(at)
            if len(term_ids) > MAX_TERMS:
                raise InvalidInput(
                    f"document {doc_id!r} has {len(term_ids):,} terms, and pgvector stores at most {MAX_TERMS:,}; "
                    "build the index with --sparse-top-k"
                )
            values.append(_sparse_text(rows.sparse, at))
        return values

    def delete(self, doc_ids: Sequence[str]) -> None:
        """Delete the rows with these ids."""
        with engine_errors(self.address, "delete from"):
            self._do("DELETE FROM {table} WHERE {id} = ANY(%s)", [list(doc_ids)])

    def finish(self) -> None:
        """Build the graph of the dense vectors, if the collection has one, and let PostgreSQL count the rows."""
        collection = self._present
        with engine_errors(self.address, "index"):
            if collection is not None and collection.index == "hnsw" and collection.dense_dim is not None:
                name = f"{self.address.collection.split('.')[-1]}_dense_hnsw"[-MAX_NAME:]
                self._do(
                    "CREATE INDEX IF NOT EXISTS {graph} ON {table} USING hnsw (dense vector_ip_ops)",
                    graph=self._sql.Identifier(name),
                )
            self._do("ANALYZE {table}")

    def restrict(self, wanted: Node | None) -> bool:
        """Let the following searches return rows that match a filter, which they find by a scan.

        The table has no types of fields: values are compared as JSON. Parts of the filter with dates are left out.

        Raises:
            InvalidInput: a string with the character NUL, or a table of another program.
        """
        self._where, self._filter_values = "", []
        if wanted is None:
            return False
        if METADATA not in self._columns:
            raise InvalidInput(f"{self.address} has no column {METADATA!r}, so it cannot be filtered")
        parts = wanted.parts if isinstance(wanted, AllOf) else (wanted,)
        known = [part for part in parts if not any(has_dates(test.test) for test in field_tests(part))]
        where, self._filter_values = filter_sql(AllOf(tuple(known)))
        self._where = f" AND {where}"
        return len(known) < len(parts)

    def dense(self, queries: Floats, k: int, *, exact: bool) -> list[EngineList]:
        """Return each query's k rows of the highest inner products; of the highest cosines in another's table."""
        is_foreign = self._present is not None and not self._present.fingerprint
        score, order = ("1 - ({vector} <=> %s::vector)", "<=>") if is_foreign else ("-({vector} <#> %s::vector)", "<#>")
        statement = f"SELECT {{id}}::text, {score} FROM {{table}} WHERE {{vector}} IS NOT NULL{self._where} "
        statement += f"ORDER BY {{vector}} {order} %s::vector LIMIT %s"
        lists = []
        for row in queries:
            text = _vector_text(row)
            with engine_errors(self.address, "search"), self._connection.transaction():
                if exact or self._where:
                    self._do("SET LOCAL enable_indexscan = off")
                else:
                    self._do(f"SET LOCAL hnsw.ef_search = {min(max(k, MIN_EF), MAX_EF)}")
                    self._do("SET LOCAL hnsw.iterative_scan = strict_order")
                lists.append(_listed(self._all(statement, [text, *self._filter_values, text, k])))
        return lists

    def sparse(self, queries: SparseVectors, k: int) -> list[EngineList]:
        """Return each query's k rows of the highest inner products above 0."""
        statement = "SELECT {id}::text, -(sparse <#> %s::sparsevec) FROM {table} WHERE sparse <#> %s::sparsevec < 0"
        statement += f"{self._where} "
        statement += "ORDER BY sparse <#> %s::sparsevec LIMIT %s"
        lists = []
        for row in range(len(queries)):
            text = _sparse_text(queries, row)
            with engine_errors(self.address, "search"):
                lists.append(_listed(self._all(statement, [text, text, *self._filter_values, text, k])))
        return lists

    def fused(self, dense: Floats, sparse: SparseVectors, k: int, depth: int) -> list[EngineList]:
        """Return each query's k rows by reciprocal rank fusion with the constant 60, in one statement of SQL."""
        branch = "SELECT {id} AS i, row_number() OVER (ORDER BY %s) AS r FROM ({t}) AS listed"
        parts = []
        for column, kind in ((DENSE, "vector"), (SPARSE, "sparsevec")):
            where = f" WHERE {column} <#> %s::{kind} < 0" if column == SPARSE else ""
            inner = f"SELECT {{id}}, {column} <#> %s::{kind} AS s FROM {{table}}{where} ORDER BY s LIMIT %s"
            parts.append(branch.replace("%s", "s, {id}").replace("{t}", inner))
        statement = f"SELECT i::text, sum(1.0 / ({RRF_K} + r)) AS score "
        statement += f"FROM (({parts[0]}) UNION ALL ({parts[1]})) AS f GROUP BY i ORDER BY score DESC, i LIMIT %s"
        lists = []
        for row in range(len(dense)):
            one, other = _vector_text(dense[row]), _sparse_text(sparse, row)
            with engine_errors(self.address, "search"):
                lists.append(_listed(self._all(statement, [one, depth, other, other, depth, k])))
        return lists

    def fetch(self, doc_ids: Sequence[str], branches: Sequence[Branch]) -> EngineRows:
        """Return rows with the vectors of some branches, in any order; ids without a row are omitted."""
        with engine_errors(self.address, "read"):
            statement = self._select(branches) + " WHERE {id}::text = ANY(%s)"
            return self._rows(self._all(statement, [list(doc_ids)]), branches)

    def rows(self, batch: int) -> Iterator[EngineRows]:
        """Yield all rows with their dense vectors, in batches."""
        statement = self._select(("dense",)) + " WHERE {vector} IS NOT NULL"
        for rows in self._pages(statement, batch):
            yield self._rows(rows, ("dense",))

    def _select(self, branches: Sequence[Branch]) -> str:
        names = {"dense": "{vector}::text", "sparse": "sparse::text"}
        return f"SELECT {', '.join(['{fields}', *(names[branch] for branch in branches)])} FROM {{table}}"

    def _rows(self, rows: Sequence[tuple[Any, ...]], branches: Sequence[Branch]) -> EngineRows:
        n = len(self._columns)
        documents, versions = [], []
        for row in rows:
            payload = dict(zip(self._columns[1:], row[1:n], strict=True))
            documents.append(document_of_payload(self.address, payload, str(row[0])))
            versions.append(str(payload.get(VERSION) or ""))
        dense = sparse = None
        for at, branch in enumerate(branches, n):
            if branch == "dense":
                dense = np.array([json.loads(row[at]) for row in rows], np.float32).reshape(len(rows), -1)
            else:
                assert self._present is not None
                sparse = sparse_of_dicts([_sparse_of_text(row[at]) for row in rows], self._present.vocab_size or 0)
        return EngineRows(documents, versions, dense, sparse)

    def _composed(self, statement: str, **parts: Any) -> Any:
        sql = self._sql
        literals = {name: sql.Literal(part) if isinstance(part, str) else part for name, part in parts.items()}
        named = {"id": sql.Identifier(self._names["id"]), "vector": sql.Identifier(self._names["vector"])}
        fields = sql.SQL(", ").join(map(sql.Identifier, self._columns))
        quoted = ".".join(f'"{part}"' for part in self.address.collection.split("."))
        return sql.SQL(statement).format(
            table=self._table, name=sql.Literal(quoted), fields=fields, **named, **literals
        )

    def _do(self, statement: str, values: Sequence[Any] | None = None, **parts: Any) -> None:
        self._connection.execute(self._composed(statement, **parts), values)

    def _all(self, statement: str, values: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
        return list(self._connection.execute(self._composed(statement), values).fetchall())

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def _listed(rows: Sequence[tuple[str, Any]]) -> EngineList:
    return EngineList([doc_id for doc_id, _ in rows], np.array([float(score) for _, score in rows], dtype=np.float32))


def _vector_text(vector: Floats) -> str:
    return f"[{','.join(map(repr, vector.astype(np.float32).tolist()))}]"


def _sparse_text(sparse: SparseVectors, row: int) -> str:
    """Return a sparse vector as pgvector writes it: positions count from 1."""
    term_ids, weights = sparse.row(row)
    pairs = zip(term_ids.tolist(), weights.tolist(), strict=True)
    return f"{{{','.join(f'{term + 1}:{weight!r}' for term, weight in pairs)}}}/{sparse.vocab_size}"


def _sparse_of_text(text: str | None) -> Mapping[int, float]:
    listed = (text or "{}/0").partition("}")[0].strip("{")
    pairs = [pair.partition(":") for pair in listed.split(",") if pair]
    return {int(term) - 1: float(weight) for term, _, weight in pairs}
