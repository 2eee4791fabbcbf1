"""Liger's kernels: calls of the package, errors, and values in Triton's interpreter against plain layers."""

from __future__ import annotations

import copy
import dataclasses
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from transformers.models.llama import modeling_llama
from transformers.models.mistral import modeling_mistral
from transformers.models.qwen2 import modeling_qwen2
from transformers.models.qwen3 import modeling_qwen3

from collections_for_training import write_dataset
from lightir.errors import InvalidInput, MissingExtra
from lightir.models.backbones import Backbone
from lightir.models.liger import use_liger
from lightir.train.recipes.contrastive_recipe import ContrastiveRecipe, HeadRecipe
from lightir.train.recipes.settings import DataRecipe, DocumentRecipe, ModelRecipe, Optimisation
from lightir.train.stages import contrastive
from lightir.train.stages import stage_model as preparation
from tiny_models import save_tiny, tiny_backbone

PATCHED = {
    "llama": modeling_llama,
    "qwen2": modeling_qwen2,
    "qwen3": modeling_qwen3,
    "mistral": modeling_mistral,
}
"""Modules of transformers in which Liger replaces names for the whole process."""


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """A stand-in for Liger that supports llama and qwen3, and records its calls."""
    asked: list[dict[str, Any]] = []
    transformers, patches = (
        ModuleType("liger_kernel.transformers"),
        ModuleType("liger_kernel.transformers.monkey_patch"),
    )
    transformers._apply_liger_kernel_to_instance = lambda **given: asked.append(given)  # type: ignore[attr-defined]
    patches.MODEL_TYPE_TO_APPLY_LIGER_FN = {"qwen3": None, "llama": None}  # type: ignore[attr-defined]
    for module in (ModuleType("liger_kernel"), transformers, patches):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return asked


def test_the_loaded_model_is_patched_without_the_fused_cross_entropy(stand_in: list[dict[str, Any]]) -> None:
    backbone = tiny_backbone("llama")
    use_liger(backbone)
    (asked,) = stand_in
    assert asked.pop("model") is backbone.model
    assert asked == {"cross_entropy": False, "fused_linear_cross_entropy": False}


def test_a_recipe_has_the_backbone_patched_before_its_adapter_is_added(
    stand_in: list[dict[str, Any]], tmp_path: Path
) -> None:
    save_tiny("llama", tmp_path / "model")
    recipe = ModelRecipe(str(tmp_path / "model"), dtype="float32", lora_rank=4, liger=True)
    backbone, record = preparation.trainable_backbone(recipe, seed=0, device="cuda")
    assert [call["model"] for call in stand_in] == [backbone.model]
    plain, other = preparation.trainable_backbone(dataclasses.replace(recipe, liger=False), seed=0, device="cuda")
    assert len(stand_in) == 1
    assert record == other
    assert backbone.trunk.state_dict().keys() == plain.trunk.state_dict().keys()


def test_what_liger_has_no_kernels_for_is_refused(stand_in: list[dict[str, Any]]) -> None:
    with pytest.raises(InvalidInput, match=r"of type bert; set it to false, .* supported type: llama, qwen3$"):
        use_liger(tiny_backbone("bert"))
    assert not stand_in


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "liger_kernel", None)
    monkeypatch.setitem(sys.modules, "liger_kernel.transformers", None)
    with pytest.raises(MissingExtra, match=r"pip install 'lightir\[gpu\]'"):
        use_liger(tiny_backbone("llama"))


def test_without_cuda_liger_is_to_be_left_out(stand_in: list[dict[str, Any]]) -> None:
    with pytest.raises(InvalidInput, match="on cpu; leave it out"):
        preparation.trainable_backbone(ModelRecipe("no-such-model", liger=True), seed=0, device="cpu")
    assert not stand_in


def test_compiling_and_liger_exclude_each_other() -> None:
    with pytest.raises(InvalidInput, match="choose one"):
        ModelRecipe("any", compile=True, liger=True)


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Liger itself, with its kernels in Triton's interpreter."""
    for name in ("liger_kernel", "triton"):
        pytest.importorskip(name, reason="the extra gpu is not installed", exc_type=ImportError)
    import triton.language as tl
    from triton.runtime import interpreter

    from lightir.models import triton_head

    if not triton_head.INTERPRETED:
        pytest.skip("TRITON_INTERPRET is not 1")
    from liger_kernel.ops import rms_norm

    convert = interpreter._implicit_cvt

    def convert_floats_too(given: Any) -> Any:
        """Convert float arguments to float32 like the compiler; the interpreter keeps Python floats."""
        if not isinstance(given, float):
            return convert(given)
        return tl.tensor(interpreter.TensorHandle(np.array([given], dtype=np.float32), tl.float32), tl.float32)

    monkeypatch.setattr(interpreter, "_implicit_cvt", convert_floats_too)
    monkeypatch.setattr(rms_norm, "rsqrt", lambda x: tl.rsqrt(x))  # CUDA's own function cannot be interpreted


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("name", PATCHED)
def test_states_and_gradients_are_those_without_liger(name: str) -> None:
    plain = tiny_backbone(name)
    plain.trunk.requires_grad_(True)
    fused = dataclasses.replace(plain, trunk=copy.deepcopy(plain.trunk))
    ids = torch.randint(2, 258, (2, 7), generator=torch.Generator().manual_seed(0))
    mask = torch.ones(2, 7, dtype=torch.bool)
    mask[1, :3] = False
    positions = torch.stack([torch.arange(7), torch.arange(7) + 20])  # each row has its own

    def run(backbone: Backbone) -> torch.Tensor:
        states = backbone.states(ids, mask, position_ids=positions)
        (states.sin() * mask[:, :, None]).sum().backward()
        return states

    expected, before = run(plain), dict(vars(PATCHED[name]))
    use_liger(fused)
    assert type(fused.model.norm).__name__ != str(fused.model.norm).split("(")[0] == "LigerRMSNorm"
    assert dict(vars(PATCHED[name])) == before
    rotations = [layer.self_attn.forward.__globals__["apply_rotary_pos_emb"].__name__ for layer in fused.model.layers]
    assert rotations == ["liger_rotary_pos_emb"] * 2
    actual = run(fused)
    torch.testing.assert_close(actual[mask], expected[mask], atol=1e-5, rtol=1e-4)
    for (weight, one), other in zip(plain.trunk.named_parameters(), fused.trunk.parameters(), strict=True):
        assert one.grad is not None
        assert one.grad.abs().max() > 0, weight
        torch.testing.assert_close(other.grad, one.grad, atol=1e-4 * float(one.grad.abs().max()), rtol=1e-3, msg=weight)
    later = tiny_backbone(name)
    later.trunk.requires_grad_(True)
    earlier = run(plain)
    assert torch.equal(run(later), earlier)  # models loaded before or after have no kernels
    assert torch.equal(earlier, expected)
    for other in (later, plain):
        assert not {"forward", "_get_name"} & {key for module in other.model.modules() for key in vars(module)}


@pytest.mark.usefixtures("interpreted")
def test_training_steps_have_the_losses_of_those_without_liger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Train with an adapter and GradCache; small, since the interpreter takes a second for a few texts."""
    save_tiny("llama", tmp_path / "model")
    recipe = ContrastiveRecipe(
        model=ModelRecipe(str(tmp_path / "model"), dtype="float32", lora_rank=4, lora_alpha=8, lora_dropout=0.0),
        data=(DataRecipe(str(write_dataset(tmp_path / "alpha", "alpha"))),),
        optimisation=Optimisation(steps=2, batch_size=2, learning_rate=1e-2, warmup_steps=0, gradient_cache=1),
        heads=HeadRecipe(pooling="mean", calibration_documents=4),
        documents=DocumentRecipe(max_tokens=12),
    )
    expected = losses(contrastive.train(recipe, tmp_path / "plain", device="cpu"))
    load = preparation.load_backbone

    def load_fused(*given: Any, **named: Any) -> Backbone:
        backbone = load(*given, **named)
        use_liger(backbone)
        return backbone

    monkeypatch.setattr(preparation, "load_backbone", load_fused)  # on a CPU a recipe with model.liger is refused
    actual = losses(contrastive.train(recipe, tmp_path / "fused", device="cpu"))
    assert len(actual) == 2
    assert actual == pytest.approx(expected, rel=1e-4)


def losses(model: Path) -> list[float]:
    lines = (model / "training" / "log.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines if "loss" in line]
