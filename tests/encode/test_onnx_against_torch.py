"""ONNX Runtime's vectors against torch's, for every encoder of tests/tiny_models.py and for the real one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lightir.addresses import shipped_models
from lightir.contract import Contract, DenseHead, DocumentPolicy
from lightir.errors import InvalidInput
from lightir.models.backbones import load_backbone
from lightir.models.encoder import LightRetriever
from lightir.models.model_folder import backbone_record
from lightir.runtime.documents import encode_shard
from lightir.runtime.encode_options import EncodeOptions
from lightir.runtime.loading import load_model
from lightir.text import QueryPolicy
from lightir.types import Document
from tiny_models import ENCODERS, save_tiny

pytest.importorskip("onnxruntime")
ONNX, TORCH = EncodeOptions(runtime="onnx"), EncodeOptions(runtime="torch", dtype="fp32")
DOCUMENTS = [Document(f"d{i}", "some words of text " * i, "title" * (i % 2)) for i in range(9)]
UNSUPPORTED = {"modernbert", "mpnet", "electra"}
"""The tiny ELECTRA has embeddings narrower than its states."""


def cosines(folder: Path | str, documents: list[Document], other: EncodeOptions) -> np.ndarray:
    rows = [encode_shard(load_model(folder, options), documents).dense for options in (TORCH, other)]
    first, second = (np.asarray(row, dtype=np.float64) for row in rows)
    return (first * second).sum(axis=1) / np.linalg.norm(first, axis=1) / np.linalg.norm(second, axis=1)


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("plain", [False, True])
def test_both_runtimes_give_the_same_vectors(name: str, plain: bool, tmp_path: Path) -> None:
    save_tiny(name, tmp_path / "encoder", plain=plain)
    backbone = load_backbone(tmp_path / "encoder")
    policy = DocumentPolicy(leading_blank=False, max_tokens=100)
    contract = Contract(
        "lightretriever", backbone_record(backbone), QueryPolicy(""), policy, DenseHead("mean_all"), None
    )
    LightRetriever(backbone, contract).save(tmp_path / "model")
    if name in UNSUPPORTED:
        with pytest.raises(InvalidInput, match=r"without torch these are supported|which needs torch"):
            load_model(tmp_path / "model", ONNX)
        return
    assert cosines(tmp_path / "model", DOCUMENTS, ONNX).min() > 0.99999


@pytest.mark.slow_model
@pytest.mark.skipif("minilm" not in shipped_models(), reason="the package lightir-minilm is not installed")
def test_the_real_encoder_has_the_same_vectors_and_close_ones_with_integers() -> None:
    texts = (Path(__file__).parents[2] / "ARCHITECTURE.md").read_text(encoding="utf-8").split("\n## ")
    documents = [Document(f"d{i}", text) for i, text in enumerate(texts)]
    assert cosines("minilm", documents, ONNX).min() > 0.9999
    assert cosines("minilm", documents, EncodeOptions(runtime="onnx", quantize="int8-dynamic")).min() > 0.995
