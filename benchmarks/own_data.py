"""What `fedveil run --data` reaches without any tuning, beside the best of a grid.

    FEDVEIL_DATA=DIR python -m benchmarks.own_data [TABLE...] [--seeds 3] [--grid none|quick|full]

Tables: loans of two spans of years by state (interest rate, and whether they were repaid), census
incomes by occupation, handwritten digits as a CSV file. Nothing in the default is chosen by looking
at any of them. The grid is, with the same epsilon, unit and cohorts: it is the best that somebody
could have found who was allowed to try everything on the rows themselves, for free.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import itertools
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedveil.advise.defaults import choose
from fedveil.advise.trials import Candidate, recipe_with_settings
from fedveil.config import recipe as recipes
from fedveil.config.assemble import plan_of
from fedveil.config.recipe import Recipe
from fedveil.data.federation import Federation
from fedveil.run.run import Run
from fedveil.run.scores import Scores

ROWS = 10_000


@dataclass(frozen=True)
class Table:
    client_column: str
    label: str
    write: Callable[[Path], None]


def _loans(years: tuple[str, ...], drop: tuple[str, ...]) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        source = Path(os.environ["FEDVEIL_DATA"]) / "lending_club_2007_2011.csv.gz"
        with gzip.open(source, "rt", encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if row["issue_year"] in years]
        random.Random(0).shuffle(rows)
        kept = [name for name in rows[0] if name not in drop]
        _write(path, kept, ([row[name] for name in kept] for row in rows[:ROWS]))

    return write


def _census(path: Path) -> None:
    names = [
        "age",
        "workclass",
        "fnlwgt",
        "education",
        "education-num",
        "marital-status",
        "occupation",
        "relationship",
        "race",
        "sex",
        "capital-gain",
        "capital-loss",
        "hours-per-week",
        "native-country",
        "income",
    ]
    source = Path(os.environ["FEDVEIL_DATA"]) / "adult.data.gz"
    with gzip.open(source, "rt", encoding="utf-8") as file:
        rows = [line.strip().split(", ") for line in file if line.strip()]
    random.Random(0).shuffle(rows)
    _write(path, names, iter(rows[:ROWS]))


def _digits(path: Path) -> None:
    from sklearn.datasets import load_digits

    found = load_digits()
    names = ["who", *(f"p{i}" for i in range(64)), "digit"]
    rows = zip(found.data.astype(int), found.target, strict=True)
    _write(path, names, ([i % 100, *x, y] for i, (x, y) in enumerate(rows)))


def _write(path: Path, header: list[str], rows: Iterator[list[object]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)


_AFTER = ("total_pymnt", "total_pymnt_inv", "total_rec_prncp", "total_rec_int", "recoveries")
_AFTER += ("total_rec_late_fee", "collection_recovery_fee", "last_pymnt_d", "last_pymnt_amnt")
_AFTER += ("debt_settlement_flag", "debt_settlement_flag_date", "settlement_status", "out_prncp")
_AFTER += ("settlement_date", "settlement_amount", "settlement_percentage", "settlement_term")
TABLES = {
    "loan rates 2011": Table("addr_state", "int_rate", _loans(("2011",), ())),
    "loan rates 2007-2009": Table("addr_state", "int_rate", _loans(("2007", "2008", "2009"), ())),
    "loan status 2011": Table("addr_state", "loan_status", _loans(("2011",), _AFTER)),
    "census by occupation": Table("occupation", "income", _census),
    "digits": Table("who", "digit", _digits),
}


def score(recipe: Recipe, federation: Federation, seed: int) -> Scores:
    run = Run(plan_of(replace(recipe, seed=seed), federation))
    try:
        run.finish()
        found = run.scores()
    finally:
        run.close()
    if found is None:
        raise SystemExit("no test rows")
    return found


def error(scores: Scores) -> float:
    """What is compared: root mean squared error, or log loss."""
    return scores.figures.get("rmse") or scores.figures["log_loss"] or np.inf


def grid(recipe: Recipe, size: str) -> Iterator[Candidate]:
    """Settings around anything sensible, half a decade apart; a quick grid has one number of
    rounds alone."""
    if size == "none":
        return
    rounds = (4, 16, 64) if size == "full" else (16,)
    if recipe.training.method == "dp-sgd":
        rounds = (16, 64, 256) if size == "full" else (64,)
        for many, rate, clip in itertools.product(rounds, (0.1, 0.3, 1, 3), (0.3, 1, 3)):
            yield Candidate(1, many, rate, clip)
        return
    for many, stride, travel in itertools.product(rounds, (0.3, 1, 3), (0.3, 1, 3, 10)):
        steps = 20 if stride <= 1 else 60
        yield Candidate(steps, many, stride / steps, travel / many)


def without_privacy(recipe: Recipe, federation: Federation) -> float:
    plain = recipes.with_defaults(recipes.without_privacy(recipe))
    found = [
        error(score(recipe_with_settings(plain, Candidate(20, 64, rate, 1.0)), federation, 0))
        for rate in (0.01, 0.03, 0.1, 0.3)
    ]
    return float(np.nanmin(found))


def line(name: str, table: Table, seeds: int, size: str) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.csv"
        table.write(path)
        values = {
            "data.file": str(path),
            "data.client_column": table.client_column,
            "data.label": table.label,
        }
        began = time.process_time()  # of this process: a neighbour's load is no property of ours
        chosen = choose(recipes.parse({}, (), values), set(values))
        seconds, federation = time.process_time() - began, chosen.federation
        runs = [score(chosen.recipe, federation, seed) for seed in range(seeds)]
        tried: dict[Candidate, float] = {}
        for candidate in grid(chosen.recipe, size):
            settings = recipe_with_settings(chosen.recipe, candidate)
            tried[candidate] = error(score(settings, federation, 0))
        top, plain = np.nan, np.nan
        if tried:
            best = min(tried, key=lambda one: tried[one])
            again = recipe_with_settings(chosen.recipe, best)
            top = float(np.mean([error(score(again, federation, seed)) for seed in range(seeds)]))
            plain = without_privacy(chosen.recipe, federation)
            print(f"  grid: {best}, {len(tried)} settings", flush=True)
    found = float(np.mean([error(one) for one in runs]))
    constant = runs[0].constant.get("rmse") or runs[0].constant["log_loss"] or np.nan
    accuracy = [one.figures["accuracy"] for one in runs if "accuracy" in one.figures]
    print(f"  {chosen.notes[-1]}", flush=True)
    return [
        name,
        f"{federation.clients}, {chosen.recipe.privacy.unit}",
        "rmse" if not accuracy else "log loss",
        f"{constant:.4g}",
        f"{found:.4g}" + (f" ({np.mean(np.array(accuracy, float)):.1%})" if accuracy else ""),
        *([f"{top:.4g}", f"{plain:.4g}", f"{found / top - 1:+.0%}"] if tried else ["-"] * 3),
        f"{seconds:.0f} s" + (", warned" if chosen.warning else ""),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.own_data", description=__doc__)
    parser.add_argument("table", nargs="*", help=", ".join(TABLES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--grid", choices=("none", "quick", "full"), default="full")
    args = parser.parse_args()
    header = ["table", "clients, unit", "figure", "constant", "default", "best of grid"]
    header += ["without privacy", "default / grid", "chosen in"]
    lines = [header, ["---"] * len(header)]
    for name in args.table or TABLES:
        lines.append(line(name, TABLES[name], args.seeds, args.grid))
        print(" | ".join(lines[-1]), flush=True)
    print("\n".join(f"| {' | '.join(cells)} |" for cells in lines))


if __name__ == "__main__":
    main()
