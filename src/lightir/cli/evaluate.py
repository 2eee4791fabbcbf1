"""Measure an index, a model on a whole data set, or run files: one line a system, differences tested in pairs.

The judgements are those of a BEIR folder's split. Run files, of this or any other tool, are held against the first one;
a file of judgements is enough for them (--qrels).

A model encodes the data set's corpus first; --work keeps the vectors, where a run that was cut off goes on. With a
model there is one more mode, `full`: the dense branch with queries that go through the whole model, which is what the
light ones are held against. `full-sparse` is the same for the sparse branch: queries weighted by the model's own sparse
head, as a CSplade was trained, instead of counted terms. `beta` searches bags of tokens with such queries (SiDR),
`light-beta` does so without the model, and FIRST:M:SECOND puts the M best documents of one mode in another's order.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightir.cli.arguments import MODEL_HELP, add_device, add_fusion, add_json, add_tokens, positive
from lightir.cli.terminal import Misuse, duration, print_json, say, table
from lightir.files import check_writable, write_bytes
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
  lightir evaluate bm25.trec reranked.trec --dataset scifact/
  lightir evaluate ours.run theirs.run.gz --qrels qrels.txt --measures nDCG@10,map,R@1000 --per-query values.tsv
  lightir evaluate minilm --dataset scifact/ --work scifact-minilm
  lightir evaluate minilm --dataset scifact/ --work scifact-minilm --modes full,dense,full+tokens
  lightir evaluate sidr-model --dataset nq-utd/ --work nq-sidr --modes tokens,beta,beta:20:full-sparse,full-sparse
"""


SPLIT = "test"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "target",
        nargs="+",
        metavar="SYSTEM",
        help=f"an index of the data set's corpus, or {MODEL_HELP}; or TREC run files, each a system",
    )
    parser.add_argument("--dataset", metavar="DIR", help="a BEIR folder; needed but for run files with --qrels")
    parser.add_argument("--split", help="of the BEIR folder, whose judgements (default test)")
    parser.add_argument("--qrels", metavar="FILE", help="for run files: judgements as BEIR or TREC writes them")
    parser.add_argument(
        "--modes",
        type=lambda text: text.split(","),
        metavar="A,B,…",
        help="as search has them, and for a model full, full-sparse, beta, light-beta, SiDR's ablations beta-lex, "
        "beta-bin, overlap, full-lex and full-bin, and FIRST:M:SECOND (default: all that there are, but ablations)",
    )
    parser.add_argument(
        "--measures",
        type=lambda text: [name.strip() for name in re.split(r",(?![^(]*\))", text)],
        metavar="A,B,…",
        help="measures as ir-measures or trec_eval name them (default nDCG@10,R@20,R@50,R@100,RR@10)",
    )
    parser.add_argument(
        "-k", type=positive, metavar="N", help="depth of the rankings (default: the measures' deepest cutoff)"
    )
    parser.add_argument("--task", metavar="NAME", help="the query table to use (default: the encoder's first)")
    parser.add_argument(
        "--exclude-same-id", action="store_true", help="drop hits whose id is the query's (ArguAna, Quora)"
    )
    add_fusion(parser)
    add_tokens(parser)
    parser.add_argument("--run-dir", metavar="DIR", help="write each mode's TREC run here")
    parser.add_argument(
        "--work", metavar="DIR", help="for a model: keep vectors, query table and index here (default: not kept)"
    )
    parser.add_argument("--exact", action="store_true", help="of an index: scan dense rows also where it has graphs")
    parser.add_argument("--threads", type=positive, default=1, metavar="N", help="for searching (default %(default)s)")
    parser.add_argument(
        "--per-query", metavar="FILE", help="write each query's values: system, measure, query id, value between tabs"
    )
    add_device(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    """Search the split's queries in each mode, measure and print."""
    from lightir.data import Dataset

    if args.per_query is not None:
        check_writable(args.per_query)
    if any(Path(each).exists() and not Path(each).is_dir() for each in args.target):
        report = measure_runs(args)
    elif len(args.target) > 1:
        raise Misuse("name one index or one model; several systems are compared as run files (--run-dir writes them)")
    elif args.dataset is None or args.qrels is not None:
        raise Misuse(
            "an index or a model is measured on a --dataset; --qrels is for run files, which "
            "`lightir search INDEX --queries FILE -k 100 --run OUT` writes"
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
    """The report on the index or the model named."""
    from lightir.eval import DEFAULT_MEASURES
    from lightir.index.store import STORE_FILE
    from lightir.search import SearchOptions
    from lightir.search.language_model import parse_smoothing

    if args.run_dir is not None:
        Path(args.run_dir).mkdir(parents=True, exist_ok=True)  # what cannot be written to is known before the work
    options: dict[str, Any] = {
        "split": args.split or SPLIT,
        "modes": args.modes,
        "measures": args.measures or DEFAULT_MEASURES,
        "k": args.k,
        "options": SearchOptions(
            fusion=args.fusion,
            weights=args.weights,
            exclude_same_id=args.exclude_same_id,
            smoothing=parse_smoothing(args.tokens),
        ),
        "run_dir": args.run_dir,
    }
    if Path(args.target[0], STORE_FILE).is_file():
        return measure_index(dataset, args, options)
    return measure_model(dataset, args, options)


def measure_index(dataset: Dataset, args: argparse.Namespace, options: dict[str, Any]) -> EvaluationReport:
    """The report on an index.

    Raises:
        Misuse: an option that is for models.
    """
    from lightir.index import Index
    from lightir.search import Searcher
    from lightir.search.index_evaluation import evaluate_index

    if args.work:
        raise Misuse("--work keeps what a model encodes; an index needs none")
    if args.device != "auto":
        raise Misuse("--device is for a model that encodes; an index is searched on the CPU")
    with Index.open(args.target[0], exact=args.exact) as index:
        searcher = Searcher(index, task=args.task, threads=args.threads)
        return evaluate_index(searcher, dataset, **options)


def measure_model(dataset: Dataset, args: argparse.Namespace, options: dict[str, Any]) -> EvaluationReport:
    """The report on a model, which encodes the data set's corpus first.

    Raises:
        Misuse: an option that is for indexes.
    """
    from lightir.addresses import resolve_model_folder

    if args.exact:
        raise Misuse("--exact is for an index that has graphs; a model is measured by exact search anyway")
    if args.tokens != "bm25":
        raise Misuse("--tokens is for an index; make one of --work's vectors, or of the corpus, and measure that")
    folder = resolve_model_folder(args.target[0])
    from lightir.encode.model_evaluation import evaluate_model  # torch, which a wrong name need not wait for

    with tempfile.TemporaryDirectory() as scratch:
        work = args.work or scratch
        return evaluate_model(
            folder, dataset, work, task=args.task, device=args.device, threads=args.threads, **options
        )


def measure_runs(args: argparse.Namespace) -> EvaluationReport:
    """The report on run files, which are measured as they are."""
    from lightir.data import Dataset, read_qrels
    from lightir.eval import DEFAULT_MEASURES, read_run
    from lightir.search.index_evaluation import evaluate_runs

    searching = ("modes", "k", "task", "fusion", "weights", "run_dir", "work")
    switches = (args.exclude_same_id, args.exact, args.tokens != "bm25", args.device != "auto", args.threads != 1)
    if any(getattr(args, name) is not None for name in searching) or any(switches):
        raise Misuse(
            "run files are measured as they are: of the options --measures, --per-query and --json alone go with them"
        )
    if (args.dataset is None) == (args.qrels is None) or (args.qrels is not None and args.split is not None):
        raise Misuse("run files want judgements: those of a --dataset's --split, or a file of --qrels")
    if args.dataset is None:
        name, split, qrels = Path(args.qrels).name, "", read_qrels(args.qrels)
    else:
        dataset, split = Dataset.open(args.dataset), args.split or SPLIT
        name, qrels = dataset.name, dataset.qrels(split)
    runs = {each: read_run(each) for each in args.target}
    measures = args.measures or DEFAULT_MEASURES
    judged = {doc_id for grades in qrels.values() for doc_id in grades}
    report = evaluate_runs(runs, qrels, dataset=name, split=split, measures=measures)
    for path, run in runs.items():
        if lacking := len(qrels.keys() - run.keys()):
            say(f"{path} lacks {lacking:,} of the {len(qrels):,} judged queries; each of them counts 0")
        found = (doc_id for ranking in run.values() for doc_id in ranking.doc_ids)
        if judged.isdisjoint(found):
            example = next((doc_id for ranking in run.values() for doc_id in ranking.doc_ids), "")
            say(f"{path}: no document of it is judged, {example!r} for one; the judgements have {min(judged)!r}")
    return report


def reference_of(report: EvaluationReport) -> str:
    """The system that the others are held against: hybrid, or the first where there is none."""
    return "hybrid" if "hybrid" in report.systems else next(iter(report.systems))


def significance(report: EvaluationReport) -> dict[str, Any]:
    """What --json says of differences: for each measure the other systems' p, corrected for their number (Holm)."""
    if len(report.systems) < 2:
        return {}
    reference = reference_of(report)
    p = {}
    for measure in report.systems[reference].measures:
        by_system = report.comparison(reference=reference, measure=measure).p_values
        p[measure] = {system: by_set[report.dataset] for system, by_set in by_system.items()}
    return {"significance": {"reference": reference, "p": p}}


def per_query_lines(report: EvaluationReport) -> Iterator[str]:
    """A line for each system, measure and judged query; ids are escaped as in run files."""
    for system, evaluation in report.systems.items():
        for measure, values in evaluation.per_query.items():
            for query_id, value in values.items():
                yield f"{system}\t{measure}\t{escape_id(query_id)}\t{value:.6g}\n"


def print_table(report: EvaluationReport) -> None:
    """One line a mode, and what differs significantly from hybrid, or from the first mode where there is no hybrid."""
    systems = report.systems
    measures = list(next(iter(systems.values())).measures)
    rows = [["system", *measures]]
    rows += [[mode, *(f"{each.measures[m]:.4f}" for m in measures)] for mode, each in systems.items()]
    print(f"{report.dataset}{report.split and ' '}{report.split}: {report.n_queries:,} queries")
    print(table(rows))
    if len(systems) > 1:
        compared = report.comparison(reference=(reference := reference_of(report)), measure=measures[0])
        marks = {mode: compared.mark(mode, report.dataset) for mode in systems}
        p = {mode: by_set[report.dataset] for mode, by_set in compared.p_values.items()}
        sides, least = {"+": "above", "-": "below"}, min(p.values())
        listed = [f"{mode} {sides[mark]} (p {p[mode]:.2g})" for mode, mark in marks.items() if mark]
        found = ", ".join(listed) or f"no difference (p {least:.2g}{' or more' * (least < 1 and len(p) > 1)})"
        print(f"  {measures[0]} against {reference}, paired randomisation test, p < 0.05: {found}")
    if report.missing_documents:
        say(f"{report.missing_documents:,} relevant documents are not in the index and cannot be found")
    say(f"searched and measured in {duration(report.seconds)}")
