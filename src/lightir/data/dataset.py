"""A data set in a BEIR folder: corpus, queries and qrels."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lightir.data.readers import beir_file, count_documents, read_documents, read_qrels, read_queries
from lightir.errors import InvalidInput, NotFound
from lightir.files import sha256_file
from lightir.quantities import counted
from lightir.types import Document, Qrels, Query


@dataclass(frozen=True, slots=True)
class Dataset:
    """A folder with corpus.jsonl, queries.jsonl (either may be .gz) and qrels/<split>.tsv.

    Attributes:
        folder: path of the folder.
        splits: names of the splits, sorted.
    """

    folder: Path
    splits: tuple[str, ...]

    @classmethod
    def open(cls, folder: Path | str) -> Dataset:
        """Open a folder; only the names of its files are read.

        Raises:
            NotFound: the folder, or one of its three parts, does not exist.
        """
        folder = Path(folder)
        if not folder.is_dir():
            raise NotFound(f"{folder} {'is a file' if folder.exists() else 'does not exist'}; expected a BEIR folder")
        for role in ("corpus", "queries"):
            if beir_file(folder, role) is None:
                raise NotFound(f"{folder} has no {role}.jsonl or {role}.jsonl.gz; expected a BEIR folder")
        splits = tuple(sorted(path.name.split(".tsv")[0] for path in _qrels_files(folder)))
        if not splits:
            raise NotFound(f"{folder} has no qrels/<split>.tsv; expected a BEIR folder")
        return cls(folder, splits)

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.folder.resolve().name

    def __len__(self) -> int:
        """Return the number of documents."""
        return count_documents(self.folder) or 0

    def corpus(self) -> Iterator[Document]:
        """Iterate over the documents; see `read_documents`."""
        return read_documents(self.folder)

    def queries(self, split: str | None = None) -> Iterator[Query]:
        """Iterate over the queries in the file's order: all, or those that a split's qrels contain.

        Raises:
            InvalidInput: the qrels contain queries that the file lacks (raised after the last query).
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
                f"{self.folder}: qrels/{split} has {counted(len(wanted), 'query id')} that the queries file lacks, "
                f"for instance {min(wanted)!r}"
            )

    def qrels(self, split: str) -> Qrels:
        """Read the qrels of a split.

        Raises:
            NotFound: the split does not exist.
        """
        return read_qrels(self._qrels_file(split))

    def require_split(self, split: str) -> None:
        """Refuse a split that the data set lacks; nothing is read.

        Raises:
            NotFound: the split does not exist.
        """
        self._qrels_file(split)

    def digest(self, split: str) -> str:
        """Return 8 hexadecimal digits of a hash of the corpus, queries and qrels files.

        Raises:
            NotFound: the split does not exist.
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
