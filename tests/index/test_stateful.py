"""After any sequence of changes, an index holds and ranks the same documents as one built at once."""

from __future__ import annotations

import dataclasses
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from lightir.errors import InvalidInput
from lightir.index import Field, Index, IndexOptions, IndexWriter, Schema, build_index
from lightir.search import Searcher, SearchOptions
from lightir.shards import Shard
from lightir.types import Document, Query
from small_collections import VOCAB_SIZE, GivenVectors, csr, word_contract

IDS = ("a", "b", "c", "d", "é", "a0", "zz", "\U0001f40e")
SCHEMA = Schema({"kind": Field("keyword"), "n": Field("number")})
QUERIES = ("cat dog", "fish odd", "the well runs", "cat cat sleeps fish", "nothing here")
FILTER = {"n": {"gte": 1}, "not": {"kind": "odd"}}
CONTRACT = word_contract()

rng = np.random.default_rng(7)
ENCODER = GivenVectors(
    CONTRACT,
    {query: rng.integers(-2, 3, 4).astype(np.float32) for query in QUERIES},
    {query: {int(t): int(rng.integers(1, 3)) for t in rng.choice(VOCAB_SIZE, 3, False)} for query in QUERIES},
)


@dataclasses.dataclass(frozen=True)
class Stored:
    """A document of the model, with or without vectors."""

    document: Document
    dense: tuple[int, ...] | None
    sparse: dict[int, int] | None


texts = st.lists(st.sampled_from(["cat", "dog", "fish", "runs", "sleeps", "well"]), max_size=6).map(" ".join)
metadata = st.fixed_dictionaries({}, optional={"n": st.integers(0, 2), "kind": st.sampled_from(["odd", "even"])})
documents = st.builds(Document, st.sampled_from(IDS), texts, st.sampled_from(["", "the cat"]), metadata)
dense_rows = st.tuples(*[st.integers(-1, 1)] * 4)
sparse_rows = st.dictionaries(st.integers(0, VOCAB_SIZE - 1), st.integers(1, 3), max_size=4)
batches = st.lists(
    st.builds(Stored, documents, dense_rows, sparse_rows), max_size=5, unique_by=lambda stored: stored.document.doc_id
)


def vectors(stored: list[Stored]) -> dict[str, Any]:
    rows = csr([one.sparse or {} for one in stored], vocab_size=VOCAB_SIZE, dtype=np.uint8)
    return {"dense": np.array([one.dense for one in stored], np.float16).reshape(-1, 4), "sparse": rows}


def as_told(document: Document) -> tuple[str, str, str, str]:
    """Return a document as the store keeps it; the order of its metadata is significant."""
    return document.doc_id, document.title, document.text, json.dumps(document.metadata)


def matches(document: Document) -> bool:
    """Return whether a document matches FILTER, without the library's filters."""
    return document.metadata.get("n", 0) >= 1 and document.metadata.get("kind") != "odd"


class AnyHistory(RuleBasedStateMachine):
    """State machine that makes the same changes to an index and to a dictionary."""

    @initialize(segment_documents=st.sampled_from([3, 65_536]), boosts=st.sampled_from([{}, {"title": 3, "kind": 2}]))
    def begin(self, segment_documents: int, boosts: dict[str, int]) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.at_once = IndexOptions(analyzer="words", schema=SCHEMA, boosts=boosts)
        options = dataclasses.replace(self.at_once, segment_documents=segment_documents)
        build_index((), self.folder / "index", options=options, contract=CONTRACT, progress=False)
        self.model: dict[str, Stored] = {}
        self.writer = IndexWriter.open(self.folder / "index")
        self.index = Index.open(self.folder / "index")

    @rule(batch=batches, encoded=st.booleans())
    def add(self, batch: list[Stored], encoded: bool) -> None:
        batch = batch if encoded else [dataclasses.replace(stored, dense=None, sparse=None) for stored in batch]
        known = [stored for stored in batch if stored.document.doc_id in self.model]
        if known:
            with pytest.raises(InvalidInput, match="is already in the index"):
                self._write(self.writer.add, batch, encoded)
        batch = [stored for stored in batch if stored not in known]
        self._write(self.writer.add, batch, encoded)

    @rule(batch=batches, encoded=st.booleans())
    def upsert(self, batch: list[Stored], encoded: bool) -> None:
        if encoded:
            self._write(self.writer.upsert, batch, encoded)
            return
        n_changed = 0
        for document in (given.document for given in batch):
            stored = self.model.get(document.doc_id)
            same = stored is not None and as_told(stored.document)[:3] == as_told(document)[:3]
            n_changed += stored is None or as_told(stored.document) != as_told(document)
            self.model[document.doc_id] = (
                dataclasses.replace(stored, document=document) if stored and same else Stored(document, None, None)
            )
        assert self.writer.upsert([stored.document for stored in batch]) == n_changed

    def _write(self, put: Any, batch: list[Stored], encoded: bool) -> None:
        assert put([stored.document for stored in batch], **(vectors(batch) if encoded else {})) == len(batch)
        self.model |= {stored.document.doc_id: stored for stored in batch}

    @rule(doc_ids=st.lists(st.sampled_from([*IDS, "never"]), max_size=4))
    def delete(self, doc_ids: list[str]) -> None:
        assert self.writer.delete(doc_ids) == len(set(doc_ids) & set(self.model))
        for doc_id in doc_ids:
            self.model.pop(doc_id, None)

    @rule(changed=st.dictionaries(st.sampled_from(IDS), metadata, max_size=4))
    def set_metadata(self, changed: dict[str, dict[str, Any]]) -> None:
        n_changed = 0
        for doc_id in changed.keys() & self.model.keys():
            document = self.model[doc_id].document
            other = dataclasses.replace(document, metadata={**document.metadata, **changed[doc_id]})
            n_changed += other != document
            self.model[doc_id] = dataclasses.replace(self.model[doc_id], document=other)
        assert self.writer.set_metadata(changed, skip_missing=True) == n_changed

    @rule()
    def delete_where(self) -> None:
        gone = [doc_id for doc_id, stored in self.model.items() if matches(stored.document)]
        assert self.writer.delete_where(FILTER) == len(gone)
        for doc_id in gone:
            del self.model[doc_id]

    @rule(batch=batches)
    def set_vectors(self, batch: list[Stored]) -> None:
        """Set vectors of documents that are stored with the same text, with another text, and not at all."""
        told = [self.model.get(given.document.doc_id, given).document for given in batch[:3]]
        told += [given.document for given in batch[3:]]
        batch = [dataclasses.replace(given, document=document) for given, document in zip(batch, told, strict=True)]
        left = self.writer.set_vectors([given.document for given in batch], **vectors(batch))
        for given in batch:
            document, doc_id = given.document, given.document.doc_id
            stored = self.model.get(doc_id)
            same = stored and (stored.document.title, stored.document.text) == (document.title, document.text)
            assert (doc_id in left) == (not same)
            if stored and same:
                self.model[doc_id] = dataclasses.replace(given, document=stored.document)

    @rule()
    def compact(self) -> None:
        info = self.writer.compact(progress=False)
        assert info.deleted == 0
        assert info.segments <= -(-len(self.model) // 3)

    @rule()
    def come_back(self) -> None:
        self.writer.close()
        self.writer = IndexWriter.open(self.folder / "index")

    @rule()
    @precondition(lambda self: hasattr(self, "model"))
    def look(self) -> None:
        self.index.refresh()
        self.index.verify()
        info = self.index.info()
        pending = sorted(doc_id for doc_id, stored in self.model.items() if stored.dense is None)
        assert (info.documents, info.pending) == (len(self.model), len(pending))
        assert sorted(self.index.view.pending()) == pending
        held = [doc_id for doc_id in IDS if self.index.doc_ord(doc_id) is not None]
        assert held == [doc_id for doc_id in IDS if doc_id in self.model]
        assert self.index.documents(held) == [self.model[doc_id].document for doc_id in held]
        self._compare_rankings()

    def _compare_rankings(self) -> None:
        encoded = [stored for stored in self.model.values() if stored.dense is not None]
        waiting = [stored.document for stored in self.model.values() if stored.dense is None]
        shards = [Shard([stored.document for stored in encoded], **vectors(encoded))] if encoded else []
        fresh = self.folder / "fresh"
        source = [*shards, Shard(waiting, None, None)]
        build_index(source, fresh, options=self.at_once, contract=CONTRACT, progress=False, overwrite=True)
        queries = [Query(query, query) for query in QUERIES]
        with Index.open(fresh) as at_once:
            assert self.index.branches == at_once.branches
            modes = [*at_once.branches, *(["hybrid", "hybrid+tokens"] if encoded else [])]
            for mode in modes:
                for k, wanted in ((3, None), (100, None), (2, FILTER)):
                    actual, expected = (
                        Searcher(index, ENCODER).search(queries, k, SearchOptions(mode=mode, filter=wanted))
                        for index in (self.index, at_once)
                    )
                    for query in QUERIES:
                        assert list(actual[query].doc_ids) == list(expected[query].doc_ids), (mode, query)
                        np.testing.assert_array_equal(actual[query].scores, expected[query].scores)
                        if wanted is not None:
                            assert all(matches(self.model[doc_id].document) for doc_id in actual[query].doc_ids)

    @invariant()
    def old_views_stay(self) -> None:
        if hasattr(self, "index"):
            len(self.index)
            list(self.index.view.pending())

    def teardown(self) -> None:
        if hasattr(self, "writer"):
            self.look()
            self.writer.close()
            self.index.close()
            shutil.rmtree(self.folder)


def test_any_history_equals_an_index_built_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda descriptor: None)  # nothing crashes here
    few = settings(max_examples=15, stateful_step_count=15, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(AnyHistory, settings=few)
