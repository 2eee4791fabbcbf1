"""Publications: their files, the same bytes for the same index, and the indexes that are refused."""

from __future__ import annotations

import dataclasses
import gzip
import json
import re
import subprocess
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lightir.publish
from lightir.cli.app import main
from lightir.errors import AlreadyExists, InvalidInput
from lightir.index import Index, IndexOptions, IndexWriter
from lightir.index.exchange.varints import encode_numbers
from lightir.publish import parts, publish_index, vector_files
from lightir.publish.counted_files import stems_as_the_page
from lightir.publish.table_files import wordpiece_settings
from lightir.shards import Shard
from lightir.types import Document
from lightir.words.stems import stem
from page_checks import HTML_FROM_TEXT, INLINE
from pending_documents import pending_index
from published_indexes import NODE, PIECES, WORDS, make_index, needs_node, random_documents, wordpiece, write_encoder
from small_collections import animal_shard, build_flat, word_contract, word_table, write_folder

PAGE = Path(lightir.publish.__file__).parent / "page"


@pytest.fixture(scope="module")
def pets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of random documents."""
    return make_index(tmp_path_factory.mktemp("pets"), random_documents(60))


def contents(site: Path) -> dict[str, bytes]:
    return {str(path.relative_to(site)): path.read_bytes() for path in site.rglob("*") if path.is_file()}


def refusal(index: Path, out: Path, **given: object) -> str:
    with Index.open(index) as opened, pytest.raises(InvalidInput) as refused:
        publish_index(opened, out, progress=False, **given)  # type: ignore[arg-type]
    assert not out.exists()
    return str(refused.value)


def test_the_same_index_gives_the_same_bytes(pets: Path, tmp_path: Path) -> None:
    with Index.open(pets) as index:
        first = publish_index(index, tmp_path / "one", progress=False)
        publish_index(index, tmp_path / "two", progress=False)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    sizes = [len(content) for content in contents(tmp_path / "one").values()]
    assert (first.n_files, first.n_bytes) == (len(sizes), sum(sizes))
    assert (first.documents, first.branches, first.left_out) == (60, ("dense", "tokens"), ())


def test_a_changed_index_gets_another_folder_of_data(pets: Path, tmp_path: Path) -> None:
    with Index.open(pets) as index:
        publish_index(index, tmp_path / "site", progress=False)
        before = json.loads((tmp_path / "site" / "search.json").read_text())["folder"]
        publish_index(index, tmp_path / "site", mode="tokens", overwrite=True, progress=False)
    after = json.loads((tmp_path / "site" / "search.json").read_text())["folder"]
    assert before != after
    assert [path.name for path in (tmp_path / "site").glob("data-*")] == [after]


def test_folders_of_this_machine_are_not_published(tmp_path: Path) -> None:
    contract = write_encoder(tmp_path / "q", dim=4)
    backbone = dataclasses.replace(contract.backbone, address=str(tmp_path / "models" / "mine"))
    dataclasses.replace(contract, backbone=backbone).save(tmp_path / "q")
    rows = np.ones((1, 4), np.float16) / 2
    shard = Shard([Document("a", "cat")], rows, None)
    build_flat([shard], tmp_path / "index", query_encoder=tmp_path / "q", progress=False)
    with Index.open(tmp_path / "index") as index:
        publish_index(index, tmp_path / "site", progress=False)
    assert json.loads((tmp_path / "site" / "search.json").read_text())["model"] == "mine"
    assert not [name for name, content in contents(tmp_path / "site").items() if str(tmp_path).encode() in content]


def test_other_folders_are_not_replaced(pets: Path, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"cat")
    with Index.open(pets) as index:
        for overwrite in (False, True):
            with pytest.raises(AlreadyExists):
                publish_index(index, tmp_path / "photos", overwrite=overwrite, progress=False)
    assert contents(tmp_path / "photos") == {"cat.jpg": b"cat"}


def test_parts_are_small_and_make_up_their_files(pets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightir.publish.parts.PART_BYTES", 100)
    writer = parts.PartWriter(tmp_path)
    content = bytes(range(256)) * 3
    writer.write("plain", content)
    writer.write("packed", content, packed=True)
    writer.write("empty", b"")
    read = {name: b"".join(path.read_bytes() for path in sorted(tmp_path.glob(f"{name}-*"))) for name in writer.files}
    assert read["plain"] == content
    assert gzip.decompress(read["packed"]) == content
    assert read["empty"] == b""
    assert {name: entry["bytes"] for name, entry in writer.files.items()} == {n: len(c) for n, c in read.items()}
    assert max(path.stat().st_size for path in tmp_path.iterdir()) == 100


@given(st.lists(st.integers(0, 2**62 - 1)))
def test_numbers_are_encoded_as_by_a_loop(values: list[int]) -> None:
    expected = []
    for value in values:
        digits = [value >> shift & 127 for shift in range(0, max(value.bit_length(), 1), 7)]
        expected.append(bytes([*(digit | 128 for digit in digits[:-1]), digits[-1]]))
    content, lengths = encode_numbers(np.array(values, dtype=np.int64))
    assert content == b"".join(expected)
    assert lengths.tolist() == [len(number) for number in expected]


def decoded(code: vector_files.Codes) -> np.ndarray:
    """The rows that codes stand for."""
    components, column = np.zeros((len(code.codes), len(code.levels))), 0
    for byte, widths in enumerate(code.bytes_of):
        shift = 0
        for bits in widths:
            components[:, column] = code.levels[column][code.codes[:, byte] >> shift & 2**bits - 1]
            shift, column = shift + bits, column + 1
    return components @ (code.matrix * code.matrix_scales[:, None]) + code.mean


def test_estimates_from_codes_are_near_the_scores() -> None:
    rng = np.random.default_rng(0)
    values = (rng.standard_normal((400, 24)) * np.linspace(2, 0.1, 24)).astype(np.float32)
    values /= np.linalg.norm(values, axis=1, keepdims=True)
    deviations = []
    for n_bytes in (2, 6, 12):
        code = vector_files.encode_rows(values, n_bytes, values)
        assert code.codes.shape == (400, n_bytes + 1)
        assert all(sum(widths) <= 8 for widths in code.bytes_of)
        assert len(code.bytes_of) == n_bytes
        error = (decoded(code) - values) @ values.T
        assert float(error.std()) == pytest.approx(code.deviation, rel=0.1)
        deviations.append(code.deviation)
    assert deviations[0] > 2 * deviations[1] > 4 * deviations[2]


def test_codes_keep_what_changes_the_scores_of_queries() -> None:
    rng = np.random.default_rng(1)
    values = rng.standard_normal((400, 24)).astype(np.float32)
    alike = rng.standard_normal((300, 24)).astype(np.float32)
    narrow = alike * (np.arange(24) < 6)
    deviation = vector_files.encode_rows(values, 3, narrow).deviation
    errors = []
    for queries in (narrow, alike):
        code = vector_files.encode_rows(values, 3, queries)
        errors.append(float((narrow @ (decoded(code) - values).T).std()))
    assert errors[0] == pytest.approx(deviation, rel=0.1)
    assert errors[0] < 0.5 * errors[1]


@pytest.mark.parametrize("values", [np.zeros((1, 8)), np.ones((5, 8)), np.eye(2)])
def test_codes_of_equal_and_few_rows(values: np.ndarray) -> None:
    code = vector_files.encode_rows(values.astype(np.float32), 2, values.astype(np.float32))
    assert code.deviation == pytest.approx(0, abs=1e-2)


def test_an_empty_index_has_nothing_to_publish(tmp_path: Path) -> None:
    IndexWriter.create(tmp_path / "index").close()
    assert "has no documents to publish" in refusal(tmp_path / "index", tmp_path / "site")


def test_pending_documents_are_found_by_words_or_refused(tmp_path: Path) -> None:
    index = pending_index(tmp_path / "index", 3)
    with Index.open(index) as opened:
        assert publish_index(opened, tmp_path / "words", progress=False).branches == ("tokens",)
    mixed = make_index(tmp_path / "mixed", random_documents(5))
    with IndexWriter.open(mixed) as writer:
        writer.add([Document("new", "a new document")])
    message = refusal(mixed, tmp_path / "site")
    assert message.startswith("1 of 6 documents in index have no vectors yet")
    assert message.endswith("or publish words alone: --mode tokens")
    with Index.open(mixed) as opened:
        assert publish_index(opened, tmp_path / "site", mode="tokens", progress=False).documents == 6


def test_sparse_vectors_are_left_out_and_other_tokenizers_refused(tmp_path: Path) -> None:
    encoder = write_folder(tmp_path / "q", word_contract(), {"": {"embeddings": word_table()}})
    build_flat([animal_shard()], tmp_path / "index", query_encoder=encoder, progress=False)
    message = refusal(tmp_path / "index", tmp_path / "site")
    assert "the model's tokenizer has normalizer None, pre_tokenizer Whitespace, model WordLevel" in message
    assert "the index has no query table" not in message
    assert "has no sparse branch" in refusal(tmp_path / "index", tmp_path / "site", mode="sparse")
    with Index.open(tmp_path / "index") as index:
        written = publish_index(index, tmp_path / "site", mode="tokens", progress=False)
    assert (written.branches, written.left_out) == (("tokens",), ("dense", "sparse"))


def test_branches_that_an_index_lacks_are_refused(tmp_path: Path) -> None:
    with IndexWriter.create(tmp_path / "words") as writer:
        writer.add([Document("a", "cat")])
    assert "index words has no dense branch; it has tokens" in refusal(tmp_path / "words", tmp_path / "x", mode="dense")
    index = make_index(tmp_path, random_documents(5), options=IndexOptions(analyzer="model"))
    assert "counts term ids of the model, not words" in refusal(index, tmp_path / "site")
    with Index.open(index) as opened:
        assert publish_index(opened, tmp_path / "site", mode="dense", progress=False).branches == ("dense",)


def test_the_command_writes_a_site(pets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["publish", str(pets), "--out", str(tmp_path / "site")]) == 0
    shown = capsys.readouterr()
    assert shown.out == ""
    assert re.search(r"60 documents published \(dense, tokens; \d+ files, ", shown.err)
    assert main(["publish", str(pets), "--out", str(tmp_path / "site")]) == 1
    assert main(["publish", str(pets), "--out", str(tmp_path / "site"), "--overwrite", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["documents"] == 60


def test_the_page_needs_nothing_from_elsewhere_and_parses_no_text() -> None:
    html = (PAGE / "index.html").read_text()
    assert INLINE.findall(html) == []
    for path in PAGE.iterdir():
        text = path.read_text()
        assert HTML_FROM_TEXT.findall(text) == [], path.name
        assert re.findall(r"https?://", text) == [], path.name


@needs_node
@pytest.mark.skipif(not stems_as_the_page(), reason="this PyStemmer has an older English algorithm")
def test_stems_and_term_ids_are_those_of_the_libraries() -> None:
    rng = np.random.default_rng(0)
    endings = (
        "s ed ing ingly edly eed eedly ied ies tional ational alize ical ful ness ative ement ogist ogi li bli y e"
    )
    letters = [*"aeiouyaeiouybcdlnrstgpwx'"]
    words = {word.lower() for word in WORDS}
    for ending in [*endings.split(), "ll", "ion", ""]:
        words |= {"".join(rng.choice(letters, int(rng.integers(0, 7)))) + ending for _ in range(300)}
    stems = sorted(words | {"skis", "dying", "vying", "yying", "succeeding", "evenings", "universities", "news"})
    # The library knows an older Unicode; characters that changed their category since then may differ.
    older = unicodedata.ucd_3_2_0
    codes = [c for c in range(0x30000) if older.category(chr(c)) == unicodedata.category(chr(c)) not in ("Cn", "Cs")]
    characters = [chr(c) for c in codes if c not in (0x1885, 0x1886)]
    texts = [f"a{c}b {c}" for c in characters[::7]]
    texts += ["".join(rng.choice(characters[:600] + characters[::50], int(rng.integers(1, 12)))) for _ in range(3000)]
    texts += ["İSTANBUL", "ΣΟΦΟΣ", "[UNK] [PAD]", "e\u0301", "x" * 101, "it's", "a\tb\u00a0c\u2028d", ""]
    tokenizer = wordpiece()
    settings = wordpiece_settings(json.loads(tokenizer.backend.to_str()))
    asked = {"stems": stems, "ids": texts, "vocabulary": PIECES, "tokenizer": settings}
    command = [NODE, str(Path(__file__).parent / "words_of_page.mjs"), str(PAGE)]
    done = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, check=True)
    given = json.loads(done.stdout)
    assert dict(zip(stems, given["stems"], strict=True)) == {word: stem("english", word) for word in stems}
    rows = tokenizer.library_term_ids(texts)
    expected = [rows.row(i).tolist() for i in range(len(texts))]
    assert [text for text, ids, own in zip(texts, expected, given["ids"], strict=True) if ids != own] == []
