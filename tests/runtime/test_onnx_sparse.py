"""Sparse heads with an encoder of their own, run by ONNX Runtime, against their definition in float64."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from lightir.contract import SparseHead
from lightir.errors import ContractMismatch, FormatError, InvalidInput, MissingExtra
from lightir.runtime.backbone_files import weights_hash
from lightir.runtime.documents import encode_shard
from lightir.runtime.encode_options import EncodeOptions
from lightir.runtime.loading import choose_runtime, load_model
from lightir.runtime.onnx_sparse import largest_logits, strongest
from lightir.types import Document
from tiny_bert import (
    BEGIN,
    END,
    POSITIONS,
    VOCAB_SIZE,
    Weights,
    byte_tokenizer,
    masked_logits,
    save_bert,
    save_masked_bert,
    save_model,
)

pytest.importorskip("onnxruntime")
ONNX = EncodeOptions(runtime="onnx")
TEXTS = ["", "a", "some words of a text", "b" * 200, "zwölf boxkämpfer", "a text of medium length, cut nowhere"]
DOCUMENTS = [Document(f"d{i}", text) for i, text in enumerate(TEXTS)]


def save_sparse_model(
    folder: Path, *, first_names: bool = False, activation: str = "gelu", **settings: object
) -> Weights:
    """Write a model with dense vectors and a sparse head with an encoder of its own; return that one's weights."""
    save_bert(folder / "encoder")
    weights = save_masked_bert(folder / "model" / "sparse-encoder", first_names=first_names, hidden_act=activation)
    own = weights_hash(folder / "model" / "sparse-encoder")
    head = SparseHead(**{"scale": 40.0, "top_k": 20, "encoder_hash": own, **settings})  # type: ignore[arg-type]
    save_model(folder / "model", folder / "encoder", sparse=head)
    return weights


def defined_weights(weights: Weights, text: str, activation: str) -> np.ndarray:
    """Return ln(1 + ReLU(max_i z_it)) over the text's own positions (Eq. 8), (V,) float64; zeros without text."""
    own = byte_tokenizer().term_ids([text]).row(0).tolist()[: POSITIONS - 2]
    if not own:
        return np.zeros(VOCAB_SIZE)
    logits = masked_logits(weights, [BEGIN, *own, END], activation=activation)[1:-1]
    return np.log1p(np.maximum(logits.max(axis=0), 0))


@pytest.mark.parametrize("first_names", [False, True])
@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu"])
def test_impacts_are_those_of_the_definition(first_names: bool, activation: str, tmp_path: Path) -> None:
    weights = save_sparse_model(tmp_path, first_names=first_names, activation=activation)
    shard = encode_shard(load_model(tmp_path / "model", ONNX), DOCUMENTS, batch_tokens=100)
    assert shard.sparse is not None
    stored = shard.sparse.to_dense()
    for row, text in enumerate(TEXTS):
        expected = defined_weights(weights, text, activation)
        kept = np.where(expected >= np.sort(expected)[-20], expected, 0) * 40
        assert np.abs(stored[row] - np.minimum(kept, 255)).max() < 0.51
    assert not stored[0].any()
    assert 0 < (stored[2] > 0).sum() <= 20


def test_the_dense_vectors_are_those_without_a_sparse_head(tmp_path: Path) -> None:
    save_sparse_model(tmp_path)
    save_model(tmp_path / "dense", tmp_path / "encoder")
    rows = [encode_shard(load_model(tmp_path / name, ONNX), DOCUMENTS) for name in ("model", "dense")]
    assert rows[0].dense is not None
    np.testing.assert_array_equal(rows[0].dense, rows[1].dense)
    assert rows[1].sparse is None


def test_own_terms_are_kept_and_first_terms_are_left_out(tmp_path: Path) -> None:
    weights = save_sparse_model(tmp_path, top_k=3, own_terms=True, first_term=60, activation="gelu")
    shard = encode_shard(load_model(tmp_path / "model", ONNX), DOCUMENTS)
    assert shard.sparse is not None
    text = TEXTS[2]
    expected = defined_weights(weights, text, "gelu")
    expected[:60] = 0
    own = np.unique(byte_tokenizer().term_ids([text]).row(0))
    kept = np.zeros(VOCAB_SIZE)
    for term in {*own.tolist(), *np.argsort(-expected)[:3].tolist()}:
        kept[term] = expected[term] * 40
    assert np.abs(shard.sparse.to_dense()[2] - kept).max() < 0.51


def test_another_activation_has_its_weights(tmp_path: Path) -> None:
    weights = save_sparse_model(tmp_path, top_k=0, scale=3.0, activation="gelu")
    logits = {
        text: masked_logits(weights, [BEGIN, *byte_tokenizer().term_ids([text]).row(0).tolist(), END])[1:-1].max(axis=0)
        for text in TEXTS[1:3]
    }
    contract = load_model(tmp_path / "model", ONNX).contract
    assert contract.sparse is not None
    head = dataclasses.replace(contract.sparse, activation="elu1p")
    dataclasses.replace(contract, sparse=head).save(tmp_path / "model")
    shard = encode_shard(load_model(tmp_path / "model", ONNX), DOCUMENTS)
    assert shard.sparse is not None
    for row, text in enumerate(TEXTS[1:3], start=1):
        z = logits[text]
        expected = np.minimum(np.where(z > 0, z + 1, np.exp(np.minimum(z, 0))) * 3.0, 255)
        assert np.abs(shard.sparse.to_dense()[row] - expected).max() < 0.51


def test_largest_logits_and_strongest_weights_are_those_of_loops() -> None:
    random = np.random.default_rng(0)
    rows = [random.integers(-3, 4, size=(n, 4)).astype(np.float32) for n in (3, 0, 1, 700)]
    projection = random.integers(-3, 4, size=(900, 4)).astype(np.float32)
    bias = random.integers(-3, 4, size=900).astype(np.float32)
    maxima = largest_logits(rows, projection, bias)
    for row, features in enumerate(rows):
        for term in range(0, 900, 37):
            values = [float(features[i] @ projection[term]) + bias[term] for i in range(len(features))]
            assert maxima[row, term] == max(values, default=-np.inf)
    assert largest_logits([], projection, bias).shape == (0, 900)
    weights = random.permutation(40).reshape(2, 20).astype(np.float32)
    kept = strongest(weights, 5, own=[[0, 1], []])
    for row, own in ((0, {0, 1}), (1, set())):
        best = {*np.argsort(-weights[row])[:5].tolist(), *own}
        assert {*np.flatnonzero(kept[row]).tolist()} == {term for term in best if weights[row, term] > 0}
    assert strongest(weights, 0) is weights
    assert strongest(weights, 20) is weights


def test_integers_change_impacts_little(tmp_path: Path) -> None:
    save_sparse_model(tmp_path, top_k=0, scale=30.0)
    both = [
        encode_shard(load_model(tmp_path / "model", dataclasses.replace(ONNX, quantize=quantize)), DOCUMENTS).sparse
        for quantize in (None, "int8-dynamic")
    ]
    exact, rounded = (sparse.to_dense().astype(np.float64) for sparse in both if sparse is not None)
    cosines = (exact * rounded).sum(1)[1:] / np.linalg.norm(exact, axis=1)[1:] / np.linalg.norm(rounded, axis=1)[1:]
    assert cosines.min() > 0.95  # random weights
    assert not np.array_equal(exact, rounded)


def test_another_encoder_than_the_contracts_and_other_heads_are_refused(tmp_path: Path) -> None:
    save_sparse_model(tmp_path)
    model, own = tmp_path / "model", tmp_path / "model" / "sparse-encoder"
    contract = load_model(model, ONNX).contract
    assert contract.sparse is not None
    for changes in ({"bias_hash": "fitted"}, {"lexical": True}, {"encoder_hash": ""}):
        other = dataclasses.replace(contract, sparse=dataclasses.replace(contract.sparse, **changes))
        with pytest.raises((InvalidInput, MissingExtra), match="learned sparse vectors"):  # with torch, without
            choose_runtime(other, "onnx")
    weights = load_file(own / "model.safetensors")
    del weights["cls.predictions.bias"]
    save_file(weights, own / "model.safetensors")
    with pytest.raises(ContractMismatch, match=r"sparse\.encoder_hash"):
        load_model(model, ONNX)
    head = dataclasses.replace(contract.sparse, encoder_hash=weights_hash(own))
    dataclasses.replace(contract, sparse=head).save(model)
    with pytest.raises(FormatError, match=r"lack cls\.predictions\.bias"):
        load_model(model, ONNX)
    with pytest.raises(InvalidInput, match="has an encoder of its own and the projection 'own'; expected 'head'"):
        SparseHead(encoder_hash="hash", projection="own")
