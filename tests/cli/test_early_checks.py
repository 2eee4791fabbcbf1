"""Wrong paths, splits and names are refused before torch is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lightir.contract import BackboneRecord, Contract, DenseHead, DocumentPolicy
from lightir.text import QueryPolicy

RECIPE = """
model: {address: tiny}
data: [{name: topics}]
heads: {pooling: mean}
query: {instruction: find it}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, dataset: Path, bm25_index: Path) -> Path:
    """A folder with a data set, an index, a model's contract, a recipe, and a torch that must not be imported."""
    folder = tmp_path_factory.mktemp("early")
    (folder / "topics").symlink_to(dataset)
    (folder / "index").symlink_to(bm25_index)
    (folder / "tiny").mkdir()
    record = BackboneRecord(str(dataset), "encoder", "w", "", "t", vocab_size=10, hidden_size=4)
    Contract("lightretriever", record, QueryPolicy(), DocumentPolicy(), DenseHead(), None).save(folder / "tiny")
    (folder / "full").mkdir()
    (folder / "full" / "manifest.json").write_text("{}")
    (folder / "recipe.yaml").write_text(RECIPE)
    (folder / "queries.jsonl").write_text('{"_id": "q", "text": "river"}\n')
    (folder / "fake" / "torch").mkdir(parents=True)
    (folder / "fake" / "torch" / "__init__.py").write_text("raise RuntimeError('torch was imported')\n")
    return folder


TEACHER = ["distill", "tiny", "--out", "new"]
RERANK = ["rerank", "tiny", "--method", "ql", "--corpus", "topics", "--queries", "topics", "-o", "new"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "nowhere.yaml"], "recipe nowhere.yaml does not exist"),
        (["train", "recipe.yaml", "--set", "optimisation.stepz=3"], "stepz"),
        (["train", "recipe.yaml", "--set", "stage=later"], "stage is 'later'"),
        (["train", "recipe.yaml", "--set", "model.address=./none"], "./none is neither a folder"),
        (["train", "recipe.yaml", "--set", "data=[{name: none}]"], "data set 'none': there is no such folder"),
        (["train", "recipe.yaml", "--set", "data=[{name: topics, split: dev}]"], "has no split 'dev'"),
        (["train", "recipe.yaml", "--set", "held_out=[none]"], "data set 'none'"),
        (["train", "recipe.yaml", "--set", "evaluation.sets=[{name: topics, split: dev}]"], "has no split 'dev'"),
        (["train", "recipe.yaml", "--out", "full"], "full exists; choose another name or remove it"),
        (["train", "recipe.yaml", "--out", "recipe.yaml/model"], "cannot write recipe.yaml/model: Not a directory"),
        (["encode", "none", "topics", "--out", "new"], "none is neither a folder nor a shipped model"),
        (["encode", "tiny", "none", "--out", "new"], "none does not exist"),
        (["encode", "tiny", "topics", "--out", "full"], "full contains vectors; continue with --resume"),
        (["encode", "tiny", "topics", "--out", "new", "--ray", "auto"], "pip install 'lightir[ray]'"),
        (["encode", "tiny", "topics", "--out", "new", "--ray-cpus", "2"], "name the cluster with --ray ADDRESS"),
        (["encode", "topics", "topics", "--out", "new"], "topics is not a lightir model"),
        (["cache", "none"], "none is neither a folder nor a shipped model"),
        (["cache", "tiny", "--task", "none", "--out", "new"], "unknown task 'none'"),
        (["cache", "tiny", "--out", "full"], "full exists"),
        (["distill", "./none", "--corpus", "topics", "--out", "new"], "./none is neither a folder"),
        ([*TEACHER, "--corpus", "none"], "none does not exist"),
        ([*TEACHER, "--corpus", "topics", "--queries", "none"], "none does not exist"),
        ([*TEACHER, "--corpus", "topics", "--test", "none"], "none does not exist"),
        ([*TEACHER, "--corpus", "topics", "--set", "ridge=0"], "ridge is 0"),
        (["distill", "tiny", "--corpus", "topics", "--out", "full"], "full exists"),
        (["worker", "none"], "none"),
        (["worker", "index"], "index has no model's contract"),
        (["mine", "none", "--out", "new"], "none does not exist"),
        (["mine", "topics", "--split", "later", "--out", "new"], "has no split 'later'"),
        (["mine", "topics", "--model", "./none", "--out", "new"], "./none is neither a folder"),
        (["mine", "topics", "--teacher", "./none", "--out", "new"], "./none is neither a folder"),
        ([*RERANK, "--run", "none"], "none"),
        (["rerank", "./none", *RERANK[2:], "--run", "queries.jsonl"], "./none is neither a folder"),
        ([*RERANK[:5], "none", *RERANK[6:], "--run", "queries.jsonl"], "none does not exist"),
        (RERANK, "--method ql requires MODEL, and --run or --negatives"),
        (["expand", "./none", "topics", "-o", "new"], "./none is neither a folder"),
        (["expand", "tiny", "none", "-o", "new"], "none does not exist"),
        (["evaluate", "tiny", "--dataset", "topics", "--split", "later"], "has no split 'later'"),
    ],
)
def test_a_wrong_argument_is_refused_without_torch(arguments, message, folder):
    environment = {**os.environ, "PYTHONPATH": str(folder / "fake"), "LIGHTIR_DATA": ""}
    command = [sys.executable, "-m", "lightir", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60)
    assert message in done.stderr
    assert "torch" not in done.stderr
    assert done.returncode in (1, 2)
    assert not (folder / "new").exists()


def test_a_right_command_imports_torch_after_its_checks(folder):
    """The fake torch works: without a wrong argument, it is imported."""
    environment = {**os.environ, "PYTHONPATH": str(folder / "fake")}
    command = [sys.executable, "-m", "lightir", "encode", "tiny", "topics", "--out", "new"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60)
    assert "torch was imported" in done.stderr


def test_a_recipe_is_shown_without_torch(folder):
    environment = {**os.environ, "PYTHONPATH": str(folder / "fake")}
    command = [sys.executable, "-m", "lightir", "train", "recipe.yaml", "--show"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "learning_rate" in done.stdout
