"""How all commands print: talk on stderr, data on stdout, colour where a person looks."""

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
    """Arguments that contradict each other, or that would do nothing; the exit code is 2, as for unknown ones."""


def say(text: str = "") -> None:
    """One line of talk."""
    print(text, file=sys.stderr, flush=True)


class LogTalk(logging.Handler):
    """What the library logs, as talk: the message alone, above whatever progress bar is shown."""

    def emit(self, record: logging.LogRecord) -> None:
        """One message."""
        tqdm.write(self.format(record), file=sys.stderr)


def show_log() -> None:
    """From now on what lightir logs, INFO and above, is talk on stderr; once, however often it is called."""
    logger = logging.getLogger("lightir")
    if not any(isinstance(handler, LogTalk) for handler in logger.handlers):
        logger.addHandler(LogTalk())
    logger.setLevel(logging.INFO)


def print_json(value: Any) -> None:
    """One JSON document, indented; what JSON cannot say (NaN) is refused."""
    print(json.dumps(value, ensure_ascii=not _is_utf8(sys.stdout), indent=2, allow_nan=False))


def print_json_line(value: Any) -> None:
    """One JSON value on one line, for results that stream."""
    print(json.dumps(value, ensure_ascii=not _is_utf8(sys.stdout), allow_nan=False))


def escape_what_cannot_be_written() -> None:
    """From now on stdout escapes what its encoding lacks (\\u2026), as stderr does anyway, in place of an error."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _is_utf8(stream: TextIO) -> bool:
    return codecs.lookup(stream.encoding or "utf-8").name == "utf-8"


def visible(text: str) -> str:
    """The text with U+FFFD for control characters, for a document's must not command the terminal."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def width() -> int:
    """Columns to write in."""
    return min(shutil.get_terminal_size().columns, MAX_WIDTH)


def has_colour(stream: TextIO) -> bool:
    """Whether escape codes are welcome: a terminal, and neither NO_COLOR (https://no-color.org) nor TERM=dumb."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(text: str, *codes: str) -> str:
    """The text in a style where stdout shows colour, else as it is."""
    if not text or not has_colour(sys.stdout):
        return text
    return f"\033[{';'.join(codes)}m{text}\033[0m"


def highlight(text: str, words: Iterable[str], *codes: str) -> str:
    """The text with each of the words painted where it stands whole; words of scripts without blanks anywhere."""
    wanted = sorted(set(words), key=len, reverse=True)
    if not wanted or not has_colour(sys.stdout):
        return text
    parts = [re.escape(word) if _UNSPACED.search(word) else rf"(?<!\w){re.escape(word)}(?!\w)" for word in wanted]
    return re.sub("|".join(parts), lambda match: paint(match.group(), *codes), text)


def meant(word: str, known: Iterable[str]) -> str:
    """A hint at the known word that is nearest, or nothing; an option's dashes make it no more like another's."""
    names = {each.lstrip("-"): each for each in known}
    near = difflib.get_close_matches(word.lstrip("-"), names, n=1)
    return f"; did you mean {names[near[0]]}?" if near else ""


def shorten(text: str, columns: int) -> str:
    """One line of at most so many characters, cut with an ellipsis."""
    line = visible(" ".join(text.split()))
    return line if len(line) <= columns else f"{line[: max(columns - 1, 0)].rstrip()}…"


def shorten_front(text: str, columns: int) -> str:
    """At most so many characters, cut in front: of a dotted name the end says most."""
    line = visible(text)
    return line if len(line) <= columns else f"…{line[len(line) - columns + 1 :]}"


def wrap(text: str, *, indent: str = "") -> str:
    """The text in at most two indented lines of the terminal's width."""
    filled = textwrap.wrap(visible(" ".join(text.split())), width() - len(indent), max_lines=2, placeholder=" …")
    return "\n".join(f"{indent}{line}" for line in filled)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows as indented columns: the first to the left, the others to the right; the first row is the head."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [cell.rjust(size) for cell, size in zip(row, widths, strict=True)]
        cells[0] = row[0].ljust(widths[0])
        lines.append(f"  {'  '.join(cells)}".rstrip())
    return "\n".join(lines)


def duration(seconds: float) -> str:
    """A time as a person says it: "0.8 ms", "3.2 s", "4 min 05 s"."""
    if seconds < 1:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s"


def size(n_bytes: float) -> str:
    """A number of bytes as a person says it: "512 B", "1.4 MB"."""
    for unit in ("B", "kB", "MB"):
        if n_bytes < 1000:
            return f"{n_bytes:.0f} {unit}" if unit == "B" else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.1f} GB"
