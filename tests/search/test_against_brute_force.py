"""The whole way from shards to rankings against a twin of dicts and loops, on small data full of ties."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from lightir.contract import Contract
from lightir.index import Index, IndexOptions, build_index
from lightir.search import Searcher, SearchOptions
from lightir.shards import Shard
from lightir.types import Document, Query
from small_collections import GivenVectors, csr, word_contract

Scores = dict[str, float]
LETTERS = ("ant", "bee", "cow", "doe", "elk")


class Collection:
    """Random documents and queries of few distinct values, with each branch's scores counted out.

    Of the documents the first `n_pending` wait for their vectors.
    """

    def __init__(self, seed: int, n_docs: int, vocab_size: int, n_pending: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.contract: Contract = word_contract(vocab_size=vocab_size)
        self.term_ids = sorted({int(t) for t in rng.integers(0, vocab_size, 6)} | {vocab_size - 1})
        ids = [f"d{i}" for i in rng.permutation(n_docs)]
        self.texts = {i: " ".join(rng.choice(LETTERS, rng.integers(0, 5))) for i in ids}
        self.dense = {i: rng.integers(-1, 2, 4).astype(np.float16) for i in ids}
        self.sparse = {i: self._sparse_row(rng) for i in ids}
        self.queries = [" ".join(rng.choice([*LETTERS, "yak"], rng.integers(0, 4))) + f" !{i}" for i in range(6)]
        self.query_dense = {q: rng.integers(-1, 2, 4).astype(np.float32) for q in self.queries}
        self.query_sparse = {q: self._sparse_row(rng) for q in self.queries}
        self.pending = set(ids[:n_pending])

    def _sparse_row(self, rng: np.random.Generator) -> dict[int, int]:
        chosen = rng.choice(self.term_ids, rng.integers(0, len(self.term_ids) + 1), replace=False)
        return {int(t): int(rng.integers(1, 3)) for t in chosen}

    def shards(self, size: int) -> list[Shard]:
        waiting = [Shard([Document(i, self.texts[i]) for i in sorted(self.pending)], None, None)]
        ids = [i for i in self.texts if i not in self.pending]
        return waiting + [self._shard(ids[start : start + size]) for start in range(0, len(ids), size)]

    def _shard(self, ids: list[str]) -> Shard:
        sparse = csr([self.sparse[i] for i in ids], vocab_size=self.contract.backbone.vocab_size, dtype=np.uint8)
        return Shard([Document(i, self.texts[i]) for i in ids], np.array([self.dense[i] for i in ids]), sparse)

    @cache  # noqa: B019 - as short-lived as the test
    def scores(self, branch: str, query: str) -> Scores:
        """Every document's score, in float32 as the kernel sums."""
        if branch == "dense":
            return {i: float(row.astype(np.float64) @ self.query_dense[query]) for i, row in self.dense.items()}
        if branch == "sparse":
            wanted = self.query_sparse[query]
            return {i: float(sum(w * row.get(t, 0) for t, w in wanted.items())) for i, row in self.sparse.items()}
        return {i: self._bm25(query, i) for i in self.texts}

    def _bm25(self, query: str, doc_id: str) -> float:
        words = {i: text.split() for i, text in self.texts.items()}
        mean = sum(map(len, words.values())) / len(words)
        score = np.float32(0)
        for word, count in sorted(Counter(query.split("!")[0].split()).items()):
            df = sum(word in document for document in words.values())
            tf = words[doc_id].count(word)
            if tf:
                idf = float(np.log1p((len(words) - df + 0.5) / (df + 0.5)))
                saturation = tf / (tf + 0.9 * (1 - 0.4 + 0.4 * len(words[doc_id]) / mean))
                score = score + np.float32(count * idf) * np.float32(saturation)
        return float(score)

    def full(self, branch: str, query: str) -> float:
        """The score that counts as 1 under "absolute"."""
        if branch == "dense":
            return 1.0
        if branch == "sparse":
            assert self.contract.sparse is not None
            return 2 * self.contract.sparse.scale * sum(self.query_sparse[query].values())
        words = [text.split() for text in self.texts.values()]
        full = 0.0
        for word, count in Counter(query.split("!")[0].split()).items():
            df = sum(word in document for document in words)
            weight = count * math.log1p((len(words) - df + 0.5) / (df + 0.5))
            full += float(np.float32(weight)) if df else weight  # a query has float32 weights of the known words
        return full / 1.9

    def found(self, branch: str, query: str, depth: int) -> list[tuple[str, float]]:
        """The branch's own list: score down, then id up; term branches list only documents above 0."""
        if branch == "dense" and not self.query_dense[query].any():
            return []
        scores = self.scores(branch, query)
        ranked = sorted(scores.items(), key=lambda pair: (-pair[1], pair[0]))
        if branch != "tokens":
            ranked = [pair for pair in ranked if pair[0] not in self.pending]
        return [pair for pair in ranked if branch == "dense" or pair[1] > 0][:depth]

    def ranking(
        self, query: str, k: int, weights: dict[str, float], method: str, depth: int, excluded: Sequence[str] = ()
    ) -> list[tuple[str, float]]:
        if len(weights) == 1:
            return self.found(next(iter(weights)), query, k)
        depth += len(excluded)
        lists = {branch: self.found(branch, query, depth) for branch in weights}
        fused = {doc_id: 0.0 for pairs in lists.values() for doc_id, _ in pairs if doc_id not in self.pending}
        for doc_id, (branch, pairs) in itertools.product(fused, lists.items()):
            score = self.scores(branch, query)[doc_id]
            if method == "absolute":
                normalized = max(score / self.full(branch, query), 0.0) if pairs else 0.0
            elif method in NORMALIZED:
                normalized = NORMALIZED[method](pairs, score)
            else:
                normalized = reciprocal(pairs, doc_id, method)
            fused[doc_id] += weights[branch] * normalized
        ranked = sorted(fused.items(), key=lambda pair: (-pair[1], pair[0]))
        by_tokens = self.found("tokens", query, depth)
        rest = [[pair for pair in pairs if pair[0] not in excluded] for pairs in (ranked, by_tokens)]
        return in_slots(*rest, self.pending)[:k]


def in_slots(
    encoded: list[tuple[str, float]], by_tokens: list[tuple[str, float]], pending: set[str]
) -> list[tuple[str, float]]:
    """Give each place, from the first, to a document.

    If the tokens branch has a pending document at the place, it is that one; otherwise the best encoded document that
    has no place yet; if there is none, the best pending one. A pending document shows the score of the encoded one
    before it; before all encoded ones that of the first; without any encoded one that of the tokens branch.
    """
    unplaced_encoded, unplaced_pending = list(encoded), [pair for pair in by_tokens if pair[0] in pending]
    ranking: list[tuple[str, float]] = []
    while unplaced_encoded or unplaced_pending:
        slot = len(ranking)
        at_slot = by_tokens[slot] if slot < len(by_tokens) else None
        if not unplaced_encoded or at_slot in unplaced_pending:
            doc_id, score = unplaced_pending.pop(0)
            before = [score for i, score in ranking if i not in pending] or [score for _, score in encoded[:1]]
            ranking.append((doc_id, before[-1] if before else score))
        else:
            ranking.append(unplaced_encoded.pop(0))
    return ranking


def reciprocal(pairs: list[tuple[str, float]], doc_id: str, method: str) -> float:
    k = float(method.removeprefix("rrf:")) if ":" in method else 60
    return next((1 / (k + rank) for rank, (listed, _) in enumerate(pairs, 1) if listed == doc_id), 0.0)


def by_most(pairs: list[tuple[str, float]], score: float) -> float:
    if not pairs or pairs[-1][1] < 0:
        return min_max(pairs, score)
    return float(score >= 0) if pairs[0][1] == 0 else min(max(score / pairs[0][1], 0.0), 1.0)


def min_max(pairs: list[tuple[str, float]], score: float) -> float:
    if not pairs:
        return 0.0
    most, least = pairs[0][1], pairs[-1][1]
    if most == least:
        return float(score >= most)
    return min(max((score - least) / (most - least), 0.0), 1.0)


def z_score(pairs: list[tuple[str, float]], score: float) -> float:
    if not pairs:
        return 0.0
    listed = [value for _, value in pairs]
    if listed[0] == listed[-1]:
        return 0.0 if score >= listed[0] else -1.0
    return float((score - np.mean(listed)) / np.std(listed, ddof=1))


def dbsf(pairs: list[tuple[str, float]], score: float) -> float:
    if not pairs:
        return 0.0
    if pairs[0][1] == pairs[-1][1]:
        return 0.5 if score >= pairs[0][1] else 0.0
    return max(0.5 + z_score(pairs, score) / 6, 0.0)


def raw(pairs: list[tuple[str, float]], score: float) -> float:
    return score if pairs else 0.0


NORMALIZED = {
    "linear": by_most,
    "linear:min-max": min_max,
    "linear:z-score": z_score,
    "linear:none": raw,
    "dbsf": dbsf,
}
DEPTHS = ((1, 1), (5, 4), (5, 1000), (100, 4))
METHODS = (*NORMALIZED, "absolute", "rrf", "rrf:0", "rrf:2.5")


WEIGHTS: list[dict[str, float]] = [
    {"dense": 1.0},
    {"sparse": 1.0},
    {"tokens": 1.0},
    {"dense": 0.7, "sparse": 0.3},
    {"dense": 0.5, "tokens": 0.5},
    {"dense": 0.5, "sparse": 0.25, "tokens": 0.25},
]


@pytest.mark.parametrize(
    ("seed", "n_docs", "vocab_size"),
    [(0, 0, 8), (1, 1, 8), (2, 2, 8), (3, 3, 9), (4, 30, 40), (5, 60, 200_000), (6, 25, 12)],
)
@pytest.mark.parametrize("segment_documents", [4, 65_536])
def test_rankings_are_those_of_the_slow_twin(
    tmp_path: Path, seed: int, n_docs: int, vocab_size: int, segment_documents: int
) -> None:
    data = Collection(seed, n_docs, vocab_size)
    options = IndexOptions(analyzer="words", segment_documents=segment_documents)
    build_index(data.shards(7), tmp_path / "i", options=options, contract=data.contract, progress=False)
    with Index.open(tmp_path / "i") as index:
        if n_docs:
            searcher = Searcher(index, GivenVectors(data.contract, data.query_dense, data.query_sparse), threads=2)
            for weights, (k, depth), method in itertools.product(WEIGHTS, DEPTHS, METHODS):
                if len(weights) == 1 and method != "linear":
                    continue  # one branch is not fused
                run = searcher.search(
                    [Query(q, q) for q in data.queries],
                    k,
                    SearchOptions(mode=tuple(weights), weights=weights, fusion=method, depth=depth),
                )
                for query in data.queries:
                    expected = data.ranking(query, k, weights, method, max(k, depth))
                    assert list(run[query].doc_ids) == [doc_id for doc_id, _ in expected]
                    assert all(map(math.isclose, run[query].scores, [score for _, score in expected]))
        else:
            assert len(Searcher(index).search(["ant"])["0"]) == 0


@pytest.mark.parametrize(
    ("seed", "n_docs", "n_pending"), [(0, 2, 1), (1, 12, 11), (2, 12, 1), (3, 40, 20), (4, 60, 50), (5, 60, 6)]
)
@pytest.mark.parametrize("segment_documents", [4, 65_536])
def test_half_encoded_indexes_rank_as_the_slow_twin_does(
    tmp_path: Path, seed: int, n_docs: int, n_pending: int, segment_documents: int
) -> None:
    data = Collection(seed, n_docs, 12, n_pending)
    options = IndexOptions(analyzer="words", segment_documents=segment_documents)
    build_index(data.shards(7), tmp_path / "i", options=options, contract=data.contract, progress=False)
    with Index.open(tmp_path / "i") as index:
        assert index.info().pending == n_pending
        searcher = Searcher(index, GivenVectors(data.contract, data.query_dense, data.query_sparse))
        for weights, (k, depth), method in itertools.product(WEIGHTS[3:], DEPTHS[:3], (*METHODS[::2], "absolute")):
            for excluded in ([], sorted(data.texts)[:3]):
                how = {"weights": weights, "fusion": method, "depth": depth, "exclude": excluded}
                run = searcher.search([Query(q, q) for q in data.queries], k, SearchOptions(mode="hybrid", **how))  # type: ignore[arg-type]
                for query in data.queries:
                    expected = data.ranking(query, k, weights, method, max(k, depth), excluded)
                    assert list(run[query].doc_ids) == [doc_id for doc_id, _ in expected]
                    assert all(map(math.isclose, run[query].scores, [score for _, score in expected]))
