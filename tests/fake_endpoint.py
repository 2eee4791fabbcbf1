"""An OpenAI-compatible embeddings endpoint on 127.0.0.1 for tests."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

DIM = 16


def word_vector(word: str) -> np.ndarray:
    """Return a word's vector, which depends on its letters alone."""
    seed = int.from_bytes(word.encode()[:8].ljust(8, b"\0"), "little")
    return np.random.default_rng(seed).normal(size=DIM)


def text_vector(text: str) -> list[float]:
    """Return the sum of the vectors of a text's words, of length 3."""
    total = np.sum([word_vector(word) for word in text.lower().split()], axis=0)
    return [float(value) for value in 3 * total / np.linalg.norm(total)]


@dataclass
class FakeEndpoint:
    """Requests that the endpoint received, and its answers.

    Attributes:
        url: address with /v1.
        requests: path, headers and body of each request.
        answers: answers of the next requests in order: (status, body, headers); afterwards it gives vectors.
        encode: function that gives a text's vector.
        counts_tokens: whether answers say how many tokens were read, one per word.
    """

    url: str = ""
    requests: list[tuple[str, dict[str, str], dict[str, Any]]] = field(default_factory=list)
    answers: list[tuple[int, bytes, dict[str, str]]] = field(default_factory=list)
    encode: Callable[[str], list[float]] = text_vector
    counts_tokens: bool = False

    @property
    def texts(self) -> list[str]:
        """All texts that were sent, in order."""
        return [text for _, _, body in self.requests for text in body["input"]]


@contextmanager
def fake_endpoint() -> Iterator[FakeEndpoint]:
    """Run an endpoint inside the block."""
    state = FakeEndpoint()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            state.requests.append((self.path, dict(self.headers), body))
            if state.answers:
                status, answer, headers = state.answers.pop(0)
            else:
                data = [{"index": i, "embedding": state.encode(text)} for i, text in enumerate(body["input"])]
                words = sum(len(text.split()) for text in body["input"])
                usage = {"usage": {"prompt_tokens": words, "total_tokens": words}} if state.counts_tokens else {}
                status, answer, headers = 200, json.dumps({"data": data[::-1], **usage}).encode(), {}
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *arguments: Any) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_port}/v1"
    try:
        yield state
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
