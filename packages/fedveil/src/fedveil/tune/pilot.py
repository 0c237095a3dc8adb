"""The pilot: which settings of a recipe to choose, found by short runs on public data.

1. Optuna proposes settings. Each is tried with a ninth of the cohort, with a third, with all of
   it, and given up where others did better at the same stage.
2. The best ones race under more seeds, the same for all.
3. The chosen one runs under seeds that no choice has seen: what to expect of it.
"""

from __future__ import annotations

import json
import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedveil.core.errors import ConfigError
from fedveil.tune.space import Space
from fedveil.tune.trials import Candidate, Outcome, OutOfTime, ProxyTrials, Trial

if TYPE_CHECKING:
    import optuna

_ABOUT = "about"
_AT_RANDOM = 10  # settings before Optuna guesses
_WEIGHED = 100  # guesses of which the most promising is tried


class TrialJournal:
    """Outcomes by trial, and the study that proposes settings.

    With a path, Optuna's journal file keeps both as soon as they are known. `about` says which
    question they answer; a file about another one is refused. Outcomes are attributes of the study:
    not every trial is Optuna's own, and each may be asked for again.
    """

    def __init__(
        self, path: Path | None = None, about: Mapping[str, Any] | None = None, seed: int = 0
    ) -> None:
        self.study = _study(path, json.loads(json.dumps(about or {})), seed)
        kept = self.study.user_attrs
        self._known = {_trial(key): _outcome(kept[key]) for key in kept if key != _ABOUT}
        self.found = len(self._known)  # outcomes that were in the file

    def __len__(self) -> int:
        return len(self._known)

    def items(self) -> list[tuple[Trial, Outcome]]:
        return list(self._known.items())

    def get(self, trial: Trial) -> Outcome | None:
        return self._known.get(trial)

    def add(self, trial: Trial, outcome: Outcome) -> None:
        self._known[trial] = outcome
        loss, *rest = astuple(outcome)
        value = [loss if math.isfinite(loss) else None, *rest]
        self.study.set_user_attr(json.dumps(astuple(trial)), value)

    @property
    def work(self) -> int:
        """Local steps of all clients in all trials."""
        return sum(outcome.work for outcome in self._known.values())


def _study(path: Path | None, about: Mapping[str, Any], seed: int) -> optuna.Study:
    try:
        import optuna
        from optuna.storages.journal import JournalFileBackend
    except ImportError:
        raise ConfigError("--pilot: needs Optuna; pip install 'fedveil[plan]'") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage: optuna.storages.BaseStorage = optuna.storages.InMemoryStorage()
    try:
        if path is not None:
            if path.exists():  # the last line may have been cut short when the search was stopped
                whole = path.read_bytes()
                path.write_bytes(whole[: whole.rfind(b"\n") + 1])
            storage = optuna.storages.JournalStorage(JournalFileBackend(str(path)))
        study = optuna.create_study(study_name="pilot", storage=storage, load_if_exists=True)
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"--journal {path}: cannot be read: {error}") from None
    if study.user_attrs.get(_ABOUT, about) != about:
        raise ConfigError(f"--journal {path}: is about another recipe or proxy; name a new file")
    study.set_user_attr(_ABOUT, about)
    for unfinished in study.get_trials(states=(optuna.trial.TrialState.RUNNING,)):
        study.tell(unfinished.number, state=optuna.trial.TrialState.FAIL)
    seed += len(study.trials)
    study.sampler = optuna.samplers.TPESampler(
        seed=seed, multivariate=False, n_startup_trials=_AT_RANDOM, n_ei_candidates=_WEIGHED
    )
    study.pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=3)
    return study


def _trial(key: str) -> Trial:
    settings, *rest = json.loads(key)
    return Trial(Candidate(*settings), *rest)


def _outcome(value: list[Any]) -> Outcome:
    return Outcome(math.inf if value[0] is None else value[0], *value[1:])


SETTINGS = 250  # to try at most
_SHARES = (1 / 9, 1 / 3, 1.0)  # of the cohort, at each stage
_OWN_SEEDS = 1000  # and on, one for each of Optuna's trials: common ones would suit their noise
_DIVERGED = 1e300
_FINALISTS = 9
_FINAL_SEEDS = range(10, 26)  # to choose among the finalists
_HALVED_AFTER = (2, 4, 8)  # of the final seeds
_FEWEST = 3  # of them before a small change is given up
FRESH_SEEDS = range(100, 105)  # to say what to expect
_SEARCH, _CHOICE, _EXPECTATION = 0.5, 0.75, 0.83  # parts of the limits after which each ends


@dataclass(frozen=True)
class PilotProgress:
    """How far a search is."""

    stage: str
    trials: int
    seconds: float
    error: float  # the least of a run with the whole cohort; infinite if there is none


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
    """A pilot in progress.

    It ends after so many `seconds`, or once its trials have taken so much `work` (local steps of
    all clients together), or with so many `settings` tried, whichever comes first.
    """

    trials: ProxyTrials
    space: Space
    epsilon: float
    seconds: float = math.inf
    work: float = math.inf
    settings: int = field(default_factory=lambda: SETTINGS)
    journal: TrialJournal = field(default_factory=TrialJournal)
    show: Callable[[PilotProgress], None] = lambda progress: None
    interrupted: bool = False
    _settled: Candidate | None = None  # the best under the final seeds
    _began: float = field(default_factory=lambda: time.monotonic())
    _stage: str = ""
    _least: float = math.inf

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._began

    def run(self) -> Candidate:
        """Search and choose. Ctrl-C ends it with what there is."""
        try:
            with suppress(OutOfTime):
                self._search()
            with suppress(OutOfTime):
                self._choose()
        except KeyboardInterrupt:
            self.interrupted = True
        chosen = self.chosen()
        if chosen is None:
            how = "interrupted" if self.interrupted else f"--time {self.seconds:g}: stopped"
            raise ConfigError(f"{how} before a single trial was finished; give it more time")
        return chosen

    def chosen(self) -> Candidate | None:
        """The best under the final seeds; before there are any, the best of the search."""
        return self._settled or next(iter(self.ranked()), None)

    def ranked(self) -> list[Candidate]:
        """Candidates that were tried with the whole cohort, by one run each; best first."""
        done = [t for t in self.journal.study.get_trials(deepcopy=False) if t.value is not None]
        done.sort(key=lambda asked: asked.value or 0.0)
        return list(dict.fromkeys(self.space.candidate(asked.params) for asked in done))

    def _search(self) -> None:
        from optuna.distributions import BaseDistribution, FloatDistribution
        from optuna.trial import TrialState

        study = self.journal.study
        box: dict[str, BaseDistribution] = {
            name: FloatDistribution(*ends) for name, ends in self.space.box.items()
        }
        tried = len(study.get_trials(deepcopy=False))
        if not tried:
            study.enqueue_trial(self.space.point(self.space.base))
        for _ in range(tried, self.settings):
            asked = study.ask(box)
            self._stage = f"settings {asked.number + 1}"
            state, value = TrialState.FAIL, math.nan
            try:
                candidate = self.space.candidate(asked.params)
                for share in dict.fromkeys(self.trials.share(candidate, s) for s in _SHARES):
                    trial = Trial(candidate, self.epsilon, share, _OWN_SEEDS + asked.number)
                    # Ranks alone count; what diverged is the last of all.
                    value = min(self.outcome(trial, _SEARCH).error, _DIVERGED)
                    asked.report(value, round(9 * share))
                    if share < 1 and asked.should_prune():
                        state = TrialState.PRUNED
                        break
                else:
                    state = TrialState.COMPLETE
            finally:
                study.tell(asked, value if state is TrialState.COMPLETE else None, state)

    def _choose(self) -> None:
        """Under the same seeds luck is the same for all, and small differences show."""
        self._stage = "the best ones again"
        errors: dict[Candidate, list[float]] = {c: [] for c in self.ranked()[:_FINALISTS]}
        left = list(errors)
        for done, seed in enumerate(_FINAL_SEEDS, start=1):
            for candidate in left:
                errors[candidate].append(self._final(candidate, seed))
            left.sort(key=lambda candidate: mean_error(errors[candidate]))
            if left and done >= _HALVED_AFTER[0]:
                self._settled = left[0]
            if done in _HALVED_AFTER:
                left = left[: max(2, (len(left) + 1) // 2)]
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
            for seed in _FINAL_SEEDS:
                errors.append(self._final(candidate, seed))
                ahead = mean_error(errors) < mean_error(tried[best][: len(errors)])
                if len(errors) >= _FEWEST and not ahead:
                    break
            else:
                best = self._settled = candidate
                changes = iter(self.space.neighbours(best))

    def _final(self, candidate: Candidate, seed: int) -> float:
        return self.outcome(Trial(candidate, self.epsilon, 1.0, seed), _CHOICE).error

    def expected(
        self, candidate: Candidate, epsilon: float | None = None, part: float = _EXPECTATION
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
        by_share: dict[float, list[Outcome]] = defaultdict(list)
        for trial, outcome in self.journal.items():
            if (trial.candidate, trial.epsilon, trial.noise) == (candidate, at, 1.0):
                by_share[trial.share].append(outcome)
        if not by_share:
            return None
        share = max(by_share)
        return _expected(by_share[share], share, fresh=False)

    def outcome(self, trial: Trial, part: float = 1.0) -> Outcome:
        """The outcome of a trial, a known one or a new one; OutOfTime beyond this part of the
        limits."""
        known = self.journal.get(trial)
        if known is None:
            spent = self.elapsed > part * self.seconds or self.journal.work > part * self.work
            if self.interrupted or spent:
                raise OutOfTime
            known = self.trials(trial, self._began + part * self.seconds)
            self.journal.add(trial, known)
            if trial.share == 1 and trial.epsilon == self.epsilon and trial.noise == 1:
                self._least = min(self._least, known.error)
            self.show(PilotProgress(self._stage, len(self.journal), self.elapsed, self._least))
        return known


def mean_error(errors: Sequence[float]) -> float:
    """The mean; infinite if nothing was tried or anything diverged."""
    return math.inf if not errors else float(np.mean(errors))


def _expected(outcomes: Sequence[Outcome], share: float, fresh: bool) -> Expected:
    losses = [outcome.loss for outcome in outcomes]
    accuracies = [outcome.accuracy for outcome in outcomes if outcome.accuracy is not None]
    spread = _deviation(accuracies) if accuracies else None
    accuracy = mean_error(accuracies) if accuracies else None
    return Expected(
        mean_error(losses), _deviation(losses), accuracy, spread, len(outcomes), share, fresh
    )


def _deviation(values: Sequence[float]) -> float:
    if len(values) < 2 or not np.isfinite(values).all():
        return math.nan
    return float(np.std(values, ddof=1))
