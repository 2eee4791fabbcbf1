"""TensorBoard logs of a run, beside log.jsonl."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

FOLDER = "tensorboard"


class Curves:
    """Writes every number of every log record under its name; without TensorBoard, writes nothing."""

    def __init__(self, folder: Path, *, step: int) -> None:
        """Write into `folder`; hide points that an earlier run wrote there after `step`."""
        self._writer: Any = None
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            logger.info("no TensorBoard logs are written beside log.jsonl: pip install 'lightir[tensorboard]'")
            return
        self._writer = SummaryWriter(str(folder), purge_step=step + 1)

    def write(self, record: Mapping[str, Any]) -> None:
        """Write a record of the log."""
        if self._writer is None:
            return
        for name, value in numbers(record):
            self._writer.add_scalar(name, value, record["step"])

    def close(self) -> None:
        """Flush and close the files."""
        if self._writer is not None:
            self._writer.close()


def numbers(record: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, float]]:
    """Yield a record's numbers except its step, with "/" between nested names."""
    for name, value in record.items():
        if isinstance(value, Mapping):
            yield from numbers(value, f"{above}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool) and (above or name != "step"):
            yield above + name, float(value)
