"""The model that a stage trains: backbone with adapter, prepared layers, and the model folder that it is saved to."""

from __future__ import annotations

import dataclasses
import inspect
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, TypeVar

import torch
import torch._dynamo.config as dynamo_config
from torch import Tensor
from transformers import PreTrainedModel

from lightir.addresses import resolve_local
from lightir.contract import FILE_NAME, BackboneRecord, Contract, DocumentPolicy
from lightir.errors import InvalidInput
from lightir.models.adapters import add_lora, continue_adapter, load_adapter, merge_adapter
from lightir.models.backbones import Backbone, load_backbone
from lightir.models.compilation import compile_layers
from lightir.models.devices import fast_dtype
from lightir.models.encoder import LightRetriever
from lightir.models.liger import use_liger
from lightir.models.model_folder import backbone_attention, backbone_record, contract_backbone
from lightir.models.own_ends import add_ends, fresh_ends, own_ends
from lightir.models.own_weights import all_weights, train_all
from lightir.train.recipes.run_recipe import RunRecipe
from lightir.train.recipes.settings import ModelRecipe
from lightir.train.run.processes import autocast
from lightir.train.run.stage import DevelopmentResult

logger = logging.getLogger(__name__)

COMPILED_SHAPES = 64
"""Limit of shapes and modes of compiled layers; beyond its default of 8, torch silently runs uncompiled."""


RecipeT = TypeVar("RecipeT", bound=RunRecipe)


class ModelStage(Generic[RecipeT]):
    """Base of all stages: a model with prepared layers and trained parameters, and how it is saved.

    Attributes:
        recipe: the run's recipe.
        retriever: the model.
        device: device of the model.
        trunk: module that switches between training and evaluation.
        parameters: trained tensors by name.
    """

    def __init__(self, recipe: RecipeT, retriever: LightRetriever, device: str) -> None:
        """Prepare the layers of a model that `build_model` made, with fitted heads."""
        self.recipe, self.retriever, self.device = recipe, retriever, device
        prepare_layers(retriever, recipe.model)
        self.trunk = retriever.trunk
        self.trunk.train(recipe.model.lora_dropout > 0 or recipe.model.gradient_checkpointing)
        self.parameters = {
            name: weights for name, weights in all_weights(retriever.backbone).items() if weights.requires_grad
        }

    @property
    def fixed(self) -> Mapping[str, Tensor]:
        """No further tensors."""
        return {}

    def restore(self, fixed: Mapping[str, Tensor]) -> None:
        """Do nothing: there are no further tensors."""

    @contextmanager
    def autocast(self) -> Iterator[None]:
        """Run the model's forward passes in the precision of its device."""
        with autocast(self.device, self.retriever.backbone.model.dtype):
            yield

    def evaluate(self) -> DevelopmentResult | None:
        """Return None: there are no development sets."""
        return None

    def complete(self) -> None:
        """Do nothing: the weights are all."""

    def save(self, folder: Path) -> None:
        """Write the model under the recipe's own policies: searches do not cut texts as training does."""
        shipped = self.recipe.contract
        self.retriever.contract = dataclasses.replace(
            self.retriever.contract, document=shipped.document, query=shipped.query
        )
        self.fit_shipped()
        self.retriever.save(folder)

    def fit_shipped(self) -> None:
        """Do nothing: there is nothing to fit to the trained model under its own policies."""


def build_model(recipe: RunRecipe, *, device: str, require: Callable[[Backbone], None] | None = None) -> LightRetriever:
    """Load the recipe's backbone with its adapter, fresh or trained, under the training contract; heads are not fitted.

    Args:
        recipe: recipe of any stage.
        device: device of the model.
        require: raises if the stage cannot train such a backbone.

    Raises:
        InvalidInput: the contract has a sparse branch, but the backbone has no language-modelling head.
    """
    backbone, record = trainable_backbone(recipe.model, seed=recipe.optimisation.seed, device=device)
    if require is not None:
        require(backbone)
    contract = recipe.training_contract
    if backbone.head is None and contract.sparse is not None and contract.sparse.projection == "head":
        raise InvalidInput(
            f"{recipe.model.address} has no language-modelling head: set heads.sparse to false, or in SiDR's stage "
            "heads.projection to embeddings"
        )
    backbone = _with_ends(backbone, contract.document)
    retriever = LightRetriever(backbone, dataclasses.replace(contract, backbone=record)).to(device)
    if recipe.model.lora_rank == 0:
        retriever.backbone = train_all(retriever.backbone)
    return retriever


def base_dtype(model: ModelRecipe, device: str) -> torch.dtype:
    """Return the type of the frozen weights: under "auto" bfloat16 if the device multiplies it faster than float32."""
    if model.lora_rank == 0 and model.dtype == "auto":
        return torch.float32  # a small learning rate's steps are lost in bfloat16
    if model.dtype != "auto":
        return torch.bfloat16 if model.dtype == "bfloat16" else torch.float32
    return fast_dtype(device)


def _with_ends(backbone: Backbone, policy: DocumentPolicy) -> Backbone:
    """Return the backbone with trainable end tokens, its own or fresh ones, if the policy has some."""
    ends = own_ends(backbone)
    if not policy.ends_hash:
        if ends is not None:
            raise InvalidInput(f"{backbone.address} has {len(ends)} end tokens of its own: set documents.new_ends")
        return backbone
    if ends is not None and len(ends) != policy.ends:
        raise InvalidInput(f"{backbone.address} has {len(ends)} end tokens of its own, not {policy.ends}")
    return add_ends(backbone, fresh_ends(backbone, policy.ends) if ends is None else ends)


def trainable_backbone(model: ModelRecipe, *, seed: int, device: str) -> tuple[Backbone, BackboneRecord]:
    """Load the backbone with the adapter to train; return it with its record, which excludes the adapter.

    The adapter is fresh, or that of the model folder that the address names. With lora_rank 0 there is no adapter: a
    trained one is merged into the weights.

    Args:
        model: the backbone, and which of its weights are trained.
        seed: seed of fresh matrices.
        device: device that decides the weights' type; they stay in main memory.

    Raises:
        ContractMismatch: the model folder was trained on another backbone.
        InvalidInput: the folder's adapter differs from the recipe's, or Liger's kernels do not run on the device.
        MissingExtra: Liger is not installed.
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


def prepare_layers(retriever: LightRetriever, model: ModelRecipe) -> None:
    """Enable gradient checkpointing and compilation as the recipe says."""
    retriever.backbone.model.config.use_cache = False  # training never reads a forward's keys and values
    if model.gradient_checkpointing:
        recompute_activations(retriever.backbone.model)
    if model.compile:
        on_cpu = retriever.backbone.device.type == "cpu"
        if on_cpu and shutil.which(os.environ.get("CXX", "g++")) is None:
            logger.warning("no C++ compiler found: layers run uncompiled, about half as fast")
            return
        dynamo_config.recompile_limit = COMPILED_SHAPES
        compile_layers(retriever.backbone)


def recompute_activations(model: PreTrainedModel) -> None:
    """Enable gradient checkpointing under the name that the installed transformers has for it."""
    names = ("activation_checkpointing_enable", "gradient_checkpointing_enable")  # the second one is older
    enable = next(getattr(model, name) for name in names if hasattr(model, name))
    arguments = [name for name in inspect.signature(enable).parameters if name.endswith("_kwargs")]
    enable(**{arguments[0]: {"use_reentrant": False}})
