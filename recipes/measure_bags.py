"""Measure beta search with bags cut to different lengths: nDCG@10 of a SiDR model on sets with long documents.

    python recipes/measure_bags.py --data DATA --out RESULTS medquad:dev nfcorpus:dev --model "label=MODEL" …

A data set is NAME:SPLIT. Queries go through the model. Bags hold a document's first tokens, or all of them for 0; the
model is not trained again for each length. "mark" compares a model with the first one at the same length: + or - for
significantly better or worse nDCG@10 (paired randomization test, p < 0.05 after Holm's correction). Writes
RESULTS.json and prints each set's results.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lightir.data import Dataset
from lightir.encode.full_queries import FullQueryEncoder
from lightir.eval import EvaluationResult, compare, evaluate
from lightir.index.intake import bag_term_ids
from lightir.models.encoder import LightRetriever
from lightir.provenance import provenance
from lightir.train.mining.bag_search import KernelSearch
from lightir.types import Document, Query, Ranking, Run
from lightir.vectors import SparseVectors

SMALLEST = "tiny:test --data {data} --out {out}/found --model whole={model} --model same={model} --lengths 0 4"
MEASURES = ("nDCG@10", "Success@1")


def main() -> None:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+", metavar="NAME:SPLIT")
    parser.add_argument("--data", type=Path, required=True, help="folder of the BEIR folders")
    parser.add_argument("--model", action="append", required=True, metavar="LABEL=FOLDER", help="SiDR model to measure")
    parser.add_argument(
        "--lengths", type=int, nargs="+", default=[0, 62, 126, 254, 510], help="lengths of bags (default %(default)s)"
    )
    parser.add_argument("--out", type=Path, required=True, help="path of the result file, without suffix")
    args = parser.parse_args()
    record: dict[str, Any] = {"provenance": provenance(), "measures": MEASURES, "sets": {}}
    for text in args.sets:
        name, split = text.split(":")
        dataset = Dataset.open(args.data / name)
        documents = sorted(dataset.corpus(), key=lambda document: document.doc_id)
        evaluations, cuts = {}, {}
        for labeled in args.model:
            label, folder = labeled.split("=", 1)
            model = LightRetriever.load(folder)
            evaluations[label], cuts[label] = measured(model, dataset, split, documents, args.lengths)
        results = as_numbers(evaluations, cuts)
        print(text, json.dumps(results), flush=True)
        record["sets"][text] = results
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")


def measured(
    model: LightRetriever, dataset: Dataset, split: str, documents: Sequence[Document], lengths: Sequence[int]
) -> tuple[dict[int, EvaluationResult], dict[int, float]]:
    """Return the evaluation by length of bags, and the share of documents that each length cuts."""
    queries = list(dataset.queries(split))
    weights = FullQueryEncoder(model, sparse=True).encode([query.text for query in queries]).sparse
    assert weights is not None  # asked for
    policy, tokenizer = model.contract.document, model.backbone.tokenizer
    evaluations, cuts = {}, {}
    whole = bag_term_ids(tokenizer, dataclasses.replace(policy, bag_tokens=0), documents).lengths
    for length in lengths:
        rows = bag_term_ids(tokenizer, dataclasses.replace(policy, bag_tokens=length), documents)
        bags = SparseVectors.count(rows, vocab_size=model.backbone.vocab_size)
        run = searched(bags.with_weights(np.ones(len(bags.term_ids), dtype=np.uint8)), weights, queries, documents)
        evaluations[length] = evaluate(run, dataset.qrels(split), MEASURES)
        cuts[length] = float((whole > length).mean()) if length else 0.0
    return evaluations, cuts


def as_numbers(
    evaluations: dict[str, dict[int, EvaluationResult]], cuts: dict[str, dict[int, float]]
) -> dict[str, dict[str, dict[str, Any]]]:
    """Return each model's means, cuts and marks by length."""
    first = next(iter(evaluations))
    results: dict[str, dict[str, dict[str, Any]]] = {label: {} for label in evaluations}
    for length in evaluations[first]:
        columns = {label: {"set": by_length[length]} for label, by_length in evaluations.items()}
        compared = compare(columns, reference=first)
        for label, column in columns.items():
            means = {name: round(value, 4) for name, value in column["set"].measures.items()}
            mark = compared.mark(label, "set") if label != first else ""
            results[label][str(length)] = {**means, "cut": round(cuts[label][length], 3), "mark": mark}
    return results


def searched(
    bags: SparseVectors, weights: SparseVectors, queries: Sequence[Query], documents: Sequence[Document]
) -> Run:
    """Return the ten best documents of each query by <V(q), V_BoT(d)>."""
    bounds, doc_ords, scores = KernelSearch(bags).top_of(weights, k=10)
    return {
        query.query_id: Ranking(
            query.query_id, [documents[i].doc_id for i in doc_ords[a:b].tolist()], scores[a:b].astype(np.float64)
        )
        for query, (a, b) in zip(queries, itertools.pairwise(bounds.tolist()), strict=True)
    }


if __name__ == "__main__":
    main()
