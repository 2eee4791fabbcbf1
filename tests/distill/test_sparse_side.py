"""A sparse side made of a query table: weights by their definition, unchanged dense vectors, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import runpy
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from lightir.contract import Contract, DenseHead
from lightir.data import read_documents
from lightir.encode import encode_corpus
from lightir.errors import ContractMismatch, InvalidInput
from lightir.index import Index, build_index
from lightir.models.encoder import LightRetriever
from lightir.query import CachedQueryEncoder
from lightir.search import Searcher
from lightir.train.distill.distillation import DistillationOptions, distill
from lightir.train.distill.fit_config import FitConfig
from lightir.train.distill.sparse_side import SparseSideOptions, add_sparse_side
from tiny_models import write_sentence_transformer

WORDS = ["river", "stone", "cloud", "engine", "violin", "harbor", "planet", "copper"]
OPTIONS = SparseSideOptions(top_k=12, quantile=0.8, calibration_documents=40, device="cpu")
RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "sparse_side.py"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "corpus.jsonl"
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, size=9)) for _ in range(40)]
    path.write_text("".join(json.dumps({"_id": f"d{i}", "text": text}) + "\n" for i, text in enumerate(texts)))
    return path


@pytest.fixture(scope="module")
def distilled(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("models")
    options = DistillationOptions(spans=60, fit=FitConfig(steps=5, batch_size=16, candidates=20))
    return distill(write_sentence_transformer(top / "teacher"), [corpus], out=top / "distilled", options=options)


@pytest.fixture(scope="module")
def sparse_model(distilled: Path, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return add_sparse_side(distilled, [corpus], tmp_path_factory.mktemp("sparse") / "model", options=OPTIONS)


def expected_weights(folder: Path, text: str) -> np.ndarray:
    """Return ln(1 + ReLU(max_i h_i · r_t / |r_t| + b_t)) of all terms in double precision, position by position."""
    model, arrays = LightRetriever.load(folder), load_file(folder / "head.safetensors")
    table = load_file(folder / "query-encoder" / "model.safetensors")
    rows = table["embeddings"].astype(np.float64) * table["weights"][:, None]
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    batch = model.batch(model.frame_documents([text]))
    with torch.no_grad():
        states = model.states(batch)[0].double().numpy()[batch.own_mask[0].numpy()]
    largest = np.full(len(rows), -np.inf)
    for state in states:
        largest = np.maximum(largest, rows @ state)
    return np.log(1 + np.maximum(0, largest + arrays["term_bias"]))


def test_the_stored_terms_are_the_strongest_and_the_texts_own_by_the_definition(sparse_model: Path) -> None:
    model, text = LightRetriever.load(sparse_model), "violin river copper"
    sparse = model.contract.sparse
    _, vectors = model.encode_batch(model.batch(model.frame_documents([text])))
    assert vectors is not None
    assert sparse is not None
    weights = expected_weights(sparse_model, text)
    own = np.unique(model.backbone.tokenizer.term_ids([text]).term_ids)
    strongest = np.argsort(-weights, kind="stable")[:12]
    kept = np.zeros_like(weights)
    kept[own], kept[strongest] = weights[own], weights[strongest]
    impacts = np.minimum(kept * sparse.scale, 255)
    stored = vectors.to_dense()[0].astype(np.float64)
    # the rows are rounded to int8 once more, which moves a weight by a few thousandths
    assert np.abs(stored - impacts).max() < 0.5 + 0.02 * sparse.scale
    assert 0 < (stored > 0).sum() <= 12 + len(own)


def test_a_term_has_a_weight_in_the_share_of_sample_documents_above_the_quantile(
    sparse_model: Path, corpus: Path
) -> None:
    texts = [document.text for document in read_documents(corpus)]
    shares = np.mean([expected_weights(sparse_model, text) > 1e-2 for text in texts], axis=0)
    assert shares.max() <= 0.2 + 1 / len(texts)
    assert shares.max() > 0


def test_dense_vectors_and_the_query_table_are_unchanged(distilled: Path, sparse_model: Path) -> None:
    texts = ["river stone cloud", "violin"]
    before, after = LightRetriever.load(distilled), LightRetriever.load(sparse_model)
    for model in (before, after):
        assert (model.contract.sparse is None) == (model is before)
    vectors = [model.encode_batch(model.batch(model.frame_documents(texts)))[0] for model in (before, after)]
    assert vectors[0] is not None
    assert vectors[1] is not None
    assert torch.equal(vectors[0], vectors[1])
    queries = [CachedQueryEncoder.load(folder).encode(texts) for folder in (distilled, sparse_model)]
    assert np.array_equal(queries[0].dense, queries[1].dense)
    assert queries[0].sparse is None


def test_queries_are_counts_times_the_idf_of_the_sample(sparse_model: Path, corpus: Path) -> None:
    encoder = CachedQueryEncoder.load(sparse_model)
    vectors = encoder.encode(["violin violin copper"])
    assert vectors.sparse is not None
    texts = [document.text for document in read_documents(corpus)]
    ids = [set(encoder.tokenizer.term_ids([text]).term_ids.tolist()) for text in texts]
    query = encoder.tokenizer.term_ids(["violin violin copper"]).term_ids.tolist()
    for term, weight in zip(vectors.sparse.term_ids.tolist(), vectors.sparse.weights.tolist(), strict=True):
        frequency = sum(term in own for own in ids)
        idf = np.log(1 + len(texts) / (frequency + 0.5)) / np.log(1 + len(texts) / 0.5)
        assert weight == pytest.approx(query.count(term) * idf, rel=1e-5)


def test_an_index_has_all_three_branches_and_searches_them_by_default(
    sparse_model: Path, corpus: Path, tmp_path: Path
) -> None:
    encode_corpus(sparse_model, read_documents(corpus), tmp_path / "vectors")
    build_index(tmp_path / "vectors", tmp_path / "index")
    with Index.open(tmp_path / "index") as index:
        assert Searcher(index).prepare().plan.branches == ("dense", "sparse", "tokens")
        assert len(Searcher(index).search(["violin harbor"], k=5)) == 1


def test_another_projection_than_the_contracts_is_refused(sparse_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    LightRetriever.load(sparse_model).save(folder)
    arrays = load_file(folder / "head.safetensors")
    arrays["projection"][3, 0] ^= 1
    save_file(arrays, folder / "head.safetensors")
    with pytest.raises(ContractMismatch, match=r"sparse\.projection_hash"):
        LightRetriever.load(folder)
    del arrays["projection"]
    save_file(arrays, folder / "head.safetensors")
    with pytest.raises(ContractMismatch, match=r"sparse\.projection_hash is ''"):
        LightRetriever.load(folder)


@pytest.mark.parametrize(
    ("dense", "message"),
    [
        (None, "has no fitted query table"),
        (DenseHead("eos"), "pools by 'eos'"),
        (DenseHead("mean_all", standardized="hash"), "pools by 'mean_all', standardized"),
        (DenseHead("mean_all", dims=(16,)), "stores 16 of 32 dimensions"),
    ],
)
def test_a_table_of_another_space_is_refused(
    dense: DenseHead | None, message: str, distilled: Path, corpus: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(distilled, folder)
    dataclasses.replace(Contract.load(folder), dense=dense).save(folder)
    with pytest.raises(InvalidInput, match=message):
        add_sparse_side(folder, [corpus], tmp_path / "out", options=OPTIONS)


def test_a_second_sparse_side_is_refused(sparse_model: Path, corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="has a sparse side already"):
        add_sparse_side(sparse_model, [corpus], tmp_path / "again", options=OPTIONS)


def test_a_sample_without_documents_is_refused(distilled: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    with pytest.raises(InvalidInput, match="no documents"):
        add_sparse_side(distilled, [empty], tmp_path / "out", options=OPTIONS)


def test_the_recipe_writes_the_model(
    distilled: Path, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main = runpy.run_path(str(RECIPE))["main"]
    main([str(distilled), "--corpus", str(corpus), "--out", str(tmp_path / "out"), "--top-k", "4"])
    assert capsys.readouterr().out.strip() == str(tmp_path / "out")
    sparse = Contract.load(tmp_path / "out").sparse
    assert sparse is not None
    assert (sparse.top_k, sparse.projection) == (4, "own")
