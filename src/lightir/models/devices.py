"""Devices and dtypes by name."""

from __future__ import annotations

import torch

from lightir.errors import InvalidInput


def usable_device(name: str = "auto") -> str:
    """Return the name of a device after placing a tensor on it; "auto" is a GPU if there is one, else the CPU.

    Raises:
        InvalidInput: neither this torch build nor this machine has the device.
    """
    name = ("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name
    try:
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError) as error:  # the latter where torch was built without CUDA
        available = ", ".join(["cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))])
        raise InvalidInput(
            f"device {name!r} cannot be used here: {str(error).splitlines()[0]}. Available: {available}; "
            "a GPU requires its driver and a torch build for it"
        ) from error
    return name


def weights_dtype(name: str, device: str) -> torch.dtype:
    """Return the dtype that "auto" (`fast_dtype`), "bf16" or "fp32" names for weights on a device.

    Raises:
        InvalidInput: an unknown name.
    """
    names = {"auto": fast_dtype(device), "bf16": torch.bfloat16, "fp32": torch.float32}
    if name not in names:
        raise InvalidInput(f"dtype {name!r}: expected one of {list(names)}")
    return names[name]


def fast_dtype(device: str) -> torch.dtype:
    """Return bfloat16 if the device multiplies it natively, else float32."""
    if device != "cpu":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    elif hasattr(torch.cpu, "get_capabilities"):
        native = bool(torch.cpu.get_capabilities().get("avx512_bf16"))
    else:  # torch 2.9
        native = torch.cpu._is_avx512_bf16_supported()
    return torch.bfloat16 if native else torch.float32
