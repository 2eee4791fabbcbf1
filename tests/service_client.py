"""Requests to a service in another process."""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.parse import urlsplit


def send(address: str, method: str, path: str, body: Any, kind: str = "application/json") -> tuple[int, Any]:
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=30)
    try:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method, path, content, {"content-type": kind})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def write_until_it_fails(address: str, name: str, acknowledged: dict[str, str]) -> None:
    """Write documents in every way, and note those that were acknowledged."""
    for number in range(100_000):
        documents = [{"doc_id": f"{name}-{number}-{i}", "text": f"text {number} {i}"} for i in range(number % 3 + 1)]
        try:
            if number % 2:
                lines = "".join(json.dumps(document) + "\n" for document in documents).encode()
                status, _ = send(address, "POST", "/v1/bulk", lines, "application/x-ndjson")
            else:
                status, _ = send(address, "POST", "/v1/documents", {"documents": documents})
        except (OSError, http.client.HTTPException, ValueError):
            return
        if status == 200:
            acknowledged |= {str(document["doc_id"]): str(document["text"]) for document in documents}
        else:
            assert status in (429, 503)
