"""Every script of bench/ and recipes/ runs at the smallest size that it declares, in a process of its own."""

from __future__ import annotations

import ast
import json
import re
import shutil
from pathlib import Path

import pytest

from collections_for_training import write_dataset
from lightir.contract import Contract, DenseHead, DocumentPolicy, SparseHead
from lightir.data import read_documents
from lightir.encode import cache_vocabulary, encode_corpus
from lightir.index import build_index
from lightir.models.backbones import load_backbone
from lightir.models.encoder import LightRetriever
from lightir.models.model_folder import backbone_record
from lightir.shards import VectorsReader
from lightir.text import QueryPolicy
from script_runs import run
from tiny_models import save_tiny

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = [
    path
    for folder in ("bench", "recipes")
    for path in sorted((ROOT / folder).glob("*.py"))
    if "__main__" in path.read_text(encoding="utf-8")
]


def smallest(script: Path) -> str | None:
    """Return the options of a script's smallest run; None if it declares none."""
    for node in ast.parse(script.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "SMALLEST":
            return ast.literal_eval(node.value)
    return None


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders that a script's SMALLEST may name: a data set "tiny", a language model, its vectors and their index."""
    top = tmp_path_factory.mktemp("folders")
    folders = {name: top / name for name in ("data", "backbone", "model", "vectors", "index")}
    dataset = write_dataset(folders["data"] / "tiny", "tiny")
    shutil.copy(dataset / "qrels" / "dev.tsv", dataset / "qrels" / "test.tsv")
    save_tiny("llama", folders["backbone"])
    backbone = load_backbone(str(folders["backbone"]))
    policies = QueryPolicy("find", leading_blank=False), DocumentPolicy(max_tokens=40)
    contract = Contract("lightretriever", backbone_record(backbone), *policies, DenseHead(), SparseHead(top_k=20))
    LightRetriever(backbone, contract).save(folders["model"])
    cache_vocabulary(folders["model"], folders["model"] / "query-encoder")
    encode_corpus(folders["model"], read_documents(dataset), folders["vectors"])
    vectors, encoder = VectorsReader(folders["vectors"]), folders["vectors"] / "query-encoder"
    build_index(vectors, folders["index"], contract=vectors.contract, query_encoder=encoder)
    return folders


@pytest.mark.parametrize("script", [path for path in SCRIPTS if smallest(path)], ids=lambda path: path.stem)
def test_a_script_runs_at_its_smallest(script: Path, folders: dict[str, Path], tmp_path: Path) -> None:
    options = (smallest(script) or "").format(**folders, out=tmp_path / "out").split()
    (tmp_path / "out").mkdir()
    assert run(script, options, tmp_path / "printed") == 0, (tmp_path / "printed").read_text()
    assert re.search(r"\d", (tmp_path / "printed").read_text()) or any((tmp_path / "out").iterdir())
    for result in (tmp_path / "out").glob("*.json"):
        record = json.loads(result.read_text(encoding="utf-8"))["provenance"]
        assert record.keys() >= {"commit", "machine", "date", "command"}, result.name


def test_a_script_without_a_smallest_run_has_a_test_of_its_own() -> None:
    tests = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")]
    for script in SCRIPTS:
        assert smallest(script) is not None or any(script.name in text for text in tests), script.name
