"""How well a model retrieves on a data set: its corpus encoded and indexed, its queries with and without the model."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
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
from lightir.models.heads import top_k_weights
from lightir.query import CachedQueryEncoder
from lightir.search import Searcher
from lightir.search.evaluate import EvaluationReport, all_modes, evaluate_systems
from lightir.shards import MANIFEST, VectorsReader
from lightir.text import query_term_ids, sparse_queries
from lightir.vectors import Floats, QueryVectors, Ragged, SparseVectors

FULL = "full"
"""In a mode: the dense branch with the query through the whole model, as in "full" and "full+tokens"."""

FULL_SPARSE = "full-sparse"
"""In a mode: the sparse branch with the query through the whole model, as in "full-sparse" and "full+full-sparse"."""

BATCH_TOKENS = 8192


class FullQueryEncoder:
    """Queries through the whole model, as its documents go: the symmetric encoder that light queries are held against.

    The sparse side is the light one, as it is in LightRetriever's comparison, or the model's own, as CSplade has it.
    """

    def __init__(self, model: LightRetriever, *, instruction: str | None = None, sparse: bool = False) -> None:
        """Wrap a model.

        Args:
            model: with a dense branch, or with a sparse one and `sparse`.
            instruction: the contract's by default.
            sparse: sparse vectors come from the model's sparse head, its strongest terms, as documents' do; not from
                counted terms.

        Raises:
            InvalidInput: the model lacks the branch.
        """
        if model.contract.dense is None and not sparse:
            raise InvalidInput("this model has no dense branch, so there is no full query encoder")
        if model.contract.sparse is None and sparse:
            raise InvalidInput("this model has no sparse branch, so it gives queries no sparse vectors")
        self._model = model
        self._instruction = instruction
        self._sparse = sparse

    @property
    def document_fingerprint(self) -> str:
        """The model's."""
        return self._model.contract.document_fingerprint

    def encode(self, texts: Sequence[str], *, task: str | None = None) -> QueryVectors:
        """The queries' vectors; one without terms gets zeros. There are no tasks: an instruction is set."""
        if task is not None:
            raise InvalidInput(f"the full query encoder has no table for task {task!r}; give it the instruction")
        contract, tokenizer = self._model.contract, self._model.backbone.tokenizer
        term_ids = query_term_ids(tokenizer, contract.query, texts)
        dense, sparse = self._encode(texts, term_ids)
        if contract.sparse is not None and not self._sparse:
            weights = self._model.heads.term_weights
            sparse = sparse_queries(
                term_ids,
                contract.query,
                vocab_size=contract.backbone.vocab_size,
                term_weights=None if weights is None else weights.float().cpu().numpy(),
            )
        return QueryVectors(term_ids, dense, sparse)

    @torch.no_grad()
    def _encode(self, texts: Sequence[str], term_ids: Ragged) -> tuple[Floats | None, SparseVectors | None]:
        """What goes through the model: dense rows where it has them, sparse ones where they are wanted of it."""
        model, contract = self._model, self._model.contract
        rows = None
        if contract.dense is not None:
            width = contract.dense.dims[0] if contract.dense.dims else contract.backbone.hidden_size
            rows = np.zeros((len(texts), width), dtype=np.float32)
        terms: dict[int, tuple[Tensor, Tensor]] = {}
        asked = np.flatnonzero(term_ids.lengths).tolist()
        framed = model.frame_queries([texts[i] for i in asked], instruction=self._instruction)
        with tqdm(total=len(asked), desc="encode queries", unit="query", disable=None) as bar:
            for places in length_batches([len(ids) for ids, _, _ in framed], BATCH_TOKENS):
                batch = model.batch([framed[place] for place in places])
                states, own = model.states(batch), [asked[place] for place in places]
                if rows is not None:
                    dense = model.dense_from(states, batch)[:, : rows.shape[1]]
                    rows[own] = F.normalize(dense.float(), dim=-1).cpu().numpy()
                if self._sparse and contract.sparse is not None:
                    weights = top_k_weights(model.sparse_from(states, batch), contract.sparse.top_k).cpu()
                    terms |= {query: _positive(row) for query, row in zip(own, weights, strict=True)}
                bar.update(len(places))
        return rows, _sparse_rows(terms, len(texts), contract.backbone.vocab_size) if self._sparse else None


def _positive(weights: Tensor) -> tuple[Tensor, Tensor]:
    """Ids of the terms above zero, ascending, and their weights."""
    ids = weights.nonzero()[:, 0]
    return ids, weights[ids]


def _sparse_rows(terms: dict[int, tuple[Tensor, Tensor]], n: int, vocab_size: int) -> SparseVectors:
    """n rows, those that `terms` lacks empty."""
    none = torch.zeros(0, dtype=torch.int64), torch.zeros(0)
    rows = [terms.get(query, none) for query in range(n)]
    indptr = np.cumsum([0, *(len(ids) for ids, _ in rows)], dtype=np.int64)
    ids = np.concatenate([np.zeros(0, np.uint32), *(ids.numpy().astype(np.uint32) for ids, _ in rows)])
    weights = np.concatenate([np.zeros(0, np.float32), *(row.float().numpy() for _, row in rows)])
    return SparseVectors(indptr, ids, weights, vocab_size)


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
        modes: those of evaluate_index, and with FULL for "dense" the full query encoder, with FULL_SPARSE for "sparse"
            the model's own sparse query vectors; None for all_modes, FULL where the model has a dense branch, and
            FULL_SPARSE where it is a CSplade.
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
    with model_systems(
        model, dataset, work, modes=modes, task=task, analyzer=analyzer, device=device, threads=threads
    ) as systems:
        return evaluate_systems(
            systems,
            dataset,
            split,
            measures=measures,
            k=k,
            exclude_same_id=exclude_same_id,
            fusion=fusion,
            weights=weights,
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
        yield _systems(prepared, index, modes, task, threads)


def _systems(
    prepared: _Prepared, index: Index, modes: Sequence[str] | None, task: str | None, threads: int
) -> dict[str, tuple[Searcher, str]]:
    light = Searcher(index, task=task, threads=threads)
    if modes is None:
        modes = [*all_modes(index.branches), *([FULL] if "dense" in index.branches else [])]
        modes += [FULL_SPARSE] if prepared.contract.method == "csplade" else []
    systems = {}
    for mode in modes:
        parts = mode.split("+")
        if FULL in parts or FULL_SPARSE in parts:
            encoder = prepared.full_query_encoder(light, task, sparse=FULL_SPARSE in parts)
            searcher = Searcher(index, encoder, threads=threads)
            systems[mode] = searcher, "+".join({FULL: "dense", FULL_SPARSE: "sparse"}.get(part, part) for part in parts)
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

    def full_query_encoder(self, light: Searcher, task: str | None, *, sparse: bool) -> FullQueryEncoder:
        """With the instruction of the table that the light encoder uses, so that both answer the same question."""
        encoder = light.encoder
        assert isinstance(encoder, CachedQueryEncoder)  # it is the one that the index carries
        name = next(iter(encoder.tables), None) if task is None else task
        if name is None:
            return FullQueryEncoder(self.model, sparse=sparse)
        if name not in encoder.tables:
            raise InvalidInput(f"no query table for task {name!r}; there are {list(encoder.tables)}")
        return FullQueryEncoder(self.model, instruction=encoder.tables[name].instruction, sparse=sparse)
