"""Questions about documents are made of their titles, subjects and common words, in English alone."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from lightir.cli import main
from lightir.errors import InvalidInput
from lightir.files import read_json
from lightir.train.distill.distillation import DistillationOptions
from lightir.train.distill.fit_queries import pseudo_queries
from lightir.train.distill.pseudo_questions import PATTERNS, questions, subject
from lightir.types import Document
from tiny_models import write_sentence_transformer

TOPICS = ("Marble", "Granite", "Basalt", "Slate", "Gneiss", "Chalk", "Pumice", "Shale", "Flint", "Obsidian")
ASPECTS = ("color", "hardness", "origin", "lustre")


def document(number: int) -> Document:
    """Return a document about a rock and one aspect of it."""
    topic, aspect = TOPICS[number % len(TOPICS)], ASPECTS[number % len(ASPECTS)]
    return Document(f"d{number}", f"{topic} stone is known for the {aspect} of its layers in the quarry.")


DOCUMENTS = [document(number) for number in range(40)]


def made(documents: list[Document], n: int, seed: int = 0) -> list[tuple[str, str]]:
    """Return id and text of the questions."""
    return [(query.query_id, query.text) for query in questions(documents, np.random.default_rng(seed), n=n)]


def test_a_question_has_the_subject_of_its_document_and_an_aspect_of_its_text() -> None:
    asked = made(DOCUMENTS, 200)
    assert len(asked) == 200
    for query_id, text in asked:
        kind, number, doc_id = query_id.split(":")
        assert kind == "question"
        assert int(number) < 200 // len(DOCUMENTS)
        topic, rest = DOCUMENTS[int(doc_id[1:])].text.split(" is ")
        (aspect,) = (aspect for aspect in ASPECTS if aspect in rest)
        assert text in [pattern.format(topic=topic, aspect=aspect) for pattern in PATTERNS]


def test_a_short_title_is_the_topic_and_a_long_one_is_not() -> None:
    short = [Document(one.doc_id, one.text, title=f"The book of {one.doc_id}?") for one in DOCUMENTS]
    assert all(f"The book of {query_id.split(':')[2]}" in text for query_id, text in made(short, 40))
    long = [Document(one.doc_id, one.text, title="word " * 11) for one in DOCUMENTS]
    assert made(long, 40)
    assert not any("word word" in text for _, text in made(long, 40))


def test_without_a_subject_the_two_rarest_words_are_the_topic() -> None:
    without = [Document(one.doc_id, one.text.replace(" is known", ", known")) for one in DOCUMENTS]
    for query_id, text in made(without, 40):
        assert TOPICS[int(query_id.split(":d")[1]) % len(TOPICS)].lower() in text


def test_the_same_seed_draws_the_same_questions() -> None:
    assert made(DOCUMENTS, 30) == made(DOCUMENTS, 30)
    assert made(DOCUMENTS, 30) != made(DOCUMENTS, 30, seed=1)


@pytest.mark.parametrize(
    "text",
    ["Das ist der Stein von dem man auch in der Stadt nicht nur mit den Augen etwas hat", "岩石的颜色和硬度", ""],
)
def test_texts_in_other_languages_have_none(text: str) -> None:
    assert made([Document(f"d{number}", text) for number in range(20)], 20) == []
    assert made([], 20) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The white marble of Carrara is a stone.", "white marble of Carrara"),
        ("Marble, a metamorphic rock, is hard.", "Marble, a metamorphic rock"),
        ("It is hard.", ""),
        ("This is hard.", ""),
        ("Marble. It is hard.", ""),
        ("Marble without a verb", ""),
        ("One two three four five six seven eight nine is too long.", ""),
        ("", ""),
    ],
)
def test_the_subject_ends_before_the_first_verb(text: str, expected: str) -> None:
    assert subject(text) == expected


@pytest.mark.parametrize(("n_questions", "n_spans"), [(0, 30), (20, 10), (30, 0)])
def test_questions_take_the_place_of_spans(n_questions: int, n_spans: int) -> None:
    made = pseudo_queries({"rocks": DOCUMENTS}, 30, 0, n_questions=n_questions)
    assert [query.kind for query in made] == ["span"] * n_spans + ["question"] * n_questions


def test_spans_take_the_place_of_questions_in_another_language() -> None:
    text = "Das ist der Stein {} und auch nicht der von dem Haus, in dem wir wohnen"
    german = [Document(f"d{number}", text.format(number)) for number in range(40)]
    assert [query.kind for query in pseudo_queries({"steine": german}, 30, 0, n_questions=20)] == ["span"] * 30


@pytest.mark.parametrize("questions", [-1, 31])
def test_more_questions_than_texts_are_refused(questions: int) -> None:
    with pytest.raises(InvalidInput, match=f"questions is {questions}; expected 0 to 30"):
        DistillationOptions(spans=30, questions=questions)


def test_half_of_the_texts_are_questions_beside_a_fitted_start() -> None:
    assert DistillationOptions(spans=31).n_questions(fitted_start=True) == 15
    assert DistillationOptions(spans=31).n_questions(fitted_start=False) == 0
    assert DistillationOptions(spans=31, questions=9).n_questions(fitted_start=False) == 9


def test_a_command_fits_a_table_to_questions(tmp_path: Path) -> None:
    teacher, corpus = write_sentence_transformer(tmp_path / "teacher"), tmp_path / "corpus.jsonl"
    corpus.write_text("\n".join(json.dumps({"_id": one.doc_id, "text": one.text}) for one in DOCUMENTS))
    texts = ["--spans", "30", "--questions", "20", "--set", "steps=2"]
    assert main(["distill", str(teacher), "--corpus", str(corpus), *texts, "-o", str(tmp_path / "m")]) == 0
    facts = read_json(tmp_path / "m" / "distillation.json")
    assert (facts["spans"], facts["questions"], facts["queries"]) == (30, 20, 30)
