"""Checksums in the store of an index: computed with each change, and verified."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from lightir.errors import FormatError
from lightir.index.checksums import document_checksum, state_checksum
from lightir.index.store_schema import ADD_CHECKSUMS, ROWS, STATE
from lightir.index.store_session import StoreSession

ROWS_AT_ONCE = 256


class StoreChecksums:
    """The checksums of documents and of all else in a store, through its connection."""

    def __init__(self, session: StoreSession) -> None:
        """Read and write through a session."""
        self._session = session

    def exist(self) -> bool:
        """Return whether the store has checksums; stores of an earlier release get them by their first change."""
        return bool(self._session.select("SELECT 1 FROM sqlite_master WHERE name = 'state'"))

    def add(self) -> bool:
        """Prepare a store of an earlier release, inside a transaction; `fill` computes those of present documents.

        Returns:
            Whether the store had none.
        """
        if self.exist():
            return False
        for statement in ADD_CHECKSUMS:
            self._session.connection.execute(statement)
        return True

    def is_covered(self) -> bool:
        """Return whether every document has a checksum."""
        return self._covered_from() == 0

    def _covered_from(self) -> int | None:
        """Return the smallest key from which on every document has a checksum; None for a store without checksums."""
        if not self.exist():
            return None
        rows = self._session.select("SELECT covered_from FROM state")
        if len(rows) != 1 or not isinstance(rows[0][0], int):
            raise FormatError(f"{self._session.path} is damaged: it does not say which documents have checksums")
        return int(rows[0][0])

    def fill(self) -> None:
        """Compute the checksums of all documents that lack one, inside a `transaction`."""
        update = "UPDATE metadata SET checksum = ? WHERE doc_key = ?"
        for key, _, texts, checksum in self._rows():
            if checksum is None:
                self._session.connection.execute(update, (document_checksum(key, texts), key))
        self._session.connection.execute("UPDATE state SET covered_from = 0")

    def verify_state(self) -> None:
        """Verify the checksum of everything but the documents; without effect on a store without checksums.

        Raises:
            FormatError: the record, the schema, the list of segments or a tombstone is damaged.
        """
        if not self.exist():
            return
        if self._session.select("SELECT checksum FROM state") != [(self._state_checksum(),)]:
            raise FormatError(
                f"{self._session.path} is damaged: the checksum over its record, schema and list of segments differs"
            )

    def verify_rows(self) -> tuple[list[int], int]:
        """Verify the checksum of every document.

        Returns:
            Keys of damaged documents, and the number of documents without a checksum.

        Raises:
            FormatError: the tables cannot be read, or metadata belong to no document.
        """
        covered_from = self._covered_from()
        damaged, n_rows, n_without = [], 0, 0
        for key, is_text, texts, checksum in self._rows():
            n_rows += 1
            if is_text and checksum is None and (covered_from is None or key < covered_from):
                n_without += 1
                if not _is_readable(texts):
                    damaged.append(key)
            elif not is_text or checksum != document_checksum(key, texts):
                damaged.append(key)
        n_metadata = self._session.select("SELECT count(*) FROM metadata NOT INDEXED")[0][0]
        if n_metadata != n_rows:
            raise FormatError(
                f"{self._session.path} is damaged: it has {n_rows:,} documents and metadata of {n_metadata:,}"
            )
        return damaged, n_without

    def _rows(self) -> Iterator[tuple[int, bool, tuple[bytes, ...], Any]]:
        """Yield key, whether all fields are texts, the fields in UTF-8, and the checksum of each document, by key."""
        statement = ROWS.format(checksum="checksum" if self.exist() else "NULL")
        last = -(2**63)
        while rows := self._session.select(statement, (last, ROWS_AT_ONCE)):
            for key, is_text, *texts, checksum in rows:
                if key <= last:
                    raise FormatError(f"{self._session.path} is damaged: document key {key} follows {last}")
                last = key
                yield key, bool(is_text), tuple(text or b"" for text in texts), checksum

    def _state_checksum(self) -> str:
        return state_checksum([self._session.select(statement) for statement in STATE])

    def renew_state(self) -> None:
        """Compute the checksum of the state anew, inside a transaction."""
        self._session.connection.execute("UPDATE state SET checksum = ?", (self._state_checksum(),))


def _is_readable(texts: Sequence[bytes]) -> bool:
    """Return whether texts are UTF-8 and the last one, the metadata, is JSON."""
    try:
        for text in texts:
            text.decode()
        json.loads(texts[-1])
    except (ValueError, RecursionError):
        return False
    return True
