"""Questions about documents, made from their words by patterns, without labels and without a model.

In a span, a word such as "treatments" says less than in the question "what are the treatments of X". A table that is
fitted to spans alone gives it too short a row.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from lightir.types import Document, Query
from lightir.words.languages import languages_of
from lightir.words.stems import ENGLISH_STOP_WORDS, QUESTION_WORDS

PATTERNS = (
    "what are the {aspect} of {topic}",
    "what is the {aspect} of {topic}",
    "how is {topic} related to {aspect}",
    "{topic} {aspect}",
    "what is {topic}",
    "is {topic} {aspect}",
    "{aspect} in {topic}",
    "what {aspect} does {topic} have",
)
ASPECT_SHARES = (0.01, 0.3)
"""Minimum and maximum share of the documents that have an aspect."""

MAX_TITLE, MAX_SUBJECT = 10, 8
"""Maximum number of words of a title, and of a subject, that is a topic."""

MAX_DOCUMENTS, MAX_CHARACTERS = 20_000, 20_000
"""Maximum number of documents, drawn from all, and of characters of each whose words are counted."""

_WORD = re.compile(r"[a-z][a-z'-]*[a-z]")
_VERBS = frozenset(
    """affects are begins belongs can causes consists could describes did do does had has have includes involves is may
    means might must occurs refers results should was were will would""".split()  # noqa: SIM905
)
_STOP_WORDS = ENGLISH_STOP_WORDS | QUESTION_WORDS | _VERBS
_ARTICLES = ("a", "an", "some", "the", "these", "this")


def questions(documents: Sequence[Document], rng: np.random.Generator, *, n: int) -> list[Query]:
    """Return at most n questions about documents, as many about one as about another; none if they are not in English.

    A question has a topic and an aspect. The topic is a short title, else the subject of the document's first sentence,
    else the two words that distinguish the document most. The aspect is drawn from the document's words that many
    documents have, but not most. The query's id is "question:", its number, ":" and the document's id.

    Args:
        documents: documents of one collection.
        rng: generator that documents, aspects and patterns are drawn with.
        n: maximum number of questions.
    """
    drawn = [documents[at] for at in rng.permutation(len(documents))[:MAX_DOCUMENTS].tolist()]
    if not drawn or languages_of(document.text for document in drawn)[0] != "english":
        return []
    bags = [_words(document) for document in drawn]
    frequency = Counter(itertools.chain.from_iterable(bags))
    parts = [_parts(document, bag, frequency, len(drawn)) for document, bag in zip(drawn, bags, strict=True)]
    made = []
    for number in range(-(-n // len(drawn))):
        for document, (topic, aspects) in zip(drawn, parts, strict=True):
            if topic and aspects:
                text = _question(topic, aspects, rng)
                made.append(Query(f"question:{number}:{document.doc_id}", text))
    return made[:n]


def _words(document: Document) -> Counter[str]:
    """Count the words of more than three letters, without those of every text."""
    text = f"{document.title} {document.text[:MAX_CHARACTERS]}".lower()
    return Counter(word for word in _WORD.findall(text) if len(word) > 3 and word not in _STOP_WORDS)


def _parts(document: Document, bag: Counter[str], frequency: Counter[str], n: int) -> tuple[str, dict[str, int]]:
    """Return the topic of one of n documents, "" for none, and the number of times that it has each aspect."""
    least, most = (share * n for share in ASPECT_SHARES)
    title = document.title.strip(" .?!")
    topic = title if 0 < len(title.split()) <= MAX_TITLE else subject(document.text) or _rarest(bag, frequency, n)
    known = set(_WORD.findall(topic.lower()))
    return topic, {
        word: count for word, count in bag.items() if max(3, least) <= frequency[word] <= most and word not in known
    }


def subject(text: str) -> str:
    """Return the words before the first verb of a text's first sentence, without an article; "" if they are too many.

    Verbs are those of a short list, so that many sentences have none.
    """
    words = list(itertools.takewhile(lambda word: word.lower() not in _VERBS, text[:500].split()))
    if len(words) == len(text[:500].split()) or any(word[-1] in ".?!:;" for word in words):
        return ""
    if words and words[0].lower() in _ARTICLES:
        words = words[1:]
    says = any(word.lower() not in _STOP_WORDS for word in words)
    return " ".join(words).strip(",") if says and len(words) <= MAX_SUBJECT else ""


def _rarest(bag: Counter[str], frequency: Counter[str], n: int) -> str:
    """Return the two words of a document with the highest TF-IDF weights, those that come first in ties."""
    weights = {word: count * math.log(n / frequency[word]) for word, count in bag.items()}
    return " ".join(sorted(weights, key=lambda word: -weights[word])[:2])


def _question(topic: str, aspects: dict[str, int], rng: np.random.Generator) -> str:
    """Return a question about a topic by a drawn pattern, with an aspect drawn by the number of times it occurs."""
    counts = np.fromiter(aspects.values(), dtype=np.float64)
    aspect = list(aspects)[rng.choice(len(aspects), p=counts / counts.sum())]
    return PATTERNS[rng.integers(len(PATTERNS))].format(aspect=aspect, topic=topic)
