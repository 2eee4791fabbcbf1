"""A sparse head with an encoder of its own, run by ONNX Runtime: the terms of documents without torch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from lightir.contract import SparseHead
from lightir.runtime.bert_files import BertFiles, MaskedHead
from lightir.runtime.bert_graph import FEATURES, bert_graph
from lightir.runtime.frames import Framed
from lightir.runtime.onnx_session import OnnxSession
from lightir.vectors import Floats, SparseVectors

TILE_BYTES = 2 << 20
"""Size of a tile of logits, which fits the second-level cache of a core."""


class OnnxSparseHead:
    """An encoder of the BERT family with its masked-LM head, which weights the vocabulary's terms for a text (Eq. 8).

    The twin of `lightir.models.encoder.LightRetriever` for such heads; tests compare both.
    """

    def __init__(self, files: BertFiles, head: MaskedHead, settings: SparseHead, *, int8: bool = False) -> None:
        """Build the graph and start a session.

        Args:
            files: settings and weights of the encoder.
            head: its masked-LM head.
            settings: number of terms, quantizer and so on.
            int8: whether the layers multiply 8-bit integers, see `bert_graph`.
        """
        self._head, self._settings = head, settings
        self._session = OnnxSession(bert_graph(files, int8=int8, head=head), FEATURES, padding=files.eos_id)

    def encode(self, framed: Sequence[Framed]) -> SparseVectors:
        """Return the stored impacts of framed documents; a document without text has none."""
        features = self._session.run([ids for ids, _, _ in framed])
        rows = [states[start:stop] for states, (_, start, stop) in zip(features, framed, strict=True)]
        weights = self._weights(largest_logits(rows, self._head.projection, self._head.bias))
        own = [ids[start:stop] for ids, start, stop in framed]
        kept = strongest(weights, self._settings.top_k, own=own if self._settings.own_terms else None)
        impacts = self._settings.quantize(kept)
        at, term_ids = np.nonzero(impacts)
        indptr = np.searchsorted(at, np.arange(len(impacts) + 1)).astype(np.int64)
        return SparseVectors(indptr, term_ids.astype(np.uint32), impacts[at, term_ids], impacts.shape[1])

    def _weights(self, maxima: Floats) -> Floats:
        maxima[:, : self._settings.first_term] = -np.inf
        if self._settings.activation == "log1p_relu":
            weights: Floats = np.log1p(np.maximum(maxima, 0.0))
            return weights
        return np.where(maxima > 0, maxima + 1, np.exp(np.minimum(maxima, 0.0)))


def largest_logits(rows: Sequence[Floats], projection: Floats, bias: Floats) -> Floats:
    """Return each term's largest logit over the positions of each text, in tiles that stay in the cache.

    Args:
        rows: features of the positions of each of B texts, (n, H) float32 each.
        projection: (V, H) float32 row of each term.
        bias: (V,) float32 bias of each term.

    Returns:
        (B, V) float32; -inf for a text without positions.
    """
    maxima = np.full((len(rows), len(projection)), -np.inf, dtype=np.float32)
    filled = [row for row, features in enumerate(rows) if len(features)]
    if not filled:
        return maxima
    features = np.concatenate([rows[row] for row in filled]).T
    starts = np.cumsum([0, *(len(rows[row]) for row in filled[:-1])])
    step = max(64, TILE_BYTES // (4 * features.shape[1]))
    for first in range(0, len(projection), step):
        logits = projection[first : first + step] @ features
        maxima[filled, first : first + step] = np.maximum.reduceat(logits, starts, axis=1).T
    return maxima + bias


def strongest(weights: Floats, k: int, *, own: Sequence[Sequence[int]] | None = None) -> Floats:
    """Return weights in which all but each row's k largest are 0; k = 0 keeps all.

    Args:
        weights: (B, V) float32.
        k: number of weights to keep.
        own: term ids that each row keeps too; None for none.
    """
    if k == 0 or k >= weights.shape[1]:
        return weights
    keeps: npt.NDArray[np.bool_] = np.zeros(weights.shape, dtype=np.bool_)
    np.put_along_axis(keeps, np.argpartition(weights, -k, axis=1)[:, -k:], True, axis=1)
    for row, term_ids in enumerate(own or ()):
        keeps[row, term_ids] = True
    return np.where(keeps, weights, np.float32(0))
