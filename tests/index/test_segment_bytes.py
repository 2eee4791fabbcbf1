"""The bytes of written segments are those of release 0.1.0, whatever writes them: a build, a change or a compaction."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest

from lightir.index import IndexOptions, IndexWriter, build_index, document_shards
from lightir.index.segments import join
from lightir.shards import Shard
from lightir.types import Document
from lightir.vectors import SparseVectors, row_starts
from small_collections import DIM, VOCAB_SIZE, WORDS, word_contract, word_table, write_folder

N = 60
GATHERERS = [importlib.import_module(f"lightir.index.{name}") for name in ("build", "change")]
WORDS_ALONE = IndexOptions(analyzer="words")


def documents(numbers: Iterable[int]) -> list[Document]:
    """Return documents by number; ids do not ascend with numbers, and one term of number 7 occurs 300 times."""
    return [
        Document(
            f"d{i * 37 % 101:03d}",
            " ".join(WORDS[1 + (i + j * j) % 7] for j in range(i % 9)) + " well" * (300 if i == 7 else i % 3),
            title=f"the {WORDS[1 + i % 5]}" if i % 4 else "",
        )
        for i in numbers
    ]


def encoded(numbers: Iterable[int]) -> Shard:
    """Return documents with dense vectors and impacts that any computer calculates alike."""
    chosen = list(numbers)
    grid = np.array(chosen)[:, None] * 7 + np.arange(DIM) * 3
    term_ids = [[t for t in range(VOCAB_SIZE) if (i + t * t) % 3 == 0] for i in chosen]
    flat = np.array([t for row in term_ids for t in row], np.uint32)
    weights = ((flat * 53 + 11) % 255 + 1).astype(np.uint8)
    sparse = SparseVectors(row_starts([len(row) for row in term_ids]), flat, weights, VOCAB_SIZE)
    return Shard(documents(chosen), ((grid % 23 - 11) / 8).astype(np.float16), sparse)


def built(folder: Path, options: IndexOptions = WORDS_ALONE) -> None:
    """Build from shards with vectors and one without."""
    source = [encoded(range(25)), encoded(range(25, 47)), Shard(documents(range(47, N)), None, None)]
    build_index(source, folder, options=options, contract=word_contract(), progress=False)


def built_of_terms(folder: Path, analyzer: str) -> None:
    """Build without vectors, of the model's terms."""
    encoder = write_folder(folder.with_name("encoder"), word_contract(), {"": {"embeddings": word_table()}})
    options = IndexOptions(analyzer=analyzer)
    build_index(document_shards(documents(range(N)), size=9), folder, options=options, query_encoder=encoder)


def changed(folder: Path, *, compact: bool) -> None:
    """Add, encode and delete documents, so that segments absorb others."""
    with IndexWriter.create(folder, options=IndexOptions(analyzer="words"), contract=word_contract()) as writer:
        first = encoded(range(20))
        writer.add(first.documents, dense=first.dense, sparse=first.sparse)
        writer.add(documents(range(20, 50)))
        late = encoded([21, 33, 48, 30, 29])
        assert writer.set_vectors(late.documents, dense=late.dense, sparse=late.sparse) == []
        writer.delete([document.doc_id for document in documents(range(0, 50, 4))])
        writer.add(documents(range(50, 53)))
        writer.upsert([Document("d000", "the cat"), *documents([51, 55])])
        if compact:
            writer.compact(progress=False)


CASES: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "words": (built, "c685141938518be3", "de8b8065d7e80f7e"),
    "int8": (
        lambda folder: built(folder, IndexOptions(dense_dtype="int8", analyzer="words")),
        "c50c45888037ff72",
        "203a51816544cd94",
    ),
    "copies": (
        lambda folder: built(folder, IndexOptions(dense_dtype="fp16+int8", analyzer="words")),
        "ca72c0ee1befbcb6",
        "ce3223d75a562a21",
    ),
    "top 2": (
        lambda folder: built(folder, IndexOptions(sparse_top_k=2, analyzer=None)),
        "9f2e268dbcaa5237",
        "a131d4ef467fd363",
    ),
    "segments of 7": (
        lambda folder: built(folder, IndexOptions(segment_documents=7, analyzer="words")),
        "e03ddcb88432c481",
        "e03ddcb88432c481",
    ),
    "model terms": (lambda folder: built_of_terms(folder, "model"), "5eff7c5901acadcb", "5ca7c5b7da8eb0ac"),
    "bags": (lambda folder: built_of_terms(folder, "bag"), "2d50e25e69277bbc", "5db03ced8a44ff39"),
    "changed": (lambda folder: changed(folder, compact=False), "f7524939c333c333", "5b0c472f94dd7a12"),
    "compacted": (lambda folder: changed(folder, compact=True), "b3936534fc1e70ba", "7ac9a01a98b3065e"),
}
"""The making of an index, and the checksums of its segments in release 0.1.0: written at once, and in pieces.

"changed" differs in one respect: counts that came from a segment with float32 counts have one byte each if all fit, as
the format says. Release 0.1.0 left them at four bytes if every term of that segment occurred.
"""


def checksum(folder: Path) -> str:
    """Return one checksum of all files of the segments; manifests hold those of the arrays' files."""
    digest = hashlib.sha256()
    for path in sorted((folder / "segments").rglob("manifest.json")):
        digest.update(path.parent.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("pieces", [False, True])
def test_segments_have_the_bytes_of_release_0_1_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, pieces: bool
) -> None:
    if pieces:  # written in pieces first, and then joined
        for module in GATHERERS:
            monkeypatch.setattr(module, "GATHERED_DOCUMENTS", 11)
        monkeypatch.setattr(join, "HELD_DOCUMENTS", 12)
        monkeypatch.setattr(join, "PIECE_DOCUMENTS", 6)
        monkeypatch.setattr(join, "PIECE_POSTINGS", 9)
    make, *expected = CASES[name]
    make(tmp_path / "index")
    assert checksum(tmp_path / "index") == expected[pieces]
