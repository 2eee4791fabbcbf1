"""The interface between HTTP routes and what they serve: an index (`SearchService`), or shards (`ShardedService`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from lightir.analysis import Analyzer
from lightir.index import Schema
from lightir.index.metadata_filters import Filter
from lightir.serve.member import Member
from lightir.serve.query_model import QueryModel
from lightir.serve.schemas import ExplainRequest, SearchRequest
from lightir.serve.search_answers import Searches
from lightir.serve.serve_options import ServeOptions
from lightir.serve.writing import WriteQueue
from lightir.types import Document


@dataclass(frozen=True, slots=True)
class IndexFacts:
    """Counts and properties of an index that tools for agents show or need.

    Attributes:
        documents: number of documents.
        stored: number of stored documents; a passage counts as one.
        pending: number of stored documents that have no vectors yet.
        schema: types of the metadata fields; None without any.
        word_analyzer: analyzer that marks the words of a query in texts.
    """

    documents: int
    stored: int
    pending: int
    schema: Schema | None
    word_analyzer: Analyzer


class Service(Protocol):
    """An opened index, or opened shards.

    Attributes:
        folder: folder of the index, or of the shards.
        options: options and limits.
        source: folder whose files are the documents; None if the index has documents of its own.
        member: this process; None if the service has one alone.
        writes: queue of changes; None if this process commits none.
        waits: whether searches wait for other processes rather than compute.
    """

    folder: Path
    options: ServeOptions
    source: Path | None
    member: Member | None
    writes: WriteQueue | None
    waits: bool

    @property
    def is_read_only(self) -> bool:
        """Whether no process of the service takes changes."""
        ...

    @property
    def why_read_only(self) -> str:
        """The way to change documents if the service is read-only."""
        ...

    @property
    def problem(self) -> str | None:
        """The reason why the newest state is not served, or not all of it; None if it is."""
        ...

    @property
    def missing_shards(self) -> tuple[int, ...]:
        """Numbers of the shards that do not answer now, ascending."""
        ...

    @property
    def model(self) -> QueryModel:
        """The model of the index."""
        ...

    @property
    def default_mode(self) -> str:
        """The mode of searches that name none."""
        ...

    @property
    def searcher(self) -> Searches:
        """The searcher of the newest state."""
        ...

    def facts(self) -> IndexFacts:
        """Return what tools for agents need to know."""
        ...

    def close(self) -> None:
        """Commit the changes that wait, and close what was opened."""
        ...

    def refresh(self) -> bool:
        """Open the newest state and return whether it differs. Searches that run keep theirs."""
        ...

    def search(self, asked: SearchRequest) -> dict[str, Any]:
        """Return the answer to a request; see `lightir.serve.search_answers.search_answer`."""
        ...

    def explain(self, asked: ExplainRequest) -> dict[str, Any]:
        """Return a document's score for a query by branch and by term."""
        ...

    def documents(self, doc_ids: Sequence[str]) -> list[Document]:
        """Return the documents with the given ids, in that order; ids without a document are omitted."""
        ...

    def document(self, doc_id: str) -> Document:
        """Return a document; raise NotFound if there is none."""
        ...

    def listed(self, wanted: Filter | None, after: str | None, limit: int) -> tuple[int, list[str]]:
        """Return the number of documents that match a filter, and the ids of a part of them; see `Index.ids`."""
        ...

    def info(self) -> dict[str, Any]:
        """Return counts, sizes, branches, fields and the contract; of a model's address, only the name."""
        ...

    def text_scores(self, query: str, texts: Sequence[str], *, raw: bool) -> list[float]:
        """Return scores of texts that are not in the index; see `lightir.serve.text_ranking`."""
        ...

    def gauges(self) -> dict[str, int]:
        """Return the numbers that metrics show, by name."""
        ...
