"""A frozen bi-encoder that others learn from: a query table is fitted to it, a full encoder follows its scores."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lightir.addresses import resolve_local
from lightir.contract import Contract, DenseHead, DocumentPolicy, Fusion
from lightir.errors import InvalidInput, NotFound
from lightir.files import read_json
from lightir.models.backbones import fast_dtype, load_backbone, usable_device
from lightir.models.encoder import LightRetriever, backbone_record
from lightir.text import QueryPolicy
from lightir.types import Document


class Teacher:
    """The normalised vectors of a frozen encoder; each text is encoded once and then remembered, in float16."""

    def __init__(self, model: LightRetriever, *, max_tokens: int) -> None:
        """`max_tokens`: it reads no more of a document than that, frame included."""
        documents = model.contract.document
        documents = dataclasses.replace(documents, max_tokens=min(documents.max_tokens, max_tokens))
        model.contract = dataclasses.replace(model.contract, document=documents)
        self._model = model.eval()
        self._queries: dict[str, Tensor] = {}
        self._documents: dict[tuple[str, str], Tensor] = {}

    @classmethod
    def load(cls, address: str, *, max_tokens: int, device: str) -> Teacher:
        """As `load_teacher`, on a device."""
        return cls(load_teacher(address, device=device), max_tokens=max_tokens)

    def queries(self, texts: Sequence[str]) -> Tensor:
        """(n, dim) float32."""
        new = [text for text in dict.fromkeys(texts) if text not in self._queries]
        self._queries.update(zip(new, self._encode(self._model.frame_queries(new)), strict=True))
        return self._rows([self._queries[text] for text in texts])

    def documents(self, documents: Sequence[Document]) -> Tensor:
        """(n, dim) float32."""
        keys = [(each.title, each.text) for each in documents]
        new = {key: each for key, each in zip(keys, documents, strict=True) if key not in self._documents}
        rows = self._encode(self._model.frame_documents(list(new.values())))
        self._documents.update(zip(new, rows, strict=True))
        return self._rows([self._documents[key] for key in keys])

    def _rows(self, rows: Sequence[Tensor]) -> Tensor:
        return torch.stack(list(rows)).to(self._model.backbone.device).float()

    @torch.no_grad()
    def _encode(self, framed: Sequence[tuple[list[int], int, int]]) -> Sequence[Tensor]:
        if not framed:
            return []
        batch = self._model.batch(framed)
        vectors = self._model.dense_from(self._model.states(batch), batch).float()
        return F.normalize(vectors, dim=-1).half().cpu().unbind()


def load_teacher(address: str | os.PathLike[str], *, device: str = "cpu") -> LightRetriever:
    """A frozen encoder: a model folder of ours, or a sentence-transformers folder under a contract that says the same.

    Args:
        address: where it lies.
        device: where it shall be; "auto" is a GPU where there is one.

    Raises:
        NotFound: neither.
        InvalidInput: a sentence-transformers folder with modules beyond transformer, mean pooling and normalisation;
            or a device that is not there.
    """
    device = usable_device(device)
    dtype = fast_dtype(device)
    folder = resolve_local(address)
    if folder is not None and (folder / "lightir.json").is_file():
        return LightRetriever.load(str(folder), dtype=dtype, device=device)
    if folder is None or not (folder / "modules.json").is_file():
        raise NotFound(f"{os.fspath(address)} is neither a lightir model nor a local sentence-transformers folder")
    max_tokens = _sentence_transformers_length(folder)
    backbone = load_backbone(os.fspath(address), dtype=dtype)
    contract = Contract(
        method="distilled",
        backbone=backbone_record(backbone),
        # Such a tokenizer lower-cases by itself where its model wants it.
        query=QueryPolicy(lower_case=False, leading_blank=False, max_tokens=max_tokens - 2),
        document=DocumentPolicy(lower_case=False, leading_blank=False, max_tokens=max_tokens),
        dense=DenseHead(pooling="mean_all", dims=(backbone.hidden_size,)),
        sparse=None,
        fusion=Fusion(weights={"dense": 0.5, "tokens": 0.5}),
    )
    return LightRetriever(backbone, contract).to(device)


def _sentence_transformers_length(folder: Path) -> int:
    """The folder's longest input, once its modules are seen to be ones that a contract can say."""
    modules: list[dict[str, Any]] = read_json(folder / "modules.json")
    kinds = [str(module["type"]).rsplit(".", 1)[-1] for module in modules]
    if kinds not in (["Transformer", "Pooling", "Normalize"], ["Transformer", "Pooling"]):
        raise InvalidInput(f"{folder} has the modules {kinds}; expected Transformer, Pooling and perhaps Normalize")
    pooling = read_json(folder / str(modules[1]["path"]) / "config.json")
    modes = [key for key, value in pooling.items() if key.startswith("pooling_mode") and value]
    if modes not in (["pooling_mode_mean_tokens"], ["pooling_mode"]) or pooling.get("pooling_mode", "mean") != "mean":
        raise InvalidInput(f"{folder} pools by {modes}; only mean pooling is supported")
    return int(read_json(folder / "sentence_bert_config.json")["max_seq_length"])
