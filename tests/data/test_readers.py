"""Readers: every form gives the same documents, and a bad line is named."""

from __future__ import annotations

import csv
import datetime
import decimal
import gzip
import io
import json
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lightir.data import count_documents, read_doc_ids, read_documents, read_qrels, read_queries
from lightir.errors import InvalidInput, NotFound
from lightir.lines import ReadOptions, SkippedFiles, reading_with
from lightir.types import Document, Query

DOCUMENTS = [
    Document("a", "one, two\u2028three", "Title A", {"year": "1999"}),
    Document("b c", 'said "no"', "", {"year": "2001"}),
    Document("ü", "", "", {"year": ""}),
]


def write_jsonl(path: Path) -> None:
    lines = [json.dumps({"_id": d.doc_id, "title": d.title, "text": d.text, **d.metadata}) for d in DOCUMENTS]
    path.write_text("\n".join(lines) + "\n\n", encoding="utf-8")


def write_table(path: Path, dialect: str) -> None:
    quoting = {"quoting": csv.QUOTE_NONE, "quotechar": None} if dialect == "excel-tab" else {}
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.writer(file, dialect=dialect, **quoting)  # type: ignore[arg-type]
        writer.writerow(["id", "year", "title", "contents"])
        writer.writerows([d.doc_id, d.metadata["year"], d.title, d.text] for d in DOCUMENTS)


def write_parquet(path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [{"doc_id": d.doc_id, "title": d.title, "body": d.text, **d.metadata} for d in DOCUMENTS]
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)


WRITERS: dict[str, Callable[[Path], None]] = {
    "c.jsonl": write_jsonl,
    "c.csv": lambda path: write_table(path, "excel"),
    "c.tsv": lambda path: write_table(path, "excel-tab"),
    "c.parquet": write_parquet,
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_form_gives_the_same_documents(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path / name)
    assert list(read_documents(tmp_path / name)) == DOCUMENTS
    assert count_documents(tmp_path / name) in (3, None if name[2:] in ("csv", "tsv") else 3)


@pytest.mark.parametrize("name", ["c.jsonl", "c.csv", "c.tsv"])
def test_gzip_changes_nothing(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path / name)
    (tmp_path / f"{name}.gz").write_bytes(gzip.compress((tmp_path / name).read_bytes()))
    assert list(read_documents(tmp_path / f"{name}.gz")) == DOCUMENTS


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz"])
def test_a_beir_folder_is_known_by_its_files(tmp_path: Path, ending: str) -> None:
    packed = gzip.compress if ending.endswith("gz") else bytes
    (tmp_path / f"corpus{ending}").write_bytes(packed(b'{"_id": 1, "text": "x", "title": null}\n'))
    queries = b'{"_id": "q", "text": "y", "metadata": {"answers": ["z"]}}\n'
    (tmp_path / f"queries{ending}").write_bytes(packed(queries))
    assert list(read_documents(tmp_path)) == [Document("1", "x")]
    assert list(read_queries(tmp_path)) == [Query("q", "y", {"answers": ["z"]})]
    assert count_documents(tmp_path) == 1


def test_files_of_a_folder_have_paths_as_ids_that_begin_with_its_name(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    (notes / "sub").mkdir(parents=True)
    (notes / ".git").mkdir()
    files = (
        ("b.txt", "two\nlines\n"),
        ("sub/a.md", "# Kettles\n\ntext"),
        ("empty.md", ""),
        ("c.png", "no"),
        (".git/x.txt", "no"),
    )
    for name, text in files:
        (notes / name).write_text(text)
        os.utime(notes / name, (0, 1_700_000_000))
    dated = {"modified": "2023-11-14T22:13:20Z"}
    assert list(read_documents(notes)) == [
        Document("notes/b.txt", "two\nlines\n", "", {"folder": "notes", "type": "txt", **dated}),
        Document("notes/sub/a.md", "# Kettles\n\ntext", "Kettles", {"folder": "notes/sub", "type": "md", **dated}),
    ]
    assert count_documents(notes) == 3
    assert list(read_doc_ids(notes)) == ["notes/b.txt", "notes/empty.md", "notes/sub/a.md"]
    (tmp_path / "more" / "notes").mkdir(parents=True)
    (tmp_path / "more" / "notes" / "b.txt").write_text("another")
    with pytest.raises(InvalidInput, match=r"duplicate id 'notes/b\.txt'"):
        list(read_documents([notes, tmp_path / "more" / "notes"]))


def test_what_is_skipped_in_a_folder_is_counted_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name, raw in (
        ("a.txt", b"text"),
        ("b.pdf", b"no pdf"),
        ("c.png", b""),
        ("d.PNG", b""),
        ("data", b"x"),
        ("e.txt", b"a\0b"),
    ):
        (tmp_path / name).write_bytes(raw)
    skipped = SkippedFiles()
    (document,) = read_documents(tmp_path, options=ReadOptions(skipped=skipped))
    assert document.text == "text"
    assert sorted(skipped.unreadable) == [f"{tmp_path.name}/b.pdf", f"{tmp_path.name}/e.txt"]
    assert skipped.other_types == {".png": 2, "": 1}
    messages = [record.getMessage() for record in caplog.records]
    assert messages[0].startswith(f"skipped: {tmp_path}/b.pdf: not a PDF that can be read: ")
    assert messages[1] == f"skipped: {tmp_path}/e.txt: the file contains zero bytes; it is not a text"
    summary = "skipped files that cannot be read: 2; files of other types: 2 .png, 1 without a suffix"
    assert messages[2:] == [f"{tmp_path}: {summary}"]
    with pytest.raises(InvalidInput, match=r"b\.pdf: not a PDF"):
        list(read_documents(tmp_path, options=ReadOptions(strict=True)))
    with pytest.raises(InvalidInput, match=r"b\.pdf: not a PDF"):  # a file that the user names
        list(read_documents(tmp_path / "b.pdf"))
    (tmp_path / "a.txt").unlink()
    with pytest.raises(InvalidInput, match=r"none of the 2 files can be read; the first: .*b\.pdf: not a PDF"):
        list(read_documents(tmp_path))


def test_ignore_files_and_patterns_leave_out_files(tmp_path: Path) -> None:
    """The outcomes are those of `git check-ignore` for the same .gitignore files."""
    names = (
        "a.log",
        "keep.log",
        "b.txt",
        "build/x.txt",
        "sub/a.log",
        "sub/b.txt",
        "sub/build/y.txt",
        "sub/deep/b.txt",
        "only.md",
    )
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / ".gitignore").write_text("*.log\n!keep.log\n/build/\n# a comment\n\n")
    (tmp_path / "sub" / ".gitignore").write_text("!a.log\nb.txt\n!/b.txt\n")

    def kept(**options: Any) -> list[str]:
        documents = read_documents(tmp_path, options=ReadOptions(**options))
        return [document.doc_id.removeprefix(f"{tmp_path.name}/") for document in documents]

    by_git = ["b.txt", "keep.log", "only.md", "sub/a.log", "sub/b.txt", "sub/build/y.txt"]
    assert kept() == by_git
    assert kept(ignore_files=False) == sorted(names)
    assert kept(exclude=("*.log", "sub/b.txt", "!sub/deep/b.txt")) == [
        "b.txt",
        "only.md",
        "sub/build/y.txt",
        "sub/deep/b.txt",
    ]
    (tmp_path / ".lightirignore").write_text("only.md\n!/build/\n")
    assert kept() == sorted({*by_git, "build/x.txt"} - {"only.md"})
    skipped = SkippedFiles()
    kept(skipped=skipped)
    assert skipped.n_excluded == 3  # a.log, only.md, sub/deep/b.txt


def test_fields_of_other_names_are_taken_where_they_are_named(tmp_path: Path) -> None:
    row = {"sku": 7, "id": "not it", "name": "Kettle", "title": "its own", "description": "boils water", "price": 5.5}
    (tmp_path / "c.jsonl").write_text(json.dumps(row) + "\n")
    fields = {"id": "sku", "title": "name", "text": "description"}
    rest = {"id": "not it", "title": "its own", "price": 5.5}
    assert list(read_documents(tmp_path / "c.jsonl", fields=fields)) == [Document("7", "boils water", "Kettle", rest)]
    (tmp_path / "c.csv").write_text("sku,description,title\n7,boils water,Kettle\n")
    fields = {"id": "sku", "text": "description"}
    assert list(read_documents(tmp_path / "c.csv", fields=fields)) == [Document("7", "boils water", "Kettle")]
    (tmp_path / "notes.txt").write_text("a note")
    (note,) = read_documents(tmp_path / "notes.txt", fields=fields)
    assert (note.doc_id, note.text, note.metadata["type"]) == ("notes.txt", "a note", "txt")
    for wrong, message in (
        ({}, r"no id: .*'_id'.*; name the field with --fields id=NAME \(in Python: fields={'id': 'NAME'}\)"),
        ({"id": "sku"}, r"no text: .*; name the field with --fields text=NAME"),
        ({"id": "sku", "text": "description", "title": "nmae"}, r"no title: expected one of \['nmae'\]"),
        ({"id": "SKU", "text": "description"}, r"no id: expected one of \['SKU'\]"),
        ({"key": "sku"}, "unknown key 'key' in fields; expected id, text or title"),
        ({"id": "sku", "text": "sku"}, "use one field twice"),
    ):
        with pytest.raises(InvalidInput, match=message):
            list(read_documents(tmp_path / "c.csv", fields=wrong))


def test_several_files_are_one_stream_with_one_set_of_ids(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl")
    write_table(tmp_path / "b.csv", "excel")
    assert count_documents([tmp_path / "a.jsonl", tmp_path / "a.jsonl"]) == 6
    with pytest.raises(InvalidInput, match=r"b\.csv, line 2: duplicate id 'a' \(first seen in .*a\.jsonl, line 1"):
        list(read_documents([tmp_path / "a.jsonl", tmp_path / "b.csv"]))
    for read in (read_documents, read_queries):
        with pytest.raises(InvalidInput, match=r"duplicate id 'a' \(the file is named twice"):
            list(read([tmp_path / "a.jsonl", tmp_path / "a.jsonl"]))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", []),
        (b'\xef\xbb\xbf{"id": "a", "text": "x"}\n', [Document("a", "x")]),
        (b"first\n\nsecond\r\n", [Document("1", "first"), Document("3", "second")]),
    ],
)
def test_stdin_holds_json_lines_or_plain_lines(
    monkeypatch: pytest.MonkeyPatch, content: bytes, expected: list[Document]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    assert list(read_documents("-")) == expected
    assert count_documents("-") is None


def test_a_text_file_of_queries_holds_one_a_line(tmp_path: Path) -> None:
    (tmp_path / "q.txt").write_text("what?\n\nwhy?\n")
    assert list(read_queries(tmp_path / "q.txt")) == [Query("1", "what?"), Query("3", "why?")]


def test_reading_is_lazy(tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_text('{"_id": "a", "text": "x"}\nnot json\n')
    documents = read_documents(tmp_path / "c.jsonl")
    assert next(documents).doc_id == "a"
    with pytest.raises(InvalidInput, match="line 2: invalid JSON"):
        next(documents)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"[1]", "line 2: list; expected an object"),
        (b"[" * 100_000, "line 2: invalid JSON.*expected one object per line"),
        (b'{"_id": "b", "text": "x", "price": NaN}', "line 2: invalid JSON: NaN is not a JSON number"),
        (b'{"_id": "b", "text": "x", "price": [1, -1e999]}', "line 2: invalid JSON: -1e999 is not a JSON number"),
        (b'{"text": "x"}', r"line 2: no id: .*, the other fields are \['text'\]"),
        (b'{"_id": "b"}', "line 2: no text"),
        (b'{"_id": " ", "text": "x"}', "line 2: _id is empty"),
        (b'{"_id": true, "text": "x"}', "line 2: _id is bool"),
        (b'{"_id": "b", "text": null}', "line 2: text is NoneType"),
        (b'{"_id": "b", "text": "x", "title": 3}', "line 2: title is int"),
        (b'{"_id": "b", "text": "\\ud800"}', "line 2: text is not representable in UTF-8"),
        (b'{"_id": "b", "text": "\xff"}', "line 2: invalid UTF-8"),
        (b'{"_id": "a", "text": "x"}', "line 2: duplicate id 'a' .first seen in .*line 1"),
        (b'{"_id": "b", "text": "x", "metadata": {"y": 1}, "y": 2}', "line 2: duplicate field 'y'"),
    ],
)
def test_a_bad_json_line_is_named(tmp_path: Path, line: bytes, message: str) -> None:
    (tmp_path / "c.jsonl").write_bytes(b'{"_id": "a", "text": "x"}\n' + line + b"\n")
    with pytest.raises(InvalidInput, match=message):
        list(read_documents(tmp_path / "c.jsonl"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('id,text\na,"x\ny"\nb,c,d\n', "line 4: 3 fields; the header has 2"),
        ('id,text\na,"x\n', "line 2: "),
        ("id,id\na,b\n", "duplicate column"),
        ("id,Text\na,b\n", r"line 2: no text: .*, the other fields are \['Text'\]; write 'Text' in lower case"),
        ("ID,text\na,b\n", r"write 'ID' in lower case"),
        (
            "id;text\na;b\n",
            "line 1: the header 'id;text' is one field that contains ';'; expected commas in a .csv file",
        ),
        ("id,words\na,b\n", "line 2: no text"),
    ],
)
def test_a_bad_table_row_is_named(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "c.csv").write_text(content)
    with pytest.raises(InvalidInput, match=message):
        list(read_documents(tmp_path / "c.csv"))


def test_a_tsv_file_s_quotes_are_text_and_a_table_s_blank_lines_nothing(tmp_path: Path) -> None:
    (tmp_path / "c.tsv").write_text('id\ttext\na\t"half\n\nb\tan "inch"\n')
    assert [document.text for document in read_documents(tmp_path / "c.tsv")] == ['"half', 'an "inch"']
    (tmp_path / "c.csv").write_text('\nid,text\n\na,"one ""inch"""\n\n')
    assert [document.text for document in read_documents(tmp_path / "c.csv")] == ['one "inch"']


def test_a_tsv_file_with_commas_is_told_what_it_should_have(tmp_path: Path) -> None:
    (tmp_path / "c.tsv").write_text("id,text\na,b\n")
    with pytest.raises(InvalidInput, match=r"'id,text' is one field that contains ','; expected tabs in a \.tsv file"):
        list(read_documents(tmp_path / "c.tsv"))
    (tmp_path / "c.csv").write_text("text\na\n")
    with pytest.raises(InvalidInput, match="line 2: no id"):
        list(read_documents(tmp_path / "c.csv"))


def test_a_csv_field_may_be_huge(tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text(f"id,text\na,{'x' * 300_000}\n")
    assert len(next(read_documents(tmp_path / "c.csv")).text) == 300_000


def test_a_cut_off_gzip_file_is_said(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "c.jsonl")
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress((tmp_path / "c.jsonl").read_bytes())[:-12])
    with pytest.raises(InvalidInput, match="gzip stream is damaged"):
        list(read_documents(tmp_path / "c.jsonl.gz"))


def test_parquet_dates_become_text_and_bytes_are_refused(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    row = {"id": 7, "text": "x", "day": datetime.date(2020, 1, 2), "tags": ["a"]}
    rich = {**row, "at": datetime.time(12, 30), "price": decimal.Decimal("1.25"), "deep": {"day": row["day"], "n": [1]}}
    parquet.write_table(pyarrow.Table.from_pylist([rich]), tmp_path / "c.parquet")
    deep = {"day": "2020-01-02", "n": [1]}
    metadata = {"day": "2020-01-02", "tags": ["a"], "at": "12:30:00", "price": 1.25, "deep": deep}
    assert list(read_documents(tmp_path / "c.parquet")) == [Document("7", "x", "", metadata)]
    parquet.write_table(pyarrow.Table.from_pylist([{**row, "deep": {"n": math.inf}}]), tmp_path / "c.parquet")
    with pytest.raises(InvalidInput, match=r"row 1: deep is inf"):
        list(read_documents(tmp_path / "c.parquet"))
    parquet.write_table(pyarrow.Table.from_pylist([{**row, "raw": b"\0"}]), tmp_path / "c.parquet")
    with pytest.raises(InvalidInput, match="row 1: raw is bytes"):
        list(read_documents(tmp_path / "c.parquet"))
    for nothing in (math.nan, math.inf):
        parquet.write_table(pyarrow.Table.from_pylist([{**row, "price": nothing}]), tmp_path / "c.parquet")
        with pytest.raises(InvalidInput, match=r"row 1: price is (nan|inf), which JSON cannot represent"):
            list(read_documents(tmp_path / "c.parquet"))
    parquet.write_table(pyarrow.Table.from_pylist([row]), tmp_path / "c.parquet")
    content = (tmp_path / "c.parquet").read_bytes()
    (tmp_path / "c.parquet").write_bytes(content[:4] + b"\xff" * 40 + content[44:])
    with pytest.raises(InvalidInput, match=r"c\.parquet, after row 0: the file is damaged"):
        list(read_documents(tmp_path / "c.parquet"))
    (tmp_path / "c.parquet").write_bytes(b"nonsense")
    with pytest.raises(InvalidInput, match="not a Parquet file"):
        list(read_documents(tmp_path / "c.parquet"))


def test_what_is_not_there_or_not_known_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="does not exist"):
        read_documents(tmp_path / "none.jsonl")
    (tmp_path / "c.png").write_text("")
    with pytest.raises(InvalidInput, match=r"unsupported file type \.png; expected \.jsonl, .*, \.pdf, "):
        read_documents(tmp_path / "c.png")
    with pytest.raises(InvalidInput, match=r"no corpus\.jsonl"):
        read_documents(tmp_path)
    with pytest.raises(InvalidInput, match="no source given"):
        read_documents([])
    with pytest.raises(InvalidInput, match="empty string"):  # not the folder that one is in
        read_documents("")
    (tmp_path / "all.json").write_text("[]")
    with pytest.raises(InvalidInput, match="expected JSON lines"):
        read_documents(tmp_path / "all.json")
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(InvalidInput, match="redirect the pipe to stdin"):
        read_documents(tmp_path / "pipe.jsonl")


def test_a_name_that_is_not_utf_8_is_shown(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/bad\xff.txt")).write_text("x")
    with pytest.raises(InvalidInput, match=r"bad.*\.txt' is not representable in UTF-8"):
        list(read_documents(tmp_path))


@pytest.mark.parametrize(
    "content",
    ["query-id\tcorpus-id\tscore\nq\ta b\t2\nq\tc\t0\n", "q\ta b\t2\nq\tc\t0\nq\tc\t0\n\n"],
)
def test_beir_judgements_with_and_without_header(tmp_path: Path, content: str) -> None:
    (tmp_path / "test.tsv").write_text(content)
    assert read_qrels(tmp_path / "test.tsv") == {"q": {"a b": 2, "c": 0}}


def test_trec_judgements(tmp_path: Path) -> None:
    (tmp_path / "qrels").write_text("q1 0 a 1\nq2\t0\tb\t-1\n")
    assert read_qrels(tmp_path / "qrels") == {"q1": {"a": 1}, "q2": {"b": -1}}


def test_whole_grades_may_be_written_as_decimals_as_trec_eval_reads_them(tmp_path: Path) -> None:
    (tmp_path / "qrels").write_text("q\ta\t1.0\nq\tb\t-2.\nq\tc\t+0.00\nq\ta\t1\n")
    assert read_qrels(tmp_path / "qrels") == {"q": {"a": 1, "b": -2, "c": 0}}


def test_judgements_in_trec_s_form_have_ids_as_run_files_have_them(tmp_path: Path) -> None:
    (tmp_path / "qrels").write_text("query%201\t0\ta%2520b\t1\nquery%201 0 http://x/%C3%A4 1\n")
    assert read_qrels(tmp_path / "qrels") == {"query 1": {"a%20b": 1, "http://x/%C3%A4": 1}}
    (tmp_path / "qrels").write_text("query%201\ta%20b\t1\n")  # BEIR's holds ids as they are
    assert read_qrels(tmp_path / "qrels") == {"query%201": {"a%20b": 1}}


def test_a_line_that_is_no_judgement_is_shown_in_part(tmp_path: Path) -> None:
    (tmp_path / "qrels").write_text("\r".join(f"q\td{i}\t1" for i in range(1000)))  # an old Mac's line ends
    with pytest.raises(InvalidInput, match=r"line 1: .*; expected query id") as told:
        read_qrels(tmp_path / "qrels")
    assert len(str(told.value)) < 400


def test_a_first_line_with_a_broken_grade_is_no_header(tmp_path: Path) -> None:
    (tmp_path / "qrels").write_text("q\ta\t0.5\nq\tb\t1\n")
    with pytest.raises(InvalidInput, match=r"line 1: the grade is '0\.5'"):
        read_qrels(tmp_path / "qrels")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("q\ta", "line 2: 'q"),
        ("q\ta\thigh", "line 2: the grade is 'high'"),
        ("q\ta\t0.5", "line 2: the grade is '0.5'; expected an integer"),
        ("q\ta\t1e2", "line 2: the grade is '1e2'"),
        ("q\ta\tnan", "line 2: the grade is 'nan'"),
        ("q\ta\t1_0", "line 2: the grade is '1_0'"),
        ("q\td\t2.0", "line 2: 'q', 'd' has grade 2.0, but 1 earlier"),
        ("q\t\t1", "line 2: empty id"),
        ("q\td\t2", "line 2: 'q', 'd' has grade 2, but 1 earlier"),
    ],
)
def test_a_bad_judgement_is_named(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "test.tsv").write_text(f"q\td\t1\n{line}\n")
    with pytest.raises(InvalidInput, match=message):
        read_qrels(tmp_path / "test.tsv")


TEXT_OF_100 = "é" * 50
LARGE: dict[str, tuple[str, str]] = {
    "c.jsonl": (f'{{"_id": "a", "text": "x"}}\n{{"_id": "b", "text": "{TEXT_OF_100}"}}\n', "line 2: the line"),
    "c.csv": (f'id,text\na,x\nb,"{TEXT_OF_100}"\n', "line 3: the line"),
    "c.tsv": (f"id\ttext\na\tx\nb\t{TEXT_OF_100}\n", "line 3: the line"),
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", LARGE)
def test_a_line_above_the_limit_is_refused_with_its_number_and_the_setting(
    tmp_path: Path, name: str, packed: bool
) -> None:
    content, where = LARGE[name]
    path = tmp_path / (f"{name}.gz" if packed else name)
    path.write_bytes(gzip.compress(content.encode()) if packed else content.encode())
    longest = max(len(line) for line in content.encode().splitlines(keepends=True))
    assert len(list(read_documents(path, options=ReadOptions(max_line_bytes=longest)))) == 2
    documents = read_documents(path, options=ReadOptions(max_line_bytes=longest - 1))
    assert next(documents).doc_id == "a"
    message = rf"{where} has more than {longest - 1:,} bytes\. Raise the limit with --limits line=SIZE .*max_line_bytes"
    with pytest.raises(InvalidInput, match=message):
        next(documents)
    with reading_with(ReadOptions(max_line_bytes=longest - 1)):
        inside = read_documents(path)
    with pytest.raises(InvalidInput, match=where):
        list(inside)
    assert len(list(read_documents(path))) == 2


def test_a_row_of_many_lines_and_a_text_file_are_limited_as_documents(tmp_path: Path) -> None:
    row = 'b,"one\ntwo\nthree",z\n'
    (tmp_path / "c.csv").write_text(f"id,text,n\na,x,y\n{row}c,x,y\n")
    assert len(list(read_documents(tmp_path / "c.csv", options=ReadOptions(max_document_bytes=len(row))))) == 3
    with pytest.raises(InvalidInput, match=r"c\.csv, line 3: the row has more than 19 bytes.*document=SIZE"):
        list(read_documents(tmp_path / "c.csv", options=ReadOptions(max_document_bytes=len(row) - 1)))
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("five\n" * 4)
    for limit, source in ((20, tmp_path / "notes"), (20, tmp_path / "notes" / "a.txt")):
        assert len(list(read_documents(source, options=ReadOptions(max_document_bytes=limit)))) == 1
        with pytest.raises(InvalidInput, match=r"a\.txt: the file has more than 19 bytes.*document=SIZE"):
            list(read_documents(source, options=ReadOptions(max_document_bytes=limit - 1)))


@pytest.mark.parametrize("field", ["_id", "title", "tags", "other"])
def test_a_field_is_limited_in_bytes(tmp_path: Path, field: str) -> None:
    value: object = ["é" * 20] if field == "tags" else "é" * 20
    record = {"_id": "a", "text": "x" * 500, field: value}
    (tmp_path / "c.jsonl").write_text(json.dumps(record) + "\n")
    n_bytes = len(json.dumps(value, ensure_ascii=False).encode()) if field == "tags" else 40
    assert list(read_documents(tmp_path / "c.jsonl", options=ReadOptions(max_field_bytes=n_bytes)))
    name = "the id" if field == "_id" else field
    with pytest.raises(
        InvalidInput, match=rf"line 1: the field '{name}' has more than {n_bytes - 1} bytes.*field=SIZE"
    ):
        list(read_documents(tmp_path / "c.jsonl", options=ReadOptions(max_field_bytes=n_bytes - 1)))
    with pytest.raises(InvalidInput, match=r"line 1: the text has more than 499 bytes.*document=SIZE"):
        list(read_documents(tmp_path / "c.jsonl", options=ReadOptions(max_document_bytes=499)))


class Endless(io.RawIOBase):
    """A stream of one line without end, which counts the bytes that were read."""

    n_bytes = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        buffer[:] = b"x" * len(buffer)
        self.n_bytes += len(buffer)
        return len(buffer)


def test_of_an_endless_line_no_more_than_the_limit_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Endless()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(stream)))
    with pytest.raises(InvalidInput, match="stdin, line 1: the line has more than 1,000,000 bytes"):
        list(read_documents("-", options=ReadOptions(max_line_bytes=1_000_000)))
    assert stream.n_bytes < 1_100_000
    with (tmp_path / "c.jsonl").open("wb") as file:
        file.truncate(50 * 10**9)  # takes no space on disk
    for read in (read_documents, read_queries, count_documents):
        with pytest.raises(InvalidInput, match=r"c\.jsonl, line 1: the line has more than 1,000 bytes"):
            list(read(tmp_path / "c.jsonl", options=ReadOptions(max_line_bytes=1000)))  # type: ignore[arg-type, operator]
    with reading_with(ReadOptions(max_line_bytes=1000)), pytest.raises(InvalidInput, match="line 1: the line has more"):
        read_qrels(tmp_path / "c.jsonl")


@pytest.mark.parametrize("limit", [0, -1, 10**9 + 1, True, 1.5])
def test_a_limit_that_is_no_size_is_refused(limit: Any) -> None:
    with pytest.raises(InvalidInput, match=r"max_line_bytes is .* expected a whole number from 1 to 1000000000"):
        ReadOptions(max_line_bytes=limit)


@pytest.fixture
def linked(tmp_path: Path) -> Path:
    """A folder with links to a file and a folder outside, to its own parts in a circle, and to nothing."""
    for name in ("notes/sub/deep.txt", "notes/own.md", "outside/far.txt", "outside/further/last.rst", "secret.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    notes = tmp_path / "notes"
    (notes / "circle").symlink_to(notes)
    (notes / "sub" / "up").symlink_to("..")
    (notes / "out").symlink_to(tmp_path / "outside")
    (notes / "again").symlink_to(tmp_path / "outside")
    (tmp_path / "outside" / "back").symlink_to(notes)
    (notes / "link.txt").symlink_to(tmp_path / "secret.txt")
    (notes / "itself.txt").symlink_to("itself.txt")
    (notes / "nothing.txt").symlink_to(tmp_path / "gone.txt")
    (notes / "picture.png").symlink_to(tmp_path / "secret.txt")
    (notes / ".hidden").symlink_to(tmp_path / "outside")
    return notes


def test_links_are_skipped_and_counted_unless_they_are_asked_for(
    linked: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert [document.doc_id for document in read_documents(linked)] == ["notes/own.md", "notes/sub/deep.txt"]
    assert count_documents(linked) == 2
    assert [record.getMessage() for record in caplog.records] == [
        f"{linked}: skipped symbolic links: 7 (read them with --follow-links, in Python: "
        "ReadOptions(follow_links=True))"
    ]


def test_links_are_followed_once_and_circles_end(linked: Path, caplog: pytest.LogCaptureFixture) -> None:
    follow = ReadOptions(follow_links=True)
    documents = {document.doc_id: document.text for document in read_documents(linked, options=follow)}
    assert documents == {
        "notes/again/far.txt": "outside/far.txt",
        "notes/again/further/last.rst": "outside/further/last.rst",
        "notes/link.txt": "secret.txt",
        "notes/own.md": "notes/own.md",
        "notes/sub/deep.txt": "notes/sub/deep.txt",
    }
    assert list(documents) == sorted(documents)
    assert count_documents(linked, options=follow) == 5
    (message,) = [record.getMessage() for record in caplog.records]
    assert (
        message == f"{linked}: skipped files of other types: 1 .png; symbolic links that lead to no file or folder: 2"
    )
    (linked.parent / "entry").symlink_to(linked)  # a folder that the user names is read, link or not
    assert len(list(read_documents(linked.parent / "entry"))) == 2


def test_a_folder_of_links_alone_says_how_to_read_them(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "notes" / "a.txt").symlink_to(tmp_path / "a.txt")
    with pytest.raises(InvalidInput, match=r"no files whose text .*; skipped symbolic links: 1 \(.*--follow-links"):
        read_documents(tmp_path / "notes")
    assert len(list(read_documents(tmp_path / "notes", options=ReadOptions(follow_links=True)))) == 1


def test_nested_links_of_a_hundred_folders_end(tmp_path: Path) -> None:
    """Every folder has two links to the next, so there are 2 ** 100 paths."""
    for i in range(100):
        (tmp_path / f"f{i}").mkdir()
        (tmp_path / f"f{i}" / "t.txt").write_text("x")
        for name in ("one", "two"):
            (tmp_path / f"f{i}" / name).symlink_to(tmp_path / f"f{(i + 1) % 100}")
    documents = list(read_documents(tmp_path / "f0", options=ReadOptions(follow_links=True)))
    # The system resolves at most 40 links in a path.
    assert 35 <= len(documents) <= 100
