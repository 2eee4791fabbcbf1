"""LLM-QL in one stage: contrastive loss and query likelihood together, by cosine or dot product."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from lightir.contract import Contract
from lightir.data import Dataset
from lightir.encode import encode_corpus
from lightir.encode.full_queries import FullQueryEncoder
from lightir.errors import InvalidInput
from lightir.index import Index, IndexOptions, build_index
from lightir.models.encoder import LightRetriever
from lightir.models.likelihood_prompts import PASSAGE_PROMPT, PASSAGE_SUFFIX, QUERY_SUFFIX
from lightir.models.masks import model_mask
from lightir.search import Searcher, SearchOptions
from lightir.shards import VectorsReader
from lightir.text import QueryPolicy, query_term_ids
from lightir.train.recipes.contrastive_recipe import ContrastiveRecipe, HeadRecipe, JointLikelihood, LossWeights
from lightir.train.recipes.likelihood_recipe import CorruptionRecipe
from lightir.train.recipes.settings import DocumentRecipe
from lightir.train.stages.contrastive import Contrastive, train
from processes import assert_same, first_of, gradients_of, wake_lora

FRAME = len(PASSAGE_PROMPT + PASSAGE_SUFFIX)


@pytest.fixture
def joint(recipe: ContrastiveRecipe) -> ContrastiveRecipe:
    """Return LLM-QL's contrastive stage with the query likelihood of unmasked passages at half the weight."""
    return dataclasses.replace(
        recipe,
        method="llm-ql",
        model=dataclasses.replace(recipe.model, lora_dropout=0.0),
        losses=LossWeights(dense=0, sparse=0, dense_alignment=0, flops=0, temperature=0.5),
        heads=HeadRecipe(pooling="eos", sparse=False),
        likelihood=JointLikelihood(weight=0.5, corruption=CorruptionRecipe(ratio=0.0)),
        query=QueryPolicy("find it", lower_case=False, leading_blank=False, suffix=QUERY_SUFFIX),
        documents=DocumentRecipe(PASSAGE_PROMPT, lower_case=False, max_tokens=FRAME + 41, suffix=PASSAGE_SUFFIX),
        evaluation=dataclasses.replace(recipe.evaluation, by="symmetric"),
    )


def of_similarity(recipe: ContrastiveRecipe, similarity: Literal["cosine", "dot"]) -> ContrastiveRecipe:
    return dataclasses.replace(recipe, heads=dataclasses.replace(recipe.heads, similarity=similarity))


def end_state(retriever: LightRetriever, ids: list[int]) -> Tensor:
    """Return the state at the end token of one framed text, read alone and causally."""
    n = len(ids)
    places = torch.arange(n)[None]
    mask = model_mask(retriever.backbone, torch.ones(1, n, n, dtype=torch.bool).tril(), places, places)
    return retriever.backbone.states(torch.tensor([ids]), mask, position_ids=places, use_cache=False)[0, -1]


def plain_likelihood(retriever: LightRetriever, given: list[int], asked: list[int]) -> Tensor:
    """Return Eq. 10 for one pair: -Σ log p of the query's tokens, which see the passage through [E] alone (Eq. 8)."""
    ids, last = [*given, *asked], len(given) - 1
    allowed = torch.zeros(1, len(ids), len(ids), dtype=torch.bool)
    for i in range(len(ids)):
        for j in range(i + 1):
            allowed[0, i, j] = i <= last or j >= last
    places = torch.arange(len(ids))[None]
    mask = model_mask(retriever.backbone, allowed, places, places)
    states = retriever.backbone.states(torch.tensor([ids]), mask, position_ids=places, use_cache=False)[0]
    assert retriever.backbone.head is not None
    total = torch.zeros((), dtype=torch.float64)
    for i in range(len(given), len(ids)):
        total = total - torch.log_softmax(retriever.backbone.head.weight.double() @ states[i - 1], 0)[ids[i]]
    return total


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_one_stage_adds_the_query_likelihood_to_the_contrastive_loss(
    joint: ContrastiveRecipe, similarity: Literal["cosine", "dot"]
) -> None:
    stage = Contrastive(of_similarity(joint, similarity), Path("unused"), "cpu")
    retriever = stage.retriever
    retriever.trunk.double()
    wake_lora(stage.parameters.items())
    parts, monitored = stage.losses(2, step=0)
    assert parts.keys() == {"symmetric", "likelihood"}
    batch = stage.data.mixture.batch(2)
    framed_documents = [ids for ids, _, _ in retriever.frame_documents(batch.documents)]
    framed_queries = [retriever.frame_queries([query])[0][0] for query in batch.queries]
    queries = torch.stack([end_state(retriever, ids) for ids in framed_queries])
    documents = torch.stack([end_state(retriever, ids) for ids in framed_documents])
    scores = queries @ documents.T  # Eq. 13
    if similarity == "cosine":
        scores = scores / queries.norm(dim=1)[:, None] / documents.norm(dim=1)
    contrast, likelihood = torch.zeros(2, dtype=torch.float64)
    tokens = 0
    for row, query in enumerate(batch.queries):
        kept = [column for column in range(len(documents)) if not batch.false_negatives[row, column]]
        contrast = contrast + torch.logsumexp(scores[row, kept] / 0.5, 0) - scores[row, row] / 0.5  # Eq. 14
        asked = query_term_ids(retriever.backbone.tokenizer, joint.query, [query]).row(0).tolist()
        likelihood = likelihood + plain_likelihood(retriever, framed_documents[row], asked)
        tokens += len(asked)
    n = len(batch.queries)
    expected = {"symmetric": contrast / n, "likelihood": 0.5 * likelihood / n}
    trained = list(stage.parameters.values())
    for name, loss in expected.items():
        torch.testing.assert_close(parts[name], loss, rtol=1e-9, atol=1e-9)
        gradients = [torch.autograd.grad(value, trained, retain_graph=True) for value in (parts[name], loss)]
        for own, wanted in zip(*gradients, strict=True):
            assert float((own - wanted).norm()) <= 1e-8 * float(wanted.norm())
    assert monitored["query_token"] == pytest.approx(float(likelihood.detach()) / tokens)


def test_one_stage_masks_passages_anew_in_each_forward_pass(joint: ContrastiveRecipe) -> None:
    masked = dataclasses.replace(joint, likelihood=JointLikelihood(weight=1.0))
    stage = Contrastive(masked, Path("unused"), "cpu")
    batch = stage.data.mixture.batch(0)
    stage.data.mixture.batch = lambda step: batch  # type: ignore[method-assign]
    values = [float(stage.losses(number, step=0)[0]["likelihood"].detach()) for number in (0, 0, 1)]
    assert values[0] == values[1] != values[2]
    assert (
        "likelihood"
        not in Contrastive(dataclasses.replace(joint, likelihood=JointLikelihood()), Path("unused"), "cpu").losses(
            0, step=0
        )[0]
    )


def parameter_gradients(recipe: ContrastiveRecipe) -> dict[str, Tensor]:
    stage = Contrastive(recipe, Path("unused"), "cpu")
    wake_lora(stage.parameters.items())
    parts, _ = stage.losses(0, step=0)
    return gradients_of(parts, stage.parameters)


def test_two_processes_have_the_gradient_of_one(joint: ContrastiveRecipe, tmp_path: Path) -> None:
    masked = dataclasses.replace(of_similarity(joint, "dot"), likelihood=JointLikelihood(weight=0.3))
    one = parameter_gradients(masked)
    assert_same(first_of(2, lambda: parameter_gradients(masked), tmp_path), one, rtol=1e-4)


def test_vectors_of_a_dot_product_model_are_stored_and_searched_without_normalization(
    joint: ContrastiveRecipe, datasets: tuple[Path, Path], tmp_path: Path
) -> None:
    recipe = of_similarity(joint, "dot")
    recipe = dataclasses.replace(recipe, optimisation=dataclasses.replace(recipe.optimisation, steps=2))
    folder = train(recipe, tmp_path / "model", device="cpu")
    model, documents = LightRetriever.load(folder), list(Dataset.open(datasets[0]).corpus())
    assert model.contract.dense is not None
    assert model.contract.dense.similarity == Contract.load(folder).dense.similarity == "dot"  # type: ignore[union-attr]
    texts = ["the river", "copper and bread"]
    with torch.no_grad():
        rows = [end_state(model, ids) for ids, _, _ in model.frame_documents(documents)]
        asked = [end_state(model, ids) for ids, _, _ in model.frame_queries(texts)]
    scores = (torch.stack(asked) @ torch.stack(rows).T).numpy()
    encode_corpus(folder, documents, tmp_path / "vectors")
    vectors = VectorsReader(tmp_path / "vectors")
    build_index(vectors, tmp_path / "index", contract=vectors.contract, progress=False)
    with Index.open(tmp_path / "index") as index:
        run = Searcher(index, FullQueryEncoder(model)).search(texts, 5, SearchOptions(mode="dense"))
    for row in range(len(texts)):
        np.testing.assert_allclose(run[str(row)].scores, np.sort(scores[row])[::-1][:5], rtol=5e-3)
        by_id = {document.doc_id: score for document, score in zip(documents, scores[row].tolist(), strict=True)}
        # Two steps leave near ties, which the rounding of float16 rows may exchange.
        own = [by_id[doc_id] for doc_id in run[str(row)].doc_ids]
        np.testing.assert_allclose(own, run[str(row)].scores, rtol=5e-3)
    with pytest.raises(InvalidInput, match="compared by dot product"):
        build_index(
            vectors,
            tmp_path / "narrow",
            contract=vectors.contract,
            options=IndexOptions(dense_dim=8),
            progress=False,
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"losses": LossWeights(sparse=0, flops=0), "heads": HeadRecipe(sparse=False, similarity="dot")}, "is dot"),
        ({"likelihood": JointLikelihood(1.0), "documents": DocumentRecipe(eos=False)}, "documents.eos true"),
    ],
    ids=["light queries", "no end token"],
)
def test_what_cannot_be_compared_or_predicted_is_refused(
    joint: ContrastiveRecipe, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        dataclasses.replace(joint, **change)
    with pytest.raises(InvalidInput, match="weight is -1"):
        JointLikelihood(-1.0)
    with pytest.raises(InvalidInput, match=r"corruption\.ratio is 2"):
        JointLikelihood(1.0, corruption=CorruptionRecipe(ratio=2.0))
