"""Import every module of the light half with torch and transformers blocked, and print their names. Run as a script.

The heavy rooms are listed here; every other module of the package is light, so a new room is covered without being
listed.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import pkgutil
import sys

BLOCKED = frozenset({"torch", "transformers", "peft", "accelerate"})
# __main__ runs the command line when it is imported.
HEAVY = frozenset({"lightir.models", "lightir.train", "lightir.encode", "lightir.__main__"})
EXTRAS = {"lightir.serve": "fastapi"}
"""Rooms that need a package of an extra; they are left out where it is not installed."""


class Blocker(importlib.abc.MetaPathFinder):
    """An import hook that refuses the heavy packages even if they are installed."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname.partition(".")[0] in BLOCKED:
            raise ImportError(f"a light room imported {fullname}")


def import_light_modules(package: str = "lightir") -> list[str]:
    """Import a package and all light modules below it; return their names."""
    names = [package]
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__, package + "."):
        extra = EXTRAS.get(module.name)
        if module.name in HEAVY or (extra is not None and importlib.util.find_spec(extra) is None):
            continue
        if module.ispkg:
            names += import_light_modules(module.name)
        else:
            importlib.import_module(module.name)
            names.append(module.name)
    return names


if __name__ == "__main__":
    sys.meta_path.insert(0, Blocker())
    print("\n".join(import_light_modules()))
