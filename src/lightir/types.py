"""Types of the field: documents, queries, hits, rankings, runs and qrels."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from lightir.errors import InvalidInput

Branch: TypeAlias = Literal["dense", "sparse", "tokens"]
"""A ranking source: dense vectors, learned sparse impacts, or counted words (BM25)."""

Part: TypeAlias = Literal["dense", "sparse", "tokens", "rerank"]
"""A part of a hit's score: a branch, or a model that re-ranked the hits."""

BRANCHES: tuple[Branch, ...] = ("dense", "sparse", "tokens")

Qrels: TypeAlias = dict[str, dict[str, int]]
"""Relevance judgments: query_id -> doc_id -> grade."""

_TO_ESCAPE = re.compile(r"[\s%]")
_ESCAPED = re.compile(r"(?:%[0-9A-F]{2})+")


def require_list(values: object, name: str) -> None:
    """Refuse a str, which would be iterated character by character, and anything that is not iterable.

    Raises:
        InvalidInput: with the name of the argument.
    """
    if isinstance(values, str):
        raise InvalidInput(f"{name} is a str, {values[:40]!r}; expected a list of str")
    if not isinstance(values, Iterable):
        raise InvalidInput(f"{name} is {type(values).__name__}; expected a list")


class Cells(dict[str, Any]):
    """Metadata from a table without types (CSV, TSV): strings that may stand for numbers and booleans, "" for none."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Document:
    """A document.

    Attributes:
        doc_id: unique id.
        text: text of the document.
        title: title, "" if there is none.
        metadata: any JSON object; it is stored with the document and returned with every hit.
    """

    doc_id: str
    text: str
    title: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def full_text(self, joiner: str = " ") -> str:
        """Return title and text, joined; without a title the text only."""
        return f"{self.title}{joiner}{self.text}" if self.title else self.text


@dataclass(frozen=True, slots=True)
class Query:
    """A query.

    Attributes:
        query_id: unique id.
        text: text of the query.
        metadata: further fields of the data set, such as answers or language.
    """

    query_id: str
    text: str
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ranking:
    """The ranked documents of one query, by descending score, then ascending doc_id.

    Attributes:
        query_id: id of the query.
        doc_ids: n document ids, best first.
        scores: (n,) float64 scores.
    """

    query_id: str
    doc_ids: Sequence[str]
    scores: npt.NDArray[np.float64]

    def __post_init__(self) -> None:
        if len(self.doc_ids) != len(self.scores):
            raise InvalidInput(f"query {self.query_id!r}: {len(self.doc_ids)} documents but {len(self.scores)} scores")

    def __len__(self) -> int:
        return len(self.doc_ids)


Run: TypeAlias = dict[str, Ranking]
"""Rankings of a system: query_id -> ranking."""


@dataclass(frozen=True, slots=True)
class BranchScore:
    """One branch's contribution to a hit. The hit's score is the sum over branches of weight x normalized.

    A pending document has no score in vector branches, and no normalized ones: it keeps its place in the tokens branch.

    Attributes:
        score: raw score, computed even if the document is not among the branch's candidates; None if the document is
            pending and the branch needs its vectors.
        normalized: score after normalization per query; None if the document is pending and branches are fused.
        rank: rank among the branch's candidates, from 1; None if the document is not one of them.
        weight: weight of the branch; 0 if the branch only ranks pending documents.
    """

    score: float | None
    normalized: float | None
    rank: int | None
    weight: float

    @property
    def pending(self) -> bool:
        """Whether the branch has no score because the document is pending."""
        return self.score is None


@dataclass(frozen=True, slots=True)
class TermScore:
    """A matched term.

    Attributes:
        term: text of the term.
        weight: weight in the query.
        score: contribution to the branch's score.
        word: first word of the query that the term is a stem of; "" if the term is not a stem.
    """

    term: str
    weight: float
    score: float
    word: str = ""


@dataclass(frozen=True, slots=True)
class Passage:
    """The place of a passage in its document.

    Attributes:
        document: id of the document.
        start: first character of the passage in the document's text, from 0.
        end: first character after it.
        heading: headings above the passage, outermost first, joined by " > "; "" if there are none.
        page: page on which it begins, from 1; None for a text without pages.
        line: line on which it begins, from 1; None if the text was made of a file of another format.
    """

    document: str
    start: int
    end: int
    heading: str = ""
    page: int | None = None
    line: int | None = None


@dataclass(frozen=True, slots=True)
class Hit:
    """A search result with everything that a result page shows.

    Attributes:
        doc_id: id of the document.
        score: fused score. A pending document among fused ones has the score of the one before it, which says its
            place only. A document that the query names has at least 1, and more than the other documents.
        title: title of the document, "" if it has none.
        snippet: passage of the text that matches the query best.
        metadata: metadata of the document.
        branches: contribution of each branch, and of a re-ranking model.
        terms: matched terms, if requested.
        highlights: start and end of each query term in the snippet, ascending.
        late: True if the document was encoded during this search.
        pending: True if the document has no vectors yet.
        passage: place of the passage that the hit stands for; None for a whole document.
        named: True if the query names the document by its id or key, see `SearchOptions.syntax`.
    """

    doc_id: str
    score: float
    title: str
    snippet: str
    metadata: Mapping[str, Any]
    branches: Mapping[Part, BranchScore]
    terms: tuple[TermScore, ...] = ()
    highlights: tuple[tuple[int, int], ...] = ()
    late: bool = False
    pending: bool = False
    passage: Passage | None = None
    named: bool = False


def escape_id(text: str) -> str:
    """Escape an id for blank-separated TREC files: blanks and "%" become %XX, as in a URL.

    Raises:
        InvalidInput: an empty id, which the format does not allow.
    """
    if not text:
        raise InvalidInput("TREC files do not allow empty ids")
    return _TO_ESCAPE.sub(lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode()), text)


def unescape_id(text: str) -> str:
    """Restore an id that `escape_id` escaped; escapes of other characters are kept."""
    return _ESCAPED.sub(lambda match: _restored(match[0]), text)


def _restored(escapes: str) -> str:
    """Decode the escapes of characters that `escape_id` escapes; keep the others."""
    restored = bytes.fromhex(escapes.replace("%", "")).decode(errors="surrogateescape")
    return "".join(
        char if _TO_ESCAPE.fullmatch(char) else "".join(f"%{b:02X}" for b in char.encode(errors="surrogateescape"))
        for char in restored
    )
