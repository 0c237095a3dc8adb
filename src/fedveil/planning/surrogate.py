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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
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
_RIDGE = 3.0  # runs that a slope of the tail must stand against
_REPEATS = 20  # repeated runs from which the noise between seeds is known well enough


@dataclass(frozen=True)
class Surrogate:
    """A fitted guess. Build one with `fit`."""

    space: Space
    process: Any  # of logarithms of errors
    centre: float
    tail: NDArray[np.float64]  # mean over exp(mean of logarithms), as a linear function

    def errors(self, candidates: Sequence[Candidate]) -> NDArray[np.float64]:
        """Guessed mean errors with the whole cohort."""
        inputs = np.array([_input(self.space, c, 1.0) for c in candidates])
        logs: NDArray[np.float64] = self.process.predict(inputs) + self.centre
        return np.exp(logs + self._tail(inputs))

    def ranked(self, candidates: Sequence[Candidate], number: int, apart: float) -> list[Candidate]:
        """The `number` candidates with the lowest guesses that lie at least so far apart."""
        inputs = np.array([_input(self.space, c, 1.0) for c in candidates])
        found: list[int] = []
        for at in np.argsort(self.errors(candidates)):
            if all(np.abs(inputs[at] - inputs[other]).max() > apart for other in found):
                found.append(int(at))
        return [candidates[at] for at in found[:number]]

    def _tail(self, inputs: NDArray[np.float64]) -> NDArray[np.float64]:
        """Logarithm of what unlucky runs add: where noise rules, the mean lies far above it."""
        ratio = np.column_stack([inputs, np.ones(len(inputs))]) @ self.tail
        return np.log(np.clip(ratio, 0.9, 3.0))

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
        mean = mean + self._tail(inputs)
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
    finite = [least for v in groups.values() if math.isfinite(least := min(v))]
    if not finite:
        return None
    top = math.log(max(ceiling, float(np.quantile(finite, 0.6))))
    logs = {key: np.minimum(np.log(values), top) for key, values in groups.items()}
    chosen = sorted(logs, key=lambda key: -len(logs[key]))[:_MOST]  # by errors would favour luck
    means = np.array([logs[key].mean() for key in chosen])
    noise = _noise([logs[key] for key in chosen])
    inputs = np.array([_input(space, *key) for key in chosen])
    centre = float(np.median(means))
    process = _process(inputs, means - centre, noise)
    return Surrogate(space, process, centre, _tail(process, inputs, logs, chosen, centre, top))


def _tail(
    process: Any,
    inputs: NDArray[np.float64],
    logs: Mapping[tuple[Candidate, float], NDArray[np.float64]],
    chosen: Sequence[tuple[Candidate, float]],
    centre: float,
    top: float,
) -> NDArray[np.float64]:
    """Mean errors over guessed ones, by ridge regression on where they were measured."""
    guessed = process.predict(inputs) + centre
    ratios = np.array([np.exp(logs[key]).mean() for key in chosen]) / np.exp(guessed)
    near = guessed < top - 0.2  # beyond, errors are cut off
    weights = np.array([len(logs[key]) for key in chosen], dtype=np.float64) * near
    design = np.column_stack([inputs, np.ones(len(inputs))])
    penalty = _RIDGE * np.diag([*np.ones(inputs.shape[1]), 1e-6])
    normal = design.T @ (weights[:, None] * design) + penalty
    found: NDArray[np.float64] = np.linalg.solve(normal, design.T @ (weights * ratios))
    return found


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
        return GaussianProcessRegressor(kernel, alpha=noise, optimizer=_few_steps).fit(
            inputs, values
        )


def _few_steps(
    objective: Callable[..., Any], start: NDArray[np.float64], bounds: NDArray[np.float64]
) -> tuple[NDArray[np.float64], float]:
    """Lengths need no precision: what is tried next hardly depends on it."""
    found = minimize(
        objective, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 15}
    )
    return found.x, float(found.fun)


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
