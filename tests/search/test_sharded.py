"""Shards of an index rank, show and count as the index that was split, to the last bit."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from lightir.errors import InvalidInput, NotFound
from lightir.index.splitting import shard_of, split_index
from lightir.search import PageOptions, Searcher, SearchOptions
from lightir.search.language_model import Smoothing
from lightir.search.shard_set import ShardsMissing
from lightir.search.sharded import ShardedSearcher
from lightir.types import Query
from sharded_indexes import Pickled, build_random, opened, whole

QUERIES = (
    "cat",
    "the cat and the dog at the well",
    "fish rnus",
    "sleeps unknownword",
    "",
    "cat -dog",
    '"the cat" well',
    "brand:a",
    "brand:b dog",
    "e-3",
    "E-4 cat",
    "d-7",
    "D-11",
)
FUSIONS = (None, "absolute", "linear", "linear:min-max", "linear:z-score", "linear:none", "rrf:3", "dbsf")
MODES = (None, "dense", "sparse", "tokens", "hybrid", "dense+sparse", "sparse+tokens", "dense+sparse+tokens")


class Both:
    """An index, and its shards."""

    def __init__(self, one: Searcher, sharded: ShardedSearcher, shards: Pickled) -> None:
        self.one, self.sharded, self.shards = one, sharded, shards
        self.doc_ids = [*one.index.ids()]


KINDS: dict[str, tuple[dict[str, Any], int, int]] = {
    "words": ({"seed": 1, "n": 60, "model": False}, 3, 0),
    "model": ({"seed": 2, "n": 60, "model": True}, 4, 1),
    "partly encoded": ({"seed": 3, "n": 60, "model": True, "encoded": 0.5}, 3, 1),
    "few pending": ({"seed": 4, "n": 60, "model": True, "encoded": 0.95}, 2, 1),
    "nothing encoded": ({"seed": 5, "n": 30, "model": True, "encoded": 0.0}, 3, 1),
    "passages": ({"seed": 6, "n": 50, "model": True, "encoded": 0.7, "long": True}, 3, 1),
    "words in passages": ({"seed": 7, "n": 50, "model": False, "long": True}, 4, 0),
    "more shards than documents": ({"seed": 8, "n": 4, "model": True}, 9, 1),
    "empty": ({"seed": 9, "n": 0, "model": True}, 2, 1),
}


@pytest.fixture(scope="module", params=[*KINDS])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    folder = tmp_path_factory.mktemp("sharded")
    given_kind, n_shards, _ = KINDS[request.param]
    build_random(folder / "index", **given_kind)
    manifest = split_index(folder / "index", folder / "shards", n_shards, progress=False)
    with whole(folder / "index") as one, opened(manifest) as (sharded, shards):
        yield Both(one, sharded, shards)


def same(one: Any, sharded: Any) -> Any:
    """Return the result of both calls; if one is refused, so is the other, for the same reason."""
    try:
        expected = one()
    except InvalidInput:
        with pytest.raises(InvalidInput):
            sharded()
        return None
    return expected, sharded()


filters = st.sampled_from([None, None, {"n": {"gte": 2}}, {"brand": "a"}, {"brand": "none"}])


@st.composite
def searches(draw: st.DrawFn) -> tuple[int, dict[str, Any]]:
    options = {
        "mode": draw(st.sampled_from(MODES)),
        "fusion": draw(st.sampled_from(FUSIONS)),
        "depth": draw(st.sampled_from([None, None, 1, 3, 10])),
        "filter": draw(filters),
        "typos": draw(st.booleans()),
        "as_you_type": draw(st.booleans()),
        "passages": draw(st.booleans()),
        "syntax": draw(st.booleans()),
        "min_score": draw(st.sampled_from([None, None, 0.3, -1.0])),
    }
    return draw(st.sampled_from([1, 2, 5, 10, 1000])), options


@settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(searches(), st.data())
def test_rankings_and_hits_are_those_of_one_index(both: Both, search: tuple[int, dict[str, Any]], data: Any) -> None:
    k, given_options = search
    ids = st.sampled_from([*both.doc_ids, "no document"])
    excluded = data.draw(st.one_of(st.just(()), st.lists(ids, max_size=3)))
    options = SearchOptions(exclude=tuple(excluded), **given_options)
    queries = data.draw(st.lists(st.sampled_from(QUERIES), min_size=1, max_size=3))
    pair = same(
        lambda: both.one.search(queries, k, options),
        lambda: both.sharded.search(queries, k, options),
    )
    if pair is None:
        return
    expected, answered = pair
    assert [*expected] == [*answered]
    for query_id, ranking in expected.items():
        assert [*answered[query_id].doc_ids] == [*ranking.doc_ids]
        np.testing.assert_array_equal(answered[query_id].scores, ranking.scores)
    for query in queries:
        explain = data.draw(st.booleans())
        assert both.sharded.hits(query, k, options, explain=explain) == both.one.hits(
            query, k, options, explain=explain
        )


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(searches(), st.data())
def test_pages_are_those_of_one_index(both: Both, search: tuple[int, dict[str, Any]], data: Any) -> None:
    limit, given_options = search
    options = SearchOptions(**{**given_options, "min_score": None})
    sort = data.draw(st.sampled_from([None, None, "n", "n:desc", "brand"]))
    group = data.draw(st.sampled_from([None, "brand", "n", "ean", "none"]))
    page = PageOptions(data.draw(st.integers(0, 12)), limit, {"brand": 2, "n": 10}, sort, group)
    query = data.draw(st.sampled_from([*QUERIES, " "]))
    pair = same(
        lambda: both.one.page(query, page, options, full_text=True),
        lambda: both.sharded.page(query, page, options, full_text=True),
    )
    if pair is not None:
        expected, answered = pair
        assert answered == expected


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(searches(), st.data())
def test_explanations_are_those_of_one_index(both: Both, search: tuple[int, dict[str, Any]], data: Any) -> None:
    excluded = data.draw(st.sampled_from([(), tuple(both.doc_ids[:3])]))
    options = SearchOptions(**search[1], exclude=excluded)
    query = data.draw(st.sampled_from([*QUERIES, " "]))
    listed = [hit.doc_id for hit in both.one.hits("cat dog", 5, SearchOptions(mode="tokens"))]
    doc_id = data.draw(st.sampled_from([*listed, *both.doc_ids, "no document"]))
    try:
        expected = both.one.explain(query, doc_id, options)
    except (InvalidInput, NotFound) as error:
        with pytest.raises(type(error)):
            both.sharded.explain(query, doc_id, options)
        return
    assert both.sharded.explain(query, doc_id, options) == expected


def test_language_models_of_words_are_refused(both: Both) -> None:
    with pytest.raises(InvalidInput, match="dirichlet counts"):
        both.sharded.search(["cat"], options=SearchOptions(mode="tokens", smoothing=Smoothing("dirichlet", 100.0)))


def test_without_a_shard_its_documents_are_missing_and_it_is_named(both: Both) -> None:
    shards = both.shards
    by_words = SearchOptions(mode="tokens")  # whose scores do not depend on the list
    every = [(hit.doc_id, hit.score) for hit in both.sharded.hits("cat dog", 1000, by_words)]
    n_lost = 0
    for silent in range(len(shards)):
        shards.silent = frozenset([silent])
        try:
            with pytest.raises(ShardsMissing, match=f"do not answer: {silent}; "):
                both.sharded.search(["cat dog"], 1000)
            missing: set[int] = set()
            with pytest.raises(ShardsMissing, match=f"do not answer: {silent}; "):
                both.sharded.explain("cat dog", "no document")
            hits = both.sharded.allowing(missing).hits("cat dog", 1000, by_words)
            answered = [(hit.doc_id, hit.score) for hit in hits]
            assert missing == {silent}
            assert [pair for pair in every if shard_of(pair[0], len(shards)) != silent] == answered
            n_lost += len(every) - len(answered)
        finally:
            shards.silent = frozenset()
    assert n_lost == len(every)


def test_a_folder_of_shards_is_opened_by_one_call(tmp_path: Path) -> None:
    build_random(tmp_path / "index", 1, 40, model=True)
    split_index(tmp_path / "index", tmp_path / "shards", 3, progress=False)
    with whole(tmp_path / "index") as one, ShardedSearcher.open(tmp_path / "shards") as searcher:
        assert searcher.hits("cat dog", 5) == one.hits("cat dog", 5)
    with pytest.raises(InvalidInput, match="were closed"):
        searcher.hits("cat dog", 5)


def test_no_shard_at_all_finds_nothing(both: Both) -> None:
    both.shards.silent = frozenset(range(len(both.shards)))
    try:
        missing: set[int] = set()
        partial = both.sharded.allowing(missing)
        assert partial.hits("cat") == []
        assert partial.page("cat").total == 0
        assert len(partial.search([Query("q", "cat")])["q"]) == 0
        assert missing == {*range(len(both.shards))}
    finally:
        both.shards.silent = frozenset()


def test_many_results_tie(tmp_path: Path) -> None:
    """The comparisons above mean something: in their indexes scores tie, across shards too."""
    build_random(tmp_path / "index", **KINDS["model"][0])
    with whole(tmp_path / "index") as one:
        for mode in ("tokens", "sparse", "dense"):
            scores = one.search(["the cat"], 1000, SearchOptions(mode=mode))["0"].scores.tolist()
            assert len(scores) > 10
            assert any(a == b for a, b in itertools.pairwise(scores))
