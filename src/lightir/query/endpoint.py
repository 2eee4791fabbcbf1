"""Vectors of an OpenAI-compatible embeddings endpoint: POST URL/embeddings with a model and a list of texts."""

from __future__ import annotations

import http.client
import json
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lightir.errors import InvalidInput, LightirError
from lightir.vectors import Floats

RETRIED = (408, 409, 425, 429, 500, 502, 503, 504)
"""HTTP statuses after which a request is sent again."""

MAX_WAIT_S = 60.0
SHOWN_CHARACTERS = 300


class EndpointFailed(LightirError):
    """An embeddings endpoint that refused a request, could not be reached, or answered with something else."""


@dataclass(frozen=True, slots=True)
class EndpointOptions:
    """Settings of the requests to an endpoint.

    Attributes:
        key_variable: environment variable with the API key; None sends no key.
        batch_texts: maximum number of texts per request.
        batch_characters: maximum number of characters per request; a longer text is sent alone.
        attempts: number of times that a request is sent before it fails, if the endpoint is busy or not reachable.
        wait_s: seconds before the second attempt; doubled before each further one, unless the endpoint says how long.
        timeout_s: seconds to wait for an answer.
    """

    key_variable: str | None = None
    batch_texts: int = 64
    batch_characters: int = 200_000
    attempts: int = 6
    wait_s: float = 1.0
    timeout_s: float = 120.0

    def __post_init__(self) -> None:
        for name in ("batch_texts", "batch_characters", "attempts", "wait_s", "timeout_s"):
            if not getattr(self, name) > 0:
                raise InvalidInput(f"{name} is {getattr(self, name)}; expected above 0")


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects, which would send texts and key to another host."""

    def redirect_request(self, *arguments: Any, **keywords: Any) -> None:
        return None


class EmbeddingsEndpoint:
    """A model behind an OpenAI-compatible endpoint.

    Attributes:
        url: base address.
        model: name of the model.
        host: host of the address.
        n_tokens: number of tokens that the endpoint says it has read (`usage`); None if it does not say.
    """

    def __init__(
        self,
        url: str,
        model: str,
        options: EndpointOptions | None = None,
        *,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        """Check the address; nothing is sent.

        Args:
            url: base address, such as http://127.0.0.1:8000/v1; requests go to URL/embeddings.
            model: name of the model.
            options: key, batches and retries; None for the defaults.
            sleep: function that waits a number of seconds between attempts.

        Raises:
            InvalidInput: no http address, one with a user or password, or a variable that is not set.
        """
        self.options = options or EndpointOptions()
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidInput(f"{url!r} is no address of an endpoint; expected http://HOST/v1 or https://HOST/v1")
        if parts.username or parts.password:
            raise InvalidInput("the endpoint's address holds a user or password; name a variable with the key instead")
        if not model.strip():
            raise InvalidInput("the name of the endpoint's model is empty")
        self.url, self.model, self.host = url.rstrip("/"), model, parts.hostname
        self.n_tokens: int | None = None
        self._sleep = sleep
        self._key = _key(self.options.key_variable)
        self._opener = urllib.request.build_opener(NoRedirect)

    def encode(self, texts: Sequence[str]) -> Floats:
        """Return the vectors of texts, (n, dim) float32 as the endpoint gives them, in batches of the options.

        Raises:
            EndpointFailed: see the class; the message has the endpoint's own words.
        """
        blocks = [self.encode_batch(texts[span]) for span in self.batches(texts)]
        if len({block.shape[1] for block in blocks}) > 1:
            raise EndpointFailed(f"{self.url} answered with vectors of different widths")
        return np.concatenate(blocks) if blocks else np.zeros((0, 0), np.float32)

    def batches(self, texts: Sequence[str]) -> Iterator[slice]:
        """Yield the spans of texts that one request each has room for."""
        first = n_characters = 0
        for at, text in enumerate(texts):
            full = at - first >= self.options.batch_texts or n_characters + len(text) > self.options.batch_characters
            if at > first and full:
                yield slice(first, at)
                first, n_characters = at, 0
            n_characters += len(text)
        if first < len(texts):
            yield slice(first, len(texts))

    def encode_batch(self, texts: Sequence[str]) -> Floats:
        """Return the vectors of the texts of one request; errors are those of `encode`."""
        body = json.dumps({"model": self.model, "input": list(texts), "encoding_format": "float"}).encode()
        return self._parse(self._post(body), len(texts))

    def _post(self, body: bytes) -> bytes:
        """Send a request, again after a wait if the endpoint is busy or cannot be reached; return the answer."""
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {self._key}"} if self._key else {})
        wait_s, problem = self.options.wait_s, ""
        for attempt in range(self.options.attempts):
            if attempt:
                self._sleep(min(wait_s, MAX_WAIT_S))
                wait_s *= 2
            request = urllib.request.Request(f"{self.url}/embeddings", body, headers)
            try:
                with self._opener.open(request, timeout=self.options.timeout_s) as answer:
                    return bytes(answer.read())
            except urllib.error.HTTPError as error:
                with error:  # which holds the connection
                    problem = f"HTTP {error.code}: {_message(error)}"
                if error.code not in RETRIED:
                    raise EndpointFailed(f"{self.url} refused the request: {problem}{self._hint(error.code)}") from None
                wait_s = _asked_wait(error) or wait_s
            except (OSError, http.client.HTTPException) as error:
                problem = str(getattr(error, "reason", "") or error or type(error).__name__)
        raise EndpointFailed(f"{self.url} failed {self.options.attempts} times, at last with {problem}")

    def _hint(self, status: int) -> str:
        if status in (401, 403):
            variable = self.options.key_variable
            return f"; check the key in {variable}" if variable else "; name the variable that holds the API key"
        return "; redirects are not followed, name the address itself" if 300 <= status < 400 else ""

    def _parse(self, answer: bytes, n_texts: int) -> Floats:
        try:
            content = json.loads(answer)
            entries = sorted(content["data"], key=lambda entry: int(entry["index"]))
            numbers = [int(entry["index"]) for entry in entries]
            rows = np.array([entry["embedding"] for entry in entries], dtype=np.float32)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            shown = answer[:SHOWN_CHARACTERS].decode(errors="replace")
            raise EndpointFailed(f"{self.url} answered with no embeddings ({error!r}): {shown}") from None
        if numbers != list(range(n_texts)) or rows.ndim != 2 or not rows.shape[1] or not np.isfinite(rows).all():
            raise EndpointFailed(
                f"{self.url} answered {n_texts} texts with {len(numbers)} vectors of shape {rows.shape}; expected one "
                "vector of finite numbers for each text"
            )
        self._count_tokens(content)
        return rows

    def _count_tokens(self, answer: Any) -> None:
        """Add what an answer says about its tokens."""
        usage = answer.get("usage")
        tokens = usage.get("total_tokens", usage.get("prompt_tokens")) if isinstance(usage, dict) else None
        if isinstance(tokens, int):
            self.n_tokens = (self.n_tokens or 0) + tokens


def _key(variable: str | None) -> str | None:
    if variable is None:
        return None
    if not (key := os.environ.get(variable, "").strip()):
        raise InvalidInput(f"the environment variable {variable} is not set; expected the endpoint's API key in it")
    return key


def _message(error: urllib.error.HTTPError) -> str:
    """Return what an endpoint says about an error."""
    try:
        text = error.read().decode(errors="replace")
    except (OSError, http.client.HTTPException):
        return str(error.reason)
    try:
        content = json.loads(text)
        problem = content.get("error", content) if isinstance(content, dict) else content
        return str(problem.get("message", problem) if isinstance(problem, dict) else problem)[:SHOWN_CHARACTERS]
    except ValueError:
        return text.strip()[:SHOWN_CHARACTERS] or str(error.reason)


def _asked_wait(error: urllib.error.HTTPError) -> float | None:
    """Return the seconds after which an endpoint asks for the next attempt; None if it does not say so."""
    try:
        return max(float(error.headers.get("Retry-After", "")), 0.0)
    except ValueError:
        return None
