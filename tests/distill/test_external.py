"""Tables fitted to an endpoint and to stored vectors, their indexes, and their fallback, end to end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fake_endpoint import DIM, FakeEndpoint, fake_endpoint, text_vector
from lightir.cli import main
from lightir.contract import Contract, external_contract
from lightir.encode import encode_corpus
from lightir.errors import InvalidInput
from lightir.files import read_json
from lightir.index import Index
from lightir.query import CachedQueryEncoder
from lightir.query.confidence import Confidence
from lightir.query.endpoint import EmbeddingsEndpoint, EndpointFailed
from lightir.search.fetched_vectors import FetchedVectors
from lightir.train.distill import quality_report
from lightir.train.distill.fitted_rows import FittedRows
from lightir.train.distill.held_out import FitData
from lightir.train.distill.quality_report import fit_confidence, query_quality
from lightir.types import Document
from lightir.vectors import Ragged
from tiny_models import tiny_tokenizer

WORDS = ["river", "stone", "cloud", "engine", "violin", "harbor", "planet", "copper", "meadow", "lantern"]


@pytest.fixture
def server() -> Iterator[FakeEndpoint]:
    with fake_endpoint() as endpoint:
        yield endpoint


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of 200 documents, its vectors with ids in another order, and a tokenizer."""
    out = tmp_path_factory.mktemp("external")
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, size=8)) for _ in range(200)]
    lines = [
        json.dumps({"_id": f"d{i}", "title": " ".join(text.split()[:2]), "text": text}) for i, text in enumerate(texts)
    ]
    (out / "corpus.jsonl").write_text("\n".join(lines))
    order = rng.permutation(200)
    np.save(out / "v.npy", np.array([text_vector(texts[i]) for i in order], np.float32))
    (out / "ids").write_text("\n".join(f"d{i}" for i in order))
    tiny_tokenizer().save(out / "tokenizer.json")
    return out


def stored_command(folder: Path, out: Path, *more: str) -> list[str]:
    vectors = ["--vectors", str(folder / "v.npy"), "--vector-ids", str(folder / "ids")]
    model = ["--teacher-model", "embed-3", "--tokenizer", str(folder / "tokenizer.json"), "--set", "steps=20"]
    return ["distill", *vectors, *model, "--corpus", str(folder / "corpus.jsonl"), "--out", str(out), *more]


@pytest.fixture(scope="module")
def model(folder: Path) -> Path:
    assert main(stored_command(folder, folder / "model", "--made-by", "acme")) == 0
    return folder / "model"


@pytest.fixture(scope="module")
def index(folder: Path, model: Path) -> Path:
    vectors = ["--vectors", str(folder / "v.npy"), "--vector-ids", str(folder / "ids")]
    command = ["index", str(folder / "corpus.jsonl"), *vectors, "--model", str(model), "--out", str(folder / "index")]
    assert main(command) == 0
    return folder / "index"


def test_a_table_fitted_to_stored_vectors_ranks_as_they_do_and_its_contract_says_what_they_are(
    folder: Path, model: Path
) -> None:
    contract = Contract.load(model)
    assert (contract.backbone.address, contract.backbone.maker, contract.backbone.kind) == (
        "embed-3",
        "acme",
        "external",
    )
    assert (contract.backbone.hidden_size, contract.method, contract.is_external) == (DIM, "distilled", True)
    encoder = CachedQueryEncoder.load(model)
    texts = ["river stone cloud", "violin harbor", "lantern engine copper meadow"]
    light = encoder.encode(texts).dense
    assert light is not None
    truth = np.array([text_vector(text) for text in texts]) / 3
    assert (light * truth).sum(axis=1).min() > 0.8
    report = read_json(model / "report.json")
    assert report["truth"] == "ranking by the vector of the query's own document"
    assert {kind["kind"] for kind in report["kinds"]} >= {"title", "span"}
    assert Confidence.load(model / "query-encoder") is not None


def test_an_index_of_stored_vectors_has_those_of_its_documents(index: Path, folder: Path) -> None:
    with Index.open(index) as opened:
        info = opened.info()
        assert (info.documents, info.pending) == (200, 0)
    assert main(["search", str(index), "violin harbor", "--mode", "dense", "-k", "3"]) == 0


def test_later_documents_without_vectors_are_pending_and_get_them_later(
    index: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "new.jsonl").write_text('{"_id": "n1", "text": "river river"}\n{"_id": "n2", "text": "stone stone"}\n')
    assert main(["add", str(index), str(tmp_path / "new.jsonl")]) == 0
    error = capsys.readouterr().err
    assert "2 documents pending, without vectors of embed-3, which lightir cannot make" in error
    assert "lightir add" in error
    assert main(["worker", str(index), "--once"]) == 1
    assert "made outside lightir" in capsys.readouterr().err
    np.save(tmp_path / "new.npy", np.array([text_vector("river river"), text_vector("stone stone")]))
    add = ["add", str(index), str(tmp_path / "new.jsonl"), "--vectors", str(tmp_path / "new.npy"), "--replace"]
    assert main(add) == 0
    with Index.open(index) as opened:
        assert opened.info().pending == 0
    np.save(tmp_path / "wide.npy", np.zeros((2, DIM + 1), np.float32))
    add[4] = str(tmp_path / "wide.npy")
    assert main(add) == 1
    assert f"width {DIM + 1}, but the model's have {DIM}" in capsys.readouterr().err


def test_nothing_in_lightir_encodes_documents_of_an_external_contract(model: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="made outside lightir"):
        encode_corpus(model, [Document("a", "river")], tmp_path / "v")


def test_contracts_of_other_models_makers_or_widths_do_not_match() -> None:
    def fingerprint(name: str = "m", dims: int = 8, **more: str) -> str:
        return external_contract(name, dims, **more).document_fingerprint  # type: ignore[arg-type]

    others = [fingerprint("n"), fingerprint(dims=9), fingerprint(maker="x"), fingerprint(similarity="dot")]
    assert len({fingerprint(), *others}) == 5
    with pytest.raises(InvalidInput, match="expected a name"):
        external_contract(" ", 8)


def endpoint_command(folder: Path, server: FakeEndpoint, out: Path, *more: str) -> list[str]:
    teacher = ["--teacher-url", server.url, "--teacher-model", "embed-3", "--tokenizer", str(folder / "tokenizer.json")]
    options = ["--work", str(out.parent / "work"), "--set", "steps=20", "--spans", "600"]
    return ["distill", *teacher, *options, "--corpus", str(folder / "corpus.jsonl"), "--out", str(out), *more]


def test_an_endpoint_teaches_a_table_and_its_vectors_are_not_asked_for_twice(
    folder: Path, server: FakeEndpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = ["--query-prompt", "query: ", "--document-prompt", "doc: "]
    server.answers = [(400, b"quota", {})]
    assert main(endpoint_command(folder, server, tmp_path / "m", *prompts)) == 1
    assert "HTTP 400: quota" in capsys.readouterr().err
    assert not (tmp_path / "m").exists()
    first = len(server.texts)
    save = ["--save-vectors", str(tmp_path / "v")]
    assert main(endpoint_command(folder, server, tmp_path / "m", *prompts, *save)) == 0
    sent = server.texts[first:]
    assert len(sent) == len(set(sent))
    assert sum(text.startswith("doc: ") for text in sent) == len({t for t in sent if t.startswith("doc: ")})
    assert all(text.startswith(("doc: ", "query: ")) for text in sent)
    contract = Contract.load(tmp_path / "m")
    assert (contract.backbone.maker, contract.document.prompt) == ("127.0.0.1", "doc: ")
    assert contract.query.prompt == "query: "
    n_sent = len(server.texts)
    assert main(endpoint_command(folder, server, tmp_path / "again", *prompts)) == 0
    assert len(server.texts) == n_sent
    assert main(["index", str(tmp_path / "v"), "--out", str(tmp_path / "i")]) == 0
    with Index.open(tmp_path / "i") as opened:
        assert opened.info().pending == 0


def test_fetched_vectors_survive_a_failure_batch_by_batch(server: FakeEndpoint, tmp_path: Path) -> None:
    from lightir.query.endpoint import EndpointOptions

    endpoint = EmbeddingsEndpoint(server.url, "m", EndpointOptions(batch_texts=2, attempts=1))
    fetched = FetchedVectors(tmp_path, endpoint)
    data = [{"index": i, "embedding": text_vector(text)} for i, text in enumerate("ab")]
    server.answers = [(200, json.dumps({"data": data}).encode(), {}), (500, b"", {})]
    with pytest.raises(EndpointFailed):
        fetched.rows(["a", "b", "c", "a"], "texts")
    rows = fetched.rows(["a", "b", "c", "a"], "texts")
    assert server.texts == ["a", "b", "c", "c"]
    np.testing.assert_allclose(rows, [text_vector(text) for text in ["a", "b", "c", "a"]], rtol=1e-6)
    FetchedVectors(tmp_path, EmbeddingsEndpoint(server.url, "other")).rows(["a"], "texts")
    assert server.texts[-1] == "a"  # vectors of another model are others


def test_queries_of_low_confidence_go_to_the_endpoint_and_a_failure_is_an_error(
    index: Path, server: FakeEndpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    search = ["search", str(index), "violin harbor", "--mode", "dense", "--json"]
    assert main([*search, "--fallback", "1", "--fallback-url", server.url]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["by_model"] is True
    assert server.texts == ["violin harbor"]
    assert server.requests[0][2]["model"] == "embed-3"
    assert main([*search, "--fallback", "0", "--fallback-url", server.url]) == 0
    assert json.loads(capsys.readouterr().out)["by_model"] is False
    assert len(server.texts) == 1
    server.answers = [(403, b"forbidden", {})]
    assert main([*search, "--fallback", "1", "--fallback-url", server.url]) == 1
    assert "the model failed to encode 1 of the queries" in capsys.readouterr().err
    assert main([*search, "--fallback", "1"]) == 1
    assert "--fallback requires --fallback-url" in capsys.readouterr().err
    for wrong in (["--fallback-url", server.url], ["--fallback", "2"], ["--fallback", "1", "--mode", "full"]):
        with pytest.raises(SystemExit, match="2"):
            main(["search", str(index), "violin", *wrong])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the teacher is missing"),
        (["minilm", "--teacher-url", "http://h/v1"], "exclude each other"),
        (["--teacher-url", "http://h/v1"], "require --teacher-model"),
        (["--vectors", "v.npy", "--teacher-model", "m", "--query-prompt", "q"], "require --teacher-url"),
        (["--vectors", "v.npy", "--teacher-model", "m", "--questions", "9"], "requires TEACHER or --teacher-url"),
    ],
)
def test_commands_with_an_unclear_teacher_are_refused(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["distill", *arguments, "--corpus", str(tmp_path), "--out", str(tmp_path / "m")]) == 2
    assert message in capsys.readouterr().err


def random_data(n: int = 60) -> FitData:
    rng = np.random.default_rng(1)
    queries = Ragged.from_lists([rng.integers(0, 12, size=rng.integers(1, 5)).tolist() for _ in range(n)])
    return FitData(
        queries, rng.normal(size=(n, 4)).astype(np.float32), rng.normal(size=(25, 4)).astype(np.float32), queries
    )


def test_overlap_and_ndcg_are_those_of_their_definitions() -> None:
    data, table = random_data(), np.random.default_rng(2).normal(size=(12, 4)).astype(np.float32)
    quality = query_quality(FittedRows(table), data)
    for row in range(len(data.queries)):
        mean = np.mean([table[term] for term in data.queries.row(row)], axis=0)
        own = sorted(range(25), key=lambda doc: (-float(mean @ data.documents[doc]), doc))[:10]
        truth = sorted(range(25), key=lambda doc: (-float(data.targets[row] @ data.documents[doc]), doc))[:10]
        gains = [10 - truth.index(doc) if doc in truth else 0 for doc in own]
        ideal = sum((10 - rank) / np.log2(rank + 2) for rank in range(10))
        assert quality.overlap[row] == pytest.approx(len({*own} & {*truth}) / 10)
        assert quality.ndcg[row] == pytest.approx(sum(g / np.log2(r + 2) for r, g in enumerate(gains)) / ideal)


def test_a_confidence_finds_the_feature_that_predicts_the_overlap() -> None:
    rng = np.random.default_rng(3)
    queries = Ragged.from_lists([rng.integers(0, 50, size=rng.integers(1, 8)).tolist() for _ in range(400)])
    table = rng.normal(size=(50, 6)).astype(np.float32)
    seen = rng.integers(0, 100, size=50).astype(np.float32)
    least = np.array([np.log1p(seen[queries.row(i)]).min() for i in range(400)])
    overlap = np.clip(least / 5 + rng.normal(scale=0.02, size=400), 0, 1).astype(np.float32)
    fitted = fit_confidence(table, queries, overlap, seen, seed=0)
    assert max(fitted.correlations, key=lambda name: fitted.correlations[name]) in ("least_seen", "all")
    assert fitted.correlations["least_seen"] > 0.95
    assert np.abs(fitted.predicted - overlap).mean() < 0.1


def test_the_curve_says_what_each_threshold_saves_and_gives() -> None:
    predicted = np.array([0.1, 0.2, 0.3, 0.4], np.float32)
    overlap = np.array([0.0, 0.4, 0.6, 0.8], np.float32)
    quality = quality_report.QueryQuality(overlap, overlap, np.zeros(4, np.int64), np.zeros(4, np.int64))
    points = {point["saved"]: point for point in quality_report._curve(predicted, quality)}
    assert points[1.0]["threshold"] == 0.0
    assert points[1.0]["overlap"] == pytest.approx(0.45)
    assert points[0.5]["overlap"] == pytest.approx((1 + 1 + 0.6 + 0.8) / 4)
    assert points[0.0] == {"threshold": 1.0, "saved": 0.0, "overlap": 1.0, "ndcg": 1.0}


def test_a_damaged_file_of_fetched_vectors_is_named(server: FakeEndpoint, tmp_path: Path) -> None:
    from lightir.errors import StorageError

    (tmp_path / "endpoint-vectors.sqlite").write_bytes(b"no database" * 100)
    with pytest.raises(StorageError, match="remove the file"):
        FetchedVectors(tmp_path, EmbeddingsEndpoint(server.url, "m")).rows(["a"], "texts")
