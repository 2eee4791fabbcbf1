"""The parser of all commands, and the way from an error to one line and an exit code."""

from __future__ import annotations

import argparse
import importlib
import os
import re
import sys
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn, Protocol, cast

from lightir.cli import terminal
from lightir.errors import AlreadyExists, LightirError
from lightir.version import __version__

GROUPS = {
    "search": ("demo", "search", "rerank"),
    "documents": ("encode", "index", "add", "delete", "worker", "expand"),
    "models": ("cache", "distill"),
    "evaluation": ("evaluate", "tune", "bench"),
    "training": ("train", "mine"),
    "upkeep": ("info", "verify", "compact", "snapshot", "doctor", "completion"),
}
"""Commands by task, in the order of the help. The module of a command NAME is lightir.cli.NAME."""
COMMANDS = tuple(name for names in GROUPS.values() for name in names)

DESCRIPTION = """\
Semantic search without a model at query time.

A language model encodes your documents once, offline. A query is a table lookup
that takes microseconds on one CPU core. Rankings fuse dense vectors, learned
sparse vectors and BM25.
"""
EPILOG = """\
examples:
  lightir encode minilm notes/ --out vectors      encode your files with an installed model
  lightir index vectors --out index               build an index of them
  lightir search index "how do I reset it?"       search it without the model

To try it on the documentation of your Python: lightir demo
Help on a command: lightir COMMAND --help
"""

TRAIN_PACKAGES = ("torch", "transformers", "peft", "accelerate", "gguf", "yaml")
MISUSED = 2  # as argparse has it
INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it
BROKEN_PIPE = 141  # 128 + SIGPIPE


class Command(Protocol):
    """What a command's module offers; its doc string is the command's description.

    Where an interruption does not lose the work, a module also has STAYS: what stays, and how to go on.
    """

    HELP: str
    EXAMPLES: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the command's arguments."""

    def run(self, args: argparse.Namespace) -> int | None:
        """Do it; None means 0."""


class _GroupedHelp(argparse.RawDescriptionHelpFormatter):
    """Help formatter that lists commands by task."""

    def _format_action(self, action: argparse.Action) -> str:
        if not isinstance(action, argparse._SubParsersAction):
            return super()._format_action(action)
        commands = {command.dest: command for command in action._get_subactions()}
        sections = []
        for title, names in GROUPS.items():
            sections.append("".join([f"{title}:\n", *(self._format_action(commands[name]) for name in names)]))
        return "\n".join(sections)


class _Parser(argparse.ArgumentParser):
    """One whose errors name the word that was meant, and whose options may stand between INDEX and QUERY."""

    _mixing = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse does, a command's options first: argparse alone takes a QUERY behind them for one too many."""
        if self._mixing or self._subparsers is not None:
            return super().parse_known_args(args, namespace)
        self._mixing = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._mixing = False

    def error(self, message: str) -> NoReturn:
        """End with argparse's message, and the nearest of the choices where it lists them."""
        if choices := re.search(r"invalid choice: '(.*)' \(choose from (.*)\)$", message):
            message += terminal.meant(choices[1], re.findall(r"[^\s',]+", choices[2]))
        super().error(message)


def _parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    """The arguments; what a command does not know is told with that command's usage."""
    args, unknown = build_parser().parse_known_args(argv)
    if unknown:
        options = [name for action in args.parser._actions for name in action.option_strings]
        hints = (terminal.meant(word.partition("=")[0], options) for word in unknown if word.startswith("-"))
        hint = next(hints, "; words that belong together want quotes")
        args.parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
    return args


def load_command(name: str) -> Command:
    """The command's module; cheap, as every command imports what is heavy when it runs."""
    return cast(Command, importlib.import_module(f"lightir.cli.{name}"))


def build_parser() -> argparse.ArgumentParser:
    """The parser of `lightir`, with one subparser a command."""
    parser = _Parser(
        prog="lightir",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=_GroupedHelp,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"lightir {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, title=argparse.SUPPRESS)
    for name in COMMANDS:
        command = load_command(name)
        sub = subparsers.add_parser(
            name,
            help=command.HELP,
            description=command.__doc__,
            epilog=f"examples:\n{command.EXAMPLES.strip(chr(10))}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        command.add_arguments(sub)
        sub.add_argument(
            "--traceback", action="store_true", help="show where an error came from (also: LIGHTIR_DEBUG=1)"
        )
        sub.set_defaults(run=command.run, parser=sub, stays=getattr(command, "STAYS", ""))
    return parser


def command_parsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return each command's parser by name."""
    action = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return dict(action.choices)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 0, 1 after an error, 2 after misuse, 130 after Ctrl-C."""
    # torch's idle threads spin by default, which costs a busy neighbour tenfold; it must be said before torch loads.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    args = _parsed(argv)
    debug = args.traceback or os.environ.get("LIGHTIR_DEBUG", "") not in ("", "0")
    terminal.show_log()
    terminal.escape_what_cannot_be_written()
    try:
        code = args.run(args)
        sys.stdout.flush()
    except BrokenPipeError:
        return _close_stdout()
    except KeyboardInterrupt:
        terminal.say(f"lightir: interrupted; {args.stays}" if args.stays else "lightir: interrupted")
        return INTERRUPTED
    except terminal.Misuse as error:
        args.parser.print_usage(sys.stderr)
        terminal.say(f"{args.parser.prog}: error: {error}")
        return MISUSED
    except (LightirError, OSError, ModuleNotFoundError) as error:
        if debug:
            traceback.print_exc()
        hint = "; --overwrite replaces it" if _may_overwrite(args, error) else ""
        terminal.say(f"lightir: error: {_one_line(error)}{hint}")
        return 1
    return int(code or 0)


def _may_overwrite(args: argparse.Namespace, error: Exception) -> bool:
    return isinstance(error, AlreadyExists) and getattr(args, "overwrite", None) is False


def _one_line(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name and error.name.split(".")[0] in TRAIN_PACKAGES:
        return f"{error.name.split('.')[0]} is needed here: pip install 'lightir[train]'"
    if isinstance(error, OSError) and not isinstance(error, LightirError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(str(error).split())


def _close_stdout() -> int:
    """The reader went away, as `head` does: say nothing, and keep Python from flushing into the closed pipe."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return BROKEN_PIPE
