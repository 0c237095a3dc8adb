"""Everything that must be refused is, with its own error, a reason, and what would work."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

import fedveil as fv
from fedveil.core.arguments import built, not_negative
from fedveil.privacy import refusals as r
from fedveil.privacy.gradient_perturbation import GridGradients, NoisyGradients
from fedveil.privacy.mechanisms import NoisyVotes
from fedveil_lab.reproduction.claims.cheng import paper_cheng_epsilon

ADDED = fv.PrivacyModel("client", "add-remove", "central")
REPLACED = fv.PrivacyModel("client", "replace", "central")
ZEROED = fv.PrivacyModel("client", "zero-out", "central")
SHARED = fv.PrivacyModel("client", "zero-out", "distributed")
LOCAL = fv.PrivacyModel("client", "replace", "local")
RECORD = fv.PrivacyModel("record", "replace", "distributed")
NOISE, SUM = fv.Gaussian(3), fv.DiscreteGaussianSum(1, 1 / 64, 0.1, 10, 64)
EVERYONE, FIXED = fv.Everyone(10), fv.FixedSize(100, 10)
POISSON, CAPPED = fv.Poisson(0.1, 100), fv.CappedPoisson(100, 0.1, 20)
TURNS, BALANCED = fv.RoundRobin(100, 10), fv.Balanced(100, 10, 20)
DISCRETE = (fv.Laplace(3), fv.DiscreteGaussian(3), fv.Zcdp(0.1), SUM)
ONE_STEP = NoisyGradients(1, 100, 0.1, local_steps=1, record_uses=1, shares=10)


def ask(mechanism, sampling, privacy_model, *, uses=1, delta=1e-6, participations=None):
    release = fv.Release(mechanism, sampling, 20, uses, participations)
    return fv.account([release], privacy_model=privacy_model, delta=delta)


def changed(model, **fields):
    return replace(model, **fields)


# Refusal, then mechanism, sampling, privacy model, and what else is asked.
REFUSED = [
    # Whoever sees the cohort gets no credit from it.
    *(
        (r.AmplificationRefused, NOISE, sampling, changed(model, adjacency=adjacency), {})
        for sampling in (POISSON, FIXED, CAPPED)
        for model in (LOCAL, SHARED)
        for adjacency in ("replace", "zero-out")
    ),
    # Add-remove needs somebody who does not see who is there.
    (r.AdjacencyRefused, NOISE, fv.Everyone(), changed(ADDED, trust="local"), {}),
    (r.AdjacencyRefused, NOISE, fv.Everyone(), changed(ADDED, trust="distributed"), {}),
    # Adjacencies that the proof of the sampling does not cover.
    (r.AdjacencyRefused, NOISE, FIXED, ADDED, {}),
    (r.AdjacencyRefused, NOISE, FIXED, ZEROED, {}),
    (r.AdjacencyRefused, NOISE, POISSON, REPLACED, {}),
    (r.AdjacencyRefused, NOISE, CAPPED, REPLACED, {}),
    (r.AdjacencyRefused, NOISE, TURNS, ADDED, {}),
    (r.AdjacencyRefused, NOISE, BALANCED, ADDED, {}),
    (r.AdjacencyRefused, fv.Zcdp(0.1), POISSON, ZEROED, {}),
    # Without the client somebody else comes: the sum moves by two clips, counted or sampled.
    (r.AdjacencyRefused, NOISE, FIXED, ADDED, {"participations": 5}),
    (r.AdjacencyRefused, NOISE, CAPPED, ADDED, {"participations": 5}),
    # Cohorts of uncertain size leave the noise uncertain.
    *(
        (r.HonestSharesRefused, mechanism, sampling, SHARED, {"participations": 5})
        for mechanism in (NOISE, SUM)
        for sampling in (POISSON, CAPPED, fv.Poisson(0.1))
    ),
    # Mechanisms that do not fit the trust or the sampling.
    (r.MechanismRefused, fv.Laplace(3), fv.Everyone(), SHARED, {}),
    (r.MechanismRefused, fv.DiscreteGaussian(3), fv.Everyone(), SHARED, {}),
    (r.MechanismRefused, SUM, fv.Everyone(), LOCAL, {}),
    *((r.MechanismRefused, mechanism, CAPPED, ADDED, {}) for mechanism in DISCRETE),
    *((r.MechanismRefused, mechanism, FIXED, REPLACED, {}) for mechanism in DISCRETE),
    (r.MechanismRefused, fv.Laplace(3), POISSON, ADDED, {"uses": 2}),
    # Not one honest share.
    *(
        (r.HonestSharesRefused, mechanism, EVERYONE, changed(SHARED, colluders=colluders), {})
        for mechanism in (NOISE, SUM)
        for colluders in (10, 11, 1000)
    ),
    (r.HonestSharesRefused, NOISE, EVERYONE, changed(SHARED, honest_shares=0), {}),
    (r.HonestSharesRefused, NOISE, FIXED, changed(REPLACED, colluders=100), {}),
    # Dividing by the cohort needs one step or a certificate, and records.
    (r.GradientRefused, replace(ONE_STEP, local_steps=5), EVERYONE, RECORD, {}),
    (r.GradientRefused, replace(ONE_STEP, shares=None), EVERYONE, RECORD, {}),
    (r.GradientRefused, ONE_STEP, EVERYONE, changed(RECORD, unit="client"), {}),
    (r.AmplificationRefused, ONE_STEP, FIXED, changed(RECORD, trust="central"), {}),
    (r.AdjacencyRefused, ONE_STEP, EVERYONE, changed(ADDED, unit="record"), {}),
    # A delta that publishing one random unit would meet.
    (r.DeltaRefused, NOISE, fv.Poisson(0.1), changed(ADDED, population=1000), {"delta": 1e-3}),
    (r.DeltaRefused, NOISE, fv.Poisson(0.1, 1000), ADDED, {"delta": 1e-3}),
    (
        r.DeltaRefused,
        NOISE,
        POISSON,
        changed(ADDED, unit="record", population=1000),
        {"delta": 0.001},
    ),
    # delta 0.5 gave epsilon 0, certified, for a population of 1 beside a million clients.
    *(
        (r.DeltaRefused, NOISE, fv.Poisson(0.1, 10**6), model, {"delta": 0.5})
        for model in (
            changed(ADDED, population=1),
            changed(ADDED, unit="record", population=1),
            changed(ADDED, unit="record"),  # a client has a record
        )
    ),
    (
        *(r.DeltaRefused, replace(SUM, shares=1000), fv.Everyone()),
        *(changed(SHARED, population=1), {"delta": 0.5}),
    ),
    (r.DeltaRefused, NOISE, fv.Poisson(0.1), ADDED, {"delta": 0.5}),
]


@pytest.mark.parametrize(("kind", "mechanism", "sampling", "model", "more"), REFUSED)
def test_what_has_no_proof_is_refused_in_one_line(kind, mechanism, sampling, model, more):
    with pytest.raises(kind) as caught:
        ask(mechanism, sampling, model, **more)
    assert type(caught.value) is kind
    assert caught.value.reason
    assert caught.value.instead
    assert str(caught.value) == f"{caught.value.reason}; {caught.value.instead}"
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("sampling", [POISSON, FIXED, CAPPED], ids=lambda s: type(s).__name__)
@pytest.mark.parametrize(
    "model", [LOCAL, changed(SHARED, honest_shares=6)], ids=["local", "shared"]
)
def test_counted_participations_cost_the_same_in_any_cohort(sampling, model):
    for adjacency in ("replace", "zero-out"):
        now = changed(model, adjacency=adjacency)
        counted = ask(NOISE, sampling, now, participations=5)
        size, noise = int(sampling.expected_cohort), 3.0
        if model is not LOCAL:  # as much in each of its shares
            noise *= math.sqrt(size / sampling.expected_cohort)
        plain = ask(fv.Gaussian(noise), fv.Everyone(size), now, participations=5)
        assert counted.epsilon == pytest.approx(plain.epsilon)


def test_what_is_near_a_refusal_and_proved_is_not_refused():
    for sampling in (fv.RoundRobin(100, 5), fv.Balanced(100, 5, 20)):  # no credit
        once = ask(NOISE, fv.Everyone(5), SHARED, participations=1)
        assert ask(NOISE, sampling, SHARED).epsilon == once.epsilon
    assert ask(NOISE, POISSON, ZEROED).epsilon == ask(NOISE, POISSON, ADDED).epsilon
    for sampling in (FIXED, CAPPED):
        assert ask(NOISE, sampling, ZEROED, participations=5).epsilon > 0
    known = ask(SUM, POISSON, changed(SHARED, honest_shares=4), participations=5)
    assert known.honest_shares == 4
    assert ask(ONE_STEP, EVERYONE, RECORD).honest_shares == 10
    assert ask(NOISE, fv.Poisson(0.1, 1000), ADDED, delta=0.99e-3).delta == 0.99e-3


@pytest.mark.parametrize("adjacency", ["add-remove", "zero-out"])
def test_capped_cohorts_with_colluders_are_refused(adjacency):
    """Four clients at rate 0.9, cut to one, three of them colluding: whether they were cut tells
    whether the fourth came. Their own draws alone reach delta 5e-3 at epsilon 5.5; with noise of
    std 100 the accounted epsilon was 0.027."""
    rate, epsilon = 0.9, 5.5
    away = (1 - rate) ** 3  # none of the three is in the cohort, the fourth not there
    there = (1 - rate) * away + sum(
        math.comb(3, came) * rate**came * (1 - rate) ** (3 - came) * rate / (came + 1)
        for came in range(4)
    )
    assert there - math.exp(epsilon) * away > 5e-3
    capped, model = fv.CappedPoisson(4, rate, 1), changed(ADDED, adjacency=adjacency, colluders=3)
    with pytest.raises(r.AmplificationRefused):
        ask(fv.Gaussian(100), capped, model)
    assert ask(fv.Gaussian(100), capped, changed(model, colluders=0)).epsilon > 0
    # Without credit for the sample, the draws may be known.
    counted = ask(fv.Gaussian(100), capped, changed(ZEROED, colluders=3), participations=20)
    assert counted.epsilon > 0


def test_colluders_are_taken_off_the_noise():
    full, half = ask(NOISE, EVERYONE, SHARED), ask(NOISE, EVERYONE, changed(SHARED, colluders=5))
    assert (full.honest_shares, half.honest_shares) == (10, 5)
    thinner = ask(fv.Gaussian(3 / 2**0.5), EVERYONE, SHARED)
    assert half.epsilon == pytest.approx(thinner.epsilon, rel=1e-12)
    assert half.epsilon > full.epsilon
    discrete = ask(SUM, EVERYONE, changed(SHARED, colluders=5))
    assert discrete.epsilon == ask(replace(SUM, shares=5), fv.Everyone(5), SHARED).epsilon


def test_replace_is_always_charged_twice_the_clip():
    """Whole-gradient clipping reported with the clip as sensitivity cannot be asked for."""
    once, twice = (
        ask(fv.Laplace(20), fv.Everyone(), changed(LOCAL, adjacency=one), delta=0).epsilon
        for one in ("zero-out", "replace")
    )
    assert twice == 2 * once
    votes = ask(NoisyVotes(20), fv.Everyone(), changed(SHARED, adjacency="replace"))
    fewer = ask(NoisyVotes(20 / 2**0.5), fv.Everyone(), SHARED)
    assert votes.epsilon == pytest.approx(fewer.epsilon, rel=1e-12)


def test_gradients_on_a_grid_need_a_certificate():
    with pytest.raises(r.GradientRefused):
        GridGradients(1, 10, 0.1, 1, 1, 10, None, 2.0**-20, 8)


def test_a_paper_s_constants_make_no_guarantee():
    claim = paper_cheng_epsilon(
        noise_multiplier=1.348, delta=1e-4, clients=3400, cohort=136, rounds=1000, c2=1
    )
    assert claim.certified is False
    assert not isinstance(claim, fv.Guarantee)
    proved = ask(fv.Gaussian(1.348), fv.Poisson(0.04, 3400), ADDED, delta=1e-4)
    assert claim.value < proved.epsilon * 50


def test_every_kind_of_refusal_exits_with_two():
    kinds = {one for one in vars(r).values() if isinstance(one, type)} - {fv.PrivacyRefusal}
    assert len(kinds) >= 8
    assert all(issubclass(kind, fv.PrivacyRefusal) and kind.exit_code == 2 for kind in kinds)


@pytest.mark.parametrize("bad", [-1e-300, -1.0, math.inf, math.nan])
def test_numbers_that_may_be_zero_say_so(bad):
    with pytest.raises(fv.ConfigError, match="x: need"):
        not_negative("x", bad)
    assert not_negative("x", 0) == 0.0


@pytest.mark.parametrize("fields", [{}, {"noise_multiplier": 1.0, "more": 2}])
def test_fields_that_describe_nothing_are_named(fields):
    with pytest.raises(fv.ConfigError, match=f"fields {', '.join(fields) or 'none'}"):
        built(fv.Gaussian, fields, "mechanism")
