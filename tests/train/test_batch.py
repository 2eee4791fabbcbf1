"""Losses of one batch: the effects of sampled terms and of a teacher."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lightir.data import TrainingBatch
from lightir.errors import InvalidInput
from lightir.models.backbones import Backbone
from lightir.models.encoder import LightRetriever
from lightir.models.framing import Framed
from lightir.text import query_term_ids
from lightir.train.batches import batch_vectors
from lightir.train.batches.batch_vectors import batch_terms, framed_queries, full_query_states, light_query_vectors
from lightir.train.batches.share import share_of
from lightir.train.distill.teacher import Teacher, load_teacher
from lightir.train.recipes.contrastive_recipe import BranchEvaluation, ContrastiveRecipe, TeacherRecipe
from lightir.train.stages.contrastive_batch import batch_losses
from lightir.train.stages.head_fitting import fit_heads
from lightir.train.stages.stage_data import make_mixture, open_sets
from lightir.train.stages.stage_model import build_model
from tiny_models import write_sentence_transformer


class _Drawn:
    """A generator that returns a given sample."""

    def __init__(self, sample: np.ndarray, _: object) -> None:
        self.sample = sample

    def choice(self, *_: object, **__: object) -> np.ndarray:
        return self.sample


@pytest.fixture
def plain(recipe: ContrastiveRecipe) -> ContrastiveRecipe:
    """Return a recipe without dropout and with the full weight of FLOPS from the first step."""
    model = dataclasses.replace(recipe.model, lora_dropout=0.0)
    losses = dataclasses.replace(recipe.losses, flops=1.0, flops_ramp_steps=0)
    return dataclasses.replace(recipe, model=model, losses=losses)


@pytest.fixture
def prepared(plain: ContrastiveRecipe) -> tuple[LightRetriever, TrainingBatch]:
    sets, _ = open_sets(plain, negatives=[None, None])
    retriever = build_model(plain, device="cpu")
    fit_heads(retriever, plain, sets)
    return retriever, make_mixture(plain, sets).batch(0)


@pytest.fixture(scope="module")
def teacher_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sentence_transformer(tmp_path_factory.mktemp("teacher"))


def sampled(recipe: ContrastiveRecipe, n: int) -> ContrastiveRecipe:
    return dataclasses.replace(recipe, losses=dataclasses.replace(recipe.losses, sparse_terms=n))


def test_weights_of_some_terms_are_those_of_the_whole_vocabulary(
    prepared: tuple[LightRetriever, TrainingBatch],
) -> None:
    retriever, data = prepared
    batch = retriever.batch(retriever.frame_documents(data.documents))
    states = retriever.states(batch)
    terms = torch.tensor([5, 257, 0, 5])
    torch.testing.assert_close(
        retriever.sparse_from(states, batch, terms=terms), retriever.sparse_from(states, batch)[:, terms]
    )


def test_each_query_of_a_mixed_batch_is_behind_its_own_instruction(
    plain: ContrastiveRecipe, prepared: tuple[LightRetriever, TrainingBatch]
) -> None:
    retriever, data = prepared
    mixed = dataclasses.replace(data, instructions=("find a", "look for b", "find a", "c"))
    share = share_of(mixed, process=0, processes=1)
    light = light_query_vectors(retriever, share, plain)
    framed = framed_queries(retriever, mixed.queries, mixed.instructions)
    for row, (query, instruction) in enumerate(zip(mixed.queries, mixed.instructions, strict=True)):
        term_ids = query_term_ids(retriever.backbone.tokenizer, retriever.contract.query, [query])
        alone = retriever.light_queries(term_ids, instruction=instruction)
        torch.testing.assert_close(light[row : row + 1], alone, rtol=1e-4, atol=1e-5)
        assert framed[row] == retriever.frame_queries([query], instruction=instruction)[0]
    same = light_query_vectors(retriever, share_of(data, process=0, processes=1), plain)
    assert float((same - light).detach().abs().max()) > 1e-3
    parts, _ = batch_losses(retriever, mixed, plain, step=3)
    assert float(parts["dense"].detach()) != float(batch_losses(retriever, data, plain, step=3)[0]["dense"].detach())


def test_each_distinct_query_token_behind_an_instruction_is_encoded_once(
    plain: ContrastiveRecipe, prepared: tuple[LightRetriever, TrainingBatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    retriever, data = prepared
    mixed = dataclasses.replace(data, instructions=("a", "b", "a", "a"), queries=("abba", "aba", "cab", "abba"))
    encoded: list[tuple[str | None, list[int]]] = []
    original = LightRetriever.token_vectors

    def noted(self: LightRetriever, token_ids: Tensor, *, instruction: str | None = None, pad_to: int = 1) -> Tensor:
        encoded.append((instruction, token_ids.tolist()))
        return original(self, token_ids, instruction=instruction, pad_to=pad_to)

    monkeypatch.setattr(LightRetriever, "token_vectors", noted)
    light_query_vectors(retriever, share_of(mixed, process=0, processes=1), plain)
    for instruction, texts in (("a", ["abba", "cab", "abba"]), ("b", ["aba"])):
        term_ids = query_term_ids(retriever.backbone.tokenizer, retriever.contract.query, texts).term_ids.tolist()
        (ids,) = [ids for behind, ids in encoded if behind == instruction]
        assert ids == sorted(set(term_ids))
        assert len(ids) < len(term_ids)


def test_a_sample_of_terms_leaves_the_contrastive_losses_as_they_are(
    plain: ContrastiveRecipe, prepared: tuple[LightRetriever, TrainingBatch]
) -> None:
    retriever, data = prepared
    whole, _ = batch_losses(retriever, data, plain, step=3)
    part, _ = batch_losses(retriever, data, sampled(plain, 20), step=3)
    assert whole.keys() == part.keys()
    for name in whole.keys() - {"flops"}:
        torch.testing.assert_close(part[name], whole[name])
    assert float(whole["sparse"].detach()) > 0


def test_flops_of_samples_is_right_on_average(
    plain: ContrastiveRecipe, prepared: tuple[LightRetriever, TrainingBatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    retriever, data = prepared
    whole, seen = batch_losses(retriever, data, plain, step=0)
    result, counts = [], []
    pieces = np.split(
        np.random.default_rng(0).permutation(retriever.backbone.vocab_size), [43 * i for i in range(1, 6)]
    )
    for piece in pieces:  # six samples that cover the vocabulary of 258 once
        monkeypatch.setattr(batch_vectors.np.random, "default_rng", functools.partial(_Drawn, piece))
        parts, monitored = batch_losses(retriever, data, sampled(plain, 43), step=0)
        result.append(parts["flops"].detach())
        counts.append(monitored["nonzeros"])
    torch.testing.assert_close(torch.stack(result).mean(), whole["flops"].detach())
    assert np.mean(counts) == pytest.approx(seen["nonzeros"])


def test_every_step_draws_its_own_sample_and_draws_it_again(
    plain: ContrastiveRecipe, prepared: tuple[LightRetriever, TrainingBatch]
) -> None:
    retriever, data = prepared

    def ids(step: int) -> Tensor:
        drawn = batch_terms(retriever, data, sampled(plain, 20), step=step).ids
        assert drawn is not None
        return drawn

    assert torch.equal(ids(7), ids(7))
    assert not torch.equal(ids(7), ids(8))
    assert batch_terms(retriever, data, sampled(plain, 258), step=7).ids is None


def test_the_full_encoder_follows_the_teachers_scores(
    plain: ContrastiveRecipe, prepared: tuple[LightRetriever, TrainingBatch], teacher_folder: Path
) -> None:
    retriever, data = prepared
    recipe = dataclasses.replace(plain, teacher=TeacherRecipe(str(teacher_folder), weight=0.7, temperature=0.1))
    teacher = Teacher(load_teacher(teacher_folder), max_tokens=32)
    parts, _ = batch_losses(retriever, data, recipe, step=3, teacher=teacher)

    judge = load_teacher(teacher_folder)
    judge.contract = dataclasses.replace(
        judge.contract, document=dataclasses.replace(judge.contract.document, max_tokens=32)
    )

    def encoded(model: LightRetriever, framed: list[Framed]) -> Tensor:
        rows = []
        for item in framed:  # one text at a time
            batch = model.batch([item])
            rows.append(F.normalize(model.dense_from(model.states(batch), batch), dim=-1))
        return torch.cat(rows).detach().double()

    wanted = encoded(judge, judge.frame_queries(data.queries)) @ encoded(judge, judge.frame_documents(data.documents)).T
    queries = full_query_states(retriever, framed_queries(retriever, data.queries, data.instructions), recipe)
    full = F.normalize(retriever.dense_from(*queries), dim=-1).detach().double()
    scores = full @ encoded(retriever, retriever.frame_documents(data.documents)).T
    excluded = torch.from_numpy(data.false_negatives)
    p = torch.softmax((wanted / 0.1).masked_fill(excluded, -torch.inf), dim=1)
    log_q = torch.log_softmax((scores / recipe.losses.temperature).masked_fill(excluded, -torch.inf), dim=1)
    divergence = torch.where(p > 0, p * (p.clamp(min=1e-300).log() - log_q), 0.0).sum(1).mean()
    # The teacher's vectors are cached in float16.
    assert float(parts["teacher"].detach()) == pytest.approx(0.7 * float(divergence), rel=0.02)
    assert float(divergence) > 0.01


def test_under_autocast_nothing_is_rounded_after_the_backbone(
    plain: ContrastiveRecipe,
    prepared: tuple[LightRetriever, TrainingBatch],
    teacher_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Cosines in bfloat16 differ by 0.004, which a temperature of 0.02 turns into 0.2 of a logit."""
    recipe = dataclasses.replace(plain, teacher=TeacherRecipe(str(teacher_folder), weight=0.7))
    teacher = Teacher(load_teacher(teacher_folder), max_tokens=32)
    retriever, data = prepared
    given = teacher.queries(data.queries), teacher.documents(data.documents)  # its rounding is not tested
    monkeypatch.setattr(teacher, "queries", lambda _: given[0])
    monkeypatch.setattr(teacher, "documents", lambda _: given[1])

    def losses() -> dict[str, float]:
        parts, monitored = batch_losses(retriever, data, recipe, step=3, teacher=teacher)
        return {name: float(value) for name, value in monitored.items()} | {n: x.item() for n, x in parts.items()}

    expected, states = losses(), Backbone.states

    def exact(*given: Any, **named: Any) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return states(*given, **named)

    monkeypatch.setattr(Backbone, "states", exact)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert losses() == pytest.approx(expected, rel=1e-5)


def test_a_teacher_encodes_a_text_once(teacher_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    teacher = Teacher(load_teacher(teacher_folder), max_tokens=32)
    first = teacher.queries(["river stone", "cloud", "river stone"])
    torch.testing.assert_close(first[0], first[2])
    monkeypatch.setattr(teacher, "_encode", lambda framed: [] if not framed else pytest.fail("encoded again"))
    assert torch.equal(teacher.queries(["cloud", "river stone"]), first[[1, 0]])


def test_a_teacher_without_a_full_encoder_to_teach_is_refused(recipe: ContrastiveRecipe) -> None:
    losses = dataclasses.replace(recipe.losses, symmetric=0.0)
    with pytest.raises(InvalidInput, match="teaches the full encoder"):
        dataclasses.replace(recipe, losses=losses, teacher=TeacherRecipe("somewhere"))


def sparse_on_both_sides(recipe: ContrastiveRecipe, **heads: object) -> ContrastiveRecipe:
    """CSplade: no dense branch, queries through the sparse head, FLOPS on both sides."""
    losses = dataclasses.replace(
        recipe.losses,
        symmetric=0.0,
        dense=0.0,
        dense_alignment=0.0,
        sparse_alignment=0.0,
        symmetric_sparse=1.0,
        flops=0.3,
        query_flops=0.2,
        dims=(),
    )
    changed = dataclasses.replace(recipe.heads, dense=False, standardize=False, **heads)
    return dataclasses.replace(recipe, losses=losses, heads=changed, evaluation=BranchEvaluation(), method="csplade")


def prepare(recipe: ContrastiveRecipe) -> tuple[LightRetriever, TrainingBatch]:
    sets, _ = open_sets(recipe, negatives=[None, None])
    retriever = build_model(recipe, device="cpu")
    fit_heads(retriever, recipe, sets)
    return retriever, make_mixture(recipe, sets).batch(0)


@pytest.mark.parametrize("attention", ["causal", "bidirectional", "echo"])
def test_sparse_vectors_on_both_sides_are_contrasted_by_their_inner_products(
    plain: ContrastiveRecipe, attention: str
) -> None:
    recipe = sparse_on_both_sides(plain)
    recipe = dataclasses.replace(recipe, model=dataclasses.replace(recipe.model, attention=attention))
    retriever, data = prepare(recipe)
    parts, monitored = batch_losses(retriever, data, recipe, step=3)

    def weights(framed: list[Framed]) -> Tensor:
        rows = []
        for item in framed:  # one text at a time
            batch = retriever.batch([item])
            states = retriever.states(batch).detach().double()[batch.own_mask]
            assert retriever.backbone.head is not None
            assert retriever.heads.term_bias is not None
            logits = states @ retriever.backbone.head.weight.double().T
            rows.append(torch.log1p(torch.relu(logits.amax(0) + retriever.heads.term_bias.double())))
        return torch.stack(rows)

    queries = weights(retriever.frame_queries(data.queries, instruction=data.instructions[0]))
    documents = weights(retriever.frame_documents(data.documents))
    scores = (queries @ documents.T).masked_fill(torch.from_numpy(data.false_negatives), -torch.inf)
    contrast = F.cross_entropy(scores, torch.arange(len(data.queries)))
    assert parts.keys() == {"sparse", "flops", "symmetric_sparse", "query_flops"}
    assert float(parts["symmetric_sparse"].detach()) == pytest.approx(float(contrast), rel=1e-4)
    assert float(parts["query_flops"].detach()) == pytest.approx(0.2 * float(queries.mean(0).square().sum()), rel=1e-4)
    assert float(parts["flops"].detach()) == pytest.approx(0.3 * float(documents.mean(0).square().sum()), rel=1e-4)
    assert monitored["query_nonzeros"] == pytest.approx(float((queries > 0).sum(1).double().mean()))
    assert set(monitored) == {"cosine", "nonzeros", "dead", "query_nonzeros"}
    assert monitored["dead"] == pytest.approx(float((documents == 0).all(0).double().mean()))
    assert retriever.contract.method == "csplade"
    assert retriever.contract.dense is None


def test_the_straight_through_gradient_changes_no_value(plain: ContrastiveRecipe) -> None:
    hard, soft = sparse_on_both_sides(plain), sparse_on_both_sides(plain, straight_through=True)
    result = []
    for recipe in (hard, soft):
        retriever, data = prepare(recipe)
        parts, _ = batch_losses(retriever, data, recipe, step=3)
        learning = [p for p in retriever.trunk.parameters() if p.requires_grad]
        gradients = torch.autograd.grad(torch.stack(list(parts.values())).sum(), learning)
        result.append((parts, torch.cat([gradient.flatten() for gradient in gradients])))
    (values, one), (same, other) = result
    for name in values:
        torch.testing.assert_close(same[name], values[name], atol=1e-6, rtol=1e-5)
    assert not torch.allclose(one, other, rtol=1e-2)


def test_documents_and_queries_have_the_straight_through_gradient(
    plain: ContrastiveRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen, sparse_from = [], LightRetriever.sparse_from

    def noting(retriever: LightRetriever, *arguments: Any, **settings: Any) -> Any:
        chosen.append(settings.get("straight_through", False))
        return sparse_from(retriever, *arguments, **settings)

    monkeypatch.setattr(LightRetriever, "sparse_from", noting)
    recipe = sparse_on_both_sides(plain, straight_through=True)
    retriever, data = prepare(recipe)
    batch_losses(retriever, data, recipe, step=3)
    assert chosen == [True, True]


@pytest.mark.parametrize(
    ("losses", "heads", "message"),
    [
        ({"symmetric": 1.0}, {}, "heads.dense is false"),
        ({}, {"standardize": True}, "standardize false"),
        ({"sparse_terms": 9}, {}, "must be 0"),
        ({"symmetric_sparse": 0.0}, {}, "method csplade"),
        ({}, {"activation": "elu1p", "straight_through": True}, "requires the activation"),
        ({"symmetric_sparse": 0.0, "sparse": 0.0, "query_flops": 0.0}, {}, "must be above 0"),
    ],
)
def test_losses_and_heads_that_contradict_each_other_are_refused(
    plain: ContrastiveRecipe, losses: dict[str, float], heads: dict[str, object], message: str
) -> None:
    recipe = sparse_on_both_sides(plain)
    with pytest.raises(InvalidInput, match=message):
        dataclasses.replace(
            recipe,
            losses=dataclasses.replace(recipe.losses, **losses),
            heads=dataclasses.replace(recipe.heads, **heads),
        )
