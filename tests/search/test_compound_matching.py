"""Compounds written as one word match their parts as defined, in German alone, and in no other way change a search."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightir.analysis import Analyzer
from lightir.index import Index, IndexOptions, IndexWriter, build_index, document_shards
from lightir.index.bm25 import K1, B, idf
from lightir.index.segments.dictionary import SortedStrings
from lightir.search import Searcher, SearchOptions
from lightir.search.compound_matching import BESIDE_THE_WORD, HEAD_FACTOR, MAX_COMPOUNDS, MODIFIER_FACTOR
from lightir.types import Document
from lightir.words.compounds import LINKS, can_be_part, parts

TEXTS = {
    "fridge": "Der Kühlschrank ist leise",
    "cupboard": "Ein Schrank für das Bad",
    "cold": "Kühle Getränke",
    "light": "Fahrradbeleuchtung",
    "bicycle": "Das Fahrrad mit Beleuchtung",
    "bench": "Regierungsbank",
    "government": "Die Regierung und ihre Bank",
}


def built(folder: Path, texts: dict[str, str], analyzer: str = "auto-german", segment_documents: int = 1000) -> Index:
    documents = [Document(doc_id, text) for doc_id, text in texts.items()]
    options = IndexOptions(analyzer=analyzer, segment_documents=segment_documents)
    build_index(document_shards(documents), folder, options=options, progress=False)
    return Index.open(folder)


def found(index: Index, query: str, **options: bool) -> list[str]:
    return list(Searcher(index).search([query], 50, SearchOptions(**options))["0"].doc_ids)  # type: ignore[arg-type]


def test_a_word_matches_compounds_that_end_or_begin_with_it(tmp_path: Path) -> None:
    with built(tmp_path / "index", TEXTS) as index:
        assert found(index, "Schränke") == ["cupboard", "fridge"]
        assert found(index, "fahrrad") == ["bicycle", "light"]
        assert found(index, "Bank") == ["government", "bench"]  # "ungs" is between the stems
        assert found(index, "Schränke", compounds=False) == ["cupboard"]


def test_the_word_itself_comes_before_many_compounds_of_it(tmp_path: Path) -> None:
    compounds = "Kühlschrank Gefrierschrank Wandschrank Küchenschrank Kinderschrank"
    parts_of_them = {"parts": "kühl gefrieren Wand Küche Kinder"}
    texts = {"many": compounds, "itself": "Hier steht im Bad ein Schrank", **parts_of_them}
    with built(tmp_path / "index", texts) as index:
        assert found(index, "Schrank") == ["itself", "many"]


def test_a_compound_matches_its_parts_whether_or_not_a_document_has_it(tmp_path: Path) -> None:
    with built(tmp_path / "index", TEXTS) as index:
        assert found(index, "Kühlschrank")[0] == "fridge"
        assert set(found(index, "Kühlschrank")) == {"fridge", "cold", "cupboard"}
        assert set(found(index, "Schrankbeleuchtung")) == {"bicycle", "cupboard"}
        assert found(index, "Schrankbeleuchtung", compounds=False) == []
        assert found(index, "Schrankvxkzt") == []  # the other part is no word of the index


def test_only_words_of_the_index_are_parts_and_only_in_german(tmp_path: Path) -> None:
    without = {doc_id: text for doc_id, text in TEXTS.items() if doc_id != "cold"}
    with built(tmp_path / "without", without) as index:
        assert found(index, "schrank") == ["cupboard"]
    with built(tmp_path / "english", TEXTS, "auto-english") as index:
        assert found(index, "schrank") == ["cupboard"]


def test_a_deleted_word_is_no_part(tmp_path: Path) -> None:
    built(tmp_path / "index", TEXTS).close()
    with IndexWriter.open(tmp_path / "index") as writer:
        writer.delete(["cold"])
    with Index.open(tmp_path / "index") as index:
        assert found(index, "schrank") == ["cupboard"]


def test_explanations_and_snippets_show_the_compound(tmp_path: Path) -> None:
    with built(tmp_path / "index", TEXTS) as index:
        hit = Searcher(index).hits("Schrank", explain=True)[1]
        assert [hit.snippet[start:end] for start, end in hit.highlights] == ["Kühlschrank"]
        assert [(term.term, term.word) for term in hit.terms] == [("kuhlschrank", "schrank")]


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("kuhlschrank", ("kuhl", "schrank")),
        ("kindfahrrad", ("kind", "fahrrad")),
        ("kinderfahrrad", ("kind", "fahrrad")),
        ("regierungsbank", ("regier", "bank")),
        ("kuhlschrankfahrrad", ("kuhlschrank", "fahrrad")),
        ("fahrradkuhlkind", ("fahrrad", "kuhl", "kind")),
        ("schrank", ()),
        ("kuhlxx", ()),
        ("kindlich", ()),
        ("kindnicht", ()),
        ("kuhl" * 11, ()),
    ],
)
def test_parts(word: str, expected: tuple[str, ...]) -> None:
    known = {"kuhl", "schrank", "kuhlschrank", "kind", "fahrrad", "regier", "bank", "lich", "nicht"}
    assert parts(word, "german", known.__contains__) == expected


letters = st.text("abes", min_size=1, max_size=6)


def splits(word: str, known: set[str]) -> Iterator[tuple[tuple[str, ...], int, int]]:
    """Yield all splits of a word: parts, length of the last one, and of the link before it."""
    for start in range(1, len(word)):
        head = word[start:]
        for link in LINKS["german"]:
            before = word[: start - len(link)]
            if not word[:start].endswith(link) or not (can_be_part(head, "german") and head in known):
                continue
            if can_be_part(before, "german") and before in known:
                yield (before, head), len(head), len(link)
            else:
                best = min(splits(before, known), key=lambda split: (len(split[0]), -split[1], split[2]), default=None)
                if best is not None:
                    yield (*best[0], head), len(head), len(link)


@settings(max_examples=300)
@given(st.sets(letters, max_size=12), st.lists(letters, min_size=1, max_size=4).map("".join))
def test_the_best_split_is_that_of_all_splits(known: set[str], word: str) -> None:
    best = min(splits(word, known), key=lambda split: (len(split[0]), -split[1], split[2]), default=((), 0, 0))
    assert parts(word, "german", known.__contains__) == best[0]


vocabularies = st.lists(st.sampled_from(["bach", "dorf", "haus"]), min_size=1, max_size=3).map("s".join)
documents = st.lists(st.lists(vocabularies, max_size=5).map(" ".join), min_size=1, max_size=10)


@settings(max_examples=60)
@given(documents, st.lists(vocabularies, min_size=1, max_size=2, unique=True).map(" ".join), st.integers(1, 12))
def test_scores_are_those_of_the_definition(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], query: str, segment: int
) -> None:
    named = {f"{i:02}": text for i, text in enumerate(texts)}
    with built(tmp_path_factory.mktemp("definition") / "index", named, segment_documents=segment) as index:
        run = Searcher(index).search([query], 50, SearchOptions(typos=False))["0"]
    assert dict(zip(run.doc_ids, run.scores.tolist(), strict=True)) == pytest.approx(defined(named, query), rel=1e-5)


def defined(texts: dict[str, str], query: str) -> dict[str, float]:
    """Return the score of each document that matches, by the definition in docs/words.md."""
    analyzer = Analyzer("auto-german")
    counts = {doc_id: Counter(analyzer.terms([text])[0]) for doc_id, text in texts.items()}
    df = Counter(term for of_document in counts.values() for term in of_document)
    known = set(df)

    def is_word(part: str) -> bool:
        return can_be_part(part, "german") and (part in known or any(True for _ in splits(part, known)))

    weights = Counter[str]()
    for term in analyzer.terms([query])[0]:
        weights[term] += idf(len(texts), df[term])
        related = {}
        beside = BESIDE_THE_WORD if df[term] else 1.0
        for other in sorted(known - {term}, key=lambda other: (-df[other], other)):
            rests = [(beside * HEAD_FACTOR, other[: -len(term)], True)] if other.endswith(term) else []
            rests += [(beside * MODIFIER_FACTOR, other[len(term) :], False)] if other.startswith(term) else []
            for factor, rest, is_before in rests:
                cut = [rest[: len(rest) - len(link)] for link in LINKS["german"] if is_before and rest.endswith(link)]
                cut += [rest[len(link) :] for link in LINKS["german"] if not is_before and rest.startswith(link)]
                if any(map(is_word, cut)):
                    related.setdefault(other, factor)
        chosen = list(related)[:MAX_COMPOUNDS]
        groups = [{other: related[other] for other in chosen}] if chosen else []
        best = min(splits(term, known), key=lambda split: (len(split[0]), -split[1], split[2]), default=((), 0, 0))[0]
        groups += [{part: HEAD_FACTOR / len(best)} for part in best]
        for group in groups:
            shared = idf(len(texts), max(df[term], *(df[other] for other in group)))
            for other, factor in group.items():
                weights[other] += factor * shared
    total = sum(of_document.total() for of_document in counts.values())
    scores = {}
    for doc_id, of_document in counts.items():
        penalty = K1 * (1 - B + B * of_document.total() / (total / len(texts) if total else 1.0))
        matched = [weights[term] * tf / (tf + penalty) for term, tf in of_document.items() if weights[term]]
        if matched:
            scores[doc_id] = math.fsum(matched)
    return scores


words = st.text("ab\u00e9\u4e2d", max_size=12)


@given(st.sets(words, max_size=30), words.filter(bool))
def test_strings_are_found_by_their_beginnings_and_ends(strings: set[str], part: str) -> None:
    stored = SortedStrings.pack(sorted(strings))
    assert {stored[i] for i in stored.ending(part)} == {s for s in strings if s.endswith(part) and s != part}
    assert [stored[i] for i in stored.beginning(part)] == sorted(s for s in strings if s.startswith(part) and s != part)
