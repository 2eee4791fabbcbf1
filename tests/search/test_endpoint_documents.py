"""Documents encoded by an embeddings endpoint: the right vectors, no text sent twice, and what was sent is said."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fake_endpoint import DIM, FakeEndpoint, fake_endpoint, text_vector
from lightir.cli import main
from lightir.contract import QueryPolicy, external_contract
from lightir.errors import ContractMismatch, InvalidInput
from lightir.index import Index
from lightir.query.endpoint import EmbeddingsEndpoint, EndpointFailed, EndpointOptions
from lightir.search import Searcher, SearchOptions
from lightir.search.endpoint_documents import EndpointDocuments, encode_by_endpoint
from lightir.search.external_vectors import ExternalQueryEncoder
from lightir.shards import Shard, VectorsReader
from lightir.types import Document

WORDS = ["river", "stone", "cloud", "copper", "lantern", "meadow", "signal", "harbor"]
KEY = "LIGHTIR_TEST_KEY"


def documents(n: int = 30) -> list[Document]:
    rng = np.random.default_rng(5)
    texts = [" ".join(rng.choice(WORDS, size=4)) for _ in range(n)]
    return [Document(f"d{i}", text, title=f"number {i}" if i % 3 == 0 else "") for i, text in enumerate(texts)]


@pytest.fixture
def server() -> Iterator[FakeEndpoint]:
    with fake_endpoint() as endpoint:
        yield endpoint


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    lines = [{"_id": d.doc_id, "title": d.title, "text": d.text} for d in [*documents(), Document("blank", "  ")]]
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def source(server: FakeEndpoint, work: Path, **options: float) -> EndpointDocuments:
    endpoint = EmbeddingsEndpoint(server.url, "embed-3", EndpointOptions(batch_texts=4, wait_s=0.001, **options))
    return EndpointDocuments(endpoint, work=work)


def expected(listed: list[Document]) -> np.ndarray:
    rows = np.array([text_vector(f"{document.title} {document.text}".strip()) for document in listed])
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float16)


def test_documents_get_the_endpoints_vectors_and_blank_ones_none(server: FakeEndpoint, tmp_path: Path) -> None:
    listed = documents()
    mixed = [Document("blank", " \n"), *listed]
    report = encode_by_endpoint(source(server, tmp_path / "work"), mixed, tmp_path / "vectors")
    reader = VectorsReader(tmp_path / "vectors")
    assert reader.contract == external_contract("embed-3", DIM, maker="127.0.0.1")
    shard = Shard.concatenate(list(reader))
    assert [document.doc_id for document in shard.documents] == [document.doc_id for document in listed]
    np.testing.assert_allclose(shard.dense, expected(listed), atol=1e-3)
    distinct = {document.full_text() for document in listed}
    assert sorted(server.texts) == sorted(distinct)  # each text once, also the first one, which tells the width
    assert (report.documents, report.empty, report.amount.texts) == (30, 1, len(distinct))
    assert report.amount.characters == sum(map(len, distinct))
    assert report.amount.estimated
    assert report.amount.tokens == -(-report.amount.characters // 4)


def test_a_run_that_failed_goes_on_without_sending_a_text_again(server: FakeEndpoint, tmp_path: Path) -> None:
    listed, refused = documents(), (400, b'{"error": {"message": "too long"}}', {})
    vector = json.dumps({"data": [{"index": 0, "embedding": text_vector(listed[0].full_text())}]}).encode()
    server.answers = [(200, vector, {}), (503, b"busy", {}), refused]
    with pytest.raises(EndpointFailed, match="too long"):
        encode_by_endpoint(source(server, tmp_path / "work"), listed, tmp_path / "vectors")
    before = [text for _, _, body in server.requests[:1] for text in body["input"]]
    server.requests.clear()
    report = encode_by_endpoint(source(server, tmp_path / "work"), listed, tmp_path / "vectors", resume=True)
    assert before
    assert not set(before) & set(server.texts)
    assert report.documents == 30
    server.requests.clear()
    again = encode_by_endpoint(source(server, tmp_path / "work"), listed, tmp_path / "again")
    assert (server.requests, again.amount.texts, again.amount.tokens) == ([], 0, 0)
    rows = [Shard.concatenate(list(VectorsReader(tmp_path / name))).dense for name in ("vectors", "again")]
    np.testing.assert_array_equal(*rows)


def test_the_endpoint_says_the_tokens_if_it_counts_them(server: FakeEndpoint, tmp_path: Path) -> None:
    server.counts_tokens = True
    report = encode_by_endpoint(source(server, tmp_path / "work"), documents(), tmp_path / "vectors")
    assert report.amount.tokens == sum(len(text.split()) for text in server.texts)
    assert not report.amount.estimated
    assert report.amount.cost(20.0) == pytest.approx(report.amount.tokens * 20e-6)


def test_a_fitted_table_gives_contract_prompt_and_query_encoder(server: FakeEndpoint, tmp_path: Path) -> None:
    model, endpoint = tmp_path / "model", EmbeddingsEndpoint(server.url, "embed-3")
    policy = QueryPolicy(tokenizer="t")
    for width, prompt in ((DIM, "passage: "), (DIM + 1, "")):
        contract = external_contract("embed-3", width, maker="acme", document_prompt=prompt, query=policy)
        model.mkdir(exist_ok=True)
        contract.save(model)
        encoder = EndpointDocuments(endpoint, model=model, work=tmp_path / f"work-{width}")
        if width != DIM:
            with pytest.raises(ContractMismatch, match=r"width 16, but those of .* have 17"):
                encoder.begin(documents())
            continue
        begun, listed = encoder.begin(documents())
        shards = list(encoder.shards(begun, listed))
        assert begun == contract
        assert all(text.startswith("passage: ") for text in server.texts)
        assert sum(len(shard.documents) for shard in shards) == 30
        assert encoder.query_encoder is None


def test_a_corpus_without_text_and_a_model_of_its_own_are_refused(server: FakeEndpoint, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no document has text"):
        source(server, tmp_path).begin([Document("a", ""), Document("b", " ")])
    assert not server.requests


def test_index_and_encode_take_an_address_and_say_what_was_sent(
    server: FakeEndpoint,
    corpus: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(KEY, "secret")
    server.counts_tokens = True
    asked = ["--endpoint-model", "embed-3", "--endpoint-key-env", KEY, "--work", str(tmp_path / "w"), "--price", "1000"]
    index, vectors = tmp_path / "index", tmp_path / "vectors"
    assert main(["index", str(corpus), "--model", server.url, *asked, "--out", str(index)]) == 0
    printed = capsys.readouterr().err
    n_texts = len({document.full_text() for document in documents()})
    n_tokens = sum(len(text.split()) for text in server.texts)
    assert (
        f"sent to {server.url}: {n_texts} texts, {n_tokens} tokens, {n_tokens / 1000:.4f} at 1000 a million" in printed
    )
    assert "--query-vectors FILE" in printed
    assert {headers["Authorization"] for _, headers, _ in server.requests} == {"Bearer secret"}
    sent = len(server.requests)
    assert main(["encode", server.url, str(corpus), *asked, "--out", str(vectors), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["texts"], answer["cost"], answer["documents"], answer["empty"]) == (0, 0.0, 30, 1)
    assert len(server.requests) == sent
    with Index.open(index) as opened:
        info = opened.info()
        assert (info.documents, info.pending) == (31, 1)  # the blank one is found by BM25 alone
        encoder = ExternalQueryEncoder(opened.contract, lambda texts: np.array([text_vector(text) for text in texts]))
        (ranking,) = Searcher(opened, encoder).search(["copper harbor"], 5, SearchOptions(mode="dense")).values()
    unit = np.array(text_vector("copper harbor")) / np.linalg.norm(text_vector("copper harbor"))
    scores = expected(documents()).astype(np.float32) @ unit.astype(np.float32)
    best = sorted(zip(-scores, [f"d{i}" for i in range(30)], strict=True))[:5]
    assert list(ranking.doc_ids) == [doc_id for _, doc_id in best]


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        ("encode", ["minilm", "CORPUS", "--price", "1"], "--price requires the address of an endpoint"),
        ("encode", ["URL", "CORPUS"], "name its model with --endpoint-model"),
        ("encode", ["URL", "CORPUS", "--endpoint-model", "m", "--quantize", "int8"], "--quantize and an endpoint"),
        ("encode", ["URL", "CORPUS", "--endpoint-model", "m", "--price", "-1"], "not a price"),
        ("index", ["CORPUS", "--model", "URL", "--endpoint-model", "m", "--passages", "all"], "--passages and an"),
        ("index", ["CORPUS", "--model", "URL", "--endpoint-model", "m", "--vectors", "v.npy"], "exclude each other"),
    ],
)
def test_unclear_commands_are_refused_before_anything_is_sent(
    command: str,
    arguments: list[str],
    message: str,
    server: FakeEndpoint,
    corpus: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = [{"URL": server.url, "CORPUS": str(corpus)}.get(part, part) for part in arguments]
    try:
        status = main([command, *given, "--out", str(tmp_path / "out")])
    except SystemExit as error:
        status = error.code
    assert status == 2
    assert message in capsys.readouterr().err
    assert not server.requests
