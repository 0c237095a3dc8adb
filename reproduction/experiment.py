"""A page: one table or figure of a paper, with everything that is needed to run and read it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from fedveil.report.store import Outcome
from reproduction.case import Case, Label

if TYPE_CHECKING:
    from reproduction.summary import Row


class Scale(StrEnum):
    """How much of the paper's size is run."""

    QUICK = "quick"  # minutes on two cores, the comparison still means something
    FULL = "full"  # the paper's size, as far as the data allow


@dataclass(frozen=True)
class Difference:
    """Where we cannot, or do not, do what the paper did."""

    what: str
    paper: str
    here: str
    only: Scale | None = None  # at one scale alone


@dataclass(frozen=True)
class Panel:
    """One picture: `y` against `x`, one line for each value of `by`, for rows that match `where`.

    `x` is a label (numbers, or words for marks without lines), or "round" for curves over a run.
    `y` is a figure of the outcome. `minus` names the line that is taken off every other, seed by
    seed; bands are then standard errors. `ridges` shows the distribution of update norms instead,
    one hill for every round that was looked at.
    """

    title: str
    x: str
    y: str
    by: str
    where: tuple[tuple[str, Label], ...] = ()
    x_label: str = ""
    y_label: str = ""
    log_y: bool = False
    log_x: bool = False
    minus: Label | None = None
    ridges: bool = False


Finding = Callable[[Sequence["Row"]], Sequence[str]]


def no_findings(rows: Sequence[Row]) -> Sequence[str]:
    return ()


@dataclass(frozen=True)
class Experiment:
    """One table or figure.

    `cases(scale)` is the grid of runs, `seeds` how often each is repeated at the two scales.
    `metric` is the figure whose mean stands in the table, in `unit`. `findings` turns the finished
    rows into sentences with numbers.
    """

    name: str  # as typed: liang-table-1
    paper: str
    title: str
    setting: tuple[str, ...]  # of the paper, one line each
    differences: tuple[Difference, ...]
    cases: Callable[[Scale], tuple[Case, ...]]
    metric: str
    unit: str
    panels: tuple[Panel, ...]
    quick_seeds: int = 2
    full_seeds: int = 3
    findings: Finding = no_findings
    quick_minutes: float = 3.0  # on two cores; told by `list`
    full_minutes: float = 30.0
    run: Callable[..., Outcome] | None = None  # in place of a federated run, where there is none
    reading: str = ""  # how the paper's number is to be read, where that is not plain

    def seeds(self, scale: Scale) -> int:
        return self.quick_seeds if scale is Scale.QUICK else self.full_seeds

    def minutes(self, scale: Scale) -> float:
        return self.quick_minutes if scale is Scale.QUICK else self.full_minutes


def pages_of(**shared: Any) -> Callable[..., Experiment]:
    """Makes experiments that have these fields in common, by name, title, cases and panels;
    further fields of one of them come before the common ones."""

    def page(
        name: str,
        title: str,
        cases: Callable[[Scale], tuple[Case, ...]],
        panels: tuple[Panel, ...],
        **more: Any,
    ) -> Experiment:
        fields = {**shared, **more}
        return Experiment(name=name, title=title, cases=cases, panels=panels, **fields)

    return page
