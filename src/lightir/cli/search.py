"""Search an index: one query, queries from stdin (QUERY is -), or a file of queries into a TREC run."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm import tqdm

from lightir.cli.arguments import add_filter, add_fusion, add_json, add_tokens, positive
from lightir.cli.filter_hints import why_nothing
from lightir.cli.results import explanation_json, late_line, print_explanation, print_result, result_json
from lightir.cli.terminal import print_json, print_json_line, say, visible

if TYPE_CHECKING:
    from lightir.search import LateSearcher, Searcher, SearchOptions
    from lightir.types import Query

HELP = "search an index"
EXAMPLES = """
  lightir search index "run a function every few seconds" -k 5 --explain
  lightir search index "run a function every few seconds" --doc-id threading.Timer
  lightir search index "vaccine safety" --mode dense+sparse+tokens --weights dense=0.5,sparse=0.2,tokens=0.3 --json
  lightir search index "vaccine safety" --filter '{"year": {"gte": 2015}, "not": {"type": "letter"}}'
  lightir search index "vaccine safety" --late-m 20 --budget-ms 300
  cat questions.txt | lightir search index - --json
  lightir search index --queries queries.jsonl -k 1000 --run out.trec
  lightir search index --queries nfcorpus/ --split test -k 1000 --run out.trec
  lightir search index --queries queries.jsonl -k 1000 --mode tokens --tokens dirichlet:2000 --run dirichlet.trec
"""
BUDGET_MS = 500


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("index", metavar="INDEX", help="an index folder")
    parser.add_argument("query", nargs="?", metavar="QUERY", help="the query, or - for one a line from stdin")
    parser.add_argument("-k", type=positive, default=10, metavar="N", help="documents wanted (default %(default)s)")
    parser.add_argument(
        "--mode",
        metavar="MODE",
        help="hybrid, dense, sparse, tokens, or several joined by + (default: hybrid, or the one that there is)",
    )
    add_fusion(parser)
    parser.add_argument(
        "--depth",
        type=positive,
        metavar="N",
        help="documents that each branch gives to the fusion (default 200; 1000 where --fusion measures scores by the "
        "list's end or spread: linear:min-max, linear:z-score, dbsf)",
    )
    add_tokens(parser)
    add_filter(parser)
    parser.add_argument(
        "--exact", action="store_true", help="scan dense rows also where the index has graphs over them"
    )
    parser.add_argument(
        "--skip-damaged",
        action="store_true",
        help="search without the segments that cannot be opened, and say what is missing",
    )
    parser.add_argument("--explain", action="store_true", help="show what each branch and each matched term add")
    parser.add_argument(
        "--doc-id", metavar="ID", help="explain this document for the query, found or not, among those of --filter"
    )
    parser.add_argument("--task", metavar="NAME", help="the query table to use (default: the encoder's first)")
    parser.add_argument(
        "--query-encoder", metavar="DIR", help="use this one (or this model's), not the one that the index carries"
    )
    parser.add_argument("--queries", metavar="FILE", help="queries as JSONL, CSV, TSV, text lines, or a BEIR folder")
    parser.add_argument("--split", help="of the BEIR folder in --queries: search what it judges (default: all)")
    parser.add_argument("--run", metavar="OUT", dest="run_file", help="with --queries: write a TREC run (- for stdout)")
    parser.add_argument("--threads", type=positive, default=1, metavar="N", help="for --run (default %(default)s)")
    late = parser.add_argument_group(
        "late re-ranking", "encode what is pending while its query waits, once and for good"
    )
    late.add_argument(
        "--late-m",
        type=positive,
        metavar="M",
        help="encode what is pending among the M best documents that tokens find (default: nothing)",
    )
    late.add_argument(
        "--budget-ms", type=positive, metavar="B", help=f"milliseconds a query for it (default {BUDGET_MS})"
    )
    late.add_argument(
        "--model", metavar="MODEL", help="the index's model (default: the installed one that the index speaks of)"
    )
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    """Search what was asked for and print or write it."""
    if (args.query is None) == (args.queries is None):
        args.parser.error("give one of QUERY and --queries")
    if args.run_file is not None and args.queries is None:
        args.parser.error("--run needs --queries")
    if args.split is not None and args.queries is None:
        args.parser.error("--split needs --queries")
    if args.doc_id is not None and args.run_file is not None:
        args.parser.error("--doc-id explains one document; --run writes rankings")
    if args.late_m is None and (args.budget_ms is not None or args.model is not None):
        args.parser.error("--budget-ms and --model are for --late-m")
    if args.late_m is not None and args.doc_id is not None:
        args.parser.error("--doc-id explains one document as it is; --late-m encodes others")
    from lightir.files import check_writable
    from lightir.index import Index
    from lightir.pending import Demand
    from lightir.query import CachedQueryEncoder
    from lightir.search import Searcher

    if args.run_file not in (None, "-"):
        check_writable(args.run_file)
    options = search_options(args)
    encoder = CachedQueryEncoder.load(args.query_encoder) if args.query_encoder else None
    with (
        Index.open(args.index, skip_damaged=args.skip_damaged, exact=args.exact) as index,
        Demand(args.index) as demand,
    ):
        for problem in index.view.problems():
            say(problem)
        searcher = Searcher(index, encoder, task=args.task, threads=args.threads)
        late = None if args.late_m is None else late_searcher(searcher, args)
        if args.run_file is not None:
            write_all(searcher, late, options, args)  # an experiment, which asks for nothing
            return
        searcher.demand = demand
        for number, query in enumerate(texts(args)):
            if number and not args.json:
                print()
            if args.query == "-":
                index.refresh()  # the next line may come much later, when the index is another
            if args.doc_id is None:
                answer(searcher, late, query, options, args)
            else:
                account(searcher, query, options, args)


def late_searcher(searcher: Searcher, args: argparse.Namespace) -> LateSearcher:
    """The searcher with the index's model loaded."""
    from lightir.encode.model_encoder import encoder_for
    from lightir.search import LateOptions, LateSearcher

    encoder = encoder_for(searcher.index, args.model)
    return LateSearcher(searcher, encoder, LateOptions(m=args.late_m, budget_ms=args.budget_ms or BUDGET_MS))


def texts(args: argparse.Namespace) -> Iterator[str]:
    """The queries to print answers for, as they come."""
    if args.queries is not None:
        yield from (query.text for query in given_queries(args))
    elif args.query == "-":
        from lightir.lines import read_stdin_lines

        yield from (line.strip() for _, line in read_stdin_lines())
    else:
        yield args.query


def given_queries(args: argparse.Namespace) -> Iterator[Query]:
    """The queries of `--queries`, or those that its split judges."""
    from lightir.data import Dataset, read_queries

    if args.split is None:
        return read_queries(args.queries)
    return Dataset.open(args.queries).queries(args.split)


def answer(
    searcher: Searcher, late: LateSearcher | None, query: str, options: SearchOptions, args: argparse.Namespace
) -> None:
    """Search one query and print its hits."""
    start = time.perf_counter()
    report = None if late is None else late.encode_for(query, options)
    hits = searcher.hits(query, args.k, options, explain=args.explain)
    if report is not None:
        hits = report.marked(hits)
    took_s = time.perf_counter() - start
    if not hits:
        say_why_nothing(searcher, args)
    mode = args.mode or ("hybrid" if len(searcher.index.branches) > 1 else searcher.index.branches[0])
    if not args.json:
        print_result(query, mode, took_s, hits, explain=args.explain)
        if report is not None:
            say(late_line(report))
        return
    streams = args.queries is not None or args.query == "-"
    (print_json_line if streams else print_json)(
        result_json(query, mode, took_s, hits, explain=args.explain, late=report)
    )


def say_why_nothing(searcher: Searcher, args: argparse.Namespace) -> None:
    """Where it is the filter that leaves no document, say what about it."""
    for line in why_nothing(searcher.index.view, args.filter):
        say(visible(line))


def search_options(args: argparse.Namespace) -> SearchOptions:
    """Return the options of every search."""
    from lightir.search import SearchOptions
    from lightir.search.language_model import parse_smoothing

    names = ("mode", "fusion", "weights", "depth", "filter")
    return SearchOptions(**{name: getattr(args, name) for name in names}, smoothing=parse_smoothing(args.tokens))


def account(searcher: Searcher, query: str, options: SearchOptions, args: argparse.Namespace) -> None:
    """Print why the document named has its score for a query."""
    found = searcher.explain(query, args.doc_id, options)
    if not args.json:
        print_explanation(query, found)
        return
    streams = args.queries is not None or args.query == "-"
    (print_json_line if streams else print_json)(explanation_json(query, found))


def write_all(searcher: Searcher, late: LateSearcher | None, options: SearchOptions, args: argparse.Namespace) -> None:
    """Search every query of the file and write the run; with late re-ranking after all of them were encoded for."""
    from lightir.eval import write_run

    queries = list(given_queries(args))
    start = time.perf_counter()
    if late is not None:
        for query in tqdm(queries, desc="late", unit="query", disable=None):
            late.encode_for(query.text, options)
    found = searcher.search(queries, args.k, options)
    took_s = time.perf_counter() - start
    if not any(map(len, found.values())):
        say_why_nothing(searcher, args)
    if args.run_file == "-":
        with tempfile.TemporaryDirectory() as folder:
            write_run(Path(folder, "run"), found)
            sys.stdout.buffer.write(Path(folder, "run").read_bytes())
    else:
        write_run(args.run_file, found)
    say(f"{len(queries):,} queries in {took_s:.2f} s ({len(queries) / max(took_s, 1e-9):,.0f} a second)")
