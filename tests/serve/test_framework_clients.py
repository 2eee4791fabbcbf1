"""Embedding classes of LangChain and LlamaIndex, pointed at the service as their users do: make test-clients."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightir.index import Index
from lightir.search import Searcher

TEXTS = ["the cat", "a dog runs", ""]
NEEDED = "needs the environment of make test-clients"


@pytest.fixture(scope="module")
def _clients() -> None:
    for module in ("langchain_openai", "llama_index.embeddings.openai"):
        try:
            __import__(module)
        except ImportError:
            pytest.skip(NEEDED)


@pytest.fixture
def address(_clients: None, animals: Path, serve: Any) -> Iterator[str]:
    with serve(animals) as (_, address):
        yield address


@pytest.fixture
def expected(animals: Path) -> Any:
    with Index.open(animals) as index:
        encoder = Searcher(index).encoder
        assert encoder is not None
        return encoder.encode(TEXTS).dense


@pytest.mark.parametrize("asked", [{}, {"model": "any"}, {"dimensions": 4}])
def test_langchains_openai_embeddings(address: str, expected: Any, asked: dict[str, Any]) -> None:
    from langchain_openai import OpenAIEmbeddings

    client = OpenAIEmbeddings(base_url=f"{address}/v1", api_key="none", check_embedding_ctx_length=False, **asked)
    np.testing.assert_allclose(client.embed_documents(TEXTS), expected, rtol=1e-6)
    np.testing.assert_allclose(client.embed_query(TEXTS[1]), expected[1], rtol=1e-6)


def test_llamaindexs_openai_embedding(address: str, expected: Any) -> None:
    from llama_index.embeddings.openai import OpenAIEmbedding

    client = OpenAIEmbedding(api_base=f"{address}/v1", api_key="none", model_name="any", max_retries=0)
    np.testing.assert_allclose(client.get_text_embedding_batch(TEXTS[:2]), expected[:2], rtol=1e-6)
    np.testing.assert_allclose(client.get_query_embedding(TEXTS[1]), expected[1], rtol=1e-6)


def test_llamaindexs_client_of_text_embeddings_inference(address: str, expected: Any) -> None:
    from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference

    client = TextEmbeddingsInference(model_name="any", base_url=address, query_instruction="", text_instruction="")
    np.testing.assert_allclose(client.get_text_embedding_batch(TEXTS[:2]), expected[:2], rtol=1e-6)
    np.testing.assert_allclose(client.get_query_embedding(TEXTS[1]), expected[1], rtol=1e-6)
