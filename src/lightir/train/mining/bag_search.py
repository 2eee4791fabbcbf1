"""Exact beta search over bags of tokens in memory, by the kernel or as a sparse product on the model's device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from lightir import kernel
from lightir.index.intake import bag_term_ids
from lightir.models.encoder import LightRetriever
from lightir.types import Document
from lightir.vectors import Ragged, SparseVectors, row_starts

BagRankings = tuple[npt.NDArray[np.int64], npt.NDArray[np.uint32], npt.NDArray[np.float32]]
"""indptr (n + 1,), and the concatenated documents and scores of all queries, best first."""

TILE_BYTES = 256 << 20
"""Maximum size of the scores and sort keys in memory, for all queries together."""


class BagSearch(Protocol):
    """Search of in-training retrieval."""

    def top(self, weights: Tensor, *, k: int) -> BagRankings:
        """Return each query's k best documents by <V_θ(q), V_BoT(d)>: score down, then position in the corpus up.

        Args:
            weights: (n, V) query weights >= 0.
            k: maximum number of documents; documents without a weighted term are never returned.
        """


def training_bags(documents: Sequence[Document], retriever: LightRetriever) -> Ragged:
    """Return the term ids of which documents' bags are made in training, with repetitions.

    They are those of an index (`lightir.index.intake.bag_term_ids`). If the contract has no bag_tokens, they end where
    the model's input ends.
    """
    policy = retriever.contract.document
    if policy.bag_tokens:
        return bag_term_ids(retriever.backbone.tokenizer, policy, documents)
    return Ragged.from_lists([ids[begin:end] for ids, begin, end in retriever.frame_documents(documents)])


def corpus_bags(documents: Sequence[Document], retriever: LightRetriever) -> SparseVectors:
    """Return V_BoT of each document, see `training_bags`: weights are uint8 ones."""
    pieces = [training_bags(documents[start : start + 1024], retriever) for start in range(0, len(documents), 1024)]
    term_ids = np.concatenate([np.zeros(0, np.uint32), *(piece.term_ids for piece in pieces)])
    lengths = np.concatenate([np.zeros(0, np.int64), *(piece.lengths for piece in pieces)])
    bags = SparseVectors.count(Ragged(term_ids, row_starts(lengths)), vocab_size=retriever.backbone.vocab_size)
    return bags.with_weights(np.ones(len(bags.term_ids), dtype=np.uint8))


class KernelSearch:
    """Search of inverted bags by the kernel, which reads only the postings of a query's terms."""

    def __init__(self, bags: SparseVectors) -> None:
        """Invert the bags."""
        assert bags.weights.dtype == np.uint8  # corpus_bags
        self._postings = kernel.invert(
            bags.indptr, bags.term_ids, bags.weights, vocab_size=bags.vocab_size, n_docs=len(bags)
        )

    def top(self, weights: Tensor, *, k: int) -> BagRankings:
        """Return each query's k best documents, see `BagSearch.top`."""
        values = weights.float().cpu().numpy()
        rows, term_ids = np.nonzero(values)
        indptr = np.searchsorted(rows, np.arange(len(values) + 1)).astype(np.int64)
        return self.top_of(
            SparseVectors(indptr, term_ids.astype(np.uint32), values[rows, term_ids], values.shape[1]), k=k
        )

    def top_of(self, queries: SparseVectors, *, k: int) -> BagRankings:
        """Return the k best documents of queries in sparse rows."""
        weights = queries.weights.astype(np.float32)
        return kernel.sparse_top_k_batch(self._postings, queries.indptr, queries.term_ids, weights, k=k)


class DeviceSearch:
    """Search by multiplying a binary CSR matrix of bags with the queries' weights, V_BoT(D) · V_θ(q), tile by tile.

    Scores equal the kernel's to the bit: a document's terms are summed in fp32 in their order. The whole corpus is read
    once for each batch of queries, at which a GPU is fast.
    """

    def __init__(self, bags: SparseVectors, device: torch.device, *, tile_bytes: int = TILE_BYTES) -> None:
        """Copy the bags to the device: 4 bytes per posting and 8 per document."""
        self._indptr = torch.from_numpy(bags.indptr).to(device)
        self._term_ids = torch.from_numpy(bags.term_ids.astype(np.int32)).to(device)
        self._bounds = bags.indptr
        self._tile_bytes = tile_bytes

    def top(self, weights: Tensor, *, k: int) -> BagRankings:
        """Return each query's k best documents, see `BagSearch.top`."""
        columns = weights.float().T.contiguous()  # a term's weights are read together
        best = torch.zeros(len(weights), 0, dtype=torch.int64, device=columns.device)
        tile = max(self._tile_bytes // (16 * max(len(weights), 1)), 1)
        for begin in range(0, len(self._bounds) - 1, tile):
            scores = self._scores(columns, begin, min(begin + tile, len(self._bounds) - 1))
            keys = torch.cat([best, _sort_keys(scores, begin)], dim=1)
            best = keys.topk(min(k, keys.shape[1]), dim=1).values
        return _read_keys(best)

    def _scores(self, columns: Tensor, begin: int, end: int) -> Tensor:
        """Return (n, end - begin) float32 scores."""
        first, last = int(self._bounds[begin]), int(self._bounds[end])
        offsets = (self._indptr[begin : end + 1] - first).to(torch.int32)
        products: Tensor = F.embedding_bag(
            self._term_ids[first:last], columns, offsets, mode="sum", include_last_offset=True
        )
        return products.T


def _sort_keys(scores: Tensor, begin: int) -> Tensor:
    """Return int64 keys that order by score down, then document up; scores are >= 0, so their bits have their order."""
    doc_ords = torch.arange(begin, begin + scores.shape[1], device=scores.device)
    return scores.contiguous().view(torch.int32).to(torch.int64) << 32 | 0xFFFFFFFF - doc_ords


def _read_keys(keys: Tensor) -> BagRankings:
    """Return the ranking that sorted keys encode, without scores of 0."""
    encoded = keys.cpu().numpy()
    bits = (encoded >> 32).astype(np.int32)
    listed = bits > 0
    doc_ords = (0xFFFFFFFF - (encoded[listed] & 0xFFFFFFFF)).astype(np.uint32)
    indptr = np.concatenate([[0], np.cumsum(listed.sum(axis=1))]).astype(np.int64)
    return indptr, doc_ords, bits[listed].view(np.float32)
