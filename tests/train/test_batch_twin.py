"""The whole batch loss against a twin in double precision: loops over queries and documents, one text at a time."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from lightir.data import TrainingBatch
from lightir.models.encoder import LightRetriever
from lightir.text import query_term_ids
from lightir.train.recipes.contrastive_recipe import ContrastiveRecipe
from lightir.train.run import loop
from lightir.train.run.loop import Loop
from lightir.train.stages.contrastive import Contrastive
from lightir.train.stages.contrastive_batch import batch_losses
from lightir.train.stages.head_fitting import fit_heads
from lightir.train.stages.stage_data import make_mixture, open_sets
from lightir.train.stages.stage_model import build_model
from processes import assert_same, first_of, gradients_of, wake_lora

STEP = 3
CONTRAST, TEMPERATURE, SPARSE_TEMPERATURE, DISTILLATION_TEMPERATURE = 0.7, 0.15, 1.7, 2.5
WEIGHTS = {
    "symmetric": 0.9,
    "dense": 0.8,
    "sparse": 1.1,
    "symmetric_sparse": 0.6,
    "dense_alignment": 1.3,
    "sparse_alignment": 0.5,
    "flops": 0.4,
    "query_flops": 0.25,
}
"""Weights of the parts, all different, so that a wrong or missing one shows."""

WIDTHS = (32, 16, 8)
DISTILLATION = 0.35
RAMP = (STEP / 4) ** 2


def with_all_losses(recipe: ContrastiveRecipe, distillation_loss: Literal["kl", "margin_mse"]) -> ContrastiveRecipe:
    """Return a recipe with every part of the loss, whose temperatures, widths and weights all differ."""
    losses = dataclasses.replace(
        recipe.losses,
        **WEIGHTS,
        contrast=CONTRAST,
        temperature=TEMPERATURE,
        sparse_temperature=SPARSE_TEMPERATURE,
        dims=WIDTHS[1:],
        flops_ramp_steps=4,
        distillation=DISTILLATION,
        distillation_loss=distillation_loss,
        distillation_temperature=DISTILLATION_TEMPERATURE,
    )
    return dataclasses.replace(recipe, losses=losses, model=dataclasses.replace(recipe.model, lora_dropout=0.0))


def prepared(recipe: ContrastiveRecipe) -> tuple[LightRetriever, TrainingBatch]:
    """Return a model and a batch with two instructions, known positives to leave out, and scores of some documents."""
    sets, _ = open_sets(recipe, negatives=[None, None])
    retriever = build_model(recipe, device="cpu")
    fit_heads(retriever, recipe, sets)
    wake_lora(retriever.trunk.named_parameters())
    batch = make_mixture(recipe, sets).batch(0)
    rng = np.random.default_rng(0)
    excluded = rng.random(batch.false_negatives.shape) < 0.3
    scores = np.where(rng.random(excluded.shape) < 0.7, rng.normal(size=excluded.shape), np.nan).astype(np.float32)
    for row in range(len(batch.queries)):
        excluded[row, row], scores[row, row] = False, 1.5 + row
    scores[-1] = np.nan  # a query that no teacher scored
    instructions = ("find a river", "", "answer", "find a river")
    return retriever, dataclasses.replace(batch, instructions=instructions, false_negatives=excluded, scores=scores)


class Vectors:
    """The vectors of a batch in double precision, each text and each query token encoded alone."""

    def __init__(self, retriever: LightRetriever, batch: TrainingBatch) -> None:
        """Encode the batch's documents and queries."""
        self.documents, self.document_terms = self._encode(retriever, retriever.frame_documents(batch.documents))
        queries = list(zip(batch.queries, batch.instructions, strict=True))
        framed = [retriever.frame_queries([text], instruction=instruction)[0] for text, instruction in queries]
        self.full, self.query_terms = self._encode(retriever, framed)
        self.light, self.counts = [], []
        for text, instruction in queries:
            ids = query_term_ids(retriever.backbone.tokenizer, retriever.contract.query, [text]).row(0).tolist()
            tokens = [retriever.token_vectors(torch.tensor([token]), instruction=instruction)[0] for token in ids]
            self.light.append(torch.stack(tokens).double().mean(0))
            self.counts.append({token: ids.count(token) for token in ids})

    @staticmethod
    def _encode(retriever: LightRetriever, framed: list[Any]) -> tuple[list[Tensor], list[Tensor]]:
        dense, terms = [], []
        for item in framed:
            batch = retriever.batch([item])
            states = retriever.states(batch)
            dense.append(retriever.dense_from(states, batch)[0].double())
            terms.append(retriever.sparse_from(states, batch)[0].double())
        return dense, terms


def cosine(a: Tensor, b: Tensor, width: int) -> Tensor:
    """Return the cosine of two vectors that are cut to a width."""
    a, b = a[:width], b[:width]
    return (a @ b) / (a @ a).sqrt() / (b @ b).sqrt()


class Twin:
    """The parts of the loss by their definitions."""

    def __init__(self, vectors: Vectors, batch: TrainingBatch, distillation_loss: str) -> None:
        """Take the vectors, the batch, and how given scores are learned from."""
        self.vectors, self.batch, self.distillation_loss = vectors, batch, distillation_loss
        self.n, self.n_documents = len(batch.queries), len(batch.documents)

    def candidates(self, query: int) -> list[int]:
        """Return the documents of a query's softmax."""
        return [d for d in range(self.n_documents) if not self.batch.false_negatives[query, d]]

    def info_nce(self, logits: list[list[Tensor]]) -> Tensor:
        """Return the mean of -log(e^positive / sum of e^candidate)."""
        terms = []
        for query in range(self.n):
            total = sum((logits[query][d].exp() for d in self.candidates(query)), start=torch.zeros(()).double())
            terms.append(total.log() - logits[query][query])
        return torch.stack(terms).mean()

    def divergence(self, student: list[Tensor], teacher: list[Tensor]) -> Tensor:
        """Return KL(softmax(teacher) || softmax(student)); the teacher is a constant."""
        p = [value.detach().exp() for value in teacher]
        p = [value / sum(p) for value in p]
        total = sum((value.exp() for value in student), start=torch.zeros(()).double()).log()
        return torch.stack([q * (q.log() - (s - total)) for q, s in zip(p, student, strict=True)]).sum()

    def alignment(self, student: list[list[Tensor]], teacher: list[list[Tensor]]) -> Tensor:
        """Return the mean over queries of the divergence over a query's candidates (Eq. 5)."""
        rows = [
            self.divergence(*([scores[query][d] for d in self.candidates(query)] for scores in (student, teacher)))
            for query in range(self.n)
        ]
        return torch.stack(rows).mean()

    def distilled(self, logits: list[list[Tensor]]) -> Tensor:
        """Return the loss against the given scores, of documents that have one."""
        assert self.batch.scores is not None
        terms = []
        for query, row in enumerate(self.batch.scores.astype(np.float64) / DISTILLATION_TEMPERATURE):
            known = [d for d in range(self.n_documents) if not math.isnan(row[d])]
            if self.distillation_loss == "kl" and known:
                given = [torch.tensor(row[d]) for d in known]
                terms.append(self.divergence([logits[query][d] for d in known], given))
            elif known:
                others = [d for d in known if d != query]
                terms += [(logits[query][query] - logits[query][d] - (row[query] - row[d])) ** 2 for d in others]
        return torch.stack(terms).mean()

    def table(self, score: Any) -> list[list[Tensor]]:
        """Return score(query, document) of every pair."""
        return [[score(query, document) for document in range(self.n_documents)] for query in range(self.n)]

    def parts(self) -> dict[str, Tensor]:
        """Return the weighted parts by their names in the log."""
        v = self.vectors
        full = self.table(lambda q, d: cosine(v.full[q], v.documents[d], WIDTHS[0]) / TEMPERATURE)
        logits: dict[str, list[list[list[Tensor]]]] = {
            name: [
                self.table(lambda q, d, w=width, a=queries: cosine(a[q], v.documents[d], w) / TEMPERATURE)
                for width in WIDTHS
            ]
            for name, queries in (("symmetric", v.full), ("dense", v.light))
        }
        logits["sparse"] = [self.table(lambda q, d: self._counted(q, d) / SPARSE_TEMPERATURE)]
        logits["symmetric_sparse"] = [
            self.table(lambda q, d: v.query_terms[q] @ v.document_terms[d] / SPARSE_TEMPERATURE)
        ]
        parts = {}
        for name, widths in logits.items():
            contrast = torch.stack([self.info_nce(table) for table in widths]).sum()
            given = torch.stack([self.distilled(table) for table in widths]).sum()
            parts[name] = WEIGHTS[name] * CONTRAST * contrast
            parts[f"{name}_distillation"] = WEIGHTS[name] * DISTILLATION * given
        aligned = {name: sum(self.alignment(table, full) for table in logits[name]) for name in ("dense", "sparse")}
        parts |= {f"{name}_alignment": WEIGHTS[f"{name}_alignment"] * value for name, value in aligned.items()}
        for name, rows in (("flops", v.document_terms), ("query_flops", v.query_terms)):
            means = [sum(row[term] for row in rows) / len(rows) for term in range(len(rows[0]))]
            parts[name] = WEIGHTS[name] * RAMP * torch.stack([mean**2 for mean in means]).sum()
        return parts

    def _counted(self, query: int, document: int) -> Tensor:
        weights = self.vectors.document_terms[document]
        return torch.stack([n * weights[term] for term, n in self.vectors.counts[query].items()]).sum()


@pytest.mark.parametrize("distillation_loss", ["kl", "margin_mse"])
def test_every_part_of_a_batchs_loss_has_the_twins_value_and_gradient(
    distillation_loss: Literal["kl", "margin_mse"], recipe: ContrastiveRecipe
) -> None:
    recipe = with_all_losses(recipe, distillation_loss)
    retriever, batch = prepared(recipe)
    learning = {name: p for name, p in retriever.trunk.named_parameters() if p.requires_grad}
    actual, _ = batch_losses(retriever, batch, recipe, step=STEP)
    expected = Twin(Vectors(retriever, batch), batch, distillation_loss).parts()
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(
            actual[name].double(), value, rtol=2e-4, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}"
        )
        gradients = [
            torch.autograd.grad(part, list(learning.values()), retain_graph=True, allow_unused=True)
            for part in (actual[name], value)
        ]
        one, other = (
            torch.cat([torch.zeros(p.numel()) if g is None else g.flatten() for g, p in pairs])
            for pairs in (zip(row, learning.values(), strict=True) for row in gradients)
        )
        assert float(other.norm()) > 0, name
        assert float((one - other).norm()) <= 2e-3 * float(other.norm()), name


def test_two_processes_have_every_parts_gradient_of_one(recipe: ContrastiveRecipe, tmp_path: Path) -> None:
    recipe = with_all_losses(recipe, "kl")

    def gradients() -> dict[str, Tensor]:
        result = {}
        for name in WEIGHTS:
            retriever, batch = prepared(recipe)
            learning = {n: p for n, p in retriever.trunk.named_parameters() if p.requires_grad}
            parts, _ = batch_losses(retriever, batch, recipe, step=STEP)
            result |= {f"{name} {n}": g for n, g in gradients_of({name: parts[name]}, learning).items()}
        return {name: gradient for name, gradient in result.items() if float(gradient.norm()) > 0}

    assert_same(first_of(2, gradients, tmp_path), gradients(), rtol=1e-3)


def test_a_steps_gradient_is_the_mean_over_its_forward_passes(
    recipe: ContrastiveRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AdamW hardly depends on the gradient's scale, but clipping and the logged norm do."""
    settings = dataclasses.replace(recipe.optimisation, accumulation=3, max_gradient_norm=1e9)
    plain = dataclasses.replace(with_all_losses(recipe, "kl"), optimisation=settings)
    plain = dataclasses.replace(plain, losses=dataclasses.replace(plain.losses, distillation=0.0))
    stage = Contrastive(plain, tmp_path / "negatives", "cpu")
    wake_lora(stage.parameters.items())
    passes = []
    for number in range(3):
        parts, _ = stage.losses(number, step=0)
        loss = torch.stack(list(parts.values())).sum()
        passes.append(torch.autograd.grad(loss, list(stage.parameters.values()), allow_unused=True))
    expected = [sum(g for g in row if g is not None) / 3 for row in zip(*passes, strict=True)]
    taken: list[Mapping[str, Tensor]] = []
    run = Loop(plain, stage, tmp_path, "cpu")
    monkeypatch.setattr(
        run.optimizer,
        "step",
        lambda: taken.append({n: p.grad.clone() for n, p in run.parameters.items() if p.grad is not None}),
    )
    monkeypatch.setattr(loop, "COLLAPSED", 2.0)
    record = run._optimizer_step()
    for (name, gradient), wanted in zip(taken[0].items(), expected, strict=True):
        torch.testing.assert_close(gradient, wanted, rtol=1e-3, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")
    norm = math.sqrt(sum(float(wanted.double().square().sum()) for wanted in expected))
    assert record["gradient_norm"] == pytest.approx(norm, rel=1e-3)
