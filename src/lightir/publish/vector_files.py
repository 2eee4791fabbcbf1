"""The files of dense vectors: rows that a page reads in ranges, and short codes of all rows that it reads whole.

A page estimates all scores from the codes, then reads the rows of the documents that may be among the best. A code is
made of the leading principal components of the row: each has a number of levels that grows with its variance.
Neighboring levels are halfway between the means of the values that they stand for (Lloyd, 1982; Max, 1960). Small
collections have no codes: the page reads all rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lightir.publish.live_rows import DenseBytes
from lightir.publish.parts import PartWriter
from lightir.vectors import Floats

WHOLE_BYTES = 500_000
"""Number of bytes of all rows up to which a page reads them whole."""

CODES_BYTES = 550_000
"""Number of bytes that all codes have together, as far as LEAST_CODE and half a byte per column allow."""

LEAST_CODE = 24
"""Least number of bytes of a code."""

MAX_BITS = 6
LEVEL_ROUNDS = 12
MAX_SAMPLE = 50_000
PROBES = 256
DEVIATION_STEPS = 64


@dataclass(frozen=True, slots=True)
class Codes:
    """Codes of n rows.

    Attributes:
        codes: (n, code_bytes + 1) uint8. The last byte is the deviation of the row's scores in 1/64 of the mean one.
        bytes_of: number of bits of the components in each byte of a code, the lowest bits first.
        matrix: (n_components, dim) int8 rows of the rotation, in the order of bytes_of.
        matrix_scales: (n_components,) float32 scales of the matrix.
        levels: level values of each component, in the same order.
        mean: (dim,) float32 mean of the rows.
        deviation: standard deviation of estimated scores from the true ones, with rows as queries.
    """

    codes: npt.NDArray[np.uint8]
    bytes_of: list[list[int]]
    matrix: npt.NDArray[np.int8]
    matrix_scales: Floats
    levels: list[Floats]
    mean: Floats
    deviation: float


def write_vectors(writer: PartWriter, rows: DenseBytes) -> dict[str, Any]:
    """Write the files of dense vectors; return their settings for the manifest."""
    n, dim = rows.rows.shape
    scaled = np.concatenate([rows.rows.view(np.uint8), rows.scales.astype("<f4")[:, None].view(np.uint8)], axis=1)
    writer.write("rows", scaled.tobytes())
    if rows.lows is not None:
        writer.write("lows", rows.lows.tobytes())
    settings: dict[str, Any] = {"dim": dim, "has_lows": rows.lows is not None, "code": None}
    if scaled.size * (1 if rows.lows is None else 2) > WHOLE_BYTES:
        code = encode_rows(rows.values(), code_bytes(n, dim))
        writer.write("codes", code.codes.tobytes())
        numbers = [code.mean, code.matrix_scales, *code.levels]
        writer.write("code-numbers", np.concatenate(numbers).astype("<f4").tobytes(), packed=True)
        writer.write("code-matrix", code.matrix.tobytes(), packed=True)
        settings["code"] = {"bits": code.bytes_of, "deviation": code.deviation}
    return settings


def code_bytes(n: int, dim: int) -> int:
    """Return the number of bytes of a code of n rows."""
    return max(min(CODES_BYTES // n, dim // 2), min(LEAST_CODE, dim // 2), 1)


def encode_rows(values: Floats, n_bytes: int) -> Codes:
    """Return codes of rows.

    Args:
        values: (n, dim) float32 rows, n at least 1.
        n_bytes: number of bytes of a code.
    """
    sample = values[:: -(-len(values) // MAX_SAMPLE)].astype(np.float64)
    mean = sample.mean(axis=0)
    variances, axes = np.linalg.eigh(np.cov(sample.T, bias=True).reshape(len(mean), -1))
    variances, axes = variances[::-1], axes[:, ::-1].T
    bytes_of, components = _packed(_bits(variances, 8 * n_bytes), n_bytes)
    scales = np.abs(axes[components]).max(axis=1) / 127
    matrix = np.rint(axes[components] / scales[:, None])
    rotated = (values - mean) @ (matrix * scales[:, None]).T
    codes = np.zeros((len(values), len(bytes_of)), np.uint8)
    estimated = np.zeros_like(rotated)
    levels = []
    column = 0
    for byte, widths in enumerate(bytes_of):
        shift = 0
        for bits in widths:
            own = _levels(rotated[:, column], 2**bits)
            chosen = np.searchsorted((own[1:] + own[:-1]) / 2, rotated[:, column])
            codes[:, byte] |= (chosen << shift).astype(np.uint8)
            estimated[:, column] = own[chosen]
            levels.append(own.astype(np.float32))
            shift += bits
            column += 1
    lengths = np.linalg.norm(values - mean - estimated @ (matrix * scales[:, None]), axis=1)
    mean_length = float(np.sqrt(np.mean(lengths**2)))
    shares = np.rint(lengths / (mean_length or 1.0) * DEVIATION_STEPS).clip(0, 255).astype(np.uint8)
    probes = (values[:: -(-len(values) // PROBES)] - mean).astype(np.float64)
    error = probes @ (matrix * scales[:, None]).T @ estimated.T - probes @ (values - mean).T
    return Codes(
        np.concatenate([codes, shares[:, None]], axis=1),
        bytes_of,
        matrix.astype(np.int8),
        scales.astype(np.float32),
        levels,
        mean.astype(np.float32),
        float(error.std()),
    )


def _bits(variances: npt.NDArray[np.float64], total: int) -> npt.NDArray[np.int64]:
    """Share bits among components: each bit quarters a component's error, and goes where the error is largest."""
    bits = np.zeros(len(variances), dtype=np.int64)
    errors = np.maximum(variances, 0.0)
    for _ in range(min(total, MAX_BITS * len(variances))):
        best = int(np.where(bits < MAX_BITS, errors, -1.0).argmax())
        bits[best] += 1
        errors[best] *= 0.3
    return bits


def _packed(bits: npt.NDArray[np.int64], n_bytes: int) -> tuple[list[list[int]], npt.NDArray[np.int64]]:
    """Put components into bytes, wide ones first; one that fits nowhere loses bits.

    Returns:
        The widths in each byte, and the components in that order.
    """
    widths: list[list[int]] = [[] for _ in range(n_bytes)]
    members: list[list[int]] = [[] for _ in range(n_bytes)]
    for component in sorted(np.flatnonzero(bits).tolist(), key=lambda i: (-bits[i], i)):
        free = [8 - sum(used) for used in widths]
        width = min(int(bits[component]), max(free))
        if width:
            at = next(i for i, n_free in enumerate(free) if n_free >= width)
            widths[at].append(width)
            members[at].append(component)
    return widths, np.array([component for of_byte in members for component in of_byte], dtype=np.int64)


def _levels(values: npt.NDArray[np.float64], n: int) -> npt.NDArray[np.float64]:
    """Return n ascending levels that stand for some values with little error."""
    levels = np.quantile(values, (np.arange(n) + 0.5) / n)
    ascending = np.sort(values)
    sums = np.concatenate([[0.0], np.cumsum(ascending)])
    for _ in range(LEVEL_ROUNDS):
        ends = np.concatenate([[0], np.searchsorted(ascending, (levels[1:] + levels[:-1]) / 2), [len(values)]])
        counts = np.diff(ends)
        levels = np.where(counts > 0, np.diff(sums[ends]) / np.maximum(counts, 1), levels)
    return levels
