"""Pushes and searches without any engine's client: an engine in memory, addresses, payloads and errors."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import engine_suite as suite
from engine_in_memory import EngineInMemory
from filter_definition import matches as definition
from lightir.cli import main
from lightir.engines import CollectionRecord, EngineAddress, EngineFailed, EngineSearcher, open_engine
from lightir.engines.engine import document_of_payload, payload_of
from lightir.engines.filters import condition, matches
from lightir.engines.pushing import PushOptions, push_index
from lightir.engines.reading import read_collection
from lightir.errors import ContractMismatch, FormatError, InvalidInput, LightirError, MissingExtra, NotFound
from lightir.index import Index, IndexOptions, IndexWriter, PassageOptions, build_index, document_shards
from lightir.index.metadata_filters import FieldTest, parse
from lightir.pending import WorkOptions, work
from lightir.search import Searcher, SearchOptions
from lightir.types import Document
from pending_documents import FakeEncoder
from small_collections import GivenVectors, animal_shard, word_contract, word_table, write_folder


@pytest.fixture
def engine() -> EngineInMemory:
    return EngineInMemory()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return suite.build(tmp_path / "index")


def test_pushed_rows_rank_like_the_index_and_every_change_is_sent_once(engine: EngineInMemory, folder: Path) -> None:
    suite.assert_push_and_search(engine, folder)
    assert max(engine.requests) == 64
    suite.assert_reads_back(engine, folder)
    suite.assert_fuses_natively(engine, folder)
    suite.assert_changes_are_pushed(engine, folder)


def test_a_killed_push_continues(engine: EngineInMemory, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suite.assert_resumes(engine, folder, monkeypatch)


def test_a_busy_engine_is_asked_again_and_a_failing_one_named(engine: EngineInMemory, folder: Path) -> None:
    engine.failures = 3
    with Index.open(folder) as index:
        assert push_index(index, engine, PushOptions(attempts=4, wait_s=0)).sent == suite.N
        engine.drop()
        engine.failures = 9
        with pytest.raises(EngineFailed, match=r"busy .after 2 attempts; the same push continues"):
            push_index(index, engine, PushOptions(attempts=2, wait_s=0))


def test_ties_at_the_end_of_a_list_are_cut_by_id(engine: EngineInMemory, tmp_path: Path) -> None:
    shard = suite.shard()
    same = suite.csr([{1: 2, 3: 1}] * suite.N, vocab_size=suite.VOCAB_SIZE, dtype=np.uint8)
    tied = suite.Shard(shard.documents, shard.dense, same)
    build_index([tied], tmp_path / "i", contract=suite.contract(), options=IndexOptions(analyzer=None), progress=False)
    with Index.open(tmp_path / "i") as index:
        push_index(index, engine, suite.NOW)
        texts = [f"q{i}" for i in range(999)]
        query = next(text for text in texts if 1 in suite.RandomQueries().encode([text]).sparse.term_ids)
        options = SearchOptions(depth=15)
        own = Searcher(index, suite.RandomQueries()).search([query], 10, options)
    assert list(EngineSearcher(engine, suite.RandomQueries()).search([query], 10, options)["0"].doc_ids) == list(
        own["0"].doc_ids
    )


def test_the_best_passage_of_each_document_is_ranked_as_in_the_index(engine: EngineInMemory, tmp_path: Path) -> None:
    options = IndexOptions(analyzer="words", passages=PassageOptions(16))
    encoder = write_folder(tmp_path / "encoder", word_contract(), {"default": {"embeddings": word_table()}})
    with IndexWriter.create(tmp_path / "i", contract=word_contract(), options=options, query_encoder=encoder) as writer:
        texts = [f"The cat {i} runs well. " * (i % 9 + 1) for i in range(30)]
        writer.add([Document(f"d{i}", text, f"t{i}", {"third": i % 3}) for i, text in enumerate(texts)])
    work(tmp_path / "i", FakeEncoder(), WorkOptions(once=True), progress=False)
    rng = np.random.default_rng(0)
    queries = GivenVectors(word_contract(), {"q": rng.standard_normal(4)}, {"q": {1: 1.0}})
    with Index.open(tmp_path / "i") as index:
        report = push_index(index, engine, suite.NOW)
        assert report.sent == len(index.view) > len(index)
        own, theirs = Searcher(index, queries), EngineSearcher(engine, queries)
        for mode in ("dense", "sparse", "dense+sparse"):
            for passages, wanted in product((False, True), (None, {"third": 1}, {"not": {"third": {"lt": 2}}})):
                asked = SearchOptions(mode=mode, passages=passages, filter=wanted)
                expected = own.search(["q"], 20, asked)["0"].doc_ids
                assert len(expected) >= 10
                assert list(theirs.search(["q"], 20, asked)["0"].doc_ids) == list(expected)
        mine, hits = own.hits("q", 5, SearchOptions(mode="dense")), theirs.hits("q", 5, SearchOptions(mode="dense"))
        assert [(hit.doc_id, hit.passage) for hit in hits] == [(hit.doc_id, hit.passage) for hit in mine]


def test_an_index_without_vectors_and_other_encoders_are_refused(engine: EngineInMemory, folder: Path) -> None:
    build_index(document_shards(animal_shard().documents), folder.with_name("plain"), progress=False)
    with Index.open(folder.with_name("plain")) as index, pytest.raises(InvalidInput, match="no vectors to push"):
        push_index(index, engine)
    with pytest.raises(NotFound, match="lightir push INDEX qdrant://localhost/docs"):
        EngineSearcher(engine, suite.RandomQueries())
    with Index.open(folder) as index:
        push_index(index, engine, suite.NOW)
    other = suite.RandomQueries()
    other.document_fingerprint = "0" * 16
    with pytest.raises(ContractMismatch, match="use the query encoder of the index that was pushed"):
        EngineSearcher(engine, other)
    searcher = EngineSearcher(engine, suite.RandomQueries())
    with pytest.raises(InvalidInput, match="no tokens branch"):
        searcher.search(["query"], options=SearchOptions(mode="tokens"))


def test_filters_are_tested_on_the_rows_that_an_engine_lists(engine: EngineInMemory, folder: Path) -> None:
    """The engine in memory takes no condition at all, so every row that it lists is tested."""
    suite.assert_filters_like_the_index(engine, folder)
    suite.assert_dates_are_compared_as_in_the_index(engine, folder)


def test_a_filter_that_needs_more_rows_than_an_engine_lists_is_refused(engine: EngineInMemory, folder: Path) -> None:
    with Index.open(folder) as index:
        push_index(index, engine, suite.NOW)
    searcher = EngineSearcher(engine, suite.RandomQueries())
    engine.max_listed = 50
    with pytest.raises(InvalidInput, match="the filter matches only 0 of the 50 rows that qdrant lists at most"):
        searcher.search(["query"], 3, SearchOptions(filter={"missing": 3}, mode="dense"))
    engine.max_listed = suite.N + 1  # the list is whole
    assert len(searcher.search(["query"], 3, SearchOptions(filter={"missing": 3}, mode="dense"))["0"]) == 0


def test_the_metadata_of_a_row_are_tested_by_the_definition_of_filters() -> None:
    for wanted in suite.FILTERS:
        for metadata in suite.METADATA:
            assert matches(parse(wanted), metadata) == definition(metadata, wanted), (wanted, metadata)


def test_conditions_of_an_engine_never_leave_a_matching_row_out() -> None:
    """Each test is a condition by itself, or unknown: then all rows may match what it is a part of."""
    rng = np.random.default_rng(1)
    known = 0
    for _ in range(2000):
        wanted = suite.random_filter(rng)
        chosen = condition(parse(wanted), lambda keys, test: ((keys, test),) if rng.integers(2) else None, _joined)
        for metadata in suite.METADATA if chosen is not None else ():
            known += 1
            assert _meets(chosen, metadata) or not definition(metadata, wanted), (wanted, metadata)
    assert known > 1000


def _joined(parts: Sequence[Any], is_all: bool) -> Any:
    return [is_all, *parts]


def _meets(chosen: Any, metadata: Mapping[str, Any]) -> bool:
    if isinstance(chosen, tuple):
        ((keys, test),) = chosen
        return matches(FieldTest("$" + "".join(f'."{key}"' for key in keys), test), metadata)
    is_all, *parts = chosen
    return (all if is_all else any)(_meets(part, metadata) for part in parts)


def test_a_collection_is_read_with_its_vectors(engine: EngineInMemory, folder: Path) -> None:
    with pytest.raises(NotFound):
        read_collection(engine)
    engine.create(CollectionRecord(suite.DIM, None))
    with pytest.raises(InvalidInput, match="has no rows"):
        read_collection(engine)
    engine.drop()
    with Index.open(folder) as index:
        push_index(index, engine, suite.NOW)
        documents, vectors = read_collection(engine)
        assert list(vectors.ids) == [document.doc_id for document in documents]
        np.testing.assert_array_equal(vectors.rows, index.dense_vectors(list(vectors.ids)))


@pytest.mark.parametrize(
    "text",
    [
        "qdrant://localhost/docs",
        "qdrant://[::1]:7000/docs?vector=v&text=body",
        "qdrant:///tmp/some%20folder?collection=docs",
        "milvus://host:19531/docs?tls=1",
        "milvus:///tmp/x.db?collection=docs",
        "postgresql://me@db.example:5433/shop?table=public.docs",
        "postgresql:///shop?table=docs&host=%2Fvar%2Frun",
    ],
)
def test_an_address_is_read_and_written(text: str) -> None:
    address = EngineAddress.parse(text)
    assert EngineAddress.parse(str(address)) == address
    assert address.collection in ("docs", "public.docs")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("redis://localhost/docs", "is no address of an engine"),
        ("index", "is no address of an engine"),
        ("qdrant://me:secret@localhost/docs", "LIGHTIR_ENGINE_KEY"),
        ("postgresql://me:secret@localhost/db?table=docs", "LIGHTIR_ENGINE_KEY"),
        ("qdrant://localhost", "names no collection"),
        ("qdrant://localhost/a/b", "names no collection"),
        ("qdrant://localhost/docs;DROP", "names no collection"),
        ("postgresql://localhost/db", "names no collection"),
        ("qdrant:///tmp/folder", "names no collection"),
        ("milvus://", "names no host"),
        ("qdrant://localhost:99999/docs", "port"),
        ("qdrant://localhost/docs?shade=red", "unknown option 'shade'"),
    ],
)
def test_a_malformed_address_is_refused_and_no_password_is_shown(text: str, problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem) as caught:
        EngineAddress.parse(text)
    assert "secret" not in str(caught.value)


def test_a_missing_client_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for address, module, extra in [
        ("qdrant://localhost/docs", "qdrant_client", "qdrant"),
        ("milvus://localhost/docs", "pymilvus", "milvus"),
        ("postgresql://localhost/db?table=docs", "psycopg", "postgres"),
    ]:
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(MissingExtra, match=rf"pip install 'lightir\[{extra}\]'"):
            open_engine(address)


def test_records_and_payloads_of_others_are_told_from_ours() -> None:
    ours = CollectionRecord(8, 100, "dot", "f" * 16, "m", "flat", passages=True)
    assert CollectionRecord.from_json(ours.to_json(), "x") == ours
    assert CollectionRecord.from_json(None, "x") is None
    assert CollectionRecord.from_json({"owner": "me"}, "x") is None
    with pytest.raises(FormatError, match="format 2"):
        CollectionRecord.from_json({"lightir": 2}, "x")
    with pytest.raises(FormatError, match="damaged"):
        CollectionRecord.from_json({"lightir": 1, "width": 3}, "x")
    address = EngineAddress.parse("qdrant://localhost/docs")
    document = Document("d", "text", "title", {"n": [1, {"a": None}]})
    assert document_of_payload(address, payload_of(document, "v"), "d") == document
    other = {"page_content": "words", "metadata": {"source": "x"}, "lang": "en"}
    assert document_of_payload(address, other, "7") == Document("7", "words", "", {"lang": "en", "source": "x"})
    with pytest.raises(InvalidInput, match=r"\?text=FIELD"):
        document_of_payload(address, {"body_md": "words"}, "7")
    named = EngineAddress.parse("qdrant://localhost/docs?text=body_md")
    assert document_of_payload(named, {"body_md": "words"}, "7").text == "words"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["q"], "requires --query-encoder"),
        (["q", "--query-encoder", "m", "--sort", "i"], "--sort is not supported"),
        (["q", "--query-encoder", "m", "--facet", "x"], "--facet is not supported"),
        (["q", "--query-encoder", "m", "--rerank", "x"], "--rerank is not supported"),
        (["q", "--query-encoder", "m", "--synonyms", "x"], "--synonyms is not supported"),
        (["q", "--query-encoder", "m", "--syntax"], "--syntax is not supported"),
    ],
)
def test_options_that_an_engine_would_ignore_are_refused(
    arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["search", "qdrant://localhost/docs", *arguments]) == 2
    assert problem in capsys.readouterr().err


def test_engine_fusion_requires_an_engine(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["search", str(folder), "q", "--engine-fusion"]) == 2
    assert "--engine-fusion requires" in capsys.readouterr().err


def test_push_options_are_checked() -> None:
    for wrong in ({"batch": 0}, {"attempts": 0}, {"wait_s": -1.0}):
        with pytest.raises(LightirError, match="a push has"):
            PushOptions(**wrong)
