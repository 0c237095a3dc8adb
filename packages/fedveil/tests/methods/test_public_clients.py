"""That a client was there at all is hidden only if nothing follows how many there are."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.methods.reference import federation

import fedveil as fv
from fedveil.core.randomness import Randomness
from fedveil.planning import recipe as recipes
from fedveil.planning.assemble import plan_of
from fedveil.privacy.refusals import AdjacencyRefused
from fedveil.run.sums import divisor, pipeline_in, update_sum

DECLARED = "privacy.public_clients=100"
SAMPLERS = ("training.sampling=poisson", "training.sampling=everyone")


def planned(clients: int, *assignments: str, seed: int | None = None) -> fv.Plan:
    usual = ["training.method=dp-fedavg", "training.rounds=3", "training.local_steps=2"]
    recipe = recipes.parse({}, [*usual, *assignments], {"seed": seed} if seed else {})
    return plan_of(recipes.with_defaults(recipe), federation(sizes=(3,) * clients))


def released(plan: fv.Plan, total: int) -> np.ndarray:
    """What a sum of `total` grid steps in every coordinate becomes, with noise from one seed."""
    sums, cohort = torch.full((plan.layout.size,), total, dtype=torch.int64), np.arange(2)
    updates = update_sum(plan, 0, cohort, Randomness(5), {})
    private = updates.protect(sums, cohort)
    return (private / divisor(plan, updates.pipeline, cohort)).numpy()


@pytest.mark.parametrize("sampling", SAMPLERS)
@pytest.mark.parametrize(
    "more",
    [
        (),
        ("training.cohort=20",),
        ("training.rate=0.3",),
        ("privacy.clip_quantile=0.5", "privacy.clip_noise=0.4"),
        ("privacy.noise=laplace",),
        ("privacy.noise_multiplier=40.0",),
    ],
    ids=str,
)
def test_nothing_follows_the_true_number_if_another_is_declared(sampling, more):
    if sampling.endswith("everyone"):
        more = tuple(one for one in more if not one.startswith("training."))
    fewer, all_there = (planned(n, sampling, DECLARED, *more) for n in (99, 100))
    for plan in (fewer, all_there):
        assert plan.guarantee.adjacency is fv.Adjacency.ADD_REMOVE
        assert plan.guarantee.certified
    assert fewer.guarantee == all_there.guarantee  # delta, population, rate and epsilon
    assert fewer.sampling == all_there.sampling  # and with it the divisor
    assert fewer.noise_multiplier == all_there.noise_multiplier
    assert fewer.warnings == all_there.warnings
    assert pipeline_in(fewer, 0, {}) == pipeline_in(all_there, 0, {})
    assert np.array_equal(released(fewer, 12345), released(all_there, 12345))


def test_a_grid_that_follows_the_true_number_tells_two_federations_apart():
    """So without a declaration the statement is about what a client sends."""
    fewer, more = (planned(n, "training.sampling=everyone") for n in (99, 100))
    assert not np.array_equal(released(fewer, 12345), released(more, 12345))
    for plan in (fewer, more):
        assert plan.guarantee.adjacency is fv.Adjacency.ZERO_OUT
        assert "replaced by zero" in plan.guarantee.statement


def test_zero_out_costs_what_add_remove_costs():
    counted = planned(100, "training.sampling=poisson").guarantee
    declared = planned(100, "training.sampling=poisson", DECLARED).guarantee
    assert counted.epsilon == declared.epsilon
    assert any("at most" in one and "clients" in one for one in declared.rests_on)
    assert not any("at most" in one and "clients" in one for one in counted.rests_on)


@pytest.mark.parametrize("sampling", [*SAMPLERS, "training.sampling=capped-poisson"])
def test_add_remove_is_refused_where_clients_were_counted(sampling):
    cap = ["training.cohort_cap=80"] if "capped" in sampling else []
    with pytest.raises(AdjacencyRefused, match=r"privacy\.public_clients"):
        planned(100, sampling, *cap, "privacy.adjacency=add-remove")
    with pytest.raises(AdjacencyRefused, match=r"privacy\.public_clients"):
        planned(
            100,
            "privacy.adjacency=add-remove",
            "training.method=client-noise",
            "privacy.trust=central",
        )
    guarantee = planned(100, sampling, *cap).guarantee
    assert guarantee.adjacency is fv.Adjacency.ZERO_OUT


@pytest.mark.parametrize(
    "assignments",
    [
        ("privacy.public_clients=99",),
        ("privacy.public_clients=0",),
        (DECLARED, "training.sampling=fixed"),
        (DECLARED, "training.sampling=round-robin"),
        (DECLARED, "training.sampling=capped-poisson", "training.cohort_cap=80"),
        (DECLARED, "training.sampling=everyone", "privacy.trust=local"),
        (DECLARED, "training.sampling=everyone", "privacy.trust=distributed"),
    ],
    ids=str,
)
def test_a_declaration_that_hides_nothing_is_refused(assignments):
    """Too small, or where turns, chances or noise shares follow who is there."""
    with pytest.raises(fv.ConfigError, match=r"privacy\.public_clients") as caught:
        planned(100, *assignments)
    assert "100 clients" not in str(caught.value)  # how many there are is what is to be hidden


@pytest.mark.parametrize("sampling", SAMPLERS)
def test_a_run_with_fewer_clients_than_declared(sampling):
    run = fv.Run(planned(9, sampling, DECLARED, "privacy.noise_multiplier=1.0"))
    assert len(list(run)) == 3
    run.close()


def test_absent_clients_are_never_drawn():
    randomness = Randomness(3)
    for number in range(50):
        drawn = fv.Poisson(0.5, 100).draw(number, randomness.stream("cohort", number), 99)
        alone = fv.Poisson(0.5, 99).draw(number, randomness.stream("cohort", number))
        assert np.array_equal(drawn, alone)
    assert np.array_equal(fv.Everyone(100).draw(0, None, 99), np.arange(99))
    for sampling in (fv.Poisson(0.5, 100), fv.Everyone(100)):
        with pytest.raises(fv.ConfigError, match="at most 100"):
            sampling.draw(0, randomness.stream("cohort", 0), 101)
    for sampling in (fv.FixedSize(100, 5), fv.RoundRobin(100, 5), fv.CappedPoisson(100, 0.5, 60)):
        for present in (99, 101):
            with pytest.raises(fv.ConfigError, match="100 clients"):
                sampling.draw(0, randomness.stream("cohort", 0), present)
        assert len(sampling.draw(0, randomness.stream("cohort", 0), 100)) > 0
