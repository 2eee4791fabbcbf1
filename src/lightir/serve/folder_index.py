"""The index of a served folder: where it is, and its first documents, so that searches are answered at once."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from lightir.addresses import cache_folder, resolve_model_folder, resolve_query_encoder, shipped_models
from lightir.contract import Contract
from lightir.data.file_documents import listed_files, readable_documents
from lightir.data.formats.file_text import WITH_PICTURES, format_suffix
from lightir.data.readers import are_files, is_empty_folder
from lightir.errors import AlreadyExists, InvalidInput, LightirError
from lightir.files import make_folder
from lightir.index import Field, Index, IndexOptions, PassageOptions, Schema, build_index, document_shards
from lightir.index.store_file import STORE_FILE
from lightir.lines import ReadOptions, SkippedFiles
from lightir.pending.encoder_folder import encoder_folder
from lightir.types import Document

DEFAULT_MODEL = "minilm"

FIRST_S = 0.5
"""Time for reading the documents that a new index has when its service starts."""

FIRST_DOCUMENTS = 500
"""Maximum number of these documents."""

SMALL_BYTES = 1 << 18
"""Size of a text file that is read in milliseconds."""

FILE_FIELDS = {
    "folder": Field("keyword"),
    "type": Field("keyword"),
    "modified": Field("date"),
    "pages": Field("number"),
    "author": Field("keyword"),
}
"""Types of the metadata of files. Further fields have none, so that no file's values can be of a wrong type."""


@dataclass(frozen=True, slots=True)
class FolderOptions:
    """Options of serving a folder of files.

    Attributes:
        index: index folder; None for one in the cache folder, see `default_index`.
        model: model whose queries the index answers, and that encodes its documents; None for that of an existing
            index, and for a new one the installed model DEFAULT_MODEL, or none without it.
        watch: whether to follow changes of the files; otherwise they are read once.
        encode: whether to encode pending documents.
        delete_any: whether any number of documents may be deleted; see lightir add --mirror --yes.
        reading: how files are read.
    """

    index: Path | None = None
    model: str | None = None
    watch: bool = False
    encode: bool = True
    delete_any: bool = False
    reading: ReadOptions = field(default_factory=ReadOptions)


def is_index(target: Path) -> bool:
    """Return whether a path is an index folder."""
    return (target / STORE_FILE).is_file()


def default_index(folder: Path) -> Path:
    """Return where the index of a folder is: in the cache folder, under the folder's name and a hash of its path."""
    path = folder.resolve()
    digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:12]
    return cache_folder() / "folders" / f"{path.name}-{digest}"


def prepare_index(folder: Path, options: FolderOptions) -> Path:
    """Return the index folder of a folder of files; build it with the first documents if there is none.

    Raises:
        NotFound: there is no such model.
        InvalidInput: the folder's documents are not its files; the index is among these, or has other documents.
        ContractMismatch: the index was built for another model.
        StorageError: the system refuses to write the index.
    """
    if not folder.resolve().name:
        raise InvalidInput(f"{folder} is the root of the file system; choose a folder in it")
    waits = options.watch and is_empty_folder(folder, options=options.reading)  # files may arrive
    if not waits and (not folder.is_dir() or not are_files(str(folder), options=options.reading)):
        raise InvalidInput(
            f"{folder} is neither an index (no {STORE_FILE}) nor a folder of files; make an index of it first: "
            f"lightir index {folder} --out index"
        )
    index = default_index(folder) if options.index is None else options.index
    _require_elsewhere(folder, index)
    if not is_index(index):
        with suppress(AlreadyExists):  # another process has built it meanwhile
            _build(folder, index, options)
    with Index.open(index) as opened:
        if options.model is not None:
            encoder_folder(opened, options.model)
        _require_own(opened, folder)
    return index


def _require_elsewhere(folder: Path, index: Path) -> None:
    """Refuse an index whose files would be documents of the folder."""
    home, path = folder.resolve(), index.resolve()
    if path.is_relative_to(home) and not any(part.startswith(".") for part in path.relative_to(home).parts):
        raise InvalidInput(
            f"the index {index} is among the files of {folder}; choose a folder elsewhere with --index, or a hidden one"
        )


def _require_own(index: Index, folder: Path) -> None:
    """Refuse an index of other documents, which following the folder would delete."""
    name = folder.resolve().name
    first, last = index.ids(limit=1), index.ids(after=f"{name}/\U0010ffff", limit=1)
    other = next((doc_id for doc_id in (*first, *last) if not doc_id.startswith(f"{name}/")), None)
    if other is not None:
        raise InvalidInput(
            f"{index.folder} has the document {other[:200]!r}, which is no file of {folder}; choose another index "
            "with --index"
        )


def _build(folder: Path, index: Path, options: FolderOptions) -> None:
    model = options.model
    if model is None and DEFAULT_MODEL in shipped_models():
        model = DEFAULT_MODEL
    contract = None if model is None else Contract.load(resolve_model_folder(model))
    if options.index is None:
        _make_private(index.parent)
    else:
        make_folder(index.parent)
    build_index(
        document_shards(first_documents(folder, options.reading)),
        index,
        options=IndexOptions(schema=Schema(FILE_FIELDS), passages=PassageOptions()),
        contract=contract,
        query_encoder=None if model is None else resolve_query_encoder(model),
        progress=False,
    )


def _make_private(folder: Path) -> None:
    """Create a folder that nobody else may read, since indexes contain the texts of their documents."""
    make_folder(folder)
    folder.chmod(0o700)


def first_documents(folder: Path, options: ReadOptions) -> Iterator[Document]:
    """Yield documents of a folder's files for FIRST_S; those that are read fast come first.

    Files that cannot be read are left to the command that reads all of them, and reports them.
    """
    until = time.monotonic() + FIRST_S
    strict = dataclasses.replace(options, strict=True, skipped=None)
    n_read = 0
    for path, doc_id in sorted(((path, doc_id) for doc_id, path in listed_files([folder], options).items()), key=_cost):
        if n_read == FIRST_DOCUMENTS or time.monotonic() > until:
            return
        with suppress(LightirError):
            yield from (document for _, document in readable_documents([(path, doc_id)], strict, SkippedFiles()))
            n_read += 1


def _cost(file: tuple[Path, str]) -> int:
    """Return a number by which small texts come first, in the order of the folder, and then others by size."""
    try:
        size = file[0].stat().st_size
    except OSError:
        return 0
    small = size <= SMALL_BYTES and format_suffix(file[0]) not in WITH_PICTURES
    return 0 if small else size
