"""Liger's fused Triton kernels for a backbone's RMSNorms, rotary positions and gated feed-forward layers."""

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
    """Replace the backbone's norms, rotary positions and gated feed-forward layers by Liger's kernels; CUDA only.

    Values and gradients are unchanged up to rounding, weights and their names exactly. The model keeps its own
    forward: Liger's would fuse a cross entropy with a projection of all positions, but lightir reads hidden states.
    Other models of the same type, loaded before or after, are unchanged.

    Args:
        backbone: backbone without an adapter; its model is changed in place.

    Raises:
        MissingExtra: Liger or Triton is not installed.
        InvalidInput: Liger has no kernels for this type of model.
    """
    try:
        from liger_kernel.transformers import _apply_liger_kernel_to_instance  # transformers' own trainer calls it too
        from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN
    except ImportError as error:
        raise MissingExtra(
            f"Liger's kernels are required for model.liger ({error}): pip install 'lightir[gpu]'"
        ) from None
    kind = backbone.model.config.model_type
    if kind not in MODEL_TYPE_TO_APPLY_LIGER_FN:
        known = ", ".join(sorted(MODEL_TYPE_TO_APPLY_LIGER_FN))
        raise InvalidInput(
            f"model.liger: Liger has no kernels for {backbone.address}, a model of type {kind}; set it to false, "
            f"or use a model of a supported type: {known}"
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
    """Bind the functions that Liger replaced globally to one module's forward only."""
    if "forward" in vars(module) or not functions.keys() & set(forward.__code__.co_names):
        return  # Liger replaced the forward itself, or it uses none of the functions
    own = FunctionType(
        forward.__code__,
        {**forward.__globals__, **functions},
        forward.__name__,
        forward.__defaults__,
        forward.__closure__,
    )
    own.__kwdefaults__ = forward.__kwdefaults__
    vars(module)["forward"] = MethodType(own, module)
