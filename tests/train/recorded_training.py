"""A program for test_write_order.py: it records the file-system calls of commands; failing_calls.c is preloaded."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from lightir.cli import main as lightir
from lightir.train.distill.teacher_vectors import TeacherVectors
from lightir.train.run import loop
from power_loss import recorded


class _NoModel:
    """A model of which only the contract's fingerprint is asked for."""

    contract = backbone = model = property(lambda self: self)
    fingerprint = dense = dtype = None


def main(recipe: Path, folder: Path) -> list[str]:
    """Train, cache a query table and keep vectors of a teacher; return the lines of the journal."""
    folder.mkdir()
    model, journal = folder / "a" / "model", folder.with_name("journal")
    save = loop.save_checkpoint
    with recorded(folder, journal) as acknowledge:

        def save_and_acknowledge(*arguments: Any, **options: Any) -> Path:
            target = save(*arguments, **options)
            acknowledge(target.name)
            return target

        loop.save_checkpoint = save_and_acknowledge
        for command in (["train", str(recipe), "--out", str(model)], ["cache", str(model)]):
            assert lightir(command) == 0
            acknowledge(command[0])
        kept = TeacherVectors(folder / "teacher" / "vectors", _NoModel())  # type: ignore[arg-type]
        kept._alone = lambda start, stop: np.ones((stop - start, 2), np.float32)  # type: ignore[method-assign]
        kept.tokens(3)
        acknowledge("teacher")
    return journal.read_text().splitlines()


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), Path(sys.argv[2]))))
