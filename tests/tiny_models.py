"""Random tiny backbones of every supported architecture, and their tokenizer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from torch import Tensor
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    DistilBertConfig,
    DistilBertForMaskedLM,
    ElectraConfig,
    ElectraForMaskedLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    ModernBertConfig,
    ModernBertForMaskedLM,
    MPNetConfig,
    MPNetForMaskedLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    XLMRobertaConfig,
    XLMRobertaForMaskedLM,
)

from lightir.models.backbones import Attention, Backbone, wrap_model
from lightir.models.encoder import LightRetriever
from lightir.text import TextTokenizer

BOS, EOS, VOCAB_SIZE, HIDDEN = 0, 1, 258, 32
CAUSAL = ("llama", "qwen2", "qwen2-window", "qwen3", "mistral", "mistral-window", "gemma2", "gemma3")
NAMES = (*CAUSAL, "bert")
ENCODERS = ("bert", "distilbert", "electra", "modernbert", "mpnet", "xlm-roberta")
PAD = 5  # padding id of encoders other than BERT; RoBERTa's positions start after it


def tiny_backbone(
    name: str, *, bos: bool = True, attention: Attention | None = None, implementation: str | None = None, seed: int = 0
) -> Backbone:
    """Return a random backbone of two layers in evaluation mode.

    Ids 0 and 1 are the begin and end tokens, 2 to 257 are bytes.
    """
    torch.manual_seed(seed)
    model = _model(name, implementation or ("eager" if name in ("gemma2", "mpnet") else "sdpa")).eval()
    for parameter in model.parameters():  # larger than the usual start, so that errors would show
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    ids = {"cls": BOS, "sep": EOS} if name in ENCODERS else {"bos": BOS if bos else None, "eos": EOS}
    return wrap_model(model, tiny_tokenizer(), special_ids=ids, address=f"tiny-{name}", attention=attention)


def save_tiny(name: str, folder: Path, *, bos: bool = True, plain: bool = False) -> None:
    """Write a random model folder as transformers does; `plain` leaves the language-modeling head out."""
    torch.manual_seed(0)
    model = _model(name, "eager")
    (model.base_model if plain else model).save_pretrained(folder)
    names = {"bos_token": "<s>", "eos_token": "</s>"}
    if name in ENCODERS:
        names = {"cls_token": "<s>", "sep_token": "</s>"}
    tokenizer = tiny_tokenizer().backend
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", BOS)])
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)


def full_queries(model: LightRetriever, texts: Sequence[str], *, instruction: str | None = None) -> Tensor:
    """Return the (n, H) float32 query vectors of the symmetric encoder, not normalized."""
    batch = model.batch(model.frame_queries(texts, instruction=instruction))
    return model.dense_from(model.states(batch), batch)


def tiny_tokenizer() -> TextTokenizer:
    """Return a tokenizer with one token per byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<s>": BOS, "</s>": EOS, **{letter: index + 2 for index, letter in enumerate(alphabet)}}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    return TextTokenizer(tokenizer)


def _model(name: str, implementation: str) -> PreTrainedModel:
    shape = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": HIDDEN,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 256,
        "attn_implementation": implementation,
        "pad_token_id": None,
    }
    grouped = {**shape, "num_key_value_heads": 2, "head_dim": 8, "bos_token_id": BOS, "eos_token_id": EOS}
    padded = {**shape, "pad_token_id": PAD}
    layers = ["sliding_attention", "full_attention"]
    match name:
        case "llama":
            return LlamaForCausalLM(LlamaConfig(**grouped))
        case "qwen2":
            return Qwen2ForCausalLM(Qwen2Config(**grouped))
        case "qwen2-window":
            return Qwen2ForCausalLM(
                Qwen2Config(**grouped, use_sliding_window=True, sliding_window=4, layer_types=layers)
            )
        case "qwen3":
            return Qwen3ForCausalLM(Qwen3Config(**grouped))
        case "mistral":
            return MistralForCausalLM(MistralConfig(**grouped, sliding_window=None))
        case "mistral-window":
            return MistralForCausalLM(MistralConfig(**grouped, sliding_window=4))
        case "gemma2":
            return Gemma2ForCausalLM(Gemma2Config(**grouped, sliding_window=4, layer_types=layers))
        case "gemma3":
            return Gemma3ForCausalLM(Gemma3TextConfig(**grouped, sliding_window=4, layer_types=layers))
        case "bert":
            return BertForMaskedLM(BertConfig(**{**shape, "pad_token_id": 0}))
        case "distilbert":
            return DistilBertForMaskedLM(DistilBertConfig(**padded))
        case "electra":
            return ElectraForMaskedLM(ElectraConfig(**padded, embedding_size=24))
        case "modernbert":
            special = {"bos_token_id": BOS, "eos_token_id": EOS, "cls_token_id": BOS, "sep_token_id": EOS}
            return ModernBertForMaskedLM(ModernBertConfig(**padded, **special, local_attention=6))
        case "mpnet":
            return MPNetForMaskedLM(MPNetConfig(**padded))
        case "xlm-roberta":
            return XLMRobertaForMaskedLM(XLMRobertaConfig(**padded))
    raise ValueError(name)


def write_sentence_transformer(
    folder: Path,
    *,
    name: str = "bert",
    frame: str = "<s> $A </s>",
    pooling: dict[str, object] | None = None,
    prompts: dict[str, str] | None = None,
) -> Path:
    """Write a random tiny model as a sentence-transformers folder that normalizes its vectors.

    Args:
        folder: folder to write.
        name: name of the backbone.
        frame: the tokenizer's template for a text.
        pooling: content of the pooling module's configuration (default mean pooling).
        prompts: the folder's prompts by name (default none).
    """
    tiny_backbone(name).model.save_pretrained(folder)
    backend = tiny_tokenizer().backend
    backend.post_processor = processors.TemplateProcessing(frame, special_tokens=[("<s>", BOS), ("</s>", EOS)])
    begin, end = ("cls_token", "sep_token") if name in ENCODERS else ("bos_token", "eos_token")
    special = {begin: "<s>", end: "</s>", "pad_token": "<s>"}
    PreTrainedTokenizerFast(tokenizer_object=backend, **special).save_pretrained(folder)
    kinds = ("Transformer", "Pooling", "Normalize")
    modules = [
        {"idx": i, "path": p, "type": f"x.{t}"} for i, (p, t) in enumerate(zip(["", "1", "2"], kinds, strict=True))
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 60}')
    (folder / "1").mkdir()
    default = {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}
    (folder / "1" / "config.json").write_text(json.dumps(pooling or default))
    if prompts is not None:
        (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": prompts}))
    return folder


def save_cross_encoder(folder: Path, *, labels: int = 1) -> Path:
    """Save a random BERT that classifies pairs, in Hugging Face's format."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
        num_labels=labels,
        pad_token_id=BOS,
        initializer_range=0.3,
    )
    BertForSequenceClassification(config).save_pretrained(folder)
    backend = tiny_tokenizer().backend
    special = [("<s>", BOS), ("</s>", EOS)]
    backend.post_processor = processors.TemplateProcessing("<s> $A </s>", "<s> $A </s> $B:1 </s>:1", special)
    names = {"cls_token": "<s>", "sep_token": "</s>", "pad_token": "<s>"}
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    PreTrainedTokenizerFast(tokenizer_object=backend, model_input_names=inputs, **names).save_pretrained(folder)
    return folder
