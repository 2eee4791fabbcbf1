"""Dense and sparse embeddings of the models that lightir ships, beside lightir's own encoders."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.base.embeddings.base_sparse import BaseSparseEmbedding
from llama_index.core.schema import TextNode
from llama_index.embeddings.lightir import LightIREmbedding
from llama_index.retrievers.lightir import LightIRRetriever
from llama_index.sparse_embeddings.lightir import LightIRSparseEmbedding

from lightir import CachedQueryEncoder, Document, IndexOptions, ModelEncoder
from lightir.addresses import resolve_query_encoder
from lightir.errors import InvalidInput

TEXTS = ["a kettle boils water", "a pan fries eggs"]


async def test_dense_queries_need_no_model() -> None:
    embedding = LightIREmbedding("minilm")
    assert isinstance(embedding, BaseEmbedding)
    expected = CachedQueryEncoder.load(resolve_query_encoder("minilm")).encode(TEXTS).dense
    for text, row in zip(TEXTS, expected, strict=True):
        assert embedding.get_query_embedding(text) == row.tolist()
        assert await embedding.aget_query_embedding(text) == row.tolist()


async def test_dense_texts_are_the_models(tmp_path: Path) -> None:
    embedding = LightIREmbedding("minilm")
    encoded = ModelEncoder.load("minilm").encode([Document(text, text) for text in TEXTS]).dense
    given = embedding.get_text_embedding_batch(TEXTS)
    np.testing.assert_allclose(given, encoded, atol=2e-3)
    np.testing.assert_allclose(await embedding.aget_text_embedding_batch(TEXTS), encoded, atol=2e-3)
    np.testing.assert_allclose(await embedding.aget_text_embedding(TEXTS[1]), encoded[1], atol=2e-3)
    nodes = [TextNode(id_=text, text=text) for text in TEXTS]
    without_words = IndexOptions(word_weight=0.0)  # otherwise the index adds the documents' own words
    retriever = LightIRRetriever.from_nodes(
        nodes, tmp_path / "index", embed_model=embedding, index_options=without_words
    )
    np.testing.assert_allclose(retriever.live.index.dense_vectors(TEXTS), encoded, atol=2e-3)
    assert retriever.retrieve("breakfast in a pan")[0].node_id == TEXTS[1]


async def test_sparse_inner_products_rank_as_the_index_does(tmp_path: Path) -> None:
    from lightir import SearchOptions

    embedding = LightIRSparseEmbedding("smollm2-135m")
    assert isinstance(embedding, BaseSparseEmbedding)
    texts = embedding.get_text_embedding_batch(TEXTS)
    assert await embedding.aget_text_embedding(TEXTS[0]) == texts[0]
    query = embedding.get_query_embedding("boil water")
    assert query == await embedding.aget_query_embedding("boil water")
    products = [sum(weight * text.get(term, 0.0) for term, weight in query.items()) for text in texts]
    nodes = [TextNode(id_=text, text=text) for text in TEXTS]
    retriever = LightIRRetriever.from_nodes(
        nodes, tmp_path / "index", embed_model=LightIREmbedding("smollm2-135m"), options=SearchOptions(mode="sparse")
    )
    results = {hit.node_id: hit.score for hit in retriever.retrieve("boil water")}
    expected = {text: product for text, product in zip(TEXTS, products, strict=True) if product}
    assert expected
    scale = results[TEXTS[0]] / expected[TEXTS[0]]
    assert results == pytest.approx({text: scale * product for text, product in expected.items()})


def test_a_model_without_a_branch_is_refused() -> None:
    with pytest.raises(InvalidInput, match="minilm has no sparse vectors"):
        LightIRSparseEmbedding("minilm")
