"""Query tables equal the model, end to end through the query-encoder folder."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from lightir.contract import Contract, DenseHead, DocumentPolicy, SparseHead
from lightir.encode import (
    QueryEncoderArrays,
    QueryTable,
    TableOptions,
    cache_vocabulary,
    cached_table,
    write_query_encoder,
)
from lightir.encode.query_encoder import stored_rows
from lightir.errors import AlreadyExists, InvalidInput
from lightir.files import read_json
from lightir.models.encoder import LightRetriever
from lightir.models.model_folder import HeadArrays, backbone_record
from lightir.query import CachedQueryEncoder
from lightir.text import QueryPolicy, TextTokenizer, query_term_ids
from tiny_models import CAUSAL, tiny_backbone

QUERIES = ["where is the well?", "a", "the cat the cat", "ünïcode 水"]


def tiny_model(name: str = "llama", *, pooling: str = "eos", dims: tuple[int, ...] = ()) -> LightRetriever:
    backbone = tiny_backbone(name)
    dense = DenseHead(pooling=pooling, dims=dims)  # type: ignore[arg-type]
    record = backbone_record(backbone)
    contract = Contract("lightretriever", record, QueryPolicy("Find it"), DocumentPolicy(), dense, None)
    return LightRetriever(backbone, contract)


def looked_up(folder: Path, texts: list[str], *, file: str = "model.safetensors") -> np.ndarray:
    """Compute Eq. 6 from the files only: the mean of the queries' rows, normalized after the mean."""
    arrays = load_file(folder / file)
    table = arrays["embeddings"].astype(np.float64)
    if "weights" in arrays:
        table *= arrays["weights"][:, None]
    tokenizer = TextTokenizer.from_file(folder / "tokenizer.json")
    ids = query_term_ids(tokenizer, Contract.load(folder).query, texts)
    means = np.stack([table[ids.row(i)].mean(axis=0) for i in range(len(ids))])
    return means / np.linalg.norm(means, axis=1, keepdims=True)


def one_by_one(model: LightRetriever, texts: list[str], *, instruction: str | None = None) -> np.ndarray:
    """Compute Eq. 3 and 4 by one forward of `<bos> Inst t <eos>` per token."""
    prompt = model.frame_queries([""], instruction=instruction)[0][0][:-1]
    rows = []
    with torch.no_grad():
        for ids in (
            query_term_ids(model.backbone.tokenizer, model.contract.query, texts).row(j) for j in range(len(texts))
        ):
            states = []
            for term in ids.tolist():
                frame = torch.tensor([[*prompt, term, model.backbone.eos_id]])
                states.append(model.backbone.states(frame, torch.ones_like(frame))[0, -1].double().numpy())
            rows.append(np.mean(states, axis=0))
    means = np.stack(rows)
    return means / np.linalg.norm(means, axis=1, keepdims=True)


@pytest.mark.parametrize("name", CAUSAL)
def test_lookup_equals_shared_prompt_equals_one_forward_a_token(name: str, tmp_path: Path) -> None:
    model = tiny_model(name)
    cache_vocabulary(model, tmp_path / "q", options=TableOptions(dtype="fp32", batch=100))
    expected = one_by_one(model, QUERIES)
    with torch.no_grad():
        ids = query_term_ids(model.backbone.tokenizer, model.contract.query, QUERIES)
        shared = torch.nn.functional.normalize(model.light_queries(ids), dim=-1).double().numpy()
    for actual in (looked_up(tmp_path / "q", QUERIES), shared):
        assert np.linalg.norm(actual - expected) / np.linalg.norm(expected) < 1e-5


@pytest.mark.parametrize(("dtype", "tolerance"), [("fp16", 1e-3), ("int8", 1e-2)])
def test_smaller_rows_stay_close(dtype: str, tolerance: float, tmp_path: Path) -> None:
    model = tiny_model()
    cache_vocabulary(model, tmp_path / "q", options=TableOptions(dtype=dtype))  # type: ignore[arg-type]
    cosine = (looked_up(tmp_path / "q", QUERIES) * one_by_one(model, QUERIES)).sum(axis=1)
    assert cosine.min() > 1 - tolerance


def test_several_instructions_lie_in_one_folder_and_the_first_is_the_default(tmp_path: Path) -> None:
    model = tiny_model()
    cache_vocabulary(
        model, tmp_path / "q", options=TableOptions(tasks=["scifact"], instructions=["Other"], dtype="fp32")
    )
    listed = read_json(tmp_path / "q" / "tables.json")["tables"]
    assert [table["task"] for table in listed] == ["scifact", "Other"]
    assert Contract.load(tmp_path / "q").query.instruction == listed[0]["instruction"]
    for table in listed:
        actual = looked_up(tmp_path / "q", QUERIES, file=table["file"])
        expected = one_by_one(model, QUERIES, instruction=table["instruction"])
        np.testing.assert_allclose(actual, expected, atol=1e-5)
    assert Contract.load(tmp_path / "q").document_fingerprint == model.contract.document_fingerprint


def test_a_table_of_a_width_that_was_not_trained_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    model = tiny_model(dims=(32, 16, 8))
    cached_table(model, dim=16)
    assert not caplog.records
    cached_table(model, dim=9)
    assert [record.getMessage()[:62] for record in caplog.records] == [
        "dim: the model was trained at 32, 16, 8 columns, not at 9: mea"
    ]


def test_standardisation_and_a_narrow_table(tmp_path: Path) -> None:
    model = tiny_model(dims=(32, 16, 8))
    model.heads = HeadArrays(mean=torch.full((32,), 0.3), deviation=torch.linspace(0.5, 2, 32))
    whole = cached_table(model)
    np.testing.assert_array_equal(cached_table(model, dim=8), whole[:, :8])
    model.heads = HeadArrays()
    np.testing.assert_allclose(whole, (cached_table(model) - 0.3) / np.linspace(0.5, 2, 32), atol=1e-5)
    for dim in (33, -1):
        with pytest.raises(InvalidInput, match="dim is"):
            cached_table(model, dim=dim)


def test_a_cached_table_has_no_bigrams_and_no_gate_of_the_fitted_one(tmp_path: Path) -> None:
    model = tiny_model()
    policy = dataclasses.replace(model.contract.query, bigrams="0123456789abcdef", gate="0123456789abcdef")
    model.contract = dataclasses.replace(model.contract, query=policy)
    cache_vocabulary(model, tmp_path / "q")
    encoder = CachedQueryEncoder.load(tmp_path / "q")
    assert (encoder.bigrams, encoder.gate) == (None, None)
    assert (encoder.contract.query.bigrams, encoder.contract.query.gate) == ("", "")


def test_term_weights_are_stored_exactly_when_the_policy_says_idf(tmp_path: Path) -> None:
    model = tiny_model()
    model.heads = HeadArrays(term_weights=torch.arange(258.0))
    cache_vocabulary(model, tmp_path / "counts")
    assert not (tmp_path / "counts" / "sparse.safetensors").exists()
    policy = dataclasses.replace(model.contract.query, term_weights="idf")
    model.contract = dataclasses.replace(model.contract, query=policy)
    cache_vocabulary(model, tmp_path / "idf")
    np.testing.assert_array_equal(load_file(tmp_path / "idf" / "sparse.safetensors")["term_weights"], np.arange(258))
    with pytest.raises(AlreadyExists):
        cache_vocabulary(model, tmp_path / "idf")
    model.heads = HeadArrays()
    with pytest.raises(InvalidInput, match="were not given"):
        cache_vocabulary(model, tmp_path / "none")


def test_stored_rows_refuse_what_cannot_be_stored() -> None:
    with pytest.raises(InvalidInput, match="NaN"):
        stored_rows(np.array([[np.nan]], np.float32), dtype="fp16")
    with pytest.raises(InvalidInput, match="too large for float16"):
        stored_rows(np.array([[1e6]], np.float32), dtype="fp16")
    zero = stored_rows(np.zeros((2, 3), np.float32), dtype="int8")
    assert not zero["embeddings"].any()
    assert not zero["weights"].any()


def test_tables_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    model, rows = tiny_model(), np.ones((258, 4), np.float32)
    tokenizer = model.backbone.tokenizer
    with pytest.raises(InvalidInput, match="two tables have the task 'a'"):
        write_query_encoder(
            tmp_path / "q", model.contract, tokenizer, QueryEncoderArrays([QueryTable("a", "", rows)] * 2)
        )
    other = QueryTable("b", "", rows[:, :2])
    with pytest.raises(InvalidInput, match="different shapes"):
        write_query_encoder(
            tmp_path / "q", model.contract, tokenizer, QueryEncoderArrays([QueryTable("a", "", rows), other])
        )
    assert not (tmp_path / "q").exists()


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "int8"])
def test_model2vec_and_sentence_transformers_read_the_folder(dtype: str, tmp_path: Path) -> None:
    model2vec = pytest.importorskip("model2vec")
    modules = pytest.importorskip("sentence_transformers.models")
    sentence_transformers = pytest.importorskip("sentence_transformers")
    cache_vocabulary(tiny_model(), tmp_path / "q", options=TableOptions(dtype=dtype))  # type: ignore[arg-type]
    # Apply the query policy to the texts: lower case and a leading blank.
    prepared = [f" {text.lower()}" for text in QUERIES]
    expected = looked_up(tmp_path / "q", QUERIES)
    theirs = model2vec.StaticModel.from_pretrained(tmp_path / "q").encode(prepared, max_length=None)
    np.testing.assert_allclose(theirs, expected, atol=2e-3)
    static = modules.StaticEmbedding.load(str(tmp_path / "q"))
    encoded = sentence_transformers.SentenceTransformer(modules=[static], device="cpu").encode(
        prepared, normalize_embeddings=True
    )
    np.testing.assert_allclose(encoded, expected, atol=2e-3)


def sidr_model(name: str = "llama", *, instruction: str = "Find it") -> LightRetriever:
    """Return a SiDR model whose queries are means of its terms' five strongest terms."""
    backbone = tiny_backbone(name)
    query = QueryPolicy(instruction, weighting="expansion", expansion_terms=5)
    sparse = SparseHead("elu1p", top_k=20, scale=32.0)
    contract = Contract("sidr", backbone_record(backbone), query, DocumentPolicy(), None, sparse)
    return LightRetriever(backbone, contract)


@pytest.mark.parametrize("name", CAUSAL)
def test_cached_expansions_are_the_average_of_what_the_model_gives_each_token_alone(name: str, tmp_path: Path) -> None:
    model = sidr_model(name)
    folder = cache_vocabulary(model, tmp_path / "q", options=TableOptions(dtype="fp32"))
    encoder = CachedQueryEncoder.load(folder)
    actual = encoder.encode(QUERIES).sparse
    assert actual is not None
    head = model.backbone.head
    assert head is not None
    prompt = model.frame_queries([""])[0][0][:-1]
    ids = query_term_ids(model.backbone.tokenizer, model.contract.query, QUERIES)
    for row in range(len(QUERIES)):
        expected = np.zeros(model.backbone.vocab_size)
        for term in ids.row(row).tolist():
            frame = torch.tensor([[*prompt, term]])
            with torch.no_grad():
                state = model.backbone.states(frame, torch.ones_like(frame))[0, -1].double()
            logits = (state @ head.weight.double().T).numpy()
            if head.softcap is not None:
                logits = head.softcap * np.tanh(logits / head.softcap)
            weights = np.where(logits >= 0, logits + 1, np.exp(np.minimum(logits, 0)))
            others = [t for t in np.argsort(-weights) if t != term][:4]
            expected[[*others, term]] += weights[[*others, term]] / len(ids.row(row))
        np.testing.assert_allclose(actual.row(row)[1], expected[expected > 0], rtol=2e-3)
        assert actual.row(row)[0].tolist() == np.flatnonzero(expected).tolist()


def test_expansions_are_of_one_instruction_and_of_sixteen_bits_or_more(tmp_path: Path) -> None:
    model = sidr_model()
    own = CachedQueryEncoder.load(cache_vocabulary(model, tmp_path / "own"))
    other = CachedQueryEncoder.load(
        cache_vocabulary(model, tmp_path / "other", options=TableOptions(instructions=["Name the well"]))
    )
    assert other.contract.query.instruction == "Name the well"
    assert other.document_fingerprint == own.document_fingerprint
    a, b = own.encode(QUERIES).sparse, other.encode(QUERIES).sparse
    assert a is not None
    assert b is not None
    assert not np.array_equal(a.to_dense(), b.to_dense())
    with pytest.raises(InvalidInput, match="one instruction"):
        cache_vocabulary(model, tmp_path / "two", options=TableOptions(instructions=["a", "b"]))
    with pytest.raises(InvalidInput, match="int8"):
        cache_vocabulary(model, tmp_path / "int8", options=TableOptions(dtype="int8"))


def test_counted_terms_have_no_instruction(tmp_path: Path) -> None:
    model = sidr_model()
    counted = dataclasses.replace(model.contract, query=QueryPolicy())
    with pytest.raises(InvalidInput, match="counted"):
        cache_vocabulary(
            LightRetriever(model.backbone, counted), tmp_path / "q", options=TableOptions(instructions=["a"])
        )
