"""Random encoders of the BERT family as files, made without torch, and their states by the definition, in float64."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, pre_tokenizers

from lightir.contract import BackboneRecord, Contract, DenseHead, DocumentPolicy
from lightir.runtime.backbone_files import weights_hash
from lightir.runtime.bert_files import LAYERS, PADDED
from lightir.text import QueryPolicy, TextTokenizer

BEGIN, END, VOCAB_SIZE, HIDDEN, WIDE, HEADS, N_LAYERS, POSITIONS, PAD = 0, 1, 258, 32, 48, 4, 2, 64, 5
Weights = dict[str, np.ndarray]


def save_bert(folder: Path, kind: str = "bert", *, prefix: str = "", **settings: Any) -> Weights:
    """Write an encoder in transformers' format with random weights; return them as float32.

    Args:
        folder: folder to write.
        kind: model_type.
        prefix: beginning of the tensors' names.
        settings: further settings of config.json.
    """
    random = np.random.default_rng(0)
    layer, names = LAYERS[kind]
    shapes = {"word": (VOCAB_SIZE, HIDDEN), "position": (POSITIONS + (PAD + 1) * (kind in PADDED), HIDDEN)}
    if kind != "distilbert":
        shapes["token_type"] = (2, HIDDEN)
    weights = {f"embeddings.{name}_embeddings.weight": random.normal(size=shape) for name, shape in shapes.items()}
    norms = ["embeddings.LayerNorm"]
    for number in range(N_LAYERS):
        for part, name in names.items():
            if part.endswith("norm"):
                norms.append(f"{layer}.{number}.{name}")
                continue
            rows, columns = {"wide": (WIDE, HIDDEN), "narrow": (HIDDEN, WIDE)}.get(part, (HIDDEN, HIDDEN))
            weights[f"{layer}.{number}.{name}.weight"] = random.normal(scale=0.3, size=(rows, columns))
            weights[f"{layer}.{number}.{name}.bias"] = random.normal(scale=0.3, size=rows)
    for norm in norms:
        weights |= {f"{norm}.weight": random.uniform(0.5, 2, HIDDEN), f"{norm}.bias": random.normal(size=HIDDEN)}
    folder.mkdir(parents=True, exist_ok=True)
    stored = {f"{prefix}{name}": array.astype(np.float32) for name, array in weights.items()}
    save_file({**stored, f"{prefix}pooler.dense.weight": np.zeros((2, 2), np.float32)}, folder / "model.safetensors")
    sizes = {"hidden_size": HIDDEN, "num_hidden_layers": N_LAYERS, "num_attention_heads": HEADS}
    if kind == "distilbert":
        sizes = {"dim": HIDDEN, "n_layers": N_LAYERS, "n_heads": HEADS}
    config = {"model_type": kind, **sizes, "layer_norm_eps": 1e-6, "pad_token_id": PAD, **settings}
    (folder / "config.json").write_text(json.dumps(config))
    byte_tokenizer().save(folder / "tokenizer.json")
    return {name: array.astype(np.float32) for name, array in weights.items()}


def save_masked_bert(folder: Path, *, first_names: bool = False, **settings: Any) -> Weights:
    """Write a BERT with a masked-LM head, whose projection is the embeddings of the terms; return all its weights.

    Args:
        folder: folder to write.
        first_names: whether norms have the names that the first BERT models gave them.
        settings: further settings of config.json.
    """
    weights, random = save_bert(folder, **settings), np.random.default_rng(7)
    head = "cls.predictions"
    weights |= {
        f"{head}.transform.dense.weight": random.normal(scale=0.3, size=(HIDDEN, HIDDEN)).astype(np.float32),
        f"{head}.transform.dense.bias": random.normal(scale=0.3, size=HIDDEN).astype(np.float32),
        f"{head}.transform.LayerNorm.weight": random.uniform(0.5, 2, HIDDEN).astype(np.float32),
        f"{head}.transform.LayerNorm.bias": random.normal(size=HIDDEN).astype(np.float32),
        f"{head}.bias": random.normal(loc=-12, size=VOCAB_SIZE).astype(np.float32),
    }
    stored = {name if name.startswith("cls.") else f"bert.{name}": array for name, array in weights.items()}
    if first_names:
        stored = {
            name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): array
            for name, array in stored.items()
        }
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    return weights


def masked_logits(weights: Weights, ids: list[int], *, activation: str = "gelu") -> np.ndarray:
    """Return the masked-LM head's logits (T, V) of one text, in float64."""
    wide = {name: array.astype(np.float64) for name, array in weights.items()}
    head = "cls.predictions"
    hidden = _linear(bert_states(weights, "bert", ids, activation=activation), wide, f"{head}.transform.dense")
    features = _norm(ACTIVATIONS[activation](hidden), wide, f"{head}.transform.LayerNorm")
    return features @ wide["embeddings.word_embeddings.weight"].T + wide[f"{head}.bias"]


def byte_tokenizer() -> TextTokenizer:
    """Return a tokenizer with one token per byte; ids 0 and 1 are the begin and end tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"[CLS]": BEGIN, "[SEP]": END, **{letter: index + 2 for index, letter in enumerate(alphabet)}}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(["[CLS]", "[SEP]"])
    return TextTokenizer(tokenizer)


def save_model(folder: Path, encoder: Path, head: DenseHead | None = None, **changes: Any) -> Contract:
    """Write a model folder over an encoder's folder, without a query table; return its contract."""
    record = BackboneRecord(
        str(encoder), "encoder", weights_hash(encoder), "", byte_tokenizer().hash, VOCAB_SIZE, HIDDEN
    )
    policy = DocumentPolicy(leading_blank=False, max_tokens=POSITIONS)
    settings = {"dense": head or DenseHead("mean_all"), "sparse": None, "document": policy, **changes}
    contract = Contract("lightretriever", record, QueryPolicy(""), **settings)
    folder.mkdir(parents=True, exist_ok=True)
    contract.save(folder)
    return contract


def bert_states(weights: Weights, kind: str, ids: list[int], *, activation: str = "gelu") -> np.ndarray:
    """Return the last states (T, H) of one text, layer by layer as Devlin et al. define them, in float64."""
    layer, names = LAYERS[kind]
    first = PAD + 1 if kind in PADDED else 0
    wide = {name: array.astype(np.float64) for name, array in weights.items()}
    states = wide["embeddings.word_embeddings.weight"][ids]
    states = states + wide["embeddings.position_embeddings.weight"][first : first + len(ids)]
    if "embeddings.token_type_embeddings.weight" in wide:
        states = states + wide["embeddings.token_type_embeddings.weight"][0]
    states = _norm(states, wide, "embeddings.LayerNorm")
    for number in range(N_LAYERS):
        part = {key: f"{layer}.{number}.{name}" for key, name in names.items()}
        query, key, value = (_linear(states, wide, part[name]) for name in ("query", "key", "value"))
        size = HIDDEN // HEADS
        mixed = np.zeros_like(states)
        for head in range(HEADS):
            columns = slice(head * size, (head + 1) * size)
            scores = query[:, columns] @ key[:, columns].T / math.sqrt(size)
            shares = np.exp(scores - scores.max(axis=1, keepdims=True))
            mixed[:, columns] = shares / shares.sum(axis=1, keepdims=True) @ value[:, columns]
        states = _norm(states + _linear(mixed, wide, part["attended"]), wide, part["attention_norm"])
        middle = ACTIVATIONS[activation](_linear(states, wide, part["wide"]))
        states = _norm(states + _linear(middle, wide, part["narrow"]), wide, part["output_norm"])
    return states


def _linear(states: np.ndarray, weights: Weights, name: str) -> np.ndarray:
    return states @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def _norm(states: np.ndarray, weights: Weights, name: str) -> np.ndarray:
    centered = states - states.mean(axis=1, keepdims=True)
    scaled = centered / np.sqrt((centered**2).mean(axis=1, keepdims=True) + 1e-6)
    return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def _exact_gelu(x: np.ndarray) -> np.ndarray:
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def _tanh_gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


ACTIVATIONS = {"gelu": _exact_gelu, "gelu_new": _tanh_gelu, "relu": lambda x: np.maximum(x, 0)}
