"""Shards of an index on a Ray cluster: Ray Serve keeps a set of replicas of each, and questions go to one of them.

Each shard is an application of Ray Serve, so Ray starts its replicas on machines of its choice, starts lost ones again,
and moves those of a machine that is drained, while the service goes on. A search has no effect, so a question is asked
again when the replica that had it is lost.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightir.clusters import connected, import_ray
from lightir.errors import InvalidInput, LightirError
from lightir.index.splitting import ShardedManifest
from lightir.search.index_shard import IndexShard
from lightir.search.searcher import Searcher

START_S = 300.0
"""Maximum time until every shard has a replica that answers."""

ATTEMPTS = 3
"""Number of times that a question is asked within the time for its answer, if no answer and no error comes."""

LOOK_S = 1.0
"""Time between looks whether the shards answer."""

SILENT_S = 5.0
"""Time after which a shard that answers no look is missing."""

PAUSE_S = 0.05
"""Time before a question is asked again after an error."""

REPLICA_THREADS = 4
MAX_QUESTIONS = 256
"""Maximum number of questions at once per replica; further ones wait."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RayServing:
    """Replicas of shards on a Ray cluster.

    Attributes:
        address: HOST:PORT of the cluster's head, or "auto" for the cluster that this machine is part of.
        replicas: number of replicas per shard.
        cpus: number of CPU cores that Ray reserves per replica; 0 to reserve none.

    Raises:
        InvalidInput: fewer than 1 replica, or fewer than 0 cores.
    """

    address: str
    replicas: int = 1
    cpus: int = 0

    def __post_init__(self) -> None:
        if self.replicas < 1:
            raise InvalidInput(f"replicas is {self.replicas}; expected at least 1")
        if self.cpus < 0:
            raise InvalidInput(f"cpus is {self.cpus}; expected at least 0")


@dataclass(frozen=True, slots=True)
class _Refused:
    """The answer to a question that a shard refuses."""

    error: LightirError


class ShardReplica:
    """A replica of a shard, in a process of Ray Serve."""

    def __init__(self, folder: str, version: str, number: int) -> None:
        """Open a shard.

        Args:
            folder: folder of the shards.
            version: state of the folder that is served.
            number: number of the shard.

        Raises:
            InvalidInput: the folder was split again meanwhile, or the shard was changed alone.
            NotFound, FormatError, StorageError: as `Index.open`.
        """
        manifest = ShardedManifest.read(folder)
        if manifest.version != version:
            raise InvalidInput(f"{folder} was split again after the service started; start the service again")
        self._shard = IndexShard(Searcher(manifest.open(number)))
        self._threads = ThreadPoolExecutor(REPLICA_THREADS, thread_name_prefix="lightir-shard")

    async def answer(self, method: str, question: Any) -> Any:
        """Return the answer of a method of `IndexShard`; an error of the library is returned too."""
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._threads, getattr(self._shard, method), question
            )
        except LightirError as error:
            return _Refused(error)

    async def look(self) -> int:
        """Return the id of this process, which says that it answers."""
        return os.getpid()


class RayShards:
    """Shards on a Ray cluster that this process is connected to.

    Attributes:
        names: names of the shards' applications in Ray Serve.
    """

    def __init__(self, folder: Path, manifest: ShardedManifest, serving: RayServing, *, timeout_s: float) -> None:
        """Start the replicas, and wait until each shard answers.

        Args:
            folder: folder of the shards, at the same path on every machine.
            manifest: its manifest.
            serving: number and size of replicas.
            timeout_s: maximum time for an answer.

        Raises:
            LightirError: a shard does not start.
        """
        self._ray = import_ray("ray", "ray-serve")
        self._serve = import_ray("ray.serve", "ray-serve")
        self._timeout_s = timeout_s
        self.names = [f"lightir-{manifest.version}-{number:04d}" for number in range(len(manifest.shards))]
        self._missing: frozenset[int] = frozenset()
        self._waiting: dict[int, set[asyncio.Task[Any]]] = {number: set() for number in range(len(self.names))}
        try:
            self._handles = self._deploy(folder, manifest, serving)
        except BaseException:
            self._delete()
            raise
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="lightir-ray", daemon=True)
        self._thread.start()
        self._watching = asyncio.run_coroutine_threadsafe(self._watch(), self._loop)

    def _deploy(self, folder: Path, manifest: ShardedManifest, serving: RayServing) -> list[Any]:
        """Start an application per shard, and return their handles."""
        n_machines = sum(node["Alive"] for node in self._ray.nodes())
        quiet = {"log_level": "WARNING", "enable_access_log": False}
        logging.getLogger("ray.serve").setLevel(logging.ERROR)
        self._serve.start(proxy_location="Disabled", logging_config=quiet)
        deployment = self._serve.deployment(
            name="shard",
            num_replicas=serving.replicas,
            max_replicas_per_node=-(-serving.replicas // n_machines),  # so that no machine is all that a shard has
            ray_actor_options={"num_cpus": serving.cpus},
            max_ongoing_requests=MAX_QUESTIONS,
            health_check_period_s=LOOK_S,
            health_check_timeout_s=SILENT_S,
            graceful_shutdown_timeout_s=SILENT_S,
            logging_config=quiet,
        )(ShardReplica)
        targets = [
            self._serve.RunTarget(deployment.bind(str(folder.absolute()), manifest.version, number), name, None)
            for number, name in enumerate(self.names)
        ]
        handles = self._serve.run_many(targets, wait_for_applications_running=False)
        self._wait_for_start()
        return [*handles]

    def _wait_for_start(self) -> None:
        """Wait until each shard has all of its replicas.

        Raises:
            LightirError: a shard does not start, or not in START_S.
        """
        deadline = time.monotonic() + START_S
        while True:
            known = self._serve.status().applications
            states = {number: known.get(name) for number, name in enumerate(self.names)}
            waiting = [number for number, state in states.items() if state is None or state.status != "RUNNING"]
            if not waiting:
                return
            failed = [n for n in waiting if (state := states[n]) is not None and state.status == "DEPLOY_FAILED"]
            if failed or time.monotonic() > deadline:
                number = (failed or waiting)[0]
                raise LightirError(f"shard {number} does not start on the cluster: {_reason(states[number])}")
            time.sleep(0.2)

    def __len__(self) -> int:
        """Number of shards."""
        return len(self.names)

    @property
    def missing(self) -> frozenset[int]:
        """Numbers of the shards that do not answer now, which are not asked."""
        return self._missing

    def ask(self, method: str, questions: Mapping[int, Any]) -> Mapping[int, Any]:
        """Ask shards; see `lightir.search.sharded.Shards`."""
        answers = asyncio.run_coroutine_threadsafe(self._ask(method, questions), self._loop).result()
        for answer in answers.values():
            if isinstance(answer, _Refused):
                raise answer.error
            if isinstance(answer, Exception):
                raise answer
        return answers

    async def _ask(self, method: str, questions: Mapping[int, Any]) -> dict[int, Any]:
        tasks = {}
        for number, question in questions.items():
            if number in self._missing:
                continue
            answering = self._answer(number, "answer", (method, question), self._timeout_s)
            tasks[number] = task = asyncio.create_task(answering)
            self._waiting[number].add(task)
            task.add_done_callback(self._waiting[number].discard)
        answers = await asyncio.gather(*tasks.values(), return_exceptions=True)
        silence = (TimeoutError, asyncio.CancelledError)
        return {n: answer for n, answer in zip(tasks, answers, strict=True) if not isinstance(answer, silence)}

    async def _answer(self, number: int, method: str, arguments: tuple[Any, ...], timeout_s: float) -> Any:
        """Ask a shard until a replica answers.

        Raises:
            TimeoutError: none does in time.
            LightirError: the shard has a defect.
        """
        call = getattr(self._handles[number], method)
        async with asyncio.timeout(timeout_s):
            while True:
                response = call.remote(*arguments)
                try:
                    async with asyncio.timeout(timeout_s / ATTEMPTS):
                        return await response
                except TimeoutError:
                    continue
                except self._ray.exceptions.RayTaskError as error:
                    raise LightirError(f"shard {number} failed: {error.cause!r}") from error
                except (self._ray.exceptions.RayError, self._serve.exceptions.RayServeException) as error:
                    logger.info("shard %d: %s", number, error)
                    await asyncio.sleep(PAUSE_S)

    async def _watch(self) -> None:
        """Look again and again which shards answer; end the questions to those that do not."""
        numbers = range(len(self.names))
        while True:
            looks = [self._answer(number, "look", (), SILENT_S) for number in numbers]
            answers = await asyncio.gather(*looks, return_exceptions=True)
            missing = frozenset(number for number in numbers if isinstance(answers[number], Exception))
            for number in missing - self._missing:
                logger.warning("shard %d does not answer: %r", number, answers[number])
            for number in self._missing - missing:
                logger.warning("shard %d answers again", number)
            self._missing = missing
            for number in missing:
                for task in self._waiting[number]:
                    task.cancel()
            await asyncio.sleep(LOOK_S)

    def close(self) -> None:
        """Stop the replicas."""
        self._watching.cancel()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._delete()

    def _delete(self) -> None:
        for name in self.names:
            self._serve.delete(name, _blocking=False)


def _reason(state: Any) -> str:
    """Return why an application does not run."""
    if state is None:
        return "Ray Serve does not know it"
    messages = [state.message, *(deployment.message for deployment in state.deployments.values())]
    lines = [message.strip().splitlines()[-1] for message in messages if message.strip()]
    last = lines[-1] if lines else str(state.status)
    return last.partition(": ")[2] if last.startswith("lightir.errors.") else last


@contextmanager
def ray_shards(
    folder: Path, manifest: ShardedManifest, serving: RayServing, *, timeout_s: float
) -> Iterator[RayShards]:
    """Connect to a cluster, and serve shards there during the block; see `RayShards`.

    Raises:
        InvalidInput: there is no cluster at the address.
        MissingExtra: Ray is not installed.
        LightirError: a shard does not start.
    """
    ray = import_ray("ray", "ray-serve")
    import_ray("ray.serve", "ray-serve")
    with connected(ray, serving.address, show_logs=False):
        shards = RayShards(folder, manifest, serving, timeout_s=timeout_s)
        try:
            yield shards
        finally:
            shards.close()
