"""Color, shortening, durations and sizes."""

from __future__ import annotations

import io
import logging
import re
import sys
from pathlib import Path

import pytest

from lightir.cli import terminal


class Terminal(io.StringIO):
    """Stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def test_color_requires_a_terminal_that_supports_it(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert terminal.supports_color(Terminal())
    assert not terminal.supports_color(io.StringIO())
    monkeypatch.setenv("TERM", "dumb")
    assert not terminal.supports_color(Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    assert not terminal.supports_color(Terminal())


def test_whole_matched_words_are_highlighted(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", Terminal())
    shown = terminal.highlight("A temporary (Directory) temporarys 我爱北京", ["temporary", "Directory", "北京"], "1")
    assert shown == "A \033[1mtemporary\033[0m (\033[1mDirectory\033[0m) temporarys 我爱\033[1m北京\033[0m"
    assert terminal.highlight("a", [], "1") == "a"


@pytest.mark.parametrize("columns", [1, 2, 5, 6, 7])
def test_shortened_text_never_exceeds_its_columns(columns):
    for text in ("", "a", "some words", "abcdef"):
        assert len(terminal.shorten(text, columns)) <= columns
        assert len(terminal.shorten_front(text, columns)) <= columns
    assert terminal.shorten_front("threading.Timer", 6) == "…Timer"


def test_control_characters_of_a_document_do_not_reach_the_terminal():
    text = "a\x1b[2J b\x07\x9b1m\x00"
    shown = [
        terminal.shorten(text, 40),
        terminal.shorten_front(text, 40),
        terminal.wrap(text),
        terminal.printable(text),
    ]
    assert set(shown) == {"a\ufffd[2J b\ufffd\ufffd1m\ufffd"}


def test_messages_of_commands_count_with_a_singular_where_there_is_one():
    sources = Path(terminal.__file__).parent.glob("*.py")
    counts = [count for path in sources for count in re.findall(r":,\} \w+s\b(?! and)", path.read_text("utf-8"))]
    assert counts == []  # lightir.quantities.counted


def test_log_messages_are_printed_once_to_stderr(capsys):
    terminal.log_to_stderr()
    terminal.log_to_stderr()
    logging.getLogger("lightir.train.stages.contrastive").info("step %d: %.2f", 3, 0.5)
    logging.getLogger("lightir.train.stages.contrastive").debug("not this")
    logging.getLogger("elsewhere").info("nor this")
    captured = capsys.readouterr()
    assert captured.err == "step 3: 0.50\n"
    assert captured.out == ""


def test_characters_of_writing_direction_are_shown():
    assert terminal.printable("safe\u202eexe.txt\u2066") == "safe\\u202eexe.txt\\u2066"


@pytest.mark.parametrize("columns", [20, 21, 33])
def test_wide_and_combining_characters_count_as_the_columns_that_they_take(monkeypatch, columns):
    monkeypatch.setattr(terminal, "output_width", lambda: columns)
    assert [terminal.display_width(text) for text in ("ab", "北京", "e\u0301", "ｱ", "")] == [2, 4, 1, 1, 0]
    for text in ("我爱北京天安门" * 9, "one 北京 two " * 9, "e\u0301" * 70, "no blanks" * 20):
        for line in terminal.wrap(text).split("\n"):
            assert columns - 12 <= terminal.display_width(line) <= columns
        for shown in (terminal.shorten(text, columns), terminal.shorten_front(text, columns)):
            assert columns - 4 <= terminal.display_width(shown) <= columns
    table = terminal.format_table([["name", "n"], ["北京", "1"], ["ab", "20"]])
    assert {terminal.display_width(line) for line in table.split("\n")} == {10}


def test_a_wrapped_text_has_two_lines_and_says_that_it_goes_on(monkeypatch):
    monkeypatch.setattr(terminal, "output_width", lambda: 12)
    assert terminal.wrap("some short words", indent="  ") == "  some short\n  words"
    assert terminal.wrap("some short words that go on") == "some short\nwords that …"
    assert terminal.wrap("") == ""
