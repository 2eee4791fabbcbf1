"""Output of all commands: data on stdout, messages on stderr, color on terminals."""

from __future__ import annotations

import codecs
import difflib
import io
import json
import logging
import os
import re
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

from lightir.errors import InvalidInput
from lightir.progress import write_line

MAX_WIDTH = 110
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
_DIRECTION = re.compile("[\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")  # reorder or break the text that follows
_UNSPACED = re.compile("[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U000323af]")
BOLD, DIM, CYAN, YELLOW = "1", "2", "36", "33"


class Misuse(InvalidInput):
    """Arguments that contradict each other or have no effect; the exit code is 2."""


def print_status(text: str = "") -> None:
    """Print one message to stderr."""
    print(text, file=sys.stderr, flush=True)


class StderrHandler(logging.Handler):
    """Prints log messages to stderr, without disturbing a progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one message."""
        write_line(self.format(record))


def log_to_stderr() -> None:
    """Print what lightir logs, INFO and above, to stderr. Repeated calls have no effect."""
    logger = logging.getLogger("lightir")
    if not any(isinstance(handler, StderrHandler) for handler in logger.handlers):
        logger.addHandler(StderrHandler())
    logger.setLevel(logging.INFO)


def print_json(value: Any) -> None:
    """Print one indented JSON document. NaN and infinity raise ValueError."""
    print(json.dumps(value, ensure_ascii=not _is_utf8(sys.stdout), indent=2, allow_nan=False))


def print_json_line(value: Any) -> None:
    """Print one JSON value on one line, for results that stream."""
    print(json.dumps(value, ensure_ascii=not _is_utf8(sys.stdout), allow_nan=False))


def escape_unencodable_output() -> None:
    """Make stdout escape characters that its encoding lacks (\\u2026) instead of raising an error, as stderr does."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _is_utf8(stream: TextIO) -> bool:
    return codecs.lookup(stream.encoding or "utf-8").name == "utf-8"


def printable(text: str) -> str:
    """Replace control characters by U+FFFD, and those of writing direction by escapes such as \\u202e.

    So a document's text can neither control the terminal nor reorder what is printed.
    """
    shown = _DIRECTION.sub(lambda match: f"\\u{ord(match.group()):04x}", text)
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", shown)


def display_width(text: str) -> int:
    """Return the number of terminal columns of a text: 2 for wide characters, 0 for combining ones."""
    return sum(map(_columns, text))


def _columns(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _n_fitting(text: str, columns: int) -> int:
    """Return how many of the first characters fit into the columns."""
    used = 0
    for position, character in enumerate(text):
        used += _columns(character)
        if used > columns:
            return position
    return len(text)


def output_width() -> int:
    """Return the number of columns to print."""
    return min(shutil.get_terminal_size().columns, MAX_WIDTH)


def supports_color(stream: TextIO) -> bool:
    """Return whether to print color: on a terminal, unless NO_COLOR (https://no-color.org) or TERM=dumb is set."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(text: str, *codes: str) -> str:
    """Style a text if stdout supports color."""
    if not text or not supports_color(sys.stdout):
        return text
    return f"\033[{';'.join(codes)}m{text}\033[0m"


def highlight(text: str, words: Iterable[str], *codes: str) -> str:
    """Style whole occurrences of some words; in scripts without blanks, every occurrence."""
    wanted = sorted(set(words), key=len, reverse=True)
    if not wanted or not supports_color(sys.stdout):
        return text
    parts = [re.escape(word) if _UNSPACED.search(word) else rf"(?<!\w){re.escape(word)}(?!\w)" for word in wanted]
    return re.sub("|".join(parts), lambda match: paint(match.group(), *codes), text)


def suggest(word: str, known: Iterable[str]) -> str:
    """Return "; did you mean NAME?" for the most similar known name, or "". Leading dashes are ignored."""
    names = {name.lstrip("-"): name for name in known}
    near = difflib.get_close_matches(word.lstrip("-"), names, n=1)
    return f"; did you mean {names[near[0]]}?" if near else ""


def shorten(text: str, columns: int) -> str:
    """Shorten a text to one line of at most `columns` columns, ending in an ellipsis if cut."""
    line = printable(" ".join(text.split()))
    return line if display_width(line) <= columns else f"{line[: _n_fitting(line, columns - 1)].rstrip()}…"


def shorten_front(text: str, columns: int) -> str:
    """Shorten a text to at most `columns` columns, keeping its end, which identifies a dotted name."""
    line = printable(text)
    return line if display_width(line) <= columns else f"…{line[len(line) - _n_fitting(line[::-1], columns - 1) :]}"


def wrap(text: str, *, indent: str = "") -> str:
    """Wrap a text to at most two indented lines."""
    columns = output_width() - len(indent)
    first, rest = _broken(printable(" ".join(text.split())), columns)
    second, more = _broken(rest, columns)
    if more:
        second = f"{_broken(rest, columns - 2)[0]} …"
    return "\n".join(f"{indent}{line}" for line in (first, second) if line)


def _broken(line: str, columns: int) -> tuple[str, str]:
    """Break a line that is too wide, at a blank if there is one; the second part is "" if the line fits."""
    n_fitting = _n_fitting(line, columns)
    if n_fitting == len(line):
        return line, ""
    blank = line.rfind(" ", 0, n_fitting + 1)
    end = blank if blank > 0 else max(n_fitting, 1)
    return line[:end], line[end:].lstrip()


def format_table(rows: Sequence[Sequence[str]]) -> str:
    """Format rows as indented columns, the first left-aligned and the others right-aligned; row 0 is the header."""
    widths = [max(display_width(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        blanks = [" " * (size - display_width(cell)) for cell, size in zip(row, widths, strict=True)]
        cells = [blank + cell for cell, blank in zip(row, blanks, strict=True)]
        cells[0] = row[0] + blanks[0]
        lines.append(f"  {'  '.join(cells)}".rstrip())
    return "\n".join(lines)
