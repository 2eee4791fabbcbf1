"""The structure of a text: sections under headings, paragraphs, pages, and the units that passages are made of."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

PAGE_BREAK = "\f"

_LINE = re.compile(r"[^\n\f]*[\n\f]|[^\n\f]+")
_HEADING = re.compile(r"(#{1,6})[ \t]+(\S.*?)[ \t]*#*[ \t]*\r?\n?")
_FENCE = re.compile(r"[ \t]*(```+|~~~+)")
_UNIT_END = re.compile(
    r"[.!?\u2026]+[\"'\u201d\u2019)\]]*\s+"  # a sentence
    r"|[\u3002\uff01\uff1f]+[\u201d\u2019\u300d\u300f]*\s*"  # a sentence of Chinese or Japanese
    r"|\n(?=[ \t]*(?:[-*+|\u2022]|[0-9]+[.)])[ \t])"  # the line before an item of a list, or a row of a table
)


@dataclass(frozen=True, slots=True)
class Unit:
    """A sentence, an item of a list, a row of a table, or a part of a longer one.

    Attributes:
        start: first character in the text.
        end: first character after it, blanks and line ends included. Units follow one another without gaps.
        headings: titles of the headings above it, outermost first.
        page: number of its page, from 1.
        section: number of its section; a heading begins one.
        begins: whether a paragraph begins with it.
    """

    start: int
    end: int
    headings: tuple[str, ...]
    page: int
    section: int
    begins: bool


def units_of(text: str, *, with_headings: bool) -> list[Unit]:
    """Return the units of a text, in order; together they are the whole text.

    Args:
        text: a text; PAGE_BREAK ends a page.
        with_headings: whether lines such as "## Title" are headings (Markdown). Lines between fences never are.
    """
    return [unit for paragraph in _paragraphs(text, with_headings) for unit in _parts(text, paragraph)]


def _paragraphs(text: str, with_headings: bool) -> Iterator[Unit]:
    """Yield the paragraphs as units, each with the blank lines after it; a page ends one."""
    start, page, section = 0, 1, 0
    titles: list[tuple[int, str]] = []
    fence = ""
    opened: tuple[int, int, tuple[str, ...]] = (page, section, ())
    after_blank = begins_page = False

    def path() -> tuple[str, ...]:
        return tuple(title for _, title in titles)

    for match in _LINE.finditer(text):
        line, at = match[0], match.start()
        heading = None if fence or not with_headings else _HEADING.fullmatch(line.rstrip(PAGE_BREAK))
        if at > start and (heading or begins_page or (after_blank and line.strip())):
            yield Unit(start, at, opened[2], opened[0], opened[1], True)
            start = at
        if heading:
            section += 1
            titles = [known for known in titles if known[0] < len(heading[1])] + [(len(heading[1]), heading[2])]
        if at == start:
            opened = (page, section, path())
        fence = _fence_after(line, fence)
        after_blank = bool(heading) or (not fence and not line.strip())
        begins_page = line.endswith(PAGE_BREAK)
        page += begins_page
    if start < len(text):
        yield Unit(start, len(text), opened[2], opened[0], opened[1], True)


def _fence_after(line: str, fence: str) -> str:
    """Return the marks that close the block of code that a line is in or opens; "" outside of one."""
    marks = _FENCE.match(line)
    if marks is None:
        return fence
    if not fence:
        return marks[1]
    return "" if marks[1].startswith(fence) else fence


def _parts(text: str, paragraph: Unit) -> Iterator[Unit]:
    start = paragraph.start
    for match in _UNIT_END.finditer(text, paragraph.start, paragraph.end):
        if match.end() < paragraph.end:
            yield _part(paragraph, start, match.end())
            start = match.end()
    yield _part(paragraph, start, paragraph.end)


def _part(unit: Unit, start: int, end: int) -> Unit:
    return Unit(start, end, unit.headings, unit.page, unit.section, unit.begins and start == unit.start)


def halves(text: str, unit: Unit) -> tuple[Unit, Unit]:
    """Divide a unit of at least two characters near its middle: after a line, else after a word, else anywhere."""
    middle = (unit.start + unit.end) // 2
    for separator in ("\n", " "):
        before = text.rfind(separator, unit.start, middle) + 1
        after = text.find(separator, middle, unit.end - 1) + 1
        cuts = [cut for cut in (before, after) if unit.start < cut < unit.end]
        if cuts:
            cut = min(cuts, key=lambda cut: abs(cut - middle))
            return _part(unit, unit.start, cut), _part(unit, cut, unit.end)
    cut = max(middle, unit.start + 1)
    return _part(unit, unit.start, cut), _part(unit, cut, unit.end)
