"""A frozen bi-encoder as teacher: a query table is fitted to it, or a full encoder learns from its scores."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from lightir.addresses import resolve_local
from lightir.contract import Contract, DenseHead, DocumentPolicy, Fusion
from lightir.errors import FormatError, InvalidInput, NotFound
from lightir.files import child_path, read_json
from lightir.models.backbones import Backbone, load_backbone
from lightir.models.devices import fast_dtype, usable_device
from lightir.models.encoder import LightRetriever
from lightir.models.framing import Framed
from lightir.models.model_folder import backbone_record
from lightir.models.pooling import Pooling
from lightir.text import PROMPT_FORMAT, QueryPolicy
from lightir.types import Document

PROMPTS_FILE = "config_sentence_transformers.json"


class Teacher:
    """Normalized vectors of a frozen encoder; each text is encoded once and cached in float16."""

    def __init__(self, model: LightRetriever, *, max_tokens: int) -> None:
        """Limit documents to `max_tokens`, frame included."""
        documents = model.contract.document
        documents = dataclasses.replace(documents, max_tokens=min(documents.max_tokens, max_tokens))
        model.contract = dataclasses.replace(model.contract, document=documents)
        self._model = model.eval()
        self._queries: dict[str, Tensor] = {}
        self._documents: dict[tuple[str, str], Tensor] = {}

    @classmethod
    def load(cls, address: str, *, max_tokens: int, device: str) -> Teacher:
        """Load a teacher with `load_teacher`."""
        return cls(load_teacher(address, device=device), max_tokens=max_tokens)

    def queries(self, texts: Sequence[str]) -> Tensor:
        """Return (n, dim) float32 vectors."""
        new = [text for text in dict.fromkeys(texts) if text not in self._queries]
        self._queries.update(zip(new, self._encode(self._model.frame_queries(new)), strict=True))
        return self._rows([self._queries[text] for text in texts])

    def documents(self, documents: Sequence[Document]) -> Tensor:
        """Return (n, dim) float32 vectors."""
        keys = [(document.title, document.text) for document in documents]
        new = {key: document for key, document in zip(keys, documents, strict=True) if key not in self._documents}
        rows = self._encode(self._model.frame_documents(list(new.values())))
        self._documents.update(zip(new, rows, strict=True))
        return self._rows([self._documents[key] for key in keys])

    def _rows(self, rows: Sequence[Tensor]) -> Tensor:
        return torch.stack(list(rows)).to(self._model.backbone.device).float()

    @torch.no_grad()
    def _encode(self, framed: Sequence[Framed]) -> Sequence[Tensor]:
        if not framed:
            return []
        batch = self._model.batch(framed)
        vectors = self._model.dense_from(self._model.states(batch), batch).float()
        return F.normalize(vectors, dim=-1).half().cpu().unbind()


def load_teacher(address: str | os.PathLike[str], *, device: str = "cpu") -> LightRetriever:
    """Load a frozen encoder: a lightir model folder, or a sentence-transformers folder under an equivalent contract.

    Args:
        address: folder or name of the encoder.
        device: device of the encoder; "auto" uses a GPU if there is one.

    Raises:
        NotFound: the address is neither kind of folder.
        InvalidInput: a sentence-transformers folder with modules beyond transformer, pooling (mean, first or last) and
            normalization (of a Router: on its document route), or with special tokens that a contract does not support;
            a model that reads queries with some of its layers; or a missing device.
    """
    device = usable_device(device)
    dtype = fast_dtype(device)
    folder = resolve_local(address)
    if folder is not None and (folder / "lightir.json").is_file():
        model = LightRetriever.load(str(folder), dtype=dtype, device=device)
        if model.contract.query_layers:
            raise InvalidInput(
                f"{folder} reads queries with {model.contract.query_layers} layers only, which a teacher cannot; use a "
                "model whose query_layers is 0"
            )
        return model
    if folder is None or not (folder / "modules.json").is_file():
        raise NotFound(f"{os.fspath(address)} is neither a lightir model nor a local sentence-transformers folder")
    says = _sentence_transformer(folder)
    # The address of the folder itself stays as it was given, such as pypi:PACKAGE.
    backbone = load_backbone(address if says.files == folder else says.files, dtype=dtype)
    return LightRetriever(backbone, _contract(folder, says, backbone)).to(device)


def _contract(folder: Path, says: _SentenceTransformer, backbone: Backbone) -> Contract:
    """Return the contract under which the folder's backbone has the vectors of sentence-transformers."""
    bos, eos = _frame(backbone, folder)
    if says.pooling == "first" and (backbone.attention == "causal" or not bos):
        raise InvalidInput(f"{folder} pools its first state, which is no begin token that attends to the text")
    max_tokens = min(says.max_tokens, backbone.max_positions or says.max_tokens)
    framed = max_tokens - bos - eos
    # A prompt's last blank is part of the text's first token if tokens begin with blanks, else of no token.
    query, document = (prompt.rstrip(" ") for prompt in (says.query_prompt, says.document_prompt))
    taken = len(backbone.tokenizer.term_ids([query]).row(0)) if query else 0
    if taken >= framed:
        raise InvalidInput(f"{folder} has a query prompt of {taken} tokens, but a limit of {max_tokens} in all")
    return Contract(
        method="distilled",
        backbone=backbone_record(backbone),
        query=QueryPolicy(
            prompt_format=query or PROMPT_FORMAT,
            lower_case=says.lower_case,
            leading_blank=query != says.query_prompt,
            max_tokens=framed - taken,
        ),
        document=DocumentPolicy(
            prompt=document,
            lower_case=says.lower_case,
            leading_blank=document != says.document_prompt,
            max_tokens=max_tokens,
            bos=bos,
            eos=eos,
        ),
        dense=DenseHead(pooling=says.pooling, dims=(backbone.hidden_size,)),
        sparse=None,
        fusion=Fusion(weights={"dense": 0.65, "tokens": 0.35}),
    )


@dataclass(frozen=True, slots=True)
class _SentenceTransformer:
    """Settings of a sentence-transformers folder.

    Attributes:
        files: folder of the transformer.
        max_tokens: maximum input length, special tokens included.
        lower_case: texts are lower-cased before tokenization.
        pooling: pooling as a contract names it.
        query_prompt: text in front of queries; "" for none.
        document_prompt: text in front of documents; "" for none.
    """

    files: Path
    max_tokens: int
    lower_case: bool
    pooling: Pooling
    query_prompt: str
    document_prompt: str


POOLING_MODES: dict[str, Pooling] = {
    "mean": "mean_all",
    "mean_tokens": "mean_all",
    "cls": "first",
    "cls_token": "first",
    "lasttoken": "eos",  # the last attended token, an end token or not
}
"""Pooling by the newer and older names of sentence-transformers."""

ROUTERS = ("Router", "Asym")
"""Modules that have modules for queries and for documents; Asym is the older name."""

UNLIMITED = 10**9
"""A lower bound of the length that transformers writes for a tokenizer without a limit."""

DOCUMENT_PROMPTS = ("document", "passage", "corpus")
"""Names of the document prompt, in the order of sentence-transformers."""


def _sentence_transformer(folder: Path) -> _SentenceTransformer:
    """Read the settings of a folder whose modules a contract supports."""
    modules = route_modules(folder, "document")
    kinds = [kind for kind, _ in modules]
    if kinds not in (["Transformer", "Pooling", "Normalize"], ["Transformer", "Pooling"]):
        raise InvalidInput(f"{folder} has the modules {kinds}; expected Transformer, Pooling and optionally Normalize")
    pooling = read_json(modules[1][1] / "config.json")
    modes = [key.removeprefix("pooling_mode_") for key, on in pooling.items() if key.startswith("pooling_mode_") and on]
    modes = [str(pooling["pooling_mode"])] if "pooling_mode" in pooling else modes
    if len(modes) != 1 or modes[0] not in POOLING_MODES:
        raise InvalidInput(f"{folder} pools by {modes}; expected one of {list(POOLING_MODES)}")
    prompts: dict[str, str] = {}
    if (folder / PROMPTS_FILE).is_file():
        prompts = read_json(folder / PROMPTS_FILE).get("prompts") or {}
    query = prompts.get("query") or ""
    document = next((prompts[name] for name in DOCUMENT_PROMPTS if prompts.get(name)), "")
    if (query or document) and not pooling.get("include_prompt", True):
        raise InvalidInput(f"{folder} leaves its prompts out of the pooling, which a contract does not support")
    # In old folders the file has the family's name: sentence_xlm-roberta_config.json.
    files = modules[0][1]
    reading: dict[str, Any] = next(map(read_json, sorted(files.glob("sentence_*_config.json"))), {})
    length = reading.get("max_seq_length") or _tokenizer_length(files)
    lower_case = bool(reading.get("do_lower_case", False))
    return _SentenceTransformer(files, int(length), lower_case, POOLING_MODES[modes[0]], query, document)


def route_modules(folder: Path, route: Literal["query", "document"]) -> list[tuple[str, Path]]:
    """Return the class names and folders of the modules of a route, without a Router itself.

    Raises:
        FormatError: the files that list the modules lack a field, or name a folder outside.
    """
    try:
        listed = [(_class_name(module["type"]), str(module["path"])) for module in read_json(folder / "modules.json")]
        if not listed or listed[0][0] not in ROUTERS:
            return [(kind, folder / path) for kind, path in listed]
        config = read_json(folder / listed[0][1] / "router_config.json")
        inner = [(name, config["types"][name]) for name in config["structure"][route]]
    except (KeyError, TypeError) as error:
        raise FormatError(f"{folder} is not a sentence-transformers folder of known form: {error!r}") from error
    routed = [(_class_name(kind), child_path(folder / listed[0][1], name)) for name, kind in inner]
    return [*routed, *((kind, folder / path) for kind, path in listed[1:])]


def _class_name(kind: object) -> str:
    return str(kind).rsplit(".", 1)[-1]


def _tokenizer_length(folder: Path) -> int:
    """Return the tokenizer's maximum length, where sentence-transformers 6 and later store the limit."""
    path = folder / "tokenizer_config.json"
    length = read_json(path).get("model_max_length") if path.is_file() else None
    if length is None or length >= UNLIMITED:
        raise InvalidInput(f"{folder} has no maximum length, neither in sentence_bert_config.json nor in {path.name}")
    return int(length)


def _frame(backbone: Backbone, folder: Path) -> tuple[bool, bool]:
    """Return whether the tokenizer adds a begin and an end token to a text.

    Raises:
        InvalidInput: the tokenizer adds other tokens than the backbone's own.
    """
    own = backbone.tokenizer.term_ids(["a"]).row(0).tolist()
    whole = backbone.tokenizer.backend.encode("a", add_special_tokens=True).ids
    for bos, eos in itertools.product((True, False), repeat=2):
        begin = [backbone.bos_id] if bos and backbone.bos_id is not None else []
        if whole == begin + own + ([backbone.eos_id] if eos else []) and bos == bool(begin):
            return bos, eos
    raise InvalidInput(
        f"the tokenizer of {folder} turns 'a' into {whole}, which is not {own} in a frame of the begin token "
        f"{backbone.bos_id} and the end token {backbone.eos_id}, with or without either"
    )
