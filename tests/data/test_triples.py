"""MS MARCO's triples, as ids and as texts: the examples that the lines say, and little of them in memory."""

from __future__ import annotations

import gzip
import random
import tracemalloc
from collections.abc import Mapping
from pathlib import Path

import pytest

from lightir.data import Dataset, Mixture, TrainingSet, decontaminate_sets, lazy_documents, open_triples
from lightir.errors import InvalidInput, NotFound


def write(path: Path, *rows: str) -> Path:
    """A file of lines, gzipped where its name says so."""
    content = "".join(f"{row}\n" for row in rows).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.fixture(params=["", ".gz"])
def marco(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Eight triples of three queries over six passages, by id; the file of triples."""
    write(tmp_path / f"collection.tsv{request.param}", *(f"p{i}\tpassage number {i}" for i in range(6)))
    write(tmp_path / f"queries.train.tsv{request.param}", *(f"q{i}\twhat is {i}" for i in range(4)))
    rows = ["q2 p2 p0", "q0 p0 p3", "q2 p2 p1", "q0 p1 p3", "q2 p2 p0", "q1 p1 p0", "q0 p0 p1", "q1 p1 p4"]
    return write(tmp_path / f"triples.tsv{request.param}", *(row.replace(" ", "\t") for row in rows))


def test_lines_of_one_query_are_one_example(marco: Path) -> None:
    training = open_triples(marco, instructions=("",))
    assert training.name == "triples"
    assert [(e.query_id, e.query, e.positive_ids, e.negative_ids) for e in training.examples] == [
        ("q2", "what is 2", ("p2",), ("p0", "p1")),
        ("q0", "what is 0", ("p0", "p1"), ("p3",)),  # p1 is a negative in one line, a positive in another
        ("q1", "what is 1", ("p1",), ("p0", "p4")),
    ]
    assert {doc_id: document.text for doc_id, document in training.documents.items()} == {
        f"p{i}": f"passage number {i}" for i in range(6)
    }
    assert sorted(training.doc_ids) == sorted(training.documents)
    assert "p9" not in training.documents
    assert [query.query_id for query in training.queries()] == ["q2", "q0", "q1"]


def test_texts_and_ids_train_on_the_same_texts(marco: Path, tmp_path: Path) -> None:
    by_id = open_triples(marco, instructions=("",))
    lines = []
    for example in by_id.examples:
        texts = [by_id.documents[doc_id].text for doc_id in (*example.positive_ids, *example.negative_ids)]
        n = len(example.positive_ids)
        lines += [f"{example.query}\t{a}\t{b}" for a in texts[:n] for b in texts[n:]]
    random.Random(0).shuffle(lines)
    by_text = open_triples(write(tmp_path / "texts.tsv.gz", *lines), instructions=("",))

    def texts_of(training: TrainingSet) -> dict[str, tuple[set[str], set[str]]]:
        documents: Mapping = training.documents
        return {
            e.query: ({documents[d].text for d in e.positive_ids}, {documents[d].text for d in e.negative_ids})
            for e in training.examples
        }

    assert texts_of(by_text) == texts_of(by_id)
    assert by_text.name == "texts"


def test_batches_come_from_the_seed_and_negatives_from_the_lines(marco: Path) -> None:
    training = open_triples(marco, instructions=("a", "b"))
    examples = {example.query_id: example for example in training.examples}
    batches = [Mixture([training], batch_size=3, n_negatives=1, seed=4).batch(step) for step in range(6)]
    again = Mixture([open_triples(marco, instructions=("a", "b"))], batch_size=3, n_negatives=1, seed=4)
    for step in (5, 0, 3):
        assert again.batch(step).documents == batches[step].documents
        assert again.batch(step).instructions == batches[step].instructions
    assert {batch.instructions[0] for batch in batches} == {"a", "b"}
    for batch in batches:
        for row, query_id in enumerate(batch.query_ids):
            assert batch.documents[row].doc_id in examples[query_id].positive_ids
            assert batch.documents[3 + row].doc_id in examples[query_id].negative_ids
    three = Mixture([training], batch_size=3, n_negatives=3, seed=4).batch(
        0
    )  # more than the lines have: the rest is drawn from the corpus
    assert all(len({d.doc_id for d in three.documents[3 + 3 * row : 6 + 3 * row]}) == 3 for row in range(3))


def test_dropped_queries_are_gone_and_change_the_fingerprint(marco: Path) -> None:
    training = open_triples(marco, instructions=("",))
    fewer = training.without(["q2", "nowhere"])
    assert [example.query_id for example in fewer.examples] == ["q0", "q1"]
    assert fewer.examples[0] == training.examples[1]
    assert [example.query_id for example in fewer.examples[1:]] == ["q1"]
    assert open_triples(marco, instructions=("",)).fingerprint() == training.fingerprint() != fewer.fingerprint()
    with pytest.raises(InvalidInput, match="no instruction"):
        open_triples(marco, instructions=())


@pytest.mark.parametrize("file", ["collection", "queries.train", "triples"])
def test_each_file_is_in_the_fingerprint(marco: Path, file: str) -> None:
    before = open_triples(marco, instructions=("",)).fingerprint()
    rows = {
        "collection": [*(f"p{i}\tpassage number {i}" for i in range(5)), "p5\tanother"],
        "queries.train": [*(f"q{i}\twhat is {i}" for i in range(2)), "q2\twhich are 2"],
        "triples": ["q2\tp2\tp0"],
    }
    path = next(marco.parent.glob(f"{file}.tsv*"))
    write(path, *rows[file], *(["q0\tp0\tp1"] if file == "triples" else []))
    after = open_triples(marco, instructions=("",)).fingerprint()
    assert before != after


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_byte_order_marks_blanks_and_missing_last_line_ends_change_nothing(
    marco: Path, tmp_path: Path, end: str
) -> None:
    expected = open_triples(marco, instructions=("",))
    for path in list(tmp_path.glob("*.tsv*")):
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        lines = [" " + line.replace("\t", " \t ") + " " for line in content.decode().splitlines()]
        lines[3:3] = ["", "  "]
        path.unlink()
        path.with_name(path.name.removesuffix(".gz")).write_bytes(b"\xef\xbb\xbf" + end.join(lines).encode())
    training = open_triples(tmp_path / "triples.tsv", instructions=("",))
    assert list(training.examples) == list(expected.examples)
    assert dict(training.documents) == dict(expected.documents)
    with (tmp_path / "triples.tsv").open("a") as file:
        file.write(f"{end}{end}q1\tp1")
    with pytest.raises(InvalidInput, match="line 12: 2 tab-separated fields"):
        open_triples(tmp_path / "triples.tsv", instructions=("",))


def test_many_documents_are_found_and_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy_documents, "ROWS_AT_ONCE", 1)  # so that several rounds are sorted into another
    n = 300
    write(tmp_path / "collection.tsv", *(f"p{i}\tpassage {i}" for i in range(n)))
    write(tmp_path / "queries.tsv", "q\twhat")
    documents = open_triples(write(tmp_path / "triples.tsv", "q\tp7\tp250"), instructions=("",)).documents
    assert len(documents) == n
    assert all(documents[f"p{i}"].text == f"passage {i}" for i in range(n))
    assert not any(f"p{i}" in documents for i in range(n, 3 * n))
    write(tmp_path / "collection.tsv", *(f"p{i}\tpassage {i}" for i in range(n)), "p7\tpassage 7")
    with pytest.raises(InvalidInput, match="line 301: duplicate document id 'p7'"):
        open_triples(tmp_path / "triples.tsv", instructions=("",))


def test_triples_are_cleaned_of_held_out_queries(marco: Path, beir: Path) -> None:
    write(beir / "queries.jsonl", '{"_id": "q24", "text": "What is 0?"}', '{"_id": "q25", "text": "other words"}')
    write(beir / "qrels" / "test.tsv", "query-id\tcorpus-id\tscore", "q24\td1\t1", "q25\td1\t1")
    (beir / "qrels" / "train.tsv").unlink()
    (clean,), report = decontaminate_sets([open_triples(marco, instructions=("",))], [Dataset.open(beir)])
    assert [example.query_id for example in clean.examples] == ["q2", "q1"]
    assert report.sets["triples"].dropped == 1


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("triples.tsv", "q1\tp1", "triples.tsv, line 3: 2 tab-separated fields; expected 3"),
        ("triples.tsv", "q1\t\tp1", "triples.tsv, line 3: field 2 is empty"),
        ("triples.tsv", "q1\tp9\tp1", "triples.tsv, line 3: document 'p9' is not in the collection"),
        ("triples.tsv", "q9\tp1\tp1", "triples.tsv, line 3: unknown query id 'q9'"),
        ("collection.tsv", "p1\tanother", "collection.tsv, line 3: duplicate document id 'p1'"),
        ("collection.tsv", "p1", "collection.tsv, line 3: 1 tab-separated fields; expected 2"),
        ("queries.tsv", "\tanother", "queries.tsv, line 3: .*; expected query id and text"),
        ("queries.tsv", "q1\t ", "queries.tsv, line 3: .*; expected query id and text"),
        ("queries.tsv", "q1", "queries.tsv, line 3: 'q1'; expected query id and text"),
        ("queries.tsv", "q1\tanother", "queries.tsv, line 3: duplicate query id 'q1' with another text"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, name: str, line: str, message: str) -> None:
    files = {
        "triples.tsv": ["q0\tp0\tp1", "q1\tp1\tp0"],
        "collection.tsv": ["p0\tnone", "p1\tone"],
        "queries.tsv": ["q0\tnought", "q1\tone"],
    }
    files[name].append(line)
    for name, lines in files.items():
        write(tmp_path / name, *lines)
    with pytest.raises(InvalidInput, match=message):
        open_triples(tmp_path / "triples.tsv", instructions=("",))


def test_ids_without_their_texts_and_empty_files_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "triples.tsv", "q0\tp0\tp1")
    with pytest.raises(NotFound, match=r"collection\.tsv"):
        open_triples(path, instructions=("",))
    with pytest.raises(InvalidInput, match="has no example"):
        open_triples(write(tmp_path / "empty.tsv", "", " "), instructions=("",))
    with pytest.raises(NotFound, match="does not exist"):
        open_triples(tmp_path / "none.tsv", instructions=("",))


def test_bytes_that_are_no_text_and_a_cut_gzip_are_named(tmp_path: Path) -> None:
    (tmp_path / "bytes.tsv").write_bytes(b"a b\tc d\te\nf g\t\xff\th\n")
    with pytest.raises(InvalidInput, match=r"line 2: invalid UTF-8"):
        open_triples(tmp_path / "bytes.tsv", instructions=("",))
    (tmp_path / "cut.tsv.gz").write_bytes(gzip.compress(b"a b\tc\td\n" * 1000)[:-20])
    with pytest.raises(InvalidInput, match="gzip stream is damaged"):
        open_triples(tmp_path / "cut.tsv.gz", instructions=("",))


def test_texts_stay_in_the_file(tmp_path: Path) -> None:
    rng = random.Random(0)
    passages = [f"{i} " + "".join(rng.choices("abcdefgh ", k=2000)) for i in range(2000)]
    lines = [f"query {i // 2}\t{passages[i]}\t{passages[-i - 1]}" for i in range(2000)]
    path = write(tmp_path / "large.tsv", *lines)
    del passages, lines
    tracemalloc.start()
    training = open_triples(path, instructions=("",))
    batch = Mixture([training], batch_size=8, n_negatives=1, seed=0).batch(7)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(training) == 1000
    assert len(training.documents) == 2000
    assert len(batch.documents) == 16
    assert path.stat().st_size > 8e6
    assert peak < 1e6
