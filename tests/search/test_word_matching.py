"""Misspelled words, beginnings of words and synonyms match as defined, and the scores are those of the definition."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightir.analysis import Analyzer
from lightir.errors import InvalidInput, NotFound
from lightir.index import Index, IndexOptions, IndexWriter, build_index, document_shards
from lightir.index.bm25 import K1, B, idf
from lightir.kernel.reference import edit_distance
from lightir.search import PageOptions, Searcher, SearchOptions
from lightir.search.language_model import parse_smoothing
from lightir.search.word_matching import (
    COMPLETION_FACTOR,
    FACTOR_OF_DISTANCE,
    MAX_COMPLETIONS,
    MAX_NEAR,
    typos_allowed,
)
from lightir.types import Document
from lightir.words.stems import QUESTION_WORDS
from lightir.words.synonyms import Synonyms

TEXTS = {
    "vaccine": "The vaccine was safe",
    "vaccines": "vaccines and vaccination of children",
    "memory": "memory of computers",
    "computer": "a portable computer with memory",
    "notebook": "a paper notebook",
    "code": "part xr2000 of the machine",
    "tv": "television for the kitchen",
}


def built(folder: Path, texts: dict[str, str], **options: object) -> Index:
    documents = [Document(doc_id, text) for doc_id, text in texts.items()]
    build_index(document_shards(documents), folder, options=IndexOptions(**options), progress=False)  # type: ignore[arg-type]
    return Index.open(folder)


def found(searcher: Searcher, query: str, **options: object) -> list[str]:
    return list(searcher.search([query], 10, SearchOptions(**options))["0"].doc_ids)  # type: ignore[arg-type]


def test_a_word_that_no_document_has_matches_near_words(tmp_path: Path) -> None:
    with built(tmp_path / "index", TEXTS) as index:
        searcher = Searcher(index)
        assert found(searcher, "vacine") == ["vaccines", "vaccine"]
        assert found(searcher, "vacine", typos=False) == []
        assert found(searcher, "compuetr") == ["memory", "computer"]
        assert found(searcher, "xr2001") == []  # codes are exact
        assert found(searcher, "zzzqqq") == []
        assert found(searcher, "mamery") == []  # two typos in six letters
        assert found(searcher, "memory") == ["memory", "computer"]


def test_the_last_word_is_a_beginning_until_a_blank_follows(tmp_path: Path) -> None:
    with built(tmp_path / "index", TEXTS) as index:
        searcher = Searcher(index)
        assert found(searcher, "vac", as_you_type=True) == ["vaccines", "vaccine"]
        assert found(searcher, "vac") == []
        assert found(searcher, "vac ", as_you_type=True) == []
        assert found(searcher, "kitchen te", as_you_type=True) == ["tv"]
        for typed in ("c", "co", "comp", "compu", "compute", "computi", "computing", "computer"):
            assert "computer" in found(searcher, typed, as_you_type=True), typed
        assert found(searcher, "", as_you_type=True) == []
        assert found(searcher, "xr", as_you_type=True) == ["code"]


def test_explanations_and_snippets_show_what_a_word_stands_for(tmp_path: Path) -> None:
    with built(tmp_path / "index", TEXTS) as index:
        searcher = Searcher(index)
        (term,) = searcher.explain("vacine", "vaccines").terms["tokens"]
        assert (term.term, term.word) == ("vaccin", "vacine")
        hit = searcher.hits("vacine", explain=True)[0]
        assert [hit.snippet[start:end] for start, end in hit.highlights] == ["vaccines", "vaccination"]
        assert [term.word for term in hit.terms] == ["vacine"]
        assert math.isclose(hit.score, term.score, rel_tol=1e-6)


def test_synonyms_match_each_other_and_arrows_replace(tmp_path: Path) -> None:
    rules = "tv, television  # in every room\n\nlaptop => portable computer, memory\nnew york, big apple\n"
    with built(tmp_path / "index", {**TEXTS, "ny": "New York"}) as index:
        searcher = Searcher(index, synonyms=Synonyms.parse(rules))
        assert found(searcher, "TV") == ["tv"]
        assert found(searcher, "laptops") == ["computer", "memory"]
        assert found(searcher, "the big apple") == ["ny"]
        assert found(searcher, "big") == []
        searcher.synonyms = Synonyms.parse("laptop => notebook")
        assert found(searcher, "laptop") == ["notebook"]
        searcher.synonyms = None
        assert found(searcher, "laptop") == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tv", "line 1: 'tv' is alone"),
        ("\na => b => c", "line 2: .* two arrows"),
        ("a,,b", "line 1: a synonym is empty"),
        ("a =>", "line 1: a synonym is empty"),
        (b"ab, \xff", "line 1: not UTF-8"),
    ],
)
def test_a_line_that_is_no_rule_is_named(text: str | bytes, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Synonyms.parse(text)


def test_a_side_without_terms_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    with built(tmp_path / "index", TEXTS) as index, pytest.raises(InvalidInput, match=r"line 2: 'the' has no term"):
        Searcher(index, synonyms=Synonyms.parse("tv, television\nthe, vaccine")).search(["tv"])
    with pytest.raises(NotFound, match="no file of synonyms"):
        Synonyms.read(tmp_path / "missing.txt")


def test_only_words_can_be_typed_or_have_synonyms(tmp_path: Path) -> None:
    likelihood = parse_smoothing("dirichlet")
    with built(tmp_path / "index", TEXTS) as index:
        with pytest.raises(InvalidInput, match="search as you type needs BM25 over words"):
            Searcher(index).search(["x"], 10, SearchOptions(smoothing=likelihood, as_you_type=True))
        with pytest.raises(InvalidInput, match="a search with synonyms needs BM25 over words"):
            Searcher(index, synonyms=Synonyms.parse("tv, telly")).search(["x"], 10, SearchOptions(smoothing=likelihood))
        assert found(Searcher(index), "vacine", smoothing=likelihood) == []


letters = st.text("abcde", min_size=1, max_size=9)
documents = st.lists(st.lists(letters, max_size=8).map(" ".join), min_size=1, max_size=12)


@settings(max_examples=60)
@given(documents, st.lists(letters, max_size=4).map(" ".join), st.integers(1, 12), st.booleans())
def test_scores_are_those_of_the_definition(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], query: str, segment: int, typing: bool
) -> None:
    folder = tmp_path_factory.mktemp("definition")
    named = {f"{i:02}": text for i, text in enumerate(texts)}
    with built(folder / "index", named, analyzer="words", segment_documents=segment) as index:
        run = Searcher(index).search([query], 50, SearchOptions(as_you_type=typing))["0"]
    expected = defined_scores(named, query, typing)
    assert dict(zip(run.doc_ids, run.scores.tolist(), strict=True)) == pytest.approx(expected, rel=1e-5)


def defined_scores(texts: dict[str, str], query: str, typing: bool) -> dict[str, float]:
    """Return the score of each document that has a term of the query or an alternative, by the definition."""
    analyzer = Analyzer("words")
    counts = {doc_id: Counter(analyzer.terms([text])[0]) for doc_id, text in texts.items()}
    df = Counter(term for of_document in counts.values() for term in of_document)
    row = analyzer.terms([query])[0]
    weights = Counter[str]()
    for term in row:
        weights[term] += idf(len(texts), df[term])
    groups: list[dict[str, float]] = []
    last = query.split(" ")[-1] if typing and query and query[-1] != " " else ""
    completed = False
    if last:
        longer = sorted((term for term in df if term.startswith(last) and term != last), key=lambda t: (-df[t], t))
        if not longer and not df[last]:
            longer = [last[:n] for n in range(len(last) - 1, 2, -1) if df[last[:n]]][:1]
        completed = bool(longer)
        groups.append(dict.fromkeys(longer[:MAX_COMPLETIONS], COMPLETION_FACTOR))
    for term in row:
        if df[term] or (completed and term == last):
            continue
        far = {other: edit_distance(term, other) for other in df}
        near = sorted((t for t in df if far[t] <= typos_allowed(term)), key=lambda t: (far[t], -df[t], t))[:MAX_NEAR]
        groups.append({other: FACTOR_OF_DISTANCE[far[other]] for other in near})
    for group in groups:
        for term, factor in group.items():
            weights[term] += factor * idf(len(texts), max(df[other] for other in group))
    total = sum(sum(of_document.values()) for of_document in counts.values())
    mean = total / len(texts) if total else 1.0
    scores = {}
    for doc_id, of_document in counts.items():
        penalty = K1 * (1 - B + B * sum(of_document.values()) / mean)
        parts = [weights[term] * tf / (tf + penalty) for term, tf in of_document.items() if term in weights]
        if parts:
            scores[doc_id] = sum(parts)
    return scores


def test_completions_count_all_segments_and_a_writers_changes(tmp_path: Path) -> None:
    with IndexWriter.create(tmp_path / "index", options=IndexOptions(analyzer="words", segment_documents=2)) as writer:
        for start in range(0, 60, 2):
            writer.add([Document(f"{i:02}", f"aa{'bcd'[i % 3]}{i:02} aab") for i in (start, start + 1)])
    with Index.open(tmp_path / "index") as index:
        vocabulary = index.view.words.vocabulary
        assert len(index.view.segments) > 1
        assert vocabulary.completions("aa", 3) == ["aab", "aab00", "aab03"]
        assert vocabulary.completions("aab", 1) == ["aab00"]
        assert vocabulary.completions("x", 3) == []
        assert sorted(vocabulary.completions("a", 1000)) == sorted(
            {"aab", *(f"aa{'bcd'[i % 3]}{i:02}" for i in range(60))}
        )


def test_a_word_that_only_deleted_documents_have_matches_near_words(tmp_path: Path) -> None:
    texts = {"both": "vaccine nation", "near": "vaccines nations", "far": "vactine"}
    built(tmp_path / "index", {**texts, "cats": "kittens", "mitten": "mittens"}).close()
    with IndexWriter.open(tmp_path / "index") as writer:
        writer.delete(["cats", "far"])
    with Index.open(tmp_path / "index") as index:
        assert found(Searcher(index), "kittens") == ["mitten"]
        assert found(Searcher(index), "vactine") == ["both", "near"]


def test_near_words_change_with_the_index(tmp_path: Path) -> None:
    built(tmp_path / "index", {"bread": "butter", "cakes": "cakes"}).close()
    with Index.open(tmp_path / "index") as index:
        searcher = Searcher(index)
        assert found(searcher, "bakes") == ["cakes"]
        assert found(searcher, "bakes") == ["cakes"]  # kept from the first search
        with IndexWriter.open(tmp_path / "index") as writer:
            writer.add([Document("lakes", "lakes")])
        index.refresh()
        assert found(searcher, "bakes") == ["cakes", "lakes"]


QUESTIONS = {
    "who": "the WHO advises countries on vaccines",
    "what": "what how what how what how",
    "vaccine": "vaccines for children",
    "do": "do you do what you have to do",
}


def test_words_that_ask_do_not_count_beside_other_words(tmp_path: Path) -> None:
    with built(tmp_path / "index", QUESTIONS) as index:
        searcher = Searcher(index)
        assert found(searcher, "what do you have about vaccines?") == ["vaccine", "who"]
        assert {"what", "do"} <= {*found(searcher, "what do you have about vaccines?", question_words=True)}
        assert found(searcher, "what") == ["what", "do"]  # no other word
        assert found(searcher, "what do you") == found(searcher, "what do you", question_words=True)
        assert "who" in found(searcher, "who children", question_words=True)
        assert found(searcher, "who children") == ["vaccine"]
        assert {*found(searcher, "WHO children")} == {"vaccine", "who"}
        assert found(searcher, "WHO CHILDREN") == ["vaccine"]  # all is in capitals
        assert searcher.page("what do vaccines", PageOptions()).total == 2
        searcher.synonyms = Synonyms.parse("how do => countries")
        assert found(searcher, "how do") == ["who"]
    with built(tmp_path / "german", QUESTIONS, analyzer="auto-german") as index:
        assert "what" in found(Searcher(index), "what vaccines")


def test_a_query_is_searched_as_without_its_question_words(tmp_path: Path) -> None:
    choices = "what do having how vaccine vaccines child the WHO Who".split()  # noqa: SIM905
    with built(tmp_path / "index", QUESTIONS) as index:
        searcher = Searcher(index)
        for words in itertools.chain.from_iterable(itertools.product(choices, repeat=n) for n in range(4)):
            text = " ".join(words)
            counted = {"who"} if "WHO" in words and not text.isupper() else set()
            others = [word for word in words if word.lower() in counted or word.lower() not in QUESTION_WORDS]
            if not Analyzer("auto").terms([" ".join(others)])[0]:
                others = list(words)
            expected = searcher.search([" ".join(others)], 10, SearchOptions(question_words=True))["0"]
            ranking = searcher.search([text], 10)["0"]
            assert list(ranking.doc_ids) == list(expected.doc_ids), text
            np.testing.assert_array_equal(ranking.scores, expected.scores)
