"""Generate the reference pages from the code: `python docs/generate.py`; --check only reports stale pages."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
import json
import re
import sys
import tomllib
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import lightir
from lightir import contract, text
from lightir.cli.app import GROUPS, build_parser, command_parsers

if TYPE_CHECKING:
    from lightir.train.recipes.paper_settings import PaperTable
    from lightir.train.recipes.run_recipe import RunRecipe

DOCS = Path(__file__).resolve().parent
SOURCE = DOCS.parent / "src" / "lightir"
FULL_SCALE = re.compile(r"-((llama|mistral|qwen)-[\d.]+-[\d.]+b|bert-base)")
"""Marks of recipes' names whose backbone is a paper's."""
RECIPE_ROOMS = ("lightir.train", "lightir.data")
"""Packages whose records recipe.md documents; contract.md documents the others."""
NOTE = "<!-- Written by docs/generate.py from the code; change it there. -->"


def main() -> int:
    """Write the stale pages; with --check write nothing and return 1 if a page is stale."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a page is stale")
    check = parser.parse_args().check
    stale = [name for name, page in pages().items() if not is_current(name, page)]
    for name in stale:
        if not check:
            (DOCS / name).write_text(pages()[name], encoding="utf-8")
        status = "is stale: run python docs/generate.py" if check else "written"
        sys.stderr.write(f"docs/{name} {status}\n")
    return int(check and bool(stale))


def is_current(name: str, page: str) -> bool:
    """Return whether the stored page has the given content."""
    path = DOCS / name
    return path.is_file() and path.read_text(encoding="utf-8") == page


def pages() -> dict[str, str]:
    """Return every generated page by its file name."""
    return {
        "api.md": api_page(),
        "cli.md": cli_page(),
        "contract.md": contract_page(),
        "modules.md": modules_page(),
        "recipe.md": recipe_page(),
        "recipes-and-papers.md": recipes_and_papers_page(),
    }


def cli_page() -> str:
    """Return the page of all commands with their arguments and examples."""
    parser = build_parser()
    lines = [
        "# The command line",
        NOTE,
        "",
        "Commands write data to stdout, and progress and messages to stderr: a bar on a terminal, and elsewhere "
        "a line every ten seconds. `-` is stdin or stdout.",
        "Exit codes: 0 success, 1 failure, 2 invalid arguments, 130 after Ctrl-C, 143 after SIGTERM.",
        "Every command accepts `--help` and `--traceback`.",
        "",
    ]
    parsers = command_parsers(parser)
    for title, names in GROUPS.items():
        lines += [f"## {title.capitalize()}", ""]
        lines += [line for name in names for line in _command_section(name, parsers[name])]
    return "\n".join(lines)


def _command_section(name: str, command: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the lines of one command: description, table of arguments, examples."""
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
    text = (action.help or "") % {"default": action.default}
    return text.replace("|", "\\|")


def api_page() -> str:
    """Return the page of the names that `lightir` exports: functions with arguments, classes with methods."""
    intro = [
        "# The library's main names",
        NOTE,
        "",
        "The names that `from lightir import …` provides. Each is imported on first access, so `import lightir` is",
        "fast and does not import torch. Docstrings document arguments, shapes and errors, as in",
        "`help(lightir.build_index)`. [modules.md](modules.md) lists all other modules.",
        "",
    ]
    groups = (("Without extras", lightir._LIGHT), ("Requires the extra `train`", lightir._HEAVY))
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
    """Yield table rows of a class's public methods, properties and constructors, in source order."""
    for name, value in vars(thing).items() if isinstance(thing, type) else ():
        if isinstance(value, property) and not name.startswith("_"):
            yield f"| `.{name}` | {_summary(value)} |"
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
    """Format a call; long calls have one argument per line. With names_only arguments have no types and defaults."""
    arguments, star = [], False
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            arguments.append("*")
        star = star or parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        if parameter.name != "self":
            arguments.append(parameter.name if names_only else _typed(parameter))
    result = signature.return_annotation
    arrow = "" if names_only or result in (inspect.Signature.empty, None, "None") else f" -> {result}"
    line = f"{name}({', '.join(arguments)}){arrow}"
    if names_only or len(line) <= 100:
        return line
    return "\n".join([f"{name}(", *(f"    {argument}," for argument in arguments), f"){arrow}"])


def _typed(parameter: inspect.Parameter) -> str:
    if parameter.default is parameter.empty:
        return f"{parameter.name}: {parameter.annotation}"
    default = "…" if type(parameter.default).__module__ == "dataclasses" else repr(parameter.default)
    return f"{parameter.name}: {parameter.annotation} = {default}"


def contract_page() -> str:
    """Return the page of all fields of lightir.json."""
    records = (contract.Contract, contract.BackboneRecord, text.QueryPolicy, contract.DocumentPolicy)
    heads = (contract.DenseHead, contract.SparseHead, contract.Fusion)
    intro = [
        "# The contract: lightir.json",
        NOTE,
        "",
        "The record of everything that training, caching, encoding, indexing and searching must agree on.",
        "It is written with a model and copied into every folder made from the model. It has two fingerprints.",
        "`fingerprint` covers all fields except the fusion. The document fingerprint covers the fields that affect",
        "document vectors (backbone, attention, document, dense, sparse), so that query encoders with other",
        "instructions or fitted tables can share one index. Readers refuse a mismatch; the error has every differing",
        "field with both values.",
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
            records += [kind for kind in inner if kind not in records and kind.__module__.startswith(RECIPE_ROOMS)]
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
        "`deviations` and `chosen` give reasons for settings that differ from a paper's or that it does not give;",
        "[recipes-and-papers.md](recipes-and-papers.md) shows them beside the papers' settings.",
        "",
    ]
    return "\n".join([*intro, *(line for record in records for line in fields_of(record))])


def recipes_and_papers_page() -> str:
    """Return the page that compares the full-scale recipes with their papers' settings, setting by setting."""
    from lightir.train.recipes.paper_settings import read_paper_table
    from lightir.train.stages.registry import read_recipe

    folder = DOCS.parent / "recipes"
    recipes = {path.stem: read_recipe(path)[1] for path in sorted(folder.glob("*.yaml"))}
    intro = [
        "# Recipes and papers",
        NOTE,
        "",
        "The settings of the full-scale recipes beside those of their papers, from the tables in `recipes/papers/`.",
        "A recipe lists its deviations, and what its paper does not give, with reasons; `lightir train RECIPE --show`",
        "prints them. A test compares every recipe with its paper's table and refuses what is not listed.",
        "",
    ]
    tables = [read_paper_table(path) for path in sorted((folder / "papers").glob("*.yaml"))]
    return "\n".join([*intro, *(line for table in tables for line in _paper_section(table, recipes))])


def _paper_section(table: PaperTable, recipes: Mapping[str, RunRecipe]) -> Iterator[str]:
    """Yield the section of a paper: what deviates, what the paper does not give, what is the same; with the recipes."""
    from lightir.train.recipes.paper_settings import compare_with_paper

    rows: dict[str, dict[tuple[str, ...], list[str]]] = {"deviation": {}, "chosen": {}, "same": {}}
    own = [name for name in recipes if FULL_SCALE.search(name) and table.settings(name)]
    for name in own:
        for item in compare_with_paper(name, recipes[name], table):
            where = "" if item.group is None else item.group.where
            value = "no such setting" if item.recipe is None else _shown(item.key, item.recipe)
            row = {
                "deviation": (item.key, f"{_shown(item.key, item.paper)} ({where})", value, item.reason),
                "chosen": (item.key, value, item.reason),
                "same": (item.key, _shown(item.key, item.paper), where),
            }[item.kind]
            rows[item.kind].setdefault(row, []).append(name)
    yield from (f"## {table.paper}", "", f"Recipes: {', '.join(own)}.", "", "**Deviations**", "")
    yield from _table("setting | paper | recipe | why | recipes", rows["deviation"], own)
    yield from ("**Not in the paper, chosen here**", "")
    yield from _table("setting | recipe | why | recipes", rows["chosen"], own)
    yield from ("**As in the paper**", "")
    parts: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (key, value, where), names in rows["same"].items():
        parts.setdefault((where, tuple(names)), []).append(f"{key} {value}")
    merged = {(where, ", ".join(settings)): list(names) for (where, names), settings in parts.items()}
    yield from _table("where | settings | recipes", merged, own)


def _table(header: str, rows: Mapping[tuple[str, ...], Sequence[str]], everyone: Sequence[str]) -> Iterator[str]:
    """Yield a table whose last column has the recipes of a row; rows of one setting are neighbors."""
    yield from (f"| {header} |", "|---" * len(header.split("|")) + "|")
    first = {key: position for position, (key, *_) in reversed(list(enumerate(rows)))}
    for row in sorted(rows, key=lambda row: first[row[0]]):
        cells = " | ".join(cell.replace("|", "\\|") for cell in row)
        yield f"| {cells} | {'all' if list(rows[row]) == list(everyone) else ', '.join(rows[row])} |"
    yield ""


def _shown(key: str, value: object) -> str:
    """Return a setting's value; one value for training sets that all have it."""
    values = list(value.values()) if isinstance(value, dict) else []
    if "*" in key and values and values.count(values[0]) == len(values):
        return _shown(key, values[0])
    if isinstance(value, dict):
        return ", ".join(f"{name} {_shown(key, item)}" for name, item in value.items())
    return f"`{json.dumps(value, ensure_ascii=False)}`"


def modules_page() -> str:
    """Return the page of all modules with the first line of their docstrings, in the order of the import layers."""
    with (DOCS.parent / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    layers = next(rules["layers"] for rules in contracts if rules["type"] == "layers")
    names = [name.strip(" ()") for layer in layers for name in layer.split(":")]
    rooms = [name for name in names if (SOURCE / name).is_dir()]
    intro = [
        "# Every module in a line",
        NOTE,
        "",
        "In order of import layers, highest first; [ARCHITECTURE.md](../ARCHITECTURE.md) describes how they work.",
        "",
    ]
    folders = [path.parent for room in rooms for path in sorted((SOURCE / room).rglob("__init__.py"))]
    sections = [_modules_of(f"{folder.relative_to(SOURCE)}/", sorted(folder.glob("*.py"))) for folder in folders]
    foot = _modules_of("Single modules", [SOURCE / f"{name}.py" for name in names if (SOURCE / f"{name}.py").is_file()])
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
    """Yield the section of a dataclass: its summary, then its fields with types, defaults and descriptions."""
    meanings = attributes(record)
    yield from (f"## {record.__name__}", "", inspect.getdoc(record).splitlines()[0], "")  # type: ignore[union-attr]
    yield from ("| field | type | default | meaning |", "|---|---|---|---|")
    for field in dataclasses.fields(record):
        kind = str(field.type).replace("|", "\\|")
        yield f"| `{field.name}` | `{kind}` | {_default(field)} | {meanings[field.name]} |"
    yield ""


def attributes(record: type) -> dict[str, str]:
    """Return the descriptions in a docstring's "Attributes:" section by field."""
    meanings: dict[str, str] = {}
    for base in reversed(record.__mro__):  # a record that extends another documents only the fields that it adds
        section = inspect.cleandoc(base.__doc__ or "").partition("Attributes:\n")[2]
        entries = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", section, flags=re.MULTILINE)
        meanings |= {name: " ".join(meaning.split()).replace("|", "\\|") for name, meaning in entries}
    return meanings


def _default(field: dataclasses.Field[object]) -> str:
    if field.default is not dataclasses.MISSING:
        return f"`{field.default!r}`"
    if field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
        return "its own defaults" if dataclasses.is_dataclass(value) else f"`{value!r}`"
    return "required"


if __name__ == "__main__":
    raise SystemExit(main())
