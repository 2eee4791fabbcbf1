"""Print the running Python's documentation as JSON lines; a script that uses the standard library alone.

python_docs.py runs it in a separate process because importing a hundred modules may hang, print or change global state.
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

# Importing these modules opens a browser or a window, prints, or adds nothing worth looking up.
SKIPPED = frozenset(
    """
    antigravity this test idlelib lib2to3 turtledemo turtle tkinter pydoc_data distutils ensurepip encodings
    msilib msvcrt winreg winsound nt ntpath nturl2path posixpath opcode sre_compile sre_constants sre_parse
    genericpath pydoc rlcompleter stringprep symtable tabnanny __main__ site sitecustomize usercustomize
    """.split()  # noqa: SIM905  a list of 50 strings would be a page
)
ALIASES = {"os.path": "posixpath"}  # documented name -> module that implements it
MIN_WORDS = 4
MAX_CHARACTERS = 900  # about 200 tokens; the rest is mostly examples and details
ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def module_names() -> list[str]:
    """Return the public modules of the standard library and their submodules; names with fewer dots first."""
    names = [name for name in sys.stdlib_module_names if not name.startswith("_") and name not in SKIPPED]
    submodules = [
        f"{name}.{info.name}"
        for name in names
        for info in pkgutil.iter_modules(getattr(load(name), "__path__", []))
        if not info.name.startswith("_") and info.name not in ("test", "tests")
    ]
    return sorted([*names, *submodules, *ALIASES], key=lambda name: (name.count("."), name))


def load(name: str) -> types.ModuleType | None:
    """Import a module; None if this Python lacks it (another platform, or built without a library)."""
    try:
        return importlib.import_module(ALIASES.get(name, name))
    except (Exception, SystemExit) as error:  # noqa: BLE001  a module may raise anything; logged to stderr
        sys.stderr.write(f"{name}: {type(error).__name__}: {error}\n")
        return None


def own_doc(value: Any) -> str:
    """Return an object's own docstring, cleaned; inherited ones belong to another document."""
    doc = value.__doc__ if isinstance(getattr(value, "__doc__", None), str) else ""
    return inspect.cleandoc(doc).strip()


def signature(value: Any) -> str:
    """Return a signature such as `(interval, function, args=None)`, or "" if unknown."""
    try:
        text = ADDRESS.sub("", str(inspect.signature(value)))
    except Exception:  # noqa: BLE001  inspect evaluates C functions' default values, which may raise anything
        return ""
    return "" if "environ(" in text else text  # exclude values of this process's environment


def cut(text: str) -> str:
    """Cut a text to MAX_CHARACTERS, after whole paragraphs if possible."""
    if len(text) <= MAX_CHARACTERS:
        return text
    head = text[:MAX_CHARACTERS]
    for border in ("\n\n", "\n", " "):
        if head.rfind(border) > MAX_CHARACTERS // 2:
            return head[: head.rfind(border)].rstrip()
    return head


def spelled_out(doc_id: str) -> str:
    """Return the words of the last name: "temporary directory" for tempfile.TemporaryDirectory; "" for one word."""
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+", doc_id.rpartition(".")[2])
    return " ".join(words).lower() if len(words) > 1 else ""


def record(doc_id: str, kind: str, text: str, *, call: str = "") -> dict[str, Any] | None:
    """Return a document as JSON values, or None if the text is too short."""
    if len(text.split()) < MIN_WORDS:
        return None
    title = f"{doc_id}: {spelled}" if (spelled := spelled_out(doc_id)) else doc_id
    return {"doc_id": doc_id, "title": title, "text": cut(text), "metadata": {"kind": kind, "signature": call}}


def members(module: types.ModuleType, name: str) -> Iterator[tuple[str, Any]]:
    """Yield a module's members: its __all__, or its public names that were not imported from another module."""
    listed = getattr(module, "__all__", None)
    for attribute in sorted(listed if listed is not None else vars(module)):
        value = getattr(module, attribute, None)
        home = getattr(value, "__module__", None) or ""
        own = home.lstrip("_").split(".")[0] == name.split(".")[0] or home == "builtins" == name
        public = listed is not None or (not attribute.startswith("_") and own)
        if public and (inspect.isclass(value) or inspect.isroutine(value)):
            yield attribute, value


def methods(cls: type, name: str) -> Iterator[dict[str, Any] | None]:
    """Yield the public methods and properties that a class itself defines and documents."""
    for attribute, value in sorted(vars(cls).items()):
        target = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
        documented = inspect.isroutine(target) or isinstance(target, property)
        if documented and not attribute.startswith("_"):
            kind = "property" if isinstance(target, property) else "method"
            yield record(f"{name}.{attribute}", kind, own_doc(target), call=signature(target))


def documents() -> Iterator[dict[str, Any] | None]:
    """Yield modules, their functions and classes, the classes' methods, and pydoc's topics."""
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
    """Yield the sections of the language reference that `help()` shows, by keyword."""
    from pydoc_data.topics import topics as texts

    for name, text in sorted(texts.items()):
        lines = text.strip().splitlines()
        body = "\n".join(line for line in lines[1:] if set(line.strip()) not in ({"*"}, {"="}, {"-"}, {"~"})).strip()
        topic = record(f"topic:{name}", "topic", body)
        yield topic and {**topic, "title": lines[0]}


def main() -> None:
    """Print every document; of duplicate ids the first is kept."""
    warnings.simplefilter("ignore")
    ids: set[str] = set()
    for document in documents():
        if document is not None and document["doc_id"] not in ids:
            ids.add(document["doc_id"])
            sys.stdout.write(json.dumps(document) + "\n")


if __name__ == "__main__":
    main()
