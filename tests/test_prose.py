"""Prose is plain English (CONTRIBUTING.md, "Words"), and a name means one thing; docs/measure_house.py counts both."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs"))
import measure_house  # noqa: E402

MAX_LONG_SIGNATURES = 9
"""Functions of the package that may take more than measure_house.MAX_PARAMETERS parameters."""

MOST_PARAMETERS = 9
MAX_LONG_FUNCTIONS = 0

TWO_MEANINGS: dict[str, str] = {}
"""File and type names that two rooms may define, each with its reason."""

PAGES = list(measure_house.pages())
SOURCES = sorted(measure_house.SOURCE.rglob("*.py"))


@pytest.mark.parametrize("path", PAGES, ids=measure_house.name_of)
def test_prose_is_plain(path: Path) -> None:
    assert not [f"{each.path}:{each.line}: {each.kind}: {each.text}" for each in measure_house.findings(path)]


def test_functions_are_short_and_take_few_parameters() -> None:
    shapes = [finding for path in SOURCES for finding in measure_house.shape_findings(path)]
    signatures = [finding for finding in shapes if finding.kind == "many parameters"]
    assert len([finding for finding in shapes if finding.kind == "long function"]) <= MAX_LONG_FUNCTIONS
    assert len(signatures) <= MAX_LONG_SIGNATURES
    assert not [finding for finding in signatures if int(finding.text.split(": ")[1]) > MOST_PARAMETERS]


def test_a_name_means_one_thing() -> None:
    assert measure_house.repeated_names(SOURCES).keys() <= TWO_MEANINGS.keys()


# The measures themselves


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ('"""Return the best."""', []),
        ('"""What is best."""', ["summary"]),
        ('def f():\n    """Returns the best."""', ["summary"]),
        ('class A:\n    """Adds the documents."""', []),
        ('def f():\n    """Rows a second."""', []),
        ('def f(k):\n    """Return.\n\n    Args:\n        k: see above.\n    """', ["entry"]),
        ('def f(k):\n    """Return.\n\n    Args:\n        k: number of documents.\n    """', []),
        ("for each in ():\n    pass", ["local"]),
        ("def f(said): ...", ["local"]),
        ("x = 1  # drops scores below .5", ["leading zero"]),
        ("x = f'{y:.3f} %.2f 0.5'", []),
        ("x = 'he meets no model'", ["meets no model"]),
    ],
)
def test_findings_of_python(text: str, kinds: list[str], tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(text + "\n")
    assert [finding.kind for finding in measure_house.findings(path)] == kinds


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("Up to .5 of it.", ["leading zero"]),
        ("| 0.5 | `.5` | [page](../x.5) |", []),
        ("```\nlightir search .5\n```\nDone.", []),
        ("word " * 40 + "end.", ["long sentence"]),
        ("word " * 30 + "end. Then " + "word " * 30 + "end.", []),
        ("| " + "word " * 50 + "|", []),
        ("- " + "word " * 30 + "\n- " + "word " * 30, []),
    ],
)
def test_findings_of_markdown(text: str, kinds: list[str], tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(text + "\n")
    assert [finding.kind for finding in measure_house.findings(path)] == kinds


def test_long_functions_and_signatures_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text("def f(a, b, c, d, e, g, h, i):\n" + "    a\n" * 60)
    assert [(each.kind, each.text) for each in measure_house.shape_findings(path)] == [
        ("long function", "f: 61 lines"),
        ("many parameters", "f: 8"),
    ]
