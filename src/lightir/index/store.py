"""store.sqlite: documents, the index's record and the list of its live segments: the one source of truth."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from lightir.errors import FormatError, InvalidInput, NotFound
from lightir.text import check_text
from lightir.types import Document

STORE_FILE = "store.sqlite"
MAX_DOC_ID_BYTES = 10_000

_SCHEMA = """
CREATE TABLE documents (
    doc_id TEXT NOT NULL UNIQUE, title TEXT NOT NULL, text TEXT NOT NULL, metadata TEXT NOT NULL
);
CREATE TABLE segments (name TEXT PRIMARY KEY, documents INTEGER NOT NULL, manifest_sha256 TEXT NOT NULL);
CREATE TABLE record (value TEXT NOT NULL);
"""


class StoreWriter:
    """Fills a new store; the file is whole after `finish`."""

    def __init__(self, path: Path) -> None:
        """Create the file."""
        self._connection = sqlite3.connect(path, isolation_level=None)
        # The folder is written aside and renamed when it is whole: a journal would guard nothing.
        self._connection.execute("PRAGMA journal_mode = OFF")
        self._connection.execute("PRAGMA synchronous = OFF")
        self._connection.executescript(_SCHEMA)
        self._connection.execute("BEGIN")

    def add(self, documents: Iterable[Document]) -> None:
        """Store documents.

        Raises:
            InvalidInput: an id is empty, too long or there already; text that is not UTF-8; metadata that is not JSON.
        """
        for document in documents:
            row = _row(document)
            try:
                self._connection.execute("INSERT INTO documents VALUES (?, ?, ?, ?)", row)
            except sqlite3.IntegrityError:
                raise InvalidInput(f"document {document.doc_id!r} comes twice; doc_ids must differ") from None

    def finish(self, record: dict[str, Any], segments: Sequence[tuple[str, int, str]]) -> None:
        """Store the index's record and its segments (name, number of documents, manifest checksum), and close."""
        self._connection.execute("INSERT INTO record VALUES (?)", (json.dumps(record, ensure_ascii=False),))
        self._connection.executemany("INSERT INTO segments VALUES (?, ?, ?)", segments)
        self._connection.execute("COMMIT")
        self._connection.close()

    def close(self) -> None:
        """Close the file; what was not finished is worthless."""
        self._connection.close()


class StoreReader:
    """Reads a store; safe to use from several threads."""

    def __init__(self, path: Path) -> None:
        """Open the file.

        Raises:
            NotFound: there is none.
            FormatError: it is no store.
        """
        self.path = path
        if not path.is_file():
            raise NotFound(f"{path} does not exist; {path.parent} is not an index")
        self._lock = threading.Lock()
        uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
        self._connection = sqlite3.connect(uri, uri=True, check_same_thread=False)

    def record(self) -> dict[str, Any]:
        """What `StoreWriter.finish` stored."""
        rows = self._select("SELECT value FROM record")
        if len(rows) != 1:
            raise FormatError(f"{self.path} has {len(rows)} index records; expected one")
        value: dict[str, Any] = json.loads(rows[0][0])
        return value

    def segments(self) -> list[tuple[str, int, str]]:
        """The live segments: name, number of documents, checksum of the manifest."""
        return self._select("SELECT name, documents, manifest_sha256 FROM segments ORDER BY name")

    def documents(self, doc_ids: Sequence[str]) -> list[Document]:
        """The documents with the given ids, in the order of the ids.

        Raises:
            NotFound: there is no such document.
        """
        documents = []
        for doc_id in doc_ids:
            rows = self._select("SELECT doc_id, text, title, metadata FROM documents WHERE doc_id = ?", (doc_id,))
            if not rows:
                raise NotFound(f"there is no document {doc_id!r}")
            found_id, text, title, metadata = rows[0]
            documents.append(Document(found_id, text, title, json.loads(metadata)))
        return documents

    def verify(self, n_documents: int) -> None:
        """Read everything.

        Raises:
            FormatError: the file is damaged, or holds another number of documents.
        """
        found = self._select("PRAGMA integrity_check")
        if found != [("ok",)]:
            raise FormatError(f"{self.path} is damaged: {found[0][0]}")
        (stored,) = self._select("SELECT count(*) FROM documents")[0]
        if stored != n_documents:
            raise FormatError(f"{self.path} holds {stored} documents, but the segments hold {n_documents}")

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def _select(self, statement: str, arguments: Sequence[Any] = ()) -> list[Any]:
        try:
            with self._lock:
                return self._connection.execute(statement, arguments).fetchall()
        except sqlite3.DatabaseError as error:
            raise FormatError(f"{self.path} is damaged or no index store: {error}") from error


def _row(document: Document) -> tuple[str, str, str, str]:
    doc_id = check_text(document.doc_id, "a doc_id")
    if not doc_id or len(doc_id.encode()) > MAX_DOC_ID_BYTES:
        raise InvalidInput(f"doc_id {doc_id[:40]!r} has {len(doc_id.encode())} bytes; expected 1 to {MAX_DOC_ID_BYTES}")
    title = check_text(document.title, f"the title of document {doc_id!r}")
    text = check_text(document.text, f"the text of document {doc_id!r}")
    try:
        metadata = json.dumps(dict(document.metadata), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"the metadata of document {doc_id!r} is no JSON object: {error}") from None
    return doc_id, title, text, check_text(metadata, f"the metadata of document {doc_id!r}")
