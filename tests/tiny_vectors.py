"""A tiny model on disk that encodes documents into dense and sparse vectors."""

from __future__ import annotations

from pathlib import Path

from lightir.contract import Contract, DenseHead, DocumentPolicy, SparseHead
from lightir.models.backbones import load_backbone
from lightir.models.encoder import LightRetriever
from lightir.models.model_folder import backbone_record
from lightir.text import QueryPolicy
from tiny_models import save_tiny


def save_tiny_retriever(folder: Path) -> Path:
    """Write a random backbone and a model over it into a folder; return the folder of the model."""
    save_tiny("llama", folder / "backbone")
    backbone = load_backbone(str(folder / "backbone"))
    policies = QueryPolicy("find"), DocumentPolicy(max_tokens=40)
    contract = Contract("lightretriever", backbone_record(backbone), *policies, DenseHead(), SparseHead(top_k=20))
    LightRetriever(backbone, contract).save(folder / "model")
    return folder / "model"
