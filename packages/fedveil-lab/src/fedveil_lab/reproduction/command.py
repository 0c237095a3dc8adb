"""What `fedveil reproduce` does: runs what is missing of a page, and writes it."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from textwrap import wrap
from typing import Any

from fedveil.cli import console
from fedveil.core.errors import ConfigError

Show = Callable[[float, float, str], None]

_NEXT = "\n" + " " * 40  # a title goes on below its first line
_MOST_STALE = 8  # that are told one by one
_EVERY = 10.0  # seconds between two lines where there is no terminal to draw on


def execute(args: argparse.Namespace) -> int:
    """Run what is missing of an experiment, unless `--report` forbids it, and write its page."""
    if args.name == "list":
        return _list(args)
    from fedveil.planning.recipe import assigned
    from fedveil.report.store import Store
    from fedveil_lab.reproduction.experiment import Scale
    from fedveil_lab.reproduction.pages import find
    from fedveil_lab.reproduction.pictures import draw
    from fedveil_lab.reproduction.runner import finish, pending, tasks
    from fedveil_lab.reproduction.summary import rows_of
    from fedveil_lab.reproduction.writing import (
        as_json,
        document,
        html,
        page,
        stale_rows,
        write,
    )

    experiment, scale = find(args.name), Scale(args.scale)
    if args.set:
        experiment = experiment.changed(assigned(args.set))
    store, written = Store(args.results / ".runs"), args.results / f"{experiment.name}.json"
    before = json.loads(written.read_text("utf-8")) if written.exists() else {}
    todo = tasks(experiment, scale, args.seeds)
    if before.get("scale") == scale:
        _tell_stale(stale_rows(experiment, before), len(before["rows"]))
    if not args.report:
        with _progress() as show:
            finish(todo, store, show, experiment.run)
    rows = rows_of(experiment, scale, store, args.seeds) if store.directory.is_dir() else ()
    if rows:
        missing = sum(1 for _ in pending(todo, store))
        described = document(experiment, scale, rows, missing)
    else:
        described = before
        if described.get("scale") != scale:
            raise ConfigError(
                f"--report: no run of {experiment.name} at scale {scale} is finished; leave it out"
            )
    contents: dict[str, str | bytes] = {"json": as_json(described), "md": page(described)}
    contents |= {"png": draw(described), "html": html(described)}
    paths = write(args.results, experiment.name, contents)

    def show_findings() -> None:
        for line in described["findings"]:
            console.stdout().print(f"- {line}")
        console.stdout().print("wrote " + ", ".join(map(str, paths)))

    return console.answer(args, {**described, "written": list(map(str, paths))}, show_findings)


def _tell_stale(stale: list[str], rows: int) -> None:
    """Say which written rows other code or data gave; a run computes these again, and only these
    if the others' runs are in the store."""
    if not stale:
        return
    errors = console.stderr()
    console.say(
        f"Of the {rows} written rows, {len(stale)} are stale: today's code or data differ.",
        to=errors,
    )
    for line in stale[:_MOST_STALE]:
        console.say(f"- {line}", to=errors)
    if len(stale) > _MOST_STALE:
        console.say(f"- and {len(stale) - _MOST_STALE} more", to=errors)


def _list(args: argparse.Namespace) -> int:
    from fedveil_lab.reproduction.experiment import Scale
    from fedveil_lab.reproduction.pages import EXPERIMENTS

    described: list[dict[str, Any]] = [
        {
            "name": experiment.name,
            "title": experiment.title,
            "paper": experiment.paper,
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

    def show() -> None:
        print(f"{'':<21}{'quick':>8}{'full':>8}   on two cores")
        for d in described:
            times = "".join(f"{_duration(d[s]['minutes']):>8}" for s in Scale)
            print(f"{d['name']:<21}{times}   {_NEXT.join(wrap(d['title'], 39))}")

    return console.answer(args, {"experiments": described}, show)


def _duration(minutes: float) -> str:
    return f"{minutes:g} min" if minutes < 600 else f"{minutes / 60:.0f} h"


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
