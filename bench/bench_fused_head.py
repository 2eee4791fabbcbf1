"""The fused projection + maximum against the naive head: peak extra memory and time, forward and backward.

Each variant runs in a process of its own, on one thread; extra memory is the resident peak while it works, less what
was resident before and less the gradient of the states, which any head returns.
The naive head is plain autograd: project, mask, maximum. Run: python bench/bench_fused_head.py
"""

from __future__ import annotations

import argparse
import os
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
from torch import Tensor

from lightir.models.projection import projection_max
from origin import print_origin
from own_process import ExtraMemory, in_own_process

SMALLEST = "--vocabulary 600 --batch 1 --length 8 --hidden 8 --repeats 1"
VARIANTS = ("naive", "fused", "fused bf16 search")


def naive(states: Tensor, weight: Tensor, mask: Tensor, bias: Tensor) -> Tensor:
    logits = states @ weight.T
    return logits.masked_fill(~mask[:, :, None], -torch.inf).amax(dim=1) + bias


def run(variant: str, states: Tensor, weight: Tensor, mask: Tensor, bias: Tensor) -> float:
    """Forward and backward once; the share of weights above zero comes back."""
    search = torch.bfloat16 if "bf16" in variant else None
    if variant == "naive":
        maxima = naive(states, weight, mask, bias)
    else:
        maxima = projection_max(states, weight, mask=mask, bias=bias, search_dtype=search)[0]
    torch.log1p(torch.relu(maxima)).square().sum().backward()
    return float((maxima > 0).float().mean())


def measure(variant: str, *, batch: int, length: int, vocabulary: int, hidden: int, repeats: int) -> dict[str, float]:
    """Seconds (best of the repeats) and peak extra bytes of one forward and backward pass."""
    torch.manual_seed(0)
    states = torch.randn(batch, length, hidden, requires_grad=True)
    weight = torch.randn(vocabulary, hidden) / hidden**0.5
    # A bias that leaves about 5 % of the terms above zero, as the calibrated head has.
    bias = torch.full((vocabulary,), -4.1)
    mask = torch.ones(batch, length, dtype=torch.bool)
    seconds, peak = [], 0
    run(variant, states[:1, :8], weight[:512], mask[:1, :8], bias[:512])  # loads code, which is resident memory too
    for _ in range(repeats):
        states.grad = None
        memory = ExtraMemory()
        start = time.perf_counter()
        share = run(variant, states, weight, mask, bias)
        seconds.append(time.perf_counter() - start)
        peak = max(peak, memory.peak() - states.numel() * states.element_size())
    return {"seconds": min(seconds), "extra_bytes": peak, "share_above_zero": share}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vocabulary", type=int, default=0, help="0: 49,152 and 128,256")
    for name, value in (("batch", 8), ("length", 512), ("hidden", 576), ("repeats", 3)):
        parser.add_argument(f"--{name}", type=int, default=value)
    arguments = vars(parser.parse_args())
    print_origin()
    for vocabulary in [arguments["vocabulary"]] if arguments["vocabulary"] else [49_152, 128_256]:
        shape = arguments | {"vocabulary": vocabulary}
        results = {name: in_own_process(measure, name, **shape) for name in VARIANTS}
        base = results["naive"]
        for name, result in results.items():
            memory = base["extra_bytes"] / max(result["extra_bytes"], 1)
            print(
                f"V={vocabulary} T={shape['length']} B={shape['batch']} H={shape['hidden']} {name:18s}"
                f" {result['seconds']:7.2f} s  {result['extra_bytes'] / 2**20:8.1f} MiB extra"
                f"  {memory:6.1f}x less memory  {base['seconds'] / result['seconds']:5.2f}x the speed"
                f"  ({result['share_above_zero']:.1%} above zero)",
                flush=True,
            )


if __name__ == "__main__":
    main()
