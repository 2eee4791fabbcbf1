"""Layers whose weights, gradients and optimizer states are split among the processes (FSDP: Zhao et al., 2304.11277).

Embeddings, norms outside of layers and the head stay whole on every process: heads read them outside of any forward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from lightir.errors import InvalidInput
from lightir.models.compilation import LAYER_LISTS
from lightir.train.run.processes import world_size

HOOKS = (
    "_forward_pre_hooks",
    "_forward_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_state_dict_hooks",
)


def split_layers(trunk: nn.Module, device: str) -> Callable[[], None]:
    """Split each layer's weights among all processes, in place; the function returned makes them whole and plain again.

    A layer's weights are gathered for its forward and for its backward pass and dropped behind each; its gradients are
    averaged over the processes while they are split. All processes have to call either function.

    Raises:
        InvalidInput: the model has no list of layers.
    """
    layers = next(
        (
            module
            for name, module in trunk.named_modules()
            if name.split(".")[-1] in LAYER_LISTS and isinstance(module, nn.ModuleList)
        ),
        None,
    )
    if layers is None:
        raise InvalidInput(f"{type(trunk).__name__} has no list of layers to split: set optimisation.sharding to none")
    mesh = init_device_mesh(torch.device(device).type, (world_size(),))
    before = [(layer, type(layer), _hooks(layer)) for layer in layers]
    for layer in layers:
        fully_shard(layer, mesh=mesh, reshard_after_forward=True)

    def join() -> None:
        for layer, kind, hooks in before:
            cast(FSDPModule, layer).unshard()
            whole = {name: parameter.detach().clone() for name, parameter in layer.named_parameters()}
            _remove_hooks(layer, hooks)
            layer.__class__ = kind
            for name, tensor in whole.items():
                owner, _, own = name.rpartition(".")
                trained = layer.get_parameter(name).requires_grad
                setattr(layer.get_submodule(owner), own, nn.Parameter(tensor, requires_grad=trained))

    return join


def _hooks(layer: nn.Module) -> dict[tuple[nn.Module, str], set[int]]:
    return {(module, kind): set(getattr(module, kind)) for module in layer.modules() for kind in HOOKS}


def _remove_hooks(layer: nn.Module, before: Mapping[tuple[nn.Module, str], set[int]]) -> None:
    for module in layer.modules():
        for kind in HOOKS:
            for added in set(getattr(module, kind)) - before[module, kind]:
                del getattr(module, kind)[added]


def whole(tensor: Tensor) -> Tensor:
    """The tensor as it is, or gathered from all processes, which then all have to ask for it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def fill(target: Tensor, values: Tensor) -> None:
    """Copy whole values into a tensor that may be split, without gradient."""
    with torch.no_grad():
        values = values.to(target.device)
        if isinstance(target, DTensor):
            values = distribute_tensor(values, target.device_mesh, target.placements)
        target.copy_(values)


def whole_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """An optimizer's state_dict with whole tensors; all processes have to ask for it."""
    found = {
        n: {k: whole(v) if isinstance(v, Tensor) else v for k, v in of.items()} for n, of in state["state"].items()
    }
    return {**state, "state": found}


def split_state(state: Mapping[str, Any], parameters: Sequence[Tensor]) -> dict[str, Any]:
    """The reverse of whole_state, for an optimizer of these parameters."""
    found: dict[int, dict[str, Any]] = {}
    for number, values in state["state"].items():
        like = parameters[number]
        found[number] = {
            name: distribute_tensor(value.to(like.device), like.device_mesh, like.placements)
            if isinstance(like, DTensor) and isinstance(value, Tensor) and value.dim()
            else value
            for name, value in values.items()
        }
    return {**state, "state": found}


def clip_gradients(parameters: Iterable[Tensor], limit: float) -> Tensor:
    """Scale gradients down to a norm of at most `limit` over all of them; the norm before comes back.

    Where some are split their squares are summed over the processes.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    split = [each.to_local() for each in gradients if isinstance(each, DTensor)]
    if not split:
        return torch.nn.utils.clip_grad_norm_(parameters, limit)
    plain = [each for each in gradients if not isinstance(each, DTensor)]
    total = torch.stack([each.float().square().sum() for each in split]).sum()
    dist.all_reduce(total)
    norm = torch.stack([total, *(each.float().square().sum() for each in plain)]).sum().sqrt()
    for each in [*split, *plain]:
        each.mul_((limit / (norm + 1e-6)).clamp(max=1.0).to(each.dtype))
    return norm
