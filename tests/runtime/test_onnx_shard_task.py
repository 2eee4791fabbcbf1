"""The work of one machine of a cluster by ONNX Runtime, without a cluster and without torch."""

from __future__ import annotations

import dataclasses
import random
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lightir.errors import ContractMismatch, InvalidInput, MissingExtra
from lightir.files import checksums_of_files
from lightir.runtime import loading
from lightir.runtime.bert_files import BertFiles
from lightir.runtime.documents import encode_corpus
from lightir.runtime.encode_options import EncodeOptions
from lightir.runtime.loading import device_and_dtype, load_framing, load_model
from lightir.runtime.shard_task import ShardJob, describe_machine, encode_shard_aside
from lightir.shards import VectorsReader, VectorsWriter
from lightir.types import Document
from lightir.version import __version__
from tiny_bert import save_bert, save_model

pytest.importorskip("onnxruntime")
ONNX = EncodeOptions(runtime="onnx", device="cpu", shard_size=4)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    save_bert(tmp_path / "encoder")
    save_model(tmp_path / "model", tmp_path / "encoder")
    return tmp_path / "model"


def job_of(model: Path, vectors: Path) -> ShardJob:
    vectors.mkdir(exist_ok=True)
    (vectors / ".probe").touch()
    return ShardJob(str(model), str(vectors), ".probe", ONNX)


@pytest.mark.parametrize("n", [0, 1, 4, 18])
def test_shards_adopted_in_any_order_are_the_folder_of_one_machine(n: int, model: Path, tmp_path: Path) -> None:
    documents = [Document(f"d{i}", "word " * (i % 5), title="a title" if i % 3 else "") for i in range(n)]
    report = encode_corpus(model, documents, tmp_path / "one", options=ONNX)
    with VectorsWriter(tmp_path / "many", VectorsReader(tmp_path / "one").contract) as writer:
        job = job_of(model, tmp_path / "many")
        starts = list(range(0, n, 4))
        shards = [encode_shard_aside(job, next(writer.numbers), documents[start : start + 4]) for start in starts]
        order = list(range(len(shards)))
        random.Random(n).shuffle(order)
        for number in order:
            writer.adopt(number, shards[number].written)
        (tmp_path / "many" / ".probe").unlink()
        writer.finish()
    assert checksums_of_files(tmp_path / "many") == checksums_of_files(tmp_path / "one")
    assert sum(shard.tokens for shard in shards) == report.tokens


def test_the_process_that_reads_documents_frames_them_as_the_workers_do_and_keeps_no_weights(model: Path) -> None:
    documents = [Document("a", ""), Document("b", "some words"), Document("c", "x" * 300, title="title")]
    framing = load_framing(model, ONNX)
    assert framing.documents(documents) == load_model(model, ONNX).frame_documents(documents)
    assert isinstance(framing.backbone, BertFiles)
    assert framing.backbone.words.size == 0
    assert framing.backbone.layers == []


def test_a_machine_tells_what_its_results_depend_on(model: Path, tmp_path: Path) -> None:
    report = describe_machine(job_of(model, tmp_path / "vectors"), "answer")
    assert (report.version, report.device, report.dtype) == (__version__, "cpu", "float32")
    assert (tmp_path / "vectors" / "answer").is_file()


def test_a_machine_without_the_runtime_is_named(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "has_onnxruntime", lambda: False)
    host = socket.gethostname()
    with pytest.raises(MissingExtra, match=rf"{host}: ONNX Runtime is not installed .*lightir\[encode\]"):
        describe_machine(job_of(model, tmp_path / "vectors"), "answer")


@pytest.mark.parametrize(
    ("change", "message"), [({"dtype": "bf16"}, "no bfloat16"), ({"device": "cuda"}, "not on device 'cuda'")]
)
def test_options_that_onnx_runtime_lacks_are_refused_before_workers_start(
    change: dict[str, Any], message: str, model: Path
) -> None:
    options = dataclasses.replace(ONNX, **change)
    for refused in (lambda: load_framing(model, options), lambda: device_and_dtype(options)):
        with pytest.raises(InvalidInput, match=message):
            refused()


def test_another_encoder_than_the_contract_s_is_refused_before_workers_start(model: Path) -> None:
    (model.parent / "encoder" / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(ContractMismatch, match=r"backbone\.weights_hash"):
        load_framing(model, ONNX)


def test_the_modules_of_a_worker_load_no_torch() -> None:
    program = "import sys, lightir.runtime.cluster, lightir.runtime.shard_task; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout == b"False\n"
