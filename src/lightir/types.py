"""The field's words as types: documents, queries, hits, rankings, runs and relevance judgements."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from lightir.errors import InvalidInput

Branch: TypeAlias = Literal["dense", "sparse", "tokens"]
"""One way of scoring: dense vectors, learned sparse impacts, or BM25 over tokens."""

BRANCHES: tuple[Branch, ...] = ("dense", "sparse", "tokens")

Qrels: TypeAlias = dict[str, dict[str, int]]
"""Relevance judgements: query_id -> doc_id -> grade."""

_TO_ESCAPE = re.compile(r"[\s%]")
_ESCAPED = re.compile(r"(?:%[0-9A-F]{2})+")


def require_list(values: object, name: str) -> None:
    """Raise InvalidInput where one str stands for several, which Python would take letter by letter, or no list."""
    if isinstance(values, str):
        raise InvalidInput(f"{name} is one str, {values[:40]!r}; expected a list of them")
    if not isinstance(values, Iterable):
        raise InvalidInput(f"{name} is {type(values).__name__}; expected a list")


@dataclass(frozen=True, slots=True)
class Document:
    """One document; metadata is any JSON object and comes back with every hit."""

    doc_id: str
    text: str
    title: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def full_text(self, joiner: str = " ") -> str:
        """Title and text in one string; without a title the text alone."""
        return f"{self.title}{joiner}{self.text}" if self.title else self.text


@dataclass(frozen=True, slots=True)
class Query:
    """One query; metadata may hold what a data set gives with it (answers, language)."""

    query_id: str
    text: str
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ranking:
    """The documents found for one query: score down, then doc_id up.

    Attributes:
        query_id: the query's id.
        doc_ids: n document ids, best first.
        scores: (n,) float64.
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
"""What a system found: query_id -> ranking."""


@dataclass(frozen=True, slots=True)
class BranchScore:
    """What one branch says of one hit. The hit's score is the sum over branches of weight x normalized.

    Attributes:
        score: raw; computed also for a document that is not in the branch's own list.
        normalized: the score after the normalisation per query.
        rank: 1-based, in the branch's own list; None when the document is not in it.
        weight: the branch's.
        estimated: the document waits for its vectors, so the score is an estimate.
    """

    score: float
    normalized: float
    rank: int | None
    weight: float
    estimated: bool = False


@dataclass(frozen=True, slots=True)
class TermScore:
    """One matched term.

    Attributes:
        term: its text.
        weight: in the query.
        score: what it adds to the branch's score.
        word: the query's first word that gave it, where the term is a stem of that; else "".
    """

    term: str
    weight: float
    score: float
    word: str = ""


@dataclass(frozen=True, slots=True)
class Hit:
    """One found document with everything that a page of results shows.

    Attributes:
        doc_id: the document.
        score: as in a ranking.
        title: "" where there is none.
        snippet: the passage of the text that shows why the document was found.
        metadata: the document's.
        branches: what each branch says of it.
        terms: the matched terms, where they were asked for.
        highlights: where the query's terms stand in the snippet: start and end of each, ascending.
        late: the document was encoded for this very query.
    """

    doc_id: str
    score: float
    title: str
    snippet: str
    metadata: Mapping[str, Any]
    branches: Mapping[Branch, BranchScore]
    terms: tuple[TermScore, ...] = ()
    highlights: tuple[tuple[int, int], ...] = ()
    late: bool = False

    @property
    def estimated(self) -> bool:
        """Whether any branch's score is an estimate, since the document waits for its vectors."""
        return any(branch.estimated for branch in self.branches.values())


def escape_id(each_id: str) -> str:
    """The id as TREC's files hold it, between blanks: blanks and "%" are written %XX, as in a URL.

    Raises:
        InvalidInput: an empty id, which has no place there.
    """
    if not each_id:
        raise InvalidInput("an empty id cannot stand in a TREC file")
    return _TO_ESCAPE.sub(lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode()), each_id)


def unescape_id(text: str) -> str:
    """The id that escape_id wrote; escapes of other characters, as foreign ids may hold them, stay."""
    return _ESCAPED.sub(lambda match: _restored(match[0]), text)


def _restored(escapes: str) -> str:
    """The escapes' characters where they are ones that escape_id escapes; the others as they stand."""
    restored = bytes.fromhex(escapes.replace("%", "")).decode(errors="surrogateescape")
    return "".join(
        each if _TO_ESCAPE.fullmatch(each) else "".join(f"%{b:02X}" for b in each.encode(errors="surrogateescape"))
        for each in restored
    )
