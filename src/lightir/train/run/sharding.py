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
from lightir.train.run.processes import is_first, summed, world_size

HOOKS = (
    "_forward_pre_hooks",
    "_forward_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_state_dict_hooks",
)


def split_layers(trunk: nn.Module, device: str) -> Callable[[], None]:
    """Shard each layer's weights over all processes, in place; return a function that joins the trained ones.

    A layer's weights are gathered for its forward and its backward pass and released after each; its sharded gradients
    are averaged over the processes. The returned function gathers one trained weight at a time, to be saved, and keeps
    it in process 0's main memory. Frozen weights stay sharded, and no layer runs afterwards. All processes must call
    either function.

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
            cast(FSDPModule, layer).reshard()
            joined = {}
            for name, parameter in layer.named_parameters():
                if parameter.requires_grad:
                    gathered = cast(DTensor, parameter.detach()).full_tensor()
                    if is_first():
                        joined[name] = gathered.cpu()
            _remove_hooks(layer, hooks)
            layer.__class__ = kind
            for name, tensor in joined.items():
                owner, _, own = name.rpartition(".")
                setattr(layer.get_submodule(owner), own, nn.Parameter(tensor))

    return join


def _hooks(layer: nn.Module) -> dict[tuple[nn.Module, str], set[int]]:
    return {(module, kind): set(getattr(module, kind)) for module in layer.modules() for kind in HOOKS}


def _remove_hooks(layer: nn.Module, before: Mapping[tuple[nn.Module, str], set[int]]) -> None:
    for module in layer.modules():
        for kind in HOOKS:
            for added in set(getattr(module, kind)) - before[module, kind]:
                del getattr(module, kind)[added]


def shard_of(tensor: Tensor) -> Tensor:
    """Return a copy of this process's shard in main memory; of a whole tensor, the whole."""
    own = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return own.detach().to("cpu", copy=True)


def with_shard(shard: Tensor, *, like: Tensor) -> Tensor:
    """Return a tensor sharded like another one, from this process's shard; a whole tensor if that one is whole."""
    if not isinstance(like, DTensor):
        return shard
    local = shard.to(like.device)
    return DTensor.from_local(local, like.device_mesh, like.placements, shape=like.shape, stride=like.stride())


def fill_shard(target: Tensor, shard: Tensor) -> None:
    """Copy a shard from `shard_of` into this process's part of a tensor, without gradient."""
    with torch.no_grad():
        (target.to_local() if isinstance(target, DTensor) else target).copy_(shard)


def split(values: Tensor, like: Tensor) -> Tensor:
    """Return whole values sharded like a tensor, on its device; numbers stay as they are."""
    if not values.dim() or not isinstance(like, DTensor):
        return values
    return distribute_tensor(values.to(like.device), like.device_mesh, like.placements)


def fill(target: Tensor, values: Tensor) -> None:
    """Copy whole values into a tensor that may be sharded, without gradient."""
    with torch.no_grad():
        target.copy_(split(values, target))


def split_state(state: Mapping[str, Any], parameters: Sequence[Tensor]) -> dict[str, Any]:
    """Return an optimizer's state_dict of whole tensors with tensors sharded like the parameters."""
    tensors = {
        number: {
            name: split(value, parameters[number]) if isinstance(value, Tensor) else value
            for name, value in values.items()
        }
        for number, values in state["state"].items()
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
