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
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

from tqdm import tqdm

from lightir.errors import InvalidInput

MAX_WIDTH = 110
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
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
        tqdm.write(self.format(record), file=sys.stderr)


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
    """Replace control characters by U+FFFD, so that a document's text cannot control the terminal."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


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
    """Shorten a text to one line of at most `columns` characters, ending in an ellipsis if cut."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= columns else f"{line[: max(columns - 1, 0)].rstrip()}…"


def shorten_front(text: str, columns: int) -> str:
    """Shorten a text to at most `columns` characters, keeping its end, which identifies a dotted name."""
    line = printable(text)
    return line if len(line) <= columns else f"…{line[len(line) - columns + 1 :]}"


def wrap(text: str, *, indent: str = "") -> str:
    """Wrap a text to at most two indented lines."""
    filled = textwrap.wrap(
        printable(" ".join(text.split())), output_width() - len(indent), max_lines=2, placeholder=" …"
    )
    return "\n".join(f"{indent}{line}" for line in filled)


def format_table(rows: Sequence[Sequence[str]]) -> str:
    """Format rows as indented columns, the first left-aligned and the others right-aligned; row 0 is the header."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [cell.rjust(size) for cell, size in zip(row, widths, strict=True)]
        cells[0] = row[0].ljust(widths[0])
        lines.append(f"  {'  '.join(cells)}".rstrip())
    return "\n".join(lines)


def format_duration(seconds: float) -> str:
    """Format a duration: "0.8 ms", "3.2 s", "4 min 05 s"."""
    if seconds < 1:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s"


def format_size(n_bytes: float) -> str:
    """Format a number of bytes: "512 B", "1.4 MB"."""
    for unit in ("B", "kB", "MB"):
        if n_bytes < 1000:
            return f"{n_bytes:.0f} {unit}" if unit == "B" else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.1f} GB"
