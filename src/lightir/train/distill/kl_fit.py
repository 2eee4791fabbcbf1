"""Fit of a query table to a frozen encoder: ridge regression, then KL to the teacher's ranking."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from lightir.errors import InvalidInput
from lightir.models.devices import fast_dtype
from lightir.progress import followed
from lightir.query import CachedGate
from lightir.train.distill.fit_config import FitConfig
from lightir.train.distill.fitted_rows import FittedRows, gate_weights
from lightir.train.distill.table_fit import require_rows, ridge_table, select_rows
from lightir.vectors import Floats, Ragged

GATE_SPREAD = 0.3
"""Standard deviation of a new gate's values. Its keys start at 0, so that all rows weigh the same."""


def kl_table(
    start: FittedRows,
    queries: Ragged,
    targets: Floats,
    documents: npt.NDArray[np.float16] | Floats,
    config: FitConfig,
    *,
    positives: Ragged | None = None,
) -> FittedRows:
    """Train the table by `config.steps` steps of KL(teacher || table) over the documents.

    `config.cosine` adds the distance to the teacher's vector, and labels add InfoNCE. The gate that the start has, or
    a new one of `config.gate` columns, is trained with the rows.

    Adam is row-wise: only the rows of a batch's terms change. The same input and seed give the same bytes.

    Args:
        start: start of the table: R rows, and its gate.
        queries: rows of n queries, none empty.
        targets: (n, H) float32, the teacher's query vectors, L2-normalized.
        documents: (N, H) document vectors, L2-normalized.
        config: settings of the fit.
        positives: positions of each query's relevant documents; an empty row means no labels.
    """
    require_rows(queries, targets, len(start.rows))
    if positives is not None and len(positives) != len(queries):
        raise InvalidInput(f"{len(queries)} queries but {len(positives)} rows of positives")
    if len(documents) == 0:
        raise InvalidInput("the corpus has no documents; a table is fitted to the teacher's ranking of documents")
    generator = np.random.default_rng(config.seed)
    table = _Table(start, config)
    optimizer = torch.optim.SparseAdam(table.groups(config))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(config.steps, 1))
    dtype = fast_dtype("cpu")  # bfloat16, several times faster, suffices for scores at a temperature of 0.05
    matrix = torch.from_numpy(np.asarray(documents, dtype=np.float32)).to(dtype)
    teacher = torch.from_numpy(np.asarray(targets, dtype=np.float32))
    for _ in followed(range(config.steps), "KL to the teacher", unit="step", total=config.steps):
        chosen = generator.integers(0, len(queries), size=min(config.batch_size, len(queries)))
        relevant = [positives.row(int(i)).astype(np.int64) for i in chosen] if positives is not None else []
        ordinals = _draw_candidates(generator, len(documents), config.candidates, relevant)
        candidates = matrix if ordinals is None else matrix[torch.from_numpy(ordinals)]
        vectors, wanted = table(select_rows(queries, chosen)), teacher[torch.from_numpy(chosen)]
        logs = _logits(vectors, candidates, config).log_softmax(-1)
        with torch.no_grad():
            target = _logits(wanted, candidates, config).softmax(-1)
        loss = -(target * logs).sum(-1).mean() + config.cosine * (1 - (vectors * wanted).sum(-1)).mean()
        if config.contrastive > 0 and any(len(row) for row in relevant):
            loss = loss + config.contrastive * _contrastive(logs, relevant, ordinals)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # type: ignore[no-untyped-call]
        schedule.step()
    return table.fitted()


def fit_table(
    start: FittedRows,
    queries: Ragged,
    targets: Floats,
    documents: npt.NDArray[np.float16] | Floats,
    config: FitConfig,
    *,
    positives: Ragged | None = None,
    fitted_start: bool = False,
    ridged: bool = False,
) -> FittedRows:
    """Return the table fitted by ridge regression, unless the start is `ridged`, then KL; empty queries are dropped.

    A fitted start goes to the KL steps unchanged if the ridge regression has no iterations.
    """
    if len(queries) != len(targets):
        raise InvalidInput(f"{len(queries)} queries but {len(targets)} teacher vectors")
    full = np.flatnonzero(queries.lengths > 0)
    queries, targets = select_rows(queries, full), np.asarray(targets, dtype=np.float32)[full]
    positives = select_rows(positives, full) if positives is not None else None
    if not ridged and (config.ridge_iterations or not fitted_start):
        start = ridge_table(start, queries, targets, config, fitted_start=fitted_start)
    return kl_table(start, queries, targets, documents, config, positives=positives) if config.steps else start


class _Table(torch.nn.Module):
    """The rows in training, and the gate if there is one."""

    def __init__(self, start: FittedRows, config: FitConfig) -> None:
        super().__init__()
        self.rows = torch.nn.Parameter(torch.from_numpy(start.rows.copy()))
        gate = start.gate
        columns = config.gate if gate is None else gate.keys.shape[1]
        if config.gate not in (0, columns):
            raise InvalidInput(f"gate is {config.gate}, but the start's gate has {columns} columns; set gate={columns}")
        self.keys, self.values = None, None
        if columns:
            shape = (len(start.rows), columns)
            random = np.random.default_rng(config.seed).normal(0, GATE_SPREAD, shape)
            keys, values = (np.zeros(shape), random) if gate is None else (gate.keys, gate.values)
            self.keys = torch.nn.Parameter(torch.from_numpy(keys.astype(np.float32)))
            self.values = torch.nn.Parameter(torch.from_numpy(values.astype(np.float32)))

    def groups(self, config: FitConfig) -> list[dict[str, object]]:
        """Return the parameters with their learning rates."""
        groups: list[dict[str, object]] = [{"params": [self.rows], "lr": config.learning_rate}]
        if self.keys is not None:
            groups.append({"params": [self.keys, self.values], "lr": config.gate_learning_rate})
        return groups

    def forward(self, bags: Ragged) -> torch.Tensor:
        """Return the (n, H) vectors of queries, L2-normalized."""
        rows, offsets = torch.from_numpy(bags.term_ids.astype(np.int64)), torch.from_numpy(bags.indptr[:-1])
        bag = torch.nn.functional.embedding_bag
        if self.keys is None or self.values is None:
            return torch.nn.functional.normalize(bag(rows, self.rows, offsets, mode="mean", sparse=True), dim=-1)
        text = torch.from_numpy(np.repeat(np.arange(len(bags)), bags.lengths))
        weights = gate_weights(self.keys, self.values, rows, offsets, text)
        own = torch.nn.functional.embedding(rows, self.rows, sparse=True) * weights[:, None]
        sums = torch.zeros(len(bags), own.shape[1]).index_add(0, text, own)
        return torch.nn.functional.normalize(sums, dim=-1)

    def fitted(self) -> FittedRows:
        """Return rows and gate as arrays."""
        rows = self.rows.detach().numpy()
        if self.keys is None or self.values is None:
            return FittedRows(rows)
        return FittedRows(rows, CachedGate(self.keys.detach().numpy(), self.values.detach().numpy()))


def _logits(queries: torch.Tensor, documents: torch.Tensor, config: FitConfig) -> torch.Tensor:
    """Return (n, N) float32 scores divided by the temperature, computed in the documents' dtype."""
    return (queries.to(documents.dtype) @ documents.T).float() / config.temperature


def _draw_candidates(
    generator: np.random.Generator, n_documents: int, n_candidates: int, relevant: list[npt.NDArray[np.int64]]
) -> npt.NDArray[np.int64] | None:
    """Return ascending document positions: a random draw and all relevant ones; None for all documents."""
    if n_candidates == 0 or n_candidates >= n_documents:
        return None
    drawn = generator.choice(n_documents, size=n_candidates, replace=False)
    return np.unique(np.concatenate([drawn, *relevant])).astype(np.int64)


def _contrastive(
    logs: torch.Tensor, relevant: list[npt.NDArray[np.int64]], ordinals: npt.NDArray[np.int64] | None
) -> torch.Tensor:
    """Return -log of the relevant documents' joint probability, averaged over the queries with labels."""
    rows = np.repeat(np.arange(len(relevant)), [len(documents) for documents in relevant])
    flat = np.concatenate(relevant)
    columns = flat if ordinals is None else np.searchsorted(ordinals, flat)
    picked = logs[torch.from_numpy(rows), torch.from_numpy(columns)].exp()
    total = torch.zeros(len(relevant)).index_add(0, torch.from_numpy(rows), picked)
    return -total[torch.from_numpy(np.unique(rows))].clamp_min(1e-30).log().mean()
