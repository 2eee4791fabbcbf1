"""Documents and metadata in the store of an index: read by id or key, inserted, described, removed."""

from __future__ import annotations

import itertools
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from lightir.errors import FormatError, InvalidInput, NotFound
from lightir.index.checksums import document_checksum
from lightir.index.store_file import named
from lightir.index.store_row import StoreRow
from lightir.index.store_session import StoreSession
from lightir.text import check_text
from lightir.types import Document, require_list

KEYS_AT_ONCE = 50_000
"""Maximum number of keys per SQL statement."""

TEXTS_AT_ONCE = 1000
"""Maximum number of texts that are read at once."""

FEW_KEYS = 64
"""Maximum number of keys that a statement has as parameters; more are passed as JSON, which SQLite has to parse."""

_DECODER = json.JSONDecoder()

_SELECT = (
    "SELECT wanted.value, doc_id, text, title, metadata.value FROM {} AS wanted "
    "CROSS JOIN documents ON documents.doc_key = wanted.value "
    "CROSS JOIN metadata ON metadata.doc_key = wanted.value"
)

DocKeys = npt.NDArray[np.int64]

DocumentFields: TypeAlias = tuple[str, str, str, dict[str, Any]]
"""The id, text, title and metadata of a document."""


class StoredDocuments:
    """The documents of a store, through its connection. Changes belong inside a transaction of the store."""

    def __init__(self, session: StoreSession) -> None:
        """Read and write through a session."""
        self._session = session

    def named(self, doc_ids: Sequence[str]) -> list[Document]:
        """Return the documents with the given ids, in that order.

        Raises:
            NotFound: a document does not exist.
        """
        require_list(doc_ids, "doc_ids")
        documents = []
        for doc_id in doc_ids:
            rows = self._session.select(
                "SELECT doc_id, text, title, value FROM documents JOIN metadata USING (doc_key) WHERE doc_id = ?",
                (check_text(doc_id, "a doc_id"),),
            )
            if not rows:
                raise NotFound(f"there is no document {doc_id!r}")
            stored_id, text, title, metadata = rows[0]
            documents.append(Document(stored_id, text, title, self._metadata(stored_id, metadata)))
        return documents

    def _metadata(self, doc_id: str, value: Any) -> dict[str, Any]:
        try:
            metadata: dict[str, Any]
            metadata, end = _DECODER.raw_decode(value)  # half of the time of json.loads
            if end != len(value):
                raise ValueError(f"it goes on after character {end}")
        except (ValueError, TypeError) as error:
            raise FormatError(
                f"{self._session.path} is damaged: the metadata of {doc_id!r} is not JSON: {error}"
            ) from error
        return metadata

    def keys(self, doc_ids: Iterable[str]) -> dict[str, int]:
        """Return the keys of the documents that exist, by id."""
        keys = {}
        with self._session.in_use() as connection, named(self._session.path):
            for doc_id in doc_ids:
                row = connection.execute("SELECT doc_key FROM documents WHERE doc_id = ?", (doc_id,)).fetchone()
                if row is not None:
                    keys[doc_id] = int(row[0])
            connection.check_unchanged()
        return keys

    def keys_between(self, least: str, end: str) -> dict[str, int]:
        """Return the keys of the documents whose ids are at least `least` and below `end` by their bytes, by id."""
        rows = self._session.select(
            "SELECT doc_id, doc_key FROM documents WHERE doc_id >= ? AND doc_id < ? ORDER BY doc_id", (least, end)
        )
        return {doc_id: int(key) for doc_id, key in rows}

    def keys_longer_than(self, n_bytes: int) -> list[int]:
        """Return the keys of the documents whose title and text have more bytes together, ascending."""
        rows = self._session.select(
            "SELECT doc_key FROM documents WHERE length(CAST(title AS BLOB)) + length(CAST(text AS BLOB)) + 1 > ? "
            "ORDER BY doc_key",
            (n_bytes,),
        )
        return [int(key) for (key,) in rows]

    def texts_of(self, keys: DocKeys) -> Iterator[tuple[int, str, str]]:
        """Yield the position in `keys`, title and text of each document; deleted ones are omitted."""
        statement = (
            "SELECT wanted.key, title, text FROM json_each(:keys) AS wanted "
            "CROSS JOIN documents ON documents.doc_key = wanted.value"
        )
        for first in range(0, len(keys), TEXTS_AT_ONCE):
            some = json.dumps(keys[first : first + TEXTS_AT_ONCE].tolist())
            for i, title, text in self._session.select(statement, {"keys": some}):
                yield first + i, title, text

    def values_of(self, path: str, keys: DocKeys) -> Iterator[tuple[int, str, Any]]:
        """Yield the values of a field, and the elements of lists.

        Args:
            path: JSON path of the field.
            keys: keys of documents.

        Yields:
            The position of the document's key, SQLite's name of the JSON type, and the exact value (None for lists and
            objects).
        """
        # SQLite rounds large integers, some versions round fractions, and NUL ends a text. Such a value is read from
        # the JSON of a list that holds it twice, as a blob.
        value = "json_extract(metadata.value, :path)"
        statement = (
            f"SELECT wanted.key, json_type(metadata.value, :path), CASE WHEN typeof({value}) = 'real' "
            "OR instr(metadata.value, '\\u0000') THEN CAST(json_extract(metadata.value, :path, :path) AS BLOB) "
            f"ELSE {value} END FROM json_each(:keys) AS wanted CROSS JOIN metadata ON metadata.doc_key = wanted.value"
        )
        for first in range(0, len(keys), KEYS_AT_ONCE):
            some = json.dumps(keys[first : first + KEYS_AT_ONCE].tolist())
            for i, kind, stored in self._session.select(statement, {"path": path, "keys": some}):
                if kind == "real":
                    yield first + i, kind, float(stored[1 : stored.index(b",")])
                elif kind is not None:
                    exact = json.loads(stored)[0] if isinstance(stored, bytes) else stored
                    yield first + i, kind, None if kind in ("array", "object") else exact
                    if kind == "array":
                        elements = json.loads(exact) if isinstance(exact, str) else exact
                        yield from ((first + i, *_typed(element)) for element in elements)

    def keys_perhaps_having(self, text: str, most: int) -> DocKeys | None:
        """Return the keys of all documents that have a value equal to an ASCII text but for case, and of some others.

        Args:
            text: the text.
            most: maximum number of keys.

        Returns:
            (n,) int64; None if there are more.
        """
        # LIKE ignores the case of ASCII letters. Wildcards in the text match more. Values with escapes or with other
        # letters, some of which are other forms of ASCII letters, are not compared here.
        statement = (
            "SELECT doc_key FROM metadata WHERE value LIKE ? OR instr(value, '\\') "
            "OR length(value) < length(CAST(value AS BLOB)) LIMIT ?"
        )
        keys = self._session.select(statement, (f"%{text}%", most + 1))
        return None if len(keys) > most else np.array([key for (key,) in keys], dtype=np.int64)

    def metadata_hashes(self, keys: DocKeys) -> DocKeys:
        """Return a hash of the metadata of each document, (n,) int64; 0 for a deleted one.

        It is Python's, by the key of this process. Different metadata have the same 64 bits in one case in 2^64, and
        nobody can construct one without the key.
        """
        hashes = np.zeros(len(keys), dtype=np.int64)
        statement = (
            "SELECT wanted.key, metadata.value FROM json_each(:keys) AS wanted "
            "CROSS JOIN metadata ON metadata.doc_key = wanted.value"
        )
        for first in range(0, len(keys), KEYS_AT_ONCE):
            some = json.dumps(keys[first : first + KEYS_AT_ONCE].tolist())
            rows = self._session.select(statement, {"keys": some})
            hashes[[first + row for row, _ in rows]] = [hash(value) for _, value in rows]
        return hashes

    def described(self) -> int:
        """Return the number of times that the metadata of stored documents were replaced."""
        return int(self._session.select("PRAGMA user_version")[0][0])

    def of(self, keys: Iterable[int]) -> dict[int, Document]:
        """Return the documents with the given keys, by key, in that order; deleted ones are omitted."""
        remaining = iter(keys)
        documents = {}
        while some := list(itertools.islice(remaining, TEXTS_AT_ONCE)):
            for key, (doc_id, text, title, metadata) in self.fields_of(some).items():
                documents[key] = Document(doc_id, text, title, metadata)
        return documents

    def fields_of(self, keys: Sequence[int]) -> dict[int, DocumentFields]:
        """Return the fields of the documents with the given keys, by key, in that order; deleted ones are omitted."""
        if len(keys) <= FEW_KEYS:
            rows = self._session.select(_select_few(len(keys)), keys) if keys else []
        else:
            rows = self._session.select(_SELECT.format("json_each(:keys)"), {"keys": json.dumps(list(keys))})
        return {
            key: (doc_id, text, title, {} if metadata == "{}" else self._metadata(doc_id, metadata))
            for key, doc_id, text, title, metadata in rows
        }

    def ids_by_key(self) -> list[tuple[int, str]]:
        """Return the key and the id of every document, by key."""
        return self._session.select(
            "SELECT doc_key, doc_id FROM documents JOIN metadata USING (doc_key) ORDER BY doc_key"
        )

    def insert(self, rows: Sequence[StoreRow]) -> DocKeys:
        """Store documents and return their keys.

        Raises:
            InvalidInput: an id exists.
        """
        keys = np.zeros(len(rows), dtype=np.int64)
        for i, (doc_id, title, text, metadata) in enumerate(rows):
            try:
                cursor = self._session.connection.execute(
                    "INSERT INTO documents (doc_id, title, text) VALUES (?, ?, ?)", (doc_id, title, text)
                )
            except sqlite3.IntegrityError:
                raise InvalidInput(f"duplicate document {doc_id!r}; doc_ids must be distinct") from None
            assert cursor.lastrowid is not None  # it is after every insert
            keys[i] = cursor.lastrowid
            values = cursor.lastrowid, metadata, _checksum(cursor.lastrowid, rows[i])
            self._session.connection.execute("INSERT INTO metadata VALUES (?, ?, ?)", values)
        return keys

    def same_texts(self, rows: Sequence[StoreRow], keys: Mapping[str, int]) -> tuple[set[str], dict[int, StoreRow]]:
        """Return the ids of documents whose title and text are stored, and the rows of those with other metadata.

        Args:
            rows: documents.
            keys: keys of the stored documents by id.

        Returns:
            A set of ids, and rows by key.
        """
        same: set[str] = set()
        described: dict[int, StoreRow] = {}
        for row in rows:
            doc_id, title, text, metadata = row
            key = keys.get(doc_id)
            stored = self._session.select(
                "SELECT value FROM documents JOIN metadata USING (doc_key) "
                "WHERE doc_key = ? AND title = ? AND text = ?",
                (key, title, text),
            )
            if key is not None and stored:
                same.add(doc_id)
                if stored[0][0] != metadata:
                    described[key] = row
        return same, described

    def describe(self, rows: Mapping[int, StoreRow]) -> None:
        """Replace the metadata of stored documents.

        Args:
            rows: documents with new metadata and the stored texts, by key.
        """
        if not rows:
            return
        # The number is part of the transaction, as rows are.
        self._session.connection.execute(f"PRAGMA user_version = {(self.described() + 1) % 2**31}")
        arguments = [(row[3], _checksum(key, row), key) for key, row in rows.items()]
        self._session.connection.executemany("UPDATE metadata SET value = ?, checksum = ? WHERE doc_key = ?", arguments)

    def remove(self, keys: DocKeys) -> None:
        """Delete documents and their metadata; unknown keys are ignored."""
        arguments = [(key,) for key in keys.tolist()]
        self._session.connection.executemany("DELETE FROM documents WHERE doc_key = ?", arguments)
        self._session.connection.executemany("DELETE FROM metadata WHERE doc_key = ?", arguments)


@cache
def _select_few(n: int) -> str:
    values = ", ".join(["(?)"] * n)
    return _SELECT.format(f"(SELECT column1 AS value FROM (VALUES {values}))")


_JSON_TYPES: dict[type, str] = {int: "integer", float: "real", str: "text", list: "array", dict: "object"}


def _typed(element: Any) -> tuple[str, Any]:
    """Return SQLite's name of the type of a JSON value, and the value; None for lists and objects."""
    if element is None or isinstance(element, bool):
        return json.dumps(element), None
    return _JSON_TYPES[type(element)], None if isinstance(element, list | dict) else element


def _checksum(key: int, row: StoreRow) -> int:
    return document_checksum(key, [text.encode() for text in row])
