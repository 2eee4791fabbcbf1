"""BM25 over fields with boosts (BM25F) against its definition, through any changes."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from factories import make_contract
from lightir import Index, IndexOptions, IndexWriter, PassageOptions, Searcher, SearchOptions
from lightir.analysis import Analyzer
from lightir.cli.app import build_parser, main
from lightir.cli.index import boosts_of
from lightir.errors import FormatError, InvalidInput
from lightir.index import Field, Schema, build_index, document_shards
from lightir.index.segments.layout import SEGMENTS_FOLDER
from lightir.index.segments.rows import MAX_LENGTH, count_weighted_terms
from lightir.pending import WorkOptions, work
from lightir.shards import Shard, VectorsWriter
from lightir.types import Document
from lightir.vectors import Ragged
from pending_documents import FakeEncoder
from small_collections import word_contract, word_table, write_folder

SCHEMA = Schema({"tags": Field("keyword"), "maker.name": Field("text"), "price": Field("number")})
WORDS = ("ant", "bee", "cow", "doe", "elk")
QUERIES = [" ".join(words) for n in (1, 2, 3) for words in itertools.combinations(WORDS, n)] + ["ant ant bee", "yak"]
ALL = SearchOptions(mode="tokens", typos=False)


def documents_from(rng: random.Random, ids: Sequence[str]) -> list[Document]:
    """Return random documents of few words, in which every field is missing now and then."""

    def words(most: int) -> str:
        return " ".join(rng.choices(WORDS, k=rng.randint(0, most)))

    made = []
    for doc_id in ids:
        metadata: dict[str, Any] = {"price": rng.randint(1, 3)} if rng.random() < 0.5 else {}
        if rng.random() < 0.7:
            metadata["tags"] = rng.choice([words(2), [words(1), [words(2)]], None])
        if rng.random() < 0.7:
            metadata["maker"] = rng.choice([{"name": words(2)}, {"city": "ant"}, "ant"])
        made.append(Document(doc_id, words(5), words(2), metadata))
    return made


def texts_of(document: Document) -> dict[str, list[str]]:
    """Return the texts of each field, by hand."""
    tags, maker = document.metadata.get("tags"), document.metadata.get("maker")
    flat = [tags] if isinstance(tags, str) else [] if tags is None else [tags[0], *tags[1]]
    name = [maker["name"]] if isinstance(maker, dict) and "name" in maker else []
    return {"title": [document.title], "text": [document.text], "tags": flat, "maker.name": name}


def bm25f(documents: Sequence[Document], query: str, boosts: dict[str, int], analyzer: str) -> dict[str, float]:
    """Return the score above 0 of each document, from the definition of BM25F."""
    weights = {"title": 1, "text": 1} | boosts
    frequencies: dict[str, dict[str, int]] = {}
    for document in documents:
        frequency: dict[str, int] = {}
        for name, weight in weights.items():
            for text in texts_of(document)[name]:
                for term in Analyzer(analyzer).terms([text])[0]:
                    frequency[term] = frequency.get(term, 0) + weight
        frequencies[document.doc_id] = frequency
    lengths = {doc_id: sum(frequency.values()) for doc_id, frequency in frequencies.items()}
    mean = sum(lengths.values()) / max(len(lengths), 1) or 1.0
    scores: dict[str, float] = {}
    for term, count in Counter(Analyzer(analyzer).terms([query])[0]).items():
        having = [doc_id for doc_id, frequency in frequencies.items() if term in frequency]
        idf = math.log(1 + (len(documents) - len(having) + 0.5) / (len(having) + 0.5))
        for doc_id in having:
            tf = frequencies[doc_id][term]
            part = count * idf * tf / (tf + 0.9 * (1 - 0.4 + 0.4 * lengths[doc_id] / mean))
            scores[doc_id] = scores.get(doc_id, 0.0) + part
    return scores


def scores_of(folder: Path, query: str) -> dict[str, float]:
    with Index.open(folder) as index:
        (ranking,) = Searcher(index).search([query], 1000, ALL).values()
    return dict(zip(ranking.doc_ids, ranking.scores.tolist(), strict=True))


def require_scores(folder: Path, stored: dict[str, Document], boosts: dict[str, int], analyzer: str) -> None:
    with Index.open(folder) as index:
        rankings = Searcher(index).search(QUERIES, 1000, ALL).values()
    for query, ranking in zip(QUERIES, rankings, strict=True):
        expected = bm25f(list(stored.values()), query, boosts, analyzer)
        scores = dict(zip(ranking.doc_ids, ranking.scores.tolist(), strict=True))
        assert scores == pytest.approx(expected, rel=2e-6), query


@pytest.mark.parametrize("seed", range(6))
def test_scores_are_those_of_the_definition_after_any_change(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    boosts = {
        name: rng.choice([1, 2, 3, 100]) for name in ("title", "text", "tags", "maker.name") if rng.random() < 0.7
    }
    boosts = boosts or {"tags": 2}
    analyzer = rng.choice(["words", "auto", "english"])
    options = IndexOptions(analyzer=analyzer, schema=SCHEMA, boosts=boosts, segment_documents=rng.choice([4, 65_536]))
    stored = {document.doc_id: document for document in documents_from(rng, [f"d{i}" for i in range(20)])}
    folder = tmp_path / "index"
    build_index(document_shards(stored.values(), size=7), folder, options=options, progress=False)
    analyzer = "english" if analyzer == "auto" else analyzer
    require_scores(folder, stored, boosts, analyzer)
    for step in range(12):
        with IndexWriter.open(folder) as writer:
            change = rng.choice(["add", "upsert", "delete", "set", "rename", "compact"])
            some = rng.sample(sorted(stored), 3)
            if change == "add":
                new = documents_from(rng, [f"n{step}-{i}" for i in range(3)])
                writer.add(new)
                stored |= {document.doc_id: document for document in new}
            elif change == "upsert":
                others = documents_from(rng, some)
                kept = dataclasses.replace(others[0], title=stored[some[0]].title, text=stored[some[0]].text)
                writer.upsert([kept, *others[1:]])  # of the first one only metadata change
                stored |= {document.doc_id: document for document in [kept, *others[1:]]}
            elif change == "delete":
                writer.delete(some)
                stored = {doc_id: document for doc_id, document in stored.items() if doc_id not in some}
            elif change == "set":
                others = documents_from(rng, some)
                none = {"tags": None, "maker": None, "price": None}
                writer.set_metadata({document.doc_id: none | dict(document.metadata) for document in others})
                for document in others:
                    kept_fields = {name: value for name, value in document.metadata.items() if value is not None}
                    stored[document.doc_id] = dataclasses.replace(stored[document.doc_id], metadata=kept_fields)
            elif change == "rename":
                writer.rename({some[0]: f"r{step}"})
                stored[f"r{step}"] = dataclasses.replace(stored.pop(some[0]), doc_id=f"r{step}")
            else:
                writer.compact(progress=False)
        require_scores(folder, stored, boosts, analyzer)
    with Index.open(folder) as index:
        assert index.verify() == []
        assert index.info().boosts == boosts


texts = st.lists(st.sampled_from(["cats", "cat", "dog", "the", "élan", "犬", "猫犬", "か", "x"]), max_size=4)
fields = st.tuples(texts, texts, texts)


@settings(max_examples=25)
@given(
    rows=st.lists(fields, min_size=1, max_size=5),
    boosts=st.fixed_dictionaries({}, optional={name: st.integers(1, 100) for name in ("title", "text", "tags")}),
    analyzer=st.sampled_from(["auto", "english", "words", "chinese"]),
)
def test_a_boost_counts_as_if_the_field_were_repeated(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Any], boosts: dict[str, int], analyzer: str
) -> None:
    folder = tmp_path_factory.mktemp("indexes")
    names = ("title", "text", "tags")
    times = {"title": 1, "text": 1, "tags": 0} | boosts
    plain, repeated = [], []
    for i, row in enumerate(rows):
        title, text, tags = (" ".join(words) for words in row)
        plain.append(Document(f"d{i}", text, title, {"tags": row[2]}))
        again = {name: [part] * times[name] for name, part in zip(names, (title, text, tags), strict=True)}
        repeated.append(Document(f"d{i}", " ".join(again["text"] + again["tags"]), " ".join(again["title"])))
    schema = Schema({"tags": Field("keyword")})
    boosted = IndexOptions(analyzer=analyzer, schema=schema, boosts=boosts)
    build_index(document_shards(plain), folder / "boosted", options=boosted, progress=False)
    build_index(document_shards(repeated), folder / "plain", options=IndexOptions(analyzer=analyzer), progress=False)
    with Index.open(folder / "boosted") as one, Index.open(folder / "plain") as other:
        (first,), (second,) = one.view.segments, other.view.segments
        for name in first.segment.manifest["arrays"].keys() | second.segment.manifest["arrays"].keys():
            np.testing.assert_array_equal(first.segment.array(name), second.segment.array(name), err_msg=name)
        assert one.view.mean_length == other.view.mean_length


def test_boosts_of_one_on_title_and_text_change_no_byte(tmp_path: Path) -> None:
    documents = documents_from(random.Random(3), [f"d{i}" for i in range(30)])
    for name, boosts in (("default", {}), ("ones", {"text": 1, "title": 1})):
        options = IndexOptions(schema=SCHEMA, boosts=boosts)
        build_index(document_shards(documents), tmp_path / name, options=options, progress=False)
    parts = [sorted((tmp_path / name / SEGMENTS_FOLDER).rglob("*.*")) for name in ("default", "ones")]
    assert [path.name for path in parts[0]] == [path.name for path in parts[1]]
    assert all(one.read_bytes() == other.read_bytes() for one, other in zip(*parts, strict=True) if one.is_file())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"boosts": {"title": 0}}, "the boost of 'title' is 0; expected an integer from 1 to 100"),
        ({"boosts": {"title": 101}}, "the boost of 'title' is 101"),
        ({"boosts": {"title": 2.0}}, "the boost of 'title' is 2.0"),
        ({"boosts": {"title": True}}, "the boost of 'title' is True"),
        ({"boosts": {"tag": 2}}, "'tag', which has no type in the schema; fields of words are title, text, tags"),
        ({"boosts": {"price": 2}}, "'price', a number field; expected a field of text or keywords"),
        ({"boosts": {"tags": 2}, "schema": None}, "'tags', which has no type in the schema"),
        ({"boosts": {"title": 2}, "analyzer": None}, "the analyzer None has none"),
        ({"boosts": {"title": 2}, "analyzer": "bag"}, "the analyzer bag has none"),
        ({"boosts": {"title": 2}, "analyzer": "model"}, "the analyzer model has none"),
    ],
)
def test_impossible_boosts_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        IndexOptions(**{"schema": SCHEMA, **changes})


@pytest.fixture(params=["fp16", "int8"])
def encoded(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """An index of encoded and pending documents and passages, which counts tags twice."""
    encoder = write_folder(tmp_path / "encoder", word_contract(), {"default": {"embeddings": word_table()}})
    options = IndexOptions(
        analyzer="words",
        dense_dtype=request.param,
        schema=SCHEMA,
        boosts={"tags": 2},
        passages=PassageOptions(16),
    )
    with IndexWriter.create(
        tmp_path / "index", options=options, contract=word_contract(), query_encoder=encoder
    ) as writer:
        writer.add([Document(f"d{i}", f"cat {i}", metadata={"tags": "elk"}) for i in range(6)])
        writer.add([Document("long", "cat dog bird. " * 40, "Title", {"tags": "doe"})])
    work(tmp_path / "index", FakeEncoder(), WorkOptions(once=True), progress=False)
    with IndexWriter.open(tmp_path / "index") as writer:
        writer.add([Document(f"p{i}", f"cat {i}") for i in range(2)])
    return tmp_path / "index"


def vectors_of(folder: Path) -> dict[str, tuple[bytes, bytes]]:
    """Return the dense row and the sparse row of each encoded document."""
    rows = {}
    with Index.open(folder) as index:
        for live in index.view.segments:
            dense, sparse = live.segment.dense, live.segment.sparse
            for row in live.places.tolist():
                if not live.segment.pending[row]:
                    assert dense is not None
                    assert sparse is not None
                    scale = b"" if dense[1] is None else dense[1][row].tobytes()
                    terms, impacts = sparse.row(row)
                    rows[live.segment.doc_ids[row]] = (
                        dense[0][row].tobytes() + scale,
                        terms.tobytes() + impacts.tobytes(),
                    )
    return rows


def test_words_follow_metadata_and_vectors_stay(encoded: Path) -> None:
    before = vectors_of(encoded)
    with IndexWriter.open(encoded) as writer:
        assert (
            writer.set_metadata({"d1": {"tags": ["bee", "bee"]}, "p1": {"tags": "bee"}, "long": {"tags": "bee"}}) == 3
        )
        assert writer.info().pending == 2
        other = Document("d2", "cat 2", metadata={"tags": "bee"})
        assert writer.upsert([other]) == 1
        assert writer.upsert([other]) == 0
        segments = [live.number for live in writer.view.segments]
        assert writer.set_metadata({"d3": {"price": 2}}) == 1
        assert [live.number for live in writer.view.segments] == segments  # no word has changed
    assert vectors_of(encoded) == before
    assert scores_of(encoded, "bee").keys() == {"d1", "p1", "d2", "long"}
    assert scores_of(encoded, "doe") == {}
    assert scores_of(encoded, "elk").keys() == {"d0", "d3", "d4", "d5"}
    with IndexWriter.open(encoded) as writer:
        writer.compact(progress=False)
    assert vectors_of(encoded) == before
    with Index.open(encoded) as index:
        assert index.verify() == []
        (ranking,) = Searcher(index).search(["bee"], 100, dataclasses.replace(ALL, passages=True)).values()
        n_passages = sum(doc_id.startswith("long#") for doc_id in index.view.stored_keys(["long"]))
        assert sum(doc_id.startswith("long#") for doc_id in ranking.doc_ids) == n_passages > 1


def test_vectors_come_to_the_words_of_the_stored_metadata(encoded: Path) -> None:
    """A worker may have read the document before its metadata changed, or name title and text alone."""
    with IndexWriter.open(encoded) as writer:
        writer.set_metadata({"p0": {"tags": "bee"}})
        shard = FakeEncoder().encode([Document("p0", "cat 0"), Document("p1", "cat 1", metadata={"tags": "elk"})])
        assert writer.set_vectors(shard.documents, dense=shard.dense, sparse=shard.sparse) == []
    assert scores_of(encoded, "bee").keys() == {"p0"}
    assert "p1" not in scores_of(encoded, "elk")


def test_a_match_outside_the_text_is_explained_and_not_highlighted(tmp_path: Path) -> None:
    documents = [Document("a", "a quick cow", "The elk", {"tags": ["bee", "cow"]}), Document("b", "cow")]
    options = IndexOptions(schema=SCHEMA, boosts={"title": 3, "tags": 2})
    build_index(document_shards(documents), tmp_path / "index", options=options, progress=False)
    with Index.open(tmp_path / "index") as index:
        searcher = Searcher(index)
        hit = searcher.hits("cow bee elk", 1, explain=True)[0]
        assert (hit.doc_id, hit.snippet) == ("a", "a quick cow")
        assert [hit.snippet[start:end] for start, end in hit.highlights] == ["cow"]
        assert {term.term for term in hit.terms} == {"cow", "bee", "elk"}
        explanation = searcher.explain("cow bee elk", "a")
        parts = sum(term.score for term in explanation.terms["tokens"])
        assert parts == pytest.approx(explanation.score, rel=1e-6)
        assert explanation.score == pytest.approx(hit.score, rel=1e-6)


def test_the_index_keeps_its_boosts_and_an_older_record_has_none(tmp_path: Path) -> None:
    options = IndexOptions(schema=SCHEMA, boosts={"tags": 5})
    with IndexWriter.create(tmp_path / "index", options=options) as writer:
        record = writer.view.record
        assert record["boosts"] == {"tags": 5}
        fields = {name: {**known, "boost": 1.0} for name, known in record["schema"]["fields"].items()}
        with writer._store.transaction():
            writer._store.set_record({**record, "schema": {"fields": fields}, "boosts": {"tags": 500}})
    with pytest.raises(FormatError, match="the boost of 'tags' is 500"):
        Index.open(tmp_path / "index")
    with IndexWriter.create(tmp_path / "older", options=IndexOptions(schema=SCHEMA)) as writer:
        assert "boosts" not in writer.view.record
        with writer._store.transaction():
            writer._store.set_record({**writer.view.record, "schema": {"fields": fields}})
    with IndexWriter.open(tmp_path / "older") as writer:
        assert (writer.view.schema, writer.view.options.boosts) == (SCHEMA, {})
        writer.add([Document("a", "ant", metadata={"tags": "bee"})])
    assert scores_of(tmp_path / "older", "bee") == {}


def test_the_command_takes_boosts_and_info_shows_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "c.jsonl").write_text(
        '{"id": "a", "title": "ant", "text": "x", "tags": ["bee"], "price": 2}\n{"id": "b", "text": "bee ant"}\n'
    )
    command = ["index", str(tmp_path / "c.jsonl"), "--out", str(tmp_path / "i")]
    assert main([*command, "--boost", "title=3,tags=2", "--boost", "text=4"]) == 0
    capsys.readouterr()
    assert main(["info", str(tmp_path / "i"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["boosts"] == {"title": 3, "tags": 2, "text": 4}
    assert main(["info", str(tmp_path / "i")]) == 0
    assert "title 3, tags 2, text 4" in capsys.readouterr().out
    assert main(["set", str(tmp_path / "i"), "b", "tags=fly"]) == 0
    assert scores_of(tmp_path / "i", "fly").keys() == {"b"}
    capsys.readouterr()
    assert main([*command, "--overwrite", "--boost", "tag=2"]) == 1
    assert "'tag', which has no type in the schema; fields of words are title, text, tags" in capsys.readouterr().err
    for bad in ("title", "title=", "=3", "title=-1", "title=2.5", "title=3,,", "title=²"):
        with pytest.raises(SystemExit):
            main([*command, "--overwrite", "--boost", bad])
    assert main([*command, "--overwrite", "--boost", "price=2"]) == 1
    assert main([*command, "--overwrite", "--boost", "title=0"]) == 1
    assert scores_of(tmp_path / "i", "fly").keys() == {"b"}


def test_an_index_of_vectors_has_boosts(tmp_path: Path) -> None:
    documents = [Document("a", "ant", metadata={"tags": "bee"}), Document("b", "bee")]
    with VectorsWriter(tmp_path / "v", make_contract()) as writer:
        writer.add(Shard(documents, np.ones((2, 8), np.float16), None))
        writer.finish()
    assert main(["index", str(tmp_path / "v"), "--out", str(tmp_path / "i"), "--boost", "tags=9"]) == 0
    assert scores_of(tmp_path / "i", "bee") == pytest.approx(bm25f(documents, "bee", {"tags": 9}, "english"), rel=2e-6)


def test_a_length_beyond_32_bits_is_stored_as_the_greatest_one() -> None:
    rows = count_weighted_terms(["b", "a"], Ragged.from_lists([[0, 1, 1], [], [0], [0]]), [2**31, 1])
    assert rows.lengths is not None
    assert rows.lengths.tolist() == [MAX_LENGTH, 1]
    assert rows.terms == ["a", "b"]
    assert [row.tolist() for row in (rows.counts.indptr, rows.counts.term_ids)] == [[0, 2, 3], [0, 1, 1]]
    assert rows.counts.weights.tolist() == [2**32, 2**31, 1]  # 2**31 + 1 in float32


@pytest.mark.parametrize(
    ("arguments", "boosts"),
    [
        ([], {"title": 5}),
        (["--boost", "text=2"], {"title": 5, "text": 2}),
        (["--boost", "title=1"], {"title": 1}),
        (["--boost", "title=3"], {"title": 3}),
        (["--analyzer", "english"], {"title": 5}),
        (["--analyzer", "none"], {}),
        (["--analyzer", "model"], {}),
        (["--analyzer", "bag"], {}),
    ],
)
def test_the_command_boosts_titles_of_counted_words(arguments: list[str], boosts: dict[str, int]) -> None:
    assert boosts_of(build_parser().parse_args(["index", "corpus", "--out", "index", *arguments])) == boosts
