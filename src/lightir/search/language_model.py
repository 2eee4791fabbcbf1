"""Query likelihood of counted words: the unigram language models of LLM-QL's Table 6.

The words of a query are drawn one by one from the document's words, smoothed by the whole collection so that no word is
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
from lightir.quantities import counted
from lightir.types import Document, Query, Ranking, Run

CUT_AT_ONCE = 4096
NUMBER = re.compile(r"\d*\.?\d+")

Method: TypeAlias = Literal["jelinek-mercer", "dirichlet"]

Likelihoods = npt.NDArray[np.float64]
Ords = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Smoothing:
    """Smoothing of a document's word counts by the collection's.

    Attributes:
        method: "jelinek-mercer" or "dirichlet".
        weight: λ in (0, 1), the share of the collection; or μ above 0, the number of its words in every document.
    """

    method: Method
    weight: float

    def __str__(self) -> str:
        """Return the form that `parse_smoothing` reads."""
        return f"{self.method}:{self.weight:g}"

    def __post_init__(self) -> None:
        if self.method not in DEFAULTS:
            raise InvalidInput(f"smoothing {self.method!r}: expected one of {list(DEFAULTS)}")
        highest = 1.0 if self.method == "jelinek-mercer" else np.inf
        if not 0 < self.weight < highest:
            raise InvalidInput(f"the weight of {self.method} is {self.weight}; expected 0 to {highest}, both excluded")


DEFAULTS: Mapping[Method, float] = {"jelinek-mercer": 0.1, "dirichlet": 1000.0}
"""Default λ, for short queries, and μ, as in Anserini."""


def parse_smoothing(text: str) -> Smoothing | None:
    """Return the smoothing that "dirichlet", "dirichlet:2000" or "jelinek-mercer:0.7" names; None for "bm25"."""
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
    """Counts of a collection in memory: 12 bytes for each distinct word of each document.

    lightir.search.word_likelihood computes the same scores from an index.
    """

    def __init__(self, documents: Iterable[Document], *, analyzer: str = "english") -> None:
        """Read and tokenize the documents; their ids must be distinct."""
        self._analyzer = Analyzer(analyzer)
        self._words: dict[str, int] = {}
        doc_ids: list[str] = []
        rows: list[Ords] = []
        words: list[Ords] = []
        for chunk in _chunks(documents):
            terms, ids = self._analyzer.distinct_terms([document.full_text() for document in chunk])
            numbers = np.array([self._words.setdefault(term, len(self._words)) for term in terms], dtype=np.int64)
            rows.append(np.repeat(np.arange(len(chunk)) + len(doc_ids), ids.lengths))
            words.append(numbers[ids.term_ids] if len(ids.term_ids) else np.zeros(0, dtype=np.int64))
            doc_ids += [document.doc_id for document in chunk]
        self.doc_ids = tuple(doc_ids)
        self._ords = {doc_id: doc_ord for doc_ord, doc_id in enumerate(doc_ids)}
        if len(self._ords) < len(doc_ids):
            raise InvalidInput("a document id is repeated in the corpus")
        self._count(np.concatenate([np.zeros(0, np.int64), *rows]), np.concatenate([np.zeros(0, np.int64), *words]))

    def _count(self, rows: Ords, words: Ords) -> None:
        """Count postings by word, and the lengths of documents."""
        n = max(len(self.doc_ids), 1)
        keys, counts = np.unique(words * n + rows, return_counts=True)
        self._indptr = np.searchsorted(keys // n, np.arange(len(self._words) + 1))
        self._rows, self._counts = (keys % n).astype(np.int32), counts.astype(np.float64)
        self.lengths = np.bincount(rows, minlength=len(self.doc_ids)).astype(np.float64)
        self._total = float(len(words))

    def search(self, queries: Iterable[Query], k: int, *, smoothing: Smoothing) -> Run:
        """Return each query's k likeliest documents of those with one of its words: score down, then doc_id up."""
        if k < 1:
            raise InvalidInput(f"k is {k}; at least 1 is needed")
        run = {}
        for query in queries:
            scores, touched = self._scores(query.text, smoothing)
            run[query.query_id] = self._ranking(query.query_id, np.flatnonzero(touched), scores, k)
        return run

    def rerank(self, run: Run, queries: Iterable[Query], *, smoothing: Smoothing, depth: int | None = None) -> Run:
        """Replace every score of a run by the query's log likelihood; keep the first `depth` documents of each ranking.

        Raises:
            NotFound: the run names an unknown document or query.
        """
        texts = {query.query_id: query.text for query in queries}
        if missing := sorted(run.keys() - texts.keys()):
            raise NotFound(f"the run names {counted(len(missing), 'query')} without a text, {missing[0]!r} for one")
        reranked = {}
        for query_id, ranking in run.items():
            wanted = list(ranking.doc_ids)[:depth]
            if lacking := [doc_id for doc_id in wanted if doc_id not in self._ords]:
                raise NotFound(f"the run names the document {lacking[0]!r}, which the corpus does not hold")
            scores, _ = self._scores(texts[query_id], smoothing)
            doc_ords = np.array([self._ords[doc_id] for doc_id in wanted], dtype=np.int64)
            reranked[query_id] = self._ranking(query_id, doc_ords, scores, len(wanted))
        return reranked

    def _scores(self, text: str, smoothing: Smoothing) -> tuple[Likelihoods, npt.NDArray[np.bool_]]:
        """Return every document's log likelihood of the text, and a mask of those that hold one of its words."""
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

    def _ranking(self, query_id: str, doc_ords: Ords, scores: Likelihoods, k: int) -> Ranking:
        ids = np.array([self.doc_ids[doc_ord] for doc_ord in doc_ords], dtype=object)
        values = scores[doc_ords]
        order = np.lexsort((ids, -values))[:k] if len(ids) else np.zeros(0, dtype=np.int64)
        return Ranking(query_id, [str(doc_id) for doc_id in ids[order]], values[order])


def _chunks(documents: Iterable[Document]) -> Iterator[Sequence[Document]]:
    rest = iter(documents)
    while chunk := list(islice(rest, CUT_AT_ONCE)):
        yield chunk
