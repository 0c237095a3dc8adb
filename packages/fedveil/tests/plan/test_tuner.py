"""The search: finds the bottom of a bowl, keeps to its limits, and repeats itself."""

from __future__ import annotations

import itertools
import math
import time

import numpy as np
import pytest
from tests.plan.searches import BOTTOM, BOWL, Bowl, small_recipe, tuner_of

from fedveil.core.errors import ConfigError
from fedveil.tune.trials import Outcome, Trial
from fedveil.tune.tuner import SearchProgress, Tuner


def in_bowl(noise: float, seed: int = 0, effort: float = 20_000, **rest: object) -> Tuner:
    return Tuner([Bowl(noise)], BOWL, 1.0, effort, seed=seed, **rest)  # type: ignore[arg-type]


def test_the_search_ends_near_the_bottom() -> None:
    """Single runs are off by a third (one deviation); choices of three searches by 10 % at most.

    A blind draw costs 300 % on average. Luck is the same for all who run under one seed.
    """
    costs = [Bowl(0).loss(in_bowl(0.3, seed).run()) for seed in range(3)]
    assert max(costs) < 1.1 * Bowl(0).loss(BOTTOM)


def test_the_same_seed_asks_the_same() -> None:
    first, again = in_bowl(0.2), in_bowl(0.2)
    assert first.run() == again.run()
    assert list(first.outcomes.items()) == list(again.outcomes.items())
    other = in_bowl(0.2, seed=1)
    other.run()
    assert list(other.outcomes) != list(first.outcomes)


def test_runs_that_diverged_do_not_spoil_the_search() -> None:
    """Most of the box diverges; the choice is one that does not, and the base comes first."""

    class Cliff(Bowl):
        def __call__(self, trial: Trial, deadline: float = math.inf) -> Outcome:
            found = super().__call__(trial, deadline)
            wild = trial.candidate.learning_rate > 0.2
            return Outcome(math.inf, None, found.work) if wild else found

    search = Tuner([Cliff(0.1)], BOWL, 1.0)  # type: ignore[list-item]
    chosen = search.run()
    assert search.proxies[0].asked[0].candidate == BOWL.base  # type: ignore[attr-defined]
    assert chosen.learning_rate <= 0.2
    assert Bowl(0).loss(chosen) < Bowl(0).loss(BOWL.base)


def test_what_is_expected_comes_from_seeds_that_choose_nothing() -> None:
    """However lucky they are, they change no choice; mean and spread are theirs."""
    lucky = Tuner([Bowl(0.2, fresh=-20.0)], BOWL, 1.0)  # type: ignore[list-item]
    plain = in_bowl(0.2)
    chosen = plain.run()
    assert lucky.run() == chosen
    assert lucky.expected(chosen).loss < 0.1 * plain.expected(chosen).loss
    found = plain.expected(chosen)
    losses = [o.loss for (_, trial), o in plain.outcomes.items() if trial.seed >= 1000]
    assert found.loss == pytest.approx(np.mean(losses))
    assert found.loss_spread == pytest.approx(np.std(losses, ddof=1))
    assert (found.runs, found.fresh, found.accuracy) == (len(losses), True, None)


def test_effort_is_limited() -> None:
    """Two searches that may cost different amounts do; the last trial may go a little beyond."""
    for effort in (2_000, 8_000):
        search = in_bowl(0.1, effort=effort)
        search.run()
        assert 0.5 * effort < search.spent <= effort


def test_time_is_limited_even_in_the_middle_of_a_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever looks at this clock moves it on by 10 ms; every round of a trial looks."""
    ticks = itertools.count(1)
    search = tuner_of(small_recipe(training__rounds=4000), seconds=1.0, _began=0.0)
    with monkeypatch.context() as clock:
        clock.setattr(time, "monotonic", lambda: next(ticks) / 100)
        with pytest.raises(ConfigError):
            search.run()
    assert next(ticks) < 300


def test_an_interrupt_leaves_the_best_so_far() -> None:
    def stop(progress: SearchProgress) -> None:
        if progress.trials == 20:
            raise KeyboardInterrupt

    search = in_bowl(0.1, show=stop)
    chosen = search.run()
    assert search.interrupted
    assert len(search.outcomes) == 20
    assert chosen == search.best
    assert search.expected(chosen).fresh is False
    assert len(search.outcomes) == 20
