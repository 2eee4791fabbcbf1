"""The adaptation stage: its loss, model folder, exact resume, any number of processes, and the next stage."""

from __future__ import annotations

import dataclasses
import json
import logging
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from interrupted import cut
from lightir.contract import Contract, DocumentPolicy
from lightir.encode import encode_corpus
from lightir.errors import FormatError, InvalidInput
from lightir.models.backbones import load_backbone
from lightir.models.encoder import LightRetriever
from lightir.models.own_weights import all_weights
from lightir.shards import VectorsReader
from lightir.train.recipes.contrastive_recipe import ContrastiveRecipe
from lightir.train.recipes.packed_text_recipes import AdaptationRecipe
from lightir.train.recipes.recipe_files import recipe_yaml
from lightir.train.recipes.settings import CorpusRecipe, Optimisation
from lightir.train.stages import adaptation, contrastive
from lightir.train.stages.adaptation import Adaptation, train
from lightir.train.stages.registry import STAGES, read_recipe
from lightir.train.stages.stage_model import build_model
from lightir.types import Document
from processes import assert_same, first_of, gradients_of, wake_lora
from tiny_models import save_tiny


@pytest.fixture
def adapting(recipe: ContrastiveRecipe) -> AdaptationRecipe:
    """Return a recipe for the documents of both data sets in rows of 64."""
    return AdaptationRecipe(
        model=dataclasses.replace(recipe.model, lora_dropout=0.0),
        data=tuple(CorpusRecipe(item.name) for item in recipe.data),
        optimisation=Optimisation(steps=6, batch_size=4, learning_rate=1e-2, warmup_steps=1),
        length=64,
        documents=DocumentPolicy(max_tokens=48),
        checkpoint_every=2,
    )


def with_steps(recipe: AdaptationRecipe, steps: int) -> AdaptationRecipe:
    return dataclasses.replace(recipe, optimisation=dataclasses.replace(recipe.optimisation, steps=steps))


def records(model: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (model / "training" / "log.jsonl").read_text().splitlines()]


def test_the_loss_is_the_papers_over_each_documents_own_forward(adapting: AdaptationRecipe) -> None:
    recipe = dataclasses.replace(adapting, relu_weight=0.7)
    stage = Adaptation(recipe, "cpu")
    parts, monitored = stage.losses(1, step=0)
    batch = stage.texts.batch(1, rows=4)
    causal, relu, n, highest = 0.0, 0.0, 0, []
    for row in range(4):
        for piece in range(int(batch.pieces[row, -1]) + 1):
            ids = batch.input_ids[row][batch.pieces[row] == piece]
            if len(ids) < 2:
                continue
            states = stage.retriever.backbone.states(ids[None], None)[0, :-1].detach().double()
            logits = states @ stage.head.weight.double().T
            causal += float(F.cross_entropy(logits, ids[1:], reduction="sum"))
            relu += float(F.cross_entropy(torch.log(1 + torch.relu(logits)), ids[1:], reduction="sum"))
            highest.append(logits.amax(0))
            n += len(ids) - 1
    assert float(parts["causal"].detach()) == pytest.approx(causal / n, rel=1e-5)
    assert float(parts["relu"].detach()) == pytest.approx(0.7 * relu / n, rel=1e-5)
    dead = (torch.stack(highest).amax(0) <= 0).double().mean()
    assert monitored["dead"] == pytest.approx(float(dead))


def test_a_model_folder_comes_out_that_encodes_documents(adapting: AdaptationRecipe, tmp_path: Path) -> None:
    out = train(with_steps(adapting, 30), tmp_path / "model", device="cpu")
    losses = [record["loss"] for record in records(out)]
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) - 0.1
    assert {"causal", "relu", "dead", "nonzeros", "sparse_cosine", "gradient_norm"} <= set(records(out)[0])
    retriever = LightRetriever.load(out)
    assert retriever.contract.method == "csplade"
    assert retriever.contract.dense is None
    encode_corpus(retriever, [Document("a", "a river in winter"), Document("b", "")], tmp_path / "vectors")
    (shard,) = VectorsReader(tmp_path / "vectors")
    assert shard.dense is None
    kind, again = read_recipe(out / "training" / "recipe.yaml")
    assert (kind, again) == (STAGES["adaptation"], with_steps(adapting, 30))
    assert json.loads((out / "training" / "data.json").read_text())["documents"] == 24


def test_a_head_that_still_says_the_same_of_all_texts_is_warned_of_once(
    adapting: AdaptationRecipe, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = records(train(adapting, tmp_path / "one", device="cpu"))[-1]["sparse_cosine"]
    caplog.clear()
    for above in (False, True):
        monkeypatch.setattr(adaptation, "COLLAPSED", last - 0.01 if above else last)
        train(adapting, tmp_path / str(above), device="cpu")
        assert caplog.text.count("nearly the same terms") == above


def test_a_resumed_run_equals_an_uninterrupted_one(adapting: AdaptationRecipe, tmp_path: Path) -> None:
    whole = train(adapting, tmp_path / "whole", device="cpu")
    cut(lambda: train(adapting, tmp_path / "cut", device="cpu"))
    resumed = train(adapting, tmp_path / "cut", resume=True, device="cpu")
    assert [record["loss"] for record in records(resumed)] == [record["loss"] for record in records(whole)]
    a, b = (load_file(str(m / "adapter" / "adapter_model.safetensors")) for m in (whole, resumed))
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_the_contrastive_stage_goes_on_from_it(
    adapting: AdaptationRecipe, recipe: ContrastiveRecipe, tmp_path: Path
) -> None:
    adapted = train(adapting, tmp_path / "adapted", device="cpu")
    model = dataclasses.replace(recipe.model, address=str(adapted), attention="bidirectional")
    losses = dataclasses.replace(recipe.losses, dense=0.0, dense_alignment=0.0)
    evaluation = dataclasses.replace(recipe.evaluation, by="sparse")
    then = dataclasses.replace(recipe, model=model, losses=losses, evaluation=evaluation)
    out = contrastive.train(then, tmp_path / "model", device="cpu")
    loaded = LightRetriever.load(out)
    assert loaded.contract.attention == "bidirectional"
    assert loaded.contract.backbone.address == recipe.model.address


@pytest.mark.parametrize("tied", [True, False])
def test_all_weights_are_trained_resumed_and_gone_on_from(
    tied: bool, adapting: AdaptationRecipe, recipe: ContrastiveRecipe, tmp_path: Path
) -> None:
    """Train all weights with lora_rank 0, the head included; the next stage may have an adapter."""
    save_tiny("gemma3" if tied else "llama", tmp_path / "backbone")
    model = dataclasses.replace(adapting.model, address=str(tmp_path / "backbone"), lora_rank=0)
    plain = dataclasses.replace(adapting, model=model)
    whole = train(plain, tmp_path / "whole", device="cpu")
    cut(lambda: train(plain, tmp_path / "cut", device="cpu"))
    assert Contract.load(train(plain, tmp_path / "cut", resume=True, device="cpu")) == Contract.load(whole)
    before, after = (all_weights(item) for item in (load_backbone(model.address), LightRetriever.load(whole).backbone))
    assert ("head.weight" in after) != tied
    assert {name for name, weight in after.items() if not torch.equal(weight, before[name])} == before.keys()
    then = dataclasses.replace(recipe, model=dataclasses.replace(recipe.model, address=str(whole)))
    out = contrastive.train(then, tmp_path / "model", device="cpu")
    assert (out / "adapter").is_dir()


@pytest.mark.parametrize("rank", [2, 9])
def test_an_adapter_of_any_rank_starts_from_adapted_weights(
    rank: int, adapting: AdaptationRecipe, recipe: ContrastiveRecipe, tmp_path: Path
) -> None:
    whole = dataclasses.replace(with_steps(adapting, 2), model=dataclasses.replace(adapting.model, lora_rank=0))
    adapted = train(whole, tmp_path / "adapted", device="cpu")
    model = dataclasses.replace(recipe.model, address=str(adapted), lora_rank=rank, lora_alpha=2 * rank)
    begun = build_model(dataclasses.replace(recipe, model=model), device="cpu")
    begun.eval()
    before = LightRetriever.load(adapted)
    batch = before.batch(before.frame_documents(["a river in winter", "bread"]))
    torch.testing.assert_close(begun.states(batch), before.states(batch), atol=1e-5, rtol=1e-4)
    learning = {name: p for name, p in begun.trunk.named_parameters() if p.requires_grad}
    assert {p.shape[0] for name, p in learning.items() if "lora_A" in name} == {rank}
    assert all("lora_" in name for name in learning)


def test_a_dying_head_is_warned_of(
    adapting: AdaptationRecipe, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stage = Adaptation(adapting, "cpu")
    monkeypatch.setattr(adaptation, "DYING", -1.0)
    with caplog.at_level(logging.WARNING):
        stage.losses(0, step=7)
    assert "step 7" in caplog.text
    assert "dying" in caplog.text


def gradients(recipe: AdaptationRecipe) -> dict[str, torch.Tensor]:
    stage = Adaptation(recipe, "cpu")
    wake_lora(stage.parameters.items())
    parts, _ = stage.losses(0, step=0)
    return gradients_of(parts, stage.parameters) | {name: value.detach() for name, value in parts.items()}


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("lora_rank", [4, 0])
def test_several_processes_have_the_loss_and_gradient_of_one(
    world: int, lora_rank: int, adapting: AdaptationRecipe, tmp_path: Path
) -> None:
    adapting = dataclasses.replace(adapting, model=dataclasses.replace(adapting.model, lora_rank=lora_rank))
    assert_same(first_of(world, lambda: gradients(adapting), tmp_path), gradients(adapting), rtol=1e-4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": []}, "at least one training set or corpus"),
        ({"length": 40}, "but a row has 40"),
        ({"relu_weight": -1.0}, "relu_weight is -1"),
        ({"optimisation": {"negatives": 3}}, "no queries"),
        ({"optimisation": {"steps": 0}}, "steps is 0"),
        ({"optimisation": {"mixed_batches": True}}, "shuffled together"),
        ({"model": {"address": "a", "attention": "bidirectional"}}, "must be causal"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    content = {
        "stage": "adaptation",
        "model": {"address": "a"},
        "data": [{"name": "x"}],
        "documents": {"max_tokens": 48},
    }
    (tmp_path / "recipe.yaml").write_text(json.dumps(content | changes))
    with pytest.raises(FormatError, match=message):
        read_recipe(tmp_path / "recipe.yaml")


def test_too_little_text_is_refused(adapting: AdaptationRecipe) -> None:
    with pytest.raises(InvalidInput, match="less than one row"):
        Adaptation(dataclasses.replace(adapting, data=(CorpusRecipe(adapting.data[0].name, documents=1),)), "cpu")


def test_the_recipe_comes_back_from_its_yaml(adapting: AdaptationRecipe, tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(recipe_yaml(adapting))
    assert read_recipe(tmp_path / "recipe.yaml")[1] == adapting


def test_a_corpus_may_be_a_hugging_face_data_set(adapting: AdaptationRecipe, tmp_path: Path) -> None:
    """The text and the losses are those of the same documents in a folder."""
    hub = pytest.importorskip("datasets")
    folder = Path(adapting.data[0].name)
    documents = [json.loads(line) for line in (folder / "corpus.jsonl").read_text().splitlines()]
    rows = [{"docid": item["_id"], "title": item["title"], "text": item["text"]} for item in documents]
    hub.DatasetDict({"part": hub.Dataset.from_list(rows)}).save_to_disk(tmp_path / "saved")
    here = dataclasses.replace(adapting, data=(CorpusRecipe(str(folder)),))
    there = dataclasses.replace(adapting, data=(CorpusRecipe(f"hf:{tmp_path / 'saved'}", split="part"),))
    first, second = Adaptation(here, "cpu"), Adaptation(there, "cpu")
    assert first.texts.fingerprint == second.texts.fingerprint
    assert second.records()["data"]["documents"] == len(rows)  # type: ignore[index]
    with pytest.raises(InvalidInput, match="split 'part' applies to Hugging Face data sets only"):
        Adaptation(dataclasses.replace(here, data=(CorpusRecipe(str(folder), split="part"),)), "cpu")
