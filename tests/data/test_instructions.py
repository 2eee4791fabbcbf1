"""Instructions: all of the paper's are there, found whatever the spelling."""

from __future__ import annotations

import pytest

from lightir.data import instructions, task_names
from lightir.errors import NotFound


def test_the_papers_lists_are_whole() -> None:
    assert sum(len(instructions(name, training=True)) for name in task_names("training")) == 23
    assert len(task_names("beir")) == 15
    assert len(task_names("cmteb")) == 8


def test_every_task_has_instructions() -> None:
    for name in task_names():
        for training in (False, True):
            texts = instructions(name, training=training)
            assert texts
            assert all(text.strip() == text and text for text in texts)


def test_the_name_may_be_spelled_freely() -> None:
    assert instructions("TREC-COVID") == instructions("treccovid") == instructions("TRECCOVID")


def test_training_and_evaluation_may_differ() -> None:
    assert len(instructions("nq", training=True)) == 2
    assert len(instructions("nq")) == 1
    assert "judge" in instructions("scifact", training=True)[0]
    assert "judge" not in instructions("scifact")[0]


def test_sets_the_paper_lacks_take_a_listed_instruction() -> None:
    listed = {
        text for group in ("training", "beir", "cmteb") for name in task_names(group) for text in instructions(name)
    }
    assert {text for name in task_names("lightir") for text in instructions(name)} <= listed


def test_an_unknown_task_gets_a_suggestion() -> None:
    with pytest.raises(NotFound, match="did you mean 'SciFact'"):
        instructions("scifacts")
    with pytest.raises(NotFound, match="task_names"):
        instructions("zzzz")
