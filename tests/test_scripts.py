"""Every script of bench/ and recipes/ runs at the smallest size that it declares, in a process of its own."""

from __future__ import annotations

import ast
import dataclasses
import gzip
import json
import re
import runpy
import shutil
from pathlib import Path

import numpy as np
import pytest

from collections_for_training import write_dataset
from lightir.contract import Contract, DenseHead, DocumentPolicy, SparseHead
from lightir.data import Dataset, read_documents
from lightir.encode import cache_vocabulary, encode_corpus
from lightir.eval import EvaluationResult, evaluate
from lightir.index import build_index
from lightir.models.backbones import load_backbone
from lightir.models.encoder import LightRetriever
from lightir.models.model_folder import backbone_record
from lightir.query import CachedQueryEncoder
from lightir.shards import Shard, VectorsReader
from lightir.text import QueryPolicy
from lightir.types import Ranking
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
    """Folders that a script's SMALLEST may name: a data set "tiny", models, vectors of the first one and their index.

    Light queries of the model "expanding" have weights: they are means of their terms' expansions.
    """
    top = tmp_path_factory.mktemp("folders")
    names = ("data", "backbone", "model", "expanding", "vectors", "index", "cell")
    folders = {name: top / name for name in names}
    dataset = write_dataset(folders["data"] / "tiny", "tiny")
    shutil.copy(dataset / "qrels" / "dev.tsv", dataset / "qrels" / "test.tsv")
    save_tiny("llama", folders["backbone"])
    backbone = load_backbone(str(folders["backbone"]))
    policies = QueryPolicy("find", leading_blank=False), DocumentPolicy(max_tokens=40)
    contract = Contract("lightretriever", backbone_record(backbone), *policies, DenseHead(), SparseHead(top_k=20))
    LightRetriever(backbone, contract).save(folders["model"])
    cache_vocabulary(folders["model"], folders["model"] / "query-encoder")
    expanding = dataclasses.replace(
        contract,
        method="sidr",
        query=QueryPolicy("", leading_blank=False, weighting="expansion", expansion_terms=4),
        dense=None,
        sparse=SparseHead("elu1p", top_k=20),
    )
    LightRetriever(backbone, expanding).save(folders["expanding"])
    cache_vocabulary(folders["expanding"], folders["expanding"] / "query-encoder")
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


def test_measures_of_seeds_are_averaged_for_each_query(folders: dict[str, Path], tmp_path: Path) -> None:
    """measure.py measures a model for each data set and seed."""
    (tmp_path / "models").mkdir()
    for seed in ("3", "8"):
        (tmp_path / "models" / f"tiny-{seed}").symlink_to(folders["model"])
    options = ["tiny", "--data", folders["data"], "--work", tmp_path / "work", "--out", tmp_path / "found", "--seeds"]
    options += ["3", "8", "--system", f"BM25={folders['model']}:tokens"]
    options += ["--system", f"seeds={tmp_path}/models/{{dataset}}-{{seed}}:dense"]
    script = ROOT / "recipes" / "measure.py"
    assert run(script, [str(option) for option in options], tmp_path / "printed") == 0, (
        tmp_path / "printed"
    ).read_text()
    record = json.loads((tmp_path / "found.json").read_text())
    first, second = record["nDCG@10 by seed"]["seeds"]["tiny"]
    assert first == second == record["measures"]["seeds"]["tiny"]["nDCG@10"]
    assert "BM25" not in record["nDCG@10 by seed"]
    averaged = runpy.run_path(str(script))["averaged"]
    results = [EvaluationResult({"RR": mean}, {"RR": {"a": mean, "b": 0.0}}) for mean in (0.25, 0.75, 0.2)]
    assert averaged(results[:2]) == EvaluationResult({"RR": 0.5}, {"RR": {"a": 0.5, "b": 0.0}})


MANUAL_PAGE = (
    r""".TH KOPIERE 1 "Mai 2020" "GNU"
.SH BEZEICHNUNG
kopiere \- Dateien und Verzeichnisse kopieren
.SH BESCHREIBUNG
\fBKopiert\fP die Quelle zum Ziel.
"""
    + 20 * "Das steht in der Beschreibung.\n"
)


def test_manual_pages_become_a_data_set(tmp_path: Path) -> None:
    """manual_pages.py writes each page with its description as the query."""
    folder = tmp_path / "de" / "man1"
    folder.mkdir(parents=True)
    short = ".SH NAME\nkurz \\- viel zu kurz\n.SH A\nText\n"
    pages = {"kopiere.1": MANUAL_PAGE, "kp.1": ".so man1/kopiere.1\n", "kurz.1": short}
    for name, page in pages.items():
        (folder / f"{name}.gz").write_bytes(gzip.compress(page.encode()))
    script = ROOT / "recipes" / "manual_pages.py"
    assert run(script, [str(tmp_path / "pages"), f"de={tmp_path / 'de'}"], tmp_path / "printed") == 0
    dataset = Dataset.open(tmp_path / "pages")
    assert [(query.query_id, query.text) for query in dataset.queries("de")] == [
        ("de/kopiere.1", "Dateien und Verzeichnisse kopieren")
    ]
    assert dataset.qrels("de") == {"de/kopiere.1": {"de/kopiere.1": 1}}
    (document,) = read_documents(tmp_path / "pages")
    assert document.text.startswith("Kopiert die Quelle zum Ziel.")
    assert "Verzeichnisse" not in document.text


def test_figure_5_cuts_widths_and_terms(folders: dict[str, Path]) -> None:
    figure5 = runpy.run_path(str(ROOT / "recipes" / "figure5.py"))
    dataset, reader = Dataset.open(folders["data"] / "tiny"), VectorsReader(folders["vectors"])
    shard, encoder = Shard.concatenate(list(reader)), CachedQueryEncoder.load(folders["model"] / "query-encoder")
    doc_ids = [document.doc_id for document in shard.documents]
    assert shard.dense is not None and shard.sparse is not None  # noqa: PT018
    impacts = shard.sparse.to_dense().astype(np.float64)
    queries, qrels = list(dataset.queries("test")), dataset.qrels("test")
    vectors = encoder.encode([query.text for query in queries])
    assert vectors.dense is not None and vectors.sparse is not None  # noqa: PT018
    counts = vectors.sparse.to_dense().astype(np.float64)
    for dim, terms in ((32, 20), (8, 5)):
        cell = figure5["measured"](folders["data"] / "tiny", folders["vectors"], (dim, terms), folders["cell"], "test")
        rows = shard.dense[:, :dim].astype(np.float64)
        cosines = vectors.dense[:, :dim] @ (rows / np.linalg.norm(rows, axis=1, keepdims=True)).T
        kept = np.zeros_like(impacts)
        for row, weights in zip(kept, impacts, strict=True):
            strongest = np.argsort(-weights, kind="stable")[:terms]
            row[strongest] = weights[strongest]
        for name, scores in (("dense", cosines), ("sparse", counts @ kept.T)):
            run = {}
            for query, own in zip(queries, scores, strict=True):
                ranked = sorted((-score, doc_id) for score, doc_id in zip(own, doc_ids, strict=True) if score != 0)
                listed = tuple(doc_id for _, doc_id in ranked)
                run[query.query_id] = Ranking(query.query_id, listed, -np.array([score for score, _ in ranked]))
            expected = evaluate(run, qrels, measures=["nDCG@10"]).measures["nDCG@10"]
            assert cell.quality[name] == pytest.approx(expected), (dim, terms, name)
        assert cell.megabytes["dense"] == len(doc_ids) * dim * 2 / 1e6


def test_figure_5_refuses_vectors_with_fewer_terms(folders: dict[str, Path]) -> None:
    figure5 = runpy.run_path(str(ROOT / "recipes" / "figure5.py"))
    contract = VectorsReader(folders["vectors"]).contract
    figure5["require_terms"](contract, [20, 5], folders["vectors"])
    with pytest.raises(SystemExit, match="keeps 20 terms of a document, fewer than 21"):
        figure5["require_terms"](contract, [5, 21], folders["vectors"])
    with pytest.raises(SystemExit, match="records no Matryoshka widths"):
        figure5["widths"](contract)
