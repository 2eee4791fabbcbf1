"""The two next-token losses in chunks, against plain double precision."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lightir.errors import InvalidInput
from lightir.models import lm_losses
from lightir.models.lm_losses import next_token_losses


def plain(states: Tensor, weight: Tensor, targets: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the losses of the paper's appendix A, as sums instead of means."""
    logits = states @ weight.T if bias is None else states @ weight.T + bias
    adapted = torch.log(1 + torch.relu(logits))
    return (
        F.cross_entropy(logits, targets, reduction="sum"),
        F.cross_entropy(adapted, targets, reduction="sum"),
        logits.amax(0),
    )


def sample(n: int, vocabulary: int, *, hidden: int = 6, scale: float = 2.0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(n + vocabulary)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    targets = torch.randint(vocabulary, (n,), generator=generator)
    return scale * normal(n, hidden), normal(vocabulary, hidden), targets, normal(vocabulary)


@pytest.mark.parametrize("rows_at_once", [1, 3, 100])
@pytest.mark.parametrize("relu_weight", [0.0, 1.0, 2.5])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("trained", ["s", "w", "b", "swb"], ids=lambda kinds: f"trained-{kinds}")
def test_values_and_gradients_are_those_of_plain_double_precision(
    rows_at_once: int, relu_weight: float, biased: bool, trained: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    states, weight, targets, bias = sample(7, 11)
    monkeypatch.setitem(lm_losses.CHUNK_BYTES, "cpu", rows_at_once * 11 * 8)
    ours, theirs = (
        [
            tensor.clone().requires_grad_(kind in trained)
            for kind, tensor in zip("swb", (states, weight, bias), strict=True)
        ]
        for _ in range(2)
    )
    actual = next_token_losses(ours[0], ours[1], targets, bias=ours[2] if biased else None, relu_weight=relu_weight)
    causal, relu, maxima = plain(theirs[0], theirs[1], targets, theirs[2] if biased else None)
    torch.testing.assert_close(actual.causal, causal.detach())
    torch.testing.assert_close(actual.relu, relu.detach())
    torch.testing.assert_close(actual.total, causal + relu_weight * relu)
    torch.testing.assert_close(actual.maxima, maxima.detach())
    if not actual.total.requires_grad:
        assert (trained, biased) == ("b", False)
        return
    torch.autograd.backward(actual.total * 0.3)
    torch.autograd.backward((causal + relu_weight * relu) * 0.3)
    for mine, plainly in zip(ours, theirs, strict=True):
        assert (mine.grad is None) == (plainly.grad is None)
        if mine.grad is not None and plainly.grad is not None:
            torch.testing.assert_close(mine.grad, plainly.grad)


def test_a_target_without_weight_still_pushes_the_others_down() -> None:
    """The ReLU term alone has no gradient on a dead target; the causal term provides one."""
    states = torch.tensor([[1.0, 0.0]], dtype=torch.float64, requires_grad=True)
    weight = torch.tensor([[-3.0, 1.0], [2.0, 0.0], [-1.0, 5.0]], dtype=torch.float64)
    actual = next_token_losses(states, weight, torch.tensor([0]))
    torch.autograd.backward(actual.total)
    whole = states.grad
    theirs = states.detach().clone().requires_grad_()
    causal, relu, _ = plain(theirs, weight, torch.tensor([0]), None)
    (d_relu,) = torch.autograd.grad(relu, theirs, retain_graph=True)
    (d_causal,) = torch.autograd.grad(causal, theirs)
    torch.testing.assert_close(whole, d_relu + d_causal)
    assert float(d_relu[0, 1]) == 0.0  # only term 1 is alive, and it does not read the second dimension
    assert float(d_causal[0, 1]) != 0.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_dtypes_come_close_and_give_gradients_in_their_own(dtype: torch.dtype) -> None:
    states, weight, targets, _ = sample(40, 300, hidden=32, scale=0.5)
    ours, rounded = states.to(dtype).requires_grad_(), weight.to(dtype).requires_grad_()
    theirs, exact = (tensor.detach().double().requires_grad_() for tensor in (ours, rounded))
    actual = next_token_losses(ours, rounded, targets)
    causal, relu, _ = plain(theirs, exact, targets, None)
    torch.autograd.backward(actual.total)
    torch.autograd.backward(causal + relu)
    assert actual.total.dtype == torch.float32
    assert float(actual.total.detach()) == pytest.approx(float((causal + relu).detach()), rel=1e-5)
    for mine, doubled in ((ours, theirs), (rounded, exact)):
        assert mine.grad is not None
        assert mine.grad.dtype == dtype
        assert doubled.grad is not None
        error = (mine.grad.double() - doubled.grad).norm() / doubled.grad.norm()
        assert float(error) < (1e-5 if dtype == torch.float32 else 1e-2)


def test_large_logits_stay_finite() -> None:
    states = torch.full((2, 1), 3e4, requires_grad=True)
    actual = next_token_losses(states, torch.tensor([[1.0], [-1.0], [0.5]]), torch.tensor([0, 1]))
    torch.autograd.backward(actual.total)
    assert bool(torch.isfinite(actual.total))
    assert states.grad is not None
    assert bool(torch.isfinite(states.grad).all())


def test_no_position_gives_no_loss() -> None:
    states = torch.zeros(0, 4, requires_grad=True)
    actual = next_token_losses(states, torch.ones(5, 4), torch.zeros(0, dtype=torch.int64))
    torch.autograd.backward(actual.total)
    assert float(actual.total.detach()) == 0.0
    assert bool(torch.isneginf(actual.maxima).all())


def test_no_gradient_is_computed_where_none_is_wanted() -> None:
    states, weight, targets, _ = sample(5, 9)
    with torch.no_grad():
        actual = next_token_losses(states.requires_grad_(), weight, targets)
    assert not actual.total.requires_grad
    torch.testing.assert_close(actual.causal, plain(states, weight, targets, None)[0].detach())


def test_what_does_not_fit_is_refused() -> None:
    states, weight, targets, _ = sample(5, 9)
    with pytest.raises(InvalidInput, match="expected"):
        next_token_losses(states, weight[:, :2], targets)
    with pytest.raises(InvalidInput, match="expected"):
        next_token_losses(states, weight, targets[:2])
