"""SiDR served: beta, full and late search of an index through a model, compared with the paper's inner products."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import torch

from lightir import FullQueryEncoder
from lightir.cli import main
from lightir.contract import Contract, DenseHead, DocumentPolicy, Fusion, SparseHead
from lightir.encode.model_search import ModelSearchOptions, late_searcher, model_searcher, reranking_searcher
from lightir.encode.query_encoder import QueryEncoderArrays, write_query_encoder
from lightir.errors import ContractMismatch, InvalidInput, NotFound
from lightir.index import Index, IndexOptions, IndexWriter, build_index, document_shards
from lightir.models.backbones import load_backbone
from lightir.models.encoder import LightRetriever
from lightir.models.model_folder import backbone_record
from lightir.pending import WorkOptions
from lightir.runtime.encode_options import EncodeOptions
from lightir.runtime.model_encoder import encode_pending
from lightir.search import LateOptions, Searcher, SearchOptions
from lightir.text import QueryPolicy
from lightir.types import Document
from tiny_models import save_tiny

BAG_TOKENS, SCALE, TOP_QUERY, TOP_DOCUMENT = 14, 20.0, 9, 25
FP32 = EncodeOptions(dtype="fp32")
QUERIES = ["red river", "who saw the copper bridge?", "zzz", "a"]
WORDS = ["red", "river", "blue", "copper", "bridge", "winter", "who", "saw", "the", "island", "zoo", "a"]

Vectors = Mapping[str, np.ndarray]


def save_model(
    folder: Path, name: str = "bert", *, dense: bool = False, document: DocumentPolicy | None = None
) -> Path:
    """Save a random SiDR model, or a plain dense bi-encoder, with a query encoder that only tokenizes."""
    if not (folder / f"backbone-{name}").is_dir():
        save_tiny(name, folder / f"backbone-{name}")
    backbone = load_backbone(str(folder / f"backbone-{name}"))
    contract = Contract(
        "dense" if dense else "sidr",
        backbone_record(backbone),
        QueryPolicy("", leading_blank=False, weighting="binary", top_k=TOP_QUERY),
        document or DocumentPolicy(max_tokens=30, bag_tokens=BAG_TOKENS),
        DenseHead("mean") if dense else None,
        None if dense else SparseHead("elu1p", top_k=TOP_DOCUMENT, scale=SCALE, projection="embeddings"),
        attention="bidirectional",
        fusion=Fusion(weights={"sparse": 0.5, "tokens": 0.5}),
    )
    model = folder / f"model-{name}-{dense}-{contract.document_fingerprint}"
    LightRetriever(backbone, contract).save(model)
    if not dense:
        arrays = QueryEncoderArrays()
        write_query_encoder(model / "query-encoder", Contract.load(model), backbone.tokenizer, arrays)
    return model


def documents(n: int, seed: int = 0) -> list[Document]:
    rng = np.random.default_rng(seed)
    return [Document(f"d{i:02d}", " ".join(rng.choice(WORDS, rng.integers(1, 9))), metadata={"n": i}) for i in range(n)]


def parametric(model: LightRetriever, framed: tuple[list[int], int, int], k: int) -> np.ndarray:
    """V(x) of the paper by loops: elu1p of each term's largest logit over the text's own positions, the k largest."""
    _, start, stop = framed
    weights = np.zeros(model.backbone.vocab_size)
    if stop == start:
        return weights
    with torch.no_grad():
        states = model.states(model.batch([framed]))[0]
    embeddings = model.backbone.model.get_input_embeddings().weight.detach()
    logits = (states[start:stop].double() @ embeddings.double().T).numpy().max(axis=0)
    activated = np.where(logits >= 0, logits + 1, np.exp(np.minimum(logits, 0)))
    best = np.argsort(-activated)[:k]
    weights[best] = activated[best]
    return weights


class Paper:
    """V(q), V_BoT(d) and V(d) of every text, by the paper's definitions."""

    def __init__(self, folder: Path, texts: Sequence[Document]) -> None:
        model = LightRetriever.load(folder)
        tokenizer = model.backbone.tokenizer
        self.queries = {
            query: parametric(model, framed, TOP_QUERY)
            for query, framed in zip(QUERIES, model.frame_queries(QUERIES), strict=True)
        }
        self.bags, self.vectors = {}, {}
        for document, framed in zip(texts, model.frame_documents(texts), strict=True):
            bag = np.zeros(model.backbone.vocab_size)
            bag[tokenizer.term_ids([document.text]).row(0)[:BAG_TOKENS]] = 1
            self.bags[document.doc_id] = bag
            weights = parametric(model, framed, TOP_DOCUMENT)
            self.vectors[document.doc_id] = np.minimum(np.rint(weights * SCALE), 255)

    def ranking(self, query: str, by: Vectors, doc_ids: Sequence[str]) -> list[tuple[str, float]]:
        """All documents of a set with a score above 0, best first."""
        scores = {doc_id: float(self.queries[query] @ by[doc_id]) for doc_id in doc_ids}
        return sorted(((i, s) for i, s in scores.items() if s > 0), key=lambda pair: (-pair[1], pair[0]))

    def late(self, query: str, first: Sequence[str], m: int) -> list[tuple[str, float]]:
        """The m best of a first stage in the order of <V(q), V(d)>."""
        return self.ranking(query, self.vectors, first[:m])


def assert_ranked(actual: Sequence[tuple[str, float]], expected: Sequence[tuple[str, float]], k: int) -> None:
    """Compare rankings; documents whose scores differ by rounding alone may change places."""
    assert len(actual) == min(k, len(expected))
    tolerance = 0.02 * max([score for _, score in expected], default=1.0)
    for (_, score), (_, wanted) in zip(actual, expected, strict=False):
        assert score == pytest.approx(wanted, abs=tolerance)
    wanted_scores = dict(expected)
    for doc_id, score in actual:
        assert score == pytest.approx(wanted_scores[doc_id], abs=tolerance)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("sidr"))


class History:
    """An index of bags with a history, and the documents that are left in it."""

    def __init__(self, folder: Path, model: Path, *, analyzer: str = "bag") -> None:
        texts = documents(24)
        options = IndexOptions(analyzer=analyzer, segment_documents=9)
        self.folder = folder
        build_index(
            document_shards(texts[:12]),
            folder,
            contract=Contract.load(model),
            query_encoder=model,
            options=options,
            progress=False,
        )
        changed = Document("d05", "copper copper bridge of the island zoo a a a a river", metadata={"n": 5})
        with IndexWriter.open(folder) as writer:
            writer.add(texts[12:])
            writer.delete(["d01", "d13"])
            writer.upsert([changed])
        kept = {text.doc_id: text for text in texts if text.doc_id not in ("d01", "d13")} | {"d05": changed}
        self.texts = list(kept.values())
        self.doc_ids = list(kept)
        self.encoded: list[str] = []

    def encode(self, model: Path, n: int) -> None:
        """Give n documents their vectors."""
        loaded = LightRetriever.load(model)
        some = self.texts[::2][:n]
        with IndexWriter.open(self.folder) as writer:
            _, sparse = loaded.encode_batch(loaded.batch(loaded.frame_documents(some)))
            writer.set_vectors(some, sparse=sparse)
        self.encoded = [document.doc_id for document in some]


def pairs(searcher: Searcher, query: str, k: int, options: SearchOptions) -> list[tuple[str, float]]:
    ranking = searcher.search([query], k, options)["0"]
    return list(zip(ranking.doc_ids, ranking.scores.tolist(), strict=True))


@pytest.mark.parametrize("n_encoded", [0, 7])
def test_beta_full_and_late_search_are_the_papers_inner_products(model: Path, tmp_path: Path, n_encoded: int) -> None:
    history = History(tmp_path / "index", model)
    if n_encoded:
        history.encode(model, n_encoded)
    paper = Paper(model, history.texts)
    filtered = [doc_id for doc_id in history.doc_ids if int(doc_id[1:]) >= 6 and doc_id != "d08"]
    with Index.open(history.folder) as index:
        assert len(index.view.segments) > 1
        searcher = model_searcher(index, model, options=ModelSearchOptions(FP32))
        cases = [
            (history.doc_ids, SearchOptions()),
            (filtered, SearchOptions(filter={"n": {"gte": 6}}, exclude=["d08"])),
        ]
        for query in QUERIES:
            for doc_ids, options in cases:
                beta = paper.ranking(query, paper.bags, doc_ids)
                with_mode = dataclasses.replace(options, mode="beta")
                for k in (1, 5, 40):
                    assert_ranked(pairs(searcher, query, k, with_mode), beta, k)
                hits = searcher.hits(query, 5, with_mode)
                assert [(hit.doc_id, hit.score) for hit in hits] == pairs(searcher, query, 5, with_mode)
                if n_encoded:
                    known = [doc_id for doc_id in doc_ids if doc_id in history.encoded]
                    for mode in ("full", "full-sparse"):
                        ranked = pairs(searcher, query, 40, dataclasses.replace(options, mode=mode))
                        assert_ranked(ranked, paper.ranking(query, paper.vectors, known), 40)
        late = late_searcher(index, model, late=LateOptions(m=6), options=ModelSearchOptions(FP32))
        seen = set(history.encoded)
        for query in QUERIES:
            for doc_ids, options in cases:
                first = [doc_id for doc_id, _ in pairs(searcher, query, 40, dataclasses.replace(options, mode="beta"))]
                assert set(first) <= set(doc_ids)
                expected = paper.late(query, first, 6)
                run, reports = late.search([query], 40, options)
                ranked = list(zip(run["0"].doc_ids, run["0"].scores.tolist(), strict=True))
                assert_ranked(ranked[: len(first[:6])], expected, 6)
                assert [doc_id for doc_id, _ in ranked[6:]] == first[6:]
                assert set(reports["0"].encoded) == set(first[:6]) - seen
                seen |= set(first[:6])
        assert index.view.n_pending == len(history.doc_ids) - len(seen)


def test_late_search_over_everything_is_full_search_of_an_encoded_index(model: Path, tmp_path: Path) -> None:
    history = History(tmp_path / "index", model, analyzer="english")
    with Index.open(history.folder) as index:
        late = late_searcher(index, model, late=LateOptions(m=100), options=ModelSearchOptions(FP32))
        assert late.first_mode == "tokens"
        ranked = late.search(QUERIES[:2], 30)[0]
        first = Searcher(index).search(QUERIES[:2], 30, SearchOptions(mode="tokens"))
        paper = Paper(model, history.texts)
        for row, query in enumerate(QUERIES[:2]):
            ranking = ranked[str(row)]
            expected = paper.late(query, first[str(row)].doc_ids, 100)
            assert_ranked(list(zip(ranking.doc_ids, ranking.scores.tolist(), strict=True)), expected, 30)
        options = WorkOptions(once=True)
        encode_pending(history.folder, model, options=options, encoding=FP32, progress=False)
        index.refresh()
        full = late.searcher.search(["red river"], 30, SearchOptions(mode="full"))["0"]
        again, reports = late.search(["red river"], 30)
        assert reports["0"].encoded == ()
        scores = dict(zip(full.doc_ids, full.scores.tolist(), strict=True))
        assert all(scores[i] == s for i, s in zip(again["0"].doc_ids, again["0"].scores.tolist(), strict=True))


@pytest.mark.parametrize("dense", [False, True])
def test_another_bi_encoder_orders_what_beta_search_finds(model: Path, tmp_path: Path, dense: bool) -> None:
    history = History(tmp_path / "index", model)
    other = save_model(tmp_path, "llama" if dense else "bert", dense=dense, document=DocumentPolicy(max_tokens=25))
    loaded = LightRetriever.load(other)
    with Index.open(history.folder) as index:
        searcher = model_searcher(index, model, options=ModelSearchOptions(FP32))
        late = reranking_searcher(searcher, other, late=LateOptions(m=5), encoding=FP32)
        beta = pairs(searcher, "red river", 30, SearchOptions(mode="beta"))
        hits, report = late.hits("red river", 30, SearchOptions(mode="beta"))
        assert sorted(report.encoded) == sorted(doc_id for doc_id, _ in beta[:5])
        assert index.view.n_pending == len(history.doc_ids)
    texts = {document.doc_id: document.text for document in history.texts}
    with torch.no_grad():
        rows = [loaded.batch(loaded.frame_documents([texts[doc_id]])) for doc_id, _ in beta[:5]]
        query = loaded.batch(loaded.frame_queries(["red river"]))
        if dense:
            vector = loaded.dense_from(loaded.states(query), query)[0]
            vectors = [loaded.dense_from(loaded.states(row), row)[0] for row in rows]
            scores = [float(torch.cosine_similarity(vector, row, dim=0)) for row in vectors]
        else:
            paper = parametric(loaded, loaded.frame_queries(["red river"])[0], TOP_QUERY)
            framed = [loaded.frame_documents([texts[doc_id]])[0] for doc_id, _ in beta[:5]]
            scores = [
                float(paper @ np.minimum(np.rint(parametric(loaded, item, TOP_DOCUMENT) * SCALE), 255))
                for item in framed
            ]
    wanted = dict(zip((doc_id for doc_id, _ in beta[:5]), scores, strict=True))
    for hit in hits[:5]:
        assert hit.score == pytest.approx(wanted[hit.doc_id], rel=5e-3, abs=2e-3)
    assert [hit.score for hit in hits[:5]] == sorted((hit.score for hit in hits[:5]), reverse=True)
    assert [hit.doc_id for hit in hits[5:]] == [doc_id for doc_id, _ in beta[5:]]


def test_what_an_index_or_a_model_cannot_serve_is_refused_by_name(model: Path, tmp_path: Path) -> None:
    bags = History(tmp_path / "bags", model).folder
    words = History(tmp_path / "words", model, analyzer="english").folder
    build_index(document_shards(documents(3)), tmp_path / "plain", progress=False)
    other = save_model(tmp_path, document=DocumentPolicy(max_tokens=30, bag_tokens=BAG_TOKENS + 1))
    with Index.open(bags) as index:
        for mode in ("beta", "full", "full+tokens"):
            with pytest.raises(InvalidInput, match="no model was given: name it with --model"):
                Searcher(index).search(["a"], options=SearchOptions(mode=mode))
        searcher = model_searcher(index, model)
        with pytest.raises(InvalidInput, match=r"none of the 22 documents .* is encoded.*lightir worker"):
            searcher.search(["a"], options=SearchOptions(mode="full"))
        for load in (model_searcher, late_searcher):
            with pytest.raises(ContractMismatch, match="bag_tokens is 14 in the index but 15 in the model"):
                load(index, other)
        with pytest.raises(ContractMismatch, match="bag_tokens"):
            FullQueryEncoder.load(other, fitting=index.contract)
        with pytest.raises(NotFound, match=r"no installed model .* --model"):
            model_searcher(index)
        with pytest.raises(InvalidInput, match="no query table for task 'x'"):
            model_searcher(index, model, options=ModelSearchOptions(task="x"))
    with Index.open(words) as index, pytest.raises(InvalidInput, match=r"analyzer 'english'.*--analyzer bag"):
        model_searcher(index, model).search(["a"], options=SearchOptions(mode="beta"))
    with Index.open(tmp_path / "plain") as index:
        with pytest.raises(InvalidInput, match="no model's contract"):
            late_searcher(index, model)
        assert reranking_searcher(Searcher(index), model).hits("red river", 2)[1].encoded


# The command line


@pytest.fixture
def bags(model: Path, tmp_path: Path) -> Path:
    return History(tmp_path / "bags", model).folder


def test_the_command_line_serves_every_mode_and_loads_the_model_once(
    model: Path,
    bags: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    stdin: Callable[[str], None],
) -> None:
    loaded = []
    load = LightRetriever.load
    monkeypatch.setattr(LightRetriever, "load", lambda *a, **k: loaded.append(1) or load(*a, **k))
    with Index.open(bags) as index:
        beta = pairs(model_searcher(index, model), "red river", 4, SearchOptions(mode="beta"))
    loaded.clear()
    given = ["--model", str(model), "-k", "4"]
    stdin("red river\nwho saw the zoo\nred river\n")
    assert main(["search", str(bags), "-", "--mode", "beta", "--json", *given]) == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [answer["query"] for answer in answers] == ["red river", "who saw the zoo", "red river"]
    assert [hit["doc_id"] for hit in answers[0]["hits"]] == [doc_id for doc_id, _ in beta]
    assert (answers[2]["hits"], answers[2]["mode"], len(loaded)) == (answers[0]["hits"], "beta", 1)

    assert main(["search", str(bags), "red river", "--mode", "late", "--rerank-top", "3", "--json", *given]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["late"].keys() == {"encoded", "read", "parked", "failed", "left", "encoding_ms", "took_ms"}
    assert sorted(answer["late"]["encoded"]) == sorted(doc_id for doc_id, _ in beta[:3])
    assert 0 < answer["late"]["encoding_ms"] <= answer["late"]["took_ms"] <= answer["took_ms"]
    assert [bool(hit.get("late")) for hit in answer["hits"]] == [True, True, True, False]
    assert main(["search", str(bags), "red river", "--mode", "late", "--rerank-top", "4", *given]) == 0
    captured = capsys.readouterr()
    assert "late: 1 document encoded in" in captured.err
    assert "mode late" in captured.out
    assert main(["search", str(bags), "red river", "--mode", "full", *given]) == 0
    captured = capsys.readouterr()
    assert "mode full does not find 18 pending documents of 22" in captured.err
    assert captured.out.count("sparse ") >= 4

    queries = tmp_path / "queries.txt"
    queries.write_text("red river\nwho saw the zoo\n")
    run = tmp_path / "run.trec"
    late = ["--mode", "beta", "--rerank", str(model)]
    assert main(["search", str(bags), "--queries", str(queries), "--run", str(run), *late, *given]) == 0
    assert "documents encoded in" in capsys.readouterr().err
    assert len(run.read_text().splitlines()) == 8


def test_options_that_a_mode_does_not_use_are_misuse(
    model: Path, bags: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, says in (
        (["--rerank-top", "3"], "--rerank-top requires --rerank or --mode late"),
        (["--mode", "beta", "--budget-ms", "3"], "--budget-ms requires --rerank or --mode late"),
        (["--rerank", "minilm", "--mode", "late"], "--rerank orders the hits of other modes than late"),
        (["--rerank-by", "ql"], "--rerank-by requires --rerank"),
        (["--first-stage", "beta"], "--first-stage requires --mode late"),
        (["--rerank", "minilm", "--text", "full"], "--text cannot be combined with --rerank"),
        (["--model", str(model)], "--model and --device require a mode with queries through the model"),
        (["--mode", "beta", "--query-encoder", str(model)], "cannot be combined: the model encodes the queries"),
        (["--mode", "late", "--doc-id", "d02"], "--doc-id cannot be combined with --rerank and --mode late"),
    ):
        with pytest.raises(SystemExit) as stop:
            main(["search", str(bags), "red", *arguments])
        assert stop.value.code == 2
        assert says in capsys.readouterr().err
    assert main(["search", str(bags), "red", "--mode", "full", "--model", str(model)]) == 1
    assert "none of the 22 documents" in capsys.readouterr().err
    assert main(["search", str(bags), "red", "--mode", "tokens"]) == 1
    assert "no learned term weights" in capsys.readouterr().err
    assert main(["search", str(bags), "red", "--mode", "tokens", "--tokens", "overlap"]) == 0
    assert main(["search", str(bags), "red river", "--mode", "beta", "--doc-id", "d02", "--model", str(model)]) == 0
    assert "d02" in capsys.readouterr().out


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[str], None]]:
    """Return a function that sets the text of standard input."""
    with ExitStack() as opened:

        def give(text: str) -> None:
            file = tmp_path / "stdin"
            file.write_text(text)
            monkeypatch.setattr("sys.stdin", opened.enter_context(file.open()))

        yield give
