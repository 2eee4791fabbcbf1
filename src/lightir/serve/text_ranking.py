"""Ranking of texts that are not in the index, by BM25 with the word statistics of the index."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from lightir.index import View
from lightir.index.bm25 import K1, B, idf


def text_scores(view: View, query: str, texts: Sequence[str], *, raw: bool) -> list[float]:
    """Return BM25 of each text for a query.

    Document frequencies and the mean length are those of the index. An index that counts no words has none: then all
    words weigh the same, and the mean length is that of the texts.

    Args:
        view: state of the index.
        query: text of the query.
        texts: n texts.
        raw: whether scores have no bound; otherwise they are divided by the query's greatest possible score.

    Returns:
        n scores, 0 for a text without words of the query; at most 1 unless raw.
    """
    analyzer = view.word_analyzer
    counts_words = view.analyzer is not None and not view.counts_model_terms and view.n_counted > 0
    rows = [Counter(terms) for terms in analyzer.terms(texts)]
    lengths = [row.total() for row in rows]
    mean = view.mean_length if counts_words else sum(lengths) / max(len(lengths), 1)
    wanted = Counter(analyzer.terms([query])[0])
    weights = {
        term: count * (idf(view.n_counted, view.words.frequency(term)) if counts_words else 1.0)
        for term, count in wanted.items()
    }
    norms = [K1 * (1 - B + B * length / mean) if mean > 0 else K1 for length in lengths]
    scores = [
        sum(weight * row[term] / (row[term] + norm) for term, weight in weights.items())
        for row, norm in zip(rows, norms, strict=True)
    ]
    most = sum(weights.values())
    return scores if raw or most == 0 else [score / most for score in scores]
