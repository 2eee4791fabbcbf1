"""The table: means, shares kept, marks, and what it leaves open."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from lightir.errors import InvalidInput
from lightir.eval import Comparison, EvaluationResult, compare, plot


def evaluation(values: np.ndarray) -> EvaluationResult:
    per_query = {f"q{i}": float(value) for i, value in enumerate(values)}
    return EvaluationResult({"nDCG@10": float(np.mean(values))}, {"nDCG@10": per_query})


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
    assert list(table.p_values) == ["light", "same", "half"]


def test_a_p_value_of_alpha_itself_is_not_marked() -> None:
    values = {"full": {"a": 0.5}, "x": {"a": 0.6}}
    marks = [Comparison("R@5", "full", 0.05, "holm", values, {"x": {"a": p}}).mark("x", "a") for p in (0.049, 0.05)]
    assert marks == ["+", ""]


def test_there_is_no_share_of_nothing() -> None:
    zero = evaluation(np.zeros(3))
    table = compare({"full": {"a": zero}, "x": {"a": evaluation(np.ones(3))}}, reference="full")
    assert table.kept("x") is None
    assert table.rows()[-1] == ["x", "1.000", "1.000", ""]


def test_a_system_that_lacks_a_data_set_has_no_mean() -> None:
    table = compare(SYSTEMS, reference="full")
    assert table.mean("half") is None
    assert table.kept("half") is None
    assert table.rows()[-1] == ["half", "0.500", "", "", ""]


def test_correction_makes_p_larger_never_smaller() -> None:
    few = compare({k: SYSTEMS[k] for k in ("full", "light")}, reference="full")
    comparison = compare(SYSTEMS, reference="full")
    assert comparison.p_values["light"]["a"] > few.p_values["light"]["a"]


def test_the_three_forms_hold_the_same_cells() -> None:
    table = compare(SYSTEMS, reference="full")
    markdown, text = table.to_markdown(), table.to_text()
    for row in table.rows():
        for cell in row:
            assert cell in markdown
            assert cell in text
    lines = text.splitlines()[:-1]
    assert not any(line.endswith(" ") for line in lines)
    assert [line.split("  ")[0] for line in lines] == ["system", *SYSTEMS]
    assert len({len(line) for line in lines if "%" in line}) == 1
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


def test_the_bars_are_the_values_side_by_side_over_their_data_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, drawn = compare(SYSTEMS, reference="full"), []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    plot(table, tmp_path / "plot.svg")
    (axes,) = drawn[0].axes
    assert [tick.get_text() for tick in axes.get_xticklabels()] == list(table.datasets)
    spans = []
    for system, bars in zip(SYSTEMS, axes.containers, strict=True):
        assert bars.get_label() == system
        assert [bar.get_height() for bar in bars] == list(table.values[system].values())
        places = [bar.get_x() + bar.get_width() / 2 for bar in bars]
        assert np.round(places).tolist() == [table.datasets.index(dataset) for dataset in table.values[system]]
        spans += [(bar.get_x(), bar.get_x() + bar.get_width(), system) for bar in bars]
    for before, after in itertools.pairwise(sorted(spans)):
        assert before[1] <= after[0] + 1e-9
    assert [system for *_, system in sorted(spans)] == ["full", "light", "same", "half", "full", "light", "same"]
    assert [text.get_text() for text in drawn[0].legends[0].get_texts()] == list(SYSTEMS)
