"""Columns that are patched after changes of metadata hold what a newly opened index reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lightir.index import Index, IndexOptions, IndexWriter
from lightir.index.listing import Listing, Sort
from lightir.index.stored_documents import StoredDocuments
from lightir.types import Document
from search.test_pages import SCHEMA, VALUES, random_documents


def answers(index: Index) -> list[object]:
    """Return what filters, facets and sorting say of an index."""
    listing = Listing.of(index.view, None)
    filters = [
        {"n": {"gte": 1}}, {"on": True}, {"brand": {"lt": "b"}}, {"day": "2024-01-01"}, {"n": {"exists": True}},
        {"brand": None}, {"n": {"in": [2**53, 0.5, 1e300]}}, {"free": {"in": ["a", 2**70, True, None]}},
    ]  # fmt: skip
    masks = [np.concatenate(index.view.matching(wanted) or []).tolist() for wanted in filters]
    facets = [listing.facet(name, 100) for name in VALUES]
    return [
        masks,
        facets,
        *(listing.sorted(Sort(name, down), 100).tolist() for name in VALUES for down in (False, True)),
    ]


@pytest.mark.parametrize("seed", range(6))
def test_patched_columns_equal_read_ones(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    documents = random_documents(rng, 30)
    with IndexWriter.create(tmp_path / "i", options=IndexOptions(schema=SCHEMA, segment_documents=20)) as writer:
        writer.add(documents)
    with Index.open(tmp_path / "i") as index:
        answers(index)
        ids = [document.doc_id for document in documents]
        for _ in range(6):
            some = rng.choice(ids, rng.integers(1, 8), replace=False).tolist()
            values = [document.metadata for document in random_documents(rng, len(some))]
            with IndexWriter.open(tmp_path / "i") as writer:
                if rng.random() < 0.3:
                    writer.delete(some[:1])
                if rng.random() < 0.3:
                    writer.upsert([Document(some[-1], "a new text", metadata=values[-1])])
                free = [2**70, "a", "z", True, None, 3, [1, "a"]]
                changes = {
                    doc_id: {**dict.fromkeys(VALUES), **changed, "free": free[int(rng.integers(7))]}
                    for doc_id, changed in zip(some, values, strict=True)
                }
                writer.set_metadata(changes, skip_missing=True)
            index.refresh()
            with Index.open(tmp_path / "i") as fresh:
                assert answers(index) == answers(fresh)


def test_only_changed_documents_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    n_read: list[int] = []
    read = StoredDocuments.values_of
    monkeypatch.setattr(
        StoredDocuments, "values_of", lambda self, path, keys: (n_read.append(len(keys)), read(self, path, keys))[1]
    )
    documents = [Document(str(i), "x", metadata={"n": i}) for i in range(50)]
    with IndexWriter.create(tmp_path / "i", options=IndexOptions(schema=SCHEMA)) as writer:
        writer.add(documents)
        with Index.open(tmp_path / "i") as index:
            for n in range(3):
                assert index.count({"n": {"gte": 100}}) == n
                writer.set_metadata({str(n): {"n": 100}})
                index.refresh()
    assert n_read == [50, 1, 1]
