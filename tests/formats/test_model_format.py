"""Models of an earlier release encode as they did, and a worker continues the queue that it left."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import lightir
from format_fixtures import FORMATS, FUTURE, RELEASES, change_json, expected, unpack
from lightir import contract, shards
from lightir.cli import main
from lightir.index import index_record
from lightir.index.segments import segment
from lightir.models.encoder import LightRetriever
from lightir.pending import failures_of, queue_file
from lightir.query import encoder_files
from lightir.train.run import checkpoint


@pytest.mark.parametrize("release", RELEASES)
def test_a_model_is_whole_and_encodes_as_it_did(release: str, tmp_path: Path) -> None:
    """Other processors and libraries may sum in another order, so values may differ slightly."""
    folder, rows = unpack(release, "model", tmp_path), expected(release)["vectors"]
    assert main(["verify", str(folder)]) == 0
    model = LightRetriever.load(folder)
    documents = [lightir.Document(row["doc_id"], row["text"], row["title"]) for row in rows]
    dense, sparse = model.encode_batch(model.batch(model.frame_documents(documents)))
    assert dense is not None
    assert sparse is not None
    np.testing.assert_allclose(dense.numpy(), np.array([row["dense"] for row in rows]), atol=2e-3)
    for i, row in enumerate(rows):
        term_ids, impacts = sparse.row(i)
        impacts_by_term = dict(zip(map(str, term_ids.tolist()), impacts.tolist(), strict=True))
        shared = impacts_by_term.keys() & row["sparse"].keys()
        assert len(shared) >= len(row["sparse"]) - 1  # two terms may change places at the end
        assert all(abs(impacts_by_term[term] - row["sparse"][term]) <= 1 for term in shared)


@pytest.mark.parametrize("release", RELEASES)
def test_a_model_caches_the_table_that_it_has(release: str, tmp_path: Path) -> None:
    folder = unpack(release, "model", tmp_path)
    assert main(["cache", str(folder), "--out", str(tmp_path / "again")]) == 0
    texts = list(expected(release)["queries"].values())
    before, again = (
        lightir.CachedQueryEncoder.load(path).encode(texts) for path in (folder / "query-encoder", tmp_path / "again")
    )
    assert before.dense is not None
    assert again.dense is not None
    np.testing.assert_allclose(again.dense, before.dense, atol=2e-3)


@pytest.mark.parametrize("release", RELEASES)
def test_a_worker_continues_an_earlier_queue(release: str, tmp_path: Path) -> None:
    """Parked vectors are committed, stale claims are released, and failed documents stay failed."""
    folder, model = unpack(release, "index-pending", tmp_path), unpack(release, "model", tmp_path)
    assert main(["worker", str(folder), "--once", "--model", str(model), "--no-compile"]) == 0
    with lightir.Index.open(folder) as index:
        assert index.info().pending == 1
        failures = {failure.doc_id: failure.error for failure in failures_of(index.view)}
        assert failures == expected(release)["pending"]["failures"]
        index.verify()


def test_a_model_of_a_later_format_is_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = unpack(RELEASES[-1], "model", tmp_path)
    change_json(folder / "lightir.json")
    assert main(["verify", str(folder)]) == 1
    message = capsys.readouterr().err
    assert str(folder) in message
    assert str(FUTURE) in message


def test_the_table_of_formats_has_the_versions_of_the_code() -> None:
    page = (FORMATS.parents[1] / "RELEASE.md").read_text(encoding="utf-8")
    last_row = re.findall(r"^\| (?:next|\d+\.\d+).*$", page, re.MULTILINE)[-1]
    versions = [
        contract.FORMAT_VERSION,
        shards.FORMAT_VERSION,
        encoder_files.TABLES_VERSION,
        index_record.INDEX_VERSION,
    ]
    versions += [segment.SEGMENT_VERSION, queue_file.QUEUE_VERSION, checkpoint.FORMAT_VERSION]
    assert [int(cell.split()[0]) for cell in last_row.split("|")[2:9]] == versions


def test_the_script_writes_the_fixtures_of_this_version(tmp_path: Path) -> None:
    out = tmp_path / "fixtures"
    subprocess.run([sys.executable, FORMATS / "make.py", out], check=True, capture_output=True, text=True)
    newest = FORMATS / RELEASES[-1]
    assert {path.name for path in out.iterdir()} >= {path.name for path in newest.iterdir()} - {"changed.json"}
    fixtures = json.loads((out / "expected.json").read_text())
    assert [search["options"] for search in fixtures["searches"]]
