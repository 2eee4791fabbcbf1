"""What can go wrong, as types. Everything that lightir raises on purpose is a LightirError."""

from __future__ import annotations


class LightirError(Exception):
    """Base of all errors that lightir raises on purpose; its text says what was wrong and what to do."""


class InvalidInput(LightirError, ValueError):
    """A value, a file or an argument that cannot be used as it is."""


class NotFound(InvalidInput):
    """A file, folder, model, document or task that is not there."""


class FormatError(LightirError):
    """A stored folder or file that is damaged, half-written, or of a version that this release cannot read."""


class ContractMismatch(LightirError):
    """Two things that must agree (a model, a query encoder, vectors, an index) don't; both values are named."""


class MissingExtra(LightirError, ImportError):
    """An optional dependency is needed; the text holds the pip command that brings it."""


class AlreadyExists(LightirError, FileExistsError):
    """A target that would be overwritten."""


class WriteFailed(LightirError, OSError):
    """What the system refused (a full disk, a broken one, a busy file); what was stored before is untouched."""


class IndexLocked(LightirError):
    """Another writer has the index; the text names the host, the process and since when."""
