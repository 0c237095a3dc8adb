"""A smooth guess at the errors of settings that were not tried, from those that were.

Under noise a few runs say little about one setting; its neighbours say the rest. A Gaussian process
over the search's coordinates, and the share of the cohort as one more, learns from all trials at
once: its mean is a fairer judge than the luck of single runs, and what it is unsure of may be worth
a try.
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

from fedveil.planning.rehearsal import Outcome, Trial
from fedveil.planning.space import Candidate, Point, Space

Box = tuple[Point, Point]

LEAST = 10  # settings that must be known before anything is guessed
_MOST = 250  # settings to learn from; more take long and say nothing new
_POOL = 4000  # points at which a guess is looked at
_BOLDEST = 3.0  # deviations below its mean that a guess may be believed
_APART = 0.04  # least distance of two proposals, in parts of the first box
_LEAST_NOISE = 1e-4
_REPEATS = 20  # repeated runs from which the noise between seeds is known well enough


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

    def propose(self, boxes: Sequence[Box], number: int, seed: int) -> list[Candidate]:
        """Up to `number` different candidates from these boxes that may be better than the rest.

        From the surest guess to the boldest: each is the least of mean - caution * deviation.
        """
        pool: dict[Candidate, None] = {}
        for index, (low, high) in enumerate(boxes):
            sequence = qmc.Halton(len(low), seed=1000 * seed + index)
            for point in sequence.random(_POOL // len(boxes)):
                pool.setdefault(self.space.candidate(low + point * (high - low)))
        candidates = list(pool)
        inputs = np.array([_input(self.space, c, 1.0) for c in candidates])
        mean, deviation = self.process.predict(inputs, return_std=True)
        free = np.ones(len(candidates), dtype=bool)
        found = []
        for boldness in np.linspace(0.0, _BOLDEST, number):
            if not free.any():
                break
            at = int(np.argmin(np.where(free, mean - boldness * deviation, np.inf)))
            found.append(candidates[at])
            # Near ones would tell the same.
            distance = np.abs(inputs - inputs[at]).max(axis=1)
            free &= distance > _APART
        return found


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
    chosen = sorted(logs, key=lambda key: -len(logs[key]))[:_MOST]  # by errors would favour luck
    means = np.array([logs[key].mean() for key in chosen])
    noise = _noise([logs[key] for key in chosen])
    inputs = np.array([_input(space, *key) for key in chosen])
    centre = float(np.median(means))
    return Surrogate(space, _process(inputs, means - centre, noise), centre)


def _noise(logs: Sequence[NDArray[np.float64]]) -> NDArray[np.float64] | None:
    """Variance of each mean, from the pooled variance between seeds; None if that is not known."""
    repeated = [values for values in logs if len(values) > 1]
    degrees = sum(len(values) - 1 for values in repeated)
    if degrees < _REPEATS:
        return None
    pooled = sum(float(((values - values.mean()) ** 2).sum()) for values in repeated) / degrees
    return np.array([max(_LEAST_NOISE, pooled / len(values)) for values in logs])


def _process(
    inputs: NDArray[np.float64], values: NDArray[np.float64], noise: NDArray[np.float64] | None
) -> Any:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    scale = max(1e-3, float(values.var()))
    shape = Matern([0.7] * inputs.shape[1], length_scale_bounds=(0.15, 20.0), nu=2.5)
    kernel = ConstantKernel(scale, (scale / 100, scale * 100)) * shape
    if noise is None:  # to be learnt from how far neighbours differ
        kernel = kernel + WhiteKernel(0.03, (_LEAST_NOISE, 1.0))
        noise = np.full(len(values), _LEAST_NOISE)
    with warnings.catch_warnings():
        # A coordinate that does not matter ends at the bound of its length: that is the answer.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return GaussianProcessRegressor(kernel, alpha=noise).fit(inputs, values)


def _input(space: Space, candidate: Candidate, share: float) -> NDArray[np.float64]:
    """What errors depend on smoothly, in units of about one: a candidate and a share of the cohort.

    How far a round can move the model, and with it the noise, goes with the clip (of gradients: all
    steps' clips together); how far it would move it, with all steps' rates together. Along these
    lines settings are alike that look different one by one.
    """
    stride = candidate.learning_rate * candidate.local_steps
    reached = candidate.clip_norm * (stride if space.clips_gradients else 1.0)
    logs = [
        math.log2(candidate.local_steps) / 6,
        math.log2(candidate.rounds) / 6,
        math.log2(stride) / 8,
        math.log2(reached) / 8,
        math.log(share) / math.log(9),
    ]
    plain = [
        math.log2(candidate.cohort) / 4 if candidate.cohort else None,
        math.log2(candidate.server_learning_rate) / 8 if candidate.server_learning_rate else None,
        *(None if x is None else math.sqrt(x) for x in (candidate.smoothing, candidate.penalty)),
        None if candidate.sparsity is None else math.sqrt(candidate.sparsity),
    ]
    return np.array([*logs, *(x for x in plain if x is not None)])
