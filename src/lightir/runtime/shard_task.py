"""The work of one machine of a cluster: checks of the machine, and the encoding of one shard.

Nothing here knows how the functions are called on other machines; `lightir.runtime.cluster` does that by Ray.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from lightir.addresses import resolve_model_folder
from lightir.contract import Contract
from lightir.errors import InvalidInput, MissingExtra
from lightir.index.passages.lengths import n_longer
from lightir.runtime.document_model import DocumentModel
from lightir.runtime.documents import count_impacts, encode_shard
from lightir.runtime.encode_options import EncodeOptions
from lightir.runtime.loading import choose_runtime, device_and_dtype, load_model
from lightir.shards import WrittenShard, write_aside
from lightir.types import Document
from lightir.version import __version__


@dataclass(frozen=True, slots=True)
class ShardJob:
    """Settings that all shards of a run have in common.

    Attributes:
        model: model folder on every machine, or name of a model that is installed there.
        vectors: absolute path of the vectors folder, on storage that all machines share.
        probe: name of a file in the folder, by which a machine recognizes it.
        options: options of loading the model and encoding, with the runtime, device and batch size of all machines.
        expected_tokens: number of tokens of the whole run, which decides whether layers are compiled.
    """

    model: str
    vectors: str
    probe: str
    options: EncodeOptions
    expected_tokens: float = 0.0


@dataclass(frozen=True, slots=True)
class MachineReport:
    """A machine that can encode: how its results depend on it.

    Attributes:
        host: name of the machine.
        version: version of lightir there.
        fingerprint: fingerprint of the model's contract there.
        device: device that the options choose there.
        dtype: dtype of the weights that the options choose there.
        answer: name of a file that the machine wrote into the vectors folder.
    """

    host: str
    version: str
    fingerprint: str
    device: str
    dtype: str
    answer: str


@dataclass(frozen=True, slots=True)
class EncodedShard:
    """A shard that waits under a temporary name, with its counts.

    Attributes:
        written: the shard on disk.
        tokens: number of input tokens, with frames, without padding.
        impacts: number of sparse weights.
        clipped: number of these at the maximum.
        longer: number of documents of which the model reads the beginning only.
    """

    written: WrittenShard
    tokens: int
    impacts: int
    clipped: int
    longer: int


def describe_machine(job: ShardJob, answer: str) -> MachineReport:
    """Check that this machine has the vectors folder, and return what its results depend on.

    Args:
        job: the run.
        answer: name of an empty file to write into the vectors folder, which the caller looks for.

    Raises:
        InvalidInput: the folder is not the caller's.
        MissingExtra: the run's runtime is not installed on this machine.
        NotFound: the model is not on this machine.
    """
    _require_shared(job)
    (Path(job.vectors) / answer).touch()
    contract = Contract.load(resolve_model_folder(job.model))
    try:
        choose_runtime(contract, job.options.runtime)
    except MissingExtra as error:
        raise MissingExtra(f"{socket.gethostname()}: {error}") from None
    device, dtype = device_and_dtype(job.options)
    return MachineReport(socket.gethostname(), __version__, contract.fingerprint, device, dtype, answer)


def encode_shard_aside(job: ShardJob, number: int, documents: Sequence[Document]) -> EncodedShard:
    """Encode documents and write them into the vectors folder under a temporary name; the model is loaded once.

    Args:
        job: the run.
        number: number of the shard.
        documents: documents of the shard, in order.

    Raises:
        InvalidInput: the folder on this machine is not the caller's.
        WriteFailed: the disk is full or broken; nothing is left behind.
    """
    _require_shared(job)
    model = _loaded(job)
    shard = encode_shard(model, documents, batch_tokens=job.options.batch_tokens)
    tokens = sum(len(ids) for ids, _, _ in model.frame_documents(documents))
    longer = n_longer(documents, model.contract, model.tokenizer)
    return EncodedShard(write_aside(Path(job.vectors), number, shard), tokens, *count_impacts(shard), longer)


def _require_shared(job: ShardJob) -> None:
    """Refuse a vectors folder of this machine alone.

    Raises:
        InvalidInput: the folder lacks the caller's probe.
    """
    if not (Path(job.vectors) / job.probe).is_file():
        raise InvalidInput(
            f"{job.vectors} on {socket.gethostname()} is not the folder of the machine that started the run; put it on "
            "storage that all machines of the cluster mount at the same path"
        )


@lru_cache(maxsize=1)
def _loaded(job: ShardJob) -> DocumentModel:
    """Load the model once per process; its layers stay compiled until the process ends."""
    model = load_model(job.model, job.options)
    compiled = contextlib.ExitStack()
    compiled.enter_context(model.prepared(job.options.compile, job.expected_tokens))
    _kept_compiled.append(compiled)
    return model


_kept_compiled: list[contextlib.ExitStack] = []
"""Contexts that would end the compilation if they were collected."""
