"""What `fedveil reproduce` does: runs what is missing of a page, and writes it."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedveil.cli import console
from fedveil.core.errors import ConfigError

Show = Callable[[float, float, str], None]

_EVERY = 10.0  # seconds between two lines where there is no terminal to draw on


def execute(args: argparse.Namespace) -> int:
    if args.name == "list":
        return _list(args.json)
    from fedveil.report.store import Store
    from reproduction.experiment import Scale
    from reproduction.pages import find
    from reproduction.pictures import draw
    from reproduction.runner import finish, pending, tasks
    from reproduction.summary import rows_of
    from reproduction.writing import as_json, document, html, page, write

    experiment, scale = find(args.name), Scale(args.scale)
    store = Store(args.results / ".runs")
    todo = tasks(experiment, scale, args.seeds)
    if not args.report:
        with _progress() as show:
            finish(todo, store, show, experiment.run)
    rows = rows_of(experiment, scale, store, args.seeds)
    if not rows:
        described = _written_before(args.results / f"{experiment.name}.json", scale)
        if described is None:
            raise ConfigError(
                f"{experiment.name}: no run of scale {scale} is finished; leave out --report"
            )
        drawn: dict[str, str | bytes] = {"html": html(described), "png": draw(described)}
        return _tell(args, described, write(args.results, experiment.name, drawn))
    missing = sum(1 for _ in pending(todo, store))
    described = document(experiment, scale, rows, missing)
    written = write(
        args.results,
        experiment.name,
        {
            "json": as_json(described),
            "md": page(experiment, scale, rows, missing),
            "png": draw(described),
            "html": html(described),
        },
    )
    return _tell(args, described, written)


def _written_before(path: Path, scale: str) -> dict[str, Any] | None:
    """What an earlier command of this scale has written, if it can still be drawn."""
    if not path.exists():
        return None
    described: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return described if "charts" in described and described["scale"] == scale else None


def _tell(args: argparse.Namespace, described: dict[str, Any], written: Sequence[Path]) -> int:
    if args.json:
        console.emit({**described, "written": [str(path) for path in written]})
        return 0
    for line in described["findings"]:
        console.stdout().print(f"- {line}")
    console.stdout().print("wrote " + ", ".join(map(str, written)))
    return 0


def _list(as_json: bool) -> int:
    from reproduction.experiment import Scale
    from reproduction.pages import EXPERIMENTS

    described: list[dict[str, Any]] = [
        {
            "name": experiment.name,
            "title": f"{experiment.paper}, {experiment.title}",
            **{
                str(scale): {
                    "runs": len(experiment.cases(scale)) * experiment.seeds(scale),
                    "minutes": experiment.minutes(scale),
                }
                for scale in Scale
            },
        }
        for experiment in EXPERIMENTS.values()
    ]
    if as_json:
        console.emit({"experiments": described})
        return 0
    rows = [
        (d["name"], d["title"], *(f"{d[s]['runs']} runs, {d[s]['minutes']:g} min" for s in Scale))
        for d in described
    ]
    console.table("Experiments", ("name", "what", "quick", "full"), rows)
    return 0


@contextmanager
def _progress() -> Iterator[Show]:
    """A bar with the time left on a terminal, a line now and then elsewhere; always on stderr."""
    if not sys.stderr.isatty():
        yield _lines()
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), TextColumn("{task.percentage:.0f} %"), TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.description}"), console=console.stderr()) as bar:
        task = bar.add_task("")

        def show(done: float, total: float, what: str) -> None:
            bar.update(task, completed=done, total=total, description=what)

        yield show


def _lines() -> Show:
    began = last = time.monotonic()

    def show(done: float, total: float, what: str) -> None:
        nonlocal last
        now = time.monotonic()
        if done <= 0 or (now - last < _EVERY and done < total):
            return
        last = now
        left = (now - began) * (total / done - 1)
        print(f"{done / total:.0%}  {left:.0f} s left  {what}", file=sys.stderr, flush=True)

    return show
