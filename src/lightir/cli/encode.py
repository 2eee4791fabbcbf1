"""Encode documents with a model into a vectors folder, which `lightir index` and `lightir add` read.

Finished shards are kept when the command is interrupted; the same command with --resume continues after them.
"""

from __future__ import annotations

import argparse
import dataclasses

from lightir.cli.arguments import CORPUS_HELP, MODEL_HELP, add_corpus_options, add_device, add_encoding, add_json
from lightir.cli.terminal import print_json, print_status
from lightir.quantities import counted

HELP = "encode documents into vectors (needs lightir[encode] or lightir[train])"
ON_INTERRUPT = "finished shards are kept (all but about the last minute): add --resume to the same command to continue"
EXAMPLES = """
  lightir encode minilm corpus.jsonl --out vectors
  lightir encode MODEL scifact/ --out vectors --resume
  lightir encode minilm corpus.jsonl --out vectors --runtime onnx --quantize int8-dynamic
  cat notes.jsonl | lightir encode minilm - --out vectors
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    parser.add_argument("corpus", nargs="+", metavar="CORPUS", help=CORPUS_HELP)
    add_corpus_options(parser)
    parser.add_argument("-o", "--out", required=True, metavar="VECTORS", help="vectors folder to write")
    parser.add_argument("--resume", action="store_true", help="continue an interrupted run into the same folder")
    add_encoding(parser)
    parser.add_argument(
        "--quantize",
        choices=("int8", "int8-dynamic", "int4", "nf4"),
        help="quantize the layers' weights (int8-dynamic: also the activations) to save memory; torch needs "
        "lightir[quantize], or lightir[nf4] for nf4; onnx supports int8-dynamic (default: no quantization)",
    )
    add_device(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    """Encode the documents and print their number and the speed."""
    from lightir.addresses import resolve_model_folder
    from lightir.cli.early_checks import require_new_vectors
    from lightir.data import count_documents, read_documents
    from lightir.runtime.documents import encode_corpus
    from lightir.runtime.encode_options import RUNTIME_NAMES, EncodeOptions
    from lightir.runtime.loading import require_runtime

    documents = read_documents(args.corpus, fields=args.fields)
    folder = resolve_model_folder(args.model)
    require_new_vectors(args.out, resume=args.resume)
    runtime = require_runtime(folder, args.runtime)

    options = EncodeOptions(
        batch_tokens=args.batch_tokens,
        dtype=args.dtype,
        device=args.device,
        compile=args.compile,
        quantize=args.quantize,
        runtime=runtime,
    )
    report = encode_corpus(
        args.model,
        documents,
        args.out,
        options=options,
        resume=args.resume,
        n_documents=count_documents(args.corpus),
    )
    if args.json:
        print_json(
            {
                "vectors": args.out,
                "runtime": runtime,
                **dataclasses.asdict(report),
                "documents_per_s": report.documents_per_s,
            }
        )
        return
    already = f", {report.already_there:,} encoded before" if report.already_there else ""
    speed = f" at {report.documents_per_s:.1f} documents/s by {RUNTIME_NAMES[runtime]}" if report.documents else ""
    print_status(f"{args.out}: {counted(report.documents, 'document')} encoded{speed}{already}")
    if report.longer:
        print_status(
            f"{counted(report.longer, 'document')} longer than the model reads: only the beginning is encoded. "
            "lightir index --model splits files into passages"
        )
    print_status(f"next: lightir index {args.out} --out INDEX")
