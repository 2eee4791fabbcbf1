"""A fuzzer of the compiled kernel against its twins: random arrays, malformed arguments, damaged arrays, huge numbers.

    make fuzz                                   # FUZZ_SECONDS=60 FUZZ_SEED=0, under the address sanitizer
    python tests/kernel/fuzz.py --seconds 5     # the installed kernel
    python tests/kernel/fuzz.py --seed 3 --case 141

A case depends on its seed and its number only. The cases run in a child process: if a case ends it, the parent prints
the command that repeats the case.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from graph_bytes import graph_bytes

Generator = np.random.Generator
EXTREMES = [-(2**63), -(2**63) + 1, -1, 0, 1, 7, 255, 2**16, 2**31 - 1, 2**32 - 1, 2**32, 2**62, 2**63 - 257, 2**63 - 1]


def sparse_rows(rng: Generator, n_docs: int, vocab_size: int, dtype: type) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return random documents: indptr, term ids that ascend within a document, weights of few values."""
    rows = [np.flatnonzero(rng.random(vocab_size) < 0.3) for _ in range(n_docs)]
    indptr = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    weights = rng.integers(0, 4, indptr[-1])
    return indptr, np.concatenate([np.zeros(0), *rows]).astype(np.uint32), weights.astype(dtype)


def any_k(rng: Generator) -> int:
    """Return a number of documents, often a few and sometimes a huge one."""
    huge = [2**32, 2**63 - 256, 2**63 - 1, 2**64 - 1, 2**64, 10**30]
    return int(rng.choice([0, 1, 3, 10, 1000])) if rng.random() < 0.7 else huge[rng.integers(len(huge))]


def bitmap(rng: Generator, n: int) -> np.ndarray | None:
    """Return a random bitmap over n documents, or None."""
    return None if rng.random() < 0.5 else np.packbits(rng.random(n) < 0.7, bitorder="little")


def damage(rng: Generator, array: np.ndarray) -> np.ndarray:
    """Return a copy with some numbers replaced by extreme ones; sizes and dtypes stay."""
    out = array.copy()
    for position in rng.integers(0, max(out.size, 1), rng.integers(1, 4)):
        if out.size and out.dtype.kind == "f":
            out.flat[position] = rng.choice([np.nan, np.inf, -np.inf, -1.0, 3e38, 1e-45])
        elif out.size:
            out.flat[position] = np.array(EXTREMES[rng.integers(len(EXTREMES))], np.int64).astype(out.dtype)
    return out


def malform(rng: Generator, value: Any) -> Any:
    """Return something that a caller may pass by mistake in place of a value."""
    others = [None, "text", b"bytes", -1, 2**64, 1.5, [], (), object(), np.zeros((2, 2, 2)), np.zeros(3, object)]
    if isinstance(value, np.ndarray) and rng.random() < 0.8:
        others = [
            value.astype(np.float64),
            value.astype(value.dtype.newbyteorder(">")),
            value[..., None],
            value[:0],
            value[1:],
            np.concatenate([value, value]),
            np.repeat(value, 2, axis=-1)[..., ::2],
            np.frombuffer(b"x" + value.tobytes(), np.uint8)[1:].view(value.dtype).reshape(value.shape),
            damage(rng, value),
        ]
    return others[rng.integers(len(others))]


class Cases:
    """The kinds of cases. Each raises AssertionError where the kernel differs from its twin."""

    def __init__(self) -> None:
        """Import the kernel, which `load_native` may have replaced."""
        from lightir import errors, kernel
        from lightir.kernel import bert, candidates, reference, segments

        self.kernel, self.reference, self.segments, self.candidates = kernel, reference, segments, candidates
        self.encoders = bert
        self.refusals = (errors.InvalidInput, errors.FormatError)
        self.mistakes = (*self.refusals, TypeError, ValueError, MemoryError, OverflowError, AttributeError)
        self.kinds: list[Callable[[Generator], None]] = [
            self.sparse,
            self.damaged_postings,
            self.dense,
            self.query_means,
            self.malformed_arguments,
            self.whole_search,
            self.words,
            self.passages,
            self.graphs,
            self.encoder,
        ]

    def run(self, seed: int, number: int) -> None:
        """Run one case."""
        rng = np.random.default_rng([seed, number])
        levels = self.kernel.available()
        self.kernel._native.use_level(levels[rng.integers(len(levels))])
        with np.errstate(all="ignore"):
            self.kinds[number % len(self.kinds)](rng)

    def postings(self, rng: Generator, most: int = 60) -> tuple[Any, int]:
        """Return random postings, checked against the twin, and the size of their vocabulary."""
        n_docs, vocab_size = int(rng.integers(0, most)), int(rng.integers(1, 12))
        rows = sparse_rows(rng, n_docs, vocab_size, np.uint8 if rng.random() < 0.5 else np.float32)
        mine = self.kernel.invert(*rows, vocab_size=vocab_size, n_docs=n_docs)
        twin = self.reference.invert(*rows, vocab_size=vocab_size, n_docs=n_docs)
        for name, array in mine.arrays().items():
            np.testing.assert_array_equal(array, twin.arrays()[name], name)
        return mine, vocab_size

    def query(self, rng: Generator, vocab_size: int) -> tuple[np.ndarray, np.ndarray]:
        """Return a random query of whole weights, whose sums are exact."""
        terms = rng.permutation(vocab_size)[: rng.integers(0, vocab_size + 1)].astype(np.uint32)
        return terms, rng.integers(0, 4, len(terms)).astype(np.float32)

    def sparse(self, rng: Generator) -> None:
        """Sparse search equals its twin for any k, filter and number of threads."""
        postings, vocab_size = self.postings(rng)
        terms, weights = self.query(rng, vocab_size)
        k, allowed = any_k(rng), bitmap(rng, postings.n_docs)
        mine = self.kernel.sparse_top_k(postings, terms, weights, k=k, allowed=allowed)
        twin = self.reference.sparse_top_k(postings, terms, weights, k=k, allowed=allowed)
        for one, other in zip(mine, twin, strict=True):
            np.testing.assert_array_equal(one, other)
        indptr = np.array([0, len(terms), len(terms)], np.int64)
        batch = self.kernel.sparse_top_k_batch(
            postings, indptr, terms, weights, k=k, threads=int(rng.choice([1, 3, 2**40])), allowed=allowed
        )
        np.testing.assert_array_equal(batch[1], mine[0])

    def damaged_postings(self, rng: Generator) -> None:
        """Damaged postings give something or are refused; the next search is right."""
        postings, vocab_size = self.postings(rng)
        terms, weights = self.query(rng, vocab_size)
        arrays = postings.arrays()
        name = list(arrays)[rng.integers(len(arrays))]
        damaged = self.kernel.Postings(
            int(rng.choice([vocab_size, 2**40])), postings.n_docs, **{**arrays, name: damage(rng, arrays[name])}
        )
        with contextlib.suppress(self.refusals):
            self.kernel.sparse_top_k(damaged, terms, weights, k=any_k(rng))
        mine = self.kernel.sparse_top_k(postings, terms, weights, k=5)
        np.testing.assert_array_equal(mine[1], self.reference.sparse_top_k(postings, terms, weights, k=5)[1])

    def dense(self, rng: Generator) -> None:
        """Dense search equals its twin on whole numbers, and with copies or codes."""
        n, width = int(rng.integers(0, 300)), int(rng.integers(1, 70))
        dtype = [np.float16, np.float32, np.int8][rng.integers(3)]
        rows = rng.integers(-3, 4, (n, width)).astype(dtype)
        scales = rng.choice([0.5, 1.0, 2.0], n).astype(np.float32) if dtype is np.int8 else None
        queries = rng.integers(-2, 3, (int(rng.integers(0, 4)), int(rng.integers(1, width + 1)))).astype(np.float32)
        options = {"k": any_k(rng), "scales": scales, "allowed": bitmap(rng, n)}
        copies = self.kernel.copy_rows(rows) if dtype is not np.int8 and rng.random() < 0.5 else None
        if rng.random() < 0.5:
            copies = self.kernel.code_rows(rows, scales=scales)
        mine = self.kernel.dense_top_k(rows, queries, threads=int(rng.choice([1, 3])), copies=copies, **options)
        twin = self.reference.dense_top_k(rows, queries, **options)
        for one, other in zip(mine, twin, strict=True):
            np.testing.assert_array_equal(one, other)

    def query_means(self, rng: Generator) -> None:
        """Means of dense and of sparse rows equal their twins to the bit."""
        table = rng.standard_normal((20, int(rng.integers(1, 70)))).astype([np.float16, np.float32][rng.integers(2)])
        indptr = np.cumsum([0, *rng.integers(0, 5, rng.integers(0, 9))], dtype=np.int64)
        tokens = rng.integers(0, 20, indptr[-1]).astype(np.uint32)
        normalize = bool(rng.random() < 0.5)
        mine = self.kernel.mean_rows(table, tokens, indptr, normalize=normalize, threads=2)
        np.testing.assert_array_equal(mine, self.reference.mean_rows(table, tokens, indptr, normalize=normalize))
        ids = rng.integers(0, 30, table.shape).astype(np.uint32)
        sums = self.kernel.mean_expansions(ids, table, tokens, indptr, vocab_size=30, threads=2)
        twin = self.reference.mean_expansions(ids, table, tokens, indptr, vocab_size=30)
        for one, other in zip(sums, twin, strict=True):
            np.testing.assert_array_equal(one, other)

    def malformed_arguments(self, rng: Generator) -> None:
        """One argument of a function is replaced; it works or raises an error of a kind for such mistakes."""
        postings, vocab_size = self.postings(rng, 20)
        terms, weights = self.query(rng, vocab_size)
        indptr, ids = np.array([0, 2, 3], np.int64), np.array([0, 1, 0], np.uint32)
        rows, scales = rng.integers(-3, 4, (5, 4), dtype=np.int8), np.ones(5, np.float32)
        queries = np.ones((2, 4), np.float32)
        kernel = self.kernel
        calls: list[tuple[Callable[..., Any], list[Any], dict[str, Any]]] = [
            (kernel.invert, [indptr, ids, np.ones(3, np.uint8)], {"vocab_size": 4, "n_docs": 2}),
            (kernel.sparse_top_k, [postings, terms, weights], {"k": 3, "allowed": None}),
            (kernel.sparse_top_k_batch, [postings, np.array([0, len(terms)]), terms, weights], {"k": 3, "threads": 2}),
            (kernel.dense_top_k, [rows, queries], {"k": 2, "scales": scales, "threads": 2, "allowed": None}),
            (kernel.dense_pair_scores, [rows, ids, queries[0]], {"scales": scales}),
            (kernel.mean_rows, [rows, ids, indptr], {"normalize": True, "scales": scales, "dim": 3, "threads": 2}),
            (kernel.mean_expansions, [ids[None], scales[:3][None], ids * 0, indptr], {"vocab_size": 4, "threads": 2}),
            (kernel.split_words, [["a text", "\ud800", "two  words"]], {}),
            (
                self.segments.StoredGraph,
                [np.zeros(300, np.uint8)],
                {"element": "int8", "shape": (3, 4), "neighbors": 3},
            ),
            (self.candidates.normalize, [scales, scales, np.ones(5, np.int64)], {"scale": "max"}),
        ]
        call, positional, named = calls[rng.integers(len(calls))]
        position = int(rng.integers(len(positional) + len(named)))
        if position < len(positional):
            positional[position] = malform(rng, positional[position])
        else:
            name = list(named)[position - len(positional)]
            named[name] = malform(rng, named[name])
        with contextlib.suppress(self.mistakes):
            call(*positional, **named)

    def whole_search(self, rng: Generator) -> None:
        """A search over segments and two branches refuses damage, and without damage returns k sorted documents."""
        counts = rng.integers(0, 30, 2).tolist()
        vocab_size = 8
        damages = rng.random() < 0.6

        def change(array: np.ndarray) -> np.ndarray:
            return damage(rng, array) if damages and rng.random() < 0.2 else array

        parts, dense = [], []
        for n in counts:
            indptr, terms, weights = sparse_rows(rng, n, vocab_size, np.uint8)
            postings = self.kernel.invert(indptr, terms, weights, vocab_size=vocab_size, n_docs=n)
            arrays = {name: change(array) for name, array in postings.arrays().items()}
            lengths = None if rng.random() < 0.5 else rng.integers(1, 9, n).astype(np.uint32)
            damaged = self.kernel.Postings(vocab_size, n, **arrays)
            parts.append(self.segments.SparseRows(change(indptr), change(terms), weights, damaged, lengths, 3.0))
            dense.append(self.segments.ScannedRows(change(rng.integers(-2, 3, (n, 3)).astype(np.float32))))
        ids = [
            (change(np.frombuffer(text.encode(), np.uint8)), change(np.arange(n + 1) * 3))
            for first, n in zip([0, counts[0]], counts, strict=True)
            for text in ["".join(f"{first + i:03d}" for i in range(n))]
        ]
        try:
            self._search(rng, self.segments.SparseSegments(parts, counts, k1=0.9, b=0.4), dense, ids, damages)
        except self.refusals:
            assert damages, "a whole index is refused"

    def _search(self, rng: Generator, sparse: Any, dense: Any, ids: Any, damages: bool) -> None:
        counts = [len(indptr) - 1 for _, indptr in ids]
        rows = self.segments.DenseSegments(dense, counts)
        bound = [self.candidates.BoundBranch("dense", rows), self.candidates.BoundBranch("sparse", sparse, 0.5)]
        names = self.segments.DocumentIds(ids)
        scale = ["none", "max", "min-max", "z-score", "dbsf", "rrf", "absolute"][rng.integers(7)]
        search = self.candidates.CandidateSearch(bound, scale=scale, ids=names)
        terms, weights = self.query(rng, 8)
        places = np.tile(np.arange(8), (2, 1)).astype(np.int64)
        k, depth = any_k(rng), any_k(rng)
        banned = rng.integers(0, 60, rng.integers(0, 9)).astype(np.uint32)
        excluded = None if rng.random() < 0.5 else (np.array([0, len(banned)], np.int64), banned)
        request = self.candidates.Request(k, depth, int(rng.choice([1, 3])), bool(rng.random() < 0.5), excluded)
        queries = [
            rows.queries(rng.integers(-2, 3, (1, 3)).astype(np.float32)),
            sparse.queries(
                np.array([0, len(terms)], np.int64),
                terms,
                weights,
                places=damage(rng, places) if damages else places,
                mean=float(rng.choice([3.0, 4.5])),
            ),
        ]
        (best,) = search.search(queries, request)
        assert len(best) <= min(k, sum(counts))
        assert excluded is None or not np.isin(best.doc_ords, banned).any()
        assert damages or np.all(np.diff(best.scores) <= 0)
        names.texts(best.doc_ords)
        if sum(counts) > 0:
            self.segments.pair_scores(rng.integers(0, sum(counts), 3).astype(np.uint32), queries[1])

    def words(self, rng: Generator) -> None:
        """Words equal those of the regular expression."""
        alphabet = list("abZ_09 .,-\n\t\x00é\ud800")
        texts = ["".join(rng.choice(alphabet, rng.integers(0, 40))) for _ in range(rng.integers(0, 6))]
        mine, twin = self.kernel.split_words(texts), self.reference.split_words(texts)
        assert mine[0] == twin[0]
        assert mine[3] == twin[3]
        np.testing.assert_array_equal(mine[1], twin[1])
        np.testing.assert_array_equal(mine[2], twin[2])

    def passages(self, rng: Generator) -> None:
        """Passages lie in their text and hold their matches, whatever the finder has learned."""
        alphabet = list("abZ_09 .,-\n\t\x00é中国\u00a0😀")
        finder = self.kernel._native.PassageFinder(bool(rng.integers(2)), bool(rng.integers(2)))
        texts = ["".join(rng.choice(alphabet, rng.integers(0, 200))) for _ in range(4)]
        for block in rng.integers(0, 600, 3).tolist():
            finder.learn_block(block, rng.integers(0, 8, 256).astype(np.uint8).tobytes())
        for text in texts:
            for _ in range(4):
                length, lead = (int(size) for size in rng.integers(0, 300, 2))
                passages, blocks, words = finder.find([text], ["ab", "中", "中国", "a"], length, lead)
                if passages:
                    ((shown, matches),) = passages
                    assert all(0 <= start < end <= len(shown) for start, end in matches)
                    break
                for block in blocks:
                    finder.learn_block(block, rng.integers(0, 8, 256).astype(np.uint8).tobytes())
                if words:
                    finder.learn_words(words, [["ab", "a"][: rng.integers(3)] for _ in words])

    def graphs(self, rng: Generator) -> None:
        """A damaged graph is refused, or a search of it returns different rows."""
        n, element = int(rng.integers(1, 40)), rng.choice(["int8", "float16"])
        stored = graph_bytes(rng, rng.integers(-3, 4, (n, 4)).astype(element), np.arange(n))
        rows, queries = rng.standard_normal((n, 4)).astype(np.float16), rng.standard_normal((2, 4)).astype(np.float32)
        try:
            graph = self.segments.StoredGraph(damage(rng, stored), element=element, shape=(n, 4), neighbors=3)
        except self.refusals:
            return
        costs = self.segments.WalkCosts(*rng.integers(0, 9, 2).tolist())
        segments = self.segments.DenseSegments([self.segments.ScannedRows(rows, graph=graph)], [n], costs=costs)
        branch = self.candidates.BoundBranch("", segments)
        request = self.candidates.Request(5, 5, 2)
        for ranked in self.candidates.CandidateSearch([branch], scale="none").search(
            [segments.queries(queries)], request
        ):
            assert len(set(ranked.doc_ords.tolist())) == min(n, 5)

    def encoder(self, rng: Generator) -> None:
        """Tiles give the states of the plain loops nearly, and ids and offsets of any kind are refused or encoded."""
        width, n_heads, wide = 32 * int(rng.integers(1, 3)), int(rng.choice([1, 2, 4])), int(rng.integers(1, 70))

        def weights(*shape: int) -> np.ndarray:
            return rng.normal(size=shape, scale=0.3).astype(np.float32)

        def pair(rows: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
            return weights(rows, columns), weights(rows)

        norm = (weights(width), weights(width))
        square = [pair(width, width) for _ in range(4)]
        layer = self.encoders.LayerWeights(*square, pair(wide, width), pair(width, wide), norm, norm)
        embeddings = self.encoders.Embeddings(weights(9, width), weights(40, width), norm)
        int8 = bool(rng.integers(2))
        encoder = self.encoders.Encoder(embeddings, [layer], n_heads=n_heads, epsilon=1e-6, int8=int8)
        ids = rng.integers(0, 9 + (rng.random() < 0.2), rng.integers(0, 90)).astype(np.uint32)
        offsets = np.sort(np.array([0, *rng.integers(0, len(ids) + 1, rng.integers(0, 4)), len(ids)]))
        offsets[rng.integers(len(offsets))] += rng.random() < 0.1
        try:
            plain = encoder.states(ids, offsets, threads=2, tiles=False)
        except self.refusals:
            return
        assert plain.shape == (len(ids), width)
        if self.encoders.has_tiles():
            np.testing.assert_allclose(encoder.states(ids, offsets, threads=2), plain, atol=0.3 if int8 else 0.1)


def load_native(path: str) -> None:
    """Load another build of the extension in place of the installed one."""
    spec = importlib.util.spec_from_file_location("lightir.kernel._native", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["lightir.kernel._native"] = module
    spec.loader.exec_module(module)


def run_cases(seed: int, numbers: Any, seconds: float, progress: str) -> None:
    """Run cases until the time is up; write each case's number to a file first."""
    cases = Cases()
    stop = time.monotonic() + seconds
    number = -1
    with open(progress, "w") as file:
        for number in numbers:
            os.pwrite(file.fileno(), f"{number:<12}".encode(), 0)
            cases.run(seed, number)
            if time.monotonic() > stop:
                break
    print(f"seed {seed}: {number + 1} cases of {cases.kernel._native.__file__}, levels {cases.kernel.available()}")


def main() -> int:
    """Run the cases in a child process and tell which one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="time to run (default 5)")
    parser.add_argument("--seed", type=int, default=0, help="seed of all cases (default 0)")
    parser.add_argument("--case", type=int, help="number of the only case to run")
    parser.add_argument("--native", help="path of another build of the extension (default the installed one)")
    parser.add_argument("--progress", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.progress is not None:
        if arguments.native is not None:
            load_native(arguments.native)
        numbers = range(sys.maxsize) if arguments.case is None else [arguments.case]
        run_cases(arguments.seed, numbers, arguments.seconds, arguments.progress)
        return 0
    with tempfile.NamedTemporaryFile() as progress:
        code = subprocess.run([sys.executable, *sys.argv, "--progress", progress.name], check=False).returncode
        case = progress.read().decode().strip() or "none"
    if code != 0:
        print(f"FAILED with status {code}; to repeat: {' '.join(sys.argv)} --seed {arguments.seed} --case {case}")
    return int(code != 0)


if __name__ == "__main__":
    sys.exit(main())
