"""The query-likelihood stage: its loss, its masks, its model folder, and a contrastive stage after it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch

from interrupted import cut
from lightir.contract import Contract
from lightir.errors import InvalidInput
from lightir.models.encoder import LightRetriever
from lightir.models.likelihood_prompts import PASSAGE_PROMPT, PASSAGE_SUFFIX, QUERY_SUFFIX
from lightir.models.masks import model_mask
from lightir.text import query_term_ids
from lightir.train.recipes.contrastive_recipe import ContrastiveRecipe, HeadRecipe, LossWeights
from lightir.train.recipes.likelihood_recipe import CorruptionRecipe, LikelihoodRecipe
from lightir.train.recipes.recipe_files import recipe_yaml
from lightir.train.recipes.settings import DataRecipe, DevelopmentEvaluation, DevSet, DocumentRecipe, ModelRecipe
from lightir.train.stages import contrastive
from lightir.train.stages.likelihood_loss import masked_passages
from lightir.train.stages.query_likelihood import QueryLikelihood as Stage
from lightir.train.stages.query_likelihood import (
    batch_losses,
    framed_pairs,
    train,
)
from lightir.train.stages.registry import read_recipe
from processes import assert_same, first_of, gradients_of, wake_lora
from tiny_models import EOS

FRAME = len(PASSAGE_PROMPT + PASSAGE_SUFFIX)


def test_by_default_the_query_alone_is_scored_and_the_stop_and_corruption_are_the_papers(
    likelihood: LikelihoodRecipe,
) -> None:
    assert likelihood.passage_lm_weight == 0
    assert likelihood.attention_stop
    assert (likelihood.corruption.ratio, likelihood.corruption.mask) == (0.6, "_")


@pytest.fixture
def likelihood(recipe: ContrastiveRecipe) -> LikelihoodRecipe:
    """Return a recipe with two data sets, an adapter without dropout, LLM-QL's prompts and 40 bytes of text."""
    given = LikelihoodRecipe(ModelRecipe("x"), recipe.data)
    return LikelihoodRecipe(
        model=dataclasses.replace(recipe.model, lora_dropout=0.0),
        data=recipe.data,
        optimisation=dataclasses.replace(recipe.optimisation, negatives=0),
        documents=dataclasses.replace(given.documents, max_tokens=FRAME + 41),
        evaluation=DevelopmentEvaluation(recipe.evaluation.sets, every=3),
        checkpoint_every=2,
    )


def changed(recipe: LikelihoodRecipe, **settings: object) -> LikelihoodRecipe:
    return dataclasses.replace(recipe, optimisation=dataclasses.replace(recipe.optimisation, **settings))


def log(model: Path, name: str) -> list[float]:
    records = [json.loads(line) for line in (model / "training" / "log.jsonl").read_text().splitlines()]
    return [record[name] for record in records if name in record]


def ends(recipe: LikelihoodRecipe, kind: str) -> LikelihoodRecipe:
    n, new = {"one": (1, False), "four": (4, False), "four_new": (4, True)}[kind]
    return dataclasses.replace(recipe, documents=dataclasses.replace(recipe.documents, ends=n, new_ends=new))


def test_the_prompts_are_the_papers_and_the_frame_is_never_cut(likelihood: LikelihoodRecipe) -> None:
    retriever = Stage(likelihood, "cpu").retriever
    (ids, start, stop), (bare, _, _) = retriever.frame_documents(["a river " * 90, ""])
    text = retriever.backbone.tokenizer.backend.decode(ids[:-1], skip_special_tokens=False)
    assert text == (
        "Instruct: Given a retrieved passage, summarize the passage.\nPassage: "
        + ("a river " * 90)[:40]
        + "\nSummarization: "
    )
    assert stop - start == 40
    assert ids[-1] == bare[-1] == EOS
    assert len(bare) == FRAME + 1
    query = retriever.frame_queries(["what is it"])[0][0]
    assert retriever.backbone.tokenizer.backend.decode(query[:-1], skip_special_tokens=False) == (
        "Instruct: Given a web search query, retrieve the most relevant passage that answers the query.\n"
        "Query: what is it\nThe most relevant passage: "
    )


def test_what_is_hidden_follows_seed_and_number_and_spares_the_frame(likelihood: LikelihoodRecipe) -> None:
    retriever = Stage(likelihood, "cpu").retriever
    text = "one two three four five six seven eight"
    plain = retriever.frame_documents([text])[0]
    for unit in ("word", "token"):
        recipe = dataclasses.replace(likelihood, corruption=CorruptionRecipe(unit=unit))
        seeds = [[0, 4, number, 0] for number in (0, 0, 1)]
        result = [masked_passages(retriever, [text], recipe.corruption, seeds=[seed])[0] for seed in seeds]
        assert result[0] == result[1] != result[2]
        for ids, start, stop in result:
            assert ids[:start] == plain[0][: plain[1]]
            assert ids[stop:] == plain[0][plain[2] :]
        assert (result[0][2] == plain[2]) == (unit == "token")
    recipe = dataclasses.replace(likelihood, corruption=CorruptionRecipe(unit="token", mask="__"))
    with pytest.raises(InvalidInput, match="expected one"):
        masked_passages(retriever, [text], recipe.corruption, seeds=[[0]])


def words_of(stage: Stage, ids: Sequence[int]) -> list[str]:
    return stage.retriever.backbone.tokenizer.backend.decode(list(ids), skip_special_tokens=False).split()


@pytest.mark.parametrize("direction", ["passage_to_query", "query_to_passage", "both"])
def test_training_hides_words_of_passages_in_front_of_the_end_and_of_nothing_else(
    likelihood: LikelihoodRecipe, direction: Literal["passage_to_query", "query_to_passage", "both"]
) -> None:
    """Section 4.1: d_i is masked with probability p. Table 5's other direction has the query there, which is not."""
    long = dataclasses.replace(likelihood.documents, max_tokens=FRAME + 400)
    stage = Stage(dataclasses.replace(likelihood, direction=direction, documents=long, learn_end=True), "cpu")
    masked, words, swapped, pairs = 0, 0, 0, 0
    for number in range(60):
        batch = stage.data.mixture.batch(number)
        framed, targets, from_query = framed_pairs(stage.retriever, batch, stage.recipe, number=number)
        rows = zip(framed, targets, from_query, batch.queries, batch.documents, strict=True)
        for (ids, start, stop), target, is_swapped, query, document in rows:
            given, asked = (query, document.full_text(" ")) if is_swapped else (document.full_text(" "), query)
            read, whole = words_of(stage, ids[start:stop]), given.split()
            assert len(read) == len(whole)
            assert all(word in ("_", own) for word, own in zip(read, whole, strict=True))
            assert words_of(stage, target[:-1]) == asked.split()  # what is predicted is never masked
            assert target[-1] == EOS
            prompt = words_of(stage, ids[:start])
            assert ("Query:" in prompt) == is_swapped
            if is_swapped:
                assert "_" not in read
            else:
                masked, words = masked + read.count("_"), words + len(whole)
            swapped, pairs = swapped + is_swapped, pairs + 1
    expected = {"passage_to_query": 0.0, "query_to_passage": 1.0, "both": 0.5}[direction]
    assert swapped / pairs == pytest.approx(expected, abs=0.12 if direction == "both" else 0)
    if words:
        assert masked / words == pytest.approx(0.6, abs=0.05)


def plain_loss(stage: Stage, recipe: LikelihoodRecipe, number: int, directions: Sequence[str]) -> torch.Tensor:
    """Compute Eq. 10 by pair and token in double precision, without masking, each pair in its direction."""
    retriever, batch = stage.retriever, stage.data.mixture.batch(number)
    backbone = retriever.backbone
    total = torch.zeros((), dtype=torch.float64)
    weight = backbone.head.weight.double()
    for row, (query, document) in enumerate(zip(batch.queries, batch.documents, strict=True)):
        given, start, stop = retriever.frame_documents([document])[0]
        asked = query_term_ids(backbone.tokenizer, recipe.query, [query]).row(0).tolist()
        if directions[row] == "query_to_passage":
            asked = given[start:stop]
            given = retriever.frame_queries([query])[0][0]
        if recipe.learn_end:
            asked = [*asked, EOS]
        first, last, ids = len(given) - recipe.documents.ends, len(given) - 1, [*given, *asked]
        allowed = torch.zeros(1, len(ids), len(ids), dtype=torch.bool)
        for i in range(len(ids)):
            for j in range(i + 1):
                allowed[0, i, j] = not recipe.attention_stop or i <= last or j >= first
        places = torch.arange(len(ids))[None]
        mask = model_mask(backbone, allowed, places, places)
        states = backbone.states(torch.tensor([ids]), mask, position_ids=places, use_cache=False)[0].double()
        for i in range(len(given), len(ids)):
            total = total - torch.log_softmax(weight @ states[i - 1], 0)[ids[i]]
        for i in range(start, stop) if recipe.passage_lm_weight and directions[row] == "passage_to_query" else ():
            lm = torch.log_softmax(weight @ states[i - 1], 0)[ids[i]]
            total = total - recipe.passage_lm_weight * lm
    return total / len(batch.queries)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"attention_stop": False},
        {"learn_end": True},
        {"passage_lm_weight": 0.5},
        {"direction": "query_to_passage"},
        {"direction": "query_to_passage", "learn_end": True},
        {"direction": "both", "passage_lm_weight": 0.5},
        {"ends": "four"},
        {"ends": "four_new"},
    ],
    ids=str,
)
def test_the_loss_is_equation_10(likelihood: LikelihoodRecipe, settings: dict[str, object]) -> None:
    kind = settings.pop("ends", "one")
    recipe = dataclasses.replace(ends(likelihood, str(kind)), corruption=CorruptionRecipe(ratio=0.0), **settings)
    stage = Stage(recipe, "cpu")
    stage.retriever.trunk.double()
    wake_lora(stage.parameters.items())
    parts, monitored = stage.losses(3, step=0)
    result = torch.stack(list(parts.values())).sum()
    _, _, from_query = framed_pairs(stage.retriever, stage.data.mixture.batch(3), recipe, number=3)
    directions = ["query_to_passage" if swapped else "passage_to_query" for swapped in from_query]
    assert len({*directions}) == (2 if recipe.direction == "both" else 1)
    expected = plain_loss(stage, recipe, 3, directions)
    torch.testing.assert_close(result, expected, rtol=1e-9, atol=1e-9)
    trained = list(stage.parameters.values())
    gradients = [torch.autograd.grad(loss, trained, retain_graph=True) for loss in (result, expected)]
    for own, wanted in zip(*gradients, strict=True):
        assert float((own - wanted).norm()) < 1e-8 * float(wanted.norm())
    assert all(np.isfinite(value) for value in monitored.values() if not isinstance(value, str))


@pytest.mark.parametrize(("kind", "rank"), [("one", 4), ("four_new", 4), ("four", 0), ("four_new", 0)])
def test_the_loss_falls_and_the_folder_holds_what_was_trained(
    likelihood: LikelihoodRecipe, tmp_path: Path, kind: str, rank: int
) -> None:
    recipe = ends(changed(likelihood, steps=10), kind)
    recipe = dataclasses.replace(recipe, model=dataclasses.replace(recipe.model, lora_rank=rank))
    result: dict[str, torch.Tensor] = {}
    original = Stage.save

    def kept(self: Stage, folder: Path) -> None:
        batch = self.retriever.batch(self.retriever.frame_documents(["a river", "bread"]))
        result["vectors"] = self.retriever.dense_from(self.retriever.states(batch), batch).detach()
        original(self, folder)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stage, "save", kept)
        out = train(recipe, tmp_path / "model", device="cpu")
    losses = log(out, "query")
    assert np.mean(losses[-3:]) < np.mean(losses[:3])
    loaded = LightRetriever.load(out)
    contract = loaded.contract
    assert contract.method == "llm-ql"
    assert (contract.document.suffix, contract.query.suffix) == (PASSAGE_SUFFIX, QUERY_SUFFIX)
    assert contract.document.ends == (1 if kind == "one" else 4)
    assert (out / "ends.safetensors").is_file() == bool(contract.document.ends_hash) == (kind == "four_new")
    assert (out / "backbone").is_dir() == (rank == 0)
    assert (out / "adapter").is_dir() == (rank > 0)
    batch = loaded.batch(loaded.frame_documents(["a river", "bread"]))
    vectors = loaded.dense_from(loaded.states(batch), batch)
    torch.testing.assert_close(vectors, result["vectors"], rtol=0.02, atol=0.02)  # adapters are kept in bfloat16
    assert read_recipe(out / "training" / "recipe.yaml")[1] == recipe


@pytest.mark.parametrize(("kind", "rank"), [("one", 4), ("four_new", 4), ("one", 0)])
def test_the_contrastive_stage_starts_from_it(
    likelihood: LikelihoodRecipe, recipe: ContrastiveRecipe, tmp_path: Path, kind: str, rank: int
) -> None:
    first = ends(changed(likelihood, steps=3), kind)
    first = dataclasses.replace(first, model=dataclasses.replace(first.model, lora_rank=rank))
    out = train(first, tmp_path / "first", device="cpu")
    second = dataclasses.replace(
        recipe,
        method="llm-ql",
        model=dataclasses.replace(recipe.model, address=str(out), lora_dropout=0.0),
        optimisation=dataclasses.replace(recipe.optimisation, steps=2),
        losses=LossWeights(dense=0, sparse=0, dense_alignment=0, flops=0, temperature=0.01),
        heads=HeadRecipe(pooling="eos", sparse=False),
        query=first.query,
        documents=first.documents,
        evaluation=dataclasses.replace(recipe.evaluation, by="symmetric"),
    )
    begun, loaded = contrastive.build_model(second, device="cpu"), LightRetriever.load(out)
    framed = loaded.frame_documents(["a river in winter", "bread"])
    states = [item.states(item.batch(framed)) for item in (begun, loaded)]
    torch.testing.assert_close(states[0], states[1], rtol=1e-4, atol=1e-4)
    model = LightRetriever.load(contrastive.train(second, tmp_path / "second", device="cpu"))
    assert model.contract.method == "llm-ql"
    assert model.contract.document == dataclasses.replace(
        loaded.contract.document, ends_hash=model.contract.document.ends_hash
    )
    assert (model.contract.document.ends_hash != loaded.contract.document.ends_hash) == (kind == "four_new")
    assert not model.contract.has_light_queries
    with pytest.raises(InvalidInput, match="no light queries"):
        model.token_vectors(torch.tensor([5]))
    if kind == "four_new":
        plain = dataclasses.replace(second, documents=dataclasses.replace(second.documents, new_ends=False))
        with pytest.raises(InvalidInput, match="new_ends"):
            contrastive.build_model(plain, device="cpu")


def test_a_resumed_run_equals_an_uninterrupted_one(likelihood: LikelihoodRecipe, tmp_path: Path) -> None:
    recipe = ends(likelihood, "four_new")
    whole = train(recipe, tmp_path / "whole", device="cpu")
    cut(lambda: train(recipe, tmp_path / "cut", device="cpu"))
    resumed = train(recipe, tmp_path / "cut", resume=True, device="cpu")
    assert log(resumed, "query") == log(whole, "query")
    assert Contract.load(resumed) == Contract.load(whole)


def test_the_development_set_decides(likelihood: LikelihoodRecipe, tmp_path: Path) -> None:
    out = train(likelihood, tmp_path / "model", device="cpu")
    measured = [item["mean"]["log_likelihood"] for item in log(out, "development")]  # type: ignore[index]
    assert len(measured) == 2
    assert all(value < 0 for value in measured)
    kept = json.loads((out / "training" / "environment.json").read_text())["kept"]
    assert kept["score"] == max(measured)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": ()}, "at least one training set"),
        ({"corruption": CorruptionRecipe(ratio=1.5)}, "ratio is 1.5"),
        ({"documents": DocumentRecipe(eos=False)}, "eos must be true"),
        ({"model": ModelRecipe("x", attention="bidirectional")}, "expected causal"),
    ],
)
def test_what_makes_no_sense_is_refused(likelihood: LikelihoodRecipe, change: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        dataclasses.replace(likelihood, **change)
    with pytest.raises(InvalidInput, match="no negatives"):
        changed(likelihood, negatives=1)
    assert "stage: query_likelihood" in recipe_yaml(likelihood)
    assert DevSet("x").queries == 100


def parameter_gradients(recipe: LikelihoodRecipe) -> dict[str, torch.Tensor]:
    stage = Stage(recipe, "cpu")
    wake_lora(stage.parameters.items())
    parts, _ = batch_losses(stage.retriever, stage.data.mixture.batch(0), recipe, number=0)
    return gradients_of(parts, stage.parameters)


@pytest.mark.parametrize("world", [2, 4])
def test_several_processes_have_the_gradient_of_one(world: int, likelihood: LikelihoodRecipe, tmp_path: Path) -> None:
    recipe = dataclasses.replace(likelihood, direction="both", passage_lm_weight=0.5)
    one = parameter_gradients(recipe)
    assert_same(first_of(world, lambda: parameter_gradients(recipe), tmp_path), one, rtol=1e-4)


def test_a_file_of_examples_is_trained_on(likelihood: LikelihoodRecipe, tmp_path: Path) -> None:
    lines = [
        {"query_id": str(i), "query": f"what is {i}", "positives": [{"_id": f"d{i}", "text": f"{i} is {i}"}]}
        for i in range(9)
    ]
    (tmp_path / "made.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    stage = Stage(dataclasses.replace(likelihood, data=(DataRecipe(str(tmp_path / "made.jsonl")),)), "cpu")
    assert len(stage.data.sets[0]) == 9
    assert float(stage.losses(0, step=0)[0]["query"].detach()) > 0
    with pytest.raises(InvalidInput, match="has whole examples"):
        Stage(dataclasses.replace(likelihood, data=(DataRecipe(str(tmp_path / "made.jsonl"), pairs="titles"),)), "cpu")
