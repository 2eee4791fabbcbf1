"""Export of a model as a folder of sentence-transformers: documents by the model, queries by the table.

    modules.json                      Router, and Normalize for dense vectors
    router_config.json                route "query": StaticEmbedding; route "document": Transformer, Pooling
    config_sentence_transformers.json
    query_0_*/, document_0_Transformer/, document_1_*/ ...
    lightir_modules.py                modules for what those of sentence-transformers cannot express, where needed

The frame of a text (begin token, prompt, suffix, end token), lower case and the leading blank are part of the written
tokenizers, so nobody has to pass a prompt.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, normalizers, processors
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from lightir.addresses import QUERY_ENCODER, resolve_model_folder
from lightir.contract import Contract, DenseHead, DocumentPolicy, SparseHead
from lightir.encode.exports import exported_tables
from lightir.errors import InvalidInput, NotFound
from lightir.files import atomic_folder, read_json, temporary_folder, write_json
from lightir.models.encoder import LightRetriever
from lightir.models.framing import Framing
from lightir.models.own_weights import save_weights
from lightir.query import CachedQueryEncoder
from lightir.text import QueryPolicy, TextTokenizer

Kind: TypeAlias = Literal["sentence-transformers", "sparse-encoder"]
Module: TypeAlias = tuple[str, Path]
"""Type of a module as modules.json names it, and the folder to write it into."""

STOCK = "sentence_transformers.models."
OWN = "lightir_modules."
OWN_FILE = "lightir_modules.py"
MODULES_FILE = "modules.json"

WEIGHT_SUFFIXES = (".safetensors", ".bin")
FINAL_SIGMA = Regex(r"(?<=\p{L})Σ(?!\p{L})")
"""Python's str.lower turns a sigma at the end of a word into ς, the tokenizers library does not."""


@dataclass(frozen=True, slots=True)
class ExportedModel:
    """A written folder.

    Attributes:
        folder: the folder.
        own_modules: modules of lightir_modules.py that it needs; with any, it loads with trust_remote_code=True only.
    """

    folder: Path
    own_modules: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Parts:
    """Parts of an exported model: the loaded model, its query encoder, and the type of the written weights."""

    model: LightRetriever
    queries: CachedQueryEncoder
    task: str | None
    dtype: Literal["float32", "bfloat16"]

    @property
    def contract(self) -> Contract:
        """The model's contract."""
        return self.model.contract


def export_sentence_transformer(
    model: str | os.PathLike[str],
    out: Path | str,
    *,
    kind: Kind = "sentence-transformers",
    task: str | None = None,
    dtype: Literal["float32", "bfloat16"] = "float32",
    overwrite: bool = False,
) -> ExportedModel:
    """Write a model as a folder that SentenceTransformer or SparseEncoder loads, with its adapter merged.

    Args:
        model: model folder with a query encoder, or name of an installed model.
        out: folder to write.
        kind: "sentence-transformers" for the dense branch, "sparse-encoder" for the sparse one.
        task: name of the query table; None for the default one.
        dtype: type of the model's weights, as written and as loaded by default.
        overwrite: replace a folder that has a modules.json.

    Raises:
        NotFound: there is no such model, or it has no query encoder.
        InvalidInput: the model has no such branch or task, or something that neither sentence-transformers nor
            lightir_modules.py expresses; the message lists it.
        AlreadyExists: `out` exists and overwrite is off, or it is another kind of folder.
    """
    folder = resolve_model_folder(model)
    contract = Contract.load(folder)
    _require_expressible(folder, contract, kind)
    if not (folder / QUERY_ENCODER).is_dir():
        raise NotFound(f"{folder} has no query encoder; create one with: lightir cache {os.fspath(model)}")
    queries = CachedQueryEncoder.load(folder / QUERY_ENCODER)
    if task is not None and task not in queries.tables:
        raise InvalidInput(f"no query table for task {task!r}; there are {list(queries.tables)}")
    with atomic_folder(Path(out), overwrite=overwrite, replaces=MODULES_FILE) as aside:
        parts = _Parts(LightRetriever.load(folder), queries, task, dtype)
        write = _write_dense if kind == "sentence-transformers" else _write_sparse
        own = write(parts, aside)
        if own:
            shutil.copyfile(Path(__file__).with_name(OWN_FILE), aside / OWN_FILE)
    return ExportedModel(Path(out), own)


def _require_expressible(folder: Path, contract: Contract, kind: Kind) -> None:
    """Refuse a model that the format cannot express.

    Raises:
        InvalidInput: the message lists the reasons.
    """
    document, sparse = contract.document, contract.sparse
    head = contract.dense if kind == "sentence-transformers" else sparse
    if head is None:
        raise InvalidInput(
            f"{folder} has no {'dense' if kind == 'sentence-transformers' else 'sparse'} branch to export"
        )
    reasons = {
        "attention 'echo'": contract.attention == "echo",
        "light documents": document.light,
        "several end tokens": document.ends != 1 or bool(document.ends_hash),
    }
    if isinstance(head, SparseHead):
        reasons |= {
            f"activation {head.activation!r}": head.activation != "log1p_relu",
            "a projection by input embeddings": head.projection != "head",
            "own terms beside the strongest ones": head.own_terms or head.lexical,
            "expanded queries": contract.query.weighting == "expansion",
        }
    if isinstance(head, DenseHead):
        reasons["dot products of vectors that have not length 1"] = head.similarity == "dot"
    if present_reasons := [reason for reason, present in reasons.items() if present]:
        raise InvalidInput(
            f"{folder} cannot be exported to {kind}, which has no place for: {', '.join(present_reasons)}. "
            "Search with lightir, or export its vectors (lightir encode writes NumPy arrays)"
        )


def _write_dense(parts: _Parts, folder: Path) -> tuple[str, ...]:
    """Write a SentenceTransformer and return the names of its own modules."""
    contract, head = parts.contract, parts.contract.dense
    assert head is not None  # checked before
    query_type = exported_tables.dense_query_type(parts.queries)
    query = [(query_type, folder / f"query_0_{_name(query_type)}")]
    exported_tables.write_dense_query(query[0][1], parts.queries, parts.task, query_tokenizer(parts.queries))
    types = [_transformer_type(parts, folder)]
    before, after = _frame_sizes(parts.model.framing)
    if head.pooling in ("mean", "last") and (before or after):
        types.append(f"{OWN}OwnPositions")
    types.append(f"{STOCK}Pooling")
    width = head.dims[0] if head.dims else contract.backbone.hidden_size
    linear = parts.model.heads.mean is not None or width != contract.backbone.hidden_size
    document = _modules("document", [*types, *([f"{STOCK}Dense"] if linear else [])], folder)
    for kind, target in document:
        target.mkdir()
        match _name(kind):
            case "Transformer" | "FramedTransformer":
                _write_transformer(parts, target, {})
            case "OwnPositions":
                write_json(target / "config.json", {"before": before, "after": after, "whole_if_empty": True})
            case "Pooling":
                _write_pooling(target, head, contract.backbone.hidden_size)
            case "Dense":
                _write_standardization(target, parts.model, width)
    _write_router(folder, "SentenceTransformer", query, document, normalize=True)
    return _own_names([*query, *document])


def _write_sparse(parts: _Parts, folder: Path) -> tuple[str, ...]:
    """Write a SparseEncoder and return the names of its own modules."""
    contract, head = parts.contract, parts.contract.sparse
    assert head is not None  # checked before
    query = [(f"{OWN}TermCounts", folder / "query_0_TermCounts")]
    exported_tables.write_sparse_query(query[0][1], parts.queries, query_tokenizer(parts.queries))
    before, after = _frame_sizes(parts.model.framing)
    bias = _term_bias(parts.model, head)
    framed = bool(before or after) or bias is not None
    middle = [f"{OWN}OwnPositions"] if framed else []
    pooling = "sentence_transformers.sparse_encoder.models.SpladePooling"
    document = _modules("document", [_transformer_type(parts, folder), *middle, pooling], folder)
    causal = contract.backbone.kind == "causal"
    reading: dict[str, Any] = {"transformer_task": "text-generation" if causal else "fill-mask"}
    logits = {"text": {"method": "forward", "method_output_name": "logits"}}
    reading |= {"modality_config": logits, "module_output_name": "token_embeddings"}
    if causal:
        reading["processing_kwargs"] = {"text": {"logits_to_keep": 0}}
    for kind, target in document:
        target.mkdir()
        match _name(kind):
            case "Transformer" | "FramedTransformer":
                _write_transformer(parts, target, reading)
            case "OwnPositions":
                write_json(target / "config.json", {"before": before, "after": after, "whole_if_empty": False})
                if bias is not None:
                    _save(target, {"bias": bias})
            case "SpladePooling":
                config = {"pooling_strategy": "max", "activation_function": "relu", "embedding_dimension": None}
                write_json(target / "config.json", config)
    _write_router(folder, "SparseEncoder", query, document, max_active_dims=head.top_k or None)
    return _own_names([*query, *document])


def _modules(route: str, types: Sequence[str], folder: Path) -> list[Module]:
    return [(kind, folder / f"{route}_{number}_{_name(kind)}") for number, kind in enumerate(types)]


def _name(kind: str) -> str:
    return kind.rsplit(".", 1)[-1]


def _own_names(modules: Sequence[Module]) -> tuple[str, ...]:
    return tuple(_name(kind) for kind, _ in modules if kind.startswith(OWN))


def _write_router(
    folder: Path,
    model_type: Literal["SentenceTransformer", "SparseEncoder"],
    query: Sequence[Module],
    document: Sequence[Module],
    *,
    normalize: bool = False,
    max_active_dims: int | None = None,
) -> None:
    """Write the files that join the modules of both routes."""
    modules = [{"idx": 0, "name": "0", "path": "", "type": f"{STOCK}Router"}]
    if normalize:
        modules.append({"idx": 1, "name": "1", "path": "1_Normalize", "type": f"{STOCK}Normalize"})
        (folder / "1_Normalize").mkdir()
    write_json(folder / MODULES_FILE, modules)
    routes = {"query": query, "document": document}
    router = {
        "types": {target.name: kind for modules in routes.values() for kind, target in modules},
        "structure": {route: [target.name for _, target in modules] for route, modules in routes.items()},
        "parameters": {"default_route": "document", "allow_empty_key": True, "route_mappings": {}},
    }
    write_json(folder / "router_config.json", router)
    config: dict[str, Any] = {
        "model_type": model_type,
        "prompts": {"query": "", "document": ""},
        "default_prompt_name": None,
        "similarity_fn_name": "cosine" if normalize else "dot",
    }
    if model_type == "SparseEncoder":
        config["max_active_dims"] = max_active_dims
    write_json(folder / "config_sentence_transformers.json", config)


def _write_pooling(folder: Path, head: DenseHead, width: int) -> None:
    modes = {"eos": "lasttoken", "last": "lasttoken", "mean": "mean_tokens", "mean_all": "mean_tokens", "first": "cls"}
    chosen = {"lasttoken": "lasttoken", "mean_tokens": "mean_tokens", "cls": "cls_token"}[modes[head.pooling]]
    names = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
    config: dict[str, Any] = {"word_embedding_dimension": width, "include_prompt": True}
    config |= {f"pooling_mode_{name}": name == chosen for name in names}
    write_json(folder / "config.json", config)


def _write_standardization(folder: Path, model: LightRetriever, width: int) -> None:
    """Write (x - mean) / deviation, cut to the stored width, as a linear layer."""
    hidden = model.contract.backbone.hidden_size
    mean, deviation = model.heads.mean, model.heads.deviation
    mean = torch.zeros(hidden) if mean is None else mean.float().cpu()
    deviation = torch.ones(hidden) if deviation is None else deviation.float().cpu()
    weight = torch.diag(1 / deviation)[:width].contiguous()
    _save(folder, {"linear.weight": weight, "linear.bias": (-mean / deviation)[:width].contiguous()})
    config = {
        "in_features": hidden,
        "out_features": width,
        "bias": True,
        "activation_function": "torch.nn.modules.linear.Identity",
    }
    write_json(folder / "config.json", config)


def _term_bias(model: LightRetriever, head: SparseHead) -> Tensor | None:
    """Return the (V,) float32 bias of the logits; terms before the first term get one that no logit outweighs."""
    bias = model.heads.term_bias
    if bias is None and not head.first_term:
        return None
    bias = torch.zeros(model.backbone.vocab_size) if bias is None else bias.float().cpu().clone()
    bias[: head.first_term] = -1e9  # not -inf: masked positions multiply it by 0
    return bias


def _frame_sizes(framing: Framing) -> tuple[int, int]:
    """Return the number of tokens before and after a document's text."""
    [(ids, start, stop)] = framing.documents(["a"])
    return start, len(ids) - stop


def _write_transformer(parts: _Parts, folder: Path, reading: dict[str, Any]) -> None:
    """Write weights, config and the tokenizer that frames documents."""
    model, files = parts.model, Path(parts.model.backbone.files)
    merged = bool(parts.contract.backbone.adapter_hash) or model.backbone.whole
    if merged or parts.dtype != "float32":
        save_weights(model.backbone, folder, dtype=getattr(torch, parts.dtype))
    else:
        weights = [path for path in sorted(files.iterdir()) if path.suffix in WEIGHT_SUFFIXES]
        for path in [*weights, *sorted(files.glob("*.index.json")), files / "config.json"]:
            shutil.copyfile(path, folder / path.name)
    config = read_json(folder / "config.json")
    config |= {name: parts.dtype for name in ("torch_dtype", "dtype") if name in config} or {"dtype": parts.dtype}
    write_json(folder / "config.json", config)
    max_tokens = parts.contract.document.max_tokens
    document_tokenizer(model.framing, max_tokens=max_tokens).save_pretrained(folder)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": max_tokens, "do_lower_case": False, **reading})


def _transformer_type(parts: _Parts, folder: Path) -> str:
    """Return the module that runs the model: lightir's if transformers would change the tokenizer as it reads it.

    It does so for Qwen2, among others, whatever class tokenizer_config.json names.
    """
    with temporary_folder(folder) as scratch:
        framed = document_tokenizer(parts.model.framing, max_tokens=parts.contract.document.max_tokens)
        framed.save_pretrained(scratch)
        shutil.copyfile(Path(parts.model.backbone.files) / "config.json", scratch / "config.json")
        read = AutoTokenizer.from_pretrained(scratch)
    steps = ("normalizer", "pre_tokenizer", "post_processor")
    written, loaded = (json.loads(tokenizer.backend_tokenizer.to_str()) for tokenizer in (framed, read))
    unchanged = all(written[step] == loaded[step] for step in steps)
    return f"{STOCK}Transformer" if unchanged else f"{OWN}FramedTransformer"


def document_tokenizer(framing: Framing, *, max_tokens: int) -> PreTrainedTokenizerFast:
    """Return a tokenizer that frames documents as the model does, and pads them on the right."""
    backbone, policy = framing.backbone, framing.contract.document
    tokenizer = _with_text_policy(backbone.tokenizer, policy)
    [(ids, start, stop)] = framing.documents(["a"])
    frame = {name: part for name, part in (("<before>", ids[:start]), ("<after>", ids[stop:])) if part}
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[name for name in ("<before>", "$A", "<after>") if name == "$A" or name in frame],
        special_tokens=[
            {"id": name, "ids": part, "tokens": [tokenizer.id_to_token(token_id) for token_id in part]}
            for name, part in frame.items()
        ],
    )
    end = tokenizer.id_to_token(backbone.eos_id)
    names = ("cls_token", "sep_token") if framing.contract.backbone.kind == "encoder" else ("bos_token", "eos_token")
    special = {names[1]: end}
    if backbone.bos_id is not None:
        special[names[0]] = tokenizer.id_to_token(backbone.bos_id)
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        pad_token=end,
        **special,
        padding_side="right",
        model_max_length=max_tokens,
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
    )


def query_tokenizer(queries: CachedQueryEncoder) -> Tokenizer:
    """Return a tokenizer that turns queries into term ids as the contract's query policy says."""
    tokenizer = _with_text_policy(queries.tokenizer, queries.contract.query)
    tokenizer.enable_truncation(queries.contract.query.max_tokens)
    return tokenizer


def _with_text_policy(tokenizer: TextTokenizer, policy: QueryPolicy | DocumentPolicy) -> Tokenizer:
    """Return a copy of the tokenizer that strips a text, lowers its case and prepends a blank, as the policy says."""
    copy = Tokenizer.from_str(tokenizer.backend.to_str())
    steps: list[normalizers.Normalizer] = [normalizers.Strip()]
    if policy.lower_case:
        steps += [normalizers.Replace(FINAL_SIGMA, "ς"), normalizers.Lowercase()]
    if policy.leading_blank:
        steps.append(normalizers.Prepend(" "))
    if copy.normalizer is not None:
        steps.append(copy.normalizer)
    copy.normalizer = normalizers.Sequence(steps)
    return copy


def _save(folder: Path, tensors: dict[str, Tensor]) -> None:
    save_file(tensors, str(folder / "model.safetensors"))
