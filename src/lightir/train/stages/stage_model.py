"""A recipe's model, made ready for the loop: adapter, contract, layers, and what is fitted before the first step."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import logging
import os
import random
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch._dynamo.config as dynamo_config
from transformers import PreTrainedModel

from lightir.addresses import resolve_local
from lightir.contract import FILE_NAME, BackboneRecord, Contract, DenseHead, DocumentPolicy, SparseHead
from lightir.data import TrainingSet
from lightir.errors import InvalidInput
from lightir.models.adapters import add_lora, continue_adapter, load_adapter, merge_adapter
from lightir.models.backbones import Backbone, load_backbone
from lightir.models.compilation import compile_layers
from lightir.models.devices import fast_dtype
from lightir.models.encoder import LightRetriever
from lightir.models.heads import calibrate_bias
from lightir.models.liger import use_liger
from lightir.models.model_folder import backbone_attention, backbone_record, contract_backbone
from lightir.models.own_ends import add_ends, fresh_ends, own_ends
from lightir.models.own_weights import train_all
from lightir.text import TextTokenizer
from lightir.train.recipes.contrastive_recipe import ContrastiveRecipe
from lightir.train.recipes.settings import WANTED, DataStage, FittedStage, ModelRecipe

logger = logging.getLogger(__name__)

DOCUMENTS_FOR_IDF = 20_000
"""Documents of one set that term weights are counted over; more change them by little."""

SHAPES = 64
"""Shapes and modes that compiled layers may meet; beyond its default of 8 torch silently runs uncompiled."""


def base_dtype(model: ModelRecipe, device: str) -> torch.dtype:
    """The frozen weights' type: bfloat16 under "auto" where the device multiplies it faster than float32."""
    if model.lora_rank == 0 and model.dtype == "auto":
        return torch.float32  # a small learning rate's steps are lost in bfloat16
    if model.dtype != "auto":
        return torch.bfloat16 if model.dtype == "bfloat16" else torch.float32
    return fast_dtype(device)


def build_model(recipe: ContrastiveRecipe, *, device: str) -> LightRetriever:
    """The backbone with its adapter under the training contract; heads are not fitted yet."""
    contract = training_policies(shipped_contract(recipe), recipe)
    return load_trainable(recipe.model, contract, seed=recipe.optimisation.seed, device=device)


def load_trainable(model: ModelRecipe, contract: Contract, *, seed: int, device: str) -> LightRetriever:
    """The recipe's backbone with its adapter, fresh or trained, under a contract whose backbone record is filled in.

    Raises:
        InvalidInput: a sparse branch is wanted, but the backbone has no language-modelling head.
    """
    backbone, record = trainable_backbone(model, seed=seed, device=device)
    if backbone.head is None and contract.sparse is not None and contract.sparse.projection == "head":
        raise InvalidInput(
            f"{model.address} has no language-modelling head: set heads.sparse to false, or in SiDR's stage "
            "heads.projection to embeddings"
        )
    backbone = _with_ends(backbone, contract.document)
    retriever = LightRetriever(backbone, dataclasses.replace(contract, backbone=record)).to(device)
    if model.lora_rank == 0:
        retriever.backbone = train_all(retriever.backbone)
    return retriever


def _with_ends(backbone: Backbone, policy: DocumentPolicy) -> Backbone:
    """The backbone with trainable end tokens of its own, those that it has or fresh ones, if the policy wants some."""
    ends = own_ends(backbone)
    if not policy.ends_hash:
        if ends is not None:
            raise InvalidInput(f"{backbone.address} has {len(ends)} end tokens of its own: set documents.new_ends")
        return backbone
    if ends is not None and len(ends) != policy.ends:
        raise InvalidInput(f"{backbone.address} has {len(ends)} end tokens of its own, not {policy.ends}")
    return add_ends(backbone, fresh_ends(backbone, policy.ends) if ends is None else ends)


def trainable_backbone(model: ModelRecipe, *, seed: int, device: str) -> tuple[Backbone, BackboneRecord]:
    """The backbone with the adapter to be trained, and its record without.

    The adapter is fresh; where the address is a model folder of ours with an adapter, that one is trained on. With
    lora_rank 0 there is none: a trained one is added into the weights.

    Args:
        model: which backbone, and what of it is trained.
        seed: of fresh matrices.
        device: for the weights' type; they stay in memory.

    Raises:
        ContractMismatch: the model folder's backbone is not the one that it was trained on.
        InvalidInput: its adapter is not as the recipe says, or Liger's kernels are wanted and cannot be had.
        MissingExtra: they are not installed.
    """
    if model.liger and torch.device(device).type != "cuda":
        raise InvalidInput(
            f"model.liger: Liger's kernels run on a CUDA device, and this run is on {device}; leave it out"
        )
    torch.manual_seed(seed)
    dtype, attention = base_dtype(model, device), model.attention
    folder = resolve_local(model.address)
    contract = None
    if folder is not None and (folder / FILE_NAME).is_file():
        contract = Contract.load(folder)
        backbone = contract_backbone(folder, contract, dtype=dtype, attention=attention)
    else:
        backbone = load_backbone(model.address, dtype=dtype, attention=backbone_attention(attention))
    record = backbone_record(backbone)  # before the adapter: the hash is the backbone's own
    if backbone.head is not None:
        backbone = dataclasses.replace(backbone, head=dataclasses.replace(backbone.head, kernel=model.head_kernel))
    shape = {"rank": model.lora_rank, "alpha": model.lora_alpha, "first_layer": model.first_layer}
    if model.liger:
        use_liger(backbone)
    trained = folder / "adapter" if folder is not None and contract and contract.backbone.adapter_hash else None
    if model.lora_rank == 0:
        return (merge_adapter(load_adapter(backbone, trained)) if trained else backbone), record
    if trained:
        return continue_adapter(backbone, trained, dropout=model.lora_dropout, **shape), record
    return add_lora(backbone, dropout=model.lora_dropout, **shape), record


def shipped_contract(recipe: ContrastiveRecipe) -> Contract:
    """The contract that the recipe describes, with an empty backbone record."""
    heads = recipe.heads
    sparse = SparseHead(heads.activation, WANTED if heads.calibrate else "", heads.top_k, heads.scale)
    return Contract(
        method=recipe.method,
        backbone=BackboneRecord(recipe.model.address, "causal", "", "", "", 0, 0),
        query=recipe.query,
        document=recipe.documents.policy,
        dense=DenseHead(heads.pooling, WANTED if heads.standardize else "") if heads.dense else None,
        sparse=sparse if heads.sparse else None,
        attention=recipe.model.attention,
        fusion=recipe.fusion,
    )


def training_policies(contract: Contract, recipe: DataStage) -> Contract:
    """The contract with queries and documents cut to what training sees of them."""
    document, query = contract.document, contract.query
    document = dataclasses.replace(document, max_tokens=recipe.documents.train_tokens or document.max_tokens)
    query = dataclasses.replace(query, max_tokens=recipe.optimisation.query_tokens or query.max_tokens)
    return dataclasses.replace(contract, document=document, query=query)


def save_shipped(retriever: LightRetriever, recipe: DataStage, folder: Path) -> None:
    """Write the model under the recipe's own policies: what is searched is not cut as training was."""
    document, query = recipe.documents.policy, recipe.query
    retriever.contract = dataclasses.replace(retriever.contract, document=document, query=query)
    retriever.save(folder)


def prepare_layers(retriever: LightRetriever, model: ModelRecipe) -> None:
    """Gradient checkpointing and compilation, as far as the recipe asks for them."""
    retriever.backbone.model.config.use_cache = False  # nobody reads keys and values of a training forward
    if model.gradient_checkpointing:
        recompute_activations(retriever.backbone.model)
    if model.compile:
        on_cpu = retriever.backbone.device.type == "cpu"
        if on_cpu and shutil.which(os.environ.get("CXX", "g++")) is None:
            logger.warning("no C++ compiler was found: layers run uncompiled, about half as fast")
            return
        dynamo_config.recompile_limit = SHAPES
        compile_layers(retriever.backbone)


def recompute_activations(model: PreTrainedModel) -> None:
    """Switch gradient checkpointing on, under the name that the transformers here have for it."""
    names = ("activation_checkpointing_enable", "gradient_checkpointing_enable")  # the second one is older
    enable = next(getattr(model, name) for name in names if hasattr(model, name))
    arguments = [name for name in inspect.signature(enable).parameters if name.endswith("_kwargs")]
    enable(**{arguments[0]: {"use_reentrant": False}})


def fit_heads(retriever: LightRetriever, recipe: FittedStage, sets: Sequence[TrainingSet]) -> None:
    """Fit standardisation, term bias and term weights on documents of the training corpora, as far as asked for."""
    heads, contract = recipe.heads, retriever.contract
    standardized = contract.dense is not None and contract.dense.standardized
    if standardized or (contract.sparse is not None and contract.sparse.bias_hash):
        sample = sample_documents(sets, heads.calibration_documents, seed=recipe.optimisation.seed)
        retriever.calibrate(sample, quantile=heads.calibrate or 0.5)
    if recipe.query.term_weights == "idf":
        weights = idf_weights(retriever, sets)
        retriever.heads = dataclasses.replace(retriever.heads, term_weights=weights.to(retriever.backbone.device))


def refit_bias(retriever: LightRetriever, recipe: ContrastiveRecipe, sets: Sequence[TrainingSet]) -> None:
    """Fit the term bias to the trained model, as far as the recipe asks for it; the standardisation stays."""
    heads = recipe.heads
    if not (heads.calibrate and heads.recalibrate) or retriever.contract.sparse is None:
        return
    sample = sample_documents(sets, heads.calibration_documents, seed=recipe.optimisation.seed)
    framed = retriever.frame_documents(sample)
    length = retriever.contract.document.max_tokens if recipe.model.compile else None
    maxima = []
    with torch.no_grad():
        for start in range(0, len(framed), recipe.optimisation.batch_size):
            batch = retriever.batch(framed[start : start + recipe.optimisation.batch_size], length=length)
            maxima.append(retriever.maxima(retriever.states(batch), batch))
    bias = calibrate_bias(maxima, quantile=heads.calibrate).to(retriever.backbone.device)
    retriever.heads = dataclasses.replace(retriever.heads, term_bias=bias)


def sample_documents(sets: Sequence[TrainingSet], n: int, *, seed: int) -> list[str]:
    """About n documents' texts with titles, the same number of each set, drawn from the seed."""
    generator = random.Random(seed)
    texts: list[str] = []
    for each in sets:
        ids = each.doc_ids if each.digest else sorted(each.documents)
        chosen = generator.sample(ids, min(len(ids), -(-n // len(sets))))
        texts += [each.documents[doc_id].full_text() for doc_id in chosen]
    return texts


def idf_weights(retriever: LightRetriever, sets: Sequence[TrainingSet]) -> torch.Tensor:
    """(V,) float32 in (0, 1]: ln(1 + N / (df + 0.5)) over the training corpora, a term never seen being 1."""
    policy = retriever.contract.query
    tokenizer: TextTokenizer = retriever.backbone.tokenizer
    frequency = np.zeros(retriever.backbone.vocab_size, dtype=np.int64)
    n_documents = 0
    seen: set[str] = set()
    for each in sets:
        some = [d for d in itertools.islice(each.documents.values(), DOCUMENTS_FOR_IDF) if d.doc_id not in seen]
        texts = [policy.prepare(document.full_text()) for document in some]
        seen.update(document.doc_id for document in some)
        for start in range(0, len(texts), 512):
            rows = tokenizer.term_ids(texts[start : start + 512], max_tokens=policy.max_tokens)
            for row in range(len(rows)):
                frequency[np.unique(rows.row(row))] += 1
        n_documents += len(texts)
    raw = np.log1p(n_documents / (frequency + 0.5))
    return torch.from_numpy((raw / np.log1p(n_documents / 0.5)).astype(np.float32))
