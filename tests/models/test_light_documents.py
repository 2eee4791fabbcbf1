"""Baselines: light documents, input embeddings as a query table, and document prompts."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest
import torch

from lightir.contract import Contract, DenseHead, DocumentPolicy, SparseHead
from lightir.encode.vocabulary import cached_table
from lightir.errors import InvalidInput
from lightir.models.adapters import add_lora
from lightir.models.encoder import LightRetriever
from lightir.models.model_folder import backbone_record
from lightir.text import QueryPolicy
from lightir.vectors import Ragged
from tiny_models import BOS, EOS, tiny_backbone

TEXTS = ["a cat", "bread and piano", "", "aaa"]


def model(
    name: str = "llama",
    *,
    query: QueryPolicy | None = None,
    pooling: str = "eos",
    attention: str = "causal",
    **policy: object,
) -> LightRetriever:
    backbone = tiny_backbone(name)
    backbone.trunk.double()
    contract = Contract(
        method="dense",
        backbone=backbone_record(backbone),
        query=query or QueryPolicy(),
        document=DocumentPolicy(**policy),  # type: ignore[arg-type]
        dense=DenseHead(pooling),  # type: ignore[arg-type]
        sparse=SparseHead(scale=16.0),
        attention=attention,  # type: ignore[arg-type]
    )
    return LightRetriever(backbone, contract)


def ids_of(retriever: LightRetriever, text: str) -> list[int]:
    ids: list[int] = retriever.backbone.tokenizer.term_ids([text]).row(0).tolist()
    return ids


@pytest.mark.parametrize("pooling", ["eos", "last", "mean"])
@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_a_light_document_is_the_mean_of_its_tokens_each_encoded_alone(name: str, pooling: str) -> None:
    retriever = model(name, pooling=pooling, light=True, prompt="p: ")
    batch = retriever.batch(retriever.frame_documents(TEXTS), padding_side="left")
    dense, _ = retriever.document_vectors(batch)
    assert dense is not None
    for row, text in enumerate(TEXTS):
        alone = []
        for token in ids_of(retriever, text):
            sequence = torch.tensor([[BOS, *ids_of(retriever, "p: "), token, EOS]])
            states = retriever.backbone.states(sequence, torch.ones_like(sequence))[0]
            alone.append(states[-1] if pooling == "eos" else states[-2])
        expected = torch.stack(alone).mean(0) if alone else torch.zeros(retriever.backbone.hidden_size).double()
        torch.testing.assert_close(dense[row].double(), expected, atol=2e-5, rtol=1e-5)


def test_a_light_documents_terms_are_counted() -> None:
    retriever = model(light=True)
    batch = retriever.batch(retriever.frame_documents(TEXTS))
    _, counts = retriever.document_vectors(batch, dense=False)
    terms = torch.tensor(ids_of(retriever, "ab"))
    _, some = retriever.document_vectors(batch, dense=False, terms=terms)
    assert counts is not None
    assert some is not None
    for row, text in enumerate(TEXTS):
        assert {t: int(n) for t, n in enumerate(counts[row].tolist()) if n} == Counter(ids_of(retriever, text))
    torch.testing.assert_close(some, counts[:, terms])
    dense, impacts = retriever.encode_batch(batch)
    assert dense is not None
    assert impacts is not None
    assert dict(zip(impacts.row(3)[0].tolist(), impacts.row(3)[1].tolist(), strict=True)) == {
        ids_of(retriever, "a")[0]: 48
    }


def test_gradients_of_light_documents_reach_the_adapter() -> None:
    retriever = model(light=True)
    adapted = LightRetriever(add_lora(retriever.backbone, rank=2, alpha=4, dropout=0.0), retriever.contract)
    dense, _ = adapted.document_vectors(adapted.batch(adapted.frame_documents(TEXTS[:2])), sparse=False)
    assert dense is not None
    dense.square().sum().backward()  # type: ignore[no-untyped-call]
    assert sum(float(p.grad.abs().sum()) for p in adapted.trunk.parameters() if p.grad is not None) > 0


def test_what_cannot_be_light_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no suffix and one end"):
        DocumentPolicy(light=True, suffix="x")
    with pytest.raises(InvalidInput, match="repeat for an echo"):
        model(light=True, attention="echo")


def test_the_input_embeddings_serve_as_a_query_table() -> None:
    retriever = model(query=QueryPolicy(instruction="find it", token_vectors="embeddings"))
    weight = retriever.backbone.model.get_input_embeddings().weight
    light = retriever.light_queries(Ragged.from_lists([[5, 5, 9], []]))
    torch.testing.assert_close(light[0], ((2 * weight[5] + weight[9]) / 3).float())
    assert not light[1].any()
    torch.testing.assert_close(
        torch.from_numpy(cached_table(retriever)), weight[: retriever.backbone.tokenizer.vocab_size].float()
    )


def test_a_prompt_format_needs_no_instruction_and_an_echo_may_have_two_prompts() -> None:
    assert QueryPolicy(prompt_format="Query: ").prompt == "Query: "
    assert QueryPolicy().prompt == ""
    assert QueryPolicy("do {x}").prompt == "Instruct: do {x}\nQuery: "
    query = QueryPolicy(lower_case=False, leading_blank=False, prompt_format="Rewrite: ", echo_prompt=". Again: ")
    retriever = model(query=query, attention="echo", prompt="P:", echo_prompt="-{prompt}", lower_case=False)
    ((ids, start, stop),) = retriever.frame_queries(["cat"])
    assert ids == [BOS, *ids_of(retriever, "Rewrite: cat. Again: cat"), EOS]
    assert ids[start:stop] == ids_of(retriever, "cat")
    ((ids, start, stop),) = retriever.frame_documents(["cat"])
    assert ids == [BOS, *ids_of(retriever, "P:cat-P:cat"), EOS]
    assert (stop - start, stop) == (3, len(ids) - 1)


def test_records_without_the_new_fields_keep_their_fingerprint() -> None:
    contract = model().contract
    assert contract.fingerprint != dataclasses.replace(contract, document=DocumentPolicy(light=True)).fingerprint
    changed = dataclasses.replace(contract.query, prompt_format="Query: ")
    assert contract.fingerprint != dataclasses.replace(contract, query=changed).fingerprint
    assert contract.document_fingerprint == dataclasses.replace(contract, query=changed).document_fingerprint
