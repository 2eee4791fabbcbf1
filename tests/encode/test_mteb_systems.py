"""MTEB evaluates a model's modes as lightir does, on a local task."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightir.cli import main
from lightir.contract import Contract, DenseHead, DocumentPolicy, SparseHead
from lightir.data import Dataset
from lightir.encode import cache_vocabulary
from lightir.encode.model_evaluation import SystemOptions, evaluate_model
from lightir.encode.mteb_systems import MtebEncoder, MtebSearch, evaluate_on_mteb
from lightir.errors import InvalidInput, NotFound
from lightir.models.backbones import load_backbone
from lightir.models.encoder import LightRetriever
from lightir.models.model_folder import backbone_record
from lightir.search import SearchOptions
from lightir.text import QueryPolicy
from tiny_models import save_tiny

mteb = pytest.importorskip("mteb")
datasets = pytest.importorskip("datasets")
task_metadata = pytest.importorskip("mteb.abstasks.task_metadata")
AbsTaskRetrieval: Any = pytest.importorskip("mteb.abstasks.retrieval").AbsTaskRetrieval

WORDS = ["well", "garden", "river", "cat", "tower", "bridge"]
MODES = ["hybrid", "dense", "sparse", "tokens", "full"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mteb")
    save_tiny("llama", folder / "base")
    backbone = load_backbone(folder / "base")
    contract = Contract(
        "lightretriever", backbone_record(backbone), QueryPolicy("Find it"), DocumentPolicy(max_tokens=64),
        DenseHead("eos"), SparseHead(),
    )  # fmt: skip
    LightRetriever(backbone, contract).save(folder / "model")
    cache_vocabulary(folder / "model")
    return folder / "model"


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """A BEIR folder with many equal documents, whose scores tie; a query has the id of a document."""
    folder = tmp_path_factory.mktemp("collection")
    random = np.random.default_rng(3)
    texts = [" ".join(random.choice(WORDS, size=2)) for _ in range(40)]
    documents = [{"_id": f"d{n}", "title": "A title" if n % 3 else "", "text": text} for n, text in enumerate(texts)]
    queries = [{"_id": f"d{n}" if n == 0 else f"q{n}", "text": f"the {word}"} for n, word in enumerate(WORDS)]
    grades = random.integers(0, 3, size=(len(queries), len(documents)))
    rows = [
        f"{query['_id']}\t{document['_id']}\t{grades[i, j]}"
        for i, query in enumerate(queries)
        for j, document in enumerate(documents)
        if grades[i, j]
    ]
    (folder / "qrels").mkdir()
    (folder / "qrels" / "test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *rows]) + "\n")
    for name, records in (("corpus", documents), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return Dataset.open(folder)


def local_task(collection: Dataset, *, candidates: dict[str, list[str]] | None = None) -> Any:
    """Return a retrieval task of MTEB over a BEIR folder; with candidates, a re-ranking task."""

    class Local(AbsTaskRetrieval):
        metadata = task_metadata.TaskMetadata(
            name="LocalReranking" if candidates else "LocalRetrieval",
            description="Local documents.",
            reference="https://example.org",
            dataset={"path": "example/local", "revision": "1"},
            type="Reranking" if candidates else "Retrieval",
            category="t2t",
            modalities=["text"],
            eval_splits=["test"],
            eval_langs=["eng-Latn"],
            main_score="ndcg_at_10",
            date=("2026-01-01", "2026-01-02"),
            domains=["Written"],
            task_subtypes=[],
            license="cc0-1.0",
            annotations_creators="derived",
            dialect=[],
            sample_creation="created",
            bibtex_citation="",
        )

        def load_data(self, *arguments: Any, **keywords: Any) -> None:
            corpus = [{"id": d.doc_id, "title": d.title, "text": d.text} for d in collection.corpus()]
            queries = [{"id": q.query_id, "text": q.text} for q in collection.queries("test")]
            self.dataset = {
                "default": {
                    "test": {
                        "corpus": datasets.Dataset.from_list(corpus),
                        "queries": datasets.Dataset.from_list(queries),
                        "relevant_docs": {q: dict(grades) for q, grades in collection.qrels("test").items()},
                        "top_ranked": candidates,
                    }
                }
            }
            self.data_loaded = True

    return Local()


def test_the_measures_equal_lightirs(model: Path, collection: Dataset, tmp_path: Path) -> None:
    pytest.importorskip("ir_measures")
    systems = SystemOptions(MODES)
    scores = evaluate_on_mteb(model, [local_task(collection)], results=tmp_path / "results", systems=systems)
    report = evaluate_model(
        model, collection, tmp_path / "work", systems=systems, k=1000, measures=["nDCG@10", "AP@100"]
    )
    for mode in MODES:
        # MTEB rounds to 5 digits.
        assert scores[mode]["LocalRetrieval"] == pytest.approx(report.systems[mode].measures["nDCG@10"], abs=1e-5)
        fingerprint = Contract.load(model).fingerprint
        path = tmp_path / "results" / "results" / f"lightir__model-{mode}" / fingerprint / "LocalRetrieval.json"
        [result] = json.loads(path.read_text())["scores"]["test"]
        assert result["ndcg_at_10"] == pytest.approx(report.systems[mode].measures["nDCG@10"], abs=1e-5)
        assert result["map_at_100"] == pytest.approx(report.systems[mode].measures["AP@100"], abs=1e-5)


def test_the_classes_satisfy_mtebs_protocols(model: Path) -> None:
    protocols = pytest.importorskip("mteb.models.models_protocols")
    assert isinstance(MtebSearch(model), protocols.SearchProtocol)
    assert isinstance(MtebEncoder(str(model)), protocols.EncoderProtocol)


def test_the_encoder_ranks_as_the_dense_mode(model: Path, collection: Dataset, tmp_path: Path) -> None:
    task, other = local_task(collection), local_task(collection)
    result = mteb.evaluate(MtebEncoder(str(model)), task, cache=None)
    expected = evaluate_on_mteb(model, [other], results=tmp_path, systems=SystemOptions(["dense"]))
    # Its ties are broken by MTEB.
    assert result.task_results[0].get_score() == pytest.approx(expected["dense"]["LocalRetrieval"], abs=0.1)


def test_only_the_candidates_of_a_reranking_task_are_ranked(model: Path, collection: Dataset) -> None:
    search = MtebSearch(model, "dense")
    task = local_task(collection)
    task.load_data()
    data = task.dataset["default"]["test"]
    search.index(data["corpus"], task_metadata=task.metadata, hf_split="test", hf_subset="default", encode_kwargs={})
    whole = search.search(data["queries"], top_k=1000)
    candidates = {query_id: ["d3", "d11", "d30"] for query_id in whole}
    ranked = search.search(data["queries"], top_k=2, top_ranked=candidates)
    for query_id, scores in whole.items():
        expected = [doc_id for doc_id in scores if doc_id in candidates[query_id]][:2]
        assert list(ranked[query_id]) == expected
        assert list(scores.values()) == sorted(set(scores.values()), reverse=True)
    search.close()
    with pytest.raises(InvalidInput, match="call index"):
        search.search(data["queries"], top_k=2)


def test_a_reranking_task(model: Path, collection: Dataset, tmp_path: Path) -> None:
    candidates = {query.query_id: ["d3", "d11", "d30"] for query in collection.queries("test")}
    scores = evaluate_on_mteb(model, [local_task(collection, candidates=candidates)], results=tmp_path)
    assert 0 <= scores["hybrid"]["LocalReranking"] <= 1


def test_what_cannot_be_evaluated_is_refused(model: Path, collection: Dataset, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="MTEB has no task 'Nothing'"):
        evaluate_on_mteb(model, ["Nothing"], results=tmp_path)
    with pytest.raises(InvalidInput, match="STS12 is no retrieval task"):
        evaluate_on_mteb(model, ["STS12"], results=tmp_path)
    with pytest.raises(InvalidInput, match="fingerprint"):
        MtebEncoder(str(model), "other")
    search = MtebSearch(model, "dense")
    rows = [{"id": "1", "text": ["a", "conversation"]}]
    with pytest.raises(InvalidInput, match="document '1' has no text but list"):
        search.index(rows, task_metadata=local_task(collection).metadata, hf_split="test", hf_subset="default")


def test_the_command(
    model: Path,
    collection: Dataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(mteb, "get_task", lambda name: local_task(collection))
    results, work = str(tmp_path / "results"), str(tmp_path / "work")
    command = ["evaluate", str(model), "--mteb", "Local", "--mteb-results", results, "--work", work]
    assert main([*command, "--modes", "dense,tokens"]) == 0
    assert "LocalRetrieval" in capsys.readouterr().out
    assert main([*command, "--json"]) == 0
    [[mode, scores]] = json.loads(capsys.readouterr().out)["main_scores"].items()
    assert (mode, list(scores)) == ("hybrid", ["LocalRetrieval"])
    assert main([*command, "--dataset", "x"]) == 2
    assert "MTEB has its own splits" in capsys.readouterr().err


def test_options_reach_the_search(model: Path, collection: Dataset, tmp_path: Path) -> None:
    task = local_task(collection)
    weights = {"dense": 1.0, "sparse": 0.0}
    options = SearchOptions(fusion="linear", weights=weights)
    scores = evaluate_on_mteb(model, [task], results=tmp_path, options=options)
    alone = evaluate_on_mteb(model, [task], results=tmp_path, systems=SystemOptions(["dense"]))
    assert scores["hybrid"] == alone["dense"]
