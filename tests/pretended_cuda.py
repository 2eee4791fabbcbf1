"""A simulated GPU for machines without one: tensors that report the device "cuda", refuse CPU tensors, and compute.

A `PretendedCuda` tensor keeps its values in a CPU tensor. Every torch operation on it goes through
`__torch_dispatch__`, which refuses a mixture with CPU tensors as CUDA does. So code takes the branches that it takes on
a GPU, with real values, which torch's own fake tensors lack (`tolist`, `nonzero`).

CUDA's kernels are not simulated: neither their rounding and order of summation nor their limits and speed. Autocast is
simulated for the operations in LOWER and WIDER.
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
"""Operations that CUDA allows with CPU tensors: indexing by them, and copies between devices."""

LOWER = {torch.matmul, torch.mm, torch.bmm, torch.addmm, torch.baddbmm, torch.einsum, F.linear}
LOWER |= {F.scaled_dot_product_attention, Tensor.matmul, Tensor.__matmul__, Tensor.__rmatmul__, Tensor.mm, Tensor.bmm}
WIDER = {torch.exp, torch.log, torch.log1p, torch.pow, torch.rsqrt, torch.cumsum, torch.logsumexp, F.softplus}
WIDER |= {Tensor.exp, Tensor.log, Tensor.log1p, Tensor.pow, Tensor.rsqrt, Tensor.cumsum, Tensor.logsumexp}
WIDER |= {F.softmax, F.log_softmax, F.layer_norm, F.mse_loss, F.kl_div, F.normalize, torch.softmax, Tensor.softmax}
WIDER |= {torch.log_softmax, Tensor.log_softmax, F.cross_entropy, F.nll_loss, Tensor.sum, torch.sum, Tensor.norm}
"""Operations that torch.autocast computes in bfloat16 (LOWER) and float32 (WIDER) on CUDA, if lightir calls them."""


class PretendedCuda(Tensor):
    """A tensor on the simulated GPU."""

    on_cpu: Tensor
    device = property(lambda self: DEVICE)  # type: ignore[assignment]
    is_cuda = property(lambda self: True)  # type: ignore[assignment]
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, real: Tensor) -> PretendedCuda:
        """Return a tensor that shares its values with `real`."""
        shape = torch.empty_strided(real.shape, real.stride(), dtype=real.dtype, device="meta")
        made: PretendedCuda = torch.Tensor._make_subclass(cls, shape, False, device_for_backend_keys=DEVICE)
        made.on_cpu = real.detach()
        return made

    def __repr__(self, **_: object) -> str:
        return f"pretended cuda {self.on_cpu!r}"

    def __reduce_ex__(self, protocol: int) -> Any:
        return self.on_cpu.__reduce_ex__(protocol)

    def tolist(self) -> Any:
        """Return the values."""
        return self.on_cpu.tolist()

    def numpy(self, *, force: bool = False) -> Any:
        """Raise the error that CUDA raises."""
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
        result = _compute(func, real_args, real_kwargs)
        to_cpu = wanted is not None and torch.device(wanted).type == "cpu"
        known = {id(value.on_cpu): value for value in flat if isinstance(value, PretendedCuda)}
        return result if to_cpu else tree_map(lambda value: _wrapped(value, known), result)


def _refuse_mixture(func: Any, flat: list[Any]) -> None:
    tensors = [value for value in flat if isinstance(value, Tensor)]
    on_gpu = [tensor for tensor in tensors if isinstance(tensor, PretendedCuda)]
    on_cpu = [tensor for tensor in tensors if not isinstance(tensor, PretendedCuda) and tensor.dim() > 0]
    if on_gpu and on_cpu:
        shapes = [tuple(tensor.shape) for tensor in tensors]
        raise RuntimeError(
            f"{func}: expected all tensors to be on the same device, but found cuda:0 and cpu; shapes {shapes}"
        )


def _compute(func: Any, args: Any, kwargs: Any) -> Any:
    if func is ATEN.mm.dtype:  # a result wider than the operands, which only CUDA supports
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
    """A mode in which new tensors on "cuda", and those that autograd creates, are simulated ones."""

    asked_for_meta = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        device = kwargs.get("device")
        kind = None if device is None else torch.device(device).type
        if kind == "cuda" or (kind == "meta" and not self.asked_for_meta) or any(t is PretendedCuda for t in types):
            return PretendedCuda.__torch_dispatch__(func, types, args, kwargs)
        return func(*args, **kwargs)


class _Calls(TorchFunctionMode):
    """A mode that turns the device "cuda" into "cuda:0" and applies autocast as on a GPU."""

    def __init__(self, factories: _Factories, *, autocast: bool) -> None:
        super().__init__()
        self.factories, self.autocast = factories, autocast

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.device:
            return func(*args, **(kwargs or {}))
        if func in (Tensor.__getitem__, Tensor.__setitem__):  # a list as an index would lose its values
            args = (args[0], tree_map(_index, args[1], is_leaf=lambda value: isinstance(value, list)), *args[2:])
        args, kwargs = tuple(map(_numbered, args)), {name: _numbered(value) for name, value in (kwargs or {}).items()}
        if self.autocast and torch.is_autocast_enabled("cuda") and (func in LOWER or func in WIDER):
            dtype = torch.bfloat16 if func in LOWER else torch.float32
            args, kwargs = tree_map(lambda value: _cast(value, dtype), (args, kwargs))
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
    """Simulate one GPU, "cuda:0", inside the block.

    A torch that was built for CUDA calls its driver anyway, so the test is skipped there.

    Args:
        autocast: simulate torch.autocast; otherwise everything stays float32.
    """
    if torch.version.cuda is not None:
        pytest.skip("this torch is built for CUDA; a GPU is simulated only for a torch that is built for the CPU")
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
        with calls:  # recomputed activations are calls too
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
