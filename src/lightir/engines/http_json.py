"""JSON over HTTP, for engines whose interface that is. Only Python's library is needed."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import urllib.error
import urllib.request
from typing import Any

from lightir.engines.engine import EngineFailed
from lightir.query.endpoint import NoRedirect

TIMEOUT_S = 60.0
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
        context = urllib.request.HTTPSHandler(context=ssl.create_default_context())
        self._opener = urllib.request.build_opener(NoRedirect, context)

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
        request = urllib.request.Request(f"{self.url}{path}", data, headers, method=method)
        try:
            with self._opener.open(request, timeout=TIMEOUT_S) as answer:
                return json.loads(answer.read() or b"{}")
        except urllib.error.HTTPError as error:
            with error:  # which holds the connection
                if error.code == 404:
                    return None
                raise RequestRefused(f"{self.url} answered {error.code}: {_words(error)}", error.code) from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", "") or error or type(error).__name__
            raise EngineFailed(f"{self.url} cannot be reached: {reason}") from None
        except ValueError as error:
            raise EngineFailed(f"{self.url} answered with no JSON: {error}") from None


def _words(error: urllib.error.HTTPError) -> str:
    """Return what a server says about an error."""
    try:
        text = error.read().decode(errors="replace")
        answer = json.loads(text)
        problem = answer.get("error") or answer.get("message") or text
        reason = problem.get("reason", problem) if isinstance(problem, dict) else problem
    except (OSError, ValueError, AttributeError, http.client.HTTPException):
        return str(error.reason)
    return " ".join(str(reason).split())[:SHOWN_CHARACTERS]
