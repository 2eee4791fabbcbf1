"""Re-ranking by query likelihood equals one forward per pair, for any batching; and doc2query."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from lightir.cli import main
from lightir.contract import Contract, DenseHead, DocumentPolicy
from lightir.data import TrainingSet, read_documents
from lightir.encode.expansion import GenerationOptions, expand_document, generate_queries, training_records
from lightir.encode.likelihood_reranking import load_generator, rerank
from lightir.errors import InvalidInput, NotFound
from lightir.eval.runs import rank_by_score, read_run, write_run
from lightir.models.encoder import LightRetriever
from lightir.models.generation import _best, _is_settled, beam_search, sample
from lightir.models.likelihood import (
    continue_from,
    end_states,
    join,
    likelihood_from_ends,
    log_likelihood,
    next_logits,
    sequence_states,
)
from lightir.models.model_folder import backbone_record
from lightir.text import QueryPolicy, query_term_ids
from lightir.types import Document, Query
from tiny_models import EOS, save_tiny, tiny_backbone

WORDS = ("river", "engine", "planet", "bread", "piano", "forest")
DOCUMENTS = [Document(f"d{i}", f"the {word} " * (1 + 3 * i % 5), word if i % 2 else "") for i, word in enumerate(WORDS)]
DOCUMENTS += [Document("copy", DOCUMENTS[2].text, DOCUMENTS[2].title), Document("empty", "")]
QUERIES = [Query(f"q{i}", f"which {word}?") for i, word in enumerate(WORDS[:3])] + [Query("nothing", " ")]
IDS = [document.doc_id for document in DOCUMENTS]
RUN = {
    "q0": rank_by_score("q0", {doc_id: float(n) for n, doc_id in enumerate(IDS)}),
    "q2": rank_by_score("q2", {"d1": 3.0, "copy": 2.0, "d2": 1.0}),
    "nothing": rank_by_score("nothing", {"d4": 2.0, "d3": 2.5}),
}


def tiny_model(name: str = "llama", ends: int = 1, **policy: object) -> LightRetriever:
    backbone = tiny_backbone(name)
    document = DocumentPolicy("Passage: ", lower_case=False, max_tokens=60, suffix="\nSo: ", ends=ends, **policy)  # type: ignore[arg-type]
    query = QueryPolicy(lower_case=False, leading_blank=False, suffix="?")
    return LightRetriever(
        backbone, Contract("llm-ql", backbone_record(backbone), query, document, DenseHead("eos"), None)
    )


@torch.no_grad()
def plain_score(model: LightRetriever, document: Document, query: str, *, stop: bool) -> float:
    tokens = query_term_ids(model.backbone.tokenizer, model.contract.query, [query]).row(0).tolist()
    batch = join(model.frame_documents([document]), [tokens], n_ends=len(model.end_ids))
    states = sequence_states(model.backbone, batch, stop=stop)
    return float(log_likelihood(model.backbone, states, batch.input_ids, batch.query))


@pytest.mark.parametrize("batch_tokens", [1, 150, 8192])
@pytest.mark.parametrize(("stop", "ends"), [(True, 1), (True, 4), (False, 1)])
def test_scores_are_those_of_each_pair_alone(stop: bool, ends: int, batch_tokens: int) -> None:
    model = tiny_model(ends=ends)
    actual = rerank(model, RUN, iter(DOCUMENTS), iter(QUERIES), stop=stop, batch_tokens=batch_tokens)
    texts, documents = {q.query_id: q.text for q in QUERIES}, {d.doc_id: d for d in DOCUMENTS}
    assert list(actual) == list(RUN)
    for query_id, ranking in actual.items():
        assert sorted(ranking.doc_ids) == sorted(RUN[query_id].doc_ids)
        for doc_id, score in zip(ranking.doc_ids, ranking.scores, strict=True):
            expected = plain_score(model, documents[doc_id], texts[query_id], stop=stop)
            assert score == pytest.approx(expected, rel=1e-5, abs=1e-4)
        assert list(ranking.scores) == sorted(ranking.scores, reverse=True)
    assert list(actual["nothing"].doc_ids) == ["d3", "d4"]
    assert actual["nothing"].scores.tolist() == [0.0, 0.0]


def test_the_stop_changes_scores() -> None:
    model = tiny_model()
    a, b = (rerank(model, RUN, DOCUMENTS, QUERIES, stop=stop)["q0"].scores for stop in (True, False))
    assert abs(a - b).max() > 0.01


def test_only_the_first_of_each_ranking_are_scored_and_an_empty_run_stays_empty() -> None:
    model = tiny_model()
    actual = rerank(model, RUN, DOCUMENTS, QUERIES, depth=2)
    assert {query_id: set(ranking.doc_ids) for query_id, ranking in actual.items()} == {
        query_id: set(list(ranking.doc_ids)[:2]) for query_id, ranking in RUN.items()
    }
    assert rerank(model, {}, DOCUMENTS, QUERIES) == {}
    nobody = {"q0": rank_by_score("q0", {})}
    assert len(rerank(model, nobody, [], QUERIES)["q0"]) == 0


def test_what_does_not_fit_is_refused() -> None:
    model = tiny_model()
    with pytest.raises(NotFound, match="'copy'"):
        rerank(model, RUN, DOCUMENTS[:6] + DOCUMENTS[7:], QUERIES)
    with pytest.raises(NotFound, match="'q2'"):
        rerank(model, RUN, DOCUMENTS, QUERIES[:2] + QUERIES[3:])
    with pytest.raises(InvalidInput, match="depth 0"):
        rerank(model, RUN, DOCUMENTS, QUERIES, depth=0)
    with pytest.raises(InvalidInput, match="without an end token"):
        rerank(tiny_model(eos=False), RUN, DOCUMENTS, QUERIES)


@torch.no_grad()
def test_beam_search_finds_what_trying_everything_finds() -> None:
    model = tiny_model()
    backbone = model.backbone
    ends = end_states(backbone, model.frame_documents(DOCUMENTS[1:2]), n_ends=1)
    stops = {EOS, *range(20, 120)}  # many ids, so that some of the best texts have ended
    actual = beam_search(backbone, ends, beams=258, max_tokens=2, stop_ids=stops)[0]
    tried: dict[tuple[int, ...], float] = {}
    for first in (token for token in range(258) if token not in stops):
        pairs = [[first, second] for second in range(258)]
        scores = likelihood_from_ends(backbone, ends.take(torch.zeros(258, dtype=torch.int64)), pairs) / 2
        for (_, second), score in zip(pairs, scores.tolist(), strict=True):
            text = (first,) if second in stops else (first, second)
            tried[text] = max(score, tried.get(text, score))
    best = sorted(tried.items(), key=lambda item: -item[1])[:50]
    assert [hypothesis.token_ids for hypothesis in actual[:50]] == [text for text, _ in best]
    assert [hypothesis.score for hypothesis in actual[:50]] == pytest.approx([score for _, score in best], rel=1e-5)
    assert any(len(text) == 1 for text, _ in best)


@torch.no_grad()
@pytest.mark.parametrize("name", ["llama", "gemma3", "mistral-window"])
def test_beams_do_not_depend_on_the_batch_and_score_as_they_are_scored(name: str) -> None:
    model = tiny_model(name)
    backbone, framed = model.backbone, model.frame_documents(DOCUMENTS)
    ends = end_states(backbone, framed, n_ends=1)
    together = beam_search(backbone, ends, beams=4, max_tokens=7, stop_ids={EOS})
    for row, hypotheses in enumerate(together):
        alone = beam_search(
            backbone, end_states(backbone, framed[row : row + 1], n_ends=1), beams=4, max_tokens=7, stop_ids={EOS}
        )[0]
        assert [hypothesis.token_ids for hypothesis in alone] == [hypothesis.token_ids for hypothesis in hypotheses]
        assert 0 < len(hypotheses) <= 4
        assert [hypothesis.score for hypothesis in hypotheses] == sorted(
            (hypothesis.score for hypothesis in hypotheses), reverse=True
        )
        for hypothesis in hypotheses:
            tokens = list(hypothesis.token_ids) if len(hypothesis.token_ids) == 7 else [*hypothesis.token_ids, EOS]
            score = likelihood_from_ends(backbone, ends.take(torch.tensor([row])), [tokens])[0] / len(tokens)
            assert hypothesis.score == pytest.approx(float(score), rel=1e-4, abs=1e-4)
    assert (
        beam_search(backbone, ends.take(torch.tensor([], dtype=torch.int64)), beams=2, max_tokens=3, stop_ids=()) == []
    )


def generators(n: int) -> list[np.random.Generator]:
    return [np.random.default_rng([5, number]) for number in range(n)]


@torch.no_grad()
def test_texts_with_one_score_come_in_the_order_of_their_tokens() -> None:
    texts = _best({(7,): -1.0, (3, 9): -1.0, (5,): -0.5, (3,): -2.0}, 3)
    assert [text.token_ids for text in texts] == [(5,), (3, 9), (7,)]


def test_beams_go_on_while_an_open_text_scores_higher_than_the_last_of_the_ended_ones() -> None:
    ended = {(1,): -0.5, (2,): -2.0, (3,): -3.0}
    assert not _is_settled(ended, -1.0, 2)
    assert _is_settled(ended, -2.0, 2)
    assert not _is_settled(ended, -9.0, 4)


def test_texts_are_drawn_by_their_probabilities_among_the_most_probable_tokens() -> None:
    """Compare 40,000 drawn texts of two tokens with the products of each prefix's probabilities."""
    model, n_draws = tiny_model(), 40_000
    backbone = model.backbone
    ends = end_states(backbone, model.frame_documents(DOCUMENTS[1:2]), n_ends=1)
    stops = {EOS, *range(20, 160)}  # many ids, so that some of the drawn texts have ended
    first = next_logits(backbone, ends.states)[0].double()
    first[list(stops)] = -torch.inf
    expected: dict[tuple[int, ...], float] = {}
    for probability, token in zip(*best_three(first), strict=True):
        _, after = continue_from(backbone, ends, torch.tensor([[token]]))
        for share, then in zip(*best_three(next_logits(backbone, after.states)[0].double()), strict=True):
            text = (token,) if then in stops else (token, then)
            expected[text] = expected.get(text, 0.0) + probability * share
    counts: dict[tuple[int, ...], int] = {}
    draw = {"draws": 1, "among": 3, "max_tokens": 2, "stop_ids": stops}
    for start in range(0, n_draws, 4000):
        rngs = [np.random.default_rng([7, start + number]) for number in range(4000)]
        for (hypothesis,) in sample(backbone, ends.take(torch.zeros(4000, dtype=torch.int64)), rngs, **draw):
            counts[hypothesis.token_ids] = counts.get(hypothesis.token_ids, 0) + 1
    assert counts.keys() == expected.keys()
    assert any(len(text) == 1 for text in counts)
    for text, probability in expected.items():
        assert counts[text] / n_draws == pytest.approx(probability, abs=4 * (0.25 / n_draws) ** 0.5)


def best_three(logits: torch.Tensor) -> tuple[list[float], list[int]]:
    best = logits.topk(3)
    return best.values.softmax(0).tolist(), best.indices.tolist()


@torch.no_grad()
def test_draws_do_not_depend_on_the_batch_score_as_they_are_scored_and_are_distinct() -> None:
    model = tiny_model()
    backbone, framed = model.backbone, model.frame_documents(DOCUMENTS)
    ends = end_states(backbone, framed, n_ends=1)
    stops = {EOS, *range(200, 258)}
    draw = {"draws": 5, "among": 4, "max_tokens": 6, "stop_ids": stops}
    together = sample(backbone, ends, generators(len(framed)), **draw)
    assert len({len(hypothesis.token_ids) for hypotheses in together for hypothesis in hypotheses}) > 2
    for row, hypotheses in enumerate(together):
        rows = torch.tensor([row])
        alone = sample(backbone, ends.take(rows), [generators(len(framed))[row]], **draw)[0]
        assert [hypothesis.token_ids for hypothesis in alone] == [hypothesis.token_ids for hypothesis in hypotheses]
        assert len({hypothesis.token_ids for hypothesis in hypotheses}) == len(hypotheses) <= 5
        assert [hypothesis.score for hypothesis in hypotheses] == sorted(
            (hypothesis.score for hypothesis in hypotheses), reverse=True
        )
        for hypothesis in hypotheses:
            whole = list(hypothesis.token_ids)
            ways = [whole] if len(whole) == 6 else [[*whole, stop] for stop in sorted(stops)]
            actual = likelihood_from_ends(backbone, ends.take(rows.expand(len(ways))), ways) / len(ways[0])
            assert float((actual - hypothesis.score).abs().min()) < 1e-4
    greedy = sample(backbone, ends, generators(len(framed)), **{**draw, "among": 1})
    assert [len(hypothesis) for hypothesis in greedy] == [1] * len(framed)
    assert sample(backbone, ends.take(torch.tensor([], dtype=torch.int64)), [], **draw) == []


def test_drawn_queries_follow_the_seed_and_not_the_batches() -> None:
    def generate(batch_size: int, seed: int = 0) -> list[list[str]]:
        options = GenerationOptions(3, max_tokens=6, draw_among=20, seed=seed)
        generated = generate_queries(tiny_model(), DOCUMENTS, options=options, batch_size=batch_size)
        return [[query.text for query in queries] for _, queries in generated]

    assert generate(batch_size=3) == generate(batch_size=8) != generate(batch_size=8, seed=1)
    with pytest.raises(InvalidInput, match="draw_among is -1"):
        GenerationOptions(draw_among=-1)


def test_generated_queries_expand_a_document_or_train_another_model(tmp_path: Path) -> None:
    options = GenerationOptions(3, max_tokens=6)
    actual = list(generate_queries(tiny_model(), iter(DOCUMENTS), options=options, batch_size=3))
    assert [document for document, _ in actual] == DOCUMENTS
    again = list(generate_queries(tiny_model(), DOCUMENTS, options=options, batch_size=8))
    assert [[q.text for q in queries] for _, queries in again] == [[q.text for q in queries] for _, queries in actual]
    document, queries = actual[1]
    assert 0 < len(queries) <= 3
    assert expand_document(document, queries) == dataclasses.replace(
        document, text="\n".join([document.text, *(query.text for query in queries)])
    )
    lines = [json.dumps(record) for expansion in actual for record in training_records(*expansion)]
    (tmp_path / "made.jsonl").write_text("\n".join(lines) + "\n")
    training = TrainingSet.open_jsonl(tmp_path / "made.jsonl", instructions=("",))
    assert len(training) == len(lines)
    assert training.documents["d1"] == document
    with pytest.raises(InvalidInput, match="n is 0"):
        GenerationOptions(n=0)
    with pytest.raises(InvalidInput, match="batch_size is 0"):
        generate_queries(tiny_model(), [], batch_size=0)


def test_a_bare_language_model_gets_the_papers_prompts(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path / "bare")
    model = load_generator(str(tmp_path / "bare"), dtype="fp32", device="cpu")
    assert model.contract.document.prompt.startswith("Instruct: Given a retrieved passage")
    assert model.contract.document.suffix == "\nSummarization: "
    read = [model.frame_documents(["Ab"])[0], model.frame_queries(["Ab"])[0]]
    assert [model.backbone.tokenizer.backend.decode(ids[start:stop]) for ids, start, stop in read] == ["Ab", "Ab"]
    model.save(tmp_path / "saved")
    for address in ("bare", "saved"):
        lower = load_generator(str(tmp_path / address), dtype="bf16", device="cpu")
        assert lower.backbone.model.dtype == torch.bfloat16


def test_the_commands_rerank_and_expand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_tiny("llama", tmp_path / "bare")
    corpus, queries = tmp_path / "corpus.jsonl", tmp_path / "queries.jsonl"
    corpus.write_text(
        "".join(json.dumps({"_id": d.doc_id, "title": d.title, "text": d.text}) + "\n" for d in DOCUMENTS)
    )
    queries.write_text("".join(json.dumps({"_id": q.query_id, "text": q.text}) + "\n" for q in QUERIES[:3]))
    run = {query_id: ranking for query_id, ranking in RUN.items() if query_id != "nothing"}
    write_run(tmp_path / "first.trec", run)
    model, out = str(tmp_path / "bare"), tmp_path / "out.trec"
    arguments = ["rerank", model, "--run", str(tmp_path / "first.trec"), "--corpus", str(corpus)]
    arguments += ["--queries", str(queries), "-o", str(out), "--dtype", "fp32", "--json"]
    assert main(arguments) == 0
    assert json.loads(capsys.readouterr().out) | {"seconds": 0} == {
        "run": str(out),
        "queries": 2,
        "pairs": 11,
        "seconds": 0,
    }
    expected = rerank(load_generator(model, dtype="fp32"), run, DOCUMENTS, QUERIES)
    assert {q: list(r.doc_ids) for q, r in read_run(out).items()} == {q: list(r.doc_ids) for q, r in expected.items()}
    assert main(["expand", model, str(corpus), "-n", "2", "--max-tokens", "4", "-o", str(tmp_path / "e.jsonl")]) == 0
    assert [d.doc_id for d in read_documents(tmp_path / "e.jsonl")] == IDS
    drawing = ["expand", model, str(corpus), "-n", "2", "--max-tokens", "4", "--draw", "9"]
    for number in (1, 2):
        assert main([*drawing, "--seed", str(number), "-o", str(tmp_path / f"{number}.jsonl")]) == 0
    assert (tmp_path / "1.jsonl").read_bytes() != (tmp_path / "2.jsonl").read_bytes()
    capsys.readouterr()
    assert main(["expand", model, str(corpus), "-n", "2", "--max-tokens", "4", "--training", "-o", "-"]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {record["positives"][0]["_id"] for record in records} <= set(IDS)
    assert all(record["query"] for record in records)
