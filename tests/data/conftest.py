"""A small BEIR folder, and the real ones where they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from real_collections import real_collection


@pytest.fixture
def beir(tmp_path: Path) -> Path:
    """40 documents; 24 train queries with one to three positives, 4 test queries."""
    folder = tmp_path / "tiny"
    (folder / "qrels").mkdir(parents=True)
    documents = [{"_id": f"d{i}", "title": f"t{i}", "text": f"text of {i}"} for i in range(40)]
    queries = [{"_id": f"q{i}", "text": f"question number {i}"} for i in range(28)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(document) + "\n" for document in documents))
    (folder / "queries.jsonl").write_text("".join(json.dumps(query) + "\n" for query in queries))
    head = "query-id\tcorpus-id\tscore\n"
    train = [f"q{i}\td{(i + j) % 40}\t{1 if j <= i % 3 else 0}\n" for i in range(24) for j in range(4)]
    (folder / "qrels" / "train.tsv").write_text(head + "".join(train))
    (folder / "qrels" / "test.tsv").write_text(head + "".join(f"q{i}\td{i}\t1\n" for i in range(24, 28)))
    return folder


@pytest.fixture(scope="session")
def collections() -> Path:
    """The folder of real collections."""
    return real_collection("scifact").parent
