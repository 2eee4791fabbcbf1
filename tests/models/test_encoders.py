"""Encoders of every family: states, heads and single tokens compared with transformers, and limits of positions."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForMaskedLM, PreTrainedModel

from lightir.contract import Contract, DenseHead, DocumentPolicy, SparseHead
from lightir.encode.full_queries import FullQueryEncoder
from lightir.errors import InvalidInput
from lightir.models.backbones import lm_head, load_backbone
from lightir.models.encoder import LightRetriever
from lightir.models.masks import token_states
from lightir.models.model_folder import backbone_record
from lightir.text import QueryPolicy
from tiny_models import BOS, ENCODERS, EOS, PAD, save_tiny, tiny_backbone

TEXTS = ["short", "", "a text that is longer than the others", "x"]
WITH_TABLES = {"bert": 256, "distilbert": 256, "electra": 256, "mpnet": 256 - 2, "xlm-roberta": 256 - PAD - 1}
"""Maximum number of tokens of a text, of 256 rows of the position table, by family."""


def retriever(name: str, **policy: object) -> LightRetriever:
    backbone = tiny_backbone(name)
    query = QueryPolicy(prompt_format="q: ", leading_blank=False, max_tokens=1000)
    document = DocumentPolicy(**policy)  # type: ignore[arg-type]
    record = backbone_record(backbone)
    contract = Contract("dense", record, query, document, DenseHead("mean"), SparseHead(), attention="bidirectional")
    return LightRetriever(backbone, contract)


def positions(model: PreTrainedModel, ids: list[int]) -> dict[str, Tensor]:
    """Return position ids for MPNet, which treats id 1, our end token, as padding; nothing for other models."""
    return {"position_ids": torch.arange(2, len(ids) + 2)[None]} if model.config.model_type == "mpnet" else {}


def own_states(model: PreTrainedModel, ids: list[int]) -> Tensor:
    """Encode one text alone, at the model's own positions."""
    actual: Tensor = model.base_model(torch.tensor([ids]), **positions(model, ids)).last_hidden_state[0]
    return actual


@torch.no_grad()
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", ENCODERS)
def test_padded_texts_have_the_states_of_the_models_own_forward(name: str, side: str, tmp_path: Path) -> None:
    save_tiny(name, tmp_path)
    model = retriever(name)
    model = LightRetriever(load_backbone(tmp_path), model.contract)
    own = AutoModelForMaskedLM.from_pretrained(tmp_path).eval()
    framed = model.frame_documents(TEXTS)
    batch = model.batch(framed, padding_side=side)
    states, maxima = model.states(batch), model.maxima(model.states(batch), batch)
    for row, (ids, start, stop) in enumerate(framed):
        torch.testing.assert_close(states[row][batch.attention_mask[row]], own_states(own, ids), rtol=1e-4, atol=1e-4)
        if start < stop:
            expected = own(torch.tensor([ids]), **positions(own, ids)).logits[0, start:stop].amax(0)
            torch.testing.assert_close(maxima[row], expected, rtol=1e-4, atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("name", ENCODERS)
def test_a_single_token_stands_where_the_model_itself_would_put_it(name: str) -> None:
    backbone = tiny_backbone(name)
    ours = token_states(backbone, [40, 41], torch.tensor([60, 61]), pooling="mean")
    expected = torch.stack([own_states(backbone.model, [BOS, 40, 41, token, EOS])[3] for token in (60, 61)])
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("name", ENCODERS)
def test_a_query_is_read_as_far_as_there_are_positions_and_a_longer_document_is_refused(name: str) -> None:
    model = retriever(name, max_tokens=300)
    assert model.backbone.max_positions == WITH_TABLES.get(name)
    if name not in WITH_TABLES:
        assert len(model.frame_queries(["b" * 400])[0][0]) == 400 + 5
        assert len(model.frame_documents(["b" * 400])[0][0]) == 300
        return
    most = WITH_TABLES[name]
    (ids, start, stop), (at_most, _, _) = model.frame_queries(["b" * 400, "b" * (most - 5)])
    assert (len(ids), len(at_most), ids[-1]) == (most, most, EOS)
    assert stop - start == most - 5
    actual = FullQueryEncoder(model).encode(["b" * 400, "b" * (most - 5)]).dense
    assert actual is not None
    torch.testing.assert_close(*map(torch.from_numpy, actual))
    batch = model.batch(model.frame_documents(["b" * (most - 2)]))
    assert model.states(batch).shape[1] == most
    with pytest.raises(InvalidInput, match=rf"{most + 1} tokens, but tiny-{name} only {most} positions; .* 300"):
        model.frame_documents(["a", "b" * (most - 1)])


def test_a_head_of_an_unknown_form_is_refused() -> None:
    model = tiny_backbone("bert").model
    odd = AutoModelForMaskedLM.from_config(model.config)
    odd.cls.predictions.transform = torch.nn.Identity()
    del odd.cls.predictions._modules["transform"]
    with pytest.raises(InvalidInput, match="BertForMaskedLM is not supported"):
        lm_head(odd)
