"""An index folder of lightir as LangChain's retriever."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.retrievers import BaseRetriever
from pydantic import Field, PrivateAttr

from langchain_lightir.opening import open_index
from lightir import LiveIndex, SearchOptions
from lightir.index import Filter


class LightIRRetriever(BaseRetriever):
    """Searches an index folder, also one that the command `lightir index` wrote.

    The metadata of a document have its score (`score`), its title if it has one, and for a passage of a longer document
    the place (`passage`).
    """

    folder: str | os.PathLike[str] = Field(description="index folder")
    embedding: Embeddings | None = Field(None, description="embeds queries of an index that has no query table")
    k: int = Field(4, description="number of documents")
    filter: dict[str, Any] | None = Field(None, description="condition on the metadata, in lightir's form")
    options: SearchOptions = Field(default_factory=SearchOptions, description="mode, fusion and so on")
    threads: int = Field(1, description="maximum number of threads per search")

    _live: LiveIndex = PrivateAttr()

    def model_post_init(self, context: Any) -> None:
        """Open the index.

        Raises:
            NotFound: the folder is not an index.
            ContractMismatch: the index has vectors of another model.
        """
        super().model_post_init(context)
        self._live = open_index(self.folder, self.embedding, None, self.threads)

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,
        k: int | None = None,
        filter: Filter | None = None,
    ) -> list[Document]:
        """Return the best documents of a query.

        Args:
            query: text of the query.
            run_manager: callbacks of LangChain.
            k: number of documents; None for that of the retriever.
            filter: condition on the metadata in place of the retriever's; None for that.
        """
        wanted = self.filter if filter is None else filter
        options = self.options if wanted is None else dataclasses.replace(self.options, filter=wanted)
        results = []
        for hit in self._live.hits(query, self.k if k is None else k, options):
            passage = {} if hit.passage is None else {"passage": dataclasses.asdict(hit.passage)}
            title = {"title": hit.title} if hit.title else {}
            metadata = {**title, **hit.metadata, **passage, "score": hit.score}
            results.append(Document(id=hit.doc_id, page_content=hit.snippet, metadata=metadata))
        return results
