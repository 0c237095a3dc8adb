"""Losses with weights of classes and of one's own: what they compute, and what they may not do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.engines.sums import sum_of
from torch import Tensor, nn
from torch.nn import functional

import fedveil as fv
from fedveil.core.randomness import Randomness
from fedveil.methods.parts.certificate import non_expansive
from fedveil.training.client.local_training import GradientClip
from fedveil.training.client.update_pipeline import UpdatePipeline
from fedveil.training.engines.contract import Job, RoundRequest
from fedveil.training.engines.gradients import AutogradGradients, VmapGradients
from fedveil.training.models.flat import flatten, layout_of
from fedveil.training.models.losses import Loss

DRAW = np.random.default_rng(4)
INPUTS = DRAW.standard_normal((40, 3)).astype(np.float32)
LABELS = (INPUTS[:, 0] + 0.5 * DRAW.standard_normal(40) > 1).astype(np.int64)
NUMBERS = (INPUTS @ np.array([1.0, -2.0, 0.5]) + 3 * DRAW.standard_t(2, 40)).astype(np.float32)
OWNERS = np.arange(40) // 5


def federation(targets: np.ndarray) -> fv.Federation:
    declared = {} if targets.dtype == np.float32 else {"classes": 2}
    task = "regression" if targets.dtype == np.float32 else "classification"
    return fv.Federation.from_arrays(
        INPUTS, targets, OWNERS, test_fraction=0.0, task=task, **declared
    )


def huber(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.huber_loss(outputs[:, 0], targets, reduction="none", delta=0.7)


def one_step(targets: np.ndarray, loss: Loss | None, engine: str) -> Tensor:
    """The sum of one full step of every client at rate 1, that is: minus gradients."""
    local = fv.LocalTraining(fv.LearningRate(1.0), steps=1, loss=loss)
    method = fv.fedavg(rounds=1, cohort=fv.CohortRule(rate=1.0), local=local)
    data = federation(targets)
    module = fv.build("auto", data, seed=3)
    plan = fv.plan(method, data, module, seed=0)
    run = fv.Run(plan, speed=fv.Speed(engine=engine))
    found = sum_of(run.engine, RoundRequest(plan.start, np.arange(8), 0)).total
    run.close()
    return found


@pytest.mark.parametrize("engine", ["sequential", "generic", "auto"])
def test_class_weights_count_examples_so_often(engine: str) -> None:
    """Against softmax regression by hand: an example of class 1 counts like three of class 0."""
    found = one_step(LABELS, fv.ClassWeights((1.0, 3.0)), engine)
    module = fv.build("auto", federation(LABELS), seed=3)
    weight, bias = (p.detach().double().numpy() for p in module.parameters())
    total = np.zeros((2, 4))
    for client in range(8):
        own = slice(5 * client, 5 * client + 5)
        x, y = INPUTS[own].astype(float), LABELS[own]
        scores = x @ weight.T + bias
        chances = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
        errors = (chances - np.eye(2)[y]) * np.array([1.0, 3.0])[y][:, None]
        total += errors.T @ np.column_stack([x, np.ones(len(x))]) / len(x)
    expected = np.concatenate([total[:, :3].ravel(), total[:, 3]])
    # Sums of a few dozen single-precision products of order one.
    assert -found.numpy() == pytest.approx(expected, abs=1e-5)


def test_a_loss_of_one_s_own_is_what_is_descended() -> None:
    found = one_step(NUMBERS, huber, "auto")
    module = fv.build("auto", federation(NUMBERS), seed=3)
    weight, bias = (p.detach().double().numpy() for p in module.parameters())
    total = np.zeros(4)
    for client in range(8):
        own = slice(5 * client, 5 * client + 5)
        x, y = INPUTS[own].astype(float), NUMBERS[own]
        errors = np.clip(x @ weight[0] + bias[0] - y, -0.7, 0.7)
        total += errors @ np.column_stack([x, np.ones(len(x))]) / len(x)
    assert -found.numpy() == pytest.approx(total, abs=1e-5)
    assert not torch.allclose(found, one_step(NUMBERS, None, "auto"))


def test_engines_that_know_the_loss_by_heart_do_not_take_another() -> None:
    for engine in ("algebra", "mlp"):
        with pytest.raises(fv.ConfigError, match="its loss is another than the task's own"):
            one_step(LABELS, fv.ClassWeights((1.0, 3.0)), engine)


@pytest.mark.parametrize("kind", [VmapGradients, AutogradGradients])
@pytest.mark.parametrize("loss", [fv.ClassWeights((1.0, 1e30)), huber], ids=["weights", "own"])
def test_one_record_moves_clipped_gradients_by_what_is_accounted(kind: Any, loss: Loss) -> None:
    """Whatever the weights: replacing one record moves the mean by two clips over the batch."""
    classes = isinstance(loss, fv.ClassWeights)
    module, clip, batch = nn.Linear(3, 2 if classes else 1), GradientClip(0.5, per_example=True), 8
    targets = LABELS if classes else NUMBERS
    rule = fv.LocalTraining(fv.LearningRate(1.0), steps=1, loss=loss)
    made = (federation(targets), module, layout_of(module), rule, UpdatePipeline(), Randomness(1))
    job = Job(*made, isolated=True)
    gradients, weights = kind(job, torch.device("cpu")), flatten(module)[None]
    x, y = torch.from_numpy(INPUTS[None, :batch].copy()), torch.from_numpy(targets[None, :batch])
    before, _ = gradients(weights, (x, y, None), clip, batch)
    for value in (1.0, -3e38, float("nan"), float("inf")):
        other, labels = x.clone(), y.clone()
        other[0, 2], labels[0, 2] = value, 1
        after, _ = gradients(weights, (other, labels, None), clip, batch)
        # Single-precision results: each rounded by 6e-8 of its size.
        assert float((after - before).norm()) <= 2 * 0.5 / batch * (1 + 1e-6)


class Remembers:
    def __init__(self) -> None:
        self.mean = torch.zeros(())

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self.mean = 0.5 * self.mean + outputs.detach().mean()
        return (outputs[:, 0] - targets - self.mean).square()


class Backwards(torch.autograd.Function):
    """The identity, with a mistake on the way back."""

    @staticmethod
    def forward(context: Any, inputs: Tensor) -> Tensor:
        return inputs.clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        raise RuntimeError("a mistake on the way back")


def few(outputs: Tensor, targets: Tensor) -> Tensor:
    """As somebody writes it who has tried it with one batch."""
    if len(outputs) > 6:
        raise ValueError("a mistake in larger batches")
    return (outputs[:, 0] - targets).square()


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (lambda x, y: (Backwards.apply(x)[:, 0] - y).square(), "a mistake on the way back"),
        (few, "a mistake in larger batches"),
        (lambda x, y: (x[:, 0] - y - x.mean()).square(), "depends on others of its batch"),
        (lambda x, y: (x[:, 0] - y).square() / y.abs().max(), "depends on others of its batch"),
        (Remembers(), "depends on others of its batch"),
        (lambda x, y: (x[:, 0] - y).square() * torch.rand(()), "depends on others of its batch"),
        (lambda x, y: (x[:, 0] - y).square().mean(), "one number for each example"),
        (lambda x, y: (x - y).square(), r"of 3 examples it gives \[3, 3\]"),
        (lambda x, y: 0.0, "it gives float"),
        (lambda x, y: torch.zeros(3), "has no gradient"),
        (lambda x, y: x @ y, "it fails on outputs"),
        (fv.ClassWeights((1.0, 2.0)), "2 of them, and the data have no classes"),
    ],
)
def test_losses_that_cannot_be_used_are_refused(loss: Loss, said: str) -> None:
    local = fv.LocalTraining(fv.LearningRate(0.1), steps=1, loss=loss)
    method = fv.dp_fedavg(rounds=2, cohort=fv.CohortRule(rate=1.0), local=local, clip=fv.Clip(1.0))
    data = federation(NUMBERS)
    with pytest.raises(fv.FedveilError, match=said):
        fv.plan(method, data, fv.build("auto", data), budget=fv.Budget(epsilon=8))


def test_the_guarantee_says_what_it_takes_for_granted_of_a_loss() -> None:
    """And costs the same: updates are clipped whatever they were made by."""
    epsilons = set()
    for loss, said in ((huber, "The loss huber, not one of fedveil's"), (None, "")):
        local = fv.LocalTraining(fv.LearningRate(0.1), steps=2, loss=loss)
        method = fv.dp_fedavg(
            rounds=2, cohort=fv.CohortRule(rate=1.0), local=local, clip=fv.Clip(1.0)
        )
        data = federation(NUMBERS)
        budget = fv.Budget(noise_multiplier=3.0)
        plan = fv.plan(method, data, fv.build("auto", data), budget=budget)
        assert plan.guarantee is not None
        assert plan.guarantee.certified
        declared = "\n".join(plan.guarantee.privacy_model.declared)
        assert said in declared
        assert ("Where it raises in training" in declared) is (loss is not None)
        epsilons.add(plan.guarantee.epsilon)
        run = fv.Run(plan)  # protected: every client alone
        run.finish()
        run.close()
    assert len(epsilons) == 1


def test_no_loss_but_the_task_s_own_is_certified_to_be_convex() -> None:
    """Several local steps under record-level noise may rest on that."""
    data = federation(LABELS)
    method = fv.gradient_noise(
        rounds=2,
        cohort=fv.CohortRule(scheme=fv.Scheme.EVERYONE),
        local=fv.LocalTraining(fv.LearningRate(0.1), steps=2, batch_size=5),
        clip_norm=1.0,
    )
    model = fv.build("auto", data, input_norm=1.0)
    context = fv.plan(method, data, model, budget=fv.Budget(epsilon=8)).context
    assert context is not None
    assert non_expansive(context) is not None
    weighted = replace(context.local, loss=fv.ClassWeights((1.0, 100.0)))
    assert non_expansive(replace(context, local=weighted)) is None
