"""Many systems on many data sets in one table: their share of a reference's quality, significance, and a plot."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lightir.errors import InvalidInput, MissingExtra
from lightir.eval.measures import EvaluationResult
from lightir.eval.significance import Correction, correct_p_values, randomization_test


@dataclass(frozen=True, slots=True)
class Comparison:
    """One measure of several systems on several data sets.

    Attributes:
        measure: its name.
        reference: the system that the others are held against.
        alpha: a corrected p below it is marked.
        correction: the correction over all pairs of a data set.
        values: system -> data set -> mean; a system may lack data sets.
        p_values: system -> data set -> corrected p against the reference; not for the reference.
    """

    measure: str
    reference: str
    alpha: float
    correction: Correction
    values: Mapping[str, Mapping[str, float]]
    p_values: Mapping[str, Mapping[str, float]]

    @property
    def datasets(self) -> tuple[str, ...]:
        """The data sets in the order they came up."""
        return tuple(dict.fromkeys(dataset for values in self.values.values() for dataset in values))

    def mean(self, system: str) -> float | None:
        """The system's mean over all data sets; None when it lacks one, since that mean could not be compared."""
        values = self.values[system]
        return sum(values.values()) / len(values) if len(values) == len(self.datasets) else None

    def kept(self, system: str) -> float | None:
        """The system's mean as a share of the reference's; None where either has none or the reference's is 0."""
        mean, reference = self.mean(system), self.mean(self.reference)
        return mean / reference if mean is not None and reference else None

    def mark(self, system: str, dataset: str) -> str:
        """ "+" significantly above the reference, "-" significantly below, "" otherwise."""
        p = self.p_values.get(system, {}).get(dataset)
        if p is None or p >= self.alpha:
            return ""
        return "+" if self.values[system][dataset] > self.values[self.reference][dataset] else "-"

    def to_json(self) -> dict[str, Any]:
        """The table as JSON values, with means and shares kept."""
        means = {system: {"mean": self.mean(system), "kept": self.kept(system)} for system in self.values}
        return {**asdict(self), "summary": means}

    def rows(self) -> list[list[str]]:
        """The table's cells, header first."""
        rows = [["system", *self.datasets, "mean", f"of {self.reference}"]]
        for system, values in self.values.items():
            cells = [f"{values[d]:.3f}{self.mark(system, d)}" if d in values else "" for d in self.datasets]
            mean, kept = self.mean(system), self.kept(system)
            cells += ["" if mean is None else f"{mean:.3f}", "" if kept is None else f"{100 * kept:.1f} %"]
            rows.append([system, *cells])
        return rows

    @property
    def legend(self) -> str:
        """What the marks mean, in one line."""
        return (
            f"{self.measure}; + and -: above and below {self.reference}, paired randomisation test, "
            f"p < {self.alpha:g} after correction ({self.correction})"
        )

    def to_markdown(self) -> str:
        """The table in Markdown, the legend below it."""
        head, *body = self.rows()
        rule = ["---"] + ["---:"] * (len(head) - 1)
        lines = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in (head, rule, *body)]
        return "\n".join([*lines, "", self.legend]) + "\n"

    def to_text(self) -> str:
        """The table in aligned columns, the legend below it."""
        rows = self.rows()
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines = [
            "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])
            for row in rows
        ]
        return "\n".join([*(line.rstrip() for line in lines), self.legend]) + "\n"


def compare(
    evaluations: Mapping[str, Mapping[str, EvaluationResult]],
    *,
    reference: str,
    measure: str = "nDCG@10",
    alpha: float = 0.05,
    correction: Correction = "holm",
    seed: int = 0,
) -> Comparison:
    """The systems held against the reference, data set by data set.

    Args:
        evaluations: system -> data set -> evaluation.
        reference: one of the systems.
        measure: one that all evaluations hold.
        alpha: the level for marks.
        correction: applied over the systems of each data set.
        seed: of the randomisation tests.

    Raises:
        InvalidInput: no such reference or measure, or two systems judged on other queries of one data set.
    """
    if reference not in evaluations:
        raise InvalidInput(f"the reference {reference!r} is none of the systems {list(evaluations)}")
    values = {
        system: {dataset: _mean(evaluation, measure, system) for dataset, evaluation in by_set.items()}
        for system, by_set in evaluations.items()
    }
    p_values: dict[str, dict[str, float]] = {system: {} for system in evaluations if system != reference}
    for dataset, base in evaluations[reference].items():
        others = [system for system in p_values if dataset in evaluations[system]]
        raw = [_p_value(base, evaluations[system][dataset], measure, (system, dataset), seed) for system in others]
        for system, p in zip(others, correct_p_values(raw, correction), strict=True):
            p_values[system][dataset] = float(p)
    return Comparison(measure, reference, alpha, correction, values, p_values)


def _mean(evaluation: EvaluationResult, measure: str, system: str) -> float:
    if measure not in evaluation.measures:
        raise InvalidInput(f"system {system!r} was not measured by {measure!r}, only by {list(evaluation.measures)}")
    return evaluation.measures[measure]


def _p_value(base: EvaluationResult, other: EvaluationResult, measure: str, names: tuple[str, str], seed: int) -> float:
    a, b = other.per_query[measure], base.per_query[measure]
    if a.keys() != b.keys():
        raise InvalidInput(f"system {names[0]!r} was judged on other queries of {names[1]!r} than the reference")
    rng = np.random.default_rng(seed)
    return randomization_test([a[query_id] for query_id in b], list(b.values()), rng=rng)


def plot(comparison: Comparison, path: Path | str) -> None:
    """Write bars of the systems, grouped by data set, as .svg or .png.

    Raises:
        MissingExtra: matplotlib is not installed.
        InvalidInput: another ending.
    """
    path = Path(path)
    if path.suffix not in (".svg", ".png"):
        raise InvalidInput(f"{path}: a plot is written as .svg or .png")
    try:
        figure_module = importlib.import_module("matplotlib.figure")
    except ImportError:
        raise MissingExtra("matplotlib is needed to plot: pip install 'lightir[eval]'") from None
    datasets, systems = comparison.datasets, list(comparison.values)
    figure = figure_module.Figure(figsize=(1.5 + 0.3 * (len(systems) + 1) * len(datasets), 4), layout="constrained")
    axes = figure.subplots()
    width = 0.85 / len(systems)
    for row, system in enumerate(systems):
        values = comparison.values[system]
        places = [column + (row - (len(systems) - 1) / 2) * width for column, d in enumerate(datasets) if d in values]
        axes.bar(places, [values[d] for d in datasets if d in values], width, label=system)
    axes.set_xticks(range(len(datasets)), datasets)
    axes.set_ylabel(comparison.measure)
    figure.legend(loc="outside upper center", ncols=min(4, len(systems)), frameon=False)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
