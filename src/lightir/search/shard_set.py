"""The shards of an index, which are asked at the same time: in this process, or by who implements `Shards`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, Protocol, Self

from lightir.errors import InvalidInput, LightirError
from lightir.index.splitting import ShardedManifest
from lightir.search.index_shard import IndexShard
from lightir.search.searcher import Searcher


class ShardsMissing(LightirError):
    """Shards do not answer, and an answer without their documents was not allowed.

    Attributes:
        numbers: numbers of the shards, ascending.
    """

    def __init__(self, numbers: Iterable[int]) -> None:
        self.numbers = sorted(numbers)
        listed = ", ".join(map(str, self.numbers))
        super().__init__(
            f"shards that do not answer: {listed}; try again, or allow partial results, which lack their documents"
        )


class Shards(Protocol):
    """Shards that can be asked."""

    def __len__(self) -> int:
        """Number of shards."""
        ...

    @property
    def missing(self) -> frozenset[int]:
        """Numbers of the shards that are known not to answer now."""
        ...

    def ask(self, method: str, questions: Mapping[int, Any]) -> Mapping[int, Any]:
        """Ask shards at the same time, and return the answers of those that answer.

        Args:
            method: name of a method of `IndexShard`.
            questions: question to each shard, by its number.

        Raises:
            LightirError: a shard refuses the question.
        """
        ...

    def close(self) -> None:
        """Release the shards, which cannot be asked any more."""
        ...


class LocalShards:
    """Shards in this process."""

    def __init__(self, shards: Sequence[IndexShard]) -> None:
        """Take the shards in their order."""
        self._shards = [*shards]
        self._threads = ThreadPoolExecutor(max(len(self._shards), 1), thread_name_prefix="lightir-shard")
        self._is_closed = False

    @classmethod
    def open(cls, manifest: ShardedManifest) -> Self:
        """Open the index of each shard; see `ShardedSearcher.open`."""
        counts = manifest.counts()
        with ExitStack() as opened:  # closes what is open if a shard cannot be opened
            indexes = [opened.enter_context(manifest.open(i, counts)) for i in range(len(manifest.shards))]
            shards = cls([IndexShard(Searcher(index)) for index in indexes])
            opened.pop_all()
        return shards

    def __len__(self) -> int:
        """Number of shards."""
        return len(self._shards)

    @property
    def missing(self) -> frozenset[int]:
        """No shard: all are in this process."""
        return frozenset()

    def ask(self, method: str, questions: Mapping[int, Any]) -> Mapping[int, Any]:
        """Ask shards; see `Shards`."""
        if self._is_closed:
            raise InvalidInput("the shards were closed; open them again")
        asked = {
            number: self._threads.submit(getattr(self._shards[number], method), question)
            for number, question in questions.items()
        }
        return {number: future.result() for number, future in asked.items()}

    def close(self) -> None:
        """Close the indexes."""
        self._is_closed = True
        self._threads.shutdown()
        for shard in self._shards:
            shard.searcher.index.close()
