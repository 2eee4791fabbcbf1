"""Graphs over dense rows: they select candidates; scores and order are the exact scan's; no match is lost."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from factories import make_contract
from lightir import kernel
from lightir.errors import FormatError
from lightir.index import Index, IndexOptions, IndexWriter, build_index, change
from lightir.index import build as build_module
from lightir.index.segments import graph, segment_writer
from lightir.index.segments.graph import build_graph, graph_top_k, open_graph
from lightir.kernel.graph_reference import read_graph
from lightir.kernel.segments import ScannedRows, WalkCosts
from lightir.search import Searcher, SearchOptions
from lightir.search.branches import BranchSearch, EncodedQueries
from lightir.shards import Shard
from lightir.types import Document, Query
from small_collections import GivenVectors

DIM = 8
N = 300
COSTS = WalkCosts(24, 1)


@pytest.fixture
def small_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Build and search graphs for segments of any size."""
    monkeypatch.setattr(segment_writer, "LEAST_DOCUMENTS", 20)
    monkeypatch.setattr(graph, "CANDIDATE_COST", 1)
    monkeypatch.setattr(graph, "SEARCH_CANDIDATES", 24)


def unit_rows(n: int, seed: int, center: float = 0.0) -> npt.NDArray[np.float16]:
    values = np.random.default_rng(seed).standard_normal((n, DIM)) + center
    return (values / np.linalg.norm(values, axis=1, keepdims=True)).astype(np.float16)


def graphed(
    stored: npt.NDArray[Any], scales: npt.NDArray[np.float32] | None, wanted: npt.NDArray[np.bool_]
) -> ScannedRows:
    """Return rows with a graph over some of them."""
    data, facts = build_graph(stored, scales, wanted)
    return ScannedRows(stored, scales, graph=open_graph(data, (len(stored), DIM), facts))


def shard(dense: npt.NDArray[np.float16], first: int = 0) -> Shard:
    """Return documents d0000, d0001 and so on; n is their number modulo 10."""
    documents = [Document(f"d{i:04d}", f"text {i}", "", {"n": i % 10}) for i in range(first, first + len(dense))]
    return Shard(documents, dense, None)


def build(folder: Path, *shards: Shard, **options: Any) -> None:
    contract = make_contract(sparse=None)
    chosen = IndexOptions(**{"dense_graph": True, "analyzer": None, **options})
    build_index(shards, folder, contract=contract, options=chosen, progress=False)


def dense_top(index: Index, queries: npt.NDArray[np.float32], k: int, **wanted: Any) -> list[list[tuple[str, float]]]:
    """Return each query's k best documents with their scores."""
    view = index.view
    encoded = EncodedQueries(len(queries), queries, None, None)
    rankings = BranchSearch(view, encoded, matching=view.matching(wanted.get("filter"))).top("dense", k)
    return [list(zip(view.doc_ids(ranking.doc_ords), ranking.scores.tolist(), strict=True)) for ranking in rankings]


@pytest.mark.parametrize("dtype", ["fp16", "int8"])
@pytest.mark.parametrize("length", [1.0, 3.0])
@pytest.mark.usefixtures("small_graphs")
def test_scores_and_order_are_the_scan_s(dtype: str, length: float) -> None:
    stored, scales = unit_rows(N, 1) * np.float16(length), None
    if dtype == "int8":
        scales = np.full(N, 1 / 127, np.float32)
        stored = np.rint(stored.astype(np.float32) / length * 127).astype(np.int8)
    wanted = np.arange(N) % 7 != 0
    data, facts = build_graph(stored, scales, wanted)
    assert facts.documents == wanted.sum()
    assert facts.recall > 0.9
    assert facts.element == ("f16" if length == 3.0 and dtype == "fp16" else "i8")
    queries = unit_rows(20, 2).astype(np.float32)
    rows = ScannedRows(stored, scales, graph=open_graph(data, (N, DIM), facts))
    results = graph_top_k(rows, queries, 10, allowed=kernel.pack_bitmap(wanted), costs=COSTS)
    exact, _ = kernel.dense_top_k(stored, queries, k=10, scales=scales, allowed=kernel.pack_bitmap(wanted))
    for query, ranked, true in zip(queries, results, exact, strict=True):
        places, scores = ranked.doc_ords, ranked.scores
        assert wanted[places].all()
        np.testing.assert_array_equal(scores, kernel.dense_pair_scores(stored, places, query, scales=scales))
        assert sorted(zip(-scores, places, strict=True)) == list(zip(-scores, places, strict=True))
        assert len(set(places.tolist()) & set(true.tolist())) >= 7


def test_the_same_rows_give_the_same_bytes_with_any_number_of_threads() -> None:
    graphs = [build_graph(unit_rows(N, 1), None, np.ones(N, np.bool_), threads=threads)[0] for threads in (1, 3)]
    np.testing.assert_array_equal(*graphs)


def test_rows_of_length_1_become_bytes_and_others_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    """The vectors are made in pieces, of which one alone decides."""
    monkeypatch.setattr(graph, "ROWS_AT_ONCE", 7)
    stored = unit_rows(40, 1)
    data, facts = build_graph(stored, None, np.ones(40, np.bool_))
    wide = stored.astype(np.float64)
    expected = np.trunc(wide / np.linalg.norm(wide, axis=1, keepdims=True) * 127)
    assert facts.element == "i8"
    np.testing.assert_array_equal(read_graph(data, "int8").vectors, expected)
    stored[33] *= 2
    data, facts = build_graph(stored, None, np.ones(40, np.bool_))
    assert facts.element == "f16"
    np.testing.assert_array_equal(read_graph(data, "float16").vectors, stored)


def test_usearch_reads_the_graph_and_finds_nearly_what_the_kernel_finds() -> None:
    pytest.importorskip("usearch")
    from usearch.index import Index as PeerIndex

    stored = unit_rows(N, 1)
    data, facts = build_graph(stored, None, np.arange(N) % 3 > 0)
    peer = PeerIndex.restore(data.tobytes())
    queries = unit_rows(20, 2).astype(np.float32)
    rows = ScannedRows(stored, graph=open_graph(data, (N, DIM), facts))
    results = graph_top_k(rows, queries, 5, costs=WalkCosts(64, 1), allowed=kernel.pack_bitmap(np.arange(N) % 3 > 0))
    shared = [
        len({*ranked.doc_ords.tolist()} & {*peer.search(query, 5, exact=False).keys.tolist()})
        for query, ranked in zip(queries, results, strict=True)
    ]
    assert np.mean(shared) > 4.5


@pytest.mark.parametrize("n_allowed", [1, 9, 10, 11, 150])
@pytest.mark.usefixtures("small_graphs")
def test_k_rows_are_returned_if_k_are_allowed(n_allowed: int) -> None:
    stored = unit_rows(N, 1)
    rows = graphed(stored, None, np.ones(N, np.bool_))
    mask = np.zeros(N, np.bool_)
    mask[np.random.default_rng(3).permutation(N)[:n_allowed]] = True
    queries, allowed = unit_rows(20, 2).astype(np.float32), kernel.pack_bitmap(mask)
    for ranked in graph_top_k(rows, queries, 10, allowed=allowed, costs=COSTS):
        assert len(ranked.doc_ords) == min(10, n_allowed)
        assert mask[ranked.doc_ords].all()


@pytest.mark.usefixtures("small_graphs")
def test_an_index_with_graphs_finds_nearly_what_one_without_finds(tmp_path: Path) -> None:
    dense = unit_rows(4 * N, 1)
    build(tmp_path / "index", shard(dense), segment_documents=N)
    build(tmp_path / "scanned", shard(dense), segment_documents=N, dense_graph=False)
    queries = unit_rows(30, 2).astype(np.float32)
    with Index.open(tmp_path / "index") as index, Index.open(tmp_path / "scanned") as scanned:
        approximate, true = dense_top(index, queries, 10), dense_top(scanned, queries, 10)
        assert np.mean([len({*mine} & {*exact}) / 10 for mine, exact in zip(approximate, true, strict=True)]) > 0.9
        assert scanned.info().dense_graph is None
        assert "graph" not in scanned.info().bytes
    with Index.open(tmp_path / "index", exact=True) as index:
        assert dense_top(index, queries, 10) == true
        index.refresh()
        assert index.view.exact


@pytest.mark.parametrize("fusion", ["linear", "linear:min-max", "linear:none", "rrf"])
@pytest.mark.parametrize("mode", ["dense", "dense+tokens"])
@pytest.mark.usefixtures("small_graphs")
def test_a_query_alone_has_the_results_of_a_batch(tmp_path: Path, mode: str, fusion: str) -> None:
    build(tmp_path / "index", shard(unit_rows(3 * N, 1)), segment_documents=N, analyzer="words")
    texts = [f"text {i} {i + 7}" for i in range(12)]
    rows = unit_rows(len(texts), 2).astype(np.float32)
    rows[0] = 0.0
    vectors = dict(zip(texts, rows, strict=True))
    queries = [Query(str(i), text) for i, text in enumerate(texts)]
    exclude = {"3": ["d0010", "d0003"], "4": ["d0011"]}
    with IndexWriter.open(tmp_path / "index") as writer:
        writer.delete([f"d{i:04d}" for i in range(0, 3 * N, 5)])
        writer.add([Document("new", "text 3 4")], dense=unit_rows(1, 9))
    with Index.open(tmp_path / "index") as index:
        searcher = Searcher(index, GivenVectors(make_contract(sparse=None), vectors, {text: {} for text in texts}))
        for how in ({}, {"filter": {"n": {"lt": 7}}}, {"depth": 15}, {"exclude": exclude}):
            options = SearchOptions(mode=mode, fusion=fusion, **how)
            batch = searcher.search(queries, 20, options)
            for query in queries:
                alone = searcher.search([query], 20, options)[query.query_id]
                assert list(alone.doc_ids) == list(batch[query.query_id].doc_ids)
                assert alone.scores.tolist() == batch[query.query_id].scores.tolist()
        hits = searcher.hits(texts[5], 5, SearchOptions(mode=mode, fusion=fusion))
        assert [hit.score for hit in hits] == batch["5"].scores[:5].tolist()


@pytest.mark.usefixtures("small_graphs")
def test_a_segment_that_holds_all_the_best_is_asked_for_more(tmp_path: Path) -> None:
    near = unit_rows(N, 1, center=3.0)
    build(tmp_path / "index", *(shard(unit_rows(N, 5 + i, -3.0), N * i) for i in range(3)), segment_documents=N)
    with IndexWriter.open(tmp_path / "index") as writer:
        writer.add(shard(near, 5000).documents, dense=near)
    query = np.ones((1, DIM), np.float32)
    with Index.open(tmp_path / "index") as index:
        ranking = dense_top(index, query, 60)[0]
    assert len(ranking) == 60
    assert all(doc_id >= "d5000" for doc_id, _ in ranking)


@pytest.mark.usefixtures("small_graphs")
def test_one_graph_has_all_documents_and_later_ones_join_it_when_compacted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change builds graphs of at most GATHERED_DOCUMENTS rows."""
    monkeypatch.setattr(graph, "ROWS_AT_ONCE", 70)
    monkeypatch.setattr(change, "GATHERED_DOCUMENTS", 100)
    monkeypatch.setattr(build_module, "GATHERED_DOCUMENTS", 100)
    build(tmp_path / "index", shard(unit_rows(N, 1)))
    queries = unit_rows(20, 3).astype(np.float32)
    with IndexWriter.open(tmp_path / "index") as writer:
        assert [len(live.segment) for live in writer.view.segments] == [N]
        more = shard(unit_rows(250, 2), N)
        writer.add(more.documents, dense=more.dense)
        assert sorted(len(live.segment) for live in writer.view.segments) == [50, 100, 100, N]
        info = writer.compact(progress=False)
        assert (info.segments, info.dense_graph and info.dense_graph["documents"]) == (1, N + 250)
    with Index.open(tmp_path / "index") as index:
        approximate = dense_top(index, queries, 10)
    with Index.open(tmp_path / "index", exact=True) as index:
        true = dense_top(index, queries, 10)
    assert np.mean([len({*mine} & {*exact}) / 10 for mine, exact in zip(approximate, true, strict=True)]) > 0.9


@pytest.mark.usefixtures("small_graphs")
def test_filters_and_deletes_leave_k_documents(tmp_path: Path) -> None:
    build(tmp_path / "index", shard(unit_rows(3 * N, 1)), segment_documents=N)
    with IndexWriter.open(tmp_path / "index") as writer:
        writer.delete([f"d{i:04d}" for i in range(0, 3 * N, 2)])
    queries = unit_rows(5, 2).astype(np.float32)
    with Index.open(tmp_path / "index") as index:
        assert (index.info().dense_graph or {})["documents"] == 3 * N
        for ranking in dense_top(index, queries, 20, filter={"n": 3}):
            assert [doc_id[-1] for doc_id, _ in ranking] == ["3"] * 20
        for ranking in dense_top(index, queries, 100, filter={"n": {"lt": 4}}):
            assert {doc_id[-1] for doc_id, _ in ranking} == {"1", "3"}
            assert len(ranking) == 100
        assert [len(ranking) for ranking in dense_top(index, queries, 100, filter={"n": 2})] == [0] * 5
        assert dense_top(index, np.zeros((1, DIM), np.float32), 5) == [[]]


@pytest.mark.usefixtures("small_graphs")
def test_added_documents_get_a_graph_and_pending_documents_none(tmp_path: Path) -> None:
    build(tmp_path / "index", analyzer="words")
    with IndexWriter.open(tmp_path / "index") as writer:
        some = shard(unit_rows(N, 1))
        writer.add([dataclasses.replace(document, doc_id=f"p{document.doc_id}") for document in some.documents])
        writer.add(some.documents, dense=some.dense)
        assert writer.compact().dense_graph is not None
    with Index.open(tmp_path / "index") as index:
        info = index.info()
        assert info.dense_graph is not None
        assert (info.segments, info.pending, info.dense_graph["documents"]) == (1, N, N)
        assert info.bytes["graph"] > 0
        index.verify()
        assert all(doc_id.startswith("d") for doc_id, _ in dense_top(index, np.ones((1, DIM), np.float32), N)[0])


def test_int8_copies_of_float16_rows_change_no_result(tmp_path: Path) -> None:
    dense = unit_rows(4 * N, 1)
    dense[N : N + 40] = dense[0]
    for dtype in ("fp16", "fp16+int8"):
        build(tmp_path / dtype, shard(dense[:N]), shard(dense[N:], N), dense_dtype=dtype, dense_graph=False)
        with IndexWriter.open(tmp_path / dtype) as writer:
            more = shard(unit_rows(50, 9), 5000)
            writer.add(more.documents, dense=more.dense)
            writer.delete(["d0001", "d0700"])
    queries = np.concatenate([unit_rows(20, 2), dense[:1]]).astype(np.float32)
    with Index.open(tmp_path / "fp16") as plain, Index.open(tmp_path / "fp16+int8") as copied:
        for k in (1, 10, 300):
            assert dense_top(copied, queries, k) == dense_top(plain, queries, k)
        assert all(live.segment.dense_copies is not None for live in copied.view.segments)
        assert copied.info().bytes["dense"] == pytest.approx(
            plain.info().bytes["dense"] * (3 * DIM + 8) / (2 * DIM), 0.1
        )


def test_codes_of_rows_change_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An index whose large segments have codes equals one without, when built, changed and compacted."""
    dense = unit_rows(4 * N, 1)
    dense[N : N + 40] = dense[0]
    queries = np.concatenate([unit_rows(20, 2), dense[:1]]).astype(np.float32)
    by_setting: dict[int, list[Any]] = {}
    for coded_above in (10**9, 1000):
        monkeypatch.setattr(segment_writer, "CODED_ABOVE", coded_above)
        folder = tmp_path / str(coded_above)
        build(folder, shard(dense[:N]), shard(dense[N:], N), dense_graph=False)
        rankings, coded = [], []
        for step in ("built", "changed", "compacted"):
            with IndexWriter.open(folder) as writer:
                if step == "changed":
                    more = shard(unit_rows(50, 9), 5000)
                    writer.add(more.documents, dense=more.dense)
                    writer.delete(["d0001", "d0700"])
                if step == "compacted":
                    writer.compact(progress=False)
            with Index.open(folder) as index:
                index.verify()
                coded.append([live.segment.dense_codes is not None for live in index.view.segments])
                rankings.append([dense_top(index, queries, k) for k in (1, 10, 300)])
        by_setting[coded_above] = rankings
        assert coded == ([[False], [False, False], [False]] if coded_above > 1000 else [[True], [True, False], [True]])
    assert by_setting[1000] == by_setting[10**9]


def test_small_segments_have_no_graph(tmp_path: Path) -> None:
    build(tmp_path / "index", shard(unit_rows(50, 1)))
    with Index.open(tmp_path / "index") as index:
        assert index.info().dense_graph is None
        assert len(dense_top(index, np.ones((1, DIM), np.float32), 10)[0]) == 10


@pytest.mark.usefixtures("small_graphs")
@pytest.mark.parametrize("at", [0, 0.3, 0.6, 0.999])
def test_a_damaged_graph_is_named_before_it_is_walked(tmp_path: Path, at: float) -> None:
    """A search follows every link of a graph."""
    build(tmp_path / "index", shard(unit_rows(N, 1)))
    (path,) = (tmp_path / "index").rglob("graph.bin")
    content = bytearray(path.read_bytes())
    content[int(at * len(content))] ^= 64
    path.write_bytes(content)
    query = np.ones((1, DIM), np.float32)
    with (
        Index.open(tmp_path / "index") as index,
        pytest.raises(
            FormatError, match=r"graph\.bin is damaged: its checksum .* Index\.open\(exact=True\) or --exact"
        ),
    ):
        dense_top(index, query, 5)
    with Index.open(tmp_path / "index", exact=True) as index:
        assert len(dense_top(index, query, 5)[0]) == 5


def test_a_graph_with_patched_numbers_ends_no_process() -> None:
    """A patched graph may come with a patched checksum: 40 numbers of each kind, each with 14 values."""
    script = Path(__file__).with_name("patched_graphs.py")
    run = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    kinds = dict(re.findall(r"^(.*): (\d+) refused", run.stdout, re.MULTILINE))
    assert {*kinds} >= {"matrix", "head", "header", "levels", "key", "level", "count 0", "slot 0", "count 1", "slot 1"}
    assert all(int(refused) > 0 for refused in kinds.values())


@pytest.mark.usefixtures("small_graphs")
def test_a_patched_graph_with_a_right_checksum_is_refused(tmp_path: Path) -> None:
    build(tmp_path / "index", shard(unit_rows(N, 1)))
    (path,) = (tmp_path / "index").rglob("graph.bin")
    content = bytearray(path.read_bytes())
    content[-4:] = b"\xff\xff\xff\xff"  # the last node's last slot
    node = len(content) - 10 - 4 * 33
    content[node + 10 : node + 14] = (32).to_bytes(4, "little")  # all of its slots are in use
    path.write_bytes(content)
    manifest = json.loads((path.parent / "manifest.json").read_text())
    manifest["files"]["graph.bin"]["sha256"] = hashlib.sha256(content).hexdigest()
    signed = json.dumps(manifest).encode()
    (path.parent / "manifest.json").write_bytes(signed)
    with closing(sqlite3.connect(tmp_path / "index" / "store.sqlite")) as connection, connection:
        connection.execute("UPDATE segments SET manifest_sha256 = ?", (hashlib.sha256(signed).hexdigest(),))
    query = np.ones((1, DIM), np.float32)
    refused = r"links to one outside the graph.* Index\.open\(exact=True\) or --exact"
    with Index.open(tmp_path / "index") as index, pytest.raises(FormatError, match=refused):
        dense_top(index, query, 5)
    with Index.open(tmp_path / "index", exact=True) as index:
        assert len(dense_top(index, query, 5)[0]) == 5


@pytest.mark.usefixtures("small_graphs")
def test_a_filtered_walk_finds_the_best_allowed_rows_and_becomes_a_scan_if_it_meets_too_few() -> None:
    stored, query = unit_rows(N, 1), unit_rows(1, 2).astype(np.float32)
    rows = graphed(stored, None, np.ones(N, np.bool_))
    order = np.argsort(-kernel.dense_pair_scores(stored, np.arange(N, dtype=np.uint32), query[0]), kind="stable")
    even = np.arange(N) % 2 == 0
    (ranked,) = graph_top_k(rows, query, 5, allowed=kernel.pack_bitmap(even), costs=COSTS)
    assert ranked.doc_ords.tolist() == [row for row in order if even[row]][:5]
    worst = np.isin(np.arange(N), order[-40:])
    (ranked,) = graph_top_k(rows, query, 5, allowed=kernel.pack_bitmap(worst), costs=COSTS)
    assert ranked.doc_ords.tolist() == order[-40:][:5].tolist()


@pytest.mark.usefixtures("small_graphs")
def test_rows_of_different_lengths_are_found_by_their_inner_products() -> None:
    stored = unit_rows(N, 1) * np.linspace(0.2, 3, N, dtype=np.float16)[:, None]
    rows = graphed(stored, None, np.ones(N, np.bool_))
    queries = unit_rows(20, 2).astype(np.float32)
    results = graph_top_k(rows, queries, 10, costs=COSTS)
    exact, _ = kernel.dense_top_k(stored, queries, k=10)
    shared = [len({*mine.doc_ords.tolist()} & {*true.tolist()}) for mine, true in zip(results, exact, strict=True)]
    assert np.mean(shared) > 9


def test_a_graph_of_unknown_numbers_is_refused() -> None:
    facts = graph.GraphFacts(N, 1.0, 1, "b1", "lightir 0.1")
    with pytest.raises(FormatError, match="'b1', which are unknown"):
        open_graph(np.zeros(200, np.uint8), (N, DIM), facts)
