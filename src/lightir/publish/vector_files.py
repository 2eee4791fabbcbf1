"""The files of dense vectors: rows that a page reads in ranges, and short codes of all rows that it reads whole.

A page estimates all scores from the codes, then reads the rows of the documents that may be among the best. A code is
made of linear components of the row: each has a number of levels that grows with its variance. Neighboring levels are
halfway between the means of the values that they stand for (Lloyd, 1982; Max, 1960). Small collections have no codes:
the page reads all rows.

The components are the principal ones of rows that are multiplied by the square root of the queries' second moments, so
that they keep what changes scores: an error e of a row changes the score of a query q by q . e, whose mean square is
e' E[q q'] e. Passages of the documents stand for queries.
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

CODES_BYTES = 480_000
"""Number of bytes that all codes have together, as far as LEAST_CODE and half a byte per column allow."""

LEAST_CODE = 24
"""Least number of bytes of a code."""

MATRIX_STEPS = 31
"""Largest number of the matrix: with more steps it takes more bytes, and scores are hardly estimated better."""

QUERY_SHARE = 0.3
"""Share of the mean second moment that is added to each: queries of people differ from passages."""

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
        matrix: (n_components, dim) int8, what a unit of each component adds to a row, in the order of bytes_of.
        matrix_scales: (n_components,) float32 scales of the matrix.
        levels: level values of each component, in the same order.
        mean: (dim,) float32 mean of the rows.
        deviation: standard deviation of estimated scores from the true ones.
    """

    codes: npt.NDArray[np.uint8]
    bytes_of: list[list[int]]
    matrix: npt.NDArray[np.int8]
    matrix_scales: Floats
    levels: list[Floats]
    mean: Floats
    deviation: float


def write_vectors(writer: PartWriter, rows: DenseBytes, queries: Floats) -> dict[str, Any]:
    """Write the files of dense vectors; return their settings for the manifest.

    Args:
        writer: writer of the publication.
        rows: rows of the documents.
        queries: (n_queries, dim) vectors such as queries have, at least one.
    """
    n, dim = rows.rows.shape
    scaled = np.concatenate([rows.rows.view(np.uint8), rows.scales.astype("<f4")[:, None].view(np.uint8)], axis=1)
    writer.write("rows", scaled.tobytes())
    if rows.lows is not None:
        writer.write("lows", rows.lows.tobytes())
    settings: dict[str, Any] = {"dim": dim, "has_lows": rows.lows is not None, "code": None}
    if scaled.size * (1 if rows.lows is None else 2) > WHOLE_BYTES:
        code = encode_rows(rows.values(), code_bytes(n, dim), queries)
        writer.write("codes", code.codes.tobytes())
        numbers = [code.mean, code.matrix_scales, *code.levels]
        writer.write("code-numbers", np.concatenate(numbers).astype("<f4").tobytes(), packed=True)
        writer.write("code-matrix", code.matrix.tobytes(), packed=True)
        settings["code"] = {"bits": code.bytes_of, "deviation": code.deviation}
    return settings


def code_bytes(n: int, dim: int) -> int:
    """Return the number of bytes of a code of n rows."""
    return max(min(CODES_BYTES // n, dim // 2), min(LEAST_CODE, dim // 2), 1)


def encode_rows(values: Floats, n_bytes: int, queries: Floats) -> Codes:
    """Return codes of rows.

    Args:
        values: (n, dim) float32 rows, n at least 1.
        n_bytes: number of bytes of a code.
        queries: (n_queries, dim) vectors such as queries have, at least one.
    """
    sample = values[:: -(-len(values) // MAX_SAMPLE)].astype(np.float64)
    mean = sample.mean(axis=0)
    root, inverse = _root_of_moments(queries.astype(np.float64))
    variances, axes = np.linalg.eigh(root @ np.cov(sample.T, bias=True).reshape(len(mean), -1) @ root)
    variances, axes = variances[::-1], axes[:, ::-1].T
    bytes_of, components = _packed(_bits(variances, 8 * n_bytes), n_bytes)
    parts = axes[components] @ inverse
    scales = np.abs(parts).max(axis=1) / MATRIX_STEPS
    matrix = np.rint(parts / scales[:, None])
    codes, estimated, levels = _coded((values - mean) @ (axes[components] @ root).T, bytes_of)
    errors = estimated @ (matrix * scales[:, None]) - (values - mean)
    lengths = np.linalg.norm(errors @ root, axis=1)
    mean_length = float(np.sqrt(np.mean(lengths**2)))
    shares = np.rint(lengths / (mean_length or 1.0) * DEVIATION_STEPS).clip(0, 255).astype(np.uint8)
    probes = queries[:: -(-len(queries) // PROBES)].astype(np.float64)
    return Codes(
        np.concatenate([codes, shares[:, None]], axis=1),
        bytes_of,
        matrix.astype(np.int8),
        scales.astype(np.float32),
        levels,
        mean.astype(np.float32),
        float((probes @ errors.T).std()),
    )


def _root_of_moments(queries: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the (dim, dim) square root of the queries' second moments, and its inverse."""
    moments = queries.T @ queries / len(queries)
    squares, axes = np.linalg.eigh(moments)
    squares = np.maximum(squares, 0.0) + (QUERY_SHARE * squares.mean() or 1.0)
    return (axes * np.sqrt(squares)) @ axes.T, (axes / np.sqrt(squares)) @ axes.T


def _coded(
    values: npt.NDArray[np.float64], bytes_of: list[list[int]]
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float64], list[Floats]]:
    """Return the (n, n_bytes) codes of components, the values that they stand for, and each component's levels."""
    codes = np.zeros((len(values), len(bytes_of)), np.uint8)
    estimated = np.zeros_like(values)
    levels = []
    column = 0
    for byte, widths in enumerate(bytes_of):
        shift = 0
        for bits in widths:
            own = _levels(values[:, column], 2**bits)
            chosen = np.searchsorted((own[1:] + own[:-1]) / 2, values[:, column])
            codes[:, byte] |= (chosen << shift).astype(np.uint8)
            estimated[:, column] = own[chosen]
            levels.append(own.astype(np.float32))
            shift += bits
            column += 1
    return codes, estimated, levels


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
