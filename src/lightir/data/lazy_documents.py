"""Documents by id that stay in their file, found again by a hash of the id: 16 bytes of memory each."""

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
"""Rows whose document ids are looked up together."""

IdHashes = npt.NDArray[np.uint64]
Locations = npt.NDArray[np.int64]


def hash_text(text: str) -> int:
    """64 bits of a hash: two of a billion different texts agree with a probability of 3 %, two of ten million 3e-6."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


class LazyDocuments(Mapping[str, Document]):
    """Documents by id that stay in their file: 16 bytes each are kept. They come in the order of their ids' hashes."""

    def __init__(self, keys: IdHashes, places: Locations, read: Callable[[int], Sequence[Document]]) -> None:
        """Put together from arrays.

        Args:
            keys: (n,) hash_text of each id, ascending and different.
            places: (n,) where each lies.
            read: the documents at a place.
        """
        self._keys, self._places, self._read = keys, places, read

    def __getitem__(self, doc_id: str) -> Document:
        """The document, read now."""
        key = np.uint64(hash_text(doc_id))
        position = int(np.searchsorted(self._keys, key))
        if position < len(self._keys) and self._keys[position] == key:
            for document in self._read(int(self._places[position])):
                if document.doc_id == doc_id:
                    return document
        raise KeyError(doc_id)

    def __iter__(self) -> Iterator[str]:
        """All ids."""
        return iter(self.ids)

    def __len__(self) -> int:
        """Number of documents."""
        return len(self._keys)

    @property
    def ids(self) -> Sequence[str]:
        """The ids in the mapping's order, each read when it is asked for."""
        return _PlacedIds(self)

    def lacks(self, keys: IdHashes) -> npt.NDArray[np.bool_]:
        """Which of the hashes belong to no document."""
        if not len(self._keys):
            return np.ones(len(keys), dtype=np.bool_)
        positions = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        return np.asarray(self._keys[positions] != keys)

    def id_at(self, position: int) -> str:
        """The id at a position in the mapping's order."""
        return _id_of_key(self._read(int(self._places[position])), int(self._keys[position]))


def _id_of_key(documents: Sequence[Document], key: int) -> str:
    return next(each.doc_id for each in documents if hash_text(each.doc_id) == key)


class _PlacedIds(Sequence[str]):
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
            return [self._documents.id_at(each) for each in range(len(self))[position]]
        return self._documents.id_at(range(len(self))[position])


class LazyDocumentsBuilder:
    """Collects where documents lie; an id stands for one text."""

    def __init__(
        self, read: Callable[[int], Sequence[Document]], where: Callable[[int], str], *, repeats: bool
    ) -> None:
        """Begin with none.

        Args:
            read: the documents at a place.
            where: a place in words.
            repeats: an id may stand several times, with the same text.
        """
        self._read, self._where, self._repeats = read, where, repeats
        self._fresh: tuple[array[int], array[int], array[int]] = (array("Q"), array("Q"), array("q"))
        self._keys, self._texts = np.zeros(0, np.uint64), np.zeros(0, np.uint64)
        self._places = np.zeros(0, np.int64)

    def add(self, document: Document, place: int) -> None:
        """The document lies at the place, perhaps not for the first time.

        Raises:
            InvalidInput: an id stands twice with two texts, or where it may not at all; the later place is named.
        """
        keys, texts, places = self._fresh
        keys.append(hash_text(document.doc_id))
        texts.append(hash_text(f"{document.title}\0{document.text}"))
        places.append(place)
        if len(keys) >= 64 * ROWS_AT_ONCE:
            self._unite()

    def build(self) -> LazyDocuments:
        """The mapping; raises as add does."""
        self._unite()
        return LazyDocuments(self._keys, self._places, self._read)

    def _unite(self) -> None:
        """Sort what is new into what is known."""
        known = (self._keys, self._texts, self._places)
        keys, texts, places = (
            np.concatenate([old, np.asarray(new, dtype=old.dtype)]) for old, new in zip(known, self._fresh, strict=True)
        )
        order = np.argsort(keys, kind="stable")  # of one id's places the first comes first
        keys, texts, places = keys[order], texts[order], places[order]
        again = np.concatenate([[False], keys[1:] == keys[:-1]])[: len(keys)]
        wrong = again[1:] & (texts[1:] != texts[:-1]) if self._repeats else again[1:]
        if wrong.any():
            position = int(np.flatnonzero(wrong)[0]) + 1
            place = int(places[position])
            doc_id = _id_of_key(self._read(place), int(keys[position]))
            text = " with another text" if self._repeats else ""
            raise InvalidInput(f"{self._where(place)}: document {doc_id!r} came before{text}")
        self._keys, self._texts, self._places = keys[~again], texts[~again], places[~again]
        self._fresh = (array("Q"), array("Q"), array("q"))
