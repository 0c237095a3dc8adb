"""Each client's own epsilon from a public schedule."""

from __future__ import annotations

import numpy as np
import pytest
from dp_accounting import gaussian_mechanism
from tests.methods.reference import SIZES, planned, rule

import fedveil as fv
from fedveil.planning.participations import participations


def test_hus_devices_pay_for_their_own_rounds_and_records():
    """mu_i^2 = C_i * e_i * (2 G / (gamma sigma))^2 (theory 4, variant 1)."""
    local = fv.LocalTraining(fv.LearningRate(0.1), steps=3, batch_size=3)
    cohort = fv.CohortRule(fv.Scheme.BALANCED, size=4)
    made = planned(
        fv.gradient_noise(rounds=5, cohort=cohort, local=local, clip_norm=0.8, secure_sum=False),
        1.3,
    )
    found = participations(made)
    assert found.counts.sum() == 5 * 4
    assert found.counts.max() - found.counts.min() <= 1
    for client, size in enumerate(SIZES):
        batches = -(-size // 3)
        uses = -(-3 // batches)
        mu = (found.counts[client] * uses) ** 0.5 * 2 / 1.3
        expected = gaussian_mechanism.get_epsilon_gaussian(1 / mu, made.guarantee.delta)
        assert found.epsilons[client] == pytest.approx(expected, rel=1e-6)
    assert found.epsilons.max() <= made.guarantee.epsilon * (1 + 1e-9)
    assert len(set(np.round(found.epsilons, 6))) > 1


def test_counts_of_secret_cohorts_are_refused():
    made = planned(
        fv.dp_fedavg(
            rounds=2,
            cohort=fv.CohortRule(fv.Scheme.POISSON, rate=0.5),
            local=rule(),
            clip=fv.Clip(1.0),
        )
    )
    with pytest.raises(fv.PrivacyRefusal, match="secret"):
        participations(made)
