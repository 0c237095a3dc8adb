"""The pilot search: which settings of a recipe to choose, found by short runs on public data.

    1. brackets of successive halving: the first over a wide box, later ones around the best so far
       and where a smooth guess at all errors says that something better may be
    2. the best ones under more seeds, the same for all, and small changes of the very best
    3. the chosen one under seeds that no choice has seen: what to expect of it, and its spread

Everything is decided by seeds, so the same search asks the same things; only where the time limit
stops it depends on the machine.
"""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from fedveil.errors import BadInput
from fedveil.planning.halving import FIRST, LATER, Rung, halve, mean_error, spread_out
from fedveil.planning.rehearsal import Outcome, OutOfTime, Rehearsals, Trial
from fedveil.planning.space import Candidate, Space
from fedveil.planning.surrogate import Surrogate, fit
from fedveil.planning.trials import Trials

# Of the brackets' boxes, as parts of the first: from everywhere to the neighbourhood of the best.
WIDTHS = (1.0, 0.5, 0.5, 0.5, 0.35, 0.35, 0.35, 0.25, 0.25, 0.25) + 8 * (0.2,)
FINALISTS, APART = 4, 0.1  # and how far they differ at least: neighbours tell the same
FINAL_SEEDS = range(10, 18)  # to choose among the finalists
FEWEST = 3  # of them before anything is chosen by them
FRESH_SEEDS = range(100, 105)  # to say what to expect
SEARCH, CHOICE, EXPECTATION = 0.5, 0.77, 0.87  # parts of the limits after which each ends


@dataclass(frozen=True)
class Progress:
    """How far a search is."""

    stage: str
    trials: int
    seconds: float
    best: Candidate | None
    error: float  # of the best; infinite if there is none


@dataclass(frozen=True)
class Expected:
    """What a candidate reached under several seeds: mean and standard deviation over them."""

    loss: float
    loss_spread: float
    accuracy: float | None
    accuracy_spread: float | None
    runs: int
    share: float  # of the cohort; below 1 it is a rough guess
    fresh: bool  # under seeds that no choice has seen

    @property
    def error(self) -> float:
        return self.loss if self.accuracy is None else 1 - self.accuracy

    @property
    def error_spread(self) -> float:
        spread = self.loss_spread if self.accuracy is None else self.accuracy_spread
        return spread or 0.0


@dataclass
class Search:
    """A pilot search in progress: everything that was tried, and the clock.

    It ends after so many `seconds`, or once its trials have taken so much `work` (local steps of
    all clients together) or so many seconds of the `processor`, whichever comes first.
    """

    rehearsals: Rehearsals
    space: Space
    epsilon: float
    seconds: float = math.inf
    work: float = math.inf
    processor: float = math.inf
    seed: int = 0  # of what is drawn to be tried
    trials: Trials = field(default_factory=Trials)
    show: Callable[[Progress], None] = lambda progress: None
    interrupted: bool = False
    _asked: dict[Trial, Outcome] = field(default_factory=dict)
    _errors: dict[Candidate, dict[float, list[float]]] = field(default_factory=dict)  # by share
    _guessed: tuple[int, Surrogate | None] | None = None  # after so many trials
    _settled: Candidate | None = None  # the best under the final seeds
    _worked: int = 0
    _computed: float = 0.0  # seconds of the processor
    _began: float = field(default_factory=time.monotonic)
    _stage: str = "search"

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._began

    @property
    def settings(self) -> int:
        """How many candidates were tried."""
        return len(self._errors)

    def run(self, widths: Sequence[float] = WIDTHS) -> Candidate:
        """Search and choose. Ctrl-C ends it with what there is."""
        try:
            with suppress(OutOfTime):
                self._search(widths)
            self._choose()
        except OutOfTime:
            pass
        except KeyboardInterrupt:
            self.interrupted = True
        chosen = self.chosen()
        if chosen is None:
            how = "interrupted" if self.interrupted else f"--time {self.seconds:g}: stopped"
            raise BadInput(f"{how} before a single trial was finished; give it more time")
        return chosen

    def _search(self, widths: Sequence[float]) -> None:
        for number, width in enumerate(widths):
            self._stage = f"search {number + 1} of {len(widths)}"
            bracket = FIRST if number == 0 else LATER
            candidates = self._candidates(bracket.candidates, width, number)
            halve(candidates, bracket.rungs, self._score)

    def _candidates(self, number: int, width: float, seed: int) -> list[Candidate]:
        """What a bracket tries: first everywhere; then what the guess proposes, and the best one's
        neighbours."""
        best, everywhere = self.chosen(), self.space.box
        if seed == 0 or best is None:
            base = self.space.base
            return [base, *spread_out(self.space, everywhere, number - 1, self.seed)]
        near = self.space.around(best, width)
        found = [best]
        guess = self.guess()
        if guess is not None:
            found += guess.propose([everywhere, near], 2 * number // 3, seed)
        return found + spread_out(self.space, near, number - len(found), self.seed + seed)

    def _choose(self) -> None:
        """Under the same seeds luck is the same for all, and small differences show."""
        self._stage = "the best ones again"
        able, guess = self.ranked(), self.guess()
        finalists = able[:FINALISTS]
        if guess is not None and able:
            finalists = guess.ranked(able, FINALISTS, APART)
            near = self.space.around(finalists[0], WIDTHS[-1])
            finalists += guess.propose([self.space.box, near], 1, seed=len(WIDTHS))
        errors: dict[Candidate, list[float]] = {candidate: [] for candidate in finalists}
        for seed in FINAL_SEEDS:
            for candidate, known in errors.items():
                known.append(self._final(candidate, seed))
            if all(len(known) >= FEWEST for known in errors.values()) and errors:
                self._settled = min(errors, key=lambda candidate: mean_error(errors[candidate]))
        if self._settled is not None:
            self._improve(self._settled, errors)

    def _improve(self, best: Candidate, tried: dict[Candidate, list[float]]) -> None:
        """Small changes of the best, each given up once it is behind."""
        self._stage = "small changes"
        changes = iter(self.space.neighbours(best))
        while (candidate := next(changes, None)) is not None:
            if candidate in tried:
                continue
            errors = tried[candidate] = []
            for seed in FINAL_SEEDS:
                errors.append(self._final(candidate, seed))
                best_so_far = tried[best][: len(errors)]
                if len(errors) >= FEWEST and mean_error(errors) >= mean_error(best_so_far):
                    break
            else:
                best = self._settled = candidate
                changes = iter(self.space.neighbours(best))

    def _final(self, candidate: Candidate, seed: int) -> float:
        return self.outcome(Trial(candidate, self.epsilon, 1.0, seed), CHOICE).error

    def expected(
        self, candidate: Candidate, epsilon: float | None = None, part: float = EXPECTATION
    ) -> Expected | None:
        """What to expect of a candidate: fresh seeds as far as time allows, else what is known."""
        self._stage = "what to expect"
        at = self.epsilon if epsilon is None else epsilon
        outcomes = []
        try:
            for seed in FRESH_SEEDS:
                outcomes.append(self.outcome(Trial(candidate, at, 1.0, seed), part))
        except OutOfTime:
            pass
        except KeyboardInterrupt:
            self.interrupted = True
        if outcomes:
            return _expected(outcomes, 1.0, fresh=True)
        known = [
            (t.share, o)
            for t, o in self._asked.items()
            if (t.candidate, t.epsilon, t.noise) == (candidate, at, 1.0)
        ]
        share = max((share for share, _ in known), default=0.0)
        most = [outcome for at_share, outcome in known if at_share == share]
        return _expected(most, share, fresh=False) if most else None

    def outcome(self, trial: Trial, part: float = 1.0) -> Outcome:
        """The outcome of a trial, a known one or a new one; OutOfTime beyond this part of the
        limits."""
        known = self.trials.get(trial)
        over = self._worked > part * self.work or self._computed > part * self.processor
        if trial not in self._asked and over:
            raise OutOfTime
        if known is None:
            if self.interrupted or self.elapsed > part * self.seconds:
                raise OutOfTime
            known = self.rehearsals(trial, self._began + part * self.seconds)
            self.trials.add(trial, known)
        if trial not in self._asked:
            self._asked[trial] = known
            self._worked += known.work
            self._computed += known.seconds
            if self._may_choose(trial):
                by_share = self._errors.setdefault(trial.candidate, {})
                by_share.setdefault(trial.share, []).append(known.error)
            best = self.best()
            error = math.inf if best is None else mean_error(self._thorough(best)[1])
            self.show(Progress(self._stage, len(self._asked), self.elapsed, best, error))
        return known

    def ranked(self) -> list[Candidate]:
        """Candidates by how well they did, those tried most thoroughly only; best first."""
        tried = {
            c: self._thorough(c) for c, by_share in self._errors.items() if any(by_share.values())
        }
        most = max((share for share, _ in tried.values()), default=0.0)
        top = {c: errors for c, (share, errors) in tried.items() if share == most}
        enough = max(map(len, top.values()), default=0) / 3  # one lucky run is no proof
        means = {c: mean_error(errors) for c, errors in top.items() if len(errors) >= enough}
        return sorted((c for c in means if means[c] < math.inf), key=lambda c: means[c])

    def best(self) -> Candidate | None:
        return next(iter(self.ranked()), None)

    def chosen(self) -> Candidate | None:
        """The best under the final seeds; before, the best by the smooth guess among those that
        were tried thoroughly."""
        if self._settled is not None:
            return self._settled
        able, guess = self.ranked(), self.guess()
        if guess is None or not able:
            return next(iter(able), None)
        return able[int(np.argmin(guess.errors(able)))]

    def guess(self) -> Surrogate | None:
        """A smooth guess at all errors, from all trials that a choice may look at."""
        if self._guessed is None or self._guessed[0] != len(self._asked):
            known = [(t, o) for t, o in self._asked.items() if self._may_choose(t)]
            found = fit(self.space, known, 2 * self.rehearsals.trivial())
            self._guessed = len(self._asked), found
        return self._guessed[1]

    def known_errors(self, candidate: Candidate) -> list[float]:
        """Errors of a candidate with the whole cohort that a choice may look at."""
        return self._errors.get(candidate, {}).get(1.0, [])

    def _may_choose(self, trial: Trial) -> bool:
        """Whether a choice may look at it: the search's own budget and noise, no fresh seed."""
        return (
            trial.epsilon == self.epsilon and trial.noise == 1.0 and trial.seed not in FRESH_SEEDS
        )

    def _thorough(self, candidate: Candidate) -> tuple[float, list[float]]:
        """The largest share of the cohort a candidate was tried with, and its errors there."""
        return max((share, errors) for share, errors in self._errors[candidate].items() if errors)

    def _score(self, candidate: Candidate, rung: Rung) -> float:
        """The mean error of all runs with the rung's share of the cohort, some of them new."""
        share = self.rehearsals.share(candidate, rung.share)
        errors = self._errors.setdefault(candidate, {}).setdefault(share, [])
        for seed in own_seeds(candidate, len(errors), rung.seeds):
            outcome = self.outcome(Trial(candidate, self.epsilon, share, seed), SEARCH)
            if math.isinf(outcome.loss):
                break
        return mean_error(errors)


def own_seeds(candidate: Candidate, first: int, number: int) -> range:
    """Seeds of a candidate's own: with common ones, a search learns what suits their noise."""
    begin = 1000 + 100 * (zlib.crc32(repr(candidate).encode()) % 10**6) + first
    return range(begin, begin + number)


def _expected(outcomes: Sequence[Outcome], share: float, fresh: bool) -> Expected:
    losses = [outcome.loss for outcome in outcomes]
    accuracies = [outcome.accuracy for outcome in outcomes if outcome.accuracy is not None]
    return Expected(
        _mean_of(losses),
        _deviation(losses),
        _mean_of(accuracies) if accuracies else None,
        _deviation(accuracies) if accuracies else None,
        len(outcomes),
        share,
        fresh,
    )


def _mean_of(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if all(map(math.isfinite, values)) else math.inf


def _deviation(values: Sequence[float]) -> float:
    mean = _mean_of(values)
    if len(values) < 2 or not math.isfinite(mean):
        return math.nan
    return math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1))
