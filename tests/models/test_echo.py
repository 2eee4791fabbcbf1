"""Attention variants of a causal model: echo, which pools over a text's second copy, and bidirectional."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from lightir.contract import Contract, DenseHead, DocumentPolicy, SparseHead
from lightir.encode import EncodeOptions, cache_vocabulary, encode_corpus
from lightir.errors import InvalidInput
from lightir.models.backbones import load_backbone
from lightir.models.encoder import LightRetriever
from lightir.models.heads import activate
from lightir.models.model_folder import backbone_record
from lightir.query import CachedQueryEncoder
from lightir.shards import VectorsReader
from lightir.text import QueryPolicy
from lightir.types import Document
from tiny_models import BOS, CAUSAL, EOS, save_tiny, tiny_backbone

TEXTS = ["cat", "a longer text about a river", "x", "bread and piano"]


def echo(name: str = "llama", *, pooling: str = "mean", instruction: str = "", **policy: object) -> LightRetriever:
    backbone = tiny_backbone(name)
    contract = Contract(
        method="csplade",
        backbone=backbone_record(backbone),
        query=QueryPolicy(instruction=instruction),
        document=DocumentPolicy(**policy),  # type: ignore[arg-type]
        dense=DenseHead(pooling),  # type: ignore[arg-type]
        sparse=SparseHead(),
        attention="echo",
    )
    return LightRetriever(backbone, contract)


def test_a_text_is_framed_twice_and_its_second_copy_marked() -> None:
    model = echo(prompt="p:")
    p, colon, a, b = (ord(letter) for letter in "p:ab")
    table = {letter: model.backbone.tokenizer.term_ids([chr(letter)]).row(0)[0] for letter in (p, colon, a, b)}
    (ids, start, stop), (empty, *span) = model.frame_documents(["ab", ""])
    copy = [table[p], table[colon], table[a], table[b]]
    assert ids == [BOS, *copy, *copy, EOS]
    assert (start, stop) == (7, 9)
    assert empty == [BOS, *copy[:2], *copy[:2], EOS]
    assert span == [5, 5]


@pytest.mark.parametrize("max_tokens", [8, 9, 10])
def test_both_copies_stay_within_the_longest_input(max_tokens: int) -> None:
    ((ids, start, stop),) = echo(prompt="p:", max_tokens=max_tokens).frame_documents(["abcdefghi"])
    assert len(ids) <= max_tokens
    assert stop - start == (max_tokens - 2) // 2 - 2
    with pytest.raises(InvalidInput, match="no room"):
        echo(prompt="p:", max_tokens=7).frame_documents(["abc"])


@pytest.mark.parametrize("name", CAUSAL)
@pytest.mark.parametrize("padding_side", ["left", "right"])
def test_a_batch_of_one_equals_a_batch_of_many_on_any_padding_side(name: str, padding_side: str) -> None:
    model = echo(name)
    framed = model.frame_documents(TEXTS)
    with torch.no_grad():
        together = model.batch(framed, padding_side=padding_side, length=80)
        states = model.states(together)
        for row, text in enumerate(framed):
            alone = model.batch([text])
            own = model.states(alone)
            for whole, single in (
                (model.dense_from(states, together)[row], model.dense_from(own, alone)[0]),
                (model.sparse_from(states, together)[row], model.sparse_from(own, alone)[0]),
            ):
                torch.testing.assert_close(whole, single, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("pooling", ["mean", "last", "eos"])
def test_vectors_are_pooled_over_the_second_copy_of_a_plain_causal_forward(pooling: str) -> None:
    model = echo(pooling=pooling)
    (frame,) = model.frame_documents(["abc"])
    batch = model.batch([frame])
    with torch.no_grad():
        states = model.backbone.states(torch.tensor([frame[0]]), None)[0]  # transformers' own causal mask
        second = states[4:7]
        wanted = {"mean": second.mean(0), "last": states[6], "eos": states[7]}[pooling]
        torch.testing.assert_close(model.dense_from(model.states(batch), batch)[0], wanted, atol=1e-5, rtol=1e-4)
        assert model.backbone.head is not None
        maxima = (second @ model.backbone.head.weight.T).amax(0)
        torch.testing.assert_close(
            model.sparse_from(model.states(batch), batch)[0], activate(maxima), atol=1e-5, rtol=1e-4
        )


def test_the_first_token_knows_the_last_word_under_echo_and_bidirectional_attention_alone() -> None:
    def first_state(model: LightRetriever, text: str) -> torch.Tensor:
        framed = model.frame_documents([text])
        batch = model.batch(framed)
        with torch.no_grad():
            return model.states(batch)[0, framed[0][1]]

    def changes(model: LightRetriever) -> bool:
        return not torch.allclose(first_state(model, "ab c"), first_state(model, "ab d"), atol=1e-4)

    both = tiny_backbone("llama", attention="bidirectional")
    assert changes(echo())
    assert changes(LightRetriever(both, dataclasses.replace(echo().contract, attention="bidirectional")))
    plain = dataclasses.replace(echo().contract, attention="causal")
    assert not changes(LightRetriever(tiny_backbone("llama"), plain))


def test_a_single_tokens_vector_is_that_of_the_one_token_query() -> None:
    model = echo(instruction="find")
    tokens = torch.tensor([70, 5, 200])
    with torch.no_grad():
        rows, weights = model.token_vectors(tokens), model.token_weights(tokens)
        prompt = model.backbone.tokenizer.term_ids([model.contract.query.prompt]).row(0).tolist()
        for token, row, sparse in zip(tokens.tolist(), rows, weights, strict=True):
            copy = [*prompt, token]
            ids = [BOS, *copy, *copy, EOS]
            batch = model.batch([(ids, len(ids) - 2, len(ids) - 1)])
            states = model.states(batch)
            torch.testing.assert_close(row, model.dense_from(states, batch)[0], atol=2e-5, rtol=1e-4)
            torch.testing.assert_close(sparse, model.sparse_from(states, batch)[0], atol=2e-5, rtol=1e-4)
    assert model.prompt_cache() is None


def test_an_echo_model_is_saved_loaded_encoded_and_cached(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path / "base")
    model = echo()
    backbone = load_backbone(tmp_path / "base")
    model = LightRetriever(backbone, dataclasses.replace(model.contract, backbone=backbone_record(backbone)))
    model.save(tmp_path / "model")
    loaded = LightRetriever.load(tmp_path / "model")
    assert loaded.contract.attention == "echo"
    documents = [Document(str(number), text) for number, text in enumerate(TEXTS)]
    encode_corpus(loaded, documents, tmp_path / "vectors", options=EncodeOptions(batch_tokens=64))
    (shard,) = VectorsReader(tmp_path / "vectors")
    (frame,) = model.frame_documents([TEXTS[1]])
    dense, _ = model.encode_batch(model.batch([frame]))
    assert dense is not None
    torch.testing.assert_close(torch.from_numpy(shard.dense[1]).float(), dense[0], atol=2e-3, rtol=0)
    cache_vocabulary(loaded, tmp_path / "query-encoder")
    vectors = CachedQueryEncoder.load(tmp_path / "query-encoder").encode(["bread"])
    assert vectors.dense is not None


def test_echo_is_refused_where_it_means_nothing() -> None:
    with pytest.raises(InvalidInput, match="second copy"):
        echo(pooling="mean_all")
    bert = tiny_backbone("bert")
    with pytest.raises(InvalidInput, match="second copy"):
        LightRetriever(bert, dataclasses.replace(echo().contract, backbone=backbone_record(bert)))
