"""A trained model as a plain folder of transformers, its adapter added to the weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from lightir.addresses import OWN_WEIGHTS, resolve_model_folder
from lightir.contract import Contract
from lightir.errors import InvalidInput
from lightir.files import atomic_folder, read_json, write_json
from lightir.models.model_folder import HeadArrays, read_parts
from lightir.models.own_weights import save_weights

CONFIG_FILE = "config.json"


@dataclass(frozen=True, slots=True)
class MergedModel:
    """A written folder, and the parts of the model that transformers' format has no place for.

    Attributes:
        folder: the folder.
        left_out: parts of the model that its own folder still has to supply, in words; empty if there are none.
    """

    folder: Path
    left_out: tuple[str, ...]


def write_merged(
    model: str | Path, out: Path | str, *, dtype: Literal["bfloat16", "float32"] = "bfloat16", overwrite: bool = False
) -> MergedModel:
    """Write a model's weights, config and tokenizer in transformers' format, with its adapter merged.

    The sum of weights and adapter is computed in float32. The folder has no contract: prompts, pooling and the arrays
    of the heads stay in the model folder. Training can start from it with an adapter of any rank.

    Args:
        model: model folder, or name of an installed model.
        out: folder to write.
        dtype: type of the written weights.
        overwrite: replace a folder that has a config.json.

    Raises:
        NotFound: there is no such model.
        ContractMismatch: the backbone, adapter, tokenizer or head differs from the contract's.
        InvalidInput: the model has no trained weights, or end tokens of its own.
        AlreadyExists: `out` exists and overwrite is off, or it is another kind of folder.
    """
    folder = resolve_model_folder(model)
    contract = Contract.load(folder)
    if not contract.backbone.adapter_hash and not (folder / OWN_WEIGHTS).is_dir():
        raise InvalidInput(
            f"{folder} has no adapter and no weights of its own, so there is nothing to merge: its model is "
            f"{contract.backbone.address}, unchanged"
        )
    if contract.document.ends_hash:
        raise InvalidInput(
            f"{folder} has {contract.document.ends} end tokens of its own, which transformers' format cannot hold; "
            "use the model folder"
        )
    with atomic_folder(Path(out), overwrite=overwrite, replaces=CONFIG_FILE) as aside:
        backbone, contract, heads = read_parts(folder, dtype=torch.float32, merge=True)
        save_weights(backbone, aside, dtype=getattr(torch, dtype))
        config = read_json(aside / CONFIG_FILE)
        config |= {name: dtype for name in ("torch_dtype", "dtype") if name in config} or {"dtype": dtype}
        write_json(aside / CONFIG_FILE, config)
    return MergedModel(Path(out), _left_out(contract, heads))


def _left_out(contract: Contract, heads: HeadArrays) -> tuple[str, ...]:
    """Return in words what decides the model's vectors beside weights, config and tokenizer."""
    parts = []
    if contract.backbone.kind == "causal" and contract.attention != "causal":
        parts.append(f"attention {contract.attention!r}; transformers reads the model causally")
    parts += [f"head array {name}" for name in sorted(heads.arrays())]
    return tuple(parts)
