"""Computed sizes equal those of real indexes at two sizes, and the measurements equal those of the docs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from lightir.addresses import shipped_models
from lightir.cli.app import main
from lightir.contract import Contract
from lightir.errors import InvalidInput
from lightir.index import Index, IndexOptions, build_index
from lightir.index.index_options import DenseDtype
from lightir.index.sizing import SizedRows, Wishes, measurements, rows_like, rows_of_model, sizing
from lightir.shards import Shard
from lightir.types import Document
from small_collections import csr, word_contract

DOCS = Path(__file__).resolve().parents[2] / "docs"
TERMS, WIDTH, VOCABULARY = 60, 96, 500


def contract() -> Contract:
    return word_contract(vocab_size=VOCABULARY, dim=WIDTH)


def build(folder: Path, n: int, seed: int) -> Path:
    """An index of n documents of 100 words of a Zipf law, with dense vectors and TERMS sparse terms each."""
    rng = np.random.default_rng(seed)
    words = rng.zipf(1.3, (n, 100)) % 20_000
    documents = [Document(f"{seed}-{i}", " ".join(f"w{word}" for word in row)) for i, row in enumerate(words.tolist())]
    dense = rng.standard_normal((n, WIDTH)).astype(np.float16)
    terms = [dict.fromkeys(rng.choice(VOCABULARY, TERMS, replace=False).tolist(), 7) for _ in range(n)]
    sparse = csr(terms, vocab_size=VOCABULARY, dtype=np.uint8)
    options = IndexOptions(dense_dtype="int8", analyzer="words")
    build_index([Shard(documents, dense, sparse)], folder, contract=contract(), options=options, progress=False)
    return folder


@pytest.fixture(scope="module")
def sizes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    top = tmp_path_factory.mktemp("sizes")
    return build(top / "small", 1000, 1), build(top / "large", 6000, 2)


def test_an_index_has_the_bytes_that_are_computed_from_a_smaller_one(sizes: tuple[Path, Path]) -> None:
    small, large = sizes
    with Index.open(small) as index:
        rows = rows_like(index.view, None)
    figures = {figure.name: figure for figure in sizing(rows, Wishes(documents=6000))}
    with Index.open(large) as index:
        for part, n_bytes in index.info().bytes.items():
            # The dictionary of words grows more slowly than the documents.
            most = 1.4 if part == "tokens" else 1.1
            assert 0.95 * n_bytes <= figures[f"{part}_bytes"].value <= most * n_bytes, part
        n_bytes = sum(index.info().bytes.values())
        assert 0.95 * n_bytes <= figures["disk_bytes"].value <= 1.2 * n_bytes
    assert figures["disk_bytes"].basis == "measured"
    far = {figure.name: figure for figure in sizing(rows, Wishes(documents=10_001))}
    assert far["disk_bytes"].basis == far["tokens_bytes"].basis == "extrapolated"


def test_vectors_have_the_bytes_of_their_width(sizes: tuple[Path, Path]) -> None:
    rows = rows_of_model(contract(), tokens_per_document=100, dense_dtype="int8", sparse_terms=TERMS)
    with Index.open(sizes[1]) as index:
        n_bytes = index.info().bytes
    assert 6000 * rows.n_bytes["dense"] == pytest.approx(n_bytes["dense"], rel=0.02)
    assert 6000 * rows.n_bytes["sparse"] == pytest.approx(n_bytes["sparse"], rel=0.15)


def test_measured_collections_have_the_computed_bytes() -> None:
    for row in measurements()["disk"]["collections"]:
        rows = rows_of_model(None, tokens_per_document=row["tokens"] / row["documents"])
        for part in ("tokens", "store"):
            assert rows.n_bytes[part] == pytest.approx(row["whole"][part] / row["whole"]["rows"], rel=0.2), row["name"]


def test_search_times_are_those_of_the_stored_results() -> None:
    for size in measurements()["search"]["sizes"]:
        text = (DOCS / "results" / f"engine-{size['documents']}.md").read_text()
        for branch, row in (("sparse", "sparse"), ("tokens", "BM25")):
            section = text[text.index(f"\n{row}, ") :]
            match = re.search(r"\| lightir, short \| 10 \| ([\d.]+) ", section)
            assert match is not None
            assert float(match[1]) == size[f"{branch}_ms"]
        match = re.search(r"\| lightir int8 \| 10 \| ([\d.]+) ", text)
        assert match is not None
        assert float(match[1]) == size["dense_int8_256_ms"]
    million = measurements()["search"]["sizes"][-1]["dense_int8_256_ms"]
    assert measurements()["search"]["scanned_gb_per_s"] == pytest.approx(1e6 * 256 / million / 1e6, rel=0.01)


def test_shards_divide_the_time_of_a_query_and_not_its_work() -> None:
    rows = SizedRows(1.0, 100, {"dense": 768.0, "tokens": 900.0, "store": 1000.0}, 768.0, 10**9, "x")
    alone = {f.name: f.value for f in sizing(rows, Wishes(documents=10**8))}
    shared = {f.name: f.value for f in sizing(rows, Wishes(documents=10**8, memory_gb=20))}
    assert shared["shards"] == 9  # 166.8 GB of arrays
    assert shared["query_ms"] < alone["query_ms"] / 8
    assert shared["cpu_ms_per_query"] == pytest.approx(alone["cpu_ms_per_query"], rel=0.01)
    assert alone["memory_bytes"] == 10**8 * 1668
    assert alone["disk_while_merging_bytes"] == 2 * 10**8 * 2668


def test_hours_and_prices() -> None:
    rows = SizedRows(2.0, 100, {"tokens": 1.0}, 0.0, 10**9, "x")
    wishes = Wishes(
        documents=1_800_000,
        branches=("tokens",),
        tokens_per_s={"gpu": 1000.0},
        hardware_hour_price=3.0,
        gb_month_price=1000.0,
    )
    figures = {figure.name: figure.value for figure in sizing(rows, wishes)}
    assert figures["encoding_hours_gpu"] == 100
    assert figures["encoding_price_gpu"] == 300
    assert figures["disk_price_per_month"] == pytest.approx(3.6)


def test_a_sparse_head_without_a_limit_needs_a_number_of_terms() -> None:
    unlimited = contract()
    object.__setattr__(unlimited.sparse, "top_k", 0)
    with pytest.raises(InvalidInput, match="--sparse-terms"):
        rows_of_model(unlimited, tokens_per_document=100)


def test_the_command(sizes: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["size", "--documents", "1e6", "--like", str(sizes[1]), "--json", "--machine-memory", "0.1"]) == 0
    answer = json.loads(capsys.readouterr().out)
    figures = {figure["name"]: figure for figure in answer["figures"]}
    assert answer["documents"] == figures["rows"]["value"] == 1_000_000
    assert figures["shards"]["value"] > 1
    assert main(["size", "--documents", "1e6", "--like", str(sizes[1]), "--passages"]) == 2
    assert main(["size", "--documents", "1e6", "--hardware", "abacus"]) == 1
    assert "--tokens-per-second" in capsys.readouterr().err


@pytest.mark.skipif("minilm" not in shipped_models(), reason="the package lightir-minilm is not installed")
def test_the_page_has_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    page = (DOCS / "scale.md").read_text()
    match = re.search(r"```\n\$ lightir (size [^\n]*)\n(.*?)```", page, re.DOTALL)
    assert match is not None
    assert main(match[1].split()) == 0
    assert capsys.readouterr().out == match[2]


@pytest.mark.parametrize(("documents", "bytes_per_row"), [(65_536, 192), (65_537, 192 + 28)])
def test_a_large_index_has_codes(documents: int, bytes_per_row: int) -> None:
    """Codes of 96 columns are 24 bytes, a scale and an error bound."""
    rows = rows_of_model(contract(), tokens_per_document=100, sparse_terms=TERMS)
    figures = {figure.name: figure.value for figure in sizing(rows, Wishes(documents=documents))}
    assert figures["dense_bytes"] == documents * bytes_per_row


@pytest.mark.parametrize("dense_dtype", ["fp16", "int8", "fp16+int8"])
def test_a_scan_of_a_large_index_reads_codes(dense_dtype: DenseDtype) -> None:
    """Below 65,537 rows the time is that of the rows' bytes; above, that of codes, which is the same for all types."""
    rows = rows_of_model(contract(), tokens_per_document=100, dense_dtype=dense_dtype, sparse_terms=TERMS)
    search = measurements()["search"]
    bytes_per_ms = search["scanned_gb_per_s"] * 1e6
    for documents, read in (
        (65_536, WIDTH * (2 if dense_dtype == "fp16" else 1)),
        (1_000_000, WIDTH * search["coded_share_of_int8"]),
    ):
        figures = {f.name: f.value for f in sizing(rows, Wishes(documents=documents, branches=("dense",)))}
        assert figures["query_ms"] - search["request_ms"] == pytest.approx(documents * read / bytes_per_ms)


def test_the_share_of_a_coded_scan_is_the_most_that_was_measured() -> None:
    page = (DOCS / "scale.md").read_text()
    line = next(line for line in page.splitlines() if line.startswith("| dense query, exact, k=200: rows alone; codes"))
    match = re.search(r"ratios ([\d.]+), ([\d.]+) and ([\d.]+)", line)
    assert match is not None
    assert max(map(float, match.groups())) == measurements()["search"]["coded_share_of_int8"]
