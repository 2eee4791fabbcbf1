"""Long work of process 0 alone, for which the other processes wait without a collective."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch.distributed.distributed_c10d import PrefixStore, Store, _get_default_store

from lightir.errors import LightirError
from lightir.train.run.processes import barrier, is_first, world_size

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.2
"""Time between two looks of a waiting process at the group's store."""

HEARTBEAT_SECONDS = 5.0
"""Time between two signs of life of process 0 in the store."""

SILENCE_SECONDS = 600.0
"""Time without a sign of life after which a waiting process gives up."""

_numbers = itertools.count()


def first_alone(work: Callable[[], object], *, name: str) -> None:
    """Run `work` on process 0 while the others wait, however long it takes; all processes must call this function.

    A barrier would fail after the group's time-out (by default 10 minutes with NCCL, 30 with gloo). So the others read
    the group's store, to which process 0 writes a sign of life every few seconds and the outcome at the end.

    Args:
        work: function that uses no collective.
        name: name of the work for messages ("mining negatives").

    Raises:
        BaseException: on process 0, the exception of `work`.
        LightirError: on the others, the work failed, or process 0 gave no sign of life for SILENCE_SECONDS.
    """
    if world_size() == 1:
        work()
        return
    store = PrefixStore(f"lightir/alone/{next(_numbers)}", _get_default_store())
    if is_first():
        _run(work, store)
    else:
        logger.info("waiting for process 0: %s", name)
        _wait(store, name)
    barrier()  # short: no process ends while another one reads the store that it may hold


def _run(work: Callable[[], object], store: Store) -> None:
    with _heartbeat(store):
        try:
            work()
        except BaseException as error:
            store.set("outcome", f"{type(error).__name__}: {error}")
            raise
    store.set("outcome", "")


@contextmanager
def _heartbeat(store: Store) -> Iterator[None]:
    ended = threading.Event()

    def beat() -> None:
        for number in itertools.count():
            store.set("heartbeat", str(number))
            if ended.wait(HEARTBEAT_SECONDS):
                return

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _wait(store: Store, name: str) -> None:
    heartbeat, heard = b"", time.monotonic()
    try:
        while not store.check(["outcome"]):
            time.sleep(POLL_SECONDS)
            latest = store.get("heartbeat") if store.check(["heartbeat"]) else b""
            if latest != heartbeat:
                heartbeat, heard = latest, time.monotonic()
            elif time.monotonic() - heard > SILENCE_SECONDS:
                raise LightirError(
                    f"{name}: process 0 gave no sign of life for {SILENCE_SECONDS:g} s; start the run again"
                )
        outcome = store.get("outcome").decode()
    except RuntimeError as error:  # the store is gone, and with it the process that held it
        raise LightirError(f"{name}: process 0 cannot be reached ({error}); start the run again") from error
    if outcome:
        raise LightirError(f"{name} failed on process 0: {outcome}")
