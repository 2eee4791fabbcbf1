"""Dense rows with the light vector of documents' words, against the definition written as a loop over tokens."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from lightir import Index, IndexOptions, IndexWriter, Searcher, SearchOptions
from lightir.cli import main
from lightir.contract import Contract, DenseHead
from lightir.errors import FormatError, InvalidInput
from lightir.files import read_json
from lightir.index import build_index
from lightir.pending import WorkOptions, work
from lightir.query import CachedQueryEncoder
from lightir.shards import Shard, VectorsWriter
from lightir.types import Document
from pending_documents import FakeEncoder
from small_collections import DIM, WORDS, word_contract, word_table, write_folder

DENSE_ONLY = {"sparse": None}


def encoder_folder(folder: Path, *, weight: float = 0.0, seed: int = 0) -> Path:
    contract = word_contract(word_weight=weight, **DENSE_ONLY)
    return write_folder(folder, contract, {"": {"embeddings": word_table(seed)}})


def unit(row: Sequence[float]) -> list[float]:
    length = math.sqrt(sum(value * value for value in row))
    return [value / length if length else 0.0 for value in row]


def light(words: Sequence[str], table: np.ndarray) -> list[float]:
    """The mean of the rows of known words, of length 1."""
    known = [WORDS.index(word) for word in words if word in WORDS[1:]]
    return unit([sum(float(table[term][column]) for term in known) for column in range(DIM)])


def expected_row(row: Sequence[float], document: Document, table: np.ndarray, weight: float) -> list[float]:
    """normalize(d + w * normalize(e(first 32 words) + 0.3 * e(text)))."""
    words = f"{document.title} {document.text}".split()
    first, whole = light(words[:32], table), light(words, table)
    own = unit([one + 0.3 * other for one, other in zip(first, whole, strict=True)])
    return unit([float(value) + weight * other for value, other in zip(row, own, strict=True)])


def rows_of(index: Index) -> dict[str, list[float]]:
    """Return the dense row of each encoded document, as the index stores it."""
    rows = {}
    for live in index.view.segments:
        stored = live.segment.dense
        for row in live.places.tolist():
            if stored is not None and not live.segment.pending[row]:
                scale = 1.0 if stored[1] is None else float(stored[1][row])
                rows[live.segment.doc_ids[row]] = (stored[0][row].astype(np.float32) * scale).tolist()
    return rows


TEXTS = st.lists(st.sampled_from([*WORDS[1:], "zebra"]), max_size=60).map(" ".join)


@given(
    texts=st.lists(st.tuples(st.sampled_from(["", "cat", "the dog"]), TEXTS), min_size=1, max_size=6),
    weight=st.sampled_from([0.05, 0.3, 1.0]),
    dtype=st.sampled_from(["fp16", "int8"]),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_rows_are_those_of_the_definition_however_documents_come(
    tmp_path_factory: pytest.TempPathFactory,
    texts: list[tuple[str, str]],
    weight: float,
    dtype: str,
    seed: int,
) -> None:
    folder = tmp_path_factory.mktemp("word_weight")
    encoder = encoder_folder(folder / "q", seed=seed)
    documents = [Document(f"d{i}", text, title) for i, (title, text) in enumerate(texts)]
    random = np.random.default_rng(seed).standard_normal((len(documents), DIM))
    dense = np.array([unit(row) for row in random.tolist()]).astype(np.float16)
    expected = {
        document.doc_id: expected_row(row, document, word_table(seed), weight)
        for document, row in zip(documents, dense.tolist(), strict=True)
    }
    options = IndexOptions(word_weight=weight, dense_dtype=dtype)  # type: ignore[arg-type]
    contract = word_contract(**DENSE_ONLY)
    build_index(
        [Shard(documents, dense, None)], folder / "built", options=options, query_encoder=encoder, progress=False
    )
    with IndexWriter.create(folder / "added", options=options, contract=contract, query_encoder=encoder) as writer:
        writer.add(documents, dense=dense)
    with IndexWriter.create(folder / "late", options=options, contract=contract, query_encoder=encoder) as writer:
        writer.add(documents)
    with IndexWriter.open(folder / "late") as writer:
        assert writer.set_vectors(documents, dense=dense) == []
    for name in ("built", "added", "late"):
        with Index.open(folder / name) as index:
            rows = rows_of(index)
            assert rows.keys() == expected.keys()
            for doc_id, row in rows.items():
                assert row == pytest.approx(expected[doc_id], abs=0.01 if dtype == "int8" else 0.001)


def shard_of(n: int = 4) -> Shard:
    documents = [Document(f"d{i}", f"{WORDS[1 + i % 7]} runs") for i in range(n)]
    rows = np.eye(DIM, dtype=np.float16)[np.arange(n) % DIM]
    return Shard(documents, rows, None)


def test_the_weight_is_the_models_unless_another_is_given(tmp_path: Path) -> None:
    encoder = encoder_folder(tmp_path / "q", weight=0.4)
    for name, given_weight, stored in (("default", None, 0.4), ("off", 0.0, None), ("other", 0.2, 0.2)):
        info = build_index(
            [shard_of()],
            tmp_path / name,
            options=IndexOptions(word_weight=given_weight),
            query_encoder=encoder,
            progress=False,
        )
        assert info.word_weight == stored
    with Index.open(tmp_path / "off") as off, Index.open(tmp_path / "default") as default:
        assert rows_of(off) == dict(zip(["d0", "d1", "d2", "d3"], np.eye(4).tolist(), strict=True))
        assert rows_of(default) != rows_of(off)
        options = SearchOptions(mode="dense")
        shown = Searcher(default).search(["cat"], 4, options)["0"]
        row = CachedQueryEncoder.load(encoder).encode(["cat"]).dense
        assert row is not None
        best = {doc_id: float(np.dot(row[0], values)) for doc_id, values in rows_of(default).items()}
        assert shown.scores == pytest.approx([best[doc_id] for doc_id in shown.doc_ids], abs=1e-3)


def test_the_weight_is_no_part_of_the_fingerprints() -> None:
    plain, leading = word_contract(), word_contract(word_weight=0.3)
    assert plain.fingerprint == leading.fingerprint
    assert plain.document_fingerprint == leading.document_fingerprint


@pytest.mark.parametrize("weight", [-0.1, 1.5, float("nan")])
def test_impossible_weights_are_refused(weight: float) -> None:
    with pytest.raises(InvalidInput, match=r"expected 0 \(off\) to 1"):
        IndexOptions(word_weight=weight)
    with pytest.raises(InvalidInput, match=r"expected 0 \(off\) to 1"):
        word_contract(word_weight=weight)


def test_a_damaged_weight_in_a_contract_is_refused(tmp_path: Path) -> None:
    word_contract(word_weight=0.3).save(tmp_path)
    content = read_json(tmp_path / "lightir.json")
    (tmp_path / "lightir.json").write_text(json.dumps({**content, "word_weight": 7}))
    with pytest.raises(FormatError, match="word_weight is 7"):
        Contract.load(tmp_path)


def test_a_weight_without_a_table_is_refused(tmp_path: Path) -> None:
    contract = word_contract(**DENSE_ONLY)
    for name, given_contract in (
        ("no table", contract),
        ("dot", dataclasses.replace(contract, dense=DenseHead(similarity="dot"))),
    ):
        with pytest.raises(InvalidInput, match="no query encoder with dense rows"):
            build_index(
                [shard_of()],
                tmp_path / name,
                options=IndexOptions(word_weight=0.3),
                contract=given_contract,
                progress=False,
            )
        assert not (tmp_path / name).exists()


def test_the_worker_makes_the_rows_that_a_build_makes(tmp_path: Path) -> None:
    encoder = encoder_folder(tmp_path / "q", weight=0.3)
    contract = word_contract(word_weight=0.3, **DENSE_ONLY)
    documents = [Document(f"d{i}", f"{WORDS[1 + i]} {'the ' * i}") for i in range(5)]

    class DenseAlone(FakeEncoder):
        def encode(self, documents: Sequence[Document]) -> Shard:
            return dataclasses.replace(super().encode(documents), sparse=None)

    with IndexWriter.create(tmp_path / "late", contract=contract, query_encoder=encoder) as writer:
        writer.add(documents)
    work(tmp_path / "late", DenseAlone(contract=contract), WorkOptions(once=True), progress=False)
    shard = DenseAlone(contract=contract).encode(documents)
    build_index([shard], tmp_path / "built", contract=contract, query_encoder=encoder, progress=False)
    with Index.open(tmp_path / "late") as late, Index.open(tmp_path / "built") as built:
        assert rows_of(late) == rows_of(built)
        assert len(rows_of(late)) == 5


def test_the_command_takes_a_weight(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    encoder = encoder_folder(tmp_path / "q", weight=0.3)
    contract = word_contract(**DENSE_ONLY)
    with VectorsWriter(tmp_path / "vectors", contract) as writer:
        writer.add(shard_of())
        writer.finish()
    command = ["index", str(tmp_path / "vectors"), "--query-encoder", str(encoder), "--json"]
    for extra, weight in (([], 0.3), (["--word-weight", "0"], None), (["--word-weight", "0.1"], 0.1)):
        out = str(tmp_path / f"index{weight}")
        assert main([*command, "-o", out, *extra]) == 0
        assert json.loads(capsys.readouterr().out)["word_weight"] == weight
        assert main(["info", out]) == 0
        (shown,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("word_weight ")]
        assert shown.split() == ["word_weight", "-" if weight is None else str(weight)]
    assert main([*command, "-o", str(tmp_path / "bad"), "--word-weight", "2"]) == 1
    assert "expected 0 (off) to 1" in capsys.readouterr().err
