"""The SiDR stage: a parametric vocabulary vector on both sides, also trained against bag-of-tokens vectors.

Each step searches a fixed bag-of-tokens index of the training corpora with the queries as they are encoded now, and
draws one hard negative per query from the results; nothing is indexed again.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lightir.addresses import resolve_local
from lightir.contract import FILE_NAME, Contract
from lightir.data import TrainingBatch, TrainingSet, read_documents
from lightir.errors import InvalidInput
from lightir.models.bags import mix_rows, token_means
from lightir.models.encoder import LightRetriever
from lightir.models.framing import Framed
from lightir.models.heads import top_k_weights
from lightir.models.model_folder import HeadArrays, stored_heads
from lightir.models.pooling import at_least_fp32
from lightir.text import query_term_ids
from lightir.train.batches.batch_vectors import LIGHT_TOKENS_STEP, SHAPE_STEP
from lightir.train.batches.gradient_cache import EncodedVectors, in_pieces
from lightir.train.batches.share import share_of
from lightir.train.mining.bag_search import training_bags
from lightir.train.recipes.data_names import data_folder
from lightir.train.recipes.sidr_recipe import SidrHeadRecipe, SidrRecipe
from lightir.train.run.loop import run_stage
from lightir.train.run.processes import gather, rank, world_size
from lightir.train.run.stage import DevelopmentResult
from lightir.train.stages.development import Development, measured, ndcg_of_scores
from lightir.train.stages.head_fitting import fit_heads, fit_scale
from lightir.train.stages.losses import similarity, two_way_loss
from lightir.train.stages.sidr_retrieval import BagOfTokens
from lightir.train.stages.stage_data import StageData
from lightir.train.stages.stage_model import ModelStage, build_model
from lightir.types import Document


def train(recipe: SidrRecipe, out: Path | str, *, resume: bool = False, device: str = "auto") -> Path:
    """Train SiDR, write its model folder and return its path.

    Args:
        recipe: the run's recipe.
        out: model folder to write.
        resume: continue from the last checkpoint in `<out>.run`.
        device: "cpu", "cuda", …; "auto" uses a GPU if there is one.

    Raises:
        AlreadyExists: `out` exists, or an unfinished run exists and resume is off.
        NotFound: a data set, or a checkpoint to resume from, is missing.
    """
    out = Path(out)
    negatives = out.parent / "negatives"
    return run_stage(recipe, out, lambda pinned, device: Sidr(pinned, negatives, device), resume=resume, device=device)


class Sidr(ModelStage[SidrRecipe]):
    """The SiDR stage: training sets with their bag-of-tokens indexes, model and loss."""

    def __init__(self, recipe: SidrRecipe, negatives: Path, device: str) -> None:
        """Open and clean the data, build the model, fit its bias, and index the data."""
        self.data = StageData(recipe, negatives=negatives)
        retriever = with_norm(build_model(recipe, device=device), recipe)
        fit_heads(retriever, recipe, self.data.sets)
        super().__init__(recipe, retriever, device)
        for name in ("norm_weight", "norm_bias"):
            if (array := getattr(retriever.heads, name)) is not None:
                self.parameters[f"heads.{name}"] = array
        self.indexes = retrieval_indexes(recipe, retriever, self.data.sets)

    @property
    def fixed(self) -> dict[str, Tensor]:
        """The term bias, if there is one."""
        bias = self.retriever.heads.term_bias
        return {} if bias is None else {"term_bias": bias}

    @property
    def texts_per_step(self) -> int:
        """Number of positives, mined and retrieved negatives of a step."""
        settings = self.recipe.optimisation
        return settings.batch_size * (1 + settings.negatives + bool(self.indexes)) * settings.accumulation

    def restore(self, fixed: Mapping[str, Tensor]) -> None:
        """Restore a checkpoint's bias."""
        self.retriever.heads = dataclasses.replace(self.retriever.heads, **fixed)

    def losses(self, number: int, *, step: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return L_final over batch `number` of the mixture and the negatives that its queries retrieve."""
        del step
        batch = self.data.mixture.batch(number)
        generator = np.random.default_rng([self.recipe.optimisation.seed, 4, number])
        index = self.indexes.get(batch.dataset)
        with self.autocast():
            parts, monitored = batch_losses(self.retriever, batch, self.recipe, index=index, generator=generator)
        return parts, {**monitored, "dataset": batch.dataset}

    def evaluate(self) -> DevelopmentResult | None:
        """Return nDCG@10 of full and beta search on every development set, and the mean."""
        if not self.data.development:
            return None
        with self.autocast():
            per_set = {
                development.name: measure(self.retriever, development, self.recipe)
                for development in self.data.development
            }
        return measured(per_set, by=self.recipe.evaluation.by)

    def fit_shipped(self) -> None:
        """Fit the quantizer's scale if the recipe says so."""
        fit_scale(self.retriever, self.recipe, self.data.sets)

    def records(self) -> dict[str, object]:
        """Return facts about the training data and its decontamination."""
        return self.data.records()


def with_norm(retriever: LightRetriever, recipe: SidrRecipe) -> LightRetriever:
    """Return the model with the trainable LayerNorm that the recipe asks for; it continues a trained one.

    Raises:
        InvalidInput: the recipe starts from a model with a LayerNorm but has none.
    """
    folder = resolve_local(recipe.model.address)
    trained = HeadArrays()
    if folder is not None and (folder / FILE_NAME).is_file():
        trained = stored_heads(folder, Contract.load(folder))
    if not recipe.heads.layer_norm:
        if trained.norm_weight is not None:
            raise InvalidInput(
                f"{recipe.model.address} has a LayerNorm in front of its projection: set heads.layer_norm"
            )
        return retriever
    width, device = retriever.backbone.hidden_size, retriever.backbone.device
    weight = torch.ones(width) if trained.norm_weight is None else trained.norm_weight
    bias = torch.zeros(width) if trained.norm_bias is None else trained.norm_bias
    retriever.heads = dataclasses.replace(
        retriever.heads,
        norm_weight=nn.Parameter(weight.float().to(device)),
        norm_bias=nn.Parameter(bias.float().to(device)),
    )
    return retriever


def retrieval_indexes(
    recipe: SidrRecipe, retriever: LightRetriever, sets: Sequence[TrainingSet]
) -> dict[str, BagOfTokens]:
    """Return the index that each training set's queries retrieve from, by the set's name; {} without retrieval."""
    retrieval = recipe.retrieval
    if retrieval.top_m == 0:
        return {}
    corpus = None
    if retrieval.corpus:
        source = Path(retrieval.corpus) if Path(retrieval.corpus).is_file() else data_folder(retrieval.corpus)
        corpus = {document.doc_id: document for document in read_documents(source)}
    sample, seed = retrieval.documents, recipe.optimisation.seed
    return {
        training.name: BagOfTokens(training, retriever, corpus=corpus, sample=sample, seed=seed) for training in sets
    }


def parametric(retriever: LightRetriever, framed: Sequence[Framed], *, pad_to: int = 1) -> Tensor:
    """Return V_θ before top-k: (n, V) float32, above 0 everywhere; 0 for a text without tokens.

    Args:
        retriever: the model.
        framed: texts in their frames.
        pad_to: the length is padded to a multiple of this, so that compiled layers get few shapes.
    """
    longest = max((len(ids) for ids, _, _ in framed), default=1)
    batch = retriever.batch(framed, length=-(-max(longest, 1) // pad_to) * pad_to)
    return retriever.sparse_from(retriever.states(batch), batch)


def bag_of_tokens(framed: Sequence[Framed], *, vocab_size: int, device: torch.device, first_term: int = 0) -> Tensor:
    """Return V_BoT: (n, V) float32, 1 for a term among the text's own tokens (no frame), else 0.

    Terms before `first_term` are 0.
    """
    own = [ids[start:stop] for ids, start, stop in framed]
    rows = torch.arange(len(own)).repeat_interleave(torch.tensor([len(ids) for ids in own], dtype=torch.int64))
    terms = torch.tensor([term for ids in own for term in ids], dtype=torch.int64)
    bags = torch.zeros(len(framed), vocab_size, device=device)
    bags[rows.to(device), terms.to(device)] = 1.0  # one copy to the GPU: a copy per row would block
    bags[:, :first_term] = 0.0
    return bags


def document_bags(retriever: LightRetriever, documents: Sequence[Document], framed: Sequence[Framed]) -> Tensor:
    """Return V_BoT of documents, (n, V) float32, cut like the bags of an index.

    Args:
        retriever: the model.
        documents: the documents.
        framed: framed texts of the documents, whose own tokens make the bags if the contract has no bag_tokens.
    """
    if retriever.contract.document.bag_tokens:
        cut = training_bags(documents, retriever)
        framed = [(row, 0, len(row)) for row in (cut.row(i).tolist() for i in range(len(cut)))]
    sparse = retriever.contract.sparse
    return bag_of_tokens(
        framed,
        vocab_size=retriever.backbone.vocab_size,
        device=retriever.backbone.device,
        first_term=0 if sparse is None else sparse.first_term,
    )


def pruned(weights: Tensor, bags: Tensor, heads: SidrHeadRecipe, *, k: int = 0) -> Tensor:
    """Return the top-k of V_θ, and the text's own terms if the recipe keeps them; k = 0 uses the recipe's."""
    return top_k_weights(weights, k or heads.top_k, own=bags > 0 if heads.own_terms else None)


def light_queries(
    retriever: LightRetriever,
    queries: Sequence[str],
    *,
    instruction: str | None = None,
    pad_to: int = 1,
) -> Tensor:
    """Return (n, V) float32: the mean over a query's tokens t of t's and the strongest terms of V_θ(Inst; t).

    A token's row depends on the token alone, so it can be cached: LightRetriever's idea on SiDR's query side. A query
    without tokens is 0.
    """
    term_ids = query_term_ids(retriever.backbone.tokenizer, retriever.contract.query, queries)
    unique, mixing = token_means(term_ids)
    columns, weights = retriever.token_expansions(unique, instruction=instruction, pad_to=pad_to)
    weights = weights.to(at_least_fp32(weights.dtype))
    empty = torch.zeros(len(unique), retriever.backbone.vocab_size, dtype=weights.dtype, device=weights.device)
    return mix_rows(mixing, empty.scatter(1, columns, weights))


def batch_losses(
    retriever: LightRetriever,
    batch: TrainingBatch,
    recipe: SidrRecipe,
    *,
    index: BagOfTokens | None = None,
    generator: np.random.Generator,
) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Return L_final = L(V_θ(q), V_θ(d)) + ½ L(V_θ(q), V_BoT(d)) + ½ L(V_BoT(q), V_θ(d)), each part weighted.

    Each L is two-way. The first part is the mean of two: top-k applied to the queries, and to the documents. With
    lexical documents, V_lex(d) = V_BoT(d) ∘ V_θ(d) replaces V_θ(d). Queries and documents are divided among the
    processes, and their vectors gathered with their gradients.

    Args:
        retriever: the model.
        batch: the whole batch, the same on every process.
        recipe: the run's recipe.
        index: index in which each query retrieves one more negative; None for no retrieval.
        generator: generator that draws the negative, in the same state on every process.

    Returns:
        The parts of the loss, and for the log the share of queries with a retrieved negative and the seconds it took.
    """
    device, vocab_size, losses = retriever.backbone.device, retriever.backbone.vocab_size, recipe.losses
    own, instruction = share_of(batch, process=rank(), processes=world_size()).queries, batch.instructions[0]
    framed = retriever.frame_queries(own, instruction=instruction)
    pad_to, tokens = (SHAPE_STEP, LIGHT_TOKENS_STEP) if recipe.model.compile else (1, 1)
    queries = gather(_encoded(retriever, framed, recipe, pad_to=pad_to))
    first_term = recipe.heads.first_term
    query_bags = gather(bag_of_tokens(framed, vocab_size=vocab_size, device=device, first_term=first_term))
    monitored = {"retrieved": 0.0, "retrieval_seconds": 0.0}
    if index is not None:
        batch, monitored = _with_retrieved(index, batch, queries.detach(), query_bags, recipe, generator)
    share = share_of(batch, process=rank(), processes=world_size())
    framed = retriever.frame_documents(share.documents)
    documents = gather(_encoded(retriever, framed, recipe, pad_to=pad_to))
    bags = gather(document_bags(retriever, share.documents, framed))
    own_terms = gather(bag_of_tokens(framed, vocab_size=vocab_size, device=device, first_term=first_term))
    if recipe.heads.lexical_documents:
        documents = documents * own_terms
    positives = torch.from_numpy(share.positives).to(device)
    excluded = torch.from_numpy(share.excluded).to(device)

    def loss(a: Tensor, b: Tensor, *, temperature: float = losses.temperature) -> Tensor:
        return two_way_loss(similarity(a, b) / temperature, positives, excluded=excluded)

    parts: dict[str, Tensor] = {}
    top_queries, top_documents = pruned(queries, query_bags, recipe.heads), pruned(documents, own_terms, recipe.heads)
    if losses.parametric > 0:
        parts["parametric"] = losses.parametric * (loss(top_queries, documents) + loss(queries, top_documents)) / 2
    if losses.semi_parametric > 0:
        parts["bag_documents"] = losses.semi_parametric * loss(queries, bags)
        parts["bag_queries"] = losses.semi_parametric * loss(query_bags, documents)
    if losses.light > 0:
        light = gather(_encoded_light(retriever, own, instruction, recipe, pad_to=tokens))
        temperature = losses.light_temperature or losses.temperature
        parts["light_bags"] = losses.light * loss(light, bags, temperature=temperature)
        parts["light_documents"] = losses.light * loss(light, top_documents, temperature=temperature)
    return parts, monitored


def _with_retrieved(
    index: BagOfTokens,
    batch: TrainingBatch,
    queries: Tensor,
    query_bags: Tensor,
    recipe: SidrRecipe,
    generator: np.random.Generator,
) -> tuple[TrainingBatch, dict[str, float]]:
    """Return the batch with one more negative per query, retrieved by its V_θ (n, V), and values for the log."""
    start = _now(queries.device)
    weights = pruned(queries, query_bags, recipe.heads, k=recipe.retrieval.query_terms)
    retrieved, n_retrieved = index.draw(batch, weights, recipe.retrieval, generator)
    batch = index.extended(batch, retrieved)
    return batch, {"retrieved": n_retrieved / len(batch.queries), "retrieval_seconds": _now(queries.device) - start}


def _now(device: torch.device) -> float:
    """Return the time in seconds after the device has finished its work, which is then not part of what is timed."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _encoded(retriever: LightRetriever, framed: Sequence[Framed], recipe: SidrRecipe, *, pad_to: int) -> Tensor:
    """Return V_θ (see `parametric`), encoded in pieces as the recipe says."""

    def encode(piece: Sequence[Framed]) -> EncodedVectors:
        return (parametric(retriever, piece, pad_to=pad_to),)

    (weights,) = in_pieces(encode, framed, size=recipe.optimisation.gradient_cache)
    assert weights is not None  # parametric returns a tensor
    return weights


def _encoded_light(
    retriever: LightRetriever, queries: Sequence[str], instruction: str, recipe: SidrRecipe, *, pad_to: int
) -> Tensor:
    """Return `light_queries`, encoded in pieces as the recipe says."""

    def encode(piece: Sequence[str]) -> EncodedVectors:
        return (light_queries(retriever, piece, instruction=instruction, pad_to=pad_to),)

    (weights,) = in_pieces(encode, queries, size=recipe.optimisation.gradient_cache)
    assert weights is not None  # light_queries returns a tensor
    return weights


def measure(retriever: LightRetriever, development: Development, recipe: SidrRecipe) -> dict[str, float]:
    """Return nDCG@10 on a development set in memory: full and beta search, both with light queries, token overlap."""
    vocab_size, device = retriever.backbone.vocab_size, retriever.backbone.device
    size = recipe.optimisation.batch_size

    def encoded(framed: Sequence[Framed], *, k: int = 0, lexical: bool = False) -> tuple[Tensor, Tensor]:
        bags = bag_of_tokens(framed, vocab_size=vocab_size, device=device, first_term=recipe.heads.first_term)
        pad_to = SHAPE_STEP if recipe.model.compile else 1
        chunks = [framed[start : start + size] for start in range(0, len(framed), size)]
        rows = [parametric(retriever, chunk, pad_to=pad_to) for chunk in chunks]
        weights = torch.cat(rows) * bags if lexical else torch.cat(rows)
        return pruned(weights, bags, recipe.heads, k=k), bags

    framed = retriever.frame_queries([query.text for query in development.queries])
    queries, query_bags = encoded(framed, k=retriever.contract.query.top_k)
    framed = retriever.frame_documents(development.documents)
    documents, _ = encoded(framed, lexical=recipe.heads.lexical_documents)
    bags = document_bags(retriever, development.documents, framed)
    scores = {
        "full": similarity(queries, documents),
        "beta": similarity(queries, bags),
        "overlap": similarity(query_bags, bags),
    }
    if retriever.contract.has_light_queries:
        texts = [query.text for query in development.queries]
        pad_to = LIGHT_TOKENS_STEP if recipe.model.compile else 1
        light = light_queries(retriever, texts, pad_to=pad_to)
        scores |= {"light_full": similarity(light, documents), "light_beta": similarity(light, bags)}
    return {name: ndcg_of_scores(value.float().cpu().numpy(), development.grades) for name, value in scores.items()}
