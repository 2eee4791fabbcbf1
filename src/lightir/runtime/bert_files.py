"""The files of an encoder of the BERT family in transformers' format, read without torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from lightir.errors import FormatError, InvalidInput, NotFound
from lightir.text import TextTokenizer
from lightir.vectors import Floats

BERT_NAMES = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "attended": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "wide": "intermediate.dense",
    "narrow": "output.dense",
    "output_norm": "output.LayerNorm",
}
DISTILBERT_NAMES = {
    "query": "attention.q_lin",
    "key": "attention.k_lin",
    "value": "attention.v_lin",
    "attended": "attention.out_lin",
    "attention_norm": "sa_layer_norm",
    "wide": "ffn.lin1",
    "narrow": "ffn.lin2",
    "output_norm": "output_layer_norm",
}
LAYERS = {
    "bert": ("encoder.layer", BERT_NAMES),
    "roberta": ("encoder.layer", BERT_NAMES),
    "xlm-roberta": ("encoder.layer", BERT_NAMES),
    "camembert": ("encoder.layer", BERT_NAMES),
    "electra": ("encoder.layer", BERT_NAMES),
    "distilbert": ("transformer.layer", DISTILBERT_NAMES),
}
"""model_type -> prefix of the layers' tensors, and the names of their parts."""

PADDED = ("roberta", "xlm-roberta", "camembert")
"""Types whose positions start after the padding's row."""

ACTIVATIONS = ("gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "relu")
MARKS = {"cls": ("[CLS]", "<s>"), "sep": ("[SEP]", "</s>")}
"""Usual begin and end tokens, for tokenizers whose settings name none."""


@dataclass(frozen=True, slots=True)
class BertFiles:
    """An encoder of the BERT family: settings, weights, tokenizer and special tokens.

    Attributes:
        address: address that its contract names, for messages.
        n_layers: number of layers.
        n_heads: number of attention heads.
        epsilon: constant of the layer norms.
        activation: one of ACTIVATIONS.
        words: (V, H) float32 embeddings of the terms.
        positions: (P, H) float32 embeddings of a text's positions, with the embedding of the first token type added.
        embedding_norm: (H,) weight and bias of the norm of the embeddings.
        layers: weights of each layer, named PART.weight and PART.bias (parts: BERT_NAMES).
        tokenizer: tokenizer without special tokens.
        bos_id: id of the begin token ([CLS]); None if the tokenizer has none.
        eos_id: id of the end token ([SEP]).
    """

    address: str
    n_layers: int
    n_heads: int
    epsilon: float
    activation: str
    words: Floats
    positions: Floats
    embedding_norm: tuple[Floats, Floats]
    layers: list[dict[str, Floats]]
    tokenizer: TextTokenizer
    bos_id: int | None
    eos_id: int

    @property
    def max_positions(self) -> int:
        """Number of tokens that the table of positions supports."""
        return len(self.positions)

    @property
    def end_ids(self) -> tuple[int, ...]:
        """Ids of end tokens beyond the vocabulary: none."""
        return ()

    def without_weights(self) -> BertFiles:
        """Return a copy for framing alone: without the embeddings of terms and the layers."""
        return replace(self, words=np.zeros((0, self.words.shape[1]), np.float32), layers=[])

    @classmethod
    def read(cls, folder: Path, address: str) -> BertFiles:
        """Read a folder with config.json, tokenizer.json and safetensors.

        Raises:
            NotFound: a file is missing.
            FormatError: a file is damaged, or a weight is missing.
            InvalidInput: an architecture or setting that this module does not support.
        """
        config = read_json(folder / "config.json")
        kind = config.get("model_type")
        if kind not in LAYERS:
            raise InvalidInput(
                f"{address} is a {kind!r} model; without torch these are supported: {', '.join(LAYERS)}. "
                "For others: pip install 'lightir[train]'"
            )
        weights = _read_weights(folder, address)
        _require_supported(config, weights, address)
        prefix, names = LAYERS[kind]
        n_layers = int(config.get("num_hidden_layers") or config["n_layers"])
        layers = [
            {f"{part}.{end}": weights[f"{prefix}.{i}.{name}.{end}"] for part, name in names.items() for end in ENDS}
            for i in range(n_layers)
        ]
        first = int(config["pad_token_id"]) + 1 if kind in PADDED else 0
        positions = weights["embeddings.position_embeddings.weight"][first:]
        types = weights.get("embeddings.token_type_embeddings.weight")
        norm = "embeddings.LayerNorm"
        tokenizer = TextTokenizer.from_file(folder / "tokenizer.json")
        begin, end = (_special_id(folder, tokenizer, name) for name in MARKS)
        if end is None:
            raise InvalidInput(f"{address} has no end token ([SEP]), which is required to end a text")
        return cls(
            address=address,
            n_layers=n_layers,
            n_heads=int(config.get("num_attention_heads") or config["n_heads"]),
            epsilon=float(config.get("layer_norm_eps", 1e-12)),
            activation=_activation(config),
            words=weights["embeddings.word_embeddings.weight"],
            positions=positions if types is None else positions + types[0],
            embedding_norm=(weights[f"{norm}.weight"], weights[f"{norm}.bias"]),
            layers=layers,
            tokenizer=tokenizer,
            bos_id=begin,
            eos_id=end,
        )


@dataclass(frozen=True, slots=True)
class MaskedHead:
    """The masked-LM head of BERT: a layer with an activation, a norm, and the projection to the vocabulary.

    Attributes:
        weight: (H, H) float32 weight of the layer, of which each row is an output.
        weight_bias: (H,) float32 bias of the layer.
        norm: (H,) weight and bias of the norm.
        projection: (V, H) float32 row of each term.
        bias: (V,) float32 bias of each term.
    """

    weight: Floats
    weight_bias: Floats
    norm: tuple[Floats, Floats]
    projection: Floats
    bias: Floats

    @classmethod
    def read(cls, folder: Path, address: str) -> MaskedHead:
        """Read the head of a folder with safetensors.

        Raises:
            NotFound: a file is missing.
            FormatError: a file is damaged, or it holds no masked-LM head of BERT.
        """
        weights = _read_weights(folder, address, (HEAD, "embeddings.word_embeddings."))
        layer, norm = f"{HEAD}transform.dense", f"{HEAD}transform.LayerNorm"
        own = f"{HEAD}decoder.weight"
        return cls(
            weights[f"{layer}.weight"],
            weights[f"{layer}.bias"],
            (weights[f"{norm}.weight"], weights[f"{norm}.bias"]),
            weights[own if own in weights else "embeddings.word_embeddings.weight"],
            weights[f"{HEAD}bias"],
        )


ENDS = ("weight", "bias")
HEAD = "cls.predictions."
STARTS = ("embeddings.", "encoder.layer.", "transformer.layer.")
"""Beginnings of the names of an encoder's tensors, behind its model's prefix."""


class _Weights(dict[str, Floats]):
    """Weights by name; a missing one is an error of the file."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self._address = address

    def __missing__(self, name: str) -> Floats:
        raise FormatError(f"the weights of {self._address} lack {name}: the files are of another model, or damaged")


def _read_weights(folder: Path, address: str, starts: Sequence[str] = STARTS) -> _Weights:
    """Read tensors as float32, named from one of `starts` on: "embeddings" or the layers of an encoder."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise NotFound(f"{folder} holds no *.safetensors; other weights need torch: pip install 'lightir[train]'")
    weights = _Weights(address)
    for path in files:
        try:
            with safe_open(path, framework="numpy") as tensors:
                for name in tensors.keys():  # noqa: SIM118 - not a dict
                    if (start := _start(name, starts)) is not None:
                        weights[_present_name(name[start:])] = np.asarray(tensors.get_tensor(name), dtype=np.float32)
        except (SafetensorError, TypeError) as error:  # the latter for bfloat16, which numpy lacks
            raise FormatError(f"{path} cannot be read without torch: {error}") from error
    return weights


def _present_name(name: str) -> str:
    """Return the present name of a tensor; norms of the first BERT models have "gamma" and "beta"."""
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


def _start(name: str, starts: Sequence[str]) -> int | None:
    """Return where a tensor's name starts behind the model's prefix ("bert."); None for the others."""
    offsets = [name.find(part) for part in starts]
    start = min((offset for offset in offsets if offset >= 0), default=None)
    return start if start is not None and "embeddings_project" not in name else None


def _require_supported(config: dict[str, Any], weights: _Weights, address: str) -> None:
    """Refuse settings that change the computation.

    Raises:
        InvalidInput: relative positions, another activation, or embeddings of another width.
    """
    if (kind := config.get("position_embedding_type", "absolute")) != "absolute":
        raise InvalidInput(f"{address} has positions of the type {kind!r}; without torch only 'absolute' is supported")
    if (activation := _activation(config)) not in ACTIVATIONS:
        raise InvalidInput(f"{address} has the activation {activation!r}; expected one of {', '.join(ACTIVATIONS)}")
    hidden, width = (
        int(config.get("hidden_size") or config["dim"]),
        weights["embeddings.word_embeddings.weight"].shape[1],
    )
    if width != hidden:
        raise InvalidInput(f"{address} has embeddings of width {width} for states of width {hidden}, which needs torch")


def _activation(config: dict[str, Any]) -> str:
    return str(config.get("hidden_act") or config.get("activation") or "gelu")


def _special_id(folder: Path, tokenizer: TextTokenizer, name: str) -> int | None:
    """Return the id of the "cls" or "sep" token of the tokenizer's settings, else of a usual one; None if neither."""
    for file in ("tokenizer_config.json", "special_tokens_map.json"):
        if (folder / file).is_file() and (token := read_json(folder / file).get(f"{name}_token")):
            content = token["content"] if isinstance(token, dict) else str(token)
            return tokenizer.backend.token_to_id(content)
    ids = (tokenizer.backend.token_to_id(mark) for mark in MARKS[name])
    return next((token_id for token_id in ids if token_id is not None), None)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        NotFound: the file does not exist.
        FormatError: it is not a JSON object.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise NotFound(f"{path} does not exist") from None
    except ValueError as error:
        raise FormatError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise FormatError(f"{path} is not a JSON object")
    return content
