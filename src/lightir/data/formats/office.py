"""Word, PowerPoint and Excel files."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

from lightir.data.formats.content import (
    PAGE_BREAK,
    FileText,
    damage_as_invalid,
    first_heading,
    load,
    open_archive,
)
from lightir.data.formats.web import body_markdown, parsed

_PROPERTIES = "docProps/core.xml"


def docx_text(raw: bytes, limit: int) -> FileText:
    """Read a Word file with its headings, lists and tables; it has no pages until a program lays it out."""
    archive = open_archive(raw, limit)
    with damage_as_invalid("Word"):
        named = _properties(archive)
        converted = load("mammoth", ".docx").convert_to_html(io.BytesIO(raw), include_embedded_style_map=False)
        text = body_markdown(parsed(converted.value, ".docx"))
    return FileText(text, named.pop("title", "") or first_heading(text), named)


def pptx_text(raw: bytes, limit: int) -> FileText:
    """Read a presentation: a page for each slide, with its title as a heading, its texts, tables and notes."""
    archive = open_archive(raw, limit)
    with damage_as_invalid("PowerPoint"):
        slides = [_slide(slide) for slide in load("pptx", ".pptx").Presentation(io.BytesIO(raw)).slides]
        named = _properties(archive)
    text = PAGE_BREAK.join(slides)
    return FileText(text, named.pop("title", "") or first_heading(text), {**named, "pages": len(slides)})


def _slide(slide: Any) -> str:
    title = slide.shapes.title
    parts = [f"## {' '.join(title.text_frame.text.split())}"] if title is not None and title.has_text_frame else []
    for shape in _shapes(slide.shapes):
        if title is not None and shape.shape_id == title.shape_id:
            continue
        if shape.has_text_frame:
            parts.append(shape.text_frame.text)
        elif getattr(shape, "has_table", False):
            parts += [_row(cell.text for cell in row.cells) for row in shape.table.rows]
    if slide.has_notes_slide and slide.notes_slide.notes_text_frame is not None:
        parts.append(slide.notes_slide.notes_text_frame.text)
    return "\n\n".join(part.replace("\v", "\n").strip() for part in parts if part.strip())


def _shapes(shapes: Any) -> Iterator[Any]:
    """Yield shapes and those inside groups."""
    for shape in shapes:
        if hasattr(shape, "shapes"):
            yield from _shapes(shape.shapes)
        else:
            yield shape


def xlsx_text(raw: bytes, limit: int) -> FileText:
    """Read a workbook: a page for each sheet, with its name as a heading and a line for each row that has values.

    Formulas have the values that the program which wrote the file computed.
    """
    archive = open_archive(raw, limit)
    with damage_as_invalid("Excel"):
        workbook = load("openpyxl", ".xlsx").load_workbook(io.BytesIO(raw), read_only=True, data_only=True)
        sheets = [_sheet(sheet) for sheet in workbook.worksheets]
        named = _properties(archive)
    return FileText(PAGE_BREAK.join(sheets), named.pop("title", ""), {**named, "pages": len(sheets)})


def _sheet(sheet: Any) -> str:
    rows = ([cell for cell in row if cell is not None] for row in sheet.iter_rows(values_only=True))
    return "\n".join([f"## {sheet.title}", "", *(_row(str(cell) for cell in row) for row in rows if row)])


def _row(cells: Any) -> str:
    return " | ".join(" ".join(cell.split()) for cell in cells)


def _properties(archive: Any) -> dict[str, str]:
    """Return title and author that the file's properties name."""
    if _PROPERTIES not in archive.namelist():
        return {}
    root = ElementTree.fromstring(archive.read(_PROPERTIES))
    named = {name: root.findtext(f"{{*}}{field}") for name, field in (("title", "title"), ("author", "creator"))}
    return {name: value.strip() for name, value in named.items() if value and value.strip()}
