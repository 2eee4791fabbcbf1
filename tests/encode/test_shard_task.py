"""The work of one machine of a cluster, without a cluster."""

from __future__ import annotations

import dataclasses
import socket
import sys
from pathlib import Path

import pytest

from lightir.clusters import require_answer
from lightir.encode import EncodeOptions, encode_corpus
from lightir.errors import InvalidInput, MissingExtra
from lightir.files import checksums_of_files
from lightir.models.encoder import LightRetriever
from lightir.runtime.cluster import RayOptions, encode_corpus_on_ray
from lightir.runtime.shard_task import ShardJob, describe_machine, encode_shard_aside
from lightir.shards import VectorsReader, VectorsWriter
from lightir.types import Document
from lightir.version import __version__
from tiny_vectors import save_tiny_retriever

OPTIONS = EncodeOptions(dtype="fp32", device="cpu", shard_size=4)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_retriever(tmp_path_factory.mktemp("model"))


def job_of(model: Path, vectors: Path) -> ShardJob:
    (vectors / ".probe-1").touch()
    return ShardJob(str(model), str(vectors), ".probe-1", OPTIONS)


def test_shards_adopted_in_any_order_are_the_folder_of_one_machine(model: Path, tmp_path: Path) -> None:
    documents = [Document(f"d{i}", "word " * i) for i in range(10)]
    report = encode_corpus(model, documents, tmp_path / "one", options=OPTIONS)
    contract = VectorsReader(tmp_path / "one").contract
    with VectorsWriter(tmp_path / "many", contract) as writer:
        job = job_of(model, tmp_path / "many")
        numbers = [next(writer.numbers) for _ in range(3)]
        shards = [encode_shard_aside(job, n, documents[4 * n : 4 * n + 4]) for n in numbers]
        encode_shard_aside(job, 1, documents[4:8])  # another attempt, which nobody adopts
        for n in (2, 0, 1):
            writer.adopt(n, shards[n].written)
        (tmp_path / "many" / ".probe-1").unlink()
        writer.finish()
    assert checksums_of_files(tmp_path / "many") == checksums_of_files(tmp_path / "one")
    assert sum(shard.tokens for shard in shards) == report.tokens
    assert sum(shard.impacts for shard in shards) == report.impacts


def test_one_machine_fills_the_gaps_of_an_interrupted_cluster(model: Path, tmp_path: Path) -> None:
    documents = [Document(f"d{i}", "word " * i) for i in range(15)]
    encode_corpus(model, documents, tmp_path / "one", options=OPTIONS)
    with VectorsWriter(tmp_path / "many", VectorsReader(tmp_path / "one").contract) as writer:
        job = job_of(model, tmp_path / "many")
        writer.adopt(2, encode_shard_aside(job, 2, documents[8:12]).written)
        encode_shard_aside(job, 0, documents[:4])
    (tmp_path / "many" / ".probe-1").unlink()
    report = encode_corpus(model, documents, tmp_path / "many", options=OPTIONS, resume=True)
    assert (report.documents, report.already_there) == (11, 4)
    assert checksums_of_files(tmp_path / "many") == checksums_of_files(tmp_path / "one")


def test_a_machine_with_a_folder_of_its_own_is_refused(model: Path, tmp_path: Path) -> None:
    job = dataclasses.replace(job_of(model, tmp_path), probe=".probe-of-another-machine")
    for refused in (lambda: describe_machine(job, "answer"), lambda: encode_shard_aside(job, 0, [])):
        with pytest.raises(InvalidInput, match=f"{tmp_path} on {socket.gethostname()} is not the folder of"):
            refused()
    assert not (tmp_path / "answer").exists()


def test_a_machine_tells_what_its_results_depend_on(model: Path, tmp_path: Path) -> None:
    report = describe_machine(job_of(model, tmp_path), "answer")
    assert (report.version, report.device, report.dtype) == (__version__, "cpu", "float32")
    assert report.fingerprint == LightRetriever.load(model).contract.fingerprint
    assert (tmp_path / "answer").is_file()


def test_an_adopted_shard_must_be_new_and_in_the_folder(model: Path, tmp_path: Path) -> None:
    documents = [Document("a", "word"), Document("b", "word")]
    with VectorsWriter(tmp_path / "v", LightRetriever.load(model).contract) as writer:
        job = job_of(model, tmp_path / "v")
        first, again = (encode_shard_aside(job, n, documents).written for n in (0, 1))
        writer.adopt(0, first)
        with pytest.raises(InvalidInput, match="duplicate document id 'a'"):
            writer.adopt(1, again)
        elsewhere = dataclasses.replace(first, doc_ids=("c", "d"))
        with pytest.raises(InvalidInput, match="does not exist: another machine wrote it, which does not share"):
            writer.adopt(1, elsewhere)


def test_without_ray_the_error_names_the_extra(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"pip install 'lightir\[ray\]'"):
        encode_corpus_on_ray(model, [], tmp_path / "v", cluster=RayOptions("auto"))
    assert not (tmp_path / "v").exists()
    with pytest.raises(InvalidInput, match="cpus is 0"):
        RayOptions("auto", cpus=0)


@pytest.mark.parametrize(
    "address", ["127.0.0.2:1", "127.0.0.2", "127.0.0.2:x", "127.0.0.2:70000", "127.0.0.1:1", "localhost:1"]
)
def test_an_address_where_no_cluster_answers_is_refused_at_once(address: str) -> None:
    with pytest.raises(
        InvalidInput, match=rf"no Ray cluster answers at {address}: .* start one with: ray start --head"
    ):
        require_answer(address, lambda: "127.0.0.3")


@pytest.mark.parametrize("listens_on", ["127.0.0.1", "127.0.0.3"])
def test_a_loopback_address_also_means_the_own_address_of_the_machine(listens_on: str) -> None:
    with socket.create_server((listens_on, 0)) as listening:
        require_answer(f"127.0.0.1:{listening.getsockname()[1]}", lambda: "127.0.0.3")
