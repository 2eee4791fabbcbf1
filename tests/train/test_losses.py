"""Each loss equals its formula in numpy with double precision; one process equals four."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, multiprocessing
from torch import distributed as dist

from lightir.errors import InvalidInput
from lightir.train.run.processes import gather
from lightir.train.stages.losses import (
    alignment_kl,
    flops,
    flops_ramp,
    info_nce,
    matryoshka,
    mean_pairwise_cosine,
    score_kl,
    similarity,
)
from processes import join

Doubles = npt.NDArray[np.float64]


def log_softmax(scores: Doubles) -> Doubles:
    return np.array([row - np.log(np.exp(row - row.max()).sum()) - row.max() for row in scores])


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_info_nce_is_the_cross_entropy_of_the_positive() -> None:
    scores, positives = random(3, 6), torch.tensor([0, 2, 4])
    expected = -np.mean([log_softmax(scores.numpy() / 0.05)[i, p] for i, p in enumerate(positives.tolist())])
    assert info_nce(scores, positives, temperature=0.05).item() == pytest.approx(expected, rel=1e-12)
    assert info_nce(scores[:1, :1], positives[:1], temperature=0.05).item() == 0.0


def test_excluded_candidates_are_as_if_they_were_not_there() -> None:
    scores, teacher = random(2, 5), random(2, 5, seed=1)
    excluded = torch.zeros(2, 5, dtype=torch.bool)
    excluded[:, [1, 3]] = True
    kept = [0, 2, 4]
    full = info_nce(scores, torch.tensor([0, 4]), temperature=0.1, excluded=excluded)
    assert full.item() == pytest.approx(info_nce(scores[:, kept], torch.tensor([0, 2]), temperature=0.1).item())
    student = scores.clone().requires_grad_()
    loss = alignment_kl(student, teacher, excluded=excluded)
    assert loss.item() == pytest.approx(alignment_kl(scores[:, kept], teacher[:, kept]).item())
    loss.backward()
    assert student.grad is not None
    assert student.grad.isfinite().all()
    assert student.grad[excluded].eq(0).all()


def test_alignment_is_the_kl_from_teacher_to_student_and_leaves_the_teacher_alone() -> None:
    student, teacher = random(4, 7).requires_grad_(), random(4, 7, seed=1).requires_grad_()
    p, q = log_softmax(student.detach().numpy()), log_softmax(teacher.detach().numpy())
    loss = alignment_kl(student, teacher)
    assert loss.item() == pytest.approx((np.exp(q) * (q - p)).sum(1).mean(), rel=1e-12)
    loss.backward()
    assert teacher.grad is None
    assert alignment_kl(student, student).item() == pytest.approx(0.0, abs=1e-12)


def test_a_query_with_one_score_of_the_teacher_does_not_count() -> None:
    """Its distribution over one candidate says nothing, and it must not lower the mean over the others."""
    nan = float("nan")
    student = torch.tensor([[1.0, 0.0, 2.0], [0.5, 3.0, 1.0]], dtype=torch.float64)
    whole = torch.tensor([[0.2, 1.0, nan]], dtype=torch.float64)
    both = torch.cat([whole, torch.tensor([[nan, 2.0, nan]], dtype=torch.float64)])
    p = np.exp([0.2, 1.0]) / np.exp([0.2, 1.0]).sum()
    q = np.exp([1.0, 0.0]) / np.exp([1.0, 0.0]).sum()
    expected = float((p * np.log(p / q)).sum())
    assert float(score_kl(student[:1], whole)) == pytest.approx(expected, rel=1e-9)
    assert float(score_kl(student, both)) == pytest.approx(expected, rel=1e-9)


def test_flops_is_the_sum_of_squared_means_and_its_ramp_is_quadratic() -> None:
    weights = random(5, 9).abs()
    assert flops(weights).item() == pytest.approx((weights.numpy().mean(0) ** 2).sum(), rel=1e-12)
    assert [flops_ramp(step, ramp_steps=4) for step in (0, 1, 2, 4, 9)] == [0.0, 1 / 16, 1 / 4, 1.0, 1.0]
    assert flops_ramp(0, ramp_steps=0) == 1.0


def test_matryoshka_sums_over_widths_each_normalised_again() -> None:
    queries, documents, positives = random(3, 8), random(3, 8, seed=1), torch.arange(3)

    def loss(q: Tensor, d: Tensor) -> Tensor:
        return info_nce(similarity(q, d), positives, temperature=0.1)

    expected = []
    for dim in (8, 4, 2):
        q, d = queries.numpy()[:, :dim], documents.numpy()[:, :dim]
        q, d = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (q, d))
        expected.append(-np.diag(log_softmax(q @ d.T / 0.1)).mean())
    ours = matryoshka(loss, queries, documents, dims=(8, 4, 2))
    assert ours.item() == pytest.approx(np.sum(expected), rel=1e-12)
    for dims in ((), (9,), (0,)):
        with pytest.raises(InvalidInput, match="widths"):
            matryoshka(loss, queries, documents, dims=dims)


def test_the_collapse_monitor_is_the_mean_cosine_of_pairs() -> None:
    vectors = random(6, 5)
    unit = vectors.numpy() / np.linalg.norm(vectors.numpy(), axis=1, keepdims=True)
    pairs = [unit[i] @ unit[j] for i in range(6) for j in range(6) if i != j]
    assert mean_pairwise_cosine(vectors) == pytest.approx(np.mean(pairs), rel=1e-12)
    assert mean_pairwise_cosine(torch.ones(4, 3)) == pytest.approx(1.0)
    assert mean_pairwise_cosine(torch.ones(1, 3)) == mean_pairwise_cosine(torch.ones(0, 3)) == 0.0


def test_similarity_is_not_rounded_under_autocast() -> None:
    queries, documents = random(3, 64).float(), random(4, 64, seed=1).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = similarity(queries, documents)
    assert scores.dtype == torch.float32
    torch.testing.assert_close(scores, queries @ documents.T)


def batch_gradient(weight: Tensor, queries: Tensor, documents: Tensor) -> Tensor:
    """Return the gradient of contrastive plus FLOPS loss through one linear layer, for the rows of this process."""
    weight = weight.clone().requires_grad_()
    q, d = gather(queries @ weight), gather(documents @ weight)
    loss = info_nce(similarity(q, d), torch.arange(len(q)), temperature=0.5) + flops(d.relu())
    loss.backward()
    assert weight.grad is not None
    return weight.grad


def one_of_four(rank: int, meeting: Path, result: Tensor) -> None:
    join(rank, 4, meeting)
    weight, queries, documents = random(6, 5), random(8, 6, seed=1), random(8, 6, seed=2)
    own = slice(2 * rank, 2 * rank + 2)
    gradient = batch_gradient(weight, queries[own], documents[own])
    dist.all_reduce(gradient)
    result[rank] = gradient / 4
    dist.destroy_process_group()


def test_four_processes_have_the_gradient_of_one(tmp_path: Path) -> None:
    result = torch.zeros(4, 6, 5, dtype=torch.float64).share_memory_()
    multiprocessing.start_processes(one_of_four, args=(tmp_path / "meeting", result), nprocs=4, start_method="fork")
    expected = batch_gradient(random(6, 5), random(8, 6, seed=1), random(8, 6, seed=2))
    for gradient in result:
        torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=1e-12)
