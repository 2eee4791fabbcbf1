"""ranx reads the runs and qrels that lightir writes, and lightir those of ranx; both compute the same measures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lightir.data import read_qrels
from lightir.eval import evaluate, read_run, write_qrels, write_run
from lightir.types import Ranking

ranx = pytest.importorskip("ranx")
pytestmark = pytest.mark.filterwarnings("default")  # ranx leaves files open, and casts integers


@pytest.fixture
def experiment() -> tuple[dict[str, Ranking], dict[str, dict[str, int]]]:
    """Rankings with ties, and grades, of ids that TREC's format allows."""
    rng = np.random.default_rng(0)
    run, qrels = {}, {}
    for query in range(30):
        ids = [f"d{i}" for i in rng.permutation(40)[:20]]
        scores = -np.sort(-rng.integers(0, 6, 20).astype(np.float64))
        run[f"q{query}"] = Ranking(f"q{query}", ids, scores)
        qrels[f"q{query}"] = {f"d{i}": int(rng.integers(0, 3)) for i in rng.permutation(40)[:15]} | {"d0": 1}
    return run, qrels


@pytest.mark.parametrize("suffix", ["json", "trec"])
def test_ranx_reads_files_of_lightir(experiment: tuple, suffix: str, tmp_path: Path) -> None:
    run, qrels = experiment
    write_run(tmp_path / f"run.{suffix}", run)
    write_qrels(tmp_path / f"qrels.{suffix}", qrels)
    theirs = ranx.Run.from_file(str(tmp_path / f"run.{suffix}"))
    assert {q: list(row) for q, row in theirs.to_dict().items()} == {q: list(r.doc_ids) for q, r in run.items()}
    judged = ranx.Qrels.from_file(str(tmp_path / f"qrels.{suffix}"))
    assert {q: dict(row) for q, row in judged.to_dict().items()} == qrels
    scores = ranx.evaluate(judged, theirs, ["ndcg@10", "mrr@10", "recall@20"])
    ours = evaluate(run, qrels, ["nDCG@10", "RR@10", "R@20"]).measures
    np.testing.assert_allclose(list(scores.values()), list(ours.values()), rtol=1e-6)


@pytest.mark.parametrize("suffix", ["json", "trec"])
def test_lightir_reads_files_of_ranx(experiment: tuple, suffix: str, tmp_path: Path) -> None:
    run, qrels = experiment
    scores = {q: {d: float(20 - i) for i, d in enumerate(r.doc_ids)} for q, r in run.items()}
    ranx.Run.from_dict(scores, name="theirs").save(str(tmp_path / f"run.{suffix}"))
    ranx.Qrels.from_dict(qrels).save(str(tmp_path / f"qrels.{suffix}"))
    assert {q: r.doc_ids for q, r in read_run(tmp_path / f"run.{suffix}").items()} == {
        q: list(r.doc_ids) for q, r in run.items()
    }
    assert read_qrels(tmp_path / f"qrels.{suffix}") == qrels
