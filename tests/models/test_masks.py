"""Tokens that share a prompt equal tokens that are encoded one by one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lightir.errors import InvalidInput
from lightir.models import attention, masks
from lightir.models.backbones import Backbone
from lightir.models.masks import block_mask, prompt_cache, text_positions, token_states
from lightir.models.pooling import POOLINGS, Pooling
from tiny_models import CAUSAL, NAMES, tiny_backbone

PROMPT = [7, 9, 11, 13, 15, 17]
TOKENS = torch.tensor([40, 99, 3, 40, 200, 57, 8])


def one_by_one(backbone: Backbone, prompt: list[int], tokens: Tensor, pooling: Pooling) -> Tensor:
    """Encode each token as a sequence of its own, with transformers' own mask and positions."""
    frame = [*([] if backbone.bos_id is None else [backbone.bos_id]), *prompt]
    rows = []
    for token in tokens.tolist():
        ids = torch.tensor([[*frame, token, backbone.eos_id]])
        states = backbone.states(ids, torch.ones_like(ids))[0]
        own, last = states[-2], states[-1]
        rows.append({"eos": last, "last": own, "mean": own, "mean_all": states.mean(0), "first": states[0]}[pooling])
    return torch.stack(rows)


def relative_error(ours: Tensor, expected: Tensor) -> float:
    return float((ours - expected).norm() / expected.norm())


def slow_mask(prompt: int, blocks: int, width: int, length: int) -> tuple[list[list[bool]], list[int]]:
    """Apply Eq. 10 position by position."""
    used = prompt + width * blocks
    allowed = [[i == j for j in range(length)] for i in range(length)]
    positions = [0] * length
    for i in range(used):
        positions[i] = i if i < prompt else prompt + (i - prompt) % width
        for j in range(i + 1):
            same = i >= prompt and j >= prompt and (i - prompt) // width == (j - prompt) // width
            allowed[i][j] = j < prompt or same
    return allowed, positions


@pytest.mark.parametrize("width", [1, 2])
def test_the_mask_is_equation_10(width: int) -> None:
    shapes = [(3, 2), (0, 4), (5, 0), (1, 1), (0, 0)]
    prompts, blocks = (torch.tensor(column) for column in zip(*shapes, strict=True))
    mask = block_mask(prompts, blocks, width=width, length=9)
    for row, (prompt, n) in enumerate(shapes):
        allowed, positions = slow_mask(prompt, n, width, 9)
        assert mask.allowed[row].tolist() == allowed
        assert mask.position_ids[row].tolist() == positions
        assert int(mask.valid[row].sum()) == prompt + width * n


def test_positions_are_counted_from_the_first_position_of_the_text() -> None:
    valid = torch.tensor([[True, True, True, False], [False, False, True, True]])
    assert text_positions(valid).tolist() == [[0, 1, 2, 2], [0, 0, 0, 1]]


@torch.no_grad()
def test_without_a_begin_token_the_prompt_comes_first() -> None:
    backbone = tiny_backbone("llama")
    assert backbone.bos_id is not None
    ids = torch.tensor([[*PROMPT, 40]])
    expected = backbone.states(ids, torch.ones_like(ids))[:, -1]
    actual = token_states(backbone, PROMPT, torch.tensor([40]), pooling="last", begin=False)
    assert relative_error(actual, expected) < 1e-5


@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "pooling"), [(n, p) for n in NAMES for p in POOLINGS if p != "first" or n not in CAUSAL]
)
def test_shared_prompt_and_cached_prompt_equal_one_forward_a_token(
    name: str, pooling: Pooling, monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone = tiny_backbone(name)
    expected = one_by_one(backbone, PROMPT, TOKENS, pooling)
    assert relative_error(expected[0], expected[1]) > 0.01
    cache = prompt_cache(backbone, PROMPT)
    assert (cache is None) == (name == "bert")
    for blocks_per_row in (1, 3, 64):
        monkeypatch.setattr(masks, "BLOCKS_PER_ROW", blocks_per_row)
        shared = token_states(backbone, PROMPT, TOKENS, pooling=pooling)
        assert relative_error(shared, expected) < 1e-5
        cached = token_states(backbone, PROMPT, TOKENS, pooling=pooling, cache=cache)
        assert relative_error(cached, expected) < 1e-5


@torch.no_grad()
@pytest.mark.parametrize("implementation", ["eager", attention.NAME])
@pytest.mark.parametrize("name", CAUSAL)
def test_other_attention_functions_apply_the_mask_too(
    name: str, implementation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(masks, "BLOCKS_PER_ROW", 3)
    backbone = tiny_backbone(name, implementation=implementation)
    expected = one_by_one(tiny_backbone(name, implementation="eager"), PROMPT, TOKENS, "eos")
    shared = token_states(backbone, PROMPT, TOKENS)
    cached = token_states(backbone, PROMPT, TOKENS, cache=prompt_cache(backbone, PROMPT))
    assert relative_error(shared, expected) < 1e-5
    assert relative_error(cached, expected) < 1e-5


@torch.no_grad()
@pytest.mark.parametrize("bos", [True, False])
@pytest.mark.parametrize("prompt", [[], [5], [5] * 20])
def test_any_prompt_with_or_without_a_begin_token(
    prompt: list[int], bos: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(masks, "BLOCKS_PER_ROW", 2)
    backbone = tiny_backbone("mistral-window", bos=bos)
    with pytest.raises(InvalidInput, match="sees no text"):
        token_states(backbone, prompt, TOKENS, pooling="first")
    for pooling in set(POOLINGS) - {"first"}:
        expected = one_by_one(backbone, prompt, TOKENS, pooling)
        shared = token_states(backbone, prompt, TOKENS, pooling=pooling)
        cached = token_states(backbone, prompt, TOKENS, pooling=pooling, cache=prompt_cache(backbone, prompt))
        assert relative_error(shared, expected) < 1e-5
        assert relative_error(cached, expected) < 1e-5


@torch.no_grad()
def test_a_causal_model_with_attention_both_ways_is_run_token_by_token() -> None:
    backbone = tiny_backbone("llama", attention="bidirectional")
    expected = one_by_one(backbone, PROMPT, TOKENS, "mean")
    assert relative_error(token_states(backbone, PROMPT, TOKENS, pooling="mean"), expected) < 1e-5
    causal = one_by_one(tiny_backbone("llama"), PROMPT, TOKENS, "mean")
    assert relative_error(expected, causal) > 0.01


def test_gradients_equal_those_of_one_forward_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masks, "BLOCKS_PER_ROW", 3)
    gradients = []
    along = torch.randn(len(TOKENS), 32, generator=torch.Generator().manual_seed(3))
    for encode in (one_by_one, lambda b, p, t, pooling: token_states(b, p, t, pooling=pooling)):
        backbone = tiny_backbone("qwen3")
        weight = backbone.model.layers[0].self_attn.k_proj.weight.requires_grad_()
        # Not the sum of squares: the last layer's norm makes it almost constant, so only rounding would be compared.
        (encode(backbone, PROMPT, TOKENS, "eos") * along).sum().backward()
        gradients.append(weight.grad)
    assert float(gradients[0].norm()) > 0.1
    assert relative_error(gradients[1], gradients[0]) < 1e-5


def test_no_tokens_give_no_rows_and_misfits_are_refused() -> None:
    backbone = tiny_backbone("llama")
    assert token_states(backbone, PROMPT, torch.zeros(0, dtype=torch.int64)).shape == (0, 32)
    with pytest.raises(InvalidInput, match="another prompt"):
        token_states(backbone, [1], TOKENS, cache=prompt_cache(backbone, PROMPT))
    with pytest.raises(InvalidInput, match="pooling"):
        token_states(backbone, PROMPT, TOKENS, pooling="max")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="positions"):
        block_mask(torch.tensor([3]), torch.tensor([3]), width=2, length=8)
