"""The sparse head: calibrated bias, activations and the strongest weights."""

from __future__ import annotations

import math

import pytest
import torch

from lightir.errors import InvalidInput
from lightir.models.bags import terms_present
from lightir.models.framing import TextBatch
from lightir.models.heads import activate, calibrate_bias, fitted_scale, top_k_weights
from tiny_models import tiny_backbone


def test_calibration_leaves_the_wanted_share_of_documents_above_zero() -> None:
    generator = torch.Generator().manual_seed(3)
    maxima = torch.randn(400, 30, generator=generator) * 3 + 20
    bias = calibrate_bias(maxima.split(64), quantile=0.95)
    torch.testing.assert_close(-bias, torch.quantile(maxima, 0.95, dim=0))
    assert (maxima + bias > 0).float().mean() == pytest.approx(0.05, abs=0.005)
    torch.testing.assert_close(calibrate_bias([maxima[:1]]), -maxima[0])
    with pytest.raises(InvalidInput, match="at least one"):
        calibrate_bias([])
    with pytest.raises(InvalidInput, match="quantile"):
        calibrate_bias([maxima], quantile=1.5)


def test_top_k_keeps_the_largest_and_the_gradient_of_what_it_keeps() -> None:
    weights = torch.tensor([[3.0, 1.0, 2.0, 0.0]], requires_grad=True)
    kept = top_k_weights(weights, 2)
    assert kept.tolist() == [[3.0, 0.0, 2.0, 0.0]]
    kept.sum().backward()
    assert weights.grad is not None
    assert weights.grad.tolist() == [[1.0, 0.0, 1.0, 0.0]]
    assert top_k_weights(weights, 0) is weights
    assert top_k_weights(weights, 9) is weights
    own = torch.tensor([[False, True, False, False]])
    assert top_k_weights(weights, 1, own=own).tolist() == [[3.0, 1.0, 0.0, 0.0]]
    assert top_k_weights(weights, 2, own=~own).tolist() == [[3.0, 0.0, 2.0, 0.0]]
    with pytest.raises(InvalidInput):
        top_k_weights(weights, -1)


def test_activations_are_the_papers_formulas() -> None:
    maxima = torch.tensor([-torch.inf, -2.0, -0.5, 0.0, 0.5, 3.0])
    expected = [0.0, 0.0, 0.0, 0.0, math.log(1.5), math.log(4.0)]
    assert activate(maxima).tolist() == pytest.approx(expected)
    expected = [0.0, math.exp(-2.0), math.exp(-0.5), 1.0, 1.5, 4.0]
    assert activate(maxima, "elu1p").tolist() == pytest.approx(expected)


@pytest.mark.parametrize("quantile", [0.0, 0.3, 0.5, 0.95, 1.0])
@pytest.mark.parametrize("n", [1, 2, 7])
def test_the_bias_is_the_quantile_interpolated_between_neighbours(n: int, quantile: float) -> None:
    maxima = torch.randn(n, 5, generator=torch.Generator().manual_seed(n))
    nothing = torch.full((1, 5), -torch.inf)  # a document without text
    actual = calibrate_bias([maxima[:1], nothing, maxima[1:]], quantile=quantile)
    torch.testing.assert_close(actual, -torch.quantile(maxima, quantile, dim=0))


def test_an_unknown_activation_is_refused() -> None:
    with pytest.raises(InvalidInput, match="activation"):
        activate(torch.zeros(1), "relu")  # type: ignore[arg-type]


def test_the_straight_through_gradient_is_that_of_gelu_written_out() -> None:
    """The gradient of ln(1 + r), r = relu(z), with dr/dz = d gelu/dz = Phi(z) + z phi(z)."""
    maxima = torch.tensor([-3.0, -0.4, 0.0, 0.7, 5.0], dtype=torch.float64, requires_grad=True)
    activate(maxima, straight_through=True).sum().backward()
    z = maxima.detach()
    slope = 0.5 * (1 + torch.erf(z / 2**0.5)) + z * torch.exp(-(z**2) / 2) / (2 * torch.pi) ** 0.5
    torch.testing.assert_close(maxima.grad, slope / (1 + torch.relu(z)))


@pytest.mark.parametrize("n", [1, 7, 9_999, 50_000])
def test_a_fitted_scale_clips_a_tiny_share_and_a_larger_one_clips_more(n: int) -> None:
    weights = torch.randn(n, generator=torch.Generator().manual_seed(n)).exp() * 40
    scale = fitted_scale(torch.cat([weights, torch.zeros(5)]))
    assert int((weights > 255 / scale).sum()) <= n * 1e-4
    assert int((weights > 255 / (1.02 * scale)).sum()) > n * 1e-4  # three significant digits
    assert f"{scale:.3g}" == f"{scale:.9g}"


def test_a_scale_needs_a_weight() -> None:
    with pytest.raises(InvalidInput, match="cannot be fitted"):
        fitted_scale(torch.zeros(3))


def test_the_terms_of_a_text_are_not_those_of_its_prompt() -> None:
    ids = torch.tensor([[1, 9, 5, 7, 5, 2], [1, 9, 8, 2, 0, 0]])
    own = torch.tensor([[False, False, True, True, True, False], [False, False, True, False, False, False]])
    present = terms_present(TextBatch(ids, ids > 0, own), tiny_backbone("llama"))
    assert [row.nonzero()[:, 0].tolist() for row in present] == [[5, 7], [8]]
