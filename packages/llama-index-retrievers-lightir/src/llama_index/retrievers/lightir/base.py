"""An index folder of lightir as LlamaIndex's retriever."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.constants import DEFAULT_SIMILARITY_TOP_K
from llama_index.core.schema import BaseNode, MetadataMode, NodeWithScore, QueryBundle, TextNode
from llama_index.core.vector_stores import MetadataFilters
from llama_index.core.vector_stores.utils import metadata_dict_to_node, node_to_metadata_dict
from llama_index.embeddings.lightir import LightIREmbedding
from llama_index.retrievers.lightir.filters import lightir_filter

from lightir import Document, Hit, IndexOptions, LiveIndex, SearchOptions, external_contract
from lightir.errors import InvalidInput

Folder = str | os.PathLike[str]


class LightIRRetriever(BaseRetriever):
    """Finds nodes in an index folder by hybrid search: dense vectors, sparse ones if the model has them, and BM25.

    The folder can be one that the command `lightir index` wrote; its documents become text nodes. Every search sees
    what other processes have committed.
    """

    def __init__(
        self,
        folder: Folder,
        *,
        embed_model: BaseEmbedding | None = None,
        similarity_top_k: int = DEFAULT_SIMILARITY_TOP_K,
        filters: MetadataFilters | None = None,
        options: SearchOptions | None = None,
        threads: int = 1,
        **kwargs: Any,
    ) -> None:
        """Open an existing index folder; see `from_nodes` for a new one.

        Args:
            folder: index folder.
            embed_model: embeds nodes that are added, and queries if the index has no query table. None searches an
                index with a table, and leaves added nodes to BM25 until `lightir worker` encodes them.
            similarity_top_k: number of nodes.
            filters: condition on the metadata.
            options: mode, fusion and so on; None for hybrid search with the index's fusion.
            threads: maximum number of threads per search.
            kwargs: arguments of BaseRetriever.

        Raises:
            NotFound: the folder is not an index.
            ContractMismatch: the index has vectors of another model.
            InvalidInput: filters that lightir does not have.
        """
        super().__init__(**kwargs)
        self.live = _open(folder, embed_model, threads)
        self.similarity_top_k = similarity_top_k
        self.options = options or SearchOptions()
        if filters is not None:
            self.options = dataclasses.replace(self.options, filter=lightir_filter(filters))

    @classmethod
    def from_nodes(
        cls,
        nodes: Sequence[BaseNode],
        folder: Folder,
        *,
        embed_model: BaseEmbedding | None = None,
        model: Folder | None = None,
        similarity: Literal["cosine", "dot"] = "cosine",
        index_options: IndexOptions | None = None,
        **kwargs: Any,
    ) -> LightIRRetriever:
        """Create an index of nodes in a new folder.

        Args:
            nodes: the nodes; see `add_nodes`.
            folder: index folder to write; it must not exist.
            embed_model: embeds the nodes. `LightIREmbedding` has a table for queries; other ones embed them too.
            model: lightir model whose query table the index gets, for nodes that `lightir worker` encodes; excludes
                `embed_model`. An index with neither has BM25 alone.
            similarity: similarity of the vectors of an `embed_model` that is not lightir's.
            index_options: fields, sizes and so on; None for the defaults.
            kwargs: further arguments of the constructor.

        Raises:
            AlreadyExists: the folder exists.
            InvalidInput: as `add_nodes`, or both embed_model and model.
        """
        if embed_model is not None and model is not None:
            raise InvalidInput("embed_model and model exclude each other: the nodes get vectors from one of them")
        contract, table = None, model
        if isinstance(embed_model, LightIREmbedding):
            table = embed_model.text_model.address
        elif embed_model is not None:
            dims = len(embed_model.get_query_embedding("width"))
            contract = external_contract(embed_model.model_name, dims, similarity=similarity)
        LiveIndex.create(os.fspath(folder), contract=contract, query_encoder=table, options=index_options).close()
        retriever = cls(folder, embed_model=embed_model, **kwargs)
        retriever.add_nodes(nodes)
        return retriever

    def add_nodes(self, nodes: Sequence[BaseNode]) -> None:
        """Embed nodes and add them in one change; each replaces the node with its id.

        Their texts are embedded and counted, without metadata. Filters read the metadata.

        Raises:
            InvalidInput: a repeated id, metadata that are not of JSON's types, or bad vectors. Nothing was changed.
        """
        self.live.upsert(
            [
                Document(
                    node.node_id,
                    node.get_content(metadata_mode=MetadataMode.NONE),
                    metadata=node_to_metadata_dict(node, remove_text=True),
                )
                for node in nodes
            ]
        )

    def delete_nodes(self, node_ids: Sequence[str]) -> None:
        """Delete nodes; ids without a node are ignored."""
        self.live.delete(node_ids)

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        """Return the best nodes of a query, by its vector if the bundle has one."""
        query, vector = query_bundle.query_str, query_bundle.embedding
        hits = self.live.hits(query, self.similarity_top_k, self.options, vector=vector)
        return [NodeWithScore(node=_node(hit), score=hit.score) for hit in hits]

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return await asyncio.to_thread(self._retrieve, query_bundle)


def _open(folder: Folder, embed_model: BaseEmbedding | None, threads: int) -> LiveIndex:
    folder = os.fspath(folder)
    if embed_model is None or isinstance(embed_model, LightIREmbedding):
        documents = None if embed_model is None else embed_model.text_model
        return LiveIndex(folder, documents=documents, threads=threads)
    return LiveIndex.of_functions(
        folder,
        embed_model.model_name,
        documents=lambda texts: np.array(embed_model.get_text_embedding_batch(list(texts))),
        queries=lambda texts: np.array([embed_model.get_query_embedding(text) for text in texts]),
        threads=threads,
    )


def _node(hit: Hit) -> BaseNode:
    """Return the node that was added, or a text node of a document that was not added as one."""
    if "_node_content" in hit.metadata:
        return metadata_dict_to_node(dict(hit.metadata), text=hit.snippet)
    title = {"title": hit.title} if hit.title else {}
    passage = {} if hit.passage is None else {"passage": dataclasses.asdict(hit.passage)}
    return TextNode(id_=hit.doc_id, text=hit.snippet, metadata={**title, **hit.metadata, **passage})
