"""The query syntax on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lightir.cli.app import main
from lightir.eval import read_run
from lightir.types import Document

SHOP = Path(__file__).parents[2] / "examples" / "shop" / "products.csv"


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shop") / "index"
    arguments = ["index", SHOP, "--out", folder, "--fields", "id=sku,title=name,text=description", "--type", "ean=key"]
    assert main([*map(str, arguments), "--json"]) == 0
    return folder


def answer(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> Any:
    capsys.readouterr()
    assert main(["search", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def ids(result: Any) -> list[str]:
    return [hit["doc_id"] for hit in result["hits"]]


def test_a_query_has_the_syntax(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ids(answer(capsys, shop, '"steel kettle"')) == ["KT-100", "KT-102"]
    assert ids(answer(capsys, shop, "kettle -steel -brand:norda")) == ["KT-101", "KT-103"]
    assert ids(answer(capsys, shop, "steel price:24")) == ["KT-102"]
    assert ids(answer(capsys, shop, "refurbished:true")) == ["CF-502", "PT-302"]
    assert answer(capsys, shop, "brand:Norda -steel", "--total")["total"] == 10
    named = answer(capsys, shop, "a kettle kt-103?")["hits"]
    assert [hit.get("named", False) for hit in named[:2]] == [True, False]
    assert named[0]["doc_id"] == "KT-103"
    assert ids(answer(capsys, shop, "steel 0400638133404"))[0] == "KN-403"


def test_the_syntax_can_be_turned_off(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = answer(capsys, shop, "steel kettle brand norda", "-k", "9")
    assert ids(answer(capsys, shop, '"steel kettle" -brand:norda', "-k", "9", "--no-syntax")) == ids(words)
    assert ids(answer(capsys, shop, "kt-103", "--no-syntax")) == []


def test_queries_of_a_file_are_words_unless_asked(
    shop: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    queries, run = tmp_path / "queries.txt", tmp_path / "run"
    queries.write_text('"steel kettle"\nsteel -kettle -pan\n')
    rankings = {}
    for given in ("--no-syntax", "--syntax", ""):
        arguments = ["search", shop, "--queries", queries, "-k", "50", "--run", run, *filter(None, [given])]
        assert main([*map(str, arguments)]) == 0
        rankings[given] = [list(ranking.doc_ids) for ranking in read_run(run).values()]
    assert rankings[""] == rankings["--no-syntax"]
    assert rankings["--syntax"][0] == ["KT-100", "KT-102"]
    assert 0 < len(rankings["--syntax"][1]) < len(rankings[""][1])


def test_why_nothing_meets_the_conditions(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["search", str(shop), '"steel banana"']) == 0
    assert "no document meets the conditions of the query; --no-syntax" in capsys.readouterr().err
    assert main(["search", str(shop), "zebra -steel"]) == 0
    assert "no document has a word of the query" in capsys.readouterr().err
    assert main(["search", str(shop), "brand:norda"]) == 0
    assert "no good match" not in capsys.readouterr().err


def test_explanations_say_that_a_document_is_named(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["search", str(shop), "steel kt-103", "--doc-id", "KT-103"]) == 0
    assert "rank 1 of" in (shown := capsys.readouterr().out)
    assert "raised because the query names the document" in shown
    assert main(["search", str(shop), "steel kt-103", "--explain", "-k", "1"]) == 0
    assert "raised because the query names the document" in capsys.readouterr().out
    assert answer(capsys, shop, "steel kt-103", "--doc-id", "KT-103")["named"] is True
    assert main(["search", str(shop), "steel -kettle", "--doc-id", "KT-103"]) == 1
    assert "conditions" in capsys.readouterr().err


def test_evaluations_take_queries_as_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, index = tmp_path / "data", tmp_path / "index"
    (data / "qrels").mkdir(parents=True)
    documents = [Document("a", "steel kettle"), Document("b", "glass kettle")]
    rows = [json.dumps({"_id": one.doc_id, "title": "", "text": one.text}) for one in documents]
    (data / "corpus.jsonl").write_text("\n".join(rows))
    (data / "queries.jsonl").write_text(json.dumps({"_id": "q", "text": "kettle -steel"}))
    (data / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\ta\t1\n")
    assert main(["index", str(data), "--out", str(index)]) == 0
    values = {}
    for given in ("", "--no-syntax", "--syntax"):
        capsys.readouterr()
        arguments = ["evaluate", index, "--dataset", data, "--measures", "R@10", "--json", *filter(None, [given])]
        assert main([*map(str, arguments)]) == 0
        values[given] = json.dumps(json.loads(capsys.readouterr().out)["systems"])
    assert values[""] == values["--no-syntax"]
    assert values[""] != values["--syntax"]
