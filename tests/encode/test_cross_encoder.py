"""Cross-encoders: scores against one pair at a time in double precision, and scores for distillation."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest
import torch
from transformers import (
    BertForSequenceClassification,
    PreTrainedTokenizerFast,
    XLMRobertaConfig,
    XLMRobertaForSequenceClassification,
)

from collections_for_training import write_dataset
from lightir.cli import main
from lightir.data import Dataset, collect_candidates, write_negatives
from lightir.encode.cross_encoder import CrossEncoder, cross_rerank
from lightir.errors import FormatError, InvalidInput, NotFound
from lightir.eval.runs import rank_by_score, read_run, write_run
from lightir.train.recipes.settings import DataRecipe
from lightir.train.stages.stage_data import open_set
from lightir.types import Document, Query
from pretended_cuda import pretended_cuda
from tiny_models import BOS, EOS, save_cross_encoder, save_tiny, tiny_tokenizer

WORDS = ("river", "engine", "planet", "bread", "piano", "forest")
DOCUMENTS = [Document(f"d{i}", f"the {word} " * (1 + 3 * i % 5), word if i % 2 else "") for i, word in enumerate(WORDS)]
DOCUMENTS += [
    Document("copy", DOCUMENTS[2].text, DOCUMENTS[2].title),
    Document("empty", ""),
    Document("long", "x " * 90),
]
QUERIES = [Query(f"q{i}", f"which {word}?") for i, word in enumerate(WORDS[:3])] + [Query("wordy", "and " * 50)]
IDS = [document.doc_id for document in DOCUMENTS]
RUN = {
    "q0": rank_by_score("q0", {doc_id: float(n) for n, doc_id in enumerate(IDS)}),
    "q2": rank_by_score("q2", {"d1": 3.0, "copy": 2.0, "d2": 1.0}),
    "wordy": rank_by_score("wordy", {"d4": 2.0, "long": 2.5}),
}
MAX_TOKENS = 64


@torch.no_grad()
def plain_score(folder: Path, query: str, document: Document) -> float:
    """Score one pair in double precision, framed by hand; a query has at most half of the tokens."""
    model = BertForSequenceClassification.from_pretrained(folder, dtype=torch.float64).eval()
    tokenizer = tiny_tokenizer()
    first, second = (tokenizer.term_ids([text]).row(0).tolist() for text in (query, document.full_text()))
    first = [BOS, *first[: MAX_TOKENS // 2], EOS]
    second = [*second[: MAX_TOKENS - len(first) - 1], EOS]
    types = torch.tensor([[0] * len(first) + [1] * len(second)])
    logits = model(input_ids=torch.tensor([first + second]), token_type_ids=types).logits[0]
    return float(logits[0] if len(logits) == 1 else logits[1].exp().log() - logits[0].exp().log())


@pytest.mark.parametrize("batch_tokens", [1, 150, 8192])
@pytest.mark.parametrize("labels", [1, 2])
def test_scores_are_those_of_each_pair_alone(labels: int, batch_tokens: int, tmp_path: Path) -> None:
    folder = save_cross_encoder(tmp_path / "cross", labels=labels)
    model = CrossEncoder.load(folder, dtype="fp32", device="cpu")
    actual = cross_rerank(model, RUN, iter(DOCUMENTS), iter(QUERIES), batch_tokens=batch_tokens)
    texts, documents = {q.query_id: q.text for q in QUERIES}, {d.doc_id: d for d in DOCUMENTS}
    assert list(actual) == list(RUN)
    for query_id, ranking in actual.items():
        assert sorted(ranking.doc_ids) == sorted(RUN[query_id].doc_ids)
        assert list(ranking.scores) == sorted(ranking.scores, reverse=True)
        for doc_id, score in zip(ranking.doc_ids, ranking.scores, strict=True):
            expected = plain_score(folder, texts[query_id], documents[doc_id])
            assert score == pytest.approx(expected, rel=1e-4, abs=1e-4)
    assert len({round(score, 3) for score in actual["q0"].scores.tolist()}) > 5


def test_a_pair_has_as_many_tokens_as_the_model_has_positions(tmp_path: Path) -> None:
    folder = save_cross_encoder(tmp_path / "bert")
    backend = PreTrainedTokenizerFast.from_pretrained(folder)
    shape = json.loads((folder / "config.json").read_text())
    kept = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    config = XLMRobertaConfig(
        **{name: shape[name] for name in kept}, max_position_embeddings=64, num_labels=1, pad_token_id=5
    )
    XLMRobertaForSequenceClassification(config).save_pretrained(tmp_path / "xlm-roberta")
    backend.model_input_names = ["input_ids", "attention_mask"]
    backend.pad_token = backend.convert_ids_to_tokens(5)
    backend.save_pretrained(tmp_path / "xlm-roberta")
    model = CrossEncoder.load(tmp_path / "xlm-roberta", dtype="fp32", device="cpu")
    assert model.max_tokens == 64 - 6
    (_, (cut,)), (_, (whole,)) = _flat(model, [("q", "b" * 300)]), _flat(model, [("q", "b" * (58 - 4))])
    assert cut == pytest.approx(whole, abs=1e-5)


def test_scores_are_those_of_sentence_transformers(tmp_path: Path) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    folder = save_cross_encoder(tmp_path / "cross")
    theirs = sentence_transformers.CrossEncoder(str(folder), device="cpu", max_length=MAX_TOKENS)
    pairs = [(QUERIES[0].text, document.full_text()) for document in DOCUMENTS]
    expected = theirs.predict(pairs, activation_fn=torch.nn.Identity())
    actual = dict(zip(*_flat(CrossEncoder.load(folder, dtype="fp32", device="cpu"), pairs), strict=True))
    assert [actual[number] for number in range(len(pairs))] == pytest.approx(expected.tolist(), rel=1e-4, abs=1e-4)


def _flat(model: CrossEncoder, pairs: list[tuple[str, str]]) -> tuple[list[int], list[float]]:
    parts = list(model.score(pairs))
    return [n for numbers, _ in parts for n in numbers], [s for _, scores in parts for s in scores]


def test_a_pretended_gpu_gives_the_scores_of_the_cpu(tmp_path: Path) -> None:
    folder = save_cross_encoder(tmp_path / "cross")
    pairs = [(query.text, document.full_text()) for query in QUERIES for document in DOCUMENTS]
    expected = _flat(CrossEncoder.load(folder, dtype="fp32", device="cpu"), pairs)
    with pretended_cuda():
        numbers, scores = _flat(CrossEncoder.load(folder, dtype="fp32", device="cuda"), pairs)
    assert numbers == expected[0]
    assert scores == pytest.approx(expected[1], rel=1e-4, abs=1e-5)


def test_what_is_no_cross_encoder_or_does_not_fit_is_refused(tmp_path: Path) -> None:
    save_tiny("bert", tmp_path / "bert", plain=True)
    with pytest.raises(InvalidInput, match=r"no trained 'bert\.pooler"):
        CrossEncoder.load(tmp_path / "bert", device="cpu")
    with pytest.raises(InvalidInput, match="this model has 3"):
        CrossEncoder.load(save_cross_encoder(tmp_path / "three", labels=3), device="cpu")
    folder = save_cross_encoder(tmp_path / "cross")
    with pytest.raises(InvalidInput, match="3 tokens are too few"):
        CrossEncoder.load(folder, max_tokens=3, device="cpu")
    model = CrossEncoder.load(folder, device="cpu")
    with pytest.raises(NotFound, match="'copy'"):
        cross_rerank(model, RUN, DOCUMENTS[:6], QUERIES)
    with pytest.raises(NotFound, match="'q2'"):
        cross_rerank(model, RUN, DOCUMENTS, QUERIES[:2] + QUERIES[3:])
    with pytest.raises(InvalidInput, match="depth 0"):
        cross_rerank(model, RUN, DOCUMENTS, QUERIES, depth=0)
    (folder / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(FormatError, match="not a cross-encoder that transformers supports"):
        CrossEncoder.load(folder, device="cpu")


def test_the_command_reranks_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out = save_cross_encoder(tmp_path / "cross"), tmp_path / "out.trec"
    corpus, queries = tmp_path / "corpus.jsonl", tmp_path / "queries.jsonl"
    corpus.write_text(
        "".join(json.dumps({"_id": d.doc_id, "title": d.title, "text": d.text}) + "\n" for d in DOCUMENTS)
    )
    queries.write_text("".join(json.dumps({"_id": q.query_id, "text": q.text}) + "\n" for q in QUERIES))
    write_run(tmp_path / "first.trec", RUN)
    given = ["--corpus", str(corpus), "--queries", str(queries), "-o", str(out), "--dtype", "fp32", "--device", "cpu"]
    start = ["rerank", str(folder), "--method", "cross-encoder", *given]
    assert main([*start, "--run", str(tmp_path / "first.trec"), "--depth", "2"]) == 0
    model = CrossEncoder.load(folder, dtype="fp32", device="cpu")
    expected = cross_rerank(model, RUN, DOCUMENTS, QUERIES, depth=2)
    actual = read_run(out)
    assert {q: list(r.doc_ids) for q, r in actual.items()} == {q: list(r.doc_ids) for q, r in expected.items()}
    assert actual["q0"].scores.tolist() == pytest.approx(expected["q0"].scores.tolist(), rel=1e-4)
    capsys.readouterr()
    for wrong in (start, [*start, "--run", str(out), "--no-stop"], [*start, "--run", str(out), "--split", "dev"]):
        assert main(wrong) == 2
    assert "--no-stop requires --method ql" in capsys.readouterr().err


def test_a_cross_encoder_teaches_by_what_it_says_of_relevant_documents_and_mined_negatives(tmp_path: Path) -> None:
    folder, data = save_cross_encoder(tmp_path / "cross"), write_dataset(tmp_path / "alpha", "alpha")
    mined = tmp_path / "mined.jsonl"
    write_negatives(mined, {f"river-{number}": ["alpha-bread", "alpha-island"] for number in range(3)})
    arguments = ["rerank", str(folder), "--method", "cross-encoder", "--negatives", str(mined), "--dtype", "fp32"]
    arguments += [
        "--corpus",
        str(data),
        "--queries",
        str(data),
        "-o",
        str(tmp_path / "teacher.trec"),
        "--device",
        "cpu",
    ]
    assert main(arguments) == 0
    recipe = DataRecipe(str(data), negatives=str(mined), scores=str(tmp_path / "teacher.trec"))
    examples = {
        example.query_id: example
        for example in open_set(recipe, default_instruction="", negatives=mined, seed=0).examples
    }
    assert len(examples) == 36
    river = examples["river-1"]
    texts = {document.doc_id: document for document in Dataset.open(data).corpus()}
    expected = [
        plain_score(folder, river.query, texts[doc_id]) for doc_id in (*river.positive_ids, *river.negative_ids)
    ]
    assert list(river.scores) == pytest.approx(expected, rel=1e-4, abs=1e-4)
    assert len(expected) == 3
    assert all(math.isfinite(score) for example in examples.values() for score in example.scores)


def test_relevant_documents_come_before_mined_ones_and_once() -> None:
    actual = collect_candidates({"a": {"x": 1, "y": 2, "z": 0}, "b": {"w": 1}}, {"a": ["v", "x", "u"], "c": ["t"]})
    assert {query_id: list(ranking.doc_ids) for query_id, ranking in actual.items()} == {
        "a": ["y", "x", "v", "u"],
        "b": ["w"],
    }
    assert dataclasses.asdict(actual["a"])["scores"].tolist() == [4, 3, 2, 1]
