"""Locks hold pyproject.toml's dependencies with hashes; the lowest ones hold the lowest versions that it allows."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT, BUILD = PYPROJECT["project"], PYPROJECT["build-system"]


REQUIREMENTS = ROOT / "requirements"
ENGINES = ("qdrant", "milvus", "postgres")
"""Extras of the clients of engines, which .venv leaves out."""

HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")


def versions(lines: list[str], operator: str) -> dict[str, Version]:
    """Return the version in each requirement's only specifier by package name."""
    by_name = {}
    for requirement in map(Requirement, lines):
        (specifier,) = requirement.specifier
        assert specifier.operator == operator, requirement
        by_name[canonicalize_name(requirement.name)] = Version(specifier.version)
    return by_name


def lowest(*extras: str) -> dict[str, Version]:
    optional = [line for extra in extras for line in PROJECT["optional-dependencies"][extra]]
    return versions([*PROJECT["dependencies"], *optional], ">=")


def locked(name: str) -> list[str]:
    """Return a lock's requirements, each with its hashes in one line."""
    text = (REQUIREMENTS / name).read_text().replace("\\\n", " ")
    return [line for line in text.splitlines() if not line.startswith("#")]


def pinned(*names: str) -> dict[str, Version]:
    return versions([HASH.sub("", line).strip() for name in names for line in locked(name)], "==")


LOCKS = sorted(path.name for path in REQUIREMENTS.iterdir() if path.suffix == ".lock" or path.name.startswith("lowest"))


@pytest.mark.parametrize("name", LOCKS)
def test_every_locked_package_has_the_hashes_of_its_files(name: str) -> None:
    lines = locked(name)
    assert lines
    for line in lines:
        requirement, *hashes = line.split("--hash=")
        assert hashes, requirement
        assert len(set(hashes)) == len(hashes), requirement
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", digest.strip()) for digest in hashes), requirement


@pytest.mark.parametrize("torch", ["torch.lock", "torch-cuda.lock"])
def test_the_locks_of_development_ray_and_torch_satisfy_every_extra(torch: str) -> None:
    pins = pinned("ray.lock") | pinned(torch, "dev.lock")
    optional = PROJECT["optional-dependencies"].items()
    extras = [line for name, lines in optional if name not in ENGINES for line in lines if "lightir[" not in line]
    for requirement in map(Requirement, [*PROJECT["dependencies"], *extras, *BUILD["requires"]]):
        assert pins[canonicalize_name(requirement.name)] in requirement.specifier, requirement


def test_the_lock_of_the_engines_satisfies_their_extras_and_changes_no_version_of_the_development_lock() -> None:
    pins, development = pinned("engines.lock"), pinned("dev.lock")
    for requirement in map(Requirement, [line for name in ENGINES for line in PROJECT["optional-dependencies"][name]]):
        assert pins[canonicalize_name(requirement.name)] in requirement.specifier, requirement
    shared = pins.keys() & development.keys()
    assert {name: pins[name] for name in shared} == {name: development[name] for name in shared}


def test_the_locks_of_light_and_demo_are_the_development_lock_without_its_tools() -> None:
    development, light, encoding = pinned("dev.lock"), pinned("run.lock"), pinned("encode.lock")
    required = [canonicalize_name(Requirement(line).name) for line in PROJECT["dependencies"]]
    trained = [canonicalize_name(Requirement(line).name) for line in PROJECT["optional-dependencies"]["train"]]
    assert {"torch", "transformers", "pytest"}.isdisjoint(light)
    assert set(required) <= light.keys()
    assert {*required, *trained} - {"torch"} <= encoding.keys()
    assert light.items() <= encoding.items() <= development.items()
    assert {"pytest", "ruff", "mypy", "torch"}.isdisjoint(encoding)


def test_both_builds_of_torch_have_one_version_and_the_same_packages_around_it() -> None:
    cpu, cuda, development = pinned("torch.lock"), pinned("torch-cuda.lock"), pinned("dev.lock")
    assert cpu["torch"].public == str(cuda["torch"])
    assert {name: development[name] for name in cuda.keys() & development.keys()} == {
        name: cuda[name] for name in cuda.keys() & development.keys()
    }


def test_the_build_lock_satisfies_what_building_requires() -> None:
    pins = pinned("build.lock")
    for requirement in map(Requirement, BUILD["requires"]):
        assert pins[canonicalize_name(requirement.name)] in requirement.specifier, requirement


def test_the_light_half_is_tested_with_the_lowest_versions() -> None:
    required = lowest("eval", "parquet")
    assert {name: pinned("lowest.txt")[name] for name in required} == required


def test_everything_is_tested_with_the_lowest_versions_that_fit_together() -> None:
    """transformers requires later versions of three packages, and tokenizers of one."""
    required = lowest("train", "eval", "parquet")
    pins = pinned("lowest-train.txt")
    higher = {name for name in required if pins[name] != required[name]}
    assert higher <= {"tokenizers", "safetensors", "huggingface-hub"}
    assert all(pins[name] >= required[name] for name in required)
