"""Parser of all commands; turns errors into one line on stderr and an exit code."""

from __future__ import annotations

import argparse
import importlib
import os
import re
import sys
import textwrap
import traceback
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn, Protocol, cast

from lightir.cli import terminal
from lightir.cli.arguments import chosen_read_options
from lightir.cli.interruption import Interruption, terminate_with_stdin
from lightir.errors import AlreadyExists, LightirError
from lightir.lines import reading_with
from lightir.version import __version__

GROUPS = {
    "search": ("demo", "search", "get", "serve", "publish", "mcp", "key", "rerank"),
    "documents": ("encode", "index", "add", "watch", "set", "delete", "worker", "expand"),
    "models": ("cache", "distill", "adopt", "merge", "export", "upload", "download"),
    "evaluation": ("evaluate", "tune", "bench"),
    "training": ("train", "mine", "convert"),
    "upkeep": ("info", "size", "verify", "compact", "snapshot", "split", "push", "doctor", "completion"),
}
"""Commands by task, in the order of the help. The module of a command NAME is lightir.cli.NAME."""
COMMANDS = tuple(name for names in GROUPS.values() for name in names)

DESCRIPTION = """\
Semantic search without a model at query time.

A language model encodes your documents once, offline. A query is a table lookup
that takes microseconds on one CPU core. Rankings fuse dense vectors, learned
sparse vectors and BM25.
"""
EXAMPLES_TITLE = "examples:"
EPILOG = f"""\
{EXAMPLES_TITLE}
  lightir encode minilm notes/ --out vectors      encode your files with an installed model
  lightir index vectors --out index               build an index of them
  lightir search index "how do I reset it?"       search it without the model

To try it on the documentation of your Python: lightir demo
Help on a command: lightir COMMAND --help
"""

TRAIN_PACKAGES = ("torch", "transformers", "peft", "accelerate", "gguf", "yaml")
MISUSED = 2  # same as argparse
_MISSING = "the following arguments are required"  # argparse's words
BROKEN_PIPE = 141  # 128 + SIGPIPE


class Command(Protocol):
    """Interface of a command's module. The module's docstring is the description in its help.

    A module whose work survives Ctrl-C or SIGTERM also defines ON_INTERRUPT: a message that says what is kept and
    how to resume.
    """

    HELP: str
    EXAMPLES: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the command's arguments."""

    def run(self, args: argparse.Namespace) -> int | None:
        """Run the command and return its exit code; None means 0."""


class _Help(argparse.RawDescriptionHelpFormatter):
    """Help formatter: a short usage line, commands by task, wrapped paragraphs, examples as they are."""

    def add_usage(
        self, usage: str | None, actions: Iterable[argparse.Action], groups: Iterable[Any], prefix: str | None = None
    ) -> None:
        """Show positional arguments and required options only; "[options]" represents the others."""
        actions = list(actions)
        if any(action.option_strings for action in actions):  # argparse also formats positional arguments alone
            self._prog = f"{self._prog} [options]"
        shown = [action for action in actions if not action.option_strings or action.required]
        super().add_usage(usage, shown, [], prefix)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith(EXAMPLES_TITLE):
            return super()._fill_text(text, width, indent)
        paragraphs = text.strip().split("\n\n")
        return "\n\n".join(textwrap.fill(" ".join(paragraph.split()), width) for paragraph in paragraphs)

    def _format_action(self, action: argparse.Action) -> str:
        if not isinstance(action, argparse._SubParsersAction):
            return super()._format_action(action)
        commands = {command.dest: command for command in action._get_subactions()}
        sections = []
        for title, names in GROUPS.items():
            sections.append("".join([f"{title}:\n", *(self._format_action(commands[name]) for name in names)]))
        return "\n".join(sections)


class _Parser(argparse.ArgumentParser):
    """Parser that suggests the nearest name for a misspelled one and accepts options between positional arguments."""

    _mixing = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse a command's options first, so that they may come between INDEX and QUERY, which argparse rejects."""
        if self._subparsers is not None:
            return super().parse_known_args(with_separator(sys.argv[1:] if args is None else args), namespace)
        if self._mixing:
            return super().parse_known_args(args, namespace)
        self._mixing = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._mixing = False

    def error(self, message: str) -> NoReturn:
        """Exit with a message that begins with what is wrong; the usage follows only if arguments are missing."""
        usage = f"\n{self.format_usage()}" if _MISSING in message else "\n"
        self.exit(MISUSED, f"{self.prog}: error: {_plain(message)}{usage}")


def _plain(message: str) -> str:
    """Return argparse's message about a value that is no choice in fewer words, with the most similar choice."""
    wrong = re.fullmatch(r"argument (.*?): invalid choice: '(.*)' \(choose from (.*)\)", message, re.DOTALL)
    if not wrong:
        return message
    name, word, listed = wrong.groups()
    choices = re.findall(r"[^\s',]+", listed)
    hint = terminal.suggest(word, choices) or f"; expected one of {', '.join(choices)}"
    return f"unknown command {word!r}{hint}" if name == "COMMAND" else f"{name} is {word!r}{hint}"


def _parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the arguments; for unknown ones, exit with a message."""
    args, unknown = build_parser().parse_known_args(argv)
    if unknown:
        args.parser.error(_about_unknown(unknown, args.parser))
    return args


def _about_unknown(words: Sequence[str], parser: argparse.ArgumentParser) -> str:
    """Describe the first unknown option and the most similar known one, or unexpected words without options."""
    option = next((word.partition("=")[0] for word in words if word.startswith("-")), None)
    if option is None:
        hint = "; put quotes around a query of several words" if parser.prog.endswith(" search") else ""
        return f"unexpected {'argument' if len(words) == 1 else 'arguments'} {' '.join(words)}{hint}"
    known = [name for action in parser._actions for name in action.option_strings]
    return f"unknown option {option}{terminal.suggest(option, known)}"


def with_separator(argv: Sequence[str]) -> list[str]:
    """Insert "--" after the name of a benchmark, so that everything behind it is the benchmark's own."""
    argv = list(argv)
    if argv[:1] == ["bench"] and len(argv) > 2 and not argv[1].startswith("-") and argv[2] != "--":
        argv.insert(2, "--")
    return argv


def load_command(name: str) -> Command:
    """Import a command's module. This is cheap: commands import heavy packages only when they run."""
    return cast(Command, importlib.import_module(f"lightir.cli.{name}"))


def build_parser() -> argparse.ArgumentParser:
    """Build the parser of `lightir`, with one subparser per command."""
    parser = _Parser(
        prog="lightir",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=_Help,
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
            epilog=f"{EXAMPLES_TITLE}\n{command.EXAMPLES.strip(chr(10))}",
            formatter_class=_Help,
            allow_abbrev=False,
        )
        command.add_arguments(sub)
        sub.add_argument(
            "--traceback", action="store_true", help="print the Python traceback of an error (also: LIGHTIR_DEBUG=1)"
        )
        sub.set_defaults(run=command.run, parser=sub, on_interrupt=getattr(command, "ON_INTERRUPT", ""))
    return parser


def command_parsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return each command's parser by name."""
    action = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return dict(action.choices)


def main(argv: Sequence[str] | None = None, *, interruption: Interruption | None = None) -> int:
    """Run one command and return its exit code: 0, 1 after an error, 2 after misuse, 130 or 143 after a signal.

    Args:
        argv: arguments; None for those of the process.
        interruption: signal that ends the process; None if the caller handles no signals.
    """
    interruption = interruption or Interruption()
    # torch's idle threads spin by default, which slows other processes tenfold. Set this before torch loads.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    args = _parsed(argv)
    interruption.hint = args.on_interrupt
    debug = args.traceback or os.environ.get("LIGHTIR_DEBUG", "") not in ("", "0")
    terminal.log_to_stderr()
    terminal.escape_unencodable_output()
    if getattr(args, "stop_with_stdin", False):
        terminate_with_stdin()
    try:
        with reading_with(chosen_read_options(args)):
            code = args.run(args)
        sys.stdout.flush()
    except BaseException as error:  # noqa: BLE001 (_failed raises what it does not know)
        if isinstance(error, KeyboardInterrupt) or interruption.number is not None:
            return interruption.tell_of(error)
        return _failed(error, args, debug=debug)
    return int(code or 0) if interruption.number is None else interruption.tell()


def _failed(error: BaseException, args: argparse.Namespace, *, debug: bool) -> int:
    """Print an error of a command and return its exit code; raise errors that are bugs."""
    if isinstance(error, BrokenPipeError):
        return _close_stdout()
    if isinstance(error, terminal.Misuse):
        terminal.print_status(f"{args.parser.prog}: error: {error}")
        return MISUSED
    if isinstance(error, LightirError | OSError | ModuleNotFoundError | MemoryError):
        if debug:
            traceback.print_exception(error)
        hint = ", or use --overwrite to replace it" if _may_overwrite(args, error) else ""
        terminal.print_status(f"lightir: error: {_one_line(error)}{hint}")
        return 1
    raise error


def _may_overwrite(args: argparse.Namespace, error: Exception) -> bool:
    return isinstance(error, AlreadyExists) and getattr(args, "overwrite", None) is False


def _one_line(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name and error.name.split(".")[0] in TRAIN_PACKAGES:
        return f"{error.name.split('.')[0]} is required: pip install 'lightir[train]'"
    if isinstance(error, OSError) and not isinstance(error, LightirError) and error.strerror:
        return f"cannot access {error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, MemoryError):
        return f"out of memory: {str(error) or 'free some, or use smaller batches'}"
    return " ".join(str(error).split())


def _close_stdout() -> int:
    """Handle a closed pipe (`| head`) silently: redirect stdout, so that Python does not flush into the pipe."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return BROKEN_PIPE
