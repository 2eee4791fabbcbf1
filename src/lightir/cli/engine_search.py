"""Searches of a collection in an engine, for lightir search ADDRESS."""

from __future__ import annotations

import argparse
import re
import time
from typing import TYPE_CHECKING

from lightir.cli.arguments import search_options
from lightir.cli.results import print_result, result_json
from lightir.cli.terminal import Misuse, print_json, print_json_line, print_status
from lightir.quantities import counted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lightir.engines import EngineSearcher
    from lightir.search import SearchOptions
    from lightir.types import Query, Run

USED = {
    "index", "query", "k", "json", "mode", "fusion", "weights", "depth", "min_score", "passages", "queries", "split",
    "run_file", "task", "query_encoder", "threads", "exact", "engine_fusion", "explain", "prompts", "limits", "syntax",
    "filter", "traceback", "command", "run", "parser", "on_interrupt",
}  # fmt: skip
"""Arguments of lightir search that a search of an engine uses, and those of every command."""


def is_engine(text: str) -> bool:
    """Whether INDEX is an address of an engine and not a folder."""
    return re.match(r"[a-z]+://", text) is not None


def check_engine_arguments(args: argparse.Namespace) -> None:
    """Refuse options that a search of an engine would ignore.

    Raises:
        Misuse: such an option, or no query encoder.
    """
    for action in args.parser._actions:
        if action.dest not in USED and getattr(args, action.dest, action.default) != action.default:
            raise Misuse(
                f"{action.option_strings[0]} is not supported for a search of an engine; search an index with it"
            )
    if args.syntax:
        raise Misuse("--syntax is not supported for a search of an engine; search an index with it")
    if args.query_encoder is None:
        raise Misuse(
            "a search of an engine requires --query-encoder: the index that was pushed, its query encoder, or its model"
        )


def search_engine(args: argparse.Namespace, queries: Iterable[Query]) -> None:
    """Search the queries in the engine, and print the hits or write the run."""
    from lightir.engines import EngineSearcher, open_engine
    from lightir.eval import write_run
    from lightir.query import CachedQueryEncoder

    encoder = CachedQueryEncoder.load(args.query_encoder, threads=args.threads)
    args.syntax = False
    options = search_options(args)
    engine = open_engine(args.index)
    try:
        searcher = EngineSearcher(engine, encoder, task=args.task, exact=args.exact, native=args.engine_fusion)
        if args.run_file is None:
            print_hits(searcher, queries, options, args)
            return
        start = time.perf_counter()
        run: Run = searcher.search(queries, args.k, options)
        write_run(args.run_file, run)
        took_s = time.perf_counter() - start
        print_status(f"{counted(len(run), 'query')} searched in {took_s:.2f} s ({len(run) / took_s:,.0f} queries/s)")
    finally:
        engine.close()


def print_hits(
    searcher: EngineSearcher, queries: Iterable[Query], options: SearchOptions, args: argparse.Namespace
) -> None:
    """Print the hits of each query."""
    branches = searcher.collection.branches
    mode = args.mode or ("hybrid" if len(branches) > 1 else branches[0])
    several = args.queries is not None or args.query == "-"
    for number, query in enumerate(queries):
        start = time.perf_counter()
        hits = searcher.hits(query.text, args.k, options)
        took_s = time.perf_counter() - start
        if args.json:
            answer = result_json(query.text, mode, took_s, hits, explain=args.explain)
            (print_json_line if several else print_json)(answer)
            continue
        if number:
            print()
        print_result(query.text, mode, took_s, hits, explain=args.explain)
