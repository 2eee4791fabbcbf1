"""Evaluation of a model on a data set: corpus encoded and indexed, queries encoded with and without the model."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from lightir.addresses import resolve_model_folder
from lightir.contract import Contract
from lightir.data import Dataset
from lightir.encode.full_queries import FullQueryEncoder, SparseForm
from lightir.encode.model_modes import (
    BETA_FORMS,
    DOCUMENT_FORMS,
    FULL,
    FULL_SPARSE,
    LIGHT_BETA,
    check_modes,
    default_modes,
    searched_mode,
    stages,
)
from lightir.encode.prepared_model import PreparedModel
from lightir.encode.two_stage import TwoStageSearcher
from lightir.eval import DEFAULT_MEASURES
from lightir.index import Index, IndexOptions, build_index
from lightir.search import DEFAULT_OPTIONS, Searcher, SearchOptions
from lightir.search.index_evaluation import EvaluationReport, Ranker, evaluate_systems, measured_depth
from lightir.vectors import QueryVectors


@dataclass(frozen=True, slots=True)
class SystemOptions:
    """The modes of a model to evaluate, and how its index and searchers are built.

    Attributes:
        modes: modes of `evaluate_index`. FULL replaces "dense" by the full query encoder, FULL_SPARSE "sparse" by the
            model's own sparse query vectors. A model with a sparse branch also supports LIGHT_BETA, BETA_FORMS (bags of
            tokens as documents) and DOCUMENT_FORMS. "FIRST:M:SECOND" orders the M best documents of one mode by
            another: "beta:20:full-sparse" (late parametric search), "tokens:100:hybrid". None is `default_modes`.
        task: query table to use, whose instruction the full encoder gets; None is the default table.
        analyzer: analyzer of the tokens branch.
        device: torch device; "auto" is a GPU if there is one, else the CPU.
        threads: number of search threads.
    """

    modes: Sequence[str] | None = None
    task: str | None = None
    analyzer: str = "english"
    device: str = "auto"
    threads: int = 1


DEFAULT_SYSTEMS = SystemOptions()


def evaluate_model(
    model: str | os.PathLike[str],
    dataset: Dataset | Path | str,
    work: Path | str,
    *,
    split: str = "test",
    systems: SystemOptions = DEFAULT_SYSTEMS,
    measures: Sequence[str] = DEFAULT_MEASURES,
    k: int | None = None,
    options: SearchOptions = DEFAULT_OPTIONS,
    run_dir: Path | str | None = None,
) -> EvaluationReport:
    """Measure each mode of a model on a data set; vectors that are encoded already are reused.

    Args:
        model: model folder, or name of a shipped model.
        dataset: data set, or its folder.
        work: folder for this data set and document encoder. It holds the vectors (resumed after an interruption, and
            reused by every model with the same document side), the query table if the model has none, and the index.
        split: split of the queries and qrels.
        systems: modes to measure, and how the index and searchers are built.
        measures: names of measures as in ir-measures.
        k: depth of the rankings; None is the deepest cutoff of the measures.
        options: options of every search except the mode. Weights require named modes.
        run_dir: folder for each mode's run, <dataset>.<split>.<mode>.trec; None writes none.

    Raises:
        ContractMismatch: the work folder was begun with a model of another document side.
        InvalidInput: a mode that the model does not support, or an error of `evaluate_index`.
    """
    dataset = dataset if isinstance(dataset, Dataset) else Dataset.open(dataset)
    measured_depth(dataset, split, measures, k)  # refuse errors before the corpus is encoded
    contract = Contract.load(resolve_model_folder(model))
    check_modes(contract, default_modes(contract) if systems.modes is None else systems.modes, options)
    with model_systems(model, dataset, work, systems) as searchers:
        return evaluate_systems(searchers, dataset, split, measures=measures, k=k, options=options, run_dir=run_dir)


@contextmanager
def model_systems(
    model: str | os.PathLike[str], dataset: Dataset, work: Path | str, options: SystemOptions = DEFAULT_SYSTEMS
) -> Iterator[dict[str, tuple[Ranker, str]]]:
    """Build the index of a model in `work`, and yield each mode's searcher with the searcher's name of the mode.

    The index is open inside the context.

    Args:
        model: model folder, or name of a shipped model.
        dataset: data set whose corpus is encoded and indexed.
        work: folder for this data set and document encoder, as in `evaluate_model`.
        options: modes, and how the index and searchers are built.

    Raises:
        InvalidInput: a mode that the model does not support.
    """
    folder = resolve_model_folder(model)
    contract = Contract.load(folder)
    modes = default_modes(contract) if options.modes is None else options.modes
    check_modes(contract, modes)
    prepared = PreparedModel(folder, dataset, Path(work), options.device)
    build_index(
        prepared.vectors(),
        prepared.work / "index",
        contract=prepared.contract,
        query_encoder=prepared.query_encoder(),
        options=IndexOptions(analyzer=options.analyzer),
        overwrite=True,
    )
    with ExitStack() as opened:
        index = opened.enter_context(Index.open(prepared.work / "index"))
        systems = _Systems(prepared, index, options, opened)
        yield {mode: systems.of(mode) for mode in modes}


class _Systems:
    """Builds a searcher for each checked mode; further indexes are built for the first mode that needs them."""

    def __init__(self, prepared: PreparedModel, index: Index, options: SystemOptions, opened: ExitStack) -> None:
        self._prepared, self._index, self._opened = prepared, index, opened
        self._analyzer, self._task, self._threads = options.analyzer, options.task, options.threads
        self._light = Searcher(index, task=self._task, threads=self._threads)
        self._encoders: dict[tuple[bool, SparseForm], _CachedEncodings] = {}

    def of(self, mode: str) -> tuple[Ranker, str]:
        """The searcher, and its own name of the mode."""
        if ":" in mode:
            before, m, after = stages(mode)
            (first, first_mode), (second, second_mode) = self._searcher(before), self._searcher(after)
            return TwoStageSearcher(first, second, first_mode=first_mode, m=m), second_mode
        return self._searcher(mode)

    def _searcher(self, mode: str) -> tuple[Searcher, str]:
        if mode == LIGHT_BETA:
            return Searcher(self._bags, self._light.encoder, task=self._task, threads=self._threads), "tokens"
        if mode in BETA_FORMS:
            return Searcher(self._bags, self._full(sparse=True, form=BETA_FORMS[mode]), threads=self._threads), "tokens"
        if mode in DOCUMENT_FORMS:
            index = self._opened.enter_context(Index.open(self._prepared.formed_index(DOCUMENT_FORMS[mode])))
            return Searcher(index, self._full(sparse=True), threads=self._threads), "sparse"
        parts = mode.split("+")
        if FULL not in parts and FULL_SPARSE not in parts:
            return self._light, mode
        searcher = Searcher(self._encoded, self._full(sparse=FULL_SPARSE in parts), threads=self._threads)
        return searcher, searched_mode(mode)

    @cached_property
    def _encoded(self) -> Index:
        """The index whose dense vectors are the model's alone, for queries that the model encodes."""
        if not self._index.view.options.word_weight:
            return self._index
        return self._opened.enter_context(Index.open(self._prepared.encoded_index(self._analyzer)))

    @cached_property
    def _bags(self) -> Index:
        return self._opened.enter_context(Index.open(self._prepared.bags_index()))

    def _full(self, *, sparse: bool, form: SparseForm = "weights") -> _CachedEncodings:
        if (sparse, form) not in self._encoders:
            encoder = self._prepared.full_query_encoder(self._light, self._task, sparse=sparse, form=form)
            self._encoders[sparse, form] = _CachedEncodings(encoder)
        return self._encoders[sparse, form]


class _CachedEncodings:
    """A query encoder that keeps the vectors of each batch, since several modes encode the same queries."""

    def __init__(self, encoder: FullQueryEncoder) -> None:
        self._encoder = encoder
        self._vectors: dict[tuple[str, ...], QueryVectors] = {}

    @property
    def document_fingerprint(self) -> str:
        return self._encoder.document_fingerprint

    def encode(self, texts: Sequence[str], *, task: str | None = None) -> QueryVectors:
        key = tuple(texts)
        if key not in self._vectors:
            self._vectors[key] = self._encoder.encode(texts, task=task)
        return self._vectors[key]
