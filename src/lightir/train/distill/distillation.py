"""Fit a query table to a frozen document encoder: any bi-encoder becomes searchable without a model at query time."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lightir.addresses import QUERY_ENCODER, resolve_local, stored_address
from lightir.contract import FILE_NAME, Contract, require_same_documents
from lightir.data import DuplicateRules, read_documents
from lightir.encode.query_encoder import BigramTable, QueryEncoderArrays, QueryTable, TableDtype, write_query_encoder
from lightir.encode.vocabulary import cached_table, stored_term_weights
from lightir.errors import InvalidInput
from lightir.files import atomic_folder, write_json
from lightir.models.encoder import LightRetriever
from lightir.query import CachedGate
from lightir.query.bigrams import Bigrams
from lightir.shards import MANIFEST, VectorsReader
from lightir.text import QueryPolicy, TextTokenizer, query_term_ids
from lightir.train.distill.fit_config import FitConfig
from lightir.train.distill.fit_queries import (
    FitQuery,
    labelled_queries,
    pseudo_queries,
    read_phrases,
    set_name,
    without_held_out,
)
from lightir.train.distill.fitted_rows import FittedRows
from lightir.train.distill.held_out import (
    MIXTURES,
    SPAN_MIXTURES,
    FitData,
    HeldOutReport,
    fit_and_compare,
    held_out_rows,
)
from lightir.train.distill.own_words import own_words
from lightir.train.distill.phrase_rows import with_phrases
from lightir.train.distill.quality_report import QualityReport, held_out_queries, quality_report, write_report
from lightir.train.distill.start import AUTO, TERMS, StartTable, fitted_rows
from lightir.train.distill.table_fit import (
    bigrams_by_error,
    ridge_table,
    select_rows,
    term_probabilities,
    weighted_start,
    with_bigrams,
)
from lightir.train.distill.teacher import load_teacher
from lightir.train.distill.teacher_vectors import TeacherVectors
from lightir.types import Document
from lightir.vectors import Floats, Ragged

MAX_CANDIDATES = 100_000
"""Maximum number of queries that take the place of documents."""


@dataclass(frozen=True, slots=True)
class DistillationOptions:
    """Options for fitting and storing a query table.

    Attributes:
        fit: settings of the fit.
        queries: BEIR folders, whose train split has labels, or files of queries. Labels apply to a corpus of the same
            name.
        held_out: BEIR folders with queries that the fit must not see: queries close to one of any split but train are
            dropped.
        decontamination: similarity to a held-out query from which a query is dropped.
        spans: number of titles, spans and questions of every corpus that serve as queries, without labels; 0 for none.
        questions: number of them that are questions about the documents (`pseudo_questions`). None for half if the fit
            starts from a fitted table, and for none otherwise. Titles and spans take their place in corpora that are
            not in English. Stored vectors alone have none.
        fields: fields of the corpora, as in `read_documents`.
        table_dtype: dtype of the stored rows.
        tokenizer: tokenizer.json, or a folder with one, whose terms the table has; None for the teacher's own. Queries
            are then lower-cased and begin with a blank, so that a word has the same terms at every position.
        start: rows that the fit starts from, see `fitted_rows`: "auto" for a table that was fitted before to the same
            document encoder, if there is one, "terms" for each term encoded alone, or a model or query encoder.
        phrases: file of queries, names and phrases, one a line, that keep the teacher's vectors (see `with_phrases`);
            None for none.
        work: folder that keeps the teacher's vectors, so that another run (or the rest of an interrupted one) is quick.
        device: device of the teacher; "auto" uses a GPU if there is one. The table is fitted on the CPU.
    """

    fit: FitConfig = field(default_factory=FitConfig)
    queries: Sequence[Path | str] = ()
    held_out: Sequence[Path | str] = ()
    decontamination: DuplicateRules = field(default_factory=DuplicateRules)
    spans: int = 8000
    questions: int | None = None
    fields: Mapping[str, str] | None = None
    table_dtype: TableDtype = "int8"
    tokenizer: Path | str | None = None
    start: Path | str = AUTO
    phrases: Path | str | None = None
    work: Path | str | None = None
    device: str = "auto"

    def __post_init__(self) -> None:
        """Refuse more questions than texts.

        Raises:
            InvalidInput: there are.
        """
        if self.questions is not None and not 0 <= self.questions <= self.spans:
            raise InvalidInput(
                f"questions is {self.questions}; expected 0 to {self.spans}, the number of titles, spans and questions"
            )

    def n_questions(self, *, fitted_start: bool) -> int:
        """Return the number of questions of a corpus in English."""
        if self.questions is None:
            return self.spans // 2 if fitted_start else 0
        return self.questions


@dataclass(frozen=True, slots=True)
class FitCorpus:
    """Documents that the teacher ranks.

    Attributes:
        name: name of the corpus.
        documents: n documents.
        vectors: (n, dim) float32, normalized; None if the teacher has yet to encode them.
    """

    name: str
    documents: list[Document]
    vectors: Floats | None = None


@dataclass(frozen=True, slots=True)
class TableTokenizer:
    """Tokenizer and policy that turn queries into terms of the table.

    Attributes:
        tokenizer: tokenizer of queries.
        policy: query policy.
        own: the tokenizer is the teacher's own.
    """

    tokenizer: TextTokenizer
    policy: QueryPolicy
    own: bool


@dataclass(frozen=True, slots=True)
class FittedTable:
    """The result of a fit.

    Attributes:
        rows: (V, dim) float32, one row per term.
        bigrams: pairs of terms with their rows, or None.
        gate: gate over the rows of terms, then of pairs, float16, or None.
        start: address of the table that the fit started from; "terms" for terms encoded alone.
        held_out: quality on queries that the fit did not see; None if there are too few queries.
        report: details of that quality, and the confidence; None if there are too few queries.
        word_weight: weight of documents' own words in an index.
    """

    rows: Floats
    bigrams: BigramTable | None
    gate: CachedGate | None
    start: str
    held_out: HeldOutReport | None
    report: QualityReport | None = None
    word_weight: float = 0.0

    @classmethod
    def of(
        cls,
        fitted: FittedRows,
        bigrams: Bigrams | None,
        *,
        start: str,
        held_out: HeldOutReport | None,
        report: QualityReport | None,
        word_weight: float = 0.0,
    ) -> FittedTable:
        """Return a table of rows of terms, then of bigrams."""
        n_terms = len(fitted.rows) - (0 if bigrams is None else len(bigrams))
        pairs = None if bigrams is None else BigramTable(bigrams, fitted.rows[n_terms:])
        gate = fitted.gate
        if gate is not None:
            gate = CachedGate(gate.keys.astype(np.float16), gate.values.astype(np.float16))
        return cls(fitted.rows[:n_terms], pairs, gate, start, held_out, report, word_weight)

    def policy(self, policy: QueryPolicy) -> QueryPolicy:
        """Return a query policy that names the table's bigrams and its gate."""
        bigrams = "" if self.bigrams is None else self.bigrams.bigrams.hash
        return dataclasses.replace(policy, bigrams=bigrams, gate="" if self.gate is None else self.gate.hash)

    def arrays(self, instruction: str, term_weights: Floats | None = None) -> QueryEncoderArrays:
        """Return the arrays of a query encoder."""
        tables = [QueryTable("", instruction, self.rows)]
        return QueryEncoderArrays(tables, term_weights, bigrams=self.bigrams, gate=self.gate)


def distill(
    teacher: str | os.PathLike[str],
    corpora: Sequence[Path | str],
    *,
    out: Path | str,
    options: DistillationOptions | None = None,
    overwrite: bool = False,
) -> Path:
    """Fit a query table to the teacher's own query encoder, write it as a model folder and return its path.

    The document encoder does not change. Some of the queries are held out: a fit that starts from a fitted table and
    does not improve on it for them returns that table unchanged.

    Args:
        teacher: sentence-transformers folder or name (also `pypi:PACKAGE`), or a lightir model folder.
        corpora: corpora to be searched later, or similar ones; the teacher ranks their documents for every query. The
            documents of a vectors folder (of `lightir encode`) are not encoded again.
        out: model folder to write.
        options: fit, queries and storage; None for the defaults.
        overwrite: replace an existing folder.

    Raises:
        InvalidInput: no corpus, no queries, no phrases in their file, or another tokenizer for a teacher with a sparse
            branch.
        AlreadyExists: `out` exists.
        NotFound: a corpus, the tokenizer or the file of phrases does not exist.
        FormatError: the tokenizer or the file of phrases cannot be read.
    """
    options = options or DistillationOptions()
    names = corpus_names(corpora, options.fit)
    model = load_teacher(teacher, device=options.device)
    terms = _query_terms(model, options.tokenizer)
    read = [_read_corpus(name, path, model.contract, options.fields) for name, path in zip(names, corpora, strict=True)]
    start = fitted_rows(options.start, teacher, model.contract, terms.policy, terms.tokenizer.hash)
    documents = {corpus.name: corpus.documents for corpus in read}
    n_questions = options.n_questions(fitted_start=start is not None)
    texts = pseudo_queries(documents, options.spans, options.fit.seed, n_questions=n_questions)
    unclean = [*labelled_queries(options.queries), *texts]
    queries, report = without_held_out(unclean, options.held_out, options.decontamination)
    table = fitted_query_table(model, queries, read, terms, options, start=start)
    facts = {
        "teacher": str(teacher),
        "fit": dataclasses.asdict(options.fit),
        "corpora": {corpus.name: len(corpus.documents) for corpus in read},
        "spans": options.spans,
        "questions": sum(query.kind == "question" for query in texts),
        "queries": len(queries),
        "start": table.start,
        "held_out": None if table.held_out is None else dataclasses.asdict(table.held_out),
        "bigrams": 0 if table.bigrams is None else len(table.bigrams.bigrams),
        "gate": 0 if table.gate is None else table.gate.keys.shape[1],
        "decontamination": None if report is None else report.to_json(),
    }
    with atomic_folder(Path(out), overwrite=overwrite, replaces=FILE_NAME) as folder:
        _write_model(folder, teacher, model, table, terms, options.table_dtype)
        write_json(folder / "distillation.json", facts)
    return Path(out)


def _query_terms(model: LightRetriever, path: Path | str | None) -> TableTokenizer:
    """Return tokenizer and policy of the table's queries, without the unknown term.

    The unknown term's row represents every word that the tokenizer lacks: with one such word in each query minilm has
    an nDCG@10 of 0.627 on scifact, with four 0.561, and 0.630 if they are dropped.

    Raises:
        InvalidInput: another tokenizer for a model with a sparse branch.
    """
    tokenizer, policy = model.backbone.tokenizer, model.contract.query
    given = tokenizer if path is None else read_tokenizer(Path(path))
    own = given.hash == tokenizer.hash
    if not own:
        if model.contract.sparse is not None:
            raise InvalidInput(
                "the teacher has a sparse branch, whose terms are those of its own tokenizer; leave out the other one"
            )
        tokenizer = given
        policy = dataclasses.replace(
            policy, tokenizer=given.hash, lower_case=True, leading_blank=True, drop=(), term_weights="none"
        )
    unknown = tokenizer.unknown_id
    if unknown is not None and unknown not in policy.drop:
        policy = dataclasses.replace(policy, drop=(*policy.drop, unknown))
    return TableTokenizer(tokenizer, policy, own)


def read_tokenizer(path: Path) -> TextTokenizer:
    """Read a tokenizer.json, or the one in a folder."""
    return TextTokenizer.from_file(path / "tokenizer.json" if path.is_dir() else path)


def corpus_names(corpora: Sequence[Path | str], fit: FitConfig) -> list[str]:
    """Return the corpora's names, which must differ.

    Raises:
        InvalidInput: no corpus though the fit compares rankings of documents, or two with the same name.
    """
    if not corpora and fit.candidates_from == "documents":
        raise InvalidInput(
            "no corpus was given; the table is fitted to the teacher's ranking of documents, or with "
            "candidates_from=queries to its ranking of other queries"
        )
    names = [set_name(path) for path in corpora]
    if len(set(names)) < len(names):
        raise InvalidInput(f"two corpora have the same name: {names}")
    return names


def _read_corpus(name: str, path: Path | str, contract: Contract, fields: Mapping[str, str] | None) -> FitCorpus:
    """Read a corpus, with vectors if the path is a vectors folder of the same document encoder."""
    folder = Path(path)
    if not (folder / MANIFEST).is_file():
        return FitCorpus(name, list(read_documents(path, fields=fields)))
    reader = VectorsReader(folder)
    require_same_documents(reader.contract, contract, names=(str(folder), "the teacher"))
    documents: list[Document] = []
    rows = []
    for shard in reader:
        if shard.dense is None:
            raise InvalidInput(f"{folder} has no dense vectors, to which a table is fitted")
        documents.extend(shard.documents)
        rows.append(shard.dense.astype(np.float32))
    return FitCorpus(name, documents, np.concatenate(rows) if rows else None)


def fitted_query_table(
    model: LightRetriever,
    queries: Sequence[FitQuery],
    corpora: Sequence[FitCorpus],
    terms: TableTokenizer,
    options: DistillationOptions,
    *,
    start: StartTable | None = None,
) -> FittedTable:
    """Return the fitted table, with rows for bigrams and a gate if the fit or the start has them.

    Without `start`, the fit of a causal model starts from the paper's cached table, that of other models from each term
    encoded alone; a term of another tokenizer is encoded as its text.
    """
    fit = options.fit
    vectors = TeacherVectors(None if options.work is None else Path(options.work), model)
    ranked = corpora if fit.candidates_from == "documents" else []
    blocks = [
        vectors.documents(corpus.documents) if corpus.vectors is None else corpus.vectors
        for corpus in ranked
        if corpus.documents
    ]
    document_vectors = np.concatenate(blocks) if blocks else np.zeros((0, 0), dtype=np.float32)
    texts = [fit_query.query.text for fit_query in queries]
    term_ids, targets = query_term_ids(terms.tokenizer, terms.policy, texts), vectors.queries(texts)
    documents = {corpus.name: corpus.documents for corpus in corpora}
    positives = relevant_documents(queries, documents)
    unseen = held_out_rows(term_ids, fit.seed)
    if fit.candidates_from == "queries":
        if fit.contrastive > 0 and len(positives.term_ids):
            raise InvalidInput(
                "labels need the documents as candidates: set contrastive=0 with candidates_from=queries"
            )
        seen = np.setdiff1d(np.arange(len(queries)), unseen)
        document_vectors, positives = _sample(targets[seen], fit.seed), Ragged.from_lists([[]] * len(queries))
    if start is None:
        alone = _terms_alone(model, vectors, terms)
        weighted = weighted_start(alone, term_probabilities(term_ids, vocab_size=len(alone)))
        start, fitted_start = StartTable(TERMS, FittedRows(weighted)), False
    else:
        fitted_start = True
    contract = _fitted_contract(model.contract, terms, start if fitted_start else None)
    start, entries = start_with_bigrams(start, term_ids, targets, fit, fitted_start=fitted_start, unseen=unseen)
    collection = FitData(entries, targets, document_vectors, positives)
    listed = [document for corpus in ranked for document in corpus.documents]
    words = own_words(listed, contract, terms.tokenizer, start.bigrams, seed=fit.seed)
    parts = _mixtures(queries) if fitted_start else None
    rows, held_out = fit_and_compare(start, collection, fit, mixtures=parts, unseen=unseen, words=words)
    bigrams = start.bigrams
    if options.phrases is not None:
        rows, bigrams = _with_phrases(dataclasses.replace(start, rows=rows), vectors, terms, options.phrases)
        n_terms = len(rows.rows) - len(bigrams)
        collection = dataclasses.replace(collection, queries=with_bigrams(term_ids, bigrams, vocab_size=n_terms))
        words = own_words(listed, contract, terms.tokenizer, bigrams, seed=fit.seed)
    if words is not None:
        listed = [listed[at] for at in words.documents.tolist()]
        collection = dataclasses.replace(collection, documents=words.searched(rows, document_vectors))
    report = _quality(rows, collection, queries, listed, terms, fit.seed)
    weight = contract.word_weight
    return FittedTable.of(rows, bigrams, start=start.address, held_out=held_out, report=report, word_weight=weight)


def _mixtures(queries: Sequence[FitQuery]) -> tuple[float, ...]:
    """Return the parts that the fit may have in the table, beside a fitted start."""
    return SPAN_MIXTURES if all(fit_query.kind in ("title", "span") for fit_query in queries) else MIXTURES


def _fitted_contract(contract: Contract, terms: TableTokenizer, start: StartTable | None) -> Contract:
    """Return a teacher's contract with the policy of the table's queries and the weight of words of a fitted start."""
    weight = contract.word_weight if start is None else start.word_weight
    return dataclasses.replace(contract, query=terms.policy, word_weight=weight)


def _sample(targets: Floats, seed: int) -> Floats:
    """Return at most MAX_CANDIDATES vectors, in place of documents."""
    chosen = np.random.default_rng(seed).permutation(len(targets))[:MAX_CANDIDATES]
    return np.asarray(targets[np.sort(chosen)])


def start_with_bigrams(
    start: StartTable,
    term_ids: Ragged,
    targets: Floats,
    fit: FitConfig,
    *,
    fitted_start: bool,
    unseen: npt.NDArray[np.int64],
) -> tuple[StartTable, Ragged]:
    """Return the start with rows for its bigrams or new ones, and the queries' rows: their terms, then their pairs.

    New bigrams are the pairs for which the terms' rows, fitted by ridge regression, err most. Held-out queries take no
    part in that choice, so that they measure it too. The KL steps, if any, go on from these rows and from zeros for the
    bigrams; ridge regression of rare pairs fits them too closely (recipes/distill-minilm.md).

    Args:
        start: start of the table.
        term_ids: terms of n queries.
        targets: (n, dim) float32, the teacher's vectors, L2-normalized.
        fit: settings of the fit.
        fitted_start: whether the start is a fitted table.
        unseen: positions of the held-out queries.

    Raises:
        InvalidInput: the start has bigrams and the fit asks for others.
    """
    rows, bigrams = start.rows.rows, start.bigrams
    if bigrams is not None:
        if fit.bigrams:
            raise InvalidInput(
                f"{start.address} has rows for {len(bigrams)} pairs of terms already; leave out "
                f"bigrams={fit.bigrams}, or start from terms"
            )
        return start, with_bigrams(term_ids, bigrams, vocab_size=len(rows) - len(bigrams))
    if not fit.bigrams:
        return start, term_ids
    full = np.setdiff1d(np.flatnonzero(term_ids.lengths > 0), unseen)
    queries, wanted = select_rows(term_ids, full), targets[full]
    table = ridge_table(start.rows, queries, wanted, fit, fitted_start=fitted_start)
    bigrams = bigrams_by_error(table, queries, wanted, fit.bigrams, ridge=fit.ridge)
    begin = (table if fit.steps else start.rows).with_zeros(len(bigrams))
    return StartTable(start.address, begin, bigrams, ridged=fit.steps > 0), with_bigrams(
        term_ids, bigrams, vocab_size=len(rows)
    )


def _with_phrases(
    fitted: StartTable, vectors: TeacherVectors, terms: TableTokenizer, path: Path | str
) -> tuple[FittedRows, Bigrams]:
    """Return a fitted table with rows for the phrases of a file, and its pairs and longer runs."""
    phrases = read_phrases(path)
    grown = with_phrases(fitted, query_term_ids(terms.tokenizer, terms.policy, phrases), vectors.queries(phrases))
    assert grown.bigrams is not None  # it has some, if not for any phrase
    return grown.rows, grown.bigrams


def _quality(
    rows: FittedRows,
    data: FitData,
    queries: Sequence[FitQuery],
    documents: Sequence[Document],
    terms: TableTokenizer,
    seed: int,
) -> QualityReport | None:
    """Report the quality of a table on the queries that were held out; None without candidates or with few queries."""
    if not len(data.documents):
        return None
    doc_ids = [document.doc_id for document in documents]
    unseen = held_out_rows(data.queries, seed)
    texts, kinds = [query.query.text for query in queries], [query.kind for query in queries]
    held = held_out_queries(data, unseen, texts, kinds, doc_ids, vocab_size=terms.tokenizer.vocab_size)
    return quality_report(rows, held, terms.tokenizer, truth="ranking by the teacher's query vector", seed=seed)


def _terms_alone(model: LightRetriever, vectors: TeacherVectors, terms: TableTokenizer) -> Floats:
    """Return (V, dim) rows of terms encoded alone."""
    if not terms.own:
        return vectors.queries(terms.tokenizer.term_texts())
    if model.backbone.kind == "causal" and model.contract.has_light_queries:
        return cached_table(model)
    return vectors.tokens(model.backbone.tokenizer.vocab_size)


def relevant_documents(queries: Sequence[FitQuery], documents: Mapping[str, Sequence[Document]]) -> Ragged:
    """Return for each query the positions of its relevant documents among the documents of all corpora."""
    keys = [(name, document.doc_id) for name, listed in documents.items() for document in listed]
    position = {key: number for number, key in enumerate(keys)}
    relevant = [[(fit_query.source, doc_id) for doc_id in fit_query.positive_ids] for fit_query in queries]
    return Ragged.from_lists([[position[key] for key in row if key in position] for row in relevant])


def _write_model(
    folder: Path,
    teacher: str | os.PathLike[str],
    model: LightRetriever,
    table: FittedTable,
    terms: TableTokenizer,
    dtype: TableDtype,
) -> None:
    """Write the teacher's files under the contract of the table's queries, and the query encoder."""
    base = dataclasses.replace(model.contract.backbone, address=stored_address(model.backbone.address, folder))
    contract = dataclasses.replace(
        model.contract,
        method="distilled",
        backbone=base,
        query=table.policy(terms.policy),
        word_weight=table.word_weight,
    )
    source = resolve_local(teacher)
    if source is not None and (source / FILE_NAME).is_file():
        ignored = shutil.ignore_patterns(QUERY_ENCODER, "checkpoint*")
        shutil.copytree(source, folder, dirs_exist_ok=True, ignore=ignored)
    else:
        model.backbone.tokenizer.save(folder / "tokenizer.json")
    contract.save(folder)
    arrays = table.arrays(terms.policy.instruction, stored_term_weights(model) if terms.own else None)
    write_query_encoder(folder / QUERY_ENCODER, contract, terms.tokenizer, arrays, dtype=dtype)
    if table.report is not None:
        write_report(folder, table.report)
