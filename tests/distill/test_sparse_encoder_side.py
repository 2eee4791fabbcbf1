"""A sparse side by an encoder of its own: weights by their definition, both runtimes, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import runpy
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForMaskedLM

from lightir.contract import Contract
from lightir.data import read_documents
from lightir.encode import encode_corpus
from lightir.encode.full_queries import FullQueryEncoder
from lightir.errors import ContractMismatch, InvalidInput
from lightir.index import Index, build_index
from lightir.models.encoder import LightRetriever
from lightir.query import CachedQueryEncoder
from lightir.runtime.documents import encode_shard
from lightir.runtime.encode_options import EncodeOptions
from lightir.runtime.loading import load_model
from lightir.search import Searcher
from lightir.train.distill.distillation import DistillationOptions, distill
from lightir.train.distill.fit_config import FitConfig
from lightir.train.distill.sparse_encoder_side import add_sparse_encoder
from lightir.train.distill.sparse_side import SparseSideOptions
from lightir.types import Document
from tiny_models import save_tiny, write_sentence_transformer

WORDS = ["river", "stone", "cloud", "engine", "violin", "harbor", "planet", "copper"]
OPTIONS = SparseSideOptions(top_k=12, calibration_documents=40, device="cpu")
FIT = FitConfig(steps=5, batch_size=16, candidates=20)
RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "sparse_encoder.py"


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
    options = DistillationOptions(spans=60, fit=FIT)
    return distill(write_sentence_transformer(top / "teacher"), [corpus], out=top / "distilled", options=options)


@pytest.fixture(scope="module")
def encoder(distilled: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random BERT with a masked-LM head, whose bias leaves about half of the logits above 0."""
    folder = tmp_path_factory.mktemp("encoder") / "bert"
    save_tiny("bert", folder, bos=False)
    model = AutoModelForMaskedLM.from_pretrained(folder)
    with torch.no_grad():
        model.cls.predictions.bias.copy_(torch.randn(len(model.cls.predictions.bias)))
        model.cls.predictions.transform.dense.weight.mul_(20)
        model.bert.embeddings.word_embeddings.weight.mul_(20)
    model.save_pretrained(folder)
    shutil.copyfile(distilled / "tokenizer.json", folder / "tokenizer.json")
    return folder


@pytest.fixture(scope="module")
def sparse_model(distilled: Path, encoder: Path, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sparse") / "model"
    return add_sparse_encoder(distilled, encoder, [corpus], out, options=OPTIONS)


def transformers_weights(folder: Path, text: str) -> np.ndarray:
    """Return ln(1 + ReLU(max_i z_it)) of all terms, by the logits of transformers' own masked LM."""
    model = LightRetriever.load(folder)
    ((ids, start, stop),) = model.frame_documents([text])
    masked = AutoModelForMaskedLM.from_pretrained(folder / "sparse-encoder", dtype=torch.float32).eval()
    with torch.no_grad():
        logits = masked(input_ids=torch.tensor([ids])).logits[0, start:stop].double().numpy()
    return np.log1p(np.maximum(logits.max(axis=0), 0))


def test_the_stored_terms_are_the_strongest_of_the_own_encoder(sparse_model: Path) -> None:
    model, texts = LightRetriever.load(sparse_model), ["violin river copper", "stone", "a much longer text than these"]
    sparse = model.contract.sparse
    assert sparse is not None
    _, vectors = model.encode_batch(model.batch(model.frame_documents(texts)))
    assert vectors is not None
    for row, text in enumerate(texts):
        weights = transformers_weights(sparse_model, text)
        kept = np.where(weights >= np.sort(weights)[-12], weights, 0) * sparse.scale
        assert np.abs(vectors.to_dense()[row] - np.minimum(kept, 255)).max() < 0.51
        assert 0 < (vectors.to_dense()[row] > 0).sum() <= 12


def test_both_runtimes_store_the_same(sparse_model: Path) -> None:
    pytest.importorskip("onnxruntime")
    documents = [Document(f"d{i}", "some words of text " * i) for i in range(5)]
    options = EncodeOptions(runtime="onnx"), EncodeOptions(runtime="torch", dtype="fp32")
    first, second = (encode_shard(load_model(sparse_model, one), documents) for one in options)
    assert first.sparse is not None
    assert second.sparse is not None
    assert np.abs(first.sparse.to_dense().astype(int) - second.sparse.to_dense()).max() <= 1
    assert first.dense is not None
    np.testing.assert_allclose(first.dense, second.dense, atol=1e-3)


def test_dense_vectors_and_the_query_table_are_unchanged(distilled: Path, sparse_model: Path) -> None:
    texts = ["river stone cloud", "violin"]
    before, after = LightRetriever.load(distilled), LightRetriever.load(sparse_model)
    vectors = [model.encode_batch(model.batch(model.frame_documents(texts)))[0] for model in (before, after)]
    assert vectors[0] is not None
    assert vectors[1] is not None
    assert torch.equal(vectors[0], vectors[1])
    queries = [CachedQueryEncoder.load(folder).encode(texts) for folder in (distilled, sparse_model)]
    assert np.array_equal(queries[0].dense, queries[1].dense)
    assert queries[0].sparse is None
    assert queries[1].sparse is not None


def test_an_index_has_all_three_branches_and_the_full_encoder_reads_it(
    sparse_model: Path, corpus: Path, tmp_path: Path
) -> None:
    encode_corpus(sparse_model, read_documents(corpus), tmp_path / "vectors")
    build_index(tmp_path / "vectors", tmp_path / "index")
    with Index.open(tmp_path / "index") as index:
        assert Searcher(index).prepare().plan.branches == ("dense", "sparse", "tokens")
        assert len(Searcher(index).search(["violin harbor"], k=5)) == 1
        full = FullQueryEncoder.load(sparse_model, sparse=True)
        assert len(Searcher(index, full).search(["violin harbor"], k=5)) == 1


def test_a_saved_copy_and_a_distilled_one_keep_the_encoder(sparse_model: Path, corpus: Path, tmp_path: Path) -> None:
    LightRetriever.load(sparse_model).save(tmp_path / "copy")
    distill(sparse_model, [corpus], out=tmp_path / "again", options=DistillationOptions(spans=60, fit=FIT))
    rows = []
    for folder in (sparse_model, tmp_path / "copy", tmp_path / "again"):
        model = LightRetriever.load(folder)
        _, vectors = model.encode_batch(model.batch(model.frame_documents(["violin river copper"])))
        assert vectors is not None
        rows.append(vectors.to_dense())
    assert np.array_equal(rows[0], rows[1])
    assert np.array_equal(rows[0], rows[2])


def test_another_encoder_than_the_contracts_is_refused(sparse_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(sparse_model, folder)
    masked = AutoModelForMaskedLM.from_pretrained(folder / "sparse-encoder")
    masked.cls.predictions.bias.data += 1
    masked.save_pretrained(folder / "sparse-encoder")
    with pytest.raises(ContractMismatch, match=r"sparse\.encoder_hash"):
        LightRetriever.load(folder)


def test_single_tokens_have_no_expansion(sparse_model: Path) -> None:
    with pytest.raises(InvalidInput, match="an encoder of its own, so single tokens have no expansion"):
        LightRetriever.load(sparse_model).token_weights(torch.tensor([5]))


def test_models_and_encoders_that_do_not_fit_are_refused(
    distilled: Path, sparse_model: Path, encoder: Path, corpus: Path, tmp_path: Path
) -> None:
    plain, other, untrained = tmp_path / "plain", tmp_path / "other", tmp_path / "model"
    save_tiny("bert", plain, bos=False, plain=True)
    shutil.copytree(encoder, other)
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    tokenizer["normalizer"] = {"type": "Lowercase"}
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    shutil.copytree(distilled, untrained)
    dataclasses.replace(Contract.load(untrained), method="dense").save(untrained)
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    for model, chosen, sample, message in (
        (sparse_model, encoder, corpus, "the model has a sparse side already"),
        (untrained, encoder, corpus, "the model has no fitted query table"),
        (distilled, plain, corpus, "it has no masked-LM head"),
        (distilled, other, corpus, "it has another tokenizer"),
        (distilled, encoder, empty, "no documents"),
    ):
        with pytest.raises(InvalidInput, match=message):
            add_sparse_encoder(model, chosen, [sample], tmp_path / "out", options=OPTIONS)


def test_the_recipe_writes_the_model(
    distilled: Path, encoder: Path, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main = runpy.run_path(str(RECIPE))["main"]
    arguments = ["--encoder", str(encoder), "--corpus", str(corpus), "--out", str(tmp_path / "out"), "--top-k", "4"]
    main([str(distilled), *arguments])
    assert capsys.readouterr().out.strip() == str(tmp_path / "out")
    sparse = Contract.load(tmp_path / "out").sparse
    assert sparse is not None
    assert (sparse.top_k, sparse.projection) == (4, "head")
    assert sparse.encoder_hash
