"""What `fedveil run --data` reaches without any tuning, beside the best of a grid.

    FEDVEIL_DATA=DIR python -m benchmarks.own_data [TABLE...] [--results FILE] [--settings 36]

Tables: loans of two spans of years by state (interest rate, and whether they were repaid), census
incomes by occupation, handwritten digits as a CSV file; and others that nothing was decided on.
docs/data.md says what was decided with the help of the first. The grid is, with the same epsilon,
unit and cohorts, the best that somebody could have found who was allowed to try everything on the
rows themselves, for free. It goes over rounds, local steps, learning rate and clip in a random
order: a part of it is a fair sample.

Every run is a line of the results, and is not repeated: a search that was stopped goes on.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import itertools
import json
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedveil.data.federation import Federation
from fedveil.planning import recipe as recipes
from fedveil.planning.assemble import plan_of
from fedveil.planning.recipe import Recipe
from fedveil.run.run import Run
from fedveil.tune.defaults import Chosen, choose
from fedveil.tune.trials import Candidate, recipe_with_settings

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


def _published(path: Path) -> None:
    """The loans of early 2018, as they are published for classes in statistics."""
    found = Path(os.environ["FEDVEIL_DATA"]) / "loans_full_schema.csv"
    if not found.exists():
        raise SystemExit(f"{found}: put OpenIntro's table loans_full_schema there")
    path.write_bytes(found.read_bytes())


CENSUS = (
    *("age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation"),
    *("relationship", "race", "sex", "capital-gain", "capital-loss", "hours-per-week"),
    *("native-country", "income"),
)


def _census(path: Path) -> None:
    source = Path(os.environ["FEDVEIL_DATA"]) / "adult.data.gz"
    with gzip.open(source, "rt", encoding="utf-8") as file:
        rows = [line.strip().split(", ") for line in file if line.strip()]
    random.Random(0).shuffle(rows)
    _write(path, list(CENSUS), iter(rows[:ROWS]))


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
# Tables that nothing was ever decided on.
OTHERS = {
    "loan rates 2010": Table("addr_state", "int_rate", _loans(("2010",), ())),
    "loan status 2010": Table("addr_state", "loan_status", _loans(("2010",), _AFTER)),
    "incomes of borrowers 2010": Table("addr_state", "annual_inc", _loans(("2010",), _AFTER)),
    "census by country": Table("native-country", "income", _census),
    "census by education": Table("education", "income", _census),
    "hours of work by country": Table("native-country", "hours-per-week", _census),
    "loan rates 2018": Table("state", "interest_rate", _published),
    "loan amounts 2018": Table("state", "loan_amount", _published),
    "loan grades 2018": Table("state", "grade", _published),
}


ALL = TABLES | OTHERS
Setting = dict[str, Any]


@dataclass
class Results:
    """Runs that were made, one JSON document a line."""

    path: Path
    _known: dict[str, Setting] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.path.exists():
            for found in map(json.loads, self.path.read_text().splitlines()):
                self._known[json.dumps(found["run"], sort_keys=True)] = found

    def of(self, run: Setting, make: Callable[[], Setting]) -> Setting:
        """What came out of a run; it is made if it was not yet."""
        key = json.dumps(run, sort_keys=True)
        if key not in self._known:
            self._known[key] = {"run": run, **make()}
            with self.path.open("a") as file:
                file.write(json.dumps(self._known[key]) + "\n")
        return self._known[key]


def score(recipe: Recipe, federation: Federation, seed: int) -> Setting:
    run = Run(plan_of(replace(recipe, seed=seed), federation))
    try:
        run.finish()
        found = run.scores()
    finally:
        run.close()
    if found is None:
        raise SystemExit("no test rows")
    return {"figures": found.figures, "constant": found.constant}


def error(found: Setting, which: str = "figures") -> float:
    """What is compared: root mean squared error, or log loss."""
    figures = found[which]
    value = figures.get("rmse") or figures.get("log_loss")
    return float(value) if value is not None and np.isfinite(value) else np.inf


def accuracy(found: Sequence[Setting], which: str = "figures") -> str:
    """The mean share that is right, in brackets; empty for numbers."""
    shares = [one[which]["accuracy"] for one in found if "accuracy" in one[which]]
    return f" ({np.mean(shares):.1%})" if shares else ""


def grid(recipe: Recipe) -> list[Candidate]:
    """Settings half a decade apart around anything sensible, in a random order."""
    if recipe.training.method == "dp-sgd":
        product = itertools.product(
            (1,), (16, 32, 64, 128, 256), (0.1, 0.3, 1, 3), (0.1, 0.3, 1, 3)
        )
    else:
        product = itertools.product((5, 20, 80), (8, 16, 32, 64), (0.03, 0.1, 0.3), _CLIPS)
    found = [Candidate(*setting) for setting in product]
    random.Random(0).shuffle(found)
    return found


_CLIPS = (0.03, 0.1, 0.3, 1.0)


@dataclass(frozen=True)
class Case:
    """A table on disk, and all runs on it."""

    name: str
    path: Path
    results: Results
    chosen: dict[int, Chosen] = field(default_factory=dict)  # by seed

    def default(self, seed: int) -> Setting:
        """The default command with noise from this seed, in its statistics too."""

        def make() -> Setting:
            began = (
                time.process_time()
            )  # of this process: a neighbour's load is no property of ours
            found = self.choice(seed)
            return {
                "seconds": time.process_time() - began,
                "clients": found.federation.clients,
                "unit": found.recipe.privacy.unit,
                "said": found.notes[-1],
                "warned": bool(found.warning),
                **score(found.recipe, found.federation, seed),
            }

        return self.results.of({"table": self.name, "what": "default", "seed": seed}, make)

    def choice(self, seed: int = 0) -> Chosen:
        if seed not in self.chosen:
            table = ALL[self.name]
            values = {
                "data.file": str(self.path),
                "data.client_column": table.client_column,
                "data.label": table.label,
                "seed": seed,
            }
            self.chosen[seed] = choose(recipes.parse({}, (), values), set(values))
        return self.chosen[seed]

    def tried(self, candidate: Candidate, seed: int, private: bool = True) -> Setting:
        """A run with these settings on the same rows, with the statistics of the first default."""

        def make() -> Setting:
            recipe = self.choice().recipe
            if not private:
                recipe = recipes.with_defaults(recipes.without_privacy(recipe))
            return score(recipe_with_settings(recipe, candidate), self.choice().federation, seed)

        return self.results.of(self.run(candidate, seed, private), make)

    def run(self, candidate: Candidate, seed: int, private: bool = True) -> Setting:
        what = "grid" if private else "without privacy"
        return {"table": self.name, "what": what, "seed": seed, "setting": candidate.to_dict()}

    def searched(self, most: int) -> dict[Candidate, float]:
        """Errors of the grid's first settings, in its random order."""
        settings = grid(self.choice().recipe)[:most]
        return {candidate: error(self.tried(candidate, 0)) for candidate in settings}

    def line(self, seeds: int, settings: int) -> list[str]:
        """A row of the table."""
        runs = [self.default(seed) for seed in range(seeds)]
        tried = self.searched(settings)
        best = min(tried, key=lambda one: tried[one])
        top = [self.tried(best, seed) for seed in range(1, seeds + 1)]  # none that has chosen it
        plain = [
            self.tried(Candidate(20, 64, rate, 1.0), 0, private=False)
            for rate in (0.01, 0.03, 0.1, 0.3)
        ]
        bare = min(plain, key=error)
        found = float(np.mean([error(one) for one in runs]))
        least = float(np.mean([error(one) for one in top]))
        print(f"  {runs[0]['said']}\n  grid: {best}", flush=True)
        return [
            self.name,
            f"{runs[0]['clients']}, {runs[0]['unit']}",
            f"{error(runs[0], 'constant'):.4g}{accuracy(runs, 'constant')}",
            f"{found:.4g}{accuracy(runs)}" + (", warned" if runs[0]["warned"] else ""),
            f"{least:.4g}{accuracy(top)}",
            str(len(tried)),
            f"{found / least - 1:+.0%}",
            f"{error(bare):.4g}{accuracy([bare])}",
            f"{runs[0]['seconds']:.0f} s",
        ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.own_data", description=__doc__)
    parser.add_argument("table", nargs="*", help=", ".join(ALL))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--settings", type=int, default=144, help="of each table's grid to try")
    parser.add_argument("--results", type=Path, default=Path("own_data.jsonl"))
    args = parser.parse_args()
    header = ["table", "clients, unit", "constant", "default", "best of grid", "settings tried"]
    header += ["default / best", "without privacy", "chosen in"]
    lines, results = [header, ["---"] * len(header)], Results(args.results)
    for name in args.table or TABLES:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "table.csv"
            ALL[name].write(path)
            lines.append(Case(name, path, results).line(args.seeds, args.settings))
        print(" | ".join(lines[-1]), flush=True)
    print("\n".join(f"| {' | '.join(cells)} |" for cells in lines))


if __name__ == "__main__":
    main()
