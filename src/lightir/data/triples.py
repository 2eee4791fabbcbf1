"""MS MARCO's triples: lines of query, relevant and irrelevant passage, as ids or as texts, that stay in their file."""

from __future__ import annotations

import gzip
import hashlib
import mmap
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from lightir.data.examples import TrainingRow, parse_document, read_rows
from lightir.data.lazy_documents import LazyDocuments, LazyDocumentsBuilder
from lightir.data.training_set import TrainingSet
from lightir.errors import InvalidInput, NotFound
from lightir.lines import read_nonblank_lines
from lightir.types import Document

COLLECTION = ("collection.tsv", "collection.tsv.gz")
QUERIES = ("queries.tsv", "queries.tsv.gz", "queries.train.tsv", "queries.train.tsv.gz")


def open_triples(path: Path | str, *, name: str | None = None, instructions: Sequence[str]) -> TrainingSet:
    """A file of lines `query <tab> positive <tab> negative`, read once and then left where it is.

    Where no field of the first line holds a blank, all are ids: those of passages stand in collection.tsv beside the
    file, `id <tab> text`, those of queries in queries.tsv or queries.train.tsv. Otherwise they are the texts
    themselves. Any of the files may be gzipped; it is then unpacked into a temporary file, which the system removes.
    All lines of a query are one example. Memory holds 16 bytes a line and 16 a passage, and the queries' texts where
    they have a file of their own.

    Raises:
        NotFound: there is no such file, or none of the two that ids need.
        InvalidInput: file and line are named: not three fields, an empty one, an id that the other files lack or that
            stands there twice, or bytes that are not UTF-8.
    """
    path = Path(path)
    if not path.is_file():
        raise NotFound(f"{path} does not exist; a file of triples is needed")
    name = name or path.name.split(".tsv")[0]
    lines = LineFile(path)
    first = next(lines.places(), None)
    if first is None:
        raise InvalidInput(f"training set {name!r} has no example with a relevant document")
    if any(len(field.split()) > 1 for field in lines.fields(first, 3)):
        return TrainingSet.from_rows(name, read_rows(TextTriples(lines), name=name), instructions=instructions)
    collection = Collection(LineFile(_beside(path, COLLECTION)))
    queries = _queries(_beside(path, QUERIES))
    passages, digest = collection.index()
    rows = read_rows(IdTriples(lines, queries), name=name, collection=passages, digest=digest)
    return TrainingSet.from_rows(name, rows, instructions=instructions)


def _beside(path: Path, names: Sequence[str]) -> Path:
    for name in names:
        if (path.parent / name).is_file():
            return path.parent / name
    raise NotFound(
        f"{path} holds ids (no field of its first line has a blank), whose texts are looked for beside it: "
        f"{' or '.join(names)}; there is none"
    )


def _queries(path: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for number, line in read_nonblank_lines(path):
        query_id, tab, text = line.partition("\t")
        if not (tab and query_id.strip() and text.strip()):
            raise InvalidInput(f"{path}, line {number}: {line[:80]!r}; expected a query's id and text between tabs")
        if found.setdefault(query_id.strip(), text.strip()) != text.strip():
            raise InvalidInput(f"{path}, line {number}: query {query_id.strip()!r} came before with another text")
    return found


class LineFile:
    """A text file of tab-separated lines, mapped into memory; a place is the byte at which a line begins."""

    def __init__(self, path: Path) -> None:
        """Map the file; a gzipped one is unpacked aside first.

        Raises:
            InvalidInput: it is broken, or cut off.
        """
        self.path = path
        with _unpacked(path) if path.suffix == ".gz" else path.open("rb") as file:
            size = file.seek(0, 2)
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
        self._size = size

    def places(self) -> Iterator[int]:
        """Where each line begins that is not blank."""
        start = 0
        while start < self._size:
            end = self._end(start)
            if self._bytes[start:end].strip():
                yield start
            start = end + 1

    def fields(self, place: int, n: int) -> list[str]:
        """The line's n fields, without blanks around them.

        Raises:
            InvalidInput: not so many, an empty one, or not UTF-8.
        """
        raw = self._bytes[place : self._end(place)]
        try:
            line = raw.removeprefix(b"\xef\xbb\xbf").decode() if place == 0 else raw.decode()
        except UnicodeDecodeError as error:
            raise InvalidInput(f"{self.where(place)}: not UTF-8: {error.reason} at byte {error.start}") from None
        fields = [field.strip() for field in line.split("\t")]
        if len(fields) != n:
            raise InvalidInput(f"{self.where(place)}: {len(fields)} fields between tabs; expected {n}")
        if not all(fields):
            raise InvalidInput(f"{self.where(place)}: field {fields.index('') + 1} is empty")
        return fields

    def where(self, place: int) -> str:
        """The file and the line's number, counted now."""
        number, start = 1, 0
        while start < place and (end := self._end(start)) < place:
            number, start = number + 1, end + 1
        return f"{self.path}, line {number}"

    def _end(self, start: int) -> int:
        end = self._bytes.find(b"\n", start)
        return self._size if end < 0 else end


def _unpacked(path: Path) -> tempfile._TemporaryFileWrapper[bytes]:
    file = tempfile.NamedTemporaryFile(prefix="lightir-")  # noqa: SIM115 (its caller closes it; the mapping keeps it)
    try:
        with gzip.open(path, "rb") as packed:
            shutil.copyfileobj(packed, file, 1 << 20)
    except (EOFError, OSError) as error:
        file.close()
        raise InvalidInput(f"{path}: the gzip stream is broken: {error}") from error
    file.flush()
    return file


class TextTriples:
    """Rows of texts; a query's id is a hash of its text."""

    def __init__(self, lines: LineFile) -> None:
        """Over the lines of a file."""
        self._lines = lines
        self.where = lines.where

    def rows(self) -> Iterator[tuple[int, TrainingRow]]:
        """All lines."""
        return ((place, self.row(place)) for place in self._lines.places())

    def row(self, place: int) -> TrainingRow:
        """One line."""
        query, *texts = self._lines.fields(place, 3)
        positive, negative = (parse_document(text, "a passage") for text in texts)
        query_id = hashlib.sha256(query.encode()).hexdigest()[:16]
        return TrainingRow(query_id, query, (positive.doc_id,), (negative.doc_id,), (positive, negative))


class IdTriples:
    """Rows of ids."""

    def __init__(self, lines: LineFile, queries: dict[str, str]) -> None:
        """Over the lines of a file; `queries` has the texts."""
        self._lines, self._queries = lines, queries
        self.where = lines.where

    def rows(self) -> Iterator[tuple[int, TrainingRow]]:
        """All lines."""
        return ((place, self.row(place)) for place in self._lines.places())

    def row(self, place: int) -> TrainingRow:
        """One line.

        Raises:
            InvalidInput: a query without text.
        """
        query_id, positive, negative = self._lines.fields(place, 3)
        if query_id not in self._queries:
            raise InvalidInput(f"{self.where(place)}: query {query_id!r} is not among the queries")
        return TrainingRow(query_id, self._queries[query_id], (positive,), (negative,))


class Collection:
    """Lines `id <tab> text`."""

    def __init__(self, lines: LineFile) -> None:
        """Over the lines of a file."""
        self._lines = lines

    def index(self) -> tuple[LazyDocuments, str]:
        """The passages by id, and a hash over them.

        Raises:
            InvalidInput: an id stands twice.
        """
        found = LazyDocumentsBuilder(self._at, self._lines.where, repeats=False)
        digest = hashlib.sha256()
        for place in self._lines.places():
            (document,) = self._at(place)
            found.add(document, place)
            digest.update(repr(document).encode())
        return found.build(), digest.hexdigest()

    def _at(self, place: int) -> tuple[Document]:
        doc_id, text = self._lines.fields(place, 2)
        return (Document(doc_id, text),)
