"""Pooling with padding on either side, and the fixed standardization."""

from __future__ import annotations

import pytest
import torch

from lightir.errors import InvalidInput
from lightir.models.pooling import POOLINGS, Pooling, fit_standardization, pool, standardize

# <bos> a b <eos>
STATES = torch.tensor([[10.0, 1.0], [2.0, 2.0], [4.0, 6.0], [7.0, 8.0]])
TEXT = [False, True, True, False]
EXPECTED = {"eos": [7.0, 8.0], "last": [4.0, 6.0], "mean": [3.0, 4.0], "mean_all": [5.75, 4.25], "first": [10.0, 1.0]}


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("left", [0, 1, 3])
def test_padding_on_either_side_does_not_matter(pooling: Pooling, left: int) -> None:
    states = torch.full((1, 7, 2), 1000.0)
    states[0, left : left + 4] = STATES
    attention, text = torch.zeros(1, 7, dtype=torch.bool), torch.zeros(1, 7, dtype=torch.bool)
    attention[0, left : left + 4] = True
    text[0, left : left + 4] = torch.tensor(TEXT)
    pooled = pool(states, attention_mask=attention, text_mask=text, pooling=pooling)
    assert pooled.tolist() == [EXPECTED[pooling]]
    together = pool(states.expand(3, -1, -1), attention_mask=attention.long(), text_mask=text, pooling=pooling)  # type: ignore[arg-type]
    assert torch.equal(together, pooled.expand(3, -1))


def slow_pool(states: list[list[float]], text: list[bool], pooling: Pooling, ends: int) -> list[float]:
    """Pool one row without padding, by the definitions in the documentation."""
    own = [state for state, mine in zip(states, text, strict=True) if mine] or states
    chosen = {"eos": states[-ends:], "last": own[-1:], "mean": own, "mean_all": states, "first": states[:1]}[pooling]
    return [sum(column) / len(chosen) for column in zip(*chosen, strict=True)]


@pytest.mark.parametrize("ends", [1, 2, 4])
@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_rows_of_different_lengths_are_pooled_each_by_itself(pooling: Pooling, side: str, ends: int) -> None:
    """Several end tokens are averaged; a row with fewer states averages all of them."""
    generator = torch.Generator().manual_seed(0)
    lengths, longest = [1, 2, 3, 5, 8], 9
    states = torch.randn(len(lengths), longest, 3, generator=generator)
    attention = torch.zeros(len(lengths), longest, dtype=torch.bool)
    text = torch.zeros(len(lengths), longest, dtype=torch.bool)
    expected = []
    for row, length in enumerate(lengths):
        span = slice(longest - length, longest) if side == "left" else slice(0, length)
        attention[row, span] = True
        text[row, span] = torch.rand(length, generator=generator) < 0.5
        expected.append(slow_pool(states[row, span].tolist(), text[row, span].tolist(), pooling, ends))
    pooled = pool(states, attention_mask=attention, text_mask=text, pooling=pooling, ends=ends)
    torch.testing.assert_close(pooled, torch.tensor(expected))


def test_a_text_without_tokens_of_its_own_takes_its_frame() -> None:
    attention, text = torch.tensor([[True, True, False, False]]), torch.zeros(1, 4, dtype=torch.bool)
    for pooling, expected in (("mean", [6.0, 1.5]), ("last", [2.0, 2.0]), ("eos", [2.0, 2.0])):
        pooled = pool(STATES[None], attention_mask=attention, text_mask=text, pooling=pooling)  # type: ignore[arg-type]
        assert pooled.tolist() == [expected]


def test_bf16_states_are_averaged_in_fp32() -> None:
    states = torch.ones(1, 1000, 1, dtype=torch.bfloat16) * 1.0078125
    mask = torch.ones(1, 1000, dtype=torch.bool)
    pooled = pool(states, attention_mask=mask, text_mask=mask, pooling="mean")
    assert pooled.dtype == torch.float32
    assert pooled.item() == pytest.approx(1.0078125, rel=1e-6)


def test_standardization_makes_the_sample_standard_and_commutes_with_averaging() -> None:
    sample = torch.randn(50, 4, generator=torch.Generator().manual_seed(0)) * 7 + 3
    sample[:, 3] = 2.0
    mean, deviation = fit_standardization(sample)
    rows = standardize(sample, mean, deviation)
    torch.testing.assert_close(rows.mean(0), torch.zeros(4), atol=1e-5, rtol=0)
    torch.testing.assert_close(rows.std(0, correction=0), torch.tensor([1.0, 1.0, 1.0, 0.0]), atol=1e-5, rtol=0)
    torch.testing.assert_close(standardize(sample.mean(0), mean, deviation), rows.mean(0), atol=1e-5, rtol=0)


def test_misfits_are_refused() -> None:
    with pytest.raises(InvalidInput, match="at least 2"):
        fit_standardization(torch.ones(1, 4))
    mask = torch.ones(1, 4, dtype=torch.bool)
    with pytest.raises(InvalidInput, match="pooling"):
        pool(STATES[None], attention_mask=mask, text_mask=mask, pooling="max")  # type: ignore[arg-type]
