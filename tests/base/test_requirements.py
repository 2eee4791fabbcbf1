"""`make test-lowest` installs the lowest version of every dependency that pyproject.toml allows."""

from __future__ import annotations

import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def versions(lines: list[str], operator: str) -> dict[str, Version]:
    """Return the version in each requirement's only specifier by package name."""
    by_name = {}
    for requirement in map(Requirement, lines):
        (specifier,) = requirement.specifier
        assert specifier.operator == operator, requirement
        by_name[requirement.name.lower()] = Version(specifier.version)
    return by_name


def lowest(*extras: str) -> dict[str, Version]:
    optional = [line for extra in extras for line in PROJECT["optional-dependencies"][extra]]
    return versions([*PROJECT["dependencies"], *optional], ">=")


def pinned(name: str) -> dict[str, Version]:
    lines = (ROOT / "requirements" / name).read_text().splitlines()
    return versions([line for line in lines if not line.startswith("#")], "==")


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
