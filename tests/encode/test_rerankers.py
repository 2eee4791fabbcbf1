"""Re-ranking of searches: the m best hits in the order of each pair's own score, within a time limit."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertConfig, BertModel

from lightir.cli import main
from lightir.contract import Contract, DenseHead, DocumentPolicy
from lightir.encode.likelihood_reranking import LikelihoodScorer
from lightir.encode.model_search import reranking_searcher
from lightir.encode.rerankers import rerank_method
from lightir.errors import InvalidInput
from lightir.index import Index, IndexOptions, PassageOptions, build_index, document_shards
from lightir.models.backbones import load_backbone
from lightir.models.encoder import LightRetriever
from lightir.models.likelihood import join, log_likelihood, sequence_states
from lightir.models.model_folder import backbone_record
from lightir.runtime.encode_options import EncodeOptions
from lightir.search import LateOptions, LateSearcher, PairStage, Searcher, SearchOptions
from lightir.text import QueryPolicy, query_term_ids
from lightir.types import Document
from tiny_models import save_cross_encoder, save_tiny

FP32 = EncodeOptions(dtype="fp32")
QUERY = "the red river"
TEXTS = ["red river", "the river is red", "a red bridge", "blue river", "river of the north", "red zoo", "island"]
DOCUMENTS = [Document(f"d{i}", f"{text}. " * (1 + i % 3), "a title" * (i % 2)) for i, text in enumerate(TEXTS)]


@pytest.fixture
def searcher(tmp_path: Path) -> Iterator[Searcher]:
    build_index(document_shards(DOCUMENTS), tmp_path / "index")
    with Index.open(tmp_path / "index") as index:
        yield Searcher(index)


def save_generator(folder: Path) -> Path:
    save_tiny("llama", folder / "backbone")
    backbone = load_backbone(str(folder / "backbone"))
    contract = Contract(
        "llm-ql",
        backbone_record(backbone),
        QueryPolicy(lower_case=False, leading_blank=False, suffix="?"),
        DocumentPolicy("Passage: ", lower_case=False, max_tokens=60, suffix="\nSo: "),
        DenseHead("eos"),
        None,
    )
    LightRetriever(backbone, contract).save(folder / "generator")
    return folder / "generator"


@torch.no_grad()
def logit_of(folder: Path, query: str, document: Document) -> float:
    """The cross-encoder's logit of one pair alone."""
    model = AutoModelForSequenceClassification.from_pretrained(folder).train(False)
    pair = AutoTokenizer.from_pretrained(folder)(query, document.full_text(), return_tensors="pt")
    return float(model(**pair).logits[0, 0])


@torch.no_grad()
def likelihood_of(model: LightRetriever, query: str, document: Document, *, stop: bool) -> float:
    """log p(query | document) of one pair alone, by one forward over both."""
    tokens = query_term_ids(model.backbone.tokenizer, model.contract.query, [query]).row(0).tolist()
    batch = join(model.frame_documents([document]), [tokens], n_ends=len(model.end_ids))
    states = sequence_states(model.backbone, batch, stop=stop)
    return float(log_likelihood(model.backbone, states, batch.input_ids, batch.query))


def require_order(searcher: Searcher, late: LateSearcher, scores: dict[str, float], m: int) -> None:
    """Require that the m best hits of BM25 have these scores, best first, and that the others follow in their order."""
    first = list(searcher.search([QUERY], 20)["0"].doc_ids)
    hits, report = late.hits(QUERY, 20)
    expected = sorted(first[:m], key=lambda doc_id: (-scores[doc_id], doc_id)) + first[m:]
    assert [hit.doc_id for hit in hits] == expected
    assert (report.read, report.left, report.encoded) == (m, 0, ())
    assert 0 < report.encoding_seconds < report.seconds
    for rank, hit in enumerate(hits[:m], 1):
        part = hit.branches["rerank"]
        assert (part.rank, part.weight, hit.branches["tokens"].weight) == (rank, 1.0, 0.0)
        assert hit.score == part.score == pytest.approx(scores[hit.doc_id], rel=1e-4, abs=1e-4)
    assert all("rerank" not in hit.branches for hit in hits[m:])
    ranked = late.search([QUERY], 20)[0]["0"]
    assert (list(ranked.doc_ids), ranked.scores.tolist()) == (expected, [hit.score for hit in hits])


def test_a_cross_encoder_orders_the_best_hits_by_its_logits(searcher: Searcher, tmp_path: Path) -> None:
    folder = save_cross_encoder(tmp_path / "cross")
    late = reranking_searcher(searcher, folder, late=LateOptions(m=4), encoding=FP32)
    scores = {document.doc_id: logit_of(folder, QUERY, document) for document in DOCUMENTS}
    require_order(searcher, late, scores, 4)


@pytest.mark.parametrize("trained", [True, False])
def test_a_language_model_orders_by_likelihood_with_the_attention_stop_if_it_was_trained_with_it(
    searcher: Searcher, tmp_path: Path, trained: bool
) -> None:
    folder = save_generator(tmp_path)
    late = reranking_searcher(
        searcher, folder if trained else tmp_path / "backbone", late=LateOptions(m=5), encoding=FP32
    )
    scorer = late._second._scorer  # type: ignore[attr-defined]
    model = scorer._model
    assert model.contract.method == ("llm-ql" if trained else "untrained")
    scores = {document.doc_id: likelihood_of(model, QUERY, document, stop=trained) for document in DOCUMENTS}
    require_order(searcher, late, scores, 5)


def test_the_end_states_of_documents_are_kept_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = LightRetriever.load(save_generator(tmp_path))
    framed: list[int] = []
    frame = LightRetriever.frame_documents

    def count(self: LightRetriever, documents: Sequence[Document]) -> object:
        framed.append(len(documents))
        return frame(self, documents)

    monkeypatch.setattr(LightRetriever, "frame_documents", count)
    scorer = LikelihoodScorer(model)
    first = scorer.score_documents("red", DOCUMENTS[:5])
    assert scorer.score_documents("red", DOCUMENTS[4::-1]) == pytest.approx(first[::-1], rel=1e-5)
    scorer.score_documents("red", DOCUMENTS)
    assert framed == [5, 0, 2]
    (one, *_) = scorer._ends.values()
    small = LikelihoodScorer(model, kept_bytes=3 * one.n_bytes)
    assert small.score_documents("red", DOCUMENTS[:5]) == pytest.approx(first, rel=1e-5)
    assert len(small._ends) == 3
    assert LikelihoodScorer(model, kept_bytes=0).score_documents("red", DOCUMENTS[:5]) == pytest.approx(first, rel=1e-5)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class SlowScorer:
    """Takes one second per 100 characters; a document's score is its number."""

    max_tokens = 1000

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def score_documents(self, query: str, documents: Sequence[Document]) -> list[float]:
        self.clock.now += sum(1 + len(document.title) + len(document.text) for document in documents) / 100
        return [float(document.doc_id.removeprefix("d")) for document in documents]


@pytest.mark.parametrize("budget_ms", [1, 400, 700, 100_000, None])
def test_a_time_limit_leaves_the_rest_in_its_place(searcher: Searcher, budget_ms: float | None) -> None:
    clock = Clock()
    stage = PairStage(searcher, SlowScorer(clock), clock=clock)
    late = LateSearcher(searcher, stage, LateOptions(m=6, budget_ms=budget_ms), clock=clock)
    first = list(searcher.search([QUERY], 20)["0"].doc_ids)
    costs = {d.doc_id: (1 + len(d.title) + len(d.text)) / 100 for d in DOCUMENTS}
    n_read, spent = 0, 0.0
    for doc_id in first[:6]:  # the first document is always read: its time is unknown
        if n_read and budget_ms is not None and spent + costs[doc_id] > budget_ms / 1000 + 1e-9:
            break
        n_read, spent = n_read + 1, spent + costs[doc_id]
    hits, report = late.hits(QUERY, 20)
    assert (report.read, report.left) == (n_read, 6 - n_read)
    expected = sorted(first[:n_read], key=lambda doc_id: -int(doc_id[1:])) + first[n_read:]
    assert [hit.doc_id for hit in hits] == expected
    scores = [hit.score for hit in hits]
    assert scores == sorted(scores, reverse=True)


def test_passages_are_read_by_themselves_and_shown_by_document(tmp_path: Path) -> None:
    """A document stands where its best passage does."""
    paragraphs = [" ".join([f"river{i % 3} red" for _ in range(12)]) + "." for i in range(6)]
    documents = [Document("long", "\n\n".join(paragraphs)), Document("short", "a red river1")]
    options = IndexOptions(passages=PassageOptions(tokens=30, overlap=0))
    build_index(document_shards(documents), tmp_path / "index", options=options)

    class ByLength:
        max_tokens = 100

        def score_documents(self, query: str, documents: Sequence[Document]) -> list[float]:
            seen.extend(document.text for document in documents)
            return [float(len(document.text)) for document in documents]

    seen: list[str] = []
    with Index.open(tmp_path / "index") as index:
        searcher = Searcher(index)
        late = LateSearcher(searcher, PairStage(searcher, ByLength()), first_mode=searcher.default_mode)
        hits, report = late.hits("red", 5)
        assert [hit.doc_id for hit in hits] == ["long", "short"]
        assert report.read == len(seen) > 2
        assert max(map(len, seen)) < len("\n\n".join(paragraphs))
        every, _ = late.hits("red", 50, SearchOptions(passages=True))
        assert len(every) == report.read


def test_the_method_follows_the_models_files(tmp_path: Path) -> None:
    generator = save_generator(tmp_path)
    assert rerank_method(generator) == "ql"
    assert rerank_method(tmp_path / "backbone") == "ql"
    assert rerank_method(save_cross_encoder(tmp_path / "cross")) == "cross-encoder"
    dataclasses.replace(Contract.load(generator), method="dense").save(generator)
    assert rerank_method(generator) == "vectors"
    BertModel(BertConfig(vocab_size=8, hidden_size=4, num_hidden_layers=1, num_attention_heads=1)).save_pretrained(
        tmp_path / "plain"
    )
    with pytest.raises(InvalidInput, match="neither a cross-encoder, a causal language model nor a model of lightir"):
        rerank_method(tmp_path / "plain")


def test_the_command_line_reranks_any_mode_and_tells_the_cost(
    searcher: Searcher, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cross, index = save_cross_encoder(tmp_path / "cross"), str(searcher.index.folder)
    assert main(["search", index, QUERY, "--rerank", str(cross), "--rerank-top", "3", "--explain"]) == 0
    captured = capsys.readouterr()
    assert "reranked: 3 documents read in" in captured.err
    assert captured.out.count("rerank ") >= 3
    assert main(["search", index, QUERY, "--rerank", str(cross), "--rerank-by", "cross-encoder", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["late"]["read"] == len(answer["hits"])
    assert answer["hits"][0]["branches"]["rerank"]["rank"] == 1
    queries, run = tmp_path / "queries.txt", tmp_path / "run.trec"
    queries.write_text("red river\nisland\n")
    assert main(["search", index, "--queries", str(queries), "--run", str(run), "--rerank", str(cross)]) == 0
    assert "documents read" in capsys.readouterr().err
    assert {line.split()[0] for line in run.read_text().splitlines()} == {"1", "2"}
    assert main(["search", index, QUERY, "--rerank", str(tmp_path / "none")]) == 1
    assert "none" in capsys.readouterr().err
