"""Give an index's pending documents their vectors while others search, add and delete.

Documents that queries asked for lately come first, then the oldest. Any number of workers may share an index: each
document is encoded by one of them. What is committed stays, whatever becomes of the worker; Ctrl-C or SIGTERM end it
after the documents under way. A document that cannot be encoded is set aside with its error, which `lightir info`
shows, and stays searchable by its tokens.
"""

from __future__ import annotations

import argparse
import dataclasses
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from lightir.cli.arguments import MODEL_HELP, add_device, add_encoding, add_json, positive
from lightir.cli.terminal import print_json, say, visible

if TYPE_CHECKING:
    from lightir.pending.worker_loop import WorkReport

HELP = "encode pending documents in the background (needs lightir[train])"
EXAMPLES = """
  lightir worker index
  lightir worker index --once --model MODEL
  lightir worker index --once --retry-failed
"""
STAYS = "vectors that were committed stay: the same command goes on"
ERRORS_SHOWN = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("index", metavar="INDEX", help="an index folder that was built with a model's contract")
    parser.add_argument(
        "--model", metavar="MODEL", help=f"{MODEL_HELP} (default: the installed one that the index speaks of)"
    )
    parser.add_argument("--once", action="store_true", help="end when nothing is pending (default: wait for more)")
    parser.add_argument("--retry-failed", action="store_true", help="try again what failed before")
    parser.add_argument(
        "--batch-size", type=positive, default=256, metavar="N", help="most documents of a commit (default %(default)s)"
    )
    parser.add_argument(
        "--idle-wait",
        type=seconds,
        default=2.0,
        metavar="S",
        help="seconds before looking again when nothing is pending (default %(default)s)",
    )
    add_encoding(parser)
    add_device(parser)
    add_json(parser)


def seconds(text: str) -> float:
    """An argparse type: a number of seconds above 0."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def run(args: argparse.Namespace) -> int:
    """Work, then say what was done; 1 when documents failed."""
    from lightir.encode.documents import EncodeOptions
    from lightir.encode.model_encoder import encode_pending
    from lightir.pending import WorkOptions

    options = WorkOptions(
        once=args.once, batch_size=args.batch_size, retry_failed=args.retry_failed, idle_wait_s=args.idle_wait
    )
    encoding = EncodeOptions(batch_tokens=args.batch_tokens, dtype=args.dtype, device=args.device, compile=args.compile)
    with stopping() as stop:
        report = encode_pending(args.index, args.model, options=options, encoding=encoding, stop=stop)
    if args.json:
        print_json({"index": args.index, **dataclasses.asdict(report), "documents_per_s": report.documents_per_s})
        return int(bool(report.failed))
    say(f"{args.index}: {said(report)}")
    for doc_id, error in list(report.failed.items())[:ERRORS_SHOWN]:
        say(f"  failed: {visible(f'{doc_id}: {error}')}")
    if report.failed:
        say(f"{len(report.failed):,} failed and stay searchable by tokens: lightir worker {args.index} --retry-failed")
    return int(bool(report.failed))


def said(report: WorkReport) -> str:
    """What a worker did, in a line."""
    left = f"{report.pending:,} are pending" if report.pending else "nothing is pending"
    if not report.committed:
        return left
    return f"{report.committed:,} documents got their vectors at {report.documents_per_s:.1f} a second; {left}"


@contextmanager
def stopping() -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set, where they are not ignored; a second one acts as it would without this."""
    event = threading.Event()
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    heard = [each for each, handler in before.items() if handler != signal.SIG_IGN]

    def stop(number: int, frame: FrameType | None) -> None:
        event.set()
        signal.signal(number, before[signal.Signals(number)])
        say("stopping after the documents under way; once more to stop without them")

    for each in heard:
        signal.signal(each, stop)
    try:
        yield event
    finally:
        for each in heard:
            signal.signal(each, before[each])
