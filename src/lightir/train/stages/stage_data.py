"""What a stage with queries trains on and is measured on: training sets, cleaned and mixed, and development sets."""

from __future__ import annotations

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
from lightir.train.recipes.settings import DataRecipe, DataStage, QueryStage
from lightir.train.run.processes import barrier, is_first
from lightir.train.stages.development import load_development
from lightir.types import Run

logger = logging.getLogger(__name__)


class StageData:
    """A stage's cleaned training sets, their batches, what was left out, and its development sets, all in memory.

    Attributes:
        sets: training sets.
        report: of the decontamination; None without held-out sets.
        mixture: the batches over the sets.
        development: reduced sets to measure on.
    """

    def __init__(self, recipe: QueryStage, *, negatives: Path | None) -> None:
        """Open and clean the data; what is to be mined is mined into the folder `negatives`, None for no negatives."""
        files = [None] * len(recipe.data) if negatives is None else _mined_once(recipe, negatives)
        self.sets, self.report = open_sets(recipe, negatives=files)
        if self.report is not None:
            logger.info("decontamination:\n%s", self.report.to_markdown())
        self.mixture = make_mixture(recipe, self.sets)
        self.development = [
            load_development(Dataset.open(data_folder(d.name)), d.split, queries=d.queries, documents=d.documents)
            for d in recipe.evaluation.sets
        ]

    def records(self) -> dict[str, object]:
        """What was trained on (counts, and a fingerprint over ids and texts of each set), and what was left out."""
        facts = {
            each.name: {
                "examples": len(each),
                "documents": len(each.documents),
                "batches_per_epoch": self.mixture.batches_per_set[each.name],
                "fingerprint": each.fingerprint(),
            }
            for each in self.sets
        }
        return {"data": facts} if self.report is None else {"data": facts, "decontamination": self.report.to_json()}


def _mined_once(recipe: DataStage, folder: Path) -> list[Path | None]:
    """Each set's file of negatives: one process mines, the others find the files."""
    if is_first():
        negatives_files(recipe, folder)
    barrier()
    return negatives_files(recipe, folder)


def open_sets(
    recipe: DataStage, *, negatives: Sequence[Path | None]
) -> tuple[list[TrainingSet], DecontaminationReport | None]:
    """The recipe's training sets, cleaned of what is close to the held-out ones; no report without held-out sets.

    Args:
        recipe: data, held_out and held_out_documents are read.
        negatives: each set's file of mined negatives, or None.

    Raises:
        InvalidInput: cleaning left a set without examples.
    """
    sets = [
        open_set(each, default_instruction=recipe.query.instruction, negatives=mined, seed=recipe.optimisation.seed)
        for each, mined in zip(recipe.data, negatives, strict=True)
    ]
    if not recipe.held_out:
        return sets, None
    held_out = [Dataset.open(data_folder(name)) for name in recipe.held_out]
    cleaned, report = decontaminate_sets(sets, held_out, shared_documents=recipe.held_out_documents)
    for each in cleaned:
        if not len(each):
            raise InvalidInput(f"training set {each.name!r}: every query is too close to a held-out one; leave it out")
    return cleaned, report


def open_set(data: DataRecipe, *, default_instruction: str, negatives: Path | None, seed: int) -> TrainingSet:
    """One training set as its recipe describes it."""
    if brings_examples(data.name):
        return _open_examples(data, data.instructions or (default_instruction,))
    if data.scores and data.pairs != "judged":
        raise InvalidInput(f"data set {data.name!r}: scores are of judged queries, not of {data.pairs}")
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
    """A set that brings positives, negatives and perhaps scores with it."""
    if data.pairs != "judged" or instructions == ("listed",) or data.negatives or data.scores:
        raise InvalidInput(
            f"data set {data.name!r} brings whole examples: pairs, negatives, scores and listed instructions are not "
            "to be chosen"
        )
    file = examples_file(data.name)
    if file is None:
        return open_hub(data.name, split=data.split, instructions=instructions)
    if data.split != "train":
        raise InvalidInput(f"data set {data.name!r} is a file of examples, which has no split {data.split!r}")
    if file.name.removesuffix(".gz").endswith(".tsv"):
        return open_triples(file, instructions=instructions)
    return TrainingSet.open_jsonl(file, instructions=instructions)


def run_scores(run: Run) -> dict[str, dict[str, float]]:
    """A run's scores by query and document id."""
    return {
        query_id: dict(zip(found.doc_ids, map(float, found.scores), strict=True)) for query_id, found in run.items()
    }


def make_mixture(recipe: DataStage, sets: Sequence[TrainingSet]) -> Mixture:
    """The batches over the sets."""
    ratios = {each.name: data.ratio for each, data in zip(sets, recipe.data, strict=True)}
    settings = recipe.optimisation
    return Mixture(
        sets,
        batch_size=settings.batch_size,
        n_negatives=settings.negatives,
        seed=settings.seed,
        ratios=ratios,
        mixed=settings.mixed_batches,
    )
