"""Compare rules that rank pending documents together with encoded ones.

    python recipes/measure_pending.py --out docs/results/pending \
        "scifact=DATA/scifact:VECTORS:test" "squadshifts=DATA/squadshifts:VECTORS:dev" …

VECTORS is the folder that `lightir encode` wrote for the corpus, the last part the split whose queries are measured.
They rank the documents by dense + tokens with the model's weights, which must be for `linear`. All documents are
encoded once. Every rule then ranks them from the true scores, of which it sees those of encoded documents only:

- curve: a share of the documents is encoded, in several random orders.
- freshness: of each query exactly the relevant documents are pending.
- few: of each query exactly its n best documents by BM25 are encoded.

The rules are described at `RULES`. "slots" is checked against searches of an index in which half of the documents are
pending. Writes OUT.json and OUT.md.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from lightir.data import Dataset
from lightir.eval import evaluate
from lightir.index import Index, IndexWriter, build_index
from lightir.provenance import provenance
from lightir.search import Searcher, SearchOptions
from lightir.shards import VectorsReader
from lightir.types import Qrels, Query, Ranking, Run

SMALLEST = "tiny={data}/tiny:{vectors}:test --seeds 1 --out {out}/found"
SHARES = (0.0, 0.1, 0.3, 0.5, 0.75, 0.9, 1.0)
FEW = (1, 2, 3, 16)
MEASURES = ("nDCG@10", "RR@10")
K, DEPTH, WHOLE_DEPTH = 10, 200, 1000

ScoreValues = npt.NDArray[np.float64]
Docs = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class QueryScores:
    """One query's true scores of all documents.

    Attributes:
        dense: (n,) dense scores.
        tokens: (n,) tokens scores.
        by_dense: (n,) documents, best first.
        by_tokens: (m,) matching documents, best first.
        weights: weights of dense and tokens.
    """

    dense: ScoreValues
    tokens: ScoreValues
    by_dense: Docs
    by_tokens: Docs
    weights: tuple[float, float]

    @classmethod
    def of(cls, dense: ScoreValues, tokens: ScoreValues, weights: tuple[float, float]) -> QueryScores:
        """Order all documents by each branch; ties go to the smaller number."""
        docs = np.arange(len(dense))
        matching = docs[tokens > 0]
        return cls(
            dense,
            tokens,
            docs[np.lexsort((docs, -dense))] if dense.any() else docs[:0],
            matching[np.lexsort((matching, -tokens[matching]))],
            weights,
        )


def normalized(scores: ScoreValues, listed: ScoreValues) -> ScoreValues:
    """Return scores over the best of the list, from 0 to 1, as the fusion `linear` does."""
    if not len(listed):
        return np.zeros(len(scores))
    lowest, highest = min(listed.min(), 0.0), listed.max()
    if lowest == highest:
        return np.where(scores >= highest, 1.0, 0.0)
    scaled: ScoreValues = np.minimum(np.maximum((scores - lowest) / (highest - lowest), 0.0), 1.0)
    return scaled


def best_first(docs: Docs, scores: ScoreValues) -> Docs:
    """Order documents by descending score; ties go to the smaller number."""
    return docs[np.lexsort((docs, -scores))]


def fused(query: QueryScores, pending: Mask, tokens_list: Docs) -> Docs:
    """Return the encoded candidates, best first; pending documents of the tokens list count for its normalization."""
    dense_list = query.by_dense[~pending[query.by_dense]][:DEPTH]
    docs = np.union1d(dense_list, tokens_list[~pending[tokens_list]])
    dense = normalized(query.dense[docs], query.dense[dense_list])
    tokens = normalized(query.tokens[docs], query.tokens[tokens_list])
    return best_first(docs, query.weights[0] * dense + query.weights[1] * tokens)


def in_slots(encoded: Docs, places: Mapping[int, int]) -> Docs:
    """Give each pending document its place, from 0, and the others to encoded documents; pending ones fill a rest."""
    ranking: list[int] = []
    waiting = dict(sorted(places.items(), key=lambda item: item[1]))
    remaining = iter(encoded.tolist())
    while len(ranking) < K:
        first = next(iter(waiting), None)
        document = None if first is not None and waiting[first] <= len(ranking) else next(remaining, None)
        if document is None:
            if first is None:
                break
            waiting.pop(first)
            document = first
        ranking.append(document)
    return np.array(ranking, dtype=np.int64)


def lexical_places(pending: Mask, tokens_list: Docs) -> dict[int, int]:
    """Return the places, from 0, that pending documents have in the tokens list."""
    return {int(doc): rank for rank, doc in enumerate(tokens_list) if pending[doc]}


def slots(query: QueryScores, pending: Mask) -> Docs:
    """Rank by the slot rule: pending documents keep their lexical places."""
    tokens_list = query.by_tokens[:DEPTH]
    return in_slots(fused(query, pending, tokens_list), lexical_places(pending, tokens_list))


def slots_alone(query: QueryScores, pending: Mask) -> Docs:
    """Rank by the slot rule, with the fusion of encoded documents as if there were no pending ones."""
    alone = query.by_tokens[~pending[query.by_tokens]][:DEPTH]
    return in_slots(fused(query, pending, alone), lexical_places(pending, query.by_tokens[:DEPTH]))


def substituted(query: QueryScores, pending: Mask) -> Docs:
    """Rank with the normalized tokens score of a pending document in place of its normalized dense score."""
    tokens_list, dense_list = query.by_tokens[:DEPTH], query.by_dense[~pending[query.by_dense]][:DEPTH]
    docs = np.union1d(dense_list, tokens_list)
    tokens = normalized(query.tokens[docs], query.tokens[tokens_list])
    dense = np.where(pending[docs], tokens, normalized(query.dense[docs], query.dense[dense_list]))
    return best_first(docs, query.weights[0] * dense + query.weights[1] * tokens)[:K]


def rank_matched(query: QueryScores, pending: Mask) -> Docs:
    """Rank with the dense score of the r-th encoded document for a pending one of lexical rank r."""
    tokens_list, dense_list = query.by_tokens[:DEPTH], query.by_dense[~pending[query.by_dense]][:DEPTH]
    if not len(dense_list):
        return tokens_list[:K]
    docs = np.union1d(dense_list, tokens_list)
    dense = query.dense.copy()
    dense[tokens_list] = np.where(
        pending[tokens_list],
        query.dense[dense_list[np.minimum(np.arange(len(tokens_list)), len(dense_list) - 1)]],
        query.dense[tokens_list],
    )
    score = query.weights[0] * normalized(dense[docs], query.dense[dense_list])
    return best_first(docs, score + query.weights[1] * normalized(query.tokens[docs], query.tokens[tokens_list]))[:K]


def higher_of_both(query: QueryScores, pending: Mask) -> Docs:
    """Rank by slots, where a pending document has the better of its lexical place and that of `substituted`."""
    tokens_list = query.by_tokens[:DEPTH]
    places = lexical_places(pending, tokens_list)
    for rank, doc in enumerate(substituted(query, pending).tolist()):
        if pending[doc]:
            places[doc] = min(rank, places.get(doc, rank))
    return in_slots(fused(query, pending, tokens_list), places)


def estimated(query: QueryScores, pending: Mask) -> Docs:
    """Rank by the rule before slots: dense scores estimated from tokens scores by a line, see docs/progressive.md."""
    if not pending.any():
        return fused(query, pending, query.by_tokens[:DEPTH])
    tokens_list = query.by_tokens[:WHOLE_DEPTH]
    dense_list = query.by_dense[~pending[query.by_dense]][:WHOLE_DEPTH]
    if not len(dense_list):
        return tokens_list[:K]
    encoded, waiting = tokens_list[~pending[tokens_list]], tokens_list[pending[tokens_list]]
    listed = query.dense[dense_list]
    mean = float(listed.mean())
    deviation = float(listed.std()) or abs(mean) or 1.0
    most = float(query.tokens[tokens_list[0]]) if len(tokens_list) else 1.0
    x = np.array([*(query.tokens[encoded] / most), 0.0, 1.0])
    y = np.array([*query.dense[encoded], mean, mean + 5 * deviation])
    weight = np.array([*np.ones(len(encoded)), 2.0, 2.0])
    mean_x, mean_y = np.average(x, weights=weight), np.average(y, weights=weight)
    slope = np.sum(weight * (x - mean_x) * (y - mean_y)) / np.sum(weight * (x - mean_x) ** 2)
    slope = max(slope, deviation / 1000)
    dense = np.where(pending, mean_y + slope * (query.tokens / most - mean_x), query.dense)
    docs = np.union1d(dense_list, waiting)
    dense_list = best_first(docs, dense[docs])[:WHOLE_DEPTH]
    docs = np.union1d(dense_list, tokens_list)
    score = query.weights[0] * normalized(dense[docs], dense[dense_list])
    return best_first(docs, score + query.weights[1] * normalized(query.tokens[docs], query.tokens[tokens_list]))[:K]


Rule = Callable[[QueryScores, Mask], Docs]

RULES: Mapping[str, Rule] = {
    "estimates (the old rule)": estimated,
    "slots": slots,
    "slots, fused alone": slots_alone,
    "slots, or the place by substitution": higher_of_both,
    "substituted tokens score": substituted,
    "rank-matched dense score": rank_matched,
}


class Collection:
    """A data set's queries with the true scores of all documents."""

    def __init__(self, dataset: Path, vectors: Path, split: str) -> None:
        """Index the vectors and score every document for every query of the split."""
        self.dataset, self.vectors = Dataset.open(dataset), vectors
        self.qrels: Qrels = self.dataset.qrels(split)
        self.queries = list(self.dataset.queries(split))
        with tempfile.TemporaryDirectory() as folder:
            build_index(vectors, Path(folder) / "i", progress=False)
            with Index.open(Path(folder) / "i") as index:
                prepared = Searcher(index).prepare(SearchOptions(mode="dense+tokens"))
                fusion = prepared.plan.fusion
                if (fusion.method, fusion.normalization) != ("linear", "max"):
                    raise SystemExit(f"{vectors}: the fusion must be linear")
                weights = (fusion.weights["dense"], fusion.weights["tokens"])
                every = np.arange(len(index.view), dtype=np.uint32)
                self.doc_ids = index.view.doc_ids(every)
                searched = prepared.branches(prepared.encode(self.queries))
                self.scores = [
                    QueryScores.of(
                        searched.pair_scores("dense", every, i).astype(np.float64),
                        searched.pair_scores("tokens", every, i).astype(np.float64),
                        weights,
                    )
                    for i in range(len(self.queries))
                ]
        self.n_docs = len(self.doc_ids)

    def measured(self, rule: Rule, pending: Sequence[Mask]) -> dict[str, ScoreValues]:
        """Return each measure's values of the queries; one mask of the pending documents per query."""
        run: Run = {}
        for query, scores, mask in zip(self.queries, self.scores, pending, strict=True):
            docs = rule(scores, mask)[:K]
            ranked = [self.doc_ids[doc] for doc in docs]
            run[query.query_id] = Ranking(query.query_id, ranked, -np.arange(len(docs), dtype=np.float64))
        result = evaluate(run, self.qrels, MEASURES)
        return {name: np.array(list(result.per_query[name].values())) for name in MEASURES}

    def by_tokens(self) -> dict[str, ScoreValues]:
        """Return the values of the tokens branch alone."""
        return self.measured(lambda query, _: query.by_tokens[:K], [np.zeros(0, np.bool_)] * len(self.queries))

    def check(self, pending: Mask) -> None:
        """Stop if an index with these pending documents ranks otherwise than the rule "slots" does here."""
        reader = VectorsReader(self.vectors)
        waiting = {self.doc_ids[doc] for doc in np.flatnonzero(pending)}
        with tempfile.TemporaryDirectory() as folder:
            encoder = self.vectors / "query-encoder"
            with IndexWriter.create(Path(folder) / "i", contract=reader.contract, query_encoder=encoder) as writer:
                for shard in reader:
                    at = np.array([i for i, document in enumerate(shard.documents) if document.doc_id not in waiting])
                    writer.add(shard.documents)
                    if len(at) and shard.dense is not None:
                        writer.set_vectors([shard.documents[i] for i in at], dense=shard.dense[at])
            with Index.open(Path(folder) / "i") as index:
                run = Searcher(index).search(self.queries, K, SearchOptions(mode="dense+tokens"))
        for query, scores in zip(self.queries, self.scores, strict=True):
            expected = [self.doc_ids[doc] for doc in slots(scores, pending)]
            if list(run[query.query_id].doc_ids) != expected:
                raise SystemExit(
                    f"query {query.query_id!r}: an index ranks {run[query.query_id].doc_ids}, not {expected}"
                )


def pending_after(order: Docs, share: float) -> Mask:
    """Return which documents are pending when the first share of an order is encoded."""
    pending = np.ones(len(order), dtype=np.bool_)
    pending[order[: round(share * len(order))]] = False
    return pending


def relevant_of(collection: Collection, query: Query) -> Mask:
    """Return which documents are relevant to a query."""
    grades = collection.qrels[query.query_id]
    return np.array([grades.get(doc_id, 0) > 0 for doc_id in collection.doc_ids])


def all_but_best(scores: QueryScores, n: int) -> Mask:
    """Return which documents are pending if the n best of the tokens branch are encoded."""
    pending = np.ones(len(scores.dense), dtype=np.bool_)
    pending[scores.by_tokens[:n]] = False
    return pending


def report(collection: Collection, seeds: int) -> dict[str, Any]:
    """Return all rules' results on one collection."""
    n, n_queries = collection.n_docs, len(collection.queries)
    orders = [np.random.default_rng(seed).permutation(n) for seed in range(seeds)]
    fresh = [relevant_of(collection, query) for query in collection.queries]
    baseline = collection.by_tokens()

    def quality(rule: Rule, pending: Sequence[Mask]) -> float:
        return float(collection.measured(rule, pending)["nDCG@10"].mean())

    def result_of(rule: Rule) -> dict[str, Any]:
        curves = [[quality(rule, [pending_after(o, share)] * n_queries) for share in SHARES] for o in orders]
        new = collection.measured(rule, fresh)
        few = {str(count): quality(rule, [all_but_best(one, count) for one in collection.scores]) for count in FEW}
        return {
            "curve": np.mean(curves, axis=0).round(5).tolist(),
            "lowest": np.min(curves, axis=0).round(5).tolist(),
            "fresh": {measure: round(float(values.mean()), 5) for measure, values in new.items()},
            "fresh_lower": round(float((new["RR@10"] < baseline["RR@10"]).mean()), 5),
            "few": {count: round(value, 5) for count, value in few.items()},
        }

    rules = {name: result_of(rule) for name, rule in tqdm(RULES.items(), collection.dataset.name, disable=None)}
    tokens = {measure: round(float(values.mean()), 5) for measure, values in baseline.items()}
    return {"documents": n, "queries": n_queries, "tokens": tokens, "rules": rules}


def table(results: Mapping[str, Any]) -> str:
    """Return the results as a Markdown table: a row per collection and rule."""
    heads = ["", *(f"{100 * share:.0f} %" for share in SHARES), *(f"{count} encoded" for count in FEW)]
    heads += ["new: nDCG@10", "new: RR@10", "lower"]
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)]]
    for label, result in results.items():
        tokens = [f"{result['tokens'][measure]:.3f}" for measure in MEASURES]
        lines.append([f"**{label}**: BM25 alone", *[""] * (len(SHARES) + len(FEW)), *tokens, ""])
        for name, rule in result["rules"].items():
            values = [*rule["curve"], *rule["few"].values(), *rule["fresh"].values()]
            lines.append([name, *(f"{value:.3f}" for value in values), f"{100 * rule['fresh_lower']:.0f} %"])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main() -> None:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("collections", nargs="+", metavar="LABEL=BEIR_FOLDER:VECTORS:SPLIT")
    parser.add_argument("--seeds", type=int, default=5, help="number of random encoding orders (default %(default)s)")
    parser.add_argument("--out", type=Path, required=True, help="path of the result files, without suffix")
    args = parser.parse_args()
    results = {}
    for text in args.collections:
        label, paths = text.split("=", 1)
        dataset, vectors, split = paths.rsplit(":", 2)
        collection = Collection(Path(dataset), Path(vectors), split)
        collection.check(pending_after(np.random.default_rng(0).permutation(collection.n_docs), 0.5))
        results[label] = report(collection, args.seeds)
    settings = {"shares": SHARES, "few": FEW, "seeds": args.seeds, "measures": MEASURES}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    record = {"provenance": provenance(), **settings, "collections": results}
    args.out.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")
    args.out.with_suffix(".md").write_text(table(results))
    print(table(results))


if __name__ == "__main__":
    main()
