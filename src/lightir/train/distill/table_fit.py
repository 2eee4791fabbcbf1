"""Fit a query table to a frozen encoder: weighted start, closed-form ridge, then KL to the teacher over a corpus.

A query is L2(mean of its terms' rows). Everything here works on arrays: term ids, teacher vectors, document vectors.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from tqdm import tqdm

from lightir.errors import InvalidInput
from lightir.models.devices import fast_dtype
from lightir.query.bigrams import Bigrams
from lightir.vectors import Floats, Ragged

SIF_CONSTANT = 1e-3  # Arora, Liang & Ma, ICLR 2017


@dataclass(frozen=True, slots=True)
class FitConfig:
    """How a table is fitted.

    Attributes:
        ridge: weight that holds the closed form at its start; about ridge x (query length)^2 occurrences outweigh it.
        ridge_iterations: conjugate-gradient steps.
        steps: KL steps; 0 stops after the ridge.
        batch_size: queries a step.
        candidates: documents a step scores against, drawn anew each step; 0 takes the whole corpus.
        temperature: of both softmaxes.
        learning_rate: peak; falls to zero along a cosine.
        contrastive: weight of InfoNCE for the queries that have labels.
        bigrams: rows for the pairs of terms that come most often in the queries, at most so many, beside the terms'.
        seed: of the batches and candidates.
    """

    ridge: float = 0.03
    ridge_iterations: int = 40
    steps: int = 300
    batch_size: int = 256
    candidates: int = 4096
    temperature: float = 0.05
    learning_rate: float = 5e-3
    contrastive: float = 0.5
    bigrams: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("ridge", "temperature", "learning_rate"):
            if not getattr(self, name) > 0:
                raise InvalidInput(f"{name} is {getattr(self, name)}; it must be above 0")
        for name in ("ridge_iterations", "steps", "candidates", "contrastive", "bigrams", "seed"):
            if getattr(self, name) < 0:
                raise InvalidInput(f"{name} is {getattr(self, name)}; it must not be negative")
        if self.batch_size < 1:
            raise InvalidInput(f"batch_size is {self.batch_size}; at least 1 is needed")


def term_probabilities(texts: Ragged, *, vocab_size: int) -> Floats:
    """Each term's share of all the texts' tokens, (vocab_size,) float32; zeros when there are none."""
    counts = np.bincount(texts.term_ids, minlength=vocab_size).astype(np.float64)
    return np.asarray(counts / max(counts.sum(), 1.0), dtype=np.float32)


def weighted_start(rows: Floats, probabilities: Floats) -> Floats:
    """Rows centred on their frequency-weighted mean, each times its SIF weight a / (a + p).

    Args:
        rows: (V, H) float32, each term encoded alone.
        probabilities: (V,) float32; without any mass the plain mean is the centre.
    """
    mass = probabilities if probabilities.sum() > 0 else np.full(len(rows), 1 / max(len(rows), 1), np.float32)
    centred = rows - (mass / mass.sum()) @ rows
    weights = np.float32(SIF_CONSTANT) / (np.float32(SIF_CONSTANT) + probabilities)
    return np.asarray(centred * weights[:, None], dtype=np.float32)


def ridge_table(start: Floats, queries: Ragged, targets: Floats, config: FitConfig) -> Floats:
    """The table whose row means come closest to the targets, held at a linear map of the start; (V, H) float32.

    The map M minimises |A start M - T|^2; the rest D minimises |A D - (T - A start M)|^2 + ridge |D|^2, where row i of
    A holds each term's share of query i. A term that no query holds keeps its mapped start.

    Args:
        start: (V, H0) float32.
        queries: n queries, none empty.
        targets: (n, H) float32, the teacher's query vectors.
        config: ridge and ridge_iterations are read.
    """
    _require_rows(queries, targets, len(start))
    shares, transposed = _share_matrices(queries, len(start))
    goal = torch.from_numpy(np.ascontiguousarray(targets, dtype=np.float32))
    means = shares @ torch.from_numpy(start)
    gram = means.T @ means
    # The map is many times over-determined; the small weight only guards a start of low rank.
    weight = 1e-3 * float(gram.diagonal().mean()) + 1e-12
    mapping = torch.linalg.solve(gram + weight * torch.eye(len(gram)), means.T @ goal)
    mapped = torch.from_numpy(start) @ mapping
    right = transposed @ (goal - means @ mapping)
    diagonal = torch.from_numpy(_squared_shares(queries, len(start)))[:, None] + config.ridge
    rest = _conjugate_gradient(shares, transposed, right, diagonal, config)
    return np.asarray((mapped + rest).numpy(), dtype=np.float32)


def kl_table(
    start: Floats,
    queries: Ragged,
    targets: Floats,
    documents: npt.NDArray[np.float16] | Floats,
    config: FitConfig,
    *,
    positives: Ragged | None = None,
) -> Floats:
    """The table after `config.steps` of KL(teacher || table) over the documents, plus InfoNCE where there are labels.

    Row-wise Adam: only the rows of a batch's terms move. The same input and seed give the same bytes.

    Args:
        start: (V, H) float32.
        queries: n queries, none empty.
        targets: (n, H) float32, the teacher's query vectors, L2-normalised.
        documents: (N, H), L2-normalised.
        config: all fields but the ridge's are read.
        positives: for each query the positions of its relevant documents; an empty row has no labels.
    """
    _require_rows(queries, targets, len(start))
    if positives is not None and len(positives) != len(queries):
        raise InvalidInput(f"{len(queries)} queries but {len(positives)} rows of positives")
    if len(documents) == 0:
        raise InvalidInput("the corpus has no documents; a table is fitted to the teacher's ranking of some")
    generator = np.random.default_rng(config.seed)
    table = torch.nn.EmbeddingBag.from_pretrained(
        torch.from_numpy(start.copy()), freeze=False, mode="mean", sparse=True
    )
    optimizer = torch.optim.SparseAdam(list(table.parameters()), lr=config.learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(config.steps, 1))
    dtype = fast_dtype("cpu")  # scores within .05 need no more than bfloat16, which is several times faster
    matrix = torch.from_numpy(np.asarray(documents, dtype=np.float32)).to(dtype)
    teacher = torch.from_numpy(np.asarray(targets, dtype=np.float32))
    bar = tqdm(range(config.steps), desc="KL to the teacher", unit="step", disable=None)
    for _ in bar:
        chosen = generator.integers(0, len(queries), size=min(config.batch_size, len(queries)))
        relevant = [positives.row(int(i)).astype(np.int64) for i in chosen] if positives is not None else []
        ordinals = _draw_candidates(generator, len(documents), config.candidates, relevant)
        some = matrix if ordinals is None else matrix[torch.from_numpy(ordinals)]
        logs = _logits(_unit_means(table, queries, chosen), some, config).log_softmax(-1)
        with torch.no_grad():
            wanted = _logits(teacher[torch.from_numpy(chosen)], some, config).softmax(-1)
        loss = -(wanted * logs).sum(-1).mean()
        if config.contrastive > 0 and any(len(row) for row in relevant):
            loss = loss + config.contrastive * _contrastive(logs, relevant, ordinals)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()  # type: ignore[no-untyped-call]
        schedule.step()
    return np.asarray(table.weight.detach().numpy(), dtype=np.float32)


def fit_table(
    start: Floats,
    queries: Ragged,
    targets: Floats,
    documents: npt.NDArray[np.float16] | Floats,
    config: FitConfig,
    *,
    positives: Ragged | None = None,
) -> Floats:
    """Ridge, then KL: the fitted table, (V, H) float32. Queries without any term are left out; see ridge_table."""
    if len(queries) != len(targets):
        raise InvalidInput(f"{len(queries)} queries but {len(targets)} teacher vectors")
    full = np.flatnonzero(queries.lengths > 0)
    queries, targets = select_rows(queries, full), np.asarray(targets, dtype=np.float32)[full]
    positives = select_rows(positives, full) if positives is not None else None
    table = ridge_table(start, queries, targets, config)
    return kl_table(table, queries, targets, documents, config, positives=positives) if config.steps else table


def with_bigrams(queries: Ragged, bigrams: Bigrams, *, vocab_size: int) -> Ragged:
    """Each query's terms, then the known pairs in it as vocab_size + their row, for a table of both."""
    pairs, _ = bigrams.find(queries)
    rows = [[*queries.row(i).tolist(), *(pairs.row(i) + np.uint32(vocab_size)).tolist()] for i in range(len(queries))]
    return Ragged.from_lists(rows)


def select_rows(rows: Ragged, positions: npt.NDArray[np.int64]) -> Ragged:
    """The rows at the positions, in that order."""
    return Ragged.from_lists([rows.row(int(position)).tolist() for position in positions])


def _require_rows(queries: Ragged, targets: Floats, n_rows: int) -> None:
    if len(queries) == 0:
        raise InvalidInput("no query has a term of the vocabulary; a table is fitted to queries or spans of documents")
    if len(queries) != len(targets):
        raise InvalidInput(f"{len(queries)} queries but {len(targets)} teacher vectors")
    if queries.lengths.min() == 0:
        raise InvalidInput("a query has no terms; leave such queries out")
    if int(queries.term_ids.max()) >= n_rows:
        raise InvalidInput(f"term id {queries.term_ids.max()} is outside the table of {n_rows} rows")


def _share_matrices(queries: Ragged, vocab_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A (n, V) and its transpose as CSR: a term's share of a query's tokens."""
    n = len(queries)
    row_of = np.repeat(np.arange(n, dtype=np.int64), queries.lengths)
    values = np.repeat((1.0 / queries.lengths).astype(np.float32), queries.lengths)
    columns = queries.term_ids.astype(np.int64)
    order = np.argsort(columns, kind="stable")
    starts = np.zeros(vocab_size + 1, dtype=np.int64)
    np.cumsum(np.bincount(columns, minlength=vocab_size), out=starts[1:])
    return (
        _csr(queries.indptr, columns, values, (n, vocab_size)),
        _csr(starts, row_of[order], values[order], (vocab_size, n)),
    )


def _csr(
    indptr: npt.NDArray[np.int64], columns: npt.NDArray[np.int64], values: Floats, shape: tuple[int, int]
) -> torch.Tensor:
    rows, terms, shares = (torch.from_numpy(np.ascontiguousarray(each)) for each in (indptr, columns, values))
    # A repeated term stands twice in its row, which products sum up rightly but the checks would refuse.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(rows, terms, shares, size=shape, check_invariants=False)


def _squared_shares(queries: Ragged, vocab_size: int) -> Floats:
    """The diagonal of A'A but for repeated terms; it only preconditions."""
    values = np.repeat((1.0 / queries.lengths) ** 2, queries.lengths)
    return np.bincount(queries.term_ids, weights=values, minlength=vocab_size).astype(np.float32)


def _conjugate_gradient(
    shares: torch.Tensor, transposed: torch.Tensor, right: torch.Tensor, diagonal: torch.Tensor, config: FitConfig
) -> torch.Tensor:
    """(A'A + ridge)^-1 right, all columns at once, preconditioned by the diagonal."""
    solution = torch.zeros_like(right)
    residual = right.clone()
    direction = residual / diagonal
    energy = (residual * direction).sum(0)
    for _ in tqdm(range(config.ridge_iterations), desc="ridge", unit="iteration", disable=None):
        product = transposed @ (shares @ direction) + config.ridge * direction
        step = energy / (direction * product).sum(0).clamp_min(1e-30)
        solution += step * direction
        residual -= step * product
        scaled = residual / diagonal
        fresh = (residual * scaled).sum(0)
        direction = scaled + fresh / energy.clamp_min(1e-30) * direction
        energy = fresh
    return solution


def _unit_means(table: torch.nn.EmbeddingBag, queries: Ragged, chosen: npt.NDArray[np.int64]) -> torch.Tensor:
    """(n, H) means of the chosen queries' rows, L2-normalised."""
    bags = Ragged.from_lists([queries.row(int(i)).tolist() for i in chosen])
    means = table(torch.from_numpy(bags.term_ids.astype(np.int64)), torch.from_numpy(bags.indptr[:-1]))
    return torch.nn.functional.normalize(means, dim=-1)


def _logits(queries: torch.Tensor, documents: torch.Tensor, config: FitConfig) -> torch.Tensor:
    """(n, N) float32: scores by the temperature, computed in the documents' dtype."""
    return (queries.to(documents.dtype) @ documents.T).float() / config.temperature


def _draw_candidates(
    generator: np.random.Generator, n_documents: int, wanted: int, relevant: list[npt.NDArray[np.int64]]
) -> npt.NDArray[np.int64] | None:
    """Ascending document positions: a random draw and every relevant one; None for all."""
    if wanted == 0 or wanted >= n_documents:
        return None
    drawn = generator.choice(n_documents, size=wanted, replace=False)
    return np.unique(np.concatenate([drawn, *relevant])).astype(np.int64)


def _contrastive(
    logs: torch.Tensor, relevant: list[npt.NDArray[np.int64]], ordinals: npt.NDArray[np.int64] | None
) -> torch.Tensor:
    """-log of the relevant documents' joint probability, mean over the queries that have some."""
    rows = np.repeat(np.arange(len(relevant)), [len(documents) for documents in relevant])
    flat = np.concatenate(relevant)
    columns = flat if ordinals is None else np.searchsorted(ordinals, flat)
    picked = logs[torch.from_numpy(rows), torch.from_numpy(columns)].exp()
    total = torch.zeros(len(relevant)).index_add(0, torch.from_numpy(rows), picked)
    return -total[torch.from_numpy(np.unique(rows))].clamp_min(1e-30).log().mean()
