"""Measure encoding on demand: nDCG@10 of late search, and of a worker that follows past queries.

    python recipes/measure_late.py --out docs/results/late \
        "scifact, MiniLM=DATA/scifact:VECTORS" "nfcorpus, MiniLM=DATA/nfcorpus:VECTORS" …

VECTORS is the folder that `lightir encode` wrote for the data set's corpus; documents are "encoded" by looking them up
there. All documents are added as text.

Late search: the test queries run one after the other, in a random order for each seed. Each query encodes the pending
documents among its m best ones by tokens and is then ranked with the default mode. A second pass encodes nothing.

Demand: the training queries run by tokens and record demand for their results. Documents are encoded in the order in
which a worker claims them; the test queries run after each share. Writes OUT.json.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from lightir.data import Dataset
from lightir.eval import evaluate
from lightir.index import Index, IndexWriter
from lightir.pending.demand import DEMAND_TOP, Demand
from lightir.pending.queue import Queue
from lightir.provenance import provenance
from lightir.search import LateOptions, LateSearcher, Searcher, SearchOptions
from lightir.shards import Shard, VectorsReader
from lightir.types import Document, Query, Run

SMALLEST = "tiny={data}/tiny:{vectors} --seeds 1 --out {out}/found"
DEPTHS = (5, 20, 100)
SHARES = (0.1, 0.25, 0.5, 0.75)
MEASURE = "nDCG@10"
NO_LIMIT_MS = 1e9


class Stored:
    """A document encoder that looks up stored vectors."""

    def __init__(self, reader: VectorsReader) -> None:
        shards = list(reader)
        self.contract = reader.contract
        self.documents = [document for shard in shards for document in shard.documents]
        self._vectors = Shard.concatenate(shards)
        self._rows = {document.doc_id: row for row, document in enumerate(self.documents)}

    def encode(self, documents: Sequence[Document]) -> Shard:
        """Return the documents with their stored vectors."""
        return self._vectors.take(np.array([self._rows[document.doc_id] for document in documents]))


def main() -> None:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("collections", nargs="+", metavar="LABEL=BEIR_FOLDER:VECTORS")
    parser.add_argument("--seeds", type=int, default=3, help="number of random query orders (default %(default)s)")
    parser.add_argument("--out", type=Path, required=True, help="path of the result file, without suffix")
    args = parser.parse_args()
    record: dict[str, Any] = {"provenance": provenance(), "measure": MEASURE, "seeds": args.seeds, "collections": {}}
    for text in args.collections:
        label, paths = text.split("=", 1)
        folder, vectors = map(Path, paths.rsplit(":", 1))
        result = measured(Dataset.open(folder), vectors, args.seeds)
        record["collections"][label] = result
        print(label, json.dumps(result), flush=True)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")


def measured(dataset: Dataset, vectors: Path, n_seeds: int) -> dict[str, Any]:
    """Measure late search at each depth (mean over seeds) and demand at each share."""
    encoder = Stored(VectorsReader(vectors))
    late = {}
    for m in DEPTHS:
        seeds = [one_pass(dataset, vectors, encoder, m, seed) for seed in range(n_seeds)]
        late[m] = {name: round(float(np.mean([result[name] for result in seeds])), 4) for name in seeds[0]}
    return {"documents": len(encoder.documents), "late": late, "demand": by_demand(dataset, vectors, encoder)}


@contextmanager
def pending(vectors: Path, encoder: Stored) -> Iterator[Path]:
    """Create an index of all documents without vectors."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "index"
        with IndexWriter.create(path, contract=encoder.contract, query_encoder=vectors / "query-encoder") as writer:
            writer.add(encoder.documents)
        yield path


def one_pass(dataset: Dataset, vectors: Path, encoder: Stored, m: int, seed: int) -> dict[str, float]:
    """Run every query with late search, then again without."""
    queries = list(dataset.queries("test"))
    order = np.random.default_rng(seed).permutation(len(queries))
    with pending(vectors, encoder) as folder, Index.open(folder) as index:
        searcher = Searcher(index)
        late = LateSearcher(searcher, encoder, LateOptions(m=m, budget_ms=NO_LIMIT_MS))
        first: Run = {}
        for number in tqdm(order.tolist(), f"{dataset.name}, m = {m}", disable=None):
            late.encode_for(queries[number].text)
            first |= searcher.search([queries[number]], 10)
        share = 1 - index.info().pending / len(index)
        return {"first": value(dataset, first), "again": value(dataset, searcher.search(queries, 10)), "encoded": share}


def by_demand(dataset: Dataset, vectors: Path, encoder: Stored) -> dict[str, float]:
    """Measure the test queries at each share, with the documents that training queries demand encoded first."""
    past: list[Query] = list(dataset.queries("train"))
    with pending(vectors, encoder) as folder:
        with Index.open(folder) as index, Demand(folder) as demand:
            best = Searcher(index, demand=demand).search(past, DEMAND_TOP, SearchOptions(mode="tokens"))
            asked = {doc_id for ranking in best.values() for doc_id in ranking.doc_ids}
        with Index.open(folder) as index, Queue.open(folder) as queue:
            documents = index.view.store.documents_of(queue.claim(index, len(index)).keys)
        values = {"asked_for": round(len(asked) / len(documents), 4)}
        order, done = list(documents.values()), 0
        for share in SHARES:
            upto = round(share * len(order))
            with IndexWriter.open(folder) as writer:
                shard = encoder.encode(order[done:upto])
                writer.set_vectors(shard.documents, dense=shard.dense, sparse=shard.sparse)
            done = upto
            with Index.open(folder) as index:
                run = Searcher(index).search(list(dataset.queries("test")), 10)
                values[str(share)] = round(value(dataset, run), 4)
    return values


def value(dataset: Dataset, run: Run) -> float:
    """Return the mean of the measure over the test queries."""
    return float(evaluate(run, dataset.qrels("test"), [MEASURE]).measures[MEASURE])


if __name__ == "__main__":
    main()
