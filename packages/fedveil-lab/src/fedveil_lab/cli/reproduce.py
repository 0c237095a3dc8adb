"""`fedveil reproduce`: run the papers' tables and figures again."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from textwrap import wrap
from typing import Any

from fedveil.cli import console
from fedveil.core.errors import ConfigError

_NEXT = "\n" + " " * 40  # a title goes on below its first line
_MOST_STALE = 8  # that are told one by one
_OPTIONS: console.Options = {
    "--scale": (("quick", "full"), "minutes or hours (quick)", "quick"),
    "--seeds": (int, "how often each case is run"),
    "--set KEY=VALUE": (
        list,
        "change all cases: a recipe key, or a setting of the page as T",
    ),
    "--results DIR": (Path, "where results are kept (results)", Path("results")),
    "--report": (bool, "write from finished runs, or draw what was written before; run nothing"),
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="an experiment, or list")
    console.add_options(parser, _OPTIONS)


def execute(args: argparse.Namespace) -> int:
    """Run what is missing of an experiment, unless `--report` forbids it, and write its page."""
    if args.seeds is not None and args.seeds < 1:
        raise ConfigError(f"--seeds {args.seeds}: must be at least 1")
    if args.name == "list":
        return _list(args)
    from fedveil.planning.recipe import assigned
    from fedveil.report.store import Store
    from fedveil_lab.reproduction.charts import draw
    from fedveil_lab.reproduction.experiment import Scale
    from fedveil_lab.reproduction.pages import find
    from fedveil_lab.reproduction.runs import finish, pending, rows_of, tasks
    from fedveil_lab.reproduction.writing import as_json, document, page, stale_rows, write

    experiment, scale = find(args.name), Scale(args.scale)
    if args.set:
        experiment = experiment.changed(assigned(args.set))
    store, written = Store(args.results / ".runs"), args.results / f"{experiment.name}.json"
    before = json.loads(written.read_text("utf-8")) if written.exists() else {}
    todo = tasks(experiment, scale, args.seeds)
    if before.get("scale") == scale:
        _tell_stale(stale_rows(experiment, before), len(before["rows"]))
    if not args.report:
        finish(todo, store, console.counting(quiet=False), experiment.run)
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
    contents = {"json": as_json(described).encode(), "md": page(described).encode()}
    paths = write(args.results, experiment.name, {**contents, "svg": draw(described)})

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
