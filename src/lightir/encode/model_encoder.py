"""The encoder worker: a model that gives an index's pending documents their vectors."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from lightir.addresses import resolve_model_folder, shipped_models
from lightir.contract import Contract, require_same_documents
from lightir.encode.documents import EncodeOptions, compile_if_worth, encode_shard, load_encoder
from lightir.errors import InvalidInput, NotFound
from lightir.index import Index
from lightir.models.encoder import LightRetriever
from lightir.pending.keys import pending_keys
from lightir.pending.worker_loop import PIECE, WorkReport, work
from lightir.shards import Shard
from lightir.types import Document

GPU_PIECE = 512
SAMPLE = 64
"""So many pending documents say how many tokens all of them have."""


class ModelEncoder:
    """A loaded model as what the light half calls a document encoder."""

    def __init__(self, model: LightRetriever, *, batch_tokens: int | None = None) -> None:
        """Wrap a model; `batch_tokens` as `encode_corpus` takes it."""
        self.model = model
        self._batch_tokens = batch_tokens

    @classmethod
    def load(
        cls,
        address: str | os.PathLike[str],
        *,
        fitting: Contract | None = None,
        batch_tokens: int | None = None,
        dtype: Literal["auto", "bf16", "fp32"] = "auto",
        device: str = "auto",
    ) -> ModelEncoder:
        """Load a model.

        Args:
            address: a model folder, or the name of a shipped model.
            fitting: refuse a model of other documents than this contract's, before it is loaded.
            batch_tokens: see `encode_corpus`.
            dtype: likewise.
            device: likewise.

        Raises:
            NotFound: there is no such model.
            ContractMismatch: it does not fit; each differing field with both values.
        """
        folder = resolve_model_folder(address)
        if fitting is not None:
            require_same_documents(fitting, Contract.load(folder), names=("the index", "the model"))
        return cls(load_encoder(folder, EncodeOptions(dtype=dtype, device=device)), batch_tokens=batch_tokens)

    @property
    def contract(self) -> Contract:
        """The model's."""
        return self.model.contract

    def encode(self, documents: Sequence[Document]) -> Shard:
        """The documents with their vectors, in their order."""
        return encode_shard(self.model, documents, batch_tokens=self._batch_tokens)

    @contextlib.contextmanager
    def compiled(self, wanted: bool | None, index: Index) -> Iterator[None]:
        """Inside, layers run compiled where that is wanted, or worth it for what is pending; see `encode_corpus`."""
        keys = pending_keys(index.view)
        sample = list(index.view.store.documents_of(keys[:SAMPLE].tolist()).values())
        tokens = sum(len(ids) for ids, _, _ in self.model.frame_documents(sample)) / max(len(sample), 1)
        with contextlib.ExitStack() as stack:
            compile_if_worth(self.model, stack, wanted, tokens * len(keys))
            yield


def encode_pending(
    folder: Path | str,
    *,
    model: str | os.PathLike[str] | None = None,
    once: bool = False,
    batch_size: int = 256,
    batch_tokens: int | None = None,
    dtype: Literal["auto", "bf16", "fp32"] = "auto",
    device: str = "auto",
    compile: bool | None = None,
    retry_failed: bool = False,
    idle_wait_s: float = 2.0,
    stop: threading.Event | None = None,
    progress: bool = True,
) -> WorkReport:
    """Load a model and give an index's pending documents their vectors; see `lightir.pending.worker_loop.work`.

    Args:
        folder: the index.
        model: a model folder or the name of a shipped model; None for the shipped one that the index's contract names.
        once: see `work`, as are batch_size, retry_failed, idle_wait_s, stop and progress.
        batch_size: likewise.
        batch_tokens: see `encode_corpus`, as are dtype, device and compile.
        dtype: likewise.
        device: likewise.
        compile: likewise; None decides by what is pending at the start.
        retry_failed: likewise.
        idle_wait_s: likewise.
        stop: likewise.
        progress: likewise.

    Raises:
        As `work`, and NotFound: no model was named and none that is installed fits the index.
    """
    with Index.open(folder) as index:
        encoder = encoder_for(index, model, batch_tokens=batch_tokens, dtype=dtype, device=device)
        with encoder.compiled(compile, index):
            return work(
                folder,
                encoder,
                once=once,
                batch_size=batch_size,
                piece=PIECE if encoder.model.backbone.device.type == "cpu" else GPU_PIECE,
                retry_failed=retry_failed,
                idle_wait_s=idle_wait_s,
                stop=stop,
                progress=progress,
            )


def encoder_for(
    index: Index,
    model: str | os.PathLike[str] | None = None,
    *,
    batch_tokens: int | None = None,
    dtype: Literal["auto", "bf16", "fp32"] = "auto",
    device: str = "auto",
) -> ModelEncoder:
    """The model of an index, loaded: the one that is named, or the installed one that its contract speaks of.

    Raises:
        InvalidInput: the index has no contract.
        NotFound: there is no such model, or none was named and none fits.
        ContractMismatch: the one that was named does not fit.
    """
    contract = index.contract
    if contract is None:
        raise InvalidInput(
            f"{index.folder} has no model's contract, so it takes no vectors; "
            "build it with `lightir index CORPUS --model MODEL`"
        )
    address = _shipped_for(contract) if model is None else model
    return ModelEncoder.load(address, fitting=contract, batch_tokens=batch_tokens, dtype=dtype, device=device)


def _shipped_for(contract: Contract) -> Path:
    shipped = shipped_models()
    for folder in shipped.values():
        if Contract.load(folder).document_fingerprint == contract.document_fingerprint:
            return folder
    raise NotFound(
        f"no installed model has the document side {contract.document_fingerprint} of the index (method "
        f"{contract.method}, backbone {contract.backbone.address}; installed: {', '.join(shipped) or 'none'}); "
        "name its folder with --model"
    )
