"""Task instructions: LightRetriever's Appendix A.4 as data, and our choice for sets that it does not list."""

from __future__ import annotations

import difflib
import functools
import json
from importlib import resources
from typing import Literal, TypeAlias

from lightir.errors import NotFound

Group: TypeAlias = Literal["training", "beir", "cmteb", "lightir"]
"""The paper's training sets, its two benchmarks, and "lightir": sets that the paper lacks, pointed by us to a listed
instruction that fits."""

_EVALUATION: tuple[Group, ...] = ("beir", "cmteb", "lightir", "training")
_TRAINING: tuple[Group, ...] = ("training", "beir", "cmteb", "lightir")


def instructions(task: str, *, training: bool = False) -> tuple[str, ...]:
    """The task's instructions, without the frame around them; never empty.

    Some tasks stand in both lists with different texts (SciFact, NQ): the benchmark's comes first, or with training
    the training set's, which may be several to draw from. Case, blanks and punctuation in the name don't matter.

    Raises:
        NotFound: no list has the task; the nearest names are given.
    """
    key = _key(task)
    for group in _TRAINING if training else _EVALUATION:
        if key in _tables()[group]:
            return _tables()[group][key]
    names = {_key(name): name for name in task_names()}
    close = [names[each] for each in difflib.get_close_matches(key, names, n=3, cutoff=0.5)]
    hint = f"did you mean {' or '.join(map(repr, close))}?" if close else "task_names() lists all."
    raise NotFound(f"no instruction is known for task {task!r}; {hint} An instruction can also be given as text")


def task_names(group: Group | None = None) -> tuple[str, ...]:
    """The names of the group's tasks, or of all, in the lists' order, each once."""
    groups = _EVALUATION if group is None else (group,)
    return tuple(dict.fromkeys(name for each in groups for name in _content()[each]))


def _key(name: str) -> str:
    return "".join(character for character in name.casefold() if character.isalnum())


@functools.cache
def _content() -> dict[str, dict[str, list[str]]]:
    text = resources.files("lightir.data").joinpath("instructions.json").read_text(encoding="utf-8")
    content: dict[str, dict[str, list[str]]] = json.loads(text)
    return content


@functools.cache
def _tables() -> dict[str, dict[str, tuple[str, ...]]]:
    content = _content()
    tables = {group: {_key(name): tuple(texts) for name, texts in content[group].items()} for group in content}
    # Ours are stored as (group, name) of the listed task whose instruction they take.
    tables["lightir"] = {_key(name): tables[group][_key(task)] for name, (group, task) in content["lightir"].items()}
    return tables
