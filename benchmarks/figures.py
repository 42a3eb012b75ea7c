"""Figures, and the table that shows them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any


@dataclass
class Figure:
    """One line: `ours` and what it is compared with, in the same unit; `ratio` is ours / reference.

    `budget` bounds the ratio, or `ours` itself where there is no reference: from above, or from below if
    `at_least`. None: there is no budget, the figure informs.
    """

    database: str
    what: str
    unit: str
    ours: float
    reference: float | None = None
    budget: float | None = None
    at_least: bool = False

    @property
    def ratio(self) -> float | None:
        return None if self.reference is None else self.ours / self.reference

    @property
    def is_met(self) -> bool | None:
        if self.budget is None:
            return None
        value = self.ours if self.ratio is None else self.ratio
        return value >= self.budget if self.at_least else value <= self.budget


def interleaved(repeats: int, *measures: Callable[[], float]) -> list[float]:
    """The median of each of these, taken by turns, so that a busy moment of the machine hits all of them."""
    rounds = [[measure() for measure in measures] for _ in range(repeats)]
    return [median(values) for values in zip(*rounds, strict=True)]


def table(figures: Iterable[Figure]) -> str:
    rows: list[tuple[str, ...]] = [("database", "what", "unit", "reference", "ours", "ratio", "budget", "met")]
    rows += [_cells(figure) for figure in figures]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def _cells(figure: Figure) -> tuple[str, ...]:
    sign = "≥" if figure.at_least else "≤"
    return (
        figure.database,
        figure.what,
        figure.unit,
        "" if figure.reference is None else f"{figure.reference:,.2f}",
        f"{figure.ours:,.2f}",
        "" if figure.ratio is None else f"{figure.ratio:.2f} x",
        "" if figure.budget is None else f"{sign} {figure.budget:g}{'' if figure.ratio is None else ' x'}",
        {None: "", True: "yes", False: "NO"}[figure.is_met],
    )


def as_json(figures: Iterable[Figure]) -> list[dict[str, Any]]:
    return [{**asdict(figure), "ratio": figure.ratio, "met": figure.is_met} for figure in figures]


def write_json(path: Path, figures: Iterable[Figure]) -> None:
    path.write_text(json.dumps(as_json(figures), indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> list[Figure]:
    derived = ("ratio", "met")
    rows = json.loads(path.read_text())
    return [Figure(**{key: value for key, value in row.items() if key not in derived}) for row in rows]
