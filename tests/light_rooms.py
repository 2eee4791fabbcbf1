"""Imports every module of the light half with torch and its company blocked; prints their names. Run as a script.

The heavy rooms are the ones named here; whatever else the package holds is light, so that a new room is covered
without being listed.
"""

from __future__ import annotations

import importlib
import importlib.abc
import pkgutil
import sys

BLOCKED = frozenset({"torch", "transformers", "peft", "accelerate"})
# __main__ runs the command line when it is imported.
HEAVY = frozenset(
    {"lightir.models", "lightir.train", "lightir.encode", "lightir.__main__"}
)  # __main__ runs the command line when imported


class Blocker(importlib.abc.MetaPathFinder):
    """Refuses the heavy packages even where they are installed."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname.partition(".")[0] in BLOCKED:
            raise ImportError(f"a light room imported {fullname}")


def import_light_modules(package: str = "lightir") -> list[str]:
    """Imports a package and the light modules below it, found by walking; returns their names."""
    names = [package]
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__, package + "."):
        if module.name in HEAVY:
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
