"""Show what this installation can do: version, CPU features, installed extras and models.

Include this output in bug reports.
"""

from __future__ import annotations

import argparse
import importlib.metadata
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
"""Extra for work on lightir itself, which users do not need."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    """Print the report."""
    facts = report()
    if args.json:
        print_json(facts)
        return
    kernel = facts["kernel"]
    print(f"lightir      {facts['version']}, Python {facts['python']}")
    print(f"CPU          {facts['cpu']}, {facts['threads']} threads")
    print(f"kernel       {kernel['dispatch']} (supported by this CPU: {', '.join(kernel['available'])})")
    print("extras")
    for name, is_present in facts["extras"].items():
        status = "installed" if is_present else f"not installed: pip install 'lightir[{name}]'"
        print(f"  {name:<12} {status}")
    print("models" if facts["models"] else "models       none installed; `make setup` in a checkout installs them")
    for name, tokenizer in facts["query_tokenizers"].items():
        print(f"  {name:<12} queries tokenized by {tokenizer}")


def report() -> dict[str, Any]:
    """Return what `--json` prints. Checks whether packages are installed without importing them."""
    from lightir import kernel
    from lightir.addresses import shipped_models
    from lightir.provenance import processor_name, usable_cores
    from lightir.version import __version__

    return {
        "version": __version__,
        "python": platform.python_version(),
        "kernel": {"dispatch": kernel.dispatch(), "available": kernel.available()},
        "extras": {name: all(map(_is_installed, needed)) for name, needed in extras().items()},
        "models": list(shipped_models()),
        "query_tokenizers": {name: _query_tokenizer(folder) for name, folder in shipped_models().items()},
        "cpu": processor_name(),
        "threads": usable_cores(),
    }


def extras() -> dict[str, list[str]]:
    """Return the packages of each extra from the installed metadata, in the order of pyproject.toml."""
    packages: dict[str, list[str]] = {}
    for requirement in importlib.metadata.requires("lightir") or ():
        package, _, marker = requirement.partition(";")
        extra = re.search(r"extra == [\"']([^\"']+)", marker)
        name = re.match(r"[\w.-]+", package)
        if extra and name and extra[1] != FOR_DEVELOPERS:
            packages.setdefault(extra[1], []).append(name[0])
    return packages


def _is_installed(package: str) -> bool:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _query_tokenizer(model: Path) -> str:
    """Describe how a model's queries are tokenized, and if by the slower library, why."""
    from lightir.query.encoder_files import TOKENIZER_FILE
    from lightir.text import TextTokenizer

    folders = [folder for folder in (model / "query-encoder", model) if (folder / TOKENIZER_FILE).is_file()]
    if not folders:
        return "no tokenizer: the model folder has no tokenizer.json"
    return TextTokenizer.from_file(folders[0] / TOKENIZER_FILE).path.description
