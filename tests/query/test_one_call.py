"""Encoding in one call equals, to the bit, tokenizing, averaging and counting one after the other."""

from __future__ import annotations

import dataclasses
import gc
import sys
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from factories import make_contract
from lightir.contract import BackboneRecord, Contract
from lightir.errors import InvalidInput
from lightir.kernel import reference
from lightir.query import CachedQueryEncoder, CachedTable
from lightir.text import QueryPolicy, TextTokenizer, query_library, sparse_queries
from lightir.vectors import QueryVectors, Ragged
from llm_tokenizers import NATIVE, TEXTS
from small_collections import word_tokenizer

DIM = 40
some_text = st.one_of(st.sampled_from([*TEXTS, "", " ", "the the the"]), st.text(max_size=30))


@cache
def tokenizer_named(name: str) -> TextTokenizer:
    return word_tokenizer() if name == "words" else TextTokenizer(NATIVE[name]())


def encoder_of(name: str, *, dtype: type = np.float16, threads: int = 1, **policy: Any) -> CachedQueryEncoder:
    """Return an encoder with random rows, and with IDF weights, some of them 0, if the policy uses them."""
    tokenizer, rng = tokenizer_named(name), np.random.default_rng(0)
    vocab_size = tokenizer.vocab_size
    rows = rng.standard_normal((vocab_size, DIM), dtype=np.float32)
    if dtype is np.int8:
        table = CachedTable(np.rint(rows * 30).astype(np.int8), rng.random(vocab_size, dtype=np.float32))
    elif dtype is np.uint16:
        table = CachedTable((rows.view(np.uint32) >> 16).astype(np.uint16))
    else:
        table = CachedTable(rows.astype(dtype))
    contract = make_contract(query=QueryPolicy(**policy))
    weights = (rng.integers(0, 3, vocab_size) * 0.7).astype(np.float32)
    return CachedQueryEncoder(
        fitting(contract, tokenizer),
        tokenizer,
        tables={"": table},
        term_weights=weights if contract.query.term_weights == "idf" else None,
        threads=threads,
    )


def fitting(contract: Contract, tokenizer: TextTokenizer) -> Contract:
    backbone = BackboneRecord("org/model", "causal", "w", "", tokenizer.hash, tokenizer.vocab_size, DIM)
    return dataclasses.replace(contract, backbone=backbone)


def check(encoder: CachedQueryEncoder, texts: list[str]) -> None:
    """Compare with the library's ids, the slow means and numpy's counts."""
    policy, table = encoder.contract.query, encoder.tables[""]
    term_ids = Ragged(*query_library(encoder.tokenizer, policy)(texts, range(len(texts))))
    dense = reference.mean_rows(
        table.embeddings, term_ids.term_ids, term_ids.indptr, normalize=True, scales=table.scales
    )
    sparse = sparse_queries(
        term_ids, policy, vocab_size=encoder.tokenizer.vocab_size, term_weights=encoder.term_weights
    )
    encoded = encoder.encode(texts)
    assert encoded.sparse is not None
    pairs = [
        (encoded.term_ids.term_ids, term_ids.term_ids),
        (encoded.term_ids.indptr, term_ids.indptr),
        (encoded.dense, dense),
        (encoded.sparse.indptr, sparse.indptr),
        (encoded.sparse.term_ids, sparse.term_ids),
        (encoded.sparse.weights, sparse.weights),
    ]
    # The kernel creates the records without their checks; `replace` runs them.
    assert dataclasses.replace(encoded.sparse).vocab_size == encoder.tokenizer.vocab_size
    assert isinstance(encoded, QueryVectors)
    assert isinstance(encoded.term_ids, Ragged)
    for got, expected in pairs:
        assert got is not None
        assert got.dtype == expected.dtype
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("name", [*NATIVE, "words"])
@settings(max_examples=25)
@given(
    texts=st.lists(some_text, max_size=6),
    lower_case=st.booleans(),
    leading_blank=st.booleans(),
    weighting=st.sampled_from(["count", "binary"]),
    term_weights=st.sampled_from(["none", "idf"]),
    drop=st.sampled_from([(), (1, 6, 70)]),
    max_tokens=st.sampled_from([1, 9, 512]),
)
def test_every_policy_and_tokenizer_has_the_bits_of_the_steps(name: str, texts: list[str], **policy: Any) -> None:
    check(encoder_of(name, **policy), texts)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int8, np.uint16])
@pytest.mark.parametrize("threads", [1, 3])
def test_large_batches_of_any_type_and_number_of_threads(dtype: type, threads: int) -> None:
    texts = [f"{TEXTS[i % 5][i % 40 :]} {i}" for i in range(700)]
    check(encoder_of("gpt2", dtype=dtype, threads=threads), texts)


def test_results_are_garbage_collected() -> None:
    """Records made outside Python count their references correctly: none leaks, none is freed early."""
    encoder = encoder_of("gpt2")
    text = "".join(["a text", " of its own"])
    encoded = [encoder.encode([text]) for _ in range(50)]
    before = sys.getrefcount(text), sys.getrefcount(Ragged)
    dense = encoded[0].dense
    del encoded
    for _ in range(50):
        encoder.encode([text])
    gc.collect()
    assert dense is not None
    assert dense.base is None
    assert np.isclose(np.linalg.norm(dense), 1.0, atol=1e-5)
    assert sys.getrefcount(text) == before[0]
    assert sys.getrefcount(Ragged) <= before[1]


def test_the_same_array_can_be_filled_again() -> None:
    encoder = encoder_of("llama3")
    out = np.full((5, DIM), np.nan, np.float32)
    for texts in (TEXTS, TEXTS[::-1]):
        dense = encoder.encode(texts, out=out).dense
        assert dense is out
        np.testing.assert_array_equal(out, encoder.encode(texts).dense)


@pytest.mark.parametrize(
    "out",
    [
        np.zeros((4, DIM), np.float32),
        np.zeros((5, DIM + 1), np.float32),
        np.zeros((5, DIM)),
        np.zeros((DIM, 5), np.float32).T,
        [[0.0] * DIM] * 5,
    ],
    ids=["rows", "width", "dtype", "order", "list"],
)
def test_an_array_that_does_not_fit_is_refused(out: Any) -> None:
    with pytest.raises(InvalidInput, match=r"out must be .*\(5, 40\)"):
        encoder_of("gpt2").encode(TEXTS, out=out)


def test_terms_beyond_the_models_vocabulary_are_refused() -> None:
    tokenizer = tokenizer_named("gpt2")
    contract = fitting(make_contract(dense=None), tokenizer)
    narrow = dataclasses.replace(contract, backbone=dataclasses.replace(contract.backbone, vocab_size=9))
    with pytest.raises(InvalidInput, match=r"term id \d+ is outside the vocabulary of 9"):
        CachedQueryEncoder(narrow, tokenizer).encode(["cat"])
