"""A model folder's parts, read and written under its contract: backbone, adapter, tokenizer and head arrays."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from peft import PeftModel
from safetensors.torch import save_file
from torch import Tensor

from lightir.addresses import OWN_WEIGHTS, SPARSE_ENCODER, base_address, stored_address
from lightir.contract import FILE_NAME, BackboneRecord, Contract, hash_arrays, refuse_external
from lightir.errors import ContractMismatch, FormatError
from lightir.models.adapters import load_adapter, merge_adapter, save_adapter, saved_adapter_hash
from lightir.models.backbones import Attention, Backbone, load_backbone
from lightir.models.model_files import read_tensors
from lightir.models.own_ends import add_ends, ends_hash, save_ends, saved_ends
from lightir.models.own_weights import save_weights


@dataclass(frozen=True, slots=True)
class HeadArrays:
    """Fixed arrays of the heads; each is None if the contract has none.

    Attributes:
        mean: (H,) float32 mean of pooled states.
        deviation: (H,) float32 standard deviation of pooled states.
        term_bias: (V,) float32 bias of the maximal logits.
        term_weights: (V,) float32 weight of each term in a sparse query (IDF).
        norm_weight: (H,) float32 weight of the LayerNorm in front of the sparse projection; a parameter in training.
        norm_bias: (H,) float32 bias of that LayerNorm; a parameter in training.
        projection: (V, H) int8 rows of the sparse head's own projection.
        projection_scales: (V,) float32 scale of each of these rows.
    """

    mean: Tensor | None = None
    deviation: Tensor | None = None
    term_bias: Tensor | None = None
    term_weights: Tensor | None = None
    norm_weight: Tensor | None = None
    norm_bias: Tensor | None = None
    projection: Tensor | None = None
    projection_scales: Tensor | None = None

    def arrays(self) -> dict[str, Tensor]:
        """Return the arrays that are not None, by name."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    def own_projection(self, dtype: torch.dtype) -> Tensor:
        """Return the sparse head's own projection, (V, H) in a dtype.

        Raises:
            FormatError: the model has none.
        """
        if self.projection is None or self.projection_scales is None:
            raise FormatError("the contract names the sparse head's own projection, which head.safetensors lacks")
        return (self.projection * self.projection_scales[:, None]).to(dtype)


def read_parts(folder: Path, *, dtype: torch.dtype, merge: bool) -> tuple[Backbone, Contract, HeadArrays]:
    """Read a model folder: its backbone with the adapter merged or trainable, its contract and its head arrays.

    Raises:
        ContractMismatch: the backbone, adapter, tokenizer or head differs from the contract's.
    """
    contract = Contract.load(folder)
    attention = contract.attention if contract.backbone.kind == "causal" else "bidirectional"
    backbone = contract_backbone(folder, contract, dtype=dtype, attention=attention)
    if contract.backbone.adapter_hash:
        backbone = load_adapter(backbone, folder / "adapter", trainable=not merge)
        backbone = merge_adapter(backbone) if merge else backbone
    return backbone, contract, stored_heads(folder, contract)


def sparse_encoder(folder: Path, contract: Contract, *, dtype: torch.dtype) -> Backbone | None:
    """Load the sparse head's own encoder from a model folder; None if the contract names none.

    Raises:
        ContractMismatch: it differs from the contract's, or reads the ids of another tokenizer.
        FormatError: it has no masked-LM head.
    """
    if contract.sparse is None or not contract.sparse.encoder_hash:
        return None
    encoder = load_backbone(folder / SPARSE_ENCODER, dtype=dtype)
    _require("sparse.encoder_hash", contract.sparse.encoder_hash, encoder.weights_hash, folder)
    _require("backbone.tokenizer_hash", contract.backbone.tokenizer_hash, encoder.tokenizer.hash, folder)
    if encoder.head is None:
        raise FormatError(f"{folder / SPARSE_ENCODER} has no masked-LM head, which the sparse head is")
    return encoder


def write_parts(folder: Path, backbone: Backbone, contract: Contract, heads: HeadArrays) -> Contract:
    """Write a model folder and return the contract as saved, with the hashes of the present arrays."""
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(backbone.trunk, PeftModel):
        save_adapter(backbone, folder / "adapter")
    record = dataclasses.replace(contract.backbone, adapter_hash=saved_adapter_hash(folder / "adapter"))
    if backbone.whole:
        record = dataclasses.replace(record, weights_hash=save_weights(backbone, folder / OWN_WEIGHTS))
    record = dataclasses.replace(record, address=stored_address(backbone.address, folder))
    document = dataclasses.replace(contract.document, ends_hash=save_ends(backbone, folder))
    contract = with_array_hashes(dataclasses.replace(contract, backbone=record, document=document), heads)
    if arrays := _stored(heads):
        save_file(arrays, str(folder / "head.safetensors"))
    backbone.tokenizer.save(folder / "tokenizer.json")
    contract.save(folder)
    mode = (folder / FILE_NAME).stat().st_mode  # mode of a new file under the umask
    for path in folder.rglob("*.safetensors"):  # safetensors makes files readable by the owner only
        path.chmod(mode)
    return contract


def with_array_hashes(contract: Contract, heads: HeadArrays) -> Contract:
    """Return the contract with the hashes of the present head arrays."""
    dense, sparse, arrays = contract.dense, contract.sparse, _stored(heads)
    if dense is not None and "mean" in arrays:
        dense = dataclasses.replace(dense, standardized=_standardization_hash(arrays))
    if sparse is not None and "term_bias" in arrays:
        sparse = dataclasses.replace(sparse, bias_hash=hash_arrays(arrays["term_bias"].numpy()))
    if sparse is not None and "norm_weight" in arrays:
        sparse = dataclasses.replace(sparse, norm_hash=_norm_hash(arrays))
    if sparse is not None and "projection" in arrays:
        sparse = dataclasses.replace(sparse, projection_hash=_projection_hash(arrays))
    return dataclasses.replace(contract, dense=dense, sparse=sparse)


def _stored(heads: HeadArrays) -> dict[str, Tensor]:
    arrays = {name: value.detach().cpu().contiguous() for name, value in heads.arrays().items()}
    return {name: array if array.dtype == torch.int8 else array.float() for name, array in arrays.items()}


def _standardization_hash(arrays: dict[str, Tensor]) -> str:
    return hash_arrays(arrays["mean"].numpy(), arrays["deviation"].numpy())


def _norm_hash(arrays: dict[str, Tensor]) -> str:
    return hash_arrays(arrays["norm_weight"].numpy(), arrays["norm_bias"].numpy())


def _projection_hash(arrays: dict[str, Tensor]) -> str:
    return hash_arrays(arrays["projection"].numpy(), arrays["projection_scales"].numpy())


def contract_backbone(
    folder: Path, contract: Contract, *, dtype: torch.dtype, attention: Attention | Literal["echo"] | None = None
) -> Backbone:
    """Load the backbone in a model folder, or the one that its contract names, without the folder's adapter.

    Raises:
        ContractMismatch: the backbone, tokenizer, adapter or end tokens differ from the contract's.
        InvalidInput: the contract's documents are encoded outside lightir.
    """
    refuse_external(contract, str(folder))
    record, own = contract.backbone, folder / OWN_WEIGHTS
    address = own if own.is_dir() else base_address(record.address, folder)
    backbone = load_backbone(address, dtype=dtype, attention=backbone_attention(attention))
    _require("backbone.weights_hash", record.weights_hash, backbone.weights_hash, folder)
    _require("backbone.tokenizer_hash", record.tokenizer_hash, backbone.tokenizer.hash, folder)
    _require("backbone.adapter_hash", record.adapter_hash, saved_adapter_hash(folder / "adapter"), folder)
    ends = saved_ends(folder)
    _require("document.ends_hash", contract.document.ends_hash, "" if ends is None else ends_hash(ends), folder)
    return backbone if ends is None else add_ends(backbone, ends, trainable=False)


def backbone_attention(attention: Attention | Literal["echo"] | None) -> Attention | None:
    """Return the attention of the backbone: an echo repeats the text, which the backbone reads causally."""
    return "causal" if attention == "echo" else attention


def backbone_record(backbone: Backbone) -> BackboneRecord:
    """Return the contract's record of a loaded backbone without an adapter."""
    return BackboneRecord(
        backbone.address,
        backbone.kind,
        backbone.weights_hash,
        "",
        backbone.tokenizer.hash,
        backbone.vocab_size,
        backbone.hidden_size,
    )


def stored_heads(folder: Path, contract: Contract) -> HeadArrays:
    """Read the head arrays of a model folder.

    Raises:
        ContractMismatch: an array differs from the contract's hash.
    """
    path = folder / "head.safetensors"
    arrays = read_tensors(path) if path.is_file() else {}
    heads = HeadArrays(**arrays)
    standardized = _standardization_hash(arrays) if "mean" in arrays else ""
    bias_hash = hash_arrays(arrays["term_bias"].numpy()) if "term_bias" in arrays else ""
    if contract.dense is not None:
        _require("dense.standardized", contract.dense.standardized, standardized, folder)
    if contract.sparse is not None:
        _require("sparse.bias_hash", contract.sparse.bias_hash, bias_hash, folder)
        norm_hash = _norm_hash(arrays) if "norm_weight" in arrays else ""
        _require("sparse.norm_hash", contract.sparse.norm_hash, norm_hash, folder)
        projection_hash = _projection_hash(arrays) if "projection" in arrays else ""
        _require("sparse.projection_hash", contract.sparse.projection_hash, projection_hash, folder)
    return heads


def _require(field: str, expected: str, actual: str, folder: Path) -> None:
    if expected != actual:
        raise ContractMismatch(f"{folder}: {field} is {actual!r}, but the contract has {expected!r}")
