"""Encode documents with a model into a vectors folder, which `lightir index` and `lightir add` read.

Finished shards are kept when the command is interrupted; the same command with --resume continues after them.

MODEL may be the address of an OpenAI-compatible embeddings endpoint. It gets every text once: its vectors are kept
(--work), so that the same command continues an interrupted one. The command prints the tokens, and with --price their
cost.

With --ray, each worker of a Ray cluster encodes one shard at a time. All machines must mount the vectors folder at the
same path, and have the same lightir and the model. If a machine is lost, others encode its unfinished shards.
"""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING

from lightir.cli.arguments import (
    CORPUS_HELP,
    MODEL_HELP,
    add_corpus_options,
    add_device,
    add_encoding,
    add_json,
    positive,
)
from lightir.cli.endpoint_arguments import (
    URL_HELP,
    add_endpoint,
    amount_json,
    check_endpoint,
    endpoint_documents,
    is_address,
    print_amount,
)
from lightir.cli.terminal import print_json, print_status
from lightir.errors import InvalidInput
from lightir.quantities import counted

if TYPE_CHECKING:
    from lightir.runtime.documents import EncodeReport
    from lightir.runtime.encode_options import Program

HELP = "encode documents into vectors (needs lightir[encode] or lightir[train])"
ON_INTERRUPT = "finished shards are kept (all but about the last minute): add --resume to the same command to continue"
EXAMPLES = """
  lightir encode minilm corpus.jsonl --out vectors
  lightir encode MODEL scifact/ --out vectors --resume
  lightir encode minilm corpus.jsonl --out vectors --runtime kernel --quantize int8-dynamic
  cat notes.jsonl | lightir encode minilm - --out vectors
  lightir encode minilm /shared/corpus.jsonl --out /shared/vectors --ray 10.0.0.1:6379
  lightir encode https://api.example.com/v1 corpus.jsonl --endpoint-model embed-3 --endpoint-key-env KEY --out vectors
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("model", metavar="MODEL", help=f"{MODEL_HELP}; or {URL_HELP}")
    parser.add_argument("corpus", nargs="+", metavar="CORPUS", help=CORPUS_HELP)
    add_corpus_options(parser)
    parser.add_argument("-o", "--out", required=True, metavar="VECTORS", help="vectors folder to write")
    parser.add_argument("--resume", action="store_true", help="continue an interrupted run into the same folder")
    add_encoding(parser)
    parser.add_argument(
        "--quantize",
        choices=("int8", "int8-dynamic", "int4", "nf4"),
        help="quantize the layers' weights (int8-dynamic: also the activations) to save memory; torch needs "
        "lightir[quantize], or lightir[nf4] for nf4; onnx and kernel support int8-dynamic, which makes them faster "
        "(default: no quantization)",
    )
    add_device(parser)
    parser.add_argument(
        "--ray",
        metavar="ADDRESS",
        help="encode on the machines of the Ray cluster at HOST:PORT, or auto for the cluster of this machine; needs "
        "lightir[ray], and VECTORS on storage that all machines share (default: encode on this machine)",
    )
    parser.add_argument(
        "--ray-cpus",
        type=positive,
        metavar="N",
        help="number of CPU cores per worker of the cluster; each worker loads the model (default: 1)",
    )
    add_endpoint(parser.add_argument_group("embeddings endpoint"))
    add_json(parser)


LOCAL_OPTIONS = {
    "runtime": "auto",
    "batch_tokens": None,
    "compile": None,
    "dtype": "auto",
    "quantize": None,
    "device": "auto",
    "ray": None,
    "ray_cpus": None,
}
"""Options of models that this machine or a cluster runs, with their defaults."""


def run(args: argparse.Namespace) -> None:
    """Encode the documents and print their number and the speed."""
    check_endpoint(args, others=LOCAL_OPTIONS)
    if is_address(args.model):
        _run_endpoint(args)
    else:
        _run_model(args)


def _run_endpoint(args: argparse.Namespace) -> None:
    """Encode by an endpoint."""
    from lightir.cli.early_checks import require_new_vectors
    from lightir.data import count_documents, read_documents
    from lightir.search.endpoint_documents import encode_by_endpoint

    documents = read_documents(args.corpus, fields=args.fields)
    require_new_vectors(args.out, resume=args.resume)
    source = endpoint_documents(args)
    report = encode_by_endpoint(
        source, documents, args.out, resume=args.resume, n_documents=count_documents(args.corpus)
    )
    if args.json:
        figures = {"documents": report.documents, "already_there": report.already_there, "empty": report.empty}
        print_json({"vectors": args.out, **figures, "seconds": report.seconds, **amount_json(report.amount, args)})
        return
    already = f", {report.already_there:,} encoded before" if report.already_there else ""
    print_status(f"{args.out}: {counted(report.documents, 'document')} encoded{already}")
    print_amount(report.amount, args)
    print_status(f"next: lightir index {args.out} --out INDEX")


def _run_model(args: argparse.Namespace) -> None:
    """Encode by a model that this machine or a cluster runs."""
    from lightir.addresses import resolve_model_folder
    from lightir.cli.early_checks import require_new_vectors, require_ray
    from lightir.data import count_documents, read_documents
    from lightir.runtime.documents import encode_corpus
    from lightir.runtime.encode_options import EncodeOptions
    from lightir.runtime.loading import require_runtime

    if args.ray_cpus is not None and args.ray is None:
        raise InvalidInput("--ray-cpus sets the workers of a cluster; name the cluster with --ray ADDRESS")
    documents = read_documents(args.corpus, fields=args.fields)
    folder = resolve_model_folder(args.model)
    require_new_vectors(args.out, resume=args.resume)
    if args.ray is not None:
        require_ray()
    runtime = require_runtime(folder, args.runtime)
    options = EncodeOptions(
        batch_tokens=args.batch_tokens,
        dtype=args.dtype,
        device=args.device,
        compile=args.compile,
        quantize=args.quantize,
        runtime=runtime,
    )
    n_documents = count_documents(args.corpus)
    if args.ray is None:
        report = encode_corpus(
            args.model, documents, args.out, options=options, resume=args.resume, n_documents=n_documents
        )
    else:
        from lightir.runtime.cluster import RayOptions, encode_corpus_on_ray

        report = encode_corpus_on_ray(
            args.model,
            documents,
            args.out,
            cluster=RayOptions(args.ray, args.ray_cpus or 1),
            options=options,
            resume=args.resume,
            n_documents=n_documents,
        )
    _print_report(report, runtime, args)


def _print_report(report: EncodeReport, runtime: Program, args: argparse.Namespace) -> None:
    """Print the counts and the speed, as JSON or as lines."""
    from lightir.runtime.encode_options import RUNTIME_NAMES

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
