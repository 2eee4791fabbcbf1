"""Vectors that an endpoint has given, kept in a file, so that no text is paid for twice."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np

from lightir.errors import StorageError, WriteFailed
from lightir.files import make_folder
from lightir.progress import Progress
from lightir.query.endpoint import EmbeddingsEndpoint, EndpointFailed
from lightir.vectors import Floats

FILE = "endpoint-vectors.sqlite"
READ_AT_ONCE = 500


class FetchedVectors:
    """Vectors by a hash of address, model and text. Each batch is stored before the next one is asked for.

    Attributes:
        path: the file.
        n_texts: number of texts that were sent.
        n_characters: number of their characters.
        n_known: number of texts that were not sent, because the file had their vectors or they were repeated.
    """

    def __init__(self, folder: Path, endpoint: EmbeddingsEndpoint) -> None:
        """Open or create the file in a folder.

        Raises:
            WriteFailed: the folder or the file cannot be written.
        """
        make_folder(folder)
        self.path = folder / FILE
        self.n_texts = self.n_characters = self.n_known = 0
        self._endpoint = endpoint

    def rows(self, texts: Sequence[str], kind: str, *, prompt: str = "", shown: bool = True) -> Floats:
        """Return the vectors of texts, (n, dim) float32 as the endpoint gives them; known texts are not sent.

        Args:
            texts: n texts.
            kind: name of the kind of texts, for the progress bar.
            prompt: text that is sent before each of them.
            shown: whether progress is shown.

        Raises:
            EndpointFailed: the endpoint failed, or changed the width; what it had given before is kept.
            StorageError: the file cannot be read or written.
        """
        sent = [f"{prompt}{text}" for text in texts]
        keys = [self._key(text) for text in sent]
        missing = dict(zip(keys, sent, strict=True))
        with self._connection() as connection:
            for key in _stored(connection, list(missing)):
                del missing[key]
            new_keys, new_texts = list(missing), list(missing.values())
            self.n_known += len(keys) - len(new_keys)
            with Progress(f"teacher: {kind}", unit="text", total=len(keys), shown=shown) as bar:
                bar.update(len(keys) - len(new_keys))
                for span in self._endpoint.batches(new_texts):
                    rows = self._endpoint.encode_batch(new_texts[span])
                    self.n_texts += len(rows)
                    self.n_characters += sum(map(len, new_texts[span]))
                    with connection:
                        blobs = [row.astype("<f4").tobytes() for row in rows]
                        connection.executemany(
                            "INSERT OR REPLACE INTO vectors VALUES (?, ?)", zip(new_keys[span], blobs, strict=True)
                        )
                    bar.update(len(blobs))
            blob_of_key = _stored(connection, list(dict.fromkeys(keys)))
        widths = sorted({len(blob) // 4 for blob in blob_of_key.values()})
        if len(widths) > 1:
            raise EndpointFailed(f"{self._endpoint.url} gave vectors of the widths {widths}; remove {self.path}")
        return (
            np.stack([np.frombuffer(blob_of_key[key], "<f4") for key in keys]) if keys else np.zeros((0, 0), np.float32)
        )

    def _key(self, text: str) -> bytes:
        identity = f"{self._endpoint.url}\x00{self._endpoint.model}\x00{text}"
        return hashlib.sha256(identity.encode()).digest()

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        try:
            with closing(sqlite3.connect(self.path)) as connection:
                connection.execute("CREATE TABLE IF NOT EXISTS vectors (key BLOB PRIMARY KEY, vector BLOB NOT NULL)")
                yield connection
        except sqlite3.OperationalError as error:
            raise WriteFailed(f"cannot write {self.path}: {error}") from error
        except sqlite3.DatabaseError as error:
            raise StorageError(
                f"cannot read {self.path}: {error}; remove the file to fetch its vectors again"
            ) from error


def _stored(connection: sqlite3.Connection, keys: Sequence[bytes]) -> dict[bytes, bytes]:
    """Return the vectors of those keys that the file has."""
    blob_of_key: dict[bytes, bytes] = {}
    for first in range(0, len(keys), READ_AT_ONCE):
        part = keys[first : first + READ_AT_ONCE]
        marks = ",".join("?" * len(part))
        blob_of_key |= dict(connection.execute(f"SELECT key, vector FROM vectors WHERE key IN ({marks})", part))
    return blob_of_key
