"""Names of data sets: a folder, a file of training examples, or a Hugging Face data set."""

from __future__ import annotations

import os
from pathlib import Path

from lightir.data.hub import PREFIX as HUB_PREFIX
from lightir.errors import NotFound

DATA_VARIABLE = "LIGHTIR_DATA"
"""Environment variable with the folder in which relative names of data sets are looked up."""

EXAMPLES_SUFFIXES = (".jsonl", ".jsonl.gz", ".tsv", ".tsv.gz")
"""Suffixes of files of training examples: JSON lines and triples."""


def examples_file(name: str) -> Path | None:
    """Return the file of training examples that a data set's name denotes; None for a folder.

    Raises:
        NotFound: the name is that of a file, and no such file exists.
    """
    if not name.endswith(EXAMPLES_SUFFIXES):
        return None
    candidates = (Path(name), Path(os.environ.get(DATA_VARIABLE, "")) / name)
    file = next((path for path in candidates if path.is_file()), None)
    if file is None and not Path(name).is_dir():
        raise NotFound(f"data set {name!r}: there is no such file, nor in the folder that {DATA_VARIABLE} names")
    return file


def brings_examples(name: str) -> bool:
    """Return whether a data set's name denotes whole examples instead of a folder with qrels."""
    return name.startswith(HUB_PREFIX) or examples_file(name) is not None


def data_folder(name: str) -> Path:
    """Return the folder of a data set: the path itself, or the name inside the folder that LIGHTIR_DATA names.

    Raises:
        NotFound: neither exists.
    """
    given = Path(name)
    if given.is_dir():
        return given
    root = os.environ.get(DATA_VARIABLE, "")
    if root and not given.is_absolute() and (Path(root) / name).is_dir():
        return Path(root) / name
    hint = f"nor is it in {root}" if root else f"and {DATA_VARIABLE}, the folder with the data sets, is not set"
    raise NotFound(f"data set {name!r}: there is no such folder, {hint}")
