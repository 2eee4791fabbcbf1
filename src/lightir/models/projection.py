"""Fused projection and maximum: the largest logit of each term over the positions (Eq. 8, 12).

The [batch, positions, vocabulary] tensor never exists. Tiles of positions and terms update a running maximum and its
position, and the gradient goes to that position only (LightRetriever, Algorithm 1).
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from lightir.errors import InvalidInput, MissingExtra

TILE_BYTES = {"cpu": 2 << 20, "cuda": 64 << 20}
"""Size of a tile of logits: it fits the second-level cache of a CPU core, and fills a GPU."""

MAX_TILE_POSITIONS = {"cpu": 512, "cuda": 16384}

Kernel = Literal["auto", "portable", "triton"]


@dataclass(frozen=True, slots=True)
class StoredTerms:
    """The terms of a document that are stored, whose maxima must be exact.

    Attributes:
        k: number of largest maxima; 0 for all.
        floor: lower bound of the maxima with their bias; terms at or below it are not stored.
        also: (batch, vocabulary) bool mask of terms that are stored at any rank; None for none.

    Raises:
        InvalidInput: k is negative.
    """

    k: int = 0
    floor: float = -torch.inf
    also: Tensor | None = None

    def __post_init__(self) -> None:
        """Refuse a negative k."""
        if self.k < 0:
            raise InvalidInput(f"k is {self.k}; expected 0 (all) or more")


ALL_TERMS = StoredTerms()


def projection_max(
    states: Tensor,
    weight: Tensor,
    *,
    mask: Tensor,
    bias: Tensor | None = None,
    search_dtype: torch.dtype | None = None,
    kernel: Kernel = "auto",
) -> tuple[Tensor, Tensor]:
    """Return each term's largest logit over the allowed positions, and its position.

    Args:
        states: (batch, positions, hidden), any floating dtype.
        weight: (vocabulary, hidden), any floating dtype.
        mask: (batch, positions) bool mask of the allowed positions.
        bias: (vocabulary,) bias added to the maxima, or None.
        search_dtype: torch.bfloat16 rounds the operands (not the sums) to bf16 during the search, which is about 2.4
            times as fast on CPUs with AMX; a position within bf16 rounding of the best may then win. Values that are
            positive with their bias are computed again in fp32 at that position, so after ReLU the value and its
            gradient are exact for it. None searches in fp32 (fp64 for double states).
        kernel: "triton" uses `triton_head`, "portable" this module's tiles, "auto" Triton for CUDA tensors if it is
            installed (not for doubles). All give the same values, ties and gradients, up to rounding.

    Returns:
        (batch, vocabulary) maxima in fp32 (fp64 for double states), and int32 positions. Ties go to the first position.
        A row without an allowed position has maxima -inf (an activated weight of 0) and positions -1.

    Raises:
        InvalidInput: mismatched shapes, a search_dtype other than None, float32 and bfloat16, or tensors that Triton
            does not support.
        MissingExtra: kernel is "triton" and Triton is not installed.
    """
    _check_shapes(states, weight, mask, bias)
    if search_dtype not in (None, torch.float32, torch.bfloat16):
        raise InvalidInput(f"search_dtype is {search_dtype}; expected None, torch.float32 or torch.bfloat16")
    values, positions = _ProjectionMax.apply(  # type: ignore[no-untyped-call]
        states, weight, bias, mask.bool(), search_dtype == torch.bfloat16, _triton_head(states, weight, kernel)
    )
    return values, positions


def has_triton() -> bool:
    """Return whether Triton is installed; torch's CUDA builds include it."""
    return importlib.util.find_spec("triton") is not None


def _triton_head(states: Tensor, weight: Tensor, kernel: Kernel) -> ModuleType | None:
    """Return the module of Triton kernels, or None for the portable code."""
    double = torch.float64 in (states.dtype, weight.dtype)
    if kernel == "portable" or (kernel == "auto" and (states.device.type != "cuda" or double or not has_triton())):
        return None
    if not has_triton():
        raise MissingExtra("Triton is required for kernel 'triton': pip install 'lightir[gpu]'")
    from lightir.models import triton_head

    if double or (states.device.type != "cuda" and not triton_head.INTERPRETED):
        raise InvalidInput(
            f"kernel 'triton' supports tensors of at most 32 bits on CUDA, not {states.dtype} and {weight.dtype} on "
            f"{states.device.type}; use 'auto'"
        )
    return triton_head


@torch.no_grad()
def largest_maxima(
    states: Tensor,
    weight: Tensor,
    *,
    mask: Tensor,
    bias: Tensor | None = None,
    stored: StoredTerms = ALL_TERMS,
    kernel: Kernel = "auto",
) -> Tensor:
    """Return the maxima of the terms that a document stores, about five times as fast as `projection_max`.

    Without gradient and positions. On CPUs with AMX, bfloat16 operands give bfloat16 products, rounded once and in
    order: a term's rounded maximum is within 2^-8 of its own size. Terms that could still be above the floor and among
    the k largest (with twice that margin) are projected again with fp32 sums and results. Both sums may differ by fp32
    rounding, so a term within that of the floor or the k-th rank may or may not be stored.

    Args:
        states: (batch, positions, hidden), any floating dtype.
        weight: (vocabulary, hidden), any floating dtype.
        mask: (batch, positions) bool mask of the allowed positions.
        bias: (vocabulary,) bias added to the maxima, or None.
        stored: terms whose maxima must be exact.
        kernel: implementation, as in `projection_max`.

    Returns:
        (batch, vocabulary) fp32 (fp64 for double states). Stored terms have their exact maximum with the bias, any
        other term has it or -inf. A row without an allowed position is -inf throughout.

    Raises:
        InvalidInput: mismatched shapes.
    """
    _check_shapes(states, weight, mask, bias)
    rounded = states.device.type == "cpu" and states.dtype == weight.dtype == torch.bfloat16
    if (triton := _triton_head(states, weight, kernel)) is not None:
        values: Tensor = triton.search(states, weight, mask.bool(), False)[0]
        return values if bias is None else values + bias.to(values.dtype)
    with torch.autocast(states.device.type, enabled=False):
        largest = _largest(states, weight, mask.bool(), torch.bfloat16 if rounded else _wide(states.dtype))
        values = largest.to(_wide(states.dtype))
        offset = torch.zeros((), device=values.device) if bias is None else bias.to(values.dtype)
        if not rounded:
            return values + offset
        margin = values.abs() * torch.finfo(torch.bfloat16).eps  # 2^-7
        wanted = values + margin + offset > stored.floor
        if 0 < stored.k < len(weight):
            least = (values - margin + offset).topk(stored.k, dim=1, sorted=False).values.amin(dim=1, keepdim=True)
            strongest = values + margin + offset >= least
            wanted &= strongest if stored.also is None else strongest | stored.also
        return _summed_in_fp32(wanted, states, weight, mask.bool()) + offset


class _ProjectionMax(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        mask: Tensor,
        rounded: bool,
        triton: ModuleType | None,
    ) -> tuple[Tensor, Tensor]:
        search = _search if triton is None else triton.search
        exact = _exact_where_positive if triton is None else triton.exact_where_positive
        with torch.autocast(states.device.type, enabled=False):
            values, positions = search(states, weight, mask, rounded)
            if bias is not None:
                values += bias.to(values.dtype)
            if rounded:
                exact(values, positions, states, weight, bias)
        ctx.triton = triton
        ctx.save_for_backward(states, weight, bias, positions)
        ctx.mark_non_differentiable(positions)
        return values, positions

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        states, weight, bias, positions = ctx.saved_tensors
        need_states, need_weight, need_bias = ctx.needs_input_grad[:3]
        to_states = _states_gradient if ctx.triton is None else ctx.triton.states_gradient
        to_weight = _weight_gradient if ctx.triton is None else ctx.triton.weight_gradient
        with torch.autocast(states.device.type, enabled=False):
            # A row without an allowed position gets no gradient. On a GPU the check costs more than the copy.
            if ctx.triton is not None or bool((positions[:, :1] < 0).any()):
                grad = grad.masked_fill(positions < 0, 0.0)
            d_states = to_states(grad, positions, states, weight) if need_states else None
            d_weight = to_weight(grad, positions, states, weight) if need_weight else None
            d_bias = grad.sum(dim=0).to(bias.dtype) if need_bias else None
        return d_states, d_weight, d_bias, None, None, None


def _check_shapes(states: Tensor, weight: Tensor, mask: Tensor, bias: Tensor | None) -> None:
    if states.dim() != 3 or weight.dim() != 2 or states.shape[2] != weight.shape[1]:
        raise InvalidInput(
            f"states {tuple(states.shape)} and weight {tuple(weight.shape)}: expected (batch, positions, hidden) "
            "and (vocabulary, hidden)"
        )
    if mask.shape != states.shape[:2]:
        raise InvalidInput(f"mask has shape {tuple(mask.shape)}; expected {tuple(states.shape[:2])}")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise InvalidInput(f"bias has shape {tuple(bias.shape)}; expected {tuple(weight.shape[:1])}")


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _search(states: Tensor, weight: Tensor, mask: Tensor, rounded: bool) -> tuple[Tensor, Tensor]:
    """Return the maxima and their positions; only allowed positions are projected, so padding costs nothing."""
    n_rows, n_terms = len(states), len(weight)
    values = states.new_full((n_rows, n_terms), -torch.inf, dtype=_wide(states.dtype))
    positions = torch.full((n_rows, n_terms), -1, dtype=torch.int32, device=states.device)
    row_of, position_of = mask.nonzero(as_tuple=True)
    device = states.device.type
    for pieces, begin, end in _groups(mask, MAX_TILE_POSITIONS.get(device, 512)):
        columns = position_of[begin:end].to(torch.int32)
        own = states[row_of[begin:end], position_of[begin:end]]
        step = max(64, TILE_BYTES.get(device, 2 << 20) // (4 * (end - begin)))
        tile = values.new_empty(min(step, n_terms), end - begin)
        for first in range(0, n_terms, step):
            terms = slice(first, min(first + step, n_terms))
            logits = _product(weight[terms], own, rounded, out=tile[: terms.stop - first])
            for row, start, stop in pieces:
                best, where = logits[:, start:stop].max(dim=1)
                better = best > values[row, terms]
                values[row, terms] = torch.where(better, best, values[row, terms])
                positions[row, terms] = torch.where(better, columns[start:stop][where], positions[row, terms])
    return values, positions


def _largest(states: Tensor, weight: Tensor, mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the (batch, vocabulary) maxima of logits in `dtype`, without the bias."""
    values = states.new_full((len(states), len(weight)), -torch.inf, dtype=dtype)
    limit = MAX_TILE_POSITIONS.get(states.device.type, 512)
    index = _allowed_positions(mask)
    rows = mask.any(dim=1).nonzero()[:, 0]
    for begin in range(0, index.shape[1], limit):
        columns = index[:, begin : begin + limit]
        for group in rows.split(max(1, limit // columns.shape[1])):  # type: ignore[no-untyped-call]
            own = states[group[:, None], columns[group]].flatten(0, 1)
            step = max(64, TILE_BYTES.get(states.device.type, 2 << 20) // (4 * len(own)))
            for first in range(0, len(weight), step):
                terms = slice(first, first + step)
                best = _logits(own, weight[terms], dtype).view(len(group), columns.shape[1], -1).amax(dim=1)
                values[group, terms] = torch.maximum(values[group, terms], best)
    return values


def _allowed_positions(mask: Tensor) -> Tensor:
    """Return each row's allowed positions as int64, filled up to the longest row with its first one."""
    counts = mask.sum(dim=1)
    longest = int(counts.max()) if len(counts) else 0
    order = torch.argsort(~mask, dim=1, stable=True)[:, :longest]
    return torch.where(torch.arange(longest, device=mask.device) < counts[:, None], order, order[:, :1])


def _logits(own: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Return (positions, terms) logits in `dtype`, with sums in fp32 or wider."""
    if dtype == own.dtype == weight.dtype:
        return own @ weight.T
    if own.device.type == "cuda" and own.dtype == weight.dtype == torch.bfloat16:
        return torch.mm(own, weight.T, out_dtype=dtype)
    with bf16_operands() if own.dtype == weight.dtype == torch.bfloat16 else contextlib.nullcontext():
        return own.to(dtype) @ weight.to(dtype).T  # rounding bfloat16 operands to bfloat16 changes nothing


def _summed_in_fp32(wanted: Tensor, states: Tensor, weight: Tensor, mask: Tensor) -> Tensor:
    """Return the maxima of the wanted terms (batch, vocabulary) in fp32, and -inf for all others."""
    values = torch.full(wanted.shape, -torch.inf, device=states.device)
    for row in mask.any(dim=1).nonzero()[:, 0].tolist():
        for terms in wanted[row].nonzero()[:, 0].split(8192):  # type: ignore[no-untyped-call]
            values[row, terms] = _largest(states[row : row + 1], weight[terms], mask[row : row + 1], torch.float32)[0]
    return values


def _groups(mask: Tensor, limit: int) -> Iterator[tuple[list[tuple[int, int, int]], int, int]]:
    """Yield runs of at most `limit` allowed positions: pieces (row, start, stop in the run), begin and end."""
    pieces: list[tuple[int, int, int]] = []
    begin = end = 0
    for row, length in enumerate(mask.sum(dim=1).tolist()):
        while length:
            take = min(length, limit - (end - begin))
            pieces.append((row, end - begin, end - begin + take))
            end, length = end + take, length - take
            if end - begin == limit:
                yield pieces, begin, end
                pieces, begin = [], end
    if pieces:
        yield pieces, begin, end


def _product(weight: Tensor, own: Tensor, rounded: bool, *, out: Tensor) -> Tensor:
    """Write (terms, positions) logits to `out`, summed in its wide dtype."""
    if own.device.type == "cuda" and (rounded or (weight.dtype == own.dtype == torch.bfloat16)):
        return torch.mm(weight.bfloat16(), own.bfloat16().T, out_dtype=torch.float32)
    with bf16_operands() if rounded and own.device.type == "cpu" else contextlib.nullcontext():
        return torch.mm(weight.to(out.dtype), own.to(out.dtype).T, out=out)


@contextlib.contextmanager
def bf16_operands() -> Iterator[None]:
    """Let CPU products of fp32 round their operands to bf16; sums and results stay fp32 (bf16 results would tie)."""
    settings = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = settings.fp32_precision
    settings.fp32_precision = "bf16"
    try:
        yield
    finally:
        settings.fp32_precision = before


def _exact_where_positive(
    values: Tensor, positions: Tensor, states: Tensor, weight: Tensor, bias: Tensor | None
) -> None:
    """Compute the positive values again in the wide dtype, at their positions."""
    for row in range(len(values)):
        for terms in (values[row] > 0).nonzero()[:, 0].split(4096):  # type: ignore[no-untyped-call]
            own = states[row, positions[row, terms].long()].to(values.dtype)
            exact = (own * weight[terms].to(values.dtype)).sum(dim=1)
            values[row, terms] = exact if bias is None else exact + bias[terms].to(values.dtype)


def _states_gradient(grad: Tensor, positions: Tensor, states: Tensor, weight: Tensor) -> Tensor:
    """Compute dX[b, argmax] += dY Wᵀ row by row, over the terms with a nonzero gradient."""
    d_states = torch.zeros_like(states)
    n_positions = states.shape[1]
    for row in range(len(grad)):
        terms = grad[row].nonzero()[:, 0]
        terms = terms[torch.argsort(positions[row, terms], stable=True)]
        total = states.new_zeros(states.shape[1:], dtype=grad.dtype)
        for part in terms.split(len(weight) if weight.dtype == grad.dtype else 8192):  # type: ignore[no-untyped-call]
            at = positions[row, part].long()
            counts = torch.bincount(at, minlength=n_positions)
            table, index = (weight, part) if weight.dtype == grad.dtype else (weight[part].to(grad.dtype), None)
            index = torch.arange(len(part), device=part.device) if index is None else index
            total += _weighted_sums(index, table, counts.cumsum(0) - counts, grad[row, part])
        d_states[row] = total.to(states.dtype)
    return d_states


def _weight_gradient(grad: Tensor, positions: Tensor, states: Tensor, weight: Tensor) -> Tensor:
    """Compute dW[t] += X[b, argmax] dY: each term sums one position per document."""
    d_weight = torch.empty_like(weight)
    n_rows, n_positions = states.shape[:2]
    table = states.reshape(n_rows * n_positions, -1).to(grad.dtype)
    first = torch.arange(n_rows, device=grad.device)[:, None] * n_positions
    for begin in range(0, len(weight), 8192):
        terms = slice(begin, begin + 8192)
        index = (positions[:, terms].clamp(min=0) + first).T.contiguous()
        bags = torch.arange(index.shape[0], device=grad.device) * n_rows
        scale = grad[:, terms].T.reshape(-1)
        d_weight[terms] = _weighted_sums(index.reshape(-1), table, bags, scale).to(weight.dtype)
    return d_weight


def _weighted_sums(index: Tensor, table: Tensor, offsets: Tensor, scale: Tensor) -> Tensor:
    """Return the sum of scaled table rows of each bag; zeros for an empty bag."""
    if not len(index):
        return table.new_zeros(len(offsets), table.shape[1])
    return F.embedding_bag(index, table.detach(), offsets, mode="sum", per_sample_weights=scale.contiguous())
