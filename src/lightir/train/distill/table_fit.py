"""Fit a query table to a frozen encoder: weighted start, closed-form ridge, then KL to the teacher over a corpus.

A query is L2(mean of its terms' rows). Everything here works on arrays: term ids, teacher vectors, document vectors.
"""

from __future__ import annotations

import warnings

import numpy as np
import numpy.typing as npt
import torch

from lightir.errors import InvalidInput
from lightir.models.devices import fast_dtype
from lightir.progress import followed
from lightir.query.bigrams import Bigrams, adjacent_terms
from lightir.train.distill.fit_config import FitConfig
from lightir.vectors import Floats, Ragged

SIF_CONSTANT = 1e-3  # Arora, Liang & Ma, ICLR 2017


def term_probabilities(texts: Ragged, *, vocab_size: int) -> Floats:
    """Return each term's share of all tokens, (vocab_size,) float32; zeros without tokens."""
    counts = np.bincount(texts.term_ids, minlength=vocab_size).astype(np.float64)
    return np.asarray(counts / max(counts.sum(), 1.0), dtype=np.float32)


def weighted_start(rows: Floats, probabilities: Floats) -> Floats:
    """Center rows on their frequency-weighted mean and multiply each by its SIF weight a / (a + p).

    Args:
        rows: (V, H) float32, each term encoded alone.
        probabilities: (V,) float32; if all are 0, rows are centered on the plain mean.
    """
    mass = probabilities if probabilities.sum() > 0 else np.full(len(rows), 1 / max(len(rows), 1), np.float32)
    centered = rows - (mass / mass.sum()) @ rows
    weights = np.float32(SIF_CONSTANT) / (np.float32(SIF_CONSTANT) + probabilities)
    return np.asarray(centered * weights[:, None], dtype=np.float32)


def ridge_table(
    start: Floats, queries: Ragged, targets: Floats, config: FitConfig, *, fitted_start: bool = False
) -> Floats:
    """Return the table whose row means are closest to the targets, held at a linear map of the start; (V, H) float32.

    The map M minimizes |A start M - T|^2; the residual D minimizes |A D - (T - A start M)|^2 + ridge |D|^2, where row i
    of A has each term's share of query i. A term without queries keeps its mapped start. For a start that is a fitted
    table, M is a number: its directions are right, and only the scale of rows that were fitted by cosine is free.

    Args:
        start: (V, H0) float32, start of the table.
        queries: terms of n queries, none empty.
        targets: (n, H) float32, the teacher's query vectors.
        config: settings of the fit.
        fitted_start: whether the start is a fitted table.
    """
    _require_rows(queries, targets, len(start))
    shares, transposed = _share_matrices(queries, len(start))
    goal = torch.from_numpy(np.ascontiguousarray(targets, dtype=np.float32))
    means = shares @ torch.from_numpy(start)
    if fitted_start:
        mapping = torch.eye(means.shape[1]) * float((means * goal).sum() / (means * means).sum().clamp_min(1e-12))
    else:
        gram = means.T @ means
        # The map is overdetermined many times; the small weight only guards against a start of low rank.
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
    """Train the table by `config.steps` steps of KL(teacher || table) over the documents.

    `config.cosine` adds the distance to the teacher's vector, and labels add InfoNCE.

    Adam is row-wise: only the rows of a batch's terms change. The same input and seed give the same bytes.

    Args:
        start: (V, H) float32, start of the table.
        queries: terms of n queries, none empty.
        targets: (n, H) float32, the teacher's query vectors, L2-normalized.
        documents: (N, H) document vectors, L2-normalized.
        config: settings of the fit.
        positives: positions of each query's relevant documents; an empty row means no labels.
    """
    _require_rows(queries, targets, len(start))
    if positives is not None and len(positives) != len(queries):
        raise InvalidInput(f"{len(queries)} queries but {len(positives)} rows of positives")
    if len(documents) == 0:
        raise InvalidInput("the corpus has no documents; a table is fitted to the teacher's ranking of documents")
    generator = np.random.default_rng(config.seed)
    table = torch.nn.EmbeddingBag.from_pretrained(
        torch.from_numpy(start.copy()), freeze=False, mode="mean", sparse=True
    )
    optimizer = torch.optim.SparseAdam(list(table.parameters()), lr=config.learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(config.steps, 1))
    dtype = fast_dtype("cpu")  # bfloat16, several times faster, suffices for scores at a temperature of 0.05
    matrix = torch.from_numpy(np.asarray(documents, dtype=np.float32)).to(dtype)
    teacher = torch.from_numpy(np.asarray(targets, dtype=np.float32))
    for _ in followed(range(config.steps), "KL to the teacher", unit="step", total=config.steps):
        chosen = generator.integers(0, len(queries), size=min(config.batch_size, len(queries)))
        relevant = [positives.row(int(i)).astype(np.int64) for i in chosen] if positives is not None else []
        ordinals = _draw_candidates(generator, len(documents), config.candidates, relevant)
        candidates = matrix if ordinals is None else matrix[torch.from_numpy(ordinals)]
        means, wanted = _unit_means(table, queries, chosen), teacher[torch.from_numpy(chosen)]
        logs = _logits(means, candidates, config).log_softmax(-1)
        with torch.no_grad():
            target = _logits(wanted, candidates, config).softmax(-1)
        loss = -(target * logs).sum(-1).mean() + config.cosine * (1 - (means * wanted).sum(-1)).mean()
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
    fitted_start: bool = False,
) -> Floats:
    """Return the table fitted by ridge regression, then KL; (V, H) float32. Queries without terms are dropped."""
    if len(queries) != len(targets):
        raise InvalidInput(f"{len(queries)} queries but {len(targets)} teacher vectors")
    full = np.flatnonzero(queries.lengths > 0)
    queries, targets = select_rows(queries, full), np.asarray(targets, dtype=np.float32)[full]
    positives = select_rows(positives, full) if positives is not None else None
    table = ridge_table(start, queries, targets, config, fitted_start=fitted_start)
    return kl_table(table, queries, targets, documents, config, positives=positives) if config.steps else table


def bigrams_by_error(
    table: Floats, queries: Ragged, targets: Floats, n: int, *, ridge: float, min_count: int = 3
) -> Bigrams:
    """Select the n pairs of adjacent terms whose own rows would reduce the error of a table most.

    Let e be a query's error: the teacher's vector minus the unit mean of the table's rows. A row for the pair p that is
    added to every query with p, with weight 1 / sqrt(length), reduces the squared error at most by
    |sum of e / sqrt(length)|^2 / (sum of 1 / length + ridge), over the occurrences of p. Ties go to the smaller pair.

    Args:
        table: (V, dim) float32 rows of terms.
        queries: terms of n queries, none empty.
        targets: (n, dim) float32, the teacher's vectors, L2-normalized.
        n: maximum number of pairs.
        ridge: weight of the row's own length; it holds back rare pairs.
        min_count: minimum number of occurrences of a pair.
    """
    keys, counts, pair, text = _pairs(queries)
    common = np.flatnonzero(counts >= min_count)
    if not len(common):
        return Bigrams(np.zeros((0, 2), dtype=np.uint32))
    number = np.full(len(keys), -1, dtype=np.int64)
    number[common] = np.arange(len(common))
    occurs = number[pair] >= 0
    rows, texts = number[pair[occurs]], text[occurs]
    weights = (1 / np.sqrt(queries.lengths)).astype(np.float32)
    shares, _ = _share_matrices(queries, len(table))
    means = torch.nn.functional.normalize(shares @ torch.from_numpy(table), dim=-1)
    errors = (torch.from_numpy(np.asarray(targets, dtype=np.float32)) - means) * torch.from_numpy(weights)[:, None]
    mass = np.bincount(rows, weights=weights[texts] ** 2, minlength=len(common)) + ridge
    order = np.argsort(rows, kind="stable")
    starts = np.searchsorted(rows[order], np.arange(len(common) + 1))
    gains = np.zeros(len(common), dtype=np.float32)
    for first in range(0, len(common), 16_384):
        last = min(first + 16_384, len(common))
        inside = torch.from_numpy(texts[order[starts[first] : starts[last]]])
        offsets = torch.from_numpy(starts[first:last] - starts[first])
        sums = torch.nn.functional.embedding_bag(inside, errors, offsets, mode="sum")
        gains[first:last] = (sums * sums).sum(1).numpy() / mass[first:last]
    best = np.sort(keys[common[np.argsort(-gains, kind="stable")[:n]]])
    return Bigrams(np.stack([best >> np.uint64(32), best & np.uint64(2**32 - 1)], axis=1).astype(np.uint32))


def _pairs(
    queries: Ragged,
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the distinct pairs, ascending, and their counts; for each occurrence its pair's position and its text."""
    first, second, positions = adjacent_terms(queries)
    keys = (first.astype(np.uint64) << np.uint64(32)) | second.astype(np.uint64)
    distinct, pair, counts = np.unique(keys, return_inverse=True, return_counts=True)
    text = np.repeat(np.arange(len(queries), dtype=np.int64), queries.lengths)[positions]
    return distinct, counts, pair, text


def with_bigrams(queries: Ragged, bigrams: Bigrams, *, vocab_size: int) -> Ragged:
    """Append each query's known pairs to its terms, as vocab_size + their row, for a table of both."""
    pairs, _ = bigrams.find(queries)
    numbers = np.arange(len(queries), dtype=np.int64)
    text = np.concatenate([np.repeat(numbers, queries.lengths), np.repeat(numbers, pairs.lengths)])
    rows = np.concatenate([queries.term_ids, pairs.term_ids + np.uint32(vocab_size)])
    return Ragged(rows[np.argsort(text, kind="stable")], queries.indptr + pairs.indptr)


def select_rows(rows: Ragged, positions: npt.NDArray[np.int64]) -> Ragged:
    """Return the rows at the positions, in that order."""
    lengths = rows.lengths[positions]
    indptr = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])
    shifts = np.repeat(rows.indptr[positions] - indptr[:-1], lengths)
    return Ragged(rows.term_ids[np.arange(len(shifts)) + shifts], indptr)


def _require_rows(queries: Ragged, targets: Floats, n_rows: int) -> None:
    if len(queries) == 0:
        raise InvalidInput("no query has a term of the vocabulary; a table is fitted to queries or spans of documents")
    if len(queries) != len(targets):
        raise InvalidInput(f"{len(queries)} queries but {len(targets)} teacher vectors")
    if queries.lengths.min() == 0:
        raise InvalidInput("a query has no terms; drop such queries")
    if int(queries.term_ids.max()) >= n_rows:
        raise InvalidInput(f"term id {queries.term_ids.max()} is outside the table of {n_rows} rows")


def _share_matrices(queries: Ragged, vocab_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return A (n, V) and its transpose as CSR: a term's share of a query's tokens."""
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
    rows, terms, shares = (torch.from_numpy(np.ascontiguousarray(array)) for array in (indptr, columns, values))
    # A repeated term has two entries in its row, which products sum correctly but the checks would refuse.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(rows, terms, shares, size=shape, check_invariants=False)


def _squared_shares(queries: Ragged, vocab_size: int) -> Floats:
    """Return the diagonal of A'A, ignoring repeated terms: it is only a preconditioner."""
    values = np.repeat((1.0 / queries.lengths) ** 2, queries.lengths)
    return np.bincount(queries.term_ids, weights=values, minlength=vocab_size).astype(np.float32)


def _conjugate_gradient(
    shares: torch.Tensor, transposed: torch.Tensor, right: torch.Tensor, diagonal: torch.Tensor, config: FitConfig
) -> torch.Tensor:
    """Return (A'A + ridge)^-1 right for all columns, preconditioned by the diagonal."""
    solution = torch.zeros_like(right)
    residual = right.clone()
    direction = residual / diagonal
    energy = (residual * direction).sum(0)
    n_iterations = config.ridge_iterations
    for _ in followed(range(n_iterations), "ridge", unit="iteration", total=n_iterations):
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
    """Return (n, H) means of the chosen queries' rows, L2-normalized."""
    bags = select_rows(queries, chosen)
    means = table(torch.from_numpy(bags.term_ids.astype(np.int64)), torch.from_numpy(bags.indptr[:-1]))
    return torch.nn.functional.normalize(means, dim=-1)


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
