"""The OpenAPI document is true: schemathesis finds nothing that contradicts it, and no request that breaks the service.

By default a few examples of its phases are tried; LIGHTIR_LONG=1 tries all phases with SCHEMATHESIS_EXAMPLES each.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lightir.index import Field, Index, IndexOptions, Schema, build_index
from small_collections import animal_shard, word_contract, word_table, write_folder

HERE = Path(__file__).parent


@pytest.fixture
def typed(tmp_path: Path) -> Path:
    """An index with vectors, words and typed fields."""
    encoder = write_folder(tmp_path / "q", word_contract(), {"": {"embeddings": word_table()}})
    schema = Schema({"page": Field("number"), "brand": Field("keyword"), "price": Field("number")})
    options = IndexOptions(schema=schema)
    build_index([animal_shard()], tmp_path / "typed", query_encoder=encoder, options=options, progress=False)
    return tmp_path / "typed"


def test_every_operation_is_described(typed: Path, connect: Any) -> None:
    with connect(typed) as client:
        described = client.get("/openapi.json").json()
    assert described["openapi"].startswith("3.1")
    operations = [operation for methods in described["paths"].values() for operation in methods.values()]
    assert len(operations) >= 20
    for operation in operations:
        assert operation["summary"]
        assert set(operation["responses"]) & {"200", "202"}


def test_the_examples_of_bodies_are_answered(typed: Path, connect: Any) -> None:
    with connect(typed) as client:
        described = client.get("/openapi.json").json()
        schemas = described["components"]["schemas"]
        n_examples = 0
        for path, methods in described["paths"].items():
            for method, operation in methods.items():
                content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
                name = content.get("schema", {}).get("$ref", "").rpartition("/")[2]
                for example in schemas.get(name, {}).get("examples", []):
                    answer = client.request(method, path.replace("{doc_id}", "b"), json=example)
                    assert answer.status_code in (200, 400, 404), (path, example, answer.text)
                    missing = {400: ("discontinued", "brand"), 404: ("kettle-7",)}.get(answer.status_code, ("",))
                    assert any(name in answer.text for name in missing), (path, example, answer.text)
                    n_examples += 1
    assert n_examples >= 12


@pytest.mark.parametrize(
    ("phases", "examples"),
    [
        ("examples,fuzzing,stateful", "2"),
        pytest.param(
            "examples,coverage,fuzzing,stateful", os.environ.get("SCHEMATHESIS_EXAMPLES", "100"), marks=pytest.mark.long
        ),
    ],
)
def test_schemathesis_finds_nothing(typed: Path, serve: Any, tmp_path: Path, phases: str, examples: str) -> None:
    pytest.importorskip("schemathesis")
    with serve(typed) as (process, address):
        command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(HERE / "schemathesis.toml")]
        command += ["run", f"{address}/openapi.json", "--phases", phases]
        command += ["--max-examples", examples, "--continue-on-failure", "--suppress-health-check", "all"]
        environment = {**os.environ, "SCHEMATHESIS_HOOKS": "schemathesis_hooks", "PYTHONPATH": str(HERE)}
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
        assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2000:]
        assert process.poll() is None
    with Index.open(typed) as index:
        index.verify()
