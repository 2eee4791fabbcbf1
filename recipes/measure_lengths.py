"""Measure beta search of a SiDR model over passages of one length and of varied lengths: "w/ vary length" of Table 4.

    python recipes/measure_lengths.py --data DATA --out RESULTS squadshifts:dev --model MODEL --words 100 100 50 200

The paper cuts Wikipedia again, into passages of 50 to 200 words in place of 100, about as many as before, and indexes
them; nothing is trained anew. Here consecutive documents of one title are joined and cut. Each two numbers after
--words are the shortest and the longest passage of a cut. The paper gives no distribution: lengths are drawn from
low + (high - low) Beta(1, b), where b makes their mean that of the first cut, so that the numbers of passages agree.
The last passage of a title has the rest.

A passage is relevant to a query if it has words of one of the query's relevant documents and contains an answer. The
queries are those that have a relevant passage in every cut. Marks compare a column with the first one (paired
randomization test, p < 0.05). Writes RESULTS.json and RESULTS.md.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lightir.data import Dataset
from lightir.encode.full_queries import FullQueryEncoder
from lightir.eval import EvaluationResult, compare, evaluate
from lightir.index import Index, IndexOptions, IndexWriter
from lightir.index.intake import bag_term_ids
from lightir.models.encoder import LightRetriever
from lightir.provenance import provenance
from lightir.search import Searcher
from lightir.train.mining.answers import holds_answer
from lightir.train.mining.bag_search import KernelSearch
from lightir.types import Document, Qrels, Query, Ranking, Run
from lightir.vectors import SparseVectors

SMALLEST = "tiny:test --data {data} --out {out}/found --model {model} --words 3 3 2 6 --answers text"
MEASURES = ("nDCG@10", "Success@1")


@dataclass(frozen=True, slots=True)
class Cut:
    """A corpus cut into passages.

    Attributes:
        passages: the passages.
        sources: ids of the documents that each passage has words of.
    """

    passages: list[Document]
    sources: list[frozenset[str]]

    @classmethod
    def of(cls, documents: Sequence[Document], words: tuple[int, int], *, mean: float, seed: int = 0) -> Cut:
        """Cut documents into passages of `words[0]` to `words[1]` words, `mean` words on average."""
        lengths = drawn_lengths(words, mean, np.random.default_rng(seed))
        cut = cls([], [])
        for title, group in itertools.groupby(documents, key=lambda document: document.title):
            tagged = [(word, document.doc_id) for document in group for word in document.text.split()]
            first = 0
            while first < len(tagged):
                part = tagged[first : (first := first + next(lengths))]
                cut.passages.append(Document(str(len(cut.passages)), " ".join(word for word, _ in part), title))
                cut.sources.append(frozenset(doc_id for _, doc_id in part))
        return cut

    def relevant(self, relevant_ids: frozenset[str], answers: Sequence[str]) -> dict[str, int]:
        """Return the passages that overlap a relevant document and contain an answer, with grade 1."""
        return {
            passage.doc_id: 1
            for passage, sources in zip(self.passages, self.sources, strict=True)
            if sources & relevant_ids and holds_answer(passage.text, answers)
        }


def drawn_lengths(words: tuple[int, int], mean: float, rng: np.random.Generator) -> Iterator[int]:
    """Draw lengths from low + (high - low) Beta(1, b), b so that they have the mean; all low if low is high."""
    low, high = words
    while True:
        yield low if low == high else round(low + (high - low) * rng.beta(1.0, (high - mean) / (mean - low)))


def main() -> None:
    """Cut, search, compare and write the results."""
    args = arguments()
    name, split = args.dataset.split(":")
    dataset = Dataset.open(args.data / name)
    ranges = list(zip(args.words[::2], args.words[1::2], strict=True))
    mean = sum(ranges[0]) / 2
    cuts = {f"{low} to {high} words" if low < high else f"{low} words": (low, high) for low, high in ranges}
    documents = list(dataset.corpus())
    columns = {label: Cut.of(documents, words, mean=mean, seed=args.seed) for label, words in cuts.items()}
    queries, qrels = judged(dataset, split, columns, args.answers)
    model = LightRetriever.load(args.model)
    weights = FullQueryEncoder(model, sparse=True).encode([query.text for query in queries]).sparse
    assert weights is not None  # asked for
    results = {
        label: {
            "BM25": evaluate(by_words(cut.passages, queries), qrels[label], MEASURES),
            "beta": evaluate(by_bags(model, weights, cut.passages, queries), qrels[label], MEASURES),
        }
        for label, cut in columns.items()
    }
    page = table(results, columns, name)
    record = {
        "provenance": provenance(),
        "queries": len(queries),
        "passages": {label: len(cut.passages) for label, cut in columns.items()},
        name: {label: {s: dict(r.measures) for s, r in by_search.items()} for label, by_search in results.items()},
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")
    args.out.with_suffix(".md").write_text(page + "\n")
    print(f"{len(queries)} queries\n\n{page}")


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", metavar="NAME:SPLIT", help="BEIR folder inside DATA, whose queries have answers")
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--model", required=True, help="SiDR model, which encodes the queries")
    parser.add_argument(
        "--words", type=int, nargs="+", default=[100, 100, 50, 200], help="shortest and longest passage of each cut"
    )
    parser.add_argument("--answers", nargs="*", default=[], help="answers of queries that have none")
    parser.add_argument("--seed", type=int, default=0, help="seed of the lengths (default %(default)s)")
    parser.add_argument("--out", type=Path, required=True, help="path of the result files, without suffix")
    return parser.parse_args()


def judged(
    dataset: Dataset, split: str, columns: dict[str, Cut], default: Sequence[str]
) -> tuple[list[Query], dict[str, Qrels]]:
    """Return the queries that have a relevant passage in every cut, and the qrels of each cut."""
    known = dataset.qrels(split)
    queries: list[Query] = []
    qrels: dict[str, Qrels] = {label: {} for label in columns}
    for query in dataset.queries(split):
        relevant_ids = frozenset(doc_id for doc_id, grade in known[query.query_id].items() if grade > 0)
        answers = [str(answer) for answer in query.metadata.get("answers", default)]
        relevant = {label: cut.relevant(relevant_ids, answers) for label, cut in columns.items()}
        if all(relevant.values()):
            queries.append(query)
            for label, grades in relevant.items():
                qrels[label][query.query_id] = grades
    return queries, qrels


def by_words(passages: Sequence[Document], queries: Sequence[Query]) -> Run:
    """Return the ten best passages of each query by BM25."""
    with tempfile.TemporaryDirectory() as folder:
        with IndexWriter.create(Path(folder) / "i", options=IndexOptions(analyzer="english")) as writer:
            writer.add(passages)
        with Index.open(Path(folder) / "i") as index:
            return Searcher(index).search(queries, 10)


def by_bags(
    model: LightRetriever, weights: SparseVectors, passages: Sequence[Document], queries: Sequence[Query]
) -> Run:
    """Return the ten best passages of each query by <V(q), V_BoT(d)>, from the queries' weights."""
    rows = bag_term_ids(model.backbone.tokenizer, model.contract.document, passages)
    counts = SparseVectors.count(rows, vocab_size=model.backbone.vocab_size)
    bags = counts.with_weights(np.ones(len(counts.term_ids), dtype=np.uint8))
    bounds, doc_ords, scores = KernelSearch(bags).top_of(weights, k=10)
    spans = itertools.pairwise(bounds.tolist())
    return {
        query.query_id: Ranking(
            query.query_id, [passages[i].doc_id for i in doc_ords[a:b].tolist()], scores[a:b].astype(np.float64)
        )
        for query, (a, b) in zip(queries, spans, strict=True)
    }


def table(results: dict[str, dict[str, EvaluationResult]], columns: dict[str, Cut], name: str) -> str:
    """Return a table with a row per search and a column per cut, marked against the first cut."""
    first = next(iter(results))
    lines = [f"| search | {' | '.join(results)} |", f"|---|{'---:|' * len(results)}"]
    lines.append(f"| number of passages | {' | '.join(str(len(cut.passages)) for cut in columns.values())} |")
    for search in results[first]:
        compared = compare({label: {name: by_search[search]} for label, by_search in results.items()}, reference=first)
        cells = [
            f"{result.measures['nDCG@10']:.3f} ({result.measures['Success@1']:.3f}){compared.mark(label, name)}"
            for label, result in ((label, by_search[search]) for label, by_search in results.items())
        ]
        lines.append(f"| {search} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
