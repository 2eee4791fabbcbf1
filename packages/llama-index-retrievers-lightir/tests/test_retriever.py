"""The retriever alone, in RetrieverQueryEngine and in QueryFusionRetriever, sync and async."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llama_index.core import MockEmbedding
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.retrievers import BaseRetriever, QueryFusionRetriever
from llama_index.core.schema import NodeRelationship, QueryBundle, RelatedNodeInfo, TextNode
from llama_index.core.vector_stores import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters
from llama_index.retrievers.lightir import LightIRRetriever

from lightir import build_index
from lightir.errors import AlreadyExists, ContractMismatch, InvalidInput, NotFound
from lightir.index import document_shards
from lightir.types import Document

TEXTS = {"k": "a kettle boils water", "p": "a pan fries eggs", "n": "a knife cuts bread", "w": "water the plants"}
METADATA: dict[str, dict[str, Any]] = {
    "k": {"price": 30, "tags": ["steel", "hot"]},
    "p": {"price": 50, "tags": ["iron", "hot"]},
    "n": {"price": 20, "tags": ["steel"]},
    "w": {"price": None},
}


class Letters(BaseEmbedding):
    """Counts of the letters of a text, plus 0.1."""

    model_name: str = "letters"

    def _get_text_embedding(self, text: str) -> list[float]:
        return [text.count(letter) + 0.1 for letter in "abcdefghijklmnopqrstuvwxyz"]

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)


def nodes() -> list[TextNode]:
    source = {NodeRelationship.SOURCE: RelatedNodeInfo(node_id="file")}
    return [TextNode(id_=i, text=TEXTS[i], metadata=METADATA[i], relationships=source) for i in TEXTS]


@pytest.fixture
def retriever(tmp_path: Path) -> LightIRRetriever:
    return LightIRRetriever.from_nodes(nodes(), tmp_path / "index", embed_model=Letters(), similarity_top_k=4)


def test_nodes_come_back_as_they_were_added(retriever: LightIRRetriever) -> None:
    assert isinstance(retriever, BaseRetriever)
    results = retriever.retrieve("boil water")
    assert results[0].node_id == "k"
    assert [hit.score for hit in results] == sorted((hit.score for hit in results), reverse=True)
    assert {hit.node_id: hit.node.to_dict() for hit in results} == {node.node_id: node.to_dict() for node in nodes()}


async def test_async_finds_the_same(retriever: LightIRRetriever) -> None:
    assert await retriever.aretrieve("boil water") == retriever.retrieve("boil water")


def test_a_bundles_vector_is_searched(retriever: LightIRRetriever) -> None:
    vector = Letters().get_query_embedding(TEXTS["n"])
    rows = np.array([Letters().get_text_embedding(text) for text in TEXTS.values()])
    cosines = rows @ vector / np.linalg.norm(rows, axis=1) / np.linalg.norm(vector)
    expected = [list(TEXTS)[at] for at in np.argsort(-cosines)]
    results = retriever.retrieve(QueryBundle("", embedding=vector))
    assert [hit.node_id for hit in results] == expected


def test_it_answers_in_a_query_engine(retriever: LightIRRetriever) -> None:
    engine = RetrieverQueryEngine.from_args(retriever, llm=MockLLM())
    response = engine.query("boil water")
    assert response.source_nodes[0].node_id == "k"
    assert "a kettle boils water" in str(response)


async def test_it_is_fused_with_another_retriever(retriever: LightIRRetriever, tmp_path: Path) -> None:
    words = LightIRRetriever.from_nodes(nodes(), tmp_path / "words", similarity_top_k=4)
    for mode in ("reciprocal_rerank", "relative_score", "dist_based_score", "simple"):
        fused = QueryFusionRetriever(
            [retriever, words], llm=MockLLM(), mode=mode, similarity_top_k=3, num_queries=1, use_async=False
        )
        results = fused.retrieve("boil water")
        assert results[0].node_id == "k"
        assert len({hit.node_id for hit in results}) == 3
        assert [hit.node_id for hit in await fused.aretrieve("boil water")] == [hit.node_id for hit in results]


@pytest.mark.parametrize(
    ("operator", "key", "value", "expected"),
    [
        (FilterOperator.EQ, "price", 30, "k"),
        (FilterOperator.NE, "price", 30, "npw"),
        (FilterOperator.GT, "price", 30, "p"),
        (FilterOperator.GTE, "price", 30, "kp"),
        (FilterOperator.LT, "price", 30, "n"),
        (FilterOperator.LTE, "price", 30, "kn"),
        (FilterOperator.IN, "price", [20, 50], "np"),
        (FilterOperator.NIN, "price", [20, 50], "kw"),
        (FilterOperator.CONTAINS, "tags", "steel", "kn"),
        (FilterOperator.ANY, "tags", ["iron", "steel"], "knp"),
        (FilterOperator.ALL, "tags", ["hot", "steel"], "k"),
        (FilterOperator.IS_EMPTY, "price", None, "w"),
        (FilterOperator.IS_EMPTY, "tags", None, "w"),
    ],
)
def test_filters(
    retriever: LightIRRetriever, tmp_path: Path, operator: FilterOperator, key: str, value: Any, expected: str
) -> None:
    filters = MetadataFilters(filters=[MetadataFilter(key=key, value=value, operator=operator)])
    filtered = LightIRRetriever(tmp_path / "index", embed_model=Letters(), similarity_top_k=4, filters=filters)
    assert sorted(hit.node_id for hit in filtered.retrieve("a")) == sorted(expected)


def test_conditions_of_filters(retriever: LightIRRetriever, tmp_path: Path) -> None:
    cheap = MetadataFilter(key="price", value=25, operator=FilterOperator.LT)
    hot = MetadataFilter(key="tags", value="hot", operator=FilterOperator.CONTAINS)
    for condition, expected in (("and", []), ("or", ["k", "n", "p"]), ("not", ["w"])):
        filters = MetadataFilters(filters=[cheap, hot], condition=FilterCondition(condition))
        nested = MetadataFilters(filters=[filters])
        filtered = LightIRRetriever(tmp_path / "index", embed_model=Letters(), similarity_top_k=4, filters=nested)
        assert sorted(hit.node_id for hit in filtered.retrieve("a")) == expected
    unknown = MetadataFilters(filters=[MetadataFilter(key="tags", value="h", operator=FilterOperator.TEXT_MATCH)])
    with pytest.raises(InvalidInput, match="text_match"):
        LightIRRetriever(tmp_path / "index", embed_model=Letters(), filters=unknown)


def test_changes(retriever: LightIRRetriever, tmp_path: Path) -> None:
    again = LightIRRetriever(tmp_path / "index", embed_model=Letters(), similarity_top_k=1)
    again.add_nodes([TextNode(id_="k", text="a kettle whistles"), TextNode(id_="x", text="bread and butter")])
    assert retriever.retrieve("whistles")[0].node.get_content() == "a kettle whistles"
    retriever.delete_nodes(["x", "missing"])
    assert again.retrieve("bread and butter")[0].node_id == "n"


def test_an_index_of_the_command_line(tmp_path: Path) -> None:
    documents = [Document("1", "boils water", title="Kettle", metadata={"price": 3}), Document("2", "fries eggs")]
    build_index(document_shards(documents), tmp_path / "index", progress=False)
    (results,) = LightIRRetriever(tmp_path / "index").retrieve("kettle")
    assert results.node_id == "1"
    assert results.node.get_content() == "boils water"
    assert results.node.metadata == {"title": "Kettle", "price": 3}


def test_bad_input_is_refused(retriever: LightIRRetriever, tmp_path: Path) -> None:
    with pytest.raises(ContractMismatch, match="vectors of 'letters', not those of 'unknown'"):
        LightIRRetriever(tmp_path / "index", embed_model=MockEmbedding(26))
    with pytest.raises(AlreadyExists):
        LightIRRetriever.from_nodes([], tmp_path / "index")
    with pytest.raises(NotFound):
        LightIRRetriever(tmp_path / "missing")
    with pytest.raises(InvalidInput):
        retriever.add_nodes([TextNode(id_="a", text="a"), TextNode(id_="a", text="b")])
    assert len(retriever.live) == 4
