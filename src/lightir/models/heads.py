"""The sparse head (Eq. 8, 12): each term's largest logit becomes a weight, the strongest weights are kept."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lightir.contract import SparseHead
from lightir.errors import InvalidInput
from lightir.models.projection import Kernel, largest_maxima, projection_max
from lightir.vectors import SparseVectors

Activation = Literal["log1p_relu", "elu1p"]


@dataclass(frozen=True, slots=True)
class LMHead:
    """A model's own projection to its vocabulary.

    Attributes:
        weight: (vocabulary, hidden); often the input embeddings themselves.
        bias: (vocabulary,), or None.
        transform: what an encoder's masked-LM head does to the states before it projects them; None for causal models.
        softcap: logits are squeezed into -softcap..softcap by a tanh (Gemma 2); None where they are left alone.
        kernel: what projects and takes the maximum: see projection_max.
    """

    weight: Tensor
    bias: Tensor | None = None
    transform: nn.Module | None = None
    softcap: float | None = None
    kernel: Kernel = "auto"

    def features(self, states: Tensor) -> Tensor:
        """The states as they meet the weight."""
        if self.transform is None:
            return states
        transformed: Tensor = self.transform(states.to(next(self.transform.parameters()).dtype))
        return transformed

    def to(self, device: torch.device) -> LMHead:
        """The head with its tensors on a device."""
        bias = None if self.bias is None else self.bias.to(device)
        transform = None if self.transform is None else self.transform.to(device)
        return dataclasses.replace(self, weight=self.weight.to(device), bias=bias, transform=transform)

    def maxima(
        self, states: Tensor, mask: Tensor, *, term_bias: Tensor | None = None, terms: Tensor | None = None
    ) -> Tensor:
        """Each term's largest logit, capped where the model's are, over the allowed positions.

        Args:
            states: (B, T, H).
            mask: (B, T) bool; True where a position may win.
            term_bias: (V,) the calibrated bias, which is added to the (capped) logits; None for none.
            terms: (n,) int64 term ids; None for all.

        Returns:
            (B, V) float32, with `terms` (B, n), theirs alone, at n / V of the cost.
        """
        # The calibrated bias belongs to the capped logits, so with a cap it cannot go into the projection.
        inside = None if self.softcap is not None else term_bias
        bias = self._bias(inside)
        # Without the calibrated bias every maximum of a small model is positive, and nothing would be saved.
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
        capped = soft_capped(maxima, self.softcap)
        return capped if term_bias is None else capped + (term_bias if terms is None else term_bias[terms])

    def largest_maxima(
        self, states: Tensor, mask: Tensor, *, term_bias: Tensor | None, k: int, floor: float, also: Tensor | None
    ) -> Tensor:
        """maxima's (B, V) float32, exact for each row's k largest above the floor; see projection.largest_maxima."""
        if self.softcap is not None:
            return self.maxima(states, mask, term_bias=term_bias)
        return largest_maxima(
            self.features(states),
            self.weight,
            mask=mask,
            bias=self._bias(term_bias),
            k=k,
            floor=floor,
            kernel=self.kernel,
            also=also,
        )

    def _bias(self, term_bias: Tensor | None) -> Tensor | None:
        if self.bias is None or term_bias is None:
            return self.bias if term_bias is None else term_bias
        return self.bias.float() + term_bias


def activate(maxima: Tensor, activation: Activation = "log1p_relu", *, straight_through: bool = False) -> Tensor:
    """Weights out of maxima: ln(1 + ReLU(z)) (Eq. 8), or SiDR's elu1p (z + 1 above zero, e^z below).

    Args:
        maxima: any shape; -inf where a text has no position.
        activation: which of the two.
        straight_through: ReLU has GELU's gradient, so that a term at zero can come back (CSplade, section 5.4).
    """
    if straight_through and activation != "log1p_relu":
        raise InvalidInput(f"the straight-through gradient is ReLU's; activation {activation!r} needs none")
    if straight_through:
        soft = F.gelu(maxima.clamp(min=-100.0))  # gelu(-inf) is not a number
        return torch.log1p(torch.relu(maxima).detach() + soft - soft.detach())
    if activation == "log1p_relu":
        return torch.log1p(torch.relu(maxima))
    if activation == "elu1p":
        return F.elu(maxima) + 1.0
    raise InvalidInput(f"activation {activation!r}: expected 'log1p_relu' or 'elu1p'")


def soft_capped(maxima: Tensor, softcap: float | None) -> Tensor:
    """Maxima of the logits as a model with a final soft cap gives them; a row of -inf (no position) stays so.

    A tanh is monotone, so capping the maxima equals the maxima of capped logits, at the same positions.
    """
    if softcap is None:
        return maxima
    return torch.where(maxima.isinf(), maxima, softcap * torch.tanh(maxima / softcap))


def top_k_weights(weights: Tensor, k: int, *, own: Tensor | None = None) -> Tensor:
    """The weights with all but each row's k largest set to 0; k = 0 keeps all. Equal weights: any of them is kept.

    With `own`, (rows, vocabulary) bool, a row keeps these terms too.
    """
    if k < 0:
        raise InvalidInput(f"top k is {k}; expected 0 (keep all) or more")
    if k == 0 or k >= weights.shape[-1]:
        return weights
    kept = weights.topk(k, dim=-1, sorted=False).indices
    strongest = torch.zeros_like(weights).scatter(-1, kept, weights.gather(-1, kept))
    return strongest if own is None else torch.where(own, weights, strongest)


def calibrate_bias(maxima: Iterable[Tensor], *, quantile: float = 0.95) -> Tensor:
    """The per-term bias (vocabulary,), fp32: minus the quantile of each term's maxima over a sample of documents.

    Args:
        maxima: batches of (documents, vocabulary) from projection_max without this bias; about 100 documents do.
        quantile: share of documents in which a term shall stay at zero; between two values it interpolates linearly.

    Raises:
        InvalidInput: no document, or a quantile outside 0..1.
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


def quantized(weights: Tensor, head: SparseHead) -> SparseVectors:
    """Rows of weights (B, V) as impacts; what rounds to 0 is left out."""
    impacts = head.quantize(weights.float().cpu().numpy())
    rows, term_ids = np.nonzero(impacts)
    indptr = np.searchsorted(rows, np.arange(len(impacts) + 1)).astype(np.int64)
    return SparseVectors(indptr, term_ids.astype(np.uint32), impacts[rows, term_ids], weights.shape[1])
