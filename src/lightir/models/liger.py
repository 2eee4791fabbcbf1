"""Liger's fused Triton kernels in a loaded backbone: its RMSNorms, rotary positions and gated feed-forward layers."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from types import FunctionType, MethodType
from typing import Any

from torch import nn

from lightir.errors import InvalidInput, MissingExtra
from lightir.models.backbones import Backbone


def use_liger(backbone: Backbone) -> None:
    """Have Liger's kernels compute the backbone's norms, rotary positions and gated feed-forward layers, on CUDA alone.

    Values and gradients stay as they are, up to rounding; so do weights and their names. The model keeps its own
    forward: Liger's would fuse a cross entropy with a projection of all positions, but ours reads hidden states.
    Other models of the same type, loaded before or after, stay as they are.

    Args:
        backbone: without an adapter; the model inside is changed in place.

    Raises:
        MissingExtra: Liger or Triton is not installed.
        InvalidInput: Liger has no kernels for this type of model.
    """
    try:
        from liger_kernel.transformers import _apply_liger_kernel_to_instance  # transformers' own trainer calls it too
        from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN
    except ImportError as error:
        raise MissingExtra(
            f"Liger's kernels are needed for model.liger ({error}): pip install 'lightir[gpu]'"
        ) from None
    kind = backbone.model.config.model_type
    if kind not in MODEL_TYPE_TO_APPLY_LIGER_FN:
        known = ", ".join(sorted(MODEL_TYPE_TO_APPLY_LIGER_FN))
        raise InvalidInput(
            f"model.liger: Liger has no kernels for {backbone.address}, a model of type {kind}: leave it out; "
            f"it knows {known}"
        )
    code = vars(sys.modules[type(backbone.model).__module__])
    before = dict(code)
    try:
        _apply_liger_kernel_to_instance(model=backbone.model, cross_entropy=False, fused_linear_cross_entropy=False)
        replaced = {name: value for name, value in code.items() if before.get(name) is not value}
    finally:
        code.update(before)
    functions = {name: value for name, value in replaced.items() if inspect.isfunction(value)}
    for module in backbone.model.modules():
        if inspect.isfunction(forward := type(module).forward) and forward.__globals__ is code:
            _use_functions(module, forward, functions)


def _use_functions(module: nn.Module, forward: FunctionType, functions: Mapping[str, Callable[..., Any]]) -> None:
    """Have a module's forward find functions of its own under global names that Liger replaced for all modules."""
    if "forward" in vars(module) or not functions.keys() & set(forward.__code__.co_names):
        return  # Liger gave it another forward, or it reads none of them
    own = FunctionType(
        forward.__code__,
        {**forward.__globals__, **functions},
        forward.__name__,
        forward.__defaults__,
        forward.__closure__,
    )
    own.__kwdefaults__ = forward.__kwdefaults__
    vars(module)["forward"] = MethodType(own, module)
