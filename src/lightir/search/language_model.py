"""Query likelihood of counted words: the unigram language models that LLM-QL's Table 6 starts from.

Every document is a bag that a query is drawn from word by word, smoothed by the whole collection so that no word is
impossible (Zhai & Lafferty, TOIS 22(2), 2004). With tf a word's count in d, |d| the document's words, p(w|C) the word's
share of all words:

    Jelinek-Mercer:  p(w|d) = (1 - λ) tf / |d| + λ p(w|C)
    Dirichlet:       p(w|d) = (tf + μ p(w|C)) / (|d| + μ)

A query's score is its log likelihood, Σ over its words of ln p(w|d); words that the collection lacks are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal, TypeAlias, cast, get_args

import numpy as np
import numpy.typing as npt

from lightir.analysis import Analyzer
from lightir.errors import InvalidInput, NotFound
from lightir.types import Document, Query, Ranking, Run

CUT_AT_ONCE = 4096
NUMBER = re.compile(r"\d*\.?\d+")

Method: TypeAlias = Literal["jelinek-mercer", "dirichlet"]

Doubles = npt.NDArray[np.float64]
Ords = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Smoothing:
    """How a document's words are mixed with the collection's.

    Attributes:
        method: "jelinek-mercer" or "dirichlet".
        weight: λ in (0, 1), the collection's share; or μ above 0, so many words of the collection in every document.
    """

    method: Method
    weight: float

    def __str__(self) -> str:
        """As parse_smoothing reads it."""
        return f"{self.method}:{self.weight:g}"

    def __post_init__(self) -> None:
        if self.method not in DEFAULTS:
            raise InvalidInput(f"smoothing {self.method!r}: expected one of {list(DEFAULTS)}")
        highest = 1.0 if self.method == "jelinek-mercer" else np.inf
        if not 0 < self.weight < highest:
            raise InvalidInput(f"the weight of {self.method} is {self.weight}; expected 0 to {highest}, both excluded")


DEFAULTS: Mapping[Method, float] = {"jelinek-mercer": 0.1, "dirichlet": 1000.0}
"""λ for short queries, and μ, as Anserini takes them."""


def parse_smoothing(text: str) -> Smoothing | None:
    """What "dirichlet", "dirichlet:2000", "jelinek-mercer" or "jelinek-mercer:0.7" names; None for "bm25"."""
    name, colon, weight = text.partition(":")
    if text == "bm25":
        return None
    if name not in get_args(Method) or (colon and not NUMBER.fullmatch(weight)):
        raise InvalidInput(
            f"tokens cannot be scored by {text!r}; expected bm25, dirichlet, dirichlet:μ, jelinek-mercer or "
            "jelinek-mercer:λ, as in dirichlet:2000 and jelinek-mercer:0.7"
        )
    method = cast(Method, name)
    return Smoothing(method, float(weight) if colon else DEFAULTS[method])


class LanguageModel:
    """A collection's counts, in memory: 12 bytes for each distinct word of each document.

    lightir.search.word_likelihood says the same of an index.
    """

    def __init__(self, documents: Iterable[Document], *, analyzer: str = "english") -> None:
        """Read and cut the documents; their ids must be distinct."""
        self._analyzer = Analyzer(analyzer)
        self._words: dict[str, int] = {}
        doc_ids: list[str] = []
        rows: list[Ords] = []
        words: list[Ords] = []
        for chunk in _chunks(documents):
            terms, found = self._analyzer.distinct_terms([document.full_text() for document in chunk])
            numbers = np.array([self._words.setdefault(term, len(self._words)) for term in terms], dtype=np.int64)
            rows.append(np.repeat(np.arange(len(chunk)) + len(doc_ids), found.lengths))
            words.append(numbers[found.term_ids] if len(found.term_ids) else np.zeros(0, dtype=np.int64))
            doc_ids += [document.doc_id for document in chunk]
        self.doc_ids = tuple(doc_ids)
        self._ords = {doc_id: doc_ord for doc_ord, doc_id in enumerate(doc_ids)}
        if len(self._ords) < len(doc_ids):
            raise InvalidInput("a document id stands in the corpus twice")
        self._count(np.concatenate([np.zeros(0, np.int64), *rows]), np.concatenate([np.zeros(0, np.int64), *words]))

    def _count(self, rows: Ords, words: Ords) -> None:
        """Postings by word: documents and counts; and the lengths of documents."""
        n = max(len(self.doc_ids), 1)
        keys, counts = np.unique(words * n + rows, return_counts=True)
        self._indptr = np.searchsorted(keys // n, np.arange(len(self._words) + 1))
        self._rows, self._counts = (keys % n).astype(np.int32), counts.astype(np.float64)
        self.lengths = np.bincount(rows, minlength=len(self.doc_ids)).astype(np.float64)
        self._total = float(len(words))

    def search(self, queries: Iterable[Query], k: int, *, smoothing: Smoothing) -> Run:
        """Each query's k likeliest documents of those that hold one of its words: score down, then doc_id up."""
        if k < 1:
            raise InvalidInput(f"k is {k}; at least 1 is needed")
        found = {}
        for query in queries:
            scores, touched = self._scores(query.text, smoothing)
            found[query.query_id] = self._ranking(query.query_id, np.flatnonzero(touched), scores, k)
        return found

    def rerank(self, run: Run, queries: Iterable[Query], *, smoothing: Smoothing, depth: int | None = None) -> Run:
        """The run with every score replaced by the query's log likelihood; only each ranking's first `depth` are kept.

        Raises:
            NotFound: a document or a query of the run is not there.
        """
        texts = {query.query_id: query.text for query in queries}
        if missing := sorted(run.keys() - texts.keys()):
            raise NotFound(f"the run names {len(missing)} queries that the queries don't hold, {missing[0]!r} for one")
        found = {}
        for query_id, ranking in run.items():
            wanted = list(ranking.doc_ids)[:depth]
            if lacking := [doc_id for doc_id in wanted if doc_id not in self._ords]:
                raise NotFound(f"the run names the document {lacking[0]!r}, which the corpus does not hold")
            scores, _ = self._scores(texts[query_id], smoothing)
            doc_ords = np.array([self._ords[doc_id] for doc_id in wanted], dtype=np.int64)
            found[query_id] = self._ranking(query_id, doc_ords, scores, len(wanted))
        return found

    def _scores(self, text: str, smoothing: Smoothing) -> tuple[Doubles, npt.NDArray[np.bool_]]:
        """Every document's log likelihood of the text, and which of them hold one of its words."""
        scores, touched = np.zeros(len(self.doc_ids)), np.zeros(len(self.doc_ids), dtype=np.bool_)
        dirichlet, weight = smoothing.method == "dirichlet", smoothing.weight
        (terms,) = self._analyzer.terms([text])
        for number in (self._words[term] for term in terms if term in self._words):
            span = slice(self._indptr[number], self._indptr[number + 1])
            rows, counts = self._rows[span], self._counts[span]
            alone = weight * counts.sum() / self._total  # μ p(w|C), or λ p(w|C)
            own = counts if dirichlet else (1 - weight) * counts / self.lengths[rows]
            scores -= np.log(self.lengths + weight) if dirichlet else 0.0
            scores += np.log(alone)
            scores[rows] += np.log1p(own / alone)
            touched[rows] = True
        return scores, touched

    def _ranking(self, query_id: str, doc_ords: Ords, scores: Doubles, k: int) -> Ranking:
        ids = np.array([self.doc_ids[doc_ord] for doc_ord in doc_ords], dtype=object)
        values = scores[doc_ords]
        order = np.lexsort((ids, -values))[:k] if len(ids) else np.zeros(0, dtype=np.int64)
        return Ranking(query_id, [str(each) for each in ids[order]], values[order])


def _chunks(documents: Iterable[Document]) -> Iterator[Sequence[Document]]:
    rest = iter(documents)
    while chunk := list(islice(rest, CUT_AT_ONCE)):
        yield chunk
