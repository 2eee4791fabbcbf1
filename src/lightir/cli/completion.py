"""Print a completion script for your shell, so that Tab completes commands, options, file names, models and fields.

The scripts call `lightir completion models` and `lightir completion fields INDEX`, which print one name per line. The
fields are those of the index that the line names.
"""

from __future__ import annotations

import argparse
from typing import Any

from lightir.cli.terminal import Misuse

HELP = "print a shell completion script"
EXAMPLES = """
  bash   lightir completion bash > ~/.local/share/bash-completion/completions/lightir
  zsh    lightir completion zsh  > ~/.zfunc/_lightir        (with fpath+=~/.zfunc before compinit)
  fish   lightir completion fish > ~/.config/fish/completions/lightir.fish
"""
SHELLS = ("bash", "zsh", "fish")
MODELS, FIELDS = "models", "fields"
OF_MODELS = ("model", "rerank_model", "teacher")
OF_FIELDS = ("facet", "sort", "group")

_LOOP = 'for word in {words}; do test -f "$word/store.sqlite" || continue'
PREAMBLES = {
    "bash": f"""
_lightir_models() {{
  compgen -W "$(lightir completion models 2>/dev/null)" -- "$1"
  compgen -f -- "$1"
}}
_lightir_fields() {{
  local word
  {_LOOP.format(words='"${COMP_WORDS[@]:2}"')}
    compgen -W "$(lightir completion fields "$word" 2>/dev/null)" -- "$1"
  done
}}""",
    "zsh": f"""
_lightir_models() {{
  compadd -- ${{(f)"$(lightir completion models 2>/dev/null)"}}
  _files
}}
_lightir_fields() {{
  local word
  {_LOOP.format(words='"${words[@]}"')}
    compadd -- ${{(f)"$(lightir completion fields "$word" 2>/dev/null)"}}
  done
}}""",
    "fish": """
function _lightir_models
  lightir completion models 2>/dev/null
  __fish_complete_path (commandline -ct)
end
function _lightir_fields
  for word in (commandline -opc)
    test -f "$word/store.sqlite"; and lightir completion fields $word 2>/dev/null
  end
end""",
}
"""Functions of each shell that print or add the names."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "what",
        choices=(*SHELLS, MODELS, FIELDS),
        metavar="SHELL",
        help="shell to write the script for: bash, zsh or fish; or models or fields, to print their names",
    )
    parser.add_argument("index", nargs="?", metavar="INDEX", help="with fields: index to print the fields of")


def run(args: argparse.Namespace) -> None:
    """Print the script, or names."""
    if (args.index is not None) != (args.what == FIELDS):
        raise Misuse("INDEX and fields require each other: lightir completion fields INDEX")
    if args.what in SHELLS:
        print_script(args.what)
    else:
        print("\n".join(names_of_fields(args.index) if args.what == FIELDS else names_of_models()))


def names_of_models() -> list[str]:
    """Return the names of the installed models."""
    from lightir.addresses import shipped_models

    return list(shipped_models())


def names_of_fields(folder: str) -> list[str]:
    """Return the names of an index's metadata fields, without those that contain a blank."""
    from lightir.index import Index

    with Index.open(folder) as index:
        return [name for name in index.info().fields or () if not any(map(str.isspace, name))]


def names_of_modes() -> tuple[str, ...]:
    """Return the modes of a search: hybrid, each branch, pairs of branches, and those through the model."""
    import itertools

    from lightir.search.search_options import MODEL_MODES
    from lightir.search.through_model import LATE
    from lightir.types import BRANCHES

    pairs = ("+".join(pair) for pair in itertools.combinations(BRANCHES, 2))
    return ("hybrid", *BRANCHES, *pairs, *MODEL_MODES, LATE)


def print_script(shell: str) -> None:
    """Print the completion script of a shell."""
    import shtab

    from lightir.cli.app import build_parser, command_parsers

    parser = build_parser()
    for command in command_parsers(parser).values():
        for action in command._actions:
            if action.nargs != 0 and (complete := _completion(action, shell)):
                action.complete = complete  # type: ignore[attr-defined]  # shtab reads this attribute
    print(shtab.complete(parser, shell, preamble=PREAMBLES[shell]))


def _completion(action: argparse.Action, shell: str) -> Any:
    """Return what shtab should complete an argument's value with, where it does not do so by itself."""
    import shtab

    if action.dest in (*OF_MODELS, *OF_FIELDS):
        name = "_lightir_models" if action.dest in OF_MODELS else "_lightir_fields"
        return {"bash": name, "zsh": name, "fish": f"({name})"}
    if action.dest == "mode":
        action.choices = names_of_modes()
    if not action.choices:
        return None if action.type is not None else shtab.FILE
    choices = " ".join(map(str, action.choices))
    # shtab 1.13 leaves the colon of "linear:min-max" bare, which ends the list of choices in zsh.
    return {"zsh": f"({choices})".replace(":", r"\:")} if shell == "zsh" and ":" in choices else None
