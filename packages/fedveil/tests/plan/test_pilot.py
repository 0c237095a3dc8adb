"""The search: finds the bottom of a bowl, keeps to its limits, goes on where it was stopped."""

from __future__ import annotations

import itertools
import math
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tests.plan.pilots import BOTTOM, BOWL, Bowl, search_of, small_recipe

from fedveil.core.errors import ConfigError
from fedveil.tune.pilot import FRESH_SEEDS, PilotProgress, Search, TrialJournal
from fedveil.tune.trials import Outcome, Trial


def search_in_bowl(noise: float, seed: int = 0, **rest: object) -> Search:
    return Search(Bowl(noise), BOWL, 1.0, **{"journal": TrialJournal(seed=seed), **rest})


def test_most_is_spent_on_the_best() -> None:
    """Some settings are given up on less than the whole cohort, and they are the worse ones."""
    search = search_in_bowl(0.0, settings=100)
    search._search()
    tried: dict[float, list[float]] = {}
    for trial, outcome in search.journal.items():
        tried.setdefault(round(trial.share, 2), []).append(outcome.error)
    assert len(tried[0.11]) == 100
    assert len(tried[1.0]) < 0.8 * len(tried[0.33]) < 0.8 * len(tried[0.11])
    given_up = set(tried[0.11]) - set(tried[0.33])
    assert np.median(tried[1.0]) < 0.7 * np.median(list(given_up))


def test_the_search_ends_near_the_bottom() -> None:
    """Single runs are 15 % off (one deviation); the choices of three searches cost 20 % at most.

    A blind draw costs 300 % on average. Seeds are fixed, so this never fails by chance.
    """
    costs = [Bowl(0).error(search_in_bowl(0.15, seed, settings=80).run()) for seed in range(3)]
    assert max(costs) < 1.2 * Bowl(0).error(BOTTOM)


def test_the_same_seed_asks_the_same() -> None:
    first, again = (search_in_bowl(0.2, settings=30) for _ in range(2))
    assert first.run() == again.run()
    assert first.journal.items() == again.journal.items()


def test_runs_that_diverged_do_not_spoil_the_search() -> None:
    """Most of the box diverges; the choice is one that does not, and the base comes first."""

    class Cliff(Bowl):
        def __call__(self, trial: Trial, deadline: float = math.inf) -> Outcome:
            found = super().__call__(trial, deadline)
            wild = trial.candidate.learning_rate > 0.2
            return Outcome(math.inf, None, found.work, 0.0) if wild else found

    search = Search(Cliff(0.1), BOWL, 1.0, settings=60)
    chosen = search.run()
    assert search.journal.items()[0][0].candidate == BOWL.base
    assert chosen.learning_rate <= 0.2
    assert Bowl(0).error(chosen) < Bowl(0).error(BOWL.base)


def test_fresh_seeds_choose_nothing() -> None:
    """However good they look, runs under the seeds that say what to expect change no choice."""
    search = search_in_bowl(0.1, settings=40)
    chosen = search.run()
    other = search.ranked()[-1]
    for seed in FRESH_SEEDS:
        search.journal.add(Trial(other, 1.0, 1.0, seed), Outcome(1e-6, None, 1, 0.0))
    assert search.chosen() == chosen == search.run()
    assert search.expected(other).loss == 1e-6


def test_expectation_and_spread_are_those_of_the_fresh_seeds() -> None:
    search = search_in_bowl(0.2)
    found = search.expected(BOTTOM)
    errors = [Bowl(0.2)(Trial(BOTTOM, 1.0, 1.0, seed)).error for seed in FRESH_SEEDS]
    assert found.loss == pytest.approx(np.mean(errors))
    assert found.loss_spread == pytest.approx(np.std(errors, ddof=1))
    assert (found.runs, found.fresh, found.accuracy) == (len(FRESH_SEEDS), True, None)


def test_work_is_limited() -> None:
    search = search_in_bowl(0.1, work=3000)
    search.run()
    spent = search.journal.work
    assert 0.4 * 3000 < spent <= 3000  # alternatives and expectations may use up the rest


def test_time_is_limited_even_in_the_middle_of_a_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever looks at this clock moves it on by 10 ms; every round of a trial looks."""
    ticks = itertools.count(1)
    search = search_of(small_recipe(training__rounds=4000), seconds=1.0, _began=0.0)
    with monkeypatch.context() as clock:
        clock.setattr(time, "monotonic", lambda: next(ticks) / 100)
        with pytest.raises(ConfigError, match="before a single trial"):
            search.run()
    assert next(ticks) < 300


def test_no_time_at_all_is_said_so() -> None:
    with pytest.raises(ConfigError, match="--time 1e-09: stopped before a single trial"):
        search_in_bowl(0.1, seconds=1e-9).run()


def test_an_interrupt_leaves_the_best_so_far() -> None:
    def stop(progress: PilotProgress) -> None:
        if progress.trials == 20:
            raise KeyboardInterrupt

    search = search_in_bowl(0.1, show=stop)
    chosen = search.run()
    assert search.interrupted
    assert len(search.journal) == 20
    assert chosen == search.chosen()
    assert search.expected(chosen).fresh is False


def test_a_stopped_search_goes_on_where_it_was(tmp_path: Path) -> None:
    def stop(progress: PilotProgress) -> None:
        if progress.trials == 30:
            raise KeyboardInterrupt

    path, about = tmp_path / "trials.journal", {"recipe": {"a": 1}}
    first = search_in_bowl(0.2, journal=TrialJournal(path, about), settings=40, show=stop)
    first.run()
    with path.open("a") as file:
        file.write('{"op_code": 4, "worker')  # killed while writing
    again = search_in_bowl(0.2, journal=TrialJournal(path, about), settings=40)
    assert again.journal.found == 30
    assert again.journal.items() == first.journal.items()
    chosen = again.run()
    assert len(again.journal) == 30 + again.trials.asked
    assert len(again.journal.study.trials) == 40  # those before it was stopped among them
    third = search_in_bowl(0.2, journal=TrialJournal(path, about), settings=40)
    assert third.run() == chosen
    assert third.trials.asked == 0


def test_a_journal_about_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trials.journal"
    TrialJournal(path, {"recipe": 1})
    with pytest.raises(ConfigError, match="another recipe"):
        TrialJournal(path, {"recipe": 2})
    path.write_text("no journal\nat all\n")
    with pytest.raises(ConfigError, match="cannot be read"):
        TrialJournal(path, {"recipe": 1})


def test_an_infinite_loss_survives_the_journal(tmp_path: Path) -> None:
    path = tmp_path / "trials.journal"
    trial = Trial(BOTTOM, 1.0, 1 / 9, 7, 0.5)
    TrialJournal(path, {}).add(trial, Outcome(math.inf, 0.0, 5, 0.25))
    assert TrialJournal(path, {}).get(trial) == Outcome(math.inf, 0.0, 5, 0.25)


def test_without_optuna_the_cure_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ConfigError, match=r"pip install 'fedveil\[plan\]'"):
        TrialJournal()
