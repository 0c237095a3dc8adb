"""One record moves the mean of clipped gradients, as computed, by what is accounted for it.

For any floating-point values: a gradient that is not finite counts as zero for its example alone,
and no norm over- or underflows its way past the clip.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.engines.sums import sum_of
from torch import Tensor, nn

from fedveil.core.randomness import Randomness
from fedveil.data.federation import Examples, Federation, Task
from fedveil.training.client.local_training import GradientClip, LearningRate, LocalTraining
from fedveil.training.client.update_pipeline import UpdatePipeline
from fedveil.training.engines.choose import ENGINES, build_engine, supports
from fedveil.training.engines.contract import Job, RoundRequest
from fedveil.training.engines.example_gradients import (
    ExampleGradients,
    ExampleWay,
    example_way,
)
from fedveil.training.models.flat import flatten, layout_of
from fedveil.training.models.zoo import Linear

from .jobs import MODELS, make_job, start_of

EACH = [name for name in ENGINES if name not in ("auto", "processes")]
BATCH = 16
NASTY = np.array(
    [np.nan, np.inf, -np.inf, 3e38, -3e38, 1.8e19, 1e15, 1.0, 1e-19, 2.5e-23, 1e-38, 1e-45, -0.0],
    np.float32,
)


def job_of(model: str, clip: GradientClip, isolated: bool) -> Job:
    rule = LocalTraining(LearningRate(1.0), steps=1, batch_size=BATCH, gradient_clip=clip)
    return replace(make_job(model, rule, UpdatePipeline(), (BATCH,)), isolated=isolated)


def with_records(job: Job, inputs: np.ndarray, targets: np.ndarray) -> Job:
    old = job.federation
    examples = Examples(inputs, targets)
    federation = Federation(examples, old.offsets, examples, old.task, old.classes, verified=True)
    return replace(job, federation=federation)


def gradient(job: Job, engine: str, weights: Tensor) -> Tensor:
    """The mean clipped gradient of the only client: one step at rate 1 from the weights."""
    found = sum_of(build_engine(job, engine), RoundRequest(weights, np.array([0]), 0))
    assert found.rejected == 0
    return -found.total


def accounted(clip: GradientClip) -> float:
    """What `methods.gradient_noise` charges one record in exact arithmetic."""
    return 2 * clip.norm / BATCH * (1 + BATCH * (BATCH + 4) * 2.0**-24 + 2e-6)


def nasty_pair(job: Job, draw: np.random.Generator) -> tuple[Job, Job, Tensor]:
    """Neighbours in one record, among records and weights of which some are nasty too."""
    inputs, targets = job.federation.train.inputs.copy(), job.federation.train.targets.copy()

    def spoil(row: np.ndarray, share: float) -> None:
        hit = draw.random(row.shape) < share
        row[hit] = draw.choice(NASTY, int(hit.sum()))

    for row in inputs[draw.random(BATCH) < 0.2]:
        spoil(row, 0.5)
    before = with_records(job, inputs, targets)
    inputs, targets = inputs.copy(), targets.copy()
    which = draw.integers(BATCH)
    spoil(inputs[which : which + 1], draw.choice([0.1, 1.0]))
    if job.federation.task is Task.REGRESSION:
        targets[which] = draw.choice(NASTY)
    else:
        targets[which] = draw.integers(3)
    weights = start_of(job) * float(draw.choice([1.0, 0.0, 1e15, 1e-20]))
    return before, with_records(job, inputs, targets), weights


@pytest.mark.sampled(2)
@pytest.mark.parametrize("clip", [0.5, 1e-6, 1e4])
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("model", ["linear", "wide softmax", "mlp", "tanh mlp", "own module"])
@pytest.mark.parametrize("engine", EACH)
def test_no_values_of_one_record_move_the_mean_further_than_accounted(
    engine: str, model: str, order: int, clip: float
) -> None:
    bound = GradientClip(clip, order, per_example=True)
    job = job_of(model, bound, isolated=True)
    if supports(job, engine) is not None:
        pytest.skip("not for this job")
    draw = np.random.default_rng([order, int(clip)])
    for _ in range(40 if engine == "mlp" else 4):
        before, after, weights = nasty_pair(job, draw)
        moved = gradient(after, engine, weights) - gradient(before, engine, weights)
        assert float(torch.linalg.vector_norm(moved, ord=order)) <= accounted(bound)


@pytest.mark.parametrize("isolated", [True, False])
@pytest.mark.parametrize("bad", [np.nan, np.inf, 3e38])
@pytest.mark.parametrize("model", ["softmax", "wide softmax", "mlp", "tanh mlp"])
@pytest.mark.parametrize("engine", EACH)
def test_an_example_that_is_not_finite_counts_as_zero_and_no_other(
    engine: str, model: str, bad: float, isolated: bool
) -> None:
    clip = GradientClip(1.0, per_example=True)
    job = job_of(model, clip, isolated)
    if supports(job, engine) is not None:
        pytest.skip("not for this job")
    inputs, targets = job.federation.train.inputs.copy(), job.federation.train.targets.copy()
    weights = start_of(job)
    # What the others give: the client without this record, divided by the same batch size.
    others = job_of(model, clip, isolated)
    offsets = np.array([0, BATCH - 1])
    examples = Examples(inputs[1:], targets[1:])
    federation = Federation(examples, offsets, examples, job.federation.task, 3, verified=True)
    wanted = gradient(replace(others, federation=federation), engine, weights)
    inputs[0] = bad
    found = gradient(with_records(job, inputs, targets), engine, weights)
    assert float((found - wanted).norm()) <= clip.norm / BATCH * 1.0001
    if not np.isfinite(bad):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("isolated", [True, False])
@pytest.mark.parametrize("engine", EACH)
def test_a_norm_that_underflows_is_no_zero(engine: str, isolated: bool) -> None:
    """An error of 2.5e-23 times an input of 1.8e19 is 450 times a clip of 1e-6, but the square of
    the error is zero in single precision."""
    inputs, targets = np.zeros((BATCH, 4), np.float32), np.zeros(BATCH, np.float32)
    inputs[0, 0], targets[0] = 1.8e19, -2.5e-23
    examples, module = Examples(inputs, targets), Linear(4, 1)
    federation = Federation(examples, np.array([0, BATCH]), examples, Task.REGRESSION, 0)
    rule = LocalTraining(
        LearningRate(1.0), steps=1, batch_size=BATCH, gradient_clip=GradientClip(1e-6, 2, True)
    )
    layout = layout_of(module)
    job = Job(federation, module, layout, rule, UpdatePipeline(), Randomness(1), isolated)
    if supports(job, engine) is not None:
        pytest.skip("not for this job")
    found = gradient(job, engine, torch.zeros(layout.size))
    assert 0.99e-6 / BATCH <= float(found.norm()) <= 1e-6 / BATCH * (1 + 1e-6)


@pytest.mark.parametrize("records", [1, 3])
@pytest.mark.parametrize("model", ["own module", "cnn", "colour cnn", "mlp"])
def test_no_example_shows_in_the_gradient_of_another(model: str, records: int) -> None:
    """Bit for bit, of records and of persons with several: layers that mixed the examples of a
    batch, by values or by a common scale, would have every clip depend on one record."""
    build, shape, task = MODELS[model]
    torch.manual_seed(1)
    module = build()
    examples = Examples(np.zeros((6, *shape), np.float32), np.zeros(6, np.int64))
    federation = Federation(examples, np.array([0, 6]), examples, task, 3)
    rule = LocalTraining(LearningRate(1.0), steps=1)
    job = Job(federation, module, layout_of(module), rule, UpdatePipeline(), Randomness(1))
    way = example_way(replace(job, isolated=True))
    assert isinstance(way, ExampleWay)
    gradients = ExampleGradients(job, torch.device("cpu"), way)
    gradients._tape.weights = flatten(module)
    inputs, targets = torch.randn(6, records, *shape), torch.randint(3, (6, records))
    shares = torch.full((6, records), 1 / records)

    def of_each(inputs: Tensor) -> Tensor:
        gradients._backward(inputs, targets, shares)
        return torch.cat([part.dense().flatten(1) for _, part in gradients._merged()], 1)

    before = of_each(inputs)
    for bad in (1e30, 3e38, float("nan"), float("inf"), 1e-40):
        other = inputs.clone()
        other[2] = bad
        after = of_each(other)
        rest = [0, 1, 3, 4, 5]
        assert torch.equal(before[rest], after[rest])


class Poisoned(nn.Module):
    """Not finite for some examples only, and only on the way back."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.layer(x)
        return scores + torch.sqrt(scores[:, :1].square() * (x[:, :1] > 0))


@pytest.mark.parametrize("engine", ["generic", "sequential"])
def test_a_gradient_may_fail_where_the_loss_does_not(engine: str) -> None:
    clip = GradientClip(1.0, per_example=True)
    job, module = job_of("own module", clip, isolated=True), Poisoned()
    job = replace(job, module=module, layout=layout_of(module))
    plain = replace(job, rule=LocalTraining(LearningRate(1.0), steps=1), isolated=False)
    whole = sum_of(build_engine(plain, engine), RoundRequest(flatten(module), np.array([0]), 0))
    assert whole.rejected == 1  # without clipping the mean is not finite
    assert 0 < float(gradient(job, engine, flatten(module)).norm()) <= 1.0
