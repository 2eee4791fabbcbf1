"""Promises of every command: exit codes, streams, shapes of JSON, errors of one line."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from lightir.addresses import shipped_models
from lightir.cli import doctor
from lightir.cli.app import COMMANDS, build_parser, command_parsers, load_command, main
from lightir.cli.train import describe_losses
from lightir.data import read_documents
from lightir.index import Index, IndexWriter, build_index, document_shards
from lightir.types import Document

ROOT = Path(__file__).resolve().parents[2]
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


def test_the_command_line_is_built_without_torch():
    code = (
        "import sys, lightir.cli; lightir.cli.build_parser();"
        "print([name for name in ('torch', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize(("command", "hint"), [("encode", "--resume"), ("demo", "to continue"), ("search", "")])
def test_an_interrupted_command_says_what_is_kept(command, hint, monkeypatch, capfd):
    def interrupted(args):
        raise KeyboardInterrupt

    monkeypatch.setattr(load_command(command), "run", interrupted)
    arguments = {"encode": ["minilm", "corpus.jsonl", "-o", "v"], "demo": [], "search": ["index", "a question"]}
    assert main([command, *arguments[command]]) == 130
    assert capfd.readouterr().err.rstrip() == (
        f"lightir: interrupted; {load_command(command).ON_INTERRUPT}" if hint else "lightir: interrupted"
    )
    assert hint in getattr(load_command(command), "ON_INTERRUPT", "")


@pytest.mark.parametrize(("given", "expected"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_idle_threads_of_torch_sleep_unless_the_user_chose_otherwise(given, expected, monkeypatch):
    policies = []
    monkeypatch.setenv("OMP_WAIT_POLICY", given or "")
    if given is None:
        monkeypatch.delenv("OMP_WAIT_POLICY")
    monkeypatch.setattr(load_command("demo"), "run", lambda args: policies.append(os.environ["OMP_WAIT_POLICY"]))
    assert main(["demo"]) == 0
    assert policies == [expected]


def test_light_commands_run_without_torch(bm25_index, dataset, tmp_path):
    code = (
        "import sys; sys.modules['torch'] = sys.modules['transformers'] = None\n"
        "from lightir.cli import main\n"
        f"for arguments in (['search', {str(bm25_index)!r}, 'river'], ['info', {str(bm25_index)!r}], ['doctor'],\n"
        f"        ['mine', {str(dataset)!r}, '-o', {str(tmp_path / 'negatives.jsonl')!r}]):\n"
        "    assert main(arguments) == 0"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_command_with_a_missing_package_names_the_extra(bm25_index, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "lightir.json").write_text("{}")
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from lightir.cli import main\n"
        f"raise SystemExit(main(['cache', {str(tmp_path / 'model')!r}, '--out', {str(tmp_path / 'out')!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("lightir: error: ")
    assert "pip install 'lightir[train]'" in done.stderr


@pytest.mark.parametrize("room", ["lightir.encode", "lightir.models.encoder"])
def test_a_module_with_a_missing_package_names_the_extra(room):
    code = f"import sys; sys.modules['torch'] = None\nimport {room}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1].startswith("lightir.errors.MissingExtra: torch is needed")
    assert "pip install 'lightir[train]'" in done.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_examples(name, capsys):
    with pytest.raises(SystemExit) as stop:
        main([name, "--help"])
    assert stop.value.code == 0
    shown = capsys.readouterr().out
    assert "examples:" in shown
    assert f"lightir {name}" in shown
    assert load_command(name).HELP[0].islower()


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_in_the_help_can_be_parsed(name):
    calls = re.findall(r"""(?<![\w/])lightir ((?:"[^"\n]*"|[^|&>()\n])+)""", load_command(name).EXAMPLES)
    assert calls
    for call in calls:
        words = re.findall(r""""[^"]*"|'[^']*'|\S+""", re.split(r"\s{3,}", call)[0])
        assert build_parser().parse_args([word.strip("\"'") for word in words]).command in COMMANDS


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nope"],
        ["search"],
        ["search", "i", "q", "--k", "1"],
        ["search", "i", "q", "-k", "0"],
        ["search", "i", "q", "-k", "9" * 20],
        ["search", "i", "q", "--filter", "[" * 100_000],
        ["search", "i", "q", "--weights", "tokens=1,tokens=2"],
    ],
)
def test_misuse_is_exit_code_2(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serach", "i"], "lightir: error: unknown command 'serach'; did you mean search?\n"),
        (
            ["search", "i", "q", "--modes", "x"],
            "lightir search: error: unknown option --modes; did you mean --mode?\n",
        ),
        (["search", "i", "q", "--explian=1", "--mode", "x"], "did you mean --explain?"),
        (["encode", "m", "c", "--out", "v", "--model", "m"], "lightir encode: error: unknown option --model\n"),
        (["search", "i", "q", "--fusion", "liner"], "error: --fusion is 'liner'; did you mean linear?"),
        (
            ["convert", "zz", "f", "-o", "o"],
            "error: LAYOUT is 'zz'; expected one of tevatron, dpr, sent",
        ),
        (["encode", "minilm", "--out", "v"], "the following arguments are required: CORPUS\nusage: lightir encode"),
        (["verify", "i", "j"], "lightir verify: error: unexpected argument j\n"),
        (["search", "i", "q", "--zzzz"], "lightir search: error: unknown option --zzzz\n"),
        (
            ["search", "i", "how", "do", "vaccines", "work"],
            "unexpected arguments do vaccines work; put quotes around a query of several words",
        ),
        (["search", "i", "q", "-k", "many"], "argument -k: 'many' is not an integer"),
        (["search", "i", "q", "--filter", "lang=en"], """expected an object, such as '{"lang": "en"}'"""),
    ],
)
def test_a_misspelled_word_gets_a_suggestion(arguments, message, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert ("usage: lightir" in shown) == ("arguments are required" in shown)  # other messages say all


def test_a_search_without_a_query_says_that_it_is_missing(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["search", "shop"])
    assert stop.value.code == 2
    assert 'the query is missing: lightir search shop "your question"' in capsys.readouterr().err


def test_train_says_how_the_loss_fell_and_where_the_curves_are(tmp_path):
    log = tmp_path / "training" / "log.jsonl"
    log.parent.mkdir()
    log.write_text('{"step": 1, "loss": 3.5}\n{"step": 1, "development": {"mean": 0.5}}\n{"step": 2, "loss": 1.25}\n')
    told = f"loss 3.5 in the first step and 1.25 in the last; every step is in {log}"
    assert describe_losses(tmp_path) == told
    (log.parent / "tensorboard").mkdir()
    assert describe_losses(tmp_path) == f"{told}, curves for TensorBoard in {log.parent / 'tensorboard'}"


def test_a_long_command_prints_its_progress_where_stderr_is_no_terminal(tmp_path, monkeypatch, capsys):
    (tmp_path / "c.jsonl").write_text('{"_id": "a", "text": "river"}\n{"_id": "b", "text": "engine"}\n')
    main(["index", str(tmp_path / "c.jsonl"), "--out", str(tmp_path / "short")])
    assert "index: " not in capsys.readouterr().err
    monkeypatch.setattr("lightir.progress.MESSAGE_EVERY_S", 0.0)
    main(["index", str(tmp_path / "c.jsonl"), "--out", str(tmp_path / "long")])
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(",")[0] for line in lines[:2]] == ["index: 2 documents"] * 2
    assert "2 documents indexed" in lines[2]


def test_options_may_come_between_positional_arguments(bm25_index, capsys):
    """argparse alone refuses `lightir search index -k 3 "a question"`."""
    between = ["search", str(bm25_index), "-k", "1", "about the river", "--json"]
    before = ["search", "--json", "-k", "1", str(bm25_index), "about the river"]
    rankings = []
    for arguments in (between, before):
        assert main(arguments) == 0
        rankings.append([hit["doc_id"] for hit in json.loads(capsys.readouterr().out)["hits"]])
    assert rankings == [["d-river"]] * 2
    parse = build_parser().parse_args
    assert parse(["delete", "i", "a", "--json", "b"]).doc_ids == ["a", "b"]
    assert parse(["search", "i", "--", "-k"]).query == "-k"


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ([], []),
        (["--docs", "3"], ["--docs", "3"]),
        (["--", "--docs", "3"], ["--docs", "3"]),
        (["--help"], ["--help"]),
        (["3", "--json"], ["3", "--json"]),
    ],
)
def test_options_after_the_name_of_a_benchmark_are_its_own(arguments, options):
    args = build_parser().parse_args(["bench", "engine", *arguments])
    assert (args.name, args.options) == ("engine", options)


def test_search_requires_exactly_one_source_of_queries(bm25_index):
    for arguments in (
        ["search", bm25_index],
        ["search", bm25_index, "a", "--queries", "f"],
        ["search", bm25_index, "a", "--split", "test"],
        ["search", bm25_index, "a", "--run", "f"],
    ):
        with pytest.raises(SystemExit) as stop:
            main([str(argument) for argument in arguments])
        assert stop.value.code == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["search", "nowhere", "query"], "nowhere"),
        (["info", "nowhere"], "nowhere does not exist"),
        (["info", "{tmp}"], "is not an index, vectors, query-encoder or model folder"),
        (["verify", "nowhere"], "nowhere"),
        (["index", "nowhere.jsonl", "--out", "{tmp}/i"], "nowhere.jsonl"),
        (["evaluate", "nowhere", "--dataset", "{tmp}"], "{tmp}"),
        pytest.param(["encode", "nowhere/model", "{tmp}/c.jsonl", "--out", "{tmp}/v"], "c.jsonl", marks=needs_torch),
        pytest.param(["train", "nowhere.yaml", "--out", "{tmp}/m"], "nowhere.yaml", marks=needs_torch),
        (["search", "{index}", "river", "--task", "nope"], "nope"),
        (["bench", "nothing"], "bench"),  # that it is unknown, or that there are none without a checkout
    ],
)
def test_missing_input_is_named_in_one_line(arguments, message, bm25_index, tmp_path, capsys):
    code = main([argument.format(tmp=tmp_path, index=bm25_index) for argument in arguments])
    captured = capsys.readouterr()
    assert code == 1
    assert captured.out == ""
    assert captured.err.startswith("lightir: error: ")
    assert len(captured.err.splitlines()) == 1
    assert message.format(tmp=tmp_path) in captured.err


def test_a_wrong_line_is_named_with_its_file_and_number(tmp_path, capsys):
    file = tmp_path / "corpus.jsonl"
    file.write_text('{"_id": "a", "text": "fine"}\nnot json\n')
    assert main(["index", str(file), "--out", str(tmp_path / "index")]) == 1
    assert re.search(r"corpus\.jsonl, line 2", capsys.readouterr().err)
    assert not (tmp_path / "index").exists()


def test_an_index_is_not_overwritten_unless_asked(bm25_index, dataset, capsys):
    again = ["index", str(dataset), "--out", str(bm25_index)]
    assert main(again) == 1
    assert re.search("exists; .*, or use --overwrite to replace it\n", capsys.readouterr().err)
    assert main(["index", str(dataset), "--out", str(dataset), "--overwrite"]) == 1
    shown = capsys.readouterr().err
    assert "is another kind of folder and is not replaced" in shown
    assert "--overwrite" not in shown


def test_traceback_is_shown_when_asked_for(capsys):
    assert main(["info", "nowhere", "--traceback"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_search_json_has_its_promised_shape(bm25_index, capsys):
    assert main(["search", str(bm25_index), "about the river", "-k", "3", "--json", "--explain"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert output.keys() == {"query", "mode", "took_ms", "hits"}
    assert (output["query"], output["mode"]) == ("about the river", "tokens")
    hit = output["hits"][0]
    fields = {"doc_id", "score", "pending", "title", "snippet", "highlights", "metadata", "branches"}
    assert hit.keys() == {*fields, "terms"}
    assert hit["doc_id"] == "d-river"
    assert hit["branches"]["tokens"].keys() == {"score", "rank", "normalized", "weight"}
    assert hit["terms"][0].keys() == {"term", "weight", "score", "word"}
    assert main(["search", str(bm25_index), "about the river", "-k", "3", "--json"]) == 0
    hit = json.loads(capsys.readouterr().out)["hits"][0]
    assert hit.keys() == fields
    assert hit["branches"]["tokens"].keys() == {"score", "rank"}


def test_depth_limits_the_candidates_of_a_branch(bm25_index, capsys):
    assert main(["search", str(bm25_index), "about the river and bread", "--json"]) == 0
    last = json.loads(capsys.readouterr().out)["hits"][-1]["doc_id"]
    asked = ["search", str(bm25_index), "about the river and bread", "--doc-id", last]
    assert main(asked) == 0
    assert "not among" not in capsys.readouterr().out
    assert main([*asked, "--depth", "1"]) == 0
    assert "not among the 1 candidate" in capsys.readouterr().out


def test_documents_are_explained_whether_found_or_not(bm25_index, capsys):
    arguments = ["search", str(bm25_index), "about the river", "--doc-id"]
    assert main([*arguments, "d-river", "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    branch = output["branches"]["tokens"]
    assert (output["doc_id"], output["rank"], output["fusion"]) == ("d-river", 1, "linear:none")
    assert output["score"] == branch["weight"] * branch["normalized"] == branch["score"]
    assert sum(term["score"] for term in branch["terms"]) == pytest.approx(branch["score"])
    assert main(["search", str(bm25_index), "river", "--doc-id", "d-bread"]) == 0
    assert "not among the 1 candidate" in capsys.readouterr().out
    assert main([*arguments, "nowhere"]) == 1
    assert "no document 'nowhere'" in capsys.readouterr().err


def test_queries_from_stdin_stream_as_json_lines(lightir, bm25_index):
    done = lightir("search", bm25_index, "-", "--json", stdin="river\n\nbread\n")
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [answer["query"] for answer in answers] == ["river", "bread"]
    assert [answer["hits"][0]["doc_id"] for answer in answers] == ["d-river", "d-bread"]


def test_queries_and_ids_from_stdin_are_utf8_in_every_locale(bm25_index, tmp_path):
    copy = tmp_path / "index"
    shutil.copytree(bm25_index, copy)

    def call(stdin, *arguments, encoding="latin-1"):
        command = [sys.executable, "-m", "lightir", *map(str, arguments)]
        return subprocess.run(
            command, input=stdin, capture_output=True, env={**os.environ, "PYTHONIOENCODING": encoding}
        )

    shown = call("疫苗 é river 🍕\r\n".encode(), "search", copy, "-", "--json")
    assert json.loads(shown.stdout)["query"] == "疫苗 é river 🍕"
    assert shown.stdout.isascii()
    shown = call("疫苗 river".encode(), "search", copy, "-", encoding="ascii")
    assert shown.stdout.startswith(rb"\u75ab\u82d7 river")
    for encoding in ("utf-8:strict", "latin-1"):
        for arguments in (("search", copy, "-"), ("delete", copy, "--ids", "-")):
            refused = call(b"river\n\xff\n", *arguments, encoding=encoding)
            assert refused.returncode == 1
            assert refused.stderr.decode().endswith("stdin, line 2: invalid UTF-8 (byte 0xff at position 0)\n")
    assert b'"deleted": 1,' in call(b"\xef\xbb\xbfd-river\r\n\n", "delete", copy, "--ids", "-", "--json").stdout


def test_a_query_from_stdin_is_searched_in_the_newest_commit(bm25_index, tmp_path, monkeypatch, capsys):
    index = shutil.copytree(bm25_index, tmp_path / "index")

    def typed():
        yield 1, "zeppelin"
        with IndexWriter.open(index) as writer:
            writer.add([Document("new", "a zeppelin")])
        yield 2, "zeppelin"

    monkeypatch.setattr("lightir.lines.read_stdin_lines", typed)
    assert main(["search", str(index), "-", "--json"]) == 0
    rankings = [json.loads(line)["hits"] for line in capsys.readouterr().out.splitlines()]
    assert [[hit["doc_id"] for hit in hits] for hits in rankings] == [[], ["new"]]


def test_mirror_makes_an_index_equal_to_a_folder(tmp_path, capsys):
    notes, index = tmp_path / "notes", tmp_path / "index"
    notes.mkdir()
    for name in "abc":
        (notes / f"{name}.md").write_text(f"all about {name * 3}")
    assert main(["index", str(notes), "--out", str(index)]) == 0
    (notes / "a.md").unlink()
    (notes / "b.md").write_text("changed")
    (notes / "d.md").write_text("new")
    mirror = ["add", str(index), str(notes), "--mirror"]
    assert main([*mirror, "--dry-run", "--json"]) == 0
    preview = json.loads(capsys.readouterr().out)
    assert [preview[name] for name in ("dry_run", "added", "replaced", "unchanged", "removed")] == [True, 1, 1, 1, 1]
    assert main([*mirror, "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert {name: output[name] for name in ("added", "unchanged", "removed", "documents")} == {
        "added": 2,
        "unchanged": 1,
        "removed": 1,
        "documents": 3,
    }
    with Index.open(index) as opened:
        documents = opened.documents(["notes/b.md", "notes/c.md", "notes/d.md"])
        assert [document.text for document in documents] == ["changed", "all about ccc", "new"]
        assert opened.doc_ord("notes/a.md") is None
        (notes / "d.md").unlink()
        assert main([*mirror, "--dry-run"]) == 0
        assert "would add 0 documents, replace 0, leave 2 unchanged, rename 0 and delete 1" in capsys.readouterr().err
        assert main(mirror) == 0
        assert "0 documents added, 2 unchanged, 1 deleted; 2 in total" in capsys.readouterr().err
        assert main(["add", str(index), os.devnull, "--mirror"]) != 0
        (tmp_path / "none.jsonl").touch()
        assert main(["add", str(index), str(tmp_path / "none.jsonl"), "--mirror"]) == 1
        assert "all documents of the index would be deleted" in capsys.readouterr().err
        assert opened.refresh()
        assert len(opened) == 2


def test_mirror_of_a_wrong_folder_changes_nothing(tmp_path, capsys):
    notes, other, index = tmp_path / "notes", tmp_path / "other", tmp_path / "index"
    for folder, n_files in ((notes, 20), (other, 3)):
        folder.mkdir()
        for i in range(n_files):
            (folder / f"{i}.txt").write_text(f"note {i}")
    assert main(["index", str(notes), "--out", str(index)]) == 0
    assert main(["add", str(index), str(other), "--mirror"]) == 1
    message = "20 of 20 documents would be deleted; nothing was changed. Check the paths (--dry-run"
    assert message in capsys.readouterr().err
    assert main(["add", str(index), str(other), "--yes"]) == 2
    assert main(["add", str(index), "-", "--mirror"]) == 2
    assert "to mirror stdin give --yes" in capsys.readouterr().err
    for i in range(10):
        (notes / f"{i}.txt").unlink()
    assert main(["add", str(index), str(notes), "--mirror"]) == 0  # ten may go whatever their share
    with Index.open(index) as opened:
        assert len(opened) == 10
        assert main(["add", str(index), str(other), "--mirror", "--yes"]) == 0
        opened.refresh()
        assert sorted(document.doc_id for document in opened.documents([f"other/{i}.txt" for i in range(3)])) == [
            f"other/{i}.txt" for i in range(3)
        ]
        assert len(opened) == 3


def test_mirror_keeps_the_document_of_a_file_that_can_not_be_read_now(tmp_path, capsys):
    notes, index = tmp_path / "notes", tmp_path / "index"
    notes.mkdir()
    for name in "abc":
        (notes / f"{name}.txt").write_text(f"all about {name * 3}")
    assert main(["index", str(notes), "--out", str(index)]) == 0
    (notes / "a.txt").write_bytes(b"cut \0 off")
    (notes / "b.txt").unlink()
    assert main(["add", str(index), str(notes), "--mirror", "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert [output[name] for name in ("added", "unchanged", "removed")] == [0, 1, 1]
    assert list(output["skipped"]["unreadable"]) == ["notes/a.txt"]
    with Index.open(index) as opened:
        assert opened.documents(["notes/a.txt"])[0].text == "all about aaa"
    assert main(["add", str(index), str(notes), "--mirror", "--strict"]) == 1
    assert "a.txt: the file contains zero bytes" in capsys.readouterr().err


@pytest.mark.parametrize("more", [[], ["--doc-id", "d-bread"]], ids=["hits", "explanations"])
def test_several_answers_are_json_lines_and_one_is_an_indented_object(bm25_index, tmp_path, monkeypatch, capsys, more):
    questions = tmp_path / "q.txt"
    questions.write_text("bread\nriver\n")
    monkeypatch.setattr("lightir.lines.read_stdin_lines", lambda: iter([(1, "bread"), (2, "river")]))
    search = ["search", str(bm25_index), *more]
    for several in (["-"], ["--queries", str(questions)]):
        assert main([*search, *several, "--json"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [json.loads(line)["query"] for line in lines] == ["bread", "river"]
        assert main([*search, *several]) == 0
        shown = capsys.readouterr().out
        assert shown[0] != "\n"
        assert "bread" in shown.partition("\n\n")[0]
        assert "river" in shown
    assert main([*search, "bread", "--json"]) == 0
    shown = capsys.readouterr().out
    assert json.loads(shown)["query"] == "bread"
    assert len(shown.splitlines()) > 5


def test_a_corpus_from_stdin_is_indexed(lightir, tmp_path):
    index = tmp_path / "index"
    assert lightir("index", "-", "--out", index, stdin='{"_id": "x", "text": "only one"}\n').returncode == 0
    assert json.loads(lightir("info", index, "--json").stdout)["documents"] == 1


def test_a_file_of_queries_becomes_a_run(bm25_index, dataset, tmp_path, capsys):
    run = tmp_path / "out.trec"
    assert main(["search", str(bm25_index), "--queries", str(dataset), "-k", "5", "--run", str(run)]) == 0
    assert main(["search", str(bm25_index), "--queries", str(dataset), "-k", "5", "--run", "-"]) == 0
    assert capsys.readouterr().out == run.read_text()
    assert re.fullmatch(r"\S+ Q0 \S+ \d+ \S+ lightir", run.read_text().splitlines()[0])


def test_queries_of_a_split_are_searched(bm25_index, dataset, tmp_path, capsys):
    command = ["search", str(bm25_index), "-k", "1", "--run", "-", "--queries"]
    assert main([*command, str(dataset), "--split", "test"]) == 0
    assert {line.split()[0].split("-")[0] for line in capsys.readouterr().out.splitlines()} == {"which"}
    assert main([*command, str(dataset), "--split", "dev"]) == 1
    assert "has no split 'dev'; it has test, train" in capsys.readouterr().err
    (tmp_path / "queries.jsonl").write_text('{"_id": "q", "text": "a"}\n')
    assert main([*command, str(tmp_path / "queries.jsonl"), "--split", "test"]) == 1
    assert "is a file; expected a BEIR folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["search", "{index}", "--queries", "missing.jsonl", "--run", "{out}"],
        ["rerank", "no-model", "--run", "missing.trec", "--corpus", "missing", "--queries", "missing", "-o", "{out}"],
        ["rerank", "--method", "dirichlet", "--corpus", "missing.jsonl", "--queries", "missing.jsonl", "-o", "{out}"],
        ["expand", "no-model", "missing.jsonl", "-o", "{out}"],
        ["evaluate", "missing", "--dataset", "{data}", "--run-dir", "{file}"],
    ],
)
def test_unwritable_output_is_an_error_before_the_work(arguments, bm25_index, dataset, tmp_path, capsys):
    (tmp_path / "file").touch()
    places = {"index": bm25_index, "data": dataset, "out": tmp_path / "nowhere" / "out", "file": tmp_path / "file"}
    assert main([argument.format(**places) for argument in arguments]) == 1
    message = capsys.readouterr().err
    assert any(str(places[name]) in message for name in ("out", "file"))
    assert "missing" not in message


def test_tune_checks_that_it_can_write_before_it_searches(bm25_index, capsys):
    arguments = ["tune", str(bm25_index), "missing.jsonl", "--qrels", "missing.tsv"]
    with IndexWriter.open(bm25_index):
        assert main([*arguments, "--write"]) == 1
        assert "is being written by process" in capsys.readouterr().err
        assert main(arguments) == 1
        assert "missing" in capsys.readouterr().err


def test_output_that_is_not_a_terminal_has_no_escape_codes(lightir, bm25_index):
    done = lightir("search", bm25_index, "river", "--explain", NO_COLOR="1")
    assert "river" in done.stdout
    assert "\033" not in done.stdout


def test_runs_are_measured_and_compared_with_the_first(bm25_index, dataset, tmp_path, capsys):
    good, bad = tmp_path / "good.trec", tmp_path / "bad.run"
    assert main(["search", str(bm25_index), "--queries", str(dataset), "--run", str(good)]) == 0
    asked = dict.fromkeys(line.split()[0] for line in good.read_text().splitlines())
    bad.write_text("".join(f"{query} Q0 d-river 1 1 x\n" for query in asked))
    capsys.readouterr()
    assert main(["evaluate", str(good), str(bad), "--dataset", str(dataset)]) == 0
    shown = capsys.readouterr()
    assert "topics test: 10 queries" in shown.out
    assert re.search(rf"{good} +1\.0000", shown.out)
    assert f"compared with {good} (paired randomization test, p < 0.05): {bad} worse (p = 0.0" in shown.out
    assert "lacks" not in shown.err
    values = tmp_path / "values.tsv"
    arguments = ["evaluate", str(good), str(bad), "--dataset", str(dataset), "--measures", "ndcg_cut_10,RR@10"]
    assert main([*arguments, "--per-query", str(values), "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert output["significance"]["reference"] == str(good)
    assert {measure: list(p) for measure, p in output["significance"]["p"].items()} == {
        "ndcg_cut_10": [str(bad)],
        "RR@10": [str(bad)],
    }
    assert output["significance"]["p"]["RR@10"][str(bad)] < 0.05
    rows = [line.split("\t") for line in values.read_text().splitlines()]
    assert len(rows) == 2 * 2 * 10
    for system, means in output["systems"].items():
        for measure, mean in means.items():
            values = [float(row[3]) for row in rows if row[:2] == [system, measure]]
            assert sum(values) / len(values) == pytest.approx(mean, abs=1e-5)
    assert main(["evaluate", str(bm25_index), "--dataset", str(dataset), "--json"]) == 0
    by_index = json.loads(capsys.readouterr().out)["systems"]["tokens"]
    pairs = [line.split("\t") for line in (dataset / "qrels" / "test.tsv").read_text().splitlines()[1:]]
    qrels = tmp_path / "judged.txt"
    qrels.write_text("".join(f"{query} 0 {doc} {grade}\n" for query, doc, grade in [*pairs, ("unheard", "d-river", 1)]))
    assert main(["evaluate", str(good), "--qrels", str(qrels), "--json"]) == 0
    shown = capsys.readouterr()
    output = json.loads(shown.out)
    assert output["systems"][str(good)]["RR@10"] == pytest.approx(by_index["RR@10"] * 10 / 11)
    assert (output["dataset"], output["split"], output["n_queries"]) == ("judged.txt", "", 11)
    assert f"{good} lacks 1 of the 11 judged queries; each scores 0" in shown.err


def test_an_installed_model_is_verified_by_name(monkeypatch, capsys, tmp_path, bm25_index):
    monkeypatch.setattr("lightir.addresses.shipped_models", lambda: {"shipped": bm25_index})
    assert main(["verify", "shipped"]) == main(["info", "shipped"]) == 0
    assert "shipped: index, no damage found" in capsys.readouterr().err
    assert main(["verify", "nothing"]) == 1
    assert "nothing does not exist" in capsys.readouterr().err


def test_a_run_without_judged_documents_gives_a_warning(tmp_path, capsys):
    (tmp_path / "run").write_text("q Q0 MED-1 1 1 x\nq Q0 MED-2 2 0.5 x\n")
    (tmp_path / "qrels").write_text("q 0 1 1\nq 0 2 0\n")
    assert main(["evaluate", str(tmp_path / "run"), "--qrels", str(tmp_path / "qrels")]) == 0
    assert "The run has 'MED-1', the qrels have '1'" in capsys.readouterr().err
    (tmp_path / "qrels").write_text("q 0 1 1\nq 0 MED-2 0\n")
    assert main(["evaluate", str(tmp_path / "run"), "--qrels", str(tmp_path / "qrels")]) == 0
    assert "qrels" not in capsys.readouterr().err


def test_runs_and_qrels_may_be_pipes(dataset, tmp_path, capsys):
    for name, content in (("run", "which-river Q0 d-river 1 1 x\n"), ("qrels", "which-river 0 d-river 1\n")):
        os.mkfifo(tmp_path / name)
        threading.Thread(target=(tmp_path / name).write_text, args=(content,), daemon=True).start()
    assert main(["evaluate", str(tmp_path / "run"), "--qrels", str(tmp_path / "qrels"), "--json"]) == 0
    output = json.loads(capsys.readouterr().out)["systems"]
    assert output[str(tmp_path / "run")]["RR@10"] == 1.0


def test_run_files_require_qrels_and_refuse_search_options(bm25_index, dataset, tmp_path, capsys):
    run, qrels = tmp_path / "run", tmp_path / "qrels"
    run.write_text("which-river Q0 d-river 1 1 x\n")
    qrels.write_text("which-river 0 d-river 1\n")
    for message, target, *more in (
        ("run files require relevance judgments", run),
        ("run files require relevance judgments", run, "--dataset", dataset, "--qrels", qrels),
        ("run files require relevance judgments", run, "--split", "test", "--qrels", qrels),
        ("run files accept only", run, "--dataset", dataset, "-k", "3"),
        ("run files accept only", run, "--dataset", dataset, "--exact"),
        ("requires --dataset", bm25_index, "--qrels", qrels),
        ("requires --dataset", bm25_index),
        ("expected one index, one model, or run files", bm25_index, bm25_index, "--dataset", dataset),
    ):
        assert main(["evaluate", str(target), *map(str, more)]) == 2
        assert message in capsys.readouterr().err
    assert main(["evaluate", str(run), str(bm25_index), "--dataset", str(dataset)]) == 1
    assert f"{bm25_index} does not exist; expected a run file" in capsys.readouterr().err


def test_evaluate_json_has_its_promised_shape(bm25_index, dataset, tmp_path, capsys):
    arguments = ["evaluate", str(bm25_index), "--dataset", str(dataset), "--json", "--run-dir", str(tmp_path / "runs")]
    assert main(arguments) == 0
    output = json.loads(capsys.readouterr().out)
    assert output.keys() == {"dataset", "split", "n_queries", "missing_documents", "systems", "seconds"}
    assert (output["dataset"], output["split"], output["n_queries"]) == ("topics", "test", 10)
    assert output["systems"]["tokens"]["nDCG@10"] == 1.0
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["topics.test.tokens.trec"]
    measures = "RR@10, nDCG(dcg='log2',judged_only=True)@5,P(rel=1)@1"
    assert main([*arguments, "--measures", measures]) == 0
    assert json.loads(capsys.readouterr().out)["systems"]["tokens"] == {
        "RR@10": 1.0,
        "nDCG(dcg='log2',judged_only=True)@5": 1.0,
        "P(rel=1)@1": 1.0,
    }


def test_info_json_has_its_promised_shape(bm25_index, capsys):
    assert main(["info", str(bm25_index), "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert {"documents", "pending", "deleted", "outdated", "segments", "bytes", "contract"} <= output.keys()
    assert output["default_search"] == "tokens"
    assert output["bytes"].keys() == output["bytes_per_document"].keys() == {"dense", "sparse", "tokens", "store"}
    assert output["bytes_per_document"]["tokens"] == pytest.approx(
        output["bytes"]["tokens"] / output["documents"], abs=0.1
    )


def documents_of(index, capsys):
    assert main(["info", str(index), "--json"]) == 0
    return json.loads(capsys.readouterr().out)["documents"]


def test_an_index_grows_shrinks_and_is_searched_by_metadata(bm25_index, tmp_path, capsys):
    index = shutil.copytree(bm25_index, tmp_path / "index")
    more = tmp_path / "more.jsonl"
    more.write_text("".join(f'{{"_id": "n{i}", "text": "a new river", "year": {1990 + i}}}\n' for i in range(20)))
    assert main(["add", str(index), str(more), "--batch", "6", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["added"] == 20
    assert main(["add", str(index), str(more)]) == 1
    assert "'n0' is already in the index" in capsys.readouterr().err
    assert main(["add", str(index), str(more), "--replace"]) == 0
    assert "0 documents added, 20 unchanged" in capsys.readouterr().err
    more.write_text(more.read_text().replace("a new river", "a newer river", 1))
    assert main(["add", str(index), str(more), "--replace", "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert (output["added"], output["unchanged"]) == (1, 19)
    wanted = '{"year": {"gte": 2000, "lt": 2003}}'
    assert main(["search", str(index), "river", "--filter", wanted, "--json"]) == 0
    assert [hit["doc_id"] for hit in json.loads(capsys.readouterr().out)["hits"]] == ["n10", "n11", "n12"]
    explained = ["search", str(index), "river", "--filter", wanted, "--json", "--doc-id"]
    assert main([*explained, "n11"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert (output["rank"], output["candidates"]) == (2, 3)
    assert main([*explained, "n0"]) == 1
    assert "'n0' does not match the filter" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["delete", str(index), "--filter", "{}"])
    assert "{} matches every document" in capsys.readouterr().err
    assert main(["delete", str(index), "--filter", wanted, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["deleted"] == 3
    assert main(["snapshot", str(index), str(tmp_path / "backup")]) == 0
    assert main(["delete", str(index), "n0", "n10", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"deleted": 1, "not_there": 1, "documents": 26}
    (tmp_path / "ids").write_text("n1\n\nn2\n")
    assert main(["delete", str(index), "--ids", str(tmp_path / "ids")]) == 0
    assert "2 documents deleted, 0 ids not in the index" in capsys.readouterr().err
    assert main(["compact", str(index), "--json"]) == 0
    info = json.loads(capsys.readouterr().out)
    assert (info["segments"], info["deleted"], info["outdated"], info["documents"]) == (1, 0, 0, 24)
    assert main(["verify", str(index)]) == main(["verify", str(tmp_path / "backup")]) == 0
    assert documents_of(tmp_path / "backup", capsys) == 27
    assert documents_of(bm25_index, capsys) == 10


def test_refused_changes_are_explained_in_one_line(bm25_index, tmp_path, capsys):
    index = shutil.copytree(bm25_index, tmp_path / "index")
    for arguments in (["x", "--ids", "f"], [], ["--filter", "{"]):
        with pytest.raises(SystemExit) as stop:
            main(["delete", str(index), *arguments])
        assert stop.value.code == 2
    capsys.readouterr()
    assert main(["search", str(index), "river", "--filter", '{"and": [{"year": {"gte": []}}]}']) == 1
    assert "and[0].year.gte" in capsys.readouterr().err
    from lightir.index import IndexWriter

    with IndexWriter.open(index):
        assert main(["compact", str(index)]) == 1
        assert re.search(r"is being written by process \d+ on \S+ since", capsys.readouterr().err)


def test_a_corpus_with_custom_field_names_is_indexed_and_added(tmp_path, capsys):
    corpus, index, fields = tmp_path / "c.csv", str(tmp_path / "index"), "id=sku,title=name,text=description"
    corpus.write_text("sku,name,description,price\n7,Kettle,boils water,5\n")
    assert main(["index", str(corpus), "--out", index]) == 1
    assert "no id: expected one of" in (message := capsys.readouterr().err)
    assert "name the field with --fields id=NAME" in message
    assert main(["index", str(corpus), "--out", index, "--fields", fields]) == 0
    corpus.write_text("sku,name,description,price\n8,Cooker,boils rice,9\n")
    assert main(["add", index, str(corpus), "--fields", fields]) == 0
    capsys.readouterr()
    assert main(["search", index, "boils", "--json"]) == 0
    hits = json.loads(capsys.readouterr().out)["hits"]
    assert [(hit["doc_id"], hit["title"], hit["metadata"]) for hit in hits] == [
        ("7", "Kettle", {"price": 5}),
        ("8", "Cooker", {"price": 9}),
    ]
    for wrong in ("sku", "id=", "id=a,id=b", "=sku"):
        with pytest.raises(SystemExit, match="2"):
            main(["index", str(corpus), "--out", index, "--fields", wrong])
        assert f"'{wrong}' is not of the form id=sku,text=description" in capsys.readouterr().err


def test_limits_and_links_are_options_of_the_commands_that_read_text(tmp_path, capsys):
    corpus, index = tmp_path / "c.jsonl", str(tmp_path / "index")
    corpus.write_text(json.dumps({"_id": "a", "text": "river " * 500}) + "\n")
    assert main(["index", str(corpus), "--out", index, "--limits", "document=2.9kB,line=1MB"]) == 1
    message = capsys.readouterr().err
    assert f"{corpus}, line 1: the text has more than 2,900 bytes. Raise the limit with --limits document=" in message
    assert not Path(index).exists()
    assert main(["index", str(corpus), "--out", index, "--limits", "document=3kB"]) == 0
    (tmp_path / "ids").write_text("a" * 200)
    assert main(["delete", index, "--ids", str(tmp_path / "ids"), "--limits", "line=0.1kB"]) == 1
    assert "ids, line 1: the line has more than 100 bytes" in capsys.readouterr().err
    for wrong in ("line", "line=", "line=0", "line=2GB", "line=1TB", "page=1MB", "line=1,line=2", ""):
        with pytest.raises(SystemExit, match="2"):
            main(["index", str(corpus), "--out", index, "--limits", wrong])
        assert "--limits" in capsys.readouterr().err
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "own.txt").write_text("bridge")
    (notes / "link.txt").symlink_to(tmp_path / "ids")
    assert main(["add", index, str(notes)]) == 0
    assert "1 document added; 2 in total" in (message := capsys.readouterr().err)
    assert f"{notes}: skipped symbolic links: 1 (read them with --follow-links" in message
    assert main(["add", index, str(notes), "--replace", "--follow-links"]) == 0
    message = capsys.readouterr().err
    assert "3 in total" in message
    assert "skipped" not in message


def test_a_declared_field_that_no_document_has_is_named(tmp_path, capsys):
    corpus, index = tmp_path / "c.jsonl", str(tmp_path / "index")
    corpus.write_text(
        '{"_id": "a", "text": "river", "price": 5, "size": 3}\n{"_id": "b", "text": "lake", "size": "big"}\n'
    )
    assert main(["index", str(corpus), "--out", index, "--type", "prize=number,size=keyword"]) == 0
    message = capsys.readouterr().err
    assert "no document has the field 'prize'; fields are price, size; did you mean price?" in message
    assert "field 'size'" not in message  # its values have several types, so none was inferred


def test_a_filter_that_no_document_can_match_is_explained(tmp_path, capsys):
    corpus, index = tmp_path / "c.jsonl", str(tmp_path / "index")
    rows = [{"_id": f"n{i}", "text": "river", "price": 5.5 + i, "tags": ["a"], "note": {"by": "x"}} for i in range(3)]
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    build_index(document_shards(read_documents(corpus)), index, progress=False)  # without types, as earlier indexes
    fields = "fields are note.by, price, tags"
    for wanted, messages in (
        ({"prize": {"lt": 9}}, [f"no document has the field 'prize'; {fields}; did you mean price?"]),
        (
            {"price": {"lt": "9"}},
            ["compares the field 'price' with a string, \"9\", but its values have another type: 5.5 in document 'n0'"],
        ),
        (
            {"tags": {"in": [1, 2]}},
            ["compares the field 'tags' with a number, 1, but its values have another type: [\"a\"] in document 'n0'"],
        ),
        ({"note.of": "x"}, [f"no document has the field 'note.of'; {fields}; did you mean note.by?"]),
        (
            {"or": [{"year": 1}, {"note.by": 3}]},
            [f"no document has the field 'year'; {fields}", "compares the field 'note.by'"],
        ),
        ({"price": {"gt": 99}}, []),
        ({"not": {"year": 1}, "price": {"gt": 99}, "prize": {"exists": False}}, []),
    ):
        for command in (["search", index, "river", "--json"], ["delete", index]):
            assert main([*command, "--filter", json.dumps(wanted)]) == 0
            lines = [line for line in capsys.readouterr().err.splitlines() if "0 documents deleted; " not in line]
            assert len(lines) == len(messages)
            assert [expected for expected, line in zip(messages, lines, strict=True) if expected not in line] == [], (
                lines
            )
    assert main(["search", index, "mountain", "--filter", '{"price": {"lt": 9}}']) == 0
    hint = capsys.readouterr().err  # the words match nothing, not the filter
    assert hint.startswith("no document has a word of the query")
    assert "field" not in hint
    queries = tmp_path / "q.txt"
    queries.write_text("mountain\n")
    arguments = ["search", index, "--queries", str(queries), "--run", str(tmp_path / "run"), "--filter", '{"prize": 1}']
    assert main(arguments) == 0
    assert "no document has the field 'prize'" in capsys.readouterr().err


def test_doctor_json_has_its_promised_shape(capsys):
    assert main(["doctor", "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert {"version", "kernel", "extras", "cpu", "threads"} <= output.keys()
    assert output["kernel"]["dispatch"] in output["kernel"]["available"]


def test_doctor_knows_every_extra_of_the_project(capsys):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {
        extra: [Requirement(line).name for line in lines] for extra, lines in project["optional-dependencies"].items()
    }
    del wanted["dev"]
    assert doctor.extras() == wanted
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert all(re.search(rf"^  {extra} +(installed|not installed: pip)", shown, re.MULTILINE) for extra in wanted)


def test_doctor_shows_missing_extras(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "extras", lambda: {"here": ["pytest"], "gone": ["pytest", "no-such-package"]})
    assert main(["doctor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["extras"] == {"here": True, "gone": False}


def test_doctor_shows_how_the_queries_of_each_model_are_tokenized(tmp_path, monkeypatch, capsys):
    from tokenizers import Tokenizer, models, pre_tokenizers

    from lightir import addresses

    odd = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    odd.pre_tokenizer = pre_tokenizers.Whitespace()
    for name in ("odd", "none"):
        (tmp_path / name).mkdir()
    odd.save(str(tmp_path / "odd" / "tokenizer.json"))
    monkeypatch.setattr(addresses, "shipped_models", lambda: {name: tmp_path / name for name in ("none", "odd")})
    assert main(["doctor", "--json"]) == 0
    output = json.loads(capsys.readouterr().out)["query_tokenizers"]
    assert "tokenizers" in output["odd"]
    assert "WordLevel" in output["odd"]
    assert "no tokenizer.json" in output["none"]
    assert main(["doctor"]) == 0
    assert f"queries tokenized by {output['odd']}" in capsys.readouterr().out


def test_damage_is_found_by_verify(bm25_index, tmp_path, capsys):
    copy = shutil.copytree(bm25_index, tmp_path / "copy")
    assert main(["verify", str(copy)]) == 0
    largest = max((path for path in copy.rglob("*.bin")), key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[-1] ^= 1
    largest.write_bytes(content)
    assert main(["verify", str(copy)]) == 1
    assert largest.name in capsys.readouterr().err


def test_skip_damaged_searches_the_rest_and_prints_what_is_missing(tmp_path, capsys):
    lines = [json.dumps({"_id": f"d{i}", "text": f"cat {i}"}) for i in range(30)]
    (tmp_path / "corpus.jsonl").write_text("\n".join(lines))
    index = tmp_path / "index"
    assert main(["index", str(tmp_path / "corpus.jsonl"), "--out", str(index), "--segment-documents", "10"]) == 0
    damaged = index / "segments" / "segment-000002" / "tokens.bin"
    damaged.write_bytes(b"short")
    capsys.readouterr()
    assert main(["search", str(index), "cat", "-k", "30", "--json"]) == 1
    assert str(damaged) in capsys.readouterr().err
    assert main(["search", str(index), "cat", "-k", "30", "--json", "--skip-damaged"]) == 0
    printed = capsys.readouterr()
    assert {hit["doc_id"] for hit in json.loads(printed.out)["hits"]} == {f"d{i}" for i in range(30)} - {
        f"d{i}" for i in range(10, 20)
    }
    assert str(damaged) in printed.err
    assert "10 of 30 documents are missing" in printed.err
    assert main(["search", str(tmp_path / "index"), "cat", "--doc-id", "d15", "--skip-damaged"]) == 1


def test_a_closed_pipe_is_not_an_error(bm25_index, dataset):
    command = f"{sys.executable} -m lightir search {bm25_index} --queries {dataset} -k 1000 --json | head -c 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.stderr == ""


COMPLETED = (
    ("sea", ["search"]),
    ("search --exp", ["--explain"]),
    ("search --fusion d", ["dbsf"]),
    ("index note", ["notes.txt"]),
)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_every_command_and_option(shell, capsys):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert not [name for name in COMMANDS if name not in script]
    for option in ("explain", "queries", "fusion"):
        assert option in script
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True)


def test_zsh_completes_choices_with_a_colon(capsys):
    assert main(["completion", "zsh"]) == 0
    assert r":(absolute linear linear\:min-max linear\:z-score linear\:none rrf dbsf)" in capsys.readouterr().out


@pytest.mark.parametrize(("line", "expected"), COMPLETED)
def test_bash_completes_commands_options_choices_and_files(line, expected, lightir, tmp_path):
    (tmp_path / "notes.txt").touch()
    script = lightir("completion", "bash").stdout
    function = re.search(r"^complete .*-F (\S+) lightir$", script, re.MULTILINE)[1]
    words = ["lightir", *line.split(" ")]
    ask = f"COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; {function}; echo ${{COMPREPLY[@]}}"
    done = subprocess.run(["bash", "-c", f"{script}\n{ask}"], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.split() == expected, done.stderr


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("search shop mugs --mode sp", ["sparse", "sparse+tokens"]),
        ("search shop mugs --sort ", ["price", "color"]),
        ("search shop mugs --facet c", ["color"]),
        ("search nowhere mugs --sort ", []),
        ("encode my-mod", ["my-model"]),
        ("worker shop --model my-mod", ["my-model"]),
    ],
)
def test_bash_completes_modes_models_and_fields(line, expected, lightir, tmp_path):
    (tmp_path / "my-model").mkdir()
    (tmp_path / "lightir").write_text(f'#!/bin/sh\nexec {sys.executable} -m lightir "$@"\n')
    (tmp_path / "lightir").chmod(0o700)
    (tmp_path / "c.jsonl").write_text('{"_id": "a", "text": "mug", "price": 3, "color": "red", "two words": 1}\n')
    assert lightir("index", tmp_path / "c.jsonl", "--out", tmp_path / "shop").returncode == 0
    words = ["lightir", *line.split(" ")]
    quoted = " ".join(f"'{word}'" for word in words)
    ask = f"COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _shtab_lightir; echo ${{COMPREPLY[@]}}"
    script = f"{lightir('completion', 'bash').stdout}\n{ask}"
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "PATH": path}
    )
    assert sorted(done.stdout.split()) == sorted(expected), done.stderr


def test_completion_prints_the_installed_models_and_the_fields_of_an_index(bm25_index, capsys):
    assert main(["completion", "models"]) == 0
    assert capsys.readouterr().out.split() == list(shipped_models())
    assert main(["completion", "fields", str(bm25_index)]) == 0
    assert capsys.readouterr().out.split() == []
    for arguments in (["fields"], ["models", "x"], ["bash", "x"]):
        assert main(["completion", *arguments]) == 2


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
@pytest.mark.parametrize(("line", "expected"), COMPLETED)
def test_fish_completes_commands_options_choices_and_files(line, expected, lightir, tmp_path):
    (tmp_path / "notes.txt").touch()
    script = f"{lightir('completion', 'fish').stdout}\ncomplete -C 'lightir {line}'\n"
    asked = subprocess.run(["fish", "--no-config"], input=script, capture_output=True, text=True, cwd=tmp_path)
    assert [answer.split("\t")[0] for answer in asked.stdout.splitlines()] == expected, asked.stderr


@needs_torch
def test_the_generated_pages_are_current():
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    stale = [name for name, page in generate.pages().items() if not generate.is_current(name, page)]
    assert stale == [], "run python docs/generate.py"


def test_the_parser_has_every_command():
    assert set(command_parsers(build_parser())) == set(COMMANDS)


def test_the_help_of_every_number_and_choice_states_the_default():
    silent = [
        f"{name} {action.option_strings[-1]}"
        for name, parser in command_parsers(build_parser()).items()
        for action in parser._actions
        if action.option_strings and not action.required and action.nargs != 0
        if (action.choices or action.type is not None) and "default" not in (action.help or "")
    ]
    assert [option for option in silent if not option.endswith("--filter")] == []


def test_the_measures_in_the_help_are_the_default():
    from lightir.eval import DEFAULT_MEASURES

    option = next(a for a in command_parsers(build_parser())["evaluate"]._actions if "--measures" in a.option_strings)
    assert f"(default {','.join(DEFAULT_MEASURES)})" in str(option.help)


def test_contradictory_options_and_options_without_effect_are_misuse(bm25_index, dataset, tmp_path, capsys):
    out = tmp_path / "out"
    for message, *arguments in (
        ("--work requires", "evaluate", bm25_index, "--dataset", dataset, "--work", out),
        ("--device requires", "evaluate", bm25_index, "--dataset", dataset, "--device", "cpu"),
        ("--exact requires", "evaluate", tmp_path, "--dataset", dataset, "--exact"),
        ("--tokens requires", "evaluate", tmp_path, "--dataset", dataset, "--tokens", "dirichlet"),
        ("--dense-dim, --dense-dtype", "index", dataset, "--out", out, "--dense-dtype", "int8"),
        ("requires MODEL", "rerank", "--corpus", dataset, "--queries", dataset, "-o", out),
    ):
        assert main(list(map(str, arguments))) == 2
        assert f"error: {message}" in capsys.readouterr().err.replace("--method ql ", "")
    assert not out.exists()


def test_an_index_is_searched_and_measured_by_query_likelihood(bm25_index, dataset, tmp_path, capsys):
    told = ["search", str(bm25_index), "about the river", "--tokens", "dirichlet:20", "--json", "--explain"]
    assert main(told) == 0
    hit = json.loads(capsys.readouterr().out)["hits"][0]
    assert hit["doc_id"] == "d-river"
    assert hit["score"] == pytest.approx(sum(term["score"] for term in hit["terms"]))
    assert hit["score"] < 0
    arguments = ["evaluate", str(bm25_index), "--dataset", str(dataset), "--json", "--tokens", "jelinek-mercer"]
    assert main(arguments) == 0
    assert json.loads(capsys.readouterr().out)["systems"]["tokens"]["nDCG@10"] == 1.0
    assert main(["search", str(bm25_index), "river", "--tokens", "dirichlet:many"]) == 1
    assert "dirichlet:2000" in capsys.readouterr().err


def test_rerank_by_word_counts_needs_no_torch(tmp_path):
    texts = ("the river and the bridge", "a river", "copper")
    (tmp_path / "corpus.jsonl").write_text(
        "".join(json.dumps({"_id": f"d{n}", "text": t}) + "\n" for n, t in enumerate(texts))
    )
    (tmp_path / "queries.jsonl").write_text(json.dumps({"_id": "q", "text": "rivers"}) + "\n")
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from lightir.cli import main\n"
        f"files = ['--corpus', {str(tmp_path / 'corpus.jsonl')!r}, '--queries', {str(tmp_path / 'queries.jsonl')!r}]\n"
        f"out = {str(tmp_path / 'out.trec')!r}\n"
        "assert main(['rerank', '--method', 'dirichlet', *files, '-o', out]) == 0\n"
        "again = ['rerank', '--method', 'jelinek-mercer', '--smoothing', '0.5', '--run', out, '--depth', '1']\n"
        "assert main([*again, *files, '-o', out + '2']) == 0\n"
        "assert main(['rerank', *files, '-o', out + '3']) == 2\n"
        "assert main(['rerank', 'model', '--method', 'dirichlet', *files, '-o', out + '3']) == 2\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [line.split()[2] for line in (tmp_path / "out.trec").read_text().splitlines()] == ["d1", "d0"]
    assert [line.split()[2] for line in (tmp_path / "out.trec2").read_text().splitlines()] == ["d1"]
    assert "requires MODEL" in done.stderr
    assert "counts words" in done.stderr
