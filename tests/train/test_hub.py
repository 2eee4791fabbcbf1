"""Models and data sets by name, fetched with Hugging Face's own clients from a local hub."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from pretended_hub import REVISION, pretended_hub
from tiny_models import save_tiny

NEXT_REVISION = "6" * 40

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
    assert contract["backbone"]["address"] == f"owner/tiny@{REVISION}"
    recorded = yaml.safe_load((tmp_path / "model" / "training" / "recipe.yaml").read_text())
    assert recorded["model"]["address"] == f"owner/tiny@{REVISION}"
    adapter = json.loads((tmp_path / "model" / "adapter" / "adapter_config.json").read_text())
    assert (adapter["base_model_name_or_path"], adapter["revision"]) == ("owner/tiny", REVISION)
    offline = {**environment, "HF_HUB_OFFLINE": "1"}
    encoded = lightir(offline, "encode", tmp_path / "model", corpus, "--out", tmp_path / "vectors", "--json")
    assert encoded.returncode == 0, encoded.stderr
    assert json.loads(encoded.stdout)["documents"] == 1


def write_next_revision(root: Path) -> None:
    """Give owner/tiny a revision with other weights; the former one stays on the hub under its commit."""
    newest = root / "models" / "owner" / "tiny"
    shutil.copytree(newest, newest.with_name(f"tiny@{REVISION}"))
    weights = load_file(newest / "model.safetensors")
    save_file({name: tensor + 1 for name, tensor in weights.items()}, newest / "model.safetensors", {"format": "pt"})


def test_a_model_keeps_the_revision_of_its_backbone_when_the_hub_has_a_newer_one(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    write_repositories(tmp_path / "root")
    recipe, corpus = tmp_path / "recipe.yaml", tmp_path / "corpus.jsonl"
    recipe.write_text(RECIPE)
    corpus.write_text('{"_id": "a", "text": "all about the river"}\n')
    with pretended_hub(tmp_path / "root", tmp_path / "home") as environment:
        trained = lightir(environment, "train", recipe, "--out", tmp_path / "model")
        assert trained.returncode == 0, trained.stderr
    write_next_revision(tmp_path / "root")
    with pretended_hub(tmp_path / "root", tmp_path / "empty home", revision=NEXT_REVISION) as environment:
        encoded = lightir(environment, "encode", tmp_path / "model", corpus, "--out", tmp_path / "vectors")
        assert encoded.returncode == 0, encoded.stderr
        again = lightir(environment, "train", recipe, "--out", tmp_path / "later")
        assert again.returncode == 0, again.stderr
    earlier, later = (
        json.loads((tmp_path / name / "lightir.json").read_text())["backbone"] for name in ("model", "later")
    )
    assert later["address"] == f"owner/tiny@{NEXT_REVISION}"
    assert later["weights_hash"] != earlier["weights_hash"]


def test_a_resumed_run_uses_the_revision_that_it_began_with(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    write_repositories(tmp_path / "root")
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(RECIPE.replace("steps: 2", "steps: 3") + "checkpoint_every: 1\n")
    with pretended_hub(tmp_path / "root", tmp_path / "home") as environment:
        trained = lightir(environment, "train", recipe, "--out", tmp_path / "model")
        assert trained.returncode == 0, trained.stderr
        script = tmp_path / "stopped.py"
        script.write_text(STOPPED)
        arguments = [sys.executable, str(script), str(recipe), str(tmp_path / "resumed")]
        assert subprocess.run(arguments, env=environment, capture_output=True).returncode == 7
    assert (tmp_path / "resumed.run" / "checkpoints" / "step-0000001").is_dir()
    write_next_revision(tmp_path / "root")
    with pretended_hub(tmp_path / "root", tmp_path / "empty home", revision=NEXT_REVISION) as environment:
        resumed = lightir(environment, "train", recipe, "--out", tmp_path / "resumed", "--resume")
        assert resumed.returncode == 0, resumed.stderr
    contracts = [json.loads((tmp_path / name / "lightir.json").read_text()) for name in ("model", "resumed")]
    assert contracts[0]["backbone"] == contracts[1]["backbone"]
    weights = [load_file(tmp_path / name / "adapter" / "adapter_model.safetensors") for name in ("model", "resumed")]
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])


STOPPED = """
import os, sys
from lightir.train.run import loop
from lightir.train.stages.registry import train_file

save = loop.Loop._save_checkpoint
loop.Loop._save_checkpoint = lambda run: (save(run), os._exit(7))
train_file(sys.argv[1], sys.argv[2])
"""
