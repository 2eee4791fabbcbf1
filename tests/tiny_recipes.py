"""The shipped recipes reduced to a tiny model, tiny data, a small batch and two steps."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

from collections_for_training import write_dataset
from lightir.train.recipes.packed_text_recipes import AdaptationRecipe, MaskedRecipe
from lightir.train.recipes.settings import CorpusRecipe, DevSet

RECIPES = Path(__file__).parents[1] / "recipes"

BACKBONE = re.compile(r"-((llama|mistral|qwen)-[\d.]+-[\d.]+b|bert-base(-msmarco)?)$")
"""The end of a full-scale recipe's name; its tiny twin's ends in -tiny instead."""


def tiny_recipe(given: Any, model: str, datasets: tuple[Path, Path], folder: Path) -> Any:
    """Return a recipe of any stage for a model's address and two data sets; `folder` receives a held-out one."""
    frame = len(given.documents.prompt + given.documents.suffix)
    tiny = dataclasses.replace(
        given,
        model=dataclasses.replace(
            given.model, address=model, first_layer=min(given.model.first_layer, 1), compile=False, liger=False
        ),
        optimisation=dataclasses.replace(given.optimisation, steps=2, batch_size=4, max_minutes=0.0),
        documents=dataclasses.replace(given.documents, max_tokens=48 + frame),
    )
    shrink = _on_corpora if isinstance(tiny, AdaptationRecipe | MaskedRecipe) else _on_training_sets
    return shrink(tiny, datasets, folder)


def _on_corpora(tiny: Any, datasets: tuple[Path, Path], _: Path) -> Any:
    """Return a recipe of a stage that reads only corpora, for the tiny data."""
    return dataclasses.replace(tiny, data=tuple(CorpusRecipe(str(dataset)) for dataset in datasets), length=64)


def _on_training_sets(tiny: Any, datasets: tuple[Path, Path], folder: Path) -> Any:
    """Return a recipe of a stage that reads queries with their documents, for the tiny data."""
    held_out = write_dataset(folder / "gamma", "gamma")
    development = (DevSet(str(datasets[0]), queries=4, documents=8),)
    takes_negatives = tiny.stage != "query_likelihood"
    if tiny.stage == "sidr":  # the byte vocabulary has 258 terms, and the other corpus is the second data set
        retrieval = dataclasses.replace(tiny.retrieval, corpus=str(datasets[1]) if tiny.retrieval.corpus else "")
        heads = dataclasses.replace(tiny.heads, first_term=min(tiny.heads.first_term, 40))
        tiny = dataclasses.replace(tiny, retrieval=retrieval, heads=heads)
    if getattr(getattr(tiny, "losses", None), "dims", ()):
        tiny = dataclasses.replace(tiny, losses=dataclasses.replace(tiny.losses, dims=(16,)))
    return dataclasses.replace(
        tiny,
        data=tuple(
            dataclasses.replace(tiny.data[0], name=str(folder), ratio=1.0, instructions=(), negatives=negatives)
            for folder, negatives in zip(datasets, ("bm25" if takes_negatives else "", ""), strict=True)
        ),
        optimisation=dataclasses.replace(tiny.optimisation, negatives=min(tiny.optimisation.negatives, 7)),
        held_out=tuple(str(held_out) for _ in tiny.held_out[:1]),
        documents=dataclasses.replace(tiny.documents, train_tokens=0),
        evaluation=dataclasses.replace(tiny.evaluation, sets=development[: len(tiny.evaluation.sets)]),
    )
