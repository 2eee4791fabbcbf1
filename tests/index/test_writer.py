"""A writer's changes: accepted and refused documents, and the index afterwards."""

from __future__ import annotations

import dataclasses
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightir.analysis import Analyzer
from lightir.errors import (
    AlreadyExists,
    ContractMismatch,
    FormatError,
    IndexLocked,
    InvalidInput,
    LightirError,
    NotFound,
)
from lightir.index import Index, IndexOptions, IndexWriter, build_index, document_shards
from lightir.index.view import FILTERS_KEPT
from lightir.search import Searcher, SearchOptions
from lightir.shards import Shard
from lightir.types import Document
from small_collections import VOCAB_SIZE, GivenVectors, animal_shard, csr, word_contract, word_table, write_folder

NAN = float("nan")


def ones(n: int, *, dim: int = 4) -> np.ndarray:
    return np.ones((n, dim), np.float16)


def impacts(n: int, *, vocab_size: int = VOCAB_SIZE, dtype: type = np.uint8) -> Any:
    return csr([{1: 2}] * n, vocab_size=vocab_size, dtype=dtype)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    build_index([animal_shard()], tmp_path / "index", contract=word_contract(), progress=False)
    return tmp_path / "index"


def test_a_document_without_vectors_is_found_at_once_and_pending(folder: Path) -> None:
    shard = animal_shard()
    assert shard.dense is not None
    encoder = GivenVectors(word_contract(), {"sleepy": np.array([1, 0, 0, 0], np.float32)}, {"sleepy": {5: 1.0}})
    with IndexWriter.open(folder) as writer, Index.open(folder) as index:
        late = Document("late", "a sleepy text", "", {"new": True})
        writer.add([late])
        assert not len(Searcher(index).search(["sleepy"], options=SearchOptions(mode="tokens", typos=False))["0"])
        index.refresh()
        assert list(Searcher(index).search(["sleepy"], options=SearchOptions(mode="tokens"))["0"].doc_ids) == ["late"]
        assert index.info().pending == 1
        assert list(index.view.pending()) == ["late"]
        searcher = Searcher(index, encoder)
        for mode in ("dense", "sparse"):
            assert "late" not in searcher.search(["sleepy"], options=SearchOptions(mode=mode))["0"].doc_ids
        hybrid = {hit.doc_id: hit for hit in searcher.hits("sleepy", options=SearchOptions(mode="hybrid+tokens"))}
        assert {name: branch.pending for name, branch in hybrid["late"].branches.items()} == {
            "dense": True,
            "sparse": True,
            "tokens": False,
        }
        writer.set_vectors([late], dense=shard.dense[:1], sparse=csr([{5: 9}], vocab_size=VOCAB_SIZE, dtype=np.uint8))
        index.refresh()
        assert index.info().pending == 0
        for mode in ("dense", "sparse"):
            assert "late" in searcher.search(["sleepy"], options=SearchOptions(mode=mode))["0"].doc_ids
        assert index.documents(["late"]) == [late]


def test_info_counts_deleted_documents_and_outdated_rows_apart(tmp_path: Path) -> None:
    documents = [Document(f"d{i}", "text") for i in range(8)]
    build_index([Shard(documents, ones(8), None)], tmp_path / "i", contract=word_contract(sparse=None), progress=False)
    with IndexWriter.open(tmp_path / "i") as writer:

        def counted() -> tuple[int, int]:
            info = writer.info()
            return info.deleted, info.outdated

        new = [Document(f"new{i}", "text") for i in range(4)]
        writer.add(new)
        assert counted() == (0, 0)
        writer.set_vectors(new[:1], dense=ones(1))
        assert counted() == (0, 1)
        writer.delete(["d0", "d1"])
        assert counted() == (2, 1)
        writer.upsert([Document("d2", "another text")])
        assert counted() == (2, 2)
        writer.add([Document("d0", "text")])
        assert counted() == (1, 3)
        writer.compact(progress=False)
        assert counted() == (0, 0)
        assert len(writer.view) == 11


def test_vectors_of_a_changed_text_or_title_are_ignored(folder: Path) -> None:
    with IndexWriter.open(folder) as writer:
        writer.add([Document("x", "old text"), Document("y", "text"), Document("z", "text", "old title")])
        writer.upsert([Document("x", "new text"), Document("z", "text", "new title")])
        told = [
            Document("x", "old text"),
            Document("y", "text"),
            Document("gone", "text"),
            Document("z", "text", "old title"),
        ]
        assert writer.set_vectors(told, dense=ones(4), sparse=impacts(4)) == ["x", "gone", "z"]
        assert list(writer.view.pending()) == ["x", "z"]
        assert writer.set_vectors(told[3:], dense=ones(1), sparse=impacts(1)) == ["z"]
        assert list(writer.view.pending()) == ["x", "z"]
        with pytest.raises(InvalidInput, match="requires vectors"):
            writer.set_vectors(told)


def test_upserting_a_corpus_again_keeps_the_vectors_of_unchanged_texts(folder: Path) -> None:
    whole = [Document("x", "one", "t", {"n": 1}), Document("y", "two", "t"), Document("z", "three")]
    with IndexWriter.open(folder) as writer, Index.open(folder) as index:
        writer.add(whole, dense=ones(3), sparse=impacts(3))
        index.refresh()
        assert writer.upsert(whole) == 0
        assert not index.refresh()  # nothing was changed
        told = [Document("x", "one", "t", {"n": 2}), Document("y", "two", "other"), *whole[2:], Document("new", "")]
        assert writer.upsert(told) == 3
        assert list(writer.view.pending()) == ["new", "y"]
        assert index.refresh()
        assert index.documents(["x", "y", "z"]) == told[:3]
        encoder = GivenVectors(word_contract(), {"cat": np.array([1, 0, 0, 0], np.float32)}, {"cat": {1: 1.0}})
        ranking = Searcher(index, encoder).search(["cat"], options=SearchOptions(mode="dense", filter={"n": 2}))["0"]
        assert list(ranking.doc_ids) == ["x"]
        assert writer.upsert(whole[:1], dense=ones(1), sparse=impacts(1)) == 1  # given vectors are always stored
        index.refresh()
        index.verify()


def test_options_of_the_build_apply_to_later_documents(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((6, 4)).astype(np.float16)
    sparse = csr([{1: 3, 2: 5, 6: i + 1} for i in range(6)], vocab_size=VOCAB_SIZE, dtype=np.uint8)
    documents = [Document(f"d{i}", "cat " * i) for i in range(6)]
    options, contract = IndexOptions(dense_dim=3, dense_dtype="int8", sparse_top_k=2), word_contract()
    build_index([Shard(documents, rows, sparse)], tmp_path / "once", options=options, contract=contract, progress=False)
    with IndexWriter.create(tmp_path / "grown", options=options, contract=contract) as writer:
        for i in range(6):
            part = csr([{1: 3, 2: 5, 6: i + 1}], vocab_size=VOCAB_SIZE, dtype=np.uint8)
            writer.add([documents[i]], dense=rows[i : i + 1], sparse=part)
        writer.compact()
    with Index.open(tmp_path / "once") as once, Index.open(tmp_path / "grown") as grown:
        one, other = once.view.segments[0].segment, grown.view.segments[0].segment
        assert one.manifest["files"]["documents.bin"]["bytes"] == other.manifest["files"]["documents.bin"]["bytes"]
        for name in ("dense.bin", "sparse.bin", "tokens.bin"):
            assert bytes(one.buffers[name]) == bytes(other.buffers[name])


def test_the_model_s_terms_are_counted_for_added_documents_too(tmp_path: Path) -> None:
    encoder = write_folder(tmp_path / "q", word_contract(), {"": {"embeddings": word_table()}})
    with IndexWriter.create(
        tmp_path / "index", query_encoder=encoder, options=IndexOptions(analyzer="model")
    ) as writer:
        for document in animal_shard().documents:
            writer.add([document])
    with Index.open(tmp_path / "index") as index:
        assert len(index.view.segments) > 1
        assert list(Searcher(index).search(["RUNS cat"], options=SearchOptions(mode="tokens"))["0"].doc_ids) == [
            "a",
            "b",
        ]


def test_few_segments_remain_of_many_small_changes(tmp_path: Path) -> None:
    with IndexWriter.create(tmp_path / "index") as writer:
        for i in range(40):
            writer.add([Document(f"d{i}", "cat")])
        assert len(writer.view.segments) <= 6
        assert writer.delete([f"d{i}" for i in range(40)]) == 40
        assert writer.info().segments == 0
        assert len(writer) == 0
        assert writer.delete([]) == writer.delete(["d1"]) == writer.add([]) == 0


@pytest.mark.parametrize("batch", [[3, 2000], [1, 10, 100, 1000]])
def test_bm25_is_exact_after_any_change_of_the_mean_length(tmp_path: Path, batch: list[int]) -> None:
    """Segments were written for very different mean lengths; stored saturations misorder documents, results do not."""
    rng = np.random.default_rng(3)
    words = [f"w{i}" for i in range(30)]
    documents = []
    for n, longest in zip([400, 300, 200, 100], [1, *batch[::-1], 40], strict=False):
        documents.append(
            [
                Document(f"{len(documents)}-{i}", " ".join(rng.choice(words, rng.integers(1, longest + 2))))
                for i in range(n)
            ]
        )
    with IndexWriter.create(tmp_path / "grown", options=IndexOptions(analyzer="words")) as writer:
        for added in documents:
            writer.add(added)
        writer.delete([document.doc_id for document in documents[0][:150]])
        means = [live.segment.mean_length for live in writer.view.segments]
        assert len(means) > 2
        assert max(means) / min(means) > 3
    kept = [*documents[0][150:], *(document for added in documents[1:] for document in added)]
    build_index(document_shards(kept), tmp_path / "once", options=IndexOptions(analyzer="words"), progress=False)
    queries = [" ".join(rng.choice(words, 4)) for _ in range(10)]
    with Index.open(tmp_path / "once") as once, Index.open(tmp_path / "grown") as grown:
        for k in (1, 10, 100, 5000):
            expected, actual = Searcher(once).search(queries, k), Searcher(grown).search(queries, k)
            for query_id, ranking in expected.items():
                assert list(actual[query_id].doc_ids) == list(ranking.doc_ids)
                np.testing.assert_array_equal(actual[query_id].scores, ranking.scores)


@pytest.mark.parametrize("k", [1, 3, 7, 50])
def test_bm25_is_exact_though_the_stored_order_is_wrong(tmp_path: Path, k: int) -> None:
    """Long documents ranked low when they were added; they rank first after longer ones were added."""
    short = [Document(f"short{i:03d}", "cat and dog") for i in range(200)]
    long = [Document(f"long{i}", "cat " * 3 + "fish " * 27) for i in range(5)]
    tiny = [Document(f"tiny{i:03d}", "fish") for i in range(600)]
    longest = [Document(f"longest{i:03d}", "fish " * 500) for i in range(100)]
    with IndexWriter.create(tmp_path / "grown", options=IndexOptions(analyzer="words")) as writer:
        writer.add([*short, *long, *tiny])
        with Index.open(tmp_path / "grown") as grown:
            assert Searcher(grown).search(["cat"], 1)["0"].doc_ids[0] == "short000"
        writer.add(longest)
    build_index(
        document_shards([*short, *long, *tiny, *longest]),
        tmp_path / "once",
        options=IndexOptions(analyzer="words"),
        progress=False,
    )
    with Index.open(tmp_path / "once") as once, Index.open(tmp_path / "grown") as grown:
        assert len(grown.view.segments) == 2
        expected, actual = (Searcher(index).search(["cat"], k)["0"] for index in (once, grown))
        assert actual.doc_ids[0] == "long0"
        assert list(actual.doc_ids) == list(expected.doc_ids)
        np.testing.assert_array_equal(actual.scores, expected.scores)


@pytest.mark.parametrize(
    ("documents", "vectors", "says"),
    [
        ([Document("b", "there already")], {}, r"id 'b' is already in the index; use --replace \(upsert\) to"),
        ([Document("x", "1"), Document("x", "2")], {}, "'x' is repeated"),
        ([Document("", "text")], {}, "0 bytes"),
        ([Document("x" * 10_001, "text")], {}, "10001 bytes"),
        ([Document("\udcff", "text")], {}, "a doc_id is not representable in UTF-8"),
        ([Document("x", "\udcff")], {}, "the text of document 'x'"),
        ([Document("x", "", "\udcff")], {}, "the title of document 'x'"),
        ([Document("x", "", "", {"\udcff": 1})], {}, "the metadata of document 'x'"),
        ([Document("x", "", "", {"a": NAN})], {}, "the metadata of document 'x'"),
        ([Document("x", 5)], {}, "the text of document 'x' is int"),  # type: ignore[arg-type]
        ([Document("x", "")], {"dense": ones(1), "sparse": impacts(2)}, "1 document but 2 sparse"),
        ([Document("x", "")], {"dense": ones(2), "sparse": impacts(1)}, "1 document but 2 dense"),
        ([Document("x", "")], {"dense": ones(1) * np.float16(NAN), "sparse": impacts(1)}, "NaN or infinity"),
        ([Document("x", "")], {"dense": ones(1) * np.float16("inf"), "sparse": impacts(1)}, "NaN or infinity"),
        ([Document("x", "")], {"dense": ones(1, dim=3), "sparse": impacts(1)}, "width 4"),
        ([Document("x", "")], {"dense": ones(1), "sparse": impacts(1, vocab_size=9)}, "vocabulary 9"),
        ([Document("x", "")], {"dense": ones(1), "sparse": impacts(1, dtype=np.float32)}, "expected uint8"),
        ([Document("x", "")], {"dense": ones(1)}, r"\(dense, sparse\) = \(True, False\)"),
    ],
)
def test_refused_documents_are_named_and_change_nothing(
    folder: Path, documents: list[Document], vectors: dict[str, Any], says: str
) -> None:
    with IndexWriter.open(folder) as writer:
        before = writer.view.generation
        good = Document("good", "cat")
        more = {name: None if rows is None else rows for name, rows in vectors.items()}
        with pytest.raises(LightirError, match=says):
            writer.add(documents, **more)
        if "upsert" not in says:
            with pytest.raises(LightirError, match=says):
                writer.upsert(documents, **more)
        assert writer.view.generation == before
        assert writer.add([good]) == 1
    with Index.open(folder) as index:
        index.verify()
        assert len(index) == 4


def test_one_id_is_not_a_list_and_a_dict_is_not_a_document(folder: Path) -> None:
    with IndexWriter.open(folder) as writer:
        for change in (writer.delete, writer.keep_only):
            with pytest.raises(InvalidInput, match="doc_ids is a str, 'ab'"):
                change("ab")
            for wrong_ids, message in ((None, "doc_ids is NoneType"), ([1, 2], "is int"), (["a", "\udcff"], "UTF-8")):
                with pytest.raises(InvalidInput, match=message):  # keeping only 1 and 2 would delete "1" and "2"
                    change(wrong_ids)  # type: ignore[arg-type]
        for none in (lambda: writer.add_shards([], size=0), lambda: list(document_shards([Document("x", "")], size=0))):
            with pytest.raises(InvalidInput, match="size is 0"):
                none()
        for wrong in ({"doc_id": "x", "text": "y"}, "text"):
            with pytest.raises(InvalidInput, match=rf"a document is {type(wrong).__name__}; expected Document"):
                writer.add([wrong])  # type: ignore[list-item]
            with pytest.raises(InvalidInput, match=rf"a shard is {type(wrong).__name__}; .*document_shards"):
                build_index([wrong], folder.parent / "another", progress=False)  # type: ignore[list-item]
            with pytest.raises(InvalidInput, match=rf"a shard is {type(wrong).__name__}; .*document_shards"):
                writer.add_shards([wrong], size=9)  # type: ignore[list-item]
        with pytest.raises(InvalidInput, match="a shard's documents are generator; expected a list"):
            Shard((document for document in ()), None, None)  # type: ignore[arg-type]
        assert len(writer) == 3
    assert not (folder.parent / "another").exists()


def test_a_generator_of_documents_is_added_completely(folder: Path) -> None:
    texts = {f"g{i}": f"generated zebra {i}" for i in range(5)}
    with IndexWriter.open(folder) as writer:
        before = len(writer)
        assert writer.add(Document(doc_id, text) for doc_id, text in texts.items()) == 5
        assert writer.upsert(Document(doc_id, text + "!") for doc_id, text in texts.items()) == 5
        changed = (Document(doc_id, text + "!") for doc_id, text in texts.items())
        assert writer.set_vectors(changed, dense=ones(5), sparse=impacts(5)) == []
        assert (len(writer), writer.info().pending) == (before + 5, 0)
        with pytest.raises(InvalidInput, match="documents is one Document, 'one'; expected a list"):
            writer.add(Document("one", "cat"))  # type: ignore[arg-type]


def test_extreme_documents_are_accepted(folder: Path) -> None:
    longest, empty, huge = Document("ü" * 5000, "cat"), Document("empty", ""), Document("huge", "cat sleeps " * 900_000)
    null = Document("null", "a\0b cat", metadata={"deep": [[{"x": [None]}]]})
    with IndexWriter.open(folder) as writer:
        writer.add([longest, empty, huge])
        writer.add([null], dense=np.zeros((1, 4), np.float16), sparse=csr([{}], vocab_size=VOCAB_SIZE, dtype=np.uint8))
        writer.compact()
    encoder = GivenVectors(word_contract(), {"cat": np.array([-1, -1, -1, -1], np.float32)}, {"cat": {1: 1.0}})
    with Index.open(folder) as index:
        index.verify()
        everything = [longest, empty, huge, null]
        assert index.documents([document.doc_id for document in everything]) == everything
        doc_ids = Searcher(index).search(["cat"], options=SearchOptions(mode="tokens"))["0"].doc_ids
        assert {"ü" * 5000, "huge", "null"} <= set(doc_ids)
        dense = Searcher(index, encoder).search(["cat"], options=SearchOptions(mode="dense"))["0"]
        assert (dense.doc_ids[0], dense.scores[0]) == ("null", 0.0)  # zeros score 0, the others less
        assert "null" not in Searcher(index, encoder).search(["cat"], options=SearchOptions(mode="sparse"))["0"].doc_ids


def nested(levels: int) -> dict[str, Any]:
    value: Any = 1
    for _ in range(levels - 1):
        value = [value]
    return {"deep": value, "n": 1}


def test_metadata_too_deep_for_sqlite_s_filters_are_refused(folder: Path) -> None:
    """A single document of this kind would make every filter fail."""
    with IndexWriter.open(folder) as writer:
        writer.add([Document("deepest", "cat", metadata=nested(500)), Document("wide", "", metadata={"a": [[]] * 900})])
        with pytest.raises(InvalidInput, match="metadata of document 'x' is nested deeper than 500"):
            writer.add([Document("x", "cat", metadata=nested(501))])
        # Depending on its version, Python serializes it or raises.
        with pytest.raises(
            InvalidInput, match=r"metadata of document 'x' is (not a JSON object: maximum rec|nested deeper)"
        ):
            writer.add([Document("x", "cat", metadata=nested(5000))])
    with Index.open(folder) as index:
        assert [
            hit.doc_id for hit in Searcher(index).hits("cat", options=SearchOptions(mode="tokens", filter={"n": 1}))
        ] == ["deepest"]


def test_vectors_need_a_contract(tmp_path: Path) -> None:
    with IndexWriter.create(tmp_path / "index") as writer:
        with pytest.raises(InvalidInput, match="contract is missing"):
            writer.add([Document("x", "")], dense=ones(1))
        assert writer.info().pending == 0
    with pytest.raises(AlreadyExists):
        IndexWriter.create(tmp_path / "index")
    with pytest.raises(InvalidInput, match="nothing to search"):
        IndexWriter.create(tmp_path / "other", options=IndexOptions(analyzer=None))
    with pytest.raises(NotFound):
        IndexWriter.open(tmp_path / "nothing")


def test_a_snapshot_is_an_index_of_its_own(folder: Path, tmp_path: Path) -> None:
    encoder = write_folder(tmp_path / "q", word_contract(), {"": {"embeddings": word_table()}})
    build_index([animal_shard()], tmp_path / "index", query_encoder=encoder, overwrite=True, progress=False)
    with IndexWriter.open(folder) as writer, Index.open(folder) as index:
        writer.delete(["a"])
        index.refresh()
        index.snapshot(tmp_path / "backup")
        with pytest.raises(AlreadyExists):
            index.snapshot(tmp_path / "backup")
        with pytest.raises(InvalidInput, match="is the index;"):
            index.snapshot(folder.parent / "index" / ".." / folder.name, overwrite=True)
        for inside in ("backup", "segments/backup"):
            with pytest.raises(InvalidInput, match="is inside the index;"):
                index.snapshot(folder / inside)
        writer.delete(["b", "c"])
    with IndexWriter.open(tmp_path / "backup") as copy:
        copy.add([Document("d", "dog")])
    with Index.open(tmp_path / "backup") as copied:
        copied.verify()
        assert [doc_id for doc_id in "abcd" if copied.doc_ord(doc_id) is not None] == ["b", "c", "d"]
        assert copied.query_encoder() is not None


def test_a_reader_moves_on_to_the_index_that_replaced_its_own(tmp_path: Path) -> None:
    """Both indexes have equally many changes and a segment of the same number, like a server's nightly rebuild."""
    folder = tmp_path / "index"

    def build(*names: str, price: int = 1) -> None:
        documents = [Document(name, f"alpha {name}", metadata={"of": names[0], "price": price}) for name in names]
        build_index(document_shards(documents), folder, progress=False, overwrite=True)

    def found(searcher: Searcher) -> list[str]:
        return [f"{hit.doc_id} of {hit.metadata['of']}" for hit in searcher.hits("alpha")]

    build("a", "b")
    with Index.open(folder) as index, Index.open(folder) as late:
        searcher = Searcher(index)
        index.snapshot(tmp_path / "backup")
        assert found(searcher) == ["a of a", "b of a"]
        build("x", "b", "z")
        assert found(searcher) == ["a of a", "b of a"]  # until it is refreshed
        assert index.refresh()
        assert found(searcher) == ["b of x", "x of x", "z of x"]
        assert not index.refresh()
        with IndexWriter.open(folder) as writer:
            writer.delete(["x"])
        assert index.refresh()
        assert late.refresh()
        assert found(Searcher(late)) == found(searcher) == ["b of x", "z of x"]
        index.verify()
        with Index.open(tmp_path / "backup") as backup:
            backup.snapshot(folder, overwrite=True)
        assert index.refresh()
        assert found(searcher) == ["a of a", "b of a"]
        for price in (1, 2, 3):  # equal texts, and thus equal segments, with other metadata
            build("x", price=price)
            assert index.refresh()
            assert [
                len(searcher.hits("alpha", options=SearchOptions(filter={"price": value}))) for value in (1, 2, 3)
            ] == [int(value == price) for value in (1, 2, 3)]


def test_a_searcher_refuses_the_index_of_another_model_that_replaced_its_own(folder: Path) -> None:
    shard = animal_shard()
    encoder = GivenVectors(word_contract(), {"cat": np.array([1, 0, 0, 0], np.float32)}, {"cat": {5: 1.0}})
    with Index.open(folder) as index:
        searcher = Searcher(index, encoder)
        assert len(searcher.search(["cat"])["0"])
        document = dataclasses.replace(word_contract().document, prompt="passage: ")
        other = word_contract(document=document)
        build_index([shard], folder, contract=other, progress=False, overwrite=True)
        assert index.refresh()
        with pytest.raises(ContractMismatch):
            searcher.search(["cat"])


def test_a_folder_without_write_permission_is_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with Index.open(folder) as index:
        assert list(Searcher(index).search(["cat"], options=SearchOptions(mode="tokens"))["0"].doc_ids) == ["b", "a"]
        assert not list(folder.glob("*-wal"))


@pytest.mark.parametrize(
    "changes",
    [
        ["UPDATE documents SET doc_id = 'aa' WHERE doc_id = 'a'"],
        ["UPDATE documents SET doc_key = 99 WHERE doc_key = 3", "UPDATE metadata SET doc_key = 99 WHERE doc_key = 3"],
    ],
)
def test_ids_or_keys_that_differ_from_the_segments_are_an_error(folder: Path, changes: list[str]) -> None:
    with closing(sqlite3.connect(folder / "store.sqlite")) as store, store:
        for statement in changes:
            store.execute(statement)
    with (
        Index.open(folder) as index,
        pytest.raises(FormatError, match=r"'aa' under key 1, .* 'a' under 1|'c' under key 99, .* under 3"),
    ):
        index.verify()


def test_disagreement_of_store_and_segments_is_an_error(folder: Path) -> None:
    with IndexWriter.open(folder) as writer, writer._store.transaction():
        writer._store.documents.remove(np.array([2], np.int64))
    with Index.open(folder) as index, pytest.raises(FormatError, match="2 documents, but the segments hold 3"):
        index.verify()


@pytest.mark.parametrize("rising", [True, False])
def test_ties_are_in_id_order_whether_segments_are_or_not(tmp_path: Path, rising: bool) -> None:
    """Documents with equal texts tie; ids that rise from segment to segment need no reordering."""
    ids = [f"d{i:02d}" for i in range(12)]
    given = ids if rising else ids[::-1]
    build_index(
        document_shards([Document(doc_id, "the cat runs") for doc_id in given]),
        tmp_path / "i",
        options=IndexOptions(segment_documents=4),
    )
    with Index.open(tmp_path / "i") as index:
        assert len(index.view.segments) == 3
        assert index.view.ids_ascend is rising
        for k in (3, 7, 12):
            assert Searcher(index).search(["cat"], k)["0"].doc_ids == ids[:k]
        with IndexWriter.open(tmp_path / "i") as writer:
            writer.add([Document("a", "the cat runs")])
        index.refresh()
        assert index.view.ids_ascend is False
        assert Searcher(index).search(["cat"], 13)["0"].doc_ids == ["a", *ids]


@pytest.mark.parametrize("seed", range(8))
def test_a_compacted_index_needs_no_compaction(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    size, n = int(rng.integers(1, 5)), 0
    longest = (1, 9)[seed % 2]  # all of one length: the mean does not reveal deletions
    documents = [Document(f"d{i:02d}", "cat " * int(rng.integers(1, longest + 1))) for i in range(40)]
    build_index(
        document_shards(documents[:4]), tmp_path / "i", options=IndexOptions(segment_documents=size), progress=False
    )
    with IndexWriter.open(tmp_path / "i") as writer:
        n, gone = 4, int(rng.integers(0, 3))
        while n < 12:
            k = int(rng.integers(1, 5))
            writer.add(documents[n : n + k])
            n += k
        assert writer.delete([f"d{i:02d}" for i in rng.choice(n, gone, replace=False)]) == gone
        info = writer.compact()
        view = writer.view
        assert info.documents == n - gone
        assert info.segments == -(-len(writer) // size)
        assert all(live.deleted is None for live in view.segments)
        assert {live.segment.mean_length for live in view.segments} == {view.mean_length}
        writer.compact()
        assert writer.view.generation == view.generation


def test_a_writer_waits_for_a_brief_one_no_longer_than_it_is_told(folder: Path) -> None:
    brief = IndexWriter.open(folder, brief=True)
    threading.Timer(2.0, brief.close).start()
    with pytest.raises(IndexLocked):
        IndexWriter.open(folder, wait_s=0.0)
    with IndexWriter.open(folder, wait_s=60.0) as patient:
        assert len(patient) == 3


def test_more_filters_than_are_kept_are_answered_again(folder: Path) -> None:
    with Index.open(folder) as index:
        for i in [*range(2 * FILTERS_KEPT), 0, 1, 2]:
            (mask,) = index.view.matching({"page": i}) or []
            assert mask.sum() == (i in (1, 2))


def test_an_empty_index_keeps_its_options(tmp_path: Path) -> None:
    options = IndexOptions(
        dense_dim=2, dense_dtype="int8", sparse_top_k=3, dense_graph=True, analyzer="words", segment_documents=7
    )
    with IndexWriter.create(tmp_path / "i", options=options, contract=word_contract()) as writer:
        assert writer.view.options == options
        assert writer.view.analyzer == Analyzer("words")


@pytest.mark.parametrize("gone", [(), (0,), (0, 1, 5), (3, 4, 7, 8, 9), range(11)])
def test_compact_fills_segments_across_their_borders_and_keeps_each_document_once(tmp_path: Path, gone: Any) -> None:
    documents = [Document(f"d{i:02d}", f"word{i} the") for i in range(11)]
    for name, kept in (("changed", documents), ("whole", [d for i, d in enumerate(documents) if i not in gone])):
        build_index(
            document_shards(kept, size=3), tmp_path / name, options=IndexOptions(segment_documents=4), progress=False
        )
    with IndexWriter.open(tmp_path / "changed") as writer:
        if gone:
            writer.delete([documents[i].doc_id for i in gone])
        writer.compact()
    with Index.open(tmp_path / "changed") as changed, Index.open(tmp_path / "whole") as whole:
        sizes = [len(live.segment) for live in changed.view.segments]
        assert sizes == ([] if not len(whole) else [4] * ((len(whole) - 1) // 4) + [(len(whole) - 1) % 4 + 1])
        ords = np.arange(len(whole), dtype=np.uint32)
        assert len(changed) == len(whole)
        assert sorted(changed.doc_ids(ords)) == sorted(whole.doc_ids(ords))
        for query in ("the", "word3", "word10 the"):
            one, other = (Searcher(index).search([query], 20)["0"] for index in (changed, whole))
            assert list(one.doc_ids) == list(other.doc_ids)
            np.testing.assert_array_equal(one.scores, other.scores)


GERMAN = [
    Document("a", "Die Häuser stehen an der Straße, und der Hund schläft neben dem Tisch der Familie."),
    Document("b", "Der Verkäufer öffnet das Geschäft am Morgen und verkauft den Kunden frisches Brot."),
]


def test_an_index_that_was_created_empty_has_the_languages_of_its_first_documents(tmp_path: Path) -> None:
    options = IndexOptions(analyzer="auto")
    built = build_index(document_shards(GERMAN), tmp_path / "built", options=options, progress=False)
    with IndexWriter.create(tmp_path / "filled", options=options) as writer:
        with pytest.raises(InvalidInput):
            writer.add([GERMAN[0], Document("c", "x", metadata={"bad": float("nan")})])
        assert writer.info().analyzer == "auto"
        writer.add(GERMAN[:1])
        assert writer.info().analyzer == "auto-german" == built.analyzer
        writer.add([*GERMAN[1:], Document("c", "The dogs are sleeping in the houses of the family.")])
        assert writer.info().analyzer == "auto-german"
    with Index.open(tmp_path / "filled") as index:
        assert index.view.analyzer == Analyzer("auto-german")
        assert [*Searcher(index).search(["Haus"])["0"].doc_ids] == ["a"]


def test_a_first_change_that_fails_leaves_the_languages_undecided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with IndexWriter.create(tmp_path / "index", options=IndexOptions(analyzer="auto")) as writer:
        with monkeypatch.context() as patched:
            patched.setattr("lightir.index.writer.apply_change", refuse)
            with pytest.raises(LightirError, match="No space left"):
                writer.add(GERMAN)
        assert writer.info().analyzer == "auto"
        writer.add([Document("d", "The dogs are sleeping in the houses of the family, and the cat is not.")])
        assert writer.info().analyzer == "auto-english"
