"""Where the name of a training set leads: a folder, a file of examples, or a table of Hugging Face's."""

from __future__ import annotations

import os
from pathlib import Path

from lightir.data.hub import PREFIX as HUB_PREFIX
from lightir.errors import NotFound

DATA_VARIABLE = "LIGHTIR_DATA"
"""The environment variable that names the folder in which relative data set names are looked up."""


EXAMPLES_SUFFIXES = (".jsonl", ".jsonl.gz", ".tsv", ".tsv.gz")
"""Of files of training examples: JSON lines, and triples."""


def examples_file(name: str) -> Path | None:
    """The file of training examples that a data set's name means, found as folders are; None for a folder.

    Raises:
        NotFound: the name is a file's, but there is none.
    """
    if not name.endswith(EXAMPLES_SUFFIXES):
        return None
    found = [path for path in (Path(name), Path(os.environ.get(DATA_VARIABLE, "")) / name) if path.is_file()]
    if not found and not Path(name).is_dir():
        raise NotFound(f"data set {name!r}: there is no such file, nor in the folder that {DATA_VARIABLE} names")
    return found[0] if found else None


def brings_examples(name: str) -> bool:
    """Whether a data set's name means a file or table of whole examples, not a folder with judgements."""
    return name.startswith(HUB_PREFIX) or examples_file(name) is not None


def data_folder(name: str) -> Path:
    """The folder of a data set: the path itself, or the name inside the folder that LIGHTIR_DATA names.

    Raises:
        NotFound: neither is there.
    """
    given = Path(name)
    if given.is_dir():
        return given
    root = os.environ.get(DATA_VARIABLE, "")
    if root and not given.is_absolute() and (Path(root) / name).is_dir():
        return Path(root) / name
    hint = f"nor is it in {root}" if root else f"and {DATA_VARIABLE}, the folder with the data sets, is not set"
    raise NotFound(f"data set {name!r}: there is no such folder, {hint}")
