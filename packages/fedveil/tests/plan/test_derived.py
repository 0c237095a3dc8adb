"""A plan cannot keep a guarantee that its parts do not give: whatever is replaced, it follows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant
from torch import Tensor, nn

import fedveil as fv
from fedveil.core.units import Entropy

FEDERATION = fv.load("digits", clients=40)
MODEL = fv.build("logistic", FEDERATION)


def method(rounds: int = 4, rate: float = 0.5, clip: float = 0.5) -> fv.Method:
    return fv.dp_fedavg(
        rounds=rounds,
        cohort=fv.CohortRule(rate=rate),
        local=fv.LocalTraining(fv.LearningRate(0.5), epochs=1),
        clip=fv.Clip(clip),
    )


def planned(chosen: fv.Method, seed: int | None = None) -> fv.Plan:
    budget = fv.Budget(noise_multiplier=2.0, delta=1e-5)
    return fv.plan(chosen, FEDERATION, MODEL, budget=budget, seed=seed)


def epsilon(plan: fv.Plan) -> float:
    return plan.guarantee.epsilon


def reference(noise: float, rate: float, rounds: int) -> float:
    """The same mechanism by another library's accountant."""
    round_number = PoissonSampledDpEvent(rate, GaussianDpEvent(noise))
    accountant = PLDAccountant()
    accountant.compose(SelfComposedDpEvent(round_number, rounds))
    return float(accountant.get_epsilon(1e-5))


def test_other_noise_has_its_own_epsilon_and_its_own_grid():
    plan = planned(method())
    less = replace(plan, noise_multiplier=0.5)
    assert epsilon(plan) == pytest.approx(reference(2.0, 0.5, 4), rel=1e-3)
    assert epsilon(less) == pytest.approx(reference(0.5, 0.5, 4), rel=1e-3)
    assert less.noise_multiplier == 0.5
    direct = fv.plan(
        method(), FEDERATION, MODEL, budget=fv.Budget(noise_multiplier=0.5, delta=1e-5)
    )
    assert less.pipeline == direct.pipeline
    assert less.guarantee == direct.guarantee


def test_another_method_has_its_own_epsilon_and_its_own_cohorts():
    plan = planned(method())
    other = replace(plan, method=method(rounds=9, rate=0.25, clip=2.0))
    assert epsilon(other) == pytest.approx(reference(2.0, 0.25, 9), rel=1e-3)
    assert other.sampling == planned(method(rounds=9, rate=0.25)).sampling
    assert other.pipeline.clip == fv.Clip(2.0)
    assert other.spent(9) == epsilon(other)


class Running(nn.Module):
    """Adds what it saw last: one client's data in the next one's update."""

    last: float = 0.0

    def forward(self, inputs: Tensor) -> Tensor:
        before, self.last = self.last, float(inputs.detach().mean())
        return inputs + before


def test_another_model_is_tried_as_the_first_one_was():
    plan = planned(method())
    remembers = nn.Sequential(Running(), nn.Flatten(), nn.Linear(64, 10))
    with pytest.raises(fv.PrivacyRefusal, match="remembers"):
        replace(plan, module=remembers)


def test_a_model_that_was_changed_after_planning_is_not_run():
    model = nn.Sequential(nn.Identity(), nn.Flatten(), nn.Linear(64, 10))
    budget = fv.Budget(noise_multiplier=2.0, delta=1e-5)
    plan = fv.plan(method(), FEDERATION, model, budget=budget)
    model[0] = Running()
    with pytest.raises(fv.PrivacyRefusal, match="remembers"):
        fv.Run(plan)


def test_a_seed_or_its_absence_is_what_the_guarantee_says():
    plan = planned(method())
    assert plan.guarantee.certified
    simulated = replace(plan, seed=1)
    assert simulated.guarantee.entropy is Entropy.SEEDED
    assert not simulated.guarantee.certified
    idealised = replace(plan, arithmetic=fv.Arithmetic.IDEALISED)
    assert not idealised.guarantee.certified


def test_a_private_method_never_runs_without_its_noise():
    plan = planned(method())
    with pytest.raises(fv.ConfigError, match="noise_multiplier"):
        replace(plan, noise_multiplier=None)
    with pytest.raises(fv.ConfigError, match="delta"):
        replace(plan, delta=None)
    plain = fv.fedavg(
        rounds=4,
        cohort=fv.CohortRule(rate=0.5),
        local=fv.LocalTraining(fv.LearningRate(0.5), epochs=1),
    )
    with pytest.raises(fv.ConfigError, match="noise_multiplier"):
        replace(plan, method=plain)
    bare = replace(plan, method=plain, noise_multiplier=None, arithmetic=None)
    assert bare.guarantee is None


def test_a_protected_promise_on_secure_sums_keeps_them():
    shares = fv.dp_fedavg(
        rounds=2,
        cohort=fv.CohortRule(fv.Scheme.EVERYONE),
        local=fv.LocalTraining(fv.LearningRate(0.5), epochs=1),
        clip=fv.Clip(0.5),
        placement=fv.DistributedNoise(),
    )
    plan = planned(shares)
    assert plan.privacy_model.trust is fv.Trust.DISTRIBUTED
    with pytest.raises(fv.PrivacyRefusal, match=r"aggregation\.secure"):
        replace(plan, secure_sums=None)
    assert replace(plan, secure_sums=None, seed=1).noise is not None  # a simulation may


def test_who_counts_in_a_secure_sum_follows_from_the_method():
    """A quarter of the clients may be lost; counting on all would print a smaller epsilon."""
    shares = replace(
        fv.dp_fedavg(
            rounds=2,
            cohort=fv.CohortRule(fv.Scheme.EVERYONE),
            local=fv.LocalTraining(fv.LearningRate(0.5), epochs=1),
            clip=fv.Clip(0.5),
            placement=fv.DistributedNoise(),
        ),
        aggregation=fv.Aggregation(max_dropout=0.25),
    )
    plan = planned(shares)
    sums = plan.secure_sums
    for forged in (
        replace(sums, honest_shares=sums.cohort),
        replace(sums, cohort=sums.cohort + 1),
        replace(sums, params=replace(sums.params, min_honest=2)),
    ):
        with pytest.raises(fv.ConfigError, match="secure_sums"):
            replace(plan, secure_sums=forged)
    masked = replace(sums, mode=fv.SecureMode.MASKED, dropout=0.1)
    chosen = replace(plan, secure_sums=masked)
    assert epsilon(chosen) == epsilon(plan)
    assert chosen.derived_anew().secure_sums == masked  # a run keeps to the choice


def test_what_a_secure_sum_takes_for_granted_of_its_server_is_said():
    """The noise is the same: what differs is what its guarantee rests on."""
    inputs = np.zeros((600, 3), np.float32)
    data = fv.Federation.from_arrays(
        inputs, np.arange(600) % 2, np.arange(600), classes=2, test=(inputs[:0], np.zeros(0, int))
    )
    shares = fv.dp_fedavg(
        rounds=10,
        cohort=fv.CohortRule(fv.Scheme.EVERYONE),
        local=fv.LocalTraining(fv.LearningRate(0.5), epochs=1),
        clip=fv.Clip(0.5),
        placement=fv.DistributedNoise(colluders=30),
    )
    epsilons = set()
    for sparse, honest in ((False, False), (False, True), (True, True)):
        sums = fv.Aggregation(max_dropout=0.1, sparse=sparse, honest_server=honest)
        plan = fv.plan(
            replace(shares, aggregation=sums),
            data,
            fv.build("logistic", data),
            budget=fv.Budget(noise_multiplier=4.0, delta=1e-5),
        )
        said = " ".join(plan.guarantee.rests_on)
        assert ("The server of the secure sums does not lie" in said) is honest
        assert ("which delta does not count" in said) is sparse
        epsilons.add(plan.guarantee.epsilon)
    assert len(epsilons) == 1


def test_a_model_that_was_changed_after_planning_is_named_or_not_trained():
    """What the guarantee takes for granted of foreign parts is said when the plan is made."""
    changed = fv.build("logistic", FEDERATION)
    plan = fv.plan(
        method(), FEDERATION, changed, budget=fv.Budget(noise_multiplier=2.0, delta=1e-5)
    )
    handle = changed.register_forward_hook(lambda layer, given, outputs: 2 * outputs)
    with pytest.raises(fv.ConfigError, match="plan"):
        fv.Run(plan)
    handle.remove()
    fv.Run(plan)


def test_shares_are_not_counted_from_a_declared_number_of_clients():
    many = replace(
        method(), cohort=fv.CohortRule(fv.Scheme.EVERYONE, clients=1000)
    )  # forty are there
    with pytest.raises(fv.ConfigError, match="public_clients"):
        replace(planned(many), method=replace(many, placement=fv.DistributedNoise()))


def test_another_federation_is_planned_for_as_it_is():
    plan = planned(method())
    larger = fv.load("digits", clients=60)
    moved = replace(plan, federation=larger)
    assert moved.sampling.expected_cohort == 30
    assert moved.privacy_model.population == 60
    assert moved.context.federation is larger


def test_every_round_of_another_method_or_noise_is_tried():
    """A round that cannot be run would fail after it was paid for."""
    plan = planned(method())
    with pytest.raises(fv.ConfigError, match="noise"):
        replace(plan, noise_multiplier=1e-12)
    rate = fv.LearningRate(0.5, fv.Schedule.COSINE, 2.0)
    ends = fv.client_noise(
        rounds=4,
        cohort=fv.CohortRule(fv.Scheme.EVERYONE),
        local=fv.LocalTraining(rate, steps=2),
        clip_norm=1.0,
    )
    with pytest.raises(fv.ConfigError, match=r"training\.decay"):
        replace(plan, method=ends)


@pytest.mark.parametrize(
    "name", ["guarantee", "privacy_model", "sampling", "pipeline", "layout", "noise", "context"]
)
def test_what_is_derived_cannot_be_set(name):
    plan = planned(method())
    with pytest.raises(TypeError, match=name):
        replace(plan, **{name: getattr(plan, name)})


def test_who_owns_which_rows_does_not_change_after_planning():
    offsets = np.array([0, 10, 20])
    data = fv.Federation(
        fv.Examples(np.zeros((20, 2), np.float32), np.zeros(20, np.int64)),
        offsets,
        fv.Examples(np.zeros((1, 2), np.float32), np.zeros(1, np.int64)),
        fv.Task.CLASSIFICATION,
        2,
    )
    offsets[1] = 1
    assert data.sizes.tolist() == [10, 10]
    with pytest.raises(ValueError, match="read-only"):
        data.offsets[1] = 1
