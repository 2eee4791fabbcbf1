"""Documents by id that are read from their file on access; memory holds 16 bytes for each."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import overload

import numpy as np
import numpy.typing as npt

from lightir.errors import InvalidInput
from lightir.types import Document

ROWS_AT_ONCE = 65_536
"""Number of rows whose document ids are looked up together."""

IdHashes = npt.NDArray[np.uint64]
Locations = npt.NDArray[np.int64]


def hash_text(text: str) -> int:
    """Return a 64-bit hash: among 1e9 different texts two collide with probability 0.03, among 1e7 with 3e-6."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


class LazyDocuments(Mapping[str, Document]):
    """A mapping from id to document that reads documents on access; it iterates in the order of the ids' hashes."""

    def __init__(self, id_hashes: IdHashes, locations: Locations, read: Callable[[int], Sequence[Document]]) -> None:
        """Wrap arrays.

        Args:
            id_hashes: (n,) hash_text of each id, ascending and distinct.
            locations: (n,) location of each document in its file or table.
            read: function that returns the documents at a location.
        """
        self._id_hashes, self._locations, self._read = id_hashes, locations, read

    def __getitem__(self, doc_id: str) -> Document:
        """Read a document."""
        id_hash = np.uint64(hash_text(doc_id))
        position = int(np.searchsorted(self._id_hashes, id_hash))
        if position < len(self._id_hashes) and self._id_hashes[position] == id_hash:
            for document in self._read(int(self._locations[position])):
                if document.doc_id == doc_id:
                    return document
        raise KeyError(doc_id)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the ids."""
        return iter(self.ids)

    def __len__(self) -> int:
        """Return the number of documents."""
        return len(self._id_hashes)

    @property
    def ids(self) -> Sequence[str]:
        """The ids in the mapping's order, read on access."""
        return _LazyIds(self)

    def lacks(self, id_hashes: IdHashes) -> npt.NDArray[np.bool_]:
        """Return which of the hashes belong to no document."""
        if not len(self._id_hashes):
            return np.ones(len(id_hashes), dtype=np.bool_)
        positions = np.minimum(np.searchsorted(self._id_hashes, id_hashes), len(self._id_hashes) - 1)
        return np.asarray(self._id_hashes[positions] != id_hashes)

    def id_at(self, position: int) -> str:
        """Return the id at a position in the mapping's order."""
        return _id_with_hash(self._read(int(self._locations[position])), int(self._id_hashes[position]))


def _id_with_hash(documents: Sequence[Document], id_hash: int) -> str:
    return next(document.doc_id for document in documents if hash_text(document.doc_id) == id_hash)


class _LazyIds(Sequence[str]):
    def __init__(self, documents: LazyDocuments) -> None:
        self._documents = documents

    def __len__(self) -> int:
        return len(self._documents)

    @overload
    def __getitem__(self, position: int) -> str: ...

    @overload
    def __getitem__(self, position: slice) -> Sequence[str]: ...

    def __getitem__(self, position: int | slice) -> str | Sequence[str]:
        if isinstance(position, slice):
            return [self._documents.id_at(row) for row in range(len(self))[position]]
        return self._documents.id_at(range(len(self))[position])


class LazyDocumentsBuilder:
    """Collects the locations of documents and checks that no id has two texts."""

    def __init__(
        self, read: Callable[[int], Sequence[Document]], describe: Callable[[int], str], *, repeats: bool
    ) -> None:
        """Start without documents.

        Args:
            read: function that returns the documents at a location.
            describe: function that names a location for error messages.
            repeats: allow an id to occur several times, with the same text.
        """
        self._read, self._describe, self._repeats = read, describe, repeats
        self._added: tuple[array[int], array[int], array[int]] = (array("Q"), array("Q"), array("q"))
        self._id_hashes, self._text_hashes = np.zeros(0, np.uint64), np.zeros(0, np.uint64)
        self._locations = np.zeros(0, np.int64)

    def add(self, document: Document, location: int) -> None:
        """Add a document at a location.

        Raises:
            InvalidInput: duplicate id with another text, or any duplicate id unless repeats are allowed. The message
                names the later location.
        """
        id_hashes, text_hashes, locations = self._added
        id_hashes.append(hash_text(document.doc_id))
        text_hashes.append(hash_text(f"{document.title}\0{document.text}"))
        locations.append(location)
        if len(id_hashes) >= 64 * ROWS_AT_ONCE:
            self._merge_added()

    def build(self) -> LazyDocuments:
        """Return the mapping; raises as `add` does."""
        self._merge_added()
        return LazyDocuments(self._id_hashes, self._locations, self._read)

    def _merge_added(self) -> None:
        """Merge the documents added since the last call into the sorted arrays."""
        known = (self._id_hashes, self._text_hashes, self._locations)
        id_hashes, text_hashes, locations = (
            np.concatenate([old, np.asarray(new, dtype=old.dtype)]) for old, new in zip(known, self._added, strict=True)
        )
        order = np.argsort(id_hashes, kind="stable")  # stable: of equal ids the first location stays first
        id_hashes, text_hashes, locations = id_hashes[order], text_hashes[order], locations[order]
        repeated = np.concatenate([[False], id_hashes[1:] == id_hashes[:-1]])[: len(id_hashes)]
        wrong = repeated[1:] & (text_hashes[1:] != text_hashes[:-1]) if self._repeats else repeated[1:]
        if wrong.any():
            position = int(np.flatnonzero(wrong)[0]) + 1
            location = int(locations[position])
            doc_id = _id_with_hash(self._read(location), int(id_hashes[position]))
            text = " with another text" if self._repeats else ""
            raise InvalidInput(f"{self._describe(location)}: duplicate document id {doc_id!r}{text}")
        self._id_hashes, self._text_hashes = id_hashes[~repeated], text_hashes[~repeated]
        self._locations = locations[~repeated]
        self._added = (array("Q"), array("Q"), array("q"))
