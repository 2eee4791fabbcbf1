"""The query syntax: parsing, phrases and conditions against plain loops over the documents, and named documents."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from lightir.analysis import Analyzer
from lightir.errors import InvalidInput
from lightir.index import (
    Field,
    Index,
    IndexOptions,
    IndexWriter,
    PassageOptions,
    Schema,
    build_index,
    document_shards,
)
from lightir.index.metadata_filters import json_path
from lightir.index.names import with_key
from lightir.index.phrases import Phrase
from lightir.index.segments.dictionary import SortedStrings
from lightir.query import CachedQueryEncoder, CachedTable
from lightir.search import LateSearcher, PageOptions, Searcher, SearchOptions
from lightir.search.late import LateReport, SecondScores
from lightir.search.query_syntax import (
    MAX_CONDITIONS,
    MAX_PHRASE,
    FieldCondition,
    ParsedQuery,
    parse_query,
)
from lightir.types import Document, Query
from lightir.words.scripts import is_unspaced
from small_collections import csr, word_contract, word_table, word_tokenizer, write_folder

FIELDS = {
    "brand": Field("keyword"),
    "ean": Field("keyword", key=True),
    "note": Field("text"),
    "n": Field("number"),
    "on": Field("boolean"),
    "day": Field("date"),
    "o.x": Field("keyword"),
}
SYNTAX = SearchOptions(syntax=True)

# Parsing


@given(st.text(st.sampled_from('ab1 \t\n"“”:-+.é北𝔸\0') | st.characters(), max_size=40))
def test_every_text_can_be_parsed(query: str) -> None:
    parsed = parse_query(query, FIELDS)
    if not parsed.has_conditions:
        assert parsed == ParsedQuery(query)
    for phrase in (*parsed.phrases, *parsed.without):
        assert phrase in query
        assert any(map(str.isalnum, phrase))
    for phrase in parsed.phrases:
        assert phrase in parsed.text
    assert {condition.name for condition in parsed.fields} <= FIELDS.keys()


@given(st.text(st.characters(exclude_characters='"“:-'), max_size=40))
def test_a_text_without_signs_is_unchanged(query: str) -> None:
    assert parse_query(query, FIELDS) == ParsedQuery(query)


@pytest.mark.parametrize(
    "query",
    [
        "",
        " ",
        '"',
        '""',
        '" "',
        '"?!"',
        '"steel kettle',
        'steel "',
        '24" and 30" monitors',
        "“steel kettle",
        "-",
        "- steel",
        "--amend",
        "->",
        '-"',
        '-"steel',
        '-other:"two words"',
        "wi-fi state-of-the-art",
        "color:red",
        'color:"dark red"',
        ":steel",
        "brand:",
        "brand: Norda",
        'brand:"',
        'brand:"Norda',
        "BRAND:Norda",
        "https://example.org/a?b=c",
        "C++: the language",
        "at 12:30",
        "n:cheap",
        "n:007",
        "on:yes",
        "day:2024",
        "o:y",
        f'"{"word " * MAX_PHRASE}"',
        f"-{'x' * (MAX_PHRASE + 1)}",
    ],
)
def test_other_text_is_plain_words(query: str) -> None:
    assert parse_query(query, FIELDS) == ParsedQuery(query)


@pytest.mark.parametrize(
    ("query", "parsed"),
    [
        ('a "b c" d', ParsedQuery("a b c d", ("b c",))),
        ("“b c”", ParsedQuery("b c", ("b c",))),
        ('"b"', ParsedQuery("b", ("b",))),
        ('"b" "b"', ParsedQuery("b b", ("b",))),
        ("a -b", ParsedQuery("a ", (), ("b",))),
        ("-b a", ParsedQuery("a", (), ("b",))),
        ('a -"b c"', ParsedQuery("a ", (), ("b c",))),
        ("-wi-fi", ParsedQuery("", (), ("wi-fi",))),
        ("a brand:Norda", ParsedQuery("a ", fields=(FieldCondition("brand", "Norda"),))),
        ('brand:"Norda Home"', ParsedQuery("", fields=(FieldCondition("brand", "Norda Home"),))),
        ("-brand:Norda", ParsedQuery("", fields=(FieldCondition("brand", "Norda", excluded=True),))),
        ('-brand:"Norda Home"', ParsedQuery("", fields=(FieldCondition("brand", "Norda Home", excluded=True),))),
        ("brand:a:b", ParsedQuery("", fields=(FieldCondition("brand", "a:b"),))),
        ("o.x:y", ParsedQuery("", fields=(FieldCondition("o.x", "y"),))),
        ("n:12.5", ParsedQuery("", fields=(FieldCondition("n", 12.5),))),
        ("n:-3", ParsedQuery("", fields=(FieldCondition("n", -3),))),
        ("on:True", ParsedQuery("", fields=(FieldCondition("on", True),))),
        ("day:2024-05-31", ParsedQuery("", fields=(FieldCondition("day", "2024-05-31"),))),
        ('a "b" "c', ParsedQuery('a b "c', ("b",))),
    ],
)
def test_parts_of_a_query(query: str, parsed: ParsedQuery) -> None:
    assert parse_query(query, FIELDS) == parsed


def test_conditions_beyond_the_limit_are_words() -> None:
    words = [f"w{i}" for i in range(MAX_CONDITIONS + 2)]
    parsed = parse_query(" ".join(f"-{word}" for word in words), FIELDS)
    assert parsed.without == tuple(words[:MAX_CONDITIONS])
    assert parsed.text == f"-w{MAX_CONDITIONS} -w{MAX_CONDITIONS + 1}"


@pytest.mark.parametrize("part", ['"', '" ', "“ ", "“a ", "-a ", "-", " -", "a:", 'brand:"', "brand:a ", "a"])
def test_huge_queries_are_parsed(part: str) -> None:
    parsed = parse_query(part * 200_000, FIELDS)
    assert len(parsed.phrases) + len(parsed.without) + len(parsed.fields) <= MAX_CONDITIONS


# Phrases


def slow_units(analyzer: Analyzer, text: str) -> list[str]:
    """The terms of words, and the characters of runs without blanks."""
    by_script = analyzer.name.startswith("auto")
    units: list[str] = []
    for word, terms in analyzer.words(text):
        unspaced = is_unspaced(word[0]) if by_script else analyzer.name == "chinese" and "\u3400" <= word[0] <= "\u9fff"
        units.extend([*word] if unspaced else terms)
    return units


def slow_contains(analyzer: Analyzer, text: str, phrase: str) -> bool:
    units, wanted = slow_units(analyzer, text), slow_units(analyzer, phrase)
    return any(units[i : i + len(wanted)] == wanted for i in range(len(units) + 1))


WORDS_OF_PHRASES = (
    "cat",
    "Cats",
    "the",
    "dog",
    "dog-cat",
    "é",
    "café",
    "北京",
    "京大",
    "カナ",
    "ｶﾅ",
    "x",
    "12",
    "don't",
)
PHRASE_TEXT = st.lists(st.sampled_from(WORDS_OF_PHRASES), max_size=8).map(" ".join)


@pytest.mark.parametrize("analyzer", ["auto", "auto-german", "english", "words", "chinese", "french"])
def test_phrases_by_definition(analyzer: str) -> None:
    own = Analyzer(analyzer)

    @settings(max_examples=150)
    @given(st.lists(PHRASE_TEXT, max_size=5), st.lists(st.sampled_from(WORDS_OF_PHRASES), max_size=3).map(" ".join))
    def check(texts: list[str], phrase: str) -> None:
        occurs = Phrase(phrase, own).occurs_in(texts)
        assert occurs.tolist() == [slow_contains(own, text, phrase) for text in texts]

    check()


# Conditions act as a filter

TEXTS = ("cat", "dog", "cats run", "the", "fish", "well", "sleeps", "北京", "京大")
BRANDS = ("Norda", "norda", "Norda Home", "Ferrum")
NOTES = ("a gift", "gifts for the cat", "cat gift", "", "北京")
CONDITIONS = (
    ('"cat dog"', "phrase", "cat dog"),
    ('"dog the cats"', "phrase", "dog the cats"),
    ('"fish"', "phrase", "fish"),
    ('"北京"', "phrase", "北京"),
    ('"the"', "phrase", "the"),
    ('"unknown words"', "phrase", "unknown words"),
    ("-dog", "without", "dog"),
    ('-"fish well"', "without", "fish well"),
    ("-the", "without", "the"),
    ("-unknown", "without", "unknown"),
    ("brand:NORDA", "brand", ("norda",)),
    ('-brand:"norda home"', "brand not", ("norda home",)),
    ("note:gift", "note", "gift"),
    ('-note:"gifts cat"', "note not", "gifts cat"),
    ("n:3", "n", 3),
    ("-on:true", "on not", True),
    ("day:2024-01-01", "day", "2024-01-01"),
)


def random_documents(rng: np.random.Generator, n: int) -> list[Document]:
    documents = []
    for number in rng.permutation(n).tolist():
        title = " ".join(rng.choice(TEXTS, rng.integers(0, 3)))
        text = " ".join(rng.choice(TEXTS, rng.integers(0, 7)))
        metadata: dict[str, Any] = {"i": number, "n": int(rng.integers(0, 5)), "on": bool(rng.random() < 0.5)}
        metadata["brand"] = rng.choice(BRANDS, 2).tolist() if rng.random() < 0.3 else str(rng.choice(BRANDS))
        metadata["note"] = str(rng.choice(NOTES))
        metadata["day"] = str(rng.choice(["2024-01-01T10:00:00Z", "2024-01-02"]))
        if rng.random() < 0.2:
            metadata = {"i": number}
        documents.append(Document(f"d{number:03d}", text, title, metadata))
    return documents


def meets(document: Document, kind: str, wanted: Any) -> bool:
    own = Analyzer("auto")
    if kind in ("phrase", "without"):
        stems = {*own.terms([document.full_text()])[0]}
        inside = any(slow_contains(own, part, wanted) for part in (document.title, document.text))
        having = inside and {*own.terms([wanted])[0]} <= stems
        return having if kind == "phrase" else not having or not slow_units(own, wanted)
    name, _, excluded = kind.partition(" ")
    value = document.metadata.get(name)
    values = value if isinstance(value, list) else [value] * (value is not None)
    if name == "brand":
        having = any(one.lower() in wanted for one in values)
    elif name == "note":
        having = any(slow_contains(own, one, wanted) for one in values)
    else:
        having = any(one[:10] == wanted if name == "day" else one == wanted for one in values)
    return not having if excluded else having


def encoder() -> CachedQueryEncoder:
    return CachedQueryEncoder(word_contract(), word_tokenizer(), tables={"": CachedTable(word_table())})


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Index, list[Document]]]:
    """Three segments, some deleted documents, and some that are pending."""
    rng = np.random.default_rng(3)
    documents = random_documents(rng, 90)
    folder = tmp_path_factory.mktemp("syntax") / "index"
    options = IndexOptions(analyzer="auto", schema=Schema({**FIELDS, "i": Field("number")}))
    with IndexWriter.create(folder, contract=word_contract(), options=options) as writer:
        for first, end in ((0, 50), (50, 75)):
            impacts = [{int(t): 1 for t in rng.integers(1, 8, 2)} for _ in range(first, end)]
            dense = rng.standard_normal((end - first, 4)).astype(np.float16)
            writer.add(documents[first:end], dense=dense, sparse=csr(impacts, vocab_size=8, dtype=np.uint8))
        writer.add(documents[75:])
        writer.delete([documents[i].doc_id for i in (1, 60, 80)])
    with Index.open(folder) as index:
        assert len(index.view.segments) == 3
        assert index.view.n_pending
        yield index, [document for i, document in enumerate(documents) if i not in (1, 60, 80)]


QUERIES = [("cat", [one]) for one in CONDITIONS] + [
    ("cat dog", [*pair]) for pair in itertools.combinations(CONDITIONS, 2) if pair[0][1] != "n"
][::5]


@pytest.mark.parametrize("mode", ["tokens", "dense", "hybrid", "dense+sparse+tokens"])
def test_conditions_act_as_a_filter(collection: tuple[Index, list[Document]], mode: str) -> None:
    index, documents = collection
    searcher = Searcher(index, encoder())
    n_hits = 0
    for (text, chosen), fusion in zip(QUERIES, itertools.cycle(["linear", "rrf", "linear:min-max"]), strict=False):
        query = " ".join([text, *(condition[0] for condition in chosen)])
        words = [text] + [condition[0].strip('"') if condition[1] == "phrase" else "" for condition in chosen]
        matching = [d.metadata["i"] for d in documents if all(meets(d, kind, value) for _, kind, value in chosen)]
        how: dict[str, Any] = {"mode": mode, "fusion": fusion, "depth": 30}
        run = searcher.search([query], 100, SearchOptions(syntax=True, **how))["0"]
        expected = searcher.search([" ".join(words)], 100, SearchOptions(filter={"i": {"in": matching}}, **how))["0"]
        assert list(run.doc_ids) == list(expected.doc_ids), query
        np.testing.assert_array_equal(run.scores, expected.scores)
        hits = searcher.hits(query, 100, SearchOptions(syntax=True, **how))
        assert [(hit.doc_id, hit.score) for hit in hits] == list(zip(run.doc_ids, run.scores.tolist(), strict=True))
        n_hits += len(hits)
    assert n_hits > 300


def test_a_query_of_conditions_alone_lists_documents(collection: tuple[Index, list[Document]]) -> None:
    index, documents = collection
    searcher = Searcher(index, encoder())
    for query, kind, value in CONDITIONS:
        if kind == "phrase":
            continue
        expected = sorted(document.doc_id for document in documents if meets(document, kind, value))
        run = searcher.search([Query("q", query)], 100, SYNTAX)["q"]
        assert list(run.doc_ids) == expected
        assert not run.scores.any()
        assert [hit.doc_id for hit in searcher.hits(query, 4, SYNTAX, explain=True)] == expected[:4]
        page = searcher.page(query, PageOptions(offset=1, limit=3, facets={"brand": 9}), SYNTAX)
        assert ([hit.doc_id for hit in page.hits], page.total) == (expected[1:4], len(expected))
    without = SearchOptions(syntax=True, exclude={"q": ["d001", "d002"]}, filter={"n": 3})
    left = [document.doc_id for document in documents if document.metadata.get("n") == 3]
    run = searcher.search([Query("q", "-unknown")], 100, without)["q"]
    assert list(run.doc_ids) == sorted({*left} - {"d001", "d002"})
    assert not searcher.hits("-unknown", 10, SearchOptions(syntax=True, min_score=0.1))


def test_pages_count_what_meets_the_conditions(collection: tuple[Index, list[Document]]) -> None:
    index, documents = collection
    searcher = Searcher(index)
    page = searcher.page("cat -dog", PageOptions(sort="i", limit=100), SearchOptions(mode="tokens", syntax=True))
    own = Analyzer("auto")
    expected = [
        document.metadata["i"]
        for document in documents
        if "cat" in own.terms([document.full_text()])[0] and meets(document, "without", "dog")
    ]
    assert [hit.metadata["i"] for hit in page.hits] == sorted(expected)
    assert page.total == len(expected)


def test_explanations_follow_the_conditions(collection: tuple[Index, list[Document]]) -> None:
    index, _ = collection
    searcher = Searcher(index, encoder())
    query, options = "cat -dog brand:norda", SearchOptions(mode="dense+tokens", syntax=True)
    hits = searcher.hits(query, 5, options)
    assert hits
    for hit in hits:
        assert searcher.explain(query, hit.doc_id, options).score == hit.score
    outside = searcher.hits("dog", 1, SearchOptions(mode="tokens"))[0]
    with pytest.raises(InvalidInput, match="does not match the filter or the query's conditions"):
        searcher.explain("cat -dog", outside.doc_id, options)


def test_without_the_option_all_text_is_words(collection: tuple[Index, list[Document]]) -> None:
    index, _ = collection
    searcher = Searcher(index, encoder())
    run = searcher.search(['"cat fish" -dog brand:norda d001', "cat fish dog brand norda d001"])
    assert list(run["0"].doc_ids) == list(run["1"].doc_ids)
    np.testing.assert_array_equal(run["0"].scores, run["1"].scores)


def test_a_batch_gives_what_its_queries_give(collection: tuple[Index, list[Document]]) -> None:
    index, _ = collection
    searcher = Searcher(index, encoder())
    queries = ["cat", '"cat dog"', "d007", "fish -cat", "", "n:3"]
    together = searcher.search(queries, 8, SYNTAX)
    for i, query in enumerate(queries):
        alone = searcher.search([query], 8, SYNTAX)["0"]
        assert list(alone.doc_ids) == list(together[str(i)].doc_ids)
        np.testing.assert_array_equal(alone.scores, together[str(i)].scores)
    assert not together["4"].doc_ids


def test_candidates_and_texts_that_are_no_text_are_refused(collection: tuple[Index, list[Document]]) -> None:
    index, _ = collection
    searcher = Searcher(index, encoder())
    with pytest.raises(InvalidInput, match="without syntax"):
        next(searcher.candidates([Query("q", "cat")], SYNTAX))
    with pytest.raises(InvalidInput, match="str"):
        searcher.hits(3, 1, SYNTAX)  # type: ignore[arg-type]


@pytest.mark.parametrize("analyzer", [None, "model"])
def test_an_index_without_counted_words_compares_texts(tmp_path: Path, analyzer: str | None) -> None:
    documents = [Document("a", "the cat runs"), Document("b", "the runs cat", "A dog"), Document("c", "Cat. Runs!")]
    dense = np.eye(3, 4, dtype=np.float16)
    folder = write_folder(tmp_path / "q", word_contract(), {"": {"embeddings": word_table()}})
    options = IndexOptions(analyzer=analyzer)
    with IndexWriter.create(tmp_path / "i", contract=word_contract(), query_encoder=folder, options=options) as writer:
        writer.add(documents, dense=dense, sparse=csr([{1: 1}] * 3, vocab_size=8, dtype=np.uint8))
    with Index.open(tmp_path / "i") as index:
        searcher = Searcher(index, encoder())
        options = SearchOptions(mode="dense", syntax=True)
        assert {hit.doc_id for hit in searcher.hits('"cat runs"', 9, options)} == {"a", "c"}
        assert {hit.doc_id for hit in searcher.hits('cat -"a dog"', 9, options)} == {"a", "c"}


def test_phrases_are_found_in_fields_with_boosts(tmp_path: Path) -> None:
    documents = [
        Document("a", "a kettle", metadata={"note": "steel pan", "brand": ["Norda"]}),
        Document("b", "a steel", "pan", metadata={"note": "pan of steel"}),
        Document("c", "a steel pan", metadata={"brand": "draft"}),
    ]
    for boosts, having, without in (({}, {"c"}, {"a", "b", "c"}), ({"note": 2, "brand": 1}, {"a", "c"}, {"a", "b"})):
        folder = tmp_path / str(len(boosts))
        options = IndexOptions(schema=Schema(FIELDS), boosts=boosts)
        build_index(document_shards(documents), folder, options=options, progress=False)
        with Index.open(folder) as index:
            searcher = Searcher(index)
            assert {hit.doc_id for hit in searcher.hits('"steel pan"', 9, SYNTAX)} == having
            assert {hit.doc_id for hit in searcher.hits("-draft", 9, SYNTAX)} == without


# Passages


def test_phrases_choose_passages_and_exclusions_documents(tmp_path: Path) -> None:
    def long(*parts: str) -> str:
        return "\n\n".join(f"{part} {'filler ' * 60}" for part in parts)

    documents = [
        Document("a", long("steel kettle", "glass kettle", "draft kettle"), "A", {"brand": "Norda"}),
        Document("b", long("kettle of steel", "iron pan"), "B", {"brand": "Ferrum"}),
        Document("kt-1", "kettle", "C"),
    ]
    options = IndexOptions(analyzer="auto", schema=Schema(FIELDS), passages=PassageOptions(tokens=80))
    build_index(document_shards(documents), tmp_path / "i", options=options, progress=False)
    with Index.open(tmp_path / "i") as index:
        searcher = Searcher(index)
        assert index.view.n_passages > 4
        (hit,) = searcher.hits('"glass kettle"', 9, SYNTAX)
        assert (hit.doc_id, "glass kettle" in hit.snippet) == ("a", True)
        assert {hit.doc_id for hit in searcher.hits("kettle -draft", 9, SYNTAX)} == {"b", "kt-1"}
        assert {hit.doc_id for hit in searcher.hits("kettle brand:norda", 9, SYNTAX)} == {"a"}
        every = searcher.hits("kettle brand:norda", 9, SearchOptions(syntax=True, passages=True))
        assert len(every) > 1
        assert [hit.doc_id for hit in searcher.hits("-draft", 9, SYNTAX)] == ["b", "kt-1"]
        assert [hit.doc_id for hit in searcher.hits("-pan", 9, SYNTAX)] == ["a", "kt-1"]
        for query in ("a", "A", "b", "KT-1"):
            best = searcher.hits(query, 9, SYNTAX)[0]
            assert (best.doc_id, best.named) == (query.lower(), True)
            assert searcher.search([query], 9, SYNTAX)["0"].doc_ids[0] == query.lower()
        best = searcher.hits("b", 1, SearchOptions(syntax=True, passages=True))[0]
        assert best.passage is not None
        assert best.passage.document == "b"


# Named documents


def test_keys_are_found_without_columns_as_by_definition(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    characters = 'aAbkKsS-1%_\\"\n\0 \u212a\u017fßé北'

    def text() -> str:
        return "".join(characters[i] for i in rng.integers(0, len(characters), rng.integers(1, 4)))

    keys = [[[text() for _ in range(rng.integers(0, 3))], text(), text(), None][i % 4] for i in range(150)]
    documents = [Document(f"d{i:03}", "cat", metadata={"ean": key, "brand": text()}) for i, key in enumerate(keys)]
    with IndexWriter.create(
        tmp_path / "i", options=IndexOptions(schema=Schema(FIELDS), segment_documents=60)
    ) as writer:
        writer.add(documents)
        writer.delete([document.doc_id for document in documents[1::9]])
    live = [(d.doc_id, d.metadata["ean"]) for i, d in enumerate(documents) if i % 9 != 1]
    known = [(doc_id, one) for doc_id, key in live for one in (key if isinstance(key, list) else [key])]
    texts = [(doc_id, one) for doc_id, one in known if isinstance(one, str)]
    wanted = [text() for _ in range(100)] + [case(one) for _, one in texts for case in (str, str.upper, str.swapcase)]
    n_found = 0
    with Index.open(tmp_path / "i") as index:
        view = index.view
        for value in sorted(wanted, key=lambda value: not value.isascii()):  # the others read the columns
            view.n_scans = 0
            exact = {doc_id for doc_id, one in texts if one == value}
            expected = exact or {doc_id for doc_id, one in texts if one.casefold() == value.casefold()}
            assert set(view.doc_ids(np.array(with_key(view, value), dtype=np.uint32))) == expected, value
            assert view.n_scans == value.isascii()
            n_found += len(expected)
    assert n_found > 300


def test_a_name_that_many_documents_may_have_is_looked_up_in_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightir.index.names.MAX_SCANNED", 2)
    documents = [Document(str(i), "cat", metadata={"ean": f"K-{i}", "note": "not k-7"}) for i in range(9)]
    build_index(document_shards(documents), tmp_path / "i", options=IndexOptions(schema=Schema(FIELDS)), progress=False)
    with Index.open(tmp_path / "i") as index:
        view = index.view
        assert view.store.documents.keys_perhaps_having("k-7", 2) is None
        assert view.doc_ids(np.array(with_key(view, "k-7"), dtype=np.uint32)) == ["7"]
        assert all(live.segment.columns.holds(json_path("ean", "ean")) for live in view.segments)


def named_index(folder: Path) -> Index:
    documents = [
        Document("WX-4821-B", "a cat"),
        Document("wx-4821-c", "the dog and a cat", metadata={"ean": "0400638133101", "brand": "0400638133101"}),
        Document("python", "a dog runs", metadata={"ean": ["Ab-1", "fish"]}),
        Document("1984", "fish cat"),
        Document("my notes.txt", "cat cat cat"),
        Document("Twin-1", "well"),
        Document("tWIN-1", "well well"),
    ]
    rng = np.random.default_rng(1)
    n = len(documents) - 1
    options = IndexOptions(analyzer="auto", schema=Schema(FIELDS))
    with IndexWriter.create(folder, contract=word_contract(), options=options) as writer:
        impacts = csr([{1: 1}] * n, vocab_size=8, dtype=np.uint8)
        writer.add(documents[:n], dense=rng.standard_normal((n, 4)).astype(np.float16), sparse=impacts)
        writer.add(documents[n:])
    return Index.open(folder)


@pytest.mark.parametrize("mode", ["tokens", "dense", "hybrid", "dense+tokens"])
def test_named_documents_are_first(tmp_path: Path, mode: str) -> None:
    with named_index(tmp_path / "i") as index:
        searcher = Searcher(index, encoder())
        for query, named in (
            ("WX-4821-B", {"WX-4821-B"}),
            (" wx-4821-b ", {"WX-4821-B"}),
            ("a dog (WX-4821-B)?", {"WX-4821-B"}),
            ("cat wx-4821-b wx-4821-c", {"WX-4821-B", "wx-4821-c"}),
            ('"WX-4821-B" cat', set()),  # no text has the phrase
            ("0400638133101", {"wx-4821-c"}),
            ("dog 0400638133101", {"wx-4821-c"}),
            ("cat ab-1", {"python"}),
            ("fish", {"python"}),
            ("cat fish", set()),
            ("python", {"python"}),
            ("python dog", set()),
            ("1984", {"1984"}),
            ("dog 1984", set()),
            ("MY notes.TXT", {"my notes.txt"}),
            ("Twin-1", {"Twin-1"}),
            ("twin-1", {"Twin-1", "tWIN-1"}),
        ):
            for fusion in ("linear", "rrf"):
                options = SearchOptions(mode=mode, fusion=fusion, syntax=True)
                hits = searcher.hits(query, 7, options)
                assert {hit.doc_id for hit in hits if hit.named} == named, query
                assert {hit.doc_id for hit in hits[: len(named)]} == named
                run = searcher.search([query], 7, options)["0"]
                assert list(run.doc_ids) == [hit.doc_id for hit in hits]
                order = [(-hit.score, hit.doc_id) for hit in hits if hit.named or not hit.pending]
                assert order == sorted(order)
                assert all(hit.score >= 1 for hit in hits if hit.named)
                page = searcher.page(query, PageOptions(limit=7), options)
                assert [hit.doc_id for hit in page.hits] == [hit.doc_id for hit in hits]
                for hit in hits:
                    explanation = searcher.explain(query, hit.doc_id, options)
                    assert (explanation.score, explanation.named) == (hit.score, hit.named)
                plain = searcher.hits(query.strip('"'), 7, SearchOptions(mode=mode, fusion=fusion))
                if '"' not in query:
                    others = [(hit.doc_id, hit.score) for hit in plain if hit.doc_id not in named]
                    assert [(hit.doc_id, hit.score) for hit in hits if not hit.named] == others


def test_named_documents_obey_filters_exclusions_and_conditions(tmp_path: Path) -> None:
    with named_index(tmp_path / "i") as index:
        searcher = Searcher(index, encoder())
        for options, query in (
            (SearchOptions(syntax=True, filter={"brand": {"exists": True}}), "WX-4821-B"),
            (SearchOptions(syntax=True, exclude=["WX-4821-B"]), "WX-4821-B"),
            (SearchOptions(syntax=True, mode="tokens"), "WX-4821-B -cat"),
            (SearchOptions(syntax=True), "WX-4821-B brand:0400638133101"),
        ):
            assert "WX-4821-B" not in [hit.doc_id for hit in searcher.hits(query, 9, options)]
        for mode in ("tokens", "hybrid"):
            excluding = SearchOptions(syntax=True, mode=mode, exclude=["1984", "python"])
            hits = searcher.hits("cat dog WX-4821-B", 3, excluding)
            assert (hits[0].doc_id, len(hits)) == ("WX-4821-B", 3)
            assert not {"1984", "python"} & {hit.doc_id for hit in hits}
        strict = SearchOptions(syntax=True, mode="tokens", min_score=50.0)
        assert [hit.doc_id for hit in searcher.hits("cat wx-4821-b", 9, strict)] == ["WX-4821-B"]


def test_deleted_documents_are_not_named(tmp_path: Path) -> None:
    named_index(tmp_path / "i").close()
    with IndexWriter.open(tmp_path / "i") as writer:
        writer.delete(["WX-4821-B", "python"])
    with Index.open(tmp_path / "i") as index:
        searcher = Searcher(index, encoder())
        for query in ("WX-4821-B", "wx-4821-b", "ab-1"):
            assert not any(hit.named for hit in searcher.hits(query, 9, SYNTAX))


def test_huge_queries_are_searched(collection: tuple[Index, list[Document]]) -> None:
    index, _ = collection
    searcher = Searcher(index)
    options = SearchOptions(mode="tokens", syntax=True)
    cats = [hit.doc_id for hit in searcher.hits("cat", 3, options)]
    for query in ("cat " + "a-1 " * 20_000, "cat " + '-x"' * 20_000, '"cat ' * 20_001):
        assert [hit.doc_id for hit in searcher.hits(query, 3, options)] == cats
    assert searcher.hits("d001" * 20_000, 3, options) == []


@given(st.lists(st.text("aAbÄé-1", min_size=1, max_size=4), unique=True, max_size=12), st.text("aAbBäé-1", max_size=4))
def test_strings_of_another_case_are_found(strings: list[str], wanted: str) -> None:
    ascending = sorted(strings, key=str.encode)
    packed = SortedStrings.pack(ascending)
    for longer in range(3):
        beginning = wanted.encode().lower()
        expected = [
            i
            for i, string in enumerate(ascending)
            if len(string.encode()) == len(beginning) + longer and string.encode().lower().startswith(beginning)
        ]
        assert packed.like(wanted, longer=longer) == expected


# Late search


class NotingStage:
    """A second stage that notes the queries that it gets."""

    def __init__(self) -> None:
        self.queries: list[str] = []

    def score(self, query: str, doc_ids: Sequence[str], *, seconds: float | None) -> SecondScores:
        self.queries += [query] * bool(doc_ids)
        return SecondScores({}, {}, LateReport())


def test_the_second_stage_gets_the_words(collection: tuple[Index, list[Document]]) -> None:
    index, _ = collection
    stage = NotingStage()
    late = LateSearcher(Searcher(index, encoder()), stage)
    late.search(['"cat dog" -fish'], 3, SYNTAX)
    late.hits("brand:norda cat", 3, SYNTAX)
    late.hits("cat -dog", 3)
    listed, _ = late.hits("brand:norda", 3, SYNTAX)
    assert [hit.doc_id for hit in listed] == [hit.doc_id for hit in late.searcher.hits("brand:norda", 3, SYNTAX)]
    assert [query.strip() for query in stage.queries] == ["cat dog", "cat", "cat -dog"]
