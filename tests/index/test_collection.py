"""Shards that are opened with the counts of all give their documents the scores of one index of the whole."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from lightir.errors import FormatError, InvalidInput
from lightir.index import Index, IndexOptions, IndexWriter, build_index, document_shards
from lightir.index.collection import CollectionCounts
from lightir.search import Searcher, SearchOptions
from lightir.types import Document

WORDS = ("kettle", "kettles", "steel", "water", "waters", "schrank", "küche", "blue", "red", "kitchen", "bottle")
QUERIES = ("kettle", "steel watre", "blue bottel kitchen", "what is red", "unknownword steel", "wat", "", "ketle blue")


def documents(seed: int, n: int) -> list[Document]:
    rng = np.random.default_rng(seed)
    return [
        Document(f"d{i:03d}", " ".join(rng.choice(WORDS, int(rng.integers(0, 9)))), metadata={"even": i % 2 == 0})
        for i in range(n)
    ]


def build(folder: Path, texts: list[Document], analyzer: str = "english") -> Path:
    options = IndexOptions(analyzer=analyzer, segment_documents=7)
    build_index(document_shards(texts), folder, options=options, progress=False)
    return folder


def split(folder: Path, texts: list[Document], n_shards: int, analyzer: str = "english") -> list[Path]:
    return [build(folder / f"shard-{i}", texts[i::n_shards], analyzer) for i in range(n_shards)]


def counted(folders: list[Path], out: Path) -> CollectionCounts:
    """The counts of some indexes, written and read."""
    indexes = [Index.open(folder) for folder in folders]
    out.mkdir()
    CollectionCounts.of([index.view for index in indexes]).save(out)
    for index in indexes:
        index.close()
    return CollectionCounts.open(out)


def ranked(
    folder: Path, query: str, options: SearchOptions, collection: CollectionCounts | None
) -> list[tuple[float, str]]:
    with Index.open(folder, collection=collection) as index:
        (ranking,) = Searcher(index).search([query], 1000, options).values()
    return [(-score, doc_id) for doc_id, score in zip(ranking.doc_ids, ranking.scores.tolist(), strict=True)]


@pytest.mark.parametrize("n_shards", [1, 2, 3, 5])
@pytest.mark.parametrize("analyzer", ["english", "words", "german"])
def test_the_rankings_of_shards_merge_into_that_of_one_index(tmp_path: Path, n_shards: int, analyzer: str) -> None:
    texts = documents(n_shards, 40)
    whole = build(tmp_path / "whole", texts, analyzer)
    shards = split(tmp_path, texts, n_shards, analyzer)
    collection = counted(shards, tmp_path / "collection")
    chosen = [
        SearchOptions(),
        SearchOptions(as_you_type=True),
        SearchOptions(typos=False, question_words=True),
        SearchOptions(filter={"even": True}),
    ]
    n_ranked = 0
    for options in chosen:
        for query in QUERIES:
            expected = ranked(whole, query, options, None)
            merged = sorted(pair for shard in shards for pair in ranked(shard, query, options, collection))
            assert merged == expected, (query, options)
            n_ranked += len(expected)
    assert n_ranked > 100


def test_without_the_counts_of_all_shards_their_scores_differ(tmp_path: Path) -> None:
    texts = documents(3, 40)
    whole = build(tmp_path / "whole", texts)
    alone = [pair for shard in split(tmp_path, texts, 3) for pair in ranked(shard, "kettle", SearchOptions(), None)]
    assert sorted(alone) != ranked(whole, "kettle", SearchOptions(), None)


def test_deleted_documents_do_not_count(tmp_path: Path) -> None:
    texts = documents(4, 30)
    whole = build(tmp_path / "whole", texts[:24])
    shards = split(tmp_path, texts, 2)
    for shard in shards:
        with IndexWriter.open(shard) as writer:
            writer.delete([document.doc_id for document in texts[24:]])
    collection = counted(shards, tmp_path / "collection")
    assert collection.n_documents == 24
    options = SearchOptions()
    for query in QUERIES:
        merged = sorted(pair for shard in shards for pair in ranked(shard, query, options, collection))
        assert merged == ranked(whole, query, options, None)


def test_indexes_that_differ_and_damaged_counts_are_refused(tmp_path: Path) -> None:
    texts = documents(5, 8)
    one, other = build(tmp_path / "one", texts[:4]), build(tmp_path / "other", texts[4:], "words")
    with Index.open(one) as index, Index.open(other) as second:
        with pytest.raises(InvalidInput, match="another analyzer"):
            CollectionCounts.of([index.view, second.view])
        with pytest.raises(InvalidInput, match="no shards"):
            CollectionCounts.of([])
    collection = counted([one], tmp_path / "collection")
    assert dataclasses.replace(collection, n_pending=1).frequency("nothing") == 0
    path = tmp_path / "collection" / "df.npy"
    path.write_bytes(path.read_bytes()[:-1] + b"\7")
    with pytest.raises(FormatError, match=r"df\.npy"):
        CollectionCounts.open(tmp_path / "collection")
