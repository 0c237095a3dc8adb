"""Tuning on private data, and paying for it: the best of a secret random number of runs.

What is proved (Papernot and Steinke 2022, theorem 2). One run: draw settings at random from a fixed
list, train privately, score the result. Draw the number of runs from a geometric law, keep the
best run, show nothing else. If one run has Renyi curve r, all of it together has the curve that
`account(..., tuning=RandomRuns(...))` computes. It needs:

* every setting on the list has the same releases, so that r is the same whichever is drawn;
* the score is computed from the trained model and public data alone;
* nobody sees the other runs, or how many there were. So the aggregator must be trusted: a server
  that sees uploads or sums of single rounds sees all runs. And nothing may end the search early.

The chosen run is the result. Training once more with its settings would be one more release.
"""

from __future__ import annotations

import math
import random
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from operator import attrgetter
from typing import Any

from fedveil.core.errors import ConfigError, PrivacyRefusal
from fedveil.core.units import Trust
from fedveil.data.federation import Federation
from fedveil.planning.assemble import plan_of
from fedveil.planning.limits import test_examples
from fedveil.planning.plan import Plan
from fedveil.planning.recipe import Recipe
from fedveil.privacy.accounting import Release, account
from fedveil.privacy.calibration import least_noise
from fedveil.privacy.guarantee import Guarantee
from fedveil.privacy.tuning import RandomRuns, Repeats
from fedveil.run.run import Run
from fedveil.tune.proxy import SYNTHETIC, Proxy
from fedveil.tune.space import RecipeSpace
from fedveil.tune.trials import Candidate, recipe_with_settings

SETTINGS = 30  # on the list to draw from; costs nothing


@dataclass(frozen=True)
class Tuned:
    """The chosen run: its settings, its score on public data, its model, and what all of it cost.

    `noise_multiplier` is that of every run; `untuned_noise` would do for a single run.
    """

    candidate: Candidate
    loss: float
    accuracy: float | None
    model: bytes  # safetensors
    guarantee: Guarantee
    noise_multiplier: float
    untuned_noise: float


def tuned(
    recipe: Recipe, real: Plan, candidates: Sequence[Candidate], scored: Proxy, mean: float
) -> Tuned:
    """Train a random number of times (`mean` on average) and keep the best, within the budget.

    `real` is the recipe's plan. Rounds and cohorts of the candidates are the recipe's own.
    """
    federation = _scored_on(real.federation, scored)
    plans = [plan_of(recipe_with_settings(recipe, c), federation) for c in candidates]
    _check(recipe, real, plans)
    tuning = RandomRuns(mean, Repeats.GEOMETRIC)
    noise, guarantee = _paid(recipe, real, tuning, scored)
    untuned = real.noise_multiplier or 0.0
    best: Tuned | None = None
    dice = _Dice(recipe.seed)
    for number in range(dice.geometric(Fraction(mean))):
        at = dice.below(len(plans))
        seed = None if recipe.seed is None else recipe.seed + 1 + number
        plan = replace(plans[at], seed=seed, noise_multiplier=noise)
        run = Run(plan, every=real.method.rounds)
        try:
            metrics = run.finish()
            loss = metrics.loss if math.isfinite(metrics.loss) else math.inf
            if best is None or _score(loss, metrics.accuracy) < _score(best.loss, best.accuracy):
                model = run.model_file()
                best = Tuned(
                    candidates[at], loss, metrics.accuracy, model, guarantee, noise, untuned
                )
        finally:
            run.close()
    if best is None:
        raise RuntimeError("a geometric number of runs is at least one")
    return best


def settings_to_draw(space: RecipeSpace, number: int = SETTINGS) -> list[Candidate]:
    """Return a fixed list of settings with the recipe's own rounds and cohort."""
    base = space.base
    drawn = [base, *map(space.candidate, space.spread(number - 1, seed=0))]
    same = (replace(c, rounds=base.rounds, cohort=base.cohort) for c in drawn)
    return list(dict.fromkeys(same))


def _check(recipe: Recipe, real: Plan, plans: Sequence[Plan]) -> None:
    if real.guarantee is None or real.privacy_model is None or recipe.privacy.epsilon is None:
        raise ConfigError("--tune-on-private-data: needs a private method and privacy.epsilon")
    if real.privacy_model.trust is not Trust.CENTRAL:
        raise PrivacyRefusal(
            f"under {real.privacy_model.trust} trust the server sees something of every run, so "
            "all of them would have to be paid for, not only the best",
            "tune on public data (--pilot --proxy), or use a method with a trusted aggregator",
        )
    if real.scales or real.rates or real.person_epsilon is not None:
        raise PrivacyRefusal(
            "epsilons of single clients or persons are accounted for one run, and tuning makes "
            "several",
            "leave privacy.budgets, privacy.epsilon_column and data.records_per_person out, or "
            "tune on public data",
        )
    rounds = real.method.rounds
    expected = real.private_noise.scaled(1.0).releases(rounds)
    for plan in plans:
        same = plan.private_noise.scaled(1.0).releases(rounds) == expected
        if plan.method.rounds != rounds or not same:
            raise PrivacyRefusal(
                "the settings to choose from release different things, and the proof is about runs "
                "that all cost the same",
                "keep rounds, cohort and sampling as they are, and choose a client-level method",
            )


def _paid(recipe: Recipe, real: Plan, tuning: RandomRuns, scored: Proxy) -> tuple[float, Guarantee]:
    """Return the least noise with which everything keeps to the budget, and its guarantee."""
    privacy_model, given = real.privacy_model, real.guarantee
    if privacy_model is None or given is None:
        raise ConfigError("--tune-on-private-data: needs a private method")

    def releases(noise: float) -> tuple[Release, ...]:
        return replace(real, noise_multiplier=noise).releases(real.method.rounds)

    scores = f"Runs were scored on {scored.source}, declared to be public."
    unseen = test_examples(real.federation)  # no run is scored on them
    scored_publicly = replace(
        privacy_model,
        declared=(*privacy_model.declared, scores),
        not_covered=tuple(one for one in privacy_model.not_covered if one not in unseen),
    )
    cost: dict[str, Any] = {"delta": given.delta, "tuning": tuning}
    cost["privacy_model"], epsilon = scored_publicly, recipe.privacy.epsilon or 0.0
    start = 2 * (real.noise_multiplier or 1.0)
    noise = least_noise(releases, epsilon=epsilon, guess=start, **cost)
    if noise is None:
        raise PrivacyRefusal(
            f"no noise is known to keep the best of {tuning.mean:g} runs within epsilon "
            f"{epsilon:g}: this sampling or noise has no Rényi curve, or delta is zero",
            "use Gaussian noise with Poisson or fixed-size sampling, or tune on public data",
        )
    return noise, account(releases(noise), **cost)


def _scored_on(private: Federation, scored: Proxy) -> Federation:
    """Return the private federation with public examples as its test part."""
    public = scored.federation
    if public.name == SYNTHETIC:
        raise ConfigError(
            "--proxy synthetic: scores on made-up data say nothing about a real model; name "
            "public data"
        )
    shape = attrgetter("task", "classes", "input_shape")
    scaled = (public.scaling is None) == (private.scaling is None)
    if shape(public) != shape(private) or not scaled:
        raise ConfigError(f"--proxy: {scored.source} does not have the recipe's inputs and classes")
    return replace(private, test=public.train, verified=True)


def _score(loss: float, accuracy: float | None) -> float:
    return loss if accuracy is None else -accuracy


class _Dice:
    """Secret draws from the operating system, or repeatable ones for a simulation."""

    def __init__(self, seed: int | None) -> None:
        generator = None if seed is None else random.Random(f"private tuning {seed}")
        self.below = secrets.randbelow if generator is None else generator.randrange

    def geometric(self, mean: Fraction) -> int:
        """Draw a number from 1 on, exactly: after every run, stop with probability 1/mean."""
        number = 1
        while self.below(mean.numerator) >= mean.denominator:
            number += 1
        return number
