"""Print a completion script for a shell, generated from the parser itself."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

HELP = "print a shell's completion script"
EXAMPLES = """
  bash   lightir completion bash > ~/.local/share/bash-completion/completions/lightir
  zsh    lightir completion zsh  > ~/.zfunc/_lightir        (with fpath+=~/.zfunc before compinit)
  fish   lightir completion fish > ~/.config/fish/completions/lightir.fish
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="which shell to write for")


def run(args: argparse.Namespace) -> None:
    """Print the script."""
    from lightir.cli.app import build_parser

    print({"bash": bash, "zsh": zsh, "fish": fish}[args.shell](commands(build_parser())))


def commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Each command's parser by its name."""
    action: Any = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    return dict(action.choices)


def options(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """The arguments that begin with a dash."""
    return (action for action in parser._actions if action.option_strings)


def bash(parsers: dict[str, argparse.ArgumentParser]) -> str:
    """A bash completion: commands first, then a command's options and their choices, else files."""
    words, values = [], []
    for name, parser in parsers.items():
        strings = [string for action in options(parser) for string in action.option_strings]
        words.append(f'    {name}) words="{" ".join(strings)}" ;;')
        for action in parser._actions:
            if action.choices and action.option_strings:
                names = "|".join(f'"{name} {string}"' for string in action.option_strings)
                values.append(f'    {names}) COMPREPLY=($(compgen -W "{_choices(action)}" -- "$cur")); return ;;')
            elif action.choices:
                values.append(
                    f'    "{name} {name}") COMPREPLY=($(compgen -W "{_choices(action)}" -- "$cur")); return ;;'
                )
    return "\n".join(
        [
            "_lightir() {",
            '  local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}" words=""',
            '  if [ "$COMP_CWORD" -eq 1 ]; then',
            f'    COMPREPLY=($(compgen -W "{" ".join(parsers)} --help --version" -- "$cur")); return',
            "  fi",
            '  case "${COMP_WORDS[1]} $prev" in',
            *values,
            "  esac",
            '  case "${COMP_WORDS[1]}" in',
            *words,
            "  esac",
            '  case "$cur" in',
            '    -*) COMPREPLY=($(compgen -W "$words" -- "$cur")) ;;',
            '    *) COMPREPLY=($(compgen -f -- "$cur")) ;;',
            "  esac",
            "}",
            "complete -o filenames -F _lightir lightir",
        ]
    )


def zsh(parsers: dict[str, argparse.ArgumentParser]) -> str:
    """A zsh completion: the commands with their help, then each command's options."""
    cases = []
    for name, parser in parsers.items():
        specs = [f"      '{spec}'" for action in parser._actions for spec in _zsh_specs(action)]
        cases.append(
            "\n".join([f"    {name}) _arguments \\", " \\\n".join([*specs, "      '*:file:_files'"]), "    ;;"])
        )
    described = [f"    '{name}:{_zsh_quoted(load_help(name))}'" for name in parsers]
    return "\n".join(
        [
            "#compdef lightir",
            "_lightir() {",
            "  local -a names=(",
            *described,
            "  )",
            "  if (( CURRENT == 2 )); then _describe command names; return; fi",
            "  shift words; (( CURRENT-- ))",
            "  case $words[1] in",
            *cases,
            "  esac",
            "}",
            'if [ "$funcstack[1]" = "_lightir" ]; then _lightir "$@"; else compdef _lightir lightir; fi',
        ]
    )


def fish(parsers: dict[str, argparse.ArgumentParser]) -> str:
    """A fish completion: one line a command and one an option."""
    lines = []
    for name, parser in parsers.items():
        lines.append(f"complete -c lightir -n __fish_use_subcommand -f -a {name} -d '{_fish_quoted(load_help(name))}'")
        for action in parser._actions:
            given = f"complete -c lightir -n '__fish_seen_subcommand_from {name}'"
            flags = "".join(f" -{'l' if s.startswith('--') else 's'} {s.lstrip('-')}" for s in action.option_strings)
            choices = f" -x -a '{_choices(action)}'" if action.choices else ""
            takes_value = " -r" if flags and not choices and action.nargs != 0 else ""
            if flags or choices:
                lines.append(f"{given}{flags}{choices}{takes_value} -d '{_fish_quoted(_help(action))}'")
    return "\n".join(lines)


def load_help(name: str) -> str:
    """A command's line in the overview."""
    from lightir.cli.app import load_command

    return load_command(name).HELP


def _zsh_specs(action: argparse.Action) -> Iterator[str]:
    escaped = _choices(action).replace(":", "\\:")  # a bare colon would end what the spec says of a value
    values = f"({escaped})" if action.choices else "_files"
    takes_value = f":value:{values}" if action.nargs != 0 else ""
    for string in action.option_strings:
        yield f"{string}[{_zsh_quoted(_help(action))}]{takes_value}"
    if action.choices and not action.option_strings:
        yield f"1:value:{values}"


def _choices(action: argparse.Action) -> str:
    return " ".join(str(choice) for choice in action.choices or ())


def _help(action: argparse.Action) -> str:
    return (action.help or "") % {"default": action.default}


def _zsh_quoted(text: str) -> str:
    """Help text as it stands between single quotes, and there between brackets."""
    return text.replace("\\", "").replace("'", "’").replace("[", "(").replace("]", ")")


def _fish_quoted(text: str) -> str:
    """Help text as it stands between single quotes."""
    return text.replace("\\", "\\\\").replace("'", "\\'")
