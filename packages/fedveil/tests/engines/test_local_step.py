"""Corrections of gradients: penalties, and local steps with state of each client's own."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor

import fedveil as fv
from fedveil.core.errors import ConfigError
from fedveil.privacy.clipping import Clip
from fedveil.training.client.local_training import LearningRate, LocalStep, LocalTraining
from fedveil.training.client.update_pipeline import UpdatePipeline
from fedveil.training.engines.choose import build_engine, supports
from fedveil.training.engines.contract import ClientStates, Job, RoundRequest, summed
from fedveil.training.engines.local_sgd import _pull

from .jobs import make_job, start_of

COHORTS = ([0, 2, 5], [2, 6], [5, 2, 0])


class FedDyn(LocalStep):
    """FedDyn's local step (Acar et al. 2021): g + alpha (w - w0) - h, then h -= alpha (w - w0)."""

    def __init__(self, alpha: float) -> None:
        self.alpha = alpha

    def correction(self, moved: Tensor, state: Tensor, broadcast: Tensor | None) -> Tensor:
        return self.alpha * moved - state

    def after(self, moved: Tensor, state: Tensor, broadcast: Tensor | None, path: Tensor) -> Tensor:
        return state - self.alpha * moved


class Prox(LocalStep):
    """FedProx, which the rule also has built in."""

    def correction(self, moved: Tensor, state: Tensor, broadcast: Tensor | None) -> Tensor:
        return 0.5 * moved


def job_of(model: str, step: LocalStep | None, **more: float) -> Job:
    rule = LocalTraining(LearningRate(0.2), epochs=2, batch_size=4, step=step, **more)
    return make_job(model, rule, UpdatePipeline(Clip(5.0, 2)))


def gradient(job: Job, weights: Tensor, client: int) -> Tensor:
    """The gradient of a client's mean loss, by autograd in double precision."""
    rows = slice(*job.federation.offsets[client : client + 2])
    inputs = torch.from_numpy(job.federation.train.inputs[rows]).double()
    targets = torch.from_numpy(job.federation.train.targets[rows])
    weights = weights.double().requires_grad_()
    module = job.module.double()
    try:
        outputs = torch.func.functional_call(module, job.layout.views(weights), (inputs,))
        loss = torch.nn.functional.cross_entropy(outputs, targets)
        return torch.autograd.grad(loss, weights)[0]
    finally:
        module.float()


@pytest.mark.parametrize("engine", ["sequential", "mlp", "generic"])
@pytest.mark.parametrize("isolated", [False, True])
def test_a_step_remembers_each_client_from_round_to_round(engine: str, isolated: bool) -> None:
    alpha, rate, steps = 0.3, 0.2, 3
    rule = LocalTraining(LearningRate(rate), steps=steps, step=FedDyn(alpha))
    job = replace(make_job("mlp", rule, UpdatePipeline()), isolated=isolated)
    running, states, memory = build_engine(job, engine, 2), ClientStates(), {}
    for number, cohort in enumerate(COHORTS):
        start, wanted = start_of(job) * (1 + number), torch.zeros(job.layout.size).double()
        for client in cohort:
            weights, linear = start.double(), memory.get(client, torch.zeros_like(wanted))
            for _ in range(steps):
                step = gradient(job, weights, client) + alpha * (weights - start) - linear
                weights = weights - rate * step
            memory[client] = linear - alpha * (weights - start)
            wanted += weights - start
        asked = RoundRequest(start, np.array(cohort), number, states=states)
        torch.testing.assert_close(summed(running, job, asked).total, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("engine", ["sequential", "mlp", "generic"])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_a_step_that_is_a_penalty_equals_the_penalty(engine: str, momentum: float) -> None:
    totals = []
    for step, penalty in ((Prox(), 0.0), (None, 0.5)):
        job = job_of("mlp", step, penalty=penalty, momentum=momentum, weight_decay=0.1)
        asked = RoundRequest(start_of(job), np.arange(8), 1)
        totals.append(summed(build_engine(job, engine, 3), job, asked).total)
    torch.testing.assert_close(*totals, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("engine", ["sequential", "mlp"])
def test_an_isolated_clients_state_is_its_own(engine: str) -> None:
    grid = UpdatePipeline(Clip(5.0, 2), granularity=2.0**-20)
    rule = LocalTraining(LearningRate(0.2), epochs=2, batch_size=4, step=FedDyn(0.3))
    job = replace(make_job("mlp", rule, grid), isolated=True)
    rows = []
    for others in ([], [0, 3, 6]):
        running, states = build_engine(job, engine), ClientStates()
        for number in range(2):
            cohort = np.array([*others, 5])
            asked = RoundRequest(start_of(job), cohort, number, rows=True, states=states)
            for block in running.updates(asked):
                if len(others) in block.places.tolist():
                    assert block.rows is not None
                    rows.append(block.rows[block.places.tolist().index(len(others))].clone())
    assert torch.equal(rows[0], rows[2])
    assert torch.equal(rows[1], rows[3])
    assert not torch.equal(rows[0], rows[1])


def test_engines_that_cannot_run_a_step_say_so() -> None:
    job = job_of("softmax", Prox())
    assert supports(job, "algebra") is not None
    assert supports(job, "processes") is not None
    assert build_engine(job, "auto").name == "mlp"
    with pytest.raises(ConfigError, match="step"):
        LocalTraining(LearningRate(0.2), steps=1, step=object())  # type: ignore[arg-type]


def test_a_run_keeps_states_and_does_not_certify_foreign_steps() -> None:
    draw = np.random.default_rng(0)
    inputs = draw.normal(size=(60, 4)).astype(np.float32)
    labels = (inputs[:, 0] > 0).astype(int)
    data = fv.Federation.from_arrays(inputs, labels, owners=np.arange(60) % 6, classes=2)
    module = torch.nn.Linear(4, 2)

    def run_of(step: LocalStep | None, seed: int | None) -> fv.Run:
        local = fv.LocalTraining(fv.LearningRate(0.5), steps=3, step=step)
        everyone = fv.CohortRule(fv.Scheme.EVERYONE)
        method = fv.dp_fedavg(rounds=3, cohort=everyone, local=local, clip=Clip(1.0))
        budget = fv.Budget(noise_multiplier=1.0)
        return fv.Run(fv.plan(method, data, module, budget=budget, seed=seed))

    weights = []
    for step in (FedDyn(0.5), FedDyn(0.5), Prox(), None):
        run = run_of(step, 1)
        run.finish()
        weights.append(run.state.weights)
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert not torch.equal(weights[2], weights[3])
    guarantee, plain = run_of(Prox(), None).guarantee, run_of(None, None).guarantee
    assert guarantee is not None
    assert plain is not None
    assert plain.certified
    assert not guarantee.certified


def outside(row: torch.Tensor, radius: float) -> bool:
    return sum(Fraction(float(x)) ** 2 for x in row) > Fraction(radius) ** 2


@pytest.mark.parametrize("radius", [1e-30, 1e-18, 1e-9, 0.3, 1e9, 1e18])
def test_the_exact_norm_decides_who_is_outside_the_radius_of_a_penalty(radius: float) -> None:
    draw = np.random.default_rng(3)
    for distance in (0.0, 1e-7, 1e-3, 0.02, 0.5, 1e6):
        for sign in (-1, 1):
            rows = torch.from_numpy(draw.normal(size=(4, 50)))
            lengths = radius * max(0.0, 1 + sign * distance)
            rows = (rows / rows.norm(dim=1, keepdim=True) * lengths).float()
            rule = LocalTraining(LearningRate(0.1), steps=1, penalty=0.5, penalty_radius=radius)
            wanted = [[0.5 * outside(row, radius)] for row in rows]
            assert torch.as_tensor(_pull(rows, rule)).tolist() == wanted, (distance, sign)
