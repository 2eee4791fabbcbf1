"""The contract: what is written is read, what does not agree is refused with both values."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from factories import make_contract
from lightir.contract import (
    Contract,
    DenseHead,
    DocumentPolicy,
    Fusion,
    SparseHead,
    differences,
    hash_arrays,
    require_same_documents,
)
from lightir.errors import ContractMismatch, FormatError, InvalidInput, NotFound
from lightir.text import QueryPolicy


@pytest.mark.parametrize(
    "contract",
    [
        make_contract(),
        make_contract(dense=None),
        make_contract(sparse=None, query=QueryPolicy(drop=(1, 5), weighting="binary")),
        make_contract(dense=DenseHead("mean", "abc", (8, 4)), attention="bidirectional"),
    ],
)
def test_a_saved_contract_is_read_back_equal(tmp_path: Path, contract: Contract) -> None:
    contract.save(tmp_path)
    assert Contract.load(tmp_path) == contract


def test_every_field_but_the_fusion_changes_the_fingerprint() -> None:
    contract = make_contract()
    other_fusion = dataclasses.replace(contract, fusion=Fusion("rrf"))
    assert other_fusion.fingerprint == contract.fingerprint
    for change in (
        {"attention": "echo"},
        {"method": "distilled"},
        {"query": QueryPolicy("find it", lower_case=False)},
        {"document": DocumentPolicy(max_tokens=64)},
        {"sparse": SparseHead(scale=100.0)},
    ):
        assert make_contract(**change).fingerprint != contract.fingerprint


def test_another_instruction_leaves_the_document_fingerprint() -> None:
    assert make_contract(query=QueryPolicy("other")).document_fingerprint == make_contract().document_fingerprint
    assert make_contract(sparse=None).document_fingerprint != make_contract().document_fingerprint


def test_a_mismatch_names_the_field_and_both_values() -> None:
    one, other = make_contract(), make_contract(document=DocumentPolicy(max_tokens=64), sparse=None)
    with pytest.raises(ContractMismatch) as caught:
        require_same_documents(one, other, names=("the index", "the query encoder"))
    message = str(caught.value)
    assert "document.max_tokens is 512 in the index but 64 in the query encoder" in message
    assert "sparse" in message
    assert message.startswith("the index and the query encoder do not match: ")


def test_a_mismatch_of_models_begins_with_their_names() -> None:
    one = make_contract()
    backbone = dataclasses.replace(one.backbone, address="pypi:other", weights_hash="0")
    other = dataclasses.replace(one, backbone=backbone)
    with pytest.raises(ContractMismatch) as caught:
        require_same_documents(one, other, names=("the index", "the model"))
    problem = f"the index was made with {one.backbone.address}, but the model with pypi:other"
    assert str(caught.value) == f"{problem}: they differ in backbone.weights_hash"


def test_contracts_that_differ_in_the_query_alone_belong_together() -> None:
    one, other = make_contract(), make_contract(query=QueryPolicy("x"))
    assert one.fingerprint != other.fingerprint
    require_same_documents(one, other, names=("a", "b"))


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        (("format_version",), 99, "format version 99"),
        (("backbone", "kind"), "rnn", "one of"),
        (("backbone", "vocab_size"), "many", "expected int"),
        (("backbone", "vocab_size"), True, "expected int"),
        (("query", "surprise"), 1, "unknown key 'surprise'"),
        (("query", "weighting"), "tfidf", "one of"),
        (("document", "max_tokens"), 64, "fingerprint"),
        (("dense", "dims"), 8, "a list"),
        (("query",), None, "an object"),
        (("query", "drop"), [-1], "term ids from 0 to"),
        (("query", "drop"), [2**32], "term ids from 0 to"),
        (("query", "max_tokens"), 2**63, "max_tokens"),
        (("sparse", "scale"), 0, "scale"),
        (("sparse", "scale"), math.inf, "scale"),
        (("sparse", "top_k"), -1, "top_k"),
    ],
)
def test_a_damaged_record_is_refused(tmp_path: Path, path: tuple[str, ...], value: object, expected: str) -> None:
    make_contract().save(tmp_path)
    content = json.loads((tmp_path / "lightir.json").read_text())
    parent = content
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = value
    (tmp_path / "lightir.json").write_text(json.dumps(content))
    with pytest.raises(FormatError, match=expected):
        Contract.load(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]", '"x"', "null"])
def test_what_is_no_record_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "lightir.json").write_text(content)
    with pytest.raises(FormatError):
        Contract.load(tmp_path)


def test_a_folder_without_a_record_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"lightir\.json"):
        Contract.load(tmp_path)


def test_hashes_of_arrays_name_the_projection_that_has_them() -> None:
    with pytest.raises(InvalidInput, match=r"a projection_hash and the projection 'embeddings'; expected 'own'"):
        SparseHead(projection="embeddings", projection_hash="0" * 16)
    with pytest.raises(InvalidInput, match=r"a LayerNorm and the projection 'own'"):
        SparseHead(projection="own", norm_hash="0" * 16)


def test_the_quantiser_rounds_to_the_nearest_impact_and_saturates() -> None:
    weights = np.array([0.0, 0.004, 0.006, 0.01, 1.0, 100.0], dtype=np.float32)
    assert SparseHead(scale=100.0).quantize(weights).tolist() == [0, 0, 1, 1, 100, 255]
    halves = np.array([0.25, 0.75, 1.25, 127.25, 127.75], dtype=np.float32)
    assert SparseHead(scale=2.0).quantize(halves).tolist() == [0, 2, 2, 254, 255]  # half to even


@pytest.mark.parametrize("weight", [-0.1, np.nan, np.inf])
def test_the_quantiser_refuses_what_is_no_weight(weight: float) -> None:
    with pytest.raises(InvalidInput):
        SparseHead().quantize(np.array([1, weight], dtype=np.float32))


def test_a_light_document_has_the_frame_of_a_light_query() -> None:
    assert make_contract(document=DocumentPolicy(light=True)).has_light_queries
    for frame in ({"suffix": "Summary:"}, {"ends": 2}):
        with pytest.raises(InvalidInput, match="light document"):
            DocumentPolicy(light=True, **frame)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [
        {"query": QueryPolicy(suffix="so:")},
        {"document": DocumentPolicy(ends=2)},
        {"document": DocumentPolicy(ends_hash="abc")},
    ],
)
def test_a_query_whose_frame_is_more_than_a_prompt_and_one_end_has_no_light_form(change: dict[str, Any]) -> None:
    assert not make_contract(**change).has_light_queries


def test_an_echo_s_second_prompt_holds_the_first_where_the_format_says_so() -> None:
    assert DocumentPolicy(prompt="Read: ", echo_prompt="Again: {prompt}").second_prompt == "Again: Read: "
    assert QueryPolicy(prompt_format="Ask: ", echo_prompt="Again: {prompt}").second_prompt == "Again: Ask: "
    with pytest.raises(InvalidInput, match=r"echo_prompt 'Again: \{promt\}' has the unknown placeholder \{promt\}"):
        DocumentPolicy(prompt="Read: ", echo_prompt="Again: {promt}")


def test_missing_and_misspelt_keys_are_named(tmp_path: Path) -> None:
    make_contract().save(tmp_path)
    path = tmp_path / "lightir.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "atention": "causal", "quary": {}}))
    with pytest.raises(FormatError, match="did you mean 'attention'"):
        Contract.load(tmp_path)
    del content["method"]
    path.write_text(json.dumps(content))
    with pytest.raises(FormatError, match="method"):
        Contract.load(tmp_path)


def test_differences_name_keys_that_one_side_lacks() -> None:
    a, b = {"x": {"y": 1, "z": 2}, "only": {"k": 1}}, {"x": {"y": 1, "z": 3, "new": 4}, "only": None}
    listed = list(differences("at", a, b))
    assert listed == [("at.only", {"k": 1}, None), ("at.x.new", None, 4), ("at.x.z", 2, 3)]


def test_array_hash_sees_values_types_and_shapes() -> None:
    base = np.arange(6, dtype=np.float32)
    variants = [base, base.astype(np.float64), base.reshape(2, 3), base[::-1].copy()]
    assert len({hash_arrays(arrays) for arrays in variants}) == len(variants)
    assert {len(hash_arrays(arrays)) for arrays in variants} == {16}
    assert hash_arrays(base) == hash_arrays(base.copy())


@pytest.mark.parametrize("path", sorted((Path(__file__).parents[2] / "packages").rglob("lightir.json")), ids=str)
def test_a_record_without_the_later_fields_keeps_its_fingerprint(path: Path, tmp_path: Path) -> None:
    content = json.loads(path.read_text())
    for name in ("suffix", "ends", "ends_hash"):
        content["document"].pop(name, None)
    content["query"].pop("suffix", None)
    (tmp_path / "lightir.json").write_text(json.dumps(content))
    loaded = Contract.load(tmp_path)
    assert loaded == Contract.load(path.parent)
    assert loaded.fingerprint == content["fingerprint"]
    for changed in (
        dataclasses.replace(loaded, document=dataclasses.replace(loaded.document, suffix="\nSummarization: ")),
        dataclasses.replace(loaded, document=dataclasses.replace(loaded.document, ends=4)),
        dataclasses.replace(loaded, document=dataclasses.replace(loaded.document, bag_tokens=254)),
        dataclasses.replace(loaded, query=dataclasses.replace(loaded.query, suffix="?")),
    ):
        assert changed.fingerprint != loaded.fingerprint
        same_documents = changed.document == loaded.document
        assert (changed.document_fingerprint == loaded.document_fingerprint) == same_documents
