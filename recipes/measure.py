"""Measure several models on several data sets: nDCG@10, the fraction of a reference, and significance.

    python recipes/measure.py --data DATA --work WORK --out RESULTS scifact nfcorpus nq-utd cranfield medquad \
        --system "BM25=MODEL:tokens" --system "full encoder=MODEL:full" --system "light dense=MODEL:dense" …

A system is LABEL=MODEL:MODE with the modes of `lightir evaluate`. The first system is the reference unless --reference
names another. Models with the same document encoder share their vectors in WORK, and existing vectors are reused.

MODEL may contain {dataset} and {seed}: --seeds 0 1 2 --system "adapted=adapted/{dataset}-{seed}:dense" measures a model
for each data set and seed. A query's measures are then averaged over the seeds, and so compared with the reference's.
Writes RESULTS.json, RESULTS.md and RESULTS.svg.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lightir.addresses import resolve_model_folder
from lightir.contract import Contract
from lightir.encode.model_evaluation import SystemOptions, evaluate_model
from lightir.eval import EvaluationResult, compare, plot
from lightir.provenance import provenance

SMALLEST = (
    "tiny --data {data} --work {out}/work --out {out}/found --system BM25={model}:tokens --system light={model}:dense"
)


def main() -> None:
    """Measure, compare and write the results."""
    args = arguments()
    systems = [parsed(text) for text in args.system]
    evaluations: dict[str, dict[str, EvaluationResult]] = {label: {} for label, _, _ in systems}
    by_seed: dict[str, dict[str, list[float]]] = {label: {} for label, model, _ in systems if "{seed}" in model}
    for dataset in args.datasets:
        measured = measured_models(systems, dataset, args)
        for label, model, mode in systems:
            seeds = [measured[name, mode] for name in models_of(model, dataset, args.seeds)]
            evaluations[label][dataset] = averaged(seeds)
            if label in by_seed:
                by_seed[label][dataset] = [one.measures["nDCG@10"] for one in seeds]
        print(
            dataset, {label: round(results[dataset].measures["nDCG@10"], 4) for label, results in evaluations.items()}
        )
    comparison = compare(evaluations, reference=args.reference or systems[0][0])
    print(comparison.to_text())
    args.out.parent.mkdir(parents=True, exist_ok=True)
    measures = {label: {d: dict(e.measures) for d, e in results.items()} for label, results in evaluations.items()}
    record = {"provenance": provenance(), "systems": args.system, "nDCG@10": comparison.to_json(), "measures": measures}
    if by_seed:
        record["nDCG@10 by seed"] = by_seed
    args.out.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")
    args.out.with_suffix(".md").write_text(comparison.to_markdown())
    plot(comparison, args.out.with_suffix(".svg"))


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", nargs="+", help="names of BEIR folders inside DATA")
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--work", type=Path, required=True, help="folder that stores vectors and indexes")
    parser.add_argument("--out", type=Path, required=True, help="path of the result files, without suffix")
    parser.add_argument("--system", action="append", required=True, metavar="LABEL=MODEL:MODE")
    parser.add_argument("--reference", help="label of the reference system (default: the first)")
    parser.add_argument("--seeds", nargs="+", default=["0"], help="values of {seed} in a MODEL (default: 0)")
    parser.add_argument("--split", default="test", help="split of the queries (default: test)")
    return parser.parse_args()


def parsed(text: str) -> tuple[str, str, str]:
    """Parse LABEL=MODEL:MODE."""
    label, equals, rest = text.partition("=")
    model, colon, mode = rest.rpartition(":")
    if not (equals and colon and label and model and mode):
        raise SystemExit(f"--system {text!r}: expected LABEL=MODEL:MODE")
    return label, model, mode


def models_of(model: str, dataset: str, seeds: Sequence[str]) -> list[str]:
    """Return the models that a MODEL stands for: one for each seed, if it contains {seed}."""
    seeded = [model.replace("{seed}", seed) for seed in seeds]
    return [name.replace("{dataset}", dataset) for name in dict.fromkeys(seeded)]


def measured_models(
    systems: list[tuple[str, str, str]], dataset: str, args: argparse.Namespace
) -> dict[tuple[str, str], EvaluationResult]:
    """Return the measures of each model and mode that the systems need on a data set."""
    modes: dict[str, list[str]] = defaultdict(list)
    for _, model, mode in systems:
        for name in models_of(model, dataset, args.seeds):
            if mode not in modes[name]:
                modes[name].append(mode)
    measured = {}
    for name, wanted in modes.items():
        documents = Contract.load(resolve_model_folder(name)).document_fingerprint
        work = args.work / documents / dataset
        report = evaluate_model(name, args.data / dataset, work, split=args.split, systems=SystemOptions(wanted))
        measured.update({(name, mode): report.systems[mode] for mode in wanted})
    return measured


def averaged(results: Sequence[EvaluationResult]) -> EvaluationResult:
    """Return the means of each query's measures over several results for the same queries."""
    if len(results) == 1:
        return results[0]
    measures = {name: float(np.mean([result.measures[name] for result in results])) for name in results[0].measures}
    per_query = {
        name: {
            query_id: float(np.mean([result.per_query[name][query_id] for result in results])) for query_id in values
        }
        for name, values in results[0].per_query.items()
    }
    return EvaluationResult(measures, per_query)


if __name__ == "__main__":
    main()
