"""A loaded model as the encoding of documents uses it, whatever program runs it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from lightir.contract import Contract
from lightir.runtime.encode_options import Program
from lightir.runtime.frames import Framed
from lightir.text import TextTokenizer
from lightir.types import Document
from lightir.vectors import Floats, SparseVectors


class DocumentModel(Protocol):
    """A loaded model that encodes framed documents in batches."""

    contract: Contract

    @property
    def runtime(self) -> Program:
        """Program that runs the model."""
        ...

    @property
    def tokenizer(self) -> TextTokenizer:
        """Tokenizer of the model."""
        ...

    @property
    def batch_tokens(self) -> int:
        """Default maximum number of tokens of a forward pass."""
        ...

    @property
    def encode_size(self) -> int | None:
        """Default number of documents that a worker encodes together; None for the worker's default."""
        ...

    def frame_documents(self, documents: Sequence[Document]) -> list[Framed]:
        """Return the ids of framed and truncated documents, with the span of each text's own tokens."""
        ...

    def encode_framed(self, framed: Sequence[Framed]) -> tuple[Floats | None, SparseVectors | None]:
        """Return the stored vectors of framed documents: (n, dim) float32, quantized impacts; None without."""
        ...

    def prepared(self, compile: bool | None, expected_tokens: float) -> AbstractContextManager[None]:
        """Return a context in which the layers are compiled, if asked or, for None, if that many tokens repay it."""
        ...
