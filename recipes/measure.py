"""One table of several models on several data sets: nDCG@10, the share of a reference that is kept, significance.

    python recipes/measure.py --data DATA --work WORK --out RESULTS scifact nfcorpus nq-utd cranfield medquad \
        --system "BM25=MODEL:tokens" --system "full encoder=MODEL:full" --system "light dense=MODEL:dense" …

A system is LABEL=MODEL:MODE with the modes of `lightir evaluate`; the first is the reference unless --reference names
another. Models whose documents are encoded alike share their vectors in WORK; what is there is not computed again.
RESULTS.json, RESULTS.md and RESULTS.svg are written.
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
    """Measure, compare, write."""
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
        print(dataset, {label: round(each[dataset].measures["nDCG@10"], 4) for label, each in evaluations.items()})
    comparison = compare(evaluations, reference=args.reference or systems[0][0])
    print(comparison.to_text())
    args.out.parent.mkdir(parents=True, exist_ok=True)
    measures = {label: {d: dict(e.measures) for d, e in each.items()} for label, each in evaluations.items()}
    record = {"provenance": provenance(), "systems": args.system, "nDCG@10": comparison.to_json(), "measures": measures}
    args.out.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")
    args.out.with_suffix(".md").write_text(comparison.to_markdown())
    plot(comparison, args.out.with_suffix(".svg"))


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", nargs="+", help="BEIR folders inside DATA")
    parser.add_argument("--data", type=Path, required=True, help="the folder of the data sets")
    parser.add_argument("--work", type=Path, required=True, help="keeps vectors and indexes")
    parser.add_argument("--out", type=Path, required=True, help="RESULTS, without an ending")
    parser.add_argument("--system", action="append", required=True, metavar="LABEL=MODEL:MODE")
    parser.add_argument("--reference", help="a label; the first by default")
    return parser.parse_args()


def parsed(text: str) -> tuple[str, str, str]:
    """Label, model and mode of LABEL=MODEL:MODE."""
    label, equals, rest = text.partition("=")
    model, colon, mode = rest.rpartition(":")
    if not (equals and colon and label and model and mode):
        raise SystemExit(f"--system {text!r}: expected LABEL=MODEL:MODE")
    return label, model, mode


def modes_by_model(systems: list[tuple[str, str, str]]) -> dict[str, list[str]]:
    """Each model with the modes asked of it."""
    modes: dict[str, list[str]] = defaultdict(list)
    for _, model, mode in systems:
        if mode not in modes[model]:
            modes[model].append(mode)
    return modes


if __name__ == "__main__":
    main()
