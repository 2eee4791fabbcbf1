"""Shards of an index as a service: searches and documents, in this process or on a Ray cluster. It takes no changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

from lightir.errors import NotFound
from lightir.index.metadata_filters import Filter
from lightir.index.splitting import ShardedManifest
from lightir.search.searcher import Searcher
from lightir.search.shard_set import Shards
from lightir.search.sharded import ShardedSearcher
from lightir.serve.interface import IndexFacts
from lightir.serve.member import Member
from lightir.serve.query_model import QueryModel
from lightir.serve.schemas import ExplainRequest, SearchRequest
from lightir.serve.search_answers import ranking_options, search_answer
from lightir.serve.serve_options import ServeOptions
from lightir.serve.service import info_json
from lightir.serve.text_ranking import text_scores
from lightir.serve.writing import WriteQueue
from lightir.types import Document


class ShardedService:
    """Serves the shards of one index to many threads; see `lightir.serve.interface.Service` for the attributes.

    What is the same in all shards is read from the first one, which this process opens: the query encoder, the fields,
    and the counts of words. Documents come from the shards alone.
    """

    def __init__(self, manifest: ShardedManifest, shards: Shards, options: ServeOptions) -> None:
        """Take the shards.

        Args:
            manifest: their manifest.
            shards: the shards; who opened them closes them.
            options: options and limits.

        Raises:
            InvalidInput: the first shard was changed alone.
            NotFound, FormatError, StorageError: it cannot be opened.
        """
        self.folder: Path = manifest.folder
        self.options = options
        self.source: Path | None = None
        self.member: Member | None = None
        self.writes: WriteQueue | None = None
        self.waits = True
        self._shards = shards
        self._searcher = ShardedSearcher(shards, manifest.branches, passages=manifest.passages)
        self._n_documents = sum(shard.documents for shard in manifest.shards)
        self._first = Searcher(manifest.open(0))

    @property
    def searcher(self) -> ShardedSearcher:
        """The searcher of all shards."""
        return self._searcher

    @cached_property
    def _facts(self) -> IndexFacts:
        info, view = self._searcher.info(), self._first.index.view
        return IndexFacts(info.documents, info.encoded + info.pending, info.pending, view.schema, view.word_analyzer)

    def facts(self) -> IndexFacts:
        """Return what tools for agents need to know.

        Raises:
            ShardsMissing: a shard does not answer, and none of them was counted before.
        """
        return self._facts

    def close(self) -> None:
        """Close the first shard."""
        self._first.index.close()

    def refresh(self) -> bool:
        """Return False: shards are never changed."""
        return False

    @property
    def is_read_only(self) -> bool:
        """True: shards are never changed."""
        return True

    @property
    def why_read_only(self) -> str:
        """The way to change documents."""
        return "change the index that was split, and split it again"

    @property
    def missing_shards(self) -> tuple[int, ...]:
        """Numbers of the shards that do not answer now, ascending."""
        return tuple(sorted(self._shards.missing))

    @property
    def problem(self) -> str | None:
        """The shards that do not answer now; None if all do."""
        missing = self.missing_shards
        return f"shards that do not answer: {', '.join(map(str, missing))}" if missing else None

    @property
    def model(self) -> QueryModel:
        """The model of the index."""
        return QueryModel(self._first.encoder, self._first.index.contract, self.folder.name)

    @property
    def default_mode(self) -> str:
        """The mode of searches that name none."""
        return self._searcher.default_mode

    def search(self, asked: SearchRequest) -> dict[str, Any]:
        """Return the answer to a request. If it allows partial results, these have the numbers of missing shards.

        Raises:
            InvalidInput: as `search_answer`, or an option that shards do not support.
            ShardsMissing: a shard does not answer, and partial results are not allowed.
        """
        if not asked.allow_partial:
            return search_answer(self._searcher, asked)
        missing: set[int] = set()
        answer = search_answer(self._searcher.allowing(missing), asked)
        return answer | {"missing_shards": sorted(missing)} if missing else answer

    def explain(self, asked: ExplainRequest) -> dict[str, Any]:
        """Return a document's score for a query by branch and by term, whether a search finds it or not.

        Raises:
            NotFound: there is no such document.
            InvalidInput: bad arguments, or a document that does not match the filter.
            ShardsMissing: a shard does not answer.
        """
        explanation = self._searcher.explain(asked.query, asked.doc_id, ranking_options(asked))
        return {"query": asked.query, **asdict(explanation)}

    def documents(self, doc_ids: Sequence[str]) -> list[Document]:
        """Return the documents with the given ids, in that order; ids without a document are omitted.

        Raises:
            ShardsMissing: a document was not found, and a shard does not answer.
        """
        return [*self._searcher.get(doc_ids).values()]

    def document(self, doc_id: str) -> Document:
        """Return a document.

        Raises:
            NotFound: there is no such document.
            ShardsMissing: it was not found, and a shard does not answer.
        """
        documents = self.documents([doc_id])
        if not documents:
            raise NotFound(f"there is no document {doc_id!r}")
        return documents[0]

    def listed(self, wanted: Filter | None, after: str | None, limit: int) -> tuple[int, list[str]]:
        """Return the number of documents that match a filter, and the ids of a part of them; see `Index.ids`."""
        return self._searcher.ids(wanted, after=after, limit=limit)

    def info(self) -> dict[str, Any]:
        """Return counts and sizes of all shards, and the number of shards.

        Raises:
            ShardsMissing: a shard does not answer.
        """
        return {**info_json(self._searcher.info(), self.model.name), "shards": len(self._shards)}

    def text_scores(self, query: str, texts: Sequence[str], *, raw: bool) -> list[float]:
        """Return scores of texts that are not in the index; see `lightir.serve.text_ranking`."""
        return text_scores(self._first.index.view, query, texts, raw=raw)

    def gauges(self) -> dict[str, int]:
        """Return the numbers that metrics show, by name."""
        return {
            "documents": self._n_documents,
            "shards": len(self._shards),
            "missing_shards": len(self._shards.missing),
            "serves_newest_state": int(self.problem is None),
        }
