"""TREC files: what is written is read back, and every reader sees one order."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightir.data import read_qrels
from lightir.errors import InvalidInput, NotFound
from lightir.eval import rank_by_score, read_run, write_qrels, write_run
from lightir.types import Ranking, escape_id, unescape_id


def ranking(query_id: str, *pairs: tuple[str, float]) -> Ranking:
    return Ranking(query_id, [doc_id for doc_id, _ in pairs], np.array([score for _, score in pairs], dtype=np.float64))


def test_a_written_run_comes_back_in_the_same_order(tmp_path: Path) -> None:
    run = {"q1": ranking("q1", ("b", 2.5), ("c", 1.0), ("a", 1.0), ("d", -3.0)), "q2": ranking("q2", ("x", 0.0))}
    write_run(tmp_path / "run.trec", run)
    back = read_run(tmp_path / "run.trec")
    assert {q: list(r.doc_ids) for q, r in back.items()} == {q: list(r.doc_ids) for q, r in run.items()}


def test_written_ranks_start_at_1_and_scores_fall_strictly_in_single_precision(tmp_path: Path) -> None:
    tied = ranking("q", *((f"d{i}", 1.0) for i in range(5)), ("last", 1.0 - 1e-12), ("zero", 0.0), ("zero2", 0.0))
    write_run(tmp_path / "run.trec", {"q": tied}, tag="mine")
    rows = [line.split() for line in (tmp_path / "run.trec").read_text().splitlines()]
    assert [row[3] for row in rows] == [str(i) for i in range(1, 9)]
    assert np.all(np.diff(np.array([row[4] for row in rows], dtype=np.float32)) < 0)
    np.testing.assert_allclose([float(row[4]) for row in rows], tied.scores, atol=1e-6)
    assert {row[1] for row in rows} == {"Q0"}
    assert {row[5] for row in rows} == {"mine"}


def test_ids_with_blanks_survive_and_keep_the_file_at_six_columns(tmp_path: Path) -> None:
    run = {"query 1": ranking("query 1", ("Geneva Durben", 2.0), ("50% of\tall", 1.0), ("a%20b", 0.5), ("\u3000", 0.1))}
    write_run(tmp_path / "run.trec", run)
    assert all(len(line.split()) == 6 for line in (tmp_path / "run.trec").read_text().splitlines())
    assert list(read_run(tmp_path / "run.trec")["query 1"].doc_ids) == list(run["query 1"].doc_ids)


def test_written_judgements_come_back_and_fit_the_run_whatever_the_ids(tmp_path: Path) -> None:
    qrels = {"query 1": {"Geneva Durben": 2, "50% of\tall": 0, "a%20b": 1}}
    write_qrels(tmp_path / "qrels.trec", qrels)
    write_run(tmp_path / "run.trec", {"query 1": ranking("query 1", ("Geneva Durben", 2.0), ("a%20b", 0.5))})
    assert (tmp_path / "qrels.trec").read_text().splitlines()[0] == "query%201 0 Geneva%20Durben 2"
    assert read_qrels(tmp_path / "qrels.trec") == qrels
    assert set(read_run(tmp_path / "run.trec")["query 1"].doc_ids) <= set(qrels["query 1"])


def test_a_byte_order_mark_and_windows_line_ends_are_no_part_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "run").write_bytes(b"\xef\xbb\xbfq1 Q0 a 1 2.0 t\r\nq1 Q0 b 2 1.0 t\r\n")
    assert {query_id: ranking.doc_ids for query_id, ranking in read_run(tmp_path / "run").items()} == {"q1": ["a", "b"]}


def test_utf_16_is_told_as_such(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("q1 Q0 a 1 2.0 t\n", encoding="utf-16")
    with pytest.raises(InvalidInput, match=r"line 1: invalid UTF-8 .* looks like UTF-16, convert it with: iconv"):
        read_run(tmp_path / "run")


def test_other_escapes_in_foreign_ids_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("q Q0 http://x/%C3%A4%2Fb 1 1.0 t\n")
    assert read_run(tmp_path / "run")["q"].doc_ids == ["http://x/%C3%A4%2Fb"]


@given(st.text(min_size=1))
def test_escaping_is_undone_for_every_id(each_id: str) -> None:
    try:
        each_id.encode()
    except UnicodeEncodeError:
        return
    escaped = escape_id(each_id)
    assert len(escaped.split()) == 1
    assert unescape_id(escaped) == each_id


def test_a_foreign_run_is_ordered_by_score_and_then_id_whatever_its_ranks_say(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("q Q0 b 1 1.0 t\nq Q0 c 2 3.0 t\n\nq Q0 a 3 1.0 t\n")
    assert read_run(tmp_path / "run")["q"].doc_ids == ["c", "a", "b"]


def test_a_run_s_scores_are_read_in_double_precision(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("q Q0 b 1 0.1 t\nq Q0 a 2 0.10000000000000002 t\n")
    read = read_run(tmp_path / "run")["q"]
    assert (read.doc_ids, read.scores.tolist()) == (["a", "b"], [0.10000000000000002, 0.1])


@pytest.mark.parametrize("tag", ["", "two words", "tab\t"])
def test_a_tag_is_one_word(tmp_path: Path, tag: str) -> None:
    with pytest.raises(InvalidInput, match="expected one word"):
        write_run(tmp_path / "run", {"q": ranking("q", ("a", 1.0))}, tag=tag)
    assert not (tmp_path / "run").exists()


def test_a_run_may_be_gzipped_and_a_broken_stream_is_said(tmp_path: Path) -> None:
    run = {"q": ranking("q", *((f"d{i}", 1.0 - i / 1000) for i in range(1000)))}
    write_run(tmp_path / "run.trec", run)
    content = (tmp_path / "run.trec").read_bytes()
    (tmp_path / "run.trec.gz").write_bytes(gzip.compress(content))
    assert read_run(tmp_path / "run.trec.gz")["q"].doc_ids == run["q"].doc_ids
    (tmp_path / "cut.gz").write_bytes(gzip.compress(content)[:-2000])
    with pytest.raises(InvalidInput, match=r"after line \d+: the gzip stream is damaged"):
        read_run(tmp_path / "cut.gz")
    (tmp_path / "none.gz").write_bytes(content)
    with pytest.raises(InvalidInput, match="after line 0: the gzip stream is damaged"):
        read_run(tmp_path / "none.gz")
    (tmp_path / "latin").write_bytes(b"q Q0 a 1 1.0 t\nq Q0 \xe9 2 0.5 t\n")
    with pytest.raises(InvalidInput, match="line 2: invalid UTF-8"):
        read_run(tmp_path / "latin")


def test_ranking_of_nothing_is_empty() -> None:
    assert len(rank_by_score("q", {})) == 0


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("q Q0 d 1 1.0", "line 2: 5 columns"),
        ("q Q0 d 1 high t", "line 2: the score is 'high'"),
        ("q Q0 d 1 nan t", "line 2: the score is 'nan'"),
        ("q Q0 first 1 0.5 t", "line 2: duplicate document 'first'"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "run").write_text(f"q Q0 first 1 2.0 t\n{line}\n")
    with pytest.raises(InvalidInput, match=message):
        read_run(tmp_path / "run")


def test_a_missing_run_is_said(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="run"):
        read_run(tmp_path / "run")


@pytest.mark.parametrize(
    "bad",
    [
        ranking("q", ("a", 1.0), ("b", 2.0)),
        ranking("q", ("a", 1.0), ("a", 0.5)),
        ranking("q", ("a", float("nan"))),
        ranking("q", ("a", 1.0), ("b", float("nan"))),
        ranking("q", ("a", float("inf")), ("b", 1.0)),
        ranking("q", ("", 1.0)),
    ],
)
def test_a_ranking_that_is_none_is_not_written(tmp_path: Path, bad: Ranking) -> None:
    with pytest.raises(InvalidInput):
        write_run(tmp_path / "run", {"q": bad})
    assert not (tmp_path / "run").exists()


def test_json_files_have_the_numbers_of_the_trec_files(tmp_path: Path) -> None:
    run = {
        "q 1": ranking("q 1", ("b", 2.5), ("ü %", 1.0), ("a", 1.0)),
        "q2": ranking("q2"),
        "q3": ranking("q3", ("x", -3.0)),
    }
    qrels = {"q 1": {"b": 2, "ü %": 0}, "q3": {"x": -1}}
    write_run(tmp_path / "run.json", run)
    write_qrels(tmp_path / "qrels.json", qrels)
    stored = json.loads((tmp_path / "run.json").read_text())
    assert {query_id: sorted(row, key=row.get, reverse=True) for query_id, row in stored.items()} == {
        query_id: list(ranked.doc_ids) for query_id, ranked in run.items()
    }
    assert len(set(stored["q 1"].values())) == 3  # no ties, whatever the reader
    assert json.loads((tmp_path / "qrels.json").read_text()) == qrels
    (tmp_path / "run.json.gz").write_bytes(gzip.compress((tmp_path / "run.json").read_bytes()))
    for name in ("run.json", "run.json.gz"):
        assert {q: list(r.doc_ids) for q, r in read_run(tmp_path / name).items()} == {
            q: r.doc_ids for q, r in run.items()
        }
    assert read_qrels(tmp_path / "qrels.json") == qrels


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "not valid JSON"),
        ("[1]", "holds list; expected an object of query ids"),
        ('{"q": 1}', "'q' holds int; expected an object of document ids"),
        ('{"q": {"d": "1"}}', "'q', 'd' has '1'; expected a (finite|whole) number"),
        ('{"q": {"d": true}}', "expected a (finite|whole) number"),
        ('{"q": {"d": 1, "d": 2}}', "the key 'd' is repeated"),
        ('{"q": {"": 1}}', "empty id"),
        ('{"q": {"d": NaN}}', "expected a (finite|whole) number"),
        ("[" * 100_000, "not valid JSON"),
    ],
)
def test_json_files_of_something_else_are_refused(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(content)
    for read in (read_run, read_qrels):
        with pytest.raises(InvalidInput, match=message):
            read(tmp_path / "x.json")
        with pytest.raises(NotFound):
            read(tmp_path / "missing.json")


def test_grades_of_json_files_are_whole_and_scores_finite(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"q": {"d": 1.5}}')
    with pytest.raises(InvalidInput, match=r"has 1\.5; expected a whole number"):
        read_qrels(tmp_path / "x.json")
    (tmp_path / "x.json").write_text('{"q": {"d": 1' + "0" * 400 + "}}")
    with pytest.raises(InvalidInput, match="expected a finite number"):
        read_run(tmp_path / "x.json")
