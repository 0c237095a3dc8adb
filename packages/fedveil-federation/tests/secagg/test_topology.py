"""Graph and thresholds against exact counts, scipy, networkx and brute force."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse.csgraph import connected_components
from scipy.stats import hypergeom

from fedveil.core.errors import ConfigError
from fedveil.privacy.secure_sums import topology
from fedveil.privacy.secure_sums.errors import RuleBroken
from fedveil.privacy.secure_sums.graph import Graph
from fedveil.privacy.secure_sums.params import Limits, SecAggParams
from fedveil.privacy.secure_sums.topology import assess, choose

LIMITS = {"security_failure": 2.0**-40, "recovery_failure": 2.0**-20}


@settings(max_examples=40, deadline=None)
@given(data=st.data(), population=st.integers(2, 300))
def test_tails_equal_exact_counts(data, population):
    marked = data.draw(st.integers(0, population))
    drawn = data.draw(st.integers(1, population))
    above = data.draw(st.integers(-1, drawn))
    exact = Fraction(
        sum(
            math.comb(marked, x) * math.comb(population - marked, drawn - x)
            for x in range(max(0, above + 1), min(marked, drawn) + 1)
        ),
        math.comb(population, drawn),
    )
    found = topology._tail(population, marked, drawn, above)
    assert Fraction(found) >= exact  # a failure is never stated too low
    assert found == pytest.approx(float(exact), rel=1e-9, abs=1e-300)


def test_probabilities_too_small_for_a_float_are_not_rounded_to_zero():
    exact = Fraction(math.comb(7000, 900), math.comb(16000, 900))
    assert 0 < exact < Fraction(1, 10**310)
    assert Fraction(topology._tail(16000, 7000, 900, 899)) >= exact
    assert topology._tail(16000, 800, 900, 800) == 0  # this one cannot happen


@pytest.mark.parametrize("cohort", [60, 150, 1000, 5000])
@pytest.mark.parametrize(("colluding", "lost"), [(0, 0.1), (0.05, 0.1), (0.1, 0.2)])
def test_the_chosen_graph_keeps_its_promises_by_scipy(cohort, colluding, lost):
    colluders, losses = int(colluding * cohort), int(lost * cohort)
    found = choose(cohort, colluders, losses, **LIMITS)
    k, t = found.degree, found.threshold
    two_faced = cohort * hypergeom.sf(2 * t - k - 1, cohort - 1, colluders, k)
    stuck = cohort * hypergeom.sf(k - t, cohort - 1, losses, k)
    assert two_faced <= 2.0**-40
    assert stuck <= 2.0**-20
    assert found.security_failure >= two_faced * (1 - 1e-6)
    assert found.recovery_failure == pytest.approx(stuck, rel=1e-6, abs=1e-30)


def test_the_stated_failures_bound_what_random_orders_do():
    # A graph too thin on purpose, so that failures are frequent enough to count.
    cohort, degree, threshold, colluders, losses = 40, 8, 6, 6, 6
    stated = assess(cohort, degree, threshold, colluders, losses)
    rng = random.Random(5)
    members = list(range(cohort))
    unsafe = stuck = 0
    runs = 600
    for _ in range(runs):
        near = Graph(members, degree, rng.randbytes(32)).tables.near
        chosen = rng.sample(members, colluders + losses)
        bad, lost = (np.isin(members, one) for one in (chosen[:colluders], chosen[colluders:]))
        two_faced = (2 * threshold <= degree + bad[near].sum(axis=1))[~bad].any()
        joined = np.zeros((cohort, cohort), dtype=np.bool_)
        np.put_along_axis(joined, near, True, axis=1)
        kept = np.delete(np.delete(joined, chosen, 0), chosen, 1)
        unsafe += two_faced or connected_components(kept)[0] > 1
        stuck += ((~lost)[near].sum(axis=1) < threshold).any()
    # Counted frequencies may exceed the bounds by chance only; five standard deviations.
    for count, bound in ((unsafe, stated.security_failure), (stuck, stated.recovery_failure)):
        spread = 5 * math.sqrt(min(bound, 1) * runs)
        assert 0 < count <= bound * runs + spread


def test_no_numbers_of_a_server_end_in_anything_but_a_refusal():
    rng = random.Random(7)
    accepted = 0
    for _ in range(400):
        honest = rng.random() < 0.8
        params = SecAggParams(
            "test",
            rng.randint(2, 60),
            rng.choice([0, 1, 10, 40]),
            rng.choice([0, 0.1, 0.3, 0.9]),
            sparse=honest,
            honest_server=honest,
            limits=Limits(degree=rng.choice([20, 60, 500])),
        )
        cohort = rng.randint(2, 300)
        degree = rng.choice([cohort - 1, 2 * rng.randint(1, cohort // 2)])
        numbers = (rng.randint(1, degree), params.min_survivors, rng.choice([degree, 2, 4]))
        try:
            params.check(cohort, degree, *numbers)
            accepted += 1
        except RuleBroken:
            pass
    assert accepted


@pytest.mark.parametrize(("cohort", "degree"), [(2, 1), (5, 4), (9, 4), (12, 11), (30, 12)])
def test_graphs_are_regular_symmetric_and_without_loops(cohort, degree):
    members = [7 * i for i in range(cohort)]
    graph = Graph(members, degree, bytes(32))
    for member in members:
        neighbours = graph.neighbours(member)
        assert len(neighbours) == degree
        assert list(neighbours) == sorted(set(neighbours))
        assert member not in neighbours
        assert all(member in graph.neighbours(n) for n in neighbours)


SPARSE = SecAggParams("f", 500, 50, 0.1, sparse=True, honest_server=True)
FOUND = SPARSE.topology(1000)


@pytest.mark.parametrize(
    ("cohort", "degree", "threshold", "survivors"),
    [
        (1000, 20, 20, 550),  # two arcs of ten may well hold no honest survivor
        (1000, FOUND.degree, FOUND.threshold - 8, 550),
        (1000, FOUND.degree, FOUND.degree, 550),  # would seldom recover
        (1000, 61, 40, 550),
        (1000, FOUND.degree, FOUND.degree + 1, 550),
        (1000, FOUND.degree, FOUND.threshold, 549),
        (549, 548, 400, 550),
    ],
)
def test_terms_refuse_a_round_that_falls_short(cohort, degree, threshold, survivors):
    SPARSE.check(1000, FOUND.degree, FOUND.threshold, 550, FOUND.masks)
    complete = (1000, 999, (999 + 50) // 2 + 1, 550)
    for terms in (SPARSE, SecAggParams("f", 500, 50, 0.1)):
        terms.check(*complete)
        with pytest.raises(RuleBroken):
            terms.check(cohort, degree, threshold, survivors)
    with pytest.raises(RuleBroken):  # whoever does not trust the server takes no sparse graph
        SecAggParams("f", 500, 50, 0.1).check(1000, FOUND.degree, FOUND.threshold, 550)


def test_the_terms_bound_what_a_server_plans():
    params = SecAggParams("f", min_honest=2, limits=Limits(degree=7, members=9))
    params.topology(8)
    with pytest.raises(ConfigError, match="8 neighbours"):
        params.topology(9)
    with pytest.raises(ConfigError, match="at most 9 devices"):
        params.topology(10)
    # 16,384 members, all joined to all: 50 seconds and 4 GB for each device.
    with pytest.raises(ConfigError, match="16383 neighbours"):
        SecAggParams("f", min_honest=2).topology(1 << 14)
    for wrong in ({"degree": 0}, {"members": 2**15}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            Limits(**wrong)
