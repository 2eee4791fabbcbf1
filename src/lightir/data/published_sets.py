"""Conversion of published training sets to lightir's forms, in one pass with bounded memory."""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
import math
import re
import sys
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from lightir.data.records import Record, list_field, parquet_rows, record_location
from lightir.errors import InvalidInput, NotFound
from lightir.files import atomic_file, atomic_folder
from lightir.lines import read_lines
from lightir.progress import followed
from lightir.text import check_text

TEVATRON_FIELDS = frozenset({"query_id", "query", "positive_passages", "negative_passages"})
PASSAGE_ID_FIELDS = ("passage_id", "psg_id", "docid", "_id", "id")
PASSAGES_HEADER = ["id", "text", "title"]
BLOCK = 1 << 20
"""Number of characters that are read at a time."""
LONGEST_ITEM = 1 << 26
"""Number of characters from which an item of a JSON array counts as damaged."""


@dataclass(slots=True)
class ConversionReport:
    """Counts of a conversion.

    Attributes:
        queries: number of queries written.
        positives: number of their relevant passages.
        negatives: number of their hard negatives.
        passages: number of distinct passages written; 0 where each query brings its own.
        scores: number of queries with a teacher's scores.
        without_positive: number of queries left out because they have no relevant passage.
        ignored_fields: number of queries by name of a field that was not converted.
    """

    queries: int = 0
    positives: int = 0
    negatives: int = 0
    passages: int = 0
    scores: int = 0
    without_positive: int = 0
    ignored_fields: dict[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return asdict(self)

    def ignore(self, names: Collection[str]) -> None:
        """Count fields of a query that are not converted."""
        for name in sorted(names):
            self.ignored_fields[name] = self.ignored_fields.get(name, 0) + 1

    def check(self, expected: int) -> None:
        """Compare the number of queries with the published one; 0 expects none in particular.

        Raises:
            InvalidInput: the number differs.
        """
        if expected and self.queries != expected:
            raise InvalidInput(
                f"{self.queries:,} queries were converted, but {expected:,} are expected: the file is incomplete or of "
                f"another version; {self.without_positive:,} queries without a relevant passage were left out"
            )


def convert_tevatron(paths: Sequence[Path | str], out: Path | str, *, expected: int = 0) -> ConversionReport:
    """Convert files with Tevatron's fields to a JSONL file of training examples.

    The training sets of LightRetriever, CSplade and LLM-QL have them. A line or Parquet row has query,
    positive_passages and negative_passages (lists of objects with docid, title and text), and optionally query_id.
    The passages may have ce_score, a cross-encoder's score; NaN and infinite ones are missing ones.

    Args:
        paths: JSON-lines files, gzipped or not, or Parquet files.
        out: JSONL file to write atomically, in the format of `TrainingSet.open_jsonl`.
        expected: number of queries to expect; 0 accepts any.

    Raises:
        NotFound: a file does not exist.
        InvalidInput: another layout, a duplicate query id, or not the expected number of queries.
    """
    report, seen = ConversionReport(), _UniqueIds()
    records = ((path, number, record) for path in map(Path, paths) for number, record in _records(path))
    with atomic_file(out) as file:
        for position, (path, number, record) in enumerate(followed(records, "convert", unit="query"), 1):
            where = record_location(str(path), number)
            example = _tevatron_example(record, where, report)
            if example is not None:
                seen.add(example.setdefault("query_id", str(position)), where)
                file.write(_line(example).encode())
        report.check(expected)
    return report


def convert_dpr(
    path: Path | str, out: Path | str, *, passages: Path | str | None = None, expected: int = 0
) -> ConversionReport:
    """Convert a training file of DPR, which SiDR uses, to a BEIR folder with negatives.

    A question has question, answers (or answer), positive_ctxs and hard_negative_ctxs, lists of objects with title,
    text and passage_id or psg_id. The folder has corpus.jsonl, queries.jsonl with the answers as metadata,
    qrels/train.tsv and negatives.jsonl, which recipes name under `negatives`.

    Args:
        path: JSON-lines file or one JSON array, gzipped or not.
        out: folder to write atomically.
        passages: all passages as TSV with the header id, text, title (DPR's psgs_w100.tsv), gzipped or not; they become
            the corpus. None makes the corpus from the questions' passages; one without an id gets a hash of its
            content.
        expected: number of questions to expect; 0 accepts any.

    Raises:
        NotFound: a file does not exist.
        AlreadyExists: the folder exists.
        InvalidInput: another layout, a passage that `passages` lacks, or not the expected number of questions.
    """
    report, needed = ConversionReport(), set[str]()
    with atomic_folder(Path(out)) as folder:
        with ExitStack() as stack:
            files = _DprFiles(stack, folder, keep_texts=passages is None)
            questions = _dpr_records(Path(path))
            for number, where, record in followed(questions, "convert", unit="question"):
                files.write(record, f"q{number}", where, report, needed)
        report.check(expected)
        if passages is not None:
            report.passages = _copy_passages(Path(passages), folder / "corpus.jsonl", needed)
    return report


class _UniqueIds:
    """Query ids as 8-byte hashes in a set, which refuses an id that was added before."""

    def __init__(self) -> None:
        self._hashes: set[int] = set()

    def add(self, query_id: str, where: str) -> None:
        digest = int.from_bytes(hashlib.blake2b(query_id.encode(), digest_size=8).digest(), "big")
        if digest in self._hashes:
            raise InvalidInput(f"{where}: duplicate query id {query_id!r}")
        self._hashes.add(digest)


def _records(path: Path) -> Iterator[Record]:
    """Yield the objects of a JSON-lines or Parquet file; NaN and infinite numbers become None."""
    if not path.is_file():
        raise NotFound(f"{path} does not exist; expected a file of training data")
    if path.suffix == ".parquet":
        yield from enumerate(parquet_rows(path), 1)
        return
    for number, line in read_lines(path):
        if line.strip():
            yield number, _object(line, record_location(str(path), number))


def _object(text: str, where: str) -> dict[str, Any]:
    try:
        record = json.loads(text, parse_constant=lambda _: None)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{where}: invalid JSON: {error}") from None
    if not isinstance(record, dict):
        raise InvalidInput(f"{where}: {type(record).__name__}; expected an object")
    return record


def _tevatron_example(record: Mapping[str, Any], where: str, report: ConversionReport) -> dict[str, Any] | None:
    """Return a training example; None for a query without a relevant passage."""
    if missing := sorted({"query", "positive_passages", "negative_passages"} - record.keys()):
        raise InvalidInput(
            f"{where}: no field {missing[0]!r}; expected Tevatron's query, positive_passages and negative_passages, "
            f"not {sorted(record)[:6]}"
        )
    report.ignore(record.keys() - TEVATRON_FIELDS)
    groups = [list_field(record, f"{role}_passages", where) for role in ("positive", "negative")]
    if not groups[0]:
        report.without_positive += 1
        return None
    positives, negatives = ([_passage(value, where) for value in group] for group in groups)
    example: dict[str, Any] = {"query": check_text(record["query"], f"{where}: query")}
    if record.get("query_id") is not None:
        example = {"query_id": str(record["query_id"]), **example}
    example |= {"positives": positives, "negatives": negatives}
    scores = [_score(value.get("ce_score"), where) for group in groups for value in group]
    if any(score is not None for score in scores):
        example["scores"] = scores
        report.scores += 1
    report.queries += 1
    report.positives += len(positives)
    report.negatives += len(negatives)
    return example


def _score(value: Any, where: str) -> float | None:
    if value is None:
        return None
    try:
        score = float(value)
    except (TypeError, ValueError):
        raise InvalidInput(f"{where}: ce_score is {value!r}; expected a number") from None
    return score if math.isfinite(score) else None


def _passage(value: Any, where: str) -> dict[str, str]:
    """Return a passage as examples and corpora have it; without an id of its own it has a hash of its content."""
    if not isinstance(value, dict):
        raise InvalidInput(f"{where}: a passage is {type(value).__name__}; expected an object with title and text")
    text = check_text(value.get("text"), f"{where}: text of a passage")
    title = check_text(value.get("title") or "", f"{where}: title of a passage")
    name = next((name for name in PASSAGE_ID_FIELDS if value.get(name) not in (None, "")), None)
    content = hashlib.sha256(f"{title}\0{text}".encode()).hexdigest()[:16]
    return {"_id": content if name is None else str(value[name]), "title": title, "text": text}


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False) + "\n"


class _DprFiles:
    """The files of a BEIR folder that a DPR training file is written to."""

    def __init__(self, stack: ExitStack, folder: Path, *, keep_texts: bool) -> None:
        (folder / "qrels").mkdir()
        names = ("queries.jsonl", "negatives.jsonl", "qrels/train.tsv", *(("corpus.jsonl",) if keep_texts else ()))
        self._files: dict[str, IO[str]] = {
            name: stack.enter_context((folder / name).open("w", encoding="utf-8")) for name in names
        }
        self._files["qrels/train.tsv"].write("query-id\tcorpus-id\tscore\n")

    def write(
        self, record: Mapping[str, Any], query_id: str, where: str, report: ConversionReport, passage_ids: set[str]
    ) -> None:
        """Write a question and add the ids of its passages."""
        if missing := sorted({"question", "positive_ctxs"} - record.keys()):
            raise InvalidInput(
                f"{where}: no field {missing[0]!r}; expected DPR's question, answers, positive_ctxs and "
                f"hard_negative_ctxs, not {sorted(record)[:6]}"
            )
        known = ("question", "answers", "answer", "positive_ctxs", "hard_negative_ctxs")
        report.ignore(record.keys() - set(known))
        positives, negatives = (
            [_passage(value, where) for value in list_field(record, name, where)]
            for name in ("positive_ctxs", "hard_negative_ctxs")
        )
        if not positives:
            report.without_positive += 1
            return
        answers = list_field(record, "answers" if "answers" in record else "answer", where)
        query = {
            "_id": query_id,
            "text": check_text(record["question"], f"{where}: question"),
            "metadata": {"answers": [check_text(answer, f"{where}: an answer") for answer in answers]},
        }
        relevant = dict.fromkeys(passage["_id"] for passage in positives)
        hard = [doc_id for doc_id in dict.fromkeys(passage["_id"] for passage in negatives) if doc_id not in relevant]
        self._files["queries.jsonl"].write(_line(query))
        self._files["negatives.jsonl"].write(_line({"query_id": query_id, "negatives": hard}))
        self._files["qrels/train.tsv"].writelines(f"{query_id}\t{doc_id}\t1\n" for doc_id in relevant)
        for passage in (*positives, *negatives):
            if passage["_id"] not in passage_ids:
                passage_ids.add(passage["_id"])
                report.passages += 1
                if "corpus.jsonl" in self._files:
                    self._files["corpus.jsonl"].write(_line(passage))
        report.queries += 1
        report.positives += len(relevant)
        report.negatives += len(hard)


def _dpr_records(path: Path) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Yield the questions of a JSON-lines file or of one JSON array: line or item number, location and fields."""
    if not path.is_file():
        raise NotFound(f"{path} does not exist; expected a file of training data")
    if not next(_text_blocks(path), "").lstrip().startswith("["):
        yield from ((number, record_location(str(path), number), record) for number, record in _records(path))
        return
    for number, record in enumerate(_array_items(_text_blocks(path), str(path)), 1):
        if not isinstance(record, dict):
            raise InvalidInput(f"{path}, item {number}: {type(record).__name__}; expected an object")
        yield number, f"{path}, item {number}", record


def _text_blocks(path: Path) -> Iterator[str]:
    """Yield the text of a file, gzipped or not, in blocks."""
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8-sig") as file:
        try:
            while block := file.read(BLOCK):
                yield str(block)
        except (EOFError, OSError, zlib.error, UnicodeDecodeError) as error:
            raise InvalidInput(f"{path} is damaged: {error}") from error


def _array_items(blocks: Iterable[str], name: str) -> Iterator[Any]:
    """Yield the items of a JSON array, holding the text of a block and an item at a time.

    Raises:
        InvalidInput: the array is truncated or damaged.
    """
    decoder = json.JSONDecoder(parse_constant=lambda _: None)
    held, position, separators = "", 0, re.compile(r"[\s[]*")
    for block in blocks:
        held, position = held[position:] + block, 0
        while True:
            match = separators.match(held, position)
            position = match.end() if match else position
            if held[position : position + 1] in ("", "]"):
                break
            try:
                item, position = decoder.raw_decode(held, position)
            except ValueError:  # the item continues in the next block, or is damaged
                break
            separators = re.compile(r"[\s,]*")
            yield item
        if held[position : position + 1] == "]":
            return
        if len(held) - position > LONGEST_ITEM:
            break
    raise InvalidInput(f"{name}: the JSON array is truncated or damaged near {held[position : position + 60]!r}")


def _copy_passages(path: Path, out: Path, needed: set[str]) -> int:
    """Write a file of passages as corpus.jsonl and return their number.

    Raises:
        NotFound: the file does not exist.
        InvalidInput: another header, a line without three fields, or the file lacks a needed passage.
    """
    if not path.is_file():
        raise NotFound(f"{path} does not exist; expected the file of all passages")
    csv.field_size_limit(sys.maxsize)
    rows = csv.reader((line for _, line in read_lines(path)), delimiter="\t")
    if (header := next(rows, [])) != PASSAGES_HEADER:
        raise InvalidInput(f"{path}: the header is {header}; expected {PASSAGES_HEADER}, as in DPR's psgs_w100.tsv")
    missing, n_passages = set(needed), 0
    with out.open("w", encoding="utf-8") as file:
        for row in followed(rows, "passages", unit="passage"):
            n_passages += 1
            if len(row) != len(PASSAGES_HEADER):
                raise InvalidInput(f"{path}, line {rows.line_num}: {len(row)} fields; expected {len(PASSAGES_HEADER)}")
            file.write(_line({"_id": row[0], "title": row[2], "text": row[1]}))
            missing.discard(row[0])
    if missing:
        raise InvalidInput(f"{path} lacks {len(missing):,} passages of the questions, for example {min(missing)!r}")
    return n_passages
