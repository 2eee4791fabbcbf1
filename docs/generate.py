"""Writes the reference pages from the code: `python docs/generate.py`, or with --check only says which are stale."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
import re
import sys
import tomllib
import typing
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import lightir
from lightir import contract, text
from lightir.cli.app import GROUPS, build_parser, command_parsers

DOCS = Path(__file__).resolve().parent
SOURCE = DOCS.parent / "src" / "lightir"
NOTE = "<!-- Written by docs/generate.py from the code; change it there. -->"


def main() -> int:
    """Write the stale pages; with --check write nothing and return 1 where any is stale."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a page is stale")
    check = parser.parse_args().check
    stale = [name for name, page in pages().items() if not is_current(name, page)]
    for name in stale:
        if not check:
            (DOCS / name).write_text(pages()[name], encoding="utf-8")
        said = "is stale: run python docs/generate.py" if check else "written"
        sys.stderr.write(f"docs/{name} {said}\n")
    return int(check and bool(stale))


def is_current(name: str, page: str) -> bool:
    """Whether the page on the disk is the given one."""
    path = DOCS / name
    return path.is_file() and path.read_text(encoding="utf-8") == page


def pages() -> dict[str, str]:
    """Every generated page by its file name."""
    return {
        "api.md": api_page(),
        "cli.md": cli_page(),
        "contract.md": contract_page(),
        "modules.md": modules_page(),
        "recipe.md": recipe_page(),
    }


def cli_page() -> str:
    """All commands with their arguments and examples."""
    parser = build_parser()
    lines = [
        "# The command line",
        NOTE,
        "",
        "Commands write data to stdout, and progress and messages to stderr. `-` is stdin or stdout.",
        "Exit codes: 0 success, 1 failure, 2 invalid arguments, 130 after Ctrl-C.",
        "Every command accepts `--help` and `--traceback`.",
        "",
    ]
    parsers = command_parsers(parser)
    for title, names in GROUPS.items():
        lines += [f"## {title.capitalize()}", ""]
        lines += [line for name in names for line in _command_section(name, parsers[name])]
    return "\n".join(lines)


def _command_section(name: str, command: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the lines on one command: description, table of arguments, examples."""
    yield from (f"### lightir {name}", "", (command.description or "").strip(), "")
    yield from ("| argument | meaning |", "|---|---|")
    yield from (f"| {_argument(action)} | {_help(action)} |" for action in command._actions if _is_own(action))
    yield from ("", "```", *inspect.cleandoc(str(command.epilog)).splitlines()[1:], "```", "")


def _is_own(action: argparse.Action) -> bool:
    return not {"--help", "--traceback"} & set(action.option_strings)


def _argument(action: argparse.Action) -> str:
    value = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    if action.choices:
        value = " or ".join(str(choice) for choice in action.choices)
    if action.nargs == 0:
        value = ""
    elif action.nargs in ("+", "*"):
        value += " …"
    names = ", ".join(action.option_strings)
    return f"`{f'{names} {value}'.strip()}`" + ("" if not names or not action.required else " (needed)")


def _help(action: argparse.Action) -> str:
    said = (action.help or "") % {"default": action.default}
    return said.replace("|", "\\|")


def api_page() -> str:
    """The names that `lightir` itself gives: functions with their arguments, classes with their methods."""
    intro = [
        "# The library's main names",
        NOTE,
        "",
        "`from lightir import …` gives what is listed here. Each is imported when it is first asked for, so that",
        "`import lightir` is quick and loads no torch. Doc strings have the arguments, shapes and errors, as in",
        "`help(lightir.build_index)`. Everything else lies in the rooms that [modules.md](modules.md) lists.",
        "",
    ]
    groups = (("Needs no extra", lightir._LIGHT), ("Needs the extra `train`", lightir._HEAVY))
    return "\n".join([*intro, *(line for title, names in groups for line in _names(title, names))])


def _names(title: str, names: Iterable[str]) -> Iterator[str]:
    yield from (f"## {title}", "")
    for name in names:
        thing = getattr(lightir, name)
        yield from (f"### {name}", "", f"{_summary(thing)} (`{thing.__module__}`)", "")
        if dataclasses.is_dataclass(thing) or not isinstance(thing, type):
            yield from ("```python", called(name, inspect.signature(thing)), "```", "")
        if methods := list(_methods(thing)):
            yield from ("| | |", "|---|---|", *methods, "")


def _methods(thing: object) -> Iterator[str]:
    """Table rows of a class's public methods and properties, in the order of its source, constructors included."""
    for name, found in vars(thing).items() if isinstance(thing, type) else ():
        if isinstance(found, property) and not name.startswith("_"):
            yield f"| `.{name}` | {_summary(found)} |"
            continue
        method = getattr(thing, name)
        constructor = name == "__init__" and not dataclasses.is_dataclass(thing) and "`open`" not in _summary(method)
        if inspect.isroutine(method) and (constructor or not name.startswith("_")):
            before = f"{thing.__name__}." if inspect.ismethod(method) else "."  # bound to the class: a constructor
            shown = thing.__name__ if constructor else f"{before}{name}"
            yield f"| `{called(shown, inspect.signature(method), names_only=True)}` | {_summary(method)} |"


def _summary(thing: object) -> str:
    return (inspect.getdoc(thing) or "").splitlines()[0].replace("|", "\\|")


def called(name: str, signature: inspect.Signature, *, names_only: bool = False) -> str:
    """How something is called: an argument a line where one line would be long; or with the arguments' names alone."""
    arguments, star = [], False
    for each in signature.parameters.values():
        if each.kind is each.KEYWORD_ONLY and not star:
            arguments.append("*")
        star = star or each.kind in (each.KEYWORD_ONLY, each.VAR_POSITIONAL)
        if each.name != "self":
            arguments.append(each.name if names_only else _typed(each))
    result = signature.return_annotation
    arrow = "" if names_only or result in (inspect.Signature.empty, None, "None") else f" -> {result}"
    line = f"{name}({', '.join(arguments)}){arrow}"
    if names_only or len(line) <= 100:
        return line
    return "\n".join([f"{name}(", *(f"    {each}," for each in arguments), f"){arrow}"])


def _typed(parameter: inspect.Parameter) -> str:
    if parameter.default is parameter.empty:
        return f"{parameter.name}: {parameter.annotation}"
    default = "…" if type(parameter.default).__module__ == "dataclasses" else repr(parameter.default)
    return f"{parameter.name}: {parameter.annotation} = {default}"


def contract_page() -> str:
    """All fields of lightir.json."""
    records = (contract.Contract, contract.BackboneRecord, text.QueryPolicy, contract.DocumentPolicy)
    heads = (contract.DenseHead, contract.SparseHead, contract.Fusion)
    intro = [
        "# The contract: lightir.json",
        NOTE,
        "",
        "The record of everything that training, caching, encoding, indexing and searching must agree on.",
        "It is written with a model, and lies in every folder made from it. Two fingerprints guard it:",
        "`fingerprint` covers all but the fusion; the document fingerprint covers what decides a document's",
        "vectors (backbone, attention, document, dense, sparse), so that several query encoders (other",
        "instructions, fitted tables) can share one index. A mismatch is refused with every differing",
        "field and both of its values.",
        "",
    ]
    return "\n".join([*intro, *(line for record in (*records, *heads) for line in fields_of(record))])


def recipe_page() -> str:
    """Return the page of all recipe keys: each stage's recipe, then the records inside them."""
    from lightir.train.stages.registry import STAGES

    records: list[type] = [kind.recipe for kind in STAGES.values()]
    for record in records:  # grows as records inside records are reached
        for hint in typing.get_type_hints(record).values():
            kinds = [hint, *typing.get_args(hint)]
            inner = [kind for kind in kinds if isinstance(kind, type) and dataclasses.is_dataclass(kind)]
            records += [kind for kind in inner if kind not in records and kind.__module__.startswith("lightir.train")]
    intro = [
        "# A training recipe",
        NOTE,
        "",
        "A recipe is one YAML file. `lightir train RECIPE --set key=value` changes single keys, with dots for nested",
        "keys; `--show` prints every field. Unknown keys are refused. The recipe is saved with the model.",
        "`base: other.yaml` inherits the keys of another file beside it: objects are merged key by key, lists and",
        "values are replaced. `stage` selects the stage (default contrastive):",
        f"{', '.join(sorted(STAGES))}.",
        "",
    ]
    return "\n".join([*intro, *(line for record in records for line in fields_of(record))])


def modules_page() -> str:
    """Every module with the first line of its doc string, room by room, in the order in which rooms may import."""
    with (DOCS.parent / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    layers = next(each["layers"] for each in contracts if each["type"] == "layers")
    names = [name.strip(" ()") for layer in layers for name in layer.split(":")]
    rooms = [name for name in names if (SOURCE / name).is_dir()]
    intro = [
        "# Every module in a line",
        NOTE,
        "",
        "In the order of imports, top down; [ARCHITECTURE.md](../ARCHITECTURE.md) says how they work together.",
        "",
    ]
    folders = [path.parent for room in rooms for path in sorted((SOURCE / room).rglob("__init__.py"))]
    sections = [_modules_of(f"{each.relative_to(SOURCE)}/", sorted(each.glob("*.py"))) for each in folders]
    foot = _modules_of(
        "Below all rooms", [SOURCE / f"{name}.py" for name in names if (SOURCE / f"{name}.py").is_file()]
    )
    return "\n".join([*intro, *(line for section in [*sections, foot] for line in section)])


def _modules_of(title: str, paths: Sequence[Path]) -> list[str]:
    modules = [path for path in paths if not path.name.startswith("__")]
    package = [f"{_first_line(path)}\n" for path in paths if path.name == "__init__.py"]
    rows = [f"| [`{path.stem}`](../{path.relative_to(DOCS.parent)}) | {_first_line(path)} |" for path in modules]
    return [f"## {title}", "", *package, "| module | |", "|---|---|", *rows, ""]


def _first_line(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return text.splitlines()[0].replace("|", "\\|")


def fields_of(record: type) -> Iterator[str]:
    """A section on a dataclass: its first line, then its fields with types, defaults and their documented lines."""
    meanings = attributes(record)
    yield from (f"## {record.__name__}", "", inspect.getdoc(record).splitlines()[0], "")  # type: ignore[union-attr]
    yield from ("| field | type | default | meaning |", "|---|---|---|---|")
    for field in dataclasses.fields(record):
        kind = str(field.type).replace("|", "\\|")
        yield f"| `{field.name}` | `{kind}` | {_default(field)} | {meanings[field.name]} |"
    yield ""


def attributes(record: type) -> dict[str, str]:
    """The lines of a doc string's "Attributes:" section by field."""
    meanings: dict[str, str] = {}
    for each in reversed(record.__mro__):  # a record that extends another documents only what it adds
        section = inspect.cleandoc(each.__doc__ or "").partition("Attributes:\n")[2]
        entries = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", section, flags=re.MULTILINE)
        meanings |= {name: " ".join(meaning.split()).replace("|", "\\|") for name, meaning in entries}
    return meanings


def _default(field: dataclasses.Field[object]) -> str:
    if field.default is not dataclasses.MISSING:
        return f"`{field.default!r}`"
    if field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
        return "its own defaults" if dataclasses.is_dataclass(value) else f"`{value!r}`"
    return "needed"


if __name__ == "__main__":
    raise SystemExit(main())
