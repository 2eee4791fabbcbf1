"""Connections to a Ray cluster."""

from __future__ import annotations

import contextlib
import importlib
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

from lightir.errors import InvalidInput, MissingExtra

CONNECT_S = 10.0
"""Seconds in which the head of a cluster must answer."""


def import_ray(module: str, extra: str) -> Any:
    """Import Ray, or a module of it.

    Args:
        module: name of the module.
        extra: extra of lightir that installs what it needs.

    Raises:
        MissingExtra: something is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtra(f"Ray is needed for a cluster ({error}): pip install 'lightir[{extra}]'") from None


def require_answer(address: str, own_host: Callable[[], str]) -> None:
    """Refuse an address where nothing listens; Ray alone would try for minutes.

    Args:
        address: HOST:PORT, or "auto", which is left to Ray.
        own_host: function that returns the machine's own address, by which Ray replaces a loopback address. It is
            tried if nothing listens on the loopback address itself.

    Raises:
        InvalidInput: nothing answers in CONNECT_S.
    """
    host, _, port = address.rpartition(":")
    if address == "auto":
        return
    try:
        try:
            socket.create_connection((host, int(port)), timeout=CONNECT_S).close()
        except OSError:
            if host not in ("127.0.0.1", "localhost"):
                raise
            socket.create_connection((own_host(), int(port)), timeout=CONNECT_S).close()
    except (OSError, ValueError, OverflowError) as error:
        raise InvalidInput(
            f"no Ray cluster answers at {address}: {error}. Expected HOST:PORT, or auto; start one with: "
            "ray start --head"
        ) from error


@contextlib.contextmanager
def connected(ray: Any, address: str, *, show_logs: bool = True) -> Iterator[None]:
    """Connect to a cluster during the block, and keep this process's handler of SIGTERM, which Ray would replace.

    Args:
        ray: module of Ray.
        address: HOST:PORT of the cluster's head, or "auto" for the cluster that this machine is part of.
        show_logs: show the messages of workers.

    Raises:
        InvalidInput: there is no cluster at the address.
    """
    require_answer(address, ray.util.get_node_ip_address)
    is_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=address, logging_level=logging.WARNING, log_to_driver=show_logs)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise InvalidInput(
            f"no Ray cluster answers at {address}: {str(error).splitlines()[0]}. Start one with: ray start --head"
        ) from error
    finally:
        if is_main:
            signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        ray.shutdown()
