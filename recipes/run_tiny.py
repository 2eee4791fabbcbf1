"""Every -tiny recipe run whole, as `lightir train` runs it, and one table of what came out.

    python recipes/run_tiny.py --work WORK --out RESULTS                       # all recipes/*-tiny*.yaml
    python recipes/run_tiny.py --work WORK --out RESULTS recipes/csplade-tiny.yaml recipes/llm-ql-tiny.yaml

Each recipe's model goes to WORK/NAME; where one is there already, its run is read and not repeated, so a broken-off
series goes on. Negatives that one recipe mined serve the others too. RESULTS.md and RESULTS.json are written after
every recipe. A recipe that fails is named with the last line that it said, the others go on, and the exit status is 1.
"development" is what the recipe goes by: nDCG@10, or a query token's mean log likelihood in LLM-QL's first stage.
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
MEANS_OF = 5  # steps: one batch is easier than the next


def main() -> None:
    """Run, read, write."""
    args = arguments()
    recipes = args.recipes or sorted(FOLDER.glob("*-tiny*.yaml"))
    args.work.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for recipe in recipes:
        rows.append(row(recipe, args.work, args.set))
        print(json.dumps(rows[-1]), flush=True)
        write_json(args.out.with_suffix(".json"), {"provenance": provenance(), "recipes": rows})
        write_bytes(args.out.with_suffix(".md"), table(rows).encode())
    if any("failed" in each for each in rows):
        raise SystemExit(1)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", type=Path, help="recipes to run (default: every -tiny one)")
    parser.add_argument("--work", type=Path, required=True, help="takes the models; what is there is not run again")
    parser.add_argument("--out", type=Path, required=True, help="RESULTS, without an ending")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as `lightir train` takes it")
    return parser.parse_args()


def row(recipe: Path, work: Path, overrides: list[str]) -> dict[str, Any]:
    """What one recipe's run left, run now unless it is there; what it failed with, if it did."""
    out, clock = work / recipe.stem, work / f"{recipe.stem}.seconds.json"
    if not (out.is_dir() and clock.is_file()):
        begun = time.monotonic()
        command = [sys.executable, "-m", "lightir", "train", str(recipe), "--out", str(out)]
        command += [part for override in overrides for part in ("--set", override)]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            said = done.stderr.strip().splitlines() or [""]
            return {"recipe": recipe.name, "failed": said[-1], "status": done.returncode}
        write_json(clock, {"seconds": time.monotonic() - begun})
    return {"recipe": recipe.name, "seconds": round(read_json(clock)["seconds"], 1), **outcome(out)}


def outcome(model: Path) -> dict[str, Any]:
    """Steps, mean loss of the first and of the last, and the development measure that the recipe goes by."""
    records = [json.loads(line) for line in (model / "training" / "log.jsonl").read_text("utf-8").splitlines()]
    losses = [record["loss"] for record in records if "loss" in record]
    return {
        "steps": len(losses),
        "loss_at_first": statistics.fmean(losses[:MEANS_OF]),
        "loss_at_last": statistics.fmean(losses[-MEANS_OF:]),
        "development": read_json(model / "training" / "environment.json")["kept"].get("score"),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as a Markdown table."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|---|---:|---:|---:|---:|---:|"]
    for each in rows:
        if "failed" in each:
            cells = [f"failed ({each['status']}): {each['failed']}", "", "", "", ""]
        else:
            score = each["development"]
            cells = [
                f"{each['seconds'] / 60:.1f}",
                str(each["steps"]),
                f"{each['loss_at_first']:.4g}",
                f"{each['loss_at_last']:.4g}",
                "" if score is None else f"{score:.3f}",
            ]
        lines.append(f"| {' | '.join([each['recipe'].removesuffix('.yaml'), *cells])} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
