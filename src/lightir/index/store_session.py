"""The connection of a store as its parts share it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lightir.index.connections import Connection
from lightir.index.store_file import named


class StoreSession:
    """One connection to a store; safe to use from several threads."""

    def __init__(self, path: Path, opened: Connection) -> None:
        """Wrap an opened connection."""
        self.path = path
        self.opened = opened

    @property
    def connection(self) -> Connection:
        """The connection, for statements inside a transaction."""
        return self.opened.usable()

    def renew(self, newer: StoreSession) -> None:
        """Take over the connection of another snapshot of the same state, so that the writer can shorten the log.

        The connections differ only in the part of SQLite's log that the writer has to keep for them.
        """
        before = self.opened
        if newer.opened.mode != before.mode:  # another mode may depend on an empty log, or keep the writer from it
            newer.close()
            return
        with before.lock:
            self.opened = newer.opened
            before.close()

    @contextmanager
    def in_use(self) -> Iterator[Connection]:
        """Hold the connection, which `renew` may replace until then."""
        while True:
            connection = self.opened
            with connection.lock:
                if connection is self.opened:
                    yield connection.usable()
                    return

    def select(self, statement: str, arguments: Sequence[Any] | Mapping[str, Any] = ()) -> list[Any]:
        """Return the rows of a statement that only reads."""
        while True:  # as in `in_use`, whose generator would take as long as the statement
            connection = self.opened
            with connection.lock:
                if connection is not self.opened:
                    continue
                usable = connection.usable()
                with named(self.path):
                    rows: list[Any] = usable.execute(statement, arguments).fetchall()
                    usable.check_unchanged()
                    return rows

    def close(self) -> None:
        """Close the file. An unfinished new store is lost."""
        with self.opened.lock:
            self.opened.close()
