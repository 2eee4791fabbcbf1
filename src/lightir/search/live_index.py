"""LiveIndex: one object that searches an index folder and changes its documents, as vector stores do."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from pathlib import Path

import numpy.typing as npt

from lightir.contract import Contract, require_same_documents
from lightir.errors import ContractMismatch, InvalidInput
from lightir.index import Filter, Index, IndexOptions, IndexWriter
from lightir.index.intake import listed
from lightir.query.fallback import EncodeTexts
from lightir.search.external_vectors import ExternalDocumentEncoder, ExternalQueryEncoder
from lightir.search.search_options import DEFAULT_OPTIONS, SearchOptions
from lightir.search.searcher import Searcher
from lightir.shards import DocumentEncoder
from lightir.types import Document, Hit
from lightir.vectors import QueryEncoder


class LiveIndex:
    """Searches an index folder and changes its documents. Every search sees all changes committed before it.

    A change opens the index's writer for its duration, so other processes and threads can change the index too, one at
    a time. A closed one cannot be used again.

    Attributes:
        folder: index folder.
        documents: encoder of documents; None leaves new documents pending (see docs/worker.md).
        queries: encoder of queries; None for the one stored in the index.
    """

    def __init__(
        self,
        folder: Path | str,
        *,
        documents: DocumentEncoder | None = None,
        queries: QueryEncoder | None = None,
        threads: int = 1,
    ) -> None:
        """Open an index.

        Args:
            folder: index folder.
            documents: encoder of the documents that are added; None leaves them pending.
            queries: encoder of queries; None for the one stored in the index.
            threads: maximum number of threads per search.

        Raises:
            NotFound: the folder is not an index.
            ContractMismatch: an encoder is of another model than the index.
            InvalidInput: an encoder of documents for an index without a model's contract.
        """
        self.folder = Path(folder)
        self.documents, self.queries = documents, queries
        self._threads = threads
        self._refreshing = threading.Lock()
        self._index, self._searcher = self._opened()

    @classmethod
    def create(
        cls,
        folder: Path | str,
        *,
        contract: Contract | None = None,
        query_encoder: str | os.PathLike[str] | None = None,
        options: IndexOptions | None = None,
        documents: DocumentEncoder | None = None,
        queries: QueryEncoder | None = None,
        overwrite: bool = False,
    ) -> LiveIndex:
        """Create an empty index and open it, with one thread per search.

        Args:
            folder: index folder to write.
            contract: contract of the vectors; None for that of `documents`, then of the query encoder.
            query_encoder: query-encoder folder, or a model that has one, to store in the index.
            options: options of the index; None for the defaults.
            documents: encoder of the documents that are added; None leaves them pending.
            queries: encoder of queries; None for the one stored in the index.
            overwrite: replace an existing index.

        Raises:
            AlreadyExists: the folder exists and overwrite is off.
            InvalidInput, ContractMismatch, WriteFailed: as `build_index`, and as the constructor.
        """
        if contract is None and documents is not None:
            contract = documents.contract
        stored = None if query_encoder is None else os.fspath(query_encoder)
        IndexWriter.create(
            folder, options=options, contract=contract, query_encoder=stored, overwrite=overwrite
        ).close()
        return cls(folder, documents=documents, queries=queries)

    @classmethod
    def of_functions(
        cls, folder: Path | str, name: str, *, documents: EncodeTexts, queries: EncodeTexts, threads: int = 1
    ) -> LiveIndex:
        """Open an index of vectors that functions of texts make, such as calls of an embedding API.

        Args:
            folder: index folder.
            name: name of the model behind the functions.
            documents: function that returns the vectors of documents.
            queries: function that returns the vectors of queries; not used if the index has a query table.
            threads: maximum number of threads per search.

        Raises:
            NotFound: the folder is not an index.
            ContractMismatch: the index has no vectors, or those of another model.
        """
        with Index.open(folder) as index:
            contract, has_table = index.contract, index.query_encoder() is not None
        if contract is None or not contract.is_external or contract.backbone.address != name:
            vectors = "no vectors" if contract is None else f"vectors of {contract.backbone.address!r}"
            made = " that lightir makes" if contract is not None and not contract.is_external else ""
            raise ContractMismatch(f"{folder} has {vectors}{made}, not those of {name!r}; use the index's own model")
        return cls(
            folder,
            documents=ExternalDocumentEncoder(contract, documents),
            queries=None if has_table else ExternalQueryEncoder(contract, queries),
            threads=threads,
        )

    def close(self) -> None:
        """Close the index."""
        self._index.close()

    def __enter__(self) -> LiveIndex:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __len__(self) -> int:
        """Number of documents."""
        return len(self.index)

    @property
    def index(self) -> Index:
        """The index, refreshed to its newest state."""
        return self.searcher.index

    @property
    def searcher(self) -> Searcher:
        """The searcher of the index, refreshed to its newest state."""
        with self._refreshing:
            if self._index.view.store.is_current:
                self._index.refresh(same_index=True)
            if not self._index.view.store.is_current:  # only now: another index, with another query encoder
                self._index.close()
                self._index, self._searcher = self._opened()
            return self._searcher

    def upsert(self, documents: Iterable[Document]) -> int:
        """Encode documents and add them in one change; each replaces the document with its id.

        Without an encoder of documents, new and changed documents are pending: BM25 finds them at once.

        Returns:
            The number of new or changed documents.

        Raises:
            InvalidInput: bad documents or vectors, as `IndexWriter.add`. Nothing was changed.
            IndexLocked: another writer keeps the index open.
        """
        given = listed(documents)
        if not given:
            return 0
        if self.documents is None:
            with self.writer() as writer:
                return writer.upsert(given)
        shard = self.documents.encode(given)
        with self.writer() as writer:
            return writer.upsert(shard.documents, dense=shard.dense, sparse=shard.sparse)

    def delete(self, doc_ids: Iterable[str]) -> int:
        """Delete documents and return the number of those that existed.

        Raises:
            InvalidInput: an id is not a string.
            IndexLocked: another writer keeps the index open.
        """
        with self.writer() as writer:
            return writer.delete(doc_ids)

    def delete_where(self, wanted: Filter) -> int:
        """Delete the documents whose metadata match a filter, and return their number.

        Raises:
            InvalidInput: the filter is malformed.
            IndexLocked: another writer keeps the index open.
        """
        with self.writer() as writer:
            return writer.delete_where(wanted)

    def hits(
        self,
        query: str,
        k: int = 10,
        options: SearchOptions = DEFAULT_OPTIONS,
        *,
        vector: npt.ArrayLike | None = None,
    ) -> list[Hit]:
        """Return the k best documents of one query; the snippet of each is its whole text.

        Args:
            query: text of the query; "" with a vector searches the dense branch alone.
            k: number of documents; fewer are returned if fewer match.
            options: mode, fusion, filter and so on.
            vector: (dim,) dense vector of the query, in place of the one that the encoder of queries would make.

        Raises:
            InvalidInput: bad arguments, a branch that the index lacks, a malformed filter, or a bad vector.
        """
        searcher = self.searcher
        if vector is not None:
            if searcher.index.contract is None:
                raise InvalidInput(f"{self.folder} has no model's contract, so it cannot be searched by a vector")
            encoder = ExternalQueryEncoder.of_vector(searcher.index.contract, vector)
            searcher = Searcher(searcher.index, encoder, threads=self._threads)
        return searcher.hits(query, k, options, full_text=True)

    def _opened(self) -> tuple[Index, Searcher]:
        index = Index.open(self.folder)
        try:
            if self.documents is not None:
                if index.contract is None:
                    raise InvalidInput(
                        f"{self.folder} has no model's contract, so its documents cannot get vectors; open it without "
                        "an encoder of documents"
                    )
                require_same_documents(
                    index.contract, self.documents.contract, names=("the index", "the encoder of documents")
                )
            return index, Searcher(index, self.queries, threads=self._threads)
        except BaseException:
            index.close()
            raise

    def writer(self) -> IndexWriter:
        """Open the writer of the index, for several changes or other ones than those of this class.

        Raises:
            IndexLocked: another writer keeps the index open.
        """
        return IndexWriter.open(self.folder, brief=True)
