"""Readers of documents, queries and qrels, which name file and line of every invalid record."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast

from lightir.data.databases import SQLITE_SUFFIXES, arrow_records, data_set_files, sqlite_count, sqlite_records
from lightir.data.file_documents import file_ids, files_as_documents, skipped_text
from lightir.data.folders import folder_files
from lightir.data.formats import FORMATS, format_suffix
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
from lightir.lines import (
    ReadOptions,
    count_lines,
    holds_json,
    limit_error,
    read_json_numbers,
    read_nonblank_lines,
    read_options,
)
from lightir.text import check_text
from lightir.types import Cells, Document, Qrels, Query, unescape_id

Source: TypeAlias = str | Path | Sequence[str | Path]
"""A BEIR folder, a data set on disk, a folder of files, data files (JSONL, CSV, TSV, Parquet, Arrow, SQLite), text
files, or "-" for stdin."""

DOC_ID_FIELDS = ("_id", "doc_id", "docid", "id")
QUERY_ID_FIELDS = ("_id", "query_id", "qid", "id")
TEXT_FIELDS = ("text", "contents", "content", "body")
QUERY_TEXT_FIELDS = ("text", "query", "question")
JSONL_SUFFIXES = (".jsonl", ".ndjson")
HINT = "name the field with --fields {0}=NAME (in Python: fields={{'{0}': 'NAME'}})"
TITLE_FIELDS = ("title",)
STDIN = "-"
WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,18}(\.0*)?")


def read_documents(
    source: Source, *, fields: Mapping[str, str] | None = None, options: ReadOptions | None = None
) -> Iterator[Document]:
    """Iterate over the documents of a source, in order; they are read lazily.

    Id, title and text are read from the first of their usual fields (DOC_ID_FIELDS, "title", TEXT_FIELDS). An object in
    a field "metadata" and all other fields become metadata. CSV (quoted) and TSV (unquoted) have a header line and
    strings, whose types an index infers. A folder with corpus.jsonl, plain or gzipped, is a BEIR folder. In any other
    folder each file of a readable type (`lightir.data.formats.FORMATS`, recursively, without hidden and ignored files)
    is a document, whose id is its path, beginning with the folder's name. Files that cannot be read, files of other
    types and symbolic links are skipped, and log messages say which and how many. Of an SQLite database the table or
    query of the options is read, and of a Hugging Face data set on disk its Arrow files. Stdin holds JSON lines, or
    plain lines whose ids are the line numbers. Blank lines are skipped.

    Args:
        source: folder, files, or "-" for stdin.
        fields: names of fields that replace the usual ones, such as {"id": "sku", "title": "name"}.
        options: limits of sizes, and whether links are followed; None for the default of the present block
            (`lightir.lines.reading_with`).

    Raises:
        NotFound: a path does not exist (raised at once, before the first document).
        InvalidInput: missing id or text, empty or duplicate id, wrong type, invalid UTF-8, damaged file, unsupported
            file type, or a line, document or field above its limit. The message names file and line.
        MissingExtra: Parquet and Arrow require pyarrow.
    """
    chosen = read_options(options)
    parts = [_Part.of(path, "corpus", chosen) for path in _as_list(source)]
    if (chosen.table is not None or chosen.sql is not None) and all(part.kind != "sqlite" for part in parts):
        raise InvalidInput(f"a table or a query was chosen, but none of the files ends in {', '.join(SQLITE_SUFFIXES)}")
    return _documents(parts, _Fields.of(fields or {}), chosen)


def are_files(source: Source, *, options: ReadOptions | None = None) -> bool:
    """Return whether every document of a source is a file: a text, a web page, a PDF and so on.

    Raises:
        NotFound, InvalidInput: as `read_documents`.
    """
    parts = [_Part.of(path, "corpus", read_options(options)) for path in _as_list(source)]
    return all(part.kind in ("folder", "text") for part in parts)


def is_empty_folder(path: str | Path, *, options: ReadOptions | None = None) -> bool:
    """Return whether a path is a folder without files whose text can be read, and without documents of BEIR."""
    folder = Path(path)
    return (
        folder.is_dir()
        and beir_file(folder, "corpus") is None
        and not folder_files(folder, read_options(options)).paths
    )


def read_doc_ids(
    source: Source, *, fields: Mapping[str, str] | None = None, options: ReadOptions | None = None
) -> Iterator[str]:
    """Iterate over the ids of the documents of a source; the files of a folder are listed and not read.

    Arguments and errors are those of `read_documents`.
    """
    chosen = read_options(options)
    for path in _as_list(source):
        part = _Part.of(path, "corpus", chosen)
        if part.kind in ("folder", "text"):
            yield from file_ids(cast(Path, part.path), chosen)
        else:
            yield from (document.doc_id for document in _documents([part], _Fields.of(fields or {}), chosen))


def read_queries(source: Source, *, options: ReadOptions | None = None) -> Iterator[Query]:
    """Iterate over the queries of a source, in order; id and text are in QUERY_ID_FIELDS and QUERY_TEXT_FIELDS.

    Of a BEIR folder the queries file is read. Text files and stdin hold one query per line with the line number as id.
    Errors are those of `read_documents`.

    Args:
        source: BEIR folder, files, or "-" for stdin.
        options: limits of sizes; None for the default of the present block.
    """
    chosen = read_options(options)
    return _queries([_Part.of(path, "queries", chosen) for path in _as_list(source)], chosen)


def read_changes(
    path: str | Path, *, id_field: str | None = None, options: ReadOptions | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Iterate over changes of metadata: the id of a document and the values of fields, of each record in order.

    Args:
        path: data file (JSONL, CSV, TSV, Parquet), or "-" for stdin.
        id_field: name of the field that holds the id; None for the first of DOC_ID_FIELDS.
        options: limits of sizes; None for the default of the present block.

    Raises:
        NotFound, InvalidInput: as `read_documents`; also a folder or a text file.
    """
    chosen = read_options(options)
    part = _Part.of(path, "changes", chosen)
    if part.kind in ("folder", "text"):
        raise InvalidInput(f"{path} has no fields; expected a JSONL, CSV, TSV or Parquet file of changes")
    return _changes(part, DOC_ID_FIELDS if id_field is None else (id_field,))


def _changes(part: _Part, id_fields: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    seen = _SeenIds()
    for number, record in part.records(id_fields[0], "text"):
        where = record_location(part.name, number)
        values = Cells(record) if isinstance(record, Cells) else dict(record)
        doc_id = _take_id(values, id_fields, where, HINT)
        _check_sizes(doc_id, "", values, where, part.options)
        seen.add(doc_id, part.name, number)
        yield doc_id, values


def count_documents(source: Source, *, options: ReadOptions | None = None) -> int | None:
    """Return the number of documents in a source, for a progress bar; None for CSV, TSV and stdin.

    For JSON lines it is the number of lines that are not blank.

    Args:
        source: folder, files, or "-" for stdin.
        options: options that the documents are read with; None for the default of the present block.
    """
    total = 0
    for path in _as_list(source):
        count = _Part.of(path, "corpus", read_options(options)).count()
        if count is None:
            return None
        total += count
    return total


def read_qrels(path: Path | str) -> Qrels:
    """Read relevance judgments: query_id -> doc_id -> grade, in the file's order.

    Three formats are supported: BEIR's three tab-separated columns, with or without a header line (ids may contain
    blanks), and TREC's four blank-separated columns (query id, ignored, document id, grade; ids are escaped as in run
    files, see lightir.eval.read_run), and ranx's JSON in files whose names end in .json or .json.gz: an object of query
    ids, of objects of document ids and grades. All may be gzipped. Grades are integers; 1.0 is read as 1, as in
    trec_eval, but not in JSON.

    Raises:
        NotFound: the file does not exist.
        InvalidInput: wrong number of columns, a grade that is not an integer, an empty id, or two grades of one pair.
            The message names file and line.
    """
    path = Path(path)
    if not path.exists() or path.is_dir():  # pipes such as <(zcat qrels.gz) are allowed
        raise NotFound(f"{path} does not exist; expected a qrels file")
    if holds_json(path):
        return read_json_numbers(path, int)
    qrels: Qrels = {}
    first = True
    for number, line in read_nonblank_lines(path):
        columns = [column.strip() for column in line.split("\t")]
        if len(columns) != 3:
            columns = line.split()
            if len(columns) != 4:
                raise InvalidInput(
                    f"{path}, line {number}: {line[:80]!r}; expected query id, document id and grade, separated by "
                    "tabs, or TREC's four columns"
                )
            columns = [unescape_id(columns[0]), unescape_id(columns[2]), columns[3]]
        elif first and not _is_number(columns[2]):
            first = False
            continue
        first = False
        _add_grade(qrels, columns, f"{path}, line {number}")
    return qrels


def _add_grade(qrels: Qrels, columns: Sequence[str], where: str) -> None:
    query_id, doc_id, grade = columns
    if not query_id or not doc_id:
        raise InvalidInput(f"{where}: empty id")
    if not WHOLE_NUMBER.fullmatch(grade):
        raise InvalidInput(f"{where}: the grade is {grade!r}; expected an integer")
    judged, value = qrels.setdefault(query_id, {}), int(grade.partition(".")[0])
    if judged.setdefault(doc_id, value) != value:
        raise InvalidInput(f"{where}: {query_id!r}, {doc_id!r} has grade {grade}, but {judged[doc_id]} earlier")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _as_list(source: Source) -> list[str | Path]:
    """Return the paths of a source; the files of a data set in place of its folder."""
    sources = [source] if isinstance(source, str | Path) else list(source)
    if not sources:
        raise InvalidInput("no source given; expected a folder, files, or - for stdin")
    paths: list[str | Path] = []
    for path in sources:
        files = data_set_files(Path(path)) if str(path) and Path(path).is_dir() else None
        paths += [path] if files is None else files
    return paths


class _Part:
    """An existing file, folder or stream of a source."""

    def __init__(self, path: Path | None, kind: str, options: ReadOptions) -> None:
        self.path = path
        self.kind = kind
        self.options = options

    @property
    def name(self) -> str:
        return "stdin" if self.path is None else str(self.path)

    @classmethod
    def of(cls, source: str | Path, role: str, options: ReadOptions) -> _Part:
        """Find out what a path is; `role` ("corpus" or "queries") names the file of a BEIR folder."""
        if str(source) == STDIN:
            return cls(None, "stdin", options)
        if not str(source):
            raise InvalidInput("the source is an empty string; expected a folder, a file, or - for stdin")
        path = Path(source)
        if path.is_dir():
            beir = beir_file(path, role)
            if beir is not None:
                return cls(beir, "jsonl", options)
            if role != "corpus":
                raise InvalidInput(f"{path} has no {role}.jsonl or {role}.jsonl.gz")
            files = folder_files(path, options)
            if files.paths:
                return cls(path, "folder", options)
            skipped = skipped_text(files.skipped, options)
            raise InvalidInput(
                f"{path} has no {role}.jsonl, and no files whose text can be read" + f"; {skipped}" * bool(skipped)
            )
        if not path.exists():
            raise NotFound(f"{path} does not exist; expected a folder, a file, or - for stdin")
        if not path.is_file():
            raise InvalidInput(
                f"{path} is a pipe or a device; expected a folder or a file. Give - and redirect the pipe to stdin"
            )
        return cls(path, _kind_of_file(path), options)

    def records(self, id_field: str, text_field: str) -> Iterator[Record]:
        """Iterate over the records; plain lines of stdin get the given field names."""
        if self.path is None:
            yield from stdin_records(id_field, text_field, self.options)
        elif self.kind == "jsonl":
            yield from json_records(self.name, read_nonblank_lines(self.path, self.options))
        elif self.kind in ("csv", "tsv"):
            yield from table_records(self.path, self.kind, self.options)
        elif self.kind == "parquet":
            yield from parquet_records(self.path)
        elif self.kind == "arrow":
            yield from arrow_records(self.path)
        elif self.kind == "sqlite":
            yield from sqlite_records(self.path, self.options)
        else:
            raise AssertionError(self.kind)

    def count(self) -> int | None:
        if self.path is None or self.kind in ("csv", "tsv", "arrow"):
            return None
        if self.kind == "sqlite":
            return sqlite_count(self.path, self.options)
        if self.kind == "parquet":
            return int(parquet_file(self.path).metadata.num_rows)
        if self.kind == "folder":
            return len(folder_files(self.path, self.options).paths)
        if self.kind == "text":
            return 1
        return count_lines(self.path, self.options)


def _kind_of_file(path: Path) -> str:
    suffix = format_suffix(path)
    if suffix in JSONL_SUFFIXES:
        return "jsonl"
    if suffix in (".csv", ".tsv"):
        return suffix[1:]
    if suffix == ".parquet" and path.suffix.lower() != ".gz":
        return "parquet"
    if suffix in (*SQLITE_SUFFIXES, ".arrow") and path.suffix.lower() != ".gz":
        return "arrow" if suffix == ".arrow" else "sqlite"
    if suffix == ".json":
        raise InvalidInput(
            f"{path} is one JSON value; expected JSON lines, one object per line (convert it with: jq -c '.[]')"
        )
    if suffix in FORMATS:
        return "text"
    raise InvalidInput(
        f"{path}: unsupported file type {suffix or '(no suffix)'}; expected {', '.join(JSONL_SUFFIXES)}, .csv, .tsv, "
        ".parquet, .arrow, .sqlite, or a text, source code, .md, .html, .pdf, .docx, .pptx, .xlsx, .epub, .ipynb or "
        ".eml file"
    )


def beir_file(folder: Path, role: str) -> Path | None:
    """Return a BEIR folder's corpus or queries file, plain or gzipped; None if it has none."""
    candidates = (folder / f"{role}.jsonl", folder / f"{role}.jsonl.gz")
    return next((path for path in candidates if path.is_file()), None)


class _SeenIds:
    """The ids of a stream with the file and line of their first use; duplicates are refused."""

    def __init__(self) -> None:
        self._first: dict[str, tuple[str, int]] = {}

    def add(self, record_id: str, name: str, number: int) -> None:
        if record_id in self._first:
            here, first = record_location(name, number), record_location(*self._first[record_id])
            seen = f"first seen in {first}" if here != first else "the file is named twice"
            raise InvalidInput(f"{here}: duplicate id {record_id!r} ({seen})")
        self._first[record_id] = (name, number)


@dataclass(frozen=True, slots=True)
class _Fields:
    """Candidate names of the fields that hold id, text and title; the first that a record has is used."""

    id: Sequence[str] = DOC_ID_FIELDS
    text: Sequence[str] = TEXT_FIELDS
    title: Sequence[str] = TITLE_FIELDS

    @classmethod
    def of(cls, named: Mapping[str, str]) -> _Fields:
        """Replace the usual names by given ones.

        Raises:
            InvalidInput: a key other than id, text or title, or one field for two of them.
        """
        if unknown := sorted(named.keys() - {"id", "text", "title"}):
            raise InvalidInput(f"unknown key {unknown[0]!r} in fields; expected id, text or title")
        if len(set(named.values())) < len(named):
            raise InvalidInput(f"fields use one field twice: {dict(named)}")
        return cls(**{part: (name,) for part, name in named.items()})


def _documents(parts: Sequence[_Part], fields: _Fields, options: ReadOptions) -> Iterator[Document]:
    seen = _SeenIds()
    for part in parts:
        if part.kind in ("folder", "text"):
            for file, document in files_as_documents(cast(Path, part.path), options):
                where = str(file)
                _check_sizes(
                    document.doc_id, document.text, {"title": document.title, **document.metadata}, where, options
                )
                seen.add(document.doc_id, where, 1)
                yield document
            continue
        for number, record in part.records(fields.id[0], fields.text[0]):
            where = record_location(part.name, number)
            document = _document(record, fields, where)
            _check_sizes(document.doc_id, document.text, {"title": document.title, **document.metadata}, where, options)
            seen.add(document.doc_id, part.name, number)
            yield document


def _check_sizes(record_id: str, text: str, others: Mapping[str, Any], where: str, options: ReadOptions) -> None:
    """Refuse a text above the limit of a document, or another value above that of a field."""
    if _exceeds(text, options.max_document_bytes):
        raise limit_error(where, "the text", "document", options.max_document_bytes)
    for name, value in (("the id", record_id), *others.items()):
        if _exceeds(value, options.max_field_bytes):
            raise limit_error(where, f"the field {name!r}", "field", options.max_field_bytes)


def _exceeds(value: Any, limit: int) -> bool:
    """Return whether a JSON value has more bytes than a limit: a string in UTF-8, another value as JSON."""
    if isinstance(value, list | dict):
        try:
            value = json.dumps(value, ensure_ascii=False)
        except RecursionError:
            return False  # an index refuses the depth by name
    return isinstance(value, str) and 4 * len(value) > limit and len(value.encode(errors="surrogatepass")) > limit


def _queries(parts: Sequence[_Part], options: ReadOptions) -> Iterator[Query]:
    seen = _SeenIds()
    for part in parts:
        if part.kind == "text":
            lines = read_nonblank_lines(cast(Path, part.path), options)
            records: Iterator[Record] = ((number, {"_id": str(number), "text": line}) for number, line in lines)
        else:
            records = part.records(QUERY_ID_FIELDS[0], QUERY_TEXT_FIELDS[0])
        for number, record in records:
            where = record_location(part.name, number)
            query = _query(record, where)
            _check_sizes(query.query_id, query.text, query.metadata, where, options)
            seen.add(query.query_id, part.name, number)
            yield query


def _document(record: Mapping[str, Any], fields: _Fields, where: str) -> Document:
    rest = Cells(record) if isinstance(record, Cells) else dict(record)
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
    record_id = check_text(value, f"{where}: {name}")
    if not record_id.strip():
        raise InvalidInput(f"{where}: {name} is empty; every record requires a unique id")
    return record_id


def _take_text(record: dict[str, Any], names: Sequence[str], where: str, hint: str = "") -> str:
    name = _first_field(record, names, "text", where, hint)
    return check_text(record.pop(name), f"{where}: {name}")


def _first_field(record: Mapping[str, Any], names: Sequence[str], what: str, where: str, hint: str) -> str:
    for name in names:
        if name in record:
            return name
    similar = next((f"; write {field!r} in lower case" for field in record if field.lower() in names), "")
    raise InvalidInput(
        f"{where}: no {what}: expected one of {list(names)}, the other fields are {sorted(record)}{similar}"
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
        raise InvalidInput(f"{where}: duplicate field {repeated[0]!r}: inside metadata and outside")
    return {**inner, **rest}
