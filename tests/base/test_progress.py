"""Progress of long tasks: bars on a terminal, messages elsewhere."""

from __future__ import annotations

import io
import logging
import os
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightir import progress
from lightir.progress import BYTE, Progress, followed, write_line


class Terminal(io.StringIO):
    """Stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


class Clock:
    """Clock that moves only when a test moves it."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch):
    """Replace the module's clock."""
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def test_without_a_terminal_one_message_every_ten_seconds_and_one_at_the_end(clock, caplog):
    caplog.set_level(logging.INFO, "lightir")
    with Progress("encode", unit="document", total=50) as shown:
        for _ in range(50):
            clock.now += 0.5
            shown.update()
    assert caplog.messages == [
        "encode: 20 of 50 documents, 10.0 s, about 15.0 s left",
        "encode: 40 of 50 documents, 20.0 s, about 5.0 s left",
        "encode: 50 documents, 25.0 s",
    ]


def test_a_short_task_logs_nothing_and_a_hidden_one_never_does(clock, caplog):
    caplog.set_level(logging.INFO, "lightir")
    with Progress("add", unit="document") as shown:
        clock.now += 9
        shown.update()
    with Progress("add", unit="document", shown=False) as shown:
        clock.now += 90
        shown.update()
    assert caplog.messages == []


def test_a_failed_task_says_how_far_it_came(clock, caplog):
    caplog.set_level(logging.INFO, "lightir")

    def fail() -> None:
        with Progress("add", unit="document", total=9) as shown:
            clock.now += 10
            shown.update(2)
            shown.update()
            raise ValueError("bad")

    with pytest.raises(ValueError, match="bad"):
        fail()
    assert caplog.messages[-1] == "add: 3 of 9 documents, 10.0 s, about 20.0 s left"


def test_messages_have_figures_and_readable_bytes(clock, caplog):
    caplog.set_level(logging.INFO, "lightir")
    with Progress("train", unit="step", total=3, done=1) as shown:
        clock.now += 12
        shown.note(loss="0.5")
        shown.update()
    with Progress("compact", unit=BYTE) as shown:
        clock.now += 12
        shown.update(1_500_000)
    assert caplog.messages[0] == "train: 2 of 3 steps, 12.0 s, about 12.0 s left, loss 0.5"
    assert caplog.messages[-1] == "compact: 1.5 MB, 12.0 s"


@given(
    waits=st.lists(st.sampled_from([0.0, 1.0, 4.0, 10.0, 25.0]), max_size=20), known=st.booleans(), after=st.booleans()
)
def test_messages_are_never_closer_than_the_interval(waits, known, after):
    """The slow twin: a message is due at the first step that is 10 s after the last message or the start."""
    due, last, now = [], 0.0, 0.0
    for number, wait in enumerate(waits, 1):
        now += wait
        if now - last >= 10:
            due.append(number)
            last = now
    clock, messages = Clock(), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(progress, "time", clock)
        patch.setattr(progress.logger, "info", lambda _, text: messages.append(int(text.split()[1])))
        with Progress("t", unit="item", total=len(waits) + after if known else None) as shown:
            for wait in waits:
                clock.now += wait
                shown.update()
    assert messages == due + [len(waits)] * bool(due)


def test_followed_items_are_all_yielded_and_counted(clock, caplog):
    caplog.set_level(logging.INFO, "lightir")
    seen = []
    for item in followed(iter("abc"), "read", unit="line", total=3):
        seen.append(item)
        clock.now += 10
    assert seen == ["a", "b", "c"]
    assert caplog.messages[0].startswith("read: 1 of 3 lines")
    assert caplog.messages[-1] == "read: 3 lines, 30.0 s"


def test_a_terminal_gets_a_bar_and_no_messages(monkeypatch, caplog):
    caplog.set_level(logging.INFO, "lightir")
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr(progress, "MESSAGE_EVERY_S", 0.0)
    with Progress("encode", unit="document", total=4, done=1) as shown:
        shown.note(loss="0.5")
        shown.update(3)
        write_line("a warning")
    printed = sys.stderr.getvalue()
    assert "encode: 100%" in printed
    assert "4/4" in printed
    assert "documents/s" in printed
    assert "loss=0.5" in printed
    assert "a warning\n" in printed
    assert caplog.messages == []


def test_a_child_forked_while_the_lock_is_held_can_show_progress(monkeypatch):
    """tqdm's own lock would stay locked in the child for good."""
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with progress._Bar.get_lock():
            held.set()
            release.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    pid = os.fork()
    if not pid:
        code = 1
        try:
            sys.stderr = Terminal()
            with Progress("child", unit="item", total=1) as shown:
                shown.update()
            code = 0
        finally:
            os._exit(code)
    for _ in range(600):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            break
        threading.Event().wait(0.1)
    else:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        status = -1
    release.set()
    holder.join()
    assert status == 0


def test_no_lock_is_shared_between_processes():
    assert isinstance(progress._Bar.get_lock(), type(threading.RLock()))
    assert not progress._Bar.monitor_interval
