"""Triton kernels of the fused projection and maximum: the functions of `projection` in four launches, without waits.

Forward: one program per text and block of terms keeps the running maximum over positions in registers. Backward: one
program computes each sum in one order, without atomic additions, so that gradients are reproducible byte for byte.

Triton compiles for CUDA. With TRITON_INTERPRET=1 in the environment before Triton is imported, the same kernels run
slowly on CPU tensors, which is how they are tested without a GPU.
"""

# Triton reads annotations and argument types itself, so these kernels have none that mypy could check.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor, empty, float32, int32, zeros_like
from triton import knobs

INTERPRETED = bool(knobs.runtime.interpret)
"""Whether kernels run in Triton's interpreter on the CPU (TRITON_INTERPRET=1)."""

TERMS = tl.constexpr(64)
POSITIONS = tl.constexpr(64)
HIDDEN = tl.constexpr(64)
BAG = tl.constexpr(32)
SUM = tl.constexpr(128)
"""Sizes of a program's tiles: powers of two, at least 16 for tl.dot."""


@triton.jit
def _search_kernel(
    states, weight, mask, values, positions, n_positions, n_terms, width,
    ROUNDED: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1).to(tl.int64)
    terms = tl.program_id(0) * TERMS + tl.arange(0, TERMS)
    term_is = terms < n_terms
    best = tl.full((TERMS,), float("-inf"), tl.float32)
    position = tl.full((TERMS,), -1, tl.int32)
    for first in range(0, n_positions, POSITIONS):
        at = first + tl.arange(0, POSITIONS)
        allowed = tl.load(mask + row * n_positions + at, mask=at < n_positions, other=0) != 0
        logits = tl.zeros((POSITIONS, TERMS), tl.float32)
        for begin in range(0, width, HIDDEN):
            inner = begin + tl.arange(0, HIDDEN)
            left = tl.load(
                states + (row * n_positions + at[:, None]) * width + inner[None, :],
                mask=allowed[:, None] & (inner < width)[None, :],
                other=0.0,
            )
            right = tl.load(
                weight + terms[None, :].to(tl.int64) * width + inner[:, None],
                mask=term_is[None, :] & (inner < width)[:, None],
                other=0.0,
            )
            if ROUNDED:
                left, right = left.to(tl.bfloat16), right.to(tl.bfloat16)
            if NATIVE:
                logits = tl.dot(left, right, logits)
            else:
                logits = tl.dot(left.to(tl.float32), right.to(tl.float32), logits, input_precision="ieee")
        logits = tl.where(allowed[:, None], logits, float("-inf"))
        top, index = tl.max(logits, axis=0, return_indices=True, return_indices_tie_break_left=True)
        better = top > best
        position = tl.where(better, first + index, position)
        best = tl.where(better, top, best)
    target = row * n_terms + terms
    tl.store(values + target, best, mask=term_is)
    tl.store(positions + target, position, mask=term_is)


@triton.jit
def _exact_kernel(
    states, weight, positions, values, bias, n_positions, n_terms, width, BIASED: tl.constexpr
):  # fmt: skip
    row = tl.program_id(1).to(tl.int64)
    terms = tl.program_id(0) * TERMS + tl.arange(0, TERMS)
    target = row * n_terms + terms
    searched = tl.load(values + target, mask=terms < n_terms, other=0.0)
    wanted = (terms < n_terms) & (searched > 0)
    position = tl.load(positions + target, mask=wanted, other=0)
    total = tl.zeros((TERMS,), tl.float32)
    for begin in range(0, width, HIDDEN):
        inner = begin + tl.arange(0, HIDDEN)
        needed = wanted[:, None] & (inner < width)[None, :]
        left = tl.load(
            states + (row * n_positions + position[:, None]) * width + inner[None, :], mask=needed, other=0.0
        )
        right = tl.load(weight + terms[:, None].to(tl.int64) * width + inner[None, :], mask=needed, other=0.0)
        total += tl.sum(left.to(tl.float32) * right.to(tl.float32), axis=1)
    if BIASED:
        total += tl.load(bias + terms, mask=wanted, other=0.0).to(tl.float32)
    tl.store(values + target, total, mask=wanted)


@triton.jit
def _states_gradient_kernel(weight, scale, terms, starts, gradient, width):
    bag = tl.program_id(0).to(tl.int64)
    inner = tl.program_id(1) * SUM + tl.arange(0, SUM)
    start, stop = tl.load(starts + bag), tl.load(starts + bag + 1)
    total = tl.zeros((SUM,), tl.float32)
    for first in range(start, stop, BAG):
        at = first + tl.arange(0, BAG)
        term = tl.load(terms + at, mask=at < stop, other=0)
        share = tl.load(scale + at, mask=at < stop, other=0.0)
        rows = tl.load(
            weight + term[:, None] * width + inner[None, :],
            mask=(at < stop)[:, None] & (inner < width)[None, :],
            other=0.0,
        )
        total += tl.sum(share[:, None] * rows.to(tl.float32), axis=0)
    tl.store(gradient + bag * width + inner, total.to(gradient.dtype.element_ty), mask=inner < width)


@triton.jit
def _weight_gradient_kernel(states, positions, scale, gradient, n_rows, n_positions, n_terms, width):
    terms = tl.program_id(0) * TERMS + tl.arange(0, TERMS)
    inner = tl.program_id(1) * HIDDEN + tl.arange(0, HIDDEN)
    inside = (terms < n_terms)[:, None] & (inner < width)[None, :]
    total = tl.zeros((TERMS, HIDDEN), tl.float32)
    offset = terms.to(tl.int64)
    begin = tl.zeros((TERMS,), tl.int64)  # first position of the text; a product of 32-bit numbers could overflow
    for _ in range(0, n_rows):
        position = tl.load(positions + offset, mask=terms < n_terms, other=-1)
        share = tl.load(scale + offset, mask=terms < n_terms, other=0.0)
        source = (begin + position)[:, None] * width + inner[None, :]
        own = tl.load(states + source, mask=inside & (position >= 0)[:, None], other=0.0)
        total += share[:, None] * own.to(tl.float32)
        offset += n_terms
        begin += n_positions
    target = gradient + terms[:, None].to(tl.int64) * width + inner[None, :]
    tl.store(target, total.to(gradient.dtype.element_ty), mask=inside)


def search(states: Tensor, weight: Tensor, mask: Tensor, rounded: bool) -> tuple[Tensor, Tensor]:
    """Return (B, V) float32 maxima over the allowed positions, without a bias, and int32 positions; ties to the first.

    Args:
        states: (B, T, H), a floating dtype of at most 32 bits.
        weight: (V, H), a floating dtype of at most 32 bits.
        mask: (B, T) bool mask of the allowed positions.
        rounded: whether operands are rounded to bfloat16; sums are float32 in either case.
    """
    (n_rows, n_positions, width), n_terms = states.shape, len(weight)
    values = empty(n_rows, n_terms, dtype=float32, device=states.device)
    positions = empty(n_rows, n_terms, dtype=int32, device=states.device)
    narrow = rounded or (states.dtype == weight.dtype and states.element_size() == 2)
    native = narrow and not INTERPRETED  # the interpreter's tl.dot reads a bfloat16 as an integer
    if n_rows and n_terms:
        _search_kernel[(triton.cdiv(n_terms, TERMS.value), n_rows)](
            states.contiguous(), weight.contiguous(), mask.to(int32).contiguous(), values, positions,
            n_positions, n_terms, width, ROUNDED=rounded, NATIVE=native,
        )  # fmt: skip
    return values, positions


def exact_where_positive(
    values: Tensor, positions: Tensor, states: Tensor, weight: Tensor, bias: Tensor | None
) -> None:
    """Compute the positive (B, V) values again in float32, in place, at their positions."""
    (n_rows, n_positions, width), n_terms = states.shape, len(weight)
    if n_rows and n_terms:
        _exact_kernel[(triton.cdiv(n_terms, TERMS.value), n_rows)](
            states.contiguous(), weight.contiguous(), positions, values, values if bias is None else bias.contiguous(),
            n_positions, n_terms, width, BIASED=bias is not None,
        )  # fmt: skip


def states_gradient(grad: Tensor, positions: Tensor, states: Tensor, weight: Tensor) -> Tensor:
    """Return dX[b, argmax] += dY W, (B, T, H) in the states' dtype: one sum per position over its terms."""
    (n_rows, n_positions, width) = states.shape
    gradient = zeros_like(states).contiguous()
    rows, terms = (grad != 0).nonzero(as_tuple=True)  # after ReLU most are zero; the only synchronization
    if not len(terms):
        return gradient
    bags = rows * n_positions + positions[rows, terms]
    bags, order = bags.sort(stable=True)
    counts = bags.bincount(minlength=n_rows * n_positions)
    starts = counts.new_zeros(len(counts) + 1)
    starts[1:] = counts.cumsum(0)
    scale = grad[rows, terms][order].contiguous()
    _states_gradient_kernel[(n_rows * n_positions, triton.cdiv(width, SUM.value))](
        weight.contiguous(), scale, terms[order], starts, gradient, width
    )
    return gradient


def weight_gradient(grad: Tensor, positions: Tensor, states: Tensor, weight: Tensor) -> Tensor:
    """Return dW[t] += X[b, argmax] dY, (V, H) in the weight's dtype: each term's sum over the texts in their order."""
    (n_rows, n_positions, width), n_terms = states.shape, len(weight)
    gradient = zeros_like(weight).contiguous()
    if n_terms and width:
        _weight_gradient_kernel[(triton.cdiv(n_terms, TERMS.value), triton.cdiv(width, HIDDEN.value))](
            states.contiguous(), positions, grad.contiguous(), gradient, n_rows, n_positions, n_terms, width
        )
    return gradient
