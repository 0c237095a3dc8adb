"""`fedveil compare`: recipes side by side at equal epsilon, mean and deviation over seeds."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedveil.cli import console
from fedveil.core.arguments import positive
from fedveil.core.canonical import plain
from fedveil.core.errors import ConfigError

if TYPE_CHECKING:
    from fedveil.report.comparison import ComparedRun
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
    from fedveil.report.compared import cell, comparison_page
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
    result = comparison.comparison_of(todo, store)
    file = args.output / "comparison.html"
    page = plain(comparison.page_document(result))
    write_atomically(file, comparison_page(page).encode(), durable=False)

    def show() -> None:
        table = page["table"]
        rows = [[cell(value).text for value in row] for row in table["rows"]]
        console.table(page["title"], table["columns"], rows)
        for heading, sentences in page["said"].items():
            for sentence in sentences:
                console.say(sentence, heading=f"{heading}:")
        console.say(str(file), heading="Written:")

    document = {**result, "delta": delta, "seeds": args.seeds, "page": str(file)}
    return console.answer(args, document, show)


def _epsilons(text: str | None) -> tuple[float, ...]:
    if text is None:
        return ()
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"--epsilon {text}: write numbers with commas, such as 1,2,4,8") from None
    return tuple(dict.fromkeys(positive(f"--epsilon {text}", value) for value in values))


def _run(todo: Sequence[ComparedRun], store: Store, *, quiet: bool) -> None:
    """Run what is not in the store, each once."""
    from fedveil.report.comparison import run_task

    show, missing = console.counting(quiet), {task.key: task for task in todo}
    missing = {key: task for key, task in missing.items() if store.find(key) is None}
    for done, (key, task) in enumerate(missing.items(), 1):
        store.keep(key, run_task(task))
        show("runs", done, len(missing))
