"""What the tuner predicts for a measured grid, from made-up data of the same shape and scale.

The measured losses of an experiment's cases say whether the tuner would have chosen well: it ranks
the same cases by simulation, without a look at the data, and its choice is held against the best.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fedveil.data.federation import Federation
from fedveil.planning.assemble import plan_of
from fedveil.planning.recipe import Recipe, parse, with_defaults
from fedveil.tune.proxy import Proxy
from fedveil.tune.space import space_of
from fedveil.tune.trials import ProxyTrials
from fedveil.tune.tuner import Tuner
from fedveil_lab.reproduction.case import Case, Certified, Label


@dataclass(frozen=True)
class Prediction:
    """A tuner's ranking of a grid beside what was measured.

    Attributes:
        chosen: The label of the case that the tuner likes best.
        measured: What was measured for each label; less is better.
    """

    chosen: Label
    measured: Mapping[Label, float]

    @property
    def best(self) -> Label:
        """Return the label that was measured to be the best."""
        return min(self.measured, key=lambda label: self.measured[label])

    @property
    def times_worse(self) -> float:
        """Return what was measured for the chosen label over the best."""
        return self.measured[self.chosen] / self.measured[self.best]


def predict(
    cases: Sequence[Case],
    sweep: str,
    like: Federation,
    made: Federation,
    measured: Mapping[Label, float],
    seeds: int = 8,
) -> Prediction:
    """Let the tuner rank cases by their loss in simulated runs under common seeds.

    Args:
        cases: With certified noise.
        sweep: The label by which they differ.
        like: A federation of the experiment's shape, whose counts set the noise.
        made: Made-up data to simulate on.
        measured: What was measured, by label; less is better.
        seeds: Simulated runs of each case.
    """
    scores: dict[Label, float] = {}
    for case in cases:
        recipe = _recipe(case)
        trials = ProxyTrials(recipe, plan_of(recipe, like), Proxy(made, "synthetic"))
        space = space_of(trials, recipe.training.local_steps or 1)
        tuner = Tuner([trials], space, recipe.privacy.epsilon or 0.0, effort=math.inf)
        scores[case[sweep]] = tuner.score(space.base, seeds)
    return Prediction(min(scores, key=lambda label: scores[label]), measured)


def _recipe(case: Case) -> Recipe:
    """Return a case as a recipe with the budget that its noise is certified for."""
    if not isinstance(case.noise, Certified):
        raise ValueError(f"case {case.described()}: has no certified noise")
    values = dict(case.values)
    if case.data.shuffled:
        # Made-up clients stand in the order in which they were dealt.
        values["training.sampling"] = "balanced"
    recipe = with_defaults(parse({}, values={**values, "seed": 0}))
    privacy = replace(recipe.privacy, epsilon=case.noise.epsilon, delta=case.noise.delta)
    return replace(recipe, privacy=privacy)
