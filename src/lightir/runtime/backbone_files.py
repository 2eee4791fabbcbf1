"""Files of the backbone of a model: their folder, and the hash of the weights."""

from __future__ import annotations

import hashlib
from pathlib import Path

from lightir.addresses import OWN_WEIGHTS, base_address, resolve_local
from lightir.contract import Contract
from lightir.errors import MissingExtra, NotFound
from lightir.files import sha256_file

WEIGHT_FILES = ("*.safetensors", "pytorch_model*.bin")


def backbone_path(folder: Path, contract: Contract) -> Path | None:
    """Return the files of a model's backbone: in the model folder, a package or elsewhere; None if a hub has them.

    Raises:
        NotFound: the record names a path where nothing is.
        MissingExtra: the package is not installed.
    """
    if (folder / OWN_WEIGHTS).is_dir():
        return folder / OWN_WEIGHTS
    try:
        return resolve_local(base_address(contract.backbone.address, folder))
    except MissingExtra as error:
        raise MissingExtra(f"the language model that {folder} encodes documents with is missing: {error}") from error


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
