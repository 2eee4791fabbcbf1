"""Collections and topics for Anserini, by their definition, and searched by Anserini itself where it is."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from lightir.errors import AlreadyExists, InvalidInput
from lightir.eval import read_run
from lightir.index import Index, IndexWriter, build_index
from lightir.index.exchange import anserini_export, export_anserini, write_topics
from lightir.query import CachedQueryEncoder
from lightir.search import Searcher, SearchOptions
from lightir.shards import Shard
from lightir.types import Document, Query
from small_collections import DIM, VOCAB_SIZE, WORDS, animal_shard, csr, word_contract, word_table, write_folder

JAVA, JAR = os.environ.get("LIGHTIR_JAVA"), os.environ.get("LIGHTIR_ANSERINI")
needs_anserini = pytest.mark.skipif(
    not (JAVA and JAR), reason="needs Anserini: its jar in LIGHTIR_ANSERINI, a java program in LIGHTIR_JAVA"
)


def make_index(folder: Path, shard: Shard, **encoder: object) -> Path:
    """Build an index of a shard with the word tokenizer's query encoder."""
    weights = encoder.pop("term_weights", None)
    tables = {"": {"embeddings": word_table()}}
    query_encoder = write_folder(folder / "q", word_contract(**encoder), tables, term_weights=weights)  # type: ignore[arg-type]
    build_index([shard], folder / "index", query_encoder=query_encoder, progress=False)
    return folder / "index"


def records(folder: Path) -> dict[str, dict[str, object]]:
    """Read all lines of a collection by id."""
    lines = [line for path in sorted(folder.iterdir()) for line in path.read_text().splitlines()]
    actual = {record.get("id", record.get("docid")): record for record in map(json.loads, lines)}
    assert len(actual) == len(lines)
    return actual


def random_shard(n: int, seed: int = 0) -> Shard:
    """Documents with impacts and dense rows of length 1; ids without blanks, which Anserini's runs cannot hold."""
    rng = np.random.default_rng(seed)
    rows = [
        {int(t): int(rng.integers(1, 256)) for t in rng.choice(np.arange(1, VOCAB_SIZE), 4, False)} for _ in range(n)
    ]
    dense = rng.standard_normal((n, DIM)).astype(np.float32)
    dense /= np.linalg.norm(dense, axis=1, keepdims=True)
    documents = [Document(f"d{i:03d}", f"text {i}") for i in range(n)]
    return Shard(documents, dense.astype(np.float16), csr(rows, vocab_size=VOCAB_SIZE, dtype=np.uint8))


def test_sparse_collection_has_the_impacts_of_encoded_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = animal_shard()
    index_folder = make_index(tmp_path, shard)
    with IndexWriter.open(index_folder) as writer:
        writer.add([Document("pending", "the cat")])
    monkeypatch.setattr(anserini_export, "FILE_DOCUMENTS", 2)
    with Index.open(index_folder) as index:
        report = export_anserini(index.view, tmp_path / "out", texts=True)
        with pytest.raises(AlreadyExists):
            export_anserini(index.view, tmp_path / "out")
    assert (report.branch, report.documents, report.files, report.pending) == ("sparse", 3, 2, 1)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["vectors-00000.jsonl", "vectors-00001.jsonl"]
    assert shard.sparse is not None
    expected = {}
    for i, document in enumerate(shard.documents):
        terms, impacts = shard.sparse.row(i)
        vector = {WORDS[term]: impact for term, impact in zip(terms.tolist(), impacts.tolist(), strict=True)}
        expected[document.doc_id] = {"id": document.doc_id, "contents": document.full_text(), "vector": vector}
    assert records(tmp_path / "out") == expected


def test_dense_collection_has_the_stored_rows(tmp_path: Path) -> None:
    shard = animal_shard()
    with Index.open(make_index(tmp_path, shard)) as index:
        export_anserini(index.view, tmp_path / "out", branch="dense")
        actual = records(tmp_path / "out")
    assert shard.dense is not None
    rows = {document.doc_id: row for document, row in zip(shard.documents, shard.dense.tolist(), strict=True)}
    assert actual == {doc_id: {"docid": doc_id, "contents": "", "vector": row} for doc_id, row in rows.items()}


def topics(folder: Path, queries: Mapping[str, str]) -> tuple[object, dict[str, list[str]]]:
    """Write queries as topics; return the report, and the terms by query id."""
    encoder = CachedQueryEncoder.load(folder)
    report = write_topics(encoder, [Query(*query) for query in queries.items()], folder.parent / "topics.tsv")
    lines = (folder.parent / "topics.tsv").read_text().splitlines()
    return report, {name: text.split(" ") for name, text in (line.split("\t") for line in lines)}


def test_topics_repeat_terms_as_often_as_they_weigh(tmp_path: Path) -> None:
    index = make_index(tmp_path, animal_shard())
    report, actual = topics(index, {"1": "the cat and the dog", "2": "xyz", "3": "cat cat cat"})
    assert {name: sorted(terms) for name, terms in actual.items()} == {
        "1": ["cat", "dog", "the", "the"],
        "3": ["cat", "cat", "cat"],
    }
    assert report == anserini_export.TopicsReport(3, 1, 1)
    with pytest.raises(InvalidInput, match="has a tab"):
        topics(index, {"a\tb": "cat"})


def test_weights_of_terms_become_hundredths(tmp_path: Path) -> None:
    weights = np.linspace(0, 1.4, VOCAB_SIZE).astype(np.float32)
    policy = word_contract().query
    policy = type(policy)("Find it", leading_blank=False, drop=(0,), term_weights="idf")
    index = make_index(tmp_path, animal_shard(), query=policy, term_weights=weights)
    report, actual = topics(index, {"1": "cat dog dog"})
    assert (actual["1"].count("cat"), actual["1"].count("dog")) == (20, 80)
    assert report == anserini_export.TopicsReport(1, 0, 100)


def anserini(main_class: str, *arguments: object) -> None:
    """Run a class of Anserini's jar."""
    assert JAVA is not None
    command = [JAVA, "-Xmx512m", "-cp", str(JAR), f"io.anserini.{main_class}", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_anserini
def test_anserini_ranks_impacts_as_the_index(tmp_path: Path) -> None:
    index_folder = make_index(tmp_path, random_shard(120))
    queries = {"1": "cat cat dog", "2": "the fish runs well", "3": "sleeps sleeps sleeps well"}
    with Index.open(index_folder) as index:
        export_anserini(index.view, tmp_path / "collection")
        actual = Searcher(index).search(
            [Query(*query) for query in queries.items()], 1000, SearchOptions(mode="sparse")
        )
    topics(index_folder, queries)
    lucene, run = tmp_path / "lucene", tmp_path / "run.txt"
    anserini(
        "index.IndexCollection", "-collection", "JsonVectorCollection", "-input", tmp_path / "collection", "-index",
        lucene, "-generator", "DefaultLuceneDocumentGenerator", "-threads", 1, "-impact", "-pretokenized",
    )  # fmt: skip
    anserini(
        "search.SearchCollection", "-index", lucene, "-topics", tmp_path / "topics.tsv", "-topicReader", "TsvInt",
        "-output", run, "-impact", "-pretokenized", "-hits", 1000,
    )  # fmt: skip
    theirs = read_run(run)
    assert theirs.keys() == actual.keys()
    for name, ranking in actual.items():
        scores = dict(zip(ranking.doc_ids, ranking.scores.tolist(), strict=True))
        assert dict(zip(theirs[name].doc_ids, np.rint(theirs[name].scores).tolist(), strict=True)) == scores


@needs_anserini
@pytest.mark.parametrize("kind", ["Flat", "Hnsw"])
def test_anserini_ranks_dense_rows_as_the_index(kind: str, tmp_path: Path) -> None:
    index_folder = make_index(tmp_path, random_shard(120))
    queries = [Query("1", "cat cat dog"), Query("2", "the fish runs well"), Query("3", "sleeps well")]
    with Index.open(index_folder) as index:
        export_anserini(index.view, tmp_path / "collection", branch="dense")
        expected = Searcher(index).search(queries, 20, SearchOptions(mode="dense"))
    vectors = CachedQueryEncoder.load(index_folder).encode([query.text for query in queries]).dense
    assert vectors is not None
    lines = [{"qid": int(query.query_id), "vector": row.tolist()} for query, row in zip(queries, vectors, strict=True)]
    (tmp_path / "topics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    lucene, run = tmp_path / "lucene", tmp_path / "run.txt"
    anserini(
        f"index.Index{kind}DenseVectors", "-collection", "JsonDenseVectorCollection", "-input", tmp_path / "collection",
        "-index", lucene, "-generator", "DenseVectorDocumentGenerator", "-threads", 1, "-memoryBuffer", 64,
    )  # fmt: skip
    graph = ["-efSearch", 200] if kind == "Hnsw" else []
    anserini(
        f"search.Search{kind}DenseVectors", "-index", lucene, "-topics", tmp_path / "topics.jsonl", "-topicReader",
        "JsonIntVector", "-output", run, "-hits", 20, *graph,
    )  # fmt: skip
    theirs = read_run(run)
    assert theirs.keys() == expected.keys()
    for name, ranking in expected.items():
        cosines = dict(zip(theirs[name].doc_ids, 2 * theirs[name].scores - 1, strict=True))
        assert list(cosines) == list(ranking.doc_ids)
        np.testing.assert_allclose(list(cosines.values()), ranking.scores, atol=1e-5)
