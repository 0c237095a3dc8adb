"""Does the planner find what an exhaustive grid finds, at a tenth of its cost?

    python -m benchmarks.planner_evidence            # everything; Ctrl-C and start again as you like
    python -m benchmarks.planner_evidence lending-club-3 --stage grid

For every job: a grid over local steps, total steps, learning rate and clip on the real federation,
scored on its test part; the pilot search, which sees other examples (a held-out part of the training
examples, or made-up data); the rules of thumb, each with the best rate and clip that the grid knows.
All answers are then run again under seeds that none of them has seen. Needs FEDVEIL_DATA.
Trials are kept in .benchmarks/planner/, so nothing is run twice; results go to results/planner/.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedveil import recipe as recipes
from fedveil.assemble import federation_of, plan_of
from fedveil.plan.proxy import Proxy
from fedveil.plan.rehearsal import Outcome, Rehearsals, Trial
from fedveil.plan.space import Candidate
from fedveil.plan.trials import Trials
from fedveil.recipe import Recipe

KEPT = Path(".benchmarks/planner")
SEEDS = range(3)


@dataclass(frozen=True)
class Job:
    """A recipe, and the grid that it is searched by."""

    name: str
    table: dict[str, Any]
    most_steps: int
    rounds: tuple[int, ...]
    local_steps: tuple[int, ...]
    learning_rates: tuple[float, ...]
    clip_norms: tuple[float, ...]
    growth: float  # z: 2 Laplace, 1 Gaussian

    @property
    def recipe(self) -> Recipe:
        return recipes.with_defaults(recipes.parse(self.table))

    @property
    def epsilon(self) -> float:
        return float(self.table["privacy"]["epsilon"])

    def grid(self, cohort: int) -> list[Candidate]:
        """Every combination with at most so many steps in all."""
        return [
            Candidate(steps, rounds, rate, clip, cohort)
            for rounds, steps, rate, clip in itertools.product(
                self.rounds, self.local_steps, self.learning_rates, self.clip_norms
            )
            if steps * rounds <= self.most_steps
        ]


def lending_club(epsilon: float) -> Job:
    """Fu's own setting with the loans there are: 5000 clients sorted by rate, 500 a round."""
    return Job(
        f"lending-club-{epsilon:g}",
        {
            "seed": 1,
            "data": {"source": "lending-club", "clients": 5000, "examples_per_client": 6},
            # Not round-robin: in sorted order the first cohorts would see the lowest rates only.
            "training": {
                "method": "fu",
                "sampling": "balanced",
                "cohort": 500,
                "rounds": 120,
                "local_steps": 1,
                "learning_rate": 0.1,
            },
            "privacy": {"epsilon": epsilon, "delta": 0.0, "noise": "laplace", "clip_norm": 50.0},
        },
        most_steps=120,
        rounds=(1, 2, 5, 10, 20, 30, 40, 60, 120),
        local_steps=(1, 2, 3, 4, 6, 8, 12, 24),
        learning_rates=(0.03, 0.06, 0.12, 0.25, 0.5),
        clip_norms=(3.0, 6.0, 12.0, 25.0, 50.0),
        growth=2.0,
    )


def mnist_writers(epsilon: float) -> Job:
    """539 writers, 32 digits each, a fifth of them a round; a trusted aggregator."""
    return Job(
        f"mnist-writers-{epsilon:g}",
        {
            "seed": 1,
            "data": {"source": "mnist-writers", "cap": 32},
            "training": {
                "method": "dp-fedavg",
                "cohort": 108,
                "rounds": 240,
                "local_steps": 1,
                "learning_rate": 0.5,
            },
            "privacy": {"epsilon": epsilon, "clip_norm": 0.5},
        },
        most_steps=240,
        rounds=(8, 15, 30, 60, 120, 240),
        local_steps=(1, 2, 4, 8, 16, 30),
        learning_rates=(0.1, 0.3, 1.0, 3.0),
        clip_norms=(0.1, 0.25, 0.6, 1.5),
        growth=1.0,
    )


JOBS = {
    job.name: job
    for job in (*(lending_club(e) for e in (1.0, 3.0, 5.0)), mnist_writers(2.0), mnist_writers(8.0))
}


class Bench:
    """One job with its data loaded and its trials kept."""

    def __init__(self, job: Job) -> None:
        self.job, self.recipe = job, job.recipe
        self.federation = federation_of(self.recipe.data)
        self.real = plan_of(self.recipe, self.federation)
        self.rehearsals = Rehearsals(
            self.recipe, self.real, Proxy(self.federation, "the real test part")
        )
        self.trials = self.journal("grid")

    def journal(self, what: str) -> Trials:
        KEPT.mkdir(parents=True, exist_ok=True)
        about = {"recipe": self.job.table, "what": what}
        return Trials(KEPT / f"{self.job.name}-{what}.jsonl", about)

    @property
    def cohort(self) -> int:
        return round(self.real.sampling.expected_cohort)

    def outcomes(self, candidate: Candidate, seeds: Iterable[int]) -> list[Outcome]:
        """Outcomes on the real federation under these seeds, from the journal or run now."""
        found = []
        for seed in seeds:
            trial = Trial(candidate, self.job.epsilon, 1.0, seed)
            outcome = self.trials.get(trial)
            if outcome is None:
                outcome = self.rehearsals(trial)
                self.trials.add(trial, outcome)
            found.append(outcome)
        return found

    def error(self, candidate: Candidate, seeds: Iterable[int]) -> float:
        outcomes = self.outcomes(candidate, seeds)
        return math.fsum(outcome.error for outcome in outcomes) / len(outcomes)


def run_grid(bench: Bench) -> None:
    candidates = bench.job.grid(bench.cohort)
    began, seen = time.monotonic(), 0
    for number, candidate in enumerate(candidates):
        before = len(bench.trials)
        bench.error(candidate, SEEDS)
        seen += len(bench.trials) > before
        if seen and (number % 20 == 0 or number + 1 == len(candidates)):
            left = (time.monotonic() - began) / seen * (len(candidates) - number - 1)
            say(f"{bench.job.name}: grid {number + 1}/{len(candidates)}, {left / 60:.1f} min left")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planner_evidence")
    parser.add_argument("job", nargs="*", help=", ".join(JOBS))
    parser.add_argument("--stage", choices=("grid", "all"), default="all")
    args = parser.parse_args()
    for name in args.job or JOBS:
        if name not in JOBS:
            parser.error(f"unknown job {name!r}; there are {', '.join(JOBS)}")
        run_grid(Bench(JOBS[name]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
