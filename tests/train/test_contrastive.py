"""The contrastive stage: its model folder, exact resume, accumulation, and any number of processes."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from collections_for_training import write_dataset
from interrupted import cut
from lightir.contract import Contract, Fusion
from lightir.data import TrainingBatch
from lightir.errors import AlreadyExists, FormatError, InvalidInput, NotFound
from lightir.models.backbones import load_backbone
from lightir.models.encoder import LightRetriever
from lightir.models.own_weights import all_weights
from lightir.train.batches.share import share_of
from lightir.train.recipes.contrastive_recipe import ContrastiveRecipe, LossWeights
from lightir.train.recipes.recipe_files import recipe_yaml
from lightir.train.recipes.settings import DataRecipe
from lightir.train.run import loop
from lightir.train.run.loop import Loop, learning_rate_share
from lightir.train.run.stage import DevelopmentResult
from lightir.train.stages.contrastive import Contrastive, train
from lightir.train.stages.contrastive_batch import batch_losses
from lightir.train.stages.head_fitting import fit_heads
from lightir.train.stages.registry import STAGES, read_recipe
from lightir.train.stages.stage_data import make_mixture, open_sets
from lightir.train.stages.stage_model import build_model
from lightir.types import Document
from processes import assert_same, first_of, gradients_of, wake_lora
from tiny_models import save_tiny


def with_settings(recipe: ContrastiveRecipe, **changes: object) -> ContrastiveRecipe:
    return dataclasses.replace(recipe, optimisation=dataclasses.replace(recipe.optimisation, **changes))


def records(model: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (model / "training" / "log.jsonl").read_text().splitlines()]


def losses_of(model: Path) -> list[tuple[object, object]]:
    return [(record["step"], record["loss"]) for record in records(model) if "loss" in record]


def test_a_model_folder_loads_again_and_its_loss_has_fallen(recipe: ContrastiveRecipe, tmp_path: Path) -> None:
    out = train(with_settings(recipe, steps=40), tmp_path / "model", device="cpu")
    losses = [float(loss) for _, loss in losses_of(out)]  # type: ignore[arg-type]
    assert np.mean(losses[-8:]) < np.mean(losses[:8])
    retriever = LightRetriever.load(out)
    assert retriever.contract.document.max_tokens == 48
    assert retriever.contract.query == recipe.query
    assert {"recipe.yaml", "log.jsonl", "data.json", "environment.json"} <= {
        p.name for p in (out / "training").iterdir()
    }
    assert read_recipe(out / "training" / "recipe.yaml") == (STAGES["contrastive"], with_settings(recipe, steps=40))
    assert not (tmp_path / "model.run").exists()


def test_an_encoder_learns_too(recipe: ContrastiveRecipe, tmp_path: Path) -> None:
    save_tiny("bert", tmp_path / "bert")
    model = dataclasses.replace(recipe.model, address=str(tmp_path / "bert"), attention="bidirectional")
    recipe = dataclasses.replace(with_settings(recipe, steps=30), model=model)
    out = train(recipe, tmp_path / "model", device="cpu")
    losses = [float(loss) for _, loss in losses_of(out)]  # type: ignore[arg-type]
    assert np.mean(losses[-8:]) < np.mean(losses[:8])
    assert LightRetriever.load(out).contract.backbone.kind == "encoder"


@pytest.mark.parametrize(("name", "plain"), [("llama", False), ("bert", False), ("bert", True)])
def test_all_weights_are_trained_kept_and_resumed(
    recipe: ContrastiveRecipe, tmp_path: Path, name: str, plain: bool
) -> None:
    """Train all weights with lora_rank 0; an encoder without a head has only the dense branch."""
    save_tiny(name, tmp_path / "backbone", plain=plain)
    both_ways = "bidirectional" if name == "bert" else "causal"
    model = dataclasses.replace(
        recipe.model, address=str(tmp_path / "backbone"), attention=both_ways, lora_rank=0, lora_dropout=0.0
    )
    recipe = dataclasses.replace(with_settings(recipe, steps=20, learning_rate=1e-3), model=model)
    if plain:
        recipe = dataclasses.replace(
            recipe,
            losses=LossWeights(sparse=0, flops=0),
            heads=dataclasses.replace(recipe.heads, sparse=False, calibrate=0.0, recalibrate=False),
            evaluation=dataclasses.replace(recipe.evaluation, by="dense"),
        )
    whole = train(recipe, tmp_path / "whole", device="cpu")
    losses = [float(loss) for _, loss in losses_of(whole)]  # type: ignore[arg-type]
    assert np.mean(losses[-6:]) < np.mean(losses[:6])
    assert not (whole / "adapter").exists()
    cut(lambda: train(recipe, tmp_path / "cut", device="cpu"))
    resumed = train(recipe, tmp_path / "cut", resume=True, device="cpu")
    assert losses_of(resumed) == losses_of(whole)
    assert Contract.load(whole) == Contract.load(resumed)  # the hash of the weights is in it
    before, after = load_backbone(tmp_path / "backbone"), LightRetriever.load(whole).backbone
    assert after.kind == ("encoder" if name == "bert" else "causal")
    moved = {n for n, weight in all_weights(after).items() if not torch.equal(weight, all_weights(before)[n])}
    assert any("embed" in item for item in moved)
    assert any(item.startswith("head.") for item in moved) == (not plain)


TORCHRUN = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2")
ACCELERATE = (
    *("accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1"),
    *("--main_process_port", "0", "--mixed_precision", "no", "--dynamo_backend", "no"),
)
"""Arguments of accelerate; without --multi_gpu it starts one process on a machine without GPUs."""


@pytest.mark.parametrize("launcher", [TORCHRUN, ACCELERATE], ids=["torchrun", "accelerate"])
def test_a_launchers_processes_take_the_steps_of_one(
    launcher: tuple[str, ...], recipe: ContrastiveRecipe, tmp_path: Path
) -> None:
    model = dataclasses.replace(recipe.model, lora_dropout=0.0)
    recipe = dataclasses.replace(with_settings(recipe, steps=3), model=model)
    recipe = dataclasses.replace(recipe, evaluation=dataclasses.replace(recipe.evaluation, sets=()))
    (tmp_path / "recipe.yaml").write_text(recipe_yaml(recipe))
    command = ["-m", "lightir", "train", str(tmp_path / "recipe.yaml"), "--device", "cpu", "-o", str(tmp_path / "two")]
    done = subprocess.run([sys.executable, "-m", *launcher, *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("model written to") == 1
    assert json.loads((tmp_path / "two" / "training" / "environment.json").read_text())["processes"] == 2
    one = train(recipe, tmp_path / "one", device="cpu")
    for ours, theirs in zip(losses_of(tmp_path / "two"), losses_of(one), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4)


def test_the_log_holds_losses_norms_and_development_measures(recipe: ContrastiveRecipe, tmp_path: Path) -> None:
    result = records(train(recipe, tmp_path / "model", device="cpu"))
    steps = [item for item in result if "loss" in item]
    parts = ("symmetric", "dense", "sparse", "dense_alignment", "sparse_alignment", "flops")
    assert len(steps) == 6
    for step in steps:
        assert step["loss"] == pytest.approx(sum(step[name] for name in parts), rel=1e-5)  # type: ignore[misc]
        assert {"gradient_norm", "nonzeros", "cosine", "docs_per_s", "learning_rate", "dataset"} <= set(step)
    measured = [item["development"]["mean"] for item in result if "development" in item]  # type: ignore[index]
    assert len(measured) == 2
    assert set(measured[0]) == {"symmetric", "dense", "sparse", "hybrid", "symmetric_hybrid"}


BRANCHES = {
    "all": {},
    "no sparse head": {"heads.sparse": False, "losses.sparse": 0, "losses.flops": 0, "losses.sparse_alignment": 0},
    "no dense head": {
        "heads.dense": False,
        "heads.standardize": False,
        "losses.symmetric": 0,
        "losses.dense": 0,
        "losses.dense_alignment": 0,
        "losses.sparse_alignment": 0,
        "losses.dims": [],
    },
    "both sides sparse": {"losses.symmetric_sparse": 1},
    "both ways, light queries untrained": {"model.attention": "bidirectional", "losses.dense": 0},
    "both ways": {"model.attention": "bidirectional"},
    "echo": {"model.attention": "echo", "losses.dense": 0, "losses.dense_alignment": 0},
    "a suffix": {"query.suffix": " end", "losses.dense": 0, "losses.dense_alignment": 0},
    "two ends": {"documents.ends": 2, "losses.dense": 0, "losses.dense_alignment": 0},
}


@pytest.mark.parametrize("changes", BRANCHES.values(), ids=BRANCHES)
def test_a_recipe_knows_what_its_evaluation_measures(
    changes: dict[str, object], recipe: ContrastiveRecipe, tmp_path: Path
) -> None:
    """Refuse evaluation.by before the run instead of in its first evaluation, which may be at its end."""
    (tmp_path / "recipe.yaml").write_text(recipe_yaml(with_settings(recipe, steps=1)))
    overrides = [f"{key}={json.dumps(value)}" for key, value in {**changes, "evaluation.sets": []}.items()]
    _, wanted = read_recipe(tmp_path / "recipe.yaml", overrides=overrides)
    by = wanted.measures[0]
    wanted = dataclasses.replace(wanted, evaluation=dataclasses.replace(recipe.evaluation, by=by))
    measured = records(train(wanted, tmp_path / "model", device="cpu"))[-1]["development"]["mean"]  # type: ignore[index]
    assert set(wanted.measures) == measured.keys() - {"symmetric_hybrid"}
    for name in {"symmetric", "dense", "sparse", "symmetric_sparse", "hybrid"} - set(wanted.measures):
        with pytest.raises(InvalidInput, match=rf"evaluation.by is '{name}'.*expected one of .*{by}"):
            dataclasses.replace(wanted, evaluation=dataclasses.replace(recipe.evaluation, by=name))


def test_more_terms_than_the_vocabulary_has_are_no_target(recipe: ContrastiveRecipe, tmp_path: Path) -> None:
    losses = dataclasses.replace(recipe.losses, flops_target=100_000)
    with pytest.raises(InvalidInput, match="flops_target is 100000, but the vocabulary has 258 terms"):
        train(dataclasses.replace(recipe, losses=losses), tmp_path / "model", device="cpu")


def test_a_resumed_run_equals_an_uninterrupted_one(recipe: ContrastiveRecipe, tmp_path: Path) -> None:
    whole = train(recipe, tmp_path / "whole", device="cpu")
    cut(lambda: train(recipe, tmp_path / "cut", device="cpu"))
    with pytest.raises(AlreadyExists, match="unfinished run"):
        train(recipe, tmp_path / "cut", device="cpu")
    resumed = train(recipe, tmp_path / "cut", resume=True, device="cpu")
    assert losses_of(resumed) == losses_of(whole)
    a, b = (load_file(str(m / "adapter" / "adapter_model.safetensors")) for m in (whole, resumed))
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert Contract.load(whole) == Contract.load(resumed)


def test_the_best_state_is_what_is_kept_also_after_a_resume(
    recipe: ContrastiveRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every step is evaluated and the second is made the best: the model folder has its weights."""
    seen: dict[int, dict[str, torch.Tensor]] = {}
    original = Loop.evaluate

    def evaluate(self: Loop) -> None:
        seen[self.step] = {name: parameter.detach().clone() for name, parameter in self.parameters.items()}
        score = 1.0 if self.step == 2 else 1.0 / (2 + self.step)
        monkeypatch.setattr(self.stage, "evaluate", lambda: DevelopmentResult(score, {}))
        original(self)

    monkeypatch.setattr(Loop, "evaluate", evaluate)
    every = dataclasses.replace(recipe, evaluation=dataclasses.replace(recipe.evaluation, every=1))
    whole = train(every, tmp_path / "whole", device="cpu")
    cut(lambda: train(every, tmp_path / "cut", device="cpu"))
    resumed = train(every, tmp_path / "cut", resume=True, device="cpu")
    for out in (whole, resumed):
        assert json.loads((out / "training" / "environment.json").read_text())["kept"] == {"step": 2, "score": 1.0}
        model = dict(LightRetriever.load(out, merge=False).trunk.named_parameters())
        for name, item in seen[2].items():
            torch.testing.assert_close(model[name], item, rtol=0.01, atol=0)  # adapters are kept in bfloat16
            assert not torch.allclose(model[name], seen[6][name], rtol=0.01, atol=0)


def test_resume_is_refused_without_a_checkpoint_and_under_another_recipe(
    recipe: ContrastiveRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NotFound, match="no checkpoint"):
        train(recipe, tmp_path / "none", resume=True, device="cpu")
    monkeypatch.setattr(Loop, "finish", lambda self, out: out)
    train(recipe, tmp_path / "begun", device="cpu")
    with pytest.raises(FormatError, match=r"another recipe: recipe\.optimisation\.learning_rate was .* and is 0\.001"):
        train(with_settings(recipe, learning_rate=1e-3), tmp_path / "begun", resume=True, device="cpu")


def test_a_run_is_not_resumed_on_data_or_weights_that_changed_since(recipe: ContrastiveRecipe, tmp_path: Path) -> None:
    folder, base = write_dataset(tmp_path / "mine", "mine"), tmp_path / "llama"
    save_tiny("llama", base)
    model = dataclasses.replace(recipe.model, address=str(base))
    recipe = dataclasses.replace(recipe, model=model, data=(DataRecipe(str(folder)), recipe.data[1]))
    cut(lambda: train(recipe, tmp_path / "model", device="cpu"))

    def refused(path: Path, changed: bytes, message: str) -> None:
        before = path.read_bytes()
        assert changed != before
        path.write_bytes(changed)
        with pytest.raises(FormatError, match=message):
            train(recipe, tmp_path / "model", resume=True, device="cpu")
        path.write_bytes(before)

    corpus, weights = folder / "corpus.jsonl", base / "model.safetensors"
    text = corpus.read_bytes().replace(b"text about the river", b"text about a river")
    refused(corpus, text, r"belongs to other data .* data\.mine\.fingerprint was '\w{16}' and is '\w{16}'; resume")
    refused(weights, weights.read_bytes()[:-4] + b"abcd", r"another backbone: backbone was '\w+' and is '\w+'; resume")
    train(recipe, tmp_path / "model", resume=True, device="cpu")


def test_schedules_step_once_for_an_optimizer_step(
    recipe: ContrastiveRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []
    losses = Contrastive.losses

    def noted(stage: Contrastive, number: int, *, step: int) -> Any:
        asked.append((number, step))  # the step decides FLOPS' ramp
        return losses(stage, number, step=step)

    monkeypatch.setattr(Contrastive, "losses", noted)
    rates = []
    for accumulation in (1, 2):
        settings = with_settings(recipe, accumulation=accumulation, warmup_steps=5)
        out = train(settings, tmp_path / f"a{accumulation}", device="cpu")
        rates.append([record["learning_rate"] for record in records(out) if "loss" in record])
    assert rates[0] == rates[1]
    assert len(set(rates[0])) == 6
    assert asked == [*((n, n) for n in range(6)), *((n, n // 2) for n in range(12))]


def test_the_learning_rate_rises_and_falls_to_its_share(recipe: ContrastiveRecipe) -> None:
    settings = with_settings(recipe, steps=100, warmup_steps=9, final_share=0.1)
    shares = [learning_rate_share(step, step / 100, settings.optimisation) for step in range(100)]
    assert shares[0] == pytest.approx(0.1)
    assert int(np.argmax(shares)) == 9
    assert shares[-1] == pytest.approx(0.1, abs=1e-3)


@pytest.mark.parametrize(("steps", "warmup", "final"), [(100, 9, 0.1), (12_000, 100, 0.1), (10_000, 1_000, 0.0)])
def test_the_learning_rate_is_a_line_and_then_a_cosine_over_the_remaining_steps(
    recipe: ContrastiveRecipe, steps: int, warmup: int, final: float
) -> None:
    settings = with_settings(recipe, steps=steps, warmup_steps=warmup, final_share=final).optimisation
    for step in (0, warmup - 1, warmup, (steps + warmup) // 2, (steps + warmup) // 2 + 1, steps - 1):
        if step < warmup:
            expected = (step + 1) / (warmup + 1)
        else:
            angle = np.pi * (step - warmup) / (steps - warmup)
            expected = final + (1 - final) * (1 + np.cos(angle)) / 2
        assert learning_rate_share(step, step / steps, settings) == pytest.approx(expected, rel=1e-12)


def test_a_linear_schedule_is_a_line_up_and_a_line_down(recipe: ContrastiveRecipe) -> None:
    settings = with_settings(recipe, steps=110, warmup_steps=10, schedule="linear", final_share=0.0).optimisation
    shares = [learning_rate_share(step, step / 110, settings) for step in range(110)]
    assert shares[:10] == pytest.approx([(step + 1) / 11 for step in range(10)])
    assert shares[10:] == pytest.approx([1 - step / 100 for step in range(100)])
    settings = with_settings(recipe, steps=110, warmup_steps=10, schedule="linear", final_share=0.2).optimisation
    assert learning_rate_share(60, 60 / 110, settings) == pytest.approx(0.6)


def test_a_run_that_only_warms_up_has_no_cosine(recipe: ContrastiveRecipe) -> None:
    settings = with_settings(recipe, steps=5, warmup_steps=9, final_share=0.0).optimisation
    assert [learning_rate_share(step, step / 5, settings) for step in range(5)] == pytest.approx(
        [0.1, 0.2, 0.3, 0.4, 0.5]
    )


def test_a_time_budget_ends_a_run(recipe: ContrastiveRecipe, tmp_path: Path) -> None:
    out = train(with_settings(recipe, steps=10_000, max_minutes=0.03), tmp_path / "model", device="cpu")
    assert 0 < len(losses_of(out)) < 10_000


def test_a_weight_of_zero_leaves_the_part_out(recipe: ContrastiveRecipe, tmp_path: Path) -> None:
    losses = dataclasses.replace(recipe.losses, symmetric=0.0, flops=0.0, sparse=0.0, dense_alignment=0.0)
    out = train(dataclasses.replace(recipe, losses=losses), tmp_path / "model", device="cpu")
    step = next(record for record in records(out) if "loss" in record)
    assert "dense" in step
    assert not {"symmetric", "dense_alignment", "sparse", "flops", "nonzeros"} & set(step)


def test_shares_cover_a_batch_and_point_at_the_positives(recipe: ContrastiveRecipe) -> None:
    sets, _ = open_sets(recipe, negatives=[None, None])
    batch = make_mixture(recipe, sets).batch(0)
    shares = [share_of(batch, process=rank, processes=2) for rank in range(2)]
    gathered = [document for share in shares for document in share.documents]
    assert sorted(d.doc_id for d in gathered) == sorted(d.doc_id for d in batch.documents)
    for share in shares:
        for row, column in enumerate(share.positives):
            assert gathered[column].doc_id == batch.documents[row].doc_id
            assert not share.excluded[row, column]
    with pytest.raises(InvalidInput, match="does not divide"):
        share_of(batch, process=0, processes=3)


def test_a_share_has_its_queries_documents_and_the_teacher_s_scores_of_the_gathered_ones() -> None:
    documents = tuple(Document(f"d{i}", f"text {i}") for i in range(12))  # 4 positives, then 2 negatives per query
    numbers = np.arange(48, dtype=np.float32).reshape(4, 12)
    batch = TrainingBatch("set", ("",) * 4, ("1", "2", "3", "4"), tuple("abcd"), documents, numbers % 5 == 0, numbers)
    shares = [share_of(batch, process=rank, processes=2) for rank in range(2)]
    assert [share.queries for share in shares] == [("a", "b"), ("c", "d")]
    names = [[document.doc_id for document in share.documents] for share in shares]
    assert names == [["d0", "d1", "d4", "d5", "d6", "d7"], ["d2", "d3", "d8", "d9", "d10", "d11"]]
    columns = [int(name[1:]) for name in names[0] + names[1]]
    for share in shares:
        assert share.scores is not None
        for position, column in enumerate(columns):
            assert share.scores[:, position].tolist() == numbers[:, column].tolist()
            assert share.excluded[:, position].tolist() == batch.false_negatives[:, column].tolist()


def test_queries_close_to_held_out_ones_are_not_trained_on(recipe: ContrastiveRecipe, tmp_path: Path) -> None:
    held_out = write_dataset(tmp_path / "held", "alpha")
    queries = held_out / "queries.jsonl"
    lines = queries.read_text().splitlines()  # the dev query about rivers is now a train query of alpha
    queries.write_text(
        "\n".join(
            line.replace("alpha river dddd", "Alpha river: aaaa?").replace("dddd", "xyz uvw rst") for line in lines
        )
    )
    sets, report = open_sets(dataclasses.replace(recipe, held_out=(str(held_out),)), negatives=[None, None])
    assert report is not None
    assert "river-0" not in {example.query_id for example in sets[0].examples}
    assert report.sets["alpha"].dropped == 36 - len(sets[0]) >= 1
    assert "engine-1" in {example.query_id for example in sets[0].examples}


def gradients(recipe: ContrastiveRecipe) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    sets, _ = open_sets(recipe, negatives=[None, None])
    retriever = build_model(recipe, device="cpu")
    wake_lora(retriever.trunk.named_parameters())
    fit_heads(retriever, recipe, sets)
    parts, _ = batch_losses(retriever, make_mixture(recipe, sets).batch(0), recipe, step=3)
    return gradients_of(parts, {name: p for name, p in retriever.trunk.named_parameters() if p.requires_grad})


@pytest.mark.parametrize(("world", "mixed"), [(2, False), (4, False), (4, True)])
def test_several_processes_have_the_gradient_of_one(
    world: int, mixed: bool, recipe: ContrastiveRecipe, tmp_path: Path
) -> None:
    recipe = dataclasses.replace(
        recipe,
        data=tuple(dataclasses.replace(item, instructions=(item.name[-5:],)) for item in recipe.data),
        optimisation=dataclasses.replace(recipe.optimisation, mixed_batches=mixed),
        model=dataclasses.replace(recipe.model, lora_dropout=0.0),
        losses=dataclasses.replace(recipe.losses, symmetric_sparse=1.0, query_flops=0.1),
    )
    # At a temperature of 0.02, float32 sums in another order differ by about 1e-5.
    assert_same(first_of(world, lambda: gradients(recipe), tmp_path), gradients(recipe), rtol=1e-4)


def test_a_dead_sparse_head_is_told_of(
    recipe: ContrastiveRecipe, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stage = Contrastive(recipe, tmp_path / "negatives", "cpu")
    _, alive = stage.losses(0, step=0)
    assert alive["dead"] < 1
    assert "no gradient left" not in caplog.text
    heads = stage.retriever.heads
    assert heads.term_bias is not None
    stage.retriever.heads = dataclasses.replace(heads, term_bias=heads.term_bias - 1e6)
    _, dead = stage.losses(0, step=0)
    assert dead["dead"] == 1
    assert "no gradient left" in caplog.text


def test_a_collapse_is_warned_of(
    recipe: ContrastiveRecipe, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert loop.COLLAPSED == 0.9
    cosines = [
        record["cosine"] for record in records(train(recipe, tmp_path / "one", device="cpu")) if "cosine" in record
    ]
    assert len(cosines) == 6
    caplog.clear()
    monkeypatch.setattr(loop, "COLLAPSED", sorted(cosines)[3])  # two steps are above it
    train(recipe, tmp_path / "two", device="cpu")
    assert caplog.text.count(": collapse") == 2


@pytest.mark.parametrize("attention", ["echo", "bidirectional"])
def test_a_csplade_trains_without_a_dense_branch(recipe: ContrastiveRecipe, tmp_path: Path, attention: str) -> None:
    losses = LossWeights(
        symmetric=0.0, dense=0.0, sparse=0.0, symmetric_sparse=1.0, flops=0.01, query_flops=0.01, flops_ramp_steps=4
    )
    csplade = dataclasses.replace(
        recipe,
        model=dataclasses.replace(recipe.model, attention=attention),
        losses=losses,
        heads=dataclasses.replace(recipe.heads, dense=False, standardize=False),
        evaluation=dataclasses.replace(recipe.evaluation, by="symmetric_sparse"),
        method="csplade",
    )
    out = train(csplade, tmp_path / "model", device="cpu")
    contract = Contract.load(out)
    assert (contract.method, contract.attention, contract.dense) == ("csplade", attention, None)
    result = records(out)
    assert {"symmetric_sparse", "flops", "query_flops", "nonzeros", "query_nonzeros", "cosine"} <= set(result[0])
    measured = [item["development"]["mean"] for item in result if "development" in item]  # type: ignore[index]
    assert set(measured[0]) == {"sparse", "symmetric_sparse"}
    assert LightRetriever.load(out).contract == contract


def test_development_measures_fuse_as_the_recipe_does(recipe: ContrastiveRecipe, tmp_path: Path) -> None:
    """The hybrid measure is the dense one if the sparse branch weighs 0, and is not if the dense branch weighs 0."""
    measured = {}
    for dense, sparse in ((1.0, 0.0), (0.0, 1.0)):
        chosen = dataclasses.replace(
            recipe,
            optimisation=dataclasses.replace(recipe.optimisation, steps=1),
            fusion=Fusion(weights={"dense": dense, "sparse": sparse}),
        )
        out = train(chosen, tmp_path / f"dense-{dense}", device="cpu")
        log = [json.loads(line) for line in (out / "training" / "log.jsonl").read_text().splitlines()]
        measured[dense] = log[-1]["development"]["mean"]
    assert measured[1.0]["dense"] == measured[0.0]["dense"]
    assert measured[1.0]["hybrid"] == pytest.approx(measured[1.0]["dense"])
    assert measured[0.0]["hybrid"] != pytest.approx(measured[0.0]["dense"])
