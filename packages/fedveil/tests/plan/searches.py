"""Small jobs for tests of the tuner: made-up clients whose trials take milliseconds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fedveil.planning import recipe as recipes
from fedveil.planning.assemble import federation_of, plan_of
from fedveil.planning.recipe import Recipe
from fedveil.tune.proxy import proxy_of
from fedveil.tune.space import RecipeSpace, space_of
from fedveil.tune.trials import Candidate, Outcome, ProxyTrials, Trial
from fedveil.tune.tuner import Tuner


def small_recipe(**changes: Any) -> Recipe:
    """dp-fedavg on 60 clients of 8 records; `section__key=value` changes it."""
    table: dict[str, Any] = {
        "seed": 1,
        "data": {"source": "synthetic-logistic", "clients": 60, "examples_per_client": 8},
        "training": {
            "method": "dp-fedavg",
            "sampling": "everyone",
            "rounds": 8,
            "local_steps": 2,
            "learning_rate": 1.0,
        },
        "privacy": {"epsilon": 8.0, "clip_norm": 1.0},
    }
    for name, value in changes.items():
        section, key = name.split("__")
        table.setdefault(section, {})[key] = value
    return recipes.with_defaults(recipes.parse(table))


def trials_of(recipe: Recipe) -> ProxyTrials:
    federation = federation_of(recipe.data)
    return ProxyTrials(recipe, plan_of(recipe, federation), proxy_of(recipe, None, federation))


def tuner_of(recipe: Recipe, **limits: Any) -> Tuner:
    trials = trials_of(recipe)
    space = space_of(trials, recipe.training.local_steps or 1)
    return Tuner([trials], space, recipe.privacy.epsilon or 0.0, **limits)


BOWL = RecipeSpace(small_recipe(), Candidate(1, 64, 0.1, 1.0, 40), 64, 400, 1.0, True)
BOTTOM = Candidate(4, 8, 0.4, 0.5, 80)


class Bowl:
    """Stands in for trials: a smooth bowl in the logarithms of the settings, with noise.

    Its lowest loss is 1, at BOTTOM; twice or half of one setting costs a tenth or so. Seeds that
    choose nothing may have a luck of their own.
    """

    everyone, classifies = 400, False

    def __init__(self, noise: float, fresh: float = 0.0) -> None:
        self.noise, self.fresh = noise, fresh
        self.asked: list[Trial] = []

    def share(self, candidate: Candidate, share: float) -> float:
        return share

    def cost(self, trial: Trial) -> float:
        return trial.share * trial.candidate.total_steps

    def loss(self, candidate: Candidate) -> float:
        squares = math.log2(_stride(candidate) / _stride(BOTTOM)) ** 2
        for name in ("local_steps", "rounds", "clip_norm", "cohort"):
            ratio = getattr(candidate, name) / getattr(BOTTOM, name)
            squares += math.log2(ratio) ** 2
        return 1 + squares / 10

    def __call__(self, trial: Trial, deadline: float = math.inf) -> Outcome:
        self.asked.append(trial)
        luck = np.random.default_rng(trial.seed).standard_normal()
        luck += self.fresh if trial.seed >= 1000 else 0.0
        loss = self.loss(trial.candidate) * math.exp(self.noise * luck)
        return Outcome(loss, None, trial.candidate.total_steps)


def _stride(candidate: Candidate) -> float:
    return candidate.learning_rate * candidate.local_steps * min(1.0, candidate.clip_norm)
