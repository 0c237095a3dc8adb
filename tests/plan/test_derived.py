"""A plan cannot keep a guarantee that its parts do not give: whatever is replaced, it follows."""

from __future__ import annotations

from dataclasses import replace

import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant

import fedveil as fv
from fedveil.errors import BadInput, Refused
from fedveil.local.shaping import Shaping
from fedveil.privacy.units import Arithmetic, Entropy, Trust

FEDERATION = fv.load("digits", clients=40)
MODEL = fv.build("logistic", FEDERATION)


def method(rounds: int = 4, rate: float = 0.5, clip: float = 0.5) -> fv.Method:
    return fv.dp_fedavg(
        rounds=rounds,
        cohort=fv.CohortRule(rate=rate),
        local=fv.LocalRule(fv.LearningRate(0.5), epochs=1),
        clip=fv.Clip(clip),
    )


def planned(chosen: fv.Method, seed: int | None = None) -> fv.Plan:
    budget = fv.Budget(noise_multiplier=2.0, delta=1e-5)
    return fv.plan(chosen, FEDERATION, MODEL, budget=budget, seed=seed)


def epsilon(plan: fv.Plan) -> float:
    assert plan.guarantee is not None
    return plan.guarantee.epsilon


def reference(noise: float, rate: float, rounds: int) -> float:
    """The same mechanism by another library's accountant."""
    round = PoissonSampledDpEvent(rate, GaussianDpEvent(noise))
    accountant = PLDAccountant()
    accountant.compose(SelfComposedDpEvent(round, rounds))
    return float(accountant.get_epsilon(1e-5))


def test_other_noise_has_its_own_epsilon_and_its_own_grid() -> None:
    plan = planned(method())
    less = replace(plan, terms=replace(plan.terms, noise_multiplier=0.5))
    assert epsilon(plan) == pytest.approx(reference(2.0, 0.5, 4), rel=1e-3)
    assert epsilon(less) == pytest.approx(reference(0.5, 0.5, 4), rel=1e-3)
    assert less.noise_multiplier == 0.5
    direct = fv.plan(
        method(), FEDERATION, MODEL, budget=fv.Budget(noise_multiplier=0.5, delta=1e-5)
    )
    assert less.shaping == direct.shaping
    assert less.guarantee == direct.guarantee


def test_another_method_has_its_own_epsilon_and_its_own_cohorts() -> None:
    plan = planned(method())
    other = replace(plan, method=method(rounds=9, rate=0.25, clip=2.0))
    assert epsilon(other) == pytest.approx(reference(2.0, 0.25, 9), rel=1e-3)
    assert other.sampling == planned(method(rounds=9, rate=0.25)).sampling
    assert other.shaping.clip == fv.Clip(2.0)
    assert other.spent(9) == epsilon(other)


def test_another_federation_is_planned_for_as_it_is() -> None:
    plan = planned(method())
    larger = fv.load("digits", clients=60)
    moved = replace(plan, federation=larger)
    assert moved.sampling.expected_cohort == 30
    assert moved.setting is not None
    assert moved.setting.population == 60
    assert moved.terms is not None
    assert moved.terms.federation is larger


def test_a_seed_or_its_absence_is_what_the_guarantee_says() -> None:
    plan = planned(method())
    assert plan.guarantee is not None
    assert plan.guarantee.certified
    simulated = replace(plan, seed=1)
    assert simulated.guarantee is not None
    assert simulated.guarantee.entropy is Entropy.SEEDED
    assert not simulated.guarantee.certified
    idealised = replace(plan, terms=replace(plan.terms, arithmetic=Arithmetic.IDEALISED))
    assert idealised.guarantee is not None
    assert not idealised.guarantee.certified


@pytest.mark.parametrize(
    "changes",
    [
        {"rounds": 1},
        {"sampling": fv.CohortRule(rate=0.01).resolve(40, 4)},
        {"shaping": Shaping(clip=fv.Clip(50.0))},
        {"federation": fv.load("digits", clients=60)},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_terms_do_not_change_what_the_method_decides(changes: dict[str, object]) -> None:
    plan = planned(method())
    with pytest.raises(BadInput, match=f"terms.{next(iter(changes))}"):
        replace(plan, terms=replace(plan.terms, **changes))


@pytest.mark.parametrize("name", ["guarantee", "setting", "sampling", "shaping", "layout"])
def test_what_is_derived_cannot_be_set(name: str) -> None:
    plan = planned(method())
    with pytest.raises(TypeError, match=name):
        replace(plan, **{name: getattr(plan, name)})


def test_a_private_method_never_runs_without_its_noise() -> None:
    plan = planned(method())
    with pytest.raises(BadInput, match="terms"):
        replace(plan, terms=None)
    with pytest.raises(BadInput, match="delta"):
        replace(plan, delta=None)
    plain = fv.fedavg(
        rounds=4,
        cohort=fv.CohortRule(rate=0.5),
        local=fv.LocalRule(fv.LearningRate(0.5), epochs=1),
    )
    with pytest.raises(BadInput, match="terms"):
        replace(plan, method=plain)
    assert replace(plan, method=plain, terms=None).guarantee is None


def test_a_protected_promise_on_secure_sums_keeps_them() -> None:
    shares = fv.dp_fedavg(
        rounds=2,
        cohort=fv.CohortRule(fv.Scheme.EVERYONE),
        local=fv.LocalRule(fv.LearningRate(0.5), epochs=1),
        clip=fv.Clip(0.5),
        protection=fv.SharedNoise(),
    )
    plan = planned(shares)
    assert plan.setting is not None
    assert plan.setting.trust is Trust.DISTRIBUTED
    bare = replace(plan.terms, secure=None)
    with pytest.raises(Refused, match="secure sums"):
        replace(plan, terms=bare)
    assert replace(plan, terms=bare, seed=1).terms is not None  # a simulation may
