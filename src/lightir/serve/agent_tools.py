"""Tools for agents over a served index: short answers within a budget of tokens, with ids and places to cite."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, Field
from pydantic_core import to_json

from lightir.errors import InvalidInput
from lightir.search import PageOptions, SearchOptions
from lightir.search.snippets import snippet
from lightir.serve.interface import Service
from lightir.types import Document, Hit

BYTES_PER_TOKEN = 4
"""Length of a token of a language model in bytes of UTF-8, on average of English text. Budgets are estimates."""

ENTRY_TOKENS = 40
"""Tokens of a result besides its id, its title and its text: names, place and score."""

LEAST_TEXT_TOKENS = 30
"""Number of tokens of text below which a result says nothing."""

LEAST_RESULT_TOKENS = 2 * (ENTRY_TOKENS + LEAST_TEXT_TOKENS)
"""Least share of the budget per result; fewer results are shown rather than smaller ones."""

MAX_TITLE_CHARACTERS = 200
MAX_VALUE_CHARACTERS = 100
"""Maximum length of a listed value, and of metadata that come with a document."""

MAX_FIELDS = 40
"""Maximum number of fields that are listed or shown."""


class FoundText(BaseModel):
    """A result: the best passage of a document, or a part of it."""

    id: str = Field(description="id of the document, to cite and to pass to get")
    score: float
    text: str
    title: str | None = Field(default=None, description="title of the document, and the headings above the passage")
    page: int | None = Field(default=None, description="page on which the passage begins")
    line: int | None = Field(default=None, description="line on which the passage begins")
    start: int | None = Field(default=None, description="first character of the passage, to pass to get")
    excerpt: bool | None = Field(default=None, description="true if the text is a part of the passage")


class SearchAnswer(BaseModel):
    """Results of a search, best first."""

    results: list[FoundText]
    omitted: int | None = Field(default=None, description="number of further results that the budget had no room for")
    note: str | None = None


class DocumentAnswer(BaseModel):
    """A part of a document."""

    id: str
    title: str | None = None
    metadata: dict[str, Any] | None = None
    text: str
    start: int = Field(description="first character of the text in the document")
    length: int = Field(description="number of characters of the whole document")
    next: int | None = Field(default=None, description="start of the next part; missing if this is the last one")


class FieldValue(BaseModel):
    """A value of a field."""

    value: str | bool | float
    documents: int


class FilterField(BaseModel):
    """A field to filter by."""

    field: str
    type: str
    values: list[FieldValue] | None = Field(default=None, description="values of most documents")
    least: str | float | None = None
    greatest: str | float | None = None


class FiltersAnswer(BaseModel):
    """Fields to filter by."""

    documents: int
    fields: list[FilterField]
    syntax: str


FILTER_SYNTAX = (
    'A filter is an object, and all of its keys must match: {"type": "pdf", "modified": {"gte": "2024-01-01"}, '
    '"not": {"author": {"in": ["A", "B"]}}}. Tests: a value, gt, gte, lt, lte, in, exists; "or" and "and" take lists '
    "of filters."
)


class AgentTools:
    """The tools. All of them read only, and raise the library's errors."""

    def __init__(self, service: Service) -> None:
        """Serve agents from a service."""
        self._service = service

    def search(self, query: str, limit: int, max_tokens: int, wanted: Mapping[str, Any] | None) -> SearchAnswer:
        """Return the best passages for a query.

        Each result gets an equal share of the remaining budget. A passage that is longer is represented by the
        part with most of the query's words.

        Args:
            query: text of the query.
            limit: maximum number of results.
            max_tokens: budget of all results together.
            wanted: filter of documents; None for all.

        Raises:
            InvalidInput: an empty query, or a malformed filter.
        """
        if not query.strip():
            raise InvalidInput("the query is empty; list_filters and get need none")
        self._service.refresh()
        searcher = self._service.searcher
        hits = searcher.hits(query, limit, SearchOptions(filter=wanted, passages=True), full_text=True)
        note = self._pending_note()
        budget = max_tokens - n_tokens(note or "")
        shown = hits[: max(1, budget // LEAST_RESULT_TOKENS)]
        results = list(self._within(query, shown, budget))
        return SearchAnswer(results=results, omitted=len(hits) - len(results) or None, note=note)

    def _within(self, query: str, hits: Sequence[Hit], max_tokens: int) -> Iterator[FoundText]:
        """Yield results as long as the budget lasts."""
        left = max_tokens
        for i, hit in enumerate(hits):
            passage, title = hit.passage, hit.title[:MAX_TITLE_CHARACTERS]
            doc_id = hit.doc_id if passage is None else passage.document
            share = left // (len(hits) - i) - ENTRY_TOKENS - n_tokens(doc_id) - n_tokens(title)
            if share < LEAST_TEXT_TOKENS:
                return
            text, is_part = self._shortened(hit.snippet, query, share)
            left -= ENTRY_TOKENS + n_tokens(doc_id) + n_tokens(title) + n_tokens(text)
            yield FoundText(
                id=doc_id,
                title=title or None,
                page=None if passage is None else passage.page,
                line=None if passage is None else passage.line,
                start=None if passage is None else passage.start,
                score=round(hit.score, 4),
                text=text,
                excerpt=is_part or None,
            )

    def _shortened(self, text: str, query: str, max_tokens: int) -> tuple[str, bool]:
        """Return a text of at most a number of tokens, and whether it is a part."""
        if n_tokens(text) <= max_tokens:
            return text, False
        most_bytes = max_tokens * BYTES_PER_TOKEN
        per_character = len(text.encode(errors="replace")) / len(text)
        length = max(1, int(most_bytes / per_character) - 2)  # a mark of omission at either end
        part = snippet(text, query, self._service.facts().word_analyzer, length=length).text
        return text_within(part, 0, max_tokens), True

    def _pending_note(self) -> str | None:
        facts = self._service.facts()
        if not facts.pending:
            return None
        return (
            f"{facts.pending:,} of {facts.stored:,} documents and passages are not encoded yet; they are found by the "
            "words of the query alone"
        )

    def get(self, doc_id: str, start: int, max_tokens: int) -> DocumentAnswer:
        """Return a part of a document.

        Args:
            doc_id: id of the document.
            start: first character.
            max_tokens: maximum length of the part, which ends between words where it can.

        Raises:
            NotFound: there is no such document.
            InvalidInput: the document is shorter.
        """
        self._service.refresh()
        document = self._service.document(doc_id)
        if start and start >= len(document.text):
            raise InvalidInput(f"start is {start}; {doc_id!r} has {len(document.text)} characters")
        text = text_within(document.text, start, max_tokens)
        end = start + len(text)
        return DocumentAnswer(
            id=document.doc_id,
            title=document.title[:MAX_TITLE_CHARACTERS] or None,
            metadata=short_metadata(document) or None,
            text=text,
            start=start,
            length=len(document.text),
            next=end if end < len(document.text) else None,
        )

    def list_filters(self, name: str | None, limit: int) -> FiltersAnswer:
        """Return fields to filter by, with their most frequent values or their range.

        Args:
            name: the only field to list; None for all.
            limit: maximum number of values per field.

        Raises:
            InvalidInput: the field has no type.
        """
        self._service.refresh()
        searcher, facts = self._service.searcher, self._service.facts()
        known = {} if facts.schema is None else dict(facts.schema.fields)
        if name is not None and name not in known:
            raise InvalidInput(
                f"the field {name[:100]!r} has no type; the fields with one: {', '.join(known) or 'none'}"
            )
        names = [name] if name is not None else [field for field in known if field != "passage.document"][:MAX_FIELDS]
        counted = [field for field in names if known[field].type in ("keyword", "boolean")]
        facets = searcher.page(" ", PageOptions(limit=1, facets=dict.fromkeys(counted, limit)), SearchOptions()).facets
        fields = []
        for field in names:
            if field in counted:
                values = [
                    FieldValue(value=count.value, documents=count.count)
                    for count in facets[field]
                    if len(str(count.value)) <= MAX_VALUE_CHARACTERS
                ]
                if values:
                    fields.append(FilterField(field=field, type=known[field].type, values=values))
            elif known[field].type in ("number", "date"):
                ends = self._range(field)
                if ends is not None:
                    fields.append(FilterField(field=field, type=known[field].type, least=ends[0], greatest=ends[1]))
        return FiltersAnswer(documents=facts.documents, fields=fields, syntax=FILTER_SYNTAX)

    def _range(self, field: str) -> tuple[Any, Any] | None:
        """Return the least and the greatest value of a field, or None if no document has one."""
        ends = []
        for order in ("asc", "desc"):
            page = PageOptions(limit=1, sort=f"{field}:{order}")
            hits = self._service.searcher.page(" ", page, SearchOptions(filter={field: {"exists": True}})).hits
            values = [value_at(hit.metadata, field) for hit in hits]
            values = [value for value in values if isinstance(value, str | int | float)]
            if not values:
                return None
            ends += values
        return ends[0], ends[1]


def value_at(metadata: Mapping[str, Any], field: str) -> Any:
    """Return the value of a field of metadata, a path of keys joined by dots; None if there is none."""
    value: Any = metadata
    for key in field.split("."):
        if not isinstance(value, Mapping) or key not in value:
            return None
        value = value[key]
    return value


def n_tokens(text: str) -> int:
    """Return the estimated number of tokens of a text."""
    return -(-len(text.encode(errors="replace")) // BYTES_PER_TOKEN)


def text_within(text: str, start: int, max_tokens: int) -> str:
    """Return the part of a text from a character on, of at most a number of tokens.

    It ends behind white space if some is in its last quarter.
    """
    most = max_tokens * BYTES_PER_TOKEN
    raw = text[start : start + most].encode(errors="replace")
    if len(raw) <= most and start + most >= len(text):
        return text[start:]
    part = raw[:most].decode(errors="ignore")
    part = text[start : start + len(part)]
    blank = max(part.rfind(" "), part.rfind("\n"))
    return part[: blank + 1] if blank >= len(part) * 3 // 4 else part


def short_metadata(document: Document) -> dict[str, Any]:
    """Return the metadata of a document without long values."""
    fields = [*document.metadata.items()][:MAX_FIELDS]
    return {name: value for name, value in fields if len(to_json(value)) <= MAX_VALUE_CHARACTERS}
