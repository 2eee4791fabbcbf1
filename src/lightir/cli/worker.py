"""Encode an index's pending documents while others search and change it.

The documents that most queries list among their best are encoded first, then the oldest. Several workers may share an
index: each document is encoded by one of them. If a document cannot be encoded, `lightir info` shows the error, and the
document stays searchable by BM25.

Each batch is committed as soon as it is encoded. Ctrl-C or SIGTERM stops the worker after the current documents, with
exit code 130 or 143; a second one stops it at once.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import signal
import threading
import time
from types import FrameType
from typing import TYPE_CHECKING, Any

from lightir.cli.arguments import (
    MODEL_HELP,
    add_device,
    add_encoding,
    add_index,
    add_json,
    add_stop_with_stdin,
    positive,
)
from lightir.cli.info import print_longer
from lightir.cli.interruption import EXIT_CODES, ONE_PRESS_S
from lightir.cli.terminal import print_json, print_status, printable
from lightir.quantities import counted

if TYPE_CHECKING:
    from lightir.pending.worker_loop import WorkReport

HELP = "encode pending documents in the background (needs lightir[encode] or lightir[train])"
EXAMPLES = """
  lightir worker index
  lightir worker index --once --model MODEL
  lightir worker index --once --retry-failed
"""
ON_INTERRUPT = "committed vectors are kept: repeat the command to continue"
ERRORS_SHOWN = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_index(parser)
    parser.add_argument(
        "--model", metavar="MODEL", help=f"{MODEL_HELP} (default: the installed model that the index was built for)"
    )
    parser.add_argument(
        "--once", action="store_true", help="exit when no document is pending (default: wait for new ones)"
    )
    parser.add_argument(
        "--retry-failed", action="store_true", help="also encode documents that failed before (default: skip them)"
    )
    parser.add_argument(
        "--batch-size",
        type=positive,
        default=256,
        metavar="N",
        help="maximum number of documents per commit (default %(default)s)",
    )
    parser.add_argument(
        "--idle-wait",
        type=seconds,
        default=2.0,
        metavar="S",
        help="seconds to wait before looking for pending documents again (default %(default)s)",
    )
    add_encoding(parser)
    add_device(parser)
    add_stop_with_stdin(parser)
    add_json(parser)


def seconds(text: str) -> float:
    """Parse a positive number of seconds (argparse type)."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number of seconds")
    return value


def run(args: argparse.Namespace) -> int:
    """Encode pending documents and print what was done; return 1 if documents failed, 130 or 143 after a signal."""
    from lightir.index import Index
    from lightir.pending import WorkOptions
    from lightir.pending.encoder_folder import encoder_folder
    from lightir.runtime.encode_options import RUNTIME_NAMES, EncodeOptions
    from lightir.runtime.loading import require_runtime
    from lightir.runtime.model_encoder import encode_pending

    with Index.open(args.index) as index:
        runtime = require_runtime(encoder_folder(index, args.model), args.runtime)

    options = WorkOptions(
        once=args.once, batch_size=args.batch_size, retry_failed=args.retry_failed, idle_wait_s=args.idle_wait
    )
    encoding = EncodeOptions(
        batch_tokens=args.batch_tokens, dtype=args.dtype, device=args.device, compile=args.compile, runtime=runtime
    )
    with Stopping() as stopping:
        report = encode_pending(
            args.index, args.model, options=options, encoding=encoding, stop=stopping.event, ready=stopping.listen
        )
    code = int(bool(report.failed)) if stopping.number is None else EXIT_CODES[stopping.number]
    if args.json:
        print_json(
            {
                "index": args.index,
                "runtime": runtime,
                **dataclasses.asdict(report),
                "documents_per_s": report.documents_per_s,
            }
        )
        return code
    print_status(f"{args.index}: {in_words(report, RUNTIME_NAMES[runtime])}")
    if report.committed:
        print_longer(args.index)
    for doc_id, error in list(report.failed.items())[:ERRORS_SHOWN]:
        print_status(f"  failed: {printable(f'{doc_id}: {error}')}")
    if report.failed:
        print_status(
            f"{counted(len(report.failed), 'document')} failed and found by BM25 only. To try again: "
            f"lightir worker {args.index} --retry-failed"
        )
    return code


def in_words(report: WorkReport, by: str) -> str:
    """Describe what a worker did with a runtime, in one line."""
    left = f"{report.pending:,} pending" if report.pending else "nothing is pending"
    if not report.committed:
        return left
    return (
        f"{counted(report.committed, 'document')} encoded at {report.documents_per_s:.1f} documents/s by {by}; {left}"
    )


class Stopping:
    """A context in which a first SIGINT or SIGTERM stops the work after the current documents; a second acts as usual.

    Attributes:
        event: event that the signal sets.
        number: number of the signal; None without one.
    """

    def __init__(self) -> None:
        """Prepare; the signals act as usual until `listen`, so that loading a model can be interrupted."""
        self.event = threading.Event()
        self.number: int | None = None
        self._first = 0.0
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Stopping:
        """Return the context."""
        return self

    def listen(self) -> None:
        """Handle the signals that are not ignored."""
        for number in EXIT_CODES:
            if signal.getsignal(number) != signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._stop)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self.number is None:
            self.number, self._first = number, time.monotonic()
            self.event.set()
            os.write(2, b"stopping after the current documents; repeat to stop at once\n")
        elif time.monotonic() - self._first >= ONE_PRESS_S:
            self._restore()
            signal.raise_signal(number)

    def _restore(self) -> None:
        while self._previous:
            signal.signal(*self._previous.popitem())

    def __exit__(self, *error: object) -> None:
        """Restore the handlers."""
        self._restore()
