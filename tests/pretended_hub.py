"""A local Hugging Face hub for Hugging Face's own clients: each folder is a repository with its newest revision.

Clients can also create repositories of models and commit to them, which makes a new revision.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import threading
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

REVISION = "5" * 40


@contextlib.contextmanager
def pretended_hub(root: Path, home: Path, *, revision: str = REVISION) -> Iterator[dict[str, str]]:
    """Serve `root`/models/OWNER/NAME and `root`/datasets/OWNER/NAME; yield the environment for client processes.

    A folder NAME@COMMIT beside NAME is an earlier revision.

    Args:
        root: folder of the repositories.
        home: cache folder of the clients.
        revision: commit of the newest revision.
    """
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Hub", (_Hub,), {"root": root, "newest": revision}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith("HF_") and "proxy" not in name.lower()
    }
    endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield {**kept, "HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_DISABLE_TELEMETRY": "1"}
    finally:
        server.shutdown()
        server.server_close()


class _Hub(BaseHTTPRequestHandler):
    """The part of the hub's HTTP interface that lists, fetches and commits files."""

    protocol_version = "HTTP/1.1"
    root: Path
    newest: str

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def log_message(self, *args: Any) -> None:
        pass

    def _answer(self) -> None:
        self._body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path).strip("/").split("/")
        if self.command == "POST" and self._written(parts):
            return
        listing = parts[0] == "api"
        if listing:
            parts = parts[1:]
        kind = parts.pop(0) if parts[0] in ("models", "datasets") else "models"
        repository = self.root / kind / "/".join(parts[:2])
        self._commit = self.newest  # OWNER/NAME/resolve/REVISION/PATH, and of listings OWNER/NAME/revision/REVISION
        if len(parts) > 3 and (earlier := repository.with_name(f"{repository.name}@{parts[3]}")).is_dir():
            repository, self._commit = earlier, parts[3]
        elif len(parts) > 3 and parts[3] not in ("main", self.newest):
            self._missing("RevisionNotFound")
            return
        if len(parts) < 2 or not repository.is_dir():
            self._missing("RepoNotFound")
        elif listing:
            self._listing(repository, parts)
        else:
            self._file(repository / "/".join(parts[4:]))

    def _written(self, parts: list[str]) -> bool:
        """Answer a request that writes: a new repository, a check of a card, and the two steps of a commit."""
        if parts == ["api", "repos", "create"]:
            name = "/".join(filter(None, (json.loads(self._body).get(key) for key in ("organization", "name"))))
            (self.root / "models" / name).mkdir(parents=True, exist_ok=True)
            self._json({"url": name, "name": name})
        elif parts == ["api", "validate-yaml"]:
            self._json({"errors": [], "warnings": []})
        elif "preupload" in parts:
            files = [file["path"] for file in json.loads(self._body)["files"]]
            modes = {"uploadMode": "regular", "shouldIgnore": False, "oid": None}
            self._json({"files": [{"path": path, **modes} for path in files]})
        elif "commit" in parts:
            repository = self.root / "models" / "/".join(parts[2:4])
            for line in self._body.splitlines():
                entry = json.loads(line)
                if entry["key"] == "file":
                    path = repository / entry["value"]["path"]
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(base64.b64decode(entry["value"]["content"]))
            type(self).newest = hashlib.sha1(self._body).hexdigest()
            url = f"http://{self.headers['Host']}/{'/'.join(parts[2:4])}/commit/{self.newest}"
            self._json({"success": True, "commitOid": self.newest, "commitUrl": url})
        else:
            return False
        return True

    def _listing(self, repository: Path, parts: list[str]) -> None:
        files = [path for path in sorted(repository.rglob("*")) if path.is_file()]
        asked = parts[2] if len(parts) > 2 else "revision"
        if asked == "revision":
            names = [{"rfilename": str(path.relative_to(repository))} for path in files]
            self._json(
                {"id": "/".join(parts[:2]), "sha": self._commit, "siblings": names, "tags": [], "private": False}
            )
            return
        if asked == "paths-info":
            wanted = urllib.parse.parse_qs(self._body.decode()).get("paths") or json.loads(self._body or "{}")["paths"]
            files = [path for path in files if str(path.relative_to(repository)) in wanted]
        self._json(
            [
                {"type": "file", "path": str(p.relative_to(repository)), "size": p.stat().st_size, "oid": _tag(p)}
                for p in files
            ]
        )

    def _file(self, path: Path) -> None:
        if not path.is_file():
            self._missing("EntryNotFound")
            return
        self._send(200, path.read_bytes(), {"ETag": f'"{_tag(path)}"', "X-Repo-Commit": self._commit})

    def _missing(self, code: str) -> None:
        self._send(404, b"", {"X-Error-Code": code})

    def _json(self, value: Any) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def _tag(path: Path) -> str:
    return hashlib.sha1(path.read_bytes()).hexdigest()
