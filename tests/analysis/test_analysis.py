"""Text is cut into BM25's terms the same way for documents and queries."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightir.analysis import ANALYSIS_VERSION, OF_A_MODEL, Analyzer, analyzer_names
from lightir.errors import FormatError, InvalidInput
from lightir.index import Index, build_index, document_shards
from lightir.search import Searcher
from lightir.types import Document
from lightir.words.languages import languages_of


@pytest.mark.parametrize(
    ("name", "text", "terms"),
    [
        ("english", "The cats WERE running, to and fro", ["cat", "were", "run", "fro"]),
        ("english", "a b c vitamin-D p53's x-ray", ["vitamin", "p53", "ray"]),
        ("words", "The cats were", ["the", "cats", "were"]),
        ("german", "Die Häuser", ["die", "haus"]),
        ("auto", "The cats WERE running, to and fro", ["cat", "were", "run", "fro"]),
        ("auto", "naïve cafés, cafe\u0301 Straße", ["naiv", "cafe", "cafe", "strass"]),
        ("auto", "战国3 KOEI。水", ["战", "国", "战国", "koei", "水"]),
        ("auto", "食べる ｶﾅ Ｆｕｌｌ", ["食", "食べ", "べる", "カナ", "full"]),
        ("auto", "한국어 검색", ["한국", "국어", "검색"]),
        ("auto", "ไปหา", ["ไป", "ปห", "หา"]),
        ("auto", "किताब किताबें", ["किताब", "किताब"]),
        ("auto", "مكتبة مكتبه المكتبة كِتَابٌ أحمد احمد کتاب", ["مكتب", "مكتب", "مكتب", "كتاب", "احمد", "احمد", "كتاب"]),
        ("auto", "שָׁלוֹם שלום", ["שלומ", "שלומ"]),
        ("auto", "ёлка елки ΌΛΟΣ όλος", ["елк", "елк", "ολ", "ολ"]),
        ("auto", "m² ١٢٣ ½ a", ["m2", "123"]),
        ("auto-german", "Die Häuser schön schon", ["die", "haus", "schon", "schon"]),
        ("auto-swedish", "för", ["för"]),
        ("auto-turkish", "İstanbul", ["istanbul"]),
        ("chinese", "战国无双3 by KOEI。水", ["战", "国", "无", "双", "战国", "国无", "无双", "3", "by", "koei", "水"]),
    ],
)
def test_terms(name: str, text: str, terms: list[str]) -> None:
    assert Analyzer(name).terms([text]) == [terms]


@given(st.lists(st.text(st.characters(codec="ascii")), max_size=3))
def test_auto_cuts_plain_english_as_english_does(texts: list[str]) -> None:
    assert Analyzer("auto").terms(texts) == Analyzer("english").terms(texts)


@given(st.text(st.characters(categories=["Lo"], min_codepoint=0x4E00, max_codepoint=0x9FFF)))
def test_auto_cuts_chinese_as_chinese_does(text: str) -> None:
    assert sorted(Analyzer("auto").terms([text])[0]) == sorted(Analyzer("chinese").terms([text])[0])


@pytest.mark.parametrize(
    ("texts", "language"),
    [
        ([], "english"),
        (["你好世界", "Nike Air Max 90", "XR-2000"], "english"),
        (["The man who was in the house"], "english"),
        (["Der Hund ist im Haus, und die Katze ist nicht da", "The dog"], "german"),
        (["Le chat est dans la maison et il ne sort pas"], "french"),
        (["El perro está en la casa y no sale por las noches"], "spanish"),
        (["Il cane non è nella casa ma nel giardino della nonna"], "italian"),
        (["De hond zit niet in het huis maar in de tuin"], "dutch"),
        (["Hunden är inte i huset utan på gården med katten"], "swedish"),
        (["Köpek evde değil ve bu bahçe çok büyük"], "turkish"),
        (["Koira ei ole talossa, mutta se on pihalla ja kissa myös"], "finnish"),
        (["O cão não está em casa, mas no jardim com uma bola"], "portuguese"),
    ],
)
def test_the_language_is_that_of_the_function_words(texts: list[str], language: str) -> None:
    assert languages_of(texts) == (language,)


GERMAN = "Der Hund ist im Haus, und die Katze ist nicht da, sondern mit den Kindern auf der Straße"
ENGLISH = "The dog is not in the house but with the children, which is what it was told to do by the man"
FRENCH = "Le chat est dans la maison et il ne sort pas, car les enfants sont avec lui sur le tapis"


@pytest.mark.parametrize(
    ("texts", "languages"),
    [
        (6 * [GERMAN] + 3 * [ENGLISH], ("german", "english")),
        (3 * [GERMAN] + 6 * [ENGLISH], ("english", "german")),
        (9 * [GERMAN] + 5 * [ENGLISH] + 4 * [FRENCH], ("german", "english", "french")),
        (6 * [GERMAN] + 2 * [ENGLISH], ("german",)),  # two texts are too few
        (50 * [GERMAN] + 4 * [ENGLISH], ("german",)),  # so are less than a tenth
        (30 * [ENGLISH] + 9 * ["The title"] + 9 * ["Kühlschrank", "战国无双"], ("english",)),
        (6 * [GERMAN] + 6 * [GERMAN + " " + ENGLISH], ("german",)),  # the language of these is not certain
    ],
)
def test_a_collection_has_the_languages_that_a_tenth_of_its_texts_are_in(
    texts: list[str], languages: tuple[str, ...]
) -> None:
    assert languages_of(texts) == languages
    assert languages_of(reversed(texts)) == languages


def test_words_of_several_languages_are_stemmed_by_each_in_turn() -> None:
    mixed = Analyzer("auto-german+english")
    assert mixed.languages == ("german", "english")
    assert mixed.language == "german"
    assert mixed.terms(["Häuser Haus, the running runs"]) == [["haus", "haus", "the", "run", "run"]]
    assert Analyzer("auto-german").terms(["running runs"]) == [["running", "run"]]
    assert Analyzer("auto-english+german").terms(["the Häuser"]) == [["haus"]]  # the main language's stop words


@pytest.mark.parametrize("name", ["auto-german+english", "auto-english+swedish"])
@given(texts=st.lists(st.text(st.sampled_from("aäeinrsgH ,é中")), max_size=4))
def test_the_terms_of_a_batch_are_those_of_each_text_in_several_languages_too(name: str, texts: list[str]) -> None:
    analyzer = Analyzer(name)
    distinct, rows = analyzer.distinct_terms(texts)
    of_texts = [sorted(distinct[i] for i in row.tolist()) for row in np.split(rows.term_ids, rows.indptr[1:-1])]
    expected = [sorted(term for _, terms in analyzer.words(text) for term in terms) for text in texts]
    assert [row for row in of_texts if row] == [row for row in expected if row]


@pytest.mark.parametrize(
    "name", ["auto-german+klingon", "auto-german+german", "auto-german+", "auto+german", "german+english", "auto-"]
)
def test_names_of_several_languages_are_checked(name: str) -> None:
    with pytest.raises(InvalidInput, match="auto-german\\+english"):
        Analyzer(name)


def test_an_index_of_two_languages_finds_the_forms_of_both(tmp_path: Path) -> None:
    texts = 4 * [GERMAN] + 3 * [ENGLISH] + ["Er las in Büchern", "She was running home"]
    documents = [Document(str(i), text) for i, text in enumerate(texts)]
    info = build_index(document_shards(documents), tmp_path / "index", progress=False)
    assert info.analyzer == "auto-german+english"
    with Index.open(tmp_path / "index") as index:
        for query, expected in [("Buch", "7"), ("runs", "8")]:
            assert [*Searcher(index).search([query])["0"].doc_ids] == [expected], query


def test_an_index_of_auto_stores_the_language_of_its_first_documents(tmp_path: Path) -> None:
    documents = [Document("1", "Der Hund ist im Haus und nicht im Garten"), Document("2", "我在北京大学")]
    info = build_index(document_shards(documents), tmp_path / "index", progress=False)
    assert info.analyzer == "auto-german"
    with Index.open(tmp_path / "index") as index:
        searcher = Searcher(index)
        for query, expected in [("Gärten", "1"), ("Häuser", "1"), ("北京", "2"), ("大学", "2"), ("zebra", None)]:
            assert [*searcher.search([query])["0"].doc_ids] == ([] if expected is None else [expected]), query


@pytest.mark.parametrize("name", sorted({*analyzer_names()} - {*OF_A_MODEL}))
def test_text_without_words_has_no_terms(name: str) -> None:
    assert Analyzer(name).terms(["", " \n", "!? …"]) == [[], [], []]
    assert Analyzer(name).terms([]) == []


def test_unknown_analyzers_and_other_versions_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"'klingon'.*english"):
        Analyzer("klingon")
    with pytest.raises(FormatError, match=f"version 99.*{ANALYSIS_VERSION}"):
        Analyzer("english", 99)


def test_the_model_analyzer_has_no_words_and_text_must_be_unicode() -> None:
    with pytest.raises(InvalidInput, match="query encoder"):
        Analyzer("model").terms(["a"])
    with pytest.raises(InvalidInput, match="text 1"):
        Analyzer("words").terms(["a", "\ud800"])
