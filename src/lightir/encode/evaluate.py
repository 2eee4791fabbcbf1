"""How well a model retrieves on a data set: its corpus encoded and indexed, its queries with and without the model."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from lightir.addresses import resolve_model_folder
from lightir.analysis import BAG
from lightir.contract import Contract, require_same_documents
from lightir.data import Dataset
from lightir.encode.cache import cache_vocabulary, stored_term_weights
from lightir.encode.documents import QUERY_ENCODER, encode_corpus, length_batches
from lightir.encode.late import TwoStageSearcher
from lightir.encode.query_encoder import QueryTable, write_query_encoder
from lightir.errors import InvalidInput
from lightir.eval import DEFAULT_MEASURES
from lightir.index import Index, build_index, document_shards
from lightir.index.intake import document_term_ids
from lightir.models.devices import fast_dtype, usable_device
from lightir.models.encoder import LightRetriever
from lightir.models.framing import Batch
from lightir.query import CachedQueryEncoder
from lightir.search import Searcher
from lightir.search.evaluate import EvaluationReport, all_modes, evaluate_systems
from lightir.shards import MANIFEST, Shard, VectorsReader
from lightir.text import TextTokenizer, query_term_ids, sparse_queries
from lightir.vectors import Floats, QueryVectors, Ragged, SparseVectors

FULL = "full"
"""In a mode: the dense branch with the query through the whole model, as in "full" and "full+tokens"."""

FULL_SPARSE = "full-sparse"
"""In a mode: the sparse branch with the query through the whole model, as in "full-sparse" and "full+full-sparse"."""

BETA = "beta"
"""SiDR's beta search: queries through the model's sparse head over documents as bags of tokens, <V(q), V_BoT(d)>."""

LIGHT_BETA = "light-beta"
"""Beta search with the query encoder that needs no model."""

SparseForm = Literal["weights", "lex", "bin", "bag"]
"""A sparse vector: the strongest terms; its own terms' weights (V_lex); the strongest terms, unweighted (V_bin); its
own terms, unweighted (V_BoT). The last three are the paper's ablations (SiDR, appendix C)."""

BETA_FORMS: Mapping[str, SparseForm] = {BETA: "weights", "beta-lex": "lex", "beta-bin": "bin", "overlap": "bag"}
"""Modes that search bags of tokens, by the form of their queries."""

DOCUMENT_FORMS: Mapping[str, Literal["lex", "bin"]] = {"full-lex": "lex", "full-bin": "bin"}
"""Modes with FULL_SPARSE's queries, by the form of the documents."""

BATCH_TOKENS = 8192


class FullQueryEncoder:
    """Queries through the whole model, as its documents go: the symmetric encoder that light queries are held against.

    The sparse side is the light one, as it is in LightRetriever's comparison, or the model's own, as CSplade has it.
    """

    def __init__(
        self,
        model: LightRetriever,
        *,
        instruction: str | None = None,
        sparse: bool = False,
        form: SparseForm = "weights",
    ) -> None:
        """Wrap a model.

        Args:
            model: with a dense branch, or with a sparse one and `sparse`.
            instruction: the contract's by default.
            sparse: sparse vectors come from the model's sparse head, its strongest terms, as documents' do; not from
                counted terms.
            form: of these sparse vectors.

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
        self._form: SparseForm = form

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
                    weights = self._formed(model.sparse_from(states, batch), batch).cpu()
                    terms |= {query: _positive(row) for query, row in zip(own, weights, strict=True)}
                bar.update(len(places))
        return rows, _sparse_rows(terms, len(texts), contract.backbone.vocab_size) if self._sparse else None

    def _formed(self, weights: Tensor, batch: Batch) -> Tensor:
        """(B, V): the strongest terms, or another form."""
        if self._form in ("weights", "bin"):
            kept = self._model.kept(weights, batch, k=self._model.contract.query.top_k or None)
            return kept if self._form == "weights" else (kept > 0).float()
        own = torch.zeros_like(weights)
        rows, places = batch.own_mask.nonzero(as_tuple=True)
        own[rows, batch.input_ids[rows, places]] = 1.0
        return own if self._form == "bag" else own * weights


class _Remembering:
    """A query encoder that gives the batch it has seen again what it gave then: several modes ask the same queries."""

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
            the model's own sparse query vectors. For a model with a sparse branch also LIGHT_BETA, BETA_FORMS (bags for
            documents) and DOCUMENT_FORMS. "FIRST:M:SECOND" puts the M best documents of one mode in the order of
            another: "beta:20:full-sparse" (late parametric search), "tokens:100:hybrid". None for all_modes, FULL
            where the model has a dense branch, FULL_SPARSE where it is a CSplade or a SiDR, and for a SiDR beta, light
            beta and late search.
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
    with ExitStack() as opened:
        index = opened.enter_context(Index.open(prepared.work / "index"))
        systems = _Systems(prepared, index, task, threads, opened)
        yield {mode: systems.of(mode) for mode in (systems.default_modes() if modes is None else modes)}


class _Systems:
    """Modes become searchers; indexes that only some modes want are built when one comes."""

    def __init__(self, prepared: _Prepared, index: Index, task: str | None, threads: int, opened: ExitStack) -> None:
        self._prepared, self._index, self._opened = prepared, index, opened
        self._task, self._threads = task, threads
        self._light = Searcher(index, task=task, threads=threads)
        self._encoders: dict[tuple[bool, SparseForm], _Remembering] = {}

    def default_modes(self) -> list[str]:
        """See evaluate_model."""
        method, branches = self._prepared.contract.method, self._index.branches
        modes = [*all_modes(branches), *([FULL] if "dense" in branches else [])]
        if "dense" in branches and not self._prepared.has_light_dense:
            others = [branch for branch in ("tokens", "sparse") if branch in branches]
            modes = [*others, FULL, *([f"{FULL}+tokens"] if "tokens" in branches else [])]
        modes += [FULL_SPARSE] if method in ("csplade", "sidr") else []
        return modes + ([BETA, LIGHT_BETA, f"{BETA}:20:{FULL_SPARSE}"] if method == "sidr" else [])

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
            if (
                {"dense", "hybrid"} & set(parts)
                and self._prepared.contract.dense
                and not self._prepared.has_light_dense
            ):
                raise InvalidInput(f"mode {mode!r}: this model has no light dense queries; its dense mode is {FULL!r}")
            return self._light, mode
        searcher = Searcher(self._index, self._full(sparse=FULL_SPARSE in parts), threads=self._threads)
        return searcher, "+".join({FULL: "dense", FULL_SPARSE: "sparse"}.get(part, part) for part in parts)

    def _late(self, mode: str) -> tuple[Searcher, str]:
        parts = mode.split(":")
        if len(parts) != 3 or not parts[1].isdecimal():
            raise InvalidInput(f"mode {mode!r}: expected FIRST:M:SECOND, as in beta:20:full-sparse")
        (first, first_mode), (second, second_mode) = self.of(parts[0]), self.of(parts[2])
        late = TwoStageSearcher(
            second.index,
            second.encoder,
            first=first,
            first_mode=first_mode,
            m=int(parts[1]),
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
        place = usable_device(self._device)
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
            if self.has_light_dense or self.contract.dense is None:
                cache_vocabulary(self.model, cached, overwrite=True)
            else:
                self._write_empty_table(cached)
        return cached

    @property
    def has_light_dense(self) -> bool:
        """Whether dense queries can be looked up: not in a plain bi-encoder, nor where a query's frame is more than a
        prompt and one end."""
        contract = self.contract
        framed = bool(contract.query.suffix or contract.document.ends != 1 or contract.document.ends_hash)
        return contract.dense is not None and contract.method != "dense" and not framed

    def _write_empty_table(self, out: Path) -> None:
        """An index of dense vectors wants a table; this one is zero, and no mode reads it."""
        dense, tokenizer = self.contract.dense, self.model.backbone.tokenizer
        assert dense is not None  # the caller saw to it
        width = dense.dims[0] if dense.dims else self.contract.backbone.hidden_size
        rows = np.zeros((tokenizer.vocab_size, width), dtype=np.float32)
        table = QueryTable("", self.contract.query.instruction, rows)
        weights = stored_term_weights(self.model)
        write_query_encoder(out, self.contract, tokenizer, [table], term_weights=weights, overwrite=True)

    def bags_index(self) -> Path:
        """The corpus as bags of tokens."""
        shards = document_shards(self._dataset.corpus())
        build_index(
            shards, self.work / "bags", query_encoder=self.query_encoder(), analyzer=BAG, overwrite=True, progress=False
        )
        return self.work / "bags"

    def formed_index(self, form: Literal["lex", "bin"]) -> Path:
        """The sparse vectors of the corpus as V_lex or V_bin."""
        shards = (self._formed(shard, form) for shard in self.vectors())
        build_index(
            shards,
            self.work / form,
            contract=self.contract,
            query_encoder=self.query_encoder(),
            analyzer=None,
            overwrite=True,
            progress=False,
        )
        return self.work / form

    def _formed(self, shard: Shard, form: Literal["lex", "bin"]) -> Shard:
        assert shard.sparse is not None  # full_query_encoder refuses models without the branch
        sparse = shard.sparse
        if form == "bin":
            return Shard(shard.documents, None, sparse.with_weights(np.ones(len(sparse.term_ids), dtype=np.uint8)))
        tokenizer = TextTokenizer.from_file(self.folder / "tokenizer.json")
        own = document_term_ids(tokenizer, self.contract.document, shard.documents)
        rows, width = np.arange(len(shard.documents)), sparse.vocab_size
        kept = np.isin(
            np.repeat(rows, np.diff(sparse.indptr)) * width + sparse.term_ids,
            np.repeat(rows, own.lengths) * width + own.term_ids,
        )
        weights = np.where(kept, sparse.weights, 0).astype(np.uint8)
        return Shard(shard.documents, None, sparse.with_weights(weights).without_zeros())

    def full_query_encoder(
        self, light: Searcher, task: str | None, *, sparse: bool, form: SparseForm = "weights"
    ) -> FullQueryEncoder:
        """With the instruction of the table that the light encoder uses, so that both answer the same question."""
        encoder = light.encoder
        assert isinstance(encoder, CachedQueryEncoder)  # it is the one that the index carries
        name = next(iter(encoder.tables), None) if task is None else task
        if name is None:
            return FullQueryEncoder(self.model, sparse=sparse, form=form)
        if name not in encoder.tables:
            raise InvalidInput(f"no query table for task {name!r}; there are {list(encoder.tables)}")
        return FullQueryEncoder(self.model, instruction=encoder.tables[name].instruction, sparse=sparse, form=form)
