"""Exceptions. Every error that lightir raises deliberately is a LightirError."""

from __future__ import annotations


class LightirError(Exception):
    """Base class of lightir's errors; the message says what is wrong and how to fix it."""


class InvalidInput(LightirError, ValueError):
    """An invalid value, file or argument."""


class NotFound(InvalidInput):
    """A file, folder, model, document or task that does not exist."""


class FormatError(LightirError):
    """A stored folder or file that is damaged, incomplete, or of a version that this release cannot read."""


class ContractMismatch(LightirError):
    """A model, query encoder, vectors or index that do not belong together; the message has both values."""


class MissingExtra(LightirError, ImportError):
    """A missing optional dependency; the message has the pip command that installs it."""


class AlreadyExists(LightirError, FileExistsError):
    """A target that exists and would be overwritten."""


class WriteFailed(LightirError, OSError):
    """A failed write (full or failing disk, busy file); previously stored data are unchanged."""


class OutcomeUnknown(WriteFailed):
    """A change of an index that failed so late that it may have been made; opening the index again shows the outcome.

    The index has either all of the change or nothing of it.
    """


class IndexLocked(LightirError):
    """An index that another writer has locked; the message names its host, process and start time."""


class Terminated(KeyboardInterrupt):
    """A SIGTERM, which stops a command as Ctrl-C does but ends it with exit code 143."""
