"""Loss functions of the stages. Scores, sums and results are fp32 (fp64 for double inputs)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from lightir.errors import InvalidInput


def info_nce(scores: Tensor, positives: Tensor, *, temperature: float, excluded: Tensor | None = None) -> Tensor:
    """Return the mean over queries of -log softmax(scores / temperature) at the positive; a scalar.

    Args:
        scores: (n, m) similarities of every query to every candidate.
        positives: (n,) int64, each query's positive candidate; all others are negatives.
        temperature: temperature, above 0.
        excluded: (n, m) bool, candidates left out of a query's softmax: its other known positives, and copies.
    """
    scaled = scores / temperature
    if excluded is not None:
        scaled = scaled.masked_fill(excluded, -torch.inf)
    return F.cross_entropy(scaled, positives)


def two_way_loss(scores: Tensor, positives: Tensor, *, excluded: Tensor | None = None) -> Tensor:
    """Return SiDR's L: -log softmax of the positive over documents, plus of the query over queries, averaged; a scalar.

    Args:
        scores: (n, m) inner products of every query with every document, already divided by the temperature.
        positives: (n,) int64, each query's positive document; other documents have no second term.
        excluded: (n, m) bool, pairs left out of both softmaxes.
    """
    if excluded is not None:
        scores = scores.masked_fill(excluded, -torch.inf)
    queries = torch.arange(len(scores), device=scores.device)
    return F.cross_entropy(scores, positives) + F.cross_entropy(scores[:, positives].T, queries)


def similarity(queries: Tensor, documents: Tensor) -> Tensor:
    """Return (n, m) inner products in at least fp32, also under autocast."""
    wide = torch.float64 if torch.float64 in (queries.dtype, documents.dtype) else torch.float32
    with torch.autocast(queries.device.type, enabled=False):
        return queries.to(wide) @ documents.to(wide).T


def alignment_kl(student: Tensor, teacher: Tensor, *, excluded: Tensor | None = None) -> Tensor:
    """Return KL(teacher || student) between softmaxes over the candidates, averaged over queries (Eq. 5); a scalar.

    Args:
        student: (n, m) scores, already divided by their temperature.
        teacher: (n, m) scores of the full symmetric model, divided by their temperature; they get no gradient.
        excluded: (n, m) bool, candidates left out on both sides.
    """
    teacher = teacher.detach()
    if excluded is not None:  # a finite minimum, since 0 * (-inf - -inf) is not a number
        student, teacher = (
            scores.masked_fill(excluded, torch.finfo(scores.dtype).min) for scores in (student, teacher)
        )
    log_p, log_q = F.log_softmax(student, dim=1), F.log_softmax(teacher, dim=1)
    return F.kl_div(log_p, log_q, reduction="batchmean", log_target=True)


def score_kl(student: Tensor, teacher: Tensor) -> Tensor:
    """Return KL(teacher || student) over the candidates that a teacher scored, averaged over queries; a scalar.

    Args:
        student: (n, m) scores, already divided by their temperature.
        teacher: (n, m) scores, divided by their temperature, NaN if missing; they get no gradient. Queries with fewer
            than two scores are skipped; if all are skipped, the loss is 0.
    """
    known = ~teacher.isnan()
    rows = known.sum(1) >= 2
    if not bool(rows.any()):
        return student.sum() * 0
    return alignment_kl(student[rows], teacher[rows].to(student.dtype), excluded=~known[rows])


def margin_mse(student: Tensor, teacher: Tensor, positives: Tensor) -> Tensor:
    """Return the mean of ((s_positive - s_other) - (t_positive - t_other))² over all scored candidates; a scalar.

    Hofstätter et al. (arXiv 2010.02666), with all scored candidates instead of one negative.

    Args:
        student: (n, m) scores, already divided by their temperature.
        teacher: (n, m) scores, divided by their temperature, NaN if missing; they get no gradient. A query whose
            positive has no score is skipped; without any pair the loss is 0.
        positives: (n,) int64, each query's positive candidate.
    """
    rows = torch.arange(len(student), device=student.device)
    teacher = teacher.detach().to(student.dtype)
    targets = teacher[rows, positives][:, None] - teacher
    known = ~targets.isnan()
    known[rows, positives] = False
    if not bool(known.any()):
        return student.sum() * 0
    margins = student[rows, positives][:, None] - student
    return F.mse_loss(margins[known], targets[known])


def flops(weights: Tensor) -> Tensor:
    """Return the sum over terms of the squared mean weight over the batch's documents (Eq. 9); a scalar.

    Args:
        weights: (documents, vocabulary) of all processes: the global mean is squared.
    """
    return (weights.mean(dim=0) ** 2).sum()


def flops_ramp(step: int, *, ramp_steps: int) -> float:
    """Return the share of the FLOPS weight at an optimizer step: (step / ramp_steps)^2, at most 1; 1 for no ramp."""
    return 1.0 if step >= ramp_steps else (step / ramp_steps) ** 2


def matryoshka(
    loss: Callable[[Tensor, Tensor], Tensor], queries: Tensor, documents: Tensor, *, dims: Sequence[int]
) -> Tensor:
    """Sum the loss over widths: both sides are cut to their first `dim` values and L2-normalized again.

    Raises:
        InvalidInput: no width, or a width above the vectors'.
    """
    if not dims or min(dims) < 1 or max(dims) > queries.shape[1]:
        raise InvalidInput(f"Matryoshka widths {list(dims)}: expected 1 to {queries.shape[1]}")
    losses = [loss(F.normalize(queries[:, :dim], dim=1), F.normalize(documents[:, :dim], dim=1)) for dim in dims]
    return torch.stack(losses).sum()


def mean_pairwise_cosine(vectors: Tensor) -> float:
    """Return the mean cosine over pairs of different rows, near 1 for collapsed vectors; 0.0 for fewer than 2."""
    n = len(vectors)
    if n < 2:
        return 0.0
    unit = F.normalize(vectors.detach().double(), dim=1)
    total = unit.sum(dim=0).square().sum() - unit.square().sum()
    return float(total / (n * (n - 1)))
