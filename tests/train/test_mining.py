"""Hard negatives: which documents are selected, which never are, and which finders find them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

from collections_for_training import TOPICS, write_dataset
from lightir.cli import main
from lightir.data import Dataset, read_negatives
from lightir.encode.full_queries import FullQueryEncoder
from lightir.errors import InvalidInput, NotFound
from lightir.index import build_index, document_shards
from lightir.models.encoder import LightRetriever
from lightir.search.language_model import LanguageModel, Smoothing
from lightir.train.distill.teacher import Teacher
from lightir.train.mining.finders import word_finder
from lightir.train.mining.miner import Miner, NegativeFilters, mine, negatives_files
from lightir.train.mining.model_finders import BagFinder, model_finder
from lightir.train.recipes.contrastive_recipe import ContrastiveRecipe
from lightir.train.stages.contrastive import train
from lightir.types import Document, Query, Ranking, Run

CORPUS = {
    doc_id: Document(doc_id, text) for doc_id, text in {"a": "one", "b": "two Rivers", "c": "one", "d": "four"}.items()
}


class Given:
    """A finder with fixed rankings; every other document scores `beyond`."""

    def __init__(self, *, beyond: float = 0.0, **scores: float) -> None:
        self.scores, self.beyond = scores, beyond

    def find(self, queries: Sequence[Query], k: int) -> Run:
        ids = sorted(self.scores, key=lambda doc_id: -self.scores[doc_id])[:k]
        return {q.query_id: Ranking(q.query_id, ids, np.asarray([self.scores[i] for i in ids])) for q in queries}

    def score(self, query: Query, doc_id: str) -> float:
        return self.beyond


def chosen(
    finder: Given,
    relevant: str = "a",
    *,
    n: int = 9,
    answers: Sequence[str] = (),
    teacher: Teacher | None = None,
    **filters: Any,
) -> tuple[list[str], dict[str, int]]:
    """Return the negatives of one query, and the counts by reason."""
    query = Query("q", "river", {"answers": list(answers)})
    qrels = {"q": dict.fromkeys(relevant, 1)}
    miner = Miner(qrels, CORPUS, finder, NegativeFilters(**filters), teacher)
    negatives, dropped = miner.mine([query], n)
    return negatives["q"], dict(dropped)


def test_relevant_documents_and_their_copies_are_no_negatives() -> None:
    assert chosen(Given(a=4, b=3, c=2, d=1)) == (["b", "d"], {"relevant": 1, "copy": 1})


def test_no_more_are_kept_than_wanted() -> None:
    assert chosen(Given(b=4, d=3, c=2, a=1), "a", n=1) == (["b"], {"relevant": 1, "copy": 1, "surplus": 1})


def test_ranks_outside_the_range_are_left_out() -> None:
    assert chosen(Given(b=4, d=3, a=2), first_rank=2) == (["d"], {"rank": 1, "relevant": 1})
    assert chosen(Given(b=4, d=3, a=2), depth=1) == (["b"], {})


def test_the_margins_leave_out_what_scores_near_the_best_relevant_one() -> None:
    scores = Given(b=9.6, a=10, d=9.4)
    assert chosen(scores, margin=0.95) == (["d"], {"relevant": 1, "margin": 1})
    assert chosen(scores, absolute_margin=0.3) == (["b", "d"], {"relevant": 1})
    assert chosen(scores, absolute_margin=0.5) == (["d"], {"relevant": 1, "margin": 1})
    assert chosen(scores, margin=0.95, absolute_margin=0.7) == ([], {"relevant": 1, "margin": 2})


def test_a_margin_asks_for_the_score_of_a_relevant_document_that_was_not_found() -> None:
    assert chosen(Given(b=9, d=1, beyond=8), margin=0.5) == (["d"], {"margin": 1})
    assert chosen(Given(b=9, d=1, beyond=8), "e", margin=0.5) == (["b", "d"], {})  # the corpus lacks it


def test_a_share_of_a_score_below_zero_is_below_it() -> None:
    assert chosen(Given(a=-10, b=-10.5, d=-11.5), margin=0.9) == (["d"], {"relevant": 1, "margin": 1})


def test_documents_that_hold_an_answer_are_left_out() -> None:
    result = Given(b=3, d=2)
    assert chosen(result, answers=["two rivers"], skip_answers=True) == (["d"], {"answer": 1})
    assert chosen(result, answers=["river"], skip_answers=True) == (["b", "d"], {})  # a part of a word is no match
    assert chosen(result, answers=["two rivers"]) == (["b", "d"], {})


class Judge:
    """A teacher with fixed cosines that counts the texts it reads."""

    def __init__(self, **scores: float) -> None:
        self.scores, self.read = scores, 0

    def queries(self, texts: Sequence[str]) -> Tensor:
        return torch.ones(len(texts), 1)

    def documents(self, documents: Sequence[Document]) -> Tensor:
        self.read += len(documents)
        return torch.tensor([[self.scores[document.doc_id]] for document in documents])


def test_a_teachers_score_tells_false_negatives() -> None:
    result = Given(b=3, d=2)
    judge = cast(Teacher, Judge(a=0.8, b=0.75, d=0.6))
    assert chosen(result, teacher=judge, teacher_share=0.9) == (["d"], {"teacher": 1})
    assert chosen(result, teacher=judge, teacher_share=0.95) == (["b", "d"], {})
    assert chosen(result, teacher=judge, teacher_share=0.75) == ([], {"teacher": 2})  # equality drops


def test_a_teacher_reads_no_more_than_is_needed() -> None:
    judge = Judge(a=1.0, b=0.1, d=0.2)
    assert chosen(Given(b=3, d=2), n=1, teacher=cast(Teacher, judge), teacher_share=0.9) == (["b"], {"surplus": 1})
    assert judge.read == 2


def test_mining_finds_documents_of_the_same_words(datasets: tuple[Path, Path], tmp_path: Path) -> None:
    report = mine(datasets[0], "train", tmp_path / "negatives.jsonl", n_negatives=3)
    negatives = read_negatives(tmp_path / "negatives.jsonl")
    assert report.queries == report.with_negatives == len(negatives) == 36
    assert report.kept == 3 * 36
    assert report.kept + sum(report.dropped.values()) == 12 * 36  # all share the set's name, so all are found
    for query_id, doc_ids in negatives.items():
        assert len(doc_ids) == 3
        assert f"alpha-{query_id.split('-')[0]}" not in doc_ids
    assert [path.name for path in tmp_path.iterdir()] == ["negatives.jsonl"]


def test_mining_finds_chinese_words_within_sentences(tmp_path: Path) -> None:
    folder = write_dataset(tmp_path / "chinese", "chinese")
    texts = {"d1": "北京大学在海淀区", "d2": "海淀区有很多公园", "d3": "今天天气很好"}
    lines = [json.dumps({"_id": doc_id, "text": text}, ensure_ascii=False) for doc_id, text in texts.items()]
    (folder / "corpus.jsonl").write_text("\n".join(lines))
    (folder / "queries.jsonl").write_text(json.dumps({"_id": "q", "text": "海淀区的大学"}, ensure_ascii=False))
    (folder / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\nq\td1\t1\n")
    mine(folder, "train", tmp_path / "negatives.jsonl", n_negatives=3)
    assert read_negatives(tmp_path / "negatives.jsonl") == {"q": ("d2",)}


def test_query_likelihood_mines_what_it_ranks_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_dataset(tmp_path / "uneven", "uneven")
    rng = np.random.default_rng(0)
    documents = [
        {"_id": f"uneven-{topic}", "text": " ".join(rng.choice(TOPICS, rng.integers(1, 40)))} for topic in TOPICS
    ]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(document) + "\n" for document in documents))
    dataset, smoothing = Dataset.open(folder), Smoothing("dirichlet", 20.0)
    ranked = LanguageModel(dataset.corpus()).search(dataset.queries("train"), 12, smoothing=smoothing)
    expected = {
        query_id: [doc_id for doc_id in ranking.doc_ids if doc_id != f"uneven-{query_id.split('-')[0]}"][:2]
        for query_id, ranking in ranked.items()
    }
    with word_finder(dataset, tmp_path / "words", smoothing=smoothing) as finder:
        mine(folder, "train", tmp_path / "found.jsonl", n_negatives=2, finder=finder)
    assert {query_id: list(result) for query_id, result in read_negatives(tmp_path / "found.jsonl").items()} == expected
    mine(folder, "train", tmp_path / "bm25.jsonl", n_negatives=2)
    assert read_negatives(tmp_path / "bm25.jsonl") != read_negatives(tmp_path / "found.jsonl")
    arguments = [
        "mine",
        str(folder),
        "-n",
        "2",
        "--tokens",
        "dirichlet:20",
        "--out",
        str(tmp_path / "by-command.jsonl"),
    ]
    assert main(arguments) == 0
    assert (tmp_path / "by-command.jsonl").read_bytes() == (tmp_path / "found.jsonl").read_bytes()
    build_index(document_shards(dataset.corpus()), tmp_path / "index", progress=False)
    assert main([*arguments, "--index", str(tmp_path / "index"), "--mode", "tokens", "--margin", "0.99"]) == 0
    near = read_negatives(tmp_path / "by-command.jsonl")
    assert all(doc_id in ranked[query_id].doc_ids for query_id, doc_ids in near.items() for doc_id in doc_ids)
    assert near != read_negatives(tmp_path / "found.jsonl")
    assert main([*arguments, "--model", "anything"]) == 2
    assert "--tokens and --model cannot be combined" in capsys.readouterr().err


def test_a_model_mines_in_its_modes(recipe: ContrastiveRecipe, datasets: tuple[Path, Path], tmp_path: Path) -> None:
    short = dataclasses.replace(recipe.optimisation, steps=1)
    model = train(dataclasses.replace(recipe, optimisation=short, checkpoint_every=0), tmp_path / "model", device="cpu")
    dataset = Dataset.open(datasets[0])
    queries = list(dataset.queries("train"))
    query = queries[0]
    for mode in ("dense", "sparse", "hybrid", "full", "bag-of-tokens"):
        with model_finder(model, dataset, tmp_path / "work", mode=mode) as finder:
            run = finder.find(queries, 12)
            ranking = run[query.query_id]
            asked = [finder.score(query, doc_id) for doc_id in ranking.doc_ids]
            np.testing.assert_allclose(asked, ranking.scores, rtol=1e-6)
            report = mine(
                dataset, "train", tmp_path / f"{mode}.jsonl", finder=finder, filters=NegativeFilters(margin=1.0)
            )
        assert report.kept + sum(report.dropped.values()) == sum(map(len, run.values())) > 11 * 36


def test_bags_of_tokens_are_scored_by_the_queries_weights(
    recipe: ContrastiveRecipe, datasets: tuple[Path, Path], tmp_path: Path
) -> None:
    model = LightRetriever.load(
        train(dataclasses.replace(recipe, checkpoint_every=0), tmp_path / "model", device="cpu")
    ).eval()
    dataset = Dataset.open(datasets[0])
    documents, query = list(dataset.corpus()), next(dataset.queries("train"))
    sparse = FullQueryEncoder(model, sparse=True).encode([query.text]).sparse
    assert sparse is not None
    weights = dict(zip(sparse.term_ids.tolist(), sparse.weights.tolist(), strict=True))
    ranking = BagFinder(model, documents).find([query], 12)[query.query_id]
    for doc_id, score in zip(ranking.doc_ids, ranking.scores, strict=True):
        (ids, begin, end), *_ = model.frame_documents([d for d in documents if d.doc_id == doc_id])
        assert score == pytest.approx(sum(weights.get(term, 0.0) for term in set(ids[begin:end])), rel=1e-5)


def test_a_recipe_mines_once_and_finds_it_again(recipe: ContrastiveRecipe, tmp_path: Path) -> None:
    data = (dataclasses.replace(recipe.data[0], negatives="bm25"), recipe.data[1])
    recipe = dataclasses.replace(recipe, data=data)
    first, none = negatives_files(recipe, tmp_path)
    assert first is not None
    assert none is None
    first.write_text(json.dumps({"query_id": "river-0", "negatives": []}) + "\n")
    assert negatives_files(recipe, tmp_path) == [first, None]
    assert len(first.read_text().splitlines()) == 1


def test_a_recipe_mines_negatives_without_answers_beside_others(recipe: ContrastiveRecipe, tmp_path: Path) -> None:
    folder = write_dataset(tmp_path / "alpha", "alpha")
    lines = [json.loads(line) for line in (folder / "queries.jsonl").read_text().splitlines()]
    answered = [{**line, "metadata": {"answers": ["River alone"]}} for line in lines]
    (folder / "queries.jsonl").write_text("".join(json.dumps(line) + "\n" for line in answered))
    negatives = {}
    for name in ("bm25", "bm25-without-answers"):
        data = (dataclasses.replace(recipe.data[0], name=str(folder), negatives=name),)
        (path,) = negatives_files(dataclasses.replace(recipe, data=data), tmp_path)
        negatives[name] = read_negatives(cast(Path, path))
    assert "alpha-river" in negatives["bm25"]["piano-0"]
    assert set(negatives["bm25-without-answers"]["piano-0"]) == set(negatives["bm25"]["piano-0"]) - {"alpha-river"}


def test_negatives_are_mined_again_when_queries_or_judgements_change(recipe: ContrastiveRecipe, tmp_path: Path) -> None:
    folder = write_dataset(tmp_path / "alpha", "alpha")
    recipe = dataclasses.replace(
        recipe, data=(dataclasses.replace(recipe.data[0], name=str(folder), negatives="bm25"),)
    )
    (first,) = negatives_files(recipe, tmp_path)
    with (folder / "queries.jsonl").open("a") as file:
        file.write(json.dumps({"_id": "new", "text": "alpha text about the river"}) + "\n")
    (before,) = negatives_files(recipe, tmp_path)
    with (folder / "qrels" / "train.tsv").open("a") as file:
        file.write("new\talpha-river\t1\n")
    (after,) = negatives_files(recipe, tmp_path)
    assert len({first, before, after}) == 3
    assert "new" in read_negatives(cast(Path, after))


def test_senseless_ranks_and_missing_files_are_refused(
    recipe: ContrastiveRecipe, datasets: tuple[Path, Path], tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput, match="ranks 5 to 4"):
        NegativeFilters(first_rank=5, depth=4)
    with pytest.raises(InvalidInput, match="no query of alpha's split 'train' has"):
        mine(datasets[0], "train", tmp_path / "n.jsonl", filters=NegativeFilters(skip_answers=True))
    with pytest.raises(InvalidInput, match="only one was given"):
        mine(datasets[0], "train", tmp_path / "n.jsonl", filters=NegativeFilters(teacher_share=0.9))
    with pytest.raises(NotFound, match="split"):
        mine(datasets[0], "nothing", tmp_path / "n.jsonl")
    data = dataclasses.replace(recipe.data[0], negatives=str(tmp_path / "gone.jsonl"))
    with pytest.raises(NotFound, match=r"gone\.jsonl"):
        negatives_files(dataclasses.replace(recipe, data=(data,)), tmp_path)
