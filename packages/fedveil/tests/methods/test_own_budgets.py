"""Clients with budgets of their own clip to less: what they send, what they pay, who notices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from dp_accounting import gaussian_mechanism
from tests.methods.reference import federation
from tests.methods.test_secret_coins import Watched, planned
from torch import nn

import fedveil as fv
from fedveil.planning import plan as plan_module
from fedveil.planning.participations import participations
from fedveil.privacy.ledger import Inconsistent
from fedveil.privacy.secure_sums.aggregation import UPDATE

EVERYONE = {"training__sampling": "everyone", "training__rate": None}
OWN = {"privacy__budgets": {"1": 0.8, "4": 1.5}, "training__rounds": 1}
# So few bits that rounding is a good part of what a small clip leaves.
COARSE = {"training__method": "ddgauss", "privacy__bits": 9, "privacy__noise_multiplier": 2.0}


def length(row: np.ndarray) -> float:
    return float(np.linalg.norm(row.astype(np.float64)))


def nobody_sends_more_than_is_accounted() -> None:
    """Updates far beyond every clip, in grid steps, beside the bound in each client's event."""
    for ways in ({}, COARSE):
        ways |= {"training__learning_rate": 1e3, "training__rounds": 1}
        whole = planned(**EVERYONE, **ways).guarantee
        budgets = {"1": 0.6 * whole.epsilon, "4": 0.8 * whole.epsilon}
        seen = Watched(planned(**EVERYONE, **ways, privacy__budgets=budgets))
        plan = seen.run.plan
        assert plan.scales[1] < plan.scales[4] < 1 == plan.scales[0]
        law = plan.private_noise.mechanism()
        assert isinstance(law, fv.DiscreteGaussianSum)
        epsilons = participations(plan).epsilons
        assert plan.privacy_model is not None
        for client in range(6):
            sent = length(seen.rows[0, UPDATE, client])
            moved = replace(law, clip_norm=sent * law.granularity, rounding_beta=None)
            own = fv.Release(moved, fv.Everyone(6), 1)
            truth = fv.account([own], privacy_model=plan.privacy_model, delta=1e-5).epsilon
            assert epsilons[client] / 2 < truth <= epsilons[client] * (1 + 1e-9)


def scales_do_not_follow_data() -> None:
    data = federation()
    train = fv.Examples(data.train.inputs.copy(), data.train.targets.copy())
    train.inputs[data.offsets[1] : data.offsets[2]] *= -50
    changed = replace(data, train=train)
    plans = [planned(one, **EVERYONE, **OWN) for one in (data, changed)]
    assert plans[0].scales == plans[1].scales


LAWS = (nobody_sends_more_than_is_accounted, scales_do_not_follow_data)


@pytest.mark.parametrize("law", LAWS)
def test_law(law):
    law()


def _rounding_scales(patch: pytest.MonkeyPatch) -> None:
    def scaled(self: fv.DiscreteGaussianSum, scale: float) -> fv.DiscreteGaussianSum:
        return replace(self, share_std=self.share_std / scale)  # z / s

    patch.setattr(fv.DiscreteGaussianSum, "scaled", scaled)


def _follows_data(patch: pytest.MonkeyPatch) -> None:
    real = plan_module.own_scales

    def follows(noise: Any, *rest: Any) -> tuple[float, ...] | None:
        scales = real(noise, *rest)
        spread = float(np.abs(noise.facts.federation.train.inputs).mean())
        return None if scales is None else tuple(min(1.0, one * spread) for one in scales)

    patch.setattr(plan_module, "own_scales", follows)


@pytest.mark.parametrize(("fault", "law"), [(_rounding_scales, LAWS[0]), (_follows_data, LAWS[1])])
def test_planted_faults_are_noticed(fault, law, monkeypatch):
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        law()


@pytest.mark.parametrize("sampling", ["everyone", "secret-poisson"])
def test_a_budget_of_one_client_changes_what_it_sends_and_nothing_else(sampling):
    ways: dict[str, Any] = {"training__sampling": sampling, "training__rounds": 1}
    ways["training__rate"] = None if sampling == "everyone" else 0.9
    alike, own = (
        Watched(planned(**ways, privacy__budgets=budgets)) for budgets in ({}, {"2": 0.5})
    )
    assert set(alike.rows) == set(own.rows)
    for at in alike.rows:
        assert np.array_equal(alike.shares[at], own.shares[at])
        assert np.array_equal(alike.rows[at], own.rows[at]) == (at[2] != 2)


def test_each_client_pays_its_own_epsilon_and_the_run_the_largest():
    ways = EVERYONE | {"privacy__trust": "central", "aggregation__secure": None}
    ways |= {"privacy__noise_multiplier": None, "privacy__epsilon": 5.0, "seed": None}
    plan = planned(**ways, training__rounds=7, privacy__budgets={"0": 1.0, "3": 2.5, "5": 80.0})
    found = participations(plan).epsilons
    assert plan.guarantee.certified
    assert plan.guarantee.epsilon == pytest.approx(5, rel=1e-3)
    assert found == pytest.approx([1, 5, 5, 2.5, 5, 5], rel=2e-3)
    assert (found <= [1, 5, 5, 2.5, 5, 5]).all()
    for client in (0, 3):  # by another library
        noise = plan.noise_multiplier / (plan.scales[client] * 7**0.5)
        outside = gaussian_mechanism.get_epsilon_gaussian(noise, plan.guarantee.delta)
        assert outside == pytest.approx(found[client], rel=1e-6)
    groups = [said for said in plan.guarantee.rests_on if "Budgets of their own" in said]
    assert len(groups) == 2


@pytest.mark.parametrize(
    ("changed", "kind"),
    [
        ({"privacy__budgets": {"9": 1.0}}, fv.ConfigError),
        ({"privacy__budgets": {"1": 0.0}}, fv.ConfigError),
        ({"privacy__budgets": {"1": 1e-9}, **COARSE}, fv.ConfigError),
        ({"privacy__budgets": {"1": 1.0}, "privacy__clip_quantile": 0.5}, fv.PrivacyRefusal),
        (  # whoever takes the free place brings a whole clip
            {
                "privacy__budgets": {"1": 1.0},
                "training__method": "dp-fedavg",
                "privacy__trust": "central",
                "aggregation__secure": None,
                "training__sampling": "fixed",
                "training__cohort": 2,
            },
            fv.PrivacyRefusal,
        ),
        (
            {
                "privacy__budgets": {"1": 1.0},
                "training__method": "gradient-noise",
                "training__batch_size": 2,
            },
            fv.PrivacyRefusal,
        ),
    ],
)
def test_budgets_that_no_smaller_clip_keeps_are_refused(changed, kind):
    with pytest.raises(kind):
        planned(**EVERYONE | changed)


def test_a_run_goes_on_with_the_budgets_that_it_began_with(tmp_path):
    owners = np.repeat(np.arange(6), 5)
    inputs = np.random.default_rng(0).normal(size=(30, 3)).astype(np.float32)
    data = fv.Federation.from_arrays(inputs, owners % 2, owners, classes=2)
    local = fv.LocalTraining(fv.LearningRate(0.5), steps=1)
    method = fv.dp_fedavg(
        rounds=4, cohort=fv.CohortRule(fv.Scheme.EVERYONE), local=local, clip=fv.Clip(1.0)
    )
    module, budget = nn.Linear(3, 2), fv.Budget(noise_multiplier=2.0, delta=1e-5)

    def plan(budgets):
        return fv.plan(method, data, module, budget=budget, budgets=budgets)

    first = plan({"0": 1.0})
    kept = fv.RunDirectory.create(tmp_path / "run", first, {})
    run = fv.Run(first).keep_in(kept)
    next(iter(run))
    run.close()
    kept.close()
    with pytest.raises(Inconsistent):
        fv.RunDirectory.open(tmp_path / "run", plan({"1": 1.0}))
    fv.RunDirectory.open(tmp_path / "run", plan({"0": 1.0})).close()
