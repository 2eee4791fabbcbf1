"""The light half imports without torch, whether torch is installed or not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent / "light_rooms.py"


def test_every_light_room_imports_with_torch_blocked() -> None:
    result = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    names = set(result.stdout.split())
    assert {"lightir.errors", "lightir.kernel", "lightir.kernel.reference", "lightir.vectors"} <= names
    assert not any(name.startswith(("lightir.models", "lightir.train", "lightir.encode")) for name in names)
