"""What a run was made with: the code's commit, versions, machine and device."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

from lightir.train.processes import world_size
from lightir.version import SOURCE_ROOT, __version__


def environment(device: str) -> dict[str, Any]:
    """Commit, versions, machine, device and number of processes of a run."""
    packages = ("torch", "transformers", "peft", "tokenizers", "numpy")
    return {
        "lightir": __version__,
        "commit": source_commit(SOURCE_ROOT),
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in packages},
        "machine": platform.machine(),
        "device": torch.cuda.get_device_name() if device.startswith("cuda") else "cpu",
        "threads": torch.get_num_threads(),
        "processes": world_size(),
    }


def source_commit(root: Path) -> str | None:
    """The git commit of the code, with "-dirty" behind it where tracked files differ from that.

    Args:
        root: the checkout, if the code runs from one; otherwise what pip noted when it installed from git is taken.

    Returns:
        None where neither tells: the version has to do then.
    """
    if (root / ".git").exists():
        command = ("git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
        try:
            return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()
        except (OSError, subprocess.SubprocessError):  # no git, or it does not trust the folder's owner
            return None
    noted = importlib.metadata.distribution("lightir").read_text("direct_url.json")
    commit = json.loads(noted).get("vcs_info", {}).get("commit_id") if noted else None
    return str(commit) if commit else None
