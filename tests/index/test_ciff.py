"""CIFF files against the protobuf library, and against documents whose words are counted here."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ciff_messages import Ciff, DocRecord, Header, Posting, PostingsList, delimited, parsed, written
from lightir.analysis import Analyzer
from lightir.cli.app import main
from lightir.errors import InvalidInput, NotFound
from lightir.files import temporary_folder
from lightir.index import Index, IndexOptions, IndexWriter, build_index, document_shards
from lightir.index.exchange import (
    ciff_export,
    ciff_file,
    ciff_import,
    export_ciff,
    import_ciff,
    live_postings,
    posting_spill,
)
from lightir.index.exchange.ciff_file import open_ciff
from lightir.search import Searcher, SearchOptions
from lightir.types import Document
from small_collections import WORDS, animal_shard, word_contract, word_table, write_folder

TEXTS = st.lists(st.lists(st.sampled_from(("cat", "cats", "dog", "of", "naïve", "x", "42")), max_size=9), max_size=9)
COUNTS = st.dictionaries(
    st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=3),
    st.dictionaries(st.integers(0, 6), st.integers(1, 300), min_size=1),
    max_size=8,
)


def index_of(texts: Sequence[Sequence[str]], folder: Path, **options: object) -> Path:
    """Build an index of texts whose ids do not ascend with their numbers."""
    documents = [
        Document(f"d{7 * i % 10}-{i}", " ".join(words), "Cat" if i % 3 else "") for i, words in enumerate(texts)
    ]
    given_options = IndexOptions(analyzer="english", **options)  # type: ignore[arg-type]
    build_index(document_shards(documents, size=2), folder, options=given_options, progress=False)
    return folder


def counted(folder: Path) -> tuple[dict[str, dict[str, int]], dict[str, int]]:
    """Count the words of an index's documents from their texts."""
    with Index.open(folder) as index:
        analyzer = Analyzer("english")
        ids = [doc_id for live in index.view.segments for doc_id in index.view.doc_ids(_ords(live))]
        terms = {d.doc_id: analyzer.terms([d.full_text()])[0] for d in index.view.documents(ids)}
    return {doc_id: dict(Counter(words)) for doc_id, words in terms.items()}, {d: len(w) for d, w in terms.items()}


def _ords(live: object) -> np.ndarray:
    return (live.first_ord + live.places).astype(np.uint32)  # type: ignore[attr-defined]


def small_pieces(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Make every part that is held in memory small."""
    monkeypatch.setattr(live_postings, "PIECE_DOCUMENTS", size)
    monkeypatch.setattr(live_postings, "LIST_POSTINGS", size)
    monkeypatch.setattr(ciff_export, "PIECE_POSTINGS", size)
    monkeypatch.setattr(ciff_file, "CHUNK_BYTES", 16 * size)
    monkeypatch.setattr(ciff_file, "FEW_BYTES", size)
    monkeypatch.setattr(ciff_import, "BUCKET_DOCUMENTS", size)
    monkeypatch.setattr(posting_spill, "HELD_POSTINGS", size)


@settings(max_examples=10)
@given(texts=TEXTS, size=st.integers(1, 3), deleted=st.sets(st.integers(0, 8)))
def test_export_has_the_counts_of_the_live_documents(texts: list[list[str]], size: int, deleted: set[int]) -> None:
    with temporary_folder() as folder, pytest.MonkeyPatch.context() as patched:
        index_of(texts, folder / "index", segment_documents=4)
        with IndexWriter.open(folder / "index") as writer:
            writer.delete([f"d{7 * i % 10}-{i}" for i in deleted if i < len(texts)])
            writer.add([Document("late", "cat dog dog")])
        with Index.open(folder / "index") as index:
            whole = export_ciff(index.view, folder / "whole.ciff")
            small_pieces(patched, size)
            report = export_ciff(index.view, folder / "pieces.ciff")
        content = (folder / "pieces.ciff").read_bytes()
        assert content == (folder / "whole.ciff").read_bytes()
        assert report == whole
        ciff = parsed(content)
        counts, lengths = counted(folder / "index")
    assert ciff.counts() == counts
    assert dict(ciff.documents) == lengths
    assert list(ciff.lists) == sorted(ciff.lists)
    assert ciff.cf == {term: sum(postings.values()) for term, postings in ciff.lists.items()}
    header = ciff.header
    assert (header.version, header.num_docs, header.total_docs) == (1, len(lengths), len(lengths))
    assert header.num_postings_lists == header.total_postings_lists == len(ciff.lists) == report.terms
    assert header.total_terms_in_collection == sum(lengths.values())
    assert header.average_doclength == pytest.approx(sum(lengths.values()) / len(lengths))
    assert report.postings == sum(map(len, ciff.lists.values()))


@settings(max_examples=10)
@given(lists=COUNTS, size=st.integers(1, 3), branch=st.sampled_from(("tokens", "sparse")), packed=st.booleans())
def test_import_and_export_return_any_file(
    lists: dict[str, dict[int, int]], size: int, branch: str, packed: bool
) -> None:
    lists = {term: {d: w if branch == "tokens" else min(w, 255) for d, w in row.items()} for term, row in lists.items()}
    documents = [(f"id {6 - i}", sum(row.get(i, 0) for row in lists.values())) for i in range(7)]
    ciff = Ciff(dict(sorted(lists.items(), reverse=True)), documents)
    with temporary_folder() as folder, pytest.MonkeyPatch.context() as patched:
        small_pieces(patched, size)
        path = folder / ("x.ciff.gz" if packed else "x.ciff")
        path.write_bytes(gzip.compress(written(ciff)) if packed else written(ciff))
        import_ciff(path, folder / "index", branch=branch)  # type: ignore[arg-type]
        with Index.open(folder / "index") as index:
            assert index.verify() == []
            export_ciff(index.view, folder / "again.ciff")
        again = parsed((folder / "again.ciff").read_bytes())
        import_ciff(folder / "again.ciff", folder / "second")
        with Index.open(folder / "second") as index:
            assert index.view.branches == (branch,)
    expected = ciff.counts()
    if branch == "sparse":  # "[ID]" is written for terms with blanks, which no query can have
        blank = {term for term in lists if not term.split() or term != term.split()[0]}
        expected = {d: {t: w for t, w in row.items() if t not in blank} for d, row in expected.items()}
        actual = {d: {t: w for t, w in row.items() if t in lists} for d, row in again.counts().items()}
        assert actual == expected
    else:
        assert again.counts() == expected
    assert dict(again.documents) == dict(documents)


def test_imported_counts_rank_as_the_index_that_was_exported(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    texts = [[str(w) for w in rng.choice(["cat", "dogs", "fish", "runs", "well"], 12)] for _ in range(60)]
    with Index.open(index_of(texts, tmp_path / "index")) as index:
        export_ciff(index.view, tmp_path / "x.ciff")
        expected = Searcher(index).search(["cat running", "dog fish"], 60)
    import_ciff(tmp_path / "x.ciff", tmp_path / "imported")  # the file names the analyzer
    with Index.open(tmp_path / "imported") as index:
        actual = Searcher(index).search(["cat running", "dog fish"], 60)
    for name, ranking in expected.items():
        assert actual[name].doc_ids == ranking.doc_ids
        np.testing.assert_array_equal(actual[name].scores, ranking.scores)


def test_imported_impacts_rank_as_the_sparse_branch_that_was_exported(tmp_path: Path) -> None:
    tables = {"": {"embeddings": word_table()}}
    encoder = write_folder(tmp_path / "q", word_contract(), tables)
    build_index([animal_shard()], tmp_path / "index", query_encoder=encoder, progress=False)
    with Index.open(tmp_path / "index") as index:
        report = export_ciff(index.view, tmp_path / "x.ciff", branch="sparse")
        expected = Searcher(index).search(["cat cat dog", "sleeps"], 9, SearchOptions(mode="sparse"))
    assert (report.documents, report.terms, report.postings, report.pending) == (3, 4, 5, 0)
    assert set(parsed((tmp_path / "x.ciff").read_bytes()).lists) == {WORDS[i] for i in (1, 2, 4, 5)}
    import_ciff(tmp_path / "x.ciff", tmp_path / "imported")
    with Index.open(tmp_path / "imported") as index:
        actual = Searcher(index).search(["cat cat dog", "sleeps"], 9)
        assert Searcher(index).search(["unknown [UNK]"], 9)["0"].doc_ids in ([], ())
    assert {q: list(r.doc_ids) for q, r in actual.items()} == {q: list(r.doc_ids) for q, r in expected.items()}
    assert [r.scores.tolist() for r in actual.values()] == [r.scores.tolist() for r in expected.values()]


def test_large_impacts_are_refused_or_rescaled(tmp_path: Path) -> None:
    (tmp_path / "x.ciff").write_bytes(written(Ciff({"cat": {0: 510, 1: 100, 2: 1}}, [("a", 1), ("b", 1), ("c", 1)])))
    with pytest.raises(InvalidInput, match=r"weights up to 510.*--rescale"):
        import_ciff(tmp_path / "x.ciff", tmp_path / "index", branch="sparse")
    import_ciff(tmp_path / "x.ciff", tmp_path / "index", branch="sparse", rescale=True)
    with Index.open(tmp_path / "index") as index:
        export_ciff(index.view, tmp_path / "again.ciff")
    assert parsed((tmp_path / "again.ciff").read_bytes()).counts() == {"a": {"cat": 255}, "b": {"cat": 50}, "c": {}}


def test_long_lists_are_read_as_one_posting_after_the_other(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    numbers = np.flatnonzero(rng.random(3000) < 0.6).tolist()
    postings = {n: int(rng.integers(1, 2**31 - 1) if rng.random() < 0.1 else 1) for n in numbers}
    content = written(Ciff({"cat": postings}, [(str(i), 1) for i in range(3000)]))
    (tmp_path / "x.ciff").write_bytes(content)
    for few in (0, 10**9):  # whole arrays, or each posting by itself
        actual: dict[int, int] = {}
        with pytest.MonkeyPatch.context() as patched, open_ciff(tmp_path / "x.ciff") as file:
            patched.setattr(ciff_file, "FEW_BYTES", few)
            last = file.read_list(0, lambda d, w, taken=actual: taken.update(zip(d.tolist(), w.tolist(), strict=True)))
            assert len(list(file.documents())) == 3000
        assert (last, actual) == (("cat", len(numbers)), postings)


def test_fields_in_any_order_and_unknown_fields_are_read(tmp_path: Path) -> None:
    postings = [PostingsList(postings=[Posting(docid=1, tf=2)]), PostingsList(term="cat", df=1)]
    content = b"".join(message.SerializeToString() for message in postings)
    unknown = bytes(
        [99 << 3 & 0x7F | 0x80, 99 >> 4, 5, 15 << 3 | 5, 1, 2, 3, 4, 15 << 3 | 1, *range(8), 15 << 3 | 2, 1, 0]
    )
    content += unknown
    header = delimited(Header(version=1, num_postings_lists=1, num_docs=2))
    records = [delimited(DocRecord(docid=i, collection_docid=f"d{i}", doclength=2)) for i in range(2)]
    (tmp_path / "x.ciff").write_bytes(header + bytes([len(content)]) + content + b"".join(records))
    import_ciff(tmp_path / "x.ciff", tmp_path / "index")
    with Index.open(tmp_path / "index") as index:
        export_ciff(index.view, tmp_path / "again.ciff")
    assert parsed((tmp_path / "again.ciff").read_bytes()).counts() == {"d0": {}, "d1": {"cat": 2}}


GOOD = Ciff({"cat": {0: 2, 2: 1}, "dog": {1: 1}}, [("a", 2), ("b", 1), ("c", 1)])


def test_every_cut_and_every_changed_byte_is_an_error_or_another_index(tmp_path: Path) -> None:
    content = written(GOOD)
    path = tmp_path / "x.ciff"
    for end in range(len(content)):
        path.write_bytes(content[:end])
        with pytest.raises(InvalidInput, match="not a complete CIFF file"):
            import_ciff(path, tmp_path / "index")
        assert [entry.name for entry in tmp_path.iterdir()] == ["x.ciff"]
    for at in range(len(content)):
        for value in (255, content[at] ^ 1):
            path.write_bytes(content[:at] + bytes([value]) + content[at + 1 :])
            with open_refused():
                import_ciff(path, tmp_path / "index", overwrite=True)


class open_refused:  # noqa: N801
    """Let InvalidInput pass, and nothing else."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> bool:
        return kind is not None and issubclass(kind, InvalidInput)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file ends within it"),
        (b"a text file\n", "not a complete CIFF file"),
        (written(GOOD, version=2), "version 2; expected 1"),
        (written(GOOD, num_docs=-1), "a number is -1"),
        (written(GOOD, num_postings_lists=2**31 - 1), "posting list 3 of 2147483647"),
        (written(GOOD, num_docs=2), "document 2 is beyond the 2 of the header"),
        (written(GOOD) + b"\0", "more bytes follow"),
        (written(Ciff({"cat": {0: 0}}, [("a", 1)])), "a count is 0"),
        (written(Ciff({"cat": {0: -1}}, [("a", 1)])), "a number is -1"),
        (written(Ciff({"cat": {0: 2**25}}, [("a", 1)])), "a count of 33554432"),
        (written(Ciff({"": {0: 1}}, [("a", 1)])), "it has no term"),
        (written(Ciff({"cat": {0: 1}}, [("", 1)])), "no collection_docid"),
        (written(Ciff({"cat": {0: 1}}, [("a", 1), ("a", 1)])), "duplicate document .a."),
        (
            delimited(Header(version=1, num_postings_lists=1, num_docs=1))
            + delimited(PostingsList(term="cat", df=2, postings=[Posting(tf=1)])),
            "1 postings, but a document frequency of 2",
        ),
        (
            delimited(Header(version=1, num_postings_lists=1, num_docs=2))
            + delimited(PostingsList(term="cat", df=2, postings=[Posting(docid=1, tf=1), Posting(tf=1)])),
            "a document is repeated",
        ),
        (
            written(Ciff({}, []), num_postings_lists=2) + 2 * delimited(PostingsList(term="cat")),
            "'cat' has two posting lists",
        ),
        (
            written(Ciff({}, []), num_docs=1) + delimited(DocRecord(docid=1, collection_docid="a")),
            "it has the number 1; expected 0",
        ),
        (written(Ciff({}, []), num_postings_lists=1) + b"\xff\xff\xff\xff\x7f", "protobuf's limit"),
        (written(Ciff({}, []), num_postings_lists=1) + b"\xff" * 11, "more than 64 bits"),
        (written(Ciff({}, []), num_postings_lists=1) + b"\x03\x0a\x01\xff", "can't decode byte"),
        (written(Ciff({}, []), num_postings_lists=1) + b"\x02\x0a\x05", "a field is longer than the list"),
        (written(Ciff({}, []), num_postings_lists=1) + b"\x02\x0b\x05", "unknown wire type 3"),
        (written(Ciff({}, []), num_docs=1) + b"\x81\x80\x80\x08" + b"\0" * 99, "the limit is"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "x.ciff").write_bytes(content)
    with pytest.raises(InvalidInput, match=message):
        import_ciff(tmp_path / "x.ciff", tmp_path / "index")
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.ciff"]


def test_missing_and_damaged_packed_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="expected a CIFF file"):
        import_ciff(tmp_path / "x.ciff", tmp_path / "index")
    packed = gzip.compress(written(GOOD))
    for content in (packed[:-9], b"plain", packed[:20] + b"\xff\xff" + packed[22:]):
        (tmp_path / "x.ciff.gz").write_bytes(content)
        with pytest.raises(InvalidInput, match="damaged"):
            import_ciff(tmp_path / "x.ciff.gz", tmp_path / "index")


def test_terms_of_a_model_need_an_analyzer_or_the_sparse_branch(tmp_path: Path) -> None:
    described = Ciff(GOOD.lists, GOOD.documents, "lightir 1.0; branch=tokens; analyzer=model")
    (tmp_path / "x.ciff").write_bytes(written(described))
    with pytest.raises(InvalidInput, match="the terms of a model"):
        import_ciff(tmp_path / "x.ciff", tmp_path / "index")
    with pytest.raises(InvalidInput, match="an analyzer is for counts"):
        import_ciff(tmp_path / "x.ciff", tmp_path / "index", branch="sparse", analyzer="words")
    import_ciff(tmp_path / "x.ciff", tmp_path / "index", branch="sparse")


def test_commands_write_and_read_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    index, file = index_of([["cat", "dog"], ["dog"]], tmp_path / "index"), tmp_path / "x.ciff"
    assert main(["export", str(index), "--to", "ciff", "--out", str(file)]) == 0
    assert "2 documents, 2 terms, 4 postings (tokens)" in capsys.readouterr().err
    assert main(["export", str(index), "--to", "ciff", "--out", str(file)]) == 1
    assert "--overwrite" in capsys.readouterr().err
    assert main(["export", str(index), "--to", "ciff", "--branch", "dense", "--out", str(file)]) == 2
    assert main(["export", str(index), "--to", "anserini", "--queries", "q", "--out", str(tmp_path / "c")]) == 2
    capsys.readouterr()
    assert main(["convert", "ciff", str(file), "--out", str(tmp_path / "copy")]) == 0
    assert "2 documents (tokens), without texts" in capsys.readouterr().err
    assert main(["search", str(tmp_path / "copy"), "dogs", "--json"]) == 0
    assert [hit["doc_id"] for hit in json.loads(capsys.readouterr().out)["hits"]] == ["d0-0", "d7-1"]
    assert main(["convert", "tevatron", str(file), "--rescale", "--out", str(tmp_path / "other")]) == 2
