"""Requests to an OpenAI-compatible endpoint: batches, retries, keys and refusals."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import numpy as np
import pytest

from fake_endpoint import FakeEndpoint, fake_endpoint, text_vector
from lightir.errors import InvalidInput
from lightir.query.endpoint import EmbeddingsEndpoint, EndpointFailed, EndpointOptions


@pytest.fixture
def server() -> Iterator[FakeEndpoint]:
    with fake_endpoint() as endpoint:
        yield endpoint


def test_texts_are_sent_in_batches_and_vectors_come_in_the_order_of_the_texts(server: FakeEndpoint) -> None:
    options = EndpointOptions(batch_texts=3, batch_characters=12)
    texts = ["aa", "bb", "cc", "dd", "eeeeeeeeeeeeeeeeee", "ff", "gggggg", "hhhhhhhh"]
    rows = EmbeddingsEndpoint(server.url, "m", options).encode(texts)
    np.testing.assert_allclose(rows, [text_vector(text) for text in texts], rtol=1e-6)
    assert [body["input"] for _, _, body in server.requests] == [
        ["aa", "bb", "cc"],
        ["dd"],
        ["eeeeeeeeeeeeeeeeee"],
        ["ff", "gggggg"],
        ["hhhhhhhh"],
    ]
    path, headers, body = server.requests[0]
    assert (path, body["model"]) == ("/v1/embeddings", "m")
    assert "Authorization" not in headers
    assert EmbeddingsEndpoint(server.url, "m").encode([]).shape == (0, 0)


def test_a_key_is_sent_only_from_the_variable_that_is_named(
    server: FakeEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_KEY", "secret-1")
    EmbeddingsEndpoint(server.url, "m", EndpointOptions(key_variable="SOME_KEY")).encode(["a"])
    assert server.requests[0][1]["Authorization"] == "Bearer secret-1"
    with pytest.raises(InvalidInput, match="OTHER_KEY is not set"):
        EmbeddingsEndpoint(server.url, "m", EndpointOptions(key_variable="OTHER_KEY"))


def test_busy_answers_are_retried_with_longer_waits_and_the_wait_that_is_asked_for(server: FakeEndpoint) -> None:
    server.answers = [(503, b"", {}), (429, b"slow down", {"Retry-After": "7"}), (500, b"", {})]
    waits: list[float] = []
    rows = EmbeddingsEndpoint(server.url, "m", sleep=waits.append).encode(["a"])
    np.testing.assert_allclose(rows[0], text_vector("a"), rtol=1e-6)
    assert waits == [1.0, 7.0, 14.0]
    server.answers = [(503, b'{"error": {"message": "overloaded"}}', {})] * 3
    with pytest.raises(EndpointFailed, match="failed 3 times, at last with HTTP 503: overloaded"):
        EmbeddingsEndpoint(server.url, "m", EndpointOptions(attempts=3), sleep=waits.append).encode(["a"])


def test_a_refusal_is_not_retried_and_says_what_the_endpoint_says(server: FakeEndpoint) -> None:
    server.answers = [(400, b'{"error": {"message": "maximum context length"}}', {})]
    with pytest.raises(EndpointFailed, match="HTTP 400: maximum context length"):
        EmbeddingsEndpoint(server.url, "m").encode(["a"])
    server.answers = [(401, b"no", {})]
    with pytest.raises(EndpointFailed, match="HTTP 401: no; name the variable that holds the API key"):
        EmbeddingsEndpoint(server.url, "m").encode(["a"])
    assert len(server.requests) == 2


def test_redirects_are_not_followed(server: FakeEndpoint) -> None:
    server.answers = [(307, b"", {"Location": f"{server.url}/elsewhere"})]
    with pytest.raises(EndpointFailed, match="redirects are not followed"):
        EmbeddingsEndpoint(server.url, "m").encode(["a"])
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"<html>",
        b"[]",
        b'{"data": [{"index": 0, "embedding": [1, "x"]}]}',
        b'{"data": []}',
        b'{"data": [{"index": 1, "embedding": [1.0]}]}',
        b'{"data": [{"index": 0, "embedding": [NaN]}]}',
        b'{"data": [{"index": 0, "embedding": []}]}',
    ],
)
def test_other_answers_than_one_vector_for_each_text_are_errors(server: FakeEndpoint, answer: bytes) -> None:
    server.answers = [(200, answer, {})]
    with pytest.raises(EndpointFailed, match="answered"):
        EmbeddingsEndpoint(server.url, "m").encode(["a"])


def test_vectors_of_different_widths_are_an_error(server: FakeEndpoint) -> None:
    wide = json.dumps({"data": [{"index": 0, "embedding": [1.0, 2.0]}]}).encode()
    server.answers = [(200, wide, {})]
    with pytest.raises(EndpointFailed, match="different widths"):
        EmbeddingsEndpoint(server.url, "m", EndpointOptions(batch_texts=1)).encode(["a", "b"])


def test_an_endpoint_that_cannot_be_reached_is_an_error() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    waits: list[float] = []
    endpoint = EmbeddingsEndpoint(f"http://127.0.0.1:{port}/v1", "m", EndpointOptions(attempts=2), sleep=waits.append)
    with pytest.raises(EndpointFailed, match=r"failed 2 times, at last with .*refused"):
        endpoint.encode(["a"])
    assert waits == [1.0]


@pytest.mark.parametrize("url", ["file:///etc/passwd", "host/v1", "http://", "https://user:word@host/v1"])
def test_other_addresses_are_refused(url: str) -> None:
    with pytest.raises(InvalidInput):
        EmbeddingsEndpoint(url, "m")
    with pytest.raises(InvalidInput, match="attempts is 0"):
        EndpointOptions(attempts=0)
