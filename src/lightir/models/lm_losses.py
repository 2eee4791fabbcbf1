"""CSplade's adaptation losses (arXiv 2504.10816), without the positions x vocabulary tensor of logits."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lightir.errors import InvalidInput
from lightir.models.projection import bf16_operands

CHUNK_BYTES = {"cpu": 32 << 20, "cuda": 512 << 20}
"""Size of the logits that exist at one time: a few hundred positions of a small model's vocabulary."""


@dataclass(frozen=True, slots=True)
class NextTokenLosses:
    """Losses summed over positions, and the terms' maxima.

    Attributes:
        total: scalar causal + relu_weight x relu, which carries the gradient.
        causal: scalar sum of CE(z, next).
        relu: scalar sum of CE(ln(1 + ReLU(z)), next).
        maxima: (V,) largest logit of each term at any position; a term below 0 is dead in this batch.
    """

    total: Tensor
    causal: Tensor
    relu: Tensor
    maxima: Tensor


def next_token_losses(
    states: Tensor, weight: Tensor, targets: Tensor, *, bias: Tensor | None = None, relu_weight: float = 1.0
) -> NextTokenLosses:
    """Return CSplade's two cross entropies from the same logits z = states weightᵀ + bias.

    Since exp(ln(1 + ReLU(z))) = 1 + ReLU(z), the second one is ln Σ(1 + ReLU(z)) - ln(1 + ReLU(z_next)). The forward
    pass also computes the gradients of the states and, in full fine-tuning, of the head, so that each chunk of logits
    exists once.

    Args:
        states: (n, hidden) states in any floating dtype, which predict the targets.
        weight: (V, hidden), frozen or trained; its gradient is summed in fp32 and takes one more such array.
        targets: (n,) int64 token ids.
        bias: (V,), frozen or trained, or None.
        relu_weight: λ, weight of the second cross entropy.

    Returns:
        Sums in fp32 (fp64 for double states). For n = 0 they are 0, and maxima -inf.

    Raises:
        InvalidInput: mismatched shapes.
    """
    if states.dim() != 2 or weight.dim() != 2 or states.shape[1] != weight.shape[1] or len(targets) != len(states):
        raise InvalidInput(
            f"states {tuple(states.shape)}, weight {tuple(weight.shape)} and targets {tuple(targets.shape)}: expected "
            "(n, hidden), (vocabulary, hidden) and (n,)"
        )
    return NextTokenLosses(*_NextToken.apply(states, weight, bias, targets, relu_weight))  # type: ignore[no-untyped-call]


class _NextToken(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, relu_weight: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        wide = torch.float64 if states.dtype == torch.float64 else torch.float32
        causal, relu = (torch.zeros((), dtype=torch.float64, device=states.device) for _ in range(2))
        maxima = torch.full((len(weight),), -torch.inf, dtype=wide, device=states.device)
        inputs, dtypes = (states, weight, bias), (states.dtype, wide, wide)
        d_states, d_weight, d_bias = (
            torch.zeros_like(tensor, dtype=dtype) if tensor is not None and needed else None
            for tensor, dtype, needed in zip(inputs, dtypes, ctx.needs_input_grad, strict=False)
        )
        budget = CHUNK_BYTES.get(states.device.type, CHUNK_BYTES["cpu"])
        step = max(1, budget // (len(weight) * wide.itemsize))
        with torch.autocast(states.device.type, enabled=False), _products(states, weight):
            table = _operand(weight, wide)
            for begin in range(0, len(states), step):
                own, following = states[begin : begin + step], targets[begin : begin + step]
                logits = _logits(own, table, bias, wide)
                maxima = torch.maximum(maxima, logits.amax(0))
                d_logits, sums = _chunk(logits, following, relu_weight, want_gradient=any(ctx.needs_input_grad))
                causal, relu = causal + sums[0], relu + sums[1]
                if d_logits is None:
                    continue
                if d_states is not None:
                    d_states[begin : begin + step] = (d_logits.to(table.dtype) @ table).to(states.dtype)
                if d_weight is not None:
                    d_weight += _product(d_logits.T, own.to(table.dtype), wide)
                if d_bias is not None:
                    d_bias += d_logits.sum(0)
        ctx.dtypes = [None if tensor is None else tensor.dtype for tensor in inputs]
        ctx.save_for_backward(d_states, d_weight, d_bias)
        causal, relu = causal.to(wide), relu.to(wide)
        ctx.mark_non_differentiable(causal, relu, maxima)
        return causal + relu_weight * relu, causal, relu, maxima

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        gradients = (
            None if saved is None else (saved * grad.to(saved.dtype)).to(dtype)
            for saved, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        )
        return *gradients, None, None


def _chunk(
    logits: Tensor, targets: Tensor, relu_weight: float, *, want_gradient: bool
) -> tuple[Tensor | None, tuple[Tensor, Tensor]]:
    """Return the gradient of a chunk's weighted loss by its logits, which are overwritten, and both sums in fp64."""
    rows = torch.arange(len(logits), device=logits.device)
    normalizer = torch.logsumexp(logits, dim=1, keepdim=True)
    causal = (normalizer[:, 0] - logits[rows, targets]).double().sum()
    saturated = F.relu(logits).add_(1.0)
    total = saturated.sum(dim=1, keepdim=True, dtype=torch.float64).to(logits.dtype)
    relu = (total[:, 0].log() - saturated[rows, targets].log()).double().sum()
    if not want_gradient:
        return None, (causal, relu)
    positive = logits[rows, targets] > 0
    # d relu-CE / dz = ((1 + z) / Σ - [next]) / (1 + z) where z > 0, else 0
    d_relu = torch.where(logits > 0, relu_weight / total, torch.zeros_like(total))
    d_relu[rows, targets] -= torch.where(positive, relu_weight / saturated[rows, targets], 0.0)
    d_logits = logits.sub_(normalizer).exp_()
    d_logits[rows, targets] -= 1.0
    return d_logits.add_(d_relu), (causal, relu)


def _operand(weight: Tensor, wide: torch.dtype) -> Tensor:
    """Return the head for the products: bf16 stays bf16 on a GPU, any other dtype is widened once for all chunks."""
    return weight if weight.device.type == "cuda" and weight.dtype == torch.bfloat16 else weight.to(wide)


def _products(states: Tensor, weight: Tensor) -> contextlib.AbstractContextManager[None]:
    """Round operands to bf16 on a CPU if states and weights are bf16, which loses nothing."""
    rounded = states.device.type == "cpu" and states.dtype == weight.dtype == torch.bfloat16
    return bf16_operands() if rounded else contextlib.nullcontext()


def _logits(own: Tensor, table: Tensor, bias: Tensor | None, wide: torch.dtype) -> Tensor:
    """Return (chunk, V) logits, summed in the wide dtype."""
    logits = _product(own, table.T, wide)
    return logits if bias is None else logits + bias.to(wide)


def _product(left: Tensor, right: Tensor, wide: torch.dtype) -> Tensor:
    """Multiply two matrices in the right one's dtype, with sums in the wide dtype."""
    if right.dtype == torch.bfloat16:
        return torch.mm(left.bfloat16(), right, out_dtype=torch.float32)
    return left.to(wide) @ right
