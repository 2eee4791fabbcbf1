"""Several processes of one service: this one starts them, starts them again when they end, and stops them.

Each process has a listening socket of its own for the same address (SO_REUSEPORT), among which the system spreads
connections. This process keeps all of them open, so that connections wait while a process is started again. It neither
opens the index nor answers.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

from lightir.errors import LightirError
from lightir.serve.folder_index import FolderOptions
from lightir.serve.listening import address_of, listen_together
from lightir.serve.member import Member
from lightir.serve.serve_options import ServeOptions

START_S = 60.0
"""Maximum time until a process accepts connections."""

STOP_S = 40.0
"""Time that a process has to end by itself when the service stops; uvicorn ends its requests after 30 s."""

FIRST_RETRY_S, LAST_RETRY_S = 0.2, 30.0
"""Time before a process that ended is started again; it doubles with every end soon after a start."""

LASTING_S = 60.0
"""Time after which the end of a process is no failure to start."""

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@dataclass(slots=True)
class _Process:
    """A process and its restarts."""

    member: Member
    sockets: Sequence[socket.socket]
    process: SpawnProcess | None = None
    messages: Connection | None = None
    started_at: float = 0.0
    failures: int = 0
    retry_at: float = 0.0

    def ended(self) -> str:
        """Note the end of the process, and return how it ended."""
        assert self.process is not None
        self.process.join()
        code = self.process.exitcode or 0
        lasted = time.monotonic() - self.started_at > LASTING_S
        self.failures = 0 if lasted else self.failures + 1
        self.retry_at = time.monotonic() + min(LAST_RETRY_S, FIRST_RETRY_S * 2**self.failures)
        self.process = None
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


@dataclass(slots=True)
class Processes:
    """Runs the processes of a service.

    Attributes:
        target: index folder, or folder of files.
        options: options and limits; each process has them.
        folder: how a folder of files is served.
        started: function that is called with the service's address once all processes accept connections.
        say: function that is called with messages.
    """

    target: Path
    options: ServeOptions
    folder: FolderOptions
    started: Callable[[str], None]
    say: Callable[[str], None]
    _all: list[_Process] = field(default_factory=list)

    def run(self) -> None:
        """Run the processes until SIGINT or SIGTERM, and stop them then.

        Raises:
            StorageError: the address cannot be listened on.
            LightirError: a process cannot start; the message is its own.
        """
        with contextlib.ExitStack() as stack:
            home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lightir-")))
            sockets = listen_together(self.options.host, self.options.port, self.options.processes)
            first = Member(home, 0)
            first.prepare()
            changes = socket.socket(socket.AF_UNIX)
            changes.bind(str(first.socket_path))
            changes.listen(socket.SOMAXCONN)
            for opened in (changes, *sockets):
                stack.callback(opened.close)
            self._all = [
                _Process(Member(home, number), [own, changes] if number == 0 else [own])
                for number, own in enumerate(sockets)
            ]
            with _noted_signals() as stopping:
                try:
                    if self._start_all(stopping):
                        self.started(address_of(sockets[0]))
                        self._say_ids()
                        self._keep_running(stopping)
                finally:
                    self._stop(sockets)

    def _start_all(self, stopping: socket.socket) -> bool:
        """Start the first process, which may build the index of a folder, and then the others; False if it stops."""
        for group in (self._all[:1], self._all[1:]):
            for process in group:
                self._start(process)
            for process in group:
                assert process.messages is not None
                ready = wait([process.messages, stopping], START_S)
                if stopping in ready:
                    return False
                kind, text = _received(process.messages) if ready else ("failed", "")
                if kind != "started":
                    raise LightirError(text or f"a process of the service did not start in {START_S:g} s")
        return True

    def _start(self, process: _Process) -> None:
        context = multiprocessing.get_context("spawn")
        process.messages, sender = context.Pipe(duplex=False)
        arguments = (process.member, self.target, self.options, self.folder, process.sockets, sender)
        process.process = context.Process(target=_answer_requests, args=arguments)
        process.process.start()
        sender.close()
        process.started_at = time.monotonic()

    def _say_ids(self) -> None:
        first, *others = [process.process.pid for process in self._all if process.process is not None]
        self.say(f"process {first} commits changes; processes {', '.join(map(str, others))} forward them to it")

    def _keep_running(self, stopping: socket.socket) -> None:
        """Pass messages on and start processes again, until a signal comes."""
        while True:
            running = [process for process in self._all if process.process is not None]
            pipes = {process.messages: process for process in running if process.messages is not None}
            ends = {process.process.sentinel: process for process in running if process.process is not None}
            retries = [process.retry_at for process in self._all if process.process is None]
            timeout = max(0.0, min(retries) - time.monotonic()) if retries else None
            ready = wait([*pipes, *ends, stopping], timeout)
            if stopping in ready:
                return
            for pipe, process in pipes.items():
                if pipe in ready:
                    self._pass_on(process, pipe)
            for end, process in ends.items():
                if end in ready and process.process is not None:
                    self.say(f"process {process.process.pid} {process.ended()} and is started again")
            for process in self._all:
                if process.process is None and process.retry_at <= time.monotonic():
                    self._start(process)

    def _pass_on(self, process: _Process, pipe: Connection) -> None:
        kind, text = _received(pipe)
        if kind == "ended":
            process.messages = None
        elif kind == "started" and process.process is not None:
            self.say(f"process {process.process.pid} accepts connections")
        elif kind != "started":
            self.say(text)

    def _stop(self, sockets: Sequence[socket.socket]) -> None:
        """End the processes: first those that forward changes, then the one that commits them."""
        for listening in sockets:
            listening.close()
        for group in (self._all[1:], self._all[:1]):
            for process in group:
                if process.process is not None:
                    process.process.terminate()
            until = time.monotonic() + STOP_S
            for process in group:
                if process.process is not None:
                    process.process.join(max(0.0, until - time.monotonic()))
                    process.process.kill()
                    process.process.join()


def _received(pipe: Connection) -> tuple[str, str]:
    """Return the kind of a message and its text; the kind is "ended" if its sender has ended."""
    try:
        kind, text = pipe.recv()
    except (EOFError, OSError):
        return "ended", ""
    return kind, text


@contextlib.contextmanager
def _noted_signals() -> Iterator[socket.socket]:
    """Yield a socket that can be read after a signal to stop, which is raised again at the end."""
    reads, writes = socket.socketpair()
    received: list[int] = []
    writes.setblocking(False)

    def note(number: int, _: Any) -> None:
        received.append(number)
        with contextlib.suppress(BlockingIOError):
            writes.send(b"x")

    wakeup = signal.set_wakeup_fd(-1)
    former = {number: signal.signal(number, note) for number in STOP_SIGNALS}
    try:
        with reads, writes:
            yield reads
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup)
        if received:
            signal.raise_signal(received[0])


def _answer_requests(
    member: Member,
    target: Path,
    options: ServeOptions,
    folder: FolderOptions,
    sockets: Sequence[socket.socket],
    messages: Connection,
) -> None:
    """Answer requests in a process of its own until a signal comes, or until the process that started it ends."""
    os.setpgid(0, 0)  # Ctrl-C reaches the process that started this one, which stops all in order
    signal.signal(signal.SIGTERM, _end)
    threading.Thread(target=_end_with_parent, name="lightir-parent", daemon=True).start()
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(member.metrics_folder)  # read when its client is imported
    sending = threading.Lock()

    def tell(kind: str, text: str) -> None:
        with sending, contextlib.suppress(OSError):  # nobody listens any more
            messages.send((kind, text))

    try:
        from lightir.serve.server import serve_member

        serve_member(
            member,
            target,
            options,
            folder=folder,
            sockets=sockets,
            started=lambda: tell("started", ""),
            say=lambda text: tell("say", text),
        )
    except LightirError as error:
        tell("failed", str(error))
        raise SystemExit(1) from None
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it ends anyway, and would print a traceback


def _end(number: int, _: Any) -> None:
    raise SystemExit(0)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)
