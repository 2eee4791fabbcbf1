"""Queries that the kernel reads from known words are those that Python makes of the same texts, to the bit."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightir.errors import InvalidInput
from lightir.index import Index, IndexOptions, IndexWriter, TokenQueries, View, build_index, document_shards
from lightir.index import known_words as module
from lightir.index.known_words import KnownWords
from lightir.kernel.word_queries import WordKind, WordReader
from lightir.search.word_matching import WordMatching
from lightir.types import Document
from lightir.words.stems import QUESTION_WORDS

ANALYZERS = ("english", "auto-english", "words", "french", "auto-french+english")
WORDS = ["vaccine", "vaccines", "doing", "does", "whose", "safety", "kettle", "x2000", "snake_case", "it", "été", "US"]
ASKED = ["what", "What", "WHO", "who", "do", "I", "a", "the", "kettel", "vacine", "zq9", "zzzzzz", "Vaccinate"]
FIXED = ["", "  ", "what", "WHAT IS IT", "WHO vaccine who", "what does it do", "the", "kettel", "vaccine " * 300]

pieces = st.one_of(st.sampled_from([*WORDS, *ASKED]), st.text("abkettlW_9'-é ", max_size=8))
texts = st.lists(pieces, max_size=9).map(" ".join)


@pytest.fixture(scope="module", params=ANALYZERS)
def index(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    """An index of five segments, of which one has deleted documents."""
    folder = tmp_path_factory.mktemp(request.param) / "index"
    rng = np.random.default_rng(3)
    documents = [Document(f"d{i}", " ".join(rng.choice([*WORDS, "what", "who"], 6))) for i in range(40)]
    options = IndexOptions(analyzer=request.param, segment_documents=8)
    build_index(document_shards(documents), folder, options=options, progress=False)
    with IndexWriter.open(folder) as writer:
        writer.delete(["d3", "d4"])
    with Index.open(folder) as opened:
        yield opened


def by_python(view: View, asked: list[str], matching: WordMatching) -> tuple[TokenQueries, bool]:
    """Return the queries, and whether a word has alternatives."""
    expanded = [matching.expand(view, text) for text in asked]
    alternatives = [groups for _, groups, _ in expanded]
    rows, own = [row for row, _, _ in expanded], [terms for _, _, terms in expanded]
    return view.words.queries(rows, alternatives=alternatives, analyzed=own), any(alternatives)


def may_be_left(view: View, asked: list[str], has_alternatives: bool) -> bool:
    """Whether the kernel may leave texts to Python: a word has alternatives, or would have if it did not ask."""
    words = {word for text in asked for word in text.lower().split()}
    asks_in_vain = any(not view.words.vocabulary.frequency(word) for word in words & QUESTION_WORDS)
    return has_alternatives or asks_in_vain or not all(map(str.isascii, asked))


def require_equal(mine: TokenQueries, theirs: TokenQueries) -> None:
    assert list(mine.terms) == list(theirs.terms)
    assert [list(row) for row in mine.analyzed] == [list(row) for row in theirs.analyzed]
    assert mine.words == theirs.words == {}
    assert theirs.unknown is not None
    pairs = [(getattr(mine.vectors, name), getattr(theirs.vectors, name)) for name in ("indptr", "term_ids", "weights")]
    for one, other in [*pairs, (mine.places, theirs.places), (mine.unknown, theirs.unknown)]:
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("question_words", [False, True])
@settings(max_examples=60, deadline=None)
@given(asked=st.lists(texts, min_size=1, max_size=4))
def test_known_queries_are_those_of_python(index: Index, question_words: bool, asked: list[str]) -> None:
    matching = WordMatching(question_words=question_words)
    known = matching.known_queries(index.view, asked)
    theirs, has_alternatives = by_python(index.view, asked, matching)
    if known is None:
        assert may_be_left(index.view, asked, has_alternatives)
    else:
        assert not has_alternatives
        require_equal(known, theirs)


@pytest.mark.parametrize("text", FIXED)
def test_some_texts(index: Index, text: str) -> None:
    known = WordMatching().known_queries(index.view, [text])
    theirs, has_alternatives = by_python(index.view, [text], WordMatching())
    assert (known is None) == has_alternatives
    if known is not None:
        require_equal(known, theirs)


def test_each_question_word(index: Index) -> None:
    for word in sorted(QUESTION_WORDS):
        capitals = word.upper()
        for text in (f"{word} safety", f"{capitals} safety", f"{capitals} SAFETY", word, f"{word} {word}s kettle"):
            known = WordMatching().known_queries(index.view, [text])
            theirs, has_alternatives = by_python(index.view, [text], WordMatching())
            if known is None:
                assert may_be_left(index.view, [text], has_alternatives), text
            else:
                require_equal(known, theirs)


def test_other_ways_of_matching_are_left_to_python(index: Index) -> None:
    for matching in (WordMatching(typos=False), WordMatching(as_you_type=True)):
        assert matching.known_queries(index.view, ["kettle"]) is None
    assert WordMatching().known_queries(index.view, ["kettle"]) is not None


def test_words_are_forgotten_when_there_are_too_many(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WORDS_KEPT", 3)
    view = index.view
    assert view.analyzer is not None
    known = KnownWords(view.analyzer, len(view.segments))
    for asked in (["safety kettle"], ["vaccine x2000"], ["safety vaccine kettle x2000"], ["kettle"], ["kettle"]):
        queries = known.queries(asked, view.words.facts, lambda _: False, asking=False)
        if queries is not None:  # a reader that forgot words of this query leaves it to Python
            require_equal(queries, by_python(view, asked, WordMatching())[0])
    assert known.queries(["kettle"], view.words.facts, lambda _: False, asking=False) is not None


def test_bad_arguments_of_the_reader() -> None:
    reader = WordReader(2)
    assert reader.read(["kettle tea", "cup"], counts_asking=False) == (None, ["kettle", "tea", "cup"])
    with pytest.raises(InvalidInput, match="places and segments"):
        reader.learn(["kettle"], [("kettl", 1.0, (1,), False)], [False])
    with pytest.raises(InvalidInput, match="words and terms"):
        reader.learn(["kettle"], [], [False])
    with pytest.raises(InvalidInput, match="words and flags"):
        reader.learn(["kettle"], [WordKind.no_term], [])
    with pytest.raises(InvalidInput, match="not valid text"):
        reader.learn(["\ud800"], [WordKind.no_term], [False])
    assert reader.read(["\ud800 kettle"], counts_asking=False) == (None, [])
