"""Encoders run by ONNX Runtime or the kernel, against their definition in float64; none needs torch."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from lightir.contract import DenseHead, SparseHead, hash_arrays
from lightir.errors import ContractMismatch, FormatError, InvalidInput, MissingExtra, NotFound
from lightir.runtime import bert_encoder, kernel_session, loading
from lightir.runtime.bert_encoder import BertEncoder
from lightir.runtime.bert_graph import quantize_columns
from lightir.runtime.documents import encode_corpus, encode_shard
from lightir.runtime.encode_options import EncodeOptions
from lightir.runtime.loading import choose_runtime, load_model
from lightir.runtime.onnx_session import n_threads
from lightir.shards import VectorsReader
from lightir.types import Document
from tiny_bert import BEGIN, END, HIDDEN, POSITIONS, Weights, bert_states, byte_tokenizer, save_bert, save_model

pytest.importorskip("onnxruntime")
ONNX, KERNEL = EncodeOptions(runtime="onnx"), EncodeOptions(runtime="kernel")
TEXTS = ["", "a", "some words of a text", "b" * 200, "zwölf boxkämpfer", "a text of medium length, cut nowhere"]
DOCUMENTS = [Document(f"d{i}", text) for i, text in enumerate(TEXTS)]


def framed_ids(text: str) -> list[int]:
    return [BEGIN, *byte_tokenizer().term_ids([text]).row(0).tolist()[: POSITIONS - 2], END]


def pooled(weights: Weights, text: str, pooling: str, kind: str = "bert", activation: str = "gelu") -> np.ndarray:
    """The vector of a text by the poolings' definitions, not normalized."""
    states = bert_states(weights, kind, framed_ids(text), activation=activation)
    own = states[1:-1] if text else states
    chosen = {"mean_all": states, "mean": own, "last": own[-1:], "eos": states[-1:], "first": states[:1]}[pooling]
    return chosen.mean(axis=0)


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.parametrize(
    ("kind", "prefix", "activation"),
    [
        ("bert", "", "gelu"),
        ("bert", "bert.", "relu"),
        ("roberta", "roberta.", "gelu_new"),
        ("xlm-roberta", "", "gelu"),
        ("distilbert", "distilbert.", "gelu"),
        ("electra", "electra.", "gelu"),
    ],
)
def test_vectors_are_those_of_the_definition(kind: str, prefix: str, activation: str, tmp_path: Path) -> None:
    weights = save_bert(tmp_path / "encoder", kind, prefix=prefix, hidden_act=activation)
    save_model(tmp_path / "model", tmp_path / "encoder")
    shard = encode_shard(load_model(tmp_path / "model", ONNX), DOCUMENTS, batch_tokens=100)
    expected = unit(np.array([pooled(weights, text, "mean_all", kind, activation) for text in TEXTS]))
    assert shard.dense is not None
    np.testing.assert_allclose(shard.dense, expected, atol=6e-4)  # half the step of float16 near 1


@pytest.mark.parametrize("pooling", ["mean_all", "mean", "last", "eos", "first"])
@pytest.mark.parametrize("similarity", ["dot", "cosine"])
def test_poolings_standardization_and_widths(pooling: Any, similarity: Any, tmp_path: Path) -> None:
    weights = save_bert(tmp_path / "encoder")
    random = np.random.default_rng(1)
    heads = {
        "mean": random.normal(size=HIDDEN).astype(np.float32),
        "deviation": random.uniform(1, 2, HIDDEN).astype(np.float32),
    }
    head = DenseHead(
        pooling,
        standardized=hash_arrays(*heads.values()),
        dims=() if similarity == "dot" else (24,),
        similarity=similarity,
    )
    save_model(tmp_path / "model", tmp_path / "encoder", head)
    save_file(heads, tmp_path / "model" / "head.safetensors")
    model = load_model(tmp_path / "model", ONNX)
    vectors, sparse = model.encode_framed(model.frame_documents(DOCUMENTS))
    expected = np.array([pooled(weights, text, pooling) for text in TEXTS])
    expected = (expected - heads["mean"]) / heads["deviation"]
    np.testing.assert_allclose(vectors, expected if similarity == "dot" else unit(expected[:, :24]), atol=2e-4)
    assert sparse is None
    save_file({"mean": heads["mean"]}, tmp_path / "model" / "head.safetensors")
    with pytest.raises(ContractMismatch, match=r"dense\.standardized"):
        load_model(tmp_path / "model", ONNX)


def test_a_corpus_gets_vectors_and_can_be_resumed(tmp_path: Path) -> None:
    save_bert(tmp_path / "encoder")
    contract = save_model(tmp_path / "model", tmp_path / "encoder")
    encode_corpus(tmp_path / "model", DOCUMENTS[:2], tmp_path / "v", options=ONNX)
    quantized = dataclasses.replace(ONNX, quantize="int8-dynamic")
    with pytest.raises(ContractMismatch, match="layers quantized to None, but this run uses int8-dynamic"):
        encode_corpus(tmp_path / "model", DOCUMENTS, tmp_path / "v", options=quantized, resume=True)
    report = encode_corpus(tmp_path / "model", DOCUMENTS[:2], tmp_path / "v", options=ONNX, resume=True)
    assert (report.documents, report.already_there) == (0, 2)
    reader = VectorsReader(tmp_path / "v")
    assert (reader.contract, len(reader)) == (contract, 2)


def test_integers_change_vectors_little(tmp_path: Path) -> None:
    save_bert(tmp_path / "encoder")
    save_model(tmp_path / "model", tmp_path / "encoder")
    exact = encode_shard(load_model(tmp_path / "model", ONNX), DOCUMENTS).dense
    model = load_model(tmp_path / "model", dataclasses.replace(ONNX, quantize="int8-dynamic"))
    rounded = encode_shard(model, DOCUMENTS).dense
    assert exact is not None
    assert rounded is not None
    assert not np.array_equal(rounded, exact)
    cosines = (unit(exact.astype(np.float32)) * unit(rounded.astype(np.float32))).sum(axis=1)
    assert cosines.min() > 0.98  # random weights; a real encoder loses less (docs/performance.md)


def test_columns_are_rounded_to_the_nearest_step() -> None:
    weight = np.array([[127.0, 0.0, -0.5], [-63.4, 0.0, 1.0]], dtype=np.float32)
    rounded, scales = quantize_columns(weight)
    np.testing.assert_array_equal(rounded, [[127, 0, -64], [-63, 0, 127]])
    np.testing.assert_allclose(scales, [1, 1, 1 / 127], rtol=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "modernbert"}, "is a 'modernbert' model; without torch these are supported: bert, roberta"),
        ({"position_embedding_type": "relative_key"}, "positions of the type 'relative_key'"),
        ({"hidden_act": "silu"}, "the activation 'silu'; expected one of gelu"),
        ({"hidden_size": 64}, "embeddings of width 32 for states of width 64"),
    ],
)
def test_other_architectures_are_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    save_bert(tmp_path / "encoder", **changes)
    save_model(tmp_path / "model", tmp_path / "encoder")
    with pytest.raises(InvalidInput, match=message):
        load_model(tmp_path / "model", ONNX)


def test_damaged_and_missing_files_are_refused(tmp_path: Path) -> None:
    encoder, model = tmp_path / "encoder", tmp_path / "model"
    save_bert(encoder)
    weights = load_file(encoder / "model.safetensors")
    save_model(model, encoder)
    save_file({**weights, "more": np.zeros(1, np.float32)}, encoder / "model.safetensors")
    with pytest.raises(ContractMismatch, match=r"backbone\.weights_hash"):
        load_model(model, ONNX)
    del weights["encoder.layer.1.output.dense.bias"]
    save_file(weights, encoder / "model.safetensors")
    save_model(model, encoder)
    with pytest.raises(FormatError, match=r"lack encoder\.layer\.1\.output\.dense\.bias: the files"):
        load_model(model, ONNX)
    (encoder / "model.safetensors").write_bytes(b"short")
    save_model(model, encoder)
    with pytest.raises(FormatError, match="cannot be read without torch"):
        load_model(model, ONNX)
    (encoder / "config.json").write_text("[1]")
    with pytest.raises(FormatError, match="is not a JSON object"):
        load_model(model, ONNX)
    (encoder / "config.json").unlink()
    with pytest.raises(NotFound, match=r"config\.json does not exist"):
        load_model(model, ONNX)
    (encoder / "model.safetensors").unlink()
    with pytest.raises(NotFound, match="holds no weights"):
        load_model(model, ONNX)


def test_a_document_longer_than_the_table_of_positions_is_refused(tmp_path: Path) -> None:
    save_bert(tmp_path / "encoder")
    contract = save_model(tmp_path / "model", tmp_path / "encoder")
    long = dataclasses.replace(contract, document=dataclasses.replace(contract.document, max_tokens=POSITIONS + 1))
    long.save(tmp_path / "model")
    with pytest.raises(InvalidInput, match=f"a document has {POSITIONS + 1} tokens, but .* only {POSITIONS} positions"):
        encode_shard(load_model(tmp_path / "model", ONNX), DOCUMENTS)


def test_options_of_the_other_runtime_are_refused(tmp_path: Path) -> None:
    save_bert(tmp_path / "encoder")
    save_model(tmp_path / "model", tmp_path / "encoder")
    refused: list[tuple[dict[str, Any], str]] = [
        ({"device": "cuda"}, "runs on the CPU, not on device 'cuda'"),
        ({"dtype": "bf16"}, "has no bfloat16"),
        ({"quantize": "int4"}, "supports the quantization int8-dynamic, not int4"),
    ]
    for changes, message in refused:
        with pytest.raises(InvalidInput, match=message):
            load_model(tmp_path / "model", dataclasses.replace(ONNX, **changes))
    model = load_model(tmp_path / "model", ONNX)
    with pytest.raises(InvalidInput, match="has nothing to compile"):
        model.prepared(True, 1e9)
    with pytest.raises(InvalidInput, match="a loaded model keeps its weights"):
        load_model(model, ONNX)
    assert load_model(model, EncodeOptions()) is model


def test_the_runtime_is_torch_if_it_is_installed_else_onnx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_bert(tmp_path / "encoder")
    contract = save_model(tmp_path / "model", tmp_path / "encoder")
    sparse = dataclasses.replace(contract, sparse=SparseHead())
    causal = dataclasses.replace(contract, backbone=dataclasses.replace(contract.backbone, kind="causal"))

    def installed(*, torch: bool, onnx: bool) -> None:
        monkeypatch.setattr(loading, "has_torch", lambda: torch)
        monkeypatch.setattr(loading, "has_onnxruntime", lambda: onnx)

    installed(torch=True, onnx=True)
    assert (choose_runtime(contract), choose_runtime(contract, "onnx")) == ("torch", "onnx")
    with pytest.raises(InvalidInput, match="is a causal language model, which ONNX Runtime does not run here"):
        choose_runtime(causal, "onnx")
    with pytest.raises(InvalidInput, match="runtime 'tpu': expected one of auto, torch, onnx, kernel"):
        choose_runtime(contract, "tpu")  # type: ignore[arg-type]
    installed(torch=False, onnx=True)
    assert choose_runtime(contract) == "onnx"
    assert isinstance(load_model(tmp_path / "model", EncodeOptions()), BertEncoder)
    with pytest.raises(MissingExtra, match=r"learned sparse vectors.*pip install 'lightir\[train\]'"):
        choose_runtime(sparse)
    with pytest.raises(MissingExtra, match=r"torch is not installed.*lightir\[train\]"):
        choose_runtime(contract, "torch")
    installed(torch=False, onnx=False)
    monkeypatch.setattr(loading, "has_tiles", lambda: True)
    assert choose_runtime(contract) == "kernel"
    for model, tiles in ((contract, False), (sparse, True)):
        monkeypatch.setattr(loading, "has_tiles", lambda tiles=tiles: tiles)
        with pytest.raises(MissingExtra, match=r"pip install 'lightir\[encode\]' \(ONNX Runtime, 77 MB"):
            choose_runtime(model)
    with pytest.raises(MissingExtra, match=r"ONNX Runtime is not installed \(77 MB\)"):
        choose_runtime(contract, "onnx")


@pytest.mark.parametrize(("quantize", "cosine"), [(None, 0.999), ("int8-dynamic", 0.99)])
@pytest.mark.parametrize(("kind", "activation"), [("bert", "gelu"), ("roberta", "gelu_new"), ("distilbert", "gelu")])
def test_the_kernel_gives_nearly_the_vectors_of_the_definition(
    kind: str, activation: str, quantize: Any, cosine: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bert_encoder, "require_tiles", lambda: None)  # other processors do what tiles do in loops
    weights = save_bert(tmp_path / "encoder", kind, hidden_act=activation)
    save_model(tmp_path / "model", tmp_path / "encoder")
    model = load_model(tmp_path / "model", dataclasses.replace(KERNEL, quantize=quantize))
    vectors, sparse = model.encode_framed(model.frame_documents(DOCUMENTS))
    expected = unit(np.array([pooled(weights, text, "mean_all", kind, activation) for text in TEXTS]))
    assert vectors is not None
    assert (vectors * expected).sum(axis=1).min() > cosine
    assert (model.runtime, sparse) == ("kernel", None)
    with pytest.raises(InvalidInput, match="lightir's kernel has nothing to compile"):
        model.prepared(True, 1e9)


def test_what_the_kernel_does_not_run_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_bert(tmp_path / "encoder", hidden_act="relu")
    contract = save_model(tmp_path / "model", tmp_path / "encoder")
    monkeypatch.setattr(kernel_session, "has_tiles", lambda: False)
    with pytest.raises(InvalidInput, match=r"needs a processor with tiles of bfloat16.*use --runtime onnx or torch"):
        load_model(tmp_path / "model", KERNEL)
    monkeypatch.setattr(bert_encoder, "require_tiles", lambda: None)
    with pytest.raises(
        InvalidInput, match="width 32 and the activation 'relu'; the kernel encodes with a multiple of 32"
    ):
        load_model(tmp_path / "model", KERNEL)
    refused: list[tuple[dict[str, Any], str]] = [
        ({"device": "cuda"}, "the runtime 'kernel' runs on the CPU, not on device 'cuda'"),
        ({"dtype": "fp32"}, "computes in bfloat16; for float32 use --runtime onnx or torch"),
        ({"quantize": "int4"}, "the runtime 'kernel' supports the quantization int8-dynamic, not int4"),
    ]
    for changes, message in refused:
        with pytest.raises(InvalidInput, match=message):
            load_model(tmp_path / "model", dataclasses.replace(KERNEL, **changes))
    assert loading.device_and_dtype(KERNEL) == ("cpu", "bfloat16")
    causal = dataclasses.replace(contract, backbone=dataclasses.replace(contract.backbone, kind="causal"))
    monkeypatch.setattr(loading, "has_torch", lambda: True)
    with pytest.raises(InvalidInput, match="is a causal language model, which lightir's kernel does not run here"):
        choose_runtime(causal, "kernel")
    dataclasses.replace(contract, sparse=SparseHead(encoder_hash="x")).save(tmp_path / "model")
    with pytest.raises(InvalidInput, match="has no learned sparse vectors; use --runtime onnx or torch"):
        load_model(tmp_path / "model", KERNEL)


def test_a_missing_encoder_is_said_before_anything_is_loaded(tmp_path: Path) -> None:
    save_bert(tmp_path / "encoder")
    contract = save_model(tmp_path / "model", tmp_path / "encoder")
    record = dataclasses.replace(contract.backbone, address="pypi:no-such-package")
    dataclasses.replace(contract, backbone=record).save(tmp_path / "model")
    with pytest.raises(MissingExtra, match=r"encodes documents with is missing: .* no-such-package"):
        loading.require_runtime(tmp_path / "model", "onnx")


def test_threads_are_those_of_torch_or_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert n_threads() == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "")
    assert n_threads() >= 1


def test_the_end_token_is_the_one_that_the_tokenizers_settings_name(tmp_path: Path) -> None:
    encoder = tmp_path / "encoder"
    save_bert(encoder)
    settings = {"cls_token": {"content": "a"}, "sep_token": "b"}
    (encoder / "tokenizer_config.json").write_text(json.dumps(settings))
    save_model(tmp_path / "model", encoder)
    (ids, _, _), *_ = load_model(tmp_path / "model", ONNX).frame_documents([Document("d", "x")])
    letters = byte_tokenizer().backend.token_to_id
    assert ids == [letters("a"), letters("x"), letters("b")]
    (encoder / "tokenizer_config.json").write_text(json.dumps({"sep_token": "no such token"}))
    with pytest.raises(InvalidInput, match="has no end token"):
        load_model(tmp_path / "model", ONNX)
