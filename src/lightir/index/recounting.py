"""Stored documents whose words are counted anew, while they keep their vectors."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lightir.index.change import added_documents
from lightir.index.intake import Intake
from lightir.index.segments.rows import DenseMatrix, DocumentRows
from lightir.index.segments.segment import Segment
from lightir.index.text_fields import metadata_fields, metadata_texts
from lightir.index.view import View
from lightir.shards import Shard
from lightir.types import Document
from lightir.vectors import SparseVectors, row_entries


def with_other_words(view: View, documents: Mapping[int, Document]) -> dict[int, Document]:
    """Return the documents whose metadata have other words than the stored ones, in fields that BM25 counts.

    Args:
        view: state before the change.
        documents: documents with new metadata and the stored title and text, by key.
    """
    boosts = view.options.boosts
    if not metadata_fields(boosts):
        return {}
    stored = view.store.documents.of(documents)
    return {
        key: document
        for key, document in documents.items()
        if metadata_texts(document, boosts) != metadata_texts(stored[key], boosts)
    }


def recounted(view: View, intake: Intake, documents: Mapping[int, Document]) -> Iterator[DocumentRows]:
    """Yield rows of stored documents, with the words of new metadata and the stored vectors, under their old keys.

    Args:
        view: state before the change.
        intake: maker of rows.
        documents: documents with new metadata, by key.

    Raises:
        FormatError: a segment with vectors to copy is damaged.
    """
    keys = np.array(sorted(documents), dtype=np.int64)
    size = added_documents(view.options)
    for live in view.segments:
        at = np.flatnonzero(live.live & np.isin(live.segment.doc_keys, keys))
        if len(at):
            live.segment.verify()
        for some in (at[first : first + size] for first in range(0, len(at), size)):
            row_keys = live.segment.doc_keys[some]
            rows = rows_of(live.segment, some, [documents[key] for key in row_keys.tolist()], intake)
            yield dataclasses.replace(rows, doc_keys=row_keys)


def rows_of(segment: Segment, at: npt.NDArray[np.int64], documents: Sequence[Document], intake: Intake) -> DocumentRows:
    """Return rows of documents without keys: their words are counted, their vectors copied from a segment.

    Args:
        segment: verified segment.
        at: (n,) rows of the segment.
        documents: n documents with the titles and texts of these rows.
        intake: maker of rows.
    """
    counted = intake.rows(Shard(documents, None, None))
    dense, stored, sparse = segment.rows().dense, segment.sparse, None
    if dense is not None:
        values: Any = dense.rows[at]
        dense = DenseMatrix(values, None if dense.scales is None else dense.scales[at])
    if stored is not None:
        indptr, entries = row_entries(stored.indptr, at)
        sparse = SparseVectors(indptr, stored.term_ids[entries], stored.weights[entries], stored.postings.vocab_size)
    return dataclasses.replace(counted, pending=segment.pending[at], dense=dense, sparse=sparse)
