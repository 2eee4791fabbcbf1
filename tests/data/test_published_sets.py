"""Published training sets in their own layouts, written here, become training sets with the same content."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lightir.cli import main
from lightir.data import Dataset, TrainingSet, convert_dpr, convert_tevatron, published_sets, read_negatives
from lightir.errors import AlreadyExists, InvalidInput, NotFound
from lightir.types import Document


def passage(number: int, **more: Any) -> dict[str, Any]:
    return {"docid": str(number), "title": f"title {number}", "text": f"text “{number}”", **more}


TEVATRON: list[dict[str, Any]] = [
    {
        "query_id": "7",
        "query": "first",
        "positive_passages": [passage(1)],
        "negative_passages": [passage(2), passage(3)],
    },
    {"query_id": 8, "query": "second", "positive_passages": [], "negative_passages": [passage(1)]},
    {"query": "third", "positive_passages": [passage(4), passage(1)], "negative_passages": [], "instruction": "x"},
]


def write_lines(path: Path, records: Sequence[Any]) -> Path:
    text = "".join(json.dumps(record) + "\n" for record in records)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize("name", ["train.jsonl", "train.jsonl.gz"])
def test_tevatrons_lines_become_training_examples(tmp_path: Path, name: str) -> None:
    out = tmp_path / "out.jsonl"
    report = convert_tevatron([write_lines(tmp_path / name, TEVATRON)], out, expected=2)
    assert (report.queries, report.positives, report.negatives, report.without_positive) == (2, 3, 2, 1)
    assert dict(report.ignored_fields) == {"instruction": 1}
    training = TrainingSet.open_jsonl(out, instructions=("",))
    assert [(e.query_id, e.query, e.positive_ids, e.negative_ids) for e in training.examples] == [
        ("7", "first", ("1",), ("2", "3")),
        ("3", "third", ("4", "1"), ()),
    ]
    assert training.documents["2"] == Document("2", "text “2”", "title 2")


def test_scores_of_passages_come_along_and_missing_ones_are_null(tmp_path: Path) -> None:
    nan, minus = float("nan"), float("-inf")
    rows = [
        {
            "query": "a",
            "positive_passages": [passage(1, ce_score=2.5)],
            "negative_passages": [passage(2, ce_score=nan)],
        },
        {"query": "b", "positive_passages": [passage(1, ce_score=minus)], "negative_passages": [passage(2)]},
    ]
    report = convert_tevatron([write_lines(tmp_path / "t.jsonl", rows)], tmp_path / "out.jsonl")
    assert report.scores == 1
    first, second = (json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines())
    assert first["scores"] == [2.5, None]
    assert "scores" not in second
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pytest.importorskip("pyarrow").Table.from_pylist(rows[:1])
    parquet.write_table(table, tmp_path / "t.parquet")
    convert_tevatron([tmp_path / "t.parquet"], tmp_path / "parquet.jsonl")
    assert json.loads((tmp_path / "parquet.jsonl").read_text()) == first


DPR: list[dict[str, Any]] = [
    {
        "dataset": "nq_train_psgs_w100",
        "question": "who was first",
        "answers": ["Ada", "Ada L."],
        "positive_ctxs": [{"title": "One", "text": "Ada was.", "passage_id": "1", "score": 1000}],
        "negative_ctxs": [{"title": "Four", "text": "Not read.", "passage_id": "4"}],
        "hard_negative_ctxs": [
            {"title": "Two", "text": "Bob was [not].", "passage_id": "2"},
            {"title": "One", "text": "Ada was.", "passage_id": "1"},
        ],
    },
    {"question": "nothing", "answers": [], "positive_ctxs": [], "hard_negative_ctxs": []},
    {
        "question": "and then",
        "answers": ["Bob"],
        "positive_ctxs": [{"title": "Two", "text": "Bob was [not].", "psg_id": 2}],
    },
]


@pytest.mark.parametrize("form", ["lines", "array", "indented"])
@pytest.mark.parametrize("packed", [False, True])
def test_dprs_questions_become_a_folder_with_answers_and_negatives(
    tmp_path: Path, form: str, packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(published_sets, "BLOCK", 37)  # items lie across blocks
    path = tmp_path / ("train.json.gz" if packed else "train.json")
    text = json.dumps(DPR, indent=4 if form == "indented" else None)
    if form == "lines":
        write_lines(path, DPR)
    else:
        path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    report = convert_dpr(path, tmp_path / "NQ", expected=2)
    assert (report.queries, report.positives, report.negatives, report.passages) == (2, 2, 1, 2)
    assert report.without_positive == 1
    training = TrainingSet.open(tmp_path / "NQ", negatives=tmp_path / "NQ" / "negatives.jsonl", instructions=("",))
    assert [(e.query, e.positive_ids, e.negative_ids, e.answers) for e in training.examples] == [
        ("who was first", ("1",), ("2",), ("Ada", "Ada L.")),
        ("and then", ("2",), (), ("Bob",)),
    ]
    assert training.documents["2"] == Document("2", "Bob was [not].", "Two")


def test_all_passages_become_the_corpus(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "train.jsonl", DPR)
    rows = ["id\ttext\ttitle", '1\t"Ada ""the first"" was."\tOne', "2\tBob was.\tTwo", "3\tNobody asks.\tThree"]
    with gzip.open(tmp_path / "psgs.tsv.gz", "wt") as file:
        file.write("\n".join(rows) + "\n")
    report = convert_dpr(path, tmp_path / "NQ", passages=tmp_path / "psgs.tsv.gz")
    assert report.passages == 3
    corpus = list(Dataset.open(tmp_path / "NQ").corpus())
    assert corpus[0] == Document("1", 'Ada "the first" was.', "One")
    assert [document.doc_id for document in corpus] == ["1", "2", "3"]
    assert list(read_negatives(tmp_path / "NQ" / "negatives.jsonl").values()) == [("2",), ()]
    (tmp_path / "few.tsv").write_text("\n".join(rows[:2]) + "\n")
    with pytest.raises(InvalidInput, match="lacks 1 passages of the questions, for example '2'"):
        convert_dpr(path, tmp_path / "other", passages=tmp_path / "few.tsv")
    (tmp_path / "few.tsv").write_text("1\ttext\n")
    with pytest.raises(InvalidInput, match=r"the header is \['1', 'text'\]; expected \['id', 'text', 'title'\]"):
        convert_dpr(path, tmp_path / "other", passages=tmp_path / "few.tsv")
    assert not (tmp_path / "other").exists()
    with pytest.raises(AlreadyExists):
        convert_dpr(path, tmp_path / "NQ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"query": "a", "pos": [], "neg": []}\n', r"line 1: no field 'negative_passages'; expected Tevatron's"),
        ("\n[1]\n", "line 2: list; expected an object"),
        ("{broken\n", "line 1: invalid JSON"),
        (json.dumps({**TEVATRON[0], "positive_passages": ["text"]}), "a passage is str; expected an object"),
        (json.dumps({**TEVATRON[0], "positive_passages": {}}), "positive_passages is dict; expected a list"),
        (json.dumps({**TEVATRON[0], "query": 3}), "query"),
        (f"{json.dumps(TEVATRON[0])}\n{json.dumps(TEVATRON[0])}\n", "line 2: duplicate query id '7'"),
        (json.dumps({**TEVATRON[0], "positive_passages": [passage(1, ce_score="x")]}), "ce_score is 'x'; expected a"),
    ],
)
def test_another_layout_is_named_and_nothing_is_written(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "t.jsonl").write_text(text)
    with pytest.raises(InvalidInput, match=message):
        convert_tevatron([tmp_path / "t.jsonl"], tmp_path / "out.jsonl")
    assert [path.name for path in tmp_path.iterdir()] == ["t.jsonl"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (json.dumps(TEVATRON), "item 1: no field 'positive_ctxs'; expected DPR's question"),
        (json.dumps(DPR)[:-200], "the JSON array is truncated or damaged near"),
        (json.dumps(DPR)[:-1], "truncated"),
        ("[1, 2]", "item 1: int; expected an object"),
        (json.dumps(DPR[0]) + "\n{", "line 2: invalid JSON"),
    ],
)
def test_a_damaged_or_other_file_of_questions_is_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(InvalidInput, match=message):
        convert_dpr(tmp_path / "t.json", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["t.json"]
    with pytest.raises(NotFound):
        convert_dpr(tmp_path / "none.json", tmp_path / "out")


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """A question has ten passages of 2,000 characters; a query or passage may cost its id's hash only."""

    def peak(n: int) -> int:
        text = "word " * 400
        with (tmp_path / "t.json").open("w") as file:
            file.write("[")
            for i in range(n):
                contexts = [{"title": "t", "text": f"{text}{i}", "passage_id": str(j)} for j in range(10)]
                record = {"question": f"q{i}", "answers": ["a"], "positive_ctxs": contexts}
                file.write(", " * bool(i) + json.dumps(record))
            file.write("]")
        tracemalloc.start()
        convert_dpr(tmp_path / "t.json", tmp_path / f"out-{n}")
        _, highest = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return highest

    small, large = peak(300), peak(1200)
    assert (tmp_path / "t.json").stat().st_size > 20e6
    assert large < 1.5 * small
    assert large < 12e6


def test_the_command_checks_the_number_of_queries(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_lines(tmp_path / "t.jsonl", TEVATRON)
    out = tmp_path / "out.jsonl"
    assert main(["convert", "tevatron", str(source), "--expect", "3", "--out", str(out)]) == 1
    assert "2 queries were converted, but 3 are expected" in capsys.readouterr().err
    assert not out.exists()
    assert main(["convert", "tevatron", str(source), "--expect", "2", "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ignored_fields"] == {"instruction": 1}
    questions = write_lines(tmp_path / "dpr.jsonl", DPR)
    assert main(["convert", "dpr", str(questions), "--out", str(tmp_path / "NQ")]) == 0
    assert "2 queries, 2 relevant passages, 1 negative; 1 query without" in capsys.readouterr().err
    assert main(["convert", "dpr", str(questions), str(questions), "--out", str(tmp_path / "x")]) == 2
    assert main(["convert", "tevatron", str(source), "--passages", "p", "--out", str(tmp_path / "x")]) == 2
