"""Models and data sets by name, fetched with Hugging Face's own clients from a local hub."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pretended_hub import pretended_hub
from tiny_models import save_tiny

ROWS = [
    {"anchor": f"{topic} question", "positive": f"all about the {topic}", "negative": "about nothing"}
    for topic in ("river", "engine", "planet", "bread")
]
RECIPE = """
model: {address: owner/tiny, lora_rank: 2}
data: [{name: "hf:owner/pairs"}]
optimisation: {steps: 2, batch_size: 2, negatives: 1, learning_rate: 1.0e-3}
documents: {max_tokens: 32}
"""


def write_repositories(root: Path) -> None:
    """Write a hub with owner/tiny, a model, and owner/pairs, a data set with one file of rows."""
    save_tiny("llama", root / "models" / "owner" / "tiny")
    pairs = root / "datasets" / "owner" / "pairs"
    pairs.mkdir(parents=True)
    (pairs / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))


def lightir(environment: dict[str, str], *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lightir", *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def test_a_model_and_a_data_set_are_fetched_by_name_and_then_need_no_hub(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    write_repositories(tmp_path / "root")
    recipe, corpus = tmp_path / "recipe.yaml", tmp_path / "corpus.jsonl"
    recipe.write_text(RECIPE)
    corpus.write_text('{"_id": "a", "text": "all about the river"}\n')
    with pretended_hub(tmp_path / "root", tmp_path / "home") as environment:
        trained = lightir(environment, "train", recipe, "--out", tmp_path / "model")
        assert trained.returncode == 0, trained.stderr
    contract = json.loads((tmp_path / "model" / "lightir.json").read_text())
    assert contract["backbone"]["address"] == "owner/tiny"
    offline = {**environment, "HF_HUB_OFFLINE": "1"}
    encoded = lightir(offline, "encode", tmp_path / "model", corpus, "--out", tmp_path / "vectors", "--json")
    assert encoded.returncode == 0, encoded.stderr
    assert json.loads(encoded.stdout)["documents"] == 1
