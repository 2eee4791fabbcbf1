"""A served index without HTTP: searches, documents, query vectors, and changes. The HTTP routes call it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lightir.errors import LightirError, NotFound
from lightir.index import Index
from lightir.index.metadata_filters import Filter
from lightir.index.reader import IndexInfo
from lightir.pending.demand import Demand
from lightir.search import Searcher
from lightir.serve.interface import IndexFacts
from lightir.serve.member import CommitCounter, Member
from lightir.serve.query_model import QueryModel
from lightir.serve.schemas import ExplainRequest, SearchRequest
from lightir.serve.search_answers import ranking_options, search_answer
from lightir.serve.serve_options import ServeOptions
from lightir.serve.text_ranking import text_scores
from lightir.serve.writing import WriteQueue
from lightir.types import Document


class SearchService:
    """Serves one index to many threads. Close it to stop its writer and to note which pending documents were searched.

    Attributes:
        folder: index folder.
        options: options and limits.
        source: folder whose files are the documents; None if the index has documents of its own.
        member: this process; None if the service has one alone.
        waits: False: searches compute in this process.
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
        self.waits = False
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
    def why_read_only(self) -> str:
        """The way to change documents if the service is read-only."""
        if self.source is not None:
            return f"its documents are the files of {self.source.name}; change these"
        return "start it without --read-only to change documents"

    @property
    def problem(self) -> str | None:
        """The reason why an earlier state is served; None if the newest one is."""
        return None if self._problem is None else f"an earlier state of the index is served: {self._problem}"

    @property
    def missing_shards(self) -> tuple[int, ...]:
        """No shards: this is one index."""
        return ()

    def refresh(self) -> bool:
        """Open the newest state of the index and return whether it differs. Searches that run keep theirs.

        If the folder holds another index now, its model's query encoder is loaded too. If it cannot be opened, the
        service keeps the state that it has, and `problem` says why.
        """
        with self._refreshing:
            try:
                changed = self._index.view.store.is_current and self._index.refresh(same_index=True)
                # Only now: it may be replaced meanwhile, and no search may meet it with the former query encoder.
                if not self._index.view.store.is_current:
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

    def facts(self) -> IndexFacts:
        """Return what tools for agents need to know."""
        view = self.index.view
        return IndexFacts(view.n_documents, len(view), view.n_pending, view.schema, view.word_analyzer)

    # Searches

    def search(self, asked: SearchRequest) -> dict[str, Any]:
        """Return the answer to a request; see `search_answer`."""
        return search_answer(self.searcher, asked)

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
        return info_json(self.index.info(), self.model.name)

    def listed(self, wanted: Filter | None, after: str | None, limit: int) -> tuple[int, list[str]]:
        """Return the number of documents that match a filter, and the ids of a part of them; see `Index.ids`."""
        return self.index.count(wanted), self.index.ids(wanted, after=after, limit=limit)

    def text_scores(self, query: str, texts: Sequence[str], *, raw: bool) -> list[float]:
        """Return scores of texts that are not in the index; see `lightir.serve.text_ranking`."""
        return text_scores(self.index.view, query, texts, raw=raw)

    def gauges(self) -> dict[str, int]:
        """Return the numbers that metrics show, by name."""
        view = self.index.view
        return {
            "documents": view.n_documents,
            "pending_documents": view.n_pending,
            "segments": len(view.segments),
            "generation": view.generation,
            "serves_newest_state": int(self.problem is None),
            "waiting_writes": 0 if self.writes is None else len(self.writes),
        }

    @property
    def model(self) -> QueryModel:
        """The model of the index."""
        searcher = self.searcher
        return QueryModel(searcher.encoder, self._index.contract, self.folder.name)

    @property
    def default_mode(self) -> str:
        """The mode of searches that name none."""
        return self.searcher.default_mode


def info_json(info: IndexInfo, model: str) -> dict[str, Any]:
    """Return the description of an index as an object, with the model's name instead of its address."""
    described = asdict(info)
    if described["contract"] is not None:
        described["contract"]["backbone"] = model
    return described


def document_json(document: Document) -> dict[str, Any]:
    """Return a document as an object."""
    return {
        "doc_id": document.doc_id,
        "title": document.title,
        "text": document.text,
        "metadata": dict(document.metadata),
    }
