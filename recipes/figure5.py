"""Measure a model at every dense width and number of sparse terms: LightRetriever's Figure 5.

    lightir encode MODEL DATA/scifact --out vectors/scifact
    python recipes/figure5.py --work WORK --out RESULTS "scifact=DATA/scifact:vectors/scifact" …

A collection is NAME=DATASET:VECTORS. VECTORS is the folder that `lightir encode` wrote for the data set's corpus, with
a query encoder and at least as many terms of a document as the largest number (heads.top_k in the model's recipe; 0
keeps all). Each cell builds an index from the vectors, with --dense-dim and --sparse-top-k. Writes RESULTS.json and
RESULTS.md: nDCG@10 of the dense branch by width, of the sparse branch by number of terms, and of their hybrid in the
model's own fusion for every pair, means over the collections; and megabytes of the branches' files, sums over them.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from lightir.contract import Contract
from lightir.data import Dataset
from lightir.files import write_bytes, write_json
from lightir.index import Index, IndexOptions, build_index
from lightir.provenance import provenance
from lightir.search import Searcher
from lightir.search.index_evaluation import evaluate_index
from lightir.shards import VectorsReader

SMALLEST = "tiny={data}/tiny:{vectors} --work {out}/work --out {out}/found --dims 32 8 --terms 20 5"
SIZES = (128, 256, 512, 1024, 2048, 4096)
MEASURE = "nDCG@10"
MODES = {"dense": "dense", "sparse": "sparse", "hybrid": "dense+sparse"}


@dataclass(frozen=True, slots=True)
class Cell:
    """Measures of one width and number of terms on one collection.

    Attributes:
        dim: number of dense columns.
        terms: maximum number of sparse terms of a document.
        quality: nDCG@10 by branch, and of the hybrid.
        megabytes: size of the branches' files.
    """

    dim: int
    terms: int
    quality: Mapping[str, float]
    megabytes: Mapping[str, float]


def main() -> None:
    """Measure every cell and write the tables."""
    args = arguments()
    cells: dict[str, list[Cell]] = {}
    for text in args.collections:
        name, dataset, vectors = parsed(text)
        contract = VectorsReader(vectors).contract
        dims = args.dims or widths(contract)
        require_terms(contract, args.terms, vectors)
        pairs = [(dim, terms) for dim in dims for terms in args.terms]
        cells[name] = [measured(dataset, vectors, pair, args.work / "index", args.split) for pair in pairs]
        print(
            name, {f"{cell.dim} x {cell.terms}": round(cell.quality["hybrid"], 4) for cell in cells[name]}, flush=True
        )
    if len({tuple(cell.dim for cell in own) for own in cells.values()}) > 1:
        raise SystemExit("the collections' models have different widths: give --dims")
    grid = joined(list(cells.values()))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    record = {"provenance": provenance(), "measure": MEASURE, "split": args.split, "collections": sorted(cells)}
    write_json(args.out.with_suffix(".json"), record | {"cells": [vars_of(cell) for cell in grid]})
    write_bytes(args.out.with_suffix(".md"), table(grid).encode())


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("collections", nargs="+", metavar="NAME=DATASET:VECTORS", help="collections to average over")
    parser.add_argument("--work", type=Path, required=True, help="folder for the index of the present cell")
    parser.add_argument("--out", type=Path, required=True, help="path of the result files, without suffix")
    parser.add_argument("--split", default="test", help="split with the queries (default %(default)s)")
    parser.add_argument(
        "--dims",
        type=int,
        nargs="+",
        metavar="N",
        help="dense widths (default: the widths that the model was trained at)",
    )
    parser.add_argument(
        "--terms", type=int, nargs="+", metavar="N", default=SIZES, help="numbers of sparse terms (default 128 to 4096)"
    )
    return parser.parse_args()


def parsed(text: str) -> tuple[str, Path, Path]:
    """Parse NAME=DATASET:VECTORS."""
    name, equals, rest = text.partition("=")
    dataset, colon, vectors = rest.rpartition(":")
    if not (equals and colon and name and dataset and vectors):
        raise SystemExit(f"{text!r}: expected NAME=DATASET:VECTORS")
    return name, Path(dataset), Path(vectors)


def widths(contract: Contract) -> Sequence[int]:
    """Return the widths that the model was trained at, widest first."""
    if contract.dense is None or not contract.dense.dims:
        raise SystemExit("the model records no Matryoshka widths (losses.dims in its recipe): give --dims")
    return contract.dense.dims


def require_terms(contract: Contract, terms: Sequence[int], vectors: Path) -> None:
    """Refuse vectors whose documents were cut to fewer terms when they were encoded."""
    kept = 0 if contract.sparse is None else contract.sparse.top_k
    if contract.sparse is None or 0 < kept < max(terms):
        raise SystemExit(
            f"{vectors} keeps {kept} terms of a document, fewer than {max(terms)}: encode with a model whose recipe "
            "has heads.top_k 0, or give smaller --terms"
        )


def measured(dataset: Path, vectors: Path, pair: tuple[int, int], index: Path, split: str) -> Cell:
    """Build an index of one width and number of terms, and measure it."""
    dim, terms = pair
    build_index(vectors, index, options=IndexOptions(dense_dim=dim, sparse_top_k=terms, analyzer=None), overwrite=True)
    with Index.open(index) as opened:
        report = evaluate_index(
            Searcher(opened), Dataset.open(dataset), split, modes=list(MODES.values()), measures=[MEASURE]
        )
    quality = {name: report.systems[mode].measures[MEASURE] for name, mode in MODES.items()}
    sizes = {
        name: sum(path.stat().st_size for path in index.rglob(f"{name}.bin")) / 1e6 for name in ("dense", "sparse")
    }
    return Cell(dim, terms, quality, sizes)


def joined(collections: Sequence[Sequence[Cell]]) -> list[Cell]:
    """Join the collections' cells: means of measures, sums of sizes."""
    return [
        Cell(
            same[0].dim,
            same[0].terms,
            {name: fmean(cell.quality[name] for cell in same) for name in MODES},
            {name: sum(cell.megabytes[name] for cell in same) for name in same[0].megabytes},
        )
        for same in zip(*collections, strict=True)
    ]


def vars_of(cell: Cell) -> dict[str, Any]:
    """Return a cell as a JSON object."""
    return {"dim": cell.dim, "terms": cell.terms, MEASURE: dict(cell.quality), "megabytes": dict(cell.megabytes)}


def table(grid: Sequence[Cell]) -> str:
    """Return the grid as a Markdown table: a row for each width, a column for each number of terms."""
    dims, terms = (list(dict.fromkeys(getattr(cell, name) for cell in grid)) for name in ("dim", "terms"))
    by_pair = {(cell.dim, cell.terms): cell for cell in grid}
    head = ["hybrid", *(f"{n} terms" for n in terms), "dense", "dense MB"]
    rows = [
        [f"{dim} columns"]
        + [f"{by_pair[dim, n].quality['hybrid']:.4f}" for n in terms]
        + [f"{by_pair[dim, terms[0]].quality['dense']:.4f}", f"{by_pair[dim, terms[0]].megabytes['dense']:.2f}"]
        for dim in dims
    ]
    columns = [by_pair[dims[0], n] for n in terms]
    rows.append(["sparse", *(f"{cell.quality['sparse']:.4f}" for cell in columns), "", ""])
    rows.append(["sparse MB", *(f"{cell.megabytes['sparse']:.2f}" for cell in columns), "", ""])
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    main()
