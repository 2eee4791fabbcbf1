"""Measure several models on several data sets: nDCG@10, the fraction of a reference, and significance.

    python recipes/measure.py --data DATA --work WORK --out RESULTS scifact nfcorpus nq-utd cranfield medquad \
        --system "BM25=MODEL:tokens" --system "full encoder=MODEL:full" --system "light dense=MODEL:dense" …

A system is LABEL=MODEL:MODE with the modes of `lightir evaluate`. The first system is the reference unless --reference
names another. Models with the same document encoder share their vectors in WORK, and existing vectors are reused.
Writes RESULTS.json, RESULTS.md and RESULTS.svg.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path

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
    for dataset in args.datasets:
        for model, modes in modes_by_model(systems).items():
            documents = Contract.load(resolve_model_folder(model)).document_fingerprint
            report = evaluate_model(
                model, args.data / dataset, args.work / documents / dataset, systems=SystemOptions(modes)
            )
            for label, used, mode in systems:
                if used == model:
                    evaluations[label][dataset] = report.systems[mode]
        print(
            dataset, {label: round(results[dataset].measures["nDCG@10"], 4) for label, results in evaluations.items()}
        )
    comparison = compare(evaluations, reference=args.reference or systems[0][0])
    print(comparison.to_text())
    args.out.parent.mkdir(parents=True, exist_ok=True)
    measures = {label: {d: dict(e.measures) for d, e in results.items()} for label, results in evaluations.items()}
    record = {"provenance": provenance(), "systems": args.system, "nDCG@10": comparison.to_json(), "measures": measures}
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
    return parser.parse_args()


def parsed(text: str) -> tuple[str, str, str]:
    """Parse LABEL=MODEL:MODE."""
    label, equals, rest = text.partition("=")
    model, colon, mode = rest.rpartition(":")
    if not (equals and colon and label and model and mode):
        raise SystemExit(f"--system {text!r}: expected LABEL=MODEL:MODE")
    return label, model, mode


def modes_by_model(systems: list[tuple[str, str, str]]) -> dict[str, list[str]]:
    """Return the modes of each model."""
    modes: dict[str, list[str]] = defaultdict(list)
    for _, model, mode in systems:
        if mode not in modes[model]:
            modes[model].append(mode)
    return modes


if __name__ == "__main__":
    main()
