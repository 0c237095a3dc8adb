"""Metrics are those of the whole part at once, however it is cut into batches."""

from __future__ import annotations

import math

import pytest
import torch

from fedveil.data.federation import Examples, Task
from fedveil.run import evaluation
from fedveil.run.evaluation import Evaluator
from fedveil.training.models.flat import flatten, load
from fedveil.training.models.losses import example_losses

from .jobs import MODELS, RULES, SHAPINGS, make_job, start_of


@pytest.mark.parametrize("model", MODELS)
def test_metrics_do_not_depend_on_batches(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    job = make_job(model, RULES["momentum"], SHAPINGS["clip"])
    federation, weights = job.federation, start_of(job)
    initial = flatten(job.module)
    whole = Evaluator(federation, job.module, job.layout)(weights, federation.test)
    monkeypatch.setattr(evaluation, "_VALUES", 30)
    monkeypatch.setattr(evaluation, "_HEAVY", 4)
    pieces = Evaluator(federation, job.module, job.layout)(weights, federation.test)
    assert torch.equal(flatten(job.module), initial)  # the caller's module is left alone

    load(job.module, weights)
    inputs = torch.as_tensor(federation.model_inputs(federation.test.inputs))
    targets = torch.as_tensor(federation.test.targets)
    with torch.no_grad():
        outputs = job.module(inputs)
    load(job.module, initial)
    loss = float(example_losses(federation.task, outputs, targets).mean())
    for metrics in (whole, pieces):
        assert metrics.loss == pytest.approx(loss, rel=1e-5)
        if federation.task is Task.REGRESSION:
            assert metrics.accuracy is None
            assert metrics.rmse == pytest.approx(math.sqrt(2 * loss), rel=1e-5)
        else:
            right = float((outputs.argmax(-1) == targets).float().mean())
            assert metrics.accuracy == pytest.approx(right, abs=1e-6)


def test_no_examples_give_no_number() -> None:
    job = make_job("mlp", RULES["momentum"], SHAPINGS["clip"])
    nothing = Examples(job.federation.test.inputs[:0], job.federation.test.targets[:0])
    metrics = Evaluator(job.federation, job.module, job.layout)(start_of(job), nothing)
    assert math.isnan(metrics.loss)
