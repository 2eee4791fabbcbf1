"""Encoding of documents: each once, in order, also across interruptions."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from lightir.contract import Contract, DenseHead, DocumentPolicy, SparseHead
from lightir.encode import EncodeOptions, encode_corpus
from lightir.errors import AlreadyExists, ContractMismatch, InvalidInput, NotFound
from lightir.models import compilation
from lightir.models.backbones import load_backbone
from lightir.models.encoder import LightRetriever
from lightir.models.model_folder import backbone_record
from lightir.runtime.documents import encode_shard, length_batches
from lightir.shards import VectorsReader
from lightir.text import QueryPolicy
from lightir.types import Document
from tiny_models import save_tiny, tiny_backbone


def tiny_model(name: str = "llama", **policy: object) -> LightRetriever:
    backbone = tiny_backbone(name)
    document = DocumentPolicy(**{"max_tokens": 40, **policy})  # type: ignore[arg-type]
    contract = Contract(
        "lightretriever", backbone_record(backbone), QueryPolicy("find"), document, DenseHead(), SparseHead(top_k=20)
    )
    return LightRetriever(backbone, contract)


def some_documents(n: int) -> list[Document]:
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 60, size=n)
    return [Document(f"d{i}", "word " * (length // 5) + "x" * (length % 5), "") for i, length in enumerate(lengths)]


def read(folder: Path) -> tuple[list[str], np.ndarray, list[tuple[list[int], list[int]]]]:
    shards = list(VectorsReader(folder))
    ids = [document.doc_id for shard in shards for document in shard.documents]
    dense = np.concatenate([shard.dense for shard in shards if shard.dense is not None])
    rows = [shard.sparse.row(i) for shard in shards if shard.sparse is not None for i in range(len(shard.sparse))]
    return ids, dense, [(terms.tolist(), impacts.tolist()) for terms, impacts in rows]


def test_batches_and_shards_do_not_change_the_vectors(tmp_path: Path) -> None:
    model, documents = tiny_model(), some_documents(23)
    report = encode_corpus(
        model, iter(documents), tmp_path / "a", options=EncodeOptions(batch_tokens=100, shard_size=5)
    )
    encode_corpus(model, documents, tmp_path / "b", options=EncodeOptions(batch_tokens=1))
    one, together = read(tmp_path / "b"), read(tmp_path / "a")
    assert one[0] == together[0] == [document.doc_id for document in documents]
    np.testing.assert_allclose(one[1].astype(np.float32), together[1].astype(np.float32), atol=2e-3)
    assert [row[0] for row in one[2]] == [row[0] for row in together[2]]
    assert report.documents == 23
    assert report.tokens == sum(len(ids) for ids, _, _ in model.frame_documents(documents))
    assert report.documents_per_s > 0


def test_a_shard_ends_at_its_documents_or_at_64_batches_of_tokens(tmp_path: Path) -> None:
    model, documents = tiny_model(), [Document(f"d{i}", "some words of text") for i in range(200)]
    n_tokens = len(model.frame_documents(documents[:1])[0][0])

    def sizes(**options: int) -> list[int]:
        encode_corpus(model, documents, tmp_path / str(options), options=EncodeOptions(**options))
        return [len(shard.documents) for shard in VectorsReader(tmp_path / str(options))]

    assert sizes() == [200]
    assert sizes(shard_size=90) == [90, 90, 20]
    assert sizes(batch_tokens=n_tokens) == [64, 64, 64, 8]
    assert sizes(batch_tokens=n_tokens + 1) == [128, 72]


def test_compiled_layers_give_the_same_vectors_and_the_model_is_as_before(tmp_path: Path) -> None:
    model, documents = tiny_model(), some_documents(9)
    encode_corpus(model, documents, tmp_path / "plain", options=EncodeOptions(compile=False))
    encode_corpus(model, documents, tmp_path / "compiled", options=EncodeOptions(compile=True))
    plain, compiled = read(tmp_path / "plain"), read(tmp_path / "compiled")
    np.testing.assert_allclose(plain[1].astype(np.float32), compiled[1].astype(np.float32), atol=2e-3)
    assert [row[0] for row in plain[2]] == [row[0] for row in compiled[2]]
    assert all(layer._compiled_call_impl is None for layer in model.backbone.model.layers)


def test_quantised_layers_are_noted_and_not_mixed(tmp_path: Path) -> None:
    pytest.importorskip("torchao")
    documents = some_documents(9)
    save_tiny("llama", tmp_path / "backbone")
    backbone = load_backbone(str(tmp_path / "backbone"))
    contract = dataclasses.replace(tiny_model().contract, backbone=backbone_record(backbone))
    LightRetriever(backbone, contract).save(tmp_path / "model")
    encode_corpus(tmp_path / "model", documents, tmp_path / "plain", options=EncodeOptions(dtype="fp32"))
    encode_corpus(
        tmp_path / "model", documents, tmp_path / "int8", options=EncodeOptions(dtype="fp32", quantize="int8")
    )
    plain, rounded = (read(tmp_path / name)[1].astype(np.float32) for name in ("plain", "int8"))
    assert (plain * rounded).sum(1).min() > 0.99
    assert np.abs(plain - rounded).max() > 1e-3
    assert [VectorsReader(tmp_path / name).manifest["quantized"] for name in ("plain", "int8")] == [None, "int8"]
    with pytest.raises(ContractMismatch, match="layers quantized to int8, but this run uses None"):
        encode_corpus(
            tmp_path / "model", documents, tmp_path / "int8", resume=True, options=EncodeOptions(dtype="fp32")
        )
    with pytest.raises(InvalidInput, match="a loaded model keeps its weights"):
        encode_corpus(tiny_model(), documents, tmp_path / "v", options=EncodeOptions(quantize="int8"))


def test_layers_are_compiled_where_it_pays_and_a_missing_compiler_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    encode_corpus(tiny_model(), some_documents(3), tmp_path / "small")
    assert not caplog.records
    monkeypatch.setattr(compilation, "WORTH_COMPILING", 1)
    encode_corpus(tiny_model(), some_documents(3), tmp_path / "large")
    assert "uncompiled" in caplog.text
    assert read(tmp_path / "large")[2] == read(tmp_path / "small")[2]
    with pytest.raises(InvalidInput, match="no C\\+\\+ compiler"):
        encode_corpus(tiny_model(), some_documents(3), tmp_path / "asked", options=EncodeOptions(compile=True))


def test_a_document_without_text_is_its_frame(tmp_path: Path) -> None:
    encode_corpus(tiny_model(), [Document("a", ""), Document("b", " \n"), Document("c", "text")], tmp_path / "v")
    _, dense, sparse = read(tmp_path / "v")
    np.testing.assert_array_equal(dense[0], dense[1])
    assert np.linalg.norm(dense[0].astype(np.float32)) == pytest.approx(1, abs=1e-2)
    assert sparse[0] == sparse[1] == ([], [])
    assert sparse[2][0]


def test_a_huge_document_equals_its_beginning(tmp_path: Path) -> None:
    huge = "lorem ipsum " * 500_000
    encode_corpus(tiny_model(), [Document("huge", huge), Document("short", huge[:2000])], tmp_path / "v")
    _, dense, _ = read(tmp_path / "v")
    np.testing.assert_array_equal(dense[0], dense[1])


def test_a_batch_of_no_documents_is_a_shard_of_none() -> None:
    shard = encode_shard(tiny_model(), [])
    assert (shard.dense is not None, shard.sparse is not None) == (True, True)
    assert (np.shape(shard.dense), len(shard.sparse or ()), len(shard.documents)) == ((0, 32), 0, 0)


def test_no_documents_make_a_complete_empty_folder(tmp_path: Path) -> None:
    report = encode_corpus(tiny_model(), [], tmp_path / "v")
    assert (report.documents, report.documents_per_s, len(VectorsReader(tmp_path / "v"))) == (0, 0.0, 0)


def test_the_folder_is_only_taken_up_again_on_purpose_and_by_the_same_model(tmp_path: Path) -> None:
    documents = some_documents(4)
    encode_corpus(tiny_model(), documents, tmp_path / "v")
    with pytest.raises(AlreadyExists, match="resume"):
        encode_corpus(tiny_model(), documents, tmp_path / "v")
    with pytest.raises(ContractMismatch, match=r"the vectors in .* have contract"):
        encode_corpus(tiny_model(max_tokens=30), documents, tmp_path / "v", resume=True)
    report = encode_corpus(tiny_model(), documents, tmp_path / "v", resume=True)
    assert (report.documents, report.already_there) == (0, 4)


@pytest.mark.parametrize("change", [{"text": "other"}, {"title": "other"}])
def test_a_run_is_not_resumed_with_another_text_of_a_document_that_is_written(
    change: dict[str, str], tmp_path: Path
) -> None:
    documents = some_documents(4)
    encode_corpus(tiny_model(), documents[:3], tmp_path / "v")
    changed = [documents[0], dataclasses.replace(documents[1], **change), *documents[2:]]  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"'d1' is in .* with another title or text"):
        encode_corpus(tiny_model(), changed, tmp_path / "v", resume=True)
    changed = [*documents[:3], dataclasses.replace(documents[3], **change)]  # type: ignore[arg-type]
    assert encode_corpus(tiny_model(), changed, tmp_path / "v", resume=True).documents == 1


def test_an_id_that_comes_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="duplicate document id 'a'"):
        encode_corpus(tiny_model(), [Document("a", "x"), Document("a", "y")], tmp_path / "v")


class _SlowModel(LightRetriever):
    def encode_batch(self, batch):  # type: ignore[no-untyped-def]
        time.sleep(0.004)
        return super().encode_batch(batch)


def _encode_slowly(folder: Path) -> None:
    model = tiny_model()
    slow = _SlowModel(model.backbone, model.contract)
    encode_corpus(slow, some_documents(60), folder, resume=True, options=EncodeOptions(batch_tokens=120, shard_size=7))


def test_killed_and_resumed_equals_uninterrupted(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    fork = multiprocessing.get_context("fork")
    for _ in range(6):
        process = fork.Process(target=_encode_slowly, args=(tmp_path / "cut",))
        process.start()
        time.sleep(float(rng.uniform(0.02, 0.5)))
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
    _encode_slowly(tmp_path / "cut")
    encode_corpus(
        tiny_model(), some_documents(60), tmp_path / "whole", options=EncodeOptions(batch_tokens=120, shard_size=7)
    )
    cut, whole = read(tmp_path / "cut"), read(tmp_path / "whole")
    assert cut[0] == whole[0] == [f"d{i}" for i in range(60)]
    np.testing.assert_array_equal(cut[1], whole[1])
    assert cut[2] == whole[2]
    assert sorted(p.name for p in (tmp_path / "cut").iterdir()) == sorted(
        p.name for p in (tmp_path / "whole").iterdir()
    )


@pytest.mark.parametrize("left", [[".lightir.json.x1"], ["lightir.json"], ["lightir.json", ".manifest.json.x1"]])
def test_a_folder_killed_at_its_birth_is_begun_anew(left: list[str], tmp_path: Path) -> None:
    (tmp_path / "v").mkdir()
    for name in left:
        (tmp_path / "v" / name).write_text("{")
    encode_corpus(tiny_model(), some_documents(3), tmp_path / "v", resume=True)
    assert read(tmp_path / "v")[0] == ["d0", "d1", "d2"]
    assert not [path for path in (tmp_path / "v").iterdir() if path.name.startswith(".")]


def test_a_folder_of_something_else_is_not_swept(tmp_path: Path) -> None:
    (tmp_path / "v").mkdir()
    (tmp_path / "v" / "notes.txt").write_text("mine")
    with pytest.raises(NotFound):
        encode_corpus(tiny_model(), some_documents(3), tmp_path / "v", resume=True)
    assert (tmp_path / "v" / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("batch_tokens", [1, 7, 50, 10_000])
def test_length_batches_hold_every_position_once_within_the_budget(batch_tokens: int) -> None:
    lengths = np.random.default_rng(0).integers(0, 30, size=41).tolist()
    batches = list(length_batches(lengths, batch_tokens))
    assert sorted(position for batch in batches for position in batch) == list(range(41))
    assert all(len(b) == 1 or len(b) * max(lengths[p] for p in b) <= max(batch_tokens, len(b)) for b in batches)
    assert list(length_batches([], batch_tokens)) == []


@pytest.mark.parametrize(("scale", "clips"), [(1.0, False), (200.0, True)])
def test_clipped_impacts_are_counted_and_more_than_a_tiny_share_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, scale: float, clips: bool
) -> None:
    model = tiny_model()
    model.contract = dataclasses.replace(model.contract, sparse=SparseHead("elu1p", top_k=20, scale=scale))
    report = encode_corpus(model, some_documents(9), tmp_path / "v")
    weights = np.concatenate([shard.sparse.weights for shard in VectorsReader(tmp_path / "v") if shard.sparse])
    assert (report.impacts, report.clipped) == (len(weights), int((weights == 255).sum()))
    assert report.clips == clips == ("are clipped" in caplog.text)
    assert ("none above 1.27" in caplog.text) == clips
    model.fit_scale(some_documents(9))
    caplog.clear()
    report = encode_corpus(model, some_documents(9), tmp_path / "fitted")
    assert report.clipped <= 1  # the largest weight
    weights = np.concatenate([shard.sparse.weights for shard in VectorsReader(tmp_path / "fitted") if shard.sparse])
    assert weights.max() >= 253
    assert not caplog.records
