"""Runs with correlated noise: what is planned, drawn, kept, forgotten and refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from dp_accounting import gaussian_mechanism

import fedveil as fv
from fedveil.planning import recipe as recipes
from fedveil.planning.assemble import federation_of, plan_of
from fedveil.planning.recipe import Recipe
from fedveil.privacy.correlated import ONE
from fedveil.privacy.noise import correlated
from fedveil.run.sums import update_sum

JOB = [
    *("data.clients=20", "training.rounds=12", "training.cohort=4", "training.local_steps=2"),
    "privacy.correlated=optimised",
]


def recipe(*more: str, seed: int | None = 5) -> Recipe:
    values = {} if seed is None else {"seed": seed}
    return recipes.with_defaults(recipes.parse({}, [*JOB, *more], values))


def planned(*more: str, seed: int | None = 5) -> fv.Plan:
    chosen = recipe(*more, seed=seed)
    return plan_of(chosen, federation_of(chosen.data))


def law_of(plan: fv.Plan) -> fv.CorrelatedGaussian:
    (release,) = plan.releases(plan.method.rounds)
    assert isinstance(release.mechanism, fv.CorrelatedGaussian)
    return release.mechanism


def test_a_plan_takes_as_many_bands_as_turns_are_apart_and_costs_what_it_says():
    plan = planned("privacy.epsilon=2", seed=None)
    law, guarantee = law_of(plan), plan.guarantee
    assert isinstance(plan.sampling, fv.RoundRobin)  # by default: a public schedule
    assert law.bands == plan.sampling.separation == 5
    length = math.sqrt(3 * sum((c / ONE) ** 2 for c in law.factor))  # three turns in 12 rounds
    assert guarantee.certified
    assert guarantee.epsilon == pytest.approx(
        gaussian_mechanism.get_epsilon_gaussian(law.noise_multiplier / length, guarantee.delta),
        rel=1e-9,
    )
    assert 1.99 < guarantee.epsilon <= 2
    independent = planned("privacy.epsilon=2", "privacy.bands=1").noise_multiplier
    assert law.noise_multiplier * plan.noise.noise_ratio < 0.75 * independent


@pytest.mark.parametrize("arithmetic", ["idealised", "exact"])
def test_a_stopped_simulation_goes_on_bit_for_bit(tmp_path, arithmetic):
    chosen = recipe(f"privacy.arithmetic={arithmetic}", "server.momentum=0.5")
    data = federation_of(chosen.data)
    whole = fv.Run(plan_of(chosen, data))
    whole.finish()

    plan = plan_of(chosen, data)
    directory = fv.RunDirectory.create(tmp_path / "run", plan, recipes.to_table(chosen))
    first = fv.Run(plan).keep_in(directory)
    for _ in range(7):
        next(iter(first))
    first.save()
    directory.close()
    again = plan_of(chosen, data)
    with_memory = fv.RunDirectory.open(tmp_path / "run", again)
    second = fv.Run(again).keep_in(with_memory)
    for _ in second:
        pass
    with_memory.close()
    assert torch.equal(second.state.weights, whole.state.weights)


def test_a_protected_run_that_is_resumed_begins_a_new_series_and_wrote_nothing(
    tmp_path, monkeypatch
):
    """In whole steps of the grid, from the definition: noise after the break has no part of any
    before it, and no file holds a part of it."""
    chosen = recipe(seed=None)
    data, series = federation_of(chosen.data), []
    real = correlated.NoiseMemory.draw

    def draw(self, *args):
        series.append(real(self, *args).copy())
        return series[-1]

    fresh = []

    def drawn(*args):
        fresh.append(correlated.rounded_gaussian(*args).copy())
        return fresh[-1].copy()

    monkeypatch.setattr(correlated.NoiseMemory, "draw", draw)
    monkeypatch.setattr(correlated, "fresh_noise", drawn)
    plan = plan_of(chosen, data)
    factor = law_of(plan).factor
    directory = fv.RunDirectory.create(tmp_path / "run", plan, recipes.to_table(chosen))
    run = fv.Run(plan).keep_in(directory)
    for _ in range(3):
        next(iter(run))
    directory.close()
    directory = fv.RunDirectory.open(tmp_path / "run", plan)
    again = fv.Run(plan).keep_in(directory)
    for _ in again:
        pass
    directory.close()

    assert len(series) == plan.method.rounds
    for number, (noise, new) in enumerate(zip(series, fresh, strict=True)):
        begun = 0 if number < 3 else 3
        back = range(1, min(len(factor), number - begun + 1))
        owed = sum((factor[k] * series[number - k] for k in back), start=np.int64(0))
        assert np.array_equal(noise, (new - owed + ONE // 2) // ONE)
    kept = b"".join(path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file())
    granularity = plan.pipeline.granularity
    for noise in series:
        for form in (noise, noise * granularity, (noise * granularity).astype(np.float32)):
            assert form[:4].tobytes() not in kept


def test_a_closed_run_has_forgotten(monkeypatch):
    run = fv.Run(planned())
    run.finish()
    assert run.memory._past
    run.close()
    assert not run.memory._past


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("training.sampling=poisson",), "amplification"),
        (("training.sampling=balanced", "privacy.bands=5"), "take part again"),
        (("privacy.bands=6",), "at most 5 bands"),
        (("privacy.trust=local",), "take back its own"),
        (("privacy.trust=distributed",), "take back its own"),
        (("privacy.noise=laplace",), "no proof"),
        (("privacy.clip_quantile=0.5",), "another clip"),
        (("training.method=client-noise", "privacy.trust=central"), "another clip"),
        (("privacy.adjacency=add-remove",), "add-remove"),
    ],
)
def test_what_has_no_proof_is_refused(more, said):
    with pytest.raises(fv.PrivacyRefusal, match=said):
        planned(*more)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("privacy.correlated=some",), "optimised"),
        (("privacy.bands=0",), "at least 1"),
        (("training.sampling=everyone",), "very next round"),
        (("training.cohort=11",), "very next round"),
        (("training.method=gradient-noise",), "does not use it"),
    ],
)
def test_what_makes_no_sense_is_refused(more, said):
    with pytest.raises(fv.ConfigError, match=said):
        planned(*more)


def test_momentum_reaches_the_factor():
    plain, heavy = (law_of(planned(f"server.momentum={m}")).factor for m in (0.0, 0.9))
    assert heavy[1] > plain[1]


def test_noise_without_a_memory_is_not_drawn():
    """An audit or a tool that has no memory to offer must not get independent noise for it."""
    plan, alone = planned(), np.arange(4)
    updates = update_sum(plan, 0, alone, plan.randomness, {})
    with pytest.raises(RuntimeError, match="memory"):
        updates.protect(torch.zeros(plan.layout.size), alone)
