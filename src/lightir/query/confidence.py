"""Confidence of a query table: the share of the model's ten best documents that it is expected to find for a query.

It is a linear function of numbers that need no model: how often the query's terms were seen in the fit, and how the
rows of its terms agree. `lightir distill` fits it to held-out queries and stores it beside the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lightir.errors import FormatError, InvalidInput
from lightir.files import read_json
from lightir.kernel import mean_rows
from lightir.query.cached_encoder import CachedQueryEncoder
from lightir.query.encoder_files import map_safetensors
from lightir.query.tables import CachedTable
from lightir.vectors import Floats, Ragged

CONFIDENCE_FILE, STATISTICS_FILE = "confidence.json", "confidence.safetensors"
CONFIDENCE_VERSION = 1
RARE = 5
FEATURES = ("mean_seen", "least_seen", "rare_share", "agreement", "length", "loudest", "terms")
"""Features of a query, see `features`."""


def features(queries: Ragged, means: Floats, norms: Floats, seen: Floats) -> Floats:
    """Return the features of queries, (n, len(FEATURES)) float32; zeros for a query without terms.

    mean_seen and least_seen are of log(1 + occurrences in the fit); rare_share is the share of terms with fewer than
    RARE occurrences; agreement is the length of the mean row divided by the rows' mean length; length is that of the
    mean row; loudest is the share of the longest row in the sum of lengths; terms is log(1 + number of terms).

    Args:
        queries: term ids of n queries.
        means: (n, dim) float32 means of their rows, not normalized.
        norms: (V,) float32 lengths of the table's rows.
        seen: (V,) float32 occurrences of the terms in the fit.
    """
    out = np.zeros((len(queries), len(FEATURES)), dtype=np.float32)
    lengths = np.linalg.norm(means, axis=1)
    for row in range(len(queries)):
        if not len(terms := queries.row(row)):
            continue
        logs, sizes = np.log1p(seen[terms]), norms[terms]
        total = max(float(sizes.sum()), 1e-12)
        rare = float((seen[terms] < RARE).mean())
        agreement = lengths[row] * len(terms) / total
        out[row] = logs.mean(), logs.min(), rare, agreement, lengths[row], sizes.max() / total, np.log1p(len(terms))
    return out


def term_means(table: CachedTable, queries: Ragged) -> Floats:
    """Return the mean row of each query's terms, (n, dim) float32, without pairs, gate and normalization."""
    rows, scales = table.embeddings, table.scales
    return mean_rows(rows, queries.term_ids, queries.indptr, normalize=False, scales=scales)


@dataclass(frozen=True, slots=True)
class Confidence:
    """A linear function of the features of a query.

    Attributes:
        weights: (len(FEATURES),) float32 weights; 0 for features that are not used.
        bias: value for features that are all 0.
        seen: (V,) float32 occurrences of the terms in the fit.
        norms: (V,) float32 lengths of the table's rows.
    """

    weights: Floats
    bias: float
    seen: Floats
    norms: Floats

    @classmethod
    def load(cls, folder: Path) -> Confidence | None:
        """Read the confidence in a query-encoder folder; None if it has none.

        Raises:
            FormatError: another version, or damaged files.
        """
        path = folder / CONFIDENCE_FILE
        if not path.is_file():
            return None
        content, tensors = read_json(path), map_safetensors(folder / STATISTICS_FILE)
        try:
            if content["format_version"] != CONFIDENCE_VERSION:
                raise FormatError(
                    f"{path} has version {content['format_version']!r}; this release reads {CONFIDENCE_VERSION}"
                )
            weights = np.array([float(content["weights"].get(name, 0.0)) for name in FEATURES], dtype=np.float32)
            return cls(weights, float(content["bias"]), tensors["seen"], tensors["norms"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FormatError(f"{path}: {error!r}; expected format_version, weights and bias") from error

    def of_features(self, values: Floats) -> Floats:
        """Return the confidences of queries with the given features, (n,) float32 from 0 to 1."""
        return np.asarray(np.clip(values @ self.weights + np.float32(self.bias), 0, 1), dtype=np.float32)

    def of_queries(self, encoder: CachedQueryEncoder, queries: Ragged, *, task: str | None = None) -> Floats:
        """Return the confidences of queries, (n,) float32 from 0 to 1; 0 for a query without terms.

        Args:
            encoder: query encoder that the confidence was fitted to.
            queries: term ids of n queries.
            task: name of the encoder's table; None for the default.
        """
        table = next(iter(encoder.tables.values())) if task is None else encoder.tables[task]
        if len(table.embeddings) != len(self.seen):
            raise InvalidInput(f"the confidence has {len(self.seen)} terms, but the table {len(table.embeddings)}")
        values = features(queries, term_means(table, queries), self.norms, self.seen)
        return np.where(queries.lengths > 0, self.of_features(values), np.float32(0))


def to_json(confidence: Confidence) -> dict[str, object]:
    """Return the content of CONFIDENCE_FILE."""
    weights: Sequence[float] = confidence.weights.tolist()
    named = {name: weight for name, weight in zip(FEATURES, weights, strict=True) if weight}
    return {"format_version": CONFIDENCE_VERSION, "weights": named, "bias": confidence.bias}
