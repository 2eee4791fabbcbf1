"""Interrupted training runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from lightir.train.run.loop import Loop


def cut(run: Callable[[], Path], *, at: int = 5) -> None:
    """Start a training run and interrupt it before optimizer step `at`."""
    original = Loop._optimizer_step

    def killed(self: Loop) -> dict[str, object]:
        if self.step == at:
            raise KeyboardInterrupt
        return original(self)

    with mock.patch.object(Loop, "_optimizer_step", killed), pytest.raises(KeyboardInterrupt):
        run()
