"""ARCHITECTURE.md is true: rooms import each other as drawn, and every file that it names exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "lightir"
PAGE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
Imports = dict[str, set[str]]


def rooms() -> set[str]:
    """Return the names of the package's folders and single modules."""
    folders = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    return (folders | {path.stem for path in SOURCE.glob("*.py")}) - {"__init__", "__main__"}


def imports_of_rooms() -> Imports:
    """Return the other rooms that each room imports, including imports for type checking and inside functions."""
    imports: Imports = {room: set() for room in rooms()}
    for path in SOURCE.rglob("*.py"):
        room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if room in imports and isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lightir"):
                inside = str(node.module).split(".")[1:]
                imports[room].update(inside[:1] or (alias.name for alias in node.names))
    return {room: (imported & rooms()) - {room} for room, imported in imports.items()}


def reached(imports: Imports, room: str) -> set[str]:
    """Return every room that one imports directly or through others."""
    return imports[room].union(*(reached(imports, other) for other in imports[room]))


def without_implied(imports: Imports) -> Imports:
    """Return the imports that do not follow from others."""
    return {
        room: {name for name in direct if not any(name in reached(imports, other) for other in direct - {name})}
        for room, direct in imports.items()
    }


def drawn() -> Imports:
    """Return the arrows of the drawing, whose lines are `room --> room & room`."""
    arrows: Imports = {room: set() for room in rooms()}
    drawing = PAGE.partition("```mermaid\n")[2].partition("```")[0]
    for start, ends in re.findall(r"^ *(\w+) --> (.+)$", drawing, flags=re.MULTILINE):
        arrows[start].update(ends.split(" & "))
    return arrows


def test_rooms_import_each_other_as_drawn():
    assert drawn() == without_implied(imports_of_rooms())


def test_no_module_imports_the_package_above_it():
    """The package imports its rooms, so a room that imports the package would import itself."""
    upward = [
        f"{path.relative_to(SOURCE)}:{node.lineno}"
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (isinstance(node, ast.Import) and any(alias.name == "lightir" for alias in node.names))
        or (
            isinstance(node, ast.ImportFrom)
            and node.module == "lightir"
            and not {alias.name for alias in node.names} <= rooms()
        )
    ]
    assert upward == []


def test_the_table_has_every_room():
    named = re.findall(r"`(\w+)(?:/|\.py)`", "".join(line for line in PAGE.splitlines() if line.startswith("| `")))
    assert rooms() <= set(named)


def test_the_files_that_are_named_exist():
    made = {
        "lightir.json",
        "manifest.json",
        "store.sqlite",
        "tables.json",
        "tokenizer.json",
        "config.json",
    }  # in folders of users
    named = set(re.findall(r"`([\w./-]+\.(?:py|cpp|hpp|md|json|toml|sqlite))`", PAGE)) - made
    known = [
        path.relative_to(ROOT).as_posix()
        for folder in ("src", "native", "tests", "docs", "recipes", "bench")
        for path in (ROOT / folder).rglob("*.*")
    ] + ["pyproject.toml"]
    assert len(named) > 40
    assert [name for name in named if not any(path == name or path.endswith(f"/{name}") for path in known)] == []


def test_the_links_lead_somewhere():
    assert [link for link in re.findall(r"\]\(([^)#]+)\)", PAGE) if not (ROOT / link).exists()] == []


def test_the_files_that_contributors_are_sent_to_exist():
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    questions = re.findall(r"^\| ([^|*]+\?) \| (.+) \|$", page, flags=re.MULTILINE)
    assert len(questions) >= 32
    named = {name for _, files in questions for name in re.findall(r"`([^`]+)`", files)}
    assert [name for name in sorted(named) if not ((SOURCE / name).exists() or (ROOT / name).exists())] == []
    elsewhere = set(re.findall(r"`((?:\w+/)+\w+\.(?:py|cpp))`", page)) - named - {"cli/NAME.py"}
    assert [name for name in sorted(elsewhere) if not ((SOURCE / name).exists() or (ROOT / name).exists())] == []
