"""Compute the disk, memory, cores and hours that a number of documents will need.

The figures are computed from measurements: the bytes of an index of yours (--like), or those of collections that were
measured with the model, and milliseconds of a search on a named processor. Each figure says whether it was measured at
about that size, follows from a width, or is extrapolated.
"""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING

from lightir.cli.arguments import MODEL_HELP, add_json
from lightir.cli.terminal import Misuse, print_json
from lightir.errors import InvalidInput
from lightir.quantities import counted

if TYPE_CHECKING:
    from lightir.contract import Contract
    from lightir.index.sizing import Figure, SizedRows, Wishes

HELP = "compute the disk, memory, cores and hours for a number of documents"
EXAMPLES = """
  lightir size --documents 1e9 --model minilm
  lightir size --documents 5e6 --like index --queries-per-second 200
  lightir size --documents 1e8 --model minilm --tokens-per-document 900 --passages --machine-memory 64
  lightir size --documents 1e8 --model minilm --tokens-per-second 120000 --hardware-hour-price 2.5
"""
OWN_HARDWARE = "hardware"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--documents", type=_count, required=True, metavar="N", help="number of documents, such as 1e9")
    parser.add_argument("--like", metavar="INDEX", help="index whose documents are like those to come")
    parser.add_argument("--model", metavar="MODEL", help=f"{MODEL_HELP} (default: that of --like, or words alone)")
    parser.add_argument(
        "--tokens-per-document",
        type=_above_0,
        metavar="N",
        help="mean number of the model's tokens of a document, without --like (default 200)",
    )
    parser.add_argument(
        "--passages", action="store_true", help="split documents that are longer than the model reads, without --like"
    )
    vectors = parser.add_argument_group("vectors, without --like")
    vectors.add_argument(
        "--dense-dtype",
        choices=("fp16", "int8", "fp16+int8"),
        default="fp16",
        help="storage of dense vectors (default %(default)s)",
    )
    vectors.add_argument("--dense-graph", action="store_true", help="build graphs over the dense vectors")
    vectors.add_argument(
        "--sparse-terms",
        type=_above_0,
        metavar="N",
        help="mean number of terms of a document's sparse vector (default: the model's maximum)",
    )
    load = parser.add_argument_group("load")
    load.add_argument(
        "--queries-per-second", type=_above_0, default=10.0, metavar="N", help="queries to answer (default 10)"
    )
    load.add_argument(
        "--machine-memory",
        type=_above_0,
        metavar="GB",
        help="memory of a machine for the arrays of a search, which decides the number of shards (default: one shard)",
    )
    encoding = parser.add_argument_group("encoding and prices")
    encoding.add_argument(
        "--hardware", metavar="NAME", help="hardware on which the model's speed was measured (default: all)"
    )
    encoding.add_argument(
        "--tokens-per-second",
        type=_above_0,
        metavar="N",
        help="tokens that one unit of your hardware encodes per second (default: the measured speed)",
    )
    for name, what in (
        ("core-hour", "an hour of a core that serves"),
        ("hardware-hour", "an hour of one unit of hardware that encodes"),
        ("gb-month", "a GB of disk for a month"),
    ):
        encoding.add_argument(
            f"--{name}-price", type=_above_0, metavar="PRICE", help=f"price of {what} (default: no prices)"
        )
    add_json(parser)


def _count(text: str) -> int:
    """Parse a whole number that may be written as 1e9 (argparse type)."""
    try:
        value = float(text.replace("_", "").replace(",", ""))
    except ValueError:
        value = 0.0
    if not 1 <= value <= 1e15 or not value.is_integer():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1, such as 5000000 or 1e9")
    return int(value)


def _above_0(text: str) -> float:
    """Parse a number above 0 (argparse type)."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e15:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def run(args: argparse.Namespace) -> None:
    """Print the figures."""
    from lightir.index.sizing import sizing

    if args.like is not None:
        only_without = {
            "--tokens-per-document": args.tokens_per_document,
            "--passages": args.passages,
            "--dense-graph": args.dense_graph,
            "--sparse-terms": args.sparse_terms,
        }
        if given := [name for name, value in only_without.items() if value]:
            raise Misuse(f"--like measures an index, so {given[0]} has no effect; leave one of them out")
    contract, rows = _contract_and_rows(args)
    figures = sizing(rows, _wishes(args, contract, rows))
    if args.json:
        print_json(
            {
                "documents": args.documents,
                "like": rows.like,
                "rows_per_document": rows.per_document,
                "tokens_per_row": rows.tokens,
                "figures": [dataclasses.asdict(figure) for figure in figures],
            }
        )
        return
    per_row = f"{rows.per_document:.2f} rows each, {rows.tokens:.0f} tokens per row"
    print(f"{counted(args.documents, 'document')}, {per_row}, like {rows.like}")
    for figure in figures:
        print(f"{figure.name:<26} {_in_words(figure):>12}  {figure.basis:<12} {figure.how}")


def _contract_and_rows(args: argparse.Namespace) -> tuple[Contract | None, SizedRows]:
    from lightir.addresses import QUERY_ENCODER, resolve_model_folder
    from lightir.contract import Contract
    from lightir.index import Index
    from lightir.index.sizing import rows_like, rows_of_model
    from lightir.text import TextTokenizer

    contract = None if args.model is None else Contract.load(resolve_model_folder(args.model))
    if args.like is None:
        rows = rows_of_model(
            contract,
            tokens_per_document=args.tokens_per_document or 200.0,
            passages=args.passages,
            dense_dtype=args.dense_dtype,
            sparse_terms=args.sparse_terms,
            graph=args.dense_graph,
        )
        return contract, rows
    with Index.open(args.like) as index:
        path = index.folder / QUERY_ENCODER / "tokenizer.json"
        if contract is not None and (
            index.contract is None or index.contract.document_fingerprint != contract.document_fingerprint
        ):
            raise InvalidInput(f"{args.like} is no index of {args.model}; leave out --model or --like")
        return index.contract, rows_like(index.view, TextTokenizer.from_file(path) if path.is_file() else None)


def _wishes(args: argparse.Namespace, contract: Contract | None, rows: SizedRows) -> Wishes:
    from lightir.index.sizing import Wishes, encoding_speeds
    from lightir.types import BRANCHES

    speeds = encoding_speeds(contract)
    if args.tokens_per_second is not None:
        speeds = {args.hardware or OWN_HARDWARE: args.tokens_per_second}
    elif args.hardware is not None:
        if args.hardware not in speeds:
            known = ", ".join(speeds) or "none"
            raise InvalidInput(
                f"no speed of this model was measured on {args.hardware!r} (measured: {known}); give it with "
                "--tokens-per-second"
            )
        speeds = {args.hardware: speeds[args.hardware]}
    return Wishes(
        documents=args.documents,
        queries_per_s=args.queries_per_second,
        branches=tuple(branch for branch in BRANCHES if rows.n_bytes.get(branch)),
        memory_gb=args.machine_memory,
        tokens_per_s=speeds,
        core_hour_price=args.core_hour_price,
        hardware_hour_price=args.hardware_hour_price,
        gb_month_price=args.gb_month_price,
    )


def _in_words(figure: Figure) -> str:
    value = figure.value
    if figure.name.endswith("_bytes"):
        return f"{value / 1e9:,.1f} GB" if value < 1e13 else f"{value / 1e12:,.1f} TB"
    return f"{value:,.0f}" if value >= 100 else f"{value:,.3g}"
