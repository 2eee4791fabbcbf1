"""A pretended GPU for machines without one: tensors that say they are on "cuda", refuse CPU tensors, and compute.

A `PretendedCuda` tensor keeps its values in a CPU tensor. Whatever torch does with it goes through one door
(`__torch_dispatch__`), where a mixture with tensors of the CPU is refused as CUDA refuses it. So code runs as it would
on a GPU, branch by branch, with its real values: what a fake tensor without values cannot do (`tolist`, `nonzero`).

What it is not: CUDA's kernels. Their rounding, order of summation, limits and speed are not tried here. Autocast is
imitated for the operations in LOWER and WIDER; others take their operands as they are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.checkpoint import DefaultDeviceType

from lightir.models import projection

DEVICE = torch.device("cuda", 0)
ATEN = torch.ops.aten
MAY_MIX = {ATEN.copy_.default, ATEN._to_copy.default, ATEN.index.Tensor, ATEN.index_put.default}
MAY_MIX |= {ATEN.index_put_.default, ATEN._index_put_impl_.default}
"""CUDA takes indices of the CPU too, and copies go between devices."""

LOWER = {torch.matmul, torch.mm, torch.bmm, torch.addmm, torch.baddbmm, torch.einsum, F.linear}
LOWER |= {F.scaled_dot_product_attention, Tensor.matmul, Tensor.__matmul__, Tensor.__rmatmul__, Tensor.mm, Tensor.bmm}
WIDER = {torch.exp, torch.log, torch.log1p, torch.pow, torch.rsqrt, torch.cumsum, torch.logsumexp, F.softplus}
WIDER |= {Tensor.exp, Tensor.log, Tensor.log1p, Tensor.pow, Tensor.rsqrt, Tensor.cumsum, Tensor.logsumexp}
WIDER |= {F.softmax, F.log_softmax, F.layer_norm, F.mse_loss, F.kl_div, F.normalize, torch.softmax, Tensor.softmax}
WIDER |= {torch.log_softmax, Tensor.log_softmax, F.cross_entropy, F.nll_loss, Tensor.sum, torch.sum, Tensor.norm}
"""What torch.autocast computes in bfloat16 and in float32 on CUDA, as far as lightir and its models call it."""


class PretendedCuda(Tensor):
    """A tensor on the pretended GPU."""

    on_cpu: Tensor
    device = property(lambda self: DEVICE)  # type: ignore[assignment]
    is_cuda = property(lambda self: True)  # type: ignore[assignment]
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, real: Tensor) -> PretendedCuda:
        """Of the values in `real`, which are shared."""
        shape = torch.empty_strided(real.shape, real.stride(), dtype=real.dtype, device="meta")
        made: PretendedCuda = torch.Tensor._make_subclass(cls, shape, False, device_for_backend_keys=DEVICE)
        made.on_cpu = real.detach()
        return made

    def __repr__(self, **_: object) -> str:
        return f"pretended cuda {self.on_cpu!r}"

    def __reduce_ex__(self, protocol: int) -> Any:
        return self.on_cpu.__reduce_ex__(protocol)

    def tolist(self) -> Any:
        """The values; the GPU is waited for."""
        return self.on_cpu.tolist()

    def numpy(self, *, force: bool = False) -> Any:
        """Refused, as CUDA refuses it."""
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first")

    def __array__(self, *_: object, **__: object) -> Any:
        return self.numpy()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        flat, _ = tree_flatten((args, kwargs))
        if func not in MAY_MIX:
            _refuse_mixture(func, flat)
        wanted = kwargs.get("device")
        if wanted is not None:
            kwargs["device"] = torch.device("cpu")
        kwargs.pop("pin_memory", None)
        real_args, real_kwargs = tree_map(_real, args), tree_map(_real, kwargs)
        found = _compute(func, real_args, real_kwargs)
        to_cpu = wanted is not None and torch.device(wanted).type == "cpu"
        known = {id(each.on_cpu): each for each in flat if isinstance(each, PretendedCuda)}
        return found if to_cpu else tree_map(lambda each: _wrapped(each, known), found)


def _refuse_mixture(func: Any, flat: list[Any]) -> None:
    tensors = [each for each in flat if isinstance(each, Tensor)]
    here = [each for each in tensors if isinstance(each, PretendedCuda)]
    strange = [each for each in tensors if not isinstance(each, PretendedCuda) and each.dim() > 0]
    if here and strange:
        shapes = [tuple(each.shape) for each in tensors]
        raise RuntimeError(
            f"{func}: expected all tensors to be on the same device, but found cuda:0 and cpu; shapes {shapes}"
        )


def _compute(func: Any, args: Any, kwargs: Any) -> Any:
    if func is ATEN.mm.dtype:  # sums and results wider than the operands: on CUDA alone
        left, right, wide = args
        if left.dtype != right.dtype:
            raise RuntimeError(f"expected operands of one dtype, but found {left.dtype} and {right.dtype}")
        return torch.mm(left.to(wide), right.to(wide))
    return func(*args, **kwargs)


def _real(value: Any) -> Any:
    return value.on_cpu if isinstance(value, PretendedCuda) else value


def _wrapped(value: Any, known: dict[int, PretendedCuda]) -> Any:
    if not isinstance(value, Tensor) or isinstance(value, PretendedCuda):
        return value
    return known[id(value)] if id(value) in known else PretendedCuda(value)


class _Factories(TorchDispatchMode):
    """New tensors for "cuda" are pretended ones; so are those that autograd makes for itself."""

    asked_for_meta = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        device = kwargs.get("device")
        kind = None if device is None else torch.device(device).type
        if kind == "cuda" or (kind == "meta" and not self.asked_for_meta) or any(t is PretendedCuda for t in types):
            return PretendedCuda.__torch_dispatch__(func, types, args, kwargs)
        return func(*args, **kwargs)


class _Calls(TorchFunctionMode):
    """Devices named "cuda" become "cuda:0", and autocast does what it does on a GPU."""

    def __init__(self, factories: _Factories, *, autocast: bool) -> None:
        super().__init__()
        self.factories, self.autocast = factories, autocast

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.device:
            return func(*args, **(kwargs or {}))
        if func in (Tensor.__getitem__, Tensor.__setitem__):  # a list as an index would lose its values on its way
            args = (args[0], tree_map(_index, args[1], is_leaf=lambda each: isinstance(each, list)), *args[2:])
        args, kwargs = tuple(map(_numbered, args)), {name: _numbered(value) for name, value in (kwargs or {}).items()}
        if self.autocast and torch.is_autocast_enabled("cuda") and (func in LOWER or func in WIDER):
            dtype = torch.bfloat16 if func in LOWER else torch.float32
            args, kwargs = tree_map(lambda each: _cast(each, dtype), (args, kwargs))
        meta = str(kwargs.get("device", "")).startswith("meta")
        self.factories.asked_for_meta += meta
        try:
            return func(*args, **kwargs)
        finally:
            self.factories.asked_for_meta -= meta


def _cast(value: Any, dtype: torch.dtype) -> Any:
    fits = isinstance(value, PretendedCuda) and value.dtype in (torch.float32, torch.bfloat16)
    return value.to(dtype) if fits else value


def _index(value: Any) -> Any:
    return torch.tensor(value) if isinstance(value, list) else value


def _numbered(value: Any) -> Any:
    return DEVICE if isinstance(value, str | torch.device) and str(value) == "cuda" else value


@contextlib.contextmanager
def pretended_cuda(*, autocast: bool = True) -> Iterator[None]:
    """Inside, this machine has one GPU, "cuda:0", and code that asks finds it; without autocast all stays float32.

    A torch that was built for CUDA asks its driver all the same: there the test is skipped.
    """
    if torch.version.cuda is not None:
        pytest.skip("this torch is built for CUDA; a GPU is pretended to one for the CPU alone")
    cuda = {
        "_lazy_init": lambda: None,
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "is_bf16_supported": lambda including_emulation=True: True,
        "get_device_name": lambda *_: "pretended",
        "get_rng_state_all": list,
        "set_rng_state_all": lambda _: None,
        "synchronize": lambda *_: None,
    }
    lifted = torch._C._only_lift_cpu_tensors()
    swapped = torch.__future__.get_swap_module_params_on_conversion()
    torch._C._set_only_lift_cpu_tensors(True)
    torch.__future__.set_swap_module_params_on_conversion(True)
    factories = _Factories()
    calls = _Calls(factories, autocast=autocast)
    run_backward = torch.autograd._engine_run_backward

    def backward(*args: Any, **kwargs: Any) -> Any:
        with calls:  # what a backward pass computes again is no less a call
            return run_backward(*args, **kwargs)

    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(mock.patch.multiple(torch.cuda, **cuda))
            stack.enter_context(mock.patch.object(torch.autograd, "_engine_run_backward", backward))
            stack.enter_context(mock.patch.object(projection, "has_triton", return_value=False))  # it reads addresses
            stack.enter_context(mock.patch.object(DefaultDeviceType, "_default_device_type", "cuda"))
            stack.enter_context(factories)
            stack.enter_context(calls)
            yield
    finally:
        torch._C._set_only_lift_cpu_tensors(lifted)
        torch.__future__.set_swap_module_params_on_conversion(swapped)
