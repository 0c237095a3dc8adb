"""The live view of a run; plain lines where there is no terminal to draw on.

Of a protected run no times are shown: they depend on who takes part and how much data they have.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fedveil.cli import console
from fedveil.run.callbacks import figures_text
from fedveil.run.round_report import RoundReport
from fedveil.run.run import Run

Show = Callable[[RoundReport], None]


@contextmanager
def progress(run: Run, *, quiet: bool, json: bool) -> Iterator[Show]:
    """A function that shows each finished round on stderr, as the place allows."""
    if quiet:
        yield lambda report: None
    elif sys.stderr.isatty() and (json or sys.stdout.isatty()):
        with _live(run) as show:
            yield show
    else:
        yield _lines(run)


@contextmanager
def _live(run: Run) -> Iterator[Show]:
    from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn

    columns: list[ProgressColumn] = [
        TextColumn("round {task.completed}/{task.total}"),
        BarColumn(),
        TextColumn("{task.fields[metrics]}"),
    ]
    if not run.plan.protected:
        columns += [TextColumn("{task.fields[speed]}"), TimeRemainingColumn()]
    speedometer = _Speedometer(run)
    with Progress(*columns, console=console.stderr(), transient=False) as bar:
        task = bar.add_task(
            "", total=run.plan.method.rounds, completed=run.state.rounds, metrics="", speed=""
        )

        def show(report: RoundReport) -> None:
            bar.update(task, completed=report.round_number, speed=speedometer(report))
            if lost := _lost(report):
                bar.console.print(lost)
            if report.metrics is not None:
                bar.update(task, metrics=figures_text(report))

        yield show


def _lines(run: Run) -> Show:
    speedometer = _Speedometer(run)
    total = run.plan.method.rounds

    def show(report: RoundReport) -> None:
        speed = speedometer(report)
        if lost := _lost(report):
            print(lost, file=sys.stderr, flush=True)
        if report.metrics is not None:
            shown = figures_text(report)
            if not run.plan.protected:
                shown += f"  {speed}  {speedometer.seconds_left(report.round_number):.0f} s left"
            print(f"round {report.round_number}/{total}  {shown}", file=sys.stderr, flush=True)

    return show


class _Speedometer:
    """Clients a second since the start, by the expected cohort."""

    def __init__(self, run: Run) -> None:
        self._cohort = run.plan.sampling.expected_cohort
        self._first, self._total = run.state.rounds, run.plan.method.rounds
        self._began = time.perf_counter()
        self._pace = 0.0

    def __call__(self, report: RoundReport) -> str:
        self._pace = (time.perf_counter() - self._began) / (report.round_number - self._first)
        return f"{self._cohort / self._pace:,.0f} clients/s"

    def seconds_left(self, done: int) -> float:
        return self._pace * (self._total - done)


def _lost(report: RoundReport) -> str:
    """A line on a round that gave no sum; empty if it did."""
    came = report.dropouts
    if came is None or not came.not_released:
        return ""
    return f"round {report.round_number} not released, weights kept: {came.not_released}"
