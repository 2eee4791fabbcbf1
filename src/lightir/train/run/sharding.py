"""Sharding of layers: weights, gradients and optimizer states split over processes (FSDP, arXiv 2304.11277).

Embeddings, norms outside of layers and the head stay whole on every process: heads read them outside of any forward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from lightir.errors import InvalidInput
from lightir.models.compilation import LAYER_LISTS
from lightir.train.run.processes import summed, world_size

HOOKS = (
    "_forward_pre_hooks",
    "_forward_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_state_dict_hooks",
)


def split_layers(trunk: nn.Module, device: str) -> Callable[[], None]:
    """Shard each layer's weights over all processes, in place; return a function that makes them whole and plain again.

    A layer's weights are gathered for its forward and its backward pass and released after each; its sharded gradients
    are averaged over the processes. All processes must call either function.

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
        raise InvalidInput(f"{type(trunk).__name__} has no list of layers to shard: set optimisation.sharding to none")
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
    """Return the whole tensor, gathered from all processes if it is sharded; all processes must call this function."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def fill(target: Tensor, values: Tensor) -> None:
    """Copy whole values into a tensor that may be sharded, without gradient."""
    with torch.no_grad():
        values = values.to(target.device)
        if isinstance(target, DTensor):
            values = distribute_tensor(values, target.device_mesh, target.placements)
        target.copy_(values)


def whole_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return an optimizer's state_dict with whole tensors; all processes must call this function."""
    tensors = {
        number: {name: whole(value) if isinstance(value, Tensor) else value for name, value in values.items()}
        for number, values in state["state"].items()
    }
    return {**state, "state": tensors}


def split_state(state: Mapping[str, Any], parameters: Sequence[Tensor]) -> dict[str, Any]:
    """Return the state_dict with tensors sharded like the optimizer's parameters: the reverse of `whole_state`."""
    tensors: dict[int, dict[str, Any]] = {}
    for number, values in state["state"].items():
        like = parameters[number]
        tensors[number] = {
            name: distribute_tensor(value.to(like.device), like.device_mesh, like.placements)
            if isinstance(like, DTensor) and isinstance(value, Tensor) and value.dim()
            else value
            for name, value in values.items()
        }
    return {**state, "state": tensors}


def clip_gradients(parameters: Iterable[Tensor], limit: float) -> Tensor:
    """Scale gradients down to a norm of at most `limit` over all of them; return the norm before.

    The squares of sharded gradients are summed over the processes.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    split = [gradient.to_local() for gradient in gradients if isinstance(gradient, DTensor)]
    if not split:
        return torch.nn.utils.clip_grad_norm_(parameters, limit)
    plain = [gradient for gradient in gradients if not isinstance(gradient, DTensor)]
    total = summed(torch.stack([gradient.float().square().sum() for gradient in split]).sum())
    norm = torch.stack([total, *(gradient.float().square().sum() for gradient in plain)]).sum().sqrt()
    for gradient in [*split, *plain]:
        gradient.mul_((limit / (norm + 1e-6)).clamp(max=1.0).to(gradient.dtype))
    return norm
