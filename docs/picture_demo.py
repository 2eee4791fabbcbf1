"""Writes docs/demo.svg, what `lightir demo` shows on a terminal once ./lightir-demo is there: picture_demo.py"""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

COLUMNS = 112
QUESTIONS = ("run a function every few seconds in the background", "how do I compare two versions of a text")
WEB_FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)  # a picture fetches nothing; viewers have a monospaced font


def main() -> None:
    """Run the demo in a terminal of its own and draw what it printed."""
    asked = [part for question in QUESTIONS for part in ("--question", question)]
    shown = printed([sys.executable, "-m", "lightir", "demo", *asked])
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi("$ make demo\n" + shown))
    svg = console.export_svg(title="lightir demo", theme=MONOKAI, unique_id="demo")
    Path(__file__).with_name("demo.svg").write_text(WEB_FONTS.sub("", svg), encoding="utf-8")


def printed(command: list[str]) -> str:
    """Return the output of a command on a terminal of COLUMNS columns.

    Raises:
        CalledProcessError: it failed.
    """
    ours, its = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}
    with subprocess.Popen(command, stdout=its, stderr=subprocess.DEVNULL, env=environment) as process:
        os.close(its)
        parts = []
        while part := _read(ours):
            parts.append(part)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return b"".join(parts).decode().replace("\r\n", "\n")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65_536)
    except OSError:  # the other side is closed
        return b""


if __name__ == "__main__":
    main()
