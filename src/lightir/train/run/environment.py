"""The environment of a training run: provenance, versions of the packages that decide its numbers, and device."""

from __future__ import annotations

import importlib.metadata
from typing import Any

import torch

from lightir.provenance import provenance
from lightir.train.run.processes import world_size


def environment(device: str) -> dict[str, Any]:
    """Return the run's provenance, package versions, device, threads and number of processes, as JSON values."""
    packages = ("torch", "transformers", "peft", "tokenizers", "numpy")
    return {
        **provenance(),
        **{name: importlib.metadata.version(name) for name in packages},
        "device": torch.cuda.get_device_name() if device.startswith("cuda") else "cpu",
        "threads": torch.get_num_threads(),
        "processes": world_size(),
    }
