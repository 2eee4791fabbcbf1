"""CSplade's two next-token losses in chunks against plain autograd: peak extra memory and time, forward and backward.

Each variant runs in a process of its own, on one thread; extra memory is the resident peak while it works, less what
was resident before and less the gradient of the states. Plain is the paper's appendix A: logits of all positions, and
two cross entropies of them. Run: python bench/bench_adaptation_loss.py
"""

from __future__ import annotations

import argparse
import os
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
from torch import Tensor
from torch.nn import functional as F

from lightir.models.lm_losses import next_token_losses
from origin import print_origin
from own_process import ExtraMemory, in_own_process

SMALLEST = "--positions 8 --vocabulary 64 --hidden 8 --repeats 1"
VARIANTS = ("plain", "chunks", "chunks bf16")


def loss(variant: str, states: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    if variant != "plain":
        return next_token_losses(states, weight, targets).total
    logits = states @ weight.T
    adapted = torch.log(1 + torch.relu(logits))
    return F.cross_entropy(logits, targets, reduction="sum") + F.cross_entropy(adapted, targets, reduction="sum")


def measure(variant: str, *, positions: int, vocabulary: int, hidden: int, repeats: int) -> dict[str, float]:
    """Seconds (best of the repeats) and peak extra bytes of one forward and backward pass, and the loss a position."""
    torch.manual_seed(0)
    dtype = torch.bfloat16 if "bf16" in variant else torch.float32
    states = torch.randn(positions, hidden).to(dtype).requires_grad_()
    weight = (torch.randn(vocabulary, hidden) / hidden**0.5).to(dtype)
    targets = torch.randint(vocabulary, (positions,))
    seconds, peak, value = [], 0, 0.0
    torch.autograd.backward(loss(variant, states[:2], weight[:64], targets[:2] % 64))  # loads code
    for _ in range(repeats):
        states.grad = None
        memory = ExtraMemory()
        start = time.perf_counter()
        total = loss(variant, states, weight, targets)
        torch.autograd.backward(total)
        seconds.append(time.perf_counter() - start)
        peak = max(peak, memory.peak() - states.numel() * states.element_size())
        value = float(total.detach()) / positions
    return {"seconds": min(seconds), "extra_bytes": peak, "loss": value}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in (("positions", 1024), ("vocabulary", 49_152), ("hidden", 576), ("repeats", 3)):
        parser.add_argument(f"--{name}", type=int, default=value)
    arguments = vars(parser.parse_args())
    print_origin()
    results = {name: in_own_process(measure, name, **arguments) for name in VARIANTS}
    base = results["plain"]
    for name, result in results.items():
        print(
            f"V={arguments['vocabulary']} n={arguments['positions']} H={arguments['hidden']} {name:12s}"
            f" {result['seconds']:7.2f} s  {result['extra_bytes'] / 2**20:8.1f} MiB extra"
            f"  {base['extra_bytes'] / max(result['extra_bytes'], 1):6.1f}x less memory"
            f"  {base['seconds'] / result['seconds']:5.2f}x the speed  (loss {result['loss']:.4f})",
            flush=True,
        )


if __name__ == "__main__":
    main()
