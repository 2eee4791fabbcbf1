"""Query likelihood: the attention stop, corruption, and cached end states against the whole forward."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import Tensor

from lightir.errors import InvalidInput
from lightir.models import attention
from lightir.models.backbones import Backbone, wrap_model
from lightir.models.likelihood import (
    Framed,
    Sequences,
    attention_stop,
    corrupt_tokens,
    corrupt_words,
    end_states,
    join,
    likelihood_from_ends,
    log_likelihood,
    next_logits,
    sequence_states,
)
from lightir.models.masks import model_mask
from tiny_models import BOS, CAUSAL, EOS, _model, tiny_backbone, tiny_tokenizer

SIDES = ("left", "right")
QUERIES = [[61, 62, 63], [70], [], [80, 81, 82, 83, 84]]


def framed(*passages: list[int], n_ends: int = 1) -> list[Framed]:
    begin, suffix = [BOS, 7, 8, 9], [11, 12]
    return [([*begin, *own, *suffix, *[EOS] * n_ends], 4, 4 + len(own)) for own in passages]


def passages(n_ends: int = 1, seed: int = 0) -> list[Framed]:
    rng = np.random.default_rng(seed)
    return framed(*(rng.integers(20, 250, size).tolist() for size in (5, 0, 11, 2)), n_ends=n_ends)


def slow_mask(length: int, first: int, last: int, valid: list[bool]) -> list[list[bool]]:
    """Apply the rule position by position."""
    allowed = [[i == j for j in range(length)] for i in range(length)]
    for i in range(length):
        for j in range(length):
            if valid[i] and valid[j] and j <= i and (i <= last or j >= first):
                allowed[i][j] = True
    return allowed


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("n_ends", [1, 4])
def test_the_stop_is_where_each_row_has_its_end(side: str, n_ends: int) -> None:
    batch = join(passages(n_ends), QUERIES, n_ends=n_ends, padding_side=side, pad_to=8)
    assert batch.input_ids.shape[1] % 8 == 0
    mask = attention_stop(batch.valid, batch.first_end, batch.last_end)
    for row in range(4):
        assert batch.input_ids[row, batch.first_end[row] : batch.last_end[row] + 1].tolist() == [EOS] * n_ends
        first, last = int(batch.first_end[row]), int(batch.last_end[row])
        assert mask[row].tolist() == slow_mask(mask.shape[1], first, last, batch.valid[row].tolist())
        assert batch.input_ids[row][batch.query[row]].tolist() == QUERIES[row]
    assert len({int(end) for end in batch.first_end}) > 1


def projections(backbone: Backbone) -> list[torch.nn.Module]:
    names = ("k_proj", "v_proj")
    return [module for name, module in backbone.model.named_modules() if name.split(".")[-1] in names]


def states_with_frozen_ends(backbone: Backbone, batch: Sequences, *, stop: bool, frozen: list[Tensor]) -> Tensor:
    """Run the forward with the inputs of keys and values at [E] replaced; an empty list is filled with them instead."""
    rows = torch.arange(len(batch.input_ids))
    fill = not frozen
    handles = []

    def hook(number: int, output: Tensor) -> Tensor | None:
        if fill:
            frozen.append(output[rows, batch.first_end].clone())
            return None
        changed = output.clone()
        changed[rows, batch.first_end] = frozen[number]
        return changed

    for number, module in enumerate(projections(backbone)):
        handles.append(module.register_forward_hook(lambda _, __, output, number=number: hook(number, output)))
    try:
        return sequence_states(backbone, batch, stop=stop)
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
@pytest.mark.parametrize("implementation", ["eager", attention.NAME, "sdpa"])
@pytest.mark.parametrize("name", CAUSAL)
def test_with_the_end_frozen_a_passage_does_not_reach_its_query(name: str, implementation: str) -> None:
    if name == "gemma2" and implementation == "sdpa":
        pytest.skip("sdpa has no softcap")
    backbone = tiny_backbone(name, implementation=implementation)
    for side in SIDES:
        one, other = (join(passages(seed=seed), QUERIES, n_ends=1, padding_side=side) for seed in (0, 1))
        assert not torch.equal(one.input_ids, other.input_ids)
        for stop in (True, False):
            frozen: list[Tensor] = []
            before = states_with_frozen_ends(backbone, one, stop=stop, frozen=frozen)[one.query]
            after = states_with_frozen_ends(backbone, other, stop=stop, frozen=frozen)[other.query]
            changed = float((before - after).norm() / before.norm())
            assert changed < 1e-6 if stop else changed > 1e-3


@torch.no_grad()
def test_the_passage_reaches_its_query_through_the_end() -> None:
    backbone = tiny_backbone("llama")
    one, other = (join(passages(seed=seed), QUERIES, n_ends=1) for seed in (0, 1))
    states = [sequence_states(backbone, sequences, stop=True)[sequences.query] for sequences in (one, other)]
    assert float((states[0] - states[1]).norm() / states[0].norm()) > 1e-3


@torch.no_grad()
@pytest.mark.parametrize("n_ends", [1, 4])
@pytest.mark.parametrize("name", CAUSAL)
def test_the_kept_end_scores_as_the_whole_forward_does(name: str, n_ends: int) -> None:
    backbone = tiny_backbone(name)
    kept = likelihood_from_ends(backbone, end_states(backbone, passages(n_ends), n_ends=n_ends), QUERIES)
    for side in SIDES:
        batch = join(passages(n_ends), QUERIES, n_ends=n_ends, padding_side=side)
        whole = log_likelihood(backbone, sequence_states(backbone, batch, stop=True), batch.input_ids, batch.query)
        torch.testing.assert_close(kept, whole, rtol=1e-5, atol=1e-5)
    assert kept[2] == 0
    assert float(kept[3]) < float(kept[1]) < 0


@torch.no_grad()
def test_one_end_serves_many_queries() -> None:
    backbone = tiny_backbone("qwen3")
    ends = end_states(backbone, passages(), n_ends=1)
    rows = torch.tensor([2, 2, 0, 3, 2])
    queries = [[61, 62], [63], [64, 65, 66], [], [61, 62]]
    together = likelihood_from_ends(backbone, ends.take(rows), queries)
    alone = [likelihood_from_ends(backbone, ends.take(rows[i : i + 1]), queries[i : i + 1]) for i in range(5)]
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(together[0], together[4], rtol=1e-6, atol=0)
    assert likelihood_from_ends(backbone, ends.take(rows[:0]), []).shape == (0,)
    assert likelihood_from_ends(backbone, ends.take(rows[:2]), [[], []]).tolist() == [0.0, 0.0]


def plain_log_likelihood(backbone: Backbone, passage: Framed, query: list[int], *, stop: bool) -> Tensor:
    """Compute Eq. 10 in double precision: one sequence, its mask cell by cell, one softmax per query token."""
    ids = [*passage[0], *query]
    e, length = len(passage[0]) - 1, len(ids)
    allowed = torch.zeros(1, length, length, dtype=torch.bool)
    for i in range(length):
        for j in range(i + 1):
            allowed[0, i, j] = not stop or i <= e or j >= e
    places = torch.arange(length)[None]
    states = backbone.states(
        torch.tensor([ids]), model_mask(backbone, allowed, places, places), position_ids=places, use_cache=False
    )[0]
    assert backbone.head is not None
    total = torch.zeros((), dtype=torch.float64)
    for i in range(e + 1, length):
        logits = backbone.head.weight @ states[i - 1]
        total = total + logits[ids[i]] - torch.log(torch.exp(logits).sum())
    return total


@pytest.mark.parametrize("stop", [True, False])
def test_loss_and_gradients_are_those_of_plain_double_precision(stop: bool) -> None:
    gradients, values = [], []
    for plain in (True, False):
        backbone = tiny_backbone("llama", implementation="eager")
        backbone.trunk.double()
        assert backbone.head is not None
        head = dataclasses.replace(backbone.head, weight=backbone.head.weight.detach().double().requires_grad_())
        backbone = dataclasses.replace(backbone, head=head)
        weight = backbone.model.layers[0].self_attn.k_proj.weight.requires_grad_()
        if plain:
            rows = [plain_log_likelihood(backbone, d, q, stop=stop) for d, q in zip(passages(), QUERIES, strict=True)]
            actual = torch.stack(rows)
        else:
            batch = join(passages(), QUERIES, n_ends=1, padding_side="left")
            actual = log_likelihood(backbone, sequence_states(backbone, batch, stop=stop), batch.input_ids, batch.query)
        (-actual.sum()).backward()
        values.append(actual.detach())
        gradients.append((weight.grad, head.weight.grad))
    torch.testing.assert_close(values[0], values[1], rtol=1e-6, atol=1e-6)  # norms and softmax stay in fp32
    for expected, ours in zip(*gradients, strict=True):
        assert float(expected.norm()) > 0
        assert float((ours - expected).norm() / expected.norm()) < 1e-6


@torch.no_grad()
@pytest.mark.parametrize("name", CAUSAL)
def test_logits_are_the_models_own(name: str) -> None:
    torch.manual_seed(0)
    model = _model(name, "eager").eval()
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(200)  # large enough for the cap to matter
    ids = torch.tensor([[BOS, 40, 41, 42]])
    expected = model(input_ids=ids).logits[0]
    backbone = wrap_model(model, tiny_tokenizer(), special_ids={"bos": BOS, "eos": EOS})
    states = backbone.states(ids, torch.ones_like(ids))[0]
    torch.testing.assert_close(next_logits(backbone, states), expected.float(), rtol=1e-5, atol=1e-4)


def test_corruption_takes_the_ratio_of_words_and_leaves_the_white_space() -> None:
    text = "  one two\tthree\n" * 400
    rng = np.random.default_rng(0)
    actual = corrupt_words(text, ratio=0.6, mask="_", rng=rng)
    hit = [word == "_" for word in actual.split()]
    assert abs(np.mean(hit) - 0.6) < 0.05
    assert len(hit) == len(text.split())
    assert [a for a, b in zip(text.split(), actual.split(), strict=True) if b != "_" and a != b] == []
    assert "".join(actual.split("_")).split() == [w for w, h in zip(text.split(), hit, strict=True) if not h]
    assert actual.count("\t") == 400
    assert corrupt_words(text, ratio=0.6, mask="_", rng=rng) != actual
    assert corrupt_words(text, ratio=0.6, mask="_", rng=np.random.default_rng(0)) == actual
    assert corrupt_words(text, ratio=0.0, mask="_", rng=rng) == text
    assert set(corrupt_words(text, ratio=1.0, mask="_", rng=rng).split()) == {"_"}
    assert corrupt_words("", ratio=0.6, mask="_", rng=rng) == ""


def test_corruption_of_tokens_never_touches_the_frame() -> None:
    long, empty = framed(list(range(20, 220)), [])
    actual = corrupt_tokens(long, ratio=0.6, mask_id=5, rng=np.random.default_rng(0))
    assert actual[1:] == long[1:]
    assert actual[0][:4] == long[0][:4]
    assert actual[0][-3:] == long[0][-3:]
    own = actual[0][4:204]
    assert abs(own.count(5) / 200 - 0.6) < 0.1
    assert all(token in (5, before) for token, before in zip(own, long[0][4:204], strict=True))
    assert corrupt_tokens(empty, ratio=1.0, mask_id=5, rng=np.random.default_rng(0)) == empty
    assert corrupt_tokens(long, ratio=1.0, mask_id=5, rng=np.random.default_rng(0))[0][4:204] == [5] * 200


def test_a_model_that_predicts_nothing_is_refused() -> None:
    with pytest.raises(InvalidInput, match="causal model"):
        end_states(tiny_backbone("bert"), passages(), n_ends=1)
    both_ways = tiny_backbone("llama", attention="bidirectional")
    with pytest.raises(InvalidInput, match="causal model"):
        sequence_states(both_ways, join(passages(), QUERIES, n_ends=1), stop=False)
    with pytest.raises(InvalidInput, match="end token"):
        join(passages(), QUERIES, n_ends=0)
