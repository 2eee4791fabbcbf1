"""Commands that run beside a service of a folder: one reads its files into the index, one encodes them."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from lightir.errors import LightirError
from lightir.lines import ReadOptions
from lightir.pending import failures_of
from lightir.pending.encoder_folder import encoder_folder
from lightir.pending.queue_file import QUEUE_FOLDER
from lightir.quantities import counted
from lightir.runtime.loading import require_runtime
from lightir.serve.folder_index import FolderOptions
from lightir.serve.service import SearchService

LOCK_FILE = "follower.lock"
LOOK_S = 1.0
"""Time between looks at the commands and at the number of pending documents."""

FIRST_RETRY_S, LAST_RETRY_S = 5.0, 300.0
"""Time before a command that failed is started again; it doubles with every failure in a row."""

STOP_S = 10.0
"""Time that a command has to commit what it has encoded when the service stops."""


class FolderFollower:
    """Keeps the index of a folder in step with its files, and encodes it in the order that searches ask for.

    It runs `lightir add --mirror` or `lightir watch`, and `lightir worker` while documents are pending. As processes of
    their own they leave the interpreter to searches, and a file that breaks a reader breaks no service. They end when
    this process ends, however it ends: their stdin ends with it. Of several services of one folder, one runs them.
    """

    def __init__(
        self, folder: Path, service: SearchService, options: FolderOptions, say: Callable[[str], None]
    ) -> None:
        """Set what is followed.

        Args:
            folder: folder of files.
            service: service of its index.
            options: whether to watch and encode, and how files are read.
            say: function that is called with the messages of the commands.
        """
        index = str(service.folder)
        reading = [str(folder), *reading_arguments(options.reading), *["--yes"] * options.delete_any]
        ends = ["--json", "--stop-with-stdin"]
        reads = ["watch"] if options.watch else ["add", "--mirror"]
        model = [f"--model={options.model}"] if options.model else []
        self._reader = _Command([*reads, *ends, index, *reading], say)
        self._worker = _Command(["worker", "--once", *model, *ends, index], say)
        self._folder, self._service, self._options, self._say = folder, service, options, say
        self._lock: IO[bytes] | None = None
        self._waits = False
        self._said = ""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lightir-follower", daemon=True)

    def start(self) -> None:
        """Start following."""
        self._thread.start()

    def close(self) -> None:
        """Stop the commands and wait for them. What they have encoded is kept."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        with ExitStack() as stack:
            stack.callback(self._release)
            stack.callback(self._stop)
            encodes = self._options.encode and self._can_encode()
            while not self._stopping.is_set():
                try:
                    if self._is_follower():
                        self._look(encodes)
                except (LightirError, OSError) as error:
                    self._say(f"{self._folder}: {error}")
                    return
                self._stopping.wait(LOOK_S)

    def _look(self, encodes: bool) -> None:
        self._reader.poll()
        self._worker.poll()
        if self._options.watch or not self._reader.succeeded:
            self._reader.keep_running()
        if self._worker.is_running:
            return
        self._service.refresh()
        view = self._service.index.view
        n_left = view.n_pending - len(failures_of(view))
        if encodes and n_left:
            self._worker.keep_running()
        elif self._reader.succeeded or self._options.watch:
            self._tell_state(n_left)

    def _tell_state(self, n_pending: int) -> None:
        """Say how many documents there are, when that has changed."""
        n_documents = len(self._service.index)
        left = f"; {n_pending:,} documents and passages are not encoded" * bool(n_pending)
        state = f"{self._folder}: {counted(n_documents, 'document')}{left}"
        if state != self._said:
            self._said = state
            self._say(state)

    def _stop(self) -> None:
        self._reader.ask_to_end()
        self._worker.ask_to_end()
        until = time.monotonic() + STOP_S
        self._reader.end(until)
        self._worker.end(until)

    def _is_follower(self) -> bool:
        """Whether this process runs the commands: it has the lock."""
        if self._lock is not None:
            return True
        path = self._service.folder / QUEUE_FOLDER / LOCK_FILE
        path.parent.mkdir(exist_ok=True)
        file = path.open("ab")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            if not self._waits:
                self._waits = True
                self._say(f"{self._folder}: another process reads and encodes its files; this one serves them")
            return False
        self._lock = file
        return True

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.close()

    def _can_encode(self) -> bool:
        """Whether a worker can run here; say why not."""
        if self._service.index.contract is None:
            self._say(f"{self._folder}: searched by BM25 alone, since no model is installed; name one with --model")
            return False
        try:
            require_runtime(encoder_folder(self._service.index, self._options.model))
        except LightirError as error:
            self._say(f"{self._folder}: its files are not encoded: {error}")
            return False
        return True


def reading_arguments(options: ReadOptions) -> list[str]:
    """Return the arguments of a command that reads files with some options."""
    limits = {"line": options.max_line_bytes, "document": options.max_document_bytes, "field": options.max_field_bytes}
    return [
        *(f"--exclude={pattern}" for pattern in options.exclude),
        *["--follow-links"] * options.follow_links,
        *["--no-ignore"] * (not options.ignore_files),
        "--limits=" + ",".join(f"{part}={size}" for part, size in limits.items()),
    ]


class _Command:
    """A command of lightir in another process, started again after a failure."""

    def __init__(self, arguments: Sequence[str], say: Callable[[str], None]) -> None:
        self.succeeded = False
        """Whether it has ended without an error since its last start."""
        self._arguments, self._say = list(arguments), say
        self._process: subprocess.Popen[str] | None = None
        self._failures = 0
        self._not_before = 0.0
        self._said = ""
        self._asked = False

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def keep_running(self) -> None:
        """Start it, unless it runs or has just failed."""
        if self._process is not None or time.monotonic() < self._not_before:
            return
        self.succeeded = False
        self._process = subprocess.Popen(
            [sys.executable, "-m", "lightir", *self._arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C reaches the service alone, which then stops its commands
        )
        threading.Thread(target=self._pass_on, args=(self._process.stderr,), daemon=True).start()

    def _pass_on(self, messages: IO[str]) -> None:
        with messages:
            for message in messages:
                if message != self._said and not self._asked:
                    self._say(message.rstrip())
                self._said = message

    def poll(self) -> None:
        """Note whether it has ended."""
        if self._process is None or self._process.poll() is None:
            return
        self.succeeded = self._process.returncode == 0
        self._failures = 0 if self.succeeded else self._failures + 1
        delay = min(FIRST_RETRY_S * 2 ** (self._failures - 1), LAST_RETRY_S) if self._failures else 0.0
        self._not_before = time.monotonic() + delay
        self._close()

    def ask_to_end(self) -> None:
        """Ask it to end after its current documents; its messages are not passed on any more."""
        self._asked = True
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()

    def end(self, until: float) -> None:
        """Wait for its end until a time, and kill it then."""
        if self._process is None:
            return
        try:
            self._process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._close()

    def _close(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
        self._process = None
