"""Heads that are fitted to documents: standardization, the sparse head's term bias, and query term weights."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from lightir.data import TrainingSet
from lightir.models.encoder import LightRetriever
from lightir.models.heads import calibrate_bias
from lightir.text import QueryPolicy, TextTokenizer
from lightir.train.recipes.contrastive_recipe import ContrastiveRecipe
from lightir.train.recipes.sidr_recipe import SidrRecipe
from lightir.vectors import Floats

RecipeWithHeads = ContrastiveRecipe | SidrRecipe

DOCUMENTS_FOR_IDF = 20_000
"""Maximum number of documents of a set that term weights are counted over; more hardly change them."""


def fit_heads(retriever: LightRetriever, recipe: RecipeWithHeads, sets: Sequence[TrainingSet]) -> None:
    """Fit standardization, term bias and term weights to documents of the training corpora, as the recipe says."""
    heads, contract = recipe.heads, retriever.contract
    standardized = contract.dense is not None and contract.dense.standardized
    if standardized or (contract.sparse is not None and contract.sparse.bias_hash):
        sample = sample_documents(sets, heads.calibration_documents, seed=recipe.optimisation.seed)
        retriever.calibrate(sample, quantile=heads.calibrate or 0.5)
    if recipe.query.term_weights == "idf":
        weights = idf_weights(retriever, sets)
        retriever.heads = dataclasses.replace(retriever.heads, term_weights=weights.to(retriever.backbone.device))


def refit_bias(retriever: LightRetriever, recipe: ContrastiveRecipe, sets: Sequence[TrainingSet]) -> None:
    """Fit the term bias to the trained model, if the recipe says so; the standardization stays."""
    heads = recipe.heads
    if not (heads.calibrate and heads.recalibrate) or retriever.contract.sparse is None:
        return
    sample = sample_documents(sets, heads.calibration_documents, seed=recipe.optimisation.seed)
    framed = retriever.frame_documents(sample)
    length = retriever.contract.document.max_tokens if recipe.model.compile else None
    maxima = []
    with torch.no_grad():
        for start in range(0, len(framed), recipe.optimisation.batch_size):
            batch = retriever.batch(framed[start : start + recipe.optimisation.batch_size], length=length)
            maxima.append(retriever.maxima(retriever.states(batch), batch))
    bias = calibrate_bias(maxima, quantile=heads.calibrate).to(retriever.backbone.device)
    retriever.heads = dataclasses.replace(retriever.heads, term_bias=bias)


def fit_scale(retriever: LightRetriever, recipe: RecipeWithHeads, sets: Sequence[TrainingSet]) -> None:
    """Fit the quantizer's scale to the trained model under its present contract, if the recipe's scale is 0."""
    if recipe.heads.scale == 0 and retriever.contract.sparse is not None:
        sample = sample_documents(sets, recipe.heads.calibration_documents, seed=recipe.optimisation.seed)
        retriever.fit_scale(sample)


def sample_documents(sets: Sequence[TrainingSet], n: int, *, seed: int) -> list[str]:
    """Return about n documents' texts with titles, the same number of each set, drawn from the seed."""
    generator = random.Random(seed)
    texts: list[str] = []
    for training in sets:
        ids = training.doc_ids if training.digest else sorted(training.documents)
        chosen = generator.sample(ids, min(len(ids), -(-n // len(sets))))
        texts += [training.documents[doc_id].full_text() for doc_id in chosen]
    return texts


def idf_weights(retriever: LightRetriever, sets: Sequence[TrainingSet]) -> torch.Tensor:
    """Return (V,) float32 in (0, 1]: ln(1 + N / (df + 0.5)) over the training corpora, scaled to 1 for df = 0."""
    policy, vocab_size = retriever.contract.query, retriever.backbone.vocab_size
    frequency = np.zeros(vocab_size, dtype=np.int64)
    n_documents = 0
    seen: set[str] = set()
    for training in sets:
        first = itertools.islice(training.documents.values(), DOCUMENTS_FOR_IDF)
        new = [document for document in first if document.doc_id not in seen]
        texts = [document.full_text() for document in new]
        seen.update(document.doc_id for document in new)
        frequency += document_frequencies(retriever.backbone.tokenizer, policy, texts, vocab_size=vocab_size)
        n_documents += len(texts)
    return torch.from_numpy(idf(frequency, n_documents))


def document_frequencies(
    tokenizer: TextTokenizer, policy: QueryPolicy, texts: Sequence[str], *, vocab_size: int
) -> npt.NDArray[np.int64]:
    """Return the number of texts that have each term, (vocab_size,) int64, with the terms that queries have."""
    frequency = np.zeros(vocab_size, dtype=np.int64)
    prepared = [policy.prepare(text) for text in texts]
    for start in range(0, len(prepared), 512):
        rows = tokenizer.term_ids(prepared[start : start + 512], max_tokens=policy.max_tokens)
        for row in range(len(rows)):
            frequency[np.unique(rows.row(row))] += 1
    return frequency


def idf(frequency: npt.NDArray[np.int64], n_documents: int) -> Floats:
    """Return ln(1 + N / (df + 0.5)) of each term, float32, scaled to 1 for a term that no document has."""
    raw = np.log1p(n_documents / (frequency + 0.5))
    return np.asarray(raw / np.log1p(n_documents / 0.5), dtype=np.float32)
