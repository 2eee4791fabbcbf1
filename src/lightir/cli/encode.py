"""Encode a corpus with a model into a folder of vectors; a run that was cut off goes on with --resume."""

from __future__ import annotations

import argparse
import dataclasses

from lightir.cli.arguments import CORPUS_HELP, MODEL_HELP, add_device, add_encoding, add_fields, add_json
from lightir.cli.terminal import print_json, say

HELP = "encode documents into vectors (needs lightir[train])"
STAYS = "what is encoded stays, but for the last minute or so: go on with the same command and --resume"
EXAMPLES = """
  lightir encode minilm corpus.jsonl --out vectors
  lightir encode MODEL scifact/ --out vectors --resume
  cat notes.jsonl | lightir encode minilm - --out vectors
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    parser.add_argument("corpus", nargs="+", metavar="CORPUS", help=CORPUS_HELP)
    add_fields(parser)
    parser.add_argument("-o", "--out", required=True, metavar="VECTORS", help="folder to write")
    parser.add_argument("--resume", action="store_true", help="go on where a run into the same folder was cut off")
    add_encoding(parser)
    parser.add_argument(
        "--quantize",
        choices=("int8", "int8-dynamic", "int4", "nf4"),
        help="round the layers' weights, with -dynamic the activations too: less memory (default: not; needs the extra "
        "`quantize`, nf4, QLoRA's 4 bits, the extra `nf4`)",
    )
    add_device(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    """Encode, then say how many documents at what speed."""
    from lightir.data import count_documents, read_documents
    from lightir.encode import EncodeOptions, encode_corpus

    options = EncodeOptions(
        batch_tokens=args.batch_tokens,
        dtype=args.dtype,
        device=args.device,
        compile=args.compile,
        quantize=args.quantize,
    )
    report = encode_corpus(
        args.model,
        read_documents(args.corpus, fields=args.fields),
        args.out,
        options=options,
        resume=args.resume,
        n_documents=count_documents(args.corpus),
    )
    if args.json:
        print_json({"vectors": args.out, **dataclasses.asdict(report), "documents_per_s": report.documents_per_s})
        return
    already = f", {report.already_there:,} were there already" if report.already_there else ""
    speed = f" at {report.documents_per_s:.1f} a second" if report.documents else ""
    say(f"{args.out}: {report.documents:,} documents encoded{speed}{already}")
    say(f"next: lightir index {args.out} --out INDEX")
