"""Say what this installation can do: version, kernel, installed extras, processor."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import re
from pathlib import Path
from typing import Any

from lightir.cli.arguments import add_json
from lightir.cli.terminal import print_json

HELP = "show version, CPU features and installed extras"
EXAMPLES = """
  lightir doctor
  lightir doctor --json
"""

FOR_DEVELOPERS = "dev"
"""The extra that a checkout needs; an installation is whole without it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    """Print the report."""
    found = report()
    if args.json:
        print_json(found)
        return
    kernel, installed = found["kernel"], found["extras"]
    print(f"lightir {found['version']}, Python {found['python']}")
    print(f"cpu         {found['cpu']}, {found['threads']} threads")
    print(f"kernel      {kernel['dispatch']} (this processor has {', '.join(kernel['available'])})")
    for name, present in installed.items():
        how = "installed" if present else f"not installed: pip install 'lightir[{name}]'"
        print(f"{name:<11} {how}")
    print(f"models      {', '.join(found['models']) or 'none installed; `make setup` in a checkout installs them'}")
    for name, how in found["query_tokenizers"].items():
        print(f"            {name}'s queries are tokenised by {how}")


def report() -> dict[str, Any]:
    """What `--json` prints. Packages are looked for, not imported."""
    from lightir import kernel
    from lightir.addresses import shipped_models
    from lightir.version import __version__

    return {
        "version": __version__,
        "python": platform.python_version(),
        "kernel": {"dispatch": kernel.dispatch(), "available": kernel.available()},
        "extras": {name: all(map(_is_installed, needed)) for name, needed in extras().items()},
        "models": list(shipped_models()),
        "query_tokenizers": {name: _query_tokenizer(folder) for name, folder in shipped_models().items()},
        "cpu": _cpu(),
        "threads": len(os.sched_getaffinity(0)),
    }


def extras() -> dict[str, list[str]]:
    """The packages of each extra, in pyproject.toml's order, as the installed metadata have them."""
    found: dict[str, list[str]] = {}
    for requirement in importlib.metadata.requires("lightir") or ():
        package, _, marker = requirement.partition(";")
        extra = re.search(r"extra == [\"']([^\"']+)", marker)
        name = re.match(r"[\w.-]+", package)
        if extra and name and extra[1] != FOR_DEVELOPERS:
            found.setdefault(extra[1], []).append(name[0])
    return found


def _is_installed(package: str) -> bool:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _query_tokenizer(model: Path) -> str:
    """Which path a model's queries take to their term ids, and why if it is the slow one."""
    from lightir.query.encoder_files import TOKENIZER_FILE
    from lightir.text import TextTokenizer

    folders = [folder for folder in (model / "query-encoder", model) if (folder / TOKENIZER_FILE).is_file()]
    if not folders:
        return "nothing that is here: the model has no tokenizer.json"
    return TextTokenizer.from_file(folders[0] / TOKENIZER_FILE).path.description


def _cpu() -> str:
    """The processor's name as Linux tells it, else the architecture."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
