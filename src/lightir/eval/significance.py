"""Whether two systems differ by more than chance: paired tests and corrections for many of them."""

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
"""Signs drawn at once: 8 MB of float64."""


def randomization_test(
    a: Sequence[float] | FloatArray,
    b: Sequence[float] | FloatArray,
    *,
    rng: np.random.Generator,
    n_permutations: int = N_PERMUTATIONS,
) -> float:
    """Two-sided p of Fisher's paired randomisation test (Smucker, Allan & Carterette, CIKM 2007).

    The share of sign flips of the per-query differences whose mean is at least as far from 0 as the observed one:
    over all flips where those are no more than n_permutations, otherwise over n_permutations drawn ones, the observed
    one counted in, so that p is never 0. Equal systems, and no queries, give 1.

    Args:
        a: (n,) one system's values, query by query.
        b: (n,) the other's, in the same order.
        rng: draws the flips.
        n_permutations: at least 1.
    """
    differences = _differences(a, b)
    if n_permutations < 1:
        raise InvalidInput(f"n_permutations is {n_permutations}; at least 1 is needed")
    differences = differences[differences != 0]
    n = len(differences)
    # Sums of the same numbers in another order differ by rounding; that must not lose a tie.
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
    """Two-sided p of Student's paired t test; 1 for equal systems or fewer than two queries.

    Differences that are all the same and not 0 give 0.

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
        raise MissingExtra("scipy is needed for the t test: pip install 'lightir[eval]'") from None
    t = differences.mean() / (deviation / np.sqrt(len(differences)))
    return float(2 * stats.t.sf(abs(t), len(differences) - 1))


def correct_p_values(p_values: Sequence[float] | FloatArray, method: Correction = "holm") -> FloatArray:
    """The p values after correction for their number, in their order, none above 1.

    Args:
        p_values: (n,) in [0, 1].
        method: "holm" (Holm 1979), "hommel" (Hommel 1988; never larger than Holm's), or "none".

    Returns:
        (n,) float64.
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
    """Wright's algorithm (Biometrics 1992): for each number m of hypotheses, the bound that Simes' test gives."""
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
        raise InvalidInput(f"paired values must be two lists of one length, not {left.shape} and {right.shape}")
    if not (np.all(np.isfinite(left)) and np.all(np.isfinite(right))):
        raise InvalidInput("paired values must be finite")
    return left - right
