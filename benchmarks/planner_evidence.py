"""Does the planner find what an exhaustive grid finds, at a tenth of its cost?

    python -m benchmarks.planner_evidence                # everything; stop and start it as you like
    python -m benchmarks.planner_evidence lending-club-3

For every job: a grid over local steps, rounds, learning rate and clip on the real federation,
scored on its test part; whole pilots (the search, the choice, what to expect, both alternatives),
scored on a held-out part of the training examples, one with all clients and, if there are many,
one with a fifth of them; the rules of thumb, each with the best rate and clip that the grid knows;
the bound alone. All answers are then run again under seeds that none of them has seen. Needs
FEDVEIL_DATA. Trials are kept in .benchmarks/planner/, so nothing is run twice; results go to
results/planner/.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fedveil.planning import recipe as recipes
from fedveil.planning.assemble import federation_of, plan_of
from fedveil.planning.recipe import Recipe
from fedveil.report import plan_figures as figures
from fedveil.tune.from_recipe import public_constants, score_of_recipe, situation_of
from fedveil.tune.iterations import best_iterations
from fedveil.tune.pilot import PilotProgress, Search, TrialJournal
from fedveil.tune.proxy import Proxy, proxy_of, some_clients
from fedveil.tune.recommend import findings
from fedveil.tune.space import space_of
from fedveil.tune.trials import Candidate, Outcome, ProxyTrials, Trial

KEPT, OUT = Path(".benchmarks/planner"), Path("results/planner")
PART = 0.09  # of the grid's client steps that a whole pilot may take


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
    seeds: int  # under which all of the grid is tried
    more: int  # seeds under which the grid's best ones are tried again
    fresh: int  # seeds under which answers are compared

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
                "method": "client-noise",
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
        learning_rates=(0.03, 0.06, 0.12, 0.25, 0.5, 1.0, 2.0, 4.0),
        clip_norms=(0.75, 1.5, 3.0, 6.0, 12.0, 25.0, 50.0),
        growth=2.0,
        seeds=3,
        more=12,
        fresh=40,
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
        learning_rates=(0.12, 0.25, 0.5, 1.0, 2.0, 4.0),
        clip_norms=(0.06, 0.12, 0.25, 0.5, 1.0, 2.0),
        growth=1.0,
        seeds=1,
        more=3,
        fresh=6,
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
        self.runs = ProxyTrials(
            self.recipe, self.real, Proxy(self.federation, "the real test part")
        )
        self.trials = self.journal("grid")

    def journal(self, what: str) -> TrialJournal:
        KEPT.mkdir(parents=True, exist_ok=True)
        about = {"recipe": self.job.table, "what": what}
        return TrialJournal(KEPT / f"{self.job.name}-{what}.jsonl", about)

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
                outcome = self.runs(trial)
                self.trials.add(trial, outcome)
            found.append(outcome)
        return found

    def error(self, candidate: Candidate, seeds: Iterable[int]) -> float:
        outcomes = self.outcomes(candidate, seeds)
        return math.fsum(outcome.error for outcome in outcomes) / len(outcomes)


def run_grid(bench: Bench) -> list[Candidate]:
    """Every candidate under all seeds, best first."""
    candidates = bench.job.grid(bench.cohort)
    began, seen = time.monotonic(), 0
    errors = {}
    for number, candidate in enumerate(candidates):
        before = len(bench.trials)
        errors[candidate] = bench.error(candidate, range(bench.job.seeds))
        seen += len(bench.trials) > before
        if seen and (number % 20 == 0 or number + 1 == len(candidates)):
            left = (time.monotonic() - began) / seen * (len(candidates) - number - 1)
            say(f"{bench.job.name}: grid {number + 1}/{len(candidates)}, {left / 60:.1f} min left")
    return sorted(candidates, key=lambda candidate: errors[candidate])


def run_pilot(bench: Bench, what: str, proxy: Proxy, grid: Cost) -> tuple[Candidate, Cost]:
    """The pilot's recommendation with the recipe's cohort, and what all of the pilot took."""
    journal = bench.journal(what)
    known, began = _seconds(journal), time.process_time()
    runs = ProxyTrials(bench.recipe, bench.real, proxy)
    space = space_of(runs, bench.job.recipe.training.local_steps or 1, bench.job.most_steps)
    space = replace(space, fixed=frozenset({"cohort"}))
    search = Search(runs, space, bench.job.epsilon, work=PART * grid.work, journal=journal)
    last = [0]

    def show(progress: PilotProgress) -> None:
        if progress.trials >= last[0] + 50:
            last[0] = progress.trials
            say(f"{bench.job.name}: {what}, {progress.stage}, {progress.trials} trials")

    search.show = show
    chosen = findings(search).recommended.candidate
    besides = time.process_time() - began - (_seconds(journal) - known)  # what to try next
    return chosen, Cost(len(journal), journal.work, _seconds(journal) + max(0.0, besides))


def _seconds(journal: TrialJournal) -> float:
    return math.fsum(outcome.seconds for _, outcome in journal.items())


@dataclass(frozen=True)
class Cost:
    trials: int
    work: int  # local steps of all clients together
    seconds: float  # of the processor


@dataclass(frozen=True)
class Answer:
    """One way to choose, what it chose, and how that does under fresh seeds."""

    name: str
    candidate: Candidate
    errors: tuple[float, ...]

    @property
    def error(self) -> float:
        return math.fsum(self.errors) / len(self.errors)

    def doubt(self, other: Answer) -> float:
        """Standard error of the difference of two answers, run under the same seeds."""
        gaps = [mine - theirs for mine, theirs in zip(self.errors, other.errors, strict=True)]
        mean = math.fsum(gaps) / len(gaps)
        squares = math.fsum((gap - mean) ** 2 for gap in gaps)
        return math.sqrt(squares / (len(gaps) - 1) / len(gaps))


def answers(bench: Bench) -> tuple[list[Answer], dict[str, Cost]]:
    """Everybody's choice, run again; the grid's first."""
    ranked = run_grid(bench)
    on_grid = [o for t, o in bench.trials.items() if t.seed < bench.job.seeds]
    costs = {
        "grid": Cost(len(on_grid), sum(o.work for o in on_grid), sum(o.seconds for o in on_grid))
    }
    fresh = range(1000, 1000 + bench.job.fresh)

    def again(name: str, candidate: Candidate) -> Answer:
        say(f"{bench.job.name}: {name} again, {len(fresh)} fresh seeds")
        return Answer(name, candidate, tuple(o.error for o in bench.outcomes(candidate, fresh)))

    # Its seeds are few: the best of the grid is the best under fresh seeds of the eight that are
    # best under more seeds of its twenty best. Its cost counts the first seeds only. What it would
    # choose by itself stands beside it.
    say(f"{bench.job.name}: the grid's best again, {bench.job.more} more seeds")
    more = range(500, 500 + bench.job.more)
    best = sorted(ranked[:20], key=lambda candidate: bench.error(candidate, more))
    first = [again(f"grid, place {place + 1}", c) for place, c in enumerate(best[:8])]
    found = [replace(min(first, key=lambda answer: answer.error), name="grid, its best in truth")]
    found.append(again("grid, its own choice", ranked[0]))
    own = proxy_of(bench.recipe, None, bench.federation)
    proxies = {"pilot": own}
    if bench.federation.clients >= 1000:  # of fewer, a fifth are hardly a cohort
        fifth = some_clients(own.federation, bench.federation.clients // 5, seed=0)
        proxies["pilot, a fifth of the clients"] = replace(own, federation=fifth)
    for name, proxy in proxies.items():
        chosen, costs[name] = run_pilot(
            bench, name.replace(", ", "-").replace(" ", "-"), proxy, costs["grid"]
        )
        found.append(again(name, chosen))
    steps = bench.job.local_steps

    def literal(total: int) -> int:
        wanted = total ** (bench.job.growth / (bench.job.growth + 1))
        return min(steps, key=lambda e: abs(e - wanted))

    most = bench.job.most_steps
    rules = {
        "literal rule, all steps": [
            c for c in ranked if c.local_steps == literal(most) and c.total_steps > most / 2
        ],
        "literal rule, best total": [c for c in ranked if c.local_steps == literal(c.total_steps)],
        "one local step, all steps": [c for c in ranked if c.local_steps == 1 and c.rounds == most],
        "one local step, best total": [c for c in ranked if c.local_steps == 1],
    }
    found += [again(name, among[0]) for name, among in rules.items() if among]
    found.append(again("bound alone", by_bound(bench, ranked)))
    return found, costs


def by_bound(bench: Bench, ranked: list[Candidate]) -> Candidate:
    """Local steps and rounds by Fu's bound (parts 1 and 2 of the planner, seconds); best of grid's
    rates and clips at the nearest point of the grid."""
    situation = situation_of(bench.recipe)
    loss = public_constants(bench.recipe, None, bench.federation)
    best = best_iterations(score_of_recipe(situation, loss), bench.job.most_steps)

    def distance(candidate: Candidate) -> float:
        return abs(math.log(candidate.local_steps / best.local_steps)) + abs(
            math.log(candidate.rounds / best.rounds)
        )

    nearest = min(map(distance, ranked))
    return next(candidate for candidate in ranked if distance(candidate) == nearest)


def report(bench: Bench, found: list[Answer], costs: dict[str, Cost]) -> bool:
    """Write json, md and png; whether the target was met."""
    job, grid = bench.job, found[0]
    pilot = next(answer for answer in found if answer.name == "pilot")
    classifies = bench.runs.classifies
    gap = pilot.error - grid.error
    allowed = 0.01 if classifies else 0.05 * grid.error
    pilots, grids = costs["pilot"], costs["grid"]
    spent = max(pilots.work / grids.work, pilots.seconds / grids.seconds)
    met = gap <= allowed and spent <= 0.1
    document = {
        "job": job.name,
        "recipe": job.table,
        "metric": "share of wrong answers" if classifies else "loss",
        "trivial": bench.runs.trivial(),
        "fresh_seeds": job.fresh,
        "answers": [
            {
                "name": answer.name,
                **answer.candidate.to_dict(),
                "total_steps": answer.candidate.total_steps,
                "error": answer.error,
                "worse_than_grid": answer.error - grid.error,
                "standard_error": answer.doubt(grid),
            }
            for answer in found
        ],
        "costs": {name: asdict(cost) for name, cost in costs.items()},
        "target_met": met,
    }
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / f"{job.name}.json").write_text(json.dumps(_finite(document), indent=1) + "\n")
    (OUT / f"{job.name}.md").write_text(page(document, gap, allowed, spent))
    draw(bench, found, OUT / f"{job.name}.png")
    say(f"{job.name}: {'target met' if met else 'target NOT met'} (gap {gap:.4g} of {allowed:.4g})")
    return met


def _finite(value: Any) -> Any:
    """JSON knows no infinity: what diverged is null."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def page(document: dict[str, Any], gap: float, allowed: float, spent: float) -> str:
    costs = document["costs"]
    rows = [
        f"| {a['name']} | {a['local_steps']} | {a['rounds']} | {a['learning_rate']:g} | "
        f"{a['clip_norm']:g} | {a['error']:.4g} | {a['worse_than_grid']:+.3g} ± "
        f"{a['standard_error']:.2g} |"
        for a in document["answers"]
    ]
    prices = [
        f"| {name} | {cost['trials']} | {cost['work']:,} | {cost['seconds']:.0f} | "
        f"{cost['work'] / costs['grid']['work']:.3f} | "
        f"{cost['seconds'] / costs['grid']['seconds']:.3f} |"
        for name, cost in costs.items()
    ]
    verdict = "met" if document["target_met"] else "NOT met"
    return "\n".join(
        [
            f"# {document['job']}",
            "",
            f"Target {verdict}: the pilot's choice is {gap:+.3g} from the grid's best (allowed "
            f"{allowed:.3g}) at {spent:.1%} of its cost.",
            "",
            f"Mean {document['metric']} under {document['fresh_seeds']} seeds that chose nothing "
            f"(an answer that looks at no input: {document['trivial']:.4g}); the last column is "
            "the difference to the grid's best and its standard error under the same seeds.",
            "",
            "| chosen by | local steps | rounds | learning rate | clip | error | worse by |",
            "|---|---|---|---|---|---|---|",
            *rows,
            "",
            "| search | trials | client steps | CPU seconds | of grid's steps | of its time |",
            "|---|---|---|---|---|---|",
            *prices,
            "",
            f"Again: `python -m benchmarks.planner_evidence {document['job']}`",
            "",
        ]
    )


def draw(bench: Bench, found: list[Answer], path: Path) -> None:
    """The grid's best error at every number of local steps and of rounds; the answers beside it."""
    errors = {
        candidate: bench.error(candidate, range(bench.job.seeds))
        for candidate in bench.job.grid(bench.cohort)
    }
    marks = {
        "grid, its best in truth": ("o", "white"),
        "pilot": ("*", "black"),
        "literal rule, all steps": ("^", "white"),
        "literal rule, best total": ("^", "0.6"),
        "one local step, all steps": ("s", "white"),
        "bound alone": ("D", "white"),
    }

    def paint(figure: Any, left: Any, right: Any) -> None:
        for axes, name in ((left, "local_steps"), (right, "rounds")):
            values = sorted({getattr(candidate, name) for candidate in errors})
            best = [min(e for c, e in errors.items() if getattr(c, name) == v) for v in values]
            axes.loglog(values, best, color="0.55", marker=".", markersize=3, label="best of grid")
            for answer in found:
                if answer.name in marks:
                    marker, face = marks[answer.name]
                    size = 10 if marker == "o" else 7  # others are seen inside it
                    place, order = getattr(answer.candidate, name), 4 if marker == "*" else 3
                    look = (answer.name, marker, face, size, order)
                    figures.mark(axes, place, answer.error, *look)
            known = {
                "color": "0.6",
                "linewidth": 0.6,
                "linestyle": "--",
                "label": "looks at nothing",
            }
            axes.axhline(bench.runs.trivial(), **known)
            axes.set_xlabel(name.replace("_", " "))
        left.set_ylabel("share of wrong answers" if bench.runs.classifies else "loss")
        handles, labels = left.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=4)

    figures.draw(path, paint, height=3.6)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planner_evidence")
    parser.add_argument("job", nargs="*", help=", ".join(JOBS))
    parser.add_argument("--stage", choices=("grid", "all"), default="all")
    args = parser.parse_args()
    met = True
    for name in args.job or JOBS:
        if name not in JOBS:
            parser.error(f"unknown job {name!r}; there are {', '.join(JOBS)}")
        bench = Bench(JOBS[name])
        if args.stage == "grid":
            run_grid(bench)
        else:
            met &= report(bench, *answers(bench))
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
