"""Measure searches of long documents, whole and in passages, by BM25, dense vectors and both.

    python recipes/measure_passages.py medquad:test squadshifts:dev:5 --data DATA --work WORK --out RESULTS

NAME:SPLIT:N joins N consecutive documents of one title into one. Indexes stay in WORK, and a later run continues them.
A mark says that passages are better (+) or worse (-) than whole documents (paired randomization test, p < 0.05).
Writes RESULTS.json and RESULTS.md.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator
from pathlib import Path

from lightir.addresses import resolve_model_folder, resolve_query_encoder
from lightir.contract import Contract
from lightir.data import Dataset
from lightir.eval import EvaluationResult, compare, evaluate
from lightir.index import Index, IndexOptions, PassageOptions, build_index, document_shards
from lightir.pending import WorkOptions
from lightir.provenance import provenance
from lightir.runtime.model_encoder import encode_pending
from lightir.search import Searcher, SearchOptions
from lightir.types import Document, Qrels

SMALLEST = "tiny:test tiny:test:3 --data {data} --work {out}/work --out {out}/passages --model {model}"
MEASURES = ("nDCG@10", "R@100")
MODES = {"BM25": "tokens", "dense": "dense", "hybrid": "hybrid"}
WHOLE, PASSAGES = "whole", "passages"


def joined(dataset: Dataset, n: int) -> tuple[Iterator[Document], dict[str, str]]:
    """Return documents of n consecutive ones of a title, and the new id of each old one."""
    batches = [
        same[first : first + n]
        for _, group in itertools.groupby(dataset.corpus(), key=lambda document: document.title)
        for same in [list(group)]
        for first in range(0, len(same), n)
    ]
    new_ids = {document.doc_id: batch[0].doc_id for batch in batches for document in batch}
    documents = (Document(batch[0].doc_id, "\n\n".join(d.text for d in batch), batch[0].title) for batch in batches)
    return documents, new_ids


def main() -> None:
    """Build and encode the indexes, search them, and write the results."""
    args = arguments()
    rows: list[str] = []
    record = {}
    for chosen in args.datasets:
        name, split, *parts = chosen.split(":")
        dataset, n = Dataset.open(args.data / name), int(parts[0]) if parts else 1
        results: dict[str, dict[str, EvaluationResult]] = {}
        counts: dict[str, dict[str, int]] = {}
        for label in (WHOLE, PASSAGES):
            documents, new_ids = joined(dataset, n)
            folder = built(args.work / f"{name}-{n}-{label}", documents, args.model, split=label == PASSAGES)
            results[label], counts[label] = measured(folder, dataset, split, new_ids)
        record[chosen] = {
            **counts,
            **{label: {s: dict(r.measures) for s, r in results[label].items()} for label in results},
        }
        rows += table_rows(f"{name}, {split}" + f", {n} joined" * (n > 1), results, counts)
    head = "| collection | documents | of them split | passages | branch | whole | passages |"
    page = "\n".join([head, "|---|---:|---:|---:|---|---:|---:|", *rows])
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.with_suffix(".json").write_text(json.dumps({"provenance": provenance(), **record}, indent=1) + "\n")
    args.out.with_suffix(".md").write_text(page + "\n")
    print(page)


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", nargs="+", metavar="NAME:SPLIT[:N]", help="BEIR folders inside DATA")
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--work", type=Path, required=True, help="folder of the indexes")
    parser.add_argument("--model", default="minilm", help="model (default %(default)s)")
    parser.add_argument("--out", type=Path, required=True, help="path of the result files, without suffix")
    return parser.parse_args()


def built(folder: Path, documents: Iterator[Document], model: str, *, split: bool) -> Path:
    """Build an index if there is none, and encode its pending documents."""
    if not folder.is_dir():
        build_index(
            document_shards(documents),
            folder,
            options=IndexOptions(passages=PassageOptions() if split else None),
            contract=Contract.load(resolve_model_folder(model)),
            query_encoder=resolve_query_encoder(model),
        )
    encode_pending(folder, model, options=WorkOptions(once=True))
    return folder


def measured(
    folder: Path, dataset: Dataset, split: str, new_ids: dict[str, str]
) -> tuple[dict[str, EvaluationResult], dict[str, int]]:
    """Return each branch's result, and the counts of the index."""
    qrels: Qrels = {}
    for query_id, grades in dataset.qrels(split).items():
        for doc_id, grade in grades.items():
            new_id = new_ids.get(doc_id, doc_id)
            graded = qrels.setdefault(query_id, {})
            graded[new_id] = max(grade, graded.get(new_id, grade))
    with Index.open(folder) as index:
        searcher, info = Searcher(index), index.info()
        runs = {
            label: searcher.search(dataset.queries(split), 100, SearchOptions(mode=mode))
            for label, mode in MODES.items()
        }
        n_whole = len(index.view) - info.passages
    counts = {"documents": info.documents, "passages": info.passages, "split": info.documents - n_whole}
    return {label: evaluate(run, qrels, MEASURES) for label, run in runs.items()}, counts


def table_rows(
    name: str, results: dict[str, dict[str, EvaluationResult]], counts: dict[str, dict[str, int]]
) -> list[str]:
    """Return the table's rows of a collection."""
    numbers = [counts[WHOLE]["documents"], counts[PASSAGES]["split"], counts[PASSAGES]["passages"]]
    rows: list[str] = []
    for branch in MODES:
        compared = compare({label: {name: result[branch]} for label, result in results.items()}, reference=WHOLE)
        cells = [
            f"{result[branch].measures['nDCG@10']:.3f} ({result[branch].measures['R@100']:.3f})"
            f"{compared.mark(label, name)}"
            for label, result in results.items()
        ]
        first = [name, *(f"{number:,}" for number in numbers)] if not rows else [""] * 4
        rows.append(f"| {' | '.join([*first, branch, *cells])} |")
    return rows


if __name__ == "__main__":
    main()
