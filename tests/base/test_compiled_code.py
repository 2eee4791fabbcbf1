"""Code that the tests compile is kept in pytest's cache."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.mark.parametrize("name", ["TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "NUMBA_CACHE_DIR"])
def test_compiled_code_is_cached_in_a_folder_of_the_tests(name: str, pytestconfig: pytest.Config) -> None:
    assert pytestconfig.cache is not None
    assert Path(os.environ[name]).parent == pytestconfig.cache.mkdir("compiled")
