"""JSON over HTTP, for engines whose interface that is. Only Python's library is needed."""

from __future__ import annotations

import base64
import http.client
import json
from typing import Any

from lightir.engines.engine import EngineFailed
from lightir.engines.kept_connections import HttpAnswer, KeptConnections

NOT_FOUND = 404
REDIRECTED = 300
"""Status of the first redirect. They are not followed: they would send documents and the key to another host."""
SHOWN_CHARACTERS = 500


class RequestRefused(EngineFailed):
    """A request that a server answered with an error.

    Attributes:
        status: status code of HTTP.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class JsonOverHttp:
    """A server that answers JSON with JSON."""

    def __init__(self, url: str, *, key: str | None, key_scheme: str) -> None:
        """Keep the address; nothing is sent.

        Args:
            url: base address.
            key: USER:PASSWORD or a key; None for none.
            key_scheme: scheme of a key without a colon, such as "ApiKey".
        """
        self.url = url
        self._headers = {}
        if key is not None:
            is_basic = ":" in key
            word = base64.b64encode(key.encode()).decode() if is_basic else key
            self._headers["Authorization"] = f"{'Basic' if is_basic else key_scheme} {word}"
        self._connections = KeptConnections(url)

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request and return the answer; None if the server says that there is no such thing (404).

        Args:
            method: HTTP method.
            path: path with its query, quoted.
            body: JSON object; or a list of objects, which is sent as one per line; None for none.

        Raises:
            RequestRefused: the server refused the request.
            EngineFailed: it could not be reached, or answered with something else.
        """
        headers = {**self._headers, "Accept": "application/json"}
        data = None
        if isinstance(body, list):
            data = "".join(f"{json.dumps(line)}\n" for line in body).encode()
            headers["Content-Type"] = "application/x-ndjson"
        elif body is not None:
            data = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        try:
            answer = self._connections.request(method, path, data, headers)
        except (OSError, http.client.HTTPException) as error:
            raise EngineFailed(f"{self.url} cannot be reached: {error or type(error).__name__}") from None
        if answer.status == NOT_FOUND:
            return None
        if not answer.status < REDIRECTED:
            raise RequestRefused(f"{self.url} answered {answer.status}: {_words(answer)}", answer.status)
        try:
            return json.loads(answer.body or b"{}")
        except ValueError as error:
            raise EngineFailed(f"{self.url} answered with no JSON: {error}") from None

    def close(self) -> None:
        """Close the connections; a later request opens one anew."""
        self._connections.close()


def _words(answer: HttpAnswer) -> str:
    """Return what a server says about an error."""
    text = answer.body.decode(errors="replace")
    try:
        content = json.loads(text)
        problem = content.get("error") or content.get("message") or text
        reason = problem.get("reason", problem) if isinstance(problem, dict) else problem
    except (ValueError, AttributeError):
        return answer.reason
    return " ".join(str(reason).split())[:SHOWN_CHARACTERS]
