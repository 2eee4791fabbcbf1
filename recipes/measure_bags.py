"""Measure beta search with bags cut to different lengths: nDCG@10 of a SiDR model on sets with long documents.

    python recipes/measure_bags.py --data DATA --out RESULTS medquad:dev nfcorpus:dev --model "label=MODEL" …

A data set is NAME:SPLIT. Queries go through the model. Bags hold a document's first tokens, or all of them for 0; the
model is not trained again for each length. Writes RESULTS.json and prints a table.
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
from lightir.eval import evaluate
from lightir.index.intake import bag_term_ids
from lightir.models.encoder import LightRetriever
from lightir.provenance import provenance
from lightir.train.mining.bag_search import KernelSearch
from lightir.types import Document, Query, Ranking, Run
from lightir.vectors import SparseVectors

SMALLEST = "tiny:test --data {data} --out {out}/found --model whole={model} --lengths 0 4"
MEASURE = "nDCG@10"


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
    record: dict[str, Any] = {"provenance": provenance(), "measure": MEASURE, "sets": {}}
    for text in args.sets:
        name, split = text.split(":")
        dataset = Dataset.open(args.data / name)
        documents = sorted(dataset.corpus(), key=lambda document: document.doc_id)
        results = {}
        for labeled in args.model:
            label, folder = labeled.split("=", 1)
            results[label] = measured(LightRetriever.load(folder), dataset, split, documents, args.lengths)
            print(text, label, json.dumps(results[label]), flush=True)
        record["sets"][text] = results
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")


def measured(
    model: LightRetriever, dataset: Dataset, split: str, documents: Sequence[Document], lengths: Sequence[int]
) -> dict[str, Any]:
    """Return the measure by length of bags, and the share of documents that each length cuts."""
    queries = list(dataset.queries(split))
    weights = FullQueryEncoder(model, sparse=True).encode([query.text for query in queries]).sparse
    assert weights is not None  # asked for
    policy, tokenizer = model.contract.document, model.backbone.tokenizer
    by_length: dict[str, Any] = {}
    whole = bag_term_ids(tokenizer, dataclasses.replace(policy, bag_tokens=0), documents).lengths
    for length in lengths:
        rows = bag_term_ids(tokenizer, dataclasses.replace(policy, bag_tokens=length), documents)
        bags = SparseVectors.count(rows, vocab_size=model.backbone.vocab_size)
        run = searched(bags.with_weights(np.ones(len(bags.term_ids), dtype=np.uint8)), weights, queries, documents)
        value = float(evaluate(run, dataset.qrels(split), [MEASURE]).measures[MEASURE])
        cut = float((whole > length).mean()) if length else 0.0
        by_length[str(length)] = {MEASURE: round(value, 4), "cut": round(cut, 3)}
    return by_length


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
