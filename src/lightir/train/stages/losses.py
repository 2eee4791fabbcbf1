"""Building blocks of the training objectives. Scores, sums and results are fp32 (fp64 for double inputs)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from lightir.errors import InvalidInput


def info_nce(scores: Tensor, positives: Tensor, *, temperature: float, excluded: Tensor | None = None) -> Tensor:
    """Mean of -log softmax(scores / temperature) at the positive, over queries; a scalar.

    Args:
        scores: (n, m) similarities of every query to every candidate.
        positives: (n,) int64, each query's positive candidate; all others are negatives.
        temperature: above 0.
        excluded: (n, m) bool; candidates left out of a query's softmax: its other known positives, and copies.
    """
    scaled = scores / temperature
    if excluded is not None:
        scaled = scaled.masked_fill(excluded, -torch.inf)
    return F.cross_entropy(scaled, positives)


def two_way_loss(scores: Tensor, positives: Tensor, *, excluded: Tensor | None = None) -> Tensor:
    """SiDR's L: -log softmax of the positive over documents, plus of the query over queries, averaged; a scalar.

    Args:
        scores: (n, m) inner products of every query with every document, already divided by the temperature.
        positives: (n,) int64, each query's positive document. Documents that are no positive have no second part.
        excluded: (n, m) bool, pairs left out of both softmaxes.
    """
    if excluded is not None:
        scores = scores.masked_fill(excluded, -torch.inf)
    queries = torch.arange(len(scores), device=scores.device)
    return F.cross_entropy(scores, positives) + F.cross_entropy(scores[:, positives].T, queries)


def similarity(queries: Tensor, documents: Tensor) -> Tensor:
    """(n, m) inner products in at least fp32, also under autocast."""
    wide = torch.float64 if torch.float64 in (queries.dtype, documents.dtype) else torch.float32
    with torch.autocast(queries.device.type, enabled=False):
        return queries.to(wide) @ documents.to(wide).T


def alignment_kl(student: Tensor, teacher: Tensor, *, excluded: Tensor | None = None) -> Tensor:
    """KL(teacher || student) between softmaxes over the candidates, averaged over queries (Eq. 5); a scalar.

    Args:
        student: (n, m) scores, already divided by their temperature.
        teacher: (n, m) scores of the full symmetric model, likewise; no gradient flows into them.
        excluded: (n, m) bool, candidates left out on both sides.
    """
    teacher = teacher.detach()
    if excluded is not None:  # a finite minimum, since 0 * (-inf - -inf) is not a number
        student, teacher = (each.masked_fill(excluded, torch.finfo(each.dtype).min) for each in (student, teacher))
    log_p, log_q = F.log_softmax(student, dim=1), F.log_softmax(teacher, dim=1)
    return F.kl_div(log_p, log_q, reduction="batchmean", log_target=True)


def score_kl(student: Tensor, teacher: Tensor) -> Tensor:
    """Mean over queries of KL(teacher || student), softmaxes being over the candidates that a teacher scored; a scalar.

    Args:
        student: (n, m) scores, already divided by their temperature.
        teacher: (n, m) scores, likewise; NaN where it gave none. No gradient flows into them. Queries with fewer than
            two have nothing to teach and don't count; without any other the loss is 0.
    """
    known = ~teacher.isnan()
    rows = known.sum(1) >= 2
    if not bool(rows.any()):
        return student.sum() * 0
    return alignment_kl(student[rows], teacher[rows].to(student.dtype), excluded=~known[rows])


def margin_mse(student: Tensor, teacher: Tensor, positives: Tensor) -> Tensor:
    """Mean of ((s_positive - s_other) - (t_positive - t_other))² over all that a teacher scored; a scalar.

    Hofstätter et al. (arXiv 2010.02666), with every scored candidate in the place of one negative.

    Args:
        student: (n, m) scores, already divided by their temperature.
        teacher: (n, m) scores, likewise; NaN where it gave none. No gradient flows into them. A query whose positive
            has none doesn't count; without any pair the loss is 0.
        positives: (n,) int64, each query's positive candidate.
    """
    rows = torch.arange(len(student), device=student.device)
    teacher = teacher.detach().to(student.dtype)
    wanted = teacher[rows, positives][:, None] - teacher
    known = ~wanted.isnan()
    known[rows, positives] = False
    if not bool(known.any()):
        return student.sum() * 0
    margins = student[rows, positives][:, None] - student
    return F.mse_loss(margins[known], wanted[known])


def flops(weights: Tensor) -> Tensor:
    """Sum over terms of the squared mean weight over the batch's documents (Eq. 9); a scalar.

    Args:
        weights: (documents, vocabulary) of all processes together: the square is taken of the global mean.
    """
    return (weights.mean(dim=0) ** 2).sum()


def flops_ramp(step: int, *, ramp_steps: int) -> float:
    """Share of the FLOPS weight at an optimizer step: (step / ramp_steps)^2, at most 1 (at once for 0)."""
    return 1.0 if step >= ramp_steps else (step / ramp_steps) ** 2


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
