"""Confidence of a query table, and queries of low confidence that go to the model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from lightir.errors import FormatError, InvalidInput
from lightir.files import write_json
from lightir.query import CachedQueryEncoder, CachedTable
from lightir.query.confidence import FEATURES, RARE, Confidence, features, term_means, to_json
from lightir.query.fallback import FallbackFailed, FallbackQueryEncoder
from lightir.vectors import Ragged
from small_collections import DIM, VOCAB_SIZE, WORDS, word_contract, word_table, word_tokenizer

TABLE = word_table(dtype=np.float32)
NORMS = np.linalg.norm(TABLE, axis=1).astype(np.float32)
SEEN = np.array([0, 9, 3, 0, 50, 5, 1000, 2], np.float32)


def encoder() -> CachedQueryEncoder:
    return CachedQueryEncoder(word_contract(), word_tokenizer(), tables={"": CachedTable(TABLE)})


def only(name: str, weight: float = 1.0, bias: float = 0.0) -> Confidence:
    weights = np.array([weight if other == name else 0.0 for other in FEATURES], np.float32)
    return Confidence(weights, bias, SEEN, NORMS)


def test_features_are_those_of_their_definitions() -> None:
    queries = [[1, 2, 2], [], [3], [6, 4, 7]]
    rows = Ragged.from_lists(queries)
    got = features(rows, term_means(CachedTable(TABLE), rows), NORMS, SEEN)
    for row, terms in enumerate(queries):
        if not terms:
            assert not got[row].any()
            continue
        logs = [math.log(1 + SEEN[term]) for term in terms]
        mean = sum(TABLE[term].astype(float) for term in terms) / len(terms)
        lengths = [float(np.linalg.norm(TABLE[term])) for term in terms]
        expected = {
            "mean_seen": sum(logs) / len(logs),
            "least_seen": min(logs),
            "rare_share": sum(SEEN[term] < RARE for term in terms) / len(terms),
            "agreement": np.linalg.norm(mean) / (sum(lengths) / len(lengths)),
            "length": np.linalg.norm(mean),
            "loudest": max(lengths) / sum(lengths),
            "terms": math.log(1 + len(terms)),
        }
        np.testing.assert_allclose(got[row], [expected[name] for name in FEATURES], rtol=1e-4)


def test_a_stored_confidence_is_read_as_it_was_and_damage_is_named(tmp_path: Path) -> None:
    assert Confidence.load(tmp_path) is None
    confidence = only("least_seen", 0.25, 0.125)
    write_json(tmp_path / "confidence.json", to_json(confidence))
    save_file({"seen": SEEN, "norms": NORMS}, str(tmp_path / "confidence.safetensors"))
    read = Confidence.load(tmp_path)
    assert read is not None
    queries = Ragged.from_lists([[1, 2], [6], []])
    expected = [0.125 + 0.25 * math.log(4), 1.0, 0.0]  # 0.125 + 0.25 * log(1001) is above 1
    np.testing.assert_allclose(read.of_queries(encoder(), queries), expected, rtol=1e-5)
    for damaged in ({"format_version": 2}, {"format_version": 1}, {"format_version": 1, "weights": [], "bias": 0}):
        write_json(tmp_path / "confidence.json", damaged)
        with pytest.raises(FormatError):
            Confidence.load(tmp_path)
    short = Confidence(confidence.weights, 0.0, SEEN[:3], NORMS[:3])
    with pytest.raises(InvalidInput, match="3 terms, but the table 8"):
        short.of_queries(encoder(), queries)


def test_only_queries_below_the_threshold_go_to_the_model() -> None:
    asked: list[list[str]] = []

    def model(texts: Sequence[str]) -> np.ndarray:
        asked.append(list(texts))
        return np.stack([np.arange(1, DIM + 1) * (i + 1.0) for i in range(len(texts))])

    # cat was seen 9 times, dog 3, fish never: log(1 + n) / log(10) is 1, 0.60 and 0.
    confidence = only("least_seen", 1 / math.log(10))
    texts = ["cat", "dog", "fish cat", "", "zebra", "the cat"]
    fallback = FallbackQueryEncoder(encoder(), confidence, model, threshold=0.6)
    vectors, table = fallback.encode(texts), encoder().encode(texts)
    assert asked == [["fish cat", "zebra"]]  # a query without terms has no confidence; a blank one asks for nothing
    assert vectors.dense is not None
    assert table.dense is not None
    unit = np.arange(1, DIM + 1) / np.linalg.norm(np.arange(1, DIM + 1))
    np.testing.assert_allclose(vectors.dense[[2, 4]], [unit, unit], rtol=1e-6)
    np.testing.assert_array_equal(vectors.dense[[0, 1, 3, 5]], table.dense[[0, 1, 3, 5]])
    assert vectors.sparse is not None
    assert table.sparse is not None
    np.testing.assert_array_equal(vectors.sparse.weights, table.sparse.weights)
    assert (fallback.n_queries, fallback.n_fallback) == (6, 2)
    np.testing.assert_allclose(fallback.confidences(["dog", "fish"]), [math.log(4) / math.log(10), 0], rtol=1e-5)
    never = FallbackQueryEncoder(encoder(), confidence, model, threshold=0)
    never.encode(texts)
    assert len(asked) == 1


def test_a_model_that_fails_fails_the_search() -> None:
    def broken(texts: Sequence[str]) -> np.ndarray:
        raise OSError("no route to host")

    fallback = FallbackQueryEncoder(encoder(), only("terms", 0), broken, threshold=0.5)
    with pytest.raises(FallbackFailed, match=r"1 of the queries, whose confidence is below 0\.5: no route to host"):
        fallback.encode(["cat"])
    shapes = [np.zeros((2, DIM)), np.zeros((1, DIM - 1)), np.full((1, DIM), np.nan), np.zeros(DIM)]
    for rows in shapes:
        wrong = FallbackQueryEncoder(encoder(), only("terms", 0), lambda texts, rows=rows: rows, threshold=0.5)
        with pytest.raises(FallbackFailed, match="expected 4 finite numbers"):
            wrong.encode(["cat"])


def test_thresholds_and_encoders_without_confidence_are_refused() -> None:
    def model(texts: Sequence[str]) -> np.ndarray:
        return np.zeros((len(texts), DIM))

    with pytest.raises(InvalidInput, match="has no confidence"):
        FallbackQueryEncoder(encoder(), None, model, threshold=0.5)
    for threshold in (-0.1, 1.1, math.nan):
        with pytest.raises(InvalidInput, match="expected 0 to 1"):
            FallbackQueryEncoder(encoder(), only("terms"), model, threshold=threshold)
    sparse = CachedQueryEncoder(word_contract(dense=None), word_tokenizer())
    with pytest.raises(InvalidInput, match="with a dense table"):
        FallbackQueryEncoder(sparse, only("terms"), model, threshold=0.5)
    assert len(WORDS) == VOCAB_SIZE == len(SEEN)
