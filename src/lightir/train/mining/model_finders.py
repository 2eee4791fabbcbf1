"""Models that find the documents which hard negatives are chosen from: in any mode, or over bags of tokens."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from lightir.data import Dataset
from lightir.encode.full_queries import FullQueryEncoder
from lightir.encode.model_evaluation import SystemOptions, model_systems
from lightir.errors import InvalidInput
from lightir.models.encoder import LightRetriever
from lightir.search import SearchOptions
from lightir.train.mining.bag_search import KernelSearch, corpus_bags
from lightir.train.mining.finders import Finder, IndexFinder
from lightir.types import Document, Query, Ranking, Run

BAG_OF_TOKENS = "bag-of-tokens"
"""The mode in which queries go through the model's sparse head and documents are the bags of their tokens (SiDR)."""


class BagFinder:
    """Queries weighted by a model against documents as bags of tokens: no document is encoded."""

    def __init__(self, model: LightRetriever, documents: Sequence[Document]) -> None:
        """Tokenise the corpus once; the model needs a sparse head."""
        by_id = {document.doc_id: document for document in documents}
        self._encoder = FullQueryEncoder(model, sparse=True)
        self._doc_ids = sorted(by_id)
        self._bags = KernelSearch(corpus_bags([by_id[doc_id] for doc_id in self._doc_ids], model))

    def find(self, queries: Sequence[Query], k: int) -> Run:
        """Each query's k best documents by <V_θ(q), V_BoT(d)>; those without a common term are not among them."""
        sparse = self._encoder.encode([query.text for query in queries]).sparse
        assert sparse is not None  # a model without a sparse head was refused
        found, doc_ords, scores = self._bags.top_of(sparse, k=k)
        return {
            query.query_id: Ranking(
                query.query_id,
                [self._doc_ids[doc_ord] for doc_ord in doc_ords[begin:end]],
                np.asarray(scores[begin:end], dtype=np.float64),
            )
            for query, (begin, end) in zip(queries, itertools.pairwise(found), strict=True)
        }

    def score(self, query: Query, doc_id: str) -> float:
        """Found by looking at all documents; 0 without a common term."""
        ranking = self.find([query], len(self._doc_ids))[query.query_id]
        return next((float(s) for d, s in zip(ranking.doc_ids, ranking.scores, strict=True) if d == doc_id), 0.0)


@contextmanager
def model_finder(
    model: str | os.PathLike[str],
    dataset: Dataset,
    work: Path | str,
    *,
    mode: str = "hybrid",
    task: str | None = None,
    analyzer: str = "english",
    device: str = "auto",
    threads: int = 1,
) -> Iterator[Finder]:
    """A model over a data set's corpus: a shipped one, or what an earlier training run left.

    Args:
        model: a model folder, or a shipped model's name.
        dataset: whose corpus is encoded, into `work`, where it is found again.
        work: as evaluate_model has it.
        mode: that of evaluate_model, or BAG_OF_TOKENS, which encodes no document.
        task: the query table to use.
        analyzer: of the tokens branch.
        device: "auto" takes a GPU where there is one.
        threads: for searching.

    Raises:
        InvalidInput: a mode that the model cannot serve.
    """
    if mode == BAG_OF_TOKENS:
        if task is not None:
            raise InvalidInput(f"mode {BAG_OF_TOKENS} has no query tables to choose task {task!r} from")
        loaded = LightRetriever.load(os.fspath(model), device=device).eval()
        yield BagFinder(loaded, list(dataset.corpus()))
        return
    options = SystemOptions([mode], task, analyzer, device, threads)
    with model_systems(model, dataset, work, options) as systems:
        searcher, searched = systems[mode]
        yield IndexFinder(searcher, SearchOptions(mode=searched))
