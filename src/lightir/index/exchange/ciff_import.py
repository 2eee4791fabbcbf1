"""Make an index of a CIFF file: of counted words, or of impacts."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, models, pre_tokenizers

from lightir.analysis import OF_A_MODEL, Analyzer
from lightir.contract import EXTERNAL, MAX_IMPACT, BackboneRecord, Contract, DocumentPolicy, SparseHead
from lightir.errors import InvalidInput
from lightir.files import make_folder, temporary_folder, write_json
from lightir.index.build import run_build
from lightir.index.exchange.ciff_file import CiffFile, open_ciff
from lightir.index.exchange.live_postings import TermBranch
from lightir.index.exchange.posting_spill import PostingRecords, PostingSpill, make_postings
from lightir.index.index_options import IndexOptions
from lightir.index.intake import Intake
from lightir.index.reader import IndexInfo
from lightir.index.segments.rows import TokenRows, narrowed
from lightir.progress import Progress
from lightir.query import CachedQueryEncoder
from lightir.shards import Shard
from lightir.text import QueryPolicy, TextTokenizer
from lightir.types import Document
from lightir.vectors import Ragged, SparseVectors

BUCKET_DOCUMENTS = 16_384
"""Number of documents whose postings are in memory at once."""

QUERY_TOKENS = 65_536
MAX_COUNT = 2**24
"""Largest count that is exact in float32, which an index stores."""


@dataclass(frozen=True, slots=True)
class CountedDocument(Document):
    """A document without text, whose terms were counted elsewhere.

    Attributes:
        terms: (n,) ascending numbers of its terms.
        counts: (n,) count of each.
        length: its length, as BM25 needs it.
    """

    terms: npt.NDArray[np.int64] = dataclasses.field(default_factory=lambda: np.zeros(0, np.int64))
    counts: npt.NDArray[np.int64] = dataclasses.field(default_factory=lambda: np.zeros(0, np.int64))
    length: int = 0


class CountedIntake(Intake):
    """Maker of rows of CountedDocuments."""

    def __init__(self, analyzer: Analyzer, terms: Sequence[str]) -> None:
        """Set up.

        Args:
            analyzer: analyzer of queries, and of documents that are added later.
            terms: ascending terms.
        """
        super().__init__(None, analyzer, None, IndexOptions(analyzer=analyzer.name))
        self._terms = terms

    def _tokens(self, analyzer: Analyzer, documents: Sequence[Document]) -> TokenRows:
        counted = [document for document in documents if isinstance(document, CountedDocument)]
        none = np.zeros(0, np.int64)
        numbers = np.concatenate([none, *(document.terms for document in counted)])
        counts = np.concatenate([none, *(document.counts for document in counted)]).astype(np.float32)
        indptr = np.cumsum([0, *(len(document.terms) for document in counted)]).astype(np.int64)
        used, positions = np.unique(numbers, return_inverse=True)
        rows = SparseVectors(indptr, positions.astype(np.uint32), counts, len(used))
        lengths = np.array([document.length for document in counted], dtype=np.int64)
        return narrowed([self._terms[i] for i in used.tolist()], rows, lengths)


def import_ciff(
    path: Path | str,
    out: Path | str,
    *,
    branch: TermBranch | None = None,
    analyzer: str | None = None,
    rescale: bool = False,
    overwrite: bool = False,
) -> IndexInfo:
    """Build an index of a CIFF file. Its documents have no texts.

    Counts become the tokens branch (BM25). Impacts become the sparse branch, whose queries are terms between blanks; a
    term counts as often as the query has it. The file is read once, and its postings go through files of 12 bytes per
    posting beside `out`. Memory holds the terms, and the postings of BUCKET_DOCUMENTS documents at a time, besides what
    building an index needs.

    Args:
        path: CIFF file, plain or gzipped.
        out: index folder to write.
        branch: "tokens" for counts, "sparse" for impacts; None for the one that a file of lightir names, else "tokens".
        analyzer: analyzer of queries, and of documents that are added later, for counts; it has to be the one that the
            counts were made with. None for the one that a file of lightir names, else "words".
        rescale: divide impacts above 255, the largest that is stored, by a common factor; otherwise they are an error.
        overwrite: replace an existing index.

    Raises:
        NotFound: the file does not exist.
        InvalidInput: the file is damaged or cut off, a term or document is repeated, or a number is out of range.
        AlreadyExists: `out` exists and overwrite is off.
        WriteFailed: the disk is full or broken; nothing is left behind.
    """
    out = Path(out).absolute()
    make_folder(out.parent)
    with open_ciff(path) as file, temporary_folder(out.parent) as folder:
        branch = branch or _described(file, "branch", ("tokens", "sparse"), "tokens")  # type: ignore[assignment]
        if branch == "sparse" and analyzer is not None:
            raise InvalidInput("an analyzer is for counts; queries of impacts are terms between blanks")
        content = _read_lists(file, folder, least=1 if branch == "tokens" else 0)
        documents = _Documents(file, content)
        if branch == "tokens":
            named = analyzer or _described(file, "analyzer", None, "words")
            _check_counts(path, named, content.largest)
            intake: Intake = CountedIntake(Analyzer(named), content.terms)
            return run_build(intake, documents.counted(), out, overwrite=overwrite)
        scale = _scale_of(path, content.largest, rescale=rescale)
        make_folder(folder / "query-encoder")
        contract = _write_encoder(folder / "query-encoder", Path(path), content.terms, scale)
        encoder = CachedQueryEncoder.load(folder / "query-encoder")
        intake = Intake(contract, None, encoder, IndexOptions(analyzer=None))
        shards = documents.with_impacts(scale, contract.backbone.vocab_size)
        return run_build(intake, shards, out, query_encoder=folder / "query-encoder", overwrite=overwrite)


def _check_counts(path: Path | str, analyzer: str, largest: int) -> None:
    """Refuse counts that are too large, and those of terms that no analyzer makes."""
    if largest > MAX_COUNT:
        raise InvalidInput(f"{path} has a count of {largest}; an index stores counts up to {MAX_COUNT}")
    if analyzer in OF_A_MODEL:
        raise InvalidInput(
            f"{path} counts the terms of a model, which only that model's tokenizer splits queries into; read them as "
            "impacts (sparse), or name an analyzer"
        )


def _scale_of(path: Path | str, largest: int, *, rescale: bool) -> float:
    """Return the factor for impacts, at most 1."""
    scale = min(1.0, MAX_IMPACT / max(largest, 1))
    if scale < 1 and not rescale:
        raise InvalidInput(
            f"{path} has weights up to {largest}, and an index stores impacts up to {MAX_IMPACT}; rescale them "
            f"(--rescale), which rounds them to multiples of {1 / scale:.2f}, or read them as counts (tokens)"
        )
    return scale


class _PostingLists(NamedTuple):
    """The posting lists of a file.

    Attributes:
        terms: ascending terms.
        ranks: position of each list's term among them.
        spill: postings by document, with numbers of lists.
        largest: largest weight.
    """

    terms: list[str]
    ranks: npt.NDArray[np.int64]
    spill: PostingSpill
    largest: int


def _described(file: CiffFile, name: str, known: Sequence[str] | None, default: str) -> str:
    """Return a setting of the description that lightir wrote."""
    description = file.header.description
    setting = re.search(rf"; {name}=([\w+-]+)", description) if description.startswith("lightir ") else None
    return default if setting is None or (known is not None and setting[1] not in known) else setting[1]


def _read_lists(file: CiffFile, folder: Path, *, least: int) -> _PostingLists:
    """Read all posting lists, whose weights are at least `least`."""
    n_buckets = -(-file.header.n_documents // BUCKET_DOCUMENTS)
    ends = np.arange(1, n_buckets + 1, dtype=np.int64) * BUCKET_DOCUMENTS
    spill = PostingSpill(folder, "document", ends)
    terms: list[str] = []
    largest = 0

    def take(documents: npt.NDArray[np.int64], weights: npt.NDArray[np.int64]) -> None:
        nonlocal largest
        largest = max(largest, int(weights.max(initial=0)))
        if len(weights) and (low := int(weights.min())) < least:
            raise ValueError(f"a count is {low}; expected at least {least}")
        spill.add(make_postings(len(terms), documents, weights))

    with Progress("read", unit="list", total=file.header.n_lists) as progress:
        for number in range(file.header.n_lists):
            terms.append(file.read_list(number, take).term)
            progress.update(1)
    order = sorted(range(len(terms)), key=terms.__getitem__)
    ranks = np.zeros(len(terms), dtype=np.int64)
    ranks[order] = np.arange(len(terms))
    ordered = [terms[i] for i in order]
    if repeated := next((a for a, b in itertools.pairwise(ordered) if a == b), None):
        raise InvalidInput(f"{file.name}: term {repeated[:40]!r} has two posting lists")
    return _PostingLists(ordered, ranks, spill, largest)


class _Documents:
    """The documents of a file with their terms, after its posting lists were read."""

    def __init__(self, file: CiffFile, content: _PostingLists) -> None:
        self._file, self._spill, self._ranks = file, content.spill, content.ranks

    def counted(self) -> Iterator[Shard]:
        for records, rows, weights in self._buckets():
            spans = zip(records, rows.indptr[:-1].tolist(), rows.indptr[1:].tolist(), strict=True)
            ids = rows.term_ids.astype(np.int64)
            documents = [
                CountedDocument(doc_id, "", terms=ids[a:b], counts=weights[a:b], length=length)
                for (doc_id, length), a, b in spans
            ]
            yield Shard(documents, None, None)

    def with_impacts(self, scale: float, vocab_size: int) -> Iterator[Shard]:
        for records, rows, weights in self._buckets():
            impacts = np.rint(weights * scale).astype(np.uint8)
            sparse = SparseVectors(rows.indptr, rows.term_ids, impacts, vocab_size)
            yield Shard([Document(doc_id, "") for doc_id, _ in records], None, sparse)

    def _buckets(self) -> Iterator[tuple[list[tuple[str, int]], Ragged, npt.NDArray[np.int64]]]:
        """Yield ids and lengths of some documents, their ascending terms, and the terms' weights."""
        waiting: list[tuple[str, int]] = []
        bucket = 0
        for record in self._file.documents():
            waiting.append(record)
            if len(waiting) == BUCKET_DOCUMENTS:
                yield self._bucket(bucket, waiting)
                waiting, bucket = [], bucket + 1
        if waiting:
            yield self._bucket(bucket, waiting)

    def _bucket(
        self, bucket: int, records: list[tuple[str, int]]
    ) -> tuple[list[tuple[str, int]], Ragged, npt.NDArray[np.int64]]:
        postings: PostingRecords = self._spill.read(bucket)
        terms = self._ranks[postings["term"]]
        documents = postings["document"].astype(np.int64) - bucket * BUCKET_DOCUMENTS
        order = np.lexsort((terms, documents))
        indptr = np.searchsorted(documents[order], np.arange(len(records) + 1)).astype(np.int64)
        rows = Ragged(terms[order].astype(np.uint32), indptr)
        return records, rows, postings["weight"][order].astype(np.int64)


def _write_encoder(folder: Path, path: Path, terms: Sequence[str], scale: float) -> Contract:
    """Write the query encoder of impacts: it counts the terms between blanks."""
    unknown = "[UNK]"
    known = set(terms)
    while unknown in known:
        unknown = f"[{unknown}]"
    vocabulary = {term: i for i, term in enumerate([*terms, unknown])}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token=unknown))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = TextTokenizer(inner)
    name = path.name.removesuffix(".gz").removesuffix(".ciff")
    backbone = BackboneRecord(name, EXTERNAL, tokenizer.hash, "", tokenizer.hash, len(vocabulary), 0, "CIFF")
    query = QueryPolicy(lower_case=False, leading_blank=False, drop=(len(terms),), max_tokens=QUERY_TOKENS)
    document = DocumentPolicy(lower_case=False, bos=False, eos=False, max_tokens=QUERY_TOKENS)
    contract = Contract(EXTERNAL, backbone, query, document, None, SparseHead(top_k=0, scale=scale))
    contract.save(folder)
    tokenizer.save(folder / "tokenizer.json")
    write_json(folder / "tables.json", {"format_version": 1, "dtype": "fp16", "tables": []})
    return contract
