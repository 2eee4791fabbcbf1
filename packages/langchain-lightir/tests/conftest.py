"""Fixtures: the model `minilm`, loaded once."""

from __future__ import annotations

import pytest
from langchain_lightir import LightIREmbeddings


@pytest.fixture(scope="session")
def minilm() -> LightIREmbeddings:
    return LightIREmbeddings("minilm")
