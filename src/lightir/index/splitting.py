"""An index split by document into shards, which several processes or machines search as one.

The folder of the shards has `sharded.json`, the manifest; `counts/`, the counts and words of all shards
(`lightir.index.collection`); and an index per shard. A document belongs to a shard by a hash of its id, and its
passages belong to the same one. A shard is an ordinary index, but it must not be changed alone: its words are weighted
by the counts of all. Opening it checks that it has the state that was counted.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lightir.errors import FormatError, InvalidInput, NotFound
from lightir.files import atomic_folder, child_path, read_json, write_json
from lightir.index.collection import CollectionCounts
from lightir.index.passages.naming import document_of
from lightir.index.reader import Index
from lightir.index.writer import IndexWriter
from lightir.progress import Progress
from lightir.types import BRANCHES, Branch

MANIFEST_FILE = "sharded.json"
COUNTS_FOLDER = "counts"
FORMAT_VERSION = 1
MAX_SHARDS = 1000


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """A shard in the manifest.

    Attributes:
        folder: path of its index: a name in the folder of the manifest, or an absolute path.
        documents: number of its documents.
        generation: number of the state of its index that was counted.
    """

    folder: str
    documents: int
    generation: int


@dataclass(frozen=True, slots=True)
class ShardedManifest:
    """The shards of an index.

    Attributes:
        folder: folder of the manifest.
        version: name of this state, another one after each change.
        shards: the shards, in order.
        branches: branches that can be searched.
        passages: whether long documents are stored as passages.
    """

    folder: Path
    version: str
    shards: tuple[ShardEntry, ...]
    branches: tuple[Branch, ...]
    passages: bool

    @classmethod
    def read(cls, folder: Path | str) -> ShardedManifest:
        """Read the manifest of a folder.

        Raises:
            NotFound: the folder has no manifest.
            FormatError: the manifest is damaged, or of another version.
        """
        folder = Path(folder)
        try:
            record = read_json(folder / MANIFEST_FILE)
        except NotFound:
            raise NotFound(
                f"{folder} has no {MANIFEST_FILE}, so it is no index split into shards; split one with: "
                f"lightir split INDEX --shards 2 --out {folder}"
            ) from None
        if not isinstance(record, dict) or record.get("format_version") != FORMAT_VERSION:
            raise FormatError(f"{folder / MANIFEST_FILE} is damaged, or of a newer version of lightir")
        try:
            entries = tuple(_entry(**entry) for entry in record["shards"])
            version, branches, passages = record["version"], record["branches"], record["passages"]
        except (KeyError, TypeError) as error:
            raise FormatError(f"{folder / MANIFEST_FILE} is damaged: {error}") from error
        known = isinstance(branches, list) and branches and all(branch in BRANCHES for branch in branches)
        if not (entries and isinstance(version, str) and known and isinstance(passages, bool)):
            raise FormatError(f"{folder / MANIFEST_FILE} is damaged: its shards, version or branches are malformed")
        return cls(folder, version, entries, tuple(branches), passages)

    def write(self, folder: Path) -> None:
        """Write the manifest into a folder, atomically."""
        state = {"version": self.version, "branches": self.branches, "passages": self.passages}
        shards = [asdict(entry) for entry in self.shards]
        write_json(folder / MANIFEST_FILE, {"format_version": FORMAT_VERSION, **state, "shards": shards})

    def path(self, number: int) -> Path:
        """Return the folder of a shard's index."""
        named = Path(self.shards[number].folder)
        return named if named.is_absolute() else child_path(self.folder, self.shards[number].folder)

    def counts(self) -> CollectionCounts:
        """Map the counts and words of all shards.

        Raises:
            FormatError: a file is missing, damaged or of another version.
        """
        return CollectionCounts.open(self.folder / COUNTS_FOLDER)

    def open(self, number: int, counts: CollectionCounts | None = None) -> Index:
        """Open the index of a shard with the counts of all.

        Args:
            number: number of the shard, from 0.
            counts: the counts, if they are open already.

        Raises:
            InvalidInput: the shard was changed after it was counted.
            NotFound, FormatError, StorageError: as `Index.open`.
        """
        index = Index.open(self.path(number), collection=self.counts() if counts is None else counts)
        known = self.shards[number]
        if (len(index), index.view.generation) != (known.documents, known.generation):
            index.close()
            raise InvalidInput(
                f"{self.path(number)} was changed after {self.folder} was made, so its words would be weighted "
                "wrongly; change the index that was split, and split it again with --overwrite"
            )
        return index


def is_sharded(folder: Path | str) -> bool:
    """Return whether a folder holds the shards of an index."""
    return (Path(folder) / MANIFEST_FILE).is_file()


def shard_of(doc_id: str, n_shards: int) -> int:
    """Return the number of the shard that a document belongs to, from the hash of its id; of a passage its document's.

    Args:
        doc_id: id of a document or a passage.
        n_shards: number of shards.
    """
    name = document_of(doc_id).encode(errors="surrogatepass")
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "big") % n_shards


def split_index(
    index: Path | str, out: Path | str, n_shards: int, *, overwrite: bool = False, progress: bool = True
) -> ShardedManifest:
    """Split an index by document into shards that are searched as one. The index is unchanged, and may be in use.

    Each shard is written as a copy of the index, from which the other documents are removed. So the disk holds one
    whole copy besides the shards.

    Args:
        index: index folder.
        out: folder to write.
        n_shards: number of shards.
        overwrite: replace an existing folder of shards.
        progress: show a progress bar, or log messages if stderr is no terminal.

    Raises:
        InvalidInput: `n_shards` is not a whole number from 1 to MAX_SHARDS, or `out` is the index or inside it.
        AlreadyExists: `out` exists and overwrite is off, or it is another kind of folder.
        FormatError: the index is damaged.
        NotFound: there is no such index.
        WriteFailed: the disk is full or broken; an existing folder is unchanged.
    """
    if not isinstance(n_shards, int) or not 1 <= n_shards <= MAX_SHARDS:
        raise InvalidInput(f"the number of shards is {n_shards!r}; expected a whole number from 1 to {MAX_SHARDS}")
    out = Path(out)
    with Index.open(index) as source, ExitStack() as opened:
        if out.resolve().is_relative_to(source.folder.resolve()):
            raise InvalidInput(f"{out} is the index or inside it; write the shards to another folder")
        owned = _owned(source, n_shards)
        with atomic_folder(out, overwrite=overwrite, replaces=MANIFEST_FILE) as folder:
            names = [f"shard-{number:04d}" for number in range(n_shards)]
            with Progress("split", unit="shard", total=n_shards, shown=progress) as bar:
                for name, doc_ids in zip(names, owned, strict=True):
                    source.snapshot(folder / name)
                    with IndexWriter.open(folder / name) as writer:
                        writer.keep_only(doc_ids)
                        writer.compact(progress=False)
                    bar.update()
            shards = [opened.enter_context(Index.open(folder / name)) for name in names]
            (folder / COUNTS_FOLDER).mkdir()
            counts = CollectionCounts.of([shard.view for shard in shards])
            counts.save(folder / COUNTS_FOLDER)
            entries = tuple(
                ShardEntry(name, len(shard), shard.view.generation) for name, shard in zip(names, shards, strict=True)
            )
            passages = source.view.has_passages
            ShardedManifest(folder, secrets.token_hex(8), entries, counts.branches, passages).write(folder)
            opened.close()
    return ShardedManifest.read(out)


def _owned(index: Index, n_shards: int) -> Sequence[set[str]]:
    """Return the ids of the documents of each shard."""
    owned: list[set[str]] = [set() for _ in range(n_shards)]
    for _, doc_id in index.view.store.documents.ids_by_key():
        document = index.view.document_of(doc_id)
        owned[shard_of(document, n_shards)].add(document)
    return owned


def _entry(folder: Any, documents: Any, generation: Any) -> ShardEntry:
    if not isinstance(folder, str) or not isinstance(documents, int) or not isinstance(generation, int):
        raise TypeError("an entry of a shard has values of other types")
    return ShardEntry(folder, documents, generation)
