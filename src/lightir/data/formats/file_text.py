"""The reader of each format, by suffix."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias, cast

from lightir.data.formats.content import FileText
from lightir.errors import InvalidInput
from lightir.lines import MAX_BYTES, Opener, ReadOptions, read_bytes

Reader: TypeAlias = Callable[[bytes, int], FileText]
"""Takes a file's bytes and the largest number of bytes of its text."""

TEXTS = ".txt .text .rst .adoc .org .tex .log"
CODE = """
    .py .pyi .js .mjs .cjs .ts .tsx .jsx .java .kt .scala .c .h .cc .cpp .hpp .cxx .cs .go .rs .rb .php .swift .m .mm .r
    .jl .lua .pl .pm .sh .bash .zsh .fish .ps1 .bat .sql .css .scss .vue .dart .ex .exs .erl .hs .ml .clj .lisp .el .vim
    .cmake .gradle .proto .graphql .tf .toml .yaml .yml .ini .cfg .conf .xml .json .diff .patch"""
FORMATS: Mapping[str, str] = {
    **dict.fromkeys((*TEXTS.split(), *CODE.split()), "plain.plain_text"),
    **dict.fromkeys((".md", ".markdown", ".mdx"), "plain.markdown_text"),
    **dict.fromkeys((".html", ".htm", ".xhtml"), "web.html_text"),
    ".pdf": "pdf.pdf_text",
    ".docx": "office.docx_text",
    ".pptx": "office.pptx_text",
    ".xlsx": "office.xlsx_text",
    ".epub": "web.epub_text",
    ".ipynb": "plain.notebook_text",
    ".eml": "plain.mail_text",
}
"""Suffix in lower case -> module and function that read it, imported when the first such file is read."""

WITH_PICTURES = {".pdf", ".docx", ".pptx", ".xlsx", ".epub"}
"""Formats whose files may be much larger than their text."""


def format_suffix(path: Path) -> str:
    """Return the suffix of a file's name in lower case, without .gz."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def extract(path: Path, options: ReadOptions, *, opener: Opener | None = None) -> FileText:
    """Return the text of a file.

    Args:
        path: a file whose suffix is in FORMATS, gzipped if its name ends in .gz.
        options: limit of a document, which holds for the text, and for the file if its format is text.
        opener: function that opens the file; None for the system's.

    Raises:
        InvalidInput: a damaged, encrypted, empty or too large file, or one that is not of its suffix's format.
        MissingExtra: the format requires the extra `files`.
        StorageError: the system refuses to read the file.
    """
    suffix, limit = format_suffix(path), options.max_document_bytes
    raw = read_bytes(path, MAX_BYTES if suffix in WITH_PICTURES else limit, opener=opener)
    try:
        text = _reader(suffix)(raw, limit)
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from error
    if not text.text.strip():
        raise InvalidInput(f"{path}: the file has no text")
    return text


def _reader(suffix: str) -> Reader:
    module, _, name = FORMATS[suffix].partition(".")
    return cast(Reader, getattr(importlib.import_module(f"lightir.data.formats.{module}"), name))
