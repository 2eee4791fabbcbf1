"""Text is cut into BM25's terms the same way for documents and queries."""

from __future__ import annotations

import pytest

from lightir.analysis import ANALYSIS_VERSION, OF_A_MODEL, Analyzer, analyzer_names
from lightir.errors import FormatError, InvalidInput


@pytest.mark.parametrize(
    ("name", "text", "terms"),
    [
        ("english", "The cats WERE running, to and fro", ["cat", "were", "run", "fro"]),
        ("english", "a b c vitamin-D p53's x-ray", ["vitamin", "p53", "ray"]),
        ("words", "The cats were", ["the", "cats", "were"]),
        ("german", "Die Häuser", ["die", "haus"]),
        ("chinese", "战国无双3 by KOEI。水", ["战", "国", "无", "双", "战国", "国无", "无双", "3", "by", "koei", "水"]),
    ],
)
def test_terms(name: str, text: str, terms: list[str]) -> None:
    assert Analyzer(name).terms([text]) == [terms]


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
