"""Keeping SQLite's log short, although some reader may always use it.

SQLite moves the log into the store as far as no reader needs the earlier state, and starts the log anew when no reader
uses it. If the views of several readers overlap, neither happens, and the log grows with every change. So a writer
pauses now and then: while it changes nothing, each reader that refreshes stops using the log. Readers that open a view
of a long log move it into the store too, so that it starts anew after a time without changes.
"""

from __future__ import annotations

import sqlite3
import time
from contextlib import suppress

from lightir.index.connections import BUSY_S, Connection, log_bytes

LOG_BYTES = 16 << 20
"""Number of bytes from which a log is long, and to which SQLite truncates a log that it starts anew."""

WAIT_S = 1.0
"""Maximum time that a writer waits for readers, once for each LOG_BYTES that the log has grown."""

POLL_S = 0.02


def limit_log(connection: Connection) -> None:
    """Let SQLite truncate the log of a writer to LOG_BYTES whenever it starts the log anew."""
    connection.execute(f"PRAGMA journal_size_limit = {LOG_BYTES}").fetchall()


def shorten_log(connection: Connection, before: int) -> None:
    """Empty the log of a file that has just been changed, if it is longer than LOG_BYTES and no reader uses it.

    If the log has grown beyond a further multiple of LOG_BYTES, the function waits for readers, which it does not
    block. The log stays as it is if a reader uses it for longer than WAIT_S, or if the disk fails.

    Args:
        connection: connection of the writer, outside a transaction.
        before: size of the log before the change.
    """
    with suppress(OSError, MemoryError, sqlite3.Error):  # the change is durable in any case
        after = log_bytes(connection.path) or 0
        deadline = time.monotonic() + (WAIT_S if after // LOG_BYTES > before // LOG_BYTES else 0.0)
        while after > LOG_BYTES and not _empty(connection) and time.monotonic() < deadline:
            time.sleep(POLL_S)


def move_log(connection: Connection) -> None:
    """Move a log longer than LOG_BYTES into the store as far as no reader needs the earlier state; never waits.

    Args:
        connection: connection of a reader, outside a transaction.
    """
    with suppress(OSError, MemoryError, sqlite3.Error):  # the log is read as it is
        if connection.mode == "rw" and (log_bytes(connection.path) or 0) > LOG_BYTES:
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()


def _empty(connection: Connection) -> bool:
    """Move the log into the store and truncate it; return False if a reader uses the log."""
    with connection.lock:
        connection.execute("PRAGMA busy_timeout = 0").fetchall()
        try:
            ((is_busy, _, _),) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        finally:
            connection.execute(f"PRAGMA busy_timeout = {round(1000 * BUSY_S)}").fetchall()
    return not is_busy
