"""Vectors made outside lightir: those of functions of texts, such as calls of an embedding API, and given ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from lightir.contract import Contract
from lightir.data.stored_vectors import storable_vectors
from lightir.errors import InvalidInput
from lightir.query.fallback import EncodeTexts
from lightir.shards import Shard
from lightir.types import Document, Query
from lightir.vectors import Floats, QueryVectors, Ragged, normalized


class ExternalDocumentEncoder:
    """A function of texts as a `lightir.shards.DocumentEncoder`. It gets title and text, joined as for a model."""

    def __init__(self, contract: Contract, encode: EncodeTexts) -> None:
        """Join a contract and a function.

        Args:
            contract: contract of the vectors, see `external_contract`.
            encode: function that returns the vectors of documents.

        Raises:
            InvalidInput: the contract has no dense branch, or has a sparse one too.
        """
        _require_dense_alone(contract)
        self._contract = contract
        self._encode = encode

    @property
    def contract(self) -> Contract:
        """Contract of the vectors."""
        return self._contract

    def encode(self, documents: Sequence[Document]) -> Shard:
        """Encode documents, in their order.

        Raises:
            InvalidInput: the function returned other numbers than a finite vector of the contract's width per document.
        """
        dense, head = self._contract.dense, self._contract.document
        assert dense is not None
        texts = [f"{head.prompt}{document.full_text()}" for document in documents]
        rows = _vectors(self._encode, texts, self._contract)
        stored = storable_vectors(rows, documents, dense.similarity, source=self._contract.backbone.address)
        return Shard(list(documents), stored.astype(np.float16), None)


class ExternalQueryEncoder:
    """A function of texts as a `lightir.vectors.QueryEncoder`, for a `Searcher` of vectors made outside lightir."""

    def __init__(self, contract: Contract, encode: EncodeTexts) -> None:
        """Join a contract and a function.

        Args:
            contract: contract of the index or of the vectors, see `external_contract`.
            encode: function that returns the vectors of queries; it is not called for blank ones.

        Raises:
            InvalidInput: the contract has no dense branch, or has a sparse one too.
        """
        _require_dense_alone(contract)
        self.contract = contract
        self._fingerprint = contract.document_fingerprint
        self._encode = encode
        self._vector: Floats | None = None

    @classmethod
    def of_vector(cls, contract: Contract, vector: npt.ArrayLike) -> ExternalQueryEncoder:
        """Return an encoder that gives every query, blank ones included, one vector.

        Args:
            contract: contract of the index.
            vector: (dim,) finite numbers.

        Raises:
            InvalidInput: another shape, NaN or infinity; also as the constructor.
        """
        encoder = cls(contract, lambda texts: np.zeros((len(texts), 0), np.float32))
        encoder._vector = _vectors(lambda _: np.asarray(vector, dtype=np.float32)[None], [""], contract)
        return encoder

    @property
    def document_fingerprint(self) -> str:
        """Fingerprint of the document side that the query vectors are comparable with."""
        return self._fingerprint

    def encode(self, texts: Sequence[str], *, task: str | None = None) -> QueryVectors:
        """Encode queries; a blank one has a vector of zeros, which finds nothing.

        Raises:
            InvalidInput: a task, or the function returned other numbers than a finite vector per text.
        """
        if task is not None:
            raise InvalidInput(f"task {task!r} names a query table, but these queries are encoded outside lightir")
        assert self.contract.dense is not None
        rows = np.zeros((len(texts), self.contract.backbone.hidden_size), np.float32)
        if self._vector is not None:
            rows[:] = self._vector
        elif asked := [at for at, text in enumerate(texts) if text.strip()]:
            rows[asked] = _vectors(self._encode, [texts[at] for at in asked], self.contract)
        if self.contract.dense.similarity == "cosine":
            rows = normalized(rows)
        return QueryVectors(Ragged.from_lists([[] for _ in texts]), rows, None)


class GivenQueryVectors:
    """Vectors of some queries as a `lightir.vectors.QueryEncoder`, found by query_id."""

    def __init__(self, contract: Contract, query_ids: Sequence[str], vectors: npt.ArrayLike) -> None:
        """Check the vectors.

        Args:
            contract: contract of the index.
            query_ids: id of each query, all different.
            vectors: (n, dim) finite numbers, in the order of the ids; a row of zeros finds nothing by the dense branch.

        Raises:
            InvalidInput: another shape, NaN or infinity, or a contract without a dense branch or with a sparse one.
        """
        _require_dense_alone(contract)
        assert contract.dense is not None
        self.contract = contract
        rows = np.asarray(vectors, dtype=np.float32)
        expected = (len(query_ids), contract.backbone.hidden_size)
        if rows.shape != expected or not np.isfinite(rows).all():
            raise InvalidInput(
                f"the queries' vectors have the shape {rows.shape}; expected {expected}, the number of queries and the "
                "width of the index's vectors, all numbers finite"
            )
        self._rows = normalized(rows) if contract.dense.similarity == "cosine" else rows
        self._row_of = {query_id: row for row, query_id in enumerate(query_ids)}

    @property
    def document_fingerprint(self) -> str:
        """Fingerprint of the document side that the query vectors are comparable with."""
        return self.contract.document_fingerprint

    def encode(self, texts: Sequence[str], *, task: str | None = None) -> QueryVectors:
        """Refuse texts, which have no vectors here; `of` returns those of queries.

        Raises:
            InvalidInput: always.
        """
        raise InvalidInput("only the given queries have vectors, and a text is not one of them; search with Query")

    def of(self, queries: Sequence[Query]) -> QueryVectors:
        """Return the vectors of queries.

        Raises:
            InvalidInput: a query without a vector.
        """
        if lacking := [query.query_id for query in queries if query.query_id not in self._row_of]:
            raise InvalidInput(f"query {lacking[0]!r} has no vector; expected one per query")
        rows = self._rows[[self._row_of[query.query_id] for query in queries]]
        return QueryVectors(Ragged.from_lists([[] for _ in queries]), rows, None)


def _require_dense_alone(contract: Contract) -> None:
    if contract.dense is None or contract.sparse is not None:
        branches = "no dense branch" if contract.dense is None else "a sparse branch"
        raise InvalidInput(
            f"vectors that are made outside lightir are dense ones, but the contract of {contract.backbone.address!r} "
            f"has {branches}"
        )


def _vectors(encode: EncodeTexts, texts: Sequence[str], contract: Contract) -> Floats:
    """Return the vectors of texts, (n, dim) float32."""
    rows = np.asarray(encode(texts), dtype=np.float32) if texts else np.zeros((0, contract.backbone.hidden_size))
    expected = (len(texts), contract.backbone.hidden_size)
    if rows.shape != expected or not np.isfinite(rows).all():
        raise InvalidInput(
            f"{contract.backbone.address!r} returned vectors of shape {rows.shape} for {len(texts):,} texts; expected "
            f"{expected}, all numbers finite"
        )
    return rows.astype(np.float32, copy=False)
