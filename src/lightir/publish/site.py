"""Publish an index as static files: search on any web host, without a server's program."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from lightir.contract import Contract
from lightir.errors import InvalidInput
from lightir.files import atomic_folder, write_bytes
from lightir.index import Index, View
from lightir.index.text_fields import metadata_texts
from lightir.progress import Progress
from lightir.publish.counted_files import analyzer_settings, require_words, write_counted, write_word_map
from lightir.publish.document_files import documents_of, write_documents
from lightir.publish.field_files import write_fields
from lightir.publish.live_rows import LiveRows
from lightir.publish.parts import PART_BYTES, PartWriter
from lightir.publish.table_files import write_table
from lightir.publish.vector_files import write_vectors
from lightir.search.plan import default_depth, plan, span
from lightir.search.prepared import scale_of
from lightir.search.search_options import SearchOptions, fusion_text
from lightir.types import Branch, Document
from lightir.vectors import Floats
from lightir.version import __version__

MANIFEST = "search.json"
FORMAT_VERSION = 2
PUBLISHED: tuple[Branch, ...] = ("dense", "tokens")
"""Branches that a page can search."""

N_PASSAGES = 2000
PASSAGE_WORDS = (2, 12)
PASSAGE_CHARACTERS = 80
"""Number of passages that stand for queries, and their range of words and maximum length."""

FUSIONS = ("absolute", "linear", "linear:min-max", "linear:z-score", "rrf", "dbsf")
"""Fusion methods that a page offers."""


@dataclass(frozen=True, slots=True)
class Publication:
    """A published folder, with counts of its content.

    Attributes:
        folder: folder of the files.
        documents: number of documents.
        branches: branches that the page searches.
        left_out: branches of the index that the page does not search.
        n_files: number of files.
        n_bytes: size of all files.
    """

    folder: Path
    documents: int
    branches: tuple[Branch, ...]
    left_out: tuple[Branch, ...]
    n_files: int
    n_bytes: int


def publish_index(
    index: Index,
    out: Path | str,
    *,
    mode: str | None = None,
    task: str | None = None,
    overwrite: bool = False,
    progress: bool = True,
) -> Publication:
    """Write an index as files of a web host, with a page that searches them.

    All titles, texts and metadata become public with them.

    Args:
        index: opened index.
        out: folder to write.
        mode: branches to publish: "dense", "tokens" or "dense+tokens"; None for those of the index.
        task: name of the query encoder's table; None for its default.
        overwrite: replace a folder that was published before.
        progress: show the progress.

    Raises:
        InvalidInput: an empty index, pending documents, or a branch that pages cannot search.
        NotFound: unknown task.
        AlreadyExists: the folder exists, and overwrite is off or it holds no publication.
        WriteFailed: the disk is full or broken.
    """
    view = index.view
    branches = _branches(view, mode)
    out = Path(out)
    with atomic_folder(out, overwrite=overwrite, replaces=MANIFEST) as folder:
        _copy_page(folder)
        rows = LiveRows(view)
        manifest = _write_data(folder, rows, branches, index, task=task, progress=progress)
        write_bytes(folder / MANIFEST, json.dumps(manifest, ensure_ascii=False, separators=(",", ":")).encode())
    sizes = [path.stat().st_size for path in out.rglob("*") if path.is_file()]
    left_out = tuple(branch for branch in view.branches if branch not in branches)
    return Publication(out, view.n_documents, branches, left_out, len(sizes), sum(sizes))


def _branches(view: View, mode: str | None) -> tuple[Branch, ...]:
    """Return the branches to publish."""
    name = view.folder.name
    if not len(view):
        raise InvalidInput(f"index {name} has no documents to publish; add some with: lightir add")
    asked = PUBLISHED if mode is None else tuple(mode.split("+"))
    if unknown := [branch for branch in asked if branch not in PUBLISHED]:
        raise InvalidInput(f"a published page has no {unknown[0]} branch; it has {' and '.join(PUBLISHED)}")
    branches = tuple(branch for branch in PUBLISHED if branch in asked and branch in view.branches)
    if lacking := [branch for branch in asked if mode is not None and branch not in branches]:
        raise InvalidInput(f"index {name} has no {lacking[0]} branch; it has {', '.join(view.branches)}")
    if not branches:
        raise InvalidInput(f"index {name} has {', '.join(view.branches)}; a page searches {' and '.join(PUBLISHED)}")
    if "tokens" in branches:
        require_words(f"index {name}", view.counts_model_terms)
    if view.n_pending and "dense" in branches:
        raise InvalidInput(
            f"{view.n_pending:,} of {len(view):,} documents in {name} have no vectors yet, and a published page would "
            "not find them by meaning. Encode them (lightir worker), or publish words alone: --mode tokens"
        )
    return branches


def _write_data(
    folder: Path, rows: LiveRows, branches: tuple[Branch, ...], index: Index, *, task: str | None, progress: bool
) -> dict[str, Any]:
    """Write the files that the page reads; return the manifest."""
    view = rows.view
    data = folder / "data"
    data.mkdir()
    writer = PartWriter(data)
    manifest: dict[str, Any] = {
        "format_version": FORMAT_VERSION,
        "version": __version__,
        "name": view.folder.name,
        "documents": len(rows),
        "counts": {"documents": view.n_documents, "passages": view.n_passages, "encoded": len(rows) - view.n_pending},
        "has_passages": view.has_passages,
        "branches": branches,
        "default_mode": "hybrid" if len(branches) > 1 else branches[0],
        "model": None if view.contract is None else _public_name(view.contract.backbone.address),
        "fusions": _fusions(branches, view.contract) if len(branches) > 1 else {},
    }
    texts = (text for document in documents_of(rows) for text in _counted_texts(document, view))
    has_map = write_word_map(writer, view.word_analyzer, texts)
    manifest["analyzer"] = {**analyzer_settings(view.word_analyzer), "has_map": has_map}
    if "tokens" in branches:
        manifest["bm25"] = write_counted(writer, rows)
    if "dense" in branches:
        manifest["query"] = _write_query_side(writer, index, task)
        manifest["dense"] = write_vectors(writer, rows.dense(), _passage_vectors(rows, index, task))
    manifest["fields"] = write_fields(writer, rows)
    with Progress("publish", unit="document", total=len(rows), shown=progress) as shown:
        write_documents(writer, rows, shown.update)
    data.rename(folder / f"data-{writer.digest}")
    return {**manifest, "folder": f"data-{writer.digest}", "part_bytes": PART_BYTES, "files": writer.files}


def _public_name(address: str) -> str:
    """Return the name of a model without the folders of this machine that it is in."""
    return Path(address).name if address.startswith(("/", "~", ".")) else address


def _counted_texts(document: Document, view: View) -> tuple[str, ...]:
    return (document.title, document.text, *metadata_texts(document, view.options.boosts))


def _write_query_side(writer: PartWriter, index: Index, task: str | None) -> dict[str, Any]:
    encoder = index.query_encoder()
    if encoder is None or not encoder.tables:
        raise InvalidInput(
            f"index {index.folder.name} has no query table, so a page cannot search its vectors. "
            "Publish words alone: --mode tokens"
        )
    return write_table(writer, encoder, index.view.dense_dim or 0, task)


def _passage_vectors(rows: LiveRows, index: Index, task: str | None) -> Floats:
    """Return (n, dim) query vectors of short passages of the documents, n at least 1."""
    encoder = index.query_encoder()
    assert encoder is not None  # its table was written
    passages = []
    rng = np.random.default_rng(0)
    step = -(-len(rows) // N_PASSAGES)
    for document in rows.view.documents_at(rows.doc_ords[::step]):
        words = f"{document.title} {document.text}".split()
        length = int(rng.integers(*PASSAGE_WORDS))
        start = int(rng.integers(0, max(1, len(words) - length + 1)))
        passages.append(" ".join(words[start : start + length])[:PASSAGE_CHARACTERS])
    vectors = encoder.encode(passages, task=task).dense
    assert vectors is not None  # the index has a dense branch
    return vectors[:, : index.view.dense_dim]


def _fusions(branches: tuple[Branch, ...], contract: Contract | None) -> dict[str, Any]:
    """Return each fusion that the page offers by its name; "" is the default one."""
    fusions = {}
    for name in ("", *FUSIONS):
        try:
            chosen = plan(branches, contract, SearchOptions(fusion=name or None)).fusion
        except InvalidInput:  # "absolute" without a score that is known to be the best
            continue
        fusions[name] = {
            "name": fusion_text(chosen),
            "scale": scale_of(chosen),
            "weights": dict(chosen.weights),
            "rrf_k": chosen.rrf_k,
            "spans": {branch: span(chosen, contract, branch) for branch in branches},
            "depth": default_depth(chosen),
        }
    return fusions


def _copy_page(folder: Path) -> None:
    """Copy the element, the script that searches, and the page that shows both."""
    page, own = files("lightir.serve").joinpath("page"), files("lightir.publish").joinpath("page")
    for name in ("page", "published"):
        (folder / name).mkdir()
    for file in page.iterdir():
        if file.name not in ("index.html", "page.js"):
            write_bytes(folder / "page" / file.name, file.read_bytes())
    for file in own.iterdir():
        target = folder if file.name in ("index.html", "lightir-search.js") else folder / "published"
        write_bytes(target / file.name, file.read_bytes())
