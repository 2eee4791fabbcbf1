"""Hard negatives: documents that BM25 finds for a query and that are not relevant to it."""

from __future__ import annotations

from pathlib import Path

from lightir.errors import InvalidInput, NotFound
from lightir.train.recipe import Recipe


def negatives_files(recipe: Recipe, folder: Path) -> list[Path | None]:
    """Each training set's file of mined negatives, or None."""
    files: list[Path | None] = []
    for data in recipe.data:
        if data.negatives == "bm25":
            raise InvalidInput("bm25 negatives wait for the index")
        path = Path(data.negatives) if data.negatives else None
        if path is not None and not path.is_file():
            raise NotFound(f"negatives {path} do not exist; mine them first: lightir mine")
        files.append(path)
    return files
