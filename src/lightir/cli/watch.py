"""Keep an index equal to folders of files.

The files are read once, as by `lightir add INDEX FILES --mirror`. Then the
folders are listed every few seconds: a file that is new or has another size or
time of change is added, a moved one keeps its vectors, and the document of a
deleted file is deleted. BM25 finds new documents at once; `lightir worker`, run
beside this command, encodes them.

If a large share of the files disappears, as when a drive is unmounted, their
documents stay until the files return or the command is started with --yes.

Ctrl-C or SIGTERM stops the command after the current change, with exit code 130
or 143.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lightir.cli.add import BATCH_DOCUMENTS, print_pending
from lightir.cli.arguments import add_corpus_options, add_index, add_json, add_stop_with_stdin
from lightir.cli.interruption import EXIT_CODES
from lightir.cli.mirroring import renaming, stored_ids, why_not_delete
from lightir.cli.terminal import print_json_line, print_status, printable
from lightir.cli.worker import Stopping, seconds
from lightir.errors import IndexLocked, InvalidInput, NotFound, StorageError
from lightir.lines import ReadOptions, SkippedFiles, read_options
from lightir.quantities import counted

if TYPE_CHECKING:
    from lightir.index import IndexInfo, IndexWriter
    from lightir.shards import Shard

HELP = "keep an index equal to folders of files"
EXAMPLES = """
  lightir index notes/ --out index --model minilm && lightir watch index notes/
  lightir watch index notes/ manuals/ --exclude "drafts/"
  lightir watch index /mnt/share --interval 60
"""
BUSY_SHARE = 0.05
"""Largest share of the time that listing folders takes: after a slow listing the command waits longer."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_index(parser)
    parser.add_argument("paths", nargs="+", metavar="FILES", help="folders of files, or files")
    add_corpus_options(parser)
    parser.add_argument(
        "--interval",
        type=seconds,
        default=2.0,
        metavar="S",
        help="seconds between listings of the folders (default %(default)s; more for folders whose listing takes long)",
    )
    parser.add_argument("--yes", action="store_true", help="delete any number of documents")
    add_stop_with_stdin(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Follow the folders until a signal; return 130 or 143."""
    from lightir.data.readers import are_files, is_empty_folder

    paths = [path for path in args.paths if not is_empty_folder(path)]  # files may arrive
    if args.fields or (paths and not are_files(paths)):
        raise InvalidInput(
            "watch follows folders of files, whose documents are the files. For data files and BEIR folders use: "
            f"lightir add {args.index} FILES --mirror"
        )
    watch = Watch(args.index, args.paths, read_options(), yes=args.yes)
    with Stopping() as stopping:
        stopping.listen()
        tell(args, watch.step())
        if not args.json:
            print_status(f"{args.index}: watching {', '.join(args.paths)}; stop with Ctrl-C")
        while not stopping.event.wait(max(args.interval, watch.listing_s / BUSY_SHARE)):
            try:
                tell(args, watch.step())
            except (NotFound, IndexLocked, InvalidInput, StorageError) as error:
                watch.warn(f"{error}; trying again")
    assert stopping.number is not None
    return EXIT_CODES[stopping.number]


@dataclass(frozen=True, slots=True)
class Step:
    """Changes of an index by one listing of the files.

    Attributes:
        added: number of new and changed documents.
        renamed: number of documents that got another id.
        removed: number of deleted documents.
        info: the index after the change.
    """

    added: int
    renamed: int
    removed: int
    info: IndexInfo


class Watch:
    """Applies the changes of files to an index, one listing at a time.

    Attributes:
        listing_s: seconds that the latest listing took.
    """

    def __init__(self, index: str, paths: list[str], options: ReadOptions, *, yes: bool = False) -> None:
        """Set what is followed.

        Args:
            index: index folder.
            paths: folders of files, and files.
            options: how files are read.
            yes: whether any number of documents may be deleted.
        """
        self.listing_s = 0.0
        self._index, self._paths, self._options, self._yes = index, paths, options, yes
        self._read: dict[str, tuple[int, ...]] = {}  # stamps of the files as they were read, by id
        self._listed: set[str] | None = None  # ids of the latest listing that was applied
        self._warned = ""

    def step(self) -> Step | None:
        """List the files and bring the index up to date; return None if no file has changed.

        Raises:
            NotFound: a folder is missing.
            InvalidInput: two files have the same id, or a value is not of its field's type. Before the first step has
                succeeded also: too many documents would be deleted.
            IndexLocked, StorageError: the index cannot be written now. The next step tries again.
        """
        from lightir.data.file_documents import listed_files
        from lightir.index import IndexWriter

        begun = time.monotonic()
        files = listed_files(self._paths, self._options)
        stamps = {doc_id: stamp for doc_id, path in files.items() if (stamp := _stamp(path)) is not None}
        self.listing_s = time.monotonic() - begun
        changed = {doc_id: files[doc_id] for doc_id, stamp in stamps.items() if self._read.get(doc_id) != stamp}
        if not changed and stamps.keys() == self._listed:
            return None
        first = self._listed is None
        with IndexWriter.open(self._index) as writer:
            if first:
                self._require_few_deletions(writer, stamps)
            step = self._apply(writer, changed, stamps, progress=first)
        self._listed = set(stamps)
        return step if first or step.added or step.renamed or step.removed else None

    def _apply(
        self, writer: IndexWriter, changed: Mapping[str, Path], stamps: Mapping[str, tuple[int, ...]], *, progress: bool
    ) -> Step:
        """Add, rename and delete documents."""
        moves: dict[str, str] = {}
        shards = renaming(self._shards(changed), writer, stamps, moves)
        n_added = writer.add_shards(shards, replace=True, size=BATCH_DOCUMENTS, progress=progress)
        reason = None if self._yes else why_not_delete(stored_ids(writer.view), stamps, len(stamps))
        if reason is not None:
            self.warn(f"{reason}; they stay. If that is intended, start the command with --yes")
            self._read |= stamps
            return Step(n_added, len(moves), 0, writer.info())
        self._warned = ""
        n_removed = writer.keep_only(stamps.keys())
        self._read = dict(stamps)
        return Step(n_added, len(moves), n_removed, writer.info())

    def _require_few_deletions(self, writer: IndexWriter, stamps: Mapping[str, object]) -> None:
        stored = [] if self._yes else stored_ids(writer.view)
        if stored and (reason := why_not_delete(stored, stamps, len(stamps))):
            raise InvalidInput(f"{reason}; nothing was changed. Check the paths, or give --yes")

    def _shards(self, changed: Mapping[str, Path]) -> Iterator[Shard]:
        from lightir.data.file_documents import readable_documents
        from lightir.index import document_shards

        files = ((path, doc_id) for doc_id, path in changed.items())
        documents = (document for _, document in readable_documents(files, self._options, SkippedFiles()))
        return document_shards(documents, size=BATCH_DOCUMENTS)

    def warn(self, message: str) -> None:
        """Print a warning, unless it is the latest one."""
        if message != self._warned:
            print_status(printable(f"{self._index}: {message}"))
        self._warned = message


def _stamp(path: Path) -> tuple[int, ...] | None:
    """Return time of change, size and number of a file; None if it has just been deleted."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def tell(args: argparse.Namespace, step: Step | None) -> None:
    """Print what a listing changed."""
    if step is None:
        return
    if args.json:
        print_json_line({"index": args.index, **asdict(step)})
        return
    parts = [f"{step.added:,} added or changed"] * bool(step.added)
    parts += [f"{step.renamed:,} renamed"] * bool(step.renamed) + [f"{step.removed:,} deleted"] * bool(step.removed)
    total = counted(step.info.documents, "document")
    print_status(f"{args.index}: {', '.join(parts) or 'up to date'}; {total} in total")
    print_pending(args.index, step.info)
