"""Starting from a fitted table: the same rows, a better fit, and never a worse table than the start."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from lightir.cli import main
from lightir.contract import Contract
from lightir.encode.query_encoder import QueryEncoderArrays, QueryTable, write_query_encoder
from lightir.errors import ContractMismatch, InvalidInput, NotFound
from lightir.files import read_json
from lightir.query import CachedQueryEncoder
from lightir.query.tables import CachedTable
from lightir.text import TextTokenizer
from lightir.train.distill import held_out, start
from lightir.train.distill.distillation import DistillationOptions, distill, start_with_bigrams
from lightir.train.distill.fit_config import FitConfig
from lightir.train.distill.fitted_rows import FittedRows
from lightir.train.distill.held_out import SPAN_MIXTURES, FitData, fit_and_compare, held_out_rows, shared_best
from lightir.train.distill.start import StartTable, fitted_rows
from lightir.train.distill.table_fit import ridge_table, with_bigrams
from lightir.train.distill.teacher import load_teacher
from lightir.vectors import Ragged
from tiny_models import write_sentence_transformer

WORDS = ["river", "stone", "cloud", "engine", "violin", "harbor", "planet", "copper"]
FIT = FitConfig(steps=30, batch_size=16, candidates=20)


def write_corpus(path: Path, words: Sequence[str], seed: int) -> Path:
    rng = np.random.default_rng(seed)
    lines = [json.dumps({"_id": f"d{i}", "text": " ".join(rng.choice(words, size=9))}) for i in range(60)]
    path.write_text("\n".join(lines))
    return path


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sentence_transformer(tmp_path_factory.mktemp("teacher"))


@pytest.fixture(scope="module")
def first(teacher: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose table was fitted to a broad corpus."""
    folder = tmp_path_factory.mktemp("first")
    corpus = write_corpus(folder / "broad.jsonl", WORDS, 0)
    return distill(teacher, [corpus], out=folder / "m", options=DistillationOptions(spans=600, fit=FIT))


def embeddings(model: Path) -> np.ndarray:
    table = next(iter(CachedQueryEncoder.load(model).tables.values()))
    assert table.scales is not None
    return table.embeddings.astype(np.float32) * table.scales[:, None]


def rows_of(address: Path | str, teacher: Path, model: Path) -> StartTable | None:
    encoder = CachedQueryEncoder.load(model)
    contract = Contract.load(model)
    return fitted_rows(address, teacher, contract, encoder.contract.query, encoder.tokenizer.hash)


@pytest.mark.parametrize("dtype", ["int8", "fp16", "fp32"])
def test_the_start_is_the_stored_table(dtype: str, first: Path, tmp_path: Path) -> None:
    rows = np.random.default_rng(1).normal(size=embeddings(first).shape).astype(np.float32)
    encoder = CachedQueryEncoder.load(first)
    arrays = QueryEncoderArrays([QueryTable("", "", rows)], None)
    tokenizer = TextTokenizer.from_file(first / "query-encoder" / "tokenizer.json")
    write_query_encoder(tmp_path / "q", encoder.contract, tokenizer, arrays, dtype=dtype)  # type: ignore[arg-type]
    given = rows_of(tmp_path / "q", first, first)
    assert given is not None
    tolerance = {"int8": 0.02, "fp16": 2e-3, "fp32": 0}[dtype]
    np.testing.assert_allclose(given.rows.rows, rows, atol=tolerance)
    assert given.rows.rows.dtype == np.float32


def test_rows_of_bfloat16_are_widened() -> None:
    rows = np.array([[1.5, -2.0], [0.0, 3.25]], np.float32)
    bits = (rows.view(np.uint32) >> 16).astype(np.uint16)
    np.testing.assert_array_equal(CachedTable(bits).float_rows(), rows)


def test_a_fitted_teacher_is_the_start_and_a_plain_one_takes_an_installed_model_of_the_same_encoder(
    teacher: Path, first: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = rows_of("auto", first, first)
    assert own is not None
    assert own.address == str(first)
    np.testing.assert_array_equal(own.rows.rows, embeddings(first))
    monkeypatch.setattr(start, "shipped_models", dict)
    assert rows_of("auto", teacher, first) is None
    monkeypatch.setattr(start, "shipped_models", lambda: {"installed": first})
    installed = rows_of("auto", teacher, first)
    assert installed is not None
    assert installed.address == "installed"
    assert rows_of("terms", first, first) is None


def test_a_table_that_does_not_fit_is_refused_if_it_is_named(teacher: Path, first: Path, tmp_path: Path) -> None:
    encoder = CachedQueryEncoder.load(first)
    query = dataclasses.replace(encoder.contract.query, lower_case=not encoder.contract.query.lower_case)
    with pytest.raises(InvalidInput, match="its queries have another policy"):
        fitted_rows(first, teacher, encoder.contract, query, encoder.tokenizer.hash)
    with pytest.raises(InvalidInput, match="its tokenizer is another"):
        fitted_rows(first, teacher, encoder.contract, encoder.contract.query, "0" * 16)
    other = dataclasses.replace(encoder.contract, document=dataclasses.replace(encoder.contract.document, max_tokens=7))
    with pytest.raises(ContractMismatch):
        fitted_rows(first, teacher, other, encoder.contract.query, encoder.tokenizer.hash)
    with pytest.raises(NotFound):
        fitted_rows(tmp_path / "none", teacher, encoder.contract, encoder.contract.query, encoder.tokenizer.hash)


def test_a_fit_starts_from_bigrams_and_a_gate_too(teacher: Path, first: Path, tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "c.jsonl", WORDS, 0)
    fit = dataclasses.replace(FIT, bigrams=5, gate=2)
    both = distill(teacher, [corpus], out=tmp_path / "both", options=DistillationOptions(spans=600, fit=fit))
    encoder = CachedQueryEncoder.load(both)
    assert encoder.bigrams is not None
    assert encoder.gate is not None
    assert (len(encoder.bigrams.bigrams), encoder.gate.keys.shape[1]) == (5, 2)
    given = rows_of(both, teacher, first)
    assert given is not None
    assert given.bigrams is not None
    np.testing.assert_array_equal(given.bigrams.pairs, encoder.bigrams.bigrams.pairs)
    query = "river stone cloud engine violin harbor"
    terms = encoder.tokenizer.term_ids([query])
    sums = given.rows.sums(with_bigrams(terms, given.bigrams, vocab_size=encoder.tokenizer.vocab_size))
    dense = encoder.encode([query]).dense
    assert dense is not None
    np.testing.assert_allclose(sums / np.linalg.norm(sums), dense, atol=1e-5)
    again = distill(both, [corpus], out=tmp_path / "again", options=DistillationOptions(spans=600, fit=FIT))
    assert read_json(again / "distillation.json")["start"] == str(both)
    assert Contract.load(again).query.bigrams == Contract.load(both).query.bigrams
    with pytest.raises(InvalidInput, match="has rows for 5 pairs of terms already"):
        distill(both, [corpus], out=tmp_path / "no", options=DistillationOptions(spans=600, fit=fit))


def seen_part(queries: Ragged, targets: np.ndarray, unseen: np.ndarray) -> tuple[Ragged, np.ndarray]:
    seen = [row for row in range(len(queries)) if row not in unseen]
    return Ragged.from_lists([queries.row(row).tolist() for row in seen]), targets[seen]


def test_held_out_queries_take_no_part_in_the_choice_of_bigrams() -> None:
    rng = np.random.default_rng(8)
    queries = Ragged.from_lists([rng.integers(0, 9, size=6).tolist() for _ in range(80)])
    targets = rng.normal(size=(80, 4)).astype(np.float32)
    begin = StartTable("terms", FittedRows(rng.normal(size=(9, 4)).astype(np.float32)))
    unseen, fit = np.arange(0, 80, 4), FitConfig(bigrams=6)
    chosen = []
    for factor in (1, -50):
        changed = targets.copy()
        changed[unseen] *= factor
        made, _ = start_with_bigrams(begin, queries, changed, fit, fitted_start=False, unseen=unseen)
        assert made.bigrams is not None
        chosen.append(made.bigrams.pairs.tolist())
        assert made.ridged
        table = ridge_table(begin.rows, *seen_part(queries, changed, unseen), fit)
        np.testing.assert_array_equal(made.rows.rows, table.with_zeros(6).rows)
    assert chosen[0] == chosen[1]
    plain, _ = start_with_bigrams(
        begin, queries, targets, dataclasses.replace(fit, steps=0), fitted_start=False, unseen=unseen
    )
    np.testing.assert_array_equal(plain.rows.rows, begin.rows.with_zeros(6).rows)  # the ridge is still to come
    assert not plain.ridged


def test_ridge_from_a_fitted_table_scales_it_and_adds_the_residual() -> None:
    """min over D of |A D - (T - c A S)|^2 + ridge |D|^2, where c minimizes |c A S - T|^2."""
    rng = np.random.default_rng(3)
    queries = Ragged.from_lists([rng.integers(0, 20, size=rng.integers(1, 6)).tolist() for _ in range(150)])
    table, targets = rng.normal(size=(30, 5)), rng.normal(size=(150, 5)).astype(np.float32)
    matrix = np.zeros((150, 30))
    for row in range(150):
        for term in queries.row(row):
            matrix[row, term] += 1 / len(queries.row(row))
    means = matrix @ table
    scale = (means * targets).sum() / (means * means).sum()
    residual = np.linalg.solve(
        matrix.T @ matrix + 0.1 * np.eye(30), matrix.T @ (targets.astype(np.float64) - scale * means)
    )
    config = FitConfig(ridge=0.1, ridge_iterations=200)
    fitted = ridge_table(FittedRows(table.astype(np.float32)), queries, targets, config, fitted_start=True).rows
    np.testing.assert_allclose(fitted, scale * table + residual, atol=1e-4)
    np.testing.assert_allclose(fitted[20:], scale * table[20:], atol=1e-5)  # terms that no query has


def random_data(n: int = 200) -> FitData:
    rng = np.random.default_rng(5)
    queries = Ragged.from_lists([rng.integers(0, 30, size=rng.integers(1, 6)).tolist() for _ in range(n)])

    def unit(*shape: int) -> np.ndarray:
        rows = rng.normal(size=shape)
        return (rows / np.linalg.norm(rows, axis=-1, keepdims=True)).astype(np.float32)

    return FitData(queries, unit(n, 6), unit(40, 6), Ragged.from_lists([[]] * n))


def test_the_shared_best_documents_are_counted_query_by_query() -> None:
    data, table = random_data(), np.random.default_rng(6).normal(size=(30, 6)).astype(np.float32)
    shared = []
    for row in range(len(data.queries)):
        light = table[data.queries.row(row)].mean(axis=0)
        own = sorted(range(40), key=lambda doc: (-float(light @ data.documents[doc]), doc))[:10]
        teachers = sorted(range(40), key=lambda doc: (-float(data.targets[row] @ data.documents[doc]), doc))[:10]
        shared.append(len({*own} & {*teachers}) / 10)
    assert shared_best(FittedRows(table), data) == pytest.approx(np.mean(shared))


def test_a_start_that_the_fit_does_not_improve_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    data = random_data(1000)
    seen: list[FitData] = []

    def spoil(begin: StartTable, data: FitData, config: FitConfig, fitted_start: bool) -> FittedRows:
        seen.append(data)
        return FittedRows(-begin.rows.rows)

    monkeypatch.setattr(held_out, "_fitted", spoil)
    unseen = held_out_rows(data.queries, FIT.seed)
    assert len(unseen) == 50
    table = np.random.default_rng(7).normal(size=(30, 6)).astype(np.float32)
    better = max((FittedRows(table), FittedRows(-table)), key=lambda one: shared_best(one, data.take(unseen)))
    kept, report = fit_and_compare(StartTable("first", better), data, FIT, mixtures=(1.0,), unseen=unseen)
    assert report is not None
    assert kept is better
    assert (report.kept, report.queries) == ("start", 50)
    assert report.fitted < report.start
    np.testing.assert_array_equal(seen[0].targets, np.delete(data.targets, unseen, axis=0))
    kept, report = fit_and_compare(StartTable("terms", better), data, FIT, mixtures=None, unseen=unseen)
    assert report is not None
    np.testing.assert_array_equal(kept.rows, -better.rows)  # terms alone are no table to keep
    assert report.kept == "fitted"
    few = random_data(60)
    unseen = held_out_rows(few.queries, FIT.seed)
    assert fit_and_compare(StartTable("first", better), few, FIT, mixtures=(1.0,), unseen=unseen)[1] is None


def test_the_command_adapts_a_fitted_model_and_says_what_that_gave(
    first: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = write_corpus(tmp_path / "mine.jsonl", WORDS[:4], 9)
    command = ["distill", str(first), "--corpus", str(corpus), "--spans", "600", "--set", "steps=20"]
    assert main([*command, "-o", str(tmp_path / "m")]) == 0
    facts, error = read_json(tmp_path / "m" / "distillation.json"), capsys.readouterr().err
    report = facts["held_out"]
    assert facts["start"] == str(first)
    assert f"the table finds {report['fitted']:.0%} of the teacher's ten best documents; {first} found" in error
    assert (report["kept"] == "fitted") == (report["fitted"] >= report["start"])
    assert report["mixture"] in SPAN_MIXTURES
    mixed = f"the table is {report['mixture']:.0%} of the fit and {1 - report['mixture']:.0%} of the table of {first}"
    assert (mixed in error) == (report["kept"] == "fitted")
    assert main([*command, "--start", "terms", "-o", str(tmp_path / "n"), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["start"] == "terms"
    assert answer["held_out"]["kept"] == "fitted"
    few = ["distill", str(first), "--corpus", str(corpus), "--spans", "20", "--set", "steps=2"]
    assert main([*few, "-o", str(tmp_path / "few")]) == 0
    assert "too few queries to hold some out" in capsys.readouterr().err
    shutil.rmtree(tmp_path / "m")


def test_the_start_does_not_depend_on_the_folder_of_the_encoder(
    teacher: Path, first: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(teacher, tmp_path / "elsewhere")
    contract = load_teacher(tmp_path / "elsewhere").contract
    encoder = CachedQueryEncoder.load(first)
    monkeypatch.setattr(start, "shipped_models", lambda: {"installed": first})
    given = fitted_rows("auto", tmp_path / "elsewhere", contract, encoder.contract.query, encoder.tokenizer.hash)
    assert given is not None
    assert given.address == "installed"
