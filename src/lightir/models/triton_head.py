"""The fused projection and maximum as Triton kernels: what `projection` walks in tiles, in four launches and no wait.

Forward: one program a text and block of terms keeps the running maximum over positions in registers. Backward: every
sum is taken by one program in one order, so that gradients are the same bytes each time; nothing is added atomically.

Triton compiles for CUDA; with TRITON_INTERPRET=1 in the environment before Triton is imported the same kernels run on
CPU tensors, slowly, which is how they are tested where there is no GPU.
"""

# Triton reads annotations and types of arguments by itself: these kernels have none that mypy could check.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor, empty, float32, int32, zeros_like
from triton import knobs

INTERPRETED = bool(knobs.runtime.interpret)
"""Whether kernels run on the CPU, one instruction after the other, as TRITON_INTERPRET=1 wants it."""

BLOCK_TERMS, BLOCK_POSITIONS, BLOCK_HIDDEN = 64, 64, 64
BLOCK_BAG, BLOCK_SUM = 32, 128
"""Sizes of a program's tiles: powers of two, at least 16 where tl.dot multiplies them."""


@triton.jit
def _search_kernel(
    states, weight, mask, values, positions, n_positions, n_terms, width,
    ROUNDED: tl.constexpr, NATIVE: tl.constexpr,
    TERMS: tl.constexpr, POSITIONS: tl.constexpr, HIDDEN: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1).to(tl.int64)
    terms = tl.program_id(0) * TERMS + tl.arange(0, TERMS)
    term_is = terms < n_terms
    best = tl.full((TERMS,), float("-inf"), tl.float32)
    place = tl.full((TERMS,), -1, tl.int32)
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
        place = tl.where(better, first + index, place)
        best = tl.where(better, top, best)
    target = row * n_terms + terms
    tl.store(values + target, best, mask=term_is)
    tl.store(positions + target, place, mask=term_is)


@triton.jit
def _exact_kernel(
    states, weight, positions, values, bias, n_positions, n_terms, width,
    BIASED: tl.constexpr, TERMS: tl.constexpr, HIDDEN: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1).to(tl.int64)
    terms = tl.program_id(0) * TERMS + tl.arange(0, TERMS)
    target = row * n_terms + terms
    found = tl.load(values + target, mask=terms < n_terms, other=0.0)
    wanted = (terms < n_terms) & (found > 0)
    place = tl.load(positions + target, mask=wanted, other=0)
    total = tl.zeros((TERMS,), tl.float32)
    for begin in range(0, width, HIDDEN):
        inner = begin + tl.arange(0, HIDDEN)
        needed = wanted[:, None] & (inner < width)[None, :]
        left = tl.load(states + (row * n_positions + place[:, None]) * width + inner[None, :], mask=needed, other=0.0)
        right = tl.load(weight + terms[:, None].to(tl.int64) * width + inner[None, :], mask=needed, other=0.0)
        total += tl.sum(left.to(tl.float32) * right.to(tl.float32), axis=1)
    if BIASED:
        total += tl.load(bias + terms, mask=wanted, other=0.0).to(tl.float32)
    tl.store(values + target, total, mask=wanted)


@triton.jit
def _states_gradient_kernel(
    weight, scale, terms, starts, gradient, width, BAG: tl.constexpr, HIDDEN: tl.constexpr
):  # fmt: skip
    bag = tl.program_id(0).to(tl.int64)
    inner = tl.program_id(1) * HIDDEN + tl.arange(0, HIDDEN)
    start, stop = tl.load(starts + bag), tl.load(starts + bag + 1)
    total = tl.zeros((HIDDEN,), tl.float32)
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
def _weight_gradient_kernel(
    states, positions, scale, gradient, n_rows, n_positions, n_terms, width,
    TERMS: tl.constexpr, HIDDEN: tl.constexpr,
):  # fmt: skip
    terms = tl.program_id(0) * TERMS + tl.arange(0, TERMS)
    inner = tl.program_id(1) * HIDDEN + tl.arange(0, HIDDEN)
    inside = (terms < n_terms)[:, None] & (inner < width)[None, :]
    total = tl.zeros((TERMS, HIDDEN), tl.float32)
    offset = terms.to(tl.int64)
    begin = tl.zeros((TERMS,), tl.int64)  # of the text's positions; a product of 32-bit numbers could pass 2^31
    for _ in range(0, n_rows):
        place = tl.load(positions + offset, mask=terms < n_terms, other=-1)
        share = tl.load(scale + offset, mask=terms < n_terms, other=0.0)
        from_row = (begin + place)[:, None] * width + inner[None, :]
        found = tl.load(states + from_row, mask=inside & (place >= 0)[:, None], other=0.0)
        total += share[:, None] * found.to(tl.float32)
        offset += n_terms
        begin += n_positions
    target = gradient + terms[:, None].to(tl.int64) * width + inner[None, :]
    tl.store(target, total.to(gradient.dtype.element_ty), mask=inside)


def search(states: Tensor, weight: Tensor, mask: Tensor, rounded: bool) -> tuple[Tensor, Tensor]:
    """(B, V) float32 maxima over the allowed positions, without a bias, and int32 positions; ties to the first.

    Args:
        states: (B, T, H) of a floating type of at most 32 bits.
        weight: (V, H), likewise.
        mask: (B, T) bool.
        rounded: whether operands are rounded to bfloat16; sums are of float32 anyhow.
    """
    (n_rows, n_positions, width), n_terms = states.shape, len(weight)
    values = empty(n_rows, n_terms, dtype=float32, device=states.device)
    positions = empty(n_rows, n_terms, dtype=int32, device=states.device)
    narrow = rounded or (states.dtype == weight.dtype and states.element_size() == 2)
    native = narrow and not INTERPRETED  # whose tl.dot takes a bfloat16's bits for an integer
    if n_rows and n_terms:
        _search_kernel[(triton.cdiv(n_terms, BLOCK_TERMS), n_rows)](
            states.contiguous(), weight.contiguous(), mask.to(int32).contiguous(), values, positions,
            n_positions, n_terms, width, ROUNDED=rounded, NATIVE=native,
            TERMS=BLOCK_TERMS, POSITIONS=BLOCK_POSITIONS, HIDDEN=BLOCK_HIDDEN,
        )  # fmt: skip
    return values, positions


def exact_where_positive(
    values: Tensor, positions: Tensor, states: Tensor, weight: Tensor, bias: Tensor | None
) -> None:
    """Compute the positive ones of (B, V) values again in float32, in place, at the positions found."""
    (n_rows, n_positions, width), n_terms = states.shape, len(weight)
    if n_rows and n_terms:
        _exact_kernel[(triton.cdiv(n_terms, BLOCK_TERMS), n_rows)](
            states.contiguous(), weight.contiguous(), positions, values, values if bias is None else bias.contiguous(),
            n_positions, n_terms, width, BIASED=bias is not None, TERMS=BLOCK_TERMS, HIDDEN=BLOCK_HIDDEN,
        )  # fmt: skip


def states_gradient(grad: Tensor, positions: Tensor, states: Tensor, weight: Tensor) -> Tensor:
    """(B, T, H) dX[b, argmax] += dY W, in the states' type: terms sorted by their position are summed bag by bag."""
    (n_rows, n_positions, width) = states.shape
    gradient = zeros_like(states).contiguous()
    rows, terms = (grad != 0).nonzero(as_tuple=True)  # after ReLU most have none; the one wait for the device
    if not len(terms):
        return gradient
    bags = rows * n_positions + positions[rows, terms]
    bags, order = bags.sort(stable=True)
    counts = bags.bincount(minlength=n_rows * n_positions)
    starts = counts.new_zeros(len(counts) + 1)
    starts[1:] = counts.cumsum(0)
    scale = grad[rows, terms][order].contiguous()
    _states_gradient_kernel[(n_rows * n_positions, triton.cdiv(width, BLOCK_SUM))](
        weight.contiguous(), scale, terms[order], starts, gradient, width, BAG=BLOCK_BAG, HIDDEN=BLOCK_SUM
    )
    return gradient


def weight_gradient(grad: Tensor, positions: Tensor, states: Tensor, weight: Tensor) -> Tensor:
    """(V, H) dW[t] += X[b, argmax] dY, in the weight's type: each term's sum over the texts, in their order."""
    (n_rows, n_positions, width), n_terms = states.shape, len(weight)
    gradient = zeros_like(weight).contiguous()
    if n_terms and width:
        _weight_gradient_kernel[(triton.cdiv(n_terms, BLOCK_TERMS), triton.cdiv(width, BLOCK_HIDDEN))](
            states.contiguous(), positions, grad.contiguous(), gradient, n_rows, n_positions, n_terms, width,
            TERMS=BLOCK_TERMS, HIDDEN=BLOCK_HIDDEN,
        )  # fmt: skip
    return gradient
