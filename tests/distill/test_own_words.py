"""Tables are compared over the rows that an index searches, and mixed with a fitted start."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from lightir.contract import Contract, DenseHead
from lightir.index.word_vectors import with_word_vectors
from lightir.query import CachedGate, CachedQueryEncoder
from lightir.text import TextTokenizer
from lightir.train.distill import held_out, own_words
from lightir.train.distill.distillation import DistillationOptions, distill
from lightir.train.distill.fit_config import FitConfig
from lightir.train.distill.fitted_rows import FittedRows
from lightir.train.distill.held_out import MIXTURES, SPAN_MIXTURES, FitData, fit_and_compare, held_out_rows, shared_best
from lightir.train.distill.own_words import OwnWords
from lightir.train.distill.start import StartTable
from lightir.types import Document
from lightir.vectors import Ragged
from small_collections import DIM, WORDS, word_contract, word_table, write_folder
from tiny_models import write_sentence_transformer

N_DOCUMENTS, N_TERMS, WIDTH = 40, 30, 6


def unit(rows: np.ndarray) -> np.ndarray:
    return (rows / np.linalg.norm(rows, axis=-1, keepdims=True)).astype(np.float32)


def bags(rng: np.random.Generator, n: int, longest: int) -> Ragged:
    return Ragged.from_lists([rng.integers(0, N_TERMS, size=rng.integers(1, longest)).tolist() for _ in range(n)])


def random_data(n: int) -> FitData:
    rng = np.random.default_rng(5)
    targets, documents = unit(rng.normal(size=(n, WIDTH))), unit(rng.normal(size=(N_DOCUMENTS, WIDTH)))
    return FitData(bags(rng, n, 6), targets, documents, Ragged.from_lists([[]] * n))


def random_words(documents: np.ndarray, weight: float = 0.5) -> OwnWords:
    rng = np.random.default_rng(6)
    return OwnWords(documents, bags(rng, len(documents), 5), bags(rng, len(documents), 12), weight)


def random_table(seed: int) -> FittedRows:
    return FittedRows(np.random.default_rng(seed).normal(size=(N_TERMS, WIDTH)).astype(np.float32))


def expected_share(table: np.ndarray, data: FitData, words: OwnWords) -> float:
    """Each table ranks documents with its own words; the teacher ranks them as they were encoded."""
    encoded = [data.documents[at] for at in words.documents]
    searched = []
    for at, vector in enumerate(encoded):
        first, whole = (unit(table[bag.row(at)].mean(axis=0)) for bag in (words.first, words.whole))
        searched.append(unit(vector + words.weight * unit(first + np.float32(0.3) * whole)))
    shared = []
    for row in range(len(data.queries)):
        light, places = table[data.queries.row(row)].mean(axis=0), range(len(encoded))
        own = sorted(places, key=lambda doc: (-float(light @ searched[doc]), doc))[:10]
        teachers = sorted(places, key=lambda doc: (-float(data.targets[row] @ encoded[doc]), doc))[:10]
        shared.append(len({*own} & {*teachers}) / 10)
    return float(np.mean(shared))


@pytest.mark.parametrize("documents", [np.arange(N_DOCUMENTS), np.arange(1, N_DOCUMENTS, 2)])
def test_a_table_is_compared_over_rows_with_its_own_words(documents: np.ndarray) -> None:
    data, words = random_data(60), random_words(documents)
    shares = [shared_best(random_table(seed), data, words) for seed in range(4)]
    assert shares == pytest.approx([expected_share(random_table(seed).rows, data, words) for seed in range(4)])
    assert shares != [shared_best(random_table(seed), data) for seed in range(4)]


@pytest.mark.parametrize("mixtures", [MIXTURES, SPAN_MIXTURES])
@pytest.mark.parametrize("seed", range(4))
def test_the_kept_table_is_the_best_mixture_over_rows_with_own_words(
    mixtures: tuple[float, ...], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, words = random_data(1000), random_words(np.arange(N_DOCUMENTS))
    begin, fitted = random_table(seed), random_table(seed + 10)
    monkeypatch.setattr(held_out, "_fitted", lambda *_: fitted)
    unseen = held_out_rows(data.queries, 0)
    tables = {part: (1 - part) * begin.rows + part * fitted.rows for part in (*mixtures, 0)}
    shares = {part: expected_share(table, data.take(unseen), words) for part, table in tables.items()}
    best = max(mixtures, key=lambda part: (shares[part], -part))
    kept = best if shares[best] >= shares[0] else 0
    table, report = fit_and_compare(
        StartTable("first", begin), data, FitConfig(), mixtures=mixtures, unseen=unseen, words=words
    )
    assert report is not None
    np.testing.assert_allclose(table.rows, tables[kept], atol=1e-6)
    assert (report.mixture, report.kept) == (best, "fitted" if kept else "start")
    assert (report.start, report.fitted) == pytest.approx((shares[0], shares[best]))
    assert report.word_weight == 0.5


def test_a_mixture_has_parts_of_both_gates() -> None:
    rng = np.random.default_rng(1)
    keys, values, later_keys, later_values = rng.normal(size=(4, N_TERMS, 2)).astype(np.float32)
    one, other = random_table(1), random_table(2)
    begin = FittedRows(one.rows, CachedGate(keys, values))
    mixed = begin.mixed(FittedRows(other.rows, CachedGate(later_keys, later_values)), 0.25)
    assert mixed.gate is not None
    np.testing.assert_allclose(mixed.rows, 0.75 * one.rows + 0.25 * other.rows, atol=1e-6)
    np.testing.assert_allclose(mixed.gate.keys, 0.75 * keys + 0.25 * later_keys, atol=1e-6)
    np.testing.assert_allclose(mixed.gate.values, 0.75 * values + 0.25 * later_values, atol=1e-6)
    added = one.mixed(FittedRows(other.rows, CachedGate(later_keys, later_values)), 0.25)
    assert added.gate is not None
    np.testing.assert_allclose(added.gate.keys, 0.25 * later_keys, atol=1e-6)  # without a gate all weights are 1
    np.testing.assert_array_equal(added.gate.values, later_values)
    assert one.mixed(other, 0.25).gate is None


def test_the_rows_are_those_of_an_index(tmp_path: Path) -> None:
    contract = word_contract(word_weight=0.4, sparse=None)
    folder = write_folder(tmp_path / "q", contract, {"": {"embeddings": word_table()}})
    encoder = CachedQueryEncoder.load(folder)
    rng = np.random.default_rng(2)
    documents = [Document(f"d{i}", " ".join(rng.choice(WORDS[1:], size=3 * i)), WORDS[1 + i % 5]) for i in range(30)]
    dense = unit(rng.normal(size=(30, DIM))).astype(np.float16)
    words = own_words.own_words(documents, contract, encoder.tokenizer, None, seed=0)
    assert words is not None
    searched = words.searched(FittedRows(word_table().astype(np.float32)), dense.astype(np.float32))
    np.testing.assert_allclose(searched, with_word_vectors(dense, documents, encoder, 0.4), atol=2e-3)


def test_words_of_a_large_collection_are_drawn_from_the_seed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(own_words, "MAX_DOCUMENTS", 7)
    contract = word_contract(word_weight=0.4, sparse=None)
    folder = write_folder(tmp_path / "q", contract, {"": {"embeddings": word_table()}})
    tokenizer = TextTokenizer.from_file(folder / "tokenizer.json")
    documents = [Document(f"d{i}", WORDS[1 + i % 5]) for i in range(20)]
    drawn = [own_words.own_words(documents, contract, tokenizer, None, seed=seed) for seed in (0, 0, 1)]
    places = [words.documents.tolist() for words in drawn if words is not None]
    assert places[0] == places[1] != places[2]
    assert all(len(positions) == 7 and positions == sorted({*positions}) for positions in places)
    for words in filter(None, drawn):
        texts = [tokenizer.term_ids([documents[at].text]).term_ids.tolist() for at in words.documents]
        assert [words.whole.row(at).tolist() for at in range(7)] == texts
    for without in (
        dataclasses.replace(contract, word_weight=0.0),
        dataclasses.replace(contract, dense=DenseHead(similarity="dot")),
    ):
        assert own_words.own_words(documents, without, tokenizer, None, seed=0) is None
    assert own_words.own_words([], contract, tokenizer, None, seed=0) is None


def test_a_fit_keeps_the_weight_of_words_of_its_start(tmp_path: Path) -> None:
    teacher = write_sentence_transformer(tmp_path)
    rng, corpus, fit = np.random.default_rng(0), tmp_path / "c.jsonl", FitConfig(steps=5, batch_size=16, candidates=20)
    texts = [" ".join(rng.choice(["river", "stone", "cloud", "engine", "violin"], size=9)) for _ in range(60)]
    corpus.write_text("\n".join(json.dumps({"_id": f"d{i}", "text": text}) for i, text in enumerate(texts)))
    first = distill(teacher, [corpus], out=tmp_path / "first", options=DistillationOptions(spans=600, fit=fit))
    assert Contract.load(first).word_weight == 0
    encoder = first / "query-encoder"
    dataclasses.replace(Contract.load(encoder), word_weight=0.3).save(encoder)
    options = DistillationOptions(spans=600, fit=fit, start=encoder)
    second = distill(teacher, [corpus], out=tmp_path / "second", options=options)
    assert [Contract.load(folder).word_weight for folder in (second, second / "query-encoder")] == [0.3, 0.3]
