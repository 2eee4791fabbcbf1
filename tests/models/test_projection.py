"""The fused projection and maximum against the naive head, with edge cases."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lightir.errors import InvalidInput
from lightir.models import projection
from lightir.models.heads import activate
from lightir.models.projection import StoredTerms, largest_maxima, projection_max


def naive(states: Tensor, weight: Tensor, mask: Tensor, bias: Tensor | None = None) -> Tensor:
    logits = states @ weight.T
    logits = logits.masked_fill(~mask[:, :, None], -torch.inf)
    return logits.amax(dim=1) if bias is None else logits.amax(dim=1) + bias


def example(rows: int = 3, length: int = 7, terms: int = 150, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(rows * 1000 + length)
    states = torch.randn(rows, length, 5, generator=generator, dtype=dtype)
    weight = torch.randn(terms, 5, generator=generator, dtype=dtype)
    bias = torch.randn(terms, generator=generator, dtype=dtype)
    mask = torch.rand(rows, length, generator=generator) < 0.6
    mask[:, 0] = True
    return states, weight, bias, mask


@pytest.fixture(params=[(1024, 4 << 20), (4, 1)], ids=["one tile", "many tiles"])
def tiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(projection.MAX_TILE_POSITIONS, "cpu", request.param[0])
    monkeypatch.setitem(projection.TILE_BYTES, "cpu", request.param[1])


@pytest.mark.usefixtures("tiles")
@pytest.mark.parametrize(("rows", "length"), [(1, 1), (1, 9), (4, 1), (5, 13)])
def test_values_and_gradients_equal_the_naive_head_in_double_precision(rows: int, length: int) -> None:
    states, weight, bias, mask = example(rows, length)
    upstream = torch.randn(rows, len(weight), dtype=torch.float64)
    results = []
    for function in (lambda x, w, b: projection_max(x, w, mask=mask, bias=b)[0], lambda x, w, b: naive(x, w, mask, b)):
        leaves = [tensor.clone().requires_grad_() for tensor in (states, weight, bias)]
        values = function(*leaves)
        values.backward(upstream)
        results.append([values.detach(), *(leaf.grad for leaf in leaves)])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("tiles")
def test_gradcheck() -> None:
    states, weight, bias, mask = example(2, 5, 70)
    leaves = [tensor.requires_grad_() for tensor in (states, weight, bias)]
    assert torch.autograd.gradcheck(lambda x, w, b: projection_max(x, w, mask=mask, bias=b)[0], leaves)


@pytest.mark.usefixtures("tiles")
def test_ties_go_to_the_first_allowed_position() -> None:
    generator = torch.Generator().manual_seed(0)
    states = torch.randint(-1, 2, (4, 12, 3), generator=generator).double()
    weight = torch.randint(-1, 2, (90, 3), generator=generator).double()
    mask = torch.rand(4, 12, generator=generator) < 0.7
    _, positions = projection_max(states, weight, mask=mask)
    logits = (states @ weight.T).masked_fill(~mask[:, :, None], -torch.inf)
    for row in range(4):
        for term in range(90):
            best = logits[row, :, term].max()
            assert positions[row, term] == int((logits[row, :, term] == best).nonzero()[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_any_input_type_is_summed_in_fp32(dtype: torch.dtype) -> None:
    states, weight, bias, mask = example(3, 9, 200)
    states, weight, bias = states.to(dtype), weight.to(dtype), bias.to(dtype)
    values, _ = projection_max(states.requires_grad_(), weight.requires_grad_(), mask=mask, bias=bias)
    expected = naive(states.detach().double(), weight.detach().double(), mask, bias.double())
    assert values.dtype == torch.float32
    torch.testing.assert_close(values.double(), expected, rtol=1e-6, atol=1e-5)
    values.square().sum().backward()
    x, w = (tensor.detach().double().requires_grad_() for tensor in (states, weight))
    naive(x, w, mask, bias.double()).square().sum().backward()
    for ours, theirs in ((states.grad, x.grad), (weight.grad, w.grad)):
        assert ours is not None
        assert theirs is not None
        assert ours.dtype == dtype
        assert float((ours.double() - theirs).norm() / theirs.norm()) < 4 * torch.finfo(dtype).eps


def rounded_product(weight: Tensor, own: Tensor, rounded: bool, *, out: Tensor) -> Tensor:
    """Compute the product of a CPU with AMX on any machine."""
    if rounded:
        weight, own = weight.bfloat16(), own.bfloat16()
    return torch.mm(weight.to(out.dtype), own.to(out.dtype).T, out=out)


def test_a_bf16_search_gives_exact_positive_values_at_positions_that_are_nearly_best(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(projection, "_product", rounded_product)
    generator = torch.Generator().manual_seed(1)
    states = torch.randn(3, 40, 64, generator=generator)
    weight = torch.randn(500, 64, generator=generator)
    mask = torch.ones(3, 40, dtype=torch.bool)
    values, positions = projection_max(states, weight, mask=mask, search_dtype=torch.bfloat16)
    own = torch.einsum("bvd,vd->bv", states.gather(1, positions.long()[..., None].expand(-1, -1, 64)), weight)
    torch.testing.assert_close(values, own, rtol=1e-5, atol=1e-4)
    exact = naive(states, weight, mask)
    assert float((exact - values).min()) >= -1e-4
    assert float((exact - values).max()) < 0.02 * float(exact.abs().max())


def test_autocast_does_not_reach_the_head() -> None:
    states, weight, bias, mask = example(2, 6, 100, torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        values, _ = projection_max(states, weight, mask=mask, bias=bias)
    torch.testing.assert_close(values, naive(states, weight, mask, bias))


def test_a_row_without_an_allowed_position_weighs_nothing_and_gets_no_gradient() -> None:
    states, weight, bias, mask = example(3, 5, 80, torch.float32)
    mask[1] = False
    states.requires_grad_()
    values, positions = projection_max(states, weight, mask=mask, bias=bias)
    for activation in ("log1p_relu", "elu1p"):
        weights = activate(values, activation)
        assert weights[1].eq(0).all()
        assert weights.isfinite().all()
    assert positions[1].eq(-1).all()
    activate(values).sum().backward()
    assert states.grad is not None
    assert states.grad[1].eq(0).all()
    assert states.grad.isfinite().all()
    assert states.grad[0].ne(0).any()


def test_no_rows_give_no_rows() -> None:
    values, positions = projection_max(
        torch.zeros(0, 4, 5), torch.zeros(9, 5), mask=torch.zeros(0, 4, dtype=torch.bool)
    )
    assert values.shape == positions.shape == (0, 9)


def test_padding_special_positions_never_win_and_the_batch_does_not_matter() -> None:
    states, weight, _, _ = example(1, 6, 100, torch.float32)
    alone, _ = projection_max(states, weight, mask=torch.ones(1, 6, dtype=torch.bool))
    sink = 1000 * torch.ones(1, 2, 5)
    for padded, first in ((torch.cat([sink, states], 1), 2), (torch.cat([states, sink], 1), 0)):
        mask = torch.zeros(2, 8, dtype=torch.bool)
        mask[:, first : first + 6] = True
        together, _ = projection_max(padded.expand(2, -1, -1), weight, mask=mask)
        torch.testing.assert_close(together, alone.expand(2, -1))


@pytest.mark.usefixtures("tiles")
@pytest.mark.parametrize(("rows", "length"), [(1, 1), (1, 9), (4, 1), (5, 13), (0, 3)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_the_largest_maxima_equal_the_naive_head(rows: int, length: int, dtype: torch.dtype) -> None:
    states, weight, bias, mask = (
        tensor if tensor.dtype == torch.bool else tensor.to(dtype) for tensor in example(rows, length)
    )
    mask[1:2] = False
    actual = largest_maxima(states, weight, mask=mask, bias=bias, stored=StoredTerms(3, 0.0))
    expected = naive(states.double(), weight.double(), mask, bias.double())
    assert actual.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(actual.double(), expected, rtol=1e-5, atol=1e-5)


def bf16_example(terms: int = 700) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(3)
    states = torch.randn(6, 33, 64, generator=generator).bfloat16()
    weight = torch.randn(terms, 64, generator=generator).bfloat16()
    mask = torch.rand(6, 33, generator=generator) < torch.linspace(0, 1, 6)[:, None]
    return states, weight, -16 + torch.randn(terms, generator=generator), mask


@pytest.mark.usefixtures("tiles")
@pytest.mark.parametrize("k", [0, 1, 20, 699, 700, 5000])
@pytest.mark.parametrize("floor", [0.0, -torch.inf])
def test_bf16_products_lose_no_wanted_term_and_their_values_are_exact(k: int, floor: float) -> None:
    states, weight, bias, mask = bf16_example()
    expected = naive(states.double(), weight.double(), mask, bias.double())
    assert 0.05 < float((expected > 0).double().mean()) < 0.6
    actual = largest_maxima(states, weight, mask=mask, bias=bias, stored=StoredTerms(k, floor)).double()
    given = actual.isfinite()
    torch.testing.assert_close(actual[given], expected[given], rtol=1e-6, atol=1e-5)
    wanted = expected > floor
    if 0 < k < len(weight):
        wanted &= expected >= expected.topk(k, dim=1).values[:, -1:]
    assert bool((given | ~wanted).all())
    assert not bool(given[0].any())  # a row without an allowed position
    also = torch.rand(expected.shape, generator=torch.Generator().manual_seed(k)) < 0.02
    more = largest_maxima(states, weight, mask=mask, bias=bias, stored=StoredTerms(k, floor, also)).double()
    wanted |= also & (expected > floor)
    torch.testing.assert_close(more[wanted], expected[wanted], rtol=1e-6, atol=1e-5)
    if k == 20:
        assert int(given.sum(dim=1).max()) < 80  # the rest was not computed again


def test_terms_that_bf16_cannot_tell_apart_are_told_apart() -> None:
    states = torch.ones(1, 2, 512, dtype=torch.bfloat16)
    weight = torch.ones(90, 512, dtype=torch.bfloat16)
    weight[:, 0] += torch.arange(90) / 64  # sums slightly above 512, where bfloat16 values are 4 apart
    actual = largest_maxima(states, weight, mask=torch.ones(1, 2, dtype=torch.bool), stored=StoredTerms(5))
    expected = weight.double().sum(dim=1)
    assert len((states[0, 0] @ weight.T).unique()) == 1
    best = actual[0].topk(5)
    torch.testing.assert_close(best.values.double(), expected.topk(5).values, rtol=0, atol=0)


def test_misfits_are_refused() -> None:
    states, weight, bias, mask = example()
    with pytest.raises(InvalidInput, match="expected"):
        projection_max(states, weight[:, :3], mask=mask)
    with pytest.raises(InvalidInput, match="mask"):
        projection_max(states, weight, mask=mask[:1])
    with pytest.raises(InvalidInput, match="bias"):
        projection_max(states, weight, mask=mask, bias=bias[:3])
    with pytest.raises(InvalidInput, match="mask"):
        largest_maxima(states, weight, mask=mask[:1])
    with pytest.raises(InvalidInput, match="k is -1"):
        StoredTerms(-1)
    with pytest.raises(InvalidInput, match="search_dtype"):
        projection_max(states, weight, mask=mask, search_dtype=torch.float16)
