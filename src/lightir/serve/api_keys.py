"""API keys: a file of names, roles and hashes. A key itself is shown once, when it is made."""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast, get_args

from lightir.errors import FormatError, InvalidInput, LightirError, NotFound
from lightir.files import read_json, write_json

Role: TypeAlias = Literal["read", "write"]
"""What a key allows: searches and reads, or changes too."""

logger = logging.getLogger(__name__)

PREFIX = "lir_"
_KEY_BYTES = 32


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A stored key.

    Attributes:
        name: name of its user.
        role: requests that the key allows.
        sha256: hash of the key in hexadecimal. A key has 256 random bits, so a fast hash without a salt is enough.
    """

    name: str
    role: Role
    sha256: str


class ApiKeys:
    """The keys of a service: those in a file, which is read again after each change."""

    def __init__(self, path: Path) -> None:
        """Read the file; see `load`, which also refuses one without keys."""
        self._path = path
        self._state = _state_of(path)  # before it is read, so that no change is missed
        self._keys = _read(path)

    @classmethod
    def load(cls, path: Path) -> ApiKeys:
        """Read a file of keys.

        Raises:
            NotFound: there is no such file.
            FormatError: it is malformed or has no keys.
        """
        if not path.is_file():
            raise NotFound(f"there is no file of API keys {path}; make a key with: lightir key {path} --name app")
        keys = cls(path)
        if not keys.current():
            raise FormatError(f"{path} has no keys; make one with: lightir key {path} --name app")
        return keys

    def current(self) -> tuple[ApiKey, ...]:
        """Return the keys in the file as it is now; the former ones if it cannot be read, which is logged once."""
        state = _state_of(self._path)
        if state != self._state:
            self._state = state
            try:
                self._keys = _read(self._path)
            except LightirError as error:
                logger.error("the API keys stay as they were: %s", error)
        return self._keys

    def find(self, key: str) -> ApiKey | None:
        """Return the entry of a key, or None. The time does not depend on how much of a stored hash agrees."""
        given = _hash(key)
        known = None
        for entry in self.current():
            if hmac.compare_digest(entry.sha256, given):
                known = entry
        return known


def add_key(path: Path, name: str, role: Role) -> str:
    """Make a key, add it to a file, which may be new, and return it.

    Raises:
        InvalidInput: an empty or existing name, or an unknown role.
        FormatError: the file is malformed.
    """
    if role not in get_args(Role):
        raise InvalidInput(f"the role is {role!r}; expected {' or '.join(get_args(Role))}")
    keys = _read(path) if path.exists() else ()
    if not name or name in {key.name for key in keys}:
        raise InvalidInput(f"the name is {name!r}; expected one that no key of {path} has")
    key = PREFIX + secrets.token_urlsafe(_KEY_BYTES)
    _write(path, (*keys, ApiKey(name, role, _hash(key))))
    return key


def remove_key(path: Path, name: str) -> None:
    """Remove a key from a file.

    Raises:
        NotFound: there is no such key.
        FormatError: the file is malformed.
    """
    keys = _read(path) if path.exists() else ()
    if name not in {key.name for key in keys}:
        raise NotFound(f"there is no key {name!r} in {path}")
    _write(path, tuple(key for key in keys if key.name != name))


def _state_of(path: Path) -> tuple[int, int, int] | None:
    """Return what changes with a file's content: its inode, size and time; None if it cannot be asked for."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def _hash(key: str) -> str:
    return hashlib.sha256(key.encode(errors="surrogatepass")).hexdigest()


def _read(path: Path) -> tuple[ApiKey, ...]:
    try:
        stored: Any = read_json(path)
        keys = tuple(ApiKey(**entry) for entry in stored["keys"])
    except (KeyError, TypeError) as error:
        raise FormatError(f"{path} is not a file of API keys: {error!r}") from None
    for key in keys:
        if key.role not in get_args(Role) or not isinstance(key.name, str) or not _is_hash(key.sha256):
            raise FormatError(f"{path} is not a file of API keys: the entry {key.name!r} has a wrong role or hash")
    return keys


def _is_hash(value: object) -> bool:
    return isinstance(value, str) and len(value) == 64 and not value.strip("0123456789abcdef")


def _write(path: Path, keys: tuple[ApiKey, ...]) -> None:
    entries = [{"name": key.name, "role": cast(str, key.role), "sha256": key.sha256} for key in keys]
    write_json(path, {"keys": entries})
