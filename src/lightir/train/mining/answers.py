"""Answers to a query, found in a text: a document that holds one is no sure negative."""

from __future__ import annotations

import re
from collections.abc import Sequence

TOKEN = re.compile(r"\w+|[^\w\s]")
"""What answers are compared by, lower-cased: words, and every other mark by itself."""


def holds_answer(text: str, answers: Sequence[str]) -> bool:
    """Whether one of the answers stands in the text, word for word, upper and lower case alike."""
    words: list[str] = TOKEN.findall(text.lower())
    for answer in answers:
        wanted: list[str] = TOKEN.findall(answer.lower())
        if wanted and any(words[i : i + len(wanted)] == wanted for i in range(len(words) - len(wanted) + 1)):
            return True
    return False
