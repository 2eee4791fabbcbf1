"""Compute the reference figures of BM25: nDCG@10 by the formula in plain Python, by bm25s and by a lightir index.

    python recipes/bm25_reference.py --out docs/results/bm25 \
        DATA/scifact:test DATA/nfcorpus:test DATA/nq-utd:test DATA/cranfield:test DATA/medquad:test DATA/squadshifts:dev

The plain computation shares no code with lightir: words of two characters and more, lower-cased, Lucene's English stop
words removed, Snowball stems; k1 = 0.9, b = 0.4; Lucene's formula (Kamphuis et al., ECIR 2020). bm25s is skipped if it
is not installed (pip install bm25s). OUT.json is written.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import Stemmer

from lightir.data import Dataset
from lightir.eval import evaluate, rank_by_score
from lightir.index import Index, build_index, document_shards
from lightir.provenance import provenance
from lightir.search import Searcher, SearchOptions
from lightir.types import Document, Query, Run

SMALLEST = "{data}/tiny:test --out {out}/found"
K1, B = 0.9, 0.4
DEPTH = 10
MEASURE = "nDCG@10"
STOP_WORDS = """
    a an and are as at be but by for if in into is it no not of on or such that the their then there these they this to
    was will with
""".split()  # noqa: SIM905
WORD = re.compile(r"\b\w\w+\b")


def main() -> None:
    """Compute, print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", nargs="+", metavar="BEIR_FOLDER:SPLIT")
    parser.add_argument("--out", type=Path, required=True, help="path of the result file, without its suffix")
    args = parser.parse_args()
    rankers = {"plain": plain_run, "lightir": lightir_run}
    if find_spec("bm25s") is None:
        print("bm25s is not installed and skipped: pip install bm25s", flush=True)
    else:
        rankers["bm25s"] = bm25s_run
    figures: dict[str, dict[str, float]] = {}
    for text in args.datasets:
        folder, _, split = text.rpartition(":")
        dataset = Dataset.open(folder)
        documents, queries = list(dataset.corpus()), list(dataset.queries(split))
        runs = {name: ranker(documents, queries) for name, ranker in rankers.items()}
        qrels = dataset.qrels(split)
        values = {name: evaluate(run, qrels, [MEASURE]).measures[MEASURE] for name, run in runs.items()}
        figures[f"{dataset.name}:{split}"] = {name: round(value, 4) for name, value in values.items()}
        print(dataset.name, split, figures[f"{dataset.name}:{split}"], flush=True)
    record = {"provenance": provenance(), "measure": MEASURE, "k1": K1, "b": B, "figures": figures}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")


def terms_of(text: str, stemmer: Stemmer.Stemmer) -> list[str]:
    """Return a text's terms in order, repeats included."""
    return [stemmer.stemWord(word) for word in WORD.findall(text.lower()) if word not in STOP_WORDS]


def plain_run(documents: Sequence[Document], queries: Sequence[Query]) -> Run:
    """Rank by the formula, term by term over posting lists in dictionaries."""
    stemmer = Stemmer.Stemmer("english")
    postings: dict[str, dict[str, int]] = defaultdict(dict)
    lengths: dict[str, int] = {}
    for document in documents:
        terms = terms_of(document.full_text(), stemmer)
        lengths[document.doc_id] = len(terms)
        for term, count in Counter(terms).items():
            postings[term][document.doc_id] = count
    mean_length = sum(lengths.values()) / len(lengths)
    run: Run = {}
    for query in queries:
        scores: dict[str, float] = defaultdict(float)
        for term in terms_of(query.text, stemmer):
            matching = postings.get(term, {})
            idf = math.log(1 + (len(lengths) - len(matching) + 0.5) / (len(matching) + 0.5))
            for doc_id, count in matching.items():
                scores[doc_id] += idf * count / (count + K1 * (1 - B + B * lengths[doc_id] / mean_length))
        best = sorted(scores, key=lambda doc_id: (-scores[doc_id], doc_id))[:DEPTH]
        run[query.query_id] = rank_by_score(query.query_id, {doc_id: scores[doc_id] for doc_id in best})
    return run


def bm25s_run(documents: Sequence[Document], queries: Sequence[Query]) -> Run:
    """Rank by bm25s, with its own tokenizer."""
    bm25s = importlib.import_module("bm25s")
    options = {"stopwords": STOP_WORDS, "stemmer": Stemmer.Stemmer("english"), "show_progress": False}
    retriever = bm25s.BM25(k1=K1, b=B, method="lucene")
    retriever.index(bm25s.tokenize([document.full_text() for document in documents], **options), show_progress=False)
    terms = bm25s.tokenize([query.text for query in queries], return_ids=False, **options)
    k = min(DEPTH, len(documents))
    rows, scores = retriever.retrieve(terms, k=k, show_progress=False)
    run: Run = {}
    for query, best, values in zip(queries, np.asarray(rows), np.asarray(scores), strict=True):
        pairs = zip(best, values, strict=True)
        matching = {documents[row].doc_id: float(value) for row, value in pairs if value > 0}
        run[query.query_id] = rank_by_score(query.query_id, matching)
    return run


def lightir_run(documents: Sequence[Document], queries: Sequence[Query]) -> Run:
    """Rank by the lexical branch of a lightir index, which counts all words of a query as the other systems do."""
    with tempfile.TemporaryDirectory() as folder:
        build_index(document_shards(documents), Path(folder) / "index", progress=False)
        with Index.open(Path(folder) / "index") as index:
            return Searcher(index).search(list(queries), DEPTH, SearchOptions(question_words=True))


if __name__ == "__main__":
    main()
