"""PDF files."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from lightir.data.formats.content import PAGE_BREAK, FileText, load
from lightir.errors import InvalidInput

_HYPHEN_AT_LINE_END = re.compile("[\x02\ufffe\u00ad](?:\r?\n)?")
"""pdfium writes one of these for a hyphen that divides a word at the end of a line."""

MAX_HEADING_LEVEL = 6


def pdf_text(raw: bytes, limit: int) -> FileText:
    """Read the text of a PDF: PAGE_BREAK between pages, entries of its table of contents as headings where they stand.

    Raises:
        InvalidInput: a damaged or encrypted file, or one of pictures only.
    """
    pdfium = load("pypdfium2", ".pdf")
    try:
        document = pdfium.PdfDocument(raw)
    except pdfium.PdfiumError as error:
        raise InvalidInput(f"not a PDF that can be read: {error}") from None
    try:
        entries = _entries(document)
        pages, n_bytes = [], 0
        for i in range(len(document)):
            pages.append(_page_text(document, i, entries.get(i, [])))
            n_bytes += len(pages[-1])
            if n_bytes > limit:
                raise InvalidInput(f"the text of the first {i + 1:,} pages has more than {limit:,} characters")
        named = document.get_metadata_dict(skip_empty=True)
    finally:
        document.close()
    if not any(page.strip() for page in pages):
        raise InvalidInput(f"the PDF has no text on its {len(pages):,} pages; scanned pages need OCR first")
    author = {"author": named["Author"]} if named.get("Author", "").strip() else {}
    return FileText(PAGE_BREAK.join(pages), named.get("Title", "").strip(), {**author, "pages": len(pages)})


def _entries(document: Any) -> Mapping[int, list[tuple[str, int]]]:
    """Return page -> titles and levels (from 1) of the entries of the table of contents that lead to it."""
    by_page: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for entry in document.get_toc():
        destination = entry.get_dest()
        page = None if destination is None else destination.get_index()
        if page is not None:
            by_page[page].append((" ".join(entry.get_title().split()), min(entry.level + 1, MAX_HEADING_LEVEL)))
    return by_page


def _page_text(document: Any, i: int, entries: list[tuple[str, int]]) -> str:
    page = document[i]
    text_page = page.get_textpage()
    text = _HYPHEN_AT_LINE_END.sub("", text_page.get_text_bounded()).replace("\r\n", "\n").replace("\f", "\n")
    text_page.close()
    page.close()
    return with_headings(text, entries)


def with_headings(text: str, entries: list[tuple[str, int]]) -> str:
    """Mark the lines of a page that are titles of entries as Markdown headings.

    A title is found where a line, or a line and the next one, ends with it (before it may stand a number, as in
    "2.1 Results"), each entry once. Titles that no line has are left out.
    """
    lines = text.split("\n")
    for title, level in entries:
        wanted = _letters(title)
        for n, line in enumerate(lines):
            if wanted and not line.startswith("#") and _is_title(_letters(line), wanted):
                lines[n] = f"{'#' * level} {line.strip()}"
                break
    return "\n".join(lines)


def _letters(text: str) -> str:
    return "".join(character for character in text.casefold() if character.isalnum())


def _is_title(line: str, title: str) -> bool:
    """Whether a line is a title with at most a number before it, or the title without its own number."""
    return (
        line == title
        or (line.endswith(title) and line[: -len(title)].isdigit())
        or (title.endswith(line) and line != "" and title[: -len(line)].isdigit())
    )
