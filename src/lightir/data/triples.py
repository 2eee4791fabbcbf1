"""MS MARCO's triples: lines of query, relevant and irrelevant passage, as ids or texts, read on access."""

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
    """Open a file of lines `query <tab> positive <tab> negative` as a training set that reads lines on access.

    If no field of the first line contains a blank, all fields are ids. Passages are then read from collection.tsv in
    the same folder (`id <tab> text`), queries from queries.tsv or queries.train.tsv. Otherwise the fields are texts.
    Gzipped files are unpacked into temporary files. All lines of a query form one example. Memory holds 16 bytes per
    line and per passage, and the texts of queries that are read from a separate file.

    Raises:
        NotFound: the file, or one of the two files that ids require, does not exist.
        InvalidInput: a line does not have three fields, has an empty one, an unknown id or invalid UTF-8, or an id is
            duplicate. The message names file and line.
    """
    path = Path(path)
    if not path.is_file():
        raise NotFound(f"{path} does not exist; expected a file of triples")
    name = name or path.name.split(".tsv")[0]
    lines = LineFile(path)
    first = next(lines.offsets(), None)
    if first is None:
        raise InvalidInput(f"training set {name!r} has no example with a relevant document")
    if any(len(field.split()) > 1 for field in lines.fields(first, 3)):
        return TrainingSet.from_rows(name, read_rows(TextTriples(lines), name=name), instructions=instructions)
    collection = Collection(LineFile(_sibling(path, COLLECTION)))
    queries = _read_queries(_sibling(path, QUERIES))
    passages, digest = collection.index()
    rows = read_rows(IdTriples(lines, queries), name=name, collection=passages, digest=digest)
    return TrainingSet.from_rows(name, rows, instructions=instructions)


def _sibling(path: Path, names: Sequence[str]) -> Path:
    for name in names:
        if (path.parent / name).is_file():
            return path.parent / name
    raise NotFound(
        f"{path} holds ids (no field of its first line contains a blank); their texts must be in the same folder, "
        f"in {' or '.join(names)}, but there is none"
    )


def _read_queries(path: Path) -> dict[str, str]:
    texts: dict[str, str] = {}
    for number, line in read_nonblank_lines(path):
        query_id, tab, text = line.partition("\t")
        if not (tab and query_id.strip() and text.strip()):
            raise InvalidInput(f"{path}, line {number}: {line[:80]!r}; expected query id and text, separated by a tab")
        if texts.setdefault(query_id.strip(), text.strip()) != text.strip():
            raise InvalidInput(f"{path}, line {number}: duplicate query id {query_id.strip()!r} with another text")
    return texts


class LineFile:
    """A memory-mapped text file of tab-separated lines; a line's location is its byte offset."""

    def __init__(self, path: Path) -> None:
        """Map the file; a gzipped one is unpacked into a temporary file first.

        Raises:
            InvalidInput: the gzip stream is damaged or truncated.
        """
        self.path = path
        with _unpacked(path) if path.suffix == ".gz" else path.open("rb") as file:
            size = file.seek(0, 2)
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
        self._size = size

    def offsets(self) -> Iterator[int]:
        """Iterate over the offsets of the lines that are not blank."""
        start = 0
        while start < self._size:
            end = self._end(start)
            if self._bytes[start:end].strip():
                yield start
            start = end + 1

    def fields(self, offset: int, n: int) -> list[str]:
        """Return a line's n fields, stripped.

        Raises:
            InvalidInput: another number of fields, an empty field, or invalid UTF-8.
        """
        raw = self._bytes[offset : self._end(offset)]
        try:
            line = raw.removeprefix(b"\xef\xbb\xbf").decode() if offset == 0 else raw.decode()
        except UnicodeDecodeError as error:
            raise InvalidInput(f"{self.describe(offset)}: invalid UTF-8 at byte {error.start}") from None
        fields = [field.strip() for field in line.split("\t")]
        if len(fields) != n:
            raise InvalidInput(f"{self.describe(offset)}: {len(fields)} tab-separated fields; expected {n}")
        if not all(fields):
            raise InvalidInput(f"{self.describe(offset)}: field {fields.index('') + 1} is empty")
        return fields

    def describe(self, location: int) -> str:
        """Return file name and line number, which is counted on demand."""
        number, start = 1, 0
        while start < location and (end := self._end(start)) < location:
            number, start = number + 1, end + 1
        return f"{self.path}, line {number}"

    def _end(self, start: int) -> int:
        end = self._bytes.find(b"\n", start)
        return self._size if end < 0 else end


def _unpacked(path: Path) -> tempfile._TemporaryFileWrapper[bytes]:
    file = tempfile.NamedTemporaryFile(prefix="lightir-")  # noqa: SIM115 (the caller closes it; the mapping keeps its content)
    try:
        with gzip.open(path, "rb") as packed:
            shutil.copyfileobj(packed, file, 1 << 20)
    except (EOFError, OSError) as error:
        file.close()
        raise InvalidInput(f"{path}: the gzip stream is damaged: {error}") from error
    file.flush()
    return file


class TextTriples:
    """Rows of texts; a query's id is a hash of its text."""

    def __init__(self, lines: LineFile) -> None:
        """Wrap the lines of a file."""
        self._lines = lines
        self.describe = lines.describe

    def rows(self) -> Iterator[tuple[int, TrainingRow]]:
        """Iterate over the lines."""
        return ((offset, self.row(offset)) for offset in self._lines.offsets())

    def row(self, location: int) -> TrainingRow:
        """Parse a line."""
        query, *texts = self._lines.fields(location, 3)
        positive, negative = (parse_document(text, "a passage") for text in texts)
        query_id = hashlib.sha256(query.encode()).hexdigest()[:16]
        return TrainingRow(query_id, query, (positive.doc_id,), (negative.doc_id,), (positive, negative))


class IdTriples:
    """Rows of ids."""

    def __init__(self, lines: LineFile, queries: dict[str, str]) -> None:
        """Wrap the lines of a file; `queries` maps ids to texts."""
        self._lines, self._queries = lines, queries
        self.describe = lines.describe

    def rows(self) -> Iterator[tuple[int, TrainingRow]]:
        """Iterate over the lines."""
        return ((offset, self.row(offset)) for offset in self._lines.offsets())

    def row(self, location: int) -> TrainingRow:
        """Parse a line.

        Raises:
            InvalidInput: unknown query id.
        """
        query_id, positive, negative = self._lines.fields(location, 3)
        if query_id not in self._queries:
            raise InvalidInput(f"{self.describe(location)}: unknown query id {query_id!r}")
        return TrainingRow(query_id, self._queries[query_id], (positive,), (negative,))


class Collection:
    """A passage file: lines `id <tab> text`."""

    def __init__(self, lines: LineFile) -> None:
        """Wrap the lines of a file."""
        self._lines = lines

    def index(self) -> tuple[LazyDocuments, str]:
        """Return the passages by id, and a hash of them.

        Raises:
            InvalidInput: duplicate id.
        """
        builder = LazyDocumentsBuilder(self._read, self._lines.describe, repeats=False)
        digest = hashlib.sha256()
        for offset in self._lines.offsets():
            (document,) = self._read(offset)
            builder.add(document, offset)
            digest.update(repr(document).encode())
        return builder.build(), digest.hexdigest()

    def _read(self, offset: int) -> tuple[Document]:
        doc_id, text = self._lines.fields(offset, 2)
        return (Document(doc_id, text),)
