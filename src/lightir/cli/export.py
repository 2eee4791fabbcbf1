"""Write a model or an index in another project's format.

Formats of a model: sentence-transformers (SentenceTransformer loads the dense branch) and sparse-encoder (SparseEncoder
loads the sparse branch). Both have the model's document vectors and its model-free queries, with the adapter merged;
docs/interchange.md lists what each format holds and how it was tested.
"""

from __future__ import annotations

import argparse

from lightir.cli.arguments import add_json, add_overwrite, add_task
from lightir.cli.terminal import print_json, print_status

HELP = "write a model or an index in another project's format"
EXAMPLES = """
  lightir export minilm --to sentence-transformers --out minilm-st
  lightir export smollm2-135m --to sparse-encoder --out smollm2-st --dtype bfloat16
"""

CLASSES = {"sentence-transformers": "SentenceTransformer", "sparse-encoder": "SparseEncoder"}
FORMATS = tuple(CLASSES)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("source", metavar="SOURCE", help="model folder, or name of an installed model")
    parser.add_argument("--to", required=True, choices=FORMATS, metavar="FORMAT", help=" or ".join(FORMATS))
    parser.add_argument("-o", "--out", required=True, metavar="OUT", help="folder to write")
    add_task(parser)
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16"),
        default="float32",
        help="number format of a model's weights (default %(default)s)",
    )
    add_overwrite(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    """Export, and print what loads the result."""
    export_model(args)


def export_model(args: argparse.Namespace) -> None:
    """Export a model."""
    from lightir.files import check_new_folder

    check_new_folder(args.out, overwrite=args.overwrite)
    # Imports torch: only after the arguments are checked.
    from lightir.encode.exports.sentence_transformers_export import export_sentence_transformer

    exported = export_sentence_transformer(
        args.source, args.out, kind=args.to, task=args.task, dtype=args.dtype, overwrite=args.overwrite
    )
    if args.json:
        print_json({"out": str(exported.folder), "own_modules": list(exported.own_modules)})
        return
    trust = ", trust_remote_code=True" if exported.own_modules else ""
    print_status(f"written to {exported.folder}; load it with {CLASSES[args.to]}('{exported.folder}'{trust})")
    if exported.own_modules:
        print_status(
            f"lightir_modules.py in it has what sentence-transformers lacks: {', '.join(exported.own_modules)}"
        )
