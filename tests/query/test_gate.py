"""Query encoders with a gate: weights from the definition, folders that store them, and mismatches."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from lightir.contract import Contract
from lightir.encode.query_encoder import BigramTable, QueryEncoderArrays, QueryTable, write_query_encoder
from lightir.errors import ContractMismatch, FormatError, InvalidInput, NotFound
from lightir.query import CachedGate, CachedQueryEncoder, CachedTable
from lightir.query.bigrams import Bigrams
from lightir.query.tables import CachedBigrams
from lightir.search.explain import term_vectors
from small_collections import DIM, VOCAB_SIZE, word_contract, word_table, word_tokenizer

PAIRS = [[1, 4], [1, 6], [6, 1], [6, 6]]
QUERIES = ["the cat the cat", "cat runs", "", "dog", "the the the", "the zebra cat"]
TERMS = [[6, 1, 6, 1], [1, 4], [], [2], [6, 6, 6], [6, 1]]
N_ROWS = len(word_table()) + len(PAIRS)
BIGRAMS = Bigrams(np.array(PAIRS, dtype=np.uint32))
PAIR_ROWS = np.random.default_rng(1).standard_normal((len(PAIRS), DIM)).astype(np.float32)


def gate_of(n_rows: int = N_ROWS, *, dtype: Any = np.float16, size: float = 1.0, seed: int = 5) -> CachedGate:
    keys, values = (np.random.default_rng(seed).standard_normal((2, n_rows, 16)) * size).astype(dtype)
    return CachedGate(keys, values)


def contract_with(gate: CachedGate | None, *, bigrams: str = BIGRAMS.hash) -> Contract:
    contract = word_contract()
    policy = dataclasses.replace(contract.query, bigrams=bigrams, gate=gate.hash if gate else "")
    return dataclasses.replace(contract, query=policy)


def encoder(gate: CachedGate | None, **changes: Any) -> CachedQueryEncoder:
    options = {
        "tables": {"": CachedTable(word_table(dtype=np.float32))},
        "bigrams": CachedBigrams(BIGRAMS, CachedTable(PAIR_ROWS)),
        "gate": gate,
        **changes,
    }
    return CachedQueryEncoder(contract_with(gate), word_tokenizer(), **options)


def expected(gate: CachedGate, dim: int = DIM) -> np.ndarray:
    """Return sum of w_i row_i of length 1 with w_i = exp(clip(a_i . mean b, -6, 6)), in double precision."""
    rows = np.concatenate([word_table(dtype=np.float32), PAIR_ROWS]).astype(np.float64)
    keys, values = gate.keys.astype(np.float64), gate.values.astype(np.float64)
    vectors = np.zeros((len(TERMS), dim))
    for i, terms in enumerate(TERMS):
        pairs = [PAIRS.index([*pair]) for pair in itertools.pairwise(terms) if [*pair] in PAIRS]
        ids = terms + [len(rows) - len(PAIRS) + pair for pair in pairs]
        if ids:
            context = sum(values[row] for row in ids) / len(ids)
            weights = [np.exp(np.clip(keys[row] @ context, -6, 6)) for row in ids]
            total = sum(weight * rows[row, :dim] for weight, row in zip(weights, ids, strict=True))
            vectors[i] = total / np.linalg.norm(total)
    return vectors


@pytest.mark.parametrize("size", [0.3, 1.0, 200.0])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("dim", [DIM, 2])
def test_vectors_are_sums_of_weighted_rows(size: float, dtype: Any, dim: int) -> None:
    gate = gate_of(size=size, dtype=dtype)
    gated = encoder(gate, dim=dim)
    vectors = gated.encode(QUERIES)
    np.testing.assert_allclose(vectors.dense, expected(gate, dim), atol=2e-5 if size > 1 else 1e-6)
    texts = gated.text_encoder()
    assert texts is not None
    np.testing.assert_array_equal(texts.encode_terms(vectors.term_ids, threads=2), vectors.dense)
    single = [gated.encode([query]).dense[0] for query in QUERIES]
    np.testing.assert_array_equal(np.stack(single), vectors.dense)


def test_the_gate_changes_the_vectors() -> None:
    plain = encoder(None).encode(QUERIES).dense
    assert np.abs(encoder(gate_of()).encode(QUERIES).dense - plain).max() > 0.1


def test_explanations_have_the_weights_of_the_gate() -> None:
    gated = encoder(gate_of())
    for query in QUERIES:
        _, _, parts = term_vectors(gated, query, task=None, dim=None)
        np.testing.assert_allclose(parts.sum(axis=0), gated.encode([query]).dense[0], atol=1e-6)
    term_ids, _, parts = term_vectors(gated, "cat dog", task=None, dim=None)  # no pair: parts are weighted rows
    rows = word_table(dtype=np.float32)[term_ids]
    ratios = np.linalg.norm(parts, axis=1) / np.linalg.norm(rows, axis=1)
    weights = gated.gate.weights(term_ids.astype(np.int64))
    np.testing.assert_allclose(ratios / ratios[0], weights / weights[0], rtol=1e-5)


@pytest.mark.parametrize("dtype", ["fp16", "fp32", "int8"])
def test_a_folder_stores_the_gate(tmp_path: Path, dtype: Any) -> None:
    gate, folder = gate_of(), tmp_path / "q"
    arrays = QueryEncoderArrays(
        [QueryTable("", "", word_table(dtype=np.float32))], bigrams=BigramTable(BIGRAMS, PAIR_ROWS), gate=gate
    )
    write_query_encoder(folder, contract_with(gate), word_tokenizer(), arrays, dtype=dtype)
    loaded = CachedQueryEncoder.load(folder)
    np.testing.assert_allclose(loaded.encode(QUERIES).dense, expected(gate), atol=0.02 if dtype == "int8" else 2e-3)
    stored = load_file(str(folder / "gate.safetensors"))
    assert {name: array.dtype for name, array in stored.items()} == {"keys": np.float16, "values": np.float16}
    assert "gate.safetensors: weights of" in json.loads((folder / "config.json").read_text())["left_out"]
    assert Contract.load(folder).query.gate == gate.hash
    assert Contract.load(folder).document_fingerprint == word_contract().document_fingerprint
    save_file({"keys": gate.keys}, str(folder / "gate.safetensors"))
    with pytest.raises(FormatError, match="'keys' and 'values'"):
        CachedQueryEncoder.load(folder)
    save_file({"keys": gate.keys[:, :3].copy(), "values": gate.values}, str(folder / "gate.safetensors"))
    with pytest.raises(FormatError, match="both must be the same"):
        CachedQueryEncoder.load(folder)
    save_file({"keys": gate.values, "values": gate.keys}, str(folder / "gate.safetensors"))
    with pytest.raises(ContractMismatch, match=gate.hash):
        CachedQueryEncoder.load(folder)
    (folder / "gate.safetensors").unlink()
    with pytest.raises(NotFound, match=r"gate\.safetensors"):
        CachedQueryEncoder.load(folder)


def test_gates_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    gate = gate_of()
    with pytest.raises(ContractMismatch, match="gate has hash ''"):
        CachedQueryEncoder(
            contract_with(gate, bigrams=""), word_tokenizer(), tables={"": CachedTable(word_table(dtype=np.float32))}
        )
    with pytest.raises(InvalidInput, match=f"gate has {VOCAB_SIZE} rows, but the table has"):
        encoder(gate_of(VOCAB_SIZE))
    tables = {name: CachedTable(word_table(dtype=np.float32)) for name in ("a", "b")}
    whole = gate_of(len(word_table()))
    with pytest.raises(InvalidInput, match="one table, but there are 2"):
        CachedQueryEncoder(contract_with(whole, bigrams=""), word_tokenizer(), tables=tables, gate=whole)
    with pytest.raises(InvalidInput, match="NaN or infinity"):
        CachedGate(np.full((2, 2), np.nan, np.float32), np.zeros((2, 2), np.float32))
    with pytest.raises(InvalidInput, match="keys are int8"):
        CachedGate(np.zeros((2, 2), np.int8), np.zeros((2, 2), np.int8))  # type: ignore[arg-type]
    rows = [QueryTable("", "", word_table(dtype=np.float32))]
    pairs = BigramTable(BIGRAMS, PAIR_ROWS)
    refused = {
        "but none was given": (contract_with(gate), QueryEncoderArrays(rows, bigrams=pairs)),
        "but that of": (contract_with(None), QueryEncoderArrays(rows, bigrams=pairs, gate=gate)),
        "a gate has a row for each row": (contract_with(gate, bigrams=""), QueryEncoderArrays(rows, gate=gate)),
    }
    for message, (contract, arrays) in refused.items():
        with pytest.raises(InvalidInput, match=message):
            write_query_encoder(tmp_path / "q", contract, word_tokenizer(), arrays)
        assert not (tmp_path / "q").exists()


def test_contracts_without_a_gate_keep_their_fingerprints(tmp_path: Path) -> None:
    """A release that does not know the field refuses it as an unknown key; older records lack it."""
    contract = word_contract()
    contract.save(tmp_path)
    path = tmp_path / "lightir.json"
    content = json.loads(path.read_text())
    assert content["query"].pop("gate") == ""
    path.write_text(json.dumps(content))
    assert Contract.load(tmp_path) == contract
    assert contract_with(gate_of(), bigrams="").fingerprint != contract.fingerprint
