"""What encoding by demand gives: nDCG@10 of late search, and of a worker that goes by past queries.

    python recipes/measure_late.py --out docs/results/late \
        "scifact, MiniLM=DATA/scifact:VECTORS" "nfcorpus, MiniLM=DATA/nfcorpus:VECTORS" …

VECTORS is what `lightir encode` wrote of the data set's corpus; "encoding" looks documents up there. All documents are
put in as text.

Late: the test queries come one after the other, in a random order for each seed; each encodes the pending ones among
the m best documents that tokens find, for good, and is ranked with the default mode. Then all of them come again and
encode nothing.

Demand: the training queries are searched by tokens and ask for what they find; documents are encoded in the order in
which a worker claims them, and at each share the test queries are searched. OUT.json is written.
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
    """An encoder that has encoded everything before."""

    def __init__(self, reader: VectorsReader) -> None:
        shards = list(reader)
        self.contract = reader.contract
        self.documents = [document for shard in shards for document in shard.documents]
        self._vectors = Shard.concatenate(shards)
        self._places = {document.doc_id: place for place, document in enumerate(self.documents)}

    def encode(self, documents: Sequence[Document]) -> Shard:
        """What is stored of the documents."""
        return self._vectors.take(np.array([self._places[document.doc_id] for document in documents]))


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("collections", nargs="+", metavar="LABEL=BEIR_FOLDER:VECTORS")
    parser.add_argument("--seeds", type=int, default=3, help="orders of the queries (default %(default)s)")
    parser.add_argument("--out", type=Path, required=True, help="OUT, without an ending")
    args = parser.parse_args()
    record: dict[str, Any] = {"provenance": provenance(), "measure": MEASURE, "seeds": args.seeds, "collections": {}}
    for text in args.collections:
        label, places = text.split("=", 1)
        folder, vectors = map(Path, places.rsplit(":", 1))
        found = measured(Dataset.open(folder), vectors, args.seeds)
        record["collections"][label] = found
        print(label, json.dumps(found), flush=True)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")


def measured(dataset: Dataset, vectors: Path, n_seeds: int) -> dict[str, Any]:
    """Late search at each depth, the mean of the seeds; and demand at each share."""
    encoder = Stored(VectorsReader(vectors))
    late = {}
    for m in DEPTHS:
        seeds = [one_pass(dataset, vectors, encoder, m, seed) for seed in range(n_seeds)]
        late[m] = {name: round(float(np.mean([each[name] for each in seeds])), 4) for name in seeds[0]}
    return {"documents": len(encoder.documents), "late": late, "demand": by_demand(dataset, vectors, encoder)}


@contextmanager
def pending(vectors: Path, encoder: Stored) -> Iterator[Path]:
    """An index of all documents without their vectors."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "index"
        with IndexWriter.create(path, contract=encoder.contract, query_encoder=vectors / "query-encoder") as writer:
            writer.add(encoder.documents)
        yield path


def one_pass(dataset: Dataset, vectors: Path, encoder: Stored, m: int, seed: int) -> dict[str, float]:
    """Every query once with late search, then again without."""
    queries = list(dataset.queries("test"))
    order = np.random.default_rng(seed).permutation(len(queries))
    with pending(vectors, encoder) as folder, Index.open(folder) as index:
        searcher = Searcher(index)
        late = LateSearcher(searcher, encoder, LateOptions(m=m, budget_ms=NO_LIMIT_MS))
        first: Run = {}
        for place in tqdm(order.tolist(), f"{dataset.name}, m = {m}", disable=None):
            late.encode_for(queries[place].text)
            first |= searcher.search([queries[place]], 10)
        share = 1 - index.info().pending / len(index)
        return {"first": value(dataset, first), "again": value(dataset, searcher.search(queries, 10)), "encoded": share}


def by_demand(dataset: Dataset, vectors: Path, encoder: Stored) -> dict[str, float]:
    """The test queries' value at each share, when documents that the training queries list are encoded first."""
    past: list[Query] = list(dataset.queries("train"))
    with pending(vectors, encoder) as folder:
        with Index.open(folder) as index, Demand(folder) as demand:
            best = Searcher(index, demand=demand).search(past, DEMAND_TOP, SearchOptions(mode="tokens"))
            asked = {doc_id for ranking in best.values() for doc_id in ranking.doc_ids}
        with Index.open(folder) as index, Queue.open(folder) as queue:
            documents = index.view.store.documents_of(queue.claim(index, len(index)).keys)
        found = {"asked_for": round(len(asked) / len(documents), 4)}
        order, done = list(documents.values()), 0
        for share in SHARES:
            upto = round(share * len(order))
            with IndexWriter.open(folder) as writer:
                shard = encoder.encode(order[done:upto])
                writer.set_vectors(shard.documents, dense=shard.dense, sparse=shard.sparse)
            done = upto
            with Index.open(folder) as index:
                run = Searcher(index).search(list(dataset.queries("test")), 10)
                found[str(share)] = round(value(dataset, run), 4)
    return found


def value(dataset: Dataset, run: Run) -> float:
    """The measure's mean over the test queries."""
    return float(evaluate(run, dataset.qrels("test"), [MEASURE]).measures[MEASURE])


if __name__ == "__main__":
    main()
