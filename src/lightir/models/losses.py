"""Building blocks of the training objectives. Scores, sums and results are fp32 (fp64 for double inputs)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.nn import functional as F

from lightir.errors import InvalidInput


def info_nce(queries: Tensor, documents: Tensor, *, temperature: float, offset: int = 0) -> Tensor:
    """Mean cross entropy of each query's own positive among all documents; a scalar.

    Args:
        queries: (n, dim); for cosine similarity normalised by the caller.
        documents: (m, dim), m a multiple of the number of all queries: each query's positive, then its hard negatives.
            Everything but its own positive is a negative (in-batch negatives).
        temperature: scores are divided by it.
        offset: index of the first of these queries among the queries of all processes.
    """
    return F.cross_entropy(similarity(queries, documents) / temperature, positives(queries, documents, offset))


def positives(queries: Tensor, documents: Tensor, offset: int = 0, n_queries: int | None = None) -> Tensor:
    """(n,) index of each query's positive: documents come in equal groups, the positive first.

    Raises:
        InvalidInput: the documents don't divide into groups.
    """
    total = world_size() * len(queries) if n_queries is None else n_queries
    if not total or len(documents) % total:
        raise InvalidInput(f"{len(documents)} documents for {total} queries: expected the same number for each")
    group = len(documents) // total
    return (torch.arange(len(queries), device=queries.device) + offset) * group


def similarity(queries: Tensor, documents: Tensor) -> Tensor:
    """(n, m) inner products in at least fp32, also under autocast."""
    wide = torch.float64 if queries.dtype == torch.float64 else torch.float32
    with torch.autocast(queries.device.type, enabled=False):
        return queries.to(wide) @ documents.to(wide).T


def kl_alignment(student: Tensor, teacher: Tensor, *, temperature: float, teacher_temperature: float) -> Tensor:
    """KL(teacher || student) between softmaxes over the candidates, averaged over queries (Eq. 5); a scalar.

    Args:
        student: (n, m) scores.
        teacher: (n, m) scores of the full symmetric model; no gradient flows into them.
        temperature: of the student.
        teacher_temperature: of the teacher.
    """
    log_p = F.log_softmax(student / temperature, dim=1)
    log_q = F.log_softmax(teacher.detach() / teacher_temperature, dim=1)
    return F.kl_div(log_p, log_q, reduction="batchmean", log_target=True)


def flops(weights: Tensor, *, term_scale: Tensor | None = None) -> Tensor:
    """Sum over terms of the squared mean weight over the batch's documents (Eq. 9); a scalar.

    Args:
        weights: (documents, vocabulary) of all processes together: the square is taken of the global mean.
        term_scale: (vocabulary,) factor on each term's mean, for an IDF-aware penalty; None for 1.
    """
    means = weights.mean(dim=0)
    return ((means if term_scale is None else means * term_scale) ** 2).sum()


def quadratic_ramp(step: int, *, maximum: float, steps: int) -> float:
    """The coefficient at an optimizer step: maximum (step / steps)^2, the maximum from `steps` on (at once for 0)."""
    return maximum if step >= steps else maximum * (step / steps) ** 2


def matryoshka(
    loss: Callable[[Tensor, Tensor], Tensor], queries: Tensor, documents: Tensor, *, dims: Sequence[int]
) -> Tensor:
    """The loss averaged over widths: both sides cut to their first `dim` values and L2-normalised again.

    Raises:
        InvalidInput: no width, or one that is wider than the vectors.
    """
    if not dims or min(dims) < 1 or max(dims) > queries.shape[1]:
        raise InvalidInput(f"Matryoshka widths {list(dims)}: expected 1 to {queries.shape[1]}")
    losses = [loss(F.normalize(queries[:, :dim], dim=1), F.normalize(documents[:, :dim], dim=1)) for dim in dims]
    return torch.stack(losses).mean()


def mean_pairwise_cosine(vectors: Tensor) -> float:
    """The mean cosine over pairs of different rows: near 1 the space has collapsed. 0.0 with fewer than 2 rows."""
    n = len(vectors)
    if n < 2:
        return 0.0
    unit = F.normalize(vectors.detach().double(), dim=1)
    total = unit.sum(dim=0).square().sum() - unit.square().sum()
    return float(total / (n * (n - 1)))


def world_size() -> int:
    """Processes that train together; 1 without torch.distributed."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """This process's number among them."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def all_gather(rows: Tensor) -> Tensor:
    """Every process's rows (equally many each) below one another, with gradient; the rows themselves for one process.

    Where each process takes the loss of its own share of queries and gradients are then averaged over processes (as
    DistributedDataParallel does), the result equals one process with the whole batch: the backward pass sums what all
    processes want of these rows.
    """
    if world_size() == 1:
        return rows
    gathered: Tensor = _AllGather.apply(rows)  # type: ignore[no-untyped-call]
    return gathered


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        ctx.n_rows = len(rows)
        parts = [torch.empty_like(rows) for _ in range(world_size())]
        dist.all_gather(parts, rows.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        total = grad.contiguous().clone()
        dist.all_reduce(total)
        begin = rank() * ctx.n_rows
        return total[begin : begin + ctx.n_rows]
