"""The soak's oracle: a journal of the writer's changes, the states that follow from it, and rankings by definition.

The writer appends a line to the journal before each change and another when its outcome is known. So whoever reads the
journal before and after looking at the index knows between which states of the index it must have looked.
"""

from __future__ import annotations

import json
import math
import os
import zlib
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

WORDS = ("ant", "bee", "cow", "doe", "elk", "fox", "gnu", "hen", "jay", "owl")
EVERYWHERE = "all"
"""A word of every document."""

DIM = 4
VOCAB_SIZE = 32
K1, B = 0.9, 0.4  # BM25's parameters in lightir, those of Anserini
TOLERANCE = 1e-5
"""Relative difference between scores that are summed in float32 and in double precision."""

CHANGES_KEPT = 300
"""Number of changes that a reader of the journal remembers; it looks at the index for less time."""

MOST_SHOWN = 6


@dataclass(frozen=True, slots=True)
class Stored:
    """A document of a state.

    Attributes:
        title: title, which names the change that wrote the text.
        text: text.
        metadata: metadata; "n" is the number of the change that wrote them.
        encoded: whether the document has vectors. In the journal, False says that it may have them, from a worker.
    """

    title: str
    text: str
    metadata: dict[str, Any]
    encoded: bool


State = dict[str, Stored]
"""Documents by id."""

Effect = dict[str, Stored | None]
"""Documents that a change writes, by id; None for a deleted one."""


def after(state: State, effect: Effect) -> State:
    """Return the state after a change."""
    later = state | {doc_id: stored for doc_id, stored in effect.items() if stored is not None}
    return {doc_id: stored for doc_id, stored in later.items() if effect.get(doc_id, stored) is not None}


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment in the journal: the number of the last change with a known outcome, and the state after it."""

    number: int
    state: State


class Journal:
    """The changes of an index, in a file that the writer appends to and everyone reads.

    Attributes:
        number: number of the last change that was begun.
        state: state after the last change with a known outcome.
        undecided: number and effect of a change that was begun and whose outcome is unknown.
        refused: numbers of the latest changes that were not made.
    """

    def __init__(self, path: Path) -> None:
        """Open the journal at its start; `read` follows it."""
        self.path = path
        self.number = 0
        self.state: State = {}
        self.undecided: tuple[int, Effect] | None = None
        self.refused: deque[int] = deque(maxlen=CHANGES_KEPT)
        self._made: deque[tuple[int, Effect]] = deque(maxlen=CHANGES_KEPT)
        self._forgotten = 0
        self._position = 0
        self._rest = b""

    def read(self) -> None:
        """Read what was appended since the last call."""
        with self.path.open("rb") as file:
            file.seek(self._position)
            content = file.read()
        self._position += len(content)
        *lines, self._rest = (self._rest + content).split(b"\n")
        for line in lines:
            try:
                entry = json.loads(line)
            except ValueError:  # the writer was killed while it wrote the line
                continue
            self._follow(entry)

    def _follow(self, entry: dict[str, Any]) -> None:
        if "begin" in entry:
            self.number = entry["begin"]
            effect = {doc_id: None if given is None else Stored(**given) for doc_id, given in entry["effect"].items()}
            self.undecided = self.number, effect
            return
        assert self.undecided is not None, "an outcome without a change"
        if entry["made"]:
            self.state = after(self.state, self.undecided[1])
            if len(self._made) == CHANGES_KEPT:
                self._forgotten = self._made[0][0]
            self._made.append(self.undecided)
        else:
            self.refused.append(self.undecided[0])
        self.undecided = None

    def begin(self, effect: Effect) -> None:
        """Write that a change begins; all earlier ones must have an outcome."""
        assert self.undecided is None, "an earlier change has no outcome"
        written = {doc_id: None if stored is None else asdict(stored) for doc_id, stored in effect.items()}
        self._append({"begin": self.number + 1, "effect": written})

    def end(self, made: bool) -> None:
        """Write the outcome of the last change."""
        self._append({"end": self.number, "made": made})

    def _append(self, entry: dict[str, Any]) -> None:
        self.read()
        end_of_torn_line = b"\n" if self._rest else b""
        with self.path.open("ab", buffering=0) as file:
            file.write(end_of_torn_line + json.dumps(entry).encode() + b"\n")
        self.read()

    def mark(self) -> Mark:
        """Return the present moment."""
        self.read()
        number = self.undecided[0] - 1 if self.undecided else self.number
        return Mark(number, self.state)

    def states_since(self, mark: Mark) -> Iterator[tuple[int, State]]:
        """Yield the states that the index may have had since a moment, each with the number of its last change.

        Nothing is yielded for a moment that more than CHANGES_KEPT changes have followed.
        """
        self.read()
        if mark.number < self._forgotten:
            return
        number, state = mark.number, mark.state
        yield number, state
        for number, effect in self._made:
            if number > mark.number:
                state = after(state, effect)
                yield number, state
        if self.undecided is not None:
            number, effect = self.undecided
            yield number, after(state, effect)


# Comparison with the index


def shows(observed: Mapping[str, Stored], state: State) -> bool:
    """Return whether documents are exactly those of a state, and have vectors if the state says so."""
    return observed.keys() == state.keys() and all(agrees(observed[doc_id], state[doc_id]) for doc_id in state)


def agrees(observed: Stored, stored: Stored) -> bool:
    """Return whether an observed document is the stored one."""
    same = (observed.title, observed.text, observed.metadata) == (stored.title, stored.text, stored.metadata)
    return same and observed.encoded >= stored.encoded


def difference(observed: Mapping[str, Stored], state: State) -> dict[str, Any]:
    """Describe how observed documents differ from a state; at most MOST_SHOWN documents of each kind."""
    missing = sorted(state.keys() - observed.keys())
    unexpected = sorted(observed.keys() - state.keys())
    other = [doc_id for doc_id in sorted(state.keys() & observed.keys()) if not agrees(observed[doc_id], state[doc_id])]
    return {
        "missing": missing[:MOST_SHOWN],
        "unexpected": {doc_id: asdict(observed[doc_id]) for doc_id in unexpected[:MOST_SHOWN]},
        "other": {doc_id: [asdict(observed[doc_id]), asdict(state[doc_id])] for doc_id in other[:MOST_SHOWN]},
        "documents": [len(observed), len(state)],
        "different": len(missing) + len(unexpected) + len(other),
    }


# Rankings by definition

Scores = dict[str, float]


@lru_cache(maxsize=2000)
def counted(title: str, text: str) -> tuple[Counter[str], int]:
    """Return the number of times that each word occurs in a document, and the number of all words."""
    words = f"{title} {text}".split()
    return Counter(words), len(words)


def bm25(state: Mapping[str, Stored], query: str) -> Scores:
    """Return the scores above 0 by document: sum over words of idf x tf / (tf + k1 (1 - b + b |d| / mean |d|)).

    Kamphuis et al., ECIR 2020, Lucene's form; idf = ln(1 + (N - df + 0.5) / (df + 0.5)).
    """
    documents = {doc_id: counted(stored.title, stored.text) for doc_id, stored in state.items()}
    mean = sum(length for _, length in documents.values()) / len(documents) if documents else 1.0
    scores: Scores = {}
    for word, n_repeats in Counter(query.split()).items():
        holding = {doc_id: counts[word] for doc_id, (counts, _) in documents.items() if counts[word]}
        idf = math.log(1 + (len(documents) - len(holding) + 0.5) / (len(holding) + 0.5))
        for doc_id, tf in holding.items():
            penalty = K1 * (1 - B + B * documents[doc_id][1] / mean)
            scores[doc_id] = scores.get(doc_id, 0.0) + n_repeats * idf * tf / (tf + penalty)
    return scores


def vector(text: str) -> list[int]:
    """Return DIM small whole numbers that depend on a text."""
    return [byte % 16 for byte in zlib.crc32(text.encode()).to_bytes(DIM, "little")]


def impacts(text: str) -> dict[int, int]:
    """Return weights of a few terms that depend on a text."""
    numbers = zlib.crc32(text.encode()[::-1])
    return {numbers >> 5 * i & VOCAB_SIZE - 1: 1 + (numbers >> 7 * i & 7) for i in range(3)}


def inner_products(state: Mapping[str, Stored], query: str) -> tuple[Scores, Scores]:
    """Return the dense scores of all encoded documents, and their sparse scores above 0."""
    encoded = {doc_id: stored.text for doc_id, stored in state.items() if stored.encoded}
    wanted, terms = vector(query), impacts(query)
    dense = {doc_id: float(sum(map(int.__mul__, wanted, vector(text)))) for doc_id, text in encoded.items()}
    sparse = {}
    for doc_id, text in encoded.items():
        score = sum(weight * terms.get(term, 0) for term, weight in impacts(text).items())
        if score:
            sparse[doc_id] = float(score)
    return dense, sparse


def ranking_problem(expected: Scores, doc_ids: Sequence[str], scores: Sequence[float], k: int) -> str | None:
    """Return why a ranking is not the k best of the expected scores, score down and then id up; None if it is.

    Documents whose scores differ by less than TOLERANCE may take each other's places.
    """
    listed = list(zip(doc_ids, scores, strict=True))
    if len(set(doc_ids)) != len(doc_ids):
        return "a document is listed twice"
    if len(listed) != min(k, len(expected)):
        return f"{len(listed)} documents are listed instead of {min(k, len(expected))}"
    if listed != sorted(listed, key=lambda pair: (-pair[1], pair[0])):
        return f"the documents are not in order: {listed[:MOST_SHOWN]}"
    for doc_id, score in listed:
        if not math.isclose(expected.get(doc_id, 0.0), score, rel_tol=TOLERANCE):
            return f"{doc_id} has the score {score} instead of {expected.get(doc_id, 0.0)}"
    others = {doc_id: score for doc_id, score in expected.items() if doc_id not in set(doc_ids)}
    best = max(others, key=others.__getitem__, default=None)
    if best is not None and listed and others[best] > listed[-1][1] * (1 + TOLERANCE):
        return f"{best} with the score {others[best]} is not listed, but {listed[-1]} is"
    return None


def random_texts(rng: Any, number: int) -> tuple[str, str]:
    """Return title and text of a document that a change writes."""
    words = rng.choices(WORDS, weights=range(1, len(WORDS) + 1), k=rng.randint(0, 12))
    return f"v{number:06d}", " ".join([EVERYWHERE, *words, f"x{number:06d}y{rng.randrange(1000):03d}"])


def journal_file(folder: Path) -> Path:
    """Create an empty journal."""
    path = folder / "journal.jsonl"
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
    return path
