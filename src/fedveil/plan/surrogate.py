"""A smooth guess at the errors of settings that were not tried, from those that were.

Under noise a few runs say little about one setting; its neighbours say the rest. A Gaussian process
over the search's coordinates, and the share of the cohort as one more, learns from all trials at
once: its mean is a fairer judge than the luck of single runs, and draws from it propose what to try
next (Thompson sampling).
"""

from __future__ import annotations

import math
import warnings
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import qmc

from fedveil.plan.rehearsal import Outcome, Trial
from fedveil.plan.space import Candidate, Point, Space

LEAST = 10  # settings that must be known before anything is guessed
_MOST = 250  # settings to learn from; more take long and say nothing new
_POOL = 500  # points at which a draw is looked at
_LEAST_NOISE = 1e-4


@dataclass(frozen=True)
class Surrogate:
    """A fitted guess. Build one with `fit`."""

    space: Space
    process: Any
    centre: float

    def errors(self, candidates: Sequence[Candidate]) -> NDArray[np.float64]:
        """Guessed errors with the whole cohort."""
        inputs = np.array([_input(self.space, c, 1.0) for c in candidates])
        guessed: NDArray[np.float64] = np.exp(self.process.predict(inputs) + self.centre)
        return guessed

    def propose(
        self, boxes: Sequence[tuple[Point, Point]], number: int, seed: int
    ) -> list[Candidate]:
        """Up to `number` different candidates from these boxes, each the best of one draw."""
        dimensions = len(self.space.names)
        pool: dict[Candidate, None] = {}
        for index, (low, high) in enumerate(boxes):
            sequence = qmc.Halton(dimensions, seed=1000 * seed + index)
            for point in sequence.random(_POOL // len(boxes)):
                pool.setdefault(self.space.candidate(low + point * (high - low)))
        candidates = list(pool)
        inputs = np.array([_input(self.space, c, 1.0) for c in candidates])
        draws = self.process.sample_y(inputs, n_samples=2 * number, random_state=seed)
        best = dict.fromkeys(candidates[int(i)] for i in np.argmin(draws, axis=0))
        return list(best)[:number]


def fit(space: Space, known: Sequence[tuple[Trial, Outcome]], ceiling: float) -> Surrogate | None:
    """A guess from these trials; None if they are too few.

    Errors above `ceiling` are all alike: what is hopeless need not be told apart.
    """
    groups: dict[tuple[Candidate, float], list[float]] = defaultdict(list)
    for trial, outcome in known:
        groups[trial.candidate, trial.share].append(max(outcome.error, 1e-9))
    if len({candidate for candidate, _ in groups}) < LEAST or not space.names:
        return None
    top = math.log(max(ceiling, float(np.quantile([min(v) for v in groups.values()], 0.6))))
    logs = {key: np.minimum(np.log(values), top) for key, values in groups.items()}
    chosen = sorted(logs, key=lambda key: float(logs[key].mean()))[:_MOST]
    means = np.array([logs[key].mean() for key in chosen])
    noise = _noise([logs[key] for key in chosen])
    inputs = np.array([_input(space, *key) for key in chosen])
    centre = float(np.median(means))
    return Surrogate(space, _process(inputs, means - centre, noise), centre)


def _noise(logs: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Variance of each mean, from the pooled variance between seeds."""
    repeated = [values for values in logs if len(values) > 1]
    degrees = sum(len(values) - 1 for values in repeated)
    squares = sum(float(((values - values.mean()) ** 2).sum()) for values in repeated)
    pooled = squares / degrees if degrees else 0.01
    return np.array([max(_LEAST_NOISE, pooled / len(values)) for values in logs])


def _process(
    inputs: NDArray[np.float64], values: NDArray[np.float64], noise: NDArray[np.float64]
) -> Any:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern

    scale = max(1e-3, float(values.var()))
    shape = Matern([0.7] * inputs.shape[1], length_scale_bounds=(0.15, 20.0), nu=2.5)
    kernel = ConstantKernel(scale, (scale / 100, scale * 100)) * shape
    with warnings.catch_warnings():
        # A coordinate that does not matter ends at the bound of its length: that is the answer.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return GaussianProcessRegressor(kernel, alpha=noise).fit(inputs, values)


def _input(space: Space, candidate: Candidate, share: float) -> NDArray[np.float64]:
    """A candidate's place in units of the first box, and the share of the cohort."""
    low, high = space.box
    width = np.where(high > low, high - low, 1.0)
    return np.append((space.point(candidate) - low) / width, math.log(share) / math.log(9))
