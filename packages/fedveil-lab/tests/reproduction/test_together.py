"""Noise drawn in one go has the law of noise drawn client by client."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import ks_2samp

from fedveil.core.randomness import Randomness
from fedveil.core.units import Arithmetic
from fedveil.data.sources import load
from fedveil.methods.client_noise import client_noise
from fedveil.methods.parts.local_noise import LocalNoise
from fedveil.methods.parts.method import CohortRule, Scheme
from fedveil.methods.parts.noise_placement import Noise
from fedveil.planning.plan import Budget, plan
from fedveil.training.client.local_training import LearningRate, LocalTraining
from fedveil.training.models.zoo import build
from fedveil_lab.reproduction.together import TogetherNoise, drawn_together


@pytest.mark.parametrize("noise", list(Noise))
def test_sums_of_noise_have_one_law_however_they_are_drawn(noise: Noise) -> None:
    """Kolmogorov-Smirnov on 3,000 against 3,000 sums of 7 clients; false alarm 1e-4."""
    federation = load("synthetic-linear", clients=7)
    method = client_noise(
        rounds=2,
        cohort=CohortRule(Scheme.EVERYONE),
        local=LocalTraining(LearningRate(0.1), steps=1),
        clip_norm=1.0,
        noise=noise,
    )
    made = plan(
        drawn_together(method),
        federation,
        build("linear", federation),
        budget=Budget(noise_multiplier=1.5),
        seed=0,
        arithmetic=Arithmetic.IDEALISED,
    )
    together = made.method.placement
    assert isinstance(together, TogetherNoise)
    assert made.context is not None
    alone = LocalNoise(noise, together.adjacency)
    cohort, zeros = np.arange(7), torch.zeros(300, dtype=torch.float64)
    context = replace(made.context, arithmetic=Arithmetic.IDEALISED)

    def drawn(placement: LocalNoise, seed: int) -> np.ndarray:
        at = replace(placement.fit(context).at(), cohort=cohort, randomness=Randomness(seed))
        rounds = (replace(at, round_number=number) for number in range(10))
        return np.concatenate([each.protect(zeros, cohort).numpy() for each in rounds])

    assert ks_2samp(drawn(together, 1), drawn(alone, 2)).pvalue > 1e-4
