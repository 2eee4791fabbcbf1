"""Measure encoding on demand: nDCG@10 of late search, and of a worker that follows past queries.

    python recipes/measure_late.py --model minilm --out docs/results/late \
        "scifact, MiniLM=DATA/scifact:VECTORS" "nfcorpus, MiniLM=DATA/nfcorpus:VECTORS" …

VECTORS is the folder that `lightir encode` wrote for the data set's corpus; documents are "encoded" by looking them up
there. All documents are added as text. MODEL encodes the queries of late search and of full search, which ranks all
documents by the same inner product.

Late search: the test queries run one after the other. Each encodes the pending documents among its m best ones by BM25
and orders them by <V(q), V(d)>. What a query returns does not depend on earlier queries. A second pass orders the same
documents by the default fusion with model-free queries.

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
from lightir.encode.full_queries import FullQueryEncoder
from lightir.eval import evaluate
from lightir.index import Index, IndexWriter
from lightir.pending.demand import DEMAND_TOP, Demand
from lightir.pending.queue import Queue
from lightir.provenance import provenance
from lightir.search import LateOptions, LateSearcher, OwnStage, Searcher, SearchOptions
from lightir.shards import Shard, VectorsReader
from lightir.types import Document, Query, Run
from lightir.vectors import QueryVectors, Ragged

SMALLEST = "tiny={data}/tiny:{vectors} --model {model} --out {out}/found"
DEPTHS = (5, 20, 100)
SHARES = (0.1, 0.25, 0.5, 0.75)
MEASURE = "nDCG@10"


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


class Known:
    """A query encoder that runs the model once for all queries."""

    def __init__(self, encoder: FullQueryEncoder, queries: Sequence[Query]) -> None:
        self.document_fingerprint = encoder.document_fingerprint
        self._rows = {query.text: row for row, query in enumerate(queries)}
        self._vectors = encoder.encode([query.text for query in queries])

    def encode(self, texts: Sequence[str], *, task: str | None = None) -> QueryVectors:
        """Return the vectors of texts that are among the queries."""
        del task
        rows = np.array([self._rows[text] for text in texts], dtype=np.int64)
        vectors = self._vectors
        term_ids = Ragged.from_lists([vectors.term_ids.row(row).tolist() for row in rows])
        dense = None if vectors.dense is None else vectors.dense[rows]
        return QueryVectors(term_ids, dense, None if vectors.sparse is None else vectors.sparse.take(rows))


def main() -> None:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("collections", nargs="+", metavar="LABEL=BEIR_FOLDER:VECTORS")
    parser.add_argument("--model", required=True, help="model of the vectors, for the queries of late and full search")
    parser.add_argument("--out", type=Path, required=True, help="path of the result file, without suffix")
    args = parser.parse_args()
    record: dict[str, Any] = {"provenance": provenance(), "measure": MEASURE, "collections": {}}
    for text in args.collections:
        label, paths = text.split("=", 1)
        folder, vectors = map(Path, paths.rsplit(":", 1))
        result = measured(Dataset.open(folder), vectors, args.model)
        record["collections"][label] = result
        print(label, json.dumps(result), flush=True)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")


def measured(dataset: Dataset, vectors: Path, model: str) -> dict[str, Any]:
    """Measure late search at each depth, search of all documents, and demand at each share."""
    encoder = Stored(VectorsReader(vectors))
    queries = Known(FullQueryEncoder.load(model, fitting=encoder.contract), list(dataset.queries("test")))
    return {
        "documents": len(encoder.documents),
        "late": {m: late_search(dataset, vectors, encoder, queries, m) for m in DEPTHS},
        "all": full_search(dataset, vectors, encoder, queries),
        "demand": by_demand(dataset, vectors, encoder),
    }


@contextmanager
def pending(vectors: Path, encoder: Stored) -> Iterator[Path]:
    """Create an index of all documents without vectors."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "index"
        with IndexWriter.create(path, contract=encoder.contract, query_encoder=vectors / "query-encoder") as writer:
            writer.add(encoder.documents)
        yield path


def late_search(dataset: Dataset, vectors: Path, encoder: Stored, queries: Known, m: int) -> dict[str, float]:
    """Run every query with late search, ordered by <V(q), V(d)>, and by the default fusion with model-free queries."""
    test = list(dataset.queries("test"))
    with pending(vectors, encoder) as folder, Index.open(folder) as index:
        searcher = Searcher(index, queries)
        run: Run = {}
        for query in tqdm(test, f"{dataset.name}, m = {m}", disable=None):
            late = LateSearcher(searcher, OwnStage(searcher, encoder), LateOptions(m=m))
            run |= late.search([query], 10)[0]
        share = 1 - index.info().pending / len(index)
        light = Searcher(index)
        fused = LateSearcher(light, OwnStage(light, encoder, mode="hybrid"), LateOptions(m=m)).search(test, 10)[0]
        values = {"full": value(dataset, run), "hybrid": value(dataset, fused), "encoded": share}
        return {name: round(number, 4) for name, number in values.items()}


def full_search(dataset: Dataset, vectors: Path, encoder: Stored, queries: Known) -> dict[str, float]:
    """Rank all documents by <V(q), V(d)>, by BM25, and by the default fusion with model-free queries."""
    test = list(dataset.queries("test"))
    with pending(vectors, encoder) as folder:
        with IndexWriter.open(folder) as writer:
            shard = encoder.encode(encoder.documents)
            writer.set_vectors(shard.documents, dense=shard.dense, sparse=shard.sparse)
        with Index.open(folder) as index:
            runs = {
                "full": Searcher(index, queries).search(test, 10, SearchOptions(mode="full")),
                "tokens": Searcher(index).search(test, 10, SearchOptions(mode="tokens")),
                "hybrid": Searcher(index).search(test, 10),
            }
    return {name: round(value(dataset, run), 4) for name, run in runs.items()}


def by_demand(dataset: Dataset, vectors: Path, encoder: Stored) -> dict[str, float]:
    """Measure the test queries at each share, with the documents that training queries demand encoded first."""
    past: list[Query] = list(dataset.queries("train"))
    with pending(vectors, encoder) as folder:
        with Index.open(folder) as index, Demand(folder) as demand:
            best = Searcher(index, demand=demand).search(past, DEMAND_TOP, SearchOptions(mode="tokens"))
            asked = {doc_id for ranking in best.values() for doc_id in ranking.doc_ids}
        with Index.open(folder) as index, Queue.open(folder) as queue:
            documents = index.view.store.documents.of(queue.claim(index, len(index)).keys)
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
