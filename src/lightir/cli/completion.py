"""Print a completion script for your shell, so that Tab completes commands, options and file names."""

from __future__ import annotations

import argparse
from typing import Any

HELP = "print a shell completion script"
EXAMPLES = """
  bash   lightir completion bash > ~/.local/share/bash-completion/completions/lightir
  zsh    lightir completion zsh  > ~/.zfunc/_lightir        (with fpath+=~/.zfunc before compinit)
  fish   lightir completion fish > ~/.config/fish/completions/lightir.fish
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="shell to write the script for")


def run(args: argparse.Namespace) -> None:
    """Print the script."""
    import shtab

    from lightir.cli.app import build_parser, command_parsers

    parser = build_parser()
    for command in command_parsers(parser).values():
        for action in command._actions:
            if action.nargs != 0 and (complete := _completion(action, args.shell)):
                action.complete = complete  # type: ignore[attr-defined]  # shtab reads this attribute
    print(shtab.complete(parser, args.shell))


def _completion(action: argparse.Action, shell: str) -> Any:
    """Return what shtab should complete an argument's value with, where it does not do so by itself."""
    import shtab

    if not action.choices:
        return None if action.type is not None else shtab.FILE
    choices = " ".join(map(str, action.choices))
    # shtab 1.13 leaves the colon of "linear:min-max" bare, which ends the list of choices in zsh.
    return {"zsh": f"({choices})".replace(":", r"\:")} if shell == "zsh" and ":" in choices else None
