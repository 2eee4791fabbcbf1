"""Prints the running Python's documentation as JSON lines; standard library only, run as a script in its own process.

python_docs.py starts it: importing a hundred modules may hang, print or change global state, and none of that should
happen to the caller.
"""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import re
import sys
import types
import warnings
from collections.abc import Iterator
from typing import Any

# Importing these opens a browser or a window, prints, or brings nothing that one would look up.
LEFT_OUT = frozenset(
    """
    antigravity this test idlelib lib2to3 turtledemo turtle tkinter pydoc_data distutils ensurepip encodings
    msilib msvcrt winreg winsound nt ntpath nturl2path posixpath opcode sre_compile sre_constants sre_parse
    genericpath pydoc rlcompleter stringprep symtable tabnanny __main__ site sitecustomize usercustomize
    """.split()  # noqa: SIM905  a list of 50 strings would be a page
)
ALIASES = {"os.path": "posixpath"}  # the name that one looks up -> the module that it is in
MIN_WORDS = 4
MAX_CHARACTERS = 900  # about 200 tokens; what follows is examples and small print
ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def module_names() -> list[str]:
    """Public modules of the standard library, packages' submodules included; shallow names first."""
    names = [name for name in sys.stdlib_module_names if not name.startswith("_") and name not in LEFT_OUT]
    submodules = [
        f"{name}.{info.name}"
        for name in names
        for info in pkgutil.iter_modules(getattr(load(name), "__path__", []))
        if not info.name.startswith("_") and info.name not in ("test", "tests")
    ]
    return sorted([*names, *submodules, *ALIASES], key=lambda name: (name.count("."), name))


def load(name: str) -> types.ModuleType | None:
    """The module, or None where this Python cannot import it (another system's, or built without a library)."""
    try:
        return importlib.import_module(ALIASES.get(name, name))
    except (Exception, SystemExit) as error:  # noqa: BLE001  a foreign module may raise anything; said on stderr
        sys.stderr.write(f"{name}: {type(error).__name__}: {error}\n")
        return None


def own_doc(value: Any) -> str:
    """The object's own doc string, cleaned; inherited ones are somebody else's document."""
    doc = value.__doc__ if isinstance(getattr(value, "__doc__", None), str) else ""
    return inspect.cleandoc(doc).strip()


def signature(value: Any) -> str:
    """`(interval, function, args=None)`, or "" where it cannot be known."""
    try:
        found = ADDRESS.sub("", str(inspect.signature(value)))
    except Exception:  # noqa: BLE001  inspect evaluates C functions' default values, which may raise anything
        return ""
    return "" if "environ(" in found else found  # somebody's environment is no documentation


def cut(text: str) -> str:
    """The text's beginning, whole paragraphs as far as they fit."""
    if len(text) <= MAX_CHARACTERS:
        return text
    head = text[:MAX_CHARACTERS]
    for border in ("\n\n", "\n", " "):
        if head.rfind(border) > MAX_CHARACTERS // 2:
            return head[: head.rfind(border)].rstrip()
    return head


def spelled_out(doc_id: str) -> str:
    """The last name's words: "temporary directory" for tempfile.TemporaryDirectory; "" where it is one word."""
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+", doc_id.rpartition(".")[2])
    return " ".join(words).lower() if len(words) > 1 else ""


def record(doc_id: str, kind: str, text: str, *, call: str = "") -> dict[str, Any] | None:
    if len(text.split()) < MIN_WORDS:
        return None
    title = f"{doc_id}: {spelled}" if (spelled := spelled_out(doc_id)) else doc_id
    return {"doc_id": doc_id, "title": title, "text": cut(text), "metadata": {"kind": kind, "signature": call}}


def members(module: types.ModuleType, name: str) -> Iterator[tuple[str, Any]]:
    """What a module offers: its __all__, or its public names that were not imported from another module."""
    listed = getattr(module, "__all__", None)
    for attribute in sorted(listed if listed is not None else vars(module)):
        value = getattr(module, attribute, None)
        home = getattr(value, "__module__", None) or ""
        at_home = home.lstrip("_").split(".")[0] == name.split(".")[0] or home == "builtins" == name
        offered = listed is not None or (not attribute.startswith("_") and at_home)
        if offered and (inspect.isclass(value) or inspect.isroutine(value)):
            yield attribute, value


def methods(cls: type, name: str) -> Iterator[dict[str, Any] | None]:
    """The public methods and properties that a class itself defines and documents."""
    for attribute, value in sorted(vars(cls).items()):
        target = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
        documented = inspect.isroutine(target) or isinstance(target, property)
        if documented and not attribute.startswith("_"):
            kind = "property" if isinstance(target, property) else "method"
            yield record(f"{name}.{attribute}", kind, own_doc(target), call=signature(target))


def documents() -> Iterator[dict[str, Any] | None]:
    """Modules, their functions and classes, the classes' methods, and pydoc's topics."""
    seen: set[int] = set()
    for name in module_names():
        module = load(name)
        if module is None or id(module) in seen:
            continue
        seen.add(id(module))
        yield record(name, "module", own_doc(module))
        prefix = "" if name == "builtins" else f"{name}."
        for attribute, value in members(module, name):
            if id(value) in seen:
                continue
            seen.add(id(value))
            kind = "class" if inspect.isclass(value) else "function"
            yield record(f"{prefix}{attribute}", kind, own_doc(value), call=signature(value))
            if inspect.isclass(value):
                yield from methods(value, f"{prefix}{attribute}")
    yield from topics()


def topics() -> Iterator[dict[str, Any] | None]:
    """The language reference's sections that `help()` shows, under their keyword."""
    from pydoc_data.topics import topics as texts

    for name, text in sorted(texts.items()):
        lines = text.strip().splitlines()
        body = "\n".join(line for line in lines[1:] if set(line.strip()) not in ({"*"}, {"="}, {"-"}, {"~"})).strip()
        found = record(f"topic:{name}", "topic", body)
        yield found and {**found, "title": lines[0]}


def main() -> None:
    """Every document once, by id; the first to bear an id keeps it."""
    warnings.simplefilter("ignore")
    ids: set[str] = set()
    for each in documents():
        if each is not None and each["doc_id"] not in ids:
            ids.add(each["doc_id"])
            sys.stdout.write(json.dumps(each) + "\n")


if __name__ == "__main__":
    main()
