"""Searchers of an index whose queries go through the index's model, which they keep loaded: beta, full, late search."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from lightir.encode.full_queries import FullQueryEncoder
from lightir.encode.rerankers import RerankMethod, second_stage
from lightir.encode.torch_models import torch_model
from lightir.errors import InvalidInput
from lightir.index import Index
from lightir.pending import Demand
from lightir.pending.encoder_folder import encoder_folder
from lightir.query.cached_encoder import describe_tables
from lightir.query.fallback import EncodeTexts
from lightir.runtime.encode_options import EncodeOptions
from lightir.runtime.model_encoder import ModelEncoder, encoder_for
from lightir.search import LateOptions, LateSearcher, OwnStage, Searcher
from lightir.vectors import Floats


@dataclass(frozen=True, slots=True)
class ModelSearchOptions:
    """Options of loading the models of a search.

    Attributes:
        encoding: dtype, device, quantization and batches of the models.
        task: name of the index's query table whose instruction the queries get; None for the contract's instruction.
        threads: maximum number of threads per search.
        demand: counts pending documents that rank high, see `Searcher`; None to count none.
    """

    encoding: EncodeOptions | None = None
    task: str | None = None
    threads: int = 1
    demand: Demand | None = None


def model_searcher(
    index: Index, model: str | os.PathLike[str] | None = None, *, options: ModelSearchOptions | None = None
) -> Searcher:
    """Return a searcher of an index whose queries go through the index's model, for the modes beta and full.

    Args:
        index: opened index with a model's contract.
        model: model folder or name of a shipped model; None for the installed model that fits the index.
        options: how the model is loaded.

    Raises:
        NotFound: there is no such model, or no model is named and no installed one fits.
        ContractMismatch: the model does not fit the index; each differing field with both values.
        InvalidInput: the index has no contract, or no table for the task.
    """
    options = options or ModelSearchOptions()
    return _searcher(index, encoder_for(index, model, options.encoding), options)


def late_searcher(
    index: Index,
    model: str | os.PathLike[str] | None = None,
    *,
    late: LateOptions | None = None,
    options: ModelSearchOptions | None = None,
) -> LateSearcher:
    """Return SiDR's late search of an index; the model stays loaded.

    The first stage is beta search over bags of tokens, otherwise BM25. The second stage orders its m best documents by
    <V(q), V(d)> under the index's model, whose vectors it stores in the index.

    Args:
        index: opened index with a model's contract.
        model: model folder or name of a shipped model; None for the installed model that fits the index.
        late: number of documents, and the time limit; None for the defaults.
        options: how the model is loaded.

    Raises:
        NotFound, ContractMismatch, InvalidInput: as `model_searcher`.
    """
    options = options or ModelSearchOptions()
    encoder = encoder_for(index, model, options.encoding)
    searcher = _searcher(index, encoder, options)
    return LateSearcher(searcher, OwnStage(searcher, encoder), late)


def reranking_searcher(
    searcher: Searcher,
    reranker: str | os.PathLike[str],
    method: RerankMethod | None = None,
    *,
    late: LateOptions | None = None,
    encoding: EncodeOptions | None = None,
) -> LateSearcher:
    """Return a search whose m best hits a model orders; the searcher's mode finds them.

    Args:
        searcher: searcher of the first stage, in any mode; its default is the index's.
        reranker: cross-encoder, language model, or bi-encoder.
        method: how the reranker orders documents; None decides by its files, see `rerank_method`.
        late: number of documents, and the time limit; None for the defaults.
        encoding: dtype, device and batches of the reranker.

    Raises:
        NotFound, FormatError, InvalidInput: as `second_stage`.
    """
    second = second_stage(searcher, reranker, method, encoding)
    return LateSearcher(searcher, second, late, first_mode=searcher.default_mode)


def model_fallback(
    index: Index, model: str | os.PathLike[str] | None = None, *, options: ModelSearchOptions | None = None
) -> EncodeTexts:
    """Return a function that encodes queries by the index's model, which is loaded when it is first called.

    Args:
        index: opened index with a model's contract.
        model: model folder or name of a shipped model; None for the installed model that fits the index.
        options: how the model is loaded.

    Raises:
        NotFound, ContractMismatch, InvalidInput: as `model_searcher`, here and not at the first call.
    """
    chosen = options or ModelSearchOptions()
    folder, instruction = encoder_folder(index, model), _instruction(index, chosen.task)
    loading, loaded = threading.Lock(), list[FullQueryEncoder]()

    def encode(texts: Sequence[str]) -> Floats:
        with loading:
            if not loaded:
                encoding = chosen.encoding or EncodeOptions()
                loaded.append(FullQueryEncoder.load(folder, instruction=instruction, sparse=False, options=encoding))
            dense = loaded[0].encode(texts).dense
        assert dense is not None
        return dense

    return encode


def _searcher(index: Index, encoder: ModelEncoder, options: ModelSearchOptions) -> Searcher:
    queries = FullQueryEncoder.of(torch_model(encoder), instruction=_instruction(index, options.task))
    return Searcher(index, queries, threads=options.threads, demand=options.demand)


def _instruction(index: Index, task: str | None) -> str | None:
    """Return the instruction of one of the index's query tables; None without a task."""
    if task is None:
        return None
    encoder = index.query_encoder()
    tables = {} if encoder is None else encoder.tables
    if task not in tables:
        raise InvalidInput(f"no query table for task {task!r}; {describe_tables(tables)}")
    return tables[task].instruction
