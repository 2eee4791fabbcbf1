"""Search for a query's answers in a text: a document that contains one may be relevant."""

from __future__ import annotations

import re
from collections.abc import Sequence

TOKEN = re.compile(r"\w+|[^\w\s]")
"""Units in which lower-cased answers and texts are compared: words, and single other characters."""


def holds_answer(text: str, answers: Sequence[str]) -> bool:
    """Return whether the text contains one of the answers, word for word, ignoring case."""
    words: list[str] = TOKEN.findall(text.lower())
    for answer in answers:
        sequence: list[str] = TOKEN.findall(answer.lower())
        starts = range(len(words) - len(sequence) + 1)
        if sequence and any(words[start : start + len(sequence)] == sequence for start in starts):
            return True
    return False
