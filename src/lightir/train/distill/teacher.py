"""A frozen bi-encoder that others learn from: a query table is fitted to it, a full encoder follows its scores."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lightir.addresses import resolve_local
from lightir.contract import Contract, DenseHead, DocumentPolicy, Fusion
from lightir.errors import InvalidInput, NotFound
from lightir.files import read_json
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
    def _encode(self, framed: Sequence[Framed]) -> Sequence[Tensor]:
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
        InvalidInput: a sentence-transformers folder with modules beyond transformer, pooling (mean, first or last) and
            normalisation, or with specials that a contract cannot say; or a device that is not there.
    """
    device = usable_device(device)
    dtype = fast_dtype(device)
    folder = resolve_local(address)
    if folder is not None and (folder / "lightir.json").is_file():
        return LightRetriever.load(str(folder), dtype=dtype, device=device)
    if folder is None or not (folder / "modules.json").is_file():
        raise NotFound(f"{os.fspath(address)} is neither a lightir model nor a local sentence-transformers folder")
    says = _sentence_transformer(folder)
    backbone = load_backbone(os.fspath(address), dtype=dtype)
    return LightRetriever(backbone, _contract(folder, says, backbone)).to(device)


def _contract(folder: Path, says: _SentenceTransformer, backbone: Backbone) -> Contract:
    """The contract under which the folder's backbone gives the vectors that sentence-transformers gives."""
    bos, eos = _frame(backbone, folder)
    if says.pooling == "first" and (backbone.attention == "causal" or not bos):
        raise InvalidInput(f"{folder} pools its first state, which is no begin token that has seen the text")
    max_tokens = min(says.max_tokens, backbone.max_positions or says.max_tokens)
    framed = max_tokens - bos - eos
    # A prompt's last blank belongs to the text's first token where tokens have blanks in front, and to nothing where
    # they have none.
    query, document = (prompt.rstrip(" ") for prompt in (says.query_prompt, says.document_prompt))
    taken = len(backbone.tokenizer.term_ids([query]).row(0)) if query else 0
    if taken >= framed:
        raise InvalidInput(f"{folder} has a query prompt of {taken} tokens, but reads {max_tokens} in all")
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
    """What such a folder says of itself.

    Attributes:
        max_tokens: the longest input, specials counted.
        lower_case: it lower-cases texts in front of its tokenizer, which may do so as well.
        pooling: as a contract has it.
        query_prompt: in front of queries; "" for none.
        document_prompt: in front of documents.
    """

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
    "lasttoken": "eos",  # of everything attended the last, whether an end token or not
}
"""sentence-transformers' names, the newer and the older ones."""

UNLIMITED = 10**9
"""What transformers writes for a tokenizer without a limit is larger."""

DOCUMENT_PROMPTS = ("document", "passage", "corpus")
"""Names under which it looks for the prompt of documents."""


def _sentence_transformer(folder: Path) -> _SentenceTransformer:
    """Read once its modules are seen to be ones that a contract can say."""
    modules: list[dict[str, Any]] = read_json(folder / "modules.json")
    kinds = [str(module["type"]).rsplit(".", 1)[-1] for module in modules]
    if kinds not in (["Transformer", "Pooling", "Normalize"], ["Transformer", "Pooling"]):
        raise InvalidInput(f"{folder} has the modules {kinds}; expected Transformer, Pooling and perhaps Normalize")
    pooling = read_json(folder / str(modules[1]["path"]) / "config.json")
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
        raise InvalidInput(f"{folder} leaves its prompts out of the pooling, which a contract cannot say")
    # Old folders name the file after the family: sentence_xlm-roberta_config.json.
    reading: dict[str, Any] = next(map(read_json, sorted(folder.glob("sentence_*_config.json"))), {})
    length = reading.get("max_seq_length") or _tokenizer_length(folder)
    lower_case = bool(reading.get("do_lower_case", False))
    return _SentenceTransformer(int(length), lower_case, POOLING_MODES[modes[0]], query, document)


def _tokenizer_length(folder: Path) -> int:
    """What the tokenizer reads at most, which is where sentence-transformers keeps the length since its version 6."""
    path = folder / "tokenizer_config.json"
    length = read_json(path).get("model_max_length") if path.is_file() else None
    if length is None or length >= UNLIMITED:
        raise InvalidInput(
            f"{folder} says neither in sentence_bert_config.json nor in {path.name} how long a text may be"
        )
    return int(length)


def _frame(backbone: Backbone, folder: Path) -> tuple[bool, bool]:
    """Whether the tokenizer itself puts a begin and an end token around a text.

    Raises:
        InvalidInput: it puts anything else there than the backbone's own.
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
