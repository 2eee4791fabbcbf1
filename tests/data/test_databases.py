"""Documents of SQLite databases and of Arrow files: typed values, lazily read, and nothing is written."""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from lightir.cli import main
from lightir.data import count_documents, read_documents, read_queries
from lightir.errors import InvalidInput
from lightir.lines import ReadOptions
from lightir.types import Document, Query

ROWS = [
    ("p1", "Kettle", "boils water", 19.5, 3),
    ("p2", "Pan", "fries \u00e4pples", None, 0),
    ("p3", "Pot", "", 7.0, 2**60),
]
BY_SKU = {"id": "sku", "title": "name", "text": "description"}


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    path = tmp_path / "shop.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE products (sku TEXT, name TEXT, description TEXT, price REAL, stock INTEGER)")
        connection.executemany("INSERT INTO products VALUES (?, ?, ?, ?, ?)", ROWS)
        connection.execute('CREATE TABLE "odd ""name" (id INTEGER PRIMARY KEY, text TEXT)')
        connection.execute("""INSERT INTO "odd ""name" VALUES (7, 'seven')""")
        connection.execute("CREATE VIEW cheap AS SELECT sku AS id, name AS text FROM products WHERE price < 10")
        connection.commit()
    return path


def expected() -> list[Document]:
    return [Document(sku, text, name, {"price": price, "stock": stock}) for sku, name, text, price, stock in ROWS]


def test_the_rows_of_a_table_are_documents_with_typed_metadata(shop: Path) -> None:
    before = hashlib.sha256(shop.read_bytes()).hexdigest()
    options = ReadOptions(table="products")
    assert list(read_documents(shop, fields=BY_SKU, options=options)) == expected()
    assert count_documents(shop, options=options) == 3
    odd = list(read_documents(shop, options=ReadOptions(table='odd "name')))
    assert odd == [Document("7", "seven", "", {})]
    assert [d.doc_id for d in read_documents(shop, options=ReadOptions(table="cheap"))] == ["p3"]
    assert hashlib.sha256(shop.read_bytes()).hexdigest() == before
    assert [path.name for path in shop.parent.iterdir()] == ["shop.sqlite"]


def test_the_rows_of_a_query_are_documents(shop: Path) -> None:
    sql = "SELECT sku AS id, description AS text, stock FROM products WHERE stock > 0 ORDER BY sku DESC;"
    options = ReadOptions(sql=sql)
    documents = list(read_documents(shop, options=options))
    assert documents == [Document("p3", "", "", {"stock": 2**60}), Document("p1", "boils water", "", {"stock": 3})]
    assert count_documents(shop, options=options) is None


def test_a_database_with_one_table_needs_no_choice(tmp_path: Path) -> None:
    path = tmp_path / "queries.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE q (id INTEGER PRIMARY KEY AUTOINCREMENT, text TEXT)")  # adds sqlite_sequence
        connection.execute("INSERT INTO q (text) VALUES ('kettle')")
        connection.commit()
    assert list(read_queries(path)) == [Query("1", "kettle", {})]


def test_rows_are_read_as_they_are_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "many.sqlite3"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE t (id INTEGER, text TEXT)")
        rows = ((i, "x" if i < 3000 else None) for i in range(3001))
        connection.executemany("INSERT INTO t VALUES (?, ?)", rows)
        connection.commit()
    documents = read_documents(path)
    assert [next(documents).doc_id for _ in range(3000)][-1] == "2999"
    with pytest.raises(InvalidInput, match=r"many\.sqlite3, row 3001: text"):
        next(documents)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (ReadOptions(), r'no table is chosen; choose one with --table: cheap, odd "name, products'),
        (ReadOptions(table="product"), "there is no table 'product'; choose one with --table: cheap"),
        (ReadOptions(sql="SELECT absent FROM products"), "no such column: absent"),
        (ReadOptions(sql="DELETE FROM products RETURNING sku AS id, name AS text"), "readonly database"),
        (ReadOptions(sql="PRAGMA query_only = OFF"), "is not a query that returns rows"),
        (ReadOptions(sql="ATTACH 'other.db' AS other"), "not authorized"),
        (ReadOptions(sql="SELECT 1 AS id, 'x' AS text; DROP TABLE products"), "one statement at a time"),
        (ReadOptions(sql="SELECT sku AS id, name AS text, name AS text FROM products"), "two columns 'text'"),
        (ReadOptions(sql="SELECT sku AS id, name AS text, x'00ff' AS raw FROM products"), "row 1: raw is bytes"),
        (ReadOptions(sql="SELECT sku AS id, name AS text, 9e999 AS x FROM products"), "row 1: x is inf"),
        (ReadOptions(sql="SELECT 'a' AS id, CAST(x'ff' AS TEXT) AS text"), "cannot be read by SQLite"),
        (ReadOptions(sql="SELECT 'a' AS id, name AS text FROM products"), "row 2: duplicate id 'a'"),
    ],
)
def test_what_is_no_corpus_is_refused_by_name(
    shop: Path, options: ReadOptions, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(shop.parent)
    before = shop.read_bytes()
    with pytest.raises(InvalidInput, match=message):
        list(read_documents(shop, options=options))
    assert shop.read_bytes() == before
    assert [path.name for path in shop.parent.iterdir()] == ["shop.sqlite"]


def test_damaged_and_empty_databases_are_refused(shop: Path, tmp_path: Path) -> None:
    (tmp_path / "text.db").write_bytes(b"no database at all, but long enough to be read as a header" * 10)
    (tmp_path / "empty.db").write_bytes(b"")
    content = bytearray(shop.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    (tmp_path / "damaged.sqlite").write_bytes(content)
    for name, message in [("text", "not a database"), ("empty", "no tables"), ("damaged", "malformed")]:
        with pytest.raises(InvalidInput, match=message):
            list(read_documents(next(tmp_path.glob(f"{name}.*")), options=ReadOptions(table="products")))
    (tmp_path / "a.jsonl").write_text('{"id": "a", "text": "b"}\n')
    with pytest.raises(InvalidInput, match=r"none of the files ends in \.sqlite"):
        list(read_documents(tmp_path / "a.jsonl", options=ReadOptions(table="t")))
    with pytest.raises(InvalidInput, match="exclude each other"):
        ReadOptions(table="a", sql="b")


def test_the_command_indexes_a_table_and_keeps_the_types(
    shop: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fields = ["--fields", "id=sku,title=name,text=description"]
    assert main(["index", str(shop), "--table", "products", "--out", str(tmp_path / "i"), *fields]) == 0
    capsys.readouterr()
    assert main(["search", str(tmp_path / "i"), "kettle", "--filter", '{"price": {"gt": 19}}', "--json"]) == 0
    (hit,) = json.loads(capsys.readouterr().out)["hits"]
    assert (hit["doc_id"], hit["metadata"]) == ("p1", {"price": 19.5, "stock": 3})
    assert main(["index", str(shop), "--out", str(tmp_path / "j")]) == 1
    assert "choose one with --table" in capsys.readouterr().err
    assert not (tmp_path / "j").exists()


def write_stream(pyarrow: Any, table: Any, path: Path) -> None:
    with pyarrow.ipc.new_stream(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=2)


def write_file(pyarrow: Any, table: Any, path: Path) -> None:
    with pyarrow.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table)


@pytest.mark.parametrize("write", [write_stream, write_file])
def test_the_rows_of_an_arrow_file_are_documents(write: Callable[..., None], tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    columns = ("sku", "name", "description", "price", "stock")
    path = tmp_path / "shop.arrow"
    write(pyarrow, pyarrow.Table.from_pylist([dict(zip(columns, row, strict=True)) for row in ROWS]), path)
    assert list(read_documents(path, fields=BY_SKU)) == expected()
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(InvalidInput, match=r"shop\.arrow, after row \d: no Arrow file, or a damaged one"):
        list(read_documents(path, fields=BY_SKU))


def test_a_data_set_that_was_saved_to_disk_is_read_in_order(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = [{"id": i, "text": f"text {i}", "kind": "ab"[i % 2], "tags": ["x"] * (i % 3)} for i in range(50)]
    data_set = datasets.Dataset.from_list(rows)
    wanted = [Document(str(row["id"]), row["text"], "", {"kind": row["kind"], "tags": row["tags"]}) for row in rows]
    data_set.save_to_disk(str(tmp_path / "saved"), num_shards=3)
    assert list(read_documents(tmp_path / "saved")) == wanted
    data_set.select(range(49, -1, -1)).save_to_disk(str(tmp_path / "reversed"))
    assert list(read_documents(tmp_path / "reversed")) == wanted[::-1]
    datasets.DatasetDict({"train": data_set, "test": data_set.select([3])}).save_to_disk(str(tmp_path / "splits"))
    assert list(read_documents(tmp_path / "splits" / "test")) == wanted[3:4]
    with pytest.raises(InvalidInput, match=r"with splits; name one of them: .*splits/train, .*splits/test"):
        list(read_documents(tmp_path / "splits"))
    next((tmp_path / "saved").glob("*-00001-*")).unlink()
    with pytest.raises(InvalidInput, match=r"lacks data-00001-of-00003\.arrow"):
        list(read_documents(tmp_path / "saved"))
    shutil.copytree(tmp_path / "reversed", tmp_path / "odd")
    (tmp_path / "odd" / "state.json").write_text("[]")
    with pytest.raises(InvalidInput, match=r"state\.json does not describe a data set"):
        list(read_documents(tmp_path / "odd"))
