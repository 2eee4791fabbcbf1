"""What `make test-lowest` installs is what pyproject.toml says is enough."""

from __future__ import annotations

import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def versions(lines: list[str], operator: str) -> dict[str, str]:
    """Package name -> the version behind the one specifier that it has."""
    found = {}
    for requirement in map(Requirement, lines):
        (specifier,) = requirement.specifier
        assert specifier.operator == operator, requirement
        found[requirement.name.lower()] = specifier.version
    return found


def lowest(*extras: str) -> dict[str, str]:
    asked = [line for extra in extras for line in PROJECT["optional-dependencies"][extra]]
    return versions([*PROJECT["dependencies"], *asked], ">=")


def pinned(name: str) -> dict[str, str]:
    lines = (ROOT / "requirements" / name).read_text().splitlines()
    return versions([line for line in lines if not line.startswith("#")], "==")


def test_the_light_tests_run_with_the_lowest_versions() -> None:
    assert pinned("lowest.txt") == lowest("eval", "parquet")


def test_all_tests_run_with_the_lowest_versions_but_for_what_others_ask_for() -> None:
    higher = {"tokenizers": "0.23.1", "safetensors": "0.8"}
    assert pinned("lowest-train.txt") == {**lowest("train", "eval", "parquet"), **higher}
