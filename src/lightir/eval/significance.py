"""Paired significance tests of two systems, and corrections for multiple tests."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from lightir.errors import InvalidInput, MissingExtra

FloatArray: TypeAlias = npt.NDArray[np.float64]
Correction: TypeAlias = Literal["holm", "hommel", "none"]

N_PERMUTATIONS = 10_000
_CHUNK = 2**20
"""Number of signs drawn at once: 8 MB of float64."""


def randomization_test(
    a: Sequence[float] | FloatArray,
    b: Sequence[float] | FloatArray,
    *,
    rng: np.random.Generator,
    n_permutations: int = N_PERMUTATIONS,
) -> float:
    """Return the two-sided p of Fisher's paired randomization test (Smucker, Allan & Carterette, CIKM 2007).

    p is the fraction of sign flips of the per-query differences whose mean is at least as far from 0 as the observed
    one. If there are at most n_permutations flips, all are tested. Otherwise n_permutations are drawn and the observed
    one is added, so that p is never 0. Equal systems, or no queries, give 1.

    Args:
        a: (n,) values of one system per query.
        b: (n,) values of the other system, in the same order.
        rng: generator that flips are drawn with.
        n_permutations: maximum number of flips, at least 1.
    """
    differences = _differences(a, b)
    if n_permutations < 1:
        raise InvalidInput(f"n_permutations is {n_permutations}; the minimum is 1")
    differences = differences[differences != 0]
    n = len(differences)
    # Sums of the same numbers in another order differ by rounding; the tolerance keeps ties.
    observed = abs(differences.sum()) - 1e-12 * np.abs(differences).sum()
    if 2.0**n <= n_permutations:
        flips = (np.arange(2**n)[:, None] >> np.arange(n)) & 1
        return float(np.mean(np.abs((1 - 2 * flips) @ differences) >= observed))
    extreme, done = 0, 0
    while done < n_permutations:
        size = min(max(1, _CHUNK // n), n_permutations - done)
        signs = 1.0 - 2.0 * rng.integers(0, 2, size=(size, n), dtype=np.int8)
        extreme += int(np.count_nonzero(np.abs(signs @ differences) >= observed))
        done += size
    return (extreme + 1) / (n_permutations + 1)


def paired_t_test(a: Sequence[float] | FloatArray, b: Sequence[float] | FloatArray) -> float:
    """Return the two-sided p of Student's paired t test; 1 for equal systems or fewer than two queries.

    Equal differences other than 0 give 0.

    Raises:
        MissingExtra: scipy is not installed.
    """
    differences = _differences(a, b)
    if len(differences) < 2 or not np.any(differences):
        return 1.0
    deviation = differences.std(ddof=1)
    if deviation == 0:
        return 0.0
    try:
        stats = importlib.import_module("scipy.stats")
    except ImportError:
        raise MissingExtra("the t test requires scipy: pip install 'lightir[eval]'") from None
    t = differences.mean() / (deviation / np.sqrt(len(differences)))
    return float(2 * stats.t.sf(abs(t), len(differences) - 1))


def correct_p_values(p_values: Sequence[float] | FloatArray, method: Correction = "holm") -> FloatArray:
    """Correct p values for their number.

    Args:
        p_values: (n,) p values in [0, 1].
        method: "holm" (Holm 1979), "hommel" (Hommel 1988; never larger than Holm's), or "none".

    Returns:
        (n,) float64 corrected p values in the same order, at most 1.
    """
    p = np.asarray(p_values, dtype=np.float64)
    if np.any(~((p >= 0) & (p <= 1))):
        raise InvalidInput(f"p values must be in [0, 1], not {p.tolist()}")
    if method not in ("holm", "hommel", "none"):
        raise InvalidInput(f"correction {method!r}: expected 'holm', 'hommel' or 'none'")
    if method == "none" or len(p) < 2:
        return p.copy()
    order = np.argsort(p, kind="stable")
    adjusted = np.empty_like(p)
    adjusted[order] = (_holm if method == "holm" else _hommel)(p[order])
    return adjusted


def _holm(ascending: FloatArray) -> FloatArray:
    n = len(ascending)
    return np.minimum(1.0, np.maximum.accumulate(ascending * np.arange(n, 0, -1)))


def _hommel(ascending: FloatArray) -> FloatArray:
    """Apply Wright's algorithm (Biometrics 1992): for each number m of hypotheses, the bound of Simes' test."""
    n = len(ascending)
    adjusted = np.full(n, np.min(n * ascending / np.arange(1, n + 1)))
    for m in range(n - 1, 1, -1):
        upper = ascending[n - m + 1 :]
        bound = np.min(m * upper / np.arange(2, m + 1))
        at_m = np.minimum(m * ascending, bound)
        at_m[n - m + 1 :] = at_m[n - m]
        adjusted = np.maximum(adjusted, at_m)
    return np.maximum(adjusted, ascending)


def _differences(a: Sequence[float] | FloatArray, b: Sequence[float] | FloatArray) -> FloatArray:
    left, right = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if left.shape != right.shape or left.ndim != 1:
        raise InvalidInput(f"paired values must be two lists of equal length, not {left.shape} and {right.shape}")
    if not (np.all(np.isfinite(left)) and np.all(np.isfinite(right))):
        raise InvalidInput("paired values must be finite")
    return left - right
