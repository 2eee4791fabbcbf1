"""List the words that get rows of their own in a query table, for `lightir distill --phrases`.

    python recipes/own_words.py minilm --pool pool.jsonl.gz --list american-english-large=2 --rows 60000 --out words.txt

A candidate is a word of the pool or of a --list (one word a line; Debian's wamerican packages) that consists of several
terms. It is worth (count + weight of its best list) ^ 0.75 x (1 - cosine) / sqrt(terms): the cosine is between the
table's vector of the word alone and the model's. The best words are written, best first, until their rows, and those of
their beginnings, are as many as --rows. Words that have a row already are left out.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from pathlib import Path

import numpy as np

from lightir.addresses import resolve_query_encoder
from lightir.data import read_queries
from lightir.query import CachedQueryEncoder
from lightir.query.bigrams import LONGER
from lightir.text import query_term_ids
from lightir.train.distill.teacher import load_teacher
from lightir.train.distill.teacher_vectors import TeacherVectors
from lightir.vectors import Floats

WORD = re.compile(r"[^\W_]{3,32}")
MAX_TERMS = 16

SMALLEST = "{model} --pool {data}/tiny/queries.jsonl --rows 20 --out {out}/words.txt"


def main() -> None:
    """Read the arguments and write the words."""
    args = arguments()
    encoder = CachedQueryEncoder.load(resolve_query_encoder(args.model))
    counts = pool_counts(args.pool, encoder)
    weights = list_weights(args.list, encoder)
    words = sorted(word for word in counts.keys() | weights.keys() if sum(map(str.isdigit, word)) <= 2)
    terms = query_term_ids(encoder.tokenizer, encoder.contract.query, words)
    several = np.flatnonzero((terms.lengths > 1) & (terms.lengths <= MAX_TERMS))
    words, runs = [words[i] for i in several], [tuple(terms.row(int(i)).tolist()) for i in several]
    own = encoder.encode(words).dense
    if own is None:
        raise SystemExit(f"{args.model} has no query table")
    cosines = (own * teacher_vectors(args, words)).sum(axis=1)
    mentions = np.array([counts[word] + weights.get(word, 0.0) for word in words])
    lengths = np.array([len(run) for run in runs])
    worth = mentions**0.75 * (1 - cosines) / np.sqrt(lengths)
    chosen = best_within(runs, worth, args.rows, known_runs(encoder))
    args.out.write_text("".join(f"{words[i]}\n" for i in chosen), encoding="utf-8")
    print(f"{len(chosen):,} of {len(words):,} words written to {args.out}")


def pool_counts(pool: Path, encoder: CachedQueryEncoder) -> Counter[str]:
    """Return in how many texts of a pool each word is, lower-cased and without accents as the tokenizer has it."""
    counts: Counter[str] = Counter()
    for query in read_queries(pool):
        counts.update(set(WORD.findall(normal(query.text, encoder))))
    return counts


def list_weights(lists: list[str], encoder: CachedQueryEncoder) -> dict[str, float]:
    """Return the largest weight of each listed word, from FILE=WEIGHT."""
    weights: dict[str, float] = {}
    for given in lists:
        path, _, weight = given.rpartition("=")
        for line in Path(path).read_text(encoding="utf-8").splitlines():
            word = normal(line.strip(), encoder)
            if WORD.fullmatch(word):
                weights[word] = max(weights.get(word, 0.0), float(weight))
    return weights


def normal(text: str, encoder: CachedQueryEncoder) -> str:
    """Return a text as the tokenizer normalizes it."""
    normalizer = encoder.tokenizer.backend.normalizer
    return text.lower() if normalizer is None else normalizer.normalize_str(text)


def teacher_vectors(args: argparse.Namespace, words: list[str]) -> Floats:
    """Return the model's vector of each word alone, (n, dim) float32 of length 1."""
    return TeacherVectors(args.work, load_teacher(args.model)).queries(words)


def known_runs(encoder: CachedQueryEncoder) -> set[tuple[int, ...]]:
    """Return the runs of terms that have a row."""
    runs: list[tuple[int, ...]] = []
    for first, last in [] if encoder.bigrams is None else encoder.bigrams.bigrams.pairs.tolist():
        runs.append((*runs[first - LONGER], last) if first >= LONGER else (first, last))
    return set(runs)


def best_within(runs: list[tuple[int, ...]], worth: Floats, n_rows: int, known: set[tuple[int, ...]]) -> list[int]:
    """Return the positions of the best runs whose new rows, with those of their beginnings, are at most n_rows."""
    have, chosen = set(known), []
    for i in np.argsort(-worth, kind="stable").tolist():
        new = [runs[i][:n] for n in range(2, len(runs[i]) + 1) if runs[i][:n] not in have]
        if runs[i] not in have and len(new) <= n_rows:
            have.update(new)
            n_rows -= len(new)
            chosen.append(i)
    return chosen


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("model", help="model with a fitted table")
    parser.add_argument(
        "--pool", type=Path, required=True, help="texts: a pool of recipes/broad_text.py, or another file of queries"
    )
    parser.add_argument("--list", action="append", default=[], help="FILE=WEIGHT: list of words, repeat for more")
    parser.add_argument("--rows", type=int, default=60_000, help="maximum number of new rows (default 60,000)")
    parser.add_argument("--work", type=Path, help="folder that keeps the model's vectors (default: none)")
    parser.add_argument("--out", type=Path, required=True, help="file to write")
    return parser.parse_args()


if __name__ == "__main__":
    main()
