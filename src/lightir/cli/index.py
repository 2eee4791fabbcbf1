"""Build an index from encoded vectors, or from a plain corpus, which BM25 alone then searches without any model.

A plain corpus with --model is searched by BM25 at once, and better and better while `lightir worker` encodes it.

Documents go to the disk as they come, 65,536 at a time, so memory holds that many twice, whatever the corpus's size. At
the end they are joined into segments of up to 1,048,576 documents, for few segments are searched faster than many; with
--dense-graph memory then holds a segment's graph.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from lightir.cli.add import say_pending
from lightir.cli.arguments import CORPUS_HELP, add_fields, add_json, positive
from lightir.cli.pipeline import are_vectors, index_vectors
from lightir.cli.terminal import Misuse, print_json, say, size

if TYPE_CHECKING:
    from lightir.contract import Contract
    from lightir.index import IndexInfo

HELP = "build an index of vectors or plain documents"
EXAMPLES = """
  lightir index vectors --out index
  lightir index part-1 part-2 --out index --dense-dim 256 --sparse-top-k 128
  lightir index corpus.jsonl --out bm25-index --analyzer german
  lightir index products.csv --out index --fields id=sku,title=name,text=description
  lightir index corpus.jsonl --out bags --analyzer bag --query-encoder model/query-encoder
  lightir index corpus.jsonl --out index --model minilm
"""
NO_ANALYZER = "none"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "vectors", nargs="+", metavar="FILES", help=f"{CORPUS_HELP}; or folders that `lightir encode` wrote"
    )
    parser.add_argument("-o", "--out", required=True, metavar="INDEX", help="index folder to write")
    add_fields(parser)
    parser.add_argument(
        "--model",
        metavar="MODEL",
        help="of a plain corpus: the model that `lightir worker` will encode it with (default: none, BM25 alone)",
    )
    parser.add_argument(
        "--query-encoder",
        metavar="DIR",
        help="put this one (or this model's) in, not the one beside the vectors (default: that)",
    )
    parser.add_argument(
        "--dense-dim", type=positive, metavar="N", help="keep the first N dense columns (Matryoshka; default: all)"
    )
    parser.add_argument(
        "--dense-dtype",
        choices=("fp16", "int8", "fp16+int8"),
        help="of dense rows (default fp16); fp16+int8 finds what fp16 finds, faster, in half as much space again",
    )
    parser.add_argument(
        "--dense-graph", action="store_true", help="make dense search of large segments approximate (lightir[ann])"
    )
    parser.add_argument(
        "--segment-documents",
        type=positive,
        metavar="N",
        help="the most documents of a segment (default 1048576)",
    )
    parser.add_argument(
        "--sparse-top-k", type=positive, metavar="N", help="keep a document's N strongest terms (default: all)"
    )
    parser.add_argument(
        "--analyzer",
        default="english",
        metavar="NAME",
        help="how BM25 cuts text: english, words, chinese, model, another language, or none; bag: no BM25 but which of "
        "the model's terms stand in a document, searched with the query encoder's weights (default %(default)s)",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the index")
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    """Build and say what the index holds."""
    info = build(args)
    if args.json:
        print_json(dataclasses.asdict(info))
        return
    say(f"{args.out}: {info.documents:,} documents, {' + '.join(info.branches)}, {size(sum(info.bytes.values()))}")
    say_pending(args.out, info)
    if info.dense_graph is not None:
        found = info.dense_graph
        say(f"graphs over {found['documents']:,} dense rows find {found['recall_at_10']:.1%} of documents' ten nearest")
    say(f'next: lightir search {args.out} "your question"')


def build(args: argparse.Namespace) -> IndexInfo:
    """The index of what was named: all vectors folders, or all corpora."""
    from lightir.index import IndexOptions, build_index, document_shards
    from lightir.index.options import SEGMENT_DOCUMENTS

    folders = [Path(each) for each in args.vectors]
    options = IndexOptions(
        dense_dim=args.dense_dim,
        dense_dtype=args.dense_dtype or "fp16",
        sparse_top_k=args.sparse_top_k,
        dense_graph=args.dense_graph,
        analyzer=None if args.analyzer == NO_ANALYZER else args.analyzer,
        segment_documents=args.segment_documents or SEGMENT_DOCUMENTS,
    )
    if are_vectors(folders):
        if args.model:
            raise Misuse("--model is for a plain corpus; the vectors' contract says which model is theirs")
        if args.fields:
            raise Misuse("--fields is for a plain corpus; vectors hold documents that have been read")
        own = args.query_encoder and Path(args.query_encoder)
        return index_vectors(folders, Path(args.out), options=options, query_encoder=own, overwrite=args.overwrite)
    contract, query_encoder = None, args.query_encoder
    if args.model:
        contract, own = model_of(args.model)
        query_encoder = query_encoder or own
    if query_encoder is None and (args.dense_dim or args.dense_dtype or args.sparse_top_k or args.dense_graph):
        raise Misuse(
            "--dense-dim, --dense-dtype, --dense-graph and --sparse-top-k are for vectors; "
            "a plain corpus gets some with --model alone"
        )
    from lightir.data import read_documents

    shards = document_shards(read_documents(args.vectors, fields=args.fields))
    return build_index(
        shards,
        args.out,
        options=options,
        contract=contract,
        query_encoder=query_encoder,
        overwrite=args.overwrite,
    )


def model_of(address: str) -> tuple[Contract, Path]:
    """A model's contract and its query encoder.

    Raises:
        NotFound: there is no such model, or its vocabulary is not cached.
    """
    from lightir.addresses import resolve_model_folder, resolve_query_encoder
    from lightir.contract import Contract

    folder = resolve_model_folder(address)
    return Contract.load(folder), resolve_query_encoder(address)
