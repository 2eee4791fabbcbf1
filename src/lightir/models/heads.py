"""The sparse head (Eq. 8, 12): turns each term's largest logit into a weight and keeps the strongest."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lightir.contract import MAX_IMPACT, SparseHead
from lightir.errors import InvalidInput
from lightir.models.projection import Kernel, StoredTerms, largest_maxima, projection_max
from lightir.vectors import SparseVectors

Activation = Literal["log1p_relu", "elu1p"]

CLIPPED_SHARE = 1e-4
"""Share of sample documents' weights that a fitted quantizer may clip; ignoring outliers keeps small weights apart."""


@dataclass(frozen=True, slots=True)
class LMHead:
    """A model's projection to its vocabulary.

    Attributes:
        weight: (vocabulary, hidden) matrix; often the input embeddings themselves.
        bias: (vocabulary,) vector, or None.
        transform: layers of a masked-LM head in front of the projection; None for causal models.
        softcap: limit to which a tanh squeezes the logits (Gemma 2); None without.
        kernel: implementation of projection and maximum (see `projection_max`).
    """

    weight: Tensor
    bias: Tensor | None = None
    transform: nn.Module | None = None
    softcap: float | None = None
    kernel: Kernel = "auto"

    def features(self, states: Tensor) -> Tensor:
        """Return the states after the transform, as the weight multiplies them."""
        if self.transform is None:
            return states
        transformed: Tensor = self.transform(states.to(next(self.transform.parameters()).dtype))
        return transformed

    def to(self, device: torch.device) -> LMHead:
        """Return the head with its tensors on a device."""
        bias = None if self.bias is None else self.bias.to(device)
        transform = None if self.transform is None else self.transform.to(device)
        return dataclasses.replace(self, weight=self.weight.to(device), bias=bias, transform=transform)

    def maxima(
        self, states: Tensor, mask: Tensor, *, term_bias: Tensor | None = None, terms: Tensor | None = None
    ) -> Tensor:
        """Return each term's largest logit over the allowed positions, capped if the model's logits are.

        Args:
            states: (B, T, H) last hidden states.
            mask: (B, T) bool mask of the allowed positions.
            term_bias: (V,) calibrated bias, added to the (capped) logits; None for none.
            terms: (n,) int64 term ids; None for all.

        Returns:
            (B, V) float32, or (B, n) for `terms`, at n / V of the cost.
        """
        # The calibrated bias is added to the capped logits, so with a cap it cannot go into the projection.
        inside = None if self.softcap is not None else term_bias
        bias = self._bias(inside)
        # Without the calibrated bias every maximum of a small model is positive, so the search would save nothing.
        low = states.dtype == torch.bfloat16 and inside is not None
        weight = self.weight
        if terms is not None:
            weight, bias = weight[terms], None if bias is None else bias[terms]
        maxima, _ = projection_max(
            self.features(states),
            weight,
            mask=mask,
            bias=bias,
            search_dtype=torch.bfloat16 if low else None,
            kernel=self.kernel,
        )
        if self.softcap is None:
            return maxima
        capped = soft_cap(maxima, self.softcap)
        return capped if term_bias is None else capped + (term_bias if terms is None else term_bias[terms])

    def largest_maxima(self, states: Tensor, mask: Tensor, *, term_bias: Tensor | None, stored: StoredTerms) -> Tensor:
        """Return the (B, V) float32 `maxima`, exact only for the stored terms (see `projection.largest_maxima`)."""
        if self.softcap is not None:
            return self.maxima(states, mask, term_bias=term_bias)
        states, bias = self.features(states), self._bias(term_bias)
        return largest_maxima(states, self.weight, mask=mask, bias=bias, stored=stored, kernel=self.kernel)

    def _bias(self, term_bias: Tensor | None) -> Tensor | None:
        if self.bias is None or term_bias is None:
            return self.bias if term_bias is None else term_bias
        return self.bias.float() + term_bias


def activate(maxima: Tensor, activation: Activation = "log1p_relu", *, straight_through: bool = False) -> Tensor:
    """Return the weights of maxima z: ln(1 + ReLU(z)) (Eq. 8), or SiDR's elu1p (z + 1 above zero, e^z below).

    Args:
        maxima: maximal logits of any shape; -inf for a text without positions.
        activation: "log1p_relu" or "elu1p".
        straight_through: whether ReLU has GELU's gradient, which can revive a term at zero (CSplade, section 5.4).
    """
    if straight_through and activation != "log1p_relu":
        raise InvalidInput(f"the straight-through gradient is for ReLU; activation {activation!r} does not support it")
    if straight_through:
        soft = F.gelu(maxima.clamp(min=-100.0))  # gelu(-inf) is not a number
        return torch.log1p(torch.relu(maxima).detach() + soft - soft.detach())
    if activation == "log1p_relu":
        return torch.log1p(torch.relu(maxima))
    if activation == "elu1p":
        return F.elu(maxima) + 1.0
    raise InvalidInput(f"activation {activation!r}: expected 'log1p_relu' or 'elu1p'")


def state_norm(weight: Tensor, bias: Tensor) -> nn.LayerNorm:
    """Return a LayerNorm with these arrays, which are trained if they are parameters.

    Args:
        weight: (H,) float32.
        bias: (H,) float32.
    """
    norm = nn.LayerNorm(len(weight), device="meta")
    for name, array in (("weight", weight), ("bias", bias)):
        setattr(norm, name, array if isinstance(array, nn.Parameter) else nn.Parameter(array, requires_grad=False))
    return norm


def without_first_terms(maxima: Tensor, first_term: int, *, terms: Tensor | None = None) -> Tensor:
    """Return maxima in which the terms before `first_term` are -inf, whose weight is 0.

    Args:
        maxima: (B, V) maxima of all terms, or (B, n) of `terms`.
        first_term: first term to keep; 0 keeps all.
        terms: (n,) int64 ids of the columns; None for the whole vocabulary.
    """
    if first_term == 0:
        return maxima
    ids = torch.arange(maxima.shape[1], device=maxima.device) if terms is None else terms
    return maxima.masked_fill(ids < first_term, -torch.inf)


def soft_cap(logits: Tensor, softcap: float) -> Tensor:
    """Apply a model's final soft cap to logits or their maxima; -inf (no position) is unchanged.

    A tanh is monotone, so the capped maxima equal the maxima of the capped logits, at the same positions.
    """
    return torch.where(logits.isinf(), logits, softcap * torch.tanh(logits / softcap))


def top_k_weights(weights: Tensor, k: int, *, own: Tensor | None = None) -> Tensor:
    """Set all but each row's k largest weights to 0; k = 0 keeps all. Ties are broken arbitrarily.

    With `own`, (rows, vocabulary) bool, a row keeps these terms too.
    """
    if k < 0:
        raise InvalidInput(f"top k is {k}; expected 0 (keep all) or more")
    if k == 0 or k >= weights.shape[-1]:
        return weights
    kept = weights.topk(k, dim=-1, sorted=False).indices
    strongest = torch.zeros_like(weights).scatter(-1, kept, weights.gather(-1, kept))
    return strongest if own is None else torch.where(own, weights, strongest)


def fitted_scale(weights: Tensor, *, clipped: float = CLIPPED_SHARE) -> float:
    """Return the quantizer's scale under which at most a share of weights is clipped, to 3 significant digits.

    Args:
        weights: stored weights of sample documents, of any shape; zeros are ignored.
        clipped: share of the weights that may exceed 255 / scale.

    Raises:
        InvalidInput: no weight is above zero.
    """
    positive = weights[weights > 0].double().cpu().sort().values
    if not len(positive):
        raise InvalidInput("no weight is above zero in the sample documents, so the impacts' scale cannot be fitted")
    largest = float(positive[-1 - int(clipped * len(positive))])
    digit = 10.0 ** (math.floor(math.log10(MAX_IMPACT / largest)) - 2)
    return float(math.floor(MAX_IMPACT / largest / digit) * digit)


def calibrate_bias(maxima: Iterable[Tensor], *, quantile: float = 0.95) -> Tensor:
    """Return the (vocabulary,) fp32 term bias: minus the quantile of each term's maxima over a sample of documents.

    Args:
        maxima: batches of (documents, vocabulary) maxima without this bias; about 100 documents suffice.
        quantile: fraction of documents in which a term shall be zero; values between two documents are interpolated.

    Raises:
        InvalidInput: no document with text, or a quantile outside 0..1.
    """
    if not 0.0 <= quantile <= 1.0:
        raise InvalidInput(f"quantile is {quantile}; expected 0 to 1")
    sample = [batch[torch.isfinite(batch).all(dim=1)].float().cpu() for batch in maxima]
    if not sum(len(batch) for batch in sample):
        raise InvalidInput("calibration needs at least one document with text")
    ordered = torch.cat(sample).sort(dim=0).values
    rank = quantile * (len(ordered) - 1)
    below = int(rank)
    above = min(below + 1, len(ordered) - 1)
    return -torch.lerp(ordered[below], ordered[above], rank - below)


def quantize(weights: Tensor, head: SparseHead) -> SparseVectors:
    """Quantize rows of weights (B, V) to impacts, dropping those that round to 0."""
    impacts = head.quantize(weights.float().cpu().numpy())
    rows, term_ids = np.nonzero(impacts)
    indptr = np.searchsorted(rows, np.arange(len(impacts) + 1)).astype(np.int64)
    return SparseVectors(indptr, term_ids.astype(np.uint32), impacts[rows, term_ids], weights.shape[1])
