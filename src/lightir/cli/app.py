"""The parser of all commands, and the way from an error to one line and an exit code."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Protocol, cast

import lightir
from lightir.cli import terminal
from lightir.errors import LightirError

COMMANDS = (
    "demo",
    "train",
    "cache",
    "distill",
    "encode",
    "index",
    "add",
    "delete",
    "compact",
    "snapshot",
    "worker",
    "search",
    "evaluate",
    "tune",
    "rerank",
    "expand",
    "mine",
    "info",
    "verify",
    "doctor",
    "bench",
    "completion",
)
"""A command NAME is the module lightir.cli.NAME; help lists them in this order."""

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


def load_command(name: str) -> Command:
    """The command's module; cheap, as every command imports what is heavy when it runs."""
    return cast(Command, importlib.import_module(f"lightir.cli.{name}"))


def build_parser() -> argparse.ArgumentParser:
    """The parser of `lightir`, with one subparser a command."""
    parser = argparse.ArgumentParser(
        prog="lightir",
        description="Retrieval with no model at query time: train, cache, encode, index, search, evaluate.",
        epilog="Begin with: lightir demo. A command's own help: lightir COMMAND --help.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"lightir {lightir.__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
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


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 0, 1 after an error, 2 after misuse, 130 after Ctrl-C."""
    # torch's idle threads spin by default, which costs a busy neighbour tenfold; it must be said before torch loads.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    args = build_parser().parse_args(argv)
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
        terminal.say(f"lightir: error: {_one_line(error)}")
        return 1
    return int(code or 0)


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
