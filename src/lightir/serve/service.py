"""A served index without HTTP: searches, documents, query vectors, and changes. The HTTP routes call it."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from lightir.errors import InvalidInput, LightirError, NotFound
from lightir.index import Index, normalized
from lightir.pending.demand import Demand
from lightir.search import PageOptions, Searcher, SearchOptions
from lightir.search.hit_json import hit_json
from lightir.serve.member import CommitCounter, Member
from lightir.serve.schemas import ExplainRequest, RankingBody, SearchRequest
from lightir.serve.serve_options import ServeOptions
from lightir.serve.writing import WriteQueue
from lightir.types import Document, Hit
from lightir.vectors import Floats, SparseVectors


class SearchService:
    """Serves one index to many threads. Close it to stop its writer and to note which pending documents were searched.

    Attributes:
        folder: index folder.
        options: options and limits.
        source: folder whose files are the documents; None if the index has documents of its own.
        member: this process; None if the service has one alone.
        writes: queue of changes; None if the service is read-only, serves a folder's files, or has another process
            that commits changes.
    """

    def __init__(
        self, folder: Path, options: ServeOptions, *, source: Path | None = None, member: Member | None = None
    ) -> None:
        """Open an index.

        Args:
            folder: index folder.
            options: options and limits.
            source: folder whose files are the documents, which are changed there.
            member: this process, if the service has several.

        Raises:
            NotFound: the folder is not an index.
            FormatError: a file is missing, damaged or of another version.
        """
        self.folder = folder
        self.options = options
        self.source = source
        self.member = member
        self._commits = None if member is None else CommitCounter(member.counter_path)
        self._known_commits = 0 if self._commits is None else self._commits.value
        self._index = Index.open(folder)
        self._demand = None if options.read_only and source is None else Demand(folder)
        self._searcher = Searcher(self._index, demand=self._demand)
        self._refreshing = threading.Lock()
        self._problem: str | None = None
        self.writes: WriteQueue | None = None
        if not self.is_read_only and (member is None or member.commits_changes):
            self.writes = WriteQueue(
                folder, max_waiting=options.max_writes, lock_s=options.lock_s, committed=self._show_commit
            )

    def close(self) -> None:
        """Commit the changes that wait, and close the index."""
        if self.writes is not None:
            self.writes.close()
        if self._demand is not None:
            self._demand.close()
        self._index.close()

    @property
    def searcher(self) -> Searcher:
        """The searcher of the newest state that was opened, and of what any process has committed."""
        self._catch_up()
        return self._searcher

    @property
    def index(self) -> Index:
        """The index, with what any process has committed."""
        self._catch_up()
        return self._index

    @property
    def is_read_only(self) -> bool:
        """Whether no process of the service takes changes."""
        return self.options.read_only or self.source is not None

    @property
    def problem(self) -> str | None:
        """The reason why an earlier state is served; None if the newest one is."""
        return self._problem

    def refresh(self) -> bool:
        """Open the newest state of the index and return whether it differs. Searches that run keep theirs.

        If the folder holds another index now, its model's query encoder is loaded too. If it cannot be opened, the
        service keeps the state that it has, and `problem` says why.
        """
        with self._refreshing:
            try:
                if self._index.view.store.is_current:
                    changed = self._index.refresh()
                else:  # a search must not meet the new index with the former one's query encoder
                    index = Index.open(self.folder)
                    self._searcher = Searcher(index, demand=self._demand)
                    self._index, changed = index, True
            except LightirError as error:
                self._problem = str(error)
                return False
            self._problem = None
            return changed

    def _show_commit(self) -> None:
        """Open the state that was committed, here and then in the other processes."""
        self.refresh()
        if self._commits is not None:
            self._commits.increase()

    def _catch_up(self) -> None:
        """Open the newest state if another process has committed it."""
        if self._commits is not None and (number := self._commits.value) != self._known_commits:
            self.refresh()
            self._known_commits = number

    # Searches

    def search(self, asked: SearchRequest) -> dict[str, Any]:
        """Return the answer to a request: an object per query, in "results" for a list of queries.

        Raises:
            InvalidInput: bad arguments, a branch that the index lacks, or a malformed filter.
        """
        options = search_options(asked)
        if isinstance(asked.query, str):
            return self._result(asked.query, asked, options)
        if asked.ids_only and not asked.pages:
            return {"results": self._rankings(asked.query, asked.k, options)}
        return {"results": [self._result(query, asked, options) for query in asked.query]}

    def _rankings(self, queries: Sequence[str], k: int, options: SearchOptions) -> list[dict[str, Any]]:
        started = time.perf_counter()
        searcher = self.searcher
        rankings = searcher.search(list(queries), k, options).values()
        took_ms = _milliseconds(started)
        return [
            {
                "query": query,
                "mode": options.mode or searcher.default_mode,
                "took_ms": took_ms,
                "hits": [
                    {"doc_id": doc_id, "score": score}
                    for doc_id, score in zip(ranking.doc_ids, ranking.scores.tolist(), strict=True)
                ],
            }
            for query, ranking in zip(queries, rankings, strict=True)
        ]

    def _result(self, query: str, asked: SearchRequest, options: SearchOptions) -> dict[str, Any]:
        if asked.ids_only and not asked.pages:
            return self._rankings([query], asked.k, options)[0]
        started = time.perf_counter()
        searcher = self.searcher
        mode = options.mode or searcher.default_mode
        answer: dict[str, Any] = {"query": query, "mode": mode, "took_ms": 0.0}
        hits: list[Hit]
        if asked.pages or not query.strip():
            page = PageOptions(asked.offset, asked.k, asked.facet_counts, asked.sort, asked.group)
            result_page = searcher.page(query, page, options, explain=asked.explain, full_text=asked.full_text)
            hits = result_page.hits
            answer["total"] = result_page.total
            counted = result_page.facets.items()
            answer["facets"] = {name: [asdict(count) for count in counts] for name, counts in counted}
        else:
            hits = searcher.hits(query, asked.k, options, explain=asked.explain, full_text=asked.full_text)
        answer["hits"] = [_shown(hit, asked) for hit in hits]
        answer["took_ms"] = _milliseconds(started)
        return answer

    def explain(self, asked: ExplainRequest) -> dict[str, Any]:
        """Return a document's score for a query by branch and by term, whether a search finds it or not.

        Raises:
            NotFound: there is no such document.
            InvalidInput: bad arguments, or a document that does not match the filter.
        """
        try:
            explanation = self.searcher.explain(asked.query, asked.doc_id, ranking_options(asked))
        except NotFound:  # its message names the folder
            raise NotFound(f"there is no document {asked.doc_id!r}") from None
        return {"query": asked.query, **asdict(explanation)}

    # Documents

    def documents(self, doc_ids: Sequence[str]) -> list[Document]:
        """Return the documents with the given ids, in that order; ids without a document are omitted."""
        return [*self.index.get(doc_ids).values()]

    def document(self, doc_id: str) -> Document:
        """Return a document.

        Raises:
            NotFound: there is no such document.
        """
        documents = self.documents([doc_id])
        if not documents:
            raise NotFound(f"there is no document {doc_id!r}")
        return documents[0]

    def info(self) -> dict[str, Any]:
        """Return counts, sizes, branches, fields and the contract of the index; of a model's address, only the name."""
        described = asdict(self.index.info())
        if described["contract"] is not None:
            described["contract"]["backbone"] = self.model_name
        return described

    # Query vectors

    def dense(self, texts: Sequence[str], dimensions: int | None = None) -> Floats:
        """Return the dense query vectors (n, dim) float32 of length 1; zeros for a text without terms.

        Args:
            texts: n texts.
            dimensions: width of the vectors, a prefix scaled to length 1; None for the encoder's.

        Raises:
            InvalidInput: the index has no dense branch, or `dimensions` is above its width.
        """
        encoder = self.searcher.encoder
        vectors = None if encoder is None else encoder.encode(texts).dense
        if vectors is None:
            raise InvalidInput(
                f"{self.folder.name} has no dense query vectors: it was built without a model that has them"
            )
        if dimensions is None or dimensions == vectors.shape[1]:
            return vectors
        if not 1 <= dimensions < vectors.shape[1]:
            raise InvalidInput(f"dimensions is {dimensions}; expected 1 to {vectors.shape[1]}")
        return normalized(np.ascontiguousarray(vectors[:, :dimensions]))

    def sparse(self, texts: Sequence[str]) -> SparseVectors:
        """Return the sparse query vectors.

        Raises:
            InvalidInput: the index has no sparse branch.
        """
        encoder = self.searcher.encoder
        vectors = None if encoder is None else encoder.encode(texts).sparse
        if vectors is None:
            raise InvalidInput(
                f"{self.folder.name} has no sparse query vectors: it was built without a model that has them"
            )
        return vectors

    @property
    def model_name(self) -> str:
        """Name of the model whose queries the service encodes; "bm25" for an index without a model."""
        contract = self._index.contract
        return "bm25" if contract is None else contract.backbone.address.rstrip("/").rpartition("/")[2]


def search_options(asked: SearchRequest) -> SearchOptions:
    """Return the library's options of a request.

    Raises:
        InvalidInput: a malformed option.
    """
    return ranking_options(asked, exclude=asked.exclude, min_score=asked.min_score)


def ranking_options(
    asked: RankingBody, *, exclude: Sequence[str] = (), min_score: float | None = None
) -> SearchOptions:
    """Return the library's options of how documents are ranked.

    Args:
        asked: body of the request.
        exclude: ids of documents to leave out.
        min_score: score below which hits are left out.

    Raises:
        InvalidInput: a malformed option.
    """
    return SearchOptions(
        mode=asked.mode,
        fusion=asked.fusion,
        weights=asked.weights,
        depth=asked.depth,
        filter=asked.filter,
        exclude=exclude,
        typos=asked.typos,
        as_you_type=asked.as_you_type,
        min_score=min_score,
        passages=asked.passages,
        syntax=asked.syntax,
    )


def document_json(document: Document) -> dict[str, Any]:
    """Return a document as an object."""
    return {
        "doc_id": document.doc_id,
        "title": document.title,
        "text": document.text,
        "metadata": dict(document.metadata),
    }


def _shown(hit: Hit, asked: SearchRequest) -> dict[str, Any]:
    if asked.ids_only:
        return {"doc_id": hit.doc_id, "score": hit.score}
    shown = hit_json(hit, explain=asked.explain)
    if not asked.highlights:
        del shown["highlights"]
    if asked.fields is not None:
        shown["metadata"] = {name: hit.metadata[name] for name in asked.fields if name in hit.metadata}
    return shown


def _milliseconds(started: float) -> float:
    return round((time.perf_counter() - started) * 1000, 3)
