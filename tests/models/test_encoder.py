"""LightRetriever: frames, batches, light queries, calibration and model folders."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch import nn
from transformers import Gemma2ForCausalLM

from lightir.contract import Contract, DenseHead, DocumentPolicy, SparseHead
from lightir.errors import ContractMismatch, FormatError, InvalidInput
from lightir.models.adapters import add_lora
from lightir.models.backbones import Attention, load_backbone, wrap_model
from lightir.models.encoder import LightRetriever
from lightir.models.model_folder import backbone_record
from lightir.models.pooling import POOLINGS, Pooling
from lightir.text import QueryPolicy, TextTokenizer, query_term_ids
from lightir.types import Document
from tiny_models import BOS, CAUSAL, EOS, HIDDEN, NAMES, full_queries, save_tiny, tiny_backbone

TEXTS = ["a short one", "x", "a rather longer text than all the others here", "Seven"]
QUERY = QueryPolicy("find it")

NO_TEXT_SEEN = {(name, "first") for name in CAUSAL}
"""Pooling of a causal model's first state."""


def retriever(
    name: str = "llama",
    *,
    attention: Attention | None = None,
    pooling: Pooling = "eos",
    document: DocumentPolicy | None = None,
    sparse: SparseHead | None = None,
    address: Path | None = None,
) -> LightRetriever:
    backbone = tiny_backbone(name, attention=attention) if address is None else load_backbone(address)
    contract = Contract(
        "lightretriever",
        backbone_record(backbone),
        QUERY,
        document or DocumentPolicy(),
        DenseHead(pooling),
        sparse or SparseHead(),
        attention=backbone.attention,
    )
    return LightRetriever(backbone, contract)


def error(ours: torch.Tensor, expected: torch.Tensor) -> float:
    return float((ours - expected).norm() / expected.norm())


@torch.no_grad()
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(
    ("name", "attention"), [*((name, None) for name in NAMES), *((name, "bidirectional") for name in CAUSAL)]
)
def test_a_batch_of_one_equals_a_batch_of_many(name: str, attention: Attention | None, side: str) -> None:
    model = retriever(name, attention=attention)
    framed = model.frame_documents(TEXTS)
    together = model.batch(framed, padding_side=side)
    states = model.states(together)
    dense, sparse = model.dense_from(states, together), model.sparse_from(states, together)
    for row, frame in enumerate(framed):
        alone = model.batch([frame])
        own = model.states(alone)
        assert error(dense[row], model.dense_from(own, alone)[0]) < 1e-5
        assert error(sparse[row], model.sparse_from(own, alone)[0]) < 1e-5


def test_the_text_is_cut_and_the_frame_never() -> None:
    policy = DocumentPolicy(prompt="Summary: ", max_tokens=16)
    model = retriever(document=policy)
    ids, start, stop = model.frame_documents([Document("d", "b" * 100, "Title")])[0]
    prompt = model.backbone.tokenizer.term_ids(["Summary: "]).row(0).tolist()
    text = model.backbone.tokenizer.term_ids(["title bbbbbbb"]).row(0).tolist()
    assert len(ids) == 16
    assert ids[:start] == [BOS, *prompt]
    assert ids[start:stop] == text[: 16 - len(prompt) - 2]
    assert ids[stop:] == [EOS]
    bare = retriever(document=DocumentPolicy(bos=False, eos=False, lower_case=False))
    assert bare.frame_documents(["AB"])[0] == (bare.backbone.tokenizer.term_ids(["AB"]).row(0).tolist(), 0, 2)
    with pytest.raises(InvalidInput, match="no room"):
        retriever(document=DocumentPolicy(prompt="x" * 20, max_tokens=16)).frame_documents(["a"])


def test_blanks_in_front_of_a_text_take_nothing_of_it() -> None:
    model = retriever(document=DocumentPolicy(max_tokens=16))
    framed = model.frame_documents(["some text"])
    assert model.frame_documents([" \n" * 10_000 + "some text"]) == framed
    assert model.frame_documents(["some text \n"]) == framed
    assert model.frame_documents([]) == []
    assert model.batch([]).input_ids.shape == (0, 1)


def test_a_query_is_cut_behind_its_prompt_and_its_suffix_stays() -> None:
    short = dataclasses.replace(QUERY, max_tokens=3, suffix=" so:")
    model = retriever()
    model = LightRetriever(model.backbone, dataclasses.replace(model.contract, query=short))
    ids, start, stop = model.frame_queries(["b" * 100])[0]
    prompt, suffix = (
        model.backbone.tokenizer.term_ids([text]).row(0).tolist() for text in ("Instruct: find it\nQuery: ", " so:")
    )
    text = query_term_ids(model.backbone.tokenizer, QUERY, ["b" * 100]).row(0).tolist()[:3]
    assert ids == [BOS, *prompt, *text, *suffix, EOS]
    assert ids[start:stop] == text


def test_a_full_query_has_the_prompt_and_the_terms_of_the_light_one() -> None:
    model = retriever()
    ids, start, stop = model.frame_queries(["What is it?"])[0]
    terms = query_term_ids(model.backbone.tokenizer, QUERY, ["What is it?"]).row(0).tolist()
    prompt = model.backbone.tokenizer.term_ids(["Instruct: find it\nQuery: "]).row(0).tolist()
    assert (ids, start, stop) == ([BOS, *prompt, *terms, EOS], len(prompt) + 1, len(prompt) + 1 + len(terms))


def merging_tokenizer() -> TextTokenizer:
    """A byte-level BPE that joins a blank with the following word, like those of LLMs."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    inner.train_from_iterator(["Query: the cat sat on the mat, the cat the cat"] * 5, trainer)
    return TextTokenizer(inner)


def test_no_token_is_merged_across_the_border_of_a_prompt_and_its_text() -> None:
    tokenizer, model = merging_tokenizer(), retriever(document=DocumentPolicy(prompt="Read: ", suffix=" the"))
    query = QueryPolicy("find", leading_blank=False)
    contract = dataclasses.replace(model.contract, query=query)
    model = LightRetriever(dataclasses.replace(model.backbone, tokenizer=tokenizer), contract)

    def ids(text: str) -> list[int]:
        actual: list[int] = tokenizer.term_ids([text]).row(0).tolist()
        return actual

    prompt = "Instruct: find\nQuery: "
    assert ids(prompt + "the cat") != ids(prompt) + ids("the cat")
    terms = query_term_ids(tokenizer, query, ["The cat"]).row(0).tolist()
    assert model.frame_queries(["The cat"])[0][0] == [BOS, *ids(prompt), *terms, EOS]
    assert terms == ids("the cat")
    frame = model.frame_documents([Document("d", "cat", "the")])[0][0]
    assert frame == [BOS, *ids("Read: "), *ids("the cat"), *ids(" the"), EOS]


@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "pooling"), [(n, p) for n in ("llama", "gemma3", "bert") for p in POOLINGS if (n, p) not in NO_TEXT_SEEN]
)
def test_a_light_query_is_the_mean_of_its_tokens_alone(name: str, pooling: Pooling) -> None:
    model = retriever(name, pooling=pooling)
    model.heads = dataclasses.replace(model.heads, mean=torch.randn(HIDDEN), deviation=torch.rand(HIDDEN) + 0.5)
    term_ids = query_term_ids(model.backbone.tokenizer, QUERY, ["abba", "", "b"])
    light = model.light_queries(term_ids)
    expected = []
    for term in term_ids.row(0).tolist():
        frame = model.frame_queries([""])[0][0][:-1]  # without the end token
        batch = model.batch([([*frame, term, EOS], len(frame), len(frame) + 1)])
        expected.append(model.dense_from(model.states(batch), batch)[0])
    assert error(light[0], torch.stack(expected).mean(0)) < 1e-5
    assert light[1].eq(0).all()
    torch.testing.assert_close(model.light_queries(term_ids, pad_to=8), light, rtol=1e-4, atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("eos", [True, False])
@pytest.mark.parametrize("bos", [True, False])
@pytest.mark.parametrize(("name", "attention"), [("llama", None), ("llama", "bidirectional"), ("bert", None)])
def test_a_light_query_of_one_token_is_the_full_one_in_any_frame(
    name: str, attention: Attention | None, bos: bool, eos: bool
) -> None:
    document = DocumentPolicy(bos=bos, eos=eos)
    for pooling in POOLINGS:
        if pooling == "first" and (attention is None and name == "llama"):
            continue
        model = retriever(name, attention=attention, pooling=pooling, document=document)
        query = dataclasses.replace(model.contract.query, leading_blank=False)
        model.contract = dataclasses.replace(model.contract, query=query)
        full, token = full_queries(model, ["k"]), model.backbone.tokenizer.term_ids(["k"])
        assert error(model.light_queries(token), full) < 1e-5
        ids = torch.from_numpy(token.term_ids.astype("int64"))
        cached = model.token_vectors(ids, cache=model.prompt_cache())
        assert error(cached, full) < 1e-5
        batch = model.batch(model.frame_queries(["k"]))
        weights = model.token_weights(ids, cache=model.prompt_cache())
        assert error(weights, model.sparse_from(model.states(batch), batch)) < 1e-5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"suffix": " so:"}, "it has no light queries"),
        ({"bigrams": "0123456789abcdef"}, "encodes its light queries"),
        ({"tokenizer": "0123456789abcdef"}, "encodes its light queries"),
    ],
)
def test_light_queries_that_the_model_cannot_give_are_refused(change: dict[str, str], message: str) -> None:
    model = retriever()
    query = dataclasses.replace(QUERY, **change)  # type: ignore[arg-type]
    model.contract = dataclasses.replace(model.contract, query=query)
    with pytest.raises(InvalidInput, match=message):
        model.light_queries(model.backbone.tokenizer.term_ids(["a"]))


def test_a_batch_has_the_length_that_is_asked_for_and_no_text_is_cut_for_it() -> None:
    model = retriever()
    framed = model.frame_documents(TEXTS)
    longest = max(len(ids) for ids, _, _ in framed)
    assert model.batch(framed).input_ids.shape[1] == longest
    assert model.batch(framed, length=longest + 5).input_ids.shape[1] == longest + 5
    with pytest.raises(InvalidInput, match=f"{longest} tokens does not fit a batch of length {longest - 1}"):
        model.batch(framed, length=longest - 1)


@torch.no_grad()
def test_only_the_texts_own_positions_reach_the_sparse_head() -> None:
    model = retriever(document=DocumentPolicy(prompt="Text: "))
    batch = model.batch(model.frame_documents(TEXTS), padding_side="left")
    states = model.states(batch)
    disturbed = states.masked_fill(~batch.own_mask[:, :, None], 1e4)
    assert torch.equal(model.sparse_from(states, batch), model.sparse_from(disturbed, batch))
    assert model.backbone.head is not None
    logits = states @ model.backbone.head.weight.T
    naive = logits.masked_fill(~batch.own_mask[:, :, None], -torch.inf).amax(1).relu().log1p()
    torch.testing.assert_close(model.sparse_from(states, batch), naive, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_a_final_soft_cap_is_that_of_the_models_own_logits() -> None:
    model = retriever("gemma2")
    model.backbone.model.config.final_logit_softcapping = 2.0
    whole = Gemma2ForCausalLM(model.backbone.model.config).eval()
    whole.model, whole.lm_head.weight = model.backbone.model, nn.Parameter(model.backbone.head.weight)
    ids = {"bos": BOS, "eos": EOS}
    model.backbone = wrap_model(whole, model.backbone.tokenizer, special_ids=ids)
    batch = model.batch(model.frame_documents(TEXTS))
    states = model.states(batch)
    logits = whole.lm_head(states)
    expected = torch.tanh(logits / 2.0) * 2.0
    first = batch.input_ids[:1, batch.attention_mask[0]]
    torch.testing.assert_close(expected[:1, : first.shape[1]], whole(input_ids=first).logits, rtol=1e-4, atol=1e-4)
    assert float((expected - logits).abs().max()) > 0.5
    naive = expected.masked_fill(~batch.own_mask[:, :, None], -torch.inf).amax(1)
    torch.testing.assert_close(model.maxima(states, batch), naive, rtol=1e-5, atol=1e-5)
    bias = torch.randn(naive.shape[1])
    model.heads = dataclasses.replace(model.heads, term_bias=bias)
    weights = model.sparse_from(states, batch)
    torch.testing.assert_close(weights, (naive + bias).relu().log1p(), rtol=1e-5, atol=1e-5)
    terms = torch.tensor([5, 200, 7])
    torch.testing.assert_close(model.sparse_from(states, batch, terms=terms), weights[:, terms], rtol=1e-5, atol=1e-5)
    empty = dataclasses.replace(batch, own_mask=torch.zeros_like(batch.own_mask))
    assert model.sparse_from(states, empty).eq(0).all()


def test_calibration_standardises_and_thins_out() -> None:
    model = retriever(pooling="mean", sparse=SparseHead(bias_hash="wanted"))
    model.contract = dataclasses.replace(model.contract, dense=DenseHead("mean", "wanted"))
    texts = [f"{word} {n} {word[::-1]}" for n in range(20) for word in ("stone", "river", "cloud")]
    with torch.no_grad():
        before = _sparse(model, texts) > 0
        model.calibrate(texts, quantile=0.9)
        weights = _sparse(model, texts)
        batch = model.batch(model.frame_documents(texts))
        dense = model.dense_from(model.states(batch), batch)
    assert float(before.float().mean()) > 0.5
    assert 0.02 < float((weights > 0).float().mean()) <= 0.1  # equal documents tie at the quantile
    torch.testing.assert_close(dense.mean(0), torch.zeros(HIDDEN), atol=1e-4, rtol=0)
    assert model.contract.dense is not None
    assert model.contract.sparse is not None
    assert len(model.contract.dense.standardized) == len(model.contract.sparse.bias_hash) == 16


def _sparse(model: LightRetriever, texts: list[str]) -> torch.Tensor:
    batch = model.batch(model.frame_documents(texts))
    return model.sparse_from(model.states(batch), batch)


@torch.no_grad()
def test_stored_documents_are_normalised_cut_and_quantised() -> None:
    model = retriever(sparse=SparseHead(top_k=5, scale=10.0))
    model.contract = dataclasses.replace(model.contract, dense=DenseHead("eos", "", (8, 4)))
    bias = 5 * torch.randn(model.backbone.vocab_size, generator=torch.Generator().manual_seed(3)) - 5
    model.heads = dataclasses.replace(model.heads, term_bias=bias)
    batch = model.batch(model.frame_documents(TEXTS))
    dense, sparse = model.encode_batch(batch)
    assert dense is not None
    assert sparse is not None
    states = model.states(batch)
    expected = model.dense_from(states, batch)[:, :8]
    torch.testing.assert_close(dense, expected / expected.norm(dim=1, keepdim=True))
    weights = model.sparse_from(states, batch).numpy()
    for row in range(len(TEXTS)):
        term_ids, impacts = sparse.row(row)
        assert 0 < len(term_ids) <= 5
        assert impacts.tolist() == np.minimum(np.rint(weights[row][term_ids] * np.float32(10)), 255).tolist()
        assert weights[row][term_ids].min() >= np.sort(weights[row])[-5]


@torch.no_grad()
@pytest.mark.parametrize("name", ["llama", "gemma3", "bert"])
def test_a_saved_model_loads_to_the_same_vectors(name: str, tmp_path: Path) -> None:
    save_tiny(name, tmp_path / "base")
    model = retriever(name, address=tmp_path / "base", pooling="mean", sparse=SparseHead(bias_hash="wanted"))
    model = LightRetriever(add_lora(model.backbone, rank=4, dropout=0.0), model.contract)
    for parameter in model.trunk.parameters():
        if parameter.requires_grad:
            parameter.data = torch.randn_like(parameter).bfloat16().float() * 0.25  # exact in bf16, as it is saved
    model.calibrate(TEXTS, quantile=0.5)
    contract = model.save(tmp_path / "model")
    (tmp_path / "any").touch()
    files = [path for path in (tmp_path / "model").rglob("*") if path.is_file()]
    assert {path.stat().st_mode for path in files} == {(tmp_path / "any").stat().st_mode}
    back = LightRetriever.load(tmp_path / "model")
    assert back.contract == contract
    assert contract.backbone.adapter_hash != ""
    for ours, theirs in zip(_vectors(back), _vectors(model), strict=True):
        assert error(ours, theirs) < 1e-4


def _vectors(model: LightRetriever) -> tuple[torch.Tensor, torch.Tensor]:
    batch = model.batch(model.frame_documents(TEXTS))
    states = model.states(batch)
    return model.dense_from(states, batch), model.sparse_from(states, batch)


def test_a_changed_part_is_refused_with_both_hashes(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path / "base")
    model = retriever(address=tmp_path / "base", sparse=SparseHead(bias_hash="wanted"))
    model.calibrate(TEXTS, quantile=0.5)
    contract = model.save(tmp_path / "model")
    arrays = load_file(tmp_path / "model" / "head.safetensors")
    save_file({name: value + 1 for name, value in arrays.items()}, tmp_path / "model" / "head.safetensors")
    assert contract.sparse is not None
    with pytest.raises(ContractMismatch, match=contract.sparse.bias_hash):
        LightRetriever.load(tmp_path / "model")
    save_file(arrays, tmp_path / "model" / "head.safetensors")
    LightRetriever.load(tmp_path / "model")
    weights = load_file(tmp_path / "base" / "model.safetensors")
    save_file({n: v * 1.5 for n, v in weights.items()}, tmp_path / "base" / "model.safetensors", {"format": "pt"})
    with pytest.raises(ContractMismatch, match="weights_hash"):
        LightRetriever.load(tmp_path / "model")


def test_the_tokenizer_in_the_folder_is_the_backbones(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path / "base")
    retriever(address=tmp_path / "base").save(tmp_path / "model")
    written = json.loads((tmp_path / "model" / "tokenizer.json").read_text())
    assert written["model"] == json.loads((tmp_path / "base" / "tokenizer.json").read_text())["model"]


@pytest.mark.parametrize("device", ["nowhere", "cuda:99", ""])
def test_a_device_that_is_not_there_is_refused(device: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=f"device '{device}' cannot be used"):
        LightRetriever.load(tmp_path, device=device)


@pytest.mark.parametrize("content", [b"", b"null", b"[[1]]", b'{"a": 1}' * 40, b"\xff" * 100])
@pytest.mark.parametrize(
    "name", ["head.safetensors", "adapter/adapter_model.safetensors", "adapter/adapter_config.json"]
)
def test_a_damaged_file_is_named(saved: Path, name: str, content: bytes) -> None:
    whole = (saved / name).read_bytes()
    try:
        (saved / name).write_bytes(content)
        with pytest.raises(FormatError, match=name.rpartition("/")[2].replace(".", r"\.")):
            LightRetriever.load(saved)
    finally:
        (saved / name).write_bytes(whole)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder with an adapter and head arrays; its backbone is in the folder next to it."""
    folder = tmp_path_factory.mktemp("saved")
    save_tiny("llama", folder / "base")
    model = retriever(address=folder / "base", sparse=SparseHead(bias_hash="wanted"))
    model = LightRetriever(add_lora(model.backbone, rank=4, dropout=0.0), model.contract)
    model.calibrate(TEXTS, quantile=0.5)
    model.save(folder / "model")
    return folder / "model"
