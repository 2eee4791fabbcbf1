"""Build an index of encoded vectors or of a plain corpus.

An index of vectors (written by `lightir encode`) is searched by dense vectors, learned sparse vectors and BM25. An
index of a plain corpus is searched by BM25, without any model. With --model, a plain corpus is searched by BM25 at
once, and `lightir worker` encodes it in the background, so that results improve while the index is in use. With
--vectors, its documents get stored vectors, and only documents without one are pending. With the address of an
embeddings endpoint as --model, the endpoint encodes all documents now. Without a query table for them
(--model), name the model that made them (--vector-model): queries then need vectors too (lightir search
--query-vectors).

The types of metadata fields are inferred from the first 65,536 documents: number, boolean, date, keyword or text. The
strings of a CSV or TSV file become numbers and booleans; "00123" stays a string, and an empty cell is a missing value.
A later value of another type is an error that names document and field; declare the field's type then.

Memory holds 65,536 documents at a time, whatever the size of the corpus, plus one segment's graph with --dense-graph.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lightir.cli.add import print_pending
from lightir.cli.arguments import (
    CORPUS_HELP,
    MODEL_HELP,
    Arguments,
    add_corpus_options,
    add_json,
    add_overwrite,
    add_stored_vectors,
    positive,
    require_no_corpus_options,
    skipped_json,
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
from lightir.cli.info import fields_in_words, print_longer
from lightir.cli.pipeline import are_vectors, index_vectors, read_stored_vectors, read_vectors, with_stored_vectors
from lightir.cli.terminal import Misuse, print_json, print_status
from lightir.errors import InvalidInput
from lightir.quantities import counted, format_size

if TYPE_CHECKING:
    from lightir.contract import Contract
    from lightir.data import StoredVectors
    from lightir.data.stored_vectors import Similarity
    from lightir.index import Field, IndexInfo, IndexOptions, PassageOptions
    from lightir.search.endpoint_documents import EndpointDocuments

HELP = "build an index of vectors or plain documents"
EXAMPLES = """
  lightir index vectors --out index
  lightir index part-1 part-2 --out index --dense-dim 256 --sparse-top-k 128
  lightir index corpus.jsonl --out index --model minilm
  lightir index handbook/ --out index --model minilm --exclude drafts/
  lightir index corpus.jsonl --vectors corpus.npy --model model --out index
  lightir index corpus.parquet --vectors corpus.parquet --vector-model text-embedding-3-small --out index
  lightir index corpus.jsonl --model http://127.0.0.1:8000/v1 --endpoint-model bge-m3 --out index
  lightir index corpus.jsonl --out bm25-index --analyzer german
  lightir index products.csv --out index --fields id=sku,title=name,text=description --type ean=key
  lightir index shop.sqlite --table products --out index --fields id=sku,text=description
  lightir index shop.sqlite --sql "SELECT sku AS id, name AS text, price FROM products" --out index
  lightir index products.csv --out index --boost title=3,tags=2
  lightir index corpus.jsonl --out bags --analyzer bag --query-encoder model/query-encoder
"""
NO_ANALYZER, BAG_ANALYZER = "none", "bag"
AUTO_PASSAGES, ALL_PASSAGES, NO_PASSAGES = "auto", "all", "none"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "vectors", nargs="+", metavar="FILES", help=f"vectors folders written by lightir encode, or {CORPUS_HELP}"
    )
    parser.add_argument("-o", "--out", required=True, metavar="INDEX", help="index folder to write")
    add_overwrite(parser)
    add_json(parser)
    corpus = parser.add_argument_group("plain corpus")
    add_corpus_options(corpus)
    corpus.add_argument(
        "--model",
        metavar="MODEL",
        help=f"{MODEL_HELP}. lightir worker will encode the documents with it. Or {URL_HELP}, which encodes them now "
        "(default: no model, BM25 only)",
    )
    add_endpoint(corpus)
    add_stored_vectors(corpus)
    _add_vector_model(corpus)
    _add_passages(corpus)
    add_field_types(parser.add_argument_group("metadata fields"))
    branches = parser.add_argument_group("branches")
    _add_branches(branches)
    _add_boosts(branches)
    parser.add_argument(
        "--segment-documents",
        type=positive,
        metavar="N",
        help="maximum number of documents per segment (default 1048576); few large segments are searched fastest",
    )


def add_field_types(group: Arguments) -> None:
    """Declare --type and --schema."""
    group.add_argument(
        "--type",
        type=field_types,
        action="extend",
        default=[],
        metavar="NAME=TYPE,...",
        help="types of metadata fields (default: inferred): number, boolean, date, keyword (a string that is "
        "compared as a whole), text (words), or key (a keyword that names one document, which a query with it finds "
        "first). Example: price=number,ean=key",
    )
    group.add_argument(
        "--schema",
        metavar="FILE",
        help='JSON file with the types of metadata fields, such as {"price": "number", "ean": {"type": "keyword", '
        '"key": true}}; fields that it does not name are inferred',
    )


def _add_vector_model(group: Arguments) -> None:
    group.add_argument(
        "--vector-model",
        metavar="NAME",
        help="name of the model that made the vectors of --vectors, if no query table is fitted to them (--model)",
    )
    group.add_argument(
        "--made-by",
        metavar="WHO",
        help="for --vector-model: who made the vectors, such as a provider; vectors of different makers do not match "
        "(default: unknown)",
    )
    group.add_argument(
        "--similarity",
        choices=("cosine", "dot"),
        help="for --vector-model: similarity of the vectors, cosine (default) or the dot product of vectors of any "
        "length",
    )


def _add_passages(group: Arguments) -> None:
    group.add_argument(
        "--passages",
        type=passages_choice,
        default=AUTO_PASSAGES,
        metavar="WHICH",
        help="split documents that are longer than the model reads into passages, at headings, between paragraphs or "
        "between sentences: auto (if FILES are texts, web pages, PDF and so on, not records of data files), all, none, "
        "or the maximum number of tokens of a passage (default %(default)s; without --model, 256 words)",
    )
    group.add_argument(
        "--passage-overlap",
        type=positive,
        metavar="N",
        help="maximum number of tokens that a passage repeats of the one before it, in whole sentences (default 0)",
    )


def passages_choice(text: str) -> str | int:
    """Parse auto, all, none or a number of tokens (argparse type)."""
    if text in (AUTO_PASSAGES, ALL_PASSAGES, NO_PASSAGES):
        return text
    try:
        return positive(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not auto, all, none or a number of tokens") from None


def passage_options(args: argparse.Namespace) -> PassageOptions | None:
    """Return the sizes of passages among the arguments; None to split no document."""
    from lightir.data import are_files
    from lightir.index import PassageOptions

    chosen = args.passages
    if chosen == AUTO_PASSAGES:
        chosen = ALL_PASSAGES if args.analyzer != BAG_ANALYZER and are_files(args.vectors) else NO_PASSAGES
    if chosen == NO_PASSAGES:
        if args.passage_overlap:
            raise Misuse("--passage-overlap requires passages; see --passages")
        return None
    return PassageOptions(None if chosen == ALL_PASSAGES else chosen, args.passage_overlap or 0)


def _add_branches(group: Arguments) -> None:
    group.add_argument(
        "--analyzer",
        default="auto",
        metavar="NAME",
        help="text analysis for BM25: auto (each script by its own rules; the languages of Latin words are detected, "
        "or named, as in auto-german or auto-german+english), english (stop words, stemming), words (neither), "
        "chinese, another language's name (stemming), model (the model's tokens), or none for an index without BM25. "
        "bag stores which of the model's tokens a document contains instead, to search with the query encoder's "
        "sparse weights (SiDR) (default %(default)s)",
    )
    group.add_argument(
        "--dense-dim",
        type=positive,
        metavar="N",
        help="number of dense dimensions to keep, for models trained with Matryoshka, with a warning for other widths "
        "(default: all)",
    )
    group.add_argument(
        "--dense-dtype",
        choices=("fp16", "int8", "fp16+int8"),
        help="number format of dense vectors (default fp16). int8 halves the space; fp16+int8 gives the results of "
        "fp16 faster in segments of at most 65,536 documents, in 1.5 times the space",
    )
    group.add_argument(
        "--dense-graph",
        action="store_true",
        help="build an HNSW graph per large segment: dense search is faster and approximate",
    )
    group.add_argument(
        "--sparse-top-k",
        type=positive,
        metavar="N",
        help="maximum number of learned sparse terms per document, strongest first (default: all)",
    )
    group.add_argument(
        "--query-encoder",
        metavar="DIR",
        help="query encoder or model folder to store in the index instead of the one beside the vectors",
    )
    group.add_argument(
        "--word-weight",
        type=float,
        metavar="W",
        help="weight, 0 to 1, of a document's own words in its dense vector, above all of its first 32: the vector "
        "that they would have as a query is added. Queries without a model then find more (default: the model's, "
        "which is 0.4 for minilm)",
    )


def _add_boosts(group: Arguments) -> None:
    group.add_argument(
        "--boost",
        type=boosts,
        action="extend",
        default=[],
        metavar="NAME=N,...",
        help="weights of fields in BM25, integers from 1 to 100 (default: title 5, text 1, no other field): a word in "
        "the field counts N times. NAME is title, text, or a metadata field of text or keywords, which BM25 searches "
        "only with a boost. Example: title=3,tags=2",
    )


def run(args: argparse.Namespace) -> None:
    """Build the index and print its size."""
    check_endpoint(args, others={"passages": AUTO_PASSAGES, "passage_overlap": None, "query_encoder": None})
    source = endpoint_documents(args) if is_address(args.model) else None
    info = build(args, source)
    if args.json:
        sent = {} if source is None else {"endpoint": amount_json(source.amount, args)}
        print_json({**dataclasses.asdict(info), "skipped": skipped_json(), **sent})
        return
    branches, size = " + ".join(info.branches), format_size(sum(info.bytes.values()))
    passages = f"{counted(info.passages, 'passage')}; " * bool(info.passages)
    print_status(f"{args.out}: {counted(info.documents, 'document')} indexed ({passages}{branches}), {size}")
    if source is not None:
        print_amount(source.amount, args)
    print_pending(args.out, info)
    print_longer(args.out)
    if info.fields:
        print_status(f"fields: {fields_in_words(info.fields)}")
    if args.analyzer == "auto" and info.analyzer not in (None, "auto", "auto-english"):
        print_status(f"text analysis: {info.analyzer}, by the first documents; --analyzer chooses another")
    if (graph := info.dense_graph) is not None:
        print_status(
            f"dense graphs: {counted(int(graph['documents']), 'document')}, "
            f"recall@10 {graph['recall_at_10']:.1%} of exact search"
        )
    without_table = args.vector_model is not None or (source is not None and source.model is None)
    vectors = " --query-vectors FILE" if without_table else ""
    print_status(f'next: lightir search {args.out} "your question"{vectors}')


def field_types(text: str) -> list[tuple[str, Field]]:
    """Parse `price=number,ean=key` (argparse type)."""
    from lightir.index.schema import declared_field

    pairs = [part.rpartition("=") for part in text.split(",")]
    if not all(name.strip() and kind for name, _, kind in pairs):
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is not of the form price=number,released=date,ean=key")
    try:
        return [(name.strip(), declared_field(name.strip(), kind.strip(), "--type")) for name, _, kind in pairs]
    except InvalidInput as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("--type: ")) from None


def boosts(text: str) -> list[tuple[str, int]]:
    """Parse `title=3,tags=2` (argparse type)."""
    pairs = [part.rpartition("=") for part in text.split(",")]
    if not all(name.strip() and number.strip().isdecimal() for name, _, number in pairs):
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is not of the form title=3,tags=2")
    return [(name.strip(), int(number)) for name, _, number in pairs]


def boosts_of(args: argparse.Namespace) -> dict[str, int]:
    """Return the boosts of --boost, and that of titles without one; an index that counts no words has none."""
    from lightir.analysis import OF_A_MODEL
    from lightir.index.text_fields import TITLE, USUAL_BOOST_OF_TITLES

    counts_words = args.analyzer not in (NO_ANALYZER, *OF_A_MODEL)
    return {**({TITLE: USUAL_BOOST_OF_TITLES} if counts_words else {}), **dict(args.boost)}


def index_options(args: argparse.Namespace) -> IndexOptions:
    """Return the options among the arguments, without the schema and what depends on it."""
    from lightir.index import IndexOptions
    from lightir.index.index_options import SEGMENT_DOCUMENTS

    return IndexOptions(
        dense_dim=args.dense_dim,
        dense_dtype=args.dense_dtype or "fp16",
        sparse_top_k=args.sparse_top_k,
        dense_graph=args.dense_graph,
        analyzer=None if args.analyzer == NO_ANALYZER else args.analyzer,
        segment_documents=args.segment_documents or SEGMENT_DOCUMENTS,
        word_weight=args.word_weight,
    )


def build(args: argparse.Namespace, source: EndpointDocuments | None) -> IndexInfo:
    """Build the index of vectors folders or of a plain corpus, whose documents an endpoint may encode."""
    folders = [Path(path) for path in args.vectors]
    check_vector_model(args)
    declared = declared_fields(args)
    info, unused = (build_vectors if are_vectors(folders) else build_corpus)(args, folders, declared, source)
    print_unused(args.out, unused)
    return info


def declared_fields(args: argparse.Namespace) -> dict[str, Field]:
    """Return the fields of --schema and --type."""
    from lightir.index.schema import read_schema

    return {**(read_schema(args.schema) if args.schema else {}), **dict(args.type)}


def build_vectors(
    args: argparse.Namespace, folders: Sequence[Path], declared: Mapping[str, Field], source: EndpointDocuments | None
) -> tuple[IndexInfo, list[str]]:
    """Build the index of vectors folders; return the declared fields that no document has too."""
    from lightir.index.schema import infer_from_first

    if args.vector_file:
        raise Misuse("--vectors requires a plain corpus; vectors folders have vectors")
    if args.model or source is not None:
        raise Misuse("--model requires a plain corpus; vectors already name their model")
    if args.passages != AUTO_PASSAGES or args.passage_overlap:
        raise Misuse("--passages requires a plain corpus; vectors are those of whole documents")
    require_no_corpus_options(args)
    own = args.query_encoder and Path(args.query_encoder)
    inferred, _ = infer_from_first(document for reader in read_vectors(folders) for document in reader.documents())
    schema = inferred.with_fields(declared)
    options = dataclasses.replace(index_options(args), schema=schema, boosts=boosts_of(args))
    info = index_vectors(folders, Path(args.out), options=options, query_encoder=own, overwrite=args.overwrite)
    return info, [name for name in declared if name not in inferred.fields]


def build_corpus(
    args: argparse.Namespace, folders: Sequence[Path], declared: Mapping[str, Field], source: EndpointDocuments | None
) -> tuple[IndexInfo, list[str]]:
    """Build the index of a plain corpus; return the declared fields that no document has too."""
    from lightir.data import count_documents, read_documents
    from lightir.index import build_index, document_shards
    from lightir.index.schema import infer_from_first

    stored = read_stored_vectors(args) if args.vector_file else None
    contract, query_encoder = (None, args.query_encoder) if source else contract_of_corpus(args, stored)
    dense_options = args.dense_dim or args.dense_dtype or args.sparse_top_k or args.dense_graph or args.word_weight
    if contract is None and query_encoder is None and source is None and dense_options:
        raise Misuse(
            "--dense-dim, --dense-dtype, --dense-graph, --word-weight and --sparse-top-k require vectors; "
            "encode the corpus first (lightir encode), or name the model that will encode it (--model)"
        )
    if args.vector_file and (args.passages != AUTO_PASSAGES or args.passage_overlap):
        raise Misuse("--passages and --vectors exclude each other; vectors are those of whole documents")
    documents = read_documents(args.vectors, fields=args.fields)
    if stored is not None and stored.path in folders:
        documents = stored.without_own_column(documents)
    inferred, documents = infer_from_first(documents)
    passages = None if args.vector_file or source is not None else passage_options(args)
    schema = inferred.with_fields(declared)
    options = dataclasses.replace(index_options(args), schema=schema, passages=passages, boosts=boosts_of(args))
    if source is not None:
        contract, documents = source.begin(documents)
        query_encoder = source.query_encoder
        shards = source.shards(contract, documents, total=count_documents(args.vectors))
    else:
        shards = document_shards(documents) if stored is None else with_stored_vectors(documents, contract, stored)
    info = build_index(
        shards, args.out, options=options, contract=contract, query_encoder=query_encoder, overwrite=args.overwrite
    )
    return info, [name for name in declared if name not in inferred.fields]


def check_vector_model(args: argparse.Namespace) -> None:
    """Refuse options about vectors without them, and two models."""
    if args.vector_file and is_address(args.model):
        raise Misuse("--vectors and an endpoint as --model exclude each other; one of them gives the vectors")
    if args.vector_model is None and (args.made_by is not None or args.similarity is not None):
        raise Misuse("--made-by and --similarity require --vector-model; a model's contract has them already")
    if args.vector_model is not None and not args.vector_file:
        raise Misuse("--vector-model requires --vectors, the file of the vectors that it made")
    if args.vector_model is not None and args.model:
        raise Misuse("--vector-model and --model exclude each other; the model's contract names who made the vectors")


def contract_of_corpus(
    args: argparse.Namespace, stored: StoredVectors | None
) -> tuple[Contract | None, str | Path | None]:
    """Return the contract of a plain corpus's vectors, and the query encoder to store; None for none."""
    from lightir.contract import external_contract

    if args.model:
        contract, own = model_of(args.model)
        return contract, args.query_encoder or own
    if args.vector_model is None or stored is None:
        return None, args.query_encoder
    similarity: Similarity = args.similarity or "cosine"
    contract = external_contract(args.vector_model, stored.dim, similarity=similarity, maker=args.made_by or "")
    return contract, args.query_encoder


def print_unused(folder: str, declared: Sequence[str]) -> None:
    """Print which declared fields no document has."""
    from lightir.cli.filter_hints import why_nothing
    from lightir.index import Index

    if declared:
        with Index.open(folder) as index:
            for name in declared:
                for hint in why_nothing(index.view, {name: {"exists": True}}):
                    print_status(hint)


def model_of(address: str) -> tuple[Contract, Path]:
    """Return a model's contract and the folder of its query encoder.

    Raises:
        NotFound: the model is unknown, or it has no query tables (lightir cache).
    """
    from lightir.addresses import resolve_model_folder, resolve_query_encoder
    from lightir.contract import Contract

    folder = resolve_model_folder(address)
    return Contract.load(folder), resolve_query_encoder(address)
