"""Options and limits of the service."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from lightir.errors import InvalidInput

MAX_K = 1000
"""Maximum number of hits per query."""

MAX_OFFSET = 10_000
"""Maximum number of hits in front of a page."""

MAX_QUERIES = 256
"""Maximum number of queries per search request."""

MAX_QUERY_CHARACTERS = 10_000
"""Maximum number of characters of a query."""

MAX_TEXTS = 2048
"""Maximum number of texts per request that encodes them, as OpenAI's API has it."""

MAX_TEXT_CHARACTERS = 1_000_000
"""Maximum number of characters of a text to encode."""

MAX_DOCUMENTS = 1000
"""Maximum number of documents or ids per request; a stream of NDJSON has no limit."""

MAX_JSON_DEPTH = 64
"""Maximum number of levels of a JSON body."""

MAX_PROCESSES = 256

LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Options of the service.

    Attributes:
        host: address to listen on.
        port: port to listen on; 0 for a free one.
        keys: file of API keys, see lightir.serve.api_keys; None if no request needs a key.
        without_keys: whether to listen on other addresses than loopback without keys.
        read_only: whether to refuse all changes.
        allow_hosts: further names in the Host header of requests, such as that of a proxy.
        allow_origins: origins of web pages that may use the service (CORS).
        max_body_bytes: maximum size of a request's body, and of a line of an NDJSON stream.
        max_requests: maximum number of requests at once; others get 503.
        max_writes: maximum number of changes that wait for the writer; others get 429.
        timeout_s: maximum time for an answer, and for each part of a body to arrive.
        refresh_s: time between looks for changes that other processes made.
        lock_s: maximum time that changes wait for another writer of the index.
        threads: number of threads for slow searches.
        processes: number of processes that answer; limits hold for each of them.

    Raises:
        InvalidInput: a port above 65,535, a limit below 1, more than MAX_PROCESSES processes, or an address that is
            not loopback without keys.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    keys: Path | None = None
    without_keys: bool = False
    read_only: bool = False
    allow_hosts: tuple[str, ...] = ()
    allow_origins: tuple[str, ...] = ()
    max_body_bytes: int = 8 << 20
    max_requests: int = 256
    max_writes: int = 64
    timeout_s: float = 30.0
    refresh_s: float = 0.5
    lock_s: float = 10.0
    threads: int = 4
    processes: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.port < 2**16:
            raise InvalidInput(f"port is {self.port}; expected 0 to 65,535")
        for name in ("max_body_bytes", "max_requests", "max_writes", "threads", "processes"):
            if getattr(self, name) < 1:
                raise InvalidInput(f"{name} is {getattr(self, name)!r}; expected at least 1")
        if self.processes > MAX_PROCESSES:
            raise InvalidInput(f"processes is {self.processes}; expected at most {MAX_PROCESSES}")
        for name in ("timeout_s", "refresh_s", "lock_s"):
            if not getattr(self, name) > 0:
                raise InvalidInput(f"{name} is {getattr(self, name)!r}; expected more than 0 seconds")
        if not is_loopback(self.host) and self.keys is None and not self.without_keys:
            raise InvalidInput(
                f"{self.host} can be reached from other machines, and no API keys are set. Make a key with "
                "lightir key keys.json --name app, and pass --keys keys.json; or allow everyone with --without-keys"
            )


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached from this machine alone."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
