"""Path from a recipe to a measured index through the command line, on a tiny random language model."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

from lightir.cli import main
from lightir.contract import Contract, DocumentPolicy
from lightir.data.python_docs import python_documents
from lightir.index import Index, IndexWriter
from lightir.serve.folder_index import FolderOptions
from lightir.serve.schemas import SearchRequest
from lightir.serve.serve_options import ServeOptions
from lightir.serve.service import SearchService
from lightir.serve.targets import opened
from lightir.types import Document

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def backbone(tmp_path_factory) -> Path:
    """A two-layer Llama over bytes in Hugging Face format."""
    folder = tmp_path_factory.mktemp("llama")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({"<s>": 0, "</s>": 1, **{a: i + 2 for i, a in enumerate(alphabet)}}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    LlamaForCausalLM(LlamaConfig(vocab_size=258, bos_token_id=0, eos_token_id=1, **shape)).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture(scope="module")
def model(backbone: Path, dataset: Path, tmp_path_factory) -> Path:
    """A model after two training steps, with a query table."""
    folder = tmp_path_factory.mktemp("trained")
    recipe = {
        "model": {"address": str(backbone), "dtype": "float32", "lora_rank": 4},
        "data": [{"name": str(dataset)}],
        "optimisation": {"steps": 4, "batch_size": 4},
        "heads": {"pooling": "mean", "standardize": True, "calibrate": 0.5, "calibration_documents": 8},
        "documents": {"max_tokens": 48},
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    out = folder / "model"
    assert main(["train", str(folder / "recipe.yaml"), "--out", str(out), "--set", "optimisation.steps=2"]) == 0
    assert main(["cache", str(out)]) == 0
    return out


@pytest.fixture(scope="module")
def vectors(model: Path, dataset: Path, tmp_path_factory) -> Path:
    """Vectors of the data set."""
    out = tmp_path_factory.mktemp("vectors") / "vectors"
    assert main(["encode", str(model), str(dataset), "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="module")
def index(vectors: Path, tmp_path_factory) -> Path:
    """An index of the vectors."""
    out = tmp_path_factory.mktemp("index") / "index"
    assert main(["index", str(vectors), "--out", str(out)]) == 0
    return out


def test_the_index_has_all_branches_and_its_query_encoder(index, capsys):
    assert main(["search", str(index), "which river", "--json", "--explain"]) == 0
    hybrid = json.loads(capsys.readouterr().out)
    assert hybrid["mode"] == "hybrid"
    assert hybrid["hits"][0]["branches"].keys() == {"dense", "sparse"}
    assert main(["search", str(index), "river", "--mode", "dense+sparse+tokens", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["hits"][0]["branches"].keys() == {"dense", "sparse", "tokens"}


def test_an_index_is_measured_in_every_mode(index, dataset, capsys):
    assert main(["evaluate", str(index), "--dataset", str(dataset), "--json"]) == 0
    systems = json.loads(capsys.readouterr().out)["systems"]
    assert systems.keys() == {"tokens", "dense", "sparse", "hybrid", "hybrid+tokens"}
    assert systems["tokens"]["nDCG@10"] == 1.0
    assert main(["evaluate", str(index), "--dataset", str(dataset)]) == 0
    assert "nDCG@10" in capsys.readouterr().out


def test_a_model_is_measured_like_the_index_made_with_it_and_with_its_full_query_encoder(
    model, index, dataset, tmp_path, capsys
):
    shown = []
    for target, modes, work in ((index, "dense", []), (model, "dense,full", ["--work", str(tmp_path)])):
        assert main(["evaluate", str(target), "--dataset", str(dataset), "--modes", modes, *work, "--json"]) == 0
        shown.append(json.loads(capsys.readouterr().out)["systems"])
    assert shown[0]["dense"] == shown[1]["dense"]
    assert shown[1].keys() == {"dense", "full"}
    assert (tmp_path / "vectors").is_dir()


def test_info_and_verify_recognize_every_folder(model, vectors, index, capsys):
    folders = {"model": model, "vectors": vectors, "index": index, "query-encoder": model / "query-encoder"}
    for kind, folder in folders.items():
        assert main(["info", str(folder), "--json"]) == 0
        output = json.loads(capsys.readouterr().out)
        assert output["kind"] == kind
        assert output.get("default_search") == (None if kind == "query-encoder" else "dense=0.7,sparse=0.3 linear")
        assert main(["verify", str(folder), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["ok"] is True
        assert main(["info", str(folder)]) == 0
        capsys.readouterr()


def test_encoding_again_needs_resume_and_then_does_nothing(model, vectors, dataset, capsys):
    assert main(["encode", str(model), str(dataset), "--out", str(vectors)]) == 1
    assert "--resume" in capsys.readouterr().err
    assert main(["encode", str(model), str(dataset), "--out", str(vectors), "--resume", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["documents"] == 0


def test_a_query_encoder_of_another_model_is_refused_with_both_values(model, index, tmp_path, capsys):
    other = shutil.copytree(model / "query-encoder", tmp_path / "other")

    contract = Contract.load(other)
    dataclasses.replace(contract, document=DocumentPolicy(max_tokens=47)).save(other)
    assert main(["search", str(index), "river", "--query-encoder", str(other)]) == 1
    message = capsys.readouterr().err
    assert "document.max_tokens is 48 in the index but 47 in the query encoder" in message


def test_negatives_are_mined_for_a_recipe(dataset, tmp_path, capsys):
    out = tmp_path / "negatives.jsonl"
    assert main(["mine", str(dataset), "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["queries"] == len(out.read_text().splitlines())


def test_negatives_are_mined_with_an_index_and_with_a_model(dataset, model, index, tmp_path, capsys):
    by_index, by_model = tmp_path / "index.jsonl", tmp_path / "model.jsonl"
    filters = ["--mode", "dense", "-n", "4", "--first-rank", "2", "--margin", "0.99", "--json"]
    assert main(["mine", str(dataset), "--index", str(index), "-o", str(by_index), *filters]) == 0
    output = json.loads(capsys.readouterr().out)
    assert main(["mine", str(dataset), "--model", str(model), "-o", str(by_model), *filters]) == 0
    assert json.loads(capsys.readouterr().out)["dropped"].keys() == output["dropped"].keys()
    assert output["kept"] == sum(len(json.loads(line)["negatives"]) for line in by_index.read_text().splitlines())
    assert main(["mine", str(dataset), "-o", str(by_index), "--mode", "dense"]) == 2
    assert "--mode and --task require --index or --model" in capsys.readouterr().err


def test_the_demo_encodes_once(model, tmp_path, monkeypatch, capsys):
    few = python_documents()[:40]
    monkeypatch.setattr("lightir.data.python_docs.python_documents", lambda: few)
    arguments = ["demo", "--model", str(model), "--dir", str(tmp_path), "--question", "absolute value"]
    assert main([*arguments, "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert first["documents"] == 40
    assert "encode" in first["seconds"]
    assert first["questions"][0].keys() == {"hybrid", "dense", "sparse", "tokens"}
    assert main([*arguments, "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert "encode" not in again["seconds"]
    assert [a["hybrid"]["hits"] for a in again["questions"]] == [a["hybrid"]["hits"] for a in first["questions"]]
    assert main(arguments) == 0
    shown = capsys.readouterr()
    assert "absolute value" in shown.out
    assert f"lightir search {tmp_path}" in shown.out
    assert shown.out.splitlines()[-1].strip().startswith(f"lightir serve {tmp_path}")
    assert "reusing" in shown.err


def test_the_demo_takes_a_folder_and_asks_for_its_titles(model, tmp_path, capsys):
    notes = tmp_path / "notes"
    notes.mkdir()
    for i in range(7):
        (notes / f"{i}.md").write_text(f"# Kettle number {i}\n\nIt boils water." if i else "without a title " * 5)
    arguments = ["demo", str(notes), "--model", str(model), "--dir", str(tmp_path / "demo"), "--json"]
    assert main(arguments) == 0
    output = json.loads(capsys.readouterr().out)
    assert output["documents"] == 7
    queries = [answer["hybrid"]["query"] for answer in output["questions"]]
    assert queries == ["without a title without a title without a", "Kettle number 3", "Kettle number 6"]
    (tmp_path / "empty.jsonl").touch()
    assert main(["demo", str(tmp_path / "empty.jsonl"), "--model", str(model), "--dir", str(tmp_path / "demo")]) == 1
    assert "the files contain no documents" in capsys.readouterr().err


def test_the_first_example_searches_in_seven_lines(model, tmp_path, monkeypatch, capsys):
    script = ROOT / "examples" / "first_search.py"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(script), str(model)])
    runpy.run_path(str(script))
    assert {line.split()[1] for line in capsys.readouterr().out.splitlines()} == {"timer", "thread"}


def test_the_live_example_finds_documents_at_once_and_encodes_them_later(model, tmp_path, monkeypatch, capsys):
    script = ROOT / "examples" / "live_documents.py"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(script), str(model)])
    runpy.run_path(str(script))
    words, vectors, changed = capsys.readouterr().out.splitlines()
    assert words == "by their words: ['t2'], 3 pending"
    assert vectors.startswith("with vectors: [")
    assert {"t1", "t2"} == set(re.findall(r"'(t\d)'", vectors))
    assert changed == "after a change: ['t1'], 1 pending"


def test_the_web_example_finds_documents_added_while_it_runs(tmp_path):
    index = tmp_path / "index"
    with IndexWriter.create(index) as writer:
        writer.add([Document(f"d{i}", f"vaccine number {i}", metadata={"year": 2010 + i}) for i in range(4)])
    command = [sys.executable, str(ROOT / "examples" / "web_server.py"), str(index), "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            address = server.stdout.readline().strip()

            def ask(query: str) -> Any:
                with urllib.request.urlopen(address + query, timeout=20) as answer:
                    return json.loads(answer.read())

            assert [hit["id"] for hit in ask("vaccines&k=2")] == ["d0", "d1"]
            wanted = urllib.parse.quote('{"year": {"gte": 2012}}')
            with ThreadPoolExecutor(4) as pool:
                answers = list(pool.map(ask, [f"vaccines&filter={wanted}"] * 12))
            assert all([hit["id"] for hit in answer] == ["d2", "d3"] for answer in answers)
            with IndexWriter.open(index, brief=True) as writer:
                writer.upsert([Document("new", "a quite new thing", "Title")])
            assert [(hit["id"], hit["title"]) for hit in ask("thing")] == [("new", "Title")]
            with pytest.raises(urllib.error.HTTPError, match="400") as refused:
                ask("vaccines&filter=1")
            refused.value.close()
        finally:
            server.kill()


def test_the_readme_shows_the_example_that_was_run():
    example = (ROOT / "examples" / "first_search.py").read_text().partition("import sys\n\n")[2]
    assert example.replace("sys.argv[1]", '"minilm"') in (ROOT / "README.md").read_text()


def test_a_plain_corpus_is_searched_at_once_and_encoded_while_it_serves(
    model: Path, dataset: Path, lightir, tmp_path, capsys
) -> None:
    index, more = tmp_path / "index", tmp_path / "more.jsonl"
    assert main(["index", str(dataset), "--out", str(index), "--model", str(model)]) == 0
    assert (
        f"10 documents pending: only BM25 finds them until you run: lightir worker {index}" in capsys.readouterr().err
    )
    assert main(["search", str(index), "about the river", "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert (output["mode"], output["hits"][0]["doc_id"]) == ("tokens", "d-river")
    assert main(["worker", str(index), "--once"]) == 1
    assert "name its folder with --model" in capsys.readouterr().err
    assert main(["worker", str(index), "--once", "--model", str(model), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["committed"], report["failed"], report["pending"]) == (10, {}, 0)
    assert main(["worker", str(index), "--once", "--model", str(model)]) == 0
    assert f"{index}: nothing is pending\n" in capsys.readouterr().err
    more.write_text('{"_id": "late", "text": "a late river"}\n')
    assert main(["add", str(index), str(more)]) == 0
    assert "1 document pending: only BM25" in capsys.readouterr().err
    assert main(["info", str(index), "--json"]) == 0
    info = json.loads(capsys.readouterr().out)
    assert (info["documents"], info["encoded"], info["pending"], info["failed"], info["failures"]) == (11, 10, 1, 0, [])
    assert main(["search", str(index), "river", "--mode", "hybrid", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)["hits"][0]["branches"]) == {"dense", "sparse"}

    command = [sys.executable, "-m", "lightir", "worker", str(index), "--model", str(model), "--idle-wait", "0.1"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as serving:
        with Index.open(index) as reader:
            for _ in range(1200):
                reader.refresh()
                if reader.info().pending == 0:
                    break
                time.sleep(0.1)
        serving.send_signal(signal.SIGTERM)
        assert serving.wait(timeout=60) == 143
        assert serving.stderr is not None
        assert "1 document encoded" in serving.stderr.read()


def test_a_served_folder_is_encoded_by_a_worker(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHTIR_CACHE", str(tmp_path / "cache"))
    (tmp_path / "notes").mkdir()
    for name in ("river", "vaccine"):
        (tmp_path / "notes" / f"{name}.txt").write_text(f"All about the {name}.")
    messages: list[str] = []
    options = FolderOptions(model=str(model))
    with opened(tmp_path / "notes", ServeOptions(), options, say=messages.append) as (service, follow):
        assert [hit["branches"].keys() for hit in hits(service, "river")] == [{"tokens"}]
        follow()
        until = time.monotonic() + 300
        while service.index.view.n_pending or not any("2 documents" in message for message in messages):
            assert time.monotonic() < until, messages
            time.sleep(0.1)
        assert {"dense", "sparse"} <= hits(service, "river")[0]["branches"].keys()
    assert not any("not encoded" in message for message in messages)


def hits(service: SearchService, query: str) -> list[Any]:
    return list(service.search(SearchRequest(query=query))["hits"])


def test_late_search_encodes_the_best_pending_documents(model: Path, dataset: Path, tmp_path, capsys) -> None:
    index, run = tmp_path / "index", tmp_path / "run"
    assert main(["index", str(dataset), "--out", str(index), "--model", str(model)]) == 0
    late = ["--mode", "late", "--rerank-top", "3", "--budget-ms", "60000", "--model", str(model)]
    assert main(["search", str(index), "river", *late, "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert output["late"].keys() == {"encoded", "read", "parked", "failed", "left", "encoding_ms", "took_ms"}
    assert (output["late"]["encoded"], output["late"]["left"]) == (["d-river"], 0)
    assert [hit["doc_id"] for hit in output["hits"] if hit.get("late")] == ["d-river"]
    assert main(["search", str(index), "bread", *late]) == 0
    captured = capsys.readouterr()
    assert "1 document encoded in" in captured.err
    assert "late" in captured.out
    assert main(["search", str(index), "--queries", str(dataset), "--run", str(run), *late]) == 0
    with Index.open(index) as opened:
        assert opened.info().pending == 0


def test_a_plain_corpus_accepts_a_model_and_vectors_refuse_one(model: Path, dataset: Path, tmp_path, capsys) -> None:
    assert main(["encode", str(model), str(dataset), "--out", str(tmp_path / "v")]) == 0
    assert main(["index", str(tmp_path / "v"), "--out", str(tmp_path / "i"), "--model", str(model)]) == 2
    assert "--model requires a plain corpus" in capsys.readouterr().err
    bare = shutil.copytree(model, tmp_path / "bare", ignore=shutil.ignore_patterns("query-encoder"))
    assert main(["index", str(dataset), "--out", str(tmp_path / "i"), "--model", str(bare)]) == 1
    assert "lightir cache" in capsys.readouterr().err


HEAVY_POINTS = [
    ("encode", "import:torch._C"),
    ("encode", "import:transformers"),
    ("encode", "open:model.safetensors"),
    ("worker", "open:model.safetensors"),
    ("train", "import:peft"),
    ("train", "open:model.safetensors"),
    ("train", "os.mkdir:trained.run"),
]


@pytest.mark.parametrize(("command", "point"), HEAVY_POINTS, ids=[f"{name}-{point}" for name, point in HEAVY_POINTS])
def test_a_signal_ends_commands_that_import_torch_or_load_a_model(
    command: str, point: str, model: Path, dataset: Path, tmp_path: Path, capsys
) -> None:
    index = tmp_path / "index"
    assert main(["index", str(dataset), "--out", str(index), "--model", str(model)]) == 0
    arguments = {
        "encode": ["encode", model, dataset, "--out", tmp_path / "vectors"],
        "worker": ["worker", index, "--once", "--model", model],
        "train": ["train", model.parent / "recipe.yaml", "--out", tmp_path / "trained"],
    }
    number = (signal.SIGTERM, signal.SIGINT)[HEAVY_POINTS.index((command, point)) % 2]
    hooks = {"PYTHONPATH": str(Path(__file__).parent / "signal_at"), "SIGNAL_AT": f"{number.value}:{point}"}
    done = subprocess.run(
        [sys.executable, "-m", "lightir", *map(str, arguments[command])],
        env={**os.environ, **hooks},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == {signal.SIGTERM: 143, signal.SIGINT: 130}[number], done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith(
        f"lightir: {'terminated' if number == signal.SIGTERM else 'interrupted'}; "
    )
    assert not list(tmp_path.glob(".*"))
    with Index.open(index) as opened:
        opened.verify()
