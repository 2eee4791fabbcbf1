"""The plan of a search: which branches it joins, and with which weights."""

from __future__ import annotations

import pytest

from lightir.contract import Fusion
from lightir.search import SearchOptions
from lightir.search.plan import plan
from small_collections import word_contract


@pytest.mark.parametrize(
    ("mode", "weights"),
    [
        ("dense+sparse+tokens", {"dense": 0.5, "sparse": 0.2, "tokens": 0.3}),
        ("dense+sparse", {"dense": 0.7, "sparse": 0.3}),
        ("dense+tokens", {"dense": 5 / 8, "tokens": 3 / 8}),
        ("sparse+tokens", {"sparse": 2 / 5, "tokens": 3 / 5}),
    ],
)
def test_the_default_weights_are_those_of_the_table_in_docs_fusion(mode: str, weights: dict[str, float]) -> None:
    """docs/fusion.md measures 0.5, 0.2 and 0.3 of the dense, the sparse and the tokens branch; a contract has two."""
    chosen = plan(("dense", "sparse", "tokens"), None, SearchOptions(mode=mode)).fusion.weights
    assert list(chosen) == list(weights)
    assert chosen == pytest.approx(weights)


@pytest.mark.parametrize(
    ("named", "mode", "weights"),
    [
        ({"dense": 0.7, "sparse": 0.3}, "dense+sparse", {"dense": 0.7, "sparse": 0.3}),
        ({"dense": 0.5, "sparse": 0.2, "tokens": 0.3}, "dense+sparse", {"dense": 5 / 7, "sparse": 2 / 7}),
        ({"dense": 0.5, "sparse": 0.2, "tokens": 0.3}, "dense+tokens", {"dense": 5 / 8, "tokens": 3 / 8}),
        ({"dense": 0.65, "tokens": 0.35}, "dense+tokens", {"dense": 0.65, "tokens": 0.35}),
    ],
)
def test_a_contract_s_weights_count_for_exactly_its_branches(
    named: dict[str, float], mode: str, weights: dict[str, float]
) -> None:
    """docs/fusion.md: 0.71 and 0.29 are the weights of a contract that names three branches, searched by two."""
    contract = word_contract(fusion=Fusion(weights=named))
    chosen = plan(("dense", "sparse", "tokens"), contract, SearchOptions(mode=mode)).fusion.weights
    assert chosen == pytest.approx(weights)
