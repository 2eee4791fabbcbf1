"""Evaluation of a model on a BEIR folder: encoded once, with the full and the light query encoder."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from factories import make_contract
from lightir.contract import Contract, DenseHead, DocumentPolicy, Fusion, SparseHead
from lightir.data import Dataset
from lightir.encode.full_queries import FullQueryEncoder
from lightir.encode.model_evaluation import SystemOptions, evaluate_model, model_systems
from lightir.encode.model_modes import check_modes, default_modes
from lightir.errors import ContractMismatch, InvalidInput
from lightir.models.backbones import load_backbone
from lightir.models.devices import fast_dtype
from lightir.models.encoder import LightRetriever
from lightir.models.model_folder import backbone_record
from lightir.search import SearchOptions
from lightir.shards import VectorsReader
from lightir.text import QueryPolicy
from lightir.train.recipes.sidr_recipe import SidrHeadRecipe
from lightir.train.stages.sidr import bag_of_tokens, pruned
from tiny_models import save_tiny


def save_model(
    folder: Path, *, instruction: str = "find", pooling: str = "eos", method: str = "lightretriever"
) -> Path:
    if not (folder / "backbone").is_dir():
        save_tiny("llama", folder / "backbone")
    backbone = load_backbone(str(folder / "backbone"))
    contract = Contract(
        method,
        backbone_record(backbone),
        QueryPolicy(instruction, leading_blank=False),
        DocumentPolicy(max_tokens=40),
        DenseHead(pooling=pooling) if method != "csplade" else None,  # type: ignore[arg-type]
        SparseHead(top_k=20),
    )
    model = folder / f"model-{instruction}-{pooling}"
    LightRetriever(backbone, contract).save(model)
    return model


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """Write a data set whose documents are their own queries."""
    folder = tmp_path / "echo"
    (folder / "qrels").mkdir(parents=True)
    texts = [f"{word} {'ab' * i}" for i, word in enumerate(["cat", "dog", "fish", "horse", "cow", "sheep", "", "hen"])]
    for name in ("corpus", "queries"):
        lines = [json.dumps({"_id": f"{name}{i}", "text": text}) + "\n" for i, text in enumerate(texts)]
        (folder / f"{name}.jsonl").write_text("".join(lines))
    (folder / "qrels" / "test.tsv").write_text("".join(f"queries{i}\tcorpus{i}\t1\n" for i in range(len(texts))))
    return folder


def test_a_full_query_is_encoded_as_a_document_of_the_same_text_would_be(tmp_path: Path) -> None:
    model = LightRetriever.load(save_model(tmp_path, instruction=""))
    encoder = FullQueryEncoder(model)
    texts = ["one query", "", "another and longer query", "x"]
    actual = encoder.encode(texts)
    assert actual.dense is not None
    assert actual.sparse is not None
    alone = np.concatenate([encoder.encode([text]).dense for text in texts])  # type: ignore[arg-type]
    np.testing.assert_allclose(actual.dense, alone, atol=1e-5)
    documents, _ = model.encode_batch(model.batch(model.frame_documents(texts)))
    assert documents is not None
    asked = [0, 2, 3]
    np.testing.assert_allclose(actual.dense[asked], documents.numpy()[asked], atol=1e-5)
    assert not actual.dense[1].any()
    with pytest.raises(InvalidInput, match="no table"):
        encoder.encode(["a"], task="x")


def test_sparse_queries_through_the_model_are_weighted_as_documents_are_before_the_quantiser(tmp_path: Path) -> None:
    model = LightRetriever.load(save_model(tmp_path, instruction="", method="csplade"))
    encoder = FullQueryEncoder(model, sparse=True)
    texts = ["one query", "", "another and longer query", "x"]
    actual = encoder.encode(texts)
    assert actual.dense is None
    assert actual.sparse is not None
    _, documents = model.encode_batch(model.batch(model.frame_documents(texts)))
    assert documents is not None
    assert model.contract.sparse is not None
    for query in (0, 2, 3):
        ids, weights = actual.sparse.row(query)
        assert len(ids) == 20
        impacts = np.zeros(len(model.backbone.tokenizer.backend.get_vocab()), dtype=np.uint8)
        impacts[documents.row(query)[0]] = documents.row(query)[1]
        np.testing.assert_array_equal(model.contract.sparse.quantize(weights), impacts[ids])
    assert len(actual.sparse.row(1)[0]) == 0
    assert len(encoder.encode([]).sparse or ()) == 0
    with pytest.raises(InvalidInput, match="no dense branch"):
        FullQueryEncoder(model)


def test_counted_terms_beside_full_queries_have_the_models_idf_weights(tmp_path: Path) -> None:
    model = LightRetriever.load(save_model(tmp_path, instruction=""))
    weights = torch.rand(model.backbone.vocab_size, generator=torch.Generator().manual_seed(0)) + 0.5
    model.heads = dataclasses.replace(model.heads, term_weights=weights)
    query = dataclasses.replace(model.contract.query, term_weights="idf")
    model.contract = dataclasses.replace(model.contract, query=query)
    actual = FullQueryEncoder(model).encode(["abba", "b"]).sparse
    assert actual is not None
    terms = [model.backbone.tokenizer.term_ids([letter]).row(0)[0] for letter in "ab"]
    expected = np.zeros((2, model.backbone.vocab_size), dtype=np.float32)
    expected[0, terms], expected[1, terms[1]] = 2 * weights[terms].numpy(), weights[terms[1]]
    np.testing.assert_allclose(actual.to_dense(), expected, rtol=1e-6)
    model.contract = dataclasses.replace(model.contract, sparse=None)
    with pytest.raises(InvalidInput, match="no sparse branch"):
        FullQueryEncoder(model, sparse=True)


def test_a_query_keeps_as_many_terms_as_its_policy_says(tmp_path: Path) -> None:
    model = LightRetriever.load(save_model(tmp_path, instruction="", method="csplade"))
    whole = FullQueryEncoder(model, sparse=True).encode(["one query"]).sparse
    query = dataclasses.replace(model.contract.query, top_k=3)
    model.contract = dataclasses.replace(model.contract, query=query)
    few = FullQueryEncoder(model, sparse=True).encode(["one query"]).sparse
    assert whole is not None
    assert few is not None
    ids, weights = whole.row(0)
    strongest = np.sort(ids[np.argsort(-weights)[:3]])
    assert few.row(0)[0].tolist() == strongest.tolist()
    with pytest.raises(InvalidInput, match="top_k"):
        QueryPolicy(top_k=-1)


def test_own_terms_stand_beside_the_strongest_in_documents_queries_and_training(tmp_path: Path) -> None:
    model = LightRetriever.load(save_sidr(tmp_path, top_k=3, own_terms=True))
    texts = ["a rather long text with many words", "", "ab", "aab aab"]
    with torch.no_grad():
        batch = model.batch(model.frame_documents(texts))
        everything = model.sparse_from(model.states(batch), batch)
    own = own_terms(model, texts)
    kept = [
        sorted({*row.topk(3).indices.tolist(), *np.flatnonzero(bag)}) for row, bag in zip(everything, own, strict=True)
    ]
    kept[1] = []
    expected = [[float(row[term]) for term in terms] for row, terms in zip(everything, kept, strict=True)]
    _, documents = model.encode_batch(batch)
    sparse = model.contract.sparse
    assert sparse is not None
    assert documents is not None
    for row, (terms, weights) in enumerate(zip(kept, expected, strict=True)):
        impacts = np.zeros(258, dtype=np.uint8)
        impacts[terms] = sparse.quantize(np.array(weights, dtype=np.float32))
        np.testing.assert_array_equal(documents.to_dense()[row], impacts)
    model.contract = dataclasses.replace(model.contract, query=dataclasses.replace(model.contract.query, top_k=2))
    queries = FullQueryEncoder(model, sparse=True).encode(texts).sparse
    assert queries is not None
    framed = model.frame_queries(texts)
    with torch.no_grad():
        batch = model.batch(framed)
        everything = model.sparse_from(model.states(batch), batch)
    bags = bag_of_tokens(framed, vocab_size=258, device=torch.device("cpu"))
    trained = pruned(everything, bags, SidrHeadRecipe(own_terms=True), k=2).numpy()
    np.testing.assert_allclose(queries.to_dense(), trained, rtol=1e-5)
    for row in (0, 2, 3):
        strongest = everything[row].topk(2).indices.tolist()
        assert queries.row(row)[0].tolist() == sorted({*strongest, *np.flatnonzero(bags[row]).tolist()})


def test_a_csplade_is_evaluated_with_queries_by_the_model_and_by_counts(tmp_path: Path, dataset: Path) -> None:
    report = evaluate_model(save_model(tmp_path, instruction="", method="csplade"), dataset, tmp_path / "work")
    assert {"tokens", "sparse", "full-sparse"} <= set(report.systems)
    assert "full" not in report.systems
    # Queries and documents of one text have the same vector.
    assert report.systems["full-sparse"].measures["RR@10"] > 0.7
    assert report.systems["full-sparse"].measures != report.systems["sparse"].measures
    both = evaluate_model(
        save_model(tmp_path, instruction=""),
        dataset,
        tmp_path / "other",
        systems=SystemOptions(["full+full-sparse", "full+sparse"]),
    )
    assert both.systems["full+full-sparse"].n_queries == 8


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"systems": SystemOptions(["dense", "typo"])}, "mode 'typo': mode 'typo' is unknown"),
        ({"systems": SystemOptions(["full+dense"])}, "names dense twice"),
        ({"systems": SystemOptions(["beta:0:full-sparse"])}, "orders 0 documents"),
        ({"systems": SystemOptions(["tokens:20:typo"])}, "'typo' is unknown"),
        (
            {"systems": SystemOptions(["dense+tokens"]), "options": SearchOptions(weights={"dense": 1.0})},
            "weights name",
        ),
    ],
)
def test_a_mode_that_the_model_cannot_serve_is_said_before_the_corpus_is_encoded(
    tmp_path: Path, dataset: Path, wrong: dict[str, Any], says: str
) -> None:
    model = save_model(tmp_path, instruction="")
    with pytest.raises(InvalidInput, match=says):
        evaluate_model(model, dataset, tmp_path / "work", **wrong)
    assert not (tmp_path / "work").exists()


def test_modes_of_a_sparse_branch_are_refused_for_a_dense_model() -> None:
    contract = make_contract(sparse=None)
    check_modes(contract, default_modes(contract))
    for mode in ("beta", "light-beta", "overlap", "full-lex", "full-sparse", "sparse", "hybrid+sparse"):
        with pytest.raises(InvalidInput, match=f"{re.escape(repr(mode))}.* sparse branch"):
            check_modes(contract, [mode])


def test_a_bi_encoder_without_light_queries_is_measured_with_full_ones(tmp_path: Path, dataset: Path) -> None:
    model = save_model(tmp_path, instruction="", method="dense")
    report = evaluate_model(model, dataset, tmp_path / "work")
    assert list(report.systems) == ["tokens", "sparse", "full", "full+tokens"]
    assert report.systems["full"].measures["RR@10"] > 0.7
    for mode in ("dense", "hybrid", "dense+tokens"):
        with pytest.raises(InvalidInput, match="no light dense queries"):
            evaluate_model(model, dataset, tmp_path / "work", systems=SystemOptions([mode]))


def test_all_modes_come_back_and_the_second_time_nothing_is_encoded(
    tmp_path: Path, dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = save_model(tmp_path, instruction="")
    first = evaluate_model(model, dataset, tmp_path / "work", run_dir=tmp_path / "runs")
    assert list(first.systems) == ["tokens", "dense", "sparse", "hybrid", "hybrid+tokens", "full"]
    assert first.n_queries == 8
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {f"echo.test.{mode}.trec" for mode in first.systems}
    # Without an instruction a query is framed like its document, so the full encoder ranks it first.
    assert first.systems["full"].measures["RR@10"] > 0.7
    monkeypatch.setattr(LightRetriever, "load", None)
    modes = ["tokens", "dense", "sparse", "hybrid"]
    again = evaluate_model(model, dataset, tmp_path / "work", systems=SystemOptions(modes))
    assert again.systems == {mode: first.systems[mode] for mode in modes}


def test_models_that_encode_documents_alike_share_the_vectors(tmp_path: Path, dataset: Path) -> None:
    a, b = save_model(tmp_path, instruction="find"), save_model(tmp_path, instruction="look up")
    evaluate_model(a, dataset, tmp_path / "work", systems=SystemOptions(["dense"]))
    before = (tmp_path / "work" / "vectors" / "manifest.json").read_bytes()
    evaluate_model(b, dataset, tmp_path / "work", systems=SystemOptions(["dense", "full"]))
    assert (tmp_path / "work" / "vectors" / "manifest.json").read_bytes() == before
    cached = Contract.load(tmp_path / "work" / "query-encoder")
    assert cached.query.instruction == "look up"


def test_queries_through_the_model_search_the_models_own_vectors(tmp_path: Path, dataset: Path) -> None:
    """A weight of documents' words changes the rows that light queries search, and no reference."""
    plain = save_model(tmp_path)
    weighted = tmp_path / "weighted"
    shutil.copytree(plain, weighted)
    dataclasses.replace(Contract.load(plain), word_weight=0.9).save(weighted)
    modes = ["dense", "full", "full+tokens"]
    scores = {}
    for model in (plain, weighted):
        run_dir = tmp_path / f"runs-{model.name}"
        evaluate_model(model, dataset, tmp_path / "work", systems=SystemOptions(modes), run_dir=run_dir)
        scores[model] = [(run_dir / f"echo.test.{mode}.trec").read_text() for mode in modes]
    assert scores[plain][1:] == scores[weighted][1:]
    assert scores[plain][0] != scores[weighted][0]


def test_a_work_folder_of_other_documents_is_refused(tmp_path: Path, dataset: Path) -> None:
    evaluate_model(save_model(tmp_path), dataset, tmp_path / "work", systems=SystemOptions(["dense"]))
    with pytest.raises(ContractMismatch, match=r"pooling is 'eos' .* 'mean'"):
        evaluate_model(
            save_model(tmp_path, pooling="mean"), dataset, tmp_path / "work", systems=SystemOptions(["dense"])
        )
    corpus = dataset / "corpus.jsonl"
    before = corpus.read_text()
    corpus.write_text(before.replace("dog ab", "dot ab"))
    assert corpus.read_text() != before
    with pytest.raises(InvalidInput, match=r"holds other documents than echo: .* another text"):
        evaluate_model(save_model(tmp_path), dataset, tmp_path / "work", systems=SystemOptions(["dense"]))
    corpus.write_text(before)
    evaluate_model(save_model(tmp_path), dataset, tmp_path / "work", systems=SystemOptions(["dense"]))
    with corpus.open("a") as file:
        file.write('{"_id": "more", "text": "more"}\n')
    with pytest.raises(InvalidInput, match="8 documents, but echo has 9"):
        evaluate_model(save_model(tmp_path), dataset, tmp_path / "work", systems=SystemOptions(["dense"]))


def test_an_unknown_task_is_refused(tmp_path: Path, dataset: Path) -> None:
    with pytest.raises(InvalidInput, match="no query table"):
        evaluate_model(
            save_model(tmp_path), dataset, tmp_path / "work", systems=SystemOptions(["full"], task="scifact")
        )


def test_half_encoded_vectors_are_finished(tmp_path: Path, dataset: Path) -> None:
    model = save_model(tmp_path)
    evaluate_model(model, dataset, tmp_path / "work", systems=SystemOptions(["dense"]))
    manifest = tmp_path / "work" / "vectors" / "manifest.json"
    manifest.write_text(json.dumps({"format_version": 1, "complete": False, "shards": []}))
    evaluate_model(model, dataset, tmp_path / "work", systems=SystemOptions(["dense"]))
    assert len(VectorsReader(tmp_path / "work" / "vectors")) == 8


def save_sidr(
    folder: Path, *, weighting: str = "expansion", projection: str = "head", top_k: int = 20, own_terms: bool = False
) -> Path:
    """Save a SiDR model with random weights whose queries are framed like its documents."""
    save_tiny("llama", folder / "backbone")
    backbone = load_backbone(str(folder / "backbone"))
    query = QueryPolicy("", leading_blank=False, weighting=weighting, expansion_terms=6)  # type: ignore[arg-type]
    sparse = SparseHead(
        "elu1p",
        top_k=top_k,
        scale=32.0,
        projection=projection,  # type: ignore[arg-type]
        own_terms=own_terms,
    )
    document = DocumentPolicy(max_tokens=40)
    LightRetriever(
        backbone, Contract("sidr", backbone_record(backbone), query, document, None, sparse, fusion=SIDR_FUSION)
    ).save(folder / "model")
    return folder / "model"


SIDR_FUSION = Fusion(weights={"sparse": 0.5, "tokens": 0.5})


def own_terms(model: LightRetriever, texts: list[str]) -> np.ndarray:
    """Compute V_BoT by loops."""
    bags = np.zeros((len(texts), model.backbone.vocab_size))
    for row, text in enumerate(texts):
        for term in model.backbone.tokenizer.term_ids([text.strip()]).row(0).tolist():
            bags[row, term] = 1
    return bags


def test_every_search_of_a_sidr_ranks_as_its_formula_says(tmp_path: Path, dataset: Path) -> None:
    folder = save_sidr(tmp_path)
    modes = ["full-sparse", "beta", "beta-lex", "beta-bin", "overlap", "full-lex", "full-bin", "beta:3:full-sparse"]
    with model_systems(folder, Dataset.open(dataset), tmp_path / "work", SystemOptions(modes, device="cpu")) as systems:
        data = Dataset.open(dataset)
        queries, documents = list(data.queries("test")), list(data.corpus())
        actual = {
            mode: searcher.search(queries, 8, SearchOptions(mode=name)) for mode, (searcher, name) in systems.items()
        }
    model = LightRetriever.load(folder, dtype=fast_dtype("cpu"))
    texts, ids = [d.text for d in documents], [d.doc_id for d in documents]
    _, stored = model.encode_batch(model.batch(model.frame_documents(texts)))
    assert stored is not None
    impacts, bags = stored.to_dense().astype(float), own_terms(model, texts)
    encoded = FullQueryEncoder(model, sparse=True).encode([q.text for q in queries]).sparse
    assert encoded is not None
    weights, own = encoded.to_dense().astype(float), own_terms(model, [q.text for q in queries])
    with torch.no_grad():
        batch = model.batch(model.frame_queries([q.text for q in queries]))
        everything = model.sparse_from(model.states(batch), batch).double().numpy()
    scores = {
        "full-sparse": weights @ impacts.T,
        "beta": weights @ bags.T,
        "beta-lex": (everything * own) @ bags.T,
        "beta-bin": (weights > 0).astype(float) @ bags.T,
        "overlap": own @ bags.T,
        "full-lex": weights @ (impacts * bags).T,
        "full-bin": weights @ (impacts > 0).T,
    }
    for mode, expected in scores.items():
        for row, query in enumerate(queries):
            ranking = actual[mode][query.query_id]
            of_each = dict(zip(ids, expected[row], strict=True))
            np.testing.assert_allclose(ranking.scores, [of_each[i] for i in ranking.doc_ids], rtol=1e-3, err_msg=mode)
            np.testing.assert_allclose(ranking.scores, np.sort(expected[row])[::-1][: len(ranking)], rtol=1e-3)
    for query in queries:
        first = list(actual["beta"][query.query_id].doc_ids)
        head = sorted(first[:3], key=list(actual["full-sparse"][query.query_id].doc_ids).index)
        late = actual["beta:3:full-sparse"][query.query_id]
        assert list(late.doc_ids) == head + first[3:]
        assert np.all(np.diff(late.scores) <= 0)


def test_a_sidr_is_evaluated_in_all_its_modes_and_others_are_refused(tmp_path: Path, dataset: Path) -> None:
    folder = save_sidr(tmp_path, projection="embeddings")
    report = evaluate_model(folder, dataset, tmp_path / "work")
    assert list(report.systems) == [
        *("tokens", "sparse", "hybrid", "full-sparse", "beta", "light-beta", "beta:20:full-sparse")
    ]
    for wrong, says in (("beta:full-sparse", "FIRST:M:SECOND"), ("beta:0:full-sparse", "orders 0"), ("gamma", "gamma")):
        with pytest.raises(InvalidInput, match=says):
            evaluate_model(folder, dataset, tmp_path / "work", systems=SystemOptions([wrong]))


@pytest.mark.parametrize("m", [1, 3, 8])
def test_the_second_stage_may_join_branches_over_the_best_documents_alone(
    tmp_path: Path, dataset: Path, m: int
) -> None:
    folder = save_sidr(tmp_path)
    modes = ["beta", "tokens", "sparse", f"beta:{m}:sparse+tokens"]
    with model_systems(folder, Dataset.open(dataset), tmp_path / "work", SystemOptions(modes, device="cpu")) as systems:
        queries = list(Dataset.open(dataset).queries("test"))
        beta, tokens, sparse, late = (
            systems[mode][0].search(queries, 8, SearchOptions(mode=systems[mode][1])) for mode in modes
        )
    for query in queries:
        first = list(beta[query.query_id].doc_ids)
        total = dict.fromkeys(first[:m], 0.0)
        for run in (tokens, sparse):
            ranking = run[query.query_id]
            scored = dict(zip(ranking.doc_ids, ranking.scores, strict=True))
            scores = {doc_id: scored.get(doc_id, 0.0) for doc_id in total}
            most = max(scores.values(), default=0.0)
            for doc_id, score in scores.items():
                total[doc_id] += 0.5 * (score / most if most else 1.0)
        actual = late[query.query_id]
        assert list(actual.doc_ids)[m:] == first[m:]
        np.testing.assert_allclose(actual.scores[:m], sorted(total.values(), reverse=True), rtol=1e-4)
        for doc_id, score in zip(actual.doc_ids[:m], actual.scores[:m], strict=True):
            assert score == pytest.approx(total[doc_id], rel=1e-4)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [({"split": "tset"}, "no split 'tset'"), ({"measures": ["nDCG@10", "foo"]}, "'foo'"), ({"k": 3}, "k is 3")],
)
def test_what_cannot_be_measured_is_said_before_the_corpus_is_encoded(
    tmp_path: Path, dataset: Path, wrong: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidInput, match=says):
        evaluate_model("no model is looked for", dataset, tmp_path / "work", **wrong)
    assert not (tmp_path / "work").exists()
