"""Read a collection of an engine: its documents as a corpus, and their vectors."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lightir.data.stored_vectors import StoredVectors
from lightir.engines.engine import Engine
from lightir.errors import InvalidInput, NotFound
from lightir.progress import Progress
from lightir.types import Document

BATCH = 256


def read_collection(engine: Engine) -> tuple[list[Document], StoredVectors]:
    """Return the documents of a collection, and their dense vectors in the same order.

    Raises:
        NotFound: there is no such collection.
        InvalidInput: it has no dense vectors, no rows, or rows without text.
        EngineFailed: the engine failed.
    """
    collection = engine.collection()
    if collection is None:
        raise NotFound(f"{engine.address} does not exist")
    if collection.dense_dim is None:
        raise InvalidInput(f"{engine.address} has no dense vectors")
    documents: list[Document] = []
    blocks = []
    with Progress("read", unit="row", total=engine.count()) as progress:
        for rows in engine.rows(BATCH):
            assert rows.dense is not None
            documents += rows.documents
            blocks.append(rows.dense)
            progress.update(len(rows))
    if not documents:
        raise InvalidInput(f"{engine.address} has no rows")
    vectors = np.concatenate(blocks)
    return documents, StoredVectors(Path(str(engine.address)), vectors, [document.doc_id for document in documents])
