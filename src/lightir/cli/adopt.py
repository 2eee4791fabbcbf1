"""Make queries model-free for a collection of vectors that a vector database has already.

The documents and their vectors are read from the collection, which stays unchanged. A query table is fitted to them, as
by lightir distill --vectors: to titles, spans and texts of the documents, without a model and without queries. The
result is a model folder, whose report (report.json) says how well the table was fitted. lightir search ADDRESS searches
the collection with it.

The names of fields are guessed, or given in the address: ?text=FIELD&title=FIELD&vector=NAME. Documents and vectors are
held in memory.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightir.cli.arguments import add_json
from lightir.cli.distill import REPORT, SET_HELP, print_held_out, print_report
from lightir.cli.push import ADDRESS_HELP
from lightir.cli.terminal import print_json, print_status
from lightir.errors import InvalidInput
from lightir.quantities import counted

if TYPE_CHECKING:
    from lightir.data import StoredVectors
    from lightir.data.stored_vectors import Similarity
    from lightir.train.distill.distillation import DistillationOptions
    from lightir.types import Document

HELP = "fit a query table to a vector database's collection (needs lightir[train])"
EXAMPLES = """
  lightir adopt qdrant://localhost:6333/docs --vector-model text-embedding-3-small --out model
  lightir adopt "postgresql://me@localhost/shop?table=items" --vector-model bge-m3 --out model
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("address", metavar="ADDRESS", help=ADDRESS_HELP)
    parser.add_argument(
        "--vector-model", required=True, metavar="NAME", help="name of the model that made the vectors, for the record"
    )
    parser.add_argument("--made-by", default="", metavar="WHO", help="who made the vectors (default: unknown)")
    parser.add_argument(
        "--start",
        default="auto",
        metavar="MODEL",
        help="model whose tokens the table has, and whose rows the fit starts from (default: auto, an installed one); "
        "terms: zeros",
    )
    parser.add_argument(
        "--tokenizer", metavar="FILE", help="tokenizer.json file that defines the table's tokens (default: by --start)"
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=SET_HELP)
    parser.add_argument(
        "--dtype", choices=("fp16", "int8"), default="int8", help="number format of the table (default %(default)s)"
    )
    parser.add_argument(
        "--save-vectors",
        metavar="DIR",
        help="vectors folder to write with the documents and vectors, for lightir index (default: none)",
    )
    parser.add_argument("-o", "--out", required=True, metavar="MODEL", help="model folder to write")
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    """Read the collection, fit the table, and print the model folder and the report."""
    from lightir.files import check_new_folder, read_json, temporary_folder

    for folder in filter(None, (args.out, args.save_vectors)):
        check_new_folder(folder)
    options = fit_options(args)
    documents, vectors, similarity = read_all(args.address)
    with temporary_folder() as folder:
        corpus = Path(folder, "corpus.jsonl")
        write_corpus(corpus, documents)
        model = fit(args, corpus, vectors, similarity, options)
    facts, has_report = read_json(model / "distillation.json"), (model / REPORT).is_file()
    report: dict[str, Any] | None = read_json(model / REPORT) if has_report else None
    if args.json:
        print_json({"model": str(model), "documents": len(documents), "held_out": facts["held_out"], "report": report})
        return
    print_held_out(facts)
    if report is not None:
        print_report(report)
    print_status(f"{args.address}: table fitted to {counted(len(documents), 'document')}, model written to {model}")
    print_status(f'next: lightir search "{args.address}" "your question" --query-encoder {args.out}')


def fit_options(args: argparse.Namespace) -> DistillationOptions:
    """Return the settings of the fit. This imports torch."""
    from lightir.contract import from_json
    from lightir.train.distill.distillation import DistillationOptions
    from lightir.train.distill.fit_config import STORED_TEMPERATURE, FitConfig
    from lightir.train.recipes.recipe_files import overridden

    settings = from_json(FitConfig, overridden({"temperature": STORED_TEMPERATURE}, args.set), "--set")
    return DistillationOptions(fit=settings, table_dtype=args.dtype, tokenizer=args.tokenizer, start=args.start)


def read_all(address: str) -> tuple[list[Document], StoredVectors, Similarity]:
    """Read the documents and vectors of a collection that another program made.

    Raises:
        InvalidInput: lightir pushed the collection, so that it has a query encoder.
    """
    from lightir.engines import open_engine, read_collection

    engine = open_engine(address)
    try:
        present = engine.collection()
        if present is not None and present.fingerprint:
            raise InvalidInput(
                f"{address} was pushed from an index of {present.model}, which has a query encoder; search with it: "
                f'lightir search "{address}" QUERY --query-encoder INDEX'
            )
        documents, vectors = read_collection(engine)
    finally:
        engine.close()
    return documents, vectors, "cosine" if present is None else present.similarity


def write_corpus(path: Path, documents: list[Document]) -> None:
    """Write documents as a corpus of JSON lines, which the fit reads."""
    with path.open("w", encoding="utf-8") as file:
        for document in documents:
            fields = {"_id": document.doc_id, "title": document.title, "text": document.text}
            file.write(f"{json.dumps({**fields, 'metadata': dict(document.metadata)}, default=str)}\n")


def fit(
    args: argparse.Namespace,
    corpus: Path,
    vectors: StoredVectors,
    similarity: Similarity,
    options: DistillationOptions,
) -> Path:
    """Fit the table, and return the model folder."""
    from lightir.train.distill.external import ExternalTeacher, distill_external

    teacher = ExternalTeacher(args.vector_model, None, vectors, maker=args.made_by, similarity=similarity)
    return distill_external(teacher, [corpus], out=args.out, options=options, vectors_out=args.save_vectors)
