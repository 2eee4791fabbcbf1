"""Texts behind one prompt: the same states as each text alone, with the prompt read once."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from lightir.contract import Contract, DenseHead, DocumentPolicy, SparseHead
from lightir.models import batch_states
from lightir.models.backbones import Attention
from lightir.models.batch_states import TEXTS_BEHIND_PROMPT, read_texts
from lightir.models.encoder import LightRetriever
from lightir.models.framing import Framed
from lightir.models.model_folder import backbone_record
from lightir.models.pooling import Pooling
from lightir.text import QueryPolicy
from tiny_models import CAUSAL, NAMES, tiny_backbone

WORDS = ["a", "short", "one", "that", "grows", "to", "be", "rather", "longer", "than", "all", "others"]
TEXTS = [" ".join(WORDS[: 1 + 3 * i % len(WORDS)]) for i in range(TEXTS_BEHIND_PROMPT + 3)]


def retriever(name: str = "llama", *, pooling: Pooling = "mean", attention: Attention | None = None) -> LightRetriever:
    backbone = tiny_backbone(name, attention=attention)
    contract = Contract(
        "lightretriever",
        backbone_record(backbone),
        QueryPolicy("find what this asks for"),
        DocumentPolicy(),
        DenseHead(pooling),
        SparseHead(),
        attention=backbone.attention,
    )
    return LightRetriever(backbone, contract)


@torch.no_grad()
def check(model: LightRetriever, framed: list[Framed]) -> int:
    """Compare both vectors of every text with those of a forward pass of its own; return the number of tokens read."""
    n_tokens, seen = 0, []
    for read in read_texts(model, framed):
        dense, sparse = model.dense_from(read.states, read.batch), model.sparse_from(read.states, read.batch)
        n_tokens += int(read.batch.attention_mask.sum())
        for row, position in enumerate(read.positions):
            alone = model.batch([framed[position]])
            states = model.states(alone)
            torch.testing.assert_close(dense[row], model.dense_from(states, alone)[0], rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(sparse[row], model.sparse_from(states, alone)[0], rtol=1e-4, atol=1e-5)
            seen.append(position)
    assert sorted(seen) == list(range(len(framed)))
    return n_tokens


def n_tokens(framed: list[Framed], *, prompt: bool) -> int:
    return sum(len(ids) - (0 if prompt else start) for ids, start, _ in framed)


@pytest.mark.parametrize("pooling", ["eos", "last", "mean"])
@pytest.mark.parametrize("name", CAUSAL)
def test_a_causal_model_reads_the_prompt_once(name: str, pooling: Pooling, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LightRetriever, "batch_tokens", property(lambda _: 40))  # several batches
    model = retriever(name, pooling=pooling)
    framed = model.frame_queries(TEXTS)
    assert check(model, framed) == n_tokens(framed, prompt=False)


@pytest.mark.parametrize(
    ("name", "attention"),
    [*((name, None) for name in NAMES if name not in CAUSAL), *((name, "bidirectional") for name in CAUSAL)],
)
def test_with_attention_both_ways_every_text_is_read_with_the_prompt(name: str, attention: Attention | None) -> None:
    model = retriever(name, attention=attention)
    framed = model.frame_queries(TEXTS)
    assert check(model, framed) == n_tokens(framed, prompt=True)


def test_vectors_that_depend_on_the_prompts_states_need_it_in_every_row() -> None:
    model = retriever(pooling="mean_all")
    framed = model.frame_queries(TEXTS)
    assert check(model, framed) == n_tokens(framed, prompt=True)
    model = retriever()
    framed = [*model.frame_queries(TEXTS), *model.frame_queries([""])]  # a query without text is pooled over its frame
    assert check(model, framed) == n_tokens(framed, prompt=True)


def test_different_prompts_few_texts_and_no_prompt() -> None:
    model = retriever()
    framed = [*model.frame_queries(TEXTS), *model.frame_queries(TEXTS, instruction="another")]
    assert check(model, framed) == n_tokens(framed, prompt=True)
    few = model.frame_queries(TEXTS[: TEXTS_BEHIND_PROMPT - 1])
    assert check(model, few) == n_tokens(few, prompt=True)
    assert check(model, [(ids[start:], 0, stop - start) for ids, start, stop in framed])
    assert check(model, []) == 0


def test_an_echoed_text_comes_behind_its_own_first_copy() -> None:
    model = retriever()
    model.contract = dataclasses.replace(model.contract, attention="echo")
    framed = model.frame_queries(TEXTS)
    assert check(model, framed) == n_tokens(framed, prompt=True)


@torch.no_grad()
def test_a_model_that_reads_queries_with_fewer_layers_reads_their_prompt_so_too() -> None:
    model = retriever()
    model.contract = dataclasses.replace(model.contract, query_layers=1)
    framed = model.frame_queries(TEXTS)
    with model.reading_queries():
        assert check(model, framed) == n_tokens(framed, prompt=False)
        shallow = next(iter(read_texts(model, framed)))
    whole = next(iter(read_texts(model, framed)))
    assert not torch.allclose(shallow.states, whole.states, atol=1e-2)


def test_another_prompt_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = retriever()
    framed = model.frame_queries(TEXTS)
    other = model.prompt_cache(instruction="find it")
    monkeypatch.setattr(batch_states, "prompt_cache", lambda *_, **__: other)
    with pytest.raises(AssertionError):
        check(model, framed)
