"""Encoding of documents on a Ray cluster: one task per shard, which Ray repeats if its machine is lost."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import secrets
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lightir.addresses import resolve_model_folder
from lightir.clusters import connected, import_ray
from lightir.contract import Contract
from lightir.errors import InvalidInput, LightirError
from lightir.progress import Progress
from lightir.quantities import counted
from lightir.runtime.documents import (
    SHARD_BATCHES,
    EncodeReport,
    copy_query_encoder,
    document_windows,
    unwritten_documents,
    warn_if_clipped,
)
from lightir.runtime.encode_options import BATCH_TOKENS, EncodeOptions
from lightir.runtime.frames import Framing
from lightir.runtime.loading import choose_runtime, load_framing
from lightir.runtime.shard_task import EncodedShard, MachineReport, ShardJob, describe_machine, encode_shard_aside
from lightir.shards import VectorsWriter
from lightir.types import Document
from lightir.version import __version__

MAX_RETRIES = 5
"""Number of times that a shard is repeated after its worker was lost."""
WAITING = 2
"""Number of shards per worker that are sent ahead, so that no worker waits for its next one."""

SHARD_FAILED = (
    f"a shard lost {MAX_RETRIES + 1} workers. Finished shards are kept: add --resume to the same command to continue"
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RayOptions:
    """Options of a Ray cluster.

    Attributes:
        address: HOST:PORT of the cluster's head, or "auto" for the cluster that this machine is part of.
        cpus: number of CPU cores per worker. Each worker loads the model once.
    """

    address: str
    cpus: int = 1

    def __post_init__(self) -> None:
        """Refuse a number of cores below 1."""
        if self.cpus < 1:
            raise InvalidInput(f"cpus is {self.cpus}; expected at least 1")


def encode_corpus_on_ray(
    model: str | os.PathLike[str],
    documents: Iterable[Document],
    out: Path | str,
    *,
    cluster: RayOptions,
    options: EncodeOptions | None = None,
    resume: bool = False,
    n_documents: int | None = None,
) -> EncodeReport:
    """Encode documents into a vectors/ folder on the machines of a Ray cluster, as `encode_corpus` does on one.

    This process reads and tokenizes the documents, which decides where shards end, and lists finished shards in the
    manifest. A worker encodes a shard, writes it under a temporary name, and this process renames it. Ray repeats the
    shards of a lost machine on another one. With GPUs in the cluster, a worker has one GPU, and machines without a GPU
    take no part. Every shard is encoded once, in a process of its own, and machines of one kind write the bytes that
    `encode_corpus` writes there with as many threads.

    Args:
        model: name of a model that is installed on every machine, or path of a folder that every machine can read.
        documents: documents with distinct ids. To resume, pass the same documents in the same order.
        out: vectors/ folder to write, on storage that all machines mount at the same path.
        cluster: address of the cluster, and size of a worker.
        options: options of loading the model and encoding; None is the default.
        resume: continue an interrupted folder; a complete one is left unchanged.
        n_documents: number of documents, for the progress bar and the decision to compile; None if unknown.

    Raises:
        AlreadyExists: the folder holds vectors and resume is off, or another process is writing them.
        ContractMismatch: the folder was begun with another model or another quantization.
        InvalidInput: a machine does not share the folder, or differs from the others in version, model or dtype; no
            machine has room for a worker; or an error of `encode_corpus`.
        LightirError: a shard lost MAX_RETRIES + 1 workers. Finished shards are kept.
        MissingExtra: Ray is not installed.
    """
    ray, options = import_ray("ray", "ray"), options or EncodeOptions()
    folder = resolve_model_folder(model)
    options = replace(options, runtime=choose_runtime(Contract.load(folder), options.runtime))
    with connected(ray, cluster.address), contextlib.ExitStack() as stack:
        framing = load_framing(folder, options)
        contract = framing.contract
        workers = _Workers.of(ray, cluster, options)
        writer = stack.enter_context(VectorsWriter(out, contract, quantized=options.quantize, resume=resume))
        options = replace(
            options, device=workers.device, batch_tokens=options.batch_tokens or BATCH_TOKENS[workers.device]
        )
        name = str(Path(model).absolute()) if Path(model).is_dir() else os.fspath(model)
        probe = stack.enter_context(_probe(writer.folder))
        job = ShardJob(name, str(writer.folder.absolute()), probe, options)
        workers.require_alike(job, contract.fingerprint)
        run = _Run(workers, writer, job, len(writer.doc_ids), n_documents)
        run.encode(framing, documents)
        copy_query_encoder(folder, writer.folder)
        writer.finish()
        report = run.report()
    warn_if_clipped(report, contract.sparse)
    return report


@contextlib.contextmanager
def _probe(vectors: Path) -> Iterator[str]:
    """Write a file of a random name into the vectors folder during the block, and yield the name."""
    name = f".probe-{secrets.token_hex(8)}"
    for left in vectors.glob(".probe-*"):
        left.unlink(missing_ok=True)
    (vectors / name).touch()
    try:
        yield name
    finally:
        for path in vectors.glob(".probe-*"):
            path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class _Workers:
    """Workers that the cluster has room for.

    Attributes:
        ray: module of Ray.
        device: "cuda" or "cpu", on all of them.
        resources: cores and GPUs of one worker, as Ray's options.
        nodes: ids of the machines that have room for a worker.
        n: number of workers that fit into the cluster.
    """

    ray: Any
    device: str
    resources: dict[str, int]
    nodes: tuple[str, ...]
    n: int

    @classmethod
    def of(cls, ray: Any, cluster: RayOptions, options: EncodeOptions) -> _Workers:
        """Count the workers that fit; raise InvalidInput if none does, or for a numbered device."""
        alive = {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}
        has_gpu = any(resources.get("GPU", 0) >= 1 for resources in alive.values())
        is_torch = options.runtime == "torch"
        device = options.device if options.device != "auto" else "cuda" if has_gpu and is_torch else "cpu"
        if device not in BATCH_TOKENS:
            raise InvalidInput(f"device {device!r} on a cluster: expected cuda, cpu or auto; Ray chooses the GPU")
        need = {"CPU": cluster.cpus, "GPU": 1 if device == "cuda" else 0}
        fits = {
            node: int(min(resources.get(name, 0) // n for name, n in need.items() if n))
            for node, resources in alive.items()
        }
        nodes = tuple(node for node, n in fits.items() if n)
        if not nodes:
            wanted = " and ".join(f"{n} {name}" for name, n in need.items() if n)
            raise InvalidInput(f"no machine of the cluster ({counted(len(alive), 'machine')}) has {wanted}")
        options_of_ray = {"num_cpus": need["CPU"], "num_gpus": need["GPU"]}
        return cls(ray, device, options_of_ray, nodes, sum(fits.values()))

    def require_alike(self, job: ShardJob, fingerprint: str) -> None:
        """Ask each machine for its report.

        Raises:
            InvalidInput: one does not share the folder, or differs from the others, so that results would too.
        """
        strategy = importlib.import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
        ask = self.ray.remote(**self.resources)(describe_machine)
        tasks = [
            ask.options(scheduling_strategy=strategy(node, soft=False)).remote(job, f"{job.probe}.{i}")
            for i, node in enumerate(self.nodes)
        ]
        silent = "a machine of the cluster does not answer; wait until Ray reports it as dead, and try again"
        reports: list[MachineReport] = [self.result(task, failed=silent) for task in tasks]
        for report in reports:
            if not (Path(job.vectors) / report.answer).is_file():
                raise InvalidInput(
                    f"{job.vectors} is not shared: {report.host} wrote a file there that is not here; put the folder "
                    "on storage that all machines of the cluster mount at the same path"
                )
            ours = {"lightir": __version__, "contract": fingerprint, "dtype": reports[0].dtype}
            theirs = {"lightir": report.version, "contract": report.fingerprint, "dtype": report.dtype}
            for name, value in theirs.items():
                if value != ours[name]:
                    hint = "choose one with --dtype" if name == "dtype" else "install the same everywhere"
                    raise InvalidInput(f"machines differ: {name} is {value} on {report.host}, not {ours[name]}; {hint}")
        logger.info(
            "%s on %s: %s, %s",
            counted(self.n, "worker"),
            counted(len(self.nodes), "machine"),
            self.device,
            reports[0].dtype,
        )

    def result(self, task: Any, *, failed: str) -> Any:
        """Return a task's result, or raise its error as this process would; `failed` says that machines were lost."""
        try:
            return self.ray.get(task)
        except self.ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, LightirError):
                raise error.cause from None
            raise LightirError(f"a task failed on the cluster: {error.cause!r}") from error
        except self.ray.exceptions.RayError as error:
            raise LightirError(f"{failed}. The cause: {str(error).splitlines()[0]}") from error


@dataclass(slots=True)
class _Run:
    """One run: tasks that are under way, and counts of those that are done."""

    workers: _Workers
    writer: VectorsWriter
    job: ShardJob
    before: int
    n_documents: int | None
    tokens: int = 0
    impacts: int = 0
    clipped: int = 0
    longer: int = 0
    start: float = field(default_factory=time.perf_counter)
    _tasks: dict[Any, int] = field(default_factory=dict)

    def encode(self, framing: Framing, documents: Iterable[Document]) -> None:
        """Send a task per shard and adopt what they write; on an error or Ctrl-C, cancel those that are under way."""
        options, ray = self.job.options, self.workers.ray
        task = ray.remote(max_retries=MAX_RETRIES, **self.workers.resources)(encode_shard_aside)
        size = SHARD_BATCHES * (options.batch_tokens or BATCH_TOKENS[self.workers.device])
        unwritten = unwritten_documents(documents, self.writer)
        try:
            with Progress("encode", unit="document", total=self.n_documents, done=self.before, smooth=True) as bar:
                for window in document_windows(framing.documents, unwritten, options.shard_size, size):
                    if not self.job.expected_tokens:
                        n_expected = max((self.n_documents or 0) - self.before, len(window.documents))
                        tokens = window.tokens * n_expected / len(window.documents)
                        self.job = replace(self.job, expected_tokens=tokens)
                    number = next(self.writer.numbers)
                    self._tasks[task.remote(self.job, number, window.documents)] = number
                    self._adopt(bar, at_most=WAITING * self.workers.n)
                self._adopt(bar, at_most=0)
        finally:
            for unfinished in self._tasks:
                ray.cancel(unfinished)

    def _adopt(self, bar: Progress, *, at_most: int) -> None:
        """Adopt finished shards, and wait until no more than `at_most` are under way."""
        while self._tasks:
            is_full = len(self._tasks) > at_most
            done, _ = self.workers.ray.wait(list(self._tasks), timeout=None if is_full else 0)
            if not done:
                return
            for finished in done:
                self._adopt_one(self.workers.result(finished, failed=SHARD_FAILED), self._tasks.pop(finished), bar)

    def _adopt_one(self, shard: EncodedShard, number: int, bar: Progress) -> None:
        self.writer.adopt(number, shard.written)
        self.tokens += shard.tokens
        self.impacts += shard.impacts
        self.clipped += shard.clipped
        self.longer += shard.longer
        bar.update(len(shard.written.doc_ids))

    def report(self) -> EncodeReport:
        """Return the counts of this run."""
        return EncodeReport(
            documents=len(self.writer.doc_ids) - self.before,
            already_there=self.before,
            tokens=self.tokens,
            seconds=time.perf_counter() - self.start,
            impacts=self.impacts,
            clipped=self.clipped,
            longer=self.longer,
        )
