"""Piecewise attention equals a block mask and a padded forward, in values and in gradients."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lightir.errors import InvalidInput
from lightir.models import attention as attention_code
from lightir.models import pieces as pieces_code
from lightir.models.adapters import add_lora
from lightir.models.attention import NAME, SDPA
from lightir.models.backbones import Backbone
from lightir.models.framing import TextBatch
from lightir.models.pieces import Pieces, each_piece
from lightir.train.batches.packing import PackedBatch, PackedTexts, not_piecewise, packed_states, states_without_padding
from lightir.train.recipes.packed_text_recipes import AdaptationRecipe
from lightir.train.recipes.settings import CorpusRecipe, ModelRecipe, Optimisation, packed_attention
from lightir.train.stages.stage_model import recompute_activations
from pretended_cuda import pretended_cuda
from tiny_models import tiny_backbone

PLAIN = ("llama", "qwen3", "mistral", "qwen2")
WINDOWED = ("qwen2-window", "mistral-window", "gemma2", "gemma3")
LENGTHS = (7, 1, 12, 3, 5, 12)


def packed_rows(rows: int = 2) -> PackedBatch:
    generator = torch.Generator().manual_seed(0)
    sequences = [torch.randint(2, 258, (n,), generator=generator).tolist() for n in (5, 9, 1, 12, 3, 7)]
    return PackedTexts(sequences, length=16, seed=0).batch(0, rows=rows)


def padded_texts() -> TextBatch:
    ids = torch.randint(2, 258, (len(LENGTHS), max(LENGTHS)), generator=torch.Generator().manual_seed(2))
    mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    return TextBatch(ids, mask, mask)


def adapted(name: str, implementation: str, attention: str, *, recompute: bool = False) -> Backbone:
    """Return a tiny backbone with nonzero LoRA matrices, in training mode if activations are recomputed."""
    backbone = tiny_backbone(name, attention=attention, implementation=implementation)  # type: ignore[arg-type]
    backbone = add_lora(backbone, rank=2, dropout=0.0)
    generator = torch.Generator().manual_seed(4)
    for parameter in backbone.trunk.parameters():
        if parameter.requires_grad:
            parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    if recompute:
        recompute_activations(backbone.model)
        backbone.trunk.train()
    return backbone


def gradients(backbone: Backbone, states: Tensor) -> dict[str, Tensor]:
    backbone.trunk.zero_grad()
    (states.float() * torch.linspace(-1, 1, states.shape[-1], device=states.device)).square().sum().backward()
    result = {name: parameter.grad for name, parameter in backbone.trunk.named_parameters() if parameter.requires_grad}
    return {name: item.clone() for name, item in result.items() if item is not None}


def assert_same_gradients(result: dict[str, Tensor], expected: dict[str, Tensor], rtol: float = 1e-3) -> None:
    assert result.keys() == expected.keys()
    assert expected
    for name, wanted in expected.items():
        torch.testing.assert_close(result[name], wanted, rtol=rtol, atol=rtol * float(wanted.abs().max()))


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("implementation", [NAME, SDPA])
@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
@pytest.mark.parametrize("recompute", [False, True])
def test_pieces_have_the_states_and_gradients_of_a_block_mask(
    name: str, implementation: str, attention: str, recompute: bool
) -> None:
    backbone, batch = adapted(name, implementation, attention, recompute=recompute), packed_rows()
    behind_mask = packed_states(backbone, batch, attention="mask")
    expected = gradients(backbone, behind_mask)
    by_pieces = packed_states(backbone, batch, attention="pieces")
    torch.testing.assert_close(by_pieces, behind_mask, atol=2e-5, rtol=1e-4)
    assert_same_gradients(gradients(backbone, by_pieces), expected)


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("implementation", [NAME, SDPA])
@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
def test_texts_that_share_rows_have_the_states_and_gradients_of_padded_ones(
    name: str, implementation: str, attention: str
) -> None:
    backbone, batch = adapted(name, implementation, attention), padded_texts()
    padded = backbone.states(batch.input_ids, batch.attention_mask.long())
    padded = padded * batch.attention_mask[..., None]
    expected = gradients(backbone, padded)
    for length in (1, 13, 40):
        packed = states_without_padding(backbone, batch, length=length, attention="pieces")
        torch.testing.assert_close(packed, padded, atol=2e-5, rtol=1e-4)
        assert_same_gradients(gradients(backbone, packed), expected)


@settings(max_examples=30)
@given(st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=4), min_size=1, max_size=3), st.booleans())
def test_lengths_are_those_of_the_runs_and_each_attends_itself_alone(rows: list[list[int]], causal: bool) -> None:
    width = max(map(sum, rows))
    rows = [[*row, width - sum(row)] if sum(row) < width else row for row in rows]
    numbers = torch.stack([torch.repeat_interleave(torch.tensor(row)) for row in rows])
    pieces = Pieces.of(numbers, causal=causal)
    assert pieces.lengths == tuple(length for row in rows for length in row)
    assert pieces.starts.tolist() == [0, *torch.tensor(pieces.lengths).cumsum(0).tolist()]
    query, key, value = torch.randn(3, len(rows), 2, width, 4, dtype=torch.float64).unbind(0)
    allowed = numbers[:, None, :, None] == numbers[:, None, None, :]
    if causal:
        allowed = allowed & torch.ones(width, width, dtype=torch.bool).tril()
    expected = F.scaled_dot_product_attention(query, key, value, attn_mask=allowed).transpose(1, 2)
    module = torch.nn.Module()
    for attend in (attention_code.bmm_attention, attention_code.sdpa_attention):
        result, _ = attend(module, query, key, value, None, pieces=pieces)
        torch.testing.assert_close(result, expected)


def test_auto_takes_pieces_where_it_can_and_no_square_mask_is_made() -> None:
    backbone, batch = tiny_backbone("llama", implementation=NAME), packed_rows()
    with mock.patch("lightir.train.batches.packing.model_mask") as masks, torch.no_grad():
        auto = packed_states(backbone, batch)
    masks.assert_not_called()
    with torch.no_grad():
        assert torch.equal(auto, packed_states(backbone, batch, attention="pieces"))


@pytest.mark.parametrize("name", WINDOWED)
def test_windows_and_caps_are_refused_and_auto_takes_the_mask(name: str) -> None:
    backbone, batch = tiny_backbone(name, implementation=NAME), packed_rows()
    assert not_piecewise(backbone)
    with pytest.raises(InvalidInput, match=r"packed_attention is pieces, but .*(window|caps)"):
        packed_states(backbone, batch, attention="pieces")
    with torch.no_grad():
        assert torch.equal(packed_states(backbone, batch), packed_states(backbone, batch, attention="mask"))


def test_capped_scores_are_refused_by_name() -> None:
    backbone = tiny_backbone("llama", implementation=NAME)
    assert not not_piecewise(backbone)
    backbone.model.config.attn_logit_softcapping = 30.0
    assert not_piecewise(backbone) == "the model caps its attention scores"


def test_attention_code_that_knows_no_pieces_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"code, eager, takes no pieces"):
        packed_states(tiny_backbone("llama", implementation="eager"), packed_rows(), attention="pieces")


def test_a_layer_that_lost_its_pieces_would_be_noticed() -> None:
    backbone, batch = tiny_backbone("llama", implementation=NAME), packed_rows()
    whole = Backbone.states

    def without(self: Backbone, ids: Tensor, mask: Any, *, pieces: Pieces, **others: Any) -> Tensor:
        return whole(self, ids, mask, **others)

    with mock.patch.object(Backbone, "states", without), torch.no_grad():
        assert packed_states(backbone, batch, attention="pieces").isnan().all()


def test_compiled_layers_take_the_mask() -> None:
    compiled = ModelRecipe("somewhere", compile=True)
    assert packed_attention(Optimisation(), compiled) == "mask"
    assert packed_attention(Optimisation(), ModelRecipe("somewhere")) == "auto"
    with pytest.raises(InvalidInput, match="leave one of them out"):
        AdaptationRecipe(compiled, (CorpusRecipe("text"),), Optimisation(packed_attention="pieces"))


def has_varlen() -> bool:
    known = () if pieces_code.varlen is None else inspect.signature(pieces_code.varlen.varlen_attn).parameters
    return {"window_size", "enable_gqa"} <= set(known)


needs_varlen = pytest.mark.skipif(not has_varlen(), reason="this torch's variable-length attention knows no groups")


class CheckedVarlen:
    """torch's variable-length attention as documented, computed piece by piece on the pretended GPU."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []
        self.__signature__ = inspect.signature(pieces_code.varlen.varlen_attn)

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cu_seq_q: Tensor,
        cu_seq_k: Tensor,
        max_q: int,
        max_k: int,
        *,
        scale: float,
        window_size: tuple[int, int],
        enable_gqa: bool,
    ) -> Tensor:
        assert window_size in ((-1, 0), (-1, -1))
        for item in (query, key, value):
            assert item.is_cuda
            assert item.dim() == 3
            assert item.dtype in (torch.float16, torch.bfloat16)
            assert item.stride(-1) == 1
            assert len(item) == len(query)
        assert query.dtype == key.dtype == value.dtype
        assert enable_gqa == (key.shape[1] != query.shape[1])
        for starts in (cu_seq_q, cu_seq_k):
            assert starts.is_cuda
            assert starts.dtype == torch.int32
        ends = cu_seq_q.tolist()
        lengths = [b - a for a, b in itertools.pairwise(ends)]
        assert ends[0] == 0
        assert ends[-1] == len(query)
        assert min(lengths) > 0
        assert type(max_q) is type(max_k) is int
        assert max_q == max_k == max(lengths)
        self.calls.append((len(lengths), max_q))
        repeats = query.shape[1] // key.shape[1]
        key, value = (item.repeat_interleave(repeats, dim=1) for item in (key, value))
        result = []
        for q, k, v in zip(*(item.transpose(0, 1).split(lengths, dim=1) for item in (query, key, value)), strict=True):
            scores = q.float() @ k.float().transpose(1, 2) * scale
            if window_size == (-1, 0):
                later = torch.ones(scores.shape[1:], device=q.device).triu(1).bool()
                scores = scores.masked_fill(later, float("-inf"))
            result.append((scores.softmax(-1) @ v.float()).transpose(0, 1))
        return torch.cat(result).to(query.dtype)


@contextmanager
def gpu_with(varlen: CheckedVarlen, capability: tuple[int, int] = (8, 0)) -> Iterator[None]:
    with (
        pretended_cuda(),
        mock.patch.object(pieces_code.varlen, "varlen_attn", varlen),
        mock.patch.object(torch.backends.cuda, "is_flash_attention_available", return_value=True),
        mock.patch.object(torch.cuda, "get_device_capability", return_value=capability),
    ):
        yield


def on_gpu(backbone: Backbone, batch: PackedBatch) -> PackedBatch:
    backbone.trunk.to("cuda")
    return PackedBatch(*(item.to("cuda") for item in (batch.input_ids, batch.pieces, batch.positions)))


@needs_varlen
@pytest.mark.parametrize("name", ["llama", "qwen3", "mistral"])
@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
@pytest.mark.parametrize("recompute", [False, True])
def test_a_gpu_takes_one_launch_a_layer_under_autocast(name: str, attention: str, recompute: bool) -> None:
    batch = packed_rows()
    backbone = adapted(name, SDPA, attention)
    states = packed_states(backbone, batch, attention="mask")
    expected = gradients(backbone, states)
    varlen, gpu = CheckedVarlen(), adapted(name, SDPA, attention, recompute=recompute)
    with gpu_with(varlen):
        moved = on_gpu(gpu, batch)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            result = packed_states(gpu, moved)
        runs = Pieces.of(batch.pieces, causal=True)
        assert varlen.calls == [(len(runs.lengths), runs.longest)] * 2  # the model has two layers
        found_gradients = {name: gradient.cpu() for name, gradient in gradients(gpu, result).items()}
        assert len(varlen.calls) == (4 if recompute else 2)
        result = result.float().cpu()
    torch.testing.assert_close(result, states, atol=0.3, rtol=0.1)
    assert float(F.cosine_similarity(result.detach().flatten(), states.detach().flatten(), dim=0)) > 0.999
    for key, wanted in expected.items():
        assert float(F.cosine_similarity(found_gradients[key].flatten(), wanted.flatten(), dim=0)) > 0.97, key


@needs_varlen
@pytest.mark.parametrize("case", ["float32", "older GPU", "dropout"])
def test_what_flash_attention_does_not_take_goes_piece_by_piece(case: str) -> None:
    batch, varlen = packed_rows(), CheckedVarlen()
    query, key, value = torch.randn(3, 2, 4, 16, 8).unbind(0)
    pieces = Pieces.of(batch.pieces, causal=True)
    module = torch.nn.Module()
    expected, _ = attention_code.sdpa_attention(module, query, key, value, None, pieces=pieces)
    dtype = torch.float32 if case == "float32" else torch.bfloat16
    with gpu_with(varlen, (7, 5) if case == "older GPU" else (8, 0)), torch.no_grad():
        moved = [item.to("cuda", dtype) for item in (query, key, value)]
        there = Pieces.of(batch.pieces.to("cuda"), causal=True)
        dropout = 1e-9 if case == "dropout" else 0.0
        result, _ = attention_code.sdpa_attention(module, *moved, None, dropout=dropout, pieces=there)
        assert not varlen.calls
        torch.testing.assert_close(result.float().cpu(), expected, atol=0.05, rtol=0.05)
        moved_halves = [item.to(torch.bfloat16) for item in moved]
        attention_code.sdpa_attention(module, *moved_halves, None, scaling=8**-0.5, pieces=there)
        assert bool(varlen.calls) == (case != "older GPU")


@needs_varlen
def test_one_launch_equals_its_twin() -> None:
    """Compare all_pieces with each_piece in double precision, up to the rounding of half precision."""
    batch, varlen = packed_rows(), CheckedVarlen()
    query, (key, value) = torch.randn(2, 4, 16, 8), torch.randn(2, 2, 2, 16, 8)
    for causal in (True, False):
        here = Pieces.of(batch.pieces, causal=causal)

        def attend(q: Tensor, k: Tensor, v: Tensor, causal: bool = causal) -> tuple[Tensor, None]:
            result = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
            return result.transpose(1, 2), None

        expected, _ = each_piece(attend, query, key, value, here)
        with gpu_with(varlen):
            moved = [item.to("cuda", torch.bfloat16) for item in (query, key, value)]
            there = Pieces.of(batch.pieces.to("cuda"), causal=causal)
            result, _ = pieces_code.all_pieces(*moved, there, scaling=8**-0.5)
            torch.testing.assert_close(result.float().cpu(), expected, atol=0.05, rtol=0.05)


def test_a_recipe_names_its_choice() -> None:
    chosen = dataclasses.replace(Optimisation(), packed_attention="mask")
    assert packed_attention(chosen, ModelRecipe("somewhere")) == "mask"
