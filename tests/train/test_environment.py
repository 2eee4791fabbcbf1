"""A training run records its environment as plain JSON."""

from __future__ import annotations

import json

from lightir.train.run.environment import environment


def test_an_environment_is_plain_json() -> None:
    record = json.loads(json.dumps(environment("cpu")))
    assert {"lightir", "commit", "date", "command", "python", "torch", "machine", "device", "threads"} <= record.keys()
