"""How well a model retrieves on a data set: its corpus encoded and indexed, its queries with and without the model."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from tqdm import tqdm

from lightir.addresses import resolve_model_folder
from lightir.contract import Contract, require_same_documents
from lightir.data import Dataset
from lightir.encode.cache import cache_vocabulary
from lightir.encode.documents import QUERY_ENCODER, encode_corpus, fast_dtype, length_batches
from lightir.errors import InvalidInput
from lightir.eval import DEFAULT_MEASURES
from lightir.index import Index, build_index
from lightir.models.encoder import LightRetriever
from lightir.query import CachedQueryEncoder
from lightir.search import Searcher
from lightir.search.evaluate import EvaluationReport, all_modes, evaluate_systems
from lightir.shards import MANIFEST, VectorsReader
from lightir.text import query_term_ids, sparse_queries
from lightir.vectors import Floats, QueryVectors, Ragged

FULL = "full"
"""In a mode: the dense branch with the query through the whole model, as in "full" and "full+tokens"."""

BATCH_TOKENS = 8192


class FullQueryEncoder:
    """Queries through the whole model, as its documents go: the symmetric encoder that light queries are held against.

    The sparse side is the light one, as it is in the paper's comparison.
    """

    def __init__(self, model: LightRetriever, *, instruction: str | None = None) -> None:
        """Wrap a model; the instruction is the contract's by default."""
        if model.contract.dense is None:
            raise InvalidInput("this model has no dense branch, so there is no full query encoder")
        self._model = model
        self._instruction = instruction

    @property
    def document_fingerprint(self) -> str:
        """The model's."""
        return self._model.contract.document_fingerprint

    def encode(self, texts: Sequence[str], *, task: str | None = None) -> QueryVectors:
        """The queries' vectors; one without terms gets a zero dense row. There are no tasks: an instruction is set."""
        if task is not None:
            raise InvalidInput(f"the full query encoder has no table for task {task!r}; give it the instruction")
        contract, tokenizer = self._model.contract, self._model.backbone.tokenizer
        term_ids = query_term_ids(tokenizer, contract.query, texts)
        sparse = None
        if contract.sparse is not None:
            weights = self._model.heads.term_weights
            sparse = sparse_queries(
                term_ids,
                contract.query,
                vocab_size=contract.backbone.vocab_size,
                term_weights=None if weights is None else weights.float().cpu().numpy(),
            )
        return QueryVectors(term_ids, self._dense(texts, term_ids), sparse)

    @torch.no_grad()
    def _dense(self, texts: Sequence[str], term_ids: Ragged) -> Floats:
        dense = self._model.contract.dense
        assert dense is not None  # the constructor saw to it
        width = dense.dims[0] if dense.dims else self._model.contract.backbone.hidden_size
        rows = np.zeros((len(texts), width), dtype=np.float32)
        asked = np.flatnonzero(term_ids.lengths).tolist()
        framed = self._model.frame_queries([texts[i] for i in asked], instruction=self._instruction)
        with tqdm(total=len(asked), desc="encode queries", unit="query", disable=None) as bar:
            for places in length_batches([len(ids) for ids, _, _ in framed], BATCH_TOKENS):
                batch = self._model.batch([framed[place] for place in places])
                states = self._model.dense_from(self._model.states(batch), batch)[:, :width]
                rows[[asked[place] for place in places]] = F.normalize(states.float(), dim=-1).cpu().numpy()
                bar.update(len(places))
        return rows


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
    exclude_same_id: bool = False,
    fusion: str | None = None,
    weights: Mapping[str, float] | None = None,
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
        modes: those of evaluate_index, and with FULL for "dense" the full query encoder; None for all_modes, and FULL
            where the model has a dense branch.
        measures: names as ir-measures has them.
        k: see evaluate_index.
        task: the query table to use, whose instruction the full encoder takes; None for the default one.
        analyzer: of the tokens branch.
        exclude_same_id: see evaluate_index.
        fusion: see evaluate_index.
        weights: see evaluate_index; the modes must be named.
        run_dir: see evaluate_index.
        device: "auto" takes a GPU where there is one.
        threads: for searching.

    Raises:
        ContractMismatch: the work folder was begun with a model whose documents are encoded otherwise.
        InvalidInput: a mode that the model cannot serve, and what evaluate_index raises.
    """
    dataset = dataset if isinstance(dataset, Dataset) else Dataset.open(dataset)
    prepared = _Prepared(resolve_model_folder(model), dataset, Path(work), device)
    build_index(
        prepared.vectors(),
        prepared.work / "index",
        contract=prepared.contract,
        query_encoder=prepared.query_encoder(),
        analyzer=analyzer,
        overwrite=True,
    )
    with Index.open(prepared.work / "index") as index:
        return evaluate_systems(
            _systems(prepared, index, modes, task, threads),
            dataset,
            split,
            measures=measures,
            k=k,
            exclude_same_id=exclude_same_id,
            fusion=fusion,
            weights=weights,
            run_dir=run_dir,
        )


def _systems(
    prepared: _Prepared, index: Index, modes: Sequence[str] | None, task: str | None, threads: int
) -> dict[str, tuple[Searcher, str]]:
    light = Searcher(index, task=task, threads=threads)
    if modes is None:
        modes = [*all_modes(index.branches), *([FULL] if "dense" in index.branches else [])]
    systems = {}
    for mode in modes:
        parts = mode.split("+")
        if FULL in parts:
            searcher = Searcher(index, prepared.full_query_encoder(light, task), threads=threads)
            systems[mode] = searcher, "+".join("dense" if part == FULL else part for part in parts)
        else:
            systems[mode] = light, mode
    return systems


class _Prepared:
    """A model's vectors and query encoder for one corpus; the model itself is loaded when something lacks."""

    def __init__(self, folder: Path, dataset: Dataset, work: Path, device: str) -> None:
        self.folder = folder
        self.contract = Contract.load(folder)
        self.work = work
        self._dataset = dataset
        self._device = device
        work.mkdir(parents=True, exist_ok=True)

    @cached_property
    def model(self) -> LightRetriever:
        place = ("cuda" if torch.cuda.is_available() else "cpu") if self._device == "auto" else self._device
        return LightRetriever.load(self.folder, dtype=fast_dtype(place), device=place)

    def vectors(self) -> VectorsReader:
        """The corpus, encoded; used as it is when it is whole and of the same document side."""
        out = self.work / "vectors"
        if (out / MANIFEST).is_file():
            reader = VectorsReader(out, allow_incomplete=True)
            require_same_documents(reader.contract, self.contract, names=(str(out), str(self.folder)))
            if reader.manifest.get("complete"):
                self._check_complete(reader)
                return reader
        encode_corpus(self.model, self._dataset.corpus(), out, resume=True, n_documents=len(self._dataset))
        return VectorsReader(out)

    def _check_complete(self, reader: VectorsReader) -> None:
        if len(reader) != len(self._dataset):
            raise InvalidInput(
                f"{reader.folder} holds {len(reader)} documents, but {self._dataset.name} has {len(self._dataset)}; "
                f"choose another work folder for each data set"
            )

    def query_encoder(self) -> Path:
        """The model's own query-encoder folder, or one computed in the work folder."""
        own, cached = self.folder / QUERY_ENCODER, self.work / QUERY_ENCODER
        if own.is_dir():
            return own
        if not cached.is_dir() or Contract.load(cached).fingerprint != self.contract.fingerprint:
            cache_vocabulary(self.model, cached, overwrite=True)
        return cached

    def full_query_encoder(self, light: Searcher, task: str | None) -> FullQueryEncoder:
        """With the instruction of the table that the light encoder uses, so that both answer the same question."""
        encoder = light.encoder
        assert isinstance(encoder, CachedQueryEncoder)  # it is the one that the index carries
        name = next(iter(encoder.tables), None) if task is None else task
        if name is None:
            return FullQueryEncoder(self.model)
        if name not in encoder.tables:
            raise InvalidInput(f"no query table for task {name!r}; there are {list(encoder.tables)}")
        return FullQueryEncoder(self.model, instruction=encoder.tables[name].instruction)
