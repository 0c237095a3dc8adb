"""Slow, obvious federated training in numpy: one client, one step, one formula at a time.

Everything is softmax regression in double precision. Batches and random streams are drawn as the
package draws them, so that a reference can be compared number by number; what is done with them
is written out here and in the tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np

import fedveil as fv
from fedveil.core.randomness import Randomness
from fedveil.training.client.batches import draw_batches

FEATURES, CLASSES = 5, 3
SIZES = (7, 4, 9, 1, 6, 5)
ROUNDS = 3
SEED = 11

Vector = np.ndarray


def federation(classes: int = CLASSES, sizes: tuple[int, ...] = SIZES) -> fv.Federation:
    draw = np.random.default_rng(4)
    inputs = draw.normal(size=(sum(sizes), FEATURES)).astype(np.float32)
    targets = draw.integers(0, classes, size=sum(sizes))
    examples = fv.Examples(inputs, targets.astype(np.int64))
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    public = fv.Examples(draw.normal(size=(9, FEATURES)).astype(np.float32), targets[:9])
    other = fv.Examples(inputs.copy(), examples.targets.copy())
    return fv.Federation(
        examples, offsets, other, fv.Task.CLASSIFICATION, classes, validation=public
    )


def rule(rate: float = 0.4, **fields: object) -> fv.LocalTraining:
    chosen: dict[str, object] = {"steps": 4, "batch_size": 2} | fields
    return fv.LocalTraining(fv.LearningRate(rate, fv.Schedule.EXPONENTIAL, 5.0), **chosen)


def planned(
    method: fv.Method,
    noise: float | None = 0.7,
    arithmetic: fv.Arithmetic = fv.Arithmetic.IDEALISED,
    data: fv.Federation | None = None,
) -> fv.Plan:
    """The plan of a method; `noise=0` silences it after it was planned."""
    data = data or federation()
    model = fv.build("logistic", data)
    if method.placement is None:
        return fv.plan(method, data, model, seed=SEED)
    budget = fv.Budget(noise_multiplier=noise or 0.7)
    made = fv.plan(method, data, model, budget=budget, seed=SEED, arithmetic=arithmetic)
    if noise == 0:
        return replace(made, noise_multiplier=0.0, delta=None)
    return made


def trajectory(made: fv.Plan) -> list[Vector]:
    """The shared weights after each round."""
    run = fv.Run(made, every=10**6)
    weights = [run.state.weights.numpy().copy()]
    for _ in run:
        weights.append(run.state.weights.numpy().copy())
    return weights


def check(
    made: fv.Plan, step: Callable[[Vector, int, np.ndarray], Vector], tolerance: float
) -> None:
    """Compare a run with `step(weights, round, cohort) -> new weights`, round by round.

    Each round of the reference starts where the run's round did: errors do not add up, and a
    wrong round is named.
    """
    found = trajectory(made)
    assert len(found) == made.method.rounds + 1
    for number, (before, after) in enumerate(pairwise(found)):
        cohort = made.sampling.draw(number, Randomness(SEED).stream("cohort", number))
        expected = step(before.astype(float), number, cohort)
        scale = np.abs(expected - before).max()
        assert scale > 1e-4, "nothing moved: the comparison would show nothing"
        error = np.abs(after - expected).max() / scale
        assert error <= tolerance, f"round {number + 1}: off by {error:.2e} of the step"


def records(made: fv.Plan, client: int) -> tuple[Vector, Vector]:
    first, last = made.federation.offsets[client : client + 2]
    train = made.federation.train
    return train.inputs[first:last].astype(float), train.targets[first:last]


def batches(made: fv.Plan, client: int, round_number: int) -> Iterator[tuple[int, Vector, Vector]]:
    """(step, inputs, targets) of a client's local steps."""
    inputs, targets = records(made, client)
    drawn = draw_batches(
        np.array([client]), np.array([len(targets)]), made.local, round_number, Randomness(SEED)
    )
    for step in range(int(drawn.steps[0])):
        positions, mask = drawn.at(step)
        rows = positions[0][mask[0]]
        yield step, inputs[rows], targets[rows]


def gradients(weights: Vector, inputs: Vector, targets: Vector, classes: int = CLASSES) -> Vector:
    """Gradient of each example's cross-entropy, [examples, parameters]: matrix, then bias."""
    matrix, bias = weights[: classes * FEATURES].reshape(classes, FEATURES), weights[-classes:]
    scores = inputs @ matrix.T + bias
    odds = np.exp(scores - scores.max(axis=1, keepdims=True))
    errors = odds / odds.sum(axis=1, keepdims=True) - np.eye(classes)[targets]
    by_matrix = np.einsum("nc,nf->ncf", errors, inputs).reshape(len(inputs), -1)
    return np.concatenate([by_matrix, errors], axis=1)


def clipped(vector: Vector, bound: float, order: int = 2) -> Vector:
    return vector / max(1.0, np.linalg.norm(vector, ord=order) / bound)


def sgd(
    made: fv.Plan,
    start: Vector,
    client: int,
    round_number: int,
    change: Callable[[Vector, Vector], Vector] = lambda gradient, moved: gradient,
    after: Callable[[Vector], Vector] = lambda moved: moved,
) -> Vector:
    """The update of plain local SGD; `change(gradient, moved)` and `after(moved)` alter a step."""
    rates = made.local.learning_rate.of_round(round_number, 100)
    moved = np.zeros_like(start)
    for step, inputs, targets in batches(made, client, round_number):
        gradient = gradients(start + moved, inputs, targets).mean(axis=0)
        moved = after(moved - rates[step] * change(gradient, moved))
    return moved
