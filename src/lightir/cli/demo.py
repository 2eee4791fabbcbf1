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

from lightir.cli.results import result_json, terms_line
from lightir.cli.terminal import BOLD, CYAN, DIM, YELLOW, add_json, duration, paint, print_json, say, shorten, width
from lightir.errors import NotFound

if TYPE_CHECKING:
    from lightir.search import Searcher
    from lightir.types import Document, Hit

HELP = "encode, index and ask your Python's documentation"
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
Result = TypeVar("Result")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--dir", default="lightir-demo", help="folder for vectors and index (default ./%(default)s)")
    parser.add_argument("--model", metavar="NAME", help=f"an installed model or a model folder (default {DEFAULT_MODEL})")
    parser.add_argument("--question", action="append", metavar="TEXT", help="ask this instead; again for more")
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
        print_json({"documents": len(documents), "model": model, "index": str(index), "seconds": clock.seconds, **answers})
        return
    for answer in answers["questions"]:
        print_answer(answer)
    print_next(index, clock)


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
        raise NotFound("no model is installed; in a checkout `make setup` installs both: pip install packages/lightir-minilm")
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
