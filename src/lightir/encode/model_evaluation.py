"""How well a model retrieves on a data set: its corpus encoded and indexed, its queries with and without the model."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
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
from lightir.encode.prepared import PreparedModel
from lightir.encode.two_stage import TwoStageSearcher
from lightir.eval import DEFAULT_MEASURES
from lightir.index import Index, IndexOptions, build_index
from lightir.search import DEFAULT_OPTIONS, Searcher, SearchOptions
from lightir.search.index_evaluation import EvaluationReport, evaluate_systems, measured_depth
from lightir.vectors import QueryVectors


def evaluate_model(
    model: str | os.PathLike[str],
    dataset: Dataset | Path | str,
    work: Path | str,
    *,
    split: str = "test",
    modes: Sequence[str] | None = None,
    measures: Sequence[str] = DEFAULT_MEASURES,
    k: int | None = None,
    task: str | None = None,
    analyzer: str = "english",
    options: SearchOptions = DEFAULT_OPTIONS,
    run_dir: Path | str | None = None,
    device: str = "auto",
    threads: int = 1,
) -> EvaluationReport:
    """The measures of each mode for a model on a data set; what is encoded already is not encoded again.

    Args:
        model: a model folder, or the name of a shipped model.
        dataset: a data set, or its folder.
        work: a folder for this data set and document encoder: vectors (resumed after an interruption, and used again
            by every model whose documents are encoded alike), the query table where the model has none, the index.
        split: whose queries and judgements.
        modes: those of evaluate_index, and with FULL for "dense" the full query encoder, with FULL_SPARSE for "sparse"
            the model's own sparse query vectors. For a model with a sparse branch also LIGHT_BETA, BETA_FORMS (bags for
            documents) and DOCUMENT_FORMS. "FIRST:M:SECOND" puts the M best documents of one mode in the order of
            another: "beta:20:full-sparse" (late parametric search), "tokens:100:hybrid". None for all_modes, FULL
            where the model has a dense branch, FULL_SPARSE where it is a CSplade or a SiDR, and for a SiDR beta, light
            beta and late search.
        measures: names as ir-measures has them.
        k: see evaluate_index.
        task: the query table to use, whose instruction the full encoder takes; None for the default one.
        analyzer: of the tokens branch.
        options: options of every search but the mode, see evaluate_index; weights require named modes.
        run_dir: see evaluate_index.
        device: "auto" takes a GPU where there is one.
        threads: for searching.

    Raises:
        ContractMismatch: the work folder was begun with a model whose documents are encoded otherwise.
        InvalidInput: a mode that the model cannot serve, and what evaluate_index raises.
    """
    dataset = dataset if isinstance(dataset, Dataset) else Dataset.open(dataset)
    measured_depth(dataset, split, measures, k)  # what is wrong is said before the corpus is encoded
    contract = Contract.load(resolve_model_folder(model))
    check_modes(contract, default_modes(contract) if modes is None else modes, options)
    with model_systems(
        model, dataset, work, modes=modes, task=task, analyzer=analyzer, device=device, threads=threads
    ) as systems:
        return evaluate_systems(
            systems,
            dataset,
            split,
            measures=measures,
            k=k,
            options=options,
            run_dir=run_dir,
        )


@contextmanager
def model_systems(
    model: str | os.PathLike[str],
    dataset: Dataset,
    work: Path | str,
    *,
    modes: Sequence[str] | None = None,
    task: str | None = None,
    analyzer: str = "english",
    device: str = "auto",
    threads: int = 1,
) -> Iterator[dict[str, tuple[Searcher, str]]]:
    """Each mode's searcher, with the searcher's own name of the mode; arguments as for `evaluate_model`.

    The index in `work` is built anew and open while the context lasts.
    """
    folder = resolve_model_folder(model)
    contract = Contract.load(folder)
    chosen = default_modes(contract) if modes is None else modes
    check_modes(contract, chosen)
    prepared = PreparedModel(folder, dataset, Path(work), device)
    build_index(
        prepared.vectors(),
        prepared.work / "index",
        contract=prepared.contract,
        query_encoder=prepared.query_encoder(),
        options=IndexOptions(analyzer=analyzer),
        overwrite=True,
    )
    with ExitStack() as opened:
        index = opened.enter_context(Index.open(prepared.work / "index"))
        systems = _Systems(prepared, index, task, threads, opened)
        yield {mode: systems.of(mode) for mode in chosen}


class _Systems:
    """Makes a searcher for each mode, all checked before; an index that some modes need is built for the first."""

    def __init__(
        self, prepared: PreparedModel, index: Index, task: str | None, threads: int, opened: ExitStack
    ) -> None:
        self._prepared, self._index, self._opened = prepared, index, opened
        self._task, self._threads = task, threads
        self._light = Searcher(index, task=task, threads=threads)
        self._encoders: dict[tuple[bool, SparseForm], _Remembering] = {}

    def of(self, mode: str) -> tuple[Searcher, str]:
        """The searcher, and its own name of the mode."""
        if ":" in mode:
            return self._late(mode)
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
        searcher = Searcher(self._index, self._full(sparse=FULL_SPARSE in parts), threads=self._threads)
        return searcher, searched_mode(mode)

    def _late(self, mode: str) -> tuple[Searcher, str]:
        before, m, after = stages(mode)
        (first, first_mode), (second, second_mode) = self.of(before), self.of(after)
        late = TwoStageSearcher(
            second.index,
            second.encoder,
            first=first,
            first_mode=first_mode,
            m=m,
            task=second.task,
            threads=self._threads,
        )
        return late, second_mode

    @cached_property
    def _bags(self) -> Index:
        return self._opened.enter_context(Index.open(self._prepared.bags_index()))

    def _full(self, *, sparse: bool, form: SparseForm = "weights") -> _Remembering:
        if (sparse, form) not in self._encoders:
            found = self._prepared.full_query_encoder(self._light, self._task, sparse=sparse, form=form)
            self._encoders[sparse, form] = _Remembering(found)
        return self._encoders[sparse, form]


class _Remembering:
    """A query encoder that keeps what it gave for each batch, since several modes ask for the same queries."""

    def __init__(self, encoder: FullQueryEncoder) -> None:
        self._encoder = encoder
        self._found: dict[tuple[str, ...], QueryVectors] = {}

    @property
    def document_fingerprint(self) -> str:
        return self._encoder.document_fingerprint

    def encode(self, texts: Sequence[str], *, task: str | None = None) -> QueryVectors:
        key = tuple(texts)
        if key not in self._found:
            self._found[key] = self._encoder.encode(texts, task=task)
        return self._found[key]
