"""A BEIR folder: corpus, queries and judgements that belong together."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lightir.data.readers import beir_file, count_documents, read_documents, read_qrels, read_queries
from lightir.errors import InvalidInput, NotFound
from lightir.files import sha256_file
from lightir.types import Document, Qrels, Query


@dataclass(frozen=True, slots=True)
class Dataset:
    """A folder with corpus.jsonl, queries.jsonl (either may be .gz) and qrels/<split>.tsv.

    Attributes:
        folder: where it lies.
        splits: names of the splits, sorted.
    """

    folder: Path
    splits: tuple[str, ...]

    @classmethod
    def open(cls, folder: Path | str) -> Dataset:
        """The data set in the folder; only names of files are read.

        Raises:
            NotFound: the folder, or one of its three parts, is missing.
        """
        folder = Path(folder)
        if not folder.is_dir():
            raise NotFound(f"{folder} {'is a file' if folder.exists() else 'does not exist'}; expected a BEIR folder")
        for role in ("corpus", "queries"):
            if beir_file(folder, role) is None:
                raise NotFound(f"{folder} holds neither {role}.jsonl nor {role}.jsonl.gz; expected a BEIR folder")
        splits = tuple(sorted(path.name.split(".tsv")[0] for path in _qrels_files(folder)))
        if not splits:
            raise NotFound(f"{folder} holds no qrels/<split>.tsv; expected a BEIR folder")
        return cls(folder, splits)

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.folder.resolve().name

    def __len__(self) -> int:
        """Number of documents."""
        return count_documents(self.folder) or 0

    def corpus(self) -> Iterator[Document]:
        """The documents, as read_documents gives them."""
        return read_documents(self.folder)

    def queries(self, split: str | None = None) -> Iterator[Query]:
        """All queries in the file's order, or those that the split judges.

        Raises:
            InvalidInput: the split judges queries that the file does not hold (after the last query).
        """
        if split is None:
            yield from read_queries(self.folder)
            return
        wanted = set(self.qrels(split))
        for query in read_queries(self.folder):
            if query.query_id in wanted:
                wanted.remove(query.query_id)
                yield query
        if wanted:
            raise InvalidInput(
                f"{self.folder}: qrels/{split} judges {len(wanted)} queries that the queries file does not hold, "
                f"{min(wanted)!r} for one"
            )

    def qrels(self, split: str) -> Qrels:
        """The split's judgements.

        Raises:
            NotFound: there is no such split.
        """
        return read_qrels(self._qrels_file(split))

    def digest(self, split: str) -> str:
        """8 digits of a hash over the files of the corpus, the queries and the split's judgements, as they lie there.

        Raises:
            NotFound: there is no such split.
        """
        files = [beir_file(self.folder, "corpus"), beir_file(self.folder, "queries"), self._qrels_file(split)]
        digests = "".join(sha256_file(path) for path in files if path is not None)
        return hashlib.sha256(digests.encode()).hexdigest()[:8]

    def _qrels_file(self, split: str) -> Path:
        for path in _qrels_files(self.folder):
            if path.name.split(".tsv")[0] == split:
                return path
        raise NotFound(f"{self.folder} has no split {split!r}; it has {', '.join(self.splits)}")


def _qrels_files(folder: Path) -> Iterator[Path]:
    for pattern in ("*.tsv", "*.tsv.gz"):
        yield from (folder / "qrels").glob(pattern)
