"""Random indexes with deleted, pending and long documents, and the searchers of their shards."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lightir.index import Field, Index, IndexOptions, IndexWriter, PassageOptions, Schema
from lightir.index.splitting import ShardedManifest
from lightir.search import Searcher
from lightir.search.shard_set import LocalShards
from lightir.search.sharded import ShardedSearcher
from lightir.types import Document
from pending_documents import FakeEncoder
from small_collections import WORDS, word_contract, word_table, write_folder

SCHEMA = Schema({"n": Field("number"), "brand": Field("keyword"), "ean": Field("keyword", key=True)})


def random_documents(rng: np.random.Generator, n: int, *, long: bool = False) -> list[Document]:
    """Documents of few different words, so that many scores tie, in no order of their ids."""
    documents = []
    for number in rng.permutation(3 * n)[:n].tolist():
        metadata = {"n": int(rng.integers(0, 4)), "ean": f"E-{number % 11}" if number % 2 else f"e-{number % 11}"}
        if rng.random() < 0.7:
            metadata["brand"] = str(rng.choice(["a", "b", "B"]))
        length = int(rng.integers(0, 60 if long and rng.random() < 0.4 else 6))
        name = f"D-{number}" if rng.random() < 0.2 else f"d-{number}"
        documents.append(Document(name, " ".join(rng.choice(WORDS[1:], length)), metadata=metadata))
    return documents


def build_random(folder: Path, seed: int, n: int, *, model: bool, encoded: float = 1.0, long: bool = False) -> None:
    """Build an index in several changes.

    Args:
        folder: index folder.
        seed: seed of the documents.
        n: number of documents, of which some are deleted.
        model: whether it has a model.
        encoded: share of the documents that have vectors.
        long: whether some documents are stored as passages.
    """
    rng = np.random.default_rng(seed)
    documents = random_documents(rng, n, long=long)
    passages = PassageOptions(tokens=16) if long else None
    options = IndexOptions(analyzer="english", schema=SCHEMA, segment_documents=7, passages=passages)
    contract, query_encoder = None, None
    if model:
        contract = word_contract()
        query_encoder = write_folder(folder.with_name("encoder"), contract, {"": {"embeddings": word_table()}})
    with IndexWriter.create(folder, options=options, contract=contract, query_encoder=query_encoder) as writer:
        for start in range(0, n, 9):
            writer.add(documents[start : start + 9])
        writer.delete({document.doc_id for document in documents if rng.random() < 0.2})
        if model:
            stored = [writer.view.documents([doc_id])[0] for doc_id in sorted(writer.view.pending())]
            chosen = [document for document in stored if rng.random() < encoded]
            for start in range(0, len(chosen), 11):
                vectors = FakeEncoder().encode(chosen[start : start + 11])
                assert vectors.dense is not None
                assert writer.set_vectors(vectors.documents, dense=vectors.dense, sparse=vectors.sparse) == []


class Pickled(LocalShards):
    """Shards whose questions and answers are pickled, as between machines; some may not answer."""

    silent: frozenset[int] = frozenset()

    def ask(self, method: str, questions: Mapping[int, Any]) -> Mapping[int, Any]:
        asked = {n: pickle.loads(pickle.dumps(question)) for n, question in questions.items() if n not in self.silent}
        answers: Mapping[int, Any] = pickle.loads(pickle.dumps(super().ask(method, asked)))
        return answers


@contextlib.contextmanager
def opened(manifest: ShardedManifest) -> Iterator[tuple[ShardedSearcher, Pickled]]:
    """Open all shards in this process."""
    shards = Pickled.open(manifest)
    with ShardedSearcher(shards, manifest.branches, passages=manifest.passages) as searcher:
        yield searcher, shards


@contextlib.contextmanager
def whole(folder: Path) -> Iterator[Searcher]:
    """Open an index that was not split."""
    with Index.open(folder) as index:
        yield Searcher(index)
