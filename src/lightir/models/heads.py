"""The sparse head (Eq. 8, 12): each term's largest logit becomes a weight, the strongest weights are kept."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lightir.errors import InvalidInput
from lightir.models.projection import Kernel

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
