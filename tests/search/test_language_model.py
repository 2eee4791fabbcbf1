"""Jelinek-Mercer and Dirichlet: against the definition, word by word."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from lightir.analysis import Analyzer
from lightir.errors import InvalidInput, NotFound
from lightir.search.language_model import LanguageModel, Smoothing
from lightir.types import Document, Query, Ranking

WORDS = ("river", "bridge", "copper", "winter", "island")
METHODS = [Smoothing("jelinek-mercer", 0.1), Smoothing("jelinek-mercer", 0.7), Smoothing("dirichlet", 20.0)]


@pytest.fixture
def documents() -> list[Document]:
    """Short texts out of five words, so that ties abound; one is empty."""
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, size=rng.integers(1, 7))) for _ in range(40)]
    return [Document(f"d{number:02d}", text) for number, text in enumerate([*texts, ""])]


def definition(documents: list[Document], query: str, document: Document, smoothing: Smoothing) -> float:
    cut = Analyzer("english")
    bags = {doc.doc_id: Counter(cut.terms([doc.full_text()])[0]) for doc in documents}
    whole = sum(bags.values(), Counter())
    own, size = bags[document.doc_id], sum(bags[document.doc_id].values())
    score = 0.0
    for word in cut.terms([query])[0]:
        if word not in whole:
            continue
        share = whole[word] / whole.total()
        if smoothing.method == "dirichlet":
            p = (own[word] + smoothing.weight * share) / (size + smoothing.weight)
        else:
            p = (1 - smoothing.weight) * (own[word] / size if size else 0.0) + smoothing.weight * share
        score += math.log(p)
    return score


@pytest.mark.parametrize("smoothing", METHODS, ids=str)
@pytest.mark.parametrize("query", ["river", "the rivers, rivers of copper", "winter nowhere", "nowhere", ""])
def test_scores_and_order_are_the_definitions(documents: list[Document], query: str, smoothing: Smoothing) -> None:
    model = LanguageModel(iter(documents))
    ranking = model.search([Query("q", query)], 100, smoothing=smoothing)["q"]
    by_id = {doc.doc_id: doc for doc in documents}
    assert ranking.scores.tolist() == pytest.approx(
        [definition(documents, query, by_id[doc_id], smoothing) for doc_id in ranking.doc_ids], rel=1e-12
    )
    words = set(Analyzer("english").terms([query])[0])
    holding = {doc.doc_id for doc in documents if words & set(Analyzer("english").terms([doc.text])[0])}
    assert set(ranking.doc_ids) == holding
    pairs = list(zip(-ranking.scores, ranking.doc_ids, strict=True))
    assert all(a < b for a, b in pairwise(pairs))
    first = model.search([Query("q", query)], 3, smoothing=smoothing)["q"]
    assert list(first.doc_ids) == list(ranking.doc_ids)[:3]


@pytest.mark.parametrize("smoothing", METHODS, ids=str)
def test_a_run_is_put_into_the_order_of_likelihood(documents: list[Document], smoothing: Smoothing) -> None:
    model = LanguageModel(iter(documents))
    run = {"q": Ranking("q", ["d40", "d07", "d01", "d02"], np.array([4.0, 3.0, 2.0, 1.0]))}
    ranking = model.rerank(run, [Query("q", "river bridge")], smoothing=smoothing, depth=3)["q"]
    wanted = {d.doc_id: definition(documents, "river bridge", d, smoothing) for d in documents}
    assert list(ranking.doc_ids) == sorted(["d40", "d07", "d01"], key=lambda doc_id: (-wanted[doc_id], doc_id))
    assert ranking.scores.tolist() == pytest.approx([wanted[doc_id] for doc_id in ranking.doc_ids], rel=1e-12)


def test_no_documents_and_what_is_missing(documents: list[Document]) -> None:
    smoothing = Smoothing("dirichlet", 10.0)
    assert not len(LanguageModel([]).search([Query("q", "river")], 5, smoothing=smoothing)["q"].doc_ids)
    model = LanguageModel(documents)
    run = {"q": Ranking("q", ["nowhere"], np.array([1.0]))}
    with pytest.raises(NotFound, match="nowhere"):
        model.rerank(run, [Query("q", "x")], smoothing=smoothing)
    with pytest.raises(NotFound, match="without a text"):
        model.rerank(run, [], smoothing=smoothing)
    with pytest.raises(InvalidInput, match="is repeated in the corpus"):
        LanguageModel([documents[0], documents[0]])
    for method, weight in (("jelinek-mercer", 1.0), ("jelinek-mercer", 0.0), ("dirichlet", 0.0), ("other", 1.0)):
        with pytest.raises(InvalidInput):
            Smoothing(method, weight)  # type: ignore[arg-type]
