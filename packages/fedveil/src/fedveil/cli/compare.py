"""`fedveil compare`: recipes side by side at equal epsilon, mean and deviation over seeds."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedveil.cli import console
from fedveil.core.errors import ConfigError

if TYPE_CHECKING:
    from fedveil.report.comparison import ComparedCell, ComparedRun
    from fedveil.report.store import Store


_OPTIONS: console.Options = {
    "--seeds N": (int, "runs of each (3)", 3),
    "--epsilon E[,E]...": (str, "budgets; none: each recipe's own, whatever it is"),
    "--delta": (float, "for all; none: the strictest of theirs"),
    "--set KEY=VALUE": (list, "change it in every recipe"),
    "--output DIR": (
        Path,
        "where runs, page and picture are kept (comparison); finished runs are used again",
        Path("comparison"),
    ),
    "--quiet": (bool, "no progress, only the result"),
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipes", nargs="+", type=Path, metavar="RECIPE", help="TOML recipes")
    console.add_options(parser, _OPTIONS)


def execute(args: argparse.Namespace) -> int:
    console.prepare_training()
    epsilons = _epsilons(args.epsilon)

    from fedveil.core.files import write_atomically
    from fedveil.report import comparison
    from fedveil.report.compared import comparison_page
    from fedveil.report.store import Store

    entered = comparison.contenders(args.recipes, args.set)
    delta = args.delta
    if delta is None and epsilons:
        delta = comparison.common_delta(entered)
    todo = comparison.tasks(entered, epsilons, delta, args.seeds)
    store = Store(args.output / "runs")
    try:
        _run(comparison.missing(todo, store), store, quiet=args.quiet)
    except KeyboardInterrupt:
        console.complain("interrupted; the same command goes on with what is missing")
        return 130
    table = comparison.cells(todo, store)
    figure, label = _figure(table)
    picture = args.output / "comparison.png"
    page = args.output / "comparison.html"
    picture.write_bytes(comparison.draw(table, figure, label))
    shown = console.plain(comparison.page_document(table, figure, label))
    write_atomically(page, comparison_page(shown).encode(), durable=False)
    document = {
        "data": comparison.data_of(table),
        "figure": figure,
        "delta": delta,
        "seeds": args.seeds,
        "rows": comparison.to_document(table, figure),
        "promises_differ": list(comparison.differences(table)),
        "picture": str(picture),
        "page": str(page),
    }
    return console.answer(args, document, lambda: _show(table, figure, label, [page, picture]))


def _epsilons(text: str | None) -> tuple[float, ...]:
    if text is None:
        return ()
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"--epsilon {text}: write numbers with commas, such as 1,2,4,8") from None
    if not all(0 < value < float("inf") for value in values):
        raise ConfigError(f"--epsilon {text}: budgets must be positive and finite")
    return tuple(dict.fromkeys(values))


def _run(todo: Sequence[ComparedRun], store: Store, *, quiet: bool) -> None:
    from fedveil.report.comparison import run_task

    began = time.perf_counter()
    for number, task in enumerate(todo):
        store.keep(task.key, run_task(task))
        if not quiet:
            done = number + 1
            left = (time.perf_counter() - began) / done * (len(todo) - done)
            budget = "" if task.epsilon is None else f", epsilon {task.epsilon:g}"
            print(
                f"run {done}/{len(todo)}  {task.contender.name}{budget}, seed {task.seed}  "
                f"{left:.0f} s left",
                file=sys.stderr,
                flush=True,
            )


def _figure(table: Sequence[ComparedCell]) -> tuple[str, str]:
    """What all runs are measured by: accuracy, or the error of regressions."""
    known = [{name for name in ("accuracy", "rmse") if one.get(name) is not None}
             for cell in table for one in cell.outcomes]  # fmt: skip
    shared = set.intersection(*known) if known else set()
    if "accuracy" in shared:
        return "accuracy", "accuracy"
    if "rmse" in shared:
        return "rmse", "root mean squared error"
    return "loss", "loss"


def _show(table: Sequence[ComparedCell], figure: str, label: str, files: Sequence[Path]) -> None:
    from fedveil.report.comparison import data_of, differences

    scale = 100.0 if figure == "accuracy" else 1.0
    names = list(dict.fromkeys(cell.contender.name for cell in table))
    budgets = sorted({cell.epsilon for cell in table}, key=lambda e: (e is None, e or 0.0))
    found: dict[tuple[str, float | None], Any] = {
        (cell.contender.name, cell.epsilon): cell.spread(figure) for cell in table
    }
    rows = []
    for name in names:
        row = [name]
        for budget in budgets:
            spread = found.get((name, budget))
            if spread is None:
                row.append("")
            elif not spread.runs:
                row.append("diverged")
            else:
                row.append(f"{scale * spread.mean:.4g} ± {scale * spread.deviation:.2g}")
        rows.append(row)
    unit = f"{label}, %" if figure == "accuracy" else label
    columns = ["no budget set" if budget is None else f"epsilon {budget:g}" for budget in budgets]
    console.table(f"{unit}, on {data_of(table)}", ["recipe", *columns], rows)
    lines = list(differences(table))
    if lines:
        console.stdout().print("Equal numbers, different promises:")
        for line in lines:
            console.stdout().print(f"  {line}")
    console.say("Simulations with known seeds: none of these runs is certified.")
    console.say(", ".join(map(str, files)), heading="Written:")
