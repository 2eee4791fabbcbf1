"""Query vectors through other services' APIs, and with their own clients."""

from __future__ import annotations

import base64
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightir.index import Index
from lightir.serve.text_ranking import text_scores

TEXTS = ["the cat at the well", "dog", ""]


def vectors_of(folder: Path, texts: list[str]) -> Any:
    with Index.open(folder) as index:
        encoder = index.query_encoder()
        assert encoder is not None
        return encoder.encode(texts)


def test_encode_gives_the_encoders_vectors(animals: Path, shop: Path, connect: Any) -> None:
    expected = vectors_of(animals, TEXTS)
    with connect(animals) as client:
        answer = client.post("/v1/encode", json={"texts": TEXTS}).json()
        assert client.post("/v1/encode", json={"texts": ["x"], "dense": False}).json()["dense"] is None
    np.testing.assert_array_equal(np.array(answer["dense"], np.float32), expected.dense)
    for i, row in enumerate(answer["sparse"]):
        indices, values = expected.sparse.row(i)
        assert row == {"indices": indices.tolist(), "values": values.tolist()}
    with connect(shop) as client:
        assert client.post("/v1/encode", json={"texts": ["x"]}).json() == {
            "model": "bm25",
            "dense": None,
            "sparse": None,
        }


def test_openais_form(animals: Path, connect: Any) -> None:
    expected = vectors_of(animals, TEXTS).dense
    with connect(animals) as client:
        answer = client.post("/v1/embeddings", json={"input": TEXTS, "model": "any"}).json()
        coded = client.post("/v1/embeddings", json={"input": TEXTS, "encoding_format": "base64"}).json()
        short = client.post("/v1/embeddings", json={"input": TEXTS[0], "dimensions": 2}).json()["data"]
    assert (answer["object"], [item["index"] for item in answer["data"]]) == ("list", [0, 1, 2])
    np.testing.assert_array_equal(np.array([item["embedding"] for item in answer["data"]], np.float32), expected)
    raw = [base64.b64decode(item["embedding"]) for item in coded["data"]]
    np.testing.assert_array_equal([np.frombuffer(row, "<f4") for row in raw], expected)
    prefix = expected[0, :2].astype(np.float64)
    np.testing.assert_allclose(short[0]["embedding"], prefix / np.linalg.norm(prefix), rtol=1e-6)


@pytest.mark.parametrize(
    "asked", [{"input": [1, 2]}, {"input": [[1, 2]]}, {"input": []}, {"input": "x", "dimensions": 10_000}, {}]
)
def test_openais_errors(animals: Path, connect: Any, asked: Any) -> None:
    with connect(animals) as client:
        answer = client.post("/v1/embeddings", json=asked)
    assert answer.status_code in (400, 422)
    assert answer.json()["error"]["message"] == answer.json()["detail"]


def test_the_form_of_text_embeddings_inference(animals: Path, connect: Any) -> None:
    expected = vectors_of(animals, TEXTS)
    with connect(animals) as client:
        for path in ("/embed", "/"):
            dense = client.post(path, json={"inputs": TEXTS, "truncate": True}).json()
            np.testing.assert_array_equal(np.array(dense, np.float32), expected.dense)
        (single,) = client.post("/embed", json={"inputs": TEXTS[1]}).json()
        np.testing.assert_array_equal(np.array(single, np.float32), expected.dense[1])
        sparse = client.post("/embed_sparse", json={"inputs": TEXTS}).json()
        assert client.post("/embed", json={"inputs": "x", "normalize": False}).status_code == 400
    for i, row in enumerate(sparse):
        indices, values = expected.sparse.row(i)
        assert [(item["index"], item["value"]) for item in row] == list(
            zip(indices.tolist(), values.tolist(), strict=True)
        )


def test_rerank_is_bm25_by_the_statistics_of_the_index(shop: Path, connect: Any) -> None:
    texts = ["a glass kettle", "steel steel pot", "nothing", "kettles of steel"]
    with connect(shop) as client:
        asked = {"query": "steel kettle", "texts": texts, "raw_scores": True, "return_text": True}
        ranked = client.post("/rerank", json=asked).json()
        bounded = client.post("/rerank", json={"query": "steel kettle", "texts": texts}).json()
    # by hand: 4 documents; "steel" is in 2, "kettle" in 3 (k1 = 0.9, b = 0.4)
    idf = {"steel": math.log(1 + (4 - 2 + 0.5) / 2.5), "kettl": math.log(1 + (4 - 3 + 0.5) / 3.5)}
    with Index.open(shop) as index:
        mean = index.view.mean_length
    counts = [{"kettl": 1}, {"steel": 2}, {}, {"kettl": 1, "steel": 1}]
    lengths = [2, 3, 1, 2]  # without stop words
    expected = [
        sum(idf[t] * n / (n + 0.9 * (1 - 0.4 + 0.4 * length / mean)) for t, n in row.items())
        for row, length in zip(counts, lengths, strict=True)
    ]
    order = sorted(range(4), key=lambda i: -expected[i])
    assert [item["index"] for item in ranked] == order
    np.testing.assert_allclose([item["score"] for item in ranked], [expected[i] for i in order])
    assert [item["text"] for item in ranked] == [texts[i] for i in order]
    assert [item["index"] for item in bounded] == order
    np.testing.assert_allclose([item["score"] for item in bounded], [expected[i] / sum(idf.values()) for i in order])


def test_rerank_without_counted_words_or_shared_words(animals: Path) -> None:
    with Index.open(animals) as index:
        assert text_scores(index.view, "", ["x"], raw=False) == [0.0]
        assert text_scores(index.view, "zzz", ["x", ""], raw=False) == [0.0, 0.0]


def test_openais_client(animals: Path, serve: Any) -> None:
    openai = pytest.importorskip("openai")
    expected = vectors_of(animals, TEXTS).dense
    with (
        serve(animals) as (_, address),
        openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client,
    ):
        for form in ({}, {"encoding_format": "float"}):  # by default the client asks for base64
            answer = client.embeddings.create(model="any", input=TEXTS, **form)
            got = np.array([item.embedding for item in answer.data], np.float32)
            np.testing.assert_allclose(got, expected, rtol=1e-6)
        with pytest.raises(openai.APIStatusError, match="dimensions is 999"):
            client.embeddings.create(model="any", input="x", dimensions=999)


def test_the_client_of_text_embeddings_inference(animals: Path, serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub")
    monkeypatch.setattr(
        "huggingface_hub.constants.HF_HUB_OFFLINE", False
    )  # it would refuse this machine's addresses too
    expected = vectors_of(animals, TEXTS).dense
    with serve(animals) as (_, address):
        got = hub.InferenceClient(address).feature_extraction(TEXTS[0])
        np.testing.assert_allclose(np.array(got, np.float32).reshape(-1), expected[0], rtol=1e-6)
