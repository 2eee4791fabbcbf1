"""Files of every format that other programs wrote, and damaged ones."""

from __future__ import annotations

import gzip
import io
import json
import shutil
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from lightir.data import read_documents
from lightir.data.formats import FORMATS, FileText, extract
from lightir.data.formats.pdf import with_headings
from lightir.errors import InvalidInput, LightirError, MissingExtra
from lightir.lines import ReadOptions

FILES = Path(__file__).parent / "files"
GERMAN = "Die Straße führt über die Brücke zum grünen Hügel."
FRENCH = "L'élève a mangé des crêpes à l'hôtel « près de la forêt » – c'était très bon."
POLISH = "Zażółć gęślą jaźń, a potem idź do łóżka, bo późno już i światło zgasło w całym domu."
RUSSIAN = " ".join(["Съешь же ещё этих мягких французских булок, да выпей чаю."] * 3)
SAFETY = "Never open the lid while the water boils."
CHILDREN = "Keep the cord away from the edge of the table, since a child may pull it."
CONVERTED = ("handbook.pdf", "handbook.docx", "handbook.pptx", "handbook.epub", "handbook.html", "stock.xlsx")


def read(name: str) -> FileText:
    return extract(FILES / name, ReadOptions())


@pytest.fixture(autouse=True)
def with_extra() -> None:
    for module in ("bs4", "lxml", "markdownify", "mammoth", "pptx", "openpyxl", "pypdfium2"):
        pytest.importorskip(module, reason="requires lightir[files]")


@pytest.mark.parametrize("suffix", ["pdf", "docx", "pptx", "epub", "html", "md"])
def test_a_handbook_has_its_title_texts_and_headings_in_every_format(suffix: str) -> None:
    content = read(f"handbook.{suffix}")
    assert content.title == "The kettle handbook"
    text = " ".join(content.text.split())
    order = [text.index(part) for part in ("# ", SAFETY, CHILDREN, "Descale the kettle every month.")]
    assert order == sorted(order)
    lines = content.text.replace("\f", "\n").splitlines()
    headings = [line.lstrip("#0123456789. ") for line in lines if line.startswith("#")]
    wanted = ["Safety", "Cleaning"] if suffix == "pptx" else ["Safety", "Children", "Cleaning"]
    assert [heading for heading in headings if heading in wanted] == wanted


def test_pages_are_separated_by_form_feeds() -> None:
    pages = read("handbook.pdf").text.split("\f")
    assert read("handbook.pdf").metadata == {"author": "Ada Brewer", "pages": 3}
    assert [SAFETY in page.replace("\n", " ") for page in pages] == [False, True, False]
    assert pages[2].startswith("# 2 Cleaning\n")
    slides = read("handbook.pptx").text.split("\f")
    assert slides[1].startswith(f"## Safety\n\n{SAFETY}")
    assert "hard | two weeks" in slides[2]
    chapters = read("handbook.epub").text.split("\f")
    assert [chapter.split("\n")[0] for chapter in chapters[1:]] == ["# Safety", "# Cleaning"]


def test_hyphenated_words_of_a_pdf_are_whole() -> None:
    words = read("handbook.pdf").text.split()
    for word in (
        "uncomfortable",
        "thermostat",
        "inexpensive",
        "necessarily",
        "immediately.",
        "Manufacturers",
        "extraordinary",
    ):
        assert word in words


@pytest.mark.parametrize("suffix", ["docx", "epub", "html"])
def test_tables_and_lists_are_markdown(suffix: str) -> None:
    text = read(f"handbook.{suffix}").text
    assert "| hard | two weeks |" in text
    assert "* Rinse it twice." in text
    assert "straßenweise" in text


def test_a_workbook_has_a_line_for_each_row() -> None:
    assert read("stock.xlsx").text == "## t\n\nPart | Price | Stock\nWX-4821-B | 19.9 | 12\nLid | 3 | 0"


def test_an_e_mail_has_subject_sender_and_plain_text() -> None:
    content = read("question.eml")
    assert content.title == "Kettle für Büro"
    assert content.text == "How often must the kettle be descaled? Viele Grüße"
    assert content.metadata["from"] == "Bo Tea <bo@example.org>"
    raw = b"Subject: x\nContent-Type: text/html; charset=utf-8\n\n<p>only <b>HTML</b></p>"
    assert reading(raw, ".eml").text == "only **HTML**"


def test_a_notebook_has_its_cells_without_outputs() -> None:
    content = read("steam.ipynb")
    assert content.title == "Steam"
    assert content.text == ("# Steam\n\nHow much steam leaves the spout?\n\n```python\ngrams = 42\nprint(grams)\n```")


def test_a_page_is_its_main_part() -> None:
    page = """<html lang="de"><head><title>Wasser  kochen</title><script>var x</script></head><body>
        <nav>Start Kontakt</nav><header>Firma</header>
        <main><header><h1>Kochen</h1></header><p>Wasser <a href="/x">siedet</a>
        bei 100&nbsp;Grad.</p><p hidden>verborgen</p><aside>Werbung</aside><form>Suche</form></main>
        <footer>Impressum</footer></body></html>"""
    content = reading(page.encode(), ".html")
    assert content == FileText("# Kochen\n\nWasser siedet\nbei 100\xa0Grad.", "Wasser kochen", {"language": "de"})
    assert reading(b"<p>no main, <div role=navigation>menu</div> no title</p>", ".htm").text == "no main,\n\nno title"
    declared = '<meta charset="iso-8859-1"><p>gr\xfc\xdfe</p>'.encode("latin-1")
    assert reading(declared, ".html").text == "gr\xfc\xdfe"


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"\xef\xbb\xbfmark", "mark"),
        ("grüße".encode("utf-16"), "grüße"),
        (b"\xfe\xff\x00a", "a"),
        (GERMAN.encode("latin-1"), GERMAN),
        (FRENCH.encode("cp1252"), FRENCH),
        (POLISH.encode("cp1250"), POLISH),
        (RUSSIAN.encode("cp1251"), RUSSIAN),
        (b"line\r\nends", "line\r\nends"),
    ],
    ids=["utf-8-sig", "utf-16", "utf-16-be", "latin-1", "cp1252", "cp1250", "cp1251", "crlf"],
)
def test_encodings_are_recognized(raw: bytes, text: str) -> None:
    assert reading(raw, ".txt").text == text


def test_front_matter_or_the_first_heading_gives_the_title() -> None:
    assert reading(b'---\ntitle: "Tea"\ntags: x\n---\n# Other\n', ".md").title == "Tea"
    assert reading(b"---\ntags: x\n---\n## Second ##\n", ".md").title == "Second"
    assert reading(b"no heading\n#hashtag", ".md").title == ""


def test_headings_of_a_pdf_are_the_lines_that_its_table_of_contents_names() -> None:
    page = "Header\n2.1 Results of 3 runs\ntext about Results of 3 runs\nSummary"
    entries = [("Results of 3 runs", 2), ("Missing", 1), ("3 Summary", 1)]
    assert with_headings(page, entries) == "Header\n## 2.1 Results of 3 runs\ntext about Results of 3 runs\n# Summary"


def test_a_gzipped_file_is_read_under_the_suffix_inside(tmp_path: Path) -> None:
    (tmp_path / "a.md.gz").write_bytes(gzip.compress(b"# Tea"))
    (document,) = read_documents(tmp_path / "a.md.gz")
    assert (document.title, document.metadata["type"]) == ("Tea", "md")


def test_a_folder_of_every_format_is_read(tmp_path: Path) -> None:
    shutil.copytree(FILES, tmp_path / "files")
    documents = {document.doc_id: document for document in read_documents(tmp_path / "files")}
    assert sorted(documents) == sorted(f"files/{path.name}" for path in FILES.iterdir())
    assert documents["files/handbook.pdf"].metadata["pages"] == 3
    assert documents["files/handbook.pdf"].metadata["folder"] == "files"


@pytest.mark.parametrize("name", CONVERTED)
def test_damaged_files_are_refused_by_name(name: str, tmp_path: Path) -> None:
    """Cut, emptied, and with a byte of each part changed: an error with the file's name, or a text."""
    whole = (FILES / name).read_bytes()
    damaged = tmp_path / name
    pieces = [whole[: len(whole) * i // 5] for i in range(5)]
    flipped = [
        whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :] for at in range(0, len(whole), len(whole) // 40)
    ]
    n_refused = 0
    for raw in (*pieces, *flipped, b"\0" * 100, b"text"):
        damaged.write_bytes(raw)
        try:
            extract(damaged, ReadOptions())
        except LightirError as error:
            assert str(damaged) in str(error)  # noqa: PT017
            n_refused += 1
    assert n_refused or name.endswith("html")


@pytest.mark.parametrize("suffix", [".docx", ".pptx", ".xlsx", ".epub"])
def test_an_archive_that_would_fill_the_memory_is_refused(suffix: str) -> None:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as bomb:
        bomb.writestr("word/document.xml", b" " * 2_000_000)
    with pytest.raises(
        InvalidInput, match=r"text in the archive has 2,000,000 bytes, more than the limit of 1,000,000"
    ):
        reading(archive.getvalue(), suffix, max_document_bytes=1_000_000)


def test_hostile_files_are_refused() -> None:
    deep = b"<div>" * 30_000 + b"x"
    assert "nested too deeply" in reading_or_error(deep, ".html")
    with pytest.raises(InvalidInput, match="not a Jupyter notebook"):
        reading(b"[" * 100_000, ".ipynb")
    for notebook in ([], {"cells": 1}, {"cells": [1]}, {"cells": [{}]}, {"metadata": 3, "cells": []}):
        assert "notebook" in reading_or_error(json.dumps(notebook).encode(), ".ipynb") or notebook == {"cells": [{}]}
    with pytest.raises(InvalidInput, match="no headers"):
        reading(b"\n\nbody", ".eml")
    entities = b'<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa">' + b"".join(
        b'<!ENTITY a%d "%s">' % (i, (b"&a%d;" % (i - 1) if i else b"&a;") * 10) for i in range(9)
    )
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as bomb:
        bomb.writestr("META-INF/container.xml", entities + b"]><x>&a8;</x>")
    with pytest.raises(InvalidInput, match="no EPUB file"):
        reading(archive.getvalue(), ".epub")


def test_a_missing_library_is_named_once_and_the_other_files_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "pypdfium2", None)
    for name in ("a.pdf", "b.pdf"):
        (tmp_path / name).write_bytes((FILES / "handbook.pdf").read_bytes())
    (tmp_path / "c.txt").write_text("text")
    assert [document.text for document in read_documents(tmp_path)] == ["text"]
    messages = [record.getMessage() for record in caplog.records]
    assert messages == [
        "skipped: pypdfium2 is needed to read .pdf files: pip install 'lightir[files]'",
        f"{tmp_path}: skipped files that cannot be read: 2",
    ]
    with pytest.raises(MissingExtra):
        list(read_documents(tmp_path / "a.pdf"))


def test_every_suffix_has_a_reader() -> None:
    for suffix in FORMATS:
        assert isinstance(reading_or_error(b"x", suffix), str)


def reading(raw: bytes, suffix: str, **options: Any) -> FileText:
    """Read bytes as a file of a suffix."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"file{suffix}")
        path.write_bytes(raw)
        return extract(path, ReadOptions(**options))


def reading_or_error(raw: bytes, suffix: str) -> str:
    """Return the text of a file, or the message of its InvalidInput."""
    try:
        return reading(raw, suffix).text
    except InvalidInput as error:
        return str(error)
