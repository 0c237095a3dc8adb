"""Everything that must be refused is, with its own error, a reason, and what would work."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from fedveil.core.arguments import built, not_negative
from fedveil.core.errors import ConfigError, PrivacyRefusal
from fedveil.core.units import Adjacency, Trust, Unit
from fedveil.privacy import refusals as r
from fedveil.privacy.accounting import account
from fedveil.privacy.gradient_perturbation import GridGradients, NoisyGradients
from fedveil.privacy.guarantee import Guarantee
from fedveil.privacy.mechanisms import (
    DiscreteGaussian,
    DiscreteGaussianSum,
    Gaussian,
    Laplace,
    Mechanism,
    NoisyVotes,
    Zcdp,
)
from fedveil.privacy.releases import PrivacyModel, Release
from fedveil.privacy.sampling import (
    Balanced,
    CappedPoisson,
    Everyone,
    FixedSize,
    Poisson,
    RoundRobin,
    Sampling,
)
from fedveil_lab.reproduction.claims.cheng import paper_cheng_epsilon

ADDED = PrivacyModel(Unit.CLIENT, Adjacency.ADD_REMOVE, Trust.CENTRAL)
REPLACED = PrivacyModel(Unit.CLIENT, Adjacency.REPLACE, Trust.CENTRAL)
ZEROED = PrivacyModel(Unit.CLIENT, Adjacency.ZERO_OUT, Trust.CENTRAL)
SHARED = PrivacyModel(Unit.CLIENT, Adjacency.ZERO_OUT, Trust.DISTRIBUTED)
LOCAL = PrivacyModel(Unit.CLIENT, Adjacency.REPLACE, Trust.LOCAL)
SUM = DiscreteGaussianSum(1, 1 / 64, 0.1, 10, 64)


def ask(
    mechanism: Mechanism,
    sampling: Sampling,
    privacy_model: PrivacyModel,
    *,
    uses: int = 1,
    delta: float = 1e-6,
    participations: int | None = None,
) -> Guarantee:
    release = Release(mechanism, sampling, 20, uses, participations)
    return account([release], privacy_model=privacy_model, delta=delta)


def refused(kind: type[PrivacyRefusal], question: Callable[[], object]) -> PrivacyRefusal:
    with pytest.raises(kind) as caught:
        question()
    assert type(caught.value) is kind
    assert caught.value.reason
    assert caught.value.instead
    assert str(caught.value) == f"{caught.value.reason}; {caught.value.instead}"
    assert "\n" not in str(caught.value)
    return caught.value


SECRET: list[Sampling] = [Poisson(0.1, 100), FixedSize(100, 10), CappedPoisson(100, 0.1, 20)]


@pytest.mark.parametrize("sampling", SECRET, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("trust", [Trust.LOCAL, Trust.DISTRIBUTED])
def test_no_amplification_towards_somebody_who_sees_the_cohort(
    sampling: Sampling, trust: Trust
) -> None:
    for adjacency in (Adjacency.REPLACE, Adjacency.ZERO_OUT):
        privacy_model = PrivacyModel(Unit.CLIENT, adjacency, trust)
        refused(r.AmplificationRefused, lambda s=privacy_model: ask(Gaussian(3), sampling, s))
        if trust is Trust.DISTRIBUTED:
            privacy_model = replace(privacy_model, honest_shares=6)
        counted = ask(Gaussian(3), sampling, privacy_model, participations=5)
        everyone, noise = Everyone(int(sampling.expected_cohort)), 3.0
        if trust is Trust.DISTRIBUTED:  # as much in each of its shares
            noise *= math.sqrt(int(sampling.expected_cohort) / sampling.expected_cohort)
        plain = ask(Gaussian(noise), everyone, privacy_model, participations=5)
        assert counted.epsilon == pytest.approx(plain.epsilon)


def test_round_robin_and_balanced_get_no_credit() -> None:
    for sampling in (RoundRobin(100, 5), Balanced(100, 5, 20)):
        assert (
            ask(Gaussian(3), sampling, SHARED).epsilon
            == ask(Gaussian(3), Everyone(5), replace(SHARED), participations=1).epsilon
        )


@pytest.mark.parametrize("trust", [Trust.LOCAL, Trust.DISTRIBUTED])
def test_add_remove_needs_somebody_who_does_not_see_who_is_there(trust: Trust) -> None:
    privacy_model = replace(ADDED, trust=trust)
    refused(r.AdjacencyRefused, lambda: ask(Gaussian(3), Everyone(), privacy_model))


def test_adjacencies_that_the_sampling_proofs_do_not_cover() -> None:
    fixed, poisson, capped = FixedSize(100, 10), Poisson(0.1), CappedPoisson(100, 0.1, 20)
    for privacy_model in (ADDED, ZEROED):
        refused(r.AdjacencyRefused, lambda s=privacy_model: ask(Gaussian(3), fixed, s))
    refused(r.AdjacencyRefused, lambda: ask(Gaussian(3), poisson, REPLACED))
    refused(r.AdjacencyRefused, lambda: ask(Gaussian(3), capped, REPLACED))
    for schedule in (RoundRobin(100, 10), Balanced(100, 10, 20)):
        refused(r.AdjacencyRefused, lambda s=schedule: ask(Gaussian(3), s, ADDED))
    refused(r.AdjacencyRefused, lambda: ask(Zcdp(0.1), poisson, ZEROED))
    assert ask(Gaussian(3), poisson, ZEROED).epsilon == ask(Gaussian(3), poisson, ADDED).epsilon


def test_add_remove_where_another_client_takes_the_free_place() -> None:
    """Without the client somebody else comes: the sum moves by two clips, counted or sampled."""
    for sampling in (FixedSize(100, 10), CappedPoisson(100, 0.1, 20)):
        refused(
            r.AdjacencyRefused,
            lambda s=sampling: ask(Gaussian(3), s, ADDED, participations=5),
        )
        assert ask(Gaussian(3), sampling, ZEROED, participations=5).epsilon > 0


@pytest.mark.parametrize("adjacency", [Adjacency.ADD_REMOVE, Adjacency.ZERO_OUT])
def test_capped_cohorts_with_colluders_are_refused(adjacency: Adjacency) -> None:
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
    capped, privacy_model = (
        CappedPoisson(4, rate, 1),
        replace(ADDED, adjacency=adjacency, colluders=3),
    )
    refused(r.AmplificationRefused, lambda: ask(Gaussian(100), capped, privacy_model))
    assert ask(Gaussian(100), capped, replace(privacy_model, colluders=0)).epsilon > 0
    # Without credit for the sample, the draws may be known.
    counted = ask(Gaussian(100), capped, replace(ZEROED, colluders=3), participations=20)
    assert counted.epsilon > 0


def test_cohorts_of_uncertain_size_leave_the_noise_uncertain() -> None:
    for sampling in (Poisson(0.1, 100), CappedPoisson(100, 0.1, 20), Poisson(0.1)):
        for mechanism in (Gaussian(3), SUM):
            refused(
                r.HonestSharesRefused,
                lambda m=mechanism, s=sampling: ask(m, s, SHARED, participations=5),
            )
    known = ask(SUM, Poisson(0.1, 100), replace(SHARED, honest_shares=4), participations=5)
    assert known.honest_shares == 4


def test_gradients_on_a_grid_need_a_certificate() -> None:
    refused(r.GradientRefused, lambda: GridGradients(1, 10, 0.1, 1, 1, 10, None, 2.0**-20, 8))


def test_mechanisms_that_do_not_fit_the_trust_or_the_sampling() -> None:
    for mechanism in (Laplace(3), DiscreteGaussian(3)):
        refused(r.MechanismRefused, lambda m=mechanism: ask(m, Everyone(), SHARED))
    refused(r.MechanismRefused, lambda: ask(SUM, Everyone(), LOCAL))
    for mechanism in (Laplace(3), DiscreteGaussian(3), Zcdp(0.1), SUM):
        refused(r.MechanismRefused, lambda m=mechanism: ask(m, CappedPoisson(100, 0.1, 20), ADDED))
        refused(r.MechanismRefused, lambda m=mechanism: ask(m, FixedSize(100, 10), REPLACED))
    refused(r.MechanismRefused, lambda: ask(Laplace(3), Poisson(0.1), ADDED, uses=2))


@pytest.mark.parametrize("colluders", [10, 11, 1000])
def test_no_certificate_without_an_honest_share(colluders: int) -> None:
    privacy_model = replace(SHARED, colluders=colluders)
    refused(r.HonestSharesRefused, lambda: ask(Gaussian(3), Everyone(10), privacy_model))
    refused(r.HonestSharesRefused, lambda: ask(SUM, Everyone(10), privacy_model))
    none = replace(SHARED, honest_shares=0)
    refused(r.HonestSharesRefused, lambda: ask(Gaussian(3), Everyone(10), none))
    all_others = replace(REPLACED, colluders=100)
    refused(r.HonestSharesRefused, lambda: ask(Gaussian(3), FixedSize(100, 10), all_others))


def test_colluders_are_taken_off_the_noise() -> None:
    full = ask(Gaussian(3), Everyone(10), SHARED)
    assert full.honest_shares == 10
    half = ask(Gaussian(3), Everyone(10), replace(SHARED, colluders=5))
    assert half.honest_shares == 5
    thinner = ask(Gaussian(3 / 2**0.5), Everyone(10), SHARED)
    assert half.epsilon == pytest.approx(thinner.epsilon, rel=1e-12)
    assert half.epsilon > full.epsilon
    discrete = ask(SUM, Everyone(10), replace(SHARED, colluders=5))
    assert discrete.epsilon == ask(replace(SUM, shares=5), Everyone(5), SHARED).epsilon


def test_delta_must_stay_below_one_over_the_population() -> None:
    for privacy_model, sampling in (
        (replace(ADDED, population=1000), Poisson(0.1)),
        (ADDED, Poisson(0.1, 1000)),
        (replace(ADDED, unit=Unit.RECORD, population=1000), Poisson(0.1, 10)),
    ):
        refused(
            r.DeltaRefused, lambda q=(sampling, privacy_model): ask(Gaussian(3), *q, delta=1e-3)
        )
        assert ask(Gaussian(3), sampling, privacy_model, delta=0.99e-3).delta == 0.99e-3


UNDERSTATED: dict[str, tuple[Mechanism, Sampling, PrivacyModel]] = {
    "one client among a million": (
        Gaussian(3),
        Poisson(0.1, 10**6),
        replace(ADDED, population=1),
    ),
    "one record of a million clients": (
        Gaussian(3),
        Poisson(0.1, 10**6),
        replace(ADDED, unit=Unit.RECORD, population=1),
    ),
    "clients have a record each": (
        Gaussian(3),
        Poisson(0.1, 10**6),
        replace(ADDED, unit=Unit.RECORD),
    ),
    "as many as there are noise shares": (
        replace(SUM, shares=1000),
        Everyone(),
        replace(SHARED, population=1),
    ),
    "nothing is known": (Gaussian(3), Poisson(0.1), ADDED),
}


@pytest.mark.parametrize(
    ("mechanism", "sampling", "privacy_model"), UNDERSTATED.values(), ids=UNDERSTATED.keys()
)
def test_a_population_cannot_be_understated_to_make_delta_large(
    mechanism: Mechanism, sampling: Sampling, privacy_model: PrivacyModel
) -> None:
    """delta 0.5 gave epsilon 0, certified, for a population of 1 beside a million clients."""
    refused(r.DeltaRefused, lambda: ask(mechanism, sampling, privacy_model, delta=0.5))


def test_replace_is_always_charged_twice_the_clip() -> None:
    """Whole-gradient clipping reported with the clip as sensitivity cannot be asked for."""
    once, twice = (
        ask(Laplace(20), Everyone(), replace(LOCAL, adjacency=one), delta=0).epsilon
        for one in (Adjacency.ZERO_OUT, Adjacency.REPLACE)
    )
    assert twice == 2 * once
    votes = ask(NoisyVotes(20), Everyone(), replace(SHARED, adjacency=Adjacency.REPLACE))
    fewer = ask(NoisyVotes(20 / 2**0.5), Everyone(), SHARED)
    assert votes.epsilon == pytest.approx(fewer.epsilon, rel=1e-12)


def test_a_paper_s_constants_make_no_guarantee() -> None:
    claim = paper_cheng_epsilon(
        noise_multiplier=1.348, delta=1e-4, clients=3400, cohort=136, rounds=1000, c2=1
    )
    assert claim.certified is False
    assert not isinstance(claim, Guarantee)
    assert claim.value < ask(Gaussian(1.348), Poisson(0.04, 3400), ADDED, delta=1e-4).epsilon * 50


def test_dividing_by_the_cohort_needs_one_step_or_a_certificate() -> None:
    record = PrivacyModel(Unit.RECORD, Adjacency.REPLACE, Trust.DISTRIBUTED)
    steps = NoisyGradients(1, 100, 0.1, local_steps=5, record_uses=1, shares=10)
    refused(r.GradientRefused, lambda: ask(steps, Everyone(10), record))
    one = NoisyGradients(1, 100, 0.1, local_steps=1, record_uses=1, shares=10)
    assert ask(one, Everyone(10), record).honest_shares == 10
    unknown = replace(one, shares=None)
    refused(r.GradientRefused, lambda: ask(unknown, Everyone(10), record))
    client = replace(record, unit=Unit.CLIENT)
    refused(r.GradientRefused, lambda: ask(one, Everyone(10), client))
    secret = replace(record, trust=Trust.CENTRAL)
    refused(r.AmplificationRefused, lambda: ask(one, FixedSize(100, 10), secret))
    added = replace(record, trust=Trust.CENTRAL, adjacency=Adjacency.ADD_REMOVE)
    refused(r.AdjacencyRefused, lambda: ask(one, Everyone(10), added))


def test_every_kind_of_refusal_is_told_apart_and_exits_with_two() -> None:
    kinds = {value for value in vars(r).values() if isinstance(value, type)}
    kinds = {
        kind for kind in kinds if issubclass(kind, PrivacyRefusal) and kind is not PrivacyRefusal
    }
    assert len(kinds) >= 8
    assert all(kind.__doc__ and kind.exit_code == 2 for kind in kinds)


@pytest.mark.parametrize("bad", [-1e-300, -1.0, math.inf, math.nan])
def test_numbers_that_may_be_zero_say_so(bad: float) -> None:
    with pytest.raises(ConfigError, match="at least 0"):
        not_negative("x", bad)
    assert not_negative("x", 0) == 0.0


@pytest.mark.parametrize("fields", [{}, {"noise_multiplier": 1.0, "more": 2}])
def test_fields_that_describe_nothing_are_named(fields: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=f"fields {', '.join(fields) or 'none'} do not describe"):
        built(Gaussian, fields, "mechanism")
