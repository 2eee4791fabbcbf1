"""Ctrl-C and SIGTERM end every command cleanly: one line on stderr, exit code 130 or 143, nothing half-written.

The first signal raises KeyboardInterrupt or Terminated, which closes what is open. While a module is imported, the
process ends at once instead, because a package may swallow an exception there or abort. It also ends at once on a
second signal, and if it has not ended by itself in GRACE_S, for example in a long call of compiled code. What lightir
stores survives such an end; unfinished files are removed and child processes terminated.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType
    from typing import Any, NoReturn

EXIT_CODES: dict[int, int] = {signal.SIGINT: 130, signal.SIGTERM: 143}
WORDS: dict[int, str] = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}

GRACE_S = 5.0
"""Seconds that a command has to end after a signal."""

ONE_PRESS_S = 1.0
"""Seconds within which several signals count as one: `timeout` and torchrun send them twice."""


class Interruption:
    """The signal that ends this process, if there is one.

    Attributes:
        number: first signal received; None without one.
        hint: text about resuming that follows the message; "" for none.
    """

    def __init__(self) -> None:
        """Start without a signal."""
        self.number: int | None = None
        self.hint = ""
        self._first = 0.0
        self._told = False
        self._finished = False
        self._previous: dict[int, Any] = {}
        self._pipe: tuple[int, int] | None = None

    def install(self) -> None:
        """Handle the signals that are not ignored."""
        for number in EXIT_CODES:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self.handle)

    def watch(self) -> None:
        """Start the thread that ends the process if the main thread does not in GRACE_S."""
        import threading

        self._pipe = os.pipe()
        os.set_blocking(self._pipe[1], False)
        signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        threading.Thread(target=self._wait, args=(self._pipe[0],), name="interruption", daemon=True).start()

    def restore(self) -> None:
        """Restore the previous handlers and stop the thread."""
        if self._pipe is not None:
            signal.set_wakeup_fd(-1)
            os.close(self._pipe[1])
            self._pipe = None
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Raise an exception on a first signal; end the process on a second one, or where the exception may be lost."""
        again = self.number is not None
        if again and time.monotonic() - self._first < ONE_PRESS_S and not self._finished:
            return
        if not again:
            self.number, self._first = number, time.monotonic()
        if again or self._finished or is_importing(frame):
            self.end()
        from lightir.errors import Terminated

        raise Terminated if number == signal.SIGTERM else KeyboardInterrupt

    def finish(self) -> None:
        """Make a later signal end the process at once, while Python shuts down."""
        self._finished = True

    def tell(self) -> int:
        """Print why the command ends, once, and return its exit code."""
        number = signal.Signals(signal.SIGINT if self.number is None else self.number)
        if not self._told:
            self._told = True
            message = f"lightir: {WORDS[number]}{'; ' if self.hint else ''}{self.hint}\n"
            with contextlib.suppress(OSError):  # nobody reads the message
                os.write(2, message.encode())  # sys.stderr may be locked by the thread that was interrupted
        return EXIT_CODES[number]

    def tell_of(self, error: BaseException) -> int:
        """Return `tell()` for an exception that a command raised, which may be all that says which signal came."""
        if self.number is None:
            from lightir.errors import Terminated

            self.number = signal.SIGTERM if isinstance(error, Terminated) else signal.SIGINT
        return self.tell()

    def end(self) -> NoReturn:
        """End the process at once: remove unfinished files, terminate child processes."""
        code = self.tell()
        try:
            files = sys.modules.get("lightir.files")
            if files is not None and hasattr(files, "remove_temporary"):
                files.remove_temporary()
            for child in children():
                os.kill(child, signal.SIGTERM)
        finally:
            os._exit(code)

    def _wait(self, pipe: int) -> None:
        """Wait for a signal that `handle` receives, then for the process to end."""
        while received := os.read(pipe, 1):
            number = received[0]
            if number in EXIT_CODES and signal.getsignal(number) == self.handle:
                time.sleep(GRACE_S)
                if self._pipe is not None:
                    if self.number is None:
                        self.number = number
                    self.end()
        os.close(pipe)


def terminate_with_stdin() -> None:
    """Start a thread that sends this process SIGTERM when its stdin ends."""
    import threading

    def wait() -> None:
        with contextlib.suppress(OSError):
            while os.read(0, 4096):
                pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="stdin", daemon=True).start()


def is_importing(frame: FrameType | None) -> bool:
    """Return whether a module is being imported in a frame or in its callers."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def children() -> list[int]:
    """Return the ids of this process's child processes; none if the system does not tell."""
    pids: list[int] = []
    try:
        for task in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{task}/children") as file:
                pids += [int(pid) for pid in file.read().split()]
    except OSError:
        return pids
    return pids


def run(argv: Sequence[str] | None) -> int:
    """Run one command; see `lightir.cli.main`."""
    interruption = Interruption()
    lasting = argv is None
    try:
        interruption.install()
        from lightir.cli import app

        interruption.watch()
        if lasting:
            _end_on_lost_interrupts(interruption)
        return app.main(argv, interruption=interruption)
    except KeyboardInterrupt as error:
        return interruption.tell_of(error)
    finally:
        if lasting:
            interruption.finish()
        else:
            interruption.restore()


def _end_on_lost_interrupts(interruption: Interruption) -> None:
    """End the process if the exception of a signal is lost, as in a finalizer; Python would print it and go on."""
    previous = sys.unraisablehook

    def report(unraisable: Any) -> None:
        if interruption.number is not None and issubclass(unraisable.exc_type, KeyboardInterrupt):
            interruption.end()
        previous(unraisable)

    sys.unraisablehook = report
