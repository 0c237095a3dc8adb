"""The tuner: which settings to run with, found by simulated runs on public data.

It is the only search there is: `fedveil plan`, its pilots and the defaults of `fedveil run --data`
differ in the space that they search and in how much they may spend.

1. Settings spread over the space race each other. All of them run once, on part of the cohort; the
   better third goes on with all of it and more seeds, until few are left (successive halving).
2. The best moves in small steps as long as that helps.
3. The winner runs under seeds that have chosen nothing: what to expect of it.

Trials of one seed share cohorts and noise (common random numbers), so luck is the same for all who
are compared. The search is limited by an estimate of its work and not by a clock, so the same
public seed gives the same answer on any machine; `seconds` only ends it early.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from operator import attrgetter

import numpy as np

from fedveil.core.errors import ConfigError
from fedveil.tune.space import Point, Space
from fedveil.tune.trials import Candidate, Outcome, OutOfTime, ProxyTrials, Trial

_PART = 1 / 4  # of the cohort that takes part in the first rung
_KEPT = 3  # one of so many goes on to the next rung
_SEEDS = (1, 2, 4, 8)  # of each rung; the last one's also judge small steps
_STEPS = (1.0, 0.5)  # small steps, in units of each coordinate
_BETTER = 0.005  # of the logarithm of the measure, by which a step must pay
_FRESH, _RUNS = 1000, 5  # first of the seeds that choose nothing, and how many of them
_MOST_SPREAD = 240  # settings of a race
_RACE, _ALL_STEPS = 0.4, 0.8  # parts of the effort after which each ends


@dataclass(frozen=True)
class SearchProgress:
    """How far a search is: its stage, trials, share of the effort, and least error so far."""

    stage: str
    trials: int
    share: float
    error: float


@dataclass(frozen=True)
class Expected:
    """Results of settings over several seeds: means and standard deviations.

    Attributes:
        fresh: Whether the seeds have chosen nothing; otherwise the figures flatter.
    """

    loss: float
    loss_spread: float
    accuracy: float | None
    accuracy_spread: float | None
    runs: int
    fresh: bool

    @property
    def error(self) -> float:
        """Share of wrong answers, or the loss if there are no classes."""
        return self.loss if self.accuracy is None else 1 - self.accuracy

    @property
    def error_spread(self) -> float:
        """Standard deviation of the error over the runs."""
        spread = self.loss_spread if self.accuracy is None else self.accuracy_spread
        return spread or 0.0


@dataclass
class Tuner:
    """A search for settings on one or several proxies.

    Attributes:
        proxies: Run trials, each on its own public data. Settings must do well on all of them.
        space: Where to search.
        epsilon: The budget.
        effort: Limit of the work, in units of a small round (about a millisecond each).
        seconds: Time after which the search ends with what it has.
        spread: Settings of the race; None is as many as the effort allows. With 1, the search
            moves on from the space's start.
        seeds: Seeds of each rung of the race; the last number also judges small steps.
        steps: Sizes of the small steps.
        better: Gain in the logarithm of the measure that a step must bring.
        measure: What to make small of an outcome: its score, or its loss.
        share: Largest share of the cohort that takes part in a trial.
        noise: Factor on the noise of all trials.
        seed: Public seed of the race's settings.
        show: Is told of progress.
    """

    proxies: Sequence[ProxyTrials]
    space: Space
    epsilon: float
    effort: float = 20_000.0
    seconds: float = math.inf
    spread: int | None = None
    seeds: Sequence[int] = _SEEDS
    steps: Sequence[float] = _STEPS
    better: float = _BETTER
    measure: Callable[[Outcome], float] = attrgetter("score")
    share: float = 1.0
    noise: float = 1.0
    seed: int = 0
    show: Callable[[SearchProgress], None] = lambda progress: None
    interrupted: bool = False
    outcomes: dict[tuple[int, Trial], Outcome] = field(default_factory=dict)
    best: Candidate | None = None
    spent: float = 0.0
    _stage: str = ""
    _began: float = field(default_factory=lambda: time.monotonic())

    @property
    def trials(self) -> ProxyTrials:
        """Return the first proxy's trials."""
        return self.proxies[0]

    @property
    def elapsed(self) -> float:
        """Return seconds since the search began."""
        return time.monotonic() - self._began

    def run(self) -> Candidate:
        """Search, and return the best settings.

        Ctrl-C and the time limit end it with what there is.

        Raises:
            ConfigError: Not one trial could be finished.
        """
        try:
            with suppress(OutOfTime):
                points = {self.space.candidate(point): point for point in self._first()}
                self._improve(points[self.race(list(points))[0]])
        except KeyboardInterrupt:  # between two trials
            self.interrupted = True
        if not self.outcomes:
            raise ConfigError(
                f"the search ended after {self.elapsed:.1f} s, before its first result; give it "
                "more --time"
            )
        # Without a best, nothing is known to be better than the start.
        self.best = self.best or self.space.candidate(self.space.start)
        return self.best

    def race(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Rank settings by successive halving under common seeds, the best first.

        The first of them, which is the recipe's own, stays in the race to its end.
        """
        self._stage = "settings"
        left, dropped = list(candidates), list[Candidate]()
        for rung, seeds in enumerate(self.seeds):
            part = rung == 0 and len(self.seeds) > 1 and len(left) > 3
            share = _PART * self.share if part else self.share
            scores: dict[Candidate, float] = {}
            with suppress(OutOfTime):
                for candidate in left:
                    scores[candidate] = self.score(candidate, seeds, share, _RACE)
            if len(scores) < len(left) and (rung or not scores):
                break  # this rung is not complete: the order of the one before holds
            left.sort(key=lambda c: scores.get(c, math.inf))
            self.best = left[0]
            if seeds != self.seeds[-1]:
                kept = max(3, math.ceil(len(left) / _KEPT))
                lost = [c for c in left[kept:] if c != candidates[0]]
                left, dropped = [c for c in left if c not in lost], lost + dropped
        return left + dropped

    def _first(self) -> list[Point]:
        """Return the settings of the race: the start, and others spread evenly over the space."""
        found, cost = [self.space.start], 0.0
        if self.spread == 1:
            return found
        for point in self.space.spread(self.spread or _MOST_SPREAD, self.seed):
            # Each rung keeps a third and doubles the seeds: together they cost 1 + 2/3 + 4/9 + ...
            trial = self._trial(self.space.candidate(point), 0, self.share)
            cost += 2.5 * sum(proxy.cost(trial) for proxy in self.proxies)
            if self.spread is None and cost > _RACE * self.effort and len(found) > 3:
                break
            found.append(point)
        return found

    def _improve(self, point: Point) -> None:
        """Move in small steps, one coordinate at a time, while that helps."""
        self._stage = "small steps"
        for step in self.steps:
            before: Point | None = None
            while point != before:
                before = point
                for name in self.space.box:
                    point = self._along(name, point, step)
        for there in self.space.server_changes(point):
            point = there if self._beats(there, point) else point

    def _along(self, name: str, point: Point, step: float) -> Point:
        """Move along one coordinate, in the direction that helps."""
        for moves in (step, -step):
            start = point
            there = self.space.moved(point, name, moves)
            while there is not None and self._beats(there, point):
                point, there = there, self.space.moved(there, name, moves)
            if point != start:
                break
        return point

    def _beats(self, there: Point, here: Point) -> bool:
        """Compare under ever more common seeds, as long as the new settings are ahead."""
        new, old = self.space.candidate(there), self.space.candidate(here)
        for seeds in self.seeds[-2:]:
            known, found = (self.score(c, seeds, None, _ALL_STEPS) for c in (old, new))
            if not known - found > self.better * len(self.proxies):  # also if both diverged
                return False
        self.best = new
        return True

    def score(
        self, candidate: Candidate, seeds: int, share: float | None = None, part: float = 1.0
    ) -> float:
        """Return the sum over proxies of the mean measure's logarithm; infinite if one diverged.

        Args:
            candidate: The settings.
            seeds: Under how many seeds.
            share: Share of the cohort.
            part: Part of the limits beyond which nothing new is tried.

        Raises:
            OutOfTime: A limit was reached.
        """
        total = 0.0
        for number in range(len(self.proxies)):
            trials = [self._trial(candidate, seed, share) for seed in range(seeds)]
            found = [self.measure(self.outcome(number, trial, part)) for trial in trials]
            total += math.log(max(mean(found), 1e-12))
        return total

    def _trial(self, candidate: Candidate, seed: int, share: float | None = None) -> Trial:
        share = self.share if share is None else self.trials.share(candidate, share)
        return Trial(self.space.simulated(candidate), self.epsilon, share, seed, self.noise)

    def outcome(self, number: int, trial: Trial, part: float = 1.0) -> Outcome:
        """Return the outcome of a trial on one proxy, running it unless it is known.

        Raises:
            OutOfTime: The limit was reached.
        """
        known = self.outcomes.get((number, trial))
        if known is None:
            late = self.elapsed > min(1.0, part) * self.seconds
            if self.interrupted or late or self.spent > part * self.effort:
                raise OutOfTime
            proxy = self.proxies[number]
            try:
                known = proxy(trial, self._began + self.seconds)
                self.outcomes[number, trial] = known
                self.spent += proxy.cost(trial)
                least = min(o.error for (n, _), o in self.outcomes.items() if n == number)
                done = self.spent / self.effort
                self.show(SearchProgress(self._stage, len(self.outcomes), done, least))
            except KeyboardInterrupt:
                self.interrupted = True
                raise OutOfTime from None
        return known

    def fresh(
        self,
        candidate: Candidate,
        runs: int,
        number: int = 0,
        *,
        epsilon: float | None = None,
        noise: float = 1.0,
    ) -> list[Outcome]:
        """Run settings on one proxy under seeds that choose nothing, as far as time allows.

        Args:
            candidate: The settings.
            runs: How many seeds.
            number: Which proxy.
            epsilon: The budget, if not the search's own.
            noise: Factor on the noise.
        """
        self._stage = "what to expect"
        usual, found = self._trial(candidate, 0), list[Outcome]()
        budget = self.epsilon if epsilon is None else epsilon
        asked = replace(usual, epsilon=budget, noise=noise * usual.noise)
        with suppress(OutOfTime):
            for seed in range(_FRESH, _FRESH + runs):
                found.append(self.outcome(number, replace(asked, seed=seed), math.inf))
        return found

    def expected(
        self,
        candidate: Candidate,
        runs: int = _RUNS,
        *,
        epsilon: float | None = None,
        noise: float = 1.0,
    ) -> Expected | None:
        """Return what to expect of settings on the first proxy; None if nothing is known.

        Where there is no time for fresh seeds, the runs that chose the settings must do.
        """
        found = self.fresh(candidate, runs, epsilon=epsilon, noise=noise)
        if found:
            return _expected(found, fresh=True)
        usual = self._trial(candidate, 0)
        known = [
            outcome
            for (number, trial), outcome in self.outcomes.items()
            if number == 0 and trial.candidate == usual.candidate and trial.noise == usual.noise
        ]
        return _expected(known, fresh=False) if known and epsilon is None and noise == 1 else None


def mean(values: Iterable[float]) -> float:
    """Return the mean; infinite if there is nothing, or anything that is not finite."""
    found = list(values)
    return float(np.mean(found)) if found and np.isfinite(found).all() else math.inf


def _expected(outcomes: Sequence[Outcome], fresh: bool) -> Expected:
    losses = [outcome.loss for outcome in outcomes]
    accuracies = [outcome.accuracy for outcome in outcomes if outcome.accuracy is not None]
    found = Expected(mean(losses), _deviation(losses), None, None, len(outcomes), fresh)
    if not accuracies:
        return found
    return replace(found, accuracy=mean(accuracies), accuracy_spread=_deviation(accuracies))


def _deviation(values: Sequence[float]) -> float:
    if len(values) < 2 or not np.isfinite(values).all():
        return math.nan
    return float(np.std(values, ddof=1))
