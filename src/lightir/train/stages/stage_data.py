"""The data of a stage with queries: training sets, cleaned and mixed, and development sets."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lightir.data import (
    Dataset,
    DecontaminationReport,
    Mixture,
    TrainingSet,
    decontaminate_sets,
    open_hub,
    open_triples,
    span_pairs,
    title_pairs,
)
from lightir.errors import InvalidInput
from lightir.eval.runs import read_run
from lightir.train.mining.miner import negatives_files
from lightir.train.recipes.data_names import brings_examples, data_folder, examples_file
from lightir.train.recipes.run_recipe import QueryRunRecipe
from lightir.train.recipes.settings import DataRecipe
from lightir.train.run.waiting import first_alone
from lightir.train.stages.development import load_development
from lightir.types import Run

logger = logging.getLogger(__name__)


class StageData:
    """A stage's cleaned training sets, their batches, and its development sets, all in memory.

    Attributes:
        sets: cleaned training sets.
        report: report of the decontamination; None without held-out sets.
        mixture: batches over the sets.
        development: reduced development sets.
    """

    def __init__(self, recipe: QueryRunRecipe, *, negatives: Path | None) -> None:
        """Open and clean the data; mine negatives into the folder `negatives`, unless it is None."""
        files = [None] * len(recipe.data) if negatives is None else _mined_once(recipe, negatives)
        self.sets, self.report = open_sets(recipe, negatives=files)
        if self.report is not None:
            logger.info("decontamination:\n%s", self.report.to_markdown())
        self.mixture = make_mixture(recipe, self.sets)
        self.development = [
            load_development(
                Dataset.open(data_folder(dev.name)), dev.split, queries=dev.queries, documents=dev.documents
            )
            for dev in recipe.evaluation.sets
        ]

    def records(self) -> dict[str, object]:
        """Return counts and a fingerprint of ids and texts for each set, and the report of the decontamination."""
        facts = {
            training.name: {
                "examples": len(training),
                "documents": len(training.documents),
                "batches_per_epoch": self.mixture.batches_per_set[training.name],
                "fingerprint": training.fingerprint(),
            }
            for training in self.sets
        }
        return {"data": facts} if self.report is None else {"data": facts, "decontamination": self.report.to_json()}


def _mined_once(recipe: QueryRunRecipe, folder: Path) -> list[Path | None]:
    """Return each set's file of negatives: process 0 mines, the others wait for the files."""
    first_alone(lambda: negatives_files(recipe, folder), name="mining negatives")
    return negatives_files(recipe, folder)


def open_sets(
    recipe: QueryRunRecipe, *, negatives: Sequence[Path | None]
) -> tuple[list[TrainingSet], DecontaminationReport | None]:
    """Open the recipe's training sets and drop queries close to held-out ones; return them and the report.

    There is no report without held-out sets.

    Args:
        recipe: recipe with the training sets and held-out sets.
        negatives: each set's file of mined negatives, or None.

    Raises:
        InvalidInput: two sets have one name, or all examples of a set were dropped.
    """
    listed = recipe.data
    if not recipe.use_instructions:
        listed = tuple(dataclasses.replace(data, instructions=()) for data in listed)
    sets = [
        open_set(data, default_instruction=recipe.query.instruction, negatives=mined, seed=recipe.optimisation.seed)
        for data, mined in zip(listed, negatives, strict=True)
    ]
    names = [training.name for training in sets]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise InvalidInput(f"{len(repeated)} training sets have the name {repeated[0]!r}: give them an `alias` each")
    if not recipe.held_out:
        return sets, None
    held_out = [Dataset.open(data_folder(name)) for name in recipe.held_out]
    cleaned, report = decontaminate_sets(
        sets, held_out, rules=recipe.decontamination, shared_documents=recipe.held_out_documents
    )
    for training in cleaned:
        if not len(training):
            raise InvalidInput(
                f"training set {training.name!r}: every query is too close to a held-out one; leave it out"
            )
    return cleaned, report


def open_set(data: DataRecipe, *, default_instruction: str, negatives: Path | None, seed: int) -> TrainingSet:
    """Open one training set as its recipe describes it, under its alias if it has one."""
    opened = _opened(data, default_instruction, negatives, seed)
    return dataclasses.replace(opened, name=data.alias) if data.alias else opened


def _opened(data: DataRecipe, default_instruction: str, negatives: Path | None, seed: int) -> TrainingSet:
    if brings_examples(data.name):
        return _open_examples(data, data.instructions or (default_instruction,))
    if data.scores and data.pairs != "judged":
        raise InvalidInput(f"data set {data.name!r}: scores require pairs 'judged', not {data.pairs!r}")
    folder = data_folder(data.name)
    listed = data.instructions == ("listed",)
    instructions = None if listed else data.instructions or (default_instruction,)
    if data.pairs == "judged":
        opened = TrainingSet.open(folder, data.split, negatives=negatives, instructions=instructions)
        return opened.scored(run_scores(read_run(data.scores))) if data.scores else opened
    corpus = Dataset.open(folder).corpus()
    pairs = title_pairs(corpus) if data.pairs == "titles" else span_pairs(corpus, np.random.default_rng(seed))
    name = f"{folder.name}:{data.pairs}"
    return TrainingSet.from_pairs(name, pairs, instructions=instructions or (default_instruction,))


def _open_examples(data: DataRecipe, instructions: tuple[str, ...]) -> TrainingSet:
    """Open a set whose examples bring positives, negatives and perhaps scores."""
    if data.pairs != "judged" or instructions == ("listed",) or data.negatives or data.scores:
        raise InvalidInput(
            f"data set {data.name!r} has whole examples: leave out pairs, negatives, scores and listed instructions"
        )
    file = examples_file(data.name)
    if file is None:
        return open_hub(data.name, split=data.split, instructions=instructions)
    if data.split != "train":
        raise InvalidInput(f"data set {data.name!r} is a file of examples, without a split {data.split!r}")
    if file.name.removesuffix(".gz").endswith(".tsv"):
        return open_triples(file, instructions=instructions)
    return TrainingSet.open_jsonl(file, instructions=instructions)


def run_scores(run: Run) -> dict[str, dict[str, float]]:
    """Return a run's scores by query id and document id."""
    return {
        query_id: dict(zip(ranking.doc_ids, map(float, ranking.scores), strict=True))
        for query_id, ranking in run.items()
    }


def make_mixture(recipe: QueryRunRecipe, sets: Sequence[TrainingSet]) -> Mixture:
    """Return the batches over the sets."""
    ratios = {training.name: data.ratio for training, data in zip(sets, recipe.data, strict=True)}
    settings = recipe.optimisation
    return Mixture(
        sets,
        batch_size=settings.batch_size,
        n_negatives=settings.negatives,
        seed=settings.seed,
        ratios=ratios,
        mixed=settings.mixed_batches,
    )
