"""What this machine computes on: the device that a name means, and the dtype that is fast there."""

from __future__ import annotations

import torch

from lightir.errors import InvalidInput


def usable_device(name: str = "auto") -> str:
    """The name of a device, after a tensor has been put there; "auto" is a GPU where there is one, else the CPU.

    Raises:
        InvalidInput: this torch or this machine has no such device.
    """
    name = ("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name
    try:
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError) as error:  # the latter where torch was built without CUDA
        there = ", ".join(["cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))])
        raise InvalidInput(
            f"device {name!r} cannot be used here: {str(error).splitlines()[0]}. Take one of {there}; "
            "a GPU needs its driver and a torch that was built for it"
        ) from error
    return name


def weights_dtype(name: str, device: str) -> torch.dtype:
    """What "auto" (fast_dtype), "bf16" or "fp32" means for weights on a device.

    Raises:
        InvalidInput: another name.
    """
    names = {"auto": fast_dtype(device), "bf16": torch.bfloat16, "fp32": torch.float32}
    if name not in names:
        raise InvalidInput(f"dtype {name!r}: expected one of {list(names)}")
    return names[name]


def fast_dtype(device: str) -> torch.dtype:
    """bfloat16 where the device multiplies it natively, else float32."""
    if device != "cpu":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    elif hasattr(torch.cpu, "get_capabilities"):
        native = bool(torch.cpu.get_capabilities().get("avx512_bf16"))
    else:  # torch 2.9
        native = torch.cpu._is_avx512_bf16_supported()
    return torch.bfloat16 if native else torch.float32
