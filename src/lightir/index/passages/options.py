"""Options of passages."""

from __future__ import annotations

from dataclasses import dataclass

from lightir.errors import InvalidInput

LEAST_TOKENS = 16
"""Minimum number of tokens of a passage's limit."""


@dataclass(frozen=True, slots=True)
class PassageOptions:
    """The sizes of passages. An index stores them, so later documents are split alike.

    Attributes:
        tokens: maximum number of tokens of a passage with its title; longer documents are split. None: as many as the
            model reads, 256 words without a model.
        overlap: maximum number of tokens at the end of a passage that the next one repeats. Only whole sentences are
            repeated, and none across a heading.

    Raises:
        InvalidInput: fewer than LEAST_TOKENS tokens, or an overlap that is negative or more than half of them.
    """

    tokens: int | None = None
    overlap: int = 0

    def __post_init__(self) -> None:
        if self.tokens is not None and self.tokens < LEAST_TOKENS:
            raise InvalidInput(f"passages have at most {self.tokens} tokens; the minimum is {LEAST_TOKENS}")
        if self.overlap < 0 or (self.tokens is not None and self.overlap > self.tokens // 2):
            raise InvalidInput(f"the overlap of passages is {self.overlap} tokens; expected 0 to half of a passage")
