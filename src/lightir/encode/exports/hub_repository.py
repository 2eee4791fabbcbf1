"""Models on the Hugging Face hub: uploaded with a card, and downloaded at a pinned commit."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled

from lightir.addresses import (
    OWN_WEIGHTS,
    PATH_STARTS,
    PYPI_PREFIX,
    REVISION_MARK,
    hub_name,
    resolve_model_folder,
    shipped_models,
)
from lightir.contract import FILE_NAME, Contract
from lightir.encode.exports.model_card import model_card
from lightir.errors import InvalidInput, NotFound
from lightir.files import atomic_folder, temporary_folder

CARD = "README.md"
NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
PATTERNS = ["*.json", "*.safetensors", "*.txt", "*.model", "*.md", "*.yaml", "*.jsonl", "*.tsv"]
"""Files of a model folder; nothing else is fetched, so no code and no pickled objects."""

CHECKPOINTS = "checkpoint*"


def upload_model(
    model: str | os.PathLike[str],
    repository: str,
    *,
    private: bool = False,
    license: str | None = None,
    message: str = "Model of lightir",
) -> str:
    """Upload a model folder with a card to a repository, which is created if it does not exist.

    The card is the folder's README.md, or one that is generated from the contract.

    Args:
        model: model folder, or name of an installed model.
        repository: name of the repository, OWNER/NAME.
        private: whether a new repository is private.
        license: identifier of the license for the generated card; None to name none.
        message: title of the commit.

    Returns:
        The address of what was uploaded, `OWNER/NAME@COMMIT`.

    Raises:
        NotFound: there is no such model, or the hub refuses or cannot be reached.
        InvalidInput: an invalid name, or a model whose base model is a local folder.
    """
    folder, name = resolve_model_folder(model), _checked_name(repository)
    _require_portable(folder)
    api = HfApi(library_name="lightir")
    with temporary_folder() as scratch, _hub_errors(f"cannot upload {folder} to {name}"):
        content = scratch / "model"
        shutil.copytree(folder, content, ignore=shutil.ignore_patterns(CHECKPOINTS))
        if not (content / CARD).is_file():
            (content / CARD).write_text(model_card(folder, name, license=license), encoding="utf-8")
        api.create_repo(name, private=private, exist_ok=True)
        commit = api.upload_folder(repo_id=name, folder_path=content, commit_message=message)
    return f"{name}{REVISION_MARK}{commit.oid}"


def download_model(address: str, out: Path | str, *, overwrite: bool = False) -> str:
    """Write a model of the hub to a folder.

    Args:
        address: `OWNER/NAME`, or `OWNER/NAME@REVISION` with a commit, branch or tag.
        out: model folder to write.
        overwrite: replace an existing model folder.

    Returns:
        The address with the commit that was fetched, `OWNER/NAME@COMMIT`.

    Raises:
        NotFound: the hub lacks it or cannot be reached, or it is no lightir model.
        InvalidInput: an invalid name.
        AlreadyExists: `out` exists and overwrite is off, or it is another kind of folder.
    """
    name, revision = hub_name(address)
    _checked_name(name)
    with _hub_errors(f"cannot download {address}"):
        fetched = Path(snapshot_download(name, revision=revision or None, allow_patterns=PATTERNS))
    if not (fetched / FILE_NAME).is_file():
        raise NotFound(
            f"{address} is not a lightir model (no {FILE_NAME}). Commands take models of transformers by their name; "
            "for one of sentence-transformers see lightir convert"
        )
    Contract.load(fetched)
    with atomic_folder(Path(out), overwrite=overwrite, replaces=FILE_NAME) as aside:
        shutil.copytree(fetched, aside, dirs_exist_ok=True)
    return f"{name}{REVISION_MARK}{fetched.name}"


def _checked_name(name: str) -> str:
    if not NAME.fullmatch(name):
        raise InvalidInput(f"invalid repository {name!r}; expected OWNER/NAME")
    return name


def _require_portable(folder: Path) -> None:
    """Refuse a model whose base model others cannot load.

    Raises:
        InvalidInput: its record names a path.
    """
    address = Contract.load(folder).backbone.address
    if (folder / OWN_WEIGHTS).is_dir() or address.startswith(PYPI_PREFIX) or address in shipped_models():
        return
    if address.startswith(PATH_STARTS) or address.count("/") != 1:
        raise InvalidInput(
            f"{folder} was trained on the local model {address!r}, which others do not have. Push that model too, and "
            "train or distill from its name on the hub"
        )


@contextmanager
def _hub_errors(failed: str) -> Iterator[None]:
    """Turn errors of the hub's client into NotFound."""
    known = (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled, OSError)
    try:
        yield
    except known as error:
        reason = (str(error) or type(error).__name__).strip().splitlines()[0]
        raise NotFound(
            f"{failed} ({type(error).__name__}: {reason}). Check the name and the connection; a private repository or "
            "an upload needs a token (hf auth login, or HF_TOKEN)"
        ) from error
