"""Convert files of other projects to lightir's: published training sets, sentence-transformers models, CIFF indexes.

Training recipes name the converted sets under `data`.

Layout `tevatron` (LightRetriever's, CSplade's and LLM-QL's sets: query, positive_passages, negative_passages, as JSON
lines or Parquet) becomes a JSONL file of training examples. Layout `dpr` (SiDR's sets: question, answers,
positive_ctxs, hard_negative_ctxs, as JSON lines or one JSON array) becomes a BEIR folder with the answers, and the
hard negatives in its negatives.jsonl. docs/published-data.md lists the sets and their numbers of queries.

Layout `sentence-transformers` (a Router with a StaticEmbedding for queries, or with --table any model of Transformer
and Pooling) becomes a model folder: its documents are encoded as before, its queries by the table.

Layout `ciff` (the Common Index File Format: posting lists of Anserini, PISA, JASS or Terrier) becomes an index without
texts. Counted words become BM25 (--branch tokens); --analyzer has to split queries as the words were. Learned impacts
become the sparse branch (--branch sparse), whose queries are terms between blanks.
"""

from __future__ import annotations

import argparse
import dataclasses

from lightir.cli.arguments import add_json, add_limits
from lightir.cli.terminal import Misuse, print_json, print_status
from lightir.quantities import counted

HELP = "convert a published training set, a model of sentence-transformers, or a CIFF index"
LAYOUTS = ("tevatron", "dpr", "sentence-transformers", "ciff")
EXAMPLES = """
  lightir convert tevatron train-tevatron.jsonl --out MSMARCO.jsonl
  lightir convert tevatron nfcorpus.jsonl --expect 2585 --out NFCorpus.jsonl
  lightir convert dpr nq-train.jsonl.gz --passages psgs_w100.tsv.gz --expect 58880 --out NQ
  lightir convert sentence-transformers router-model/ --out model
  lightir convert ciff robust04.ciff.gz --analyzer english --out index
  lightir convert ciff splade.ciff --branch sparse --rescale --out index
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("layout", metavar="LAYOUT", choices=LAYOUTS, help="layout of the files")
    parser.add_argument(
        "file",
        nargs="+",
        metavar="FILE",
        help="file of the training set, gzipped or not; one for dpr and ciff; for sentence-transformers the model's "
        "folder",
    )
    parser.add_argument(
        "-o",
        "--out",
        required=True,
        metavar="OUT",
        help="JSONL file to write; for dpr, models and ciff the folder to write",
    )
    parser.add_argument(
        "--passages",
        metavar="TSV",
        help="file of all passages, such as psgs_w100.tsv, that becomes the corpus of a dpr set (default: the passages "
        "of the set)",
    )
    parser.add_argument(
        "--expect",
        type=int,
        default=0,
        metavar="N",
        help="number of queries to expect; another number is an error, and nothing is written (default: any)",
    )
    parser.add_argument(
        "--table",
        metavar="DIR",
        help="folder of StaticEmbedding or Model2Vec with the query table of a sentence-transformers model "
        "(default: the query route of its Router)",
    )
    parser.add_argument(
        "--branch",
        choices=("tokens", "sparse"),
        help="with ciff: whether frequencies are counts (tokens) or impacts (sparse) (default: as lightir wrote them, "
        "else tokens)",
    )
    parser.add_argument(
        "--analyzer",
        metavar="NAME",
        help="with ciff: analyzer of queries for counted words, as for lightir index (default: as lightir wrote them, "
        "else words)",
    )
    parser.add_argument(
        "--rescale",
        action="store_true",
        help="with ciff: divide impacts above 255, the largest that an index stores, by a common factor (default: "
        "refuse them)",
    )
    add_limits(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    """Convert the files and print the counts."""
    if args.layout == "ciff":
        convert_ciff(args)
        return
    for name in ("branch", "analyzer", "rescale"):
        if getattr(args, name):
            raise Misuse(f"--{name} requires the layout ciff")
    if args.layout == "sentence-transformers":
        convert_model(args)
        return
    if args.table:
        raise Misuse("--table requires the layout sentence-transformers")
    from lightir.data import convert_dpr, convert_tevatron

    if args.layout == "dpr":
        if len(args.file) > 1:
            raise Misuse("a dpr set is one file")
        report = convert_dpr(args.file[0], args.out, passages=args.passages, expected=args.expect)
    elif args.passages:
        raise Misuse("--passages requires the layout dpr")
    else:
        report = convert_tevatron(args.file, args.out, expected=args.expect)
    if args.json:
        print_json({"out": args.out, **report.to_json()})
        return
    print_status(
        f"{args.out}: {counted(report.queries, 'query')}, {counted(report.positives, 'relevant passage')}, "
        f"{counted(report.negatives, 'negative')}; {counted(report.without_positive, 'query')} without a relevant "
        "passage left out"
    )
    if report.ignored_fields:
        print_status("ignored fields: " + ", ".join(f"{name} ({n:,})" for name, n in report.ignored_fields.items()))


def convert_model(args: argparse.Namespace) -> None:
    """Convert a model and print its folder."""
    from lightir.files import check_new_folder

    if len(args.file) > 1 or args.passages or args.expect:
        raise Misuse("the layout sentence-transformers takes one folder, without --passages and --expect")
    check_new_folder(args.out)
    # Imports torch: only after the arguments are checked.
    from lightir.train.distill.sentence_transformers_import import import_sentence_transformer

    import_sentence_transformer(args.file[0], args.out, table=args.table)
    if args.json:
        print_json({"out": args.out})
    else:
        print_status(f"model written to {args.out}\nnext: lightir encode {args.out} CORPUS --out VECTORS")


def convert_ciff(args: argparse.Namespace) -> None:
    """Build an index of a CIFF file and print its size."""
    from lightir.files import check_new_folder
    from lightir.index.exchange import import_ciff

    if len(args.file) > 1 or args.passages or args.expect or args.table or args.limits:
        raise Misuse("the layout ciff takes one file, without --passages, --expect, --table and --limits")
    check_new_folder(args.out)
    info = import_ciff(args.file[0], args.out, branch=args.branch, analyzer=args.analyzer, rescale=args.rescale)
    if args.json:
        print_json({"out": args.out, **dataclasses.asdict(info)})
        return
    print_status(f"{args.out}: {counted(info.documents, 'document')} ({' + '.join(info.branches)}), without texts")
    query = "terms between blanks" if "sparse" in info.branches else "your question"
    print_status(f'next: lightir search {args.out} "{query}"')
