"""Means of table rows: the bits of the slow twin, for all widths, types of rows, levels and numbers of threads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from lightir import kernel
from lightir.kernel import _native, reference

DTYPES = [np.float16, np.float32, np.int8, np.uint16]  # uint16: bfloat16
WIDTHS = [1, 15, 16, 17, 64, 100, 128, 200, 384, 576, 2047, 2048, 4096, 4112, 8192]


@pytest.fixture(params=kernel.available())
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    before = kernel.dispatch()
    _native.use_level(request.param)
    yield request.param
    _native.use_level(before)


def random_table(rng: np.random.Generator, *, n_rows: int, width: int, dtype: type) -> tuple[np.ndarray, Any]:
    values = rng.standard_normal((n_rows, width), dtype=np.float32)
    if dtype is np.uint16:
        return (values.view(np.uint32) >> 16).astype(np.uint16), None
    if dtype is np.int8:
        return np.rint(values * 30).astype(np.int8), rng.random(n_rows, dtype=np.float32)
    return values.astype(dtype), None


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_every_width_and_type_has_the_bits_of_the_twin(level: str, width: int, dtype: type) -> None:
    rng = np.random.default_rng(width)
    table, scales = random_table(rng, n_rows=40, width=width, dtype=dtype)
    indptr = np.cumsum([0, 3, 0, 1, 20, 2], dtype=np.int64)  # next queries with fewer and with many more rows
    tokens = rng.integers(0, 40, indptr[-1]).astype(np.uint32)
    for dim in (width, (width + 1) // 2):
        got = kernel.mean_rows(table, tokens, indptr, normalize=True, scales=scales, dim=dim)
        expected = reference.mean_rows(table, tokens, indptr, normalize=True, scales=scales, dim=dim)
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_mean_is_that_of_exact_arithmetic_but_for_rounding(dtype: type) -> None:
    rng = np.random.default_rng(5)
    table, scales = random_table(rng, n_rows=300, width=576, dtype=dtype)
    exact = (table.astype(np.uint32) << 16).view(np.float32) if dtype is np.uint16 else table
    exact = exact.astype(np.float64) * (1 if scales is None else scales[:, None])
    tokens = rng.integers(0, 300, 50).astype(np.uint32)
    got = kernel.mean_rows(table, tokens, np.array([0, 50]), normalize=False, scales=scales)
    np.testing.assert_allclose(got[0], exact[tokens].mean(axis=0), atol=2e-6 * np.abs(exact).max())
    unit = kernel.mean_rows(table, tokens, np.array([0, 50]), normalize=True, scales=scales)
    np.testing.assert_allclose(np.linalg.norm(unit), 1, rtol=1e-6)


@pytest.mark.parametrize("shift", [0, 1, 5])
@pytest.mark.parametrize("width", [520, 1024])
def test_output_that_goes_past_the_caches_is_the_same(level: str, width: int, shift: int) -> None:
    rng = np.random.default_rng(7)
    table, _ = random_table(rng, n_rows=200, width=width, dtype=np.float16)
    indptr = np.cumsum([0, *rng.integers(0, 6, 4500)], dtype=np.int64)  # 4,500 rows are more than 8 MiB
    tokens = rng.integers(0, 200, indptr[-1]).astype(np.uint32)
    space = np.full(4500 * width + 16, np.nan, np.float32)
    out = space[shift : shift + 4500 * width].reshape(4500, width)  # rows begin in the midst of a vector
    _native.mean_rows(table, None, tokens, indptr, True, 3, out)
    few = [
        kernel.mean_rows(table, tokens[indptr[i] : indptr[i + 300]], indptr[i : i + 301] - indptr[i], normalize=True)
        for i in range(0, 4500, 300)
    ]
    np.testing.assert_array_equal(out, np.concatenate(few))
    assert np.isnan(space[:shift]).all()
    assert np.isnan(space[shift + out.size :]).all()
