"""Does the tuner choose what measurements choose?

    python -m benchmarks.planner_evidence            # all of it, some minutes
    python -m benchmarks.planner_evidence grids      # the papers' grids alone
    python -m benchmarks.planner_evidence searches   # whole searches alone

Grids: the tuner ranks the cases of measured tables (results/*.json) on made-up data; what was
measured for its choice is held against the best of the table. Searches: whole searches over local
steps, rounds, rates and clips, on made-up data and on training examples held out of the source;
what they choose is run on the real federation under fresh seeds, beside the best of a grid of
thousands of runs (results/planner/*.json has which that was). Needs FEDVEIL_DATA. Writes
results/planner.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.predicted import Prediction, predict
from fedveil.planning import recipe as recipes
from fedveil.tune.advice import prepare
from fedveil.tune.proxy import Proxy
from fedveil.tune.synthetic_proxy import Scales, synthetic_proxy
from fedveil.tune.trials import Candidate, ProxyTrials, Trial
from fedveil_lab.reproduction.case import Case, Certified, Label, federation_of
from fedveil_lab.reproduction.experiment import Scale, table_of
from fedveil_lab.reproduction.pages.fu import lending
from fedveil_lab.reproduction.pages.hu import adult

RESULTS = Path(__file__).resolve().parent.parent / "results"
GRIDS = {"fu-table-2": ("T", range(10, 101, 10)), "fu-table-3": ("E", (1, 2, 3, 4, 6, 12))}
FIGURES = {"hu-figure-7": ("logistic", 2, 20), "hu-figure-8": ("network", 5, 50)}
JOBS = ("lending-club-1", "lending-club-3", "lending-club-5", "mnist-writers-8")
FRESH = {"lending-club": 40, "mnist-writers": 4}  # seeds that compare answers
_DELTA = 2e-5  # of Hu's recipes: the paper's is above one over the number of records


def measured(name: str, sweep: str, **where: Label) -> dict[Label, float]:
    """Return what an experiment has measured, by the label that is swept; less is better."""
    document = json.loads((RESULTS / f"{name}.json").read_text())
    accuracy = document["metric"]["name"] == "accuracy"
    found = {}
    for row in document["rows"]:
        labels, value = row["labels"], row["ours"]["mean"]
        if all(labels[key] == wanted for key, wanted in where.items()):
            found[labels[sweep]] = 100 - value if accuracy else value
    return found


def grids() -> Iterator[tuple[str, Prediction]]:
    """Yield what the tuner chooses in every grid of certified noise."""
    recipe = table_of("fu")["lending"]["recipe"]
    for clients in (5000, 425):
        for name, (sweep, values) in GRIDS.items():
            for epsilon in (1, 3, 5):
                cases = [
                    lending(Scale.FULL, recipe, labels=["T", "E"], epsilon=epsilon, clients=clients,
                            noise="certified", **{"T": 120, sweep: value})
                    for value in values
                ]  # fmt: skip
                where = {"clients": clients, "noise": "certified", "epsilon": epsilon}
                found = measured(name, sweep, **where)
                yield f"{name}, {clients} clients, epsilon {epsilon}", _predict(cases, sweep, found)
    recipe = table_of("hu")["adult"]["recipe"]
    for name, (model, steps, rounds) in FIGURES.items():
        for epsilon in (1, 2, 4, 6, 8, 10):
            methods = ("no secure sum", "DP-SGD")  # several noisy steps a round, or one
            cases = [
                adult(Scale.FULL, recipe, labels=["method"], model=model, tau=steps, rounds=rounds,
                      method=method, noise="certified", epsilon=epsilon)
                for method in methods
            ]  # fmt: skip
            cases = [replace(case, noise=Certified(epsilon, _DELTA)) for case in cases]
            found = measured(name, "method", noise="certified", epsilon=epsilon)
            found = {method: found[method] for method in methods}
            yield f"{name}, epsilon {epsilon}", _predict(cases, "method", found)


def _predict(cases: list[Case], sweep: str, found: dict[Label, float]) -> Prediction:
    like = federation_of(cases[0].data)
    records = round(len(like.train) / like.clients)
    partition = None
    if cases[0].data.partition == "sorted":
        from fedveil.data.partition import SortedSlices

        partition = SortedSlices(like.clients)
    made = synthetic_proxy(
        like, records, clients=like.clients, scales=Scales.of(like), partition=partition
    )
    return predict(cases, sweep, like, made, found)


def searches() -> Iterator[list[str]]:
    """Yield a row for every job: what searches choose, and what comes of it on the real data."""
    for name in JOBS:
        document = json.loads((RESULTS / "planner" / f"{name}.json").read_text())
        source, table = name.rpartition("-")[0], document["recipe"]
        table["training"]["method"] = {"fu": "client-noise"}.get(
            *2 * (table["training"]["method"],)
        )
        recipe = recipes.with_defaults(recipes.parse(table))
        answers = {answer["name"]: answer for answer in document["answers"]}
        best = _candidate(answers["grid, its best in truth"])
        row, real = [name], None
        for proxy in ("synthetic", None):
            tuner = prepare(recipe, proxy=proxy)
            began = time.process_time()
            chosen = tuner.run()
            took = time.process_time() - began
            if real is None:
                real = tuner.trials.real
                runs = ProxyTrials(recipe, real, Proxy(real.federation, "the real test part"))
                row.append(_shown(best, _error(runs, best, FRESH[source])))
            row.append(f"{_shown(chosen, _error(runs, chosen, FRESH[source]))} ({took:.0f} s)")
            say(" | ".join(row))
        row.append(_shown(tuner.space.base, _error(runs, tuner.space.base, FRESH[source])))
        row.append(f"{runs.trivial():.3g}")
        yield row


def _candidate(answer: dict[str, Any]) -> Candidate:
    names = Candidate.__dataclass_fields__
    return Candidate(**{key: value for key, value in answer.items() if key in names})


def _error(runs: ProxyTrials, candidate: Candidate, seeds: int) -> float:
    epsilon = runs.recipe.privacy.epsilon or 0.0
    trials = (Trial(candidate, epsilon, 1.0, seed) for seed in range(5000, 5000 + seeds))
    return fmean(runs(trial).error for trial in trials)


def _shown(candidate: Candidate, error: float) -> str:
    return f"{candidate.local_steps} x {candidate.rounds}: {error:.3g}"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planner_evidence")
    parser.add_argument("part", nargs="?", choices=("grids", "searches", "all"), default="all")
    part = parser.parse_args().part
    path = RESULTS / "planner.md"
    kept = path.read_text().split("\n## ") if path.exists() else []
    sections = {text.splitlines()[0]: text.partition("\n")[2] for text in kept[1:]}
    worst = 0.0
    if part != "searches":
        lines = [
            "",
            "| grid | chosen | measured best | times its loss or error |",
            "|---|---|---|---|",
        ]
        for name, found in grids():
            worst = max(worst, found.times_worse)
            lines.append(f"| {name} | {found.chosen} | {found.best} | {found.times_worse:.2f} |")
            say(lines[-1])
        sections["Grids"] = "\n".join([*lines, ""])
    if part != "grids":
        head = (
            "| job | grid's best | search on made-up data | search on held-out data "
            "| as it stands | constant answer |"
        )
        rows = ["| " + " | ".join(row) + " |" for row in searches()]
        sections["Searches"] = "\n".join(["", head, "|---|---|---|---|---|---|", *rows, ""])
    title = (
        "# What the tuner predicted and what came\n\nBy `python -m benchmarks.planner_evidence`.\n"
    )
    path.write_text(title + "".join(f"\n## {name}\n{text}" for name, text in sections.items()))
    return 0 if worst <= 1.25 else 1


if __name__ == "__main__":
    sys.exit(main())
