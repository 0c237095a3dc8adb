"""`fedveil compare`: recipes side by side at equal epsilon, mean and deviation over seeds."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedveil.cli import console
from fedveil.core.errors import ConfigError

if TYPE_CHECKING:
    from fedveil.report.comparison import ComparedRun, Comparison
    from fedveil.report.store import Store


_OPTIONS: console.Options = {
    "--seeds N": (int, "runs of each (3)", 3),
    "--epsilon E[,E]...": (str, "budgets; none: each recipe's own, whatever it is"),
    "--delta": (float, "for all; none: the strictest of theirs"),
    "--set KEY=VALUE": (list, "change it in every recipe"),
    "--output DIR": (
        Path,
        "where runs and page are kept (comparison); finished runs are used again",
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
        _run(todo, store, quiet=args.quiet)
    except KeyboardInterrupt:
        console.complain("interrupted; the same command goes on with what is missing")
        return 130
    made = comparison.comparison_of(todo, store)
    page = args.output / "comparison.html"
    shown = console.plain(comparison.page_document(made))
    write_atomically(page, comparison_page(shown).encode(), durable=False)
    document = {
        **vars(made),
        "delta": delta,
        "seeds": args.seeds,
        "promises_differ": made.promises_differ,
        "page": str(page),
    }
    return console.answer(args, document, lambda: _show(made, page))


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
    """Run what is not in the store, each once."""
    from fedveil.report.comparison import run_task

    missing = {task.key: task for task in todo if store.find(task.key) is None}
    began = time.perf_counter()
    for done, (key, task) in enumerate(missing.items(), 1):
        store.keep(key, run_task(task))
        if not quiet:
            left = (time.perf_counter() - began) / done * (len(missing) - done)
            budget = "" if task.epsilon is None else f", epsilon {task.epsilon:g}"
            print(
                f"run {done}/{len(missing)}  {task.name}{budget}, seed {task.recipe.seed}  "
                f"{left:.0f} s left",
                file=sys.stderr,
                flush=True,
            )


def _show(made: Comparison, page: Path) -> None:
    from fedveil.report.comparison import LABELS

    percent = made.figure == "accuracy"
    scale = 100.0 if percent else 1.0
    budgets = {row["epsilon"] for row in made.rows}
    columns = sorted(budgets, key=lambda epsilon: (epsilon is None, epsilon or 0.0))
    cells: dict[str, dict[float | None, str]] = {}
    for row in made.rows:
        shown = f"{scale * row['mean']:.4g} ± {scale * row['deviation']:.2g}"
        cells.setdefault(row["recipe"], {})[row["epsilon"]] = shown if row["runs"] else "diverged"
    console.table(
        f"{LABELS[made.figure]}{', %' if percent else ''}, on {made.data}",
        ["recipe", *("no budget set" if one is None else f"epsilon {one:g}" for one in columns)],
        [[name, *(of.get(budget, "") for budget in columns)] for name, of in cells.items()],
    )
    if made.promises_differ:
        console.say("\n  ".join(["Equal numbers, different promises:", *made.promises_differ]))
    console.say("Simulations with known seeds: none of these runs is certified.")
    console.say(str(page), heading="Written:")
