"""The plan of a search: which branches it joins, and with which weights."""

from __future__ import annotations

import dataclasses

import pytest

from lightir.contract import DenseHead, Fusion
from lightir.errors import InvalidInput
from lightir.search import SearchOptions
from lightir.search.language_model import Smoothing
from lightir.search.plan import REMEASURED, default_fusion, plan, span
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


ALL = ("dense", "sparse", "tokens")
SHARES = Fusion("absolute", {"dense": 0.4, "sparse": 0.2, "tokens": 0.4}, spans={"dense": (0.2, 0.8)})


def test_a_default_of_shares_counts_where_words_are_searched() -> None:
    contract = word_contract(fusion=SHARES)
    assert plan(ALL, contract).fusion == SHARES
    two = plan(ALL, contract, SearchOptions(mode="dense+tokens")).fusion
    assert (two.method, two.weights, two.spans) == ("absolute", {"dense": 0.5, "tokens": 0.5}, SHARES.spans)
    vectors = plan(ALL, contract, SearchOptions(mode="dense+sparse")).fusion
    assert (vectors.method, vectors.weights) == ("linear", pytest.approx({"dense": 5 / 7, "sparse": 2 / 7}))
    asked = plan(ALL, contract, SearchOptions(mode="dense+sparse", fusion="absolute")).fusion
    assert asked.method == "absolute"
    linear = plan(ALL, contract, SearchOptions(fusion="linear")).fusion
    assert (linear.method, linear.weights) == ("linear", {"dense": 0.5, "sparse": 0.2, "tokens": 0.3})


def test_scores_without_a_maximum_are_joined_by_linear_and_refused_as_shares() -> None:
    contract = word_contract(fusion=SHARES)
    smoothed = SearchOptions(smoothing=Smoothing("dirichlet", 2000.0))
    assert plan(ALL, contract, smoothed).fusion.method == "linear"
    with pytest.raises(InvalidInput, match="log likelihoods of dirichlet"):
        plan(ALL, contract, dataclasses.replace(smoothed, fusion="absolute"))
    products = word_contract(fusion=dataclasses.replace(SHARES, spans={}), dense=DenseHead(similarity="dot"))
    assert plan(ALL, products).fusion.method == "linear"
    with pytest.raises(InvalidInput, match="dot products"):
        plan(ALL, products, SearchOptions(fusion="absolute"))


def test_an_index_with_the_former_default_of_a_measured_model_has_the_present_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    every, present = next(iter(REMEASURED.values()))
    for former in every:
        contract = word_contract(fusion=former)
        assert default_fusion(contract) == former
        with monkeypatch.context() as patch:
            patch.setitem(REMEASURED, contract.document_fingerprint, (every, present))  # type: ignore[arg-type]
            assert default_fusion(contract) == present
    monkeypatch.setitem(REMEASURED, contract.document_fingerprint, (every, present))  # type: ignore[arg-type]
    tuned = dataclasses.replace(contract, fusion=dataclasses.replace(former, weights={"dense": 0.9, "tokens": 0.1}))
    assert default_fusion(tuned) == tuned.fusion


def test_spans_are_those_of_the_contract_or_of_the_branch() -> None:
    contract = word_contract()
    assert contract.sparse is not None
    assert span(SHARES, contract, "dense") == (0.2, 0.8)
    assert span(Fusion(), contract, "dense") == (0.0, 1.0)
    assert span(Fusion(), contract, "sparse") == (0.0, 2 * contract.sparse.scale)
    assert span(Fusion(), contract, "tokens") == (0.0, 1 / 1.9)
    assert span(Fusion(), contract, "tokens", of_counts=False) == (0.0, 1.0)


@pytest.mark.parametrize("wrong", [(0.8, 0.2), (0.5, 0.5), (0.1,), (0.1, 0.2, 0.3)])
def test_a_span_has_a_lower_and_a_higher_score(wrong: tuple[float, ...]) -> None:
    with pytest.raises(InvalidInput, match="the span of dense"):
        Fusion("absolute", spans={"dense": wrong})
