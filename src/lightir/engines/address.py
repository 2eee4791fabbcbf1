"""Addresses of collections in engines, such as qdrant://localhost:6333/docs."""

from __future__ import annotations

import os
import re
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lightir.errors import InvalidInput

KEY_VARIABLE = "LIGHTIR_ENGINE_KEY"
"""Environment variable with the key, token or USER:PASSWORD of an engine."""

PORTS: Mapping[str, int] = {
    "qdrant": 6333,
    "milvus": 19530,
    "postgresql": 5432,
    "elasticsearch": 9200,
    "opensearch": 9200,
    "vespa": 8080,
}
"""Default port of each kind of engine."""

LOCAL = ("qdrant", "milvus")
"""Engines that can be a local folder or file, without a server."""

OPTIONS = ("collection", "table", "host", "tls", "id", "title", "text", "vector", "sparse")
"""Options of an address: the collection if the path does not name it, PostgreSQL's socket folder, encryption, and names
of fields."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")


@dataclass(frozen=True, slots=True)
class EngineAddress:
    """The place of a collection in an engine.

    Attributes:
        kind: name of the engine, one of PORTS.
        host: host of the server; "" for a local folder or file, or PostgreSQL's default socket.
        port: port of the server.
        path: local folder or file; of PostgreSQL the database; "" otherwise.
        collection: name of the collection, index or table.
        user: user of PostgreSQL; "" for the client's default.
        options: further options, see OPTIONS.
    """

    kind: str
    host: str
    port: int
    path: str
    collection: str
    user: str
    options: Mapping[str, str]

    @classmethod
    def parse(cls, text: str) -> EngineAddress:
        """Parse an address; nothing is opened.

        Raises:
            InvalidInput: an unknown kind or option, a password, or no name of a collection.
        """
        parts = urllib.parse.urlsplit(text)
        kind = "postgresql" if parts.scheme == "postgres" else parts.scheme
        if kind not in PORTS:
            known = ", ".join(f"{name}://" for name in PORTS)
            raise InvalidInput(f"{text!r} is no address of an engine; expected one that begins with {known}")
        if parts.password or (parts.username and kind != "postgresql"):
            raise InvalidInput(
                f"the address of {kind} holds a user or password; set the environment variable {KEY_VARIABLE} instead"
            )
        options = dict(urllib.parse.parse_qsl(parts.query, keep_blank_values=True))
        if unknown := [name for name in options if name not in OPTIONS]:
            raise InvalidInput(f"{text!r} has the unknown option {unknown[0]!r}; expected {', '.join(OPTIONS)}")
        try:
            port = parts.port or PORTS[kind]
        except ValueError:
            raise InvalidInput(f"{text!r} has a port that is no number from 0 to 65535") from None
        path = urllib.parse.unquote(parts.path)
        named = options.pop("collection", None) or options.pop("table", None)
        if kind == "postgresql":
            path = path.strip("/")
        elif parts.hostname:
            named, path = named or path.strip("/"), ""
        elif kind not in LOCAL or not path.strip("/"):
            raise InvalidInput(f"{text!r} names no host; expected {kind}://HOST:{port}/COLLECTION")
        if named is None or not _NAME.fullmatch(named):
            example = {"postgresql": "postgresql://USER@HOST/DATABASE?table=NAME"}.get(kind, f"{kind}://HOST/NAME")
            local = f", or {kind}:///FOLDER?collection=NAME" if kind in LOCAL else ""
            raise InvalidInput(
                f"{text!r} names no collection of letters, digits, _, - and .; expected {example}{local}"
            )
        return cls(kind, parts.hostname or "", port, path, named, parts.username or "", options)

    @property
    def is_local(self) -> bool:
        """Whether the collection is in a local folder or file."""
        return self.kind in LOCAL and not self.host

    @property
    def url(self) -> str:
        """The server's address over HTTP."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.has_tls else 'http'}://{host}:{self.port}"

    @property
    def has_tls(self) -> bool:
        """Whether the connection is encrypted (option tls)."""
        return self.options.get("tls", "0") not in ("", "0", "false", "no")

    def __str__(self) -> str:
        """Return a text that `parse` reads."""
        where = f"{self.user}@" * bool(self.user) + (f"[{self.host}]" if ":" in self.host else self.host)
        where += f":{self.port}" * (self.port != PORTS[self.kind])
        in_path = self.kind != "postgresql" and not self.is_local
        path = f"/{self.collection}" if in_path else f"/{self.path.lstrip('/')}"
        named = {} if in_path else {"table" if self.kind == "postgresql" else "collection": self.collection}
        options = urllib.parse.urlencode({**named, **self.options})
        return f"{self.kind}://{where}{urllib.parse.quote(path)}" + f"?{options}" * bool(options)


def is_engine_address(text: str | os.PathLike[str]) -> bool:
    """Whether a text is meant to be an address of an engine rather than a path."""
    return re.match(r"[a-z]+://", os.fspath(text)) is not None


def engine_key() -> str | None:
    """Return the key of the engine, from the environment; None if there is none."""
    return os.environ.get(KEY_VARIABLE, "").strip() or None


def user_and_password() -> tuple[str, str] | None:
    """Return user and password among KEY_VARIABLE; None without the variable.

    Raises:
        InvalidInput: the variable is not of the form USER:PASSWORD.
    """
    key = engine_key()
    if key is None:
        return None
    user, colon, password = key.partition(":")
    if not colon:
        raise InvalidInput(f"the environment variable {KEY_VARIABLE} is not of the form USER:PASSWORD")
    return user, password


def field_of(address: EngineAddress, payload: Mapping[str, Any], name: str, usual: tuple[str, ...]) -> str | None:
    """Return the name of a field of a payload: the one that the address names, or the first usual one that it has."""
    if (named := address.options.get(name)) is not None:
        return named
    return next((field for field in usual if field in payload), None)
