"""Run every -tiny recipe with `lightir train` and write one table of the results.

    python recipes/run_tiny.py --work WORK --out RESULTS                       # all recipes/*-tiny*.yaml
    python recipes/run_tiny.py --work WORK --out RESULTS recipes/csplade-tiny.yaml recipes/llm-ql-tiny.yaml

Each recipe's model is written to WORK/NAME. An existing model is not trained again, so that an interrupted series can
be continued. Recipes share mined negatives. RESULTS.md and RESULTS.json are written after every recipe. A recipe that
fails is listed with its last error line, the others run, and the exit status is 1. "development" is the measure that
the recipe selects checkpoints by: nDCG@10, or the mean log likelihood of a query token in LLM-QL's first stage.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from lightir.files import read_json, write_bytes, write_json
from lightir.provenance import provenance

FOLDER = Path(__file__).parent
SMALLEST = (
    "recipes/csplade-adaptation-tiny.yaml --work {out}/work --out {out}/found --set model.address={backbone} "
    "--set model.first_layer=0 --set data.0.name={data}/tiny --set length=64 --set documents.max_tokens=48 "
    "--set optimisation.steps=2"
)
COLUMNS = ("recipe", "minutes", "steps", "loss at first", "loss at last", "development")
MEANS_OF = 5  # number of steps that losses are averaged over, because batches differ


def main() -> None:
    """Run the recipes and write the table."""
    args = arguments()
    recipes = args.recipes or sorted(FOLDER.glob("*-tiny*.yaml"))
    args.work.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for recipe in recipes:
        rows.append(row(recipe, args.work, args.set))
        print(json.dumps(rows[-1]), flush=True)
        write_json(args.out.with_suffix(".json"), {"provenance": provenance(), "recipes": rows})
        write_bytes(args.out.with_suffix(".md"), table(rows).encode())
    if any("failed" in result for result in rows):
        raise SystemExit(1)


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", type=Path, help="recipes to run (default: every -tiny one)")
    parser.add_argument(
        "--work", type=Path, required=True, help="folder for the models; existing ones are not trained again"
    )
    parser.add_argument("--out", type=Path, required=True, help="path of the result files, without suffix")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="recipe override, as in `lightir train`"
    )
    return parser.parse_args()


def row(recipe: Path, work: Path, overrides: list[str]) -> dict[str, Any]:
    """Return the result of a recipe, after running it unless its model exists, or its error."""
    out, clock = work / recipe.stem, work / f"{recipe.stem}.seconds.json"
    if not (out.is_dir() and clock.is_file()):
        begun = time.monotonic()
        command = [sys.executable, "-m", "lightir", "train", str(recipe), "--out", str(out)]
        command += [part for override in overrides for part in ("--set", override)]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            messages = done.stderr.strip().splitlines() or [""]
            return {"recipe": recipe.name, "failed": messages[-1], "status": done.returncode}
        write_json(clock, {"seconds": time.monotonic() - begun})
    return {"recipe": recipe.name, "seconds": round(read_json(clock)["seconds"], 1), **outcome(out)}


def outcome(model: Path) -> dict[str, Any]:
    """Return number of steps, mean loss of the first and last steps, and the development measure."""
    records = [json.loads(line) for line in (model / "training" / "log.jsonl").read_text("utf-8").splitlines()]
    losses = [record["loss"] for record in records if "loss" in record]
    return {
        "steps": len(losses),
        "loss_at_first": statistics.fmean(losses[:MEANS_OF]),
        "loss_at_last": statistics.fmean(losses[-MEANS_OF:]),
        "development": read_json(model / "training" / "environment.json")["kept"].get("score"),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Format the rows as a Markdown table."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|---|---:|---:|---:|---:|---:|"]
    for result in rows:
        if "failed" in result:
            cells = [f"failed ({result['status']}): {result['failed']}", "", "", "", ""]
        else:
            score = result["development"]
            cells = [
                f"{result['seconds'] / 60:.1f}",
                str(result["steps"]),
                f"{result['loss_at_first']:.4g}",
                f"{result['loss_at_last']:.4g}",
                "" if score is None else f"{score:.3f}",
            ]
        lines.append(f"| {' | '.join([result['recipe'].removesuffix('.yaml'), *cells])} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
