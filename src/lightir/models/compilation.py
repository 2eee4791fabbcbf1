"""Compilation of a trunk's layers, for fixed or any shapes."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import torch.fx.experimental._config as shape_config
from torch import nn
from torch._dynamo import config as dynamo_config
from torch._dynamo.exc import TorchDynamoException

from lightir.errors import InvalidInput
from lightir.models.backbones import Backbone

LAYER_LISTS = ("layers", "layer", "h")
"""Attribute names of the list of layers: of the Llama family, the BERT family, and GPT-2."""

WORTH_COMPILING = 2e13
"""Tokens times weights of the layers above which layers are compiled by default. Compiling takes 10 to 15 s of one core
and then saves 25 to 40 % of the time. This is twice the break-even work (a second call finds half of the compilation in
torch's cache)."""

logger = logging.getLogger(__name__)


def compile_layers(backbone: Backbone) -> None:
    """Compile each layer separately for fixed shapes, as training batches have them."""
    for layer in _layers(backbone):
        layer.compile(dynamic=False)


@contextlib.contextmanager
def layers_compiled_for_any_shape(backbone: Backbone) -> Iterator[None]:
    """Compile the layers for any shape inside the context, each at its first call; sizes of 1 compile separately.

    Raises:
        InvalidInput: no compiler, no list of layers, or layers that torch cannot compile; the message has the cause.
    """
    layers = _layers(backbone)
    if backbone.device.type == "cpu" and shutil.which(os.environ.get("CXX", "g++")) is None:
        raise InvalidInput("no C++ compiler was found, so layers cannot be compiled: install g++, or set CXX")
    before = [layer._compiled_call_impl for layer in layers]
    dynamo_config.recompile_limit = max(dynamo_config.recompile_limit, 64)
    # Two sizes that happen to be equal (16 rows, 16 positions) must not share a symbol: that would compile again.
    shape_config.use_duck_shape = False
    for layer in layers:
        layer.compile(dynamic=True)
    try:
        yield
    except TorchDynamoException as error:
        raise InvalidInput(f"torch cannot compile the layers: {str(error).strip().splitlines()[0]}") from error
    finally:
        for layer, call in zip(layers, before, strict=True):
            layer._compiled_call_impl = call


@contextlib.contextmanager
def compiled_if_worth(
    backbone: Backbone,
    compiled: Callable[[], AbstractContextManager[None]],
    wanted: bool | None,
    expected_tokens: float,
) -> Iterator[None]:
    """Run compiled layers inside the context, if `wanted`; None compiles on a CPU if the expected tokens repay it.

    Args:
        backbone: backbone with the layers.
        compiled: function that returns the context in which the layers are compiled.
        wanted: whether to compile; None decides.
        expected_tokens: number of tokens that the layers will read.

    Raises:
        InvalidInput: the layers cannot be compiled, and `wanted` is true.
    """
    if wanted is None:
        wanted_here = backbone.device.type == "cpu" and expected_tokens * layer_parameters(backbone) >= WORTH_COMPILING
    else:
        wanted_here = wanted
    with contextlib.ExitStack() as stack:
        if wanted_here:
            start = time.perf_counter()
            try:
                stack.enter_context(compiled())
                logger.info("layers were compiled in %.1f s", time.perf_counter() - start)
            except InvalidInput as error:
                if wanted:
                    raise
                logger.warning("layers run uncompiled, at 0.5 to 0.8 times the speed: %s", error)
        yield


def layer_parameters(backbone: Backbone) -> int:
    """Return the number of weights in the layers (two operations a token each); 0 without a list of layers."""
    layers = _find_layers(backbone)
    return 0 if layers is None else sum(parameter.numel() for parameter in layers.parameters())


def _layers(backbone: Backbone) -> nn.ModuleList:
    if (layers := _find_layers(backbone)) is None:
        raise InvalidInput(f"{backbone.address}: {type(backbone.model).__name__} has no list of layers to compile")
    return layers


def _find_layers(backbone: Backbone) -> nn.ModuleList | None:
    for name, module in backbone.trunk.named_modules():
        if name.split(".")[-1] in LAYER_LISTS and isinstance(module, nn.ModuleList):
            return module
    return None
