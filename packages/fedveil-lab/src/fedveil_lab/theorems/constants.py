"""The loss's constants, estimated on public or proxy data for a model linear in its inputs.

Every number here is computed from records in the clear. It must never be done on private data:
the caller says that a federation is public by handing it over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from fedveil.core.errors import ConfigError
from fedveil.data.federation import Federation, Task

Array = NDArray[np.float64]
_RIDGE = 1e-2  # of the classification loss: its optimum must exist, and not lie infinitely far


@dataclass(frozen=True)
class LossConstants:
    """The constants of a linear model's losses, from zero, that the convergence scores need.

    strong_convexity: twice the gap over the squared distance at the start: the curvature on the way
        to the optimum. (The smallest curvature of all would be a bound, and useless as a plan.)
    gradient_bound: root mean square over clients of the gradient's norm at the start.
    """

    strong_convexity: float
    smoothness: float
    gradient_bound: float
    heterogeneity: float
    initial_distance: float
    initial_gap: float
    gradient_variance: float
    source: str

    @property
    def for_fu(self) -> tuple[float, float, float, float, float]:
        """Return the constants of Fu's bound, in its order."""
        curvature = self.strong_convexity, self.smoothness
        return *curvature, self.gradient_bound, self.heterogeneity, self.initial_distance


def estimate(public: Federation, *, most_clients: int = 100) -> LossConstants:
    """Constants of linear or softmax regression on the clients of a public federation."""
    if public.task in (Task.SEQUENCE, Task.MULTI_LABEL):
        raise ConfigError(
            f"proxy {public.name!r}: the constants of {public.task} models cannot be estimated; "
            "give them"
        )
    chosen = np.unique(np.linspace(0, public.clients - 1, most_clients).astype(np.int64))
    clients = [_client(public, int(number)) for number in chosen]
    outputs = 1 if public.task is Task.REGRESSION else public.classes
    losses = [_loss(public.task, inputs, targets, outputs) for inputs, targets in clients]
    start = np.zeros(clients[0][0].shape[1] * outputs)

    def everyone(weights: Array) -> tuple[float, Array]:
        parts = [loss(weights) for loss in losses]
        mean = np.mean([gradient for _, gradient in parts], axis=0)
        return float(np.mean([value for value, _ in parts])), mean

    best, optimum = _minimum(everyone, start)
    own = float(np.mean([_minimum(loss, start, most=50)[0] for loss in losses]))
    first = everyone(start)[0]
    gradients = [loss(start)[1] for loss in losses]
    distance = float(optimum @ optimum)
    if not distance > 0 or not first > best:
        raise ConfigError(
            f"proxy {public.name!r}: a model of zeros is already optimal on it; name other data"
        )
    pooled = np.concatenate([inputs for inputs, _ in clients])
    top = float(np.linalg.norm(pooled, 2) ** 2 / len(pooled))
    smoothness = top if outputs == 1 else top / 2 + _RIDGE
    return LossConstants(
        strong_convexity=min(smoothness, 2 * (first - best) / distance),
        smoothness=smoothness,
        gradient_bound=float(np.sqrt(np.mean([g @ g for g in gradients]))),
        heterogeneity=max(0.0, best - own),
        initial_distance=distance,
        initial_gap=first - best,
        gradient_variance=_record_variance(clients, outputs),
        source=public.name,
    )


def _client(public: Federation, number: int) -> tuple[Array, Array]:
    """Inputs [records, features + 1] with a constant column, and targets [records]."""
    rows = slice(public.offsets[number], public.offsets[number + 1])
    seen = public.model_inputs(public.train.inputs[rows]).reshape(rows.stop - rows.start, -1)
    return np.column_stack([seen, np.ones(len(seen))]).astype(np.float64), np.asarray(
        public.train.targets[rows]
    )


def _loss(
    task: Task, inputs: Array, targets: Array, outputs: int
) -> Callable[[Array], tuple[float, Array]]:
    """Mean loss of one client's records and its gradient."""
    count = len(inputs)
    if task is Task.REGRESSION:

        def squared(weights: Array) -> tuple[float, Array]:
            error = inputs @ weights - targets
            return float(error @ error / (2 * count)), inputs.T @ error / count

        return squared
    rows, labels = np.arange(count), targets.astype(np.int64)

    def cross_entropy(weights: Array) -> tuple[float, Array]:
        scores = inputs @ weights.reshape(-1, outputs)
        scores -= scores.max(axis=1, keepdims=True)
        shares = np.exp(scores)
        total = shares.sum(axis=1)
        value = float(np.mean(np.log(total) - scores[rows, labels]))
        shares /= total[:, None]
        shares[rows, labels] -= 1
        gradient = (inputs.T @ shares / count).ravel()
        return value + _RIDGE / 2 * float(weights @ weights), gradient + _RIDGE * weights

    return cross_entropy


def _minimum(
    loss: Callable[[Array], tuple[float, Array]], start: Array, most: int = 300
) -> tuple[float, Array]:
    found = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": most})
    return float(found.fun), np.asarray(found.x, dtype=np.float64)


def _record_variance(clients: list[tuple[Array, Array]], outputs: int) -> float:
    """Mean over clients of the variance of one record's gradient at the zero model."""
    found = []
    for inputs, targets in clients:
        if outputs == 1:
            errors = -targets[:, None]
        else:
            errors = np.full((len(inputs), outputs), 1 / outputs)
            errors[np.arange(len(inputs)), targets.astype(np.int64)] -= 1
        squares = np.mean(np.sum(inputs**2, axis=1) * np.sum(errors**2, axis=1))
        mean = inputs.T @ errors / len(inputs)
        found.append(squares - float(np.sum(mean**2)))
    return max(0.0, float(np.mean(found)))
