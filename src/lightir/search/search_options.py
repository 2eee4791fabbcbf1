"""The options of a search, and the names of fusion methods."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, TypeAlias, cast

import numpy as np

from lightir.contract import Fusion
from lightir.errors import InvalidInput
from lightir.index import Filter
from lightir.search.language_model import Smoothing
from lightir.types import BRANCHES, Branch, require_list

Mode: TypeAlias = str | tuple[Branch, ...] | None
"""A branch, "hybrid", a mode of MODEL_MODES, several joined by "+", or a tuple of branches. None is hybrid if the index
has two branches."""

MODEL_MODES = ("beta", "full", "full-sparse")
"""Parts of modes whose queries go through the model, see lightir.search.through_model."""

NORMALIZATIONS = ("max", "min-max", "z-score", "none")
MAX_COUNT = 2**31 - 1
NO_MATCH_SCORE = 0.3
"""Score of the fusion "absolute" that the first hits of nonsense do not reach, see docs/known-items.md."""
_WHOLE_NUMBERS = (int, np.integer)
_MODE_EXPECTED = f"expected hybrid, {', '.join((*BRANCHES, *MODEL_MODES))}, joined by '+'"


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """Options of a search. Every field has a default.

    Attributes:
        mode: branches to search: "dense", "sparse", "tokens" (BM25; with `smoothing` the query's log likelihood; over
            bags of tokens SiDR's beta search with the encoder's sparse queries), "hybrid", several joined by "+", or a
            tuple of branches. None for "hybrid" if the index has two branches or more, else for its only branch. With
            a `lightir.FullQueryEncoder` also "beta" (over bags of tokens), "full" (the model's vectors: dense ones, or
            sparse ones of a model without) and "full-sparse".
            Modes with "hybrid" or "tokens" also find pending documents, see docs/progressive.md.
        fusion: method that joins the branches: "absolute", "linear", "linear:min-max", "linear:z-score", "linear:none",
            "rrf", "rrf:K" or "dbsf", see lightir.kernel.candidates. None for the contract's.
        weights: weight of each branch. None for the contract's.
        depth: candidate depth, the number of documents that each branch gives to the fusion. None for 200, or for
            1,000 if the fusion measures scores by the lists' ends or spread.
        filter: condition on the metadata, see lightir.index.metadata_filters. Non-matching documents are ignored.
        exclude: doc_ids to leave out of every ranking, or a mapping of query_id to the doc_ids to leave out of that
            query's ranking.
        exclude_same_id: leave out documents whose id is the query's (ArguAna, Quora).
        smoothing: score the tokens branch by a language model of counted words instead of BM25, see
            lightir.search.word_likelihood.
        typos: match words within a small edit distance of a query word that no document has, see
            lightir.search.word_matching. For BM25 over words; other tokens branches ignore it.
        compounds: match compounds with their parts, such as "Kühlschrank" with "Schrank", in languages that write them
            as one word, see lightir.search.compound_matching. For BM25 over words; others ignore it.
        question_words: count English words such as "what" and "how" in a query that has other words. For BM25 over
            words, which leaves them out by default; others count them.
        as_you_type: take the last word for the beginning of a word, unless a blank follows it. Requires BM25 over
            words.
        overlap: score bags of tokens by the number of terms that they share with the query, <V_BoT(q), V_BoT(d)>,
            without the encoder's weights.
        min_score: score below which a document is left out. None for no minimum. See NO_MATCH_SCORE for the fusion
            "absolute"; the scores of other fusions and of one branch alone depend on the list, the model or the query.
        passages: return every passage, with its own id, instead of the best passage of each document. For an index
            with passages; others ignore it.
        syntax: read phrases, excluded words and conditions on fields in the text of a query, and rank documents that
            it names by id or key first, see lightir.search.query_syntax. By default all text is words.

    Raises:
        InvalidInput: an unknown mode, fusion or branch, weights that are negative or all 0, a depth below 1, a
            smoothing together with overlap, or a min_score that is no finite number.
    """

    mode: Mode = None
    fusion: str | None = None
    weights: Mapping[str, float] | None = None
    depth: int | None = None
    filter: Filter | None = None
    exclude: Collection[str] | Mapping[str, Collection[str]] = ()
    exclude_same_id: bool = False
    smoothing: Smoothing | None = None
    overlap: bool = False
    typos: bool = True
    compounds: bool = True
    question_words: bool = False
    as_you_type: bool = False
    min_score: float | None = None
    passages: bool = False
    syntax: bool = False

    def __post_init__(self) -> None:
        if self.mode is not None:
            mode_parts(self.mode)
            if not isinstance(self.mode, str):
                object.__setattr__(self, "mode", tuple(self.mode))
        if self.fusion is not None:
            parse_fusion(self.fusion)
        if self.weights is not None:
            object.__setattr__(self, "weights", checked_weights(self.weights))
        if self.depth is not None and not is_count(self.depth):
            raise InvalidInput(f"depth is {self.depth!r}; expected a whole number from 1 to {MAX_COUNT}")
        if self.overlap and self.smoothing is not None:
            raise InvalidInput(f"overlap scores bags of tokens, {self.smoothing.method} counted words; choose one")
        least: object = self.min_score
        if least is not None and not (isinstance(least, Real) and math.isfinite(least)):
            raise InvalidInput(f"min_score is {least!r}; expected a finite number")
        require_list(self.exclude, "the documents to exclude")
        if not isinstance(self.exclude, Collection):
            raise InvalidInput(f"exclude is {type(self.exclude).__name__}; expected doc_ids, or query_id -> doc_ids")

    @property
    def excludes(self) -> bool:
        """Whether any document may be excluded for its id."""
        return self.exclude_same_id or bool(self.exclude)

    def excluded(self, query_id: str) -> set[str]:
        """Return the doc_ids to leave out of a query's ranking."""
        doc_ids = self.exclude.get(query_id, ()) if isinstance(self.exclude, Mapping) else self.exclude
        require_list(doc_ids, "the documents to exclude")
        return {*doc_ids, query_id} if self.exclude_same_id else {*doc_ids}


def mode_parts(mode: Mode) -> list[str]:
    """Return the branches and modes of MODEL_MODES that a mode names, and "hybrid" if it does.

    Raises:
        InvalidInput: an unknown or repeated part.
    """
    if not isinstance(mode, str | Iterable):
        raise InvalidInput(f"mode is {mode!r}; {_MODE_EXPECTED}")
    parts: list[str] = mode.split("+") if isinstance(mode, str) else list(mode)
    if not parts:
        raise InvalidInput("the mode names no branch")
    if unknown := [part for part in parts if part not in (*BRANCHES, *MODEL_MODES, "hybrid")]:
        raise InvalidInput(f"mode {unknown[0]!r} is unknown; {_MODE_EXPECTED}")
    if repeated := [part for i, part in enumerate(parts) if part in parts[:i]]:
        raise InvalidInput(f"mode {'+'.join(parts)!r} names {repeated[0]} twice; name each branch once")
    return parts


def parse_fusion(text: str) -> Fusion:
    """Return the fusion, without weights, that "absolute", "linear", "linear:z-score", "rrf", "rrf:20" or "dbsf" names.

    "linear" alone divides by the list's maximum; "rrf" alone has the constant 60.

    Raises:
        InvalidInput: an unknown name, or a constant that is negative or no number.
    """
    if not isinstance(text, str):
        raise InvalidInput(f"fusion is {type(text).__name__}; expected its name, as in 'rrf'")
    method, colon, detail = text.partition(":")
    if not colon and method in ("absolute", "linear", "rrf", "dbsf"):
        return Fusion(cast(Literal["absolute", "linear", "rrf", "dbsf"], method), {})
    if method == "linear" and detail in NORMALIZATIONS:
        return Fusion("linear", {}, cast(Literal["max", "min-max", "z-score", "none"], detail))
    try:
        rrf_k = float(detail)
    except ValueError:
        rrf_k = math.nan
    if method == "rrf" and math.isfinite(rrf_k) and rrf_k >= 0:
        return Fusion("rrf", {}, rrf_k=rrf_k)
    raise InvalidInput(
        f"fusion {text!r} is unknown; expected absolute, linear, linear:min-max, linear:z-score, linear:none, rrf, "
        "rrf:K with a K of 0 or more, or dbsf"
    )


def fusion_text(fusion: Fusion) -> str:
    """Return the fusion's method in the form that `parse_fusion` reads."""
    if fusion.method == "linear":
        return "linear" if fusion.normalization == "max" else f"linear:{fusion.normalization}"
    return f"rrf:{fusion.rrf_k:g}" if fusion.method == "rrf" else fusion.method


def weights_text(fusion: Fusion) -> str:
    """Return the fusion's weights in the form that the command line reads."""
    return ",".join(f"{branch}={weight:g}" for branch, weight in fusion.weights.items())


def checked_weights(weights: Mapping[str, Any]) -> dict[Branch, float]:
    """Return a copy of branches' weights.

    Raises:
        InvalidInput: an unknown branch, a weight that is negative or not finite, or weights that are all 0.
    """
    if not isinstance(weights, Mapping):
        raise InvalidInput(f"weights is {type(weights).__name__}; expected a dict of branch -> weight")
    for branch, weight in weights.items():
        if branch not in BRANCHES:
            raise InvalidInput(f"weights name {branch!r}; the branches are {', '.join(BRANCHES)}")
        if not isinstance(weight, Real) or not math.isfinite(weight) or weight < 0:
            raise InvalidInput(f"the weight of {branch} is {weight!r}; it must be a finite number and not negative")
    if not any(weights.values()):
        raise InvalidInput("all weights are 0")
    return cast(dict[Branch, float], dict(weights))


def is_count(value: object) -> bool:
    """Whether a value is a whole number from 1 to MAX_COUNT."""
    return isinstance(value, _WHOLE_NUMBERS) and 1 <= int(value) <= MAX_COUNT


DEFAULT_OPTIONS = SearchOptions()
"""The options of a search that names none."""
