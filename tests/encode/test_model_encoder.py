"""A model as the encoder of a worker, and the choice of the model."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightir.contract import Contract, DenseHead, DocumentPolicy, SparseHead
from lightir.encode import encode_corpus
from lightir.errors import ContractMismatch, InvalidInput, NotFound
from lightir.index import Index, build_index, document_shards
from lightir.models import encoder
from lightir.models.encoder import LightRetriever
from lightir.models.model_folder import backbone_record
from lightir.pending import WorkOptions, encoder_folder, work
from lightir.runtime import model_encoder
from lightir.runtime.model_encoder import ModelEncoder, encoder_for
from lightir.shards import VectorsReader
from lightir.text import QueryPolicy
from lightir.types import Document
from small_collections import word_contract
from tiny_models import tiny_backbone

DOCUMENTS = [Document(f"d{i:02d}", "some words of text " * (i % 9), f"title {i}") for i in range(30)]


def tiny_model() -> LightRetriever:
    backbone = tiny_backbone("llama")
    heads = DenseHead(), SparseHead(top_k=20)
    policy = QueryPolicy("find"), DocumentPolicy(max_tokens=40)
    return LightRetriever(backbone, Contract("lightretriever", backbone_record(backbone), *policy, *heads))


def rows(folder: Path) -> dict[str, tuple[np.ndarray, list[int]]]:
    rows_by_id = {}
    with Index.open(folder) as index:
        for live in index.view.segments:
            assert live.segment.dense is not None
            assert live.segment.sparse is not None
            for row in live.places.tolist():
                span = slice(*live.segment.sparse.indptr[row : row + 2].tolist())
                rows_by_id[live.segment.doc_ids[row]] = (
                    live.segment.dense[0][row].astype(np.float32),
                    live.segment.sparse.term_ids[span].tolist(),
                )
    return rows_by_id


def test_a_worker_gives_an_index_the_vectors_of_encode_corpus(tmp_path: Path) -> None:
    model = tiny_model()
    encode_corpus(model, DOCUMENTS, tmp_path / "vectors")
    build_index(VectorsReader(tmp_path / "vectors"), tmp_path / "first", contract=model.contract, progress=False)
    build_index(document_shards(DOCUMENTS), tmp_path / "later", contract=model.contract, progress=False)
    by_model = ModelEncoder(model, batch_tokens=100)
    report = work(tmp_path / "later", by_model, WorkOptions(once=True, batch_size=7), progress=False)
    assert (report.committed, report.pending) == (30, 0)
    first, later = rows(tmp_path / "first"), rows(tmp_path / "later")
    assert first.keys() == later.keys()
    for doc_id, (dense, terms) in first.items():
        np.testing.assert_allclose(later[doc_id][0], dense, atol=2e-3)
        assert later[doc_id][1] == terms


@pytest.mark.parametrize("pending", [0, 5])
def test_pending_documents_decide_whether_layers_are_compiled(
    pending: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, expected = tiny_model(), []
    build_index(document_shards(DOCUMENTS[:pending]), tmp_path / "i", contract=model.contract, progress=False)
    monkeypatch.setattr(
        encoder, "compiled_if_worth", lambda *arguments: expected.append(arguments[2:]) or nullcontext()
    )
    with Index.open(tmp_path / "i") as index, ModelEncoder(model).compiled(None, index):
        tokens = sum(len(ids) for ids, _, _ in model.frame_documents(DOCUMENTS[:pending]))
        assert expected == [(None, pytest.approx(tokens))]


def test_the_model_is_the_installed_one_that_fits_unless_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contract, other = word_contract(), word_contract(attention="bidirectional")
    for name, saved in (("fits", contract), ("other", other)):
        (tmp_path / name).mkdir()
        saved.save(tmp_path / name)
    loaded: list[Any] = []
    monkeypatch.setattr(model_encoder, "load_model", lambda folder, *rest: loaded.append(folder))
    build_index(document_shards(DOCUMENTS), tmp_path / "index", contract=contract, progress=False)
    build_index(document_shards(DOCUMENTS), tmp_path / "plain", progress=False)
    with Index.open(tmp_path / "index") as index, Index.open(tmp_path / "plain") as plain:
        monkeypatch.setattr(encoder_folder, "shipped_models", lambda: {"other": tmp_path / "other"})
        with pytest.raises(NotFound, match=r"backbone org/words; installed: other\); name its folder with --model"):
            encoder_for(index)
        with pytest.raises(ContractMismatch, match="attention is 'causal' in the index but 'bidirectional' in the mod"):
            encoder_for(index, tmp_path / "other")
        with pytest.raises(InvalidInput, match="no model's contract"):
            encoder_for(plain)
        assert loaded == []
        encoder_for(index, tmp_path / "fits")
        monkeypatch.setattr(encoder_folder, "shipped_models", lambda: {"a": tmp_path / "other", "b": tmp_path / "fits"})
        encoder_for(index)
        assert loaded == [tmp_path / "fits"] * 2
