"""Search for a query's answers in a text: a document that contains one may be relevant."""

from __future__ import annotations

import re
from collections.abc import Sequence

TOKEN = re.compile(r"\w+|[^\w\s]")
"""Units in which lower-cased answers and texts are compared: words, and single other characters."""


def holds_answer(text: str, answers: Sequence[str]) -> bool:
    """Return whether the text contains one of the answers, word for word, ignoring case."""
    lowered = text.lower()
    sequences: list[list[str]] = [TOKEN.findall(answer.lower()) for answer in answers]
    # Most texts lack one of an answer's words; that is known without dividing the text into words.
    sequences = [sequence for sequence in sequences if sequence and all(word in lowered for word in sequence)]
    if not sequences:
        return False
    words: list[str] = TOKEN.findall(lowered)
    for sequence in sequences:
        starts = [position for position, word in enumerate(words) if word == sequence[0]]
        if any(words[start : start + len(sequence)] == sequence for start in starts):
            return True
    return False
