"""Fit a query table to vectors that were made outside lightir: by an embeddings endpoint, or stored in a file.

An endpoint is a teacher like any other: it encodes documents and queries. Stored vectors alone have no query encoder to
follow, so the texts of a document (its title, spans of it, and the whole) are fitted to the document's own vector.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from lightir.addresses import QUERY_ENCODER, cache_folder, resolve_query_encoder, shipped_models
from lightir.contract import FILE_NAME, Contract, external_contract
from lightir.data import StoredVectors, read_documents, span_pairs, title_pairs
from lightir.encode.query_encoder import TableDtype, write_query_encoder
from lightir.errors import ContractMismatch, InvalidInput
from lightir.files import atomic_folder, copy_folder, write_json
from lightir.query import CachedQueryEncoder
from lightir.query.endpoint import EmbeddingsEndpoint
from lightir.search.fetched_vectors import FetchedVectors
from lightir.shards import Shard, VectorsWriter
from lightir.text import QueryPolicy, query_term_ids
from lightir.train.distill.distillation import (
    DistillationOptions,
    FittedTable,
    TableTokenizer,
    corpus_names,
    read_tokenizer,
    relevant_documents,
    start_with_bigrams,
)
from lightir.train.distill.fit_config import STORED_TEMPERATURE, FitConfig
from lightir.train.distill.fit_queries import labelled_queries, pseudo_queries, without_held_out
from lightir.train.distill.fitted_rows import FittedRows
from lightir.train.distill.held_out import SHARE, FitData, fit_and_compare, held_out_rows
from lightir.train.distill.quality_report import (
    held_out_queries,
    quality_report,
    write_report,
)
from lightir.train.distill.start import AUTO, TERMS, StartTable
from lightir.types import Document
from lightir.vectors import Floats, Ragged

logger = logging.getLogger(__name__)

SPANS_PER_DOCUMENT, LONG_SPANS_PER_DOCUMENT = 5, 2
LONG_SPAN = (17, 90)
"""Number of words of a long span."""

MAX_TEXTS = 200_000
"""Maximum number of texts of each kind."""

STORED_FIT = FitConfig(temperature=STORED_TEMPERATURE)
"""Settings of the fit to stored vectors alone."""

MIN_SPAN_DOCUMENTS = 50
"""Minimum number of documents with vectors; fewer cannot be held out and fitted to."""


@dataclass(frozen=True, slots=True)
class ExternalTeacher:
    """A model outside lightir, by its endpoint, by vectors of documents, or by both.

    Attributes:
        name: name of the model.
        endpoint: endpoint that encodes texts; None if there are stored vectors alone.
        vectors: vectors of the corpus's documents; None lets the endpoint encode them.
        maker: name of the one who made the vectors; "" for the endpoint's host, or unknown.
        similarity: similarity that the vectors are compared by.
        query_prompt: text that the endpoint gets before every query.
        document_prompt: text that the endpoint gets before every document.
    """

    name: str
    endpoint: EmbeddingsEndpoint | None = None
    vectors: StoredVectors | None = None
    maker: str = ""
    similarity: Literal["cosine", "dot"] = "cosine"
    query_prompt: str = ""
    document_prompt: str = ""

    def __post_init__(self) -> None:
        if self.endpoint is None and self.vectors is None:
            raise InvalidInput("an external teacher is an endpoint, vectors of documents, or both; neither was given")
        if self.endpoint is None and (self.query_prompt or self.document_prompt):
            raise InvalidInput("prompts are sent to an endpoint, and there are stored vectors alone")

    def contract(self, dims: int, policy: QueryPolicy) -> Contract:
        """Return the contract of a table of the given policy."""
        host = "" if self.endpoint is None else self.endpoint.host
        if self.query_prompt:
            policy = dataclasses.replace(policy, prompt_format=self.query_prompt)
        return external_contract(
            self.name,
            dims,
            similarity=self.similarity,
            maker=self.maker or host,
            document_prompt=self.document_prompt,
            query=policy,
        )


@dataclass(frozen=True, slots=True)
class _Start:
    """Tokenizer, policy and rows of the table that the fit starts from; rows of zeros are a plain ridge regression."""

    address: str
    terms: TableTokenizer
    rows: Floats


@dataclass(frozen=True, slots=True)
class _Queries:
    """Texts that the table is fitted to.

    Attributes:
        texts: n texts.
        kinds: their kinds.
        targets: (n, dim) float32 vectors of length 1.
        positives: positions of their relevant documents.
        unseen: positions of the held-out ones; None draws them.
        facts: counts for the report.
    """

    texts: list[str]
    kinds: list[str]
    targets: Floats
    positives: Ragged
    unseen: npt.NDArray[np.int64] | None
    facts: dict[str, Any] = field(default_factory=dict)


def distill_external(
    teacher: ExternalTeacher,
    corpora: Sequence[Path | str],
    *,
    out: Path | str,
    options: DistillationOptions | None = None,
    vectors_out: Path | str | None = None,
    overwrite: bool = False,
) -> Path:
    """Fit a query table to vectors made outside lightir, write it as a model folder and return its path.

    The model's contract is external: `build_index` searches stored vectors with it, and no part of lightir encodes
    documents with it.

    Args:
        teacher: endpoint, stored vectors of the corpus's documents, or both.
        corpora: corpora to be searched later; exactly one with stored vectors.
        out: model folder to write.
        options: fit, queries and storage; `device` does not apply. With stored vectors alone `spans` does not apply
            either: the texts are those of `_own_texts`. None for the defaults, for stored vectors alone STORED_FIT.
        vectors_out: vectors folder to write with documents, vectors and query encoder, from which an index is built;
            None for none.
        overwrite: replace existing folders.

    Raises:
        InvalidInput: no corpus, several for stored vectors, too few documents with vectors, or queries without an
            endpoint.
        NotFound: no table to start from is installed and no tokenizer is given, or a file does not exist.
        ContractMismatch: stored vectors and the endpoint's have different widths.
        EndpointFailed: the endpoint failed; what it gave is kept and not asked for again.
        AlreadyExists: `out` exists.
    """
    options = options or DistillationOptions(fit=STORED_FIT if teacher.endpoint is None else FitConfig())
    names = corpus_names(corpora, options.fit)
    _require_sources(teacher, corpora, options)
    start = _start(options)
    fetched = _fetched(teacher, options)
    shards = [_encoded(teacher, fetched, path, options) for path in corpora]
    documents = {name: list(shard.documents) for name, shard in zip(names, shards, strict=True)}
    rows = np.concatenate([_unit(shard) for shard in shards])
    queries = _own_texts(documents, rows, options) if fetched is None else _asked(teacher, fetched, documents, options)
    if queries.targets.shape[1] != rows.shape[1]:
        raise ContractMismatch(
            f"the stored vectors are {rows.shape[1]} wide, but the endpoint's {queries.targets.shape[1]}"
        )
    table = _fit(start, queries, rows, documents, options, own=fetched is None)
    contract = teacher.contract(rows.shape[1], table.policy(start.terms.policy))
    with atomic_folder(Path(out), overwrite=overwrite, replaces=FILE_NAME) as folder:
        _write_model(folder, contract, table, start.terms, options.table_dtype)
        facts = _facts(teacher, contract, table, documents, options)
        write_json(folder / "distillation.json", facts | queries.facts)
    if vectors_out is not None:
        write_vectors(Path(vectors_out), contract, shards, Path(out) / QUERY_ENCODER)
    return Path(out)


def _require_sources(teacher: ExternalTeacher, corpora: Sequence[Path | str], options: DistillationOptions) -> None:
    """Refuse several corpora for stored vectors, queries that nothing encodes, and rankings without documents."""
    if options.phrases is not None:
        raise InvalidInput("phrases need a local teacher, which encodes them; leave them out")
    if options.fit.candidates_from != "documents":
        raise InvalidInput(
            f"candidates_from is {options.fit.candidates_from!r}; expected documents, whose vectors the fit ranks"
        )
    if teacher.vectors is not None and len(corpora) != 1:
        raise InvalidInput(f"vectors are those of one corpus, but {len(corpora)} were given")
    if teacher.endpoint is None and (options.queries or options.held_out):
        raise InvalidInput(
            "queries require an endpoint that encodes them; stored vectors alone are fitted to documents"
        )


def _write_model(
    folder: Path, contract: Contract, table: FittedTable, terms: TableTokenizer, dtype: TableDtype
) -> None:
    """Write the contract, the query encoder and the report."""
    contract.save(folder)
    arrays = table.arrays(contract.query.instruction)
    write_query_encoder(folder / QUERY_ENCODER, contract, terms.tokenizer, arrays, dtype=dtype)
    if table.report is not None:
        write_report(folder, table.report)


def _facts(
    teacher: ExternalTeacher,
    contract: Contract,
    table: FittedTable,
    documents: dict[str, list[Document]],
    options: DistillationOptions,
) -> dict[str, Any]:
    """Return what distillation.json says of a fit."""
    return {
        "teacher": teacher.name,
        "maker": contract.backbone.maker,
        "fit": dataclasses.asdict(options.fit),
        "corpora": {name: len(listed) for name, listed in documents.items()},
        "start": table.start,
        "held_out": None if table.held_out is None else dataclasses.asdict(table.held_out),
        "bigrams": 0 if table.bigrams is None else len(table.bigrams.bigrams),
        "gate": 0 if table.gate is None else table.gate.keys.shape[1],
    }


def write_vectors(out: Path, contract: Contract, shards: Sequence[Shard], query_encoder: Path) -> None:
    """Write encoded documents with a copy of their query encoder as a vectors folder."""
    with VectorsWriter(out, contract) as writer:
        copy_folder(query_encoder, out / QUERY_ENCODER)
        for shard in shards:
            writer.add(shard)
        writer.finish()


def _start(options: DistillationOptions) -> _Start:
    """Return what the fit starts from: a named table, an installed one, or zeros for a given tokenizer."""
    if options.tokenizer is not None:
        if options.start not in (AUTO, TERMS):
            raise InvalidInput(
                "a tokenizer and a table to start from exclude each other; the table has its own tokenizer"
            )
        tokenizer = read_tokenizer(Path(options.tokenizer))
        unknown = () if tokenizer.unknown_id is None else (tokenizer.unknown_id,)
        policy = QueryPolicy(tokenizer=tokenizer.hash, drop=unknown)
        return _Start(
            "zeros", TableTokenizer(tokenizer, policy, own=False), np.zeros((tokenizer.vocab_size, 1), np.float32)
        )
    address = options.start
    if address in (AUTO, TERMS):
        if not (installed := list(shipped_models())):
            raise InvalidInput(
                "no model is installed whose tokenizer the table could have; name a tokenizer.json with --tokenizer, "
                "or a model with --start"
            )
        address = "minilm" if "minilm" in installed else installed[0]
    encoder = CachedQueryEncoder.load(resolve_query_encoder(address))
    if not encoder.tables:
        raise InvalidInput(f"a fit cannot start from {address}: it has no table")
    stored, unknown_id = encoder.contract.query, encoder.tokenizer.unknown_id
    policy = QueryPolicy(
        lower_case=stored.lower_case,
        leading_blank=stored.leading_blank,
        drop=tuple(dict.fromkeys((*stored.drop, *(() if unknown_id is None else (unknown_id,))))),
        max_tokens=stored.max_tokens,
        tokenizer=encoder.tokenizer.hash,
    )
    rows = next(iter(encoder.tables.values())).float_rows()
    zeros = options.start == TERMS
    return _Start(
        "zeros" if zeros else str(address),
        TableTokenizer(encoder.tokenizer, policy, own=False),
        np.zeros((len(rows), 1), np.float32) if zeros else rows,
    )


def _fetched(teacher: ExternalTeacher, options: DistillationOptions) -> FetchedVectors | None:
    """Open the file of what the endpoint gives; None without an endpoint."""
    if teacher.endpoint is None:
        return None
    folder = cache_folder() / "endpoints" if options.work is None else Path(options.work)
    return FetchedVectors(folder, teacher.endpoint)


def _encoded(
    teacher: ExternalTeacher, fetched: FetchedVectors | None, corpus: Path | str, options: DistillationOptions
) -> Shard:
    """Return the documents of a corpus that have vectors, with them."""
    documents = read_documents(corpus, fields=options.fields)
    if teacher.vectors is None:
        assert fetched is not None
        listed = list(documents)
        texts = [document.full_text() for document in listed]
        return _fetched_shard(teacher, fetched, listed, texts)
    shards = list(teacher.vectors.shards(documents, similarity=teacher.similarity))
    encoded = [shard for shard in shards if shard.dense is not None]
    if without := sum(len(shard.documents) for shard in shards if shard.dense is None):
        logger.warning(
            "%s: %d documents have no vector in %s; the fit ignores them", corpus, without, teacher.vectors.path
        )
    if not encoded:
        raise InvalidInput(f"no document of {corpus} has a vector in {teacher.vectors.path}; compare their ids")
    return Shard.concatenate(encoded)


def _fetched_shard(
    teacher: ExternalTeacher, fetched: FetchedVectors, documents: list[Document], texts: list[str]
) -> Shard:
    """Return documents with the endpoint's vectors; empty documents, which endpoints refuse, are left out."""
    full = [at for at, text in enumerate(texts) if text.strip()]
    if empty := len(texts) - len(full):
        logger.warning("%d documents are empty; the endpoint does not encode them", empty)
    rows = fetched.rows([texts[at] for at in full], "documents", prompt=teacher.document_prompt)
    if teacher.similarity == "cosine":
        rows = _normalized(rows)
    return Shard([documents[at] for at in full], rows.astype(np.float16), None)


def _unit(shard: Shard) -> Floats:
    assert shard.dense is not None
    return _normalized(shard.dense.astype(np.float32))


def _normalized(rows: Floats) -> Floats:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.where(lengths > 0, lengths, 1), dtype=np.float32)


def _asked(
    teacher: ExternalTeacher,
    fetched: FetchedVectors,
    documents: dict[str, list[Document]],
    options: DistillationOptions,
) -> _Queries:
    """Return labeled queries, titles, spans and questions with the endpoint's vectors."""
    n_questions = options.n_questions(fitted_start=False)
    made = pseudo_queries(documents, options.spans, options.fit.seed, n_questions=n_questions)
    unclean = [*labelled_queries(options.queries), *made]
    clean, report = without_held_out(unclean, options.held_out, options.decontamination)
    chosen = [query for query in clean if query.query.text.strip()]
    texts = [query.query.text for query in chosen]
    targets = _normalized(fetched.rows(texts, "queries", prompt=teacher.query_prompt))
    facts = {
        "spans": options.spans,
        "questions": sum(query.kind == "question" for query in made),
        "queries": len(texts),
        "decontamination": None if report is None else report.to_json(),
    }
    return _Queries(
        texts, [query.kind for query in chosen], targets, relevant_documents(chosen, documents), None, facts
    )


def _own_texts(documents: dict[str, list[Document]], rows: Floats, options: DistillationOptions) -> _Queries:
    """Return titles, spans and whole texts of documents, whose targets are the documents' vectors.

    A share of the documents is held out with all of their texts; only titles and short spans of these are measured.
    """
    (listed,) = documents.values()
    if len(listed) < MIN_SPAN_DOCUMENTS:
        raise InvalidInput(
            f"{len(listed)} documents have vectors; a table is fitted to stored vectors of {MIN_SPAN_DOCUMENTS} or more"
        )
    rng = np.random.default_rng(options.fit.seed)
    groups = _groups(listed, rng)
    held = rng.permutation(len(listed))[: max(1, int(SHARE * len(listed)))]
    is_held = np.zeros(len(listed), dtype=bool)
    is_held[held] = True
    texts: list[str] = []
    kinds: list[str] = []
    owners: list[int] = []
    for kind, pairs in groups.items():
        kept = [pair for pair in pairs if not is_held[pair[1]] or kind in ("title", "span")]
        texts += [text for text, _ in kept]
        owners += [at for _, at in kept]
        kinds += [kind] * len(kept)
    owned = np.array(owners, dtype=np.int64)
    relevant = Ragged.from_lists([[at] for at in owners])
    facts = {"queries": len(texts), "held_out_documents": len(held)}
    return _Queries(texts, kinds, rows[owned], relevant, np.flatnonzero(is_held[owned]), facts)


def _groups(documents: Sequence[Document], rng: np.random.Generator) -> dict[str, list[tuple[str, int]]]:
    """Return texts of documents with the positions of these, by kind, at most MAX_TEXTS of each."""
    position = {document.doc_id: at for at, document in enumerate(documents)}
    low, high = LONG_SPAN
    most = max(1, MAX_TEXTS // len(documents))
    n_long, n_short = min(LONG_SPANS_PER_DOCUMENT, most), min(SPANS_PER_DOCUMENT, most)
    pairs = {
        "title": title_pairs(documents),
        "span": span_pairs(documents, rng, per_document=n_short),
        "long span": span_pairs(documents, rng, min_words=low, max_words=high, per_document=n_long),
    }
    groups = {
        kind: [(pair.query.text, position[pair.document.doc_id]) for pair in made] for kind, made in pairs.items()
    }
    groups["document"] = [(document.full_text(), at) for at, document in enumerate(documents) if document.text.strip()]
    for kind, texts in groups.items():
        chosen = np.sort(rng.permutation(len(texts))[:MAX_TEXTS]).tolist()
        groups[kind] = [texts[at] for at in chosen]
    return groups


def _fit(
    start: _Start,
    queries: _Queries,
    rows: Floats,
    documents: dict[str, list[Document]],
    options: DistillationOptions,
    *,
    own: bool,
) -> FittedTable:
    """Fit the table, and measure it on the held-out queries."""
    fit: FitConfig = options.fit
    term_ids = query_term_ids(start.terms.tokenizer, start.terms.policy, queries.texts)
    n_terms = len(start.rows)
    unseen = held_out_rows(term_ids, fit.seed) if queries.unseen is None else queries.unseen
    unseen = unseen[term_ids.lengths[unseen] > 0]
    table = StartTable(start.address, FittedRows(start.rows))
    table, term_ids = start_with_bigrams(table, term_ids, queries.targets, fit, fitted_start=False, unseen=unseen)
    data = FitData(term_ids, queries.targets, rows, queries.positives)
    fitted, held_out = fit_and_compare(table, data, fit, mixtures=None, unseen=unseen)
    doc_ids = [document.doc_id for listed in documents.values() for document in listed]
    held = held_out_queries(data, unseen, queries.texts, queries.kinds, doc_ids, vocab_size=n_terms)
    truth = "ranking by the vector of the query's own document" if own else "ranking by the endpoint's query vector"
    report = quality_report(fitted, held, start.terms.tokenizer, truth=truth, seed=fit.seed)
    return FittedTable.of(fitted, table.bigrams, start=start.address, held_out=held_out, report=report)
