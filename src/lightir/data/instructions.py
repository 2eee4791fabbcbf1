"""Task instructions from LightRetriever's Appendix A.4, and our choices for sets that it does not list."""

from __future__ import annotations

import difflib
import functools
import json
from importlib import resources
from typing import Literal, TypeAlias

from lightir.errors import NotFound

Group: TypeAlias = Literal["training", "beir", "cmteb", "lightir"]
"""The paper's training sets, its two benchmarks, and "lightir": sets that the paper lacks, mapped by us to a listed
instruction that fits."""

_EVALUATION: tuple[Group, ...] = ("beir", "cmteb", "lightir", "training")
_TRAINING: tuple[Group, ...] = ("training", "beir", "cmteb", "lightir")


def instructions(task: str, *, training: bool = False) -> tuple[str, ...]:
    """Return the instructions of a task, without the prompt format; never empty.

    Some tasks have other instructions as a training set than as a benchmark (SciFact, NQ), possibly several.

    Args:
        task: name of the task; case, blanks and punctuation are ignored.
        training: prefer the training set's instructions to the benchmark's.

    Raises:
        NotFound: unknown task; the message suggests similar names.
    """
    key = _key(task)
    for group in _TRAINING if training else _EVALUATION:
        if key in _tables()[group]:
            return _tables()[group][key]
    names = {_key(name): name for name in task_names()}
    close = [names[match] for match in difflib.get_close_matches(key, names, n=3, cutoff=0.5)]
    hint = f"did you mean {' or '.join(map(repr, close))}?" if close else "task_names() lists all."
    raise NotFound(f"unknown task {task!r}: {hint} The text of an instruction can be given instead")


def task_names(group: Group | None = None) -> tuple[str, ...]:
    """Return the task names of a group, or of all groups, without duplicates."""
    groups = _EVALUATION if group is None else (group,)
    return tuple(dict.fromkeys(name for listed in groups for name in _content()[listed]))


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
    # The group "lightir" is stored as (group, name) of the listed task that has the instruction.
    tables["lightir"] = {_key(name): tables[group][_key(task)] for name, (group, task) in content["lightir"].items()}
    return tables
