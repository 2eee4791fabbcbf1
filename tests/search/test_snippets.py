"""Snippets: the passage with the query's terms, whatever the language, and where in it they stand."""

from __future__ import annotations

import itertools
import string
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import example, given, settings

from lightir import kernel
from lightir.analysis import Analyzer
from lightir.errors import InvalidInput
from lightir.kernel import _native
from lightir.kernel.passages import PassageFinder
from lightir.search.snippets import SEARCHED_CHARACTERS, SNIPPET_CHARACTERS, Snippet, slow_snippet, snippet, snippets

ENGLISH, CHINESE = Analyzer("english"), Analyzer("chinese")
FAR = " ".join(["filler"] * 200)


def marked(shown: Snippet) -> list[str]:
    return [shown.text[start:end] for start, end in shown.highlights]


def test_a_snippet_is_the_passage_with_the_most_terms() -> None:
    text = f"{FAR} one cat here {FAR} the cats were\n sleeping at the well {FAR} sleeping cats {FAR}"
    shown = snippet(text, "sleeping cat well", ENGLISH)
    assert "cats were sleeping at the well" in shown.text
    assert marked(shown) == ["cats", "sleeping", "well"]
    assert (shown.text[0], shown.text[-1]) == ("…", "…")
    assert " " not in (shown.text[1], shown.text[-2])
    assert len(shown.text) <= SNIPPET_CHARACTERS + 2


def test_of_equal_passages_the_earliest_is_shown() -> None:
    assert snippet(f"{FAR} cat one {FAR} cat two {FAR}", "cats", ENGLISH).text.count("one") == 1


@pytest.mark.parametrize("text", ["", " \n", "Cats!", "  the cat\n\nsleeps "])
def test_a_short_text_is_shown_whole(text: str) -> None:
    shown = snippet(text, "cat sleep", ENGLISH)
    assert shown.text == " ".join(text.split())
    assert [word.lower() for word in marked(shown)] == [
        w for w in ("cats", "cat", "sleeps") if w in text.lower().split("!")[0].split()
    ]


@pytest.mark.parametrize("query", ["", "zebra", "the of"])
def test_a_snippet_without_matches_is_the_beginning(query: str) -> None:
    shown = snippet(FAR, query, ENGLISH)
    assert shown.text.startswith("filler filler")
    assert shown.text.endswith("filler…")
    assert shown.highlights == ()


def test_chinese_is_cut_where_its_terms_stand_without_blanks() -> None:
    text = "天地玄黄" * 200 + "我们在北京大学学习 Python语言" + "宇宙洪荒" * 200
    shown = snippet(text, "北京的python", CHINESE)
    assert "在北京大学学习 Python语言" in shown.text
    assert marked(shown) == ["北京", "Python"]
    assert len(shown.text) <= SNIPPET_CHARACTERS + 2


def test_chinese_pairs_come_before_their_characters() -> None:
    shown = snippet("中国人在中文国", "中国人", CHINESE)
    assert marked(shown) == ["中国", "人", "中", "国"]


def test_a_word_longer_than_the_snippet_ends_nothing() -> None:
    long = "x" * 1000
    assert "cat dog" in snippet(f"{long} {FAR} {long} cat dog {FAR} cats {long}", f"cat dog {long}", ENGLISH).text
    shown = snippet(long, long, ENGLISH)
    assert len(shown.text) <= SNIPPET_CHARACTERS + 2
    assert shown.highlights == ()


def test_no_passage_holds_more_terms() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        words = rng.choice(
            ["cat", "dog", "fish", "filler", "words", "between"], 120, p=[0.05, 0.05, 0.05, 0.35, 0.3, 0.2]
        )
        text = " ".join(words)
        shown = snippet(text, "cat dog fish", ENGLISH, length=100)
        best = max(
            len(
                {"cat", "dog", "fish"}.intersection(
                    text[start : start + 60].split(" ")[1:-1] if start else text[:60].split()
                )
            )
            for start in range(len(text))
        )
        assert len(set(marked(shown))) >= best


def test_a_passage_starts_and_ends_between_words_and_holds_its_matches() -> None:
    rng = np.random.default_rng(1)
    for length in (60, 61, 100, 240):
        for _ in range(40):
            words = ["".join(rng.choice(list("abcde"), rng.integers(1, 12))) for _ in range(150)]
            for position in rng.choice(150, 3, replace=False):
                words[position] = "zebra"
            text = " ".join(words)
            shown = snippet(text, "zebra", ENGLISH, length=length)
            passage = shown.text.removeprefix("…").removesuffix("…")
            assert 0 < len(passage) <= length
            assert f" {passage} " in f" {text} "
            assert text.startswith(passage) == (not shown.text.startswith("…"))
            assert text.endswith(passage) == (not shown.text.endswith("…"))
            assert marked(shown) == ["zebra"] * passage.split().count("zebra")
            assert shown.highlights
    whole = "zebra " * 40
    assert snippet(whole, "zebra", ENGLISH, length=239).text == whole.strip()


def test_of_a_huge_document_the_first_million_characters_are_looked_at() -> None:
    beyond = "filler " * (SEARCHED_CHARACTERS // 7 + 1) + "cat"
    assert snippet(beyond, "cat", ENGLISH).highlights == ()
    assert marked(snippet("filler " * 100_000 + "cat", "cat", ENGLISH)) == ["cat"]


@pytest.mark.parametrize("name", ["english", "words", "chinese", "german", "auto"])
def test_occurrences_are_the_analyzers_terms(name: str) -> None:
    analyzer = Analyzer(name)
    text = "Cats, the catalog: cat-nap 中国 CATS çat a中b"
    terms = analyzer.terms([text])[0]
    for wanted in {*terms, "zebra"}:
        occurrences = analyzer.occurrences(text, frozenset([wanted]))
        assert len(occurrences) == terms.count(wanted)
        for occurrence in occurrences:
            assert wanted in analyzer.terms([text[occurrence.start : occurrence.end]])[0]
            assert occurrence.terms == {wanted}
    assert analyzer.occurrences(text, frozenset()) == []
    assert analyzer.occurrences("", frozenset(["cat"])) == []


pieces = st.one_of(
    st.sampled_from(
        ["cat", "Cats", "catalog", "dog", "the", "a", "x_y", "don't", "naïve", "Über", "STRASSE", "straße"]
    ),
    st.sampled_from(
        [
            "中国",
            "中",
            "国人",
            "中中",
            "𠀀𠀁",
            "İstanbul",
            "ﬁsh",
            "ΣΊΣΥΦΟΣ",
            "😀",
            "…",
            "_",
            "1",
            "x" * 70,
            "食べる",
            "ｶﾅ",
            "한국어",
            "การค้นหา",
            "e\u0301",
            "किताबें",
            "שָׁלוֹם",
        ]
    ),
    st.sampled_from([" ", "  ", "\n\n", "\t", "\u00a0", "\u2003", "\x1c", "\x85", "", "-"]),
    st.text(max_size=3),
)
written = st.lists(pieces, max_size=60).map("".join)


@settings(max_examples=150)
@given(
    written,
    written,
    st.sampled_from([41, 60, 100, 240]),
    st.sampled_from(["english", "words", "chinese", "turkish", "auto"]),
)
@example("中中国", "中中", 41, "chinese")
@example("cat " * 40, "cat", 41, "english")
@example(" \n ", "", 41, "english")
def test_the_kernel_finds_the_passage_of_the_readable_twin(text: str, query: str, length: int, name: str) -> None:
    analyzer = Analyzer(name)
    for asked in (query, text[:30]):
        if any(0xD800 <= ord(character) < 0xE000 for character in asked):
            continue
        wanted = frozenset(analyzer.terms([asked])[0])
        expected = slow_snippet(text, wanted, analyzer, length=length)
        assert snippet(text, asked, analyzer, length=length) == expected


@settings(max_examples=30)
@given(st.lists(written, max_size=6), written)
def test_texts_together_have_the_snippets_of_each_alone(texts: list[str], query: str) -> None:
    long = "cat filler dog " * 20_000  # together above the size that is searched without the GIL
    asked = [*texts, "a \ud800 cat", long]
    analyzer = Analyzer("auto")
    wanted = frozenset(analyzer.terms([query])[0])
    expected = [slow_snippet(text, wanted, analyzer, length=SNIPPET_CHARACTERS) for text in asked]
    assert snippets(asked, query, analyzer) == expected


words = st.text("aBciyY_1 -.\u00e9\t", max_size=12)


@settings(max_examples=60)
@given(st.lists(words, max_size=60), st.sets(st.text("abciy1_", min_size=1, max_size=3), max_size=12))
def test_all_levels_find_the_same_passages(parts: list[str], wanted: set[str]) -> None:
    text = " ".join([*parts, *(f"filler{part}ab ciab" for part in parts)])
    before = kernel.dispatch()
    by_level = []
    for level in kernel.available():
        _native.use_level(level)
        finder = PassageFinder(
            lambda asked: [[word.lower()[:3]] for word in asked],
            Analyzer("words").character_classes,
            han_terms=False,
            same_beginnings=True,
        )
        by_level.append(finder.find([text], sorted(wanted), length=60, lead=10))
    _native.use_level(before)
    assert all(passages == by_level[0] for passages in by_level)


def test_threads_share_what_was_learned() -> None:
    texts = [" ".join(f"word{i} naïve{j}" for i in range(n, n + 40_000)) for j, n in enumerate(range(0, 400, 100))]
    analyzer = Analyzer("auto")
    expected = [slow_snippet(text, frozenset(["word39999"]), analyzer, length=SNIPPET_CHARACTERS) for text in texts]
    with ThreadPoolExecutor(4) as pool:
        for shown in pool.map(lambda _: snippets(texts, "word39999", analyzer), range(8)):
            assert shown == expected


def test_a_text_that_is_not_utf_8_has_a_snippet_too() -> None:
    assert marked(snippet("a \ud800 cat", "cats", ENGLISH)) == ["cat"]


def recording_finder() -> tuple[PassageFinder, list[str]]:
    """A finder of English words, and the words that it has had analyzed."""
    analyzed: list[str] = []

    def terms(words: Sequence[str]) -> list[list[str]]:
        analyzed.extend(words)
        return ENGLISH.terms(words)

    finder = PassageFinder(terms, ENGLISH.character_classes, han_terms=False, same_beginnings=True)
    return finder, analyzed


def test_each_word_is_analyzed_once_whatever_the_number_of_texts() -> None:
    finder, analyzed = recording_finder()
    text = " ".join(f"word{i} naïve{i}" for i in range(500))
    for _ in range(3):
        (passage,) = finder.find([text], ["word3"], length=100, lead=40)
        assert passage is not None
        assert [passage[0][start:end] for start, end in passage[1]] == ["word3"]
    assert sorted(analyzed) == sorted(text.split())
    assert finder.find([f"{text} cat"], ["cat"], length=100, lead=40) != [None]
    assert len(analyzed) == 1001


def test_a_snippet_of_ten_million_characters_analyzes_no_more_than_its_first_million() -> None:
    finder, analyzed = recording_finder()
    text = "".join(f"w{i % 5000} " for i in range(1_900_000))
    assert finder.find([text[:SEARCHED_CHARACTERS]], ["w4999"], length=240, lead=40) != [None]
    assert len(analyzed) <= 5001
    assert marked(snippet(text, "w4999", ENGLISH)) == ["w4999"]


def test_a_finder_forgets_when_it_is_full_and_finds_all_the_same() -> None:
    finder = PassageFinder(
        lambda words: [[word] for word in words], ENGLISH.character_classes, han_terms=False, same_beginnings=True
    )
    for start in range(0, 400_000, 100_000):
        text = " ".join(f"w{i}" for i in range(start, start + 100_000))
        (passage,) = finder.find([text], [f"w{start + 77}"], length=100, lead=40)
        assert passage is not None
        assert [passage[0][first:last] for first, last in passage[1]] == [f"w{start + 77}"]


def test_the_kernel_refuses_wrong_arguments() -> None:
    native = _native.PassageFinder(False, False)
    with pytest.raises(InvalidInput, match="256 classes"):
        native.learn_block(0, b"x")
    with pytest.raises(InvalidInput, match="words and terms"):
        native.learn_words(["a"], [])
    with pytest.raises(InvalidInput, match="not valid text"):
        native.learn_words(["\ud800"], [["a"]])
    with pytest.raises(InvalidInput, match="2,147,483,647"):
        native.find(["a"], [], 2**40, 0)
    native.learn_block(2**31, bytes(256))  # beyond all characters
    assert snippets([], "cat", ENGLISH) == []


ENDINGS = """s es ies ied sses ed edly ing ingly eed eedly y tional enci anci abli entli izer ization ational ation ator
alism aliti alli fulness ousli ousness iveness iviti biliti bli ogi fulli lessli li alize icate iciti ical ful
ness ative al ance ence er ic able ible ant ement ent ism ate iti ous ive ize ion sion tion e l ogist""".split()  # noqa: SIM905


@pytest.mark.parametrize("name", ["english", "auto-english", "words"])
def test_terms_begin_as_their_words_where_the_analyzer_says_so(name: str) -> None:
    """The rule by which the kernel passes over words, on all short words and on endings that stemmers take off."""
    analyzer = Analyzer(name)
    assert analyzer.keeps_beginnings
    letters, others = string.ascii_lowercase, string.digits + "_"
    words = ["".join(word) for n in (1, 2, 3) for word in itertools.product(letters + others, repeat=n)]
    starts = [*letters, *map("".join, itertools.product(letters, repeat=2)), "car", "cry", "dyi", "a1b"]
    words += [start + ending + last for start in starts for ending in ENDINGS for last in ("", "s", "ing", "ly")]
    for word, terms in zip(words, analyzer.terms(words), strict=True):
        assert len(terms) <= 1
        for term in terms:
            n = 1 if len(term) == 1 else 2 if len(term) < 4 else 3
            pairs = zip(word[:n], term[:n], strict=True)
            assert all(a == b or (i and (a, b) == ("y", "i")) for i, (a, b) in enumerate(pairs)), (word, term)


def test_most_words_are_not_analyzed_and_no_match_is_passed_over() -> None:
    finder, analyzed = recording_finder()
    text = f"{FAR} Carries of CARRYING_2 dyed  ties: he carried {FAR}"
    (passage,) = finder.find([text], ["carri", "tie"], length=240, lead=40)
    assert passage is not None
    assert [passage[0][start:end] for start, end in passage[1]] == ["Carries", "ties", "carried"]
    assert "dyed" not in analyzed
