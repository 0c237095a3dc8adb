"""A run does what its plan says: noise, order, denominators, resumption."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.engines.sums import sum_of

import fedveil as fv
from fedveil.core.errors import ConfigError, PrivacyRefusal
from fedveil.core.units import Arithmetic
from fedveil.run.directory import RunDirectory
from fedveil.training.engines.contract import RoundRequest

FEDERATION = fv.load("digits", clients=40)


def method(rounds: int = 4, clip: float = 0.5, rate: float = 0.5, **rest: object) -> fv.Method:
    return fv.dp_fedavg(
        rounds=rounds,
        cohort=fv.CohortRule(rate=rate),
        local=fv.LocalTraining(fv.LearningRate(0.5), epochs=1),
        clip=fv.Clip(clip),
        **rest,
    )


def planned(chosen: fv.Method, budget: fv.Budget | None = None, **rest: object) -> fv.Plan:
    budget = budget or fv.Budget(noise_multiplier=2.0)
    return fv.plan(chosen, FEDERATION, fv.build("logistic", FEDERATION), budget=budget, **rest)


def test_the_guarantee_is_known_before_training_and_within_the_budget() -> None:
    plan = planned(method(), fv.Budget(epsilon=3.0))
    assert plan.guarantee is not None
    assert 2.99 < plan.guarantee.epsilon <= 3.0
    assert plan.guarantee.certified
    assert plan.spent(4) == plan.guarantee.epsilon
    spent = [plan.spent(rounds) for rounds in range(5)]
    assert spent == sorted(spent)


@pytest.mark.parametrize("arithmetic", list(Arithmetic))
@pytest.mark.parametrize("seed", [None, 1])
def test_released_noise_has_the_planned_variance(seed: int | None, arithmetic: Arithmetic) -> None:
    """One round, two runs on the same cohort (everyone) differ by noise alone: each coordinate of
    the difference has std sqrt(2) z C / clients. With 650 coordinates the variance's relative
    error is 5.5 %; six deviations give a false alarm of 2e-9."""
    updates = []
    for run_seed in (seed, None if seed is None else seed + 1):
        plan = planned(method(rounds=1, rate=1.0), seed=run_seed, arithmetic=arithmetic)
        run = fv.Run(plan)
        run.finish()
        updates.append(run.state.weights)
    difference = (updates[0] - updates[1]) * 40
    expected = math.sqrt(2) * 2.0 * 0.5
    assert float(difference.std()) == pytest.approx(expected, rel=6 * 0.0277)


def test_the_sum_is_divided_by_the_expected_cohort_not_by_the_realised_one() -> None:
    """With next to no noise the released update times the expected cohort is the sum."""
    plan = planned(method(rounds=1), fv.Budget(noise_multiplier=1e-4), seed=3)
    run = fv.Run(plan)
    cohort = plan.sampling.draw(0, plan.randomness.stream("cohort", 0))
    assert len(cohort) != plan.sampling.expected_cohort  # this seed draws another number
    total = sum_of(run.engine, RoundRequest(plan.start, cohort, 0)).total
    run.finish()
    moved = run.state.weights - plan.start
    torch.testing.assert_close(moved.double(), total / 20, atol=1e-4, rtol=0)


def test_an_empty_cohort_still_releases_noise() -> None:
    plan = planned(method(rounds=1, rate=1e-9), seed=1)
    run = fv.Run(plan)
    run.finish()
    assert float((run.state.weights - plan.start).norm()) > 0


def test_without_noise_and_clipping_dp_fedavg_is_fedavg() -> None:
    rule = fv.LocalTraining(fv.LearningRate(0.5), epochs=1)
    everyone = fv.CohortRule(rate=1.0)
    plain = fv.fedavg(rounds=3, cohort=everyone, local=rule)
    module = fv.build("logistic", FEDERATION)
    free = fv.Run(fv.plan(plain, FEDERATION, module, seed=1))
    free.finish()
    noisy = fv.dp_fedavg(rounds=3, cohort=everyone, local=rule, clip=fv.Clip(1e3))
    budget = fv.Budget(noise_multiplier=1e-9)
    bound = fv.Run(fv.plan(noisy, FEDERATION, module, budget=budget, seed=1))
    bound.finish()
    torch.testing.assert_close(bound.state.weights, free.state.weights, atol=1e-5, rtol=1e-4)


def test_exact_and_idealised_arithmetic_agree_up_to_the_grid() -> None:
    """With the same seed and next to no noise both give the same weights."""
    runs = []
    for arithmetic in Arithmetic:
        budget = fv.Budget(noise_multiplier=1e-3)
        run = fv.Run(planned(method(), budget, seed=5, arithmetic=arithmetic))
        run.finish()
        runs.append(run.state.weights)
    torch.testing.assert_close(runs[0], runs[1], atol=2e-3, rtol=0)


@pytest.mark.parametrize(
    "optimizer", [fv.Sgd(0.5, momentum=0.9), fv.Adam(0.05), fv.Adam(0.05, yogi=True)], ids=str
)
def test_a_run_resumed_from_its_directory_ends_the_same(
    tmp_path: Path, optimizer: fv.Sgd | fv.Adam
) -> None:
    plan = planned(method(rounds=6, optimizer=optimizer), seed=2)
    whole = fv.Run(plan)
    whole.finish()
    table = {"seed": 2}
    directory = RunDirectory.create(tmp_path / "r", plan, table)
    first = fv.Run(plan).keep_in(directory)
    for report in first:
        if report.round_number == 3:
            first.save()
            break
    directory.close()
    second = fv.Run(plan).keep_in(RunDirectory.open(tmp_path / "r", plan))
    assert second.state.rounds == 3
    second.finish()
    assert torch.equal(second.state.weights, whole.state.weights)


def test_a_protected_run_shows_nothing_without_noise() -> None:
    for report in fv.Run(planned(method())):
        assert report.unprotected_stats is None
        assert report.seconds is None
    for report in fv.Run(planned(method(), seed=1)):
        assert report.unprotected_stats is not None


def test_refusals_of_plans() -> None:
    rule = fv.LocalTraining(fv.LearningRate(0.1), epochs=1)
    free = fv.fedavg(rounds=1, cohort=fv.CohortRule(rate=1.0), local=rule)
    with pytest.raises(PrivacyRefusal, match="adds no noise"):
        planned(free, fv.Budget(epsilon=1.0))
    with pytest.raises(ConfigError, match="budget"):
        fv.plan(method(), FEDERATION, fv.build("logistic", FEDERATION))
    with pytest.raises(ConfigError, match="exactly one"):
        fv.Budget(epsilon=1.0, noise_multiplier=1.0)
    with pytest.raises(ConfigError, match="delta"):
        planned(method(), fv.Budget(epsilon=1.0, delta=1 / 40))


def test_any_module_trains_and_comes_back_as_itself() -> None:
    class Odd(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(64))
            self.head = torch.nn.Linear(64, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(torch.tanh(x.flatten(1) * self.scale))

    plan = fv.plan(
        method(rounds=15, clip=2.0), FEDERATION, Odd(), budget=fv.Budget(noise_multiplier=0.3)
    )
    run = fv.Run(plan)
    accuracy = run.finish().accuracy
    assert accuracy is not None
    assert accuracy > 0.5
    module = run.model()
    inputs = torch.as_tensor(FEDERATION.model_inputs(FEDERATION.test.inputs))
    hits = module(inputs).argmax(1).numpy() == np.asarray(FEDERATION.test.targets)
    assert hits.mean() == pytest.approx(accuracy)
