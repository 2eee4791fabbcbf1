"""Masked next-token prediction: its loss, its masks, any number of processes, and the next stage."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from interrupted import cut
from lightir.contract import Contract, DocumentPolicy
from lightir.errors import FormatError
from lightir.models.backbones import load_backbone
from lightir.models.encoder import LightRetriever
from lightir.models.own_weights import all_weights
from lightir.train.batches.packing import PackedBatch, packed_states
from lightir.train.recipes.contrastive_recipe import ContrastiveRecipe
from lightir.train.recipes.packed_text_recipes import MaskedRecipe
from lightir.train.recipes.settings import CorpusRecipe, Optimisation
from lightir.train.stages import contrastive
from lightir.train.stages.masked import MaskedNextToken, drawn_masks, train
from lightir.train.stages.registry import read_recipe
from processes import assert_same, first_of, gradients_of, wake_lora
from tiny_models import CAUSAL, tiny_backbone


@pytest.fixture
def masking(recipe: ContrastiveRecipe) -> MaskedRecipe:
    return MaskedRecipe(
        model=dataclasses.replace(recipe.model, lora_dropout=0.0, attention="bidirectional"),
        data=tuple(CorpusRecipe(item.name) for item in recipe.data),
        optimisation=Optimisation(steps=4, batch_size=4, learning_rate=1e-2, warmup_steps=1),
        length=64,
        ratio=0.4,
        random=0.2,
        documents=DocumentPolicy(max_tokens=48),
        checkpoint_every=2,
    )


@pytest.mark.parametrize("name", CAUSAL)
def test_a_packed_piece_has_the_states_of_its_own_bidirectional_forward(name: str) -> None:
    backbone = tiny_backbone(name, attention="bidirectional")
    lengths = (9, 3, 12)
    ids = torch.randint(2, 258, (1, sum(lengths)), generator=torch.Generator().manual_seed(1))
    pieces = torch.repeat_interleave(torch.arange(3), torch.tensor(lengths))[None]
    positions = torch.cat([torch.arange(n) for n in lengths])[None]
    with torch.no_grad():
        packed = packed_states(backbone, PackedBatch(ids, pieces, positions))[0]
        start = 0
        for n in lengths:
            own = ids[:, start : start + n]
            alone = backbone.states(own, torch.ones_like(own))[0]
            torch.testing.assert_close(packed[start : start + n], alone, atol=2e-5, rtol=1e-4)
            start += n


def test_the_loss_is_that_of_each_documents_own_forward_in_double_precision(masking: MaskedRecipe) -> None:
    stage = MaskedNextToken(masking, "cpu")
    parts, _ = stage.losses(1, step=0)
    batch, wanted, targets = stage._masked(1)
    head = stage.retriever.backbone.head
    assert head is not None
    total, n = 0.0, 0
    for row in range(4):
        for piece in range(int(batch.pieces[row, -1]) + 1):
            own = batch.pieces[row] == piece
            ids = batch.input_ids[row][own][None]
            states = stage.retriever.backbone.states(ids, torch.ones_like(ids))[0].detach().double()
            for position in wanted[row][own].nonzero()[:, 0].tolist():
                logits = states[position - 1] @ head.weight.double().T
                total += float(F.cross_entropy(logits, targets[row][own][position]))
                n += 1
    assert n > 20
    assert float(parts["masked"].detach()) == pytest.approx(total / n, rel=1e-5)


def test_what_is_hidden_follows_the_shares_and_first_tokens_are_not(masking: MaskedRecipe) -> None:
    chosen, hidden, drawn = drawn_masks((200, 500), masking, vocab_size=300, number=3)
    assert float(chosen.float().mean()) == pytest.approx(0.4, abs=0.01)
    assert float(hidden.float().mean()) == pytest.approx(0.7, abs=0.01)
    assert float((drawn >= 0).float().mean()) == pytest.approx(0.2, abs=0.01)
    assert not (hidden & (drawn >= 0)).any()
    assert all(map(torch.equal, (chosen, hidden, drawn), drawn_masks((200, 500), masking, vocab_size=300, number=3)))
    assert not torch.equal(chosen, drawn_masks((200, 500), masking, vocab_size=300, number=4)[0])
    stage = MaskedNextToken(masking, "cpu")
    batch, wanted, targets = stage._masked(0)
    assert not wanted[batch.positions == 0].any()
    assert torch.equal(batch.input_ids[~wanted], targets[~wanted])
    assert (batch.input_ids[wanted] == stage.mask_id).float().mean() > 0.5


def gradients(recipe: MaskedRecipe) -> dict[str, torch.Tensor]:
    stage = MaskedNextToken(recipe, "cpu")
    wake_lora(stage.parameters.items())
    parts, _ = stage.losses(0, step=0)
    return gradients_of(parts, stage.parameters) | {name: value.detach() for name, value in parts.items()}


def test_all_weights_are_trained_and_resumed(masking: MaskedRecipe, tmp_path: Path) -> None:
    model = dataclasses.replace(masking.model, lora_rank=0)
    recipe = dataclasses.replace(masking, model=model, checkpoint_every=2)
    whole = train(recipe, tmp_path / "whole", device="cpu")
    cut(lambda: train(recipe, tmp_path / "cut", device="cpu"), at=3)
    assert Contract.load(train(recipe, tmp_path / "cut", resume=True, device="cpu")) == Contract.load(whole)
    before, after = load_backbone(model.address), LightRetriever.load(whole).backbone
    moved = {name for name, weight in all_weights(after).items() if not torch.equal(weight, all_weights(before)[name])}
    assert moved == all_weights(before).keys()


@pytest.mark.parametrize("world", [2, 4])
def test_several_processes_have_the_loss_and_gradient_of_one(world: int, masking: MaskedRecipe, tmp_path: Path) -> None:
    assert_same(first_of(world, lambda: gradients(masking), tmp_path), gradients(masking), rtol=1e-4)


def test_the_contrastive_stage_goes_on_from_it(
    masking: MaskedRecipe, recipe: ContrastiveRecipe, tmp_path: Path
) -> None:
    trained = train(masking, tmp_path / "masked", device="cpu")
    assert LightRetriever.load(trained).contract.attention == "bidirectional"
    then = dataclasses.replace(
        recipe,
        method="dense",
        model=dataclasses.replace(recipe.model, address=str(trained), attention="bidirectional"),
        losses=dataclasses.replace(recipe.losses, dense=0.0, dense_alignment=0.0, sparse_alignment=0.0),
        evaluation=dataclasses.replace(recipe.evaluation, by="symmetric"),
    )
    assert LightRetriever.load(contrastive.train(then, tmp_path / "model", device="cpu")).contract.method == "dense"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": []}, "at least one training set or corpus"),
        ({"length": 40}, "but a row has 40"),
        ({"ratio": 0.0}, "ratio must be above 0"),
        ({"random": 0.6, "kept": 0.6}, "random and kept"),
        ({"model": {"address": "a"}}, "requires bidirectional"),
        ({"optimisation": {"negatives": 3}}, "no queries"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    content = {
        "stage": "masked_next_token",
        "model": {"address": "a", "attention": "bidirectional"},
        "data": [{"name": "x"}],
        "documents": {"max_tokens": 48},
    }
    (tmp_path / "recipe.yaml").write_text(json.dumps(content | changes))
    with pytest.raises(FormatError, match=message):
        read_recipe(tmp_path / "recipe.yaml")
