"""The whole way on real text: the documentation of the Python that runs this, encoded, indexed and asked.

A second run reuses what the first one encoded, as long as documents and model are the same.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from lightir.cli.arguments import add_json
from lightir.cli.pipeline import encode_documents, index_vectors
from lightir.cli.results import result_json, terms_line
from lightir.cli.terminal import (
    BOLD,
    CYAN,
    DIM,
    YELLOW,
    duration,
    paint,
    print_json,
    say,
    shorten,
    shorten_front,
    size,
    width,
)
from lightir.errors import NotFound

if TYPE_CHECKING:
    from lightir.search import Searcher
    from lightir.types import Document

HELP = "encode and search the documentation of your Python"
STAYS = "what is encoded stays, but for the last minute or so: the same command goes on"
EXAMPLES = """
  lightir demo
  lightir demo --question "read a file line by line" --question "wait for a thread to end"
  lightir demo --model smollm2-135m --dir /tmp/demo
"""

DEFAULT_MODEL = "minilm"
QUESTIONS = (
    "run a function every few seconds in the background",
    "make a temporary folder that is deleted afterwards",
    "how do I compare two versions of a text",
    "find out how much memory my program uses",
)
SHOWN = 5
BATCH = 256
WIDE = 100  # columns that four lists need
MARGIN = "    "
NAMES = {"tokens": "BM25", "sparse": "learned sparse"}
Result = TypeVar("Result")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--dir", default="lightir-demo", help="folder for vectors and index (default ./%(default)s)")
    parser.add_argument(
        "--model", metavar="NAME", help=f"an installed model or a model folder (default {DEFAULT_MODEL})"
    )
    parser.add_argument(
        "--question",
        action="append",
        metavar="TEXT",
        help=f"ask this (default: {len(QUESTIONS)} questions of its own); again for more",
    )
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    """Collect, encode, index and ask; say how long each took and what to type next."""
    from lightir.data.python_docs import python_documents

    model = choose_model(args.model)
    clock = Clock()
    documents = clock.step("collect", python_documents)
    say(f"corpus    {len(documents):,} documents: doc strings and help topics of this Python")
    index = prepare(documents, model, Path(args.dir), clock)
    answers = ask(index, args.question or list(QUESTIONS), clock)
    if args.json:
        print_json(
            {"documents": len(documents), "model": model, "index": str(index), "seconds": clock.seconds, **answers}
        )
        return
    for answer in answers["questions"]:
        print_answer(answer)
    print_next(model, index, answers, clock)


@dataclasses.dataclass
class Clock:
    """How long each step took."""

    seconds: dict[str, float] = dataclasses.field(default_factory=dict)

    def step(self, name: str, work: Callable[[], Result]) -> Result:
        """The work's result; its time is kept under the name."""
        start = time.perf_counter()
        result = work()
        self.seconds[name] = round(time.perf_counter() - start, 4)
        return result


def choose_model(name: str | None) -> str:
    """The model asked for, else the default, else whichever is installed.

    Raises:
        NotFound: none is installed.
    """
    from lightir.addresses import resolve_model_folder, shipped_models

    installed = shipped_models()
    if name is None and not installed:
        raise NotFound("no model is installed; `make setup` in a checkout installs those that lightir ships")
    chosen = name or (DEFAULT_MODEL if DEFAULT_MODEL in installed else next(iter(installed)))
    resolve_model_folder(chosen)
    return chosen


def prepare(documents: Sequence[Document], model: str, folder: Path, clock: Clock) -> Path:
    """The index over the documents, made unless it is there; its folder's name holds what it was made from."""
    from lightir.addresses import resolve_model_folder
    from lightir.contract import Contract

    key = fingerprint(documents, Contract.load(resolve_model_folder(model)).fingerprint)
    home = folder / f"{Path(model).name}-{key}"
    vectors, index = home / "vectors", home / "index"
    if index.exists():
        say(f"encoded   already, with this model and this corpus: {home} is used again")
        return index
    clock.step("encode", lambda: encode(model, documents, vectors))
    clock.step("index", lambda: build(vectors, index))
    return index


def fingerprint(documents: Sequence[Document], contract: str) -> str:
    """12 hexadecimal digits over the documents and the model's contract."""
    digest = hashlib.sha256(contract.encode())
    for document in documents:
        digest.update(json.dumps([document.doc_id, document.title, document.text]).encode())
    return digest.hexdigest()[:12]


def encode(model: str, documents: Sequence[Document], vectors: Path) -> None:
    """Encode the documents, going on where an earlier demo was cut off."""
    say(f"encode    with {model}, once; later runs use the vectors again")
    report = encode_documents(model, documents, vectors, n_documents=len(documents))
    already = f", {report.already_there:,} were there" if report.already_there else ""
    speed = f" at {report.documents_per_s:.0f} a second" if report.documents else ""
    say(f"encoded   {report.documents:,} documents{speed}{already}")


def build(vectors: Path, index: Path) -> None:
    """Index the vectors."""
    info = index_vectors([vectors], index)
    say(f"indexed   {' + '.join(info.branches)}, {size(sum(info.bytes.values()))} on the disk")


def ask(folder: Path, questions: Sequence[str], clock: Clock) -> dict[str, Any]:
    """Every question in every mode, in the shape of `search --json`."""
    from lightir.index import Index
    from lightir.search import Searcher

    with Index.open(folder) as index:
        searcher = clock.step("open", lambda: Searcher(index))
        modes = ["hybrid", *index.branches]
        searcher.hits("warm up the processor's caches")
        found = [{mode: timed(searcher, question, mode) for mode in modes} for question in questions]
        batch = list(questions) * (BATCH // len(questions) + 1)
        start = time.perf_counter()
        searcher.search(batch, 10)
        per_query_s = (time.perf_counter() - start) / len(batch)
    return {"per_query_ms": round(per_query_s * 1000, 4), "questions": found}


def timed(searcher: Searcher, question: str, mode: str) -> dict[str, Any]:
    """One answer with the time that it took."""
    from lightir.search import SearchOptions

    start = time.perf_counter()
    hits = searcher.hits(question, SHOWN, SearchOptions(mode=mode), explain=True)
    return result_json(question, mode, time.perf_counter() - start, hits, explain=True)


def print_answer(answer: dict[str, dict[str, Any]]) -> None:
    """One question: its modes side by side, and below them the best hit with the terms that matched."""
    modes = [mode for mode in answer if mode != "tokens" or "sparse" not in answer or width() >= WIDE]
    column = (width() - len(MARGIN)) // len(modes)
    best = answer[modes[0]]["hits"][:1]
    print(f"\n{paint(answer[modes[0]]['query'], BOLD)}")
    print(paint(MARGIN + "".join(NAMES.get(mode, mode).ljust(column) for mode in modes).rstrip(), DIM))
    for rank in range(SHOWN):
        names = [shorten_front(_doc_id(answer[mode], rank), column - 2).ljust(column) for mode in modes]
        row = "".join(names).rstrip()
        print(f"{rank + 1:>2}  {paint(row, CYAN) if rank == 0 else row}")
    for hit in best:
        print(f"{MARGIN}{paint('snippet', DIM)}  {shorten(hit['snippet'], width() - 13)}")
        print(f"{MARGIN}{paint('matched', DIM)}  {paint(shorten(terms_line(hit['terms']), width() - 13), YELLOW)}")


def _doc_id(result: dict[str, Any], rank: int) -> str:
    return str(result["hits"][rank]["doc_id"]) if rank < len(result["hits"]) else ""


def print_next(model: str, index: Path, answers: dict[str, Any], clock: Clock) -> None:
    """The times, and what to type next."""
    steps = ", ".join(f"{name} {duration(seconds)}" for name, seconds in clock.seconds.items())
    print(f"\n{paint('time', BOLD)}      {steps}; a hybrid query {answers['per_query_ms']:.2f} ms, no model involved")
    print(f'{paint("next", BOLD)}      lightir search {index} "your question" --explain')
    print(f"          {paint('then your own files (JSONL, CSV, Parquet, a folder of text …):', DIM)}")
    print(f"          lightir encode {model} FILES --out vectors && lightir index vectors --out index")
