"""Each client's own epsilon from a public schedule."""

from __future__ import annotations

import numpy as np
import pytest
from dp_accounting import gaussian_mechanism
from tests.methods.reference import SIZES, planned, rule

from fedveil.core.errors import PrivacyRefusal
from fedveil.methods.dp_fedavg import dp_fedavg
from fedveil.methods.gradient_noise import gradient_noise
from fedveil.methods.parts.method import CohortRule, Scheme
from fedveil.planning.participations import participations
from fedveil.privacy.clipping import Clip
from fedveil.training.client.local_training import LearningRate, LocalTraining


def test_hus_devices_pay_for_their_own_rounds_and_records() -> None:
    """mu_i^2 = C_i * e_i * (2 G / (gamma sigma))^2 (theory 4, variant 1)."""
    local = LocalTraining(LearningRate(0.1), steps=3, batch_size=3)
    cohort = CohortRule(Scheme.BALANCED, size=4)
    made = planned(
        gradient_noise(rounds=5, cohort=cohort, local=local, clip_norm=0.8, secure_sum=False), 1.3
    )
    found = participations(made)
    assert found.counts.sum() == 5 * 4
    assert found.counts.max() - found.counts.min() <= 1
    assert made.guarantee is not None
    for client, size in enumerate(SIZES):
        batches = -(-size // 3)
        uses = -(-3 // batches)
        mu = (found.counts[client] * uses) ** 0.5 * 2 / 1.3
        expected = gaussian_mechanism.get_epsilon_gaussian(1 / mu, made.guarantee.delta)
        assert found.epsilons[client] == pytest.approx(expected, rel=1e-6)
    assert found.epsilons.max() <= made.guarantee.epsilon * (1 + 1e-9)
    assert len(set(np.round(found.epsilons, 6))) > 1


def test_counts_of_secret_cohorts_are_refused() -> None:
    made = planned(
        dp_fedavg(
            rounds=2, cohort=CohortRule(Scheme.POISSON, rate=0.5), local=rule(), clip=Clip(1.0)
        )
    )
    with pytest.raises(PrivacyRefusal, match="secret"):
        participations(made)
