"""The files of BM25: a dictionary of terms, posting lists, lengths, and terms of words that a script does not stem."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from lightir.analysis import Analyzer
from lightir.errors import InvalidInput
from lightir.index.bm25 import K1, B
from lightir.index.exchange.varints import encode_numbers
from lightir.publish.live_rows import CountedTerms, LiveRows
from lightir.publish.parts import PartWriter
from lightir.words.scripts import FOLDED
from lightir.words.stems import ENGLISH_STOP_WORDS, QUESTION_WORDS, stem

_PAGE_STEMS = {"biologist": "biolog", "universities": "universiti", "latest": "latest", "evening": "evening"}
"""Words whose stems tell the English algorithm of the page's script from older ones."""


def stems_as_the_page() -> bool:
    """Return whether the installed PyStemmer has the English algorithm of the page's script."""
    return all(stem("english", word) == stemmed for word, stemmed in _PAGE_STEMS.items())


def write_counted(writer: PartWriter, rows: LiveRows) -> dict[str, Any]:
    """Write the files of the tokens branch; return its numbers for the manifest."""
    counted = rows.counted_terms()
    content, lengths = _posting_lists(counted)
    writer.write("postings", content)
    writer.write_places("terms", counted.terms, np.diff(counted.indptr).tolist(), lengths)
    writer.write_numbers("lengths", counted.lengths)
    return {"k1": K1, "b": B, "mean_length": rows.view.mean_length}


def analyzer_settings(analyzer: Analyzer) -> dict[str, Any]:
    """Return how a script cuts and stems words.

    Raises:
        InvalidInput: the terms are those of a model.
    """
    is_auto = analyzer.name.partition("-")[0] == "auto"
    kind = "auto" if is_auto else analyzer.name if analyzer.name in ("words", "chinese") else "two"
    is_english = analyzer.language == "english" and "+" not in analyzer.name  # stems of several languages are written
    return {
        "kind": kind,
        "english": is_english,
        "stems_itself": is_english and stems_as_the_page(),
        "folds": is_auto and analyzer.language in FOLDED,
        "stop_words": sorted(ENGLISH_STOP_WORDS) if is_english else [],
        "question_words": sorted(QUESTION_WORDS) if analyzer.language == "english" else [],
    }


def write_word_map(writer: PartWriter, analyzer: Analyzer, texts: Iterable[str]) -> bool:
    """Write the terms of the collection's words that a script cannot tell itself; return whether there are any.

    The script stems English words of ASCII letters, and cuts runs of unspaced scripts. If the installed PyStemmer has
    another English algorithm, all words are written.
    """
    settings = analyzer_settings(analyzer)
    if settings["kind"] in ("words", "chinese"):
        return False
    known: dict[str, Sequence[str]] = {}
    for text in texts:
        if settings["stems_itself"] and text.isascii():
            continue
        for word, terms in analyzer.words(text):
            is_known = word.isascii() and (settings["stems_itself"] or (terms == [word] and not settings["english"]))
            if not is_known and not analyzer.is_unspaced(word[0]):
                known.setdefault(word, terms)
    words = sorted(known)
    if words:
        writer.write_dictionary("words", words, [0] * len(words), [" ".join(known[word]).encode() for word in words])
    return bool(words)


def require_words(name: str, counts_model_terms: bool) -> None:
    """Raise InvalidInput for an index whose tokens branch counts terms of a model."""
    if counts_model_terms:
        raise InvalidInput(
            f"{name} counts term ids of the model, not words, and a published page cannot search them. "
            "Publish the dense branch alone (--mode dense), or build an index with --analyzer auto"
        )


def _posting_lists(counted: CountedTerms) -> tuple[bytes, list[int]]:
    """Return all posting lists, and the number of bytes of each.

    A posting is the distance from the document before, doubled, plus 1 if the count follows; else the count is 1.
    """
    first = np.zeros(len(counted.documents), dtype=np.bool_)
    first[counted.indptr[:-1]] = True
    before = np.concatenate([np.full(min(1, len(first)), -1, np.int64), counted.documents[:-1]])
    distances = counted.documents - np.where(first, -1, before) - 1
    has_count = counted.counts != 1
    values = np.zeros(len(distances) + int(has_count.sum()), dtype=np.int64)
    at = np.arange(len(distances)) + np.cumsum(has_count) - has_count
    values[at] = 2 * distances + has_count
    values[at[has_count] + 1] = counted.counts[has_count]
    content, lengths = encode_numbers(values)
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    starts = np.append(at, len(values))[counted.indptr]
    return content, np.diff(ends[starts]).tolist()
