"""A language model as the encoder of pending documents, and the worker that runs it."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from lightir.addresses import resolve_model_folder
from lightir.contract import Contract, require_same_documents
from lightir.index import Index
from lightir.pending import WorkOptions, WorkReport, pending_keys, work
from lightir.pending.encoder_folder import encoder_folder
from lightir.runtime.document_model import DocumentModel
from lightir.runtime.documents import encode_shard
from lightir.runtime.encode_options import EncodeOptions
from lightir.runtime.loading import load_model
from lightir.shards import Shard
from lightir.types import Document

SAMPLE_SIZE = 64
"""Number of pending documents from which the number of tokens of all is estimated."""


class ModelEncoder:
    """A loaded model as a `lightir.shards.DocumentEncoder`."""

    def __init__(self, model: DocumentModel, *, batch_tokens: int | None = None) -> None:
        """Wrap a model.

        Args:
            model: loaded model.
            batch_tokens: maximum number of tokens of a forward pass, see `EncodeOptions`.
        """
        self.model = model
        self._batch_tokens = batch_tokens

    @classmethod
    def load(
        cls,
        address: str | os.PathLike[str],
        options: EncodeOptions | None = None,
        *,
        fitting: Contract | None = None,
    ) -> ModelEncoder:
        """Load a model.

        Args:
            address: model folder or name of a shipped model.
            options: how the model is loaded and run; `compile` and `shard_size` do not apply here.
            fitting: contract whose document side the model must have; checked before the weights are loaded.

        Raises:
            NotFound: there is no such model.
            ContractMismatch: the model does not fit; each differing field with both values.
        """
        options = options or EncodeOptions()
        folder = resolve_model_folder(address)
        if fitting is not None:
            require_same_documents(fitting, Contract.load(folder), names=("the index", "the model"))
        return cls(load_model(folder, options), batch_tokens=options.batch_tokens)

    @property
    def contract(self) -> Contract:
        """The model's contract."""
        return self.model.contract

    def encode(self, documents: Sequence[Document]) -> Shard:
        """Encode documents, in their order."""
        return encode_shard(self.model, documents, batch_tokens=self._batch_tokens)

    @contextlib.contextmanager
    def compiled(self, compile: bool | None, index: Index) -> Iterator[None]:
        """Run the layers compiled inside the block.

        Args:
            compile: whether to compile; None compiles if the pending documents of the index repay it.
            index: index whose pending documents are to be encoded.
        """
        keys = pending_keys(index.view)
        sample = list(index.view.store.documents.of(keys[:SAMPLE_SIZE].tolist()).values())
        tokens = sum(len(ids) for ids, _, _ in self.model.frame_documents(sample)) / max(len(sample), 1)
        with self.model.prepared(compile, tokens * len(keys)):
            yield


def encode_pending(
    folder: Path | str,
    model: str | os.PathLike[str] | None = None,
    *,
    options: WorkOptions | None = None,
    encoding: EncodeOptions | None = None,
    stop: threading.Event | None = None,
    ready: Callable[[], object] | None = None,
    progress: bool = True,
) -> WorkReport:
    """Encode and commit the pending documents of an index with a model.

    Args:
        folder: index folder.
        model: model folder or name of a shipped model; None for the installed model that fits the index.
        options: sizes, and when to end; None for the defaults. On a GPU the default `encode_size` is 512.
        encoding: how the model is loaded and run; `shard_size` does not apply here.
        stop: event that ends the work: encoded documents are committed or parked, other claims are released.
        ready: function that is called once, when the model is loaded and before the first claim.
        progress: show a progress bar, or log messages if stderr is no terminal.

    Raises:
        NotFound: there is no such model, or no model is named and no installed one fits.
        InvalidInput, ContractMismatch, WriteFailed: as `lightir.pending.work`.
    """
    encoding = encoding or EncodeOptions()
    with Index.open(folder) as index:
        encoder = encoder_for(index, model, encoding)
        options = options or WorkOptions()
        if options.encode_size is None and encoder.model.encode_size is not None:
            options = dataclasses.replace(options, encode_size=encoder.model.encode_size)
        with encoder.compiled(encoding.compile, index):
            if ready is not None:
                ready()
            return work(folder, encoder, options, stop=stop, progress=progress)


def encoder_for(
    index: Index, model: str | os.PathLike[str] | None = None, options: EncodeOptions | None = None
) -> ModelEncoder:
    """Load the encoder of an index.

    Args:
        index: index with a model's contract.
        model: model folder or name of a shipped model; None for the installed model that fits the index.
        options: how the model is loaded and run.

    Raises:
        InvalidInput: the index has no contract.
        NotFound: there is no such model, or no model is named and no installed one fits.
        ContractMismatch: the named model does not fit.
    """
    folder = encoder_folder(index, model)
    return ModelEncoder.load(folder, options, fitting=index.contract)
