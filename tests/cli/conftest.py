"""A small data set, a BM25 index of it, and a way to call the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

TOPICS = ("river", "engine", "planet", "bread", "piano", "forest", "bridge", "winter", "copper", "island")
Lightir = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def lightir() -> Lightir:
    """Return a function that runs `python -m lightir` in its own process."""

    def call(*arguments: object, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "lightir", *map(str, arguments)]
        return subprocess.run(
            command, input=stdin, capture_output=True, text=True, timeout=300, env={**os.environ, **environment}
        )

    return call


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BEIR folder: per topic one document, two train queries and one test query."""
    folder = tmp_path_factory.mktemp("data") / "topics"
    (folder / "qrels").mkdir(parents=True)
    documents, queries, judged = [], [], {"train": [], "test": []}
    for topic in TOPICS:
        documents.append({"_id": f"d-{topic}", "title": topic, "text": f"All about the {topic}, twice: {topic}."})
        for name, split in (("what", "train"), ("where", "train"), ("which", "test")):
            queries.append({"_id": f"{name}-{topic}", "text": f"{name} {topic} twice"})
            judged[split].append(f"{name}-{topic}\td-{topic}\t1")
    for name, records in (("corpus", documents), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    for split, lines in judged.items():
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *lines]) + "\n")
    return folder


@pytest.fixture(scope="session")
def bm25_index(dataset: Path, tmp_path_factory: pytest.TempPathFactory, lightir: Lightir) -> Path:
    """A BM25 index of the data set."""
    index = tmp_path_factory.mktemp("bm25") / "index"
    done = lightir("index", dataset, "--out", index)
    assert done.returncode == 0, done.stderr
    return index
