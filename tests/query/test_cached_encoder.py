"""A query-encoder folder produces the vectors of its tables and contract, and refuses files that do not fit."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from lightir.addresses import resolve_query_encoder
from lightir.contract import Contract, DenseHead
from lightir.errors import ContractMismatch, FormatError, InvalidInput, LightirError, NotFound
from lightir.files import read_json, write_json
from lightir.query import CachedQueryEncoder, CachedTable
from lightir.query.encoder_files import map_safetensors
from small_collections import DIM, VOCAB_SIZE, WORDS, word_contract, word_table, word_tokenizer, write_folder

QUERIES = ["the cat the cat", "dog", "", "zebra", "Well FISH"]
TERMS = [[6, 1, 6, 1], [2], [], [], [7, 3]]


def expected_dense(table: np.ndarray, dim: int = DIM) -> np.ndarray:
    rows = np.zeros((len(TERMS), dim))
    for i, terms in enumerate(TERMS):
        if terms:
            mean = table[terms, :dim].astype(np.float64).mean(axis=0)
            rows[i] = mean / np.linalg.norm(mean)
    return rows


def load(tmp_path: Path, **options: Any) -> CachedQueryEncoder:
    tables = {"": {"embeddings": word_table()}}
    return CachedQueryEncoder.load(write_folder(tmp_path / "q", word_contract(), tables), **options)


def test_dense_is_the_normalised_mean_of_rows_and_sparse_the_counts(tmp_path: Path) -> None:
    vectors = load(tmp_path).encode(QUERIES)
    assert [vectors.term_ids.row(i).tolist() for i in range(5)] == TERMS
    assert vectors.dense is not None
    assert vectors.sparse is not None
    np.testing.assert_allclose(vectors.dense, expected_dense(word_table()), atol=1e-6)
    assert [dict(zip(*map(np.ndarray.tolist, vectors.sparse.row(i)), strict=True)) for i in range(5)] == [
        {1: 2.0, 6: 2.0},
        {2: 1.0},
        {},
        {},
        {3: 1.0, 7: 1.0},
    ]
    assert len(load(tmp_path / "again").encode([])) == 0


def test_a_batch_is_the_same_as_its_queries_one_by_one_with_any_number_of_threads(tmp_path: Path) -> None:
    together = load(tmp_path, threads=3).encode(QUERIES).dense
    encoder = load(tmp_path / "again")
    assert together is not None
    np.testing.assert_array_equal(together, np.concatenate([encoder.encode([q]).dense for q in QUERIES]))


def test_each_task_has_its_table_and_the_first_is_the_default(tmp_path: Path) -> None:
    tables = {name: {"embeddings": word_table(i)} for i, name in enumerate(["first", "second"])}
    encoder = CachedQueryEncoder.load(write_folder(tmp_path / "q", word_contract(), tables))
    assert encoder.tasks == ("first", "second")
    np.testing.assert_array_equal(encoder.encode(QUERIES).dense, encoder.encode(QUERIES, task="first").dense)
    np.testing.assert_allclose(encoder.encode(QUERIES, task="second").dense, expected_dense(word_table(1)), atol=1e-6)
    with pytest.raises(NotFound, match=r"'third'.*first"):
        encoder.encode(QUERIES, task="third")


def test_int8_rows_are_multiplied_by_their_scales(tmp_path: Path) -> None:
    rows = np.arange(-16, 16, dtype=np.int8).reshape(VOCAB_SIZE, DIM)
    scales = np.linspace(0.5, 2, VOCAB_SIZE, dtype=np.float32)
    tables = {"": {"embeddings": rows, "weights": scales}}
    encoder = CachedQueryEncoder.load(write_folder(tmp_path / "q", word_contract(), tables, dtype="int8"))
    np.testing.assert_allclose(encoder.encode(QUERIES).dense, expected_dense(rows * scales[:, None]), atol=1e-6)


def test_a_narrow_width_is_the_renormalised_prefix(tmp_path: Path) -> None:
    assert load(tmp_path / "all", dim=DIM).dim == DIM
    encoder = load(tmp_path, dim=2)
    assert encoder.dim == 2
    np.testing.assert_allclose(encoder.encode(QUERIES).dense, expected_dense(word_table(), 2), atol=1e-6)
    for dim in (0, 5):
        with pytest.raises(InvalidInput, match=f"dim is {dim}"):
            load(tmp_path / str(dim), dim=dim)


def test_idf_weights_multiply_the_counts(tmp_path: Path) -> None:
    contract = idf_contract()
    weights = np.arange(VOCAB_SIZE, dtype=np.float32) / 4
    folder = write_folder(tmp_path / "q", contract, {"": {"embeddings": word_table()}}, term_weights=weights)
    sparse = CachedQueryEncoder.load(folder).encode(["cat well cat"]).sparse
    assert sparse is not None
    assert sparse.row(0)[1].tolist() == [0.5, 1.75]
    (folder / "sparse.safetensors").unlink()
    with pytest.raises(NotFound, match=r"sparse\.safetensors"):
        CachedQueryEncoder.load(folder)


def test_a_branch_that_the_contract_lacks_is_none(tmp_path: Path) -> None:
    sparse_only = CachedQueryEncoder.load(write_folder(tmp_path / "s", word_contract(dense=None), {}))
    assert sparse_only.encode(["cat"]).dense is None
    assert sparse_only.dim is None
    contract = word_contract(sparse=None)
    dense_only = CachedQueryEncoder(contract, word_tokenizer(), tables={"": CachedTable(word_table())})
    assert dense_only.encode(["cat"]).sparse is None


def test_tables_are_memory_mapped(tmp_path: Path) -> None:
    rows = load(tmp_path).tables[""].embeddings
    assert not rows.flags.writeable
    base: Any = rows
    while isinstance(base, np.ndarray) and not isinstance(base, np.memmap):
        base = base.base
    assert isinstance(base, np.memmap)


@pytest.mark.parametrize(
    ("tables", "changes", "says"),
    [
        ({"": word_table()[:5]}, {}, f"5 rows.*{VOCAB_SIZE} terms"),
        ({"": word_table()}, {"dense": DenseHead(dims=(2,))}, "4 wide.*are 2"),
        ({"": word_table(), "b": word_table()[:, :2]}, {}, "'b' is 2 wide.*4"),
        ({}, {}, "0 tables, but the contract has a dense branch"),
        ({"": word_table()}, {"dense": None}, "1 tables, but the contract has no dense branch"),
    ],
)
def test_tables_that_do_not_fit_the_contract_are_refused(
    tables: dict[str, np.ndarray], changes: dict[str, Any], says: str
) -> None:
    with pytest.raises(LightirError, match=says):
        CachedQueryEncoder(
            word_contract(**changes),
            word_tokenizer(),
            tables={name: CachedTable(rows) for name, rows in tables.items()},
        )


@pytest.mark.parametrize("rows", [word_table(dtype=np.float64), word_table()[0], word_table().astype(np.int8)])
def test_tables_of_other_types_are_refused(rows: np.ndarray) -> None:
    with pytest.raises(InvalidInput, match=r"embeddings"):
        CachedTable(rows)


@pytest.mark.parametrize(
    "scales", [np.ones(5, np.float32), np.ones(VOCAB_SIZE, np.float64), np.ones((VOCAB_SIZE, 1), np.float32)]
)
def test_scales_are_one_float_a_row(scales: np.ndarray) -> None:
    with pytest.raises(InvalidInput, match=rf"scales are {scales.dtype} .*float32 of \({VOCAB_SIZE},\)"):
        CachedTable(word_table().astype(np.int8), scales)


def idf_contract() -> Contract:
    contract = word_contract()
    return dataclasses.replace(contract, query=dataclasses.replace(contract.query, term_weights="idf"))


@pytest.mark.parametrize("worst", [np.nan, np.inf, -0.5])
def test_term_weights_are_all_finite_and_not_negative(tmp_path: Path, worst: float) -> None:
    weights = np.ones(VOCAB_SIZE, dtype=np.float32)
    weights[3] = worst
    folder = write_folder(tmp_path / "q", idf_contract(), {"": {"embeddings": word_table()}}, term_weights=weights)
    with pytest.raises(InvalidInput, match="q: term weights must be finite"):
        CachedQueryEncoder.load(folder)


@pytest.mark.parametrize("weights", [np.ones(VOCAB_SIZE - 1, np.float32), np.ones(VOCAB_SIZE, np.float16)])
def test_term_weights_are_one_float_a_term(tmp_path: Path, weights: np.ndarray) -> None:
    folder = write_folder(tmp_path / "q", idf_contract(), {"": {"embeddings": word_table()}}, term_weights=weights)
    with pytest.raises(ContractMismatch, match=rf"term weights are {weights.dtype}.*\({VOCAB_SIZE},\)"):
        CachedQueryEncoder.load(folder)
    save_file({"weights": weights}, folder / "sparse.safetensors")
    with pytest.raises(FormatError, match=r"sparse\.safetensors holds .*expected the key 'term_weights'"):
        CachedQueryEncoder.load(folder)


def test_another_tokenizer_is_refused_with_both_hashes() -> None:
    contract = word_contract()
    other = dataclasses.replace(contract, backbone=dataclasses.replace(contract.backbone, tokenizer_hash="beef"))
    with pytest.raises(ContractMismatch, match=rf"{contract.backbone.tokenizer_hash}.*beef"):
        CachedQueryEncoder(other, word_tokenizer(), tables={"": CachedTable(word_table())})


def test_term_weights_must_be_the_vocabulary_s(tmp_path: Path) -> None:
    contract = word_contract()
    idf = dataclasses.replace(contract, query=dataclasses.replace(contract.query, term_weights="idf"))
    tables = {"": CachedTable(word_table())}
    ones = np.ones(VOCAB_SIZE, np.float32)
    for given, weights, says in [(contract, ones, "no term weights"), (idf, None, "stored"), (idf, ones[1:], "7"),
                                 (idf, -ones, "negative")]:  # fmt: skip
        with pytest.raises(LightirError, match=says):
            CachedQueryEncoder(given, word_tokenizer(), tables=tables, term_weights=weights)


@pytest.mark.parametrize(
    "damage",
    [
        "cut",
        "nonsense",
        "deep",
        "list",
        "no entry",
        "other key",
        "other dtype",
        "no scales",
        "says fp32",
        "version",
        "no list",
    ],
)
def test_damaged_folders_are_refused_by_file(tmp_path: Path, damage: str) -> None:
    folder = write_folder(tmp_path / "q", word_contract(), {"": {"embeddings": word_table()}})
    table, listing = folder / "model.safetensors", folder / "tables.json"
    content = read_json(listing)
    if damage == "cut":
        table.write_bytes(table.read_bytes()[:-1])
    elif damage == "nonsense":
        table.write_bytes(b"nonsense and more nonsense")
    elif damage in ("deep", "list", "no entry"):
        header = {"deep": b"[" * 100_000, "list": b"[]", "no entry": b'{"embeddings": 3}'}[damage]
        table.write_bytes(len(header).to_bytes(8, "little") + header)
    elif damage == "no scales":
        save_file({"embeddings": word_table().astype(np.int8)}, table)
    elif damage == "other key":
        save_file({"rows": word_table()}, table)
    elif damage == "other dtype":
        save_file({"embeddings": word_table().astype(np.int64)}, table)
    else:
        changes: dict[str, Any] = {"says fp32": {"dtype": "fp32"}, "version": {"format_version": 9}}.get(damage, {})
        write_json(listing, {**content, **changes} if changes else {"format_version": 1})
    file = "tables" if damage in ("version", "no list") else "model.safetensors"
    with pytest.raises(FormatError, match=file):
        CachedQueryEncoder.load(folder)


def test_a_table_must_be_in_its_folder(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "q", word_contract(), {"": {"embeddings": word_table()}})
    listing = folder / "tables.json"
    (tmp_path / "elsewhere.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    listing.write_text(listing.read_text().replace("model.safetensors", "../elsewhere.safetensors"))
    with pytest.raises(FormatError, match="plain name"):
        CachedQueryEncoder.load(folder)


def test_missing_files_are_named(tmp_path: Path) -> None:
    for name in ("lightir.json", "tokenizer.json", "tables.json", "model.safetensors"):
        folder = write_folder(tmp_path / name, word_contract(), {"": {"embeddings": word_table()}})
        (folder / name).unlink()
        with pytest.raises(NotFound, match=name):
            CachedQueryEncoder.load(folder)
    (tmp_path / "empty").touch()
    with pytest.raises(FormatError, match="empty"):
        map_safetensors(tmp_path / "empty")


def test_an_encoder_is_found_in_a_folder_or_a_shipped_model(tmp_path, monkeypatch) -> None:
    model = tmp_path / "model"
    write_folder(model / "query-encoder", word_contract(), {"own": {"embeddings": word_table()}})
    word_contract().save(model)
    assert CachedQueryEncoder.load(model).tasks == ("own",)
    monkeypatch.setattr("lightir.addresses.shipped_models", lambda: {"shipped": model})
    assert CachedQueryEncoder.load("shipped").tasks == ("own",)
    with pytest.raises(NotFound, match=r"nope is neither a folder nor a shipped model"):
        CachedQueryEncoder.load("nope")
    with pytest.raises(NotFound, match=r"org/model is neither a folder"):
        CachedQueryEncoder.load("org/model")
    with monkeypatch.context() as bare:
        bare.setattr("lightir.addresses.shipped_models", dict)
        with pytest.raises(
            NotFound, match=r"none; install one in a checkout with `pip install --no-deps packages/lightir-minilm`"
        ):
            CachedQueryEncoder.load("minilm")
    shutil.rmtree(model / "query-encoder")
    with pytest.raises(NotFound, match="lightir cache shipped"):
        resolve_query_encoder("shipped")


def test_written_query_encoders_are_read_back(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from lightir.encode import QueryEncoderArrays, QueryTable, write_query_encoder

    arrays = QueryEncoderArrays(
        [QueryTable(name, f"Find {name}", word_table(i, dtype=np.float32)) for i, name in enumerate("ab")]
    )
    contract = word_contract()
    for dtype, tolerance in (("fp32", 1e-6), ("fp16", 1e-3), ("int8", 2e-2)):
        write_query_encoder(tmp_path / dtype, contract, word_tokenizer(), arrays, dtype=dtype)  # type: ignore[arg-type]
        encoder = CachedQueryEncoder.load(tmp_path / dtype)
        assert encoder.tasks == ("a", "b")
        assert encoder.tables["b"].instruction == "Find b"
        assert encoder.document_fingerprint == contract.document_fingerprint
        for i, table in enumerate(arrays.tables):
            dense = encoder.encode(QUERIES, task="ab"[i]).dense
            np.testing.assert_allclose(dense, expected_dense(table.rows), atol=tolerance)


def test_surrogates_are_refused_and_long_queries_work(tmp_path: Path) -> None:
    encoder = load(tmp_path)
    with pytest.raises(InvalidInput, match="query 1"):
        encoder.encode(["cat", "\udc00"])
    long = encoder.encode([" ".join(WORDS[1:] * 2000)])
    assert long.term_ids.lengths.tolist() == [512]
