"""Triton kernels of the fused head: interpreted on a CPU against double precision, and compiled without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor

from lightir.errors import InvalidInput, MissingExtra
from lightir.models import projection
from lightir.models.heads import top_k_weights
from lightir.models.projection import StoredTerms, largest_maxima, projection_max

pytest.importorskip("triton", reason="the extra gpu is not installed", exc_type=ImportError)
from lightir.models import triton_head

DEVICE = "cpu" if triton_head.INTERPRETED else "cuda"
needs_somewhere_to_run = pytest.mark.skipif(
    not triton_head.INTERPRETED and not torch.cuda.is_available(), reason="neither TRITON_INTERPRET=1 nor a GPU"
)
SHAPES = [(3, 7, 70, 16), (1, 1, 1, 1), (2, 65, 64, 65)]
"""Numbers of texts, positions and terms, and widths: below, at and above the tile sizes."""
DTYPES = [
    (torch.float32, torch.float32),
    (torch.bfloat16, torch.bfloat16),
    (torch.bfloat16, torch.float32),
    (torch.float16, torch.float16),
]


def drawn(shape: tuple[int, int, int, int], dtypes: tuple[torch.dtype, torch.dtype]) -> list[Tensor]:
    """Return states, weight, bias and mask of small integers: every sum is exact, and many maxima tie."""
    n_rows, n_positions, n_terms, width = shape
    generator = torch.Generator().manual_seed(n_positions)
    states = torch.randint(-2, 3, (n_rows, n_positions, width), generator=generator)
    weight = torch.randint(-2, 3, (n_terms, width), generator=generator)
    bias = torch.randint(-9, 4, (n_terms,), generator=generator)
    mask = torch.rand(n_rows, n_positions, generator=generator) > 0.4
    mask[-1] = n_rows == 1  # the last of several texts has no position
    kept = [states.to(dtypes[0]), weight.to(dtypes[1]), bias.float(), mask]
    return [tensor.to(DEVICE) for tensor in kept]


def naive(states: Tensor, weight: Tensor, bias: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the maxima in double precision, with the first of equal positions."""
    logits = (states.double() @ weight.double().T).masked_fill(~mask[:, :, None], -torch.inf)
    values = logits.amax(dim=1)
    first = (logits == values[:, None]).int().argmax(dim=1).int()
    return values + bias.double(), torch.where(mask.any(dim=1)[:, None], first, -1)


@needs_somewhere_to_run
@pytest.mark.parametrize("dtypes", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_values_and_positions_are_those_of_double_precision(
    shape: tuple[int, int, int, int], dtypes: tuple[torch.dtype, torch.dtype]
) -> None:
    states, weight, bias, mask = drawn(shape, dtypes)
    expected, places = naive(states, weight, bias, mask)
    for search_dtype in (None, torch.bfloat16):
        values, positions = projection_max(
            states, weight, mask=mask, bias=bias, search_dtype=search_dtype, kernel="triton"
        )
        assert values.dtype == torch.float32
        assert torch.equal(values.double(), expected)
        assert torch.equal(positions, places)
    actual = largest_maxima(states, weight, mask=mask, bias=bias, stored=StoredTerms(5, 0.0), kernel="triton")
    assert torch.equal(top_k_weights(actual.relu(), 5).sum(1), top_k_weights(expected.relu().float(), 5).sum(1))


@needs_somewhere_to_run
@pytest.mark.parametrize("dtypes", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gradients_are_those_of_double_precision(
    shape: tuple[int, int, int, int], dtypes: tuple[torch.dtype, torch.dtype]
) -> None:
    given = drawn(shape, dtypes)
    mask = given.pop()
    leaves = [tensor.clone().requires_grad_() for tensor in given]
    values, positions = projection_max(leaves[0], leaves[1], mask=mask, bias=leaves[2], kernel="triton")
    upstream = torch.randint(-2, 3, values.shape, generator=torch.Generator().manual_seed(1)).to(values)
    torch.where(mask.any(dim=1)[:, None], values * upstream, 0.0).sum().backward()

    exact = [tensor.double().requires_grad_() for tensor in given]
    rows = mask.any(dim=1).nonzero()[:, 0]
    chosen = exact[0][rows[:, None], positions[rows].long()]  # the first of equal maxima, like the naive head
    maxima = (chosen * exact[1]).sum(dim=2) + exact[2]
    (maxima * upstream[rows]).sum().backward()
    for leaf, plain in zip(leaves, exact, strict=True):
        assert leaf.grad is not None
        assert plain.grad is not None
        assert leaf.grad.dtype == leaf.dtype
        torch.testing.assert_close(leaf.grad, plain.grad.to(leaf.dtype))


@needs_somewhere_to_run
def test_random_states_give_what_the_portable_head_gives() -> None:
    generator = torch.Generator().manual_seed(0)
    states, weight = torch.randn(2, 70, 40, generator=generator), torch.randn(150, 40, generator=generator)
    mask = torch.rand(2, 70, generator=generator) > 0.5
    actual = []
    for kernel in ("portable", "triton"):
        leaves = [tensor.to(DEVICE).clone().requires_grad_() for tensor in (states, weight)]
        values, positions = projection_max(*leaves, mask=mask.to(DEVICE), kernel=kernel)  # type: ignore[arg-type]
        torch.log1p(values.relu()).square().sum().backward()
        actual.append([values.detach(), positions, *(tensor.grad for tensor in leaves)])
    for one, other in zip(*actual, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_what_triton_cannot_take_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    states, weight, _, mask = (tensor.cpu() for tensor in drawn(SHAPES[0], DTYPES[0]))
    with pytest.raises(InvalidInput, match="at most 32 bits"):
        projection_max(states.double(), weight, mask=mask, kernel="triton")
    with monkeypatch.context() as patched:
        patched.setattr(triton_head, "INTERPRETED", False)
        with pytest.raises(InvalidInput, match="on CUDA"):
            projection_max(states, weight, mask=mask, kernel="triton")
    monkeypatch.setattr(projection, "has_triton", lambda: False)
    with pytest.raises(MissingExtra, match=r"lightir\[gpu\]"):
        projection_max(states, weight, mask=mask, kernel="triton")


def test_triton_is_taken_on_cuda_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    there, double = torch.zeros(1, device="meta"), torch.zeros(1, dtype=torch.float64, device="meta")
    assert projection._triton_head(torch.zeros(1), torch.zeros(1), "auto") is None
    monkeypatch.setattr(torch.Tensor, "device", torch.device("cuda"))
    assert projection._triton_head(there, there, "auto") is triton_head
    assert projection._triton_head(double, there, "auto") is None
    assert projection._triton_head(there, there, "portable") is None


COMPILED = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from lightir.models import triton_head as module

SIZES = dict(n_rows="i32", n_positions="i32", n_terms="i32", width="i32")


def compiled(kernel, pointers, constants):
    known = {**SIZES, **pointers, **dict.fromkeys(constants, "constexpr")}
    values = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    source = ASTSource(kernel, {name: known[name] for name in kernel.arg_names}, constexprs=values)
    for capability in (80, 90):
        assert triton.compile(source, target=GPUTarget("cuda", capability, 32)).asm["cubin"]


for states, weight, rounded, native in [("*bf16", "*bf16", 0, 1), ("*bf16", "*fp32", 1, 1), ("*fp32", "*fp32", 0, 0)]:
    both = {"states": states, "weight": weight}
    maxima = {"values": "*fp32", "positions": "*i32"}
    compiled(module._search_kernel, {**both, **maxima, "mask": "*i32"}, {"ROUNDED": rounded, "NATIVE": native})
    compiled(module._exact_kernel, {**both, **maxima, "bias": "*fp32"}, {"BIASED": True})
    gradient = {"positions": "*i32", "scale": "*fp32", "gradient": weight}
    compiled(module._weight_gradient_kernel, {"states": states, **gradient}, {})
    gradient = {"scale": "*fp32", "terms": "*i64", "starts": "*i64", "gradient": states}
    compiled(module._states_gradient_kernel, {"weight": weight, **gradient}, {})
"""


def test_the_kernels_compile_for_gpus_that_are_not_here() -> None:
    """Compile the kernels to machine code for compute capabilities 8.0 and 9.0."""
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    done = subprocess.run([sys.executable, "-c", COMPILED], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
