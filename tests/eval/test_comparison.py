"""The table: means, shares kept, marks, and what it leaves open."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from lightir.errors import InvalidInput
from lightir.eval import Evaluation, compare, plot


def evaluation(values: np.ndarray) -> Evaluation:
    per_query = {f"q{i}": float(value) for i, value in enumerate(values)}
    return Evaluation({"nDCG@10": float(np.mean(values))}, {"nDCG@10": per_query})


BASE = np.linspace(0.3, 0.7, 60)
SYSTEMS = {
    "full": {"a": evaluation(BASE), "b": evaluation(BASE)},
    "light": {"a": evaluation(BASE - 0.1), "b": evaluation(BASE + 0.1)},
    "same": {"a": evaluation(BASE), "b": evaluation(BASE[::-1])},
    "half": {"a": evaluation(BASE)},
}


def test_means_shares_and_marks() -> None:
    table = compare(SYSTEMS, reference="full")
    assert table.mean("light") == pytest.approx(0.5)
    assert table.kept("light") == pytest.approx(1.0)
    assert (table.mark("light", "a"), table.mark("light", "b")) == ("-", "+")
    assert (table.mark("same", "a"), table.mark("full", "a")) == ("", "")


def test_a_system_that_lacks_a_data_set_has_no_mean() -> None:
    table = compare(SYSTEMS, reference="full")
    assert table.mean("half") is None
    assert table.kept("half") is None
    assert table.rows()[-1] == ["half", "0.500", "", "", ""]


def test_correction_makes_p_larger_never_smaller() -> None:
    few = compare({k: SYSTEMS[k] for k in ("full", "light")}, reference="full")
    many = compare(SYSTEMS, reference="full")
    assert many.p_values["light"]["a"] > few.p_values["light"]["a"]


def test_the_three_forms_hold_the_same_cells() -> None:
    table = compare(SYSTEMS, reference="full")
    markdown, text = table.to_markdown(), table.to_text()
    for row in table.rows():
        for cell in row:
            assert cell in markdown
            assert cell in text
    assert json.loads(json.dumps(table.to_json()))["summary"]["light"]["kept"] == pytest.approx(1.0)


def test_a_wrong_reference_measure_or_query_set_is_refused() -> None:
    with pytest.raises(InvalidInput, match="reference"):
        compare(SYSTEMS, reference="none")
    with pytest.raises(InvalidInput, match="RR@10"):
        compare(SYSTEMS, reference="full", measure="RR@10")
    with pytest.raises(InvalidInput, match="other queries"):
        compare({"full": {"a": evaluation(BASE)}, "x": {"a": evaluation(BASE[:5])}}, reference="full")


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_a_plot_is_written(tmp_path: Path, suffix: str) -> None:
    plot(compare(SYSTEMS, reference="full"), tmp_path / f"plot.{suffix}")
    head = (tmp_path / f"plot.{suffix}").read_bytes()[:200]
    assert (b"<?xml" if suffix == "svg" else b"\x89PNG") in head


def test_another_kind_of_plot_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="svg"):
        plot(compare(SYSTEMS, reference="full"), tmp_path / "plot.pdf")
