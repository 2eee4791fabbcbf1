"""Measure SiDR models: BM25, beta search, late search with m = 5, 20 and 100, and full search; one column per model.

    python recipes/measure_sidr.py --data DATA --work WORK --out RESULTS squadshifts:dev nq-utd:test \
        --variant "all of it=MODEL" --variant "no semi-parametric loss=MODEL" … --light MODEL --ablations

A data set is NAME:SPLIT. Marks compare a column with the first column's same search (paired randomization test,
p < 0.05 after Holm's correction). --light adds a table of a model's queries with and without the model. --ablations
adds the first variant with the paper's forms of query and document. Writes RESULTS.json and RESULTS.md. WORK stores
vectors, which are reused.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from lightir.addresses import resolve_model_folder
from lightir.contract import Contract
from lightir.encode.model_evaluation import SystemOptions, evaluate_model
from lightir.eval import EvaluationResult, compare
from lightir.provenance import provenance

SMALLEST = (
    "tiny:test --data {data} --work {out}/work --out {out}/found "
    "--variant whole={model} --variant same={model} --light {expanding} --ablations"
)
MEASURES = ("nDCG@10", "Success@1", "R@100")
SEARCHES = {
    "BM25": "tokens",
    "token overlap": "overlap",
    "beta": "beta",
    **{f"late, m = {m}": f"beta:{m}:full-sparse" for m in (5, 20, 100)},
    "BM25, then m = 100": "tokens:100:full-sparse",
    "full": "full-sparse",
}
ABLATIONS = {
    "beta": "beta",
    "beta, query without expansion (V_lex)": "beta-lex",
    "beta, query without weights (V_bin)": "beta-bin",
    "full": "full-sparse",
    "full, document without expansion (V_lex)": "full-lex",
    "full, document without weights (V_bin)": "full-bin",
}
LIGHT = {
    "BM25": "tokens",
    "beta": "beta",
    "beta, no model": "light-beta",
    "full": "full-sparse",
    "full, no model": "sparse",
}

Results = dict[str, dict[str, EvaluationResult]]
"""Column -> search -> evaluation."""


def main() -> None:
    """Measure, compare and write the results."""
    args = arguments()
    variants = dict(text.split("=", 1) for text in args.variant)
    trained = {label: training_record(model) for label, model in variants.items()}
    record: dict[str, object] = {"provenance": provenance(), "variants": trained}
    pages = []
    for name in args.datasets:
        dataset, split = name.split(":")
        results = {label: measured(args, model, dataset, split, SEARCHES) for label, model in variants.items()}
        record[name] = as_numbers(results)
        pages += [f"### {name}, nDCG@10 (top-1 in brackets)", table(results, SEARCHES, dataset)]
        if args.ablations:
            label, model = next(iter(variants.items()))
            forms = {label: measured(args, model, dataset, split, ABLATIONS)}
            record[f"{name} forms"] = as_numbers(forms)
            pages += [f"### {name}, forms of query and document", table(forms, ABLATIONS, dataset)]
        if args.light:
            light = {"light": measured(args, args.light, dataset, split, LIGHT)}
            record[f"{name} light"] = as_numbers(light)
            pages += [f"### {name}, queries without a model", light_table(light["light"])]
    record["retrieval_s"] = {label: seconds(model) for label, model in variants.items()}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")
    args.out.with_suffix(".md").write_text("\n\n".join(pages) + "\n")
    print("\n\n".join(pages))


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "datasets", nargs="+", metavar="NAME:SPLIT", help="names and splits of BEIR folders inside DATA"
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--work", type=Path, required=True, help="folder that stores vectors and indexes")
    parser.add_argument("--out", type=Path, required=True, help="path of the result files, without suffix")
    parser.add_argument(
        "--variant", action="append", required=True, metavar="LABEL=MODEL", help="label and model of a column"
    )
    parser.add_argument("--light", metavar="MODEL", help="model trained with losses.light")
    parser.add_argument("--ablations", action="store_true", help="also measure the paper's forms V_lex and V_bin")
    return parser.parse_args()


def measured(
    args: argparse.Namespace, model: str, dataset: str, split: str, searches: Mapping[str, str]
) -> dict[str, EvaluationResult]:
    """Evaluate a model by several searches."""
    work = args.work / Contract.load(resolve_model_folder(model)).fingerprint / dataset
    modes = list(searches.values())
    report = evaluate_model(
        model, args.data / dataset, work, split=split, systems=SystemOptions(modes), measures=MEASURES
    )
    return {label: report.systems[mode] for label, mode in searches.items()}


def table(results: Results, searches: Sequence[str] | Mapping[str, str], dataset: str) -> str:
    """Return a table with a row per search and a column per variant, marked against the first column."""
    first = next(iter(results))
    lines = [f"| search | {' | '.join(results)} |", f"|---|{'---:|' * len(results)}"]
    for search in searches:
        row = {label: {dataset: by_search[search]} for label, by_search in results.items()}
        compared = compare(row, reference=first, measure="nDCG@10") if len(row) > 1 else None
        cells = []
        for label, by_search in results.items():
            mark = compared.mark(label, dataset) if compared is not None else ""
            cells.append(f"{cell(by_search[search])}{mark}")
        lines.append(f"| {search} | {' | '.join(cells)} |")
    return "\n".join(lines)


def light_table(results: Mapping[str, EvaluationResult]) -> str:
    """Return a table with a row per search; model-free searches have the fraction of quality that they keep."""
    lines = ["| search | nDCG@10 (top-1) | kept |", "|---|---:|---:|"]
    for search, result in results.items():
        full = results.get(search.removesuffix(", no model"))
        kept = result.measures["nDCG@10"] / full.measures["nDCG@10"] if full is not None else 1.0
        lines.append(f"| {search} | {cell(result)} | {f'{kept:.1%}' if search.endswith('no model') else ''} |")
    return "\n".join(lines)


def cell(evaluation: EvaluationResult) -> str:
    """Format nDCG@10 and top-1 accuracy."""
    return f"{evaluation.measures['nDCG@10']:.3f} ({evaluation.measures['Success@1']:.3f})"


def as_numbers(results: Results) -> dict[str, dict[str, dict[str, float]]]:
    """Return the means of the measures."""
    return {
        label: {name: dict(result.measures) for name, result in systems.items()} for label, systems in results.items()
    }


def training_record(model: str) -> dict[str, float]:
    """Return the number of steps and seconds of a model's training."""
    steps = training_log(model)
    return {"steps": len(steps), "seconds": steps[-1]["seconds"]} if steps else {}


def seconds(model: str) -> dict[str, float]:
    """Return the median seconds of a training step and of its retrieval."""
    steps = training_log(model)
    if len(steps) < 2:
        return {}
    between = [b["seconds"] - a["seconds"] for a, b in itertools.pairwise(steps)]
    retrieval = [step["retrieval_seconds"] for step in steps if "retrieval_seconds" in step]
    return {"step": statistics.median(between), "retrieval": statistics.median(retrieval or [0.0])}


def training_log(model: str) -> list[dict[str, float]]:
    """Read the steps of a model's training log."""
    path = resolve_model_folder(model) / "training" / "log.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
    return [line for line in lines if "loss" in line]


if __name__ == "__main__":
    main()
