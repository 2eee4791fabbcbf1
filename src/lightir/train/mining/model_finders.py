"""Searches by a model whose results hard negatives are chosen from: in any mode, or over bags of tokens."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from lightir.data import Dataset
from lightir.encode.full_queries import FullQueryEncoder
from lightir.encode.model_evaluation import DEFAULT_SYSTEMS, SystemOptions, model_systems
from lightir.errors import InvalidInput
from lightir.models.encoder import LightRetriever
from lightir.search import SearchOptions
from lightir.train.mining.bag_search import KernelSearch, corpus_bags
from lightir.train.mining.finders import Finder, IndexFinder
from lightir.types import Document, Query, Ranking, Run

BAG_OF_TOKENS = "bag-of-tokens"
"""Mode in which the model's sparse head encodes queries and documents are bags of tokens (SiDR)."""


class BagFinder:
    """Search of bags of tokens by queries that a model encodes; no document is encoded."""

    def __init__(self, model: LightRetriever, documents: Sequence[Document]) -> None:
        """Tokenize the corpus; the model needs a sparse head."""
        by_id = {document.doc_id: document for document in documents}
        self._encoder = FullQueryEncoder(model, sparse=True)
        self._doc_ids = sorted(by_id)
        self._bags = KernelSearch(corpus_bags([by_id[doc_id] for doc_id in self._doc_ids], model))

    def find(self, queries: Sequence[Query], k: int) -> Run:
        """Return each query's k best documents by <V_θ(q), V_BoT(d)>, without documents that share no term."""
        sparse = self._encoder.encode([query.text for query in queries]).sparse
        assert sparse is not None  # a model without a sparse head was refused
        bounds, doc_ords, scores = self._bags.top_of(sparse, k=k)
        return {
            query.query_id: Ranking(
                query.query_id,
                [self._doc_ids[doc_ord] for doc_ord in doc_ords[begin:end]],
                np.asarray(scores[begin:end], dtype=np.float64),
            )
            for query, (begin, end) in zip(queries, itertools.pairwise(bounds), strict=True)
        }

    def score(self, query: Query, doc_id: str) -> float:
        """Return the score, computed by ranking all documents; 0 without a common term."""
        ranking = self.find([query], len(self._doc_ids))[query.query_id]
        return next((float(s) for d, s in zip(ranking.doc_ids, ranking.scores, strict=True) if d == doc_id), 0.0)


@contextmanager
def model_finder(
    model: str | os.PathLike[str],
    dataset: Dataset,
    work: Path | str,
    *,
    mode: str = "hybrid",
    options: SystemOptions = DEFAULT_SYSTEMS,
) -> Iterator[Finder]:
    """Search a data set's corpus with a model, by name or from an earlier training run.

    Args:
        model: model folder, or a shipped model's name.
        dataset: data set with the corpus to encode.
        work: folder that keeps vectors and index for another call.
        mode: mode of `evaluate_model`, or BAG_OF_TOKENS, which encodes no document.
        options: query table, analyzer, device and threads; its modes are not used.

    Raises:
        InvalidInput: a mode that the model does not support.
    """
    if mode == BAG_OF_TOKENS:
        if options.task is not None:
            raise InvalidInput(f"mode {BAG_OF_TOKENS} has no query tables to choose task {options.task!r} from")
        loaded = LightRetriever.load(os.fspath(model), device=options.device).eval()
        yield BagFinder(loaded, list(dataset.corpus()))
        return
    with model_systems(model, dataset, work, dataclasses.replace(options, modes=[mode])) as systems:
        searcher, searched = systems[mode]
        yield IndexFinder(searcher, SearchOptions(mode=searched))
