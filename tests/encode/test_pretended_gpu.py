"""Encoding, caching, re-ranking and generation on a simulated GPU, compared with the CPU."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch

from lightir.contract import Contract, DenseHead, DocumentPolicy, SparseHead
from lightir.encode import cached_table, encode_corpus
from lightir.encode.expansion import GenerationOptions, generate_queries
from lightir.encode.full_queries import FullQueryEncoder
from lightir.encode.likelihood_reranking import rerank
from lightir.encode.vocabulary import cached_expansions
from lightir.eval.runs import rank_by_score
from lightir.models.encoder import LightRetriever
from lightir.models.model_folder import backbone_record
from lightir.shards import VectorsReader
from lightir.text import QueryPolicy
from lightir.types import Document, Query
from pretended_cuda import pretended_cuda
from tiny_models import tiny_backbone

TEXTS = ["the river", "an engine and a planet", "", "x", "bread " * 9]
DOCUMENTS = [Document(f"d{number}", text) for number, text in enumerate(TEXTS)]
QUERIES = [Query("q0", "which river?"), Query("q1", "bread")]
PLACES: tuple[Literal["cpu", "cuda"], ...] = ("cpu", "cuda")


def model_on(device: str, name: str, query: QueryPolicy | None = None, **document: object) -> LightRetriever:
    backbone = tiny_backbone(name)
    contract = Contract(
        "lightretriever",
        backbone_record(backbone),
        query or QueryPolicy("find"),
        DocumentPolicy(max_tokens=40, **document),  # type: ignore[arg-type]
        DenseHead(),
        SparseHead(top_k=20),
    )
    retriever = LightRetriever(backbone, contract).to(device)
    retriever.calibrate([document for document in TEXTS if document], quantile=0.5)
    return retriever


def gpu_if(device: str) -> contextlib.AbstractContextManager[None]:
    return pretended_cuda() if device == "cuda" else contextlib.nullcontext()


@pytest.mark.parametrize("name", ["llama", "qwen2-window", "gemma2", "bert", "mpnet", "xlm-roberta"])
def test_documents_get_the_vectors_that_they_have_on_the_cpu(name: str, tmp_path: Path) -> None:
    actual = {}
    for device in PLACES:
        with gpu_if(device):
            model = model_on(device, name)
            assert model.backbone.device.type == device
            encode_corpus(model, DOCUMENTS, tmp_path / device)
            queries = FullQueryEncoder(model).encode([query.text for query in QUERIES]).dense
        shard = next(iter(VectorsReader(tmp_path / device)))
        assert shard.sparse is not None
        assert len(shard.sparse.term_ids) > 20
        actual[device] = (np.asarray(shard.dense), shard.sparse, queries)
    np.testing.assert_allclose(actual["cuda"][0], actual["cpu"][0], atol=2e-3)
    np.testing.assert_array_equal(actual["cuda"][1].term_ids, actual["cpu"][1].term_ids)
    np.testing.assert_allclose(actual["cuda"][2], actual["cpu"][2], atol=1e-5)


@pytest.mark.parametrize("name", ["llama", "bert"])
def test_the_vocabulary_gets_the_rows_that_it_has_on_the_cpu(name: str) -> None:
    rows, expansions = [], []
    for device in PLACES:
        with gpu_if(device):
            rows.append(cached_table(model_on(device, name), instruction="find it", batch=100))
            policy = QueryPolicy("find", weighting="expansion", expansion_terms=4)
            expansions.append(
                cached_expansions(model_on(device, name, policy), instruction="find", dtype="fp32", batch=100)
            )
    np.testing.assert_allclose(rows[1], rows[0], atol=1e-4)
    np.testing.assert_array_equal(expansions[1].term_ids, expansions[0].term_ids)


@pytest.mark.parametrize("stop", [True, False])
def test_a_run_is_reranked_as_on_the_cpu(stop: bool) -> None:
    run = {query.query_id: rank_by_score(query.query_id, {d.doc_id: 1.0 for d in DOCUMENTS}) for query in QUERIES}
    actual, made = [], []
    for device in PLACES:
        with gpu_if(device):
            model = model_on(device, "llama", suffix="\nSo: ")
            actual.append(rerank(model, run, iter(DOCUMENTS), iter(QUERIES), stop=stop, batch_tokens=50))
            made.append(
                [
                    generated
                    for draw in (0, 9)
                    for generated in generate_queries(
                        model, DOCUMENTS[:2], options=GenerationOptions(2, max_tokens=5, draw_among=draw)
                    )
                ]
            )
    for query_id, ranking in actual[0].items():
        assert actual[1][query_id].doc_ids == ranking.doc_ids
        np.testing.assert_allclose(actual[1][query_id].scores, ranking.scores, rtol=1e-4)
    texts = [[[query.text for query in queries] for _, queries in generated] for generated in made]
    assert texts[0] == texts[1]


def test_what_the_pretended_gpu_refuses() -> None:
    with pretended_cuda():
        there, here = torch.ones(2, 3, device="cuda"), torch.ones(2, 3)
        with pytest.raises(RuntimeError, match="same device"):
            there + here
        with pytest.raises(RuntimeError, match="same device"):
            there.mm(torch.ones(3, 1))
        with pytest.raises(TypeError, match="numpy"):
            there.numpy()
        assert (there * torch.tensor(2.0)).sum().item() == 12.0  # a scalar tensor on the CPU is allowed
        with torch.autocast("cuda", dtype=torch.bfloat16):
            assert (there @ there.T).dtype == torch.bfloat16
        assert there.cpu().device.type == "cpu"
