"""Hits that the kernel makes are those of the readable twin; rows and terms that they are made of are right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from lightir.errors import InvalidInput
from lightir.index import Index, IndexOptions, build_index, document_shards
from lightir.index.stored_documents import FEW_KEYS
from lightir.kernel import _native
from lightir.kernel.candidates import BranchColumn, Candidates
from lightir.kernel.hits import make_hits
from lightir.search.encoding import QueryCoding
from lightir.search.explain import branch_scores, make_hit
from lightir.search.snippets import Snippet
from lightir.search.word_matching import EXACT_WORDS, WordMatching
from lightir.types import BranchScore, Document, Hit

scores = st.one_of(st.just(float("nan")), st.floats(-4, 4, width=32))
rows = st.tuples(
    st.floats(-4, 4), st.booleans(), st.booleans(), *[st.tuples(scores, scores, st.integers(0, 3)) for _ in range(3)]
)
BRANCHES = ("dense", "sparse", "tokens")


@settings(max_examples=100)
@given(st.lists(rows, max_size=4), st.integers(0, 3))
def test_hits_of_the_kernel_are_those_of_the_twin(given_rows: list[Any], n_branches: int) -> None:
    columns = {
        name: BranchColumn(
            np.array([row[3 + b][0] for row in given_rows], np.float32),
            np.array([row[3 + b][1] for row in given_rows], np.float64),
            np.array([row[3 + b][2] for row in given_rows], np.int64),
            0.25 * b,
        )
        for b, name in enumerate(BRANCHES[:n_branches])
    }
    totals = np.array([row[0] for row in given_rows], np.float64)
    candidates = Candidates(np.arange(len(given_rows), dtype=np.uint32), totals, columns)
    pending, named = [row[1] for row in given_rows], [row[2] for row in given_rows]
    documents = [Document(f"é{i}", "text", "title" * i, {"n": i}) for i in range(len(given_rows))]
    passages = [("…text", ((1, 3),) * i) for i in range(len(given_rows))]
    parts = branch_scores(candidates, pending)
    expected = [
        make_hit(document, float(totals[i]), parts[i], Snippet(*passages[i]), [], pending=pending[i], named=named[i])
        for i, document in enumerate(documents)
    ]
    shown = [(document.doc_id, document.title, dict(document.metadata)) for document in documents]
    assert make_hits(shown, passages, candidates, pending=pending, named=named) == expected
    if not any(pending) and not any(named):
        assert make_hits(shown, passages, candidates) == expected


def test_a_hit_maker_refuses_lists_of_different_lengths() -> None:
    maker = _native.HitMaker(Hit, BranchScore)
    document, passage, one = ("a", "", {}), ("text", ()), np.zeros(1)
    column = ("dense", 1.0, np.zeros(1, np.float32), one, np.zeros(1, np.int64))
    assert len(maker.make([document], [passage], one, [column], None, None)) == 1
    with pytest.raises(InvalidInput, match="documents and passages"):
        maker.make([document], [], one, [], None, None)
    with pytest.raises(InvalidInput, match="documents and scores"):
        maker.make([document], [passage], np.zeros(2), [], None, None)
    with pytest.raises(InvalidInput, match="a branch's ranks"):
        maker.make([document], [passage], one, [(*column[:4], np.zeros(0, np.int64))], None, None)
    with pytest.raises(InvalidInput, match="flags"):
        maker.make([document], [passage], one, [], [], None)
    with pytest.raises(InvalidInput, match="id, title, metadata"):
        maker.make([("a", "")], [passage], one, [], None, None)  # type: ignore[list-item]
    with pytest.raises(InvalidInput, match="snippet, highlights"):
        maker.make([document], [("text",)], one, [], None, None)  # type: ignore[list-item]


def test_documents_are_read_by_any_number_of_keys(tmp_path: Path) -> None:
    documents = [Document(f"d{i:03}", f"text {i}", "é" * (i % 3), {"n": i} if i % 2 else {}) for i in range(200)]
    build_index(document_shards(documents), tmp_path / "index", progress=False)
    with Index.open(tmp_path / "index") as index:
        stored = index.view.store.documents
        keys = [row[0] for row in stored.ids_by_key()][::-1]
        for n in (0, 1, 2, FEW_KEYS, FEW_KEYS + 1, 200):
            asked = [*keys[:n], 10**12]  # a key that is not there
            expected = {key: documents[int(key) - min(keys)] for key in keys[:n]}
            assert list(stored.of(asked).items()) == list(expected.items())
            fields = {
                key: (doc.doc_id, doc.text, doc.title, json.loads(json.dumps(doc.metadata)))
                for key, doc in expected.items()
            }
            assert list(stored.fields_of(asked).items()) == list(fields.items())


@pytest.mark.parametrize("matching", [EXACT_WORDS, WordMatching(), WordMatching(as_you_type=True)])
@pytest.mark.parametrize("analyzer", ["auto", "english", "german", "chinese", "words"])
def test_a_query_is_analyzed_as_snippets_want_it(tmp_path: Path, matching: WordMatching, analyzer: str) -> None:
    documents = [Document("a", "what the steel kettle holds"), Document("b", "水壶 kettles of the WHO")]
    options = IndexOptions(analyzer=analyzer)
    build_index(document_shards(documents), tmp_path / "index", options=options, progress=False)
    queries = ["", "What is a kettel?", "WHO held 水壶 kettles", "what", "WHAT WHO", "Übung mit Stahl-Kesseln x"]
    with Index.open(tmp_path / "index") as index:
        words = QueryCoding(None, None, None, matching=matching).words(index.view, queries)
        assert words.analyzed == index.view.word_analyzer.terms(queries)
