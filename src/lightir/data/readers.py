"""Documents, queries and judgements out of files, one at a time; a bad one is named by file and line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast

from lightir.data.records import (
    Record,
    json_records,
    parquet_file,
    parquet_records,
    record_location,
    stdin_records,
    table_records,
)
from lightir.errors import InvalidInput, NotFound
from lightir.lines import count_lines, read_nonblank_lines, read_text
from lightir.text import check_text
from lightir.types import Document, Qrels, Query, unescape_id

Source: TypeAlias = str | Path | Sequence[str | Path]
"""A BEIR folder, a folder of text files, data files (JSONL, CSV, TSV, Parquet, text), or "-" for stdin."""

DOC_ID_FIELDS = ("_id", "doc_id", "docid", "id")
QUERY_ID_FIELDS = ("_id", "query_id", "qid", "id")
TEXT_FIELDS = ("text", "contents", "content", "body")
QUERY_TEXT_FIELDS = ("text", "query", "question")
JSONL_SUFFIXES = (".jsonl", ".ndjson")
TEXT_SUFFIXES = (".txt", ".text", ".md", ".rst")
HINT = "--fields {0}=NAME says which of them it is (in Python: fields={{'{0}': 'NAME'}})"
TITLE_FIELDS = ("title",)
STDIN = "-"
WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,18}(\.0*)?")


def read_documents(source: Source, *, fields: Mapping[str, str] | None = None) -> Iterator[Document]:
    """The source's documents, in order, read as they are asked for.

    Id, title and text are found under their usual names (DOC_ID_FIELDS, "title", TEXT_FIELDS: the first that is
    there); a field "metadata" that holds an object, and every other field, become metadata. CSV and TSV have a header
    line and hold texts alone; CSV is quoted, TSV is not. A folder with corpus.jsonl, plain or gzipped, is a BEIR one;
    of any other one the text files (TEXT_SUFFIXES, recursively, hidden ones left out) are one document each, with the
    path inside the folder as id. From stdin come JSON lines, or plain lines with the line number as id. Blank lines are
    skipped.

    Args:
        source: what to read.
        fields: names in place of the usual ones, such as {"id": "sku", "title": "name", "text": "description"}.

    Raises:
        NotFound: a path does not exist (at once, before the first document).
        InvalidInput: file and line are named: no id or text, an empty id, an id that came before (both places are
            named), a wrong type, bytes that are not UTF-8, a broken or cut off file, a kind of file not known.
        MissingExtra: Parquet without pyarrow.
    """
    parts = [_Part.of(each, "corpus") for each in _as_list(source)]
    return _documents(parts, _Fields.of(fields or {}))


def read_queries(source: Source) -> Iterator[Query]:
    """The source's queries, in order; as read_documents, with QUERY_ID_FIELDS and QUERY_TEXT_FIELDS.

    A BEIR folder gives its queries file. A text file, as stdin, holds one query a line with the line number as id.
    """
    parts = [_Part.of(each, "queries") for each in _as_list(source)]
    return _queries(parts)


def count_documents(source: Source) -> int | None:
    """How many documents the source holds, for a progress bar, or None where only reading would tell.

    JSON lines are counted as lines that are not blank; CSV, TSV and stdin give None.
    """
    total = 0
    for each in _as_list(source):
        count = _Part.of(each, "corpus").count()
        if count is None:
            return None
        total += count
    return total


def read_qrels(path: Path | str) -> Qrels:
    """Relevance judgements: query_id -> doc_id -> grade, in the file's order.

    Two forms are known: BEIR's, three columns between tabs, with or without a header line (ids may hold blanks);
    and TREC's, four columns between blanks: query id, anything, document id, grade, with ids escaped as in run files
    (%20 is a blank, see lightir.eval.read_run). Either may be gzipped. A grade is a whole number, which tables of other
    tools may write as a decimal: 1.0 is 1, as trec_eval reads it.

    Raises:
        NotFound: there is no such file.
        InvalidInput: file and line are named: a wrong number of columns, a grade that is no whole number, an empty id,
            or the same pair with two different grades.
    """
    path = Path(path)
    if not path.exists() or path.is_dir():  # a pipe may be read, as a shell's <(zcat qrels.gz) is one
        raise NotFound(f"{path} does not exist; a file of relevance judgements is needed")
    qrels: Qrels = {}
    first = True
    for number, line in read_nonblank_lines(path):
        columns = [column.strip() for column in line.split("\t")]
        if len(columns) != 3:
            columns = line.split()
            if len(columns) != 4:
                raise InvalidInput(
                    f"{path}, line {number}: {line[:80]!r}; expected query id, document id and grade between tabs, "
                    f"or the four columns of TREC"
                )
            columns = [unescape_id(columns[0]), unescape_id(columns[2]), columns[3]]
        elif first and not _is_number(columns[2]):
            first = False
            continue
        first = False
        _add_judgement(qrels, columns, f"{path}, line {number}")
    return qrels


def _add_judgement(qrels: Qrels, columns: Sequence[str], where: str) -> None:
    query_id, doc_id, grade = columns
    if not query_id or not doc_id:
        raise InvalidInput(f"{where}: an empty id")
    if not WHOLE_NUMBER.fullmatch(grade):
        raise InvalidInput(f"{where}: the grade is {grade!r}; expected a whole number, as measures need")
    judged, value = qrels.setdefault(query_id, {}), int(grade.partition(".")[0])
    if judged.setdefault(doc_id, value) != value:
        raise InvalidInput(f"{where}: {query_id!r} and {doc_id!r} have grade {grade}, but {judged[doc_id]} before")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _as_list(source: Source) -> list[str | Path]:
    sources = [source] if isinstance(source, str | Path) else list(source)
    if not sources:
        raise InvalidInput("no source was given; expected a folder, files, or - for stdin")
    return sources


class _Part:
    """One file, folder or stream of a source, known to exist."""

    def __init__(self, path: Path | None, kind: str) -> None:
        self.path = path
        self.kind = kind

    @property
    def name(self) -> str:
        return "stdin" if self.path is None else str(self.path)

    @classmethod
    def of(cls, source: str | Path, role: str) -> _Part:
        """What the source is; role ("corpus" or "queries") names a BEIR folder's file."""
        if str(source) == STDIN:
            return cls(None, "stdin")
        if not str(source):
            raise InvalidInput("a source is named by an empty string; expected a folder, a file, or - for stdin")
        path = Path(source)
        if path.is_dir():
            beir = beir_file(path, role)
            if beir is not None:
                return cls(beir, "jsonl")
            if role == "corpus" and any(_text_files(path)):
                return cls(path, "folder")
            raise InvalidInput(
                f"{path} holds neither {role}.jsonl nor {role}.jsonl.gz"
                + (f", nor text files ({', '.join(TEXT_SUFFIXES)})" if role == "corpus" else "")
            )
        if not path.exists():
            raise NotFound(f"{path} does not exist; expected a folder, a file, or - for stdin")
        if not path.is_file():
            raise InvalidInput(f"{path} is a pipe or a device; expected a folder or a file, or - and the pipe as stdin")
        return cls(path, _kind_of_file(path))

    def records(self, id_field: str, text_field: str) -> Iterator[Record]:
        """The part's records; the field names are for parts that have none of their own."""
        if self.path is None:
            yield from stdin_records(id_field, text_field)
        elif self.kind == "jsonl":
            yield from json_records(self.name, read_nonblank_lines(self.path))
        elif self.kind in ("csv", "tsv"):
            yield from table_records(self.path, self.kind)
        elif self.kind == "parquet":
            yield from parquet_records(self.path)
        else:
            raise AssertionError(self.kind)

    def count(self) -> int | None:
        if self.path is None or self.kind in ("csv", "tsv"):
            return None
        if self.kind == "parquet":
            return int(parquet_file(self.path).metadata.num_rows)
        if self.kind == "folder":
            return sum(1 for _ in _text_files(self.path))
        if self.kind == "text":
            return 1
        return count_lines(self.path)


def _kind_of_file(path: Path) -> str:
    suffix = Path(path.name.lower().removesuffix(".gz")).suffix
    if suffix in JSONL_SUFFIXES:
        return "jsonl"
    if suffix in (".csv", ".tsv"):
        return suffix[1:]
    if suffix == ".parquet" and path.suffix.lower() != ".gz":
        return "parquet"
    if suffix in TEXT_SUFFIXES:
        return "text"
    if suffix == ".json":
        raise InvalidInput(f"{path} is one JSON value; expected JSON lines, an object a line (jq -c '.[]' makes them)")
    known = (*JSONL_SUFFIXES, ".csv", ".tsv", ".parquet", *TEXT_SUFFIXES)
    raise InvalidInput(
        f"{path}: files named {suffix or 'without an ending'} are not known; expected {', '.join(known)}"
    )


def beir_file(folder: Path, role: str) -> Path | None:
    """The folder's corpus or queries file, plain or gzipped; None when it has none."""
    candidates = (folder / f"{role}.jsonl", folder / f"{role}.jsonl.gz")
    return next((path for path in candidates if path.is_file()), None)


def _text_files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        hidden = any(part.startswith(".") for part in inside.parts)
        if not hidden and path.suffix.lower() in TEXT_SUFFIXES and path.is_file():
            yield path


class _SeenIds:
    """Every id of a stream with the place where it stood; a second one is refused."""

    def __init__(self) -> None:
        self._places: dict[str, tuple[str, int]] = {}

    def add(self, each_id: str, name: str, number: int) -> None:
        if each_id in self._places:
            here, there = record_location(name, number), record_location(*self._places[each_id])
            also = f" already in {there}" if here != there else " in this file, which is named twice"
            raise InvalidInput(f"{here}: id {each_id!r} stood{also}; each id goes in once")
        self._places[each_id] = (name, number)


@dataclass(frozen=True, slots=True)
class _Fields:
    """The names under which a record's id, text and title are looked for, the first that is there."""

    id: Sequence[str] = DOC_ID_FIELDS
    text: Sequence[str] = TEXT_FIELDS
    title: Sequence[str] = TITLE_FIELDS

    @classmethod
    def of(cls, named: Mapping[str, str]) -> _Fields:
        """The usual ones, but for those that are named.

        Raises:
            InvalidInput: something else than id, text or title is named, or one field for two of them.
        """
        if unknown := sorted(named.keys() - {"id", "text", "title"}):
            raise InvalidInput(f"fields name {unknown[0]!r}; what can be named are id, text and title")
        if len(set(named.values())) < len(named):
            raise InvalidInput(f"fields name one field twice: {dict(named)}")
        return cls(**{part: (name,) for part, name in named.items()})


def _documents(parts: Sequence[_Part], fields: _Fields) -> Iterator[Document]:
    seen = _SeenIds()
    for part in parts:
        if part.kind in ("folder", "text"):
            path = cast(Path, part.path)
            for file in _text_files(path) if part.kind == "folder" else [path]:
                doc_id = file.relative_to(path).as_posix() if part.kind == "folder" else file.name
                check_text(doc_id, f"the name of {str(file)!r}")
                seen.add(doc_id, str(file), 1)
                yield Document(doc_id, read_text(file))
            continue
        for number, record in part.records(fields.id[0], fields.text[0]):
            document = _document(record, fields, record_location(part.name, number))
            seen.add(document.doc_id, part.name, number)
            yield document


def _queries(parts: Sequence[_Part]) -> Iterator[Query]:
    seen = _SeenIds()
    for part in parts:
        if part.kind == "text":
            lines = read_nonblank_lines(cast(Path, part.path))
            records: Iterator[Record] = ((number, {"_id": str(number), "text": line}) for number, line in lines)
        else:
            records = part.records(QUERY_ID_FIELDS[0], QUERY_TEXT_FIELDS[0])
        for number, record in records:
            query = _query(record, record_location(part.name, number))
            seen.add(query.query_id, part.name, number)
            yield query


def _document(record: Mapping[str, Any], fields: _Fields, where: str) -> Document:
    rest = dict(record)
    doc_id = _take_id(rest, fields.id, where, HINT)
    text = _take_text(rest, fields.text, where, HINT)
    name = fields.title[0] if fields.title is TITLE_FIELDS else _first_field(rest, fields.title, "title", where, "")
    title = rest.pop(name, None)
    return Document(
        doc_id, text, "" if title is None else check_text(title, f"{where}: {name}"), _metadata(rest, where)
    )


def _query(record: Mapping[str, Any], where: str) -> Query:
    rest = dict(record)
    query_id = _take_id(rest, QUERY_ID_FIELDS, where)
    return Query(query_id, _take_text(rest, QUERY_TEXT_FIELDS, where), _metadata(rest, where))


def _take_id(record: dict[str, Any], names: Sequence[str], where: str, hint: str = "") -> str:
    name = _first_field(record, names, "id", where, hint)
    value = record.pop(name)
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    each_id = check_text(value, f"{where}: {name}")
    if not each_id.strip():
        raise InvalidInput(f"{where}: {name} is empty; every record needs an id of its own")
    return each_id


def _take_text(record: dict[str, Any], names: Sequence[str], where: str, hint: str = "") -> str:
    name = _first_field(record, names, "text", where, hint)
    return check_text(record.pop(name), f"{where}: {name}")


def _first_field(record: Mapping[str, Any], names: Sequence[str], what: str, where: str, hint: str) -> str:
    for name in names:
        if name in record:
            return name
    other = next((f"; {each!r} is written in lower case" for each in record if each.lower() in names), "")
    raise InvalidInput(
        f"{where}: no {what}: expected one of {list(names)}, the other fields are {sorted(record)}{other}"
        + (hint and f"; {hint.format(what)}")
    )


def _metadata(rest: dict[str, Any], where: str) -> dict[str, Any]:
    inner = rest.get("metadata")
    if inner is None:
        rest.pop("metadata", None)
        return rest
    if not isinstance(inner, dict):
        return rest
    del rest["metadata"]
    if repeated := sorted(inner.keys() & rest.keys()):
        raise InvalidInput(f"{where}: {repeated[0]!r} stands both in metadata and beside it")
    return {**inner, **rest}
