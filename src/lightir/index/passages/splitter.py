"""Splitting of long documents into passages."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from lightir.contract import Contract
from lightir.errors import InvalidInput
from lightir.index.passages.lengths import Count, are_longer, count_words, counter, text_tokens
from lightir.index.passages.naming import as_passage, passage_ids, require_no_passage
from lightir.index.passages.options import PassageOptions
from lightir.index.passages.units import PAGE_BREAK, Unit, halves, units_of
from lightir.text import TextTokenizer
from lightir.types import Document, Passage

DEFAULT_WORDS = 256
"""Limit of a passage in words and punctuation marks, in an index without a model."""

SEPARATOR = " > "
"""Joins the title of a document and the headings above a passage."""

MARKDOWN = {"md", "markdown", "mdx"}
CONVERTED = {"html", "htm", "xhtml", "pdf", "docx", "pptx", "xlsx", "epub", "ipynb", "eml"}
"""Types of files whose text is Markdown, and of those whose text is made of the file and has other lines."""

_NOT_BLANK = re.compile(r"\S")
_UNIT_SHARE = 4
"""Longer units than this part of a passage are divided."""

_SMALL_SHARE = 4
"""A heading begins a new passage if the present one has at least this part of the limit."""


@dataclass(frozen=True, slots=True)
class _Span:
    """The units of one passage: `first` to `end`; those before `core` repeat the end of the passage before it."""

    first: int
    core: int
    end: int


class Splitter:
    """Splits documents that are longer than a limit into passages."""

    def __init__(
        self, options: PassageOptions, contract: Contract | None = None, tokenizer: TextTokenizer | None = None
    ) -> None:
        """Find the limit.

        Args:
            options: the sizes.
            contract: contract of the model that will encode the passages; None without one.
            tokenizer: the model's tokenizer; required with a contract.

        Raises:
            InvalidInput: a passage would be longer than the model reads, or the tokenizer is missing.
        """
        self._joiner = " "
        self._count: Count = count_words
        most = None
        if contract is not None:
            if tokenizer is None:
                raise InvalidInput("passages are measured in the model's tokens; the query encoder is missing")
            self._joiner = contract.document.title_joiner
            self._count = counter(contract, tokenizer)
            most = text_tokens(contract, tokenizer)
        self.limit = options.tokens or most or DEFAULT_WORDS
        if most is not None and self.limit > most:
            raise InvalidInput(f"passages of {self.limit} tokens are longer than the {most} that the model reads")
        self._overlap = min(options.overlap, self.limit // 2)

    def split(self, documents: Sequence[Document]) -> list[Document]:
        """Return the documents, with passages in place of those that are longer than the limit.

        Raises:
            InvalidInput: an id or a metadata field is one of passages.
        """
        for document in documents:
            require_no_passage(document)
        longer = are_longer([document.full_text(self._joiner) for document in documents], self.limit, self._count)
        return [
            part
            for document, is_longer in zip(documents, longer, strict=True)
            for part in (self.passages(document) if is_longer else [document])
        ]

    def passages(self, document: Document) -> list[Document]:
        """Return the passages of a document, in order.

        Without overlap their texts are the document's text, divided: at headings, between paragraphs, or between
        sentences. Their title is the document's with the headings above them.
        """
        budget = self.limit
        while True:
            parts = self._parts(document, budget)
            longest = max(self._count([part.full_text(self._joiner) for part in parts]))
            if longest <= self.limit or budget <= 2:
                return parts
            budget -= max(1, longest - self.limit)  # counts of sentences alone can add up to less than that of both

    def _parts(self, document: Document, budget: int) -> list[Document]:
        text, kind = document.text, _kind(document)
        with_headings = kind is None or kind in MARKDOWN | CONVERTED
        units, counts = self._units(text, with_headings, max(budget // _UNIT_SHARE, 1))
        titles = self._titles(document.title, [unit.headings for unit in units])
        rooms = [max(budget - titles[unit.headings][1], 1) for unit in units]
        spans = packed(text, units, counts, rooms, self._overlap)
        texts = [text[units[span.first].start : units[span.end - 1].end] for span in spans]
        lines = None if kind in CONVERTED else _line_numbers(text, [units[span.first].start for span in spans])
        has_pages = PAGE_BREAK in text
        passages = []
        for number, (span, doc_id) in enumerate(zip(spans, passage_ids(document.doc_id, texts), strict=True)):
            inside = units[span.first : span.end]
            headings = _common([unit.headings for unit in inside])
            passage = Passage(
                document.doc_id,
                inside[0].start,
                inside[-1].end,
                SEPARATOR.join(headings),
                inside[0].page if has_pages else None,
                None if lines is None else lines[number],
            )
            title = titles[headings][0] if headings in titles else self._titles(document.title, [headings])[headings][0]
            passages.append(as_passage(document, doc_id, texts[number], title, passage))
        return passages

    def _units(self, text: str, with_headings: bool, most: int) -> tuple[list[Unit], list[int]]:
        """Return the units of a text with at most a number of tokens, and these numbers."""
        done: list[tuple[Unit, int]] = []
        open_units = units_of(text, with_headings=with_headings)
        while open_units:
            counts = self._count([text[unit.start : unit.end] for unit in open_units])
            longer: list[Unit] = []
            for unit, count in zip(open_units, counts, strict=True):
                if count <= most or unit.end - unit.start < 2:
                    done.append((unit, count))
                else:
                    longer += halves(text, unit)
            open_units = longer
        done.sort(key=lambda pair: pair[0].start)
        return [unit for unit, _ in done], [count for _, count in done]

    def _titles(self, title: str, headings: Sequence[tuple[str, ...]]) -> dict[tuple[str, ...], tuple[str, int]]:
        """Return the title of a passage under given headings, of at most a third of the limit, and its tokens."""
        most = self.limit // 3
        fitting = {}
        for path in dict.fromkeys(headings):
            below = path[1:] if path and path[0] == title else path
            choices = [(title, *below), (title, *below[-1:]), (title,), ()]
            named = [SEPARATOR.join(part for part in choice if part) for choice in choices]
            counts = self._count(named)
            at = next(i for i, count in enumerate(counts) if count <= most)
            fitting[path] = named[at], counts[at]
        return fitting


def packed(text: str, units: Sequence[Unit], counts: Sequence[int], rooms: Sequence[int], overlap: int) -> list[_Span]:
    """Divide units into passages.

    A passage ends before a heading if it has a quarter of its room, and where the next unit does not fit. In the latter
    case it ends at a boundary of paragraphs in its second half, if there is one, else of units: the boundary whose next
    unit has the least hash. So a change of the text moves few boundaries, and the passages after them stay the same.

    Args:
        text: the text.
        units: its units.
        counts: number of tokens of each.
        rooms: maximum number of tokens of a passage that begins with each unit.
        overlap: maximum number of tokens that a passage repeats.
    """
    spans = []
    first = core = 0
    while core < len(units):
        room, total, end = rooms[core], sum(counts[first:core]), core
        while end < len(units):
            begins = end > core and units[end].section != units[end - 1].section
            if begins and total * _SMALL_SHARE >= room:
                break
            if end > core and total + counts[end] > room:
                end = _cut(text, units, counts, core, end)
                break
            total += counts[end]
            end += 1
        spans.append(_Span(first, core, end))
        first = _repeated_from(units, counts, core, end, overlap)
        core = end
    return spans


def _cut(text: str, units: Sequence[Unit], counts: Sequence[int], core: int, end: int) -> int:
    """Return where to end a passage of the units `core` to at most `end`."""
    sums = list(itertools.accumulate(counts[core:end]))
    later = [core + 1 + i for i, total in enumerate(sums) if 2 * total >= sums[-1]]
    paragraphs = [at for at in later if units[at].begins]
    return min(paragraphs or later, key=lambda at: _digest(text[units[at].start : units[at].end]))


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=8).digest()


def _repeated_from(units: Sequence[Unit], counts: Sequence[int], core: int, end: int, overlap: int) -> int:
    """Return the first unit of the next passage, which repeats units before `end` within its section."""
    first, total = end, 0
    while (
        end < len(units)
        and first - 1 > core
        and units[first - 1].section == units[end].section
        and total + counts[first - 1] <= overlap
    ):
        first -= 1
        total += counts[first]
    return first


def _kind(document: Document) -> str | None:
    """Return the type of the file that a document was read from; None for another document."""
    kind = document.metadata.get("type")
    return kind if isinstance(kind, str) and "modified" in document.metadata else None


def _line_numbers(text: str, starts: Sequence[int]) -> list[int]:
    """Return the line of each ascending position, from 1; blank lines before the position's first word count."""
    lines, line, at = [], 1, 0
    for start in starts:
        line, at = line + text.count("\n", at, start), start
        word = _NOT_BLANK.search(text, start)
        lines.append(line + text.count("\n", start, word.start() if word else start))
    return lines


def _common(paths: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the headings that all paths begin with."""
    shortest = min(paths, key=len)
    n = 0
    while n < len(shortest) and all(path[n] == shortest[n] for path in paths):
        n += 1
    return shortest[:n]
