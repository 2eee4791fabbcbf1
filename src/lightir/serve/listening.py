"""Listening sockets of the service."""

from __future__ import annotations

import socket

from lightir.errors import StorageError


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to an address.

    Raises:
        StorageError: the address is in use, is not this machine's, or is not allowed.
    """
    return _bound(host, port, shared=False)


def listen_together(host: str, port: int, n: int) -> list[socket.socket]:
    """Return n sockets that listen on one address, among which the system spreads connections.

    Raises:
        StorageError: the address is in use, is not this machine's, or is not allowed.
    """
    with _bound(host, port, shared=False) as alone:  # of several services that share addresses, each would get some
        port = alone.getsockname()[1]
    sockets = [_bound(host, port, shared=True) for _ in range(n)]
    for listening in sockets:
        listening.listen(socket.SOMAXCONN)
    return sockets


def address_of(listening: socket.socket) -> str:
    """Return the URL of a socket."""
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _bound(host: str, port: int, *, shared: bool) -> socket.socket:
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise StorageError(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another address with --host and --port"
        ) from error
    return listening
