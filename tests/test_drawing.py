"""Flowcharts that the documentation site draws: every name and arrow is there, and nothing covers anything."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parents[1]
DOCS = runpy.run_path(str(ROOT / "docs" / "drawing.py"))
Point = tuple[float, float]


class Box(NamedTuple):
    """The edges of a box."""

    left: float
    top: float
    right: float
    bottom: float


def pieces(svg: str) -> tuple[dict[str, Box], list[list[Point]], ElementTree.Element]:
    """Return the box of each name, the points that each arrow joins, and the drawing."""
    tree = ElementTree.fromstring(svg)
    boxes: dict[str, Box] = {}
    for group in tree.findall("g"):
        rect, text = group.find("rect"), group.find("text")
        assert rect is not None
        assert text is not None
        if text.get("class") != "key":
            x, y, width, height = (float(rect.get(name, "")) for name in ("x", "y", "width", "height"))
            boxes[str(text.text)] = Box(x, y, x + width, y + height)
    arrows = []
    for path in tree.findall("path"):
        ends = re.findall(r"(\d+) (\d+)(?=[CL]|$)", path.get("d", ""))
        arrows.append([(float(x), float(y)) for x, y in ends])
    return boxes, arrows, tree


def box_with(boxes: dict[str, Box], point: Point, edge: str) -> str:
    """Return the name of the box on whose edge, or up to 2 pixels beside it, an arrow starts or ends."""
    (name,) = (
        name
        for name, box in boxes.items()
        if abs(getattr(box, edge) - point[1]) <= 2 and box.left < point[0] < box.right
    )
    return name


def check(text: str, expected: set[tuple[str, str]]) -> None:
    """Fail if the drawing of a chart lacks a name or an arrow, or if anything covers a box."""
    boxes, arrows, tree = pieces(DOCS["draw"](text))
    _, _, width, height = (float(number) for number in tree.get("viewBox", "").split())
    assert set(boxes) == {name for arrow in expected for name in arrow}
    drawn = [(box_with(boxes, way[0], "bottom"), box_with(boxes, way[-1], "top")) for way in arrows]
    assert sorted(drawn) == sorted(expected)
    for way in arrows:
        assert [y for _, y in way] == sorted(y for _, y in way)
    for name, box in boxes.items():
        assert min(box.left, box.top, width - box.right, height - box.bottom) >= 0, name
        for other, second in boxes.items():
            apart = box.right <= second.left or second.right <= box.left
            assert name == other or apart or box.bottom < second.top or second.bottom < box.top, (name, other)
        for x, y in (point for way in arrows for point in way[1:-1]):
            assert not (box.top <= y <= box.bottom and box.left <= x <= box.right), name


@given(st.sets(st.tuples(st.integers(0, 12), st.integers(0, 12)).filter(lambda ends: ends[0] < ends[1]), min_size=1))
@settings(max_examples=60)
def test_every_name_and_arrow_is_drawn_and_nothing_covers_a_box(arrows: set[tuple[int, int]]) -> None:
    named = {(f"name{start}", f"name{end}") for start, end in arrows}
    check("flowchart TD\n" + "".join(f"    {start} --> {end}\n" for start, end in sorted(named)), named)


def test_the_rooms_are_drawn() -> None:
    (chart,) = DOCS["CHART"].findall((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"))
    lines = re.findall(r"^ *(\w+) --> (.+)$", chart, re.MULTILINE)
    check(chart, {(start, end) for start, ends in lines for end in ends.split(" & ")})
    groups = {"needs torch": "heavy", "needs no torch": "light"}
    _, _, tree = pieces(DOCS["draw"](chart))
    class_of = {text.text: group.get("class") for group in tree.findall("g") for text in group.findall("text")}
    assert class_of.items() >= groups.items()
    assert (class_of["models"], class_of["kernel"], class_of["cli"]) == ("heavy", "light", "")


@pytest.mark.parametrize(
    ("line", "message"),
    [("a ==> b", "draws no such line: 'a ==> b'"), ("a --> b\nb --> a", "in a circle: a --> b --> a")],
)
def test_what_is_not_understood_is_refused(line: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DOCS["draw"](f"flowchart TD\n{line}\n")


def test_the_site_has_drawings_in_place_of_charts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")
    page = tmp_path / "deep" / "page.md"
    page.parent.mkdir()
    page.write_text("# A page\n\n```mermaid\nflowchart TD\n    a --> b\n```\n\nText.\n", encoding="utf-8")
    runpy.run_path(str(ROOT / "docs" / "build_site.py"))["draw_charts"](tmp_path)
    text = page.read_text(encoding="utf-8")
    assert re.fullmatch(r"# A page\n\n<svg class=\"chart\".*</svg>\n\nText\.\n", text)
