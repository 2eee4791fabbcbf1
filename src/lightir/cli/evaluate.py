"""Measure an index, or a model on a whole data set, on a BEIR folder: one line a mode, differences tested in pairs.

A model is used to encode the data set's corpus first; --work keeps the vectors and the index for the next time.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lightir.cli.pipeline import encode_documents, index_vectors
from lightir.cli.terminal import MODEL_HELP, add_json, duration, positive, print_json, say, table

if TYPE_CHECKING:
    from lightir.data import Dataset
    from lightir.eval import Evaluation
    from lightir.index import Index

HELP = "measure an index or a model on a BEIR folder (needs the extra `eval`)"
EXAMPLES = """
  lightir evaluate index --dataset scifact/
  lightir evaluate index --dataset nfcorpus/ --split dev --modes hybrid,dense,tokens --run-dir runs --json
  lightir evaluate minilm --dataset scifact/ --work scifact-minilm
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("target", metavar="INDEX_OR_MODEL", help=f"an index of the data set's corpus, or {MODEL_HELP}")
    parser.add_argument("--dataset", required=True, metavar="DIR", help="a BEIR folder")
    parser.add_argument("--split", default="test", help="whose judgements (default %(default)s)")
    parser.add_argument(
        "--modes", type=lambda text: text.split(","), metavar="A,B,…", help="default: all that there are"
    )
    parser.add_argument(
        "--measures", type=lambda text: text.split(","), metavar="A,B,…", help="names as ir-measures has them"
    )
    parser.add_argument(
        "-k", type=positive, default=100, metavar="N", help="depth of the rankings (default %(default)s)"
    )
    parser.add_argument("--task", metavar="NAME", help="the query table to use (default: the encoder's first)")
    parser.add_argument(
        "--exclude-same-id", action="store_true", help="drop hits whose id is the query's (ArguAna, Quora)"
    )
    parser.add_argument("--run-dir", metavar="DIR", help="write each mode's TREC run here")
    parser.add_argument("--work", metavar="DIR", help="for a model: keep vectors and index here")
    parser.add_argument("--threads", type=positive, default=1, metavar="N", help="for searching (default %(default)s)")
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    """Search the split's queries in each mode, measure and print."""
    from lightir.data import Dataset
    from lightir.index import Index

    dataset = Dataset.open(args.dataset)
    with tempfile.TemporaryDirectory() as folder, Index.open(index_of(args, dataset, Path(folder))) as index:
        start = time.perf_counter()
        systems = measure(index, dataset, args)
        seconds = time.perf_counter() - start
    if args.json:
        n_queries = next(iter(systems.values())).n_queries
        shown = {mode: dict(each.measures) for mode, each in systems.items()}
        print_json(
            {"dataset": dataset.name, "split": args.split, "n_queries": n_queries, "systems": shown, "seconds": seconds}
        )
    else:
        print_table(systems, dataset.name, args.split, seconds)


def index_of(args: argparse.Namespace, dataset: Dataset, scratch: Path) -> Path:
    """The index named, or one made with the model named."""
    from lightir.addresses import resolve_model_folder
    from lightir.index.store import STORE_FILE

    if Path(args.target, STORE_FILE).is_file():
        return Path(args.target)
    resolve_model_folder(args.target)
    home = Path(args.work) if args.work else scratch
    if not (home / "index").exists():
        encode_documents(args.target, dataset.corpus(), home / "vectors", n_documents=len(dataset))
        index_vectors([home / "vectors"], home / "index")
    return home / "index"


def measure(index: Index, dataset: Dataset, args: argparse.Namespace) -> dict[str, Evaluation]:
    """Each mode's evaluation; runs are written on the way where they are wanted."""
    from lightir.eval import DEFAULT_MEASURES, evaluate, write_run
    from lightir.search import Searcher

    searcher = Searcher(index, task=args.task, threads=args.threads)
    queries, qrels = list(dataset.queries(args.split)), dataset.qrels(args.split)
    systems = {}
    for mode in args.modes or all_modes(index.branches):
        found = searcher.search(queries, args.k, mode=mode, exclude_same_id=args.exclude_same_id)
        systems[mode] = evaluate(found, qrels, args.measures or DEFAULT_MEASURES)
        if args.run_dir:
            Path(args.run_dir).mkdir(parents=True, exist_ok=True)
            write_run(Path(args.run_dir, f"{dataset.name}.{args.split}.{mode}.trec"), found, tag=mode)
    return systems


def all_modes(branches: Sequence[str]) -> list[str]:
    """Hybrid where there are two branches, each branch alone, and all together where there are three."""
    together = ["+".join(branches)] if len(branches) > 2 else []
    return ["hybrid" if len(branches) > 1 else branches[0], *together, *(branches if len(branches) > 1 else ())]


def print_table(systems: dict[str, Evaluation], name: str, split: str, seconds: float) -> None:
    """One line a mode, and what differs from the first one significantly."""
    from lightir.eval import compare

    first = next(iter(systems))
    measures = list(systems[first].measures)
    rows = [["mode", *measures]]
    rows += [[mode, *(f"{each.measures[m]:.4f}" for m in measures)] for mode, each in systems.items()]
    print(f"{name} {split}: {systems[first].n_queries:,} queries")
    print(table(rows))
    if len(systems) > 1:
        compared = compare({mode: {name: each} for mode, each in systems.items()}, reference=first, measure=measures[0])
        marks = {mode: compared.mark(mode, name) for mode in systems}
        listed = [f"{mode} {'above' if mark == '+' else 'below'}" for mode, mark in marks.items() if mark]
        found = ", ".join(listed) or "no difference"
        print(f"  {measures[0]} against {first}, paired randomisation test, p < 0.05: {found}")
    say(f"searched and measured in {duration(seconds)}")
