"""Re-ranking by query likelihood, the probability of the query given each document (LLM-QL, Table 6)."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

import torch

from lightir.addresses import resolve_local
from lightir.contract import FILE_NAME, Contract, DenseHead, DocumentPolicy
from lightir.encode.rescoring import check_sizes, queries_of_run, rescore
from lightir.errors import InvalidInput
from lightir.models.backbones import load_backbone
from lightir.models.devices import usable_device, weights_dtype
from lightir.models.encoder import LightRetriever
from lightir.models.framing import Framed
from lightir.models.likelihood import (
    EndStates,
    end_states,
    join,
    likelihood_from_ends,
    log_likelihood,
    require_generator,
    sequence_states,
)
from lightir.models.likelihood_prompts import PASSAGE_PROMPT, PASSAGE_SUFFIX, QUERY_INSTRUCTION, QUERY_SUFFIX
from lightir.models.model_folder import backbone_record
from lightir.runtime.documents import length_batches
from lightir.text import QueryPolicy, query_term_ids
from lightir.types import Document, Query, Run

BATCH_TOKENS = 8192
"""Default maximum number of tokens of a forward pass, padding included."""

KEPT_BYTES = 1 << 28
"""Default memory for the [E] of documents that a `LikelihoodScorer` has read: 256 MiB."""


def rerank(
    model: LightRetriever,
    run: Run,
    documents: Iterable[Document],
    queries: Iterable[Query],
    *,
    stop: bool = True,
    depth: int | None = None,
    batch_tokens: int = BATCH_TOKENS,
) -> Run:
    """Order a run by log p(query | document), which replaces its scores; ties go to the smaller document id.

    With the attention stop the model reads a document once and keeps only its [E] for all queries that retrieved it; a
    query then costs its own tokens. Without the stop the model reads every pair of document and query together.

    Args:
        model: generator, as `load_generator` returns it.
        run: rankings of a first stage. A query without tokens scores 0 for every document.
        documents: corpus that holds the run's documents.
        queries: queries of the run with their texts; others are ignored.
        stop: whether queries see the document through [E] alone.
        depth: number of documents of each ranking that are scored; the others are dropped. None scores all.
        batch_tokens: maximum number of tokens of a forward pass, padding included; a longer text is a batch by itself.

    Raises:
        NotFound: a document or a query of the run is missing.
        InvalidInput: a model that predicts no tokens or has no [E], or a size below 1.
    """
    check_sizes(batch_tokens, depth)
    check_generator(model)
    tokens = _query_tokens(model, queries_of_run(run, queries))
    read = _from_ends if stop else _together

    def score(window: Sequence[Document], pairs: Sequence[tuple[int, str]]) -> Iterator[tuple[list[int], list[float]]]:
        framed = model.frame_documents(window)
        return read(model, framed, [(row, tokens[query_id]) for row, query_id in pairs], batch_tokens)

    return rescore(run, documents, score, depth=depth)


class LikelihoodScorer:
    """Scores documents for one query at a time by log p(query | document).

    With the attention stop, the model reads a document once: its [E] is kept for later queries.
    """

    def __init__(self, model: LightRetriever, *, stop: bool = True, kept_bytes: int = KEPT_BYTES) -> None:
        """Wrap a generator.

        Args:
            model: generator, as `load_generator` returns it.
            stop: whether queries see the document through [E] alone.
            kept_bytes: maximum memory for the [E] of documents, the last used ones.

        Raises:
            InvalidInput: a model that predicts no tokens or has no [E].
        """
        check_generator(model)
        self._model, self._stop = model, stop
        self._kept_bytes = kept_bytes
        self._ends: OrderedDict[tuple[str, str], EndStates] = OrderedDict()

    @property
    def max_tokens(self) -> int:
        """Maximum number of tokens that the model reads of a document."""
        return self._model.contract.document.max_tokens

    @torch.no_grad()
    def score_documents(self, query: str, documents: Sequence[Document]) -> list[float]:
        """Return the log likelihood of the query given each document."""
        (tokens,) = _query_tokens(self._model, [Query("", query)]).values()
        if self._stop:
            ends = self._ends_of(documents)
            return likelihood_from_ends(self._model.backbone, ends, [tokens] * len(documents)).tolist()
        scores = [0.0] * len(documents)
        pairs = [(row, tokens) for row in range(len(documents))]
        for rows, values in _together(self._model, self._model.frame_documents(documents), pairs, BATCH_TOKENS):
            for row, value in zip(rows, values, strict=True):
                scores[row] = value
        return scores

    def _ends_of(self, documents: Sequence[Document]) -> EndStates:
        """Return the [E] of documents, and keep them."""
        backbone, n_ends = self._model.backbone, len(self._model.end_ids)
        ends = {key: self._ends[key] for document in documents if (key := _text_of(document)) in self._ends}
        missing = [document for document in documents if _text_of(document) not in ends]
        framed = self._model.frame_documents(missing)
        for rows in length_batches([len(ids) for ids, _, _ in framed], BATCH_TOKENS):
            batch = end_states(backbone, [framed[row] for row in rows], n_ends=n_ends)
            for number, row in enumerate(rows):
                ends[_text_of(missing[row])] = batch.take(torch.tensor([number], device=backbone.device))
        self._keep(ends)
        return EndStates.join([ends[_text_of(document)] for document in documents])

    def _keep(self, ends: Mapping[tuple[str, str], EndStates]) -> None:
        for key, value in ends.items():
            self._ends[key] = value
            self._ends.move_to_end(key)
        size = next(iter(ends.values())).n_bytes if ends else 1
        while len(self._ends) * size > self._kept_bytes:
            self._ends.popitem(last=False)


def _text_of(document: Document) -> tuple[str, str]:
    return document.title, document.text


def load_generator(
    address: str | os.PathLike[str], *, dtype: Literal["auto", "bf16", "fp32"] = "auto", device: str = "auto"
) -> LightRetriever:
    """Load a model that predicts the tokens after a document's [E].

    Args:
        address: model folder, name of a shipped model, or any causal language model, which then gets LLM-QL's prompts
            (the untrained model of the paper's Table 6).
        dtype: dtype of the weights; "auto" is bfloat16 on a GPU and on CPUs that multiply it natively, else float32.
        device: torch device; "auto" is a GPU if there is one, else the CPU.

    Raises:
        InvalidInput: the model attends both ways, has no language-modelling head, or its documents end without [E].
    """
    device = usable_device(device)
    weights = weights_dtype(dtype, device)
    folder = resolve_local(address)
    if folder is not None and (folder / FILE_NAME).is_file():
        model = LightRetriever.load(folder, dtype=weights, device=device)
        check_generator(model)
        return model
    backbone = load_backbone(address, dtype=weights)
    contract = Contract(
        method="untrained",
        backbone=backbone_record(backbone),
        query=QueryPolicy(QUERY_INSTRUCTION, lower_case=False, leading_blank=False, suffix=QUERY_SUFFIX),
        document=DocumentPolicy(PASSAGE_PROMPT, lower_case=False, suffix=PASSAGE_SUFFIX),
        dense=DenseHead("eos"),
        sparse=None,
    )
    model = LightRetriever(backbone, contract).to(device)
    check_generator(model)
    return model


def check_generator(model: LightRetriever) -> None:
    """Refuse a model that cannot predict the tokens after a document's [E].

    Raises:
        InvalidInput: it attends both ways, has no language-modelling head, or its documents end without [E].
    """
    require_generator(model.backbone)
    if not model.end_ids:
        raise InvalidInput("the model's documents end without an end token, which query likelihood continues from")


def _query_tokens(model: LightRetriever, queries: Sequence[Query]) -> dict[str, list[int]]:
    term_ids = query_term_ids(model.backbone.tokenizer, model.contract.query, [query.text for query in queries])
    return {query.query_id: term_ids.row(row).tolist() for row, query in enumerate(queries)}


ScoredPairs = Sequence[tuple[int, list[int]]]
"""The pairs to score: a row of the framed documents and the tokens of a query."""


def _from_ends(
    model: LightRetriever, framed: Sequence[Framed], pairs: ScoredPairs, batch_tokens: int
) -> Iterator[tuple[list[int], list[float]]]:
    """Yield pair numbers with their log likelihoods; the model reads every document once."""
    backbone, n_ends = model.backbone, len(model.end_ids)
    numbers_of: dict[int, list[int]] = {}  # by document
    for number, (row, _) in enumerate(pairs):
        numbers_of.setdefault(row, []).append(number)
    for rows in length_batches([len(ids) for ids, _, _ in framed], batch_tokens):
        ends: EndStates = end_states(backbone, [framed[row] for row in rows], n_ends=n_ends)
        scored = [(number, end) for end, row in enumerate(rows) for number in numbers_of[row]]
        for positions in length_batches([n_ends + len(pairs[number][1]) for number, _ in scored], batch_tokens):
            numbers = [scored[position][0] for position in positions]
            batch = ends.take(torch.tensor([scored[position][1] for position in positions], device=backbone.device))
            scores = likelihood_from_ends(backbone, batch, [pairs[number][1] for number in numbers])
            yield numbers, scores.tolist()


def _together(
    model: LightRetriever, framed: Sequence[Framed], pairs: ScoredPairs, batch_tokens: int
) -> Iterator[tuple[list[int], list[float]]]:
    """Yield pair numbers with their log likelihoods; each query sees its whole document."""
    backbone = model.backbone
    for numbers in length_batches([len(framed[row][0]) + len(query) for row, query in pairs], batch_tokens):
        documents, queries = [framed[pairs[number][0]] for number in numbers], [pairs[number][1] for number in numbers]
        batch = join(documents, queries, n_ends=len(model.end_ids), device=backbone.device)
        states = sequence_states(backbone, batch, stop=False)
        yield numbers, log_likelihood(backbone, states, batch.input_ids, batch.query).tolist()
