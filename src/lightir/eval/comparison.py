"""Comparison of several systems on several data sets with a reference: table, significance and plot."""

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
        measure: name of the measure.
        reference: system that the others are compared with.
        alpha: significance level; differences with a smaller corrected p are marked.
        correction: correction for the number of systems per data set.
        values: system -> data set -> mean; a system may lack data sets.
        p_values: system -> data set -> corrected p of the difference from the reference, without the reference.
    """

    measure: str
    reference: str
    alpha: float
    correction: Correction
    values: Mapping[str, Mapping[str, float]]
    p_values: Mapping[str, Mapping[str, float]]

    @property
    def datasets(self) -> tuple[str, ...]:
        """The data sets, in order of first occurrence."""
        return tuple(dict.fromkeys(dataset for values in self.values.values() for dataset in values))

    def mean(self, system: str) -> float | None:
        """Return a system's mean over all data sets; None if it lacks one, since the mean would not be comparable."""
        values = self.values[system]
        return sum(values.values()) / len(values) if len(values) == len(self.datasets) else None

    def kept(self, system: str) -> float | None:
        """Return a system's mean as a fraction of the reference's; None if either is None or the reference's is 0."""
        mean, reference = self.mean(system), self.mean(self.reference)
        return mean / reference if mean is not None and reference else None

    def mark(self, system: str, dataset: str) -> str:
        """Return "+" if significantly above the reference, "-" if significantly below, otherwise ""."""
        p = self.p_values.get(system, {}).get(dataset)
        if p is None or p >= self.alpha:
            return ""
        return "+" if self.values[system][dataset] > self.values[self.reference][dataset] else "-"

    def to_json(self) -> dict[str, Any]:
        """Return the table as JSON values, with means and fractions of the reference."""
        means = {system: {"mean": self.mean(system), "kept": self.kept(system)} for system in self.values}
        return {**asdict(self), "summary": means}

    def rows(self) -> list[list[str]]:
        """Return the table's cells, header first."""
        rows = [["system", *self.datasets, "mean", f"of {self.reference}"]]
        for system, values in self.values.items():
            cells = [f"{values[d]:.3f}{self.mark(system, d)}" if d in values else "" for d in self.datasets]
            mean, kept = self.mean(system), self.kept(system)
            cells += ["" if mean is None else f"{mean:.3f}", "" if kept is None else f"{100 * kept:.1f} %"]
            rows.append([system, *cells])
        return rows

    @property
    def legend(self) -> str:
        """Explanation of the marks, in one line."""
        return (
            f"{self.measure}; + and -: above and below {self.reference}, paired randomization test, "
            f"p < {self.alpha:g} after correction ({self.correction})"
        )

    def to_markdown(self) -> str:
        """Return the table in Markdown, followed by the legend."""
        head, *body = self.rows()
        rule = ["---"] + ["---:"] * (len(head) - 1)
        lines = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in (head, rule, *body)]
        return "\n".join([*lines, "", self.legend]) + "\n"

    def to_text(self) -> str:
        """Return the table in aligned columns, followed by the legend."""
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
    """Compare systems with a reference on each data set.

    Args:
        evaluations: system -> data set -> evaluation.
        reference: name of the reference system.
        measure: a measure that all evaluations have.
        alpha: significance level.
        correction: correction for the number of systems per data set.
        seed: seed of the randomization tests.

    Raises:
        InvalidInput: unknown reference or measure, or a system evaluated on other queries than the reference.
    """
    if reference not in evaluations:
        raise InvalidInput(f"unknown reference {reference!r}; the systems are {list(evaluations)}")
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
        raise InvalidInput(f"system {system!r} has no measure {measure!r}, only {list(evaluation.measures)}")
    return evaluation.measures[measure]


def _p_value(base: EvaluationResult, other: EvaluationResult, measure: str, names: tuple[str, str], seed: int) -> float:
    a, b = other.per_query[measure], base.per_query[measure]
    if a.keys() != b.keys():
        raise InvalidInput(f"system {names[0]!r} was evaluated on other queries of {names[1]!r} than the reference")
    rng = np.random.default_rng(seed)
    return randomization_test([a[query_id] for query_id in b], list(b.values()), rng=rng)


def plot(comparison: Comparison, path: Path | str) -> None:
    """Write a bar chart of the systems, grouped by data set, as .svg or .png.

    Raises:
        MissingExtra: matplotlib is not installed.
        InvalidInput: unsupported suffix.
    """
    path = Path(path)
    if path.suffix not in (".svg", ".png"):
        raise InvalidInput(f"{path}: unsupported suffix; expected .svg or .png")
    try:
        figure_module = importlib.import_module("matplotlib.figure")
    except ImportError:
        raise MissingExtra("plots require matplotlib: pip install 'lightir[eval]'") from None
    datasets, systems = comparison.datasets, list(comparison.values)
    figure = figure_module.Figure(figsize=(1.5 + 0.3 * (len(systems) + 1) * len(datasets), 4), layout="constrained")
    axes = figure.subplots()
    width = 0.85 / len(systems)
    for row, system in enumerate(systems):
        values = comparison.values[system]
        positions = [
            column + (row - (len(systems) - 1) / 2) * width for column, d in enumerate(datasets) if d in values
        ]
        axes.bar(positions, [values[d] for d in datasets if d in values], width, label=system)
    axes.set_xticks(range(len(datasets)), datasets)
    axes.set_ylabel(comparison.measure)
    figure.legend(loc="outside upper center", ncols=min(4, len(systems)), frameon=False)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
