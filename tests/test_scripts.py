"""The scripts of bench/ and recipes/ run: each at the smallest size that it names itself, in a process of its own."""

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
    """The options that a script calls its smallest run; None where it names none."""
    for node in ast.parse(script.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "SMALLEST":
            return ast.literal_eval(node.value)
    return None


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What a script's SMALLEST may name: a folder with the data set "tiny", a language model, and what both make."""
    folder = tmp_path_factory.mktemp("places")
    names = ("data", "backbone", "model", "vectors", "index")
    found = {name: folder / name for name in names}
    dataset = write_dataset(found["data"] / "tiny", "tiny")
    shutil.copy(dataset / "qrels" / "dev.tsv", dataset / "qrels" / "test.tsv")
    save_tiny("llama", found["backbone"])
    backbone = load_backbone(str(found["backbone"]))
    policies = QueryPolicy("find", leading_blank=False), DocumentPolicy(max_tokens=40)
    contract = Contract("lightretriever", backbone_record(backbone), *policies, DenseHead(), SparseHead(top_k=20))
    LightRetriever(backbone, contract).save(found["model"])
    cache_vocabulary(found["model"], found["model"] / "query-encoder")
    encode_corpus(found["model"], read_documents(dataset), found["vectors"])
    vectors, encoder = VectorsReader(found["vectors"]), found["vectors"] / "query-encoder"
    build_index(vectors, found["index"], contract=vectors.contract, query_encoder=encoder)
    return found


@pytest.mark.parametrize("script", [each for each in SCRIPTS if smallest(each)], ids=lambda path: path.stem)
def test_a_script_runs_at_its_smallest(script: Path, places: dict[str, Path], tmp_path: Path) -> None:
    options = (smallest(script) or "").format(**places, out=tmp_path / "out").split()
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
