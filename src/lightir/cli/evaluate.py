"""Compute retrieval measures of an index, a model or run files, with significance tests.

An index is searched with the queries of a BEIR folder in each mode. A model first encodes the folder's corpus; --work
keeps the vectors, and an interrupted run continues from them. Run files, from lightir or any other tool, are compared
with the first one; instead of a BEIR folder, they accept a file of qrels (--qrels).

--mteb evaluates a model on tasks of MTEB by MTEB, in mode hybrid unless --modes says otherwise, and writes MTEB's
result files.

A model has additional modes, to compare with queries that need no model. Dense queries through the whole model: full.
Sparse queries weighted by the model: full-sparse, and beta on a bag-of-tokens index (SiDR). Its model-free twin:
light-beta. The form FIRST:M:SECOND reranks the M best documents of one mode by another.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightir.cli.arguments import (
    MODEL_HELP,
    add_device,
    add_exclude_same_id,
    add_fusion,
    add_json,
    add_limits,
    add_question_words,
    add_syntax,
    add_task,
    add_threads,
    add_tokens,
    add_work,
    positive,
    search_options,
)
from lightir.cli.query_vectors import add_query_vectors, read_query_vectors
from lightir.cli.terminal import Misuse, format_table, print_json, print_status
from lightir.files import check_writable, make_folder, temporary_folder, write_bytes
from lightir.quantities import counted, format_duration
from lightir.types import escape_id

if TYPE_CHECKING:
    from lightir.data import Dataset
    from lightir.search.index_evaluation import EvaluationReport

HELP = "measure an index, a model or run files (needs lightir[eval])"
EXAMPLES = """
  lightir evaluate index --dataset scifact/
  lightir evaluate index --dataset nfcorpus/ --split dev --modes hybrid,dense,tokens --run-dir runs --json
  lightir evaluate index --dataset nfcorpus/ --modes tokens --tokens jelinek-mercer:0.1
  lightir evaluate index --dataset nfcorpus/ --split dev --fusion rrf --weights dense=0.6,tokens=0.4
  lightir evaluate index --dataset scifact/ --modes dense,hybrid --query-vectors queries.npy
  lightir evaluate minilm --dataset scifact/ --work scifact-minilm
  lightir evaluate bm25.trec reranked.trec --dataset scifact/
  lightir evaluate ours.run theirs.run.gz --qrels qrels.txt --measures nDCG@10,map,R@1000 --per-query values.tsv
  lightir evaluate minilm --dataset scifact/ --work scifact-minilm --modes full,dense,full+tokens
  lightir evaluate minilm --mteb SciFact,NFCorpus --work mteb-minilm --modes hybrid,dense,tokens --mteb-results results
  lightir evaluate sidr-model --dataset nq-utd/ --work nq-sidr --modes tokens,beta,beta:20:full-sparse,full-sparse
"""


SPLIT = "test"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "target",
        nargs="+",
        metavar="SYSTEM",
        help=f"index of the data set's corpus; or {MODEL_HELP}; or run files (TREC, or ranx's .json), each one system",
    )
    parser.add_argument("--dataset", metavar="DIR", help="BEIR folder with queries and qrels")
    add_mteb(parser)
    parser.add_argument("--split", help="split of the BEIR folder to read qrels from (default test)")
    parser.add_argument(
        "--qrels", metavar="FILE", help="for run files: relevance judgments in BEIR or TREC format, or ranx's .json"
    )
    parser.add_argument(
        "--measures",
        type=lambda text: [name.strip() for name in re.split(r",(?![^(]*\))", text)],
        metavar="A,B,...",
        help="measures, named as in ir-measures or trec_eval (default nDCG@10,R@20,R@50,R@100,RR@10)",
    )
    parser.add_argument(
        "--per-query",
        metavar="FILE",
        help="TSV file to write each query's values to: system, measure, query id, value",
    )
    add_limits(parser)
    add_json(parser)
    search = parser.add_argument_group("search (of an index or a model)")
    search.add_argument(
        "--modes",
        type=lambda text: text.split(","),
        metavar="A,B,...",
        help="modes to measure: those of lightir search; for a model also full, full-sparse, beta, light-beta, the "
        "ablations beta-lex, beta-bin, overlap, full-lex and full-bin, and FIRST:M:SECOND (default: all but ablations)",
    )
    search.add_argument(
        "-k", type=positive, metavar="N", help="depth of the rankings (default: the largest cutoff of the measures)"
    )
    add_task(search)
    add_exclude_same_id(search)
    add_fusion(search)
    search.add_argument("--run-dir", metavar="DIR", help="folder to write each mode's TREC run to")
    add_threads(search)
    index = parser.add_argument_group("index")
    add_tokens(index)
    add_question_words(index)
    add_syntax(index, False, "off")
    add_query_vectors(
        index, "query of the data set, or Parquet, whose rows have query ids or are in the order of the queries"
    )
    index.add_argument(
        "--exact", action="store_true", help="scan all dense vectors instead of using the index's graphs"
    )
    model = parser.add_argument_group("model")
    add_work(model)
    add_device(model)


def add_mteb(parser: argparse.ArgumentParser) -> None:
    """Declare --mteb and --mteb-results."""
    parser.add_argument(
        "--mteb",
        type=lambda text: [name.strip() for name in text.split(",")],
        metavar="TASK,...",
        help="retrieval tasks of MTEB to evaluate a model on instead of a folder; MTEB loads them from the hub and "
        "computes its own measures (needs lightir[mteb]; default: evaluate on --dataset)",
    )
    parser.add_argument(
        "--mteb-results",
        metavar="DIR",
        help="folder for MTEB's result files (default: MTEB's cache, MTEB_CACHE or ~/.cache/mteb)",
    )


def run(args: argparse.Namespace) -> None:
    """Measure the systems and print a table or JSON."""
    from lightir.data import Dataset

    if args.query_vector_ids is not None and args.query_vectors is None:
        raise Misuse("--query-vector-ids requires --query-vectors")
    if args.per_query is not None:
        check_writable(args.per_query)
    if args.mteb is not None:
        print_mteb(measure_on_mteb(args), args)
        return
    if args.mteb_results is not None:
        raise Misuse("--mteb-results requires --mteb")
    if any(Path(target).exists() and not Path(target).is_dir() for target in args.target):
        report = measure_runs(args)
    elif len(args.target) > 1:
        raise Misuse(
            "expected one index, one model, or run files; to compare several indexes, write their runs with --run-dir "
            "and evaluate those"
        )
    elif args.dataset is None or args.qrels is not None:
        raise Misuse(
            f"{args.target[0]} is not a run file. An index or a model requires --dataset and does not accept --qrels; "
            "lightir search INDEX --queries FILE -k 100 --run OUT writes a run file"
        )
    else:
        report = measure(Dataset.open(args.dataset), args)
    if args.per_query is not None:
        write_bytes(Path(args.per_query), "".join(per_query_lines(report)).encode())
    if args.json:
        print_json({**report.to_json(), **significance(report)})
    else:
        print_table(report)


def measure(dataset: Dataset, args: argparse.Namespace) -> EvaluationReport:
    """Return the report on the index or the model."""
    from lightir.eval import DEFAULT_MEASURES
    from lightir.index.store_file import STORE_FILE

    if args.run_dir is not None:
        make_folder(Path(args.run_dir))  # fail before the work if it cannot be written
    options: dict[str, Any] = {
        "split": args.split or SPLIT,
        "modes": args.modes,
        "measures": args.measures or DEFAULT_MEASURES,
        "k": args.k,
        "options": search_options(args),
        "run_dir": args.run_dir,
    }
    if Path(args.target[0], STORE_FILE).is_file():
        return measure_index(dataset, args, options)
    return measure_model(dataset, args, options)


def measure_index(dataset: Dataset, args: argparse.Namespace, options: dict[str, Any]) -> EvaluationReport:
    """Return the report on an index.

    Raises:
        Misuse: an option that only models accept is given.
    """
    from lightir.index import Index
    from lightir.search import Searcher
    from lightir.search.index_evaluation import evaluate_index

    if args.query_vectors is not None and args.task is not None:
        raise Misuse("--query-vectors and --task exclude each other; the queries are encoded already")
    if args.work:
        raise Misuse("--work requires a model; an index is already encoded")
    if args.device != "auto":
        raise Misuse("--device requires a model; an index is searched on the CPU")
    with Index.open(args.target[0], exact=args.exact) as index:
        vectors = None
        if args.query_vectors is not None:
            vectors = read_query_vectors(index, args, [query.query_id for query in dataset.queries()])
        searcher = Searcher(index, vectors, task=args.task, threads=args.threads)
        return evaluate_index(searcher, dataset, **options)


def measure_model(dataset: Dataset, args: argparse.Namespace, options: dict[str, Any]) -> EvaluationReport:
    """Return the report on a model, after encoding the data set's corpus.

    Raises:
        Misuse: an option that only indexes accept is given.
    """
    from lightir.addresses import resolve_model_folder

    if args.query_vectors is not None:
        raise Misuse("--query-vectors requires an index; a model encodes the queries")
    if args.exact:
        raise Misuse("--exact requires an index; a model is always measured by exact search")
    if args.tokens != "bm25":
        raise Misuse("--tokens requires an index; build one of the vectors in --work and evaluate it")
    folder = resolve_model_folder(args.target[0])
    dataset.require_split(options["split"])
    # Imports torch: only after the name is resolved.
    from lightir.encode.model_evaluation import SystemOptions, evaluate_model

    systems = SystemOptions(options.pop("modes"), args.task, device=args.device, threads=args.threads)
    with temporary_folder() as scratch:
        return evaluate_model(folder, dataset, args.work or scratch, systems=systems, **options)


def measure_on_mteb(args: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Return the main score of each mode and task."""
    from lightir.addresses import resolve_model_folder, shipped_models
    from lightir.errors import MissingExtra

    own = ("dataset", "split", "qrels", "measures", "per_query", "k", "run_dir", "query_vectors")
    if len(args.target) > 1 or args.exact or any(getattr(args, name) is not None for name in own):
        raise Misuse(
            "--mteb requires one model, and no --dataset, --split, --qrels, --measures, --per-query, -k, --run-dir or "
            "--exact: MTEB has its own splits, measures and depth"
        )
    folder = resolve_model_folder(args.target[0])
    if importlib.util.find_spec("mteb") is None:
        raise MissingExtra("--mteb requires mteb: pip install 'lightir[mteb]'")
    # Imports torch: only after the name is resolved.
    from lightir.encode.model_evaluation import SystemOptions
    from lightir.encode.mteb_systems import evaluate_on_mteb

    address = args.target[0] if args.target[0] in shipped_models() else folder
    systems = SystemOptions(args.modes, args.task, device=args.device, threads=args.threads)
    options = search_options(args)
    return evaluate_on_mteb(
        address, args.mteb, results=args.mteb_results, work=args.work, systems=systems, options=options
    )


def print_mteb(scores: dict[str, dict[str, float]], args: argparse.Namespace) -> None:
    """Print the main score of each mode and task."""
    if args.json:
        print_json({"main_scores": scores})
        return
    tasks = list(next(iter(scores.values())))
    rows = [["system", *tasks]]
    rows += [[mode, *(f"{by_task[task]:.4f}" for task in tasks)] for mode, by_task in scores.items()]
    print(format_table(rows))


def measure_runs(args: argparse.Namespace) -> EvaluationReport:
    """Return the report on run files."""
    from lightir.data import Dataset, read_qrels
    from lightir.eval import DEFAULT_MEASURES, read_run
    from lightir.search.index_evaluation import evaluate_runs

    searching = ("modes", "k", "task", "fusion", "weights", "run_dir", "work", "query_vectors")
    switches = (args.exclude_same_id, args.exact, args.tokens != "bm25", args.device != "auto", args.threads != 1)
    if any(getattr(args, name) is not None for name in searching) or any(switches):
        raise Misuse(
            "run files accept only the options --dataset, --split, --qrels, --measures, --per-query and --json"
        )
    if (args.dataset is None) == (args.qrels is None) or (args.qrels is not None and args.split is not None):
        raise Misuse("run files require relevance judgments: either --dataset (with --split) or --qrels")
    if args.dataset is None:
        name, split, qrels = Path(args.qrels).name, "", read_qrels(args.qrels)
    else:
        dataset, split = Dataset.open(args.dataset), args.split or SPLIT
        name, qrels = dataset.name, dataset.qrels(split)
    runs = {path: read_run(path) for path in args.target}
    measures = args.measures or DEFAULT_MEASURES
    judged = {doc_id for grades in qrels.values() for doc_id in grades}
    report = evaluate_runs(runs, qrels, dataset=name, split=split, measures=measures)
    for path, run in runs.items():
        if n_missing := len(qrels.keys() - run.keys()):
            print_status(
                f"warning: {path} lacks {n_missing:,} of the {counted(len(qrels), 'judged query')}; each scores 0"
            )
        retrieved = [doc_id for ranking in run.values() for doc_id in ranking.doc_ids]
        if judged.isdisjoint(retrieved):
            example = repr(retrieved[0]) if retrieved else "none"
            print_status(
                f"warning: none of the documents of {path} is judged. Do the ids match? The run has {example}, the "
                f"qrels have {min(judged)!r}"
            )
    return report


def reference_of(report: EvaluationReport) -> str:
    """Return the system to compare the others with: hybrid, or the first one if there is no hybrid."""
    return "hybrid" if "hybrid" in report.systems else next(iter(report.systems))


def significance(report: EvaluationReport) -> dict[str, Any]:
    """Return, for each measure, the other systems' p-values with Holm's correction, for --json."""
    if len(report.systems) < 2:
        return {}
    reference = reference_of(report)
    p = {}
    for measure in report.systems[reference].measures:
        by_system = report.comparison(reference=reference, measure=measure).p_values
        p[measure] = {system: by_set[report.dataset] for system, by_set in by_system.items()}
    return {"significance": {"reference": reference, "p": p}}


def per_query_lines(report: EvaluationReport) -> Iterator[str]:
    """Yield a line per system, measure and judged query, with ids escaped as in run files."""
    for system, evaluation in report.systems.items():
        for measure, values in evaluation.per_query.items():
            for query_id, value in values.items():
                yield f"{system}\t{measure}\t{escape_id(query_id)}\t{value:.6g}\n"


def print_table(report: EvaluationReport) -> None:
    """Print one line per system, the significant differences, and warnings."""
    systems = report.systems
    measures = list(next(iter(systems.values())).measures)
    rows = [["system", *measures]]
    rows += [[mode, *(f"{result.measures[name]:.4f}" for name in measures)] for mode, result in systems.items()]
    print(f"{report.dataset}{report.split and ' '}{report.split}: {counted(report.n_queries, 'query')}")
    print(format_table(rows))
    if len(systems) > 1:
        print(f"  {differences(report, measures[0])}")
    if report.missing_documents:
        print_status(f"warning: the index lacks {counted(report.missing_documents, 'relevant document')}")
    print_status(f"searched and measured in {format_duration(report.seconds)}")


def differences(report: EvaluationReport, measure: str) -> str:
    """Describe the systems that differ significantly from the reference in a measure."""
    reference = reference_of(report)
    comparison = report.comparison(reference=reference, measure=measure)
    p = {system: by_dataset[report.dataset] for system, by_dataset in comparison.p_values.items()}
    sides = {"+": "better", "-": "worse"}
    marks = {system: comparison.mark(system, report.dataset) for system in report.systems}
    significant = [f"{system} {sides[mark]} (p = {p[system]:.2g})" for system, mark in marks.items() if mark]
    smallest = min(p.values())
    sign = ">=" if smallest < 1 and len(p) > 1 else "="
    text = ", ".join(significant) or f"no significant difference (p {sign} {smallest:.2g})"
    return f"{measure} compared with {reference} (paired randomization test, p < 0.05): {text}"
