"""The text of a file, and functions that the formats share."""

from __future__ import annotations

import importlib
import io
import re
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from lightir.errors import InvalidInput, LightirError, MissingExtra

PAGE_BREAK = "\f"
"""Separates pages of a PDF, slides, sheets, and chapters of a book in a text."""

_BYTE_ORDER_MARKS = ((b"\xef\xbb\xbf", "utf-8"), (b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"))
WESTERN_SHARE = 0.25
"""A text that is not UTF-8 is Windows-1252 (Latin-1 with quotation marks) if at most this share of its letters is not
ASCII: 0.06 to 0.2 of German, French or Spanish, 0.3 of Polish or Czech, nearly all of Russian or Chinese. For few
such letters charset-normalizer names encodings that differ from it in some of them."""

_SAMPLE_BYTES = 64_000
_HEADING = re.compile(r"^#{1,6}[ \t]+(.+?)[ \t]*#*[ \t]*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class FileText:
    """The text of a file.

    Attributes:
        text: text with Markdown headings; PAGE_BREAK between pages.
        title: title that the file names, or its first heading; "" if it has neither.
        metadata: further facts that the file names, such as its author or number of pages.
    """

    text: str
    title: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)


def decode(raw: bytes) -> str:
    """Decode a text file: by its byte order mark, as UTF-8, or in the encoding that its bytes resemble most.

    Raises:
        InvalidInput: the bytes are no text.
    """
    for mark, encoding in _BYTE_ORDER_MARKS:
        if raw.startswith(mark):
            return _decoded(raw[len(mark) :], encoding)
    if b"\0" in raw[:_SAMPLE_BYTES]:
        raise InvalidInput("the file contains zero bytes; it is not a text")
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return _decoded(raw, _likely_encoding(raw))


def _likely_encoding(raw: bytes) -> str:
    """Return the encoding of a text that is not UTF-8, guessed from its first bytes that are not ASCII."""
    first = next(i for i, byte in enumerate(raw) if byte > 127)
    sample = raw[max(0, first - _SAMPLE_BYTES // 2) :][:_SAMPLE_BYTES]
    n_other = sum(byte > 127 for byte in sample)
    n_letters = n_other + sum(65 <= byte <= 90 or 97 <= byte <= 122 for byte in sample)
    if n_other <= WESTERN_SHARE * n_letters:
        return "cp1252"
    import charset_normalizer  # takes 15 ms, and few texts need it

    best = charset_normalizer.from_bytes(sample).best()
    return "cp1252" if best is None else best.encoding


def _decoded(raw: bytes, encoding: str) -> str:
    try:
        return raw.decode(encoding)
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"byte {error.start:,} is neither UTF-8 nor {encoding}, which the text resembles most"
        ) from None


def first_heading(text: str) -> str:
    """Return the first Markdown heading of a text, "" if it has none."""
    match = _HEADING.search(text)
    return match[1] if match else ""


def load(name: str, suffix: str) -> ModuleType:
    """Import the library that reads a format.

    Raises:
        MissingExtra: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError:
        raise MissingExtra(f"{name} is needed to read {suffix} files: pip install 'lightir[files]'") from None


def open_archive(raw: bytes, limit: int) -> zipfile.ZipFile:
    """Open a ZIP archive (DOCX, PPTX, XLSX, EPUB) whose texts have at most `limit` bytes together.

    Raises:
        InvalidInput: not a ZIP archive, or one with more text. zipfile reads no more of a file than its entry names.
    """
    try:
        archive = zipfile.ZipFile(io.BytesIO(raw))
    except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
        raise InvalidInput(f"the file is damaged: {error}") from None
    texts = (".xml", ".rels", ".html", ".xhtml", ".htm", ".opf", ".ncx")
    n_bytes = sum(entry.file_size for entry in archive.infolist() if entry.filename.lower().endswith(texts))
    if n_bytes > limit:
        raise InvalidInput(f"the text in the archive has {n_bytes:,} bytes, more than the limit of {limit:,}")
    return archive


@contextmanager
def damage_as_invalid(program: str) -> Iterator[None]:
    """Turn whatever a library raises for a damaged file into InvalidInput."""
    try:
        yield
    except (LightirError, MemoryError):
        raise
    except Exception as error:
        raise InvalidInput(f"no {program} file that can be read: {type(error).__name__} {error}") from error
