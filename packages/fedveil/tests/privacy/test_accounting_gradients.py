"""Noise on every gradient: what may be certified about one record, and what attacks show."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from fedveil.core.errors import ConfigError
from fedveil.core.units import Adjacency, Trust, Unit
from fedveil.privacy.accountants.exact import gaussian_epsilon
from fedveil.privacy.accounting import account
from fedveil.privacy.gradient_perturbation import (
    GridGradients,
    Loss,
    NoisyGradients,
    NonExpansive,
    record_uses,
)
from fedveil.privacy.refusals import GradientRefused
from fedveil.privacy.releases import PrivacyModel, Release
from fedveil.privacy.sampling import Everyone
from fedveil_lab.reproduction.claims.hu import bit_attack_epsilon, bit_probability, paper_hu_epsilon

SHARED = PrivacyModel(Unit.RECORD, Adjacency.REPLACE, Trust.DISTRIBUTED)
LOCAL = PrivacyModel(Unit.RECORD, Adjacency.REPLACE, Trust.LOCAL)
LOGISTIC = NonExpansive(Loss.LOGISTIC, 1.0, (0.5,))


def epsilon(
    mechanism: NoisyGradients | GridGradients,
    rounds: int,
    privacy_model: PrivacyModel,
    delta: float = 1e-4,
) -> float:
    return account(
        [Release(mechanism, Everyone(), rounds)], privacy_model=privacy_model, delta=delta
    ).epsilon


@pytest.mark.parametrize(
    ("steps", "records", "batch", "uses"),
    [(10, 2440, 244, 1), (3, 1999, 1000, 3), (1, 100, 10, 1), (11, 2440, 244, 2), (4, 5, 10, 4)],
)
def test_records_are_touched_as_often_as_whole_batches_wrap(steps, records, batch, uses):
    assert record_uses(local_steps=steps, records=records, batch_size=batch) == uses
    # The count is the largest over records of a simulated epoch-by-epoch pass.
    whole = max(1, records // batch)
    order = [np.arange(i * batch, min(records, (i + 1) * batch)) for i in range(whole)]
    touched = np.zeros(records, dtype=int)
    for step in range(steps):
        touched[order[step % whole]] += 1
    assert touched.max() == uses


def test_any_model_pays_for_every_use_undivided():
    mechanism = NoisyGradients(1.0, 100, 0.05, local_steps=8, record_uses=3, shares=20)
    mu = math.sqrt(7 * 3) * 2 * 1.0 / (100 * 0.05)
    assert epsilon(mechanism, 7, LOCAL) == pytest.approx(gaussian_epsilon(1 / mu, 1e-4), rel=1e-9)
    zero = replace(LOCAL, adjacency=Adjacency.ZERO_OUT)
    assert epsilon(mechanism, 7, zero) == pytest.approx(gaussian_epsilon(2 / mu, 1e-4), rel=1e-9)


def test_one_step_is_divided_by_the_honest_shares():
    mechanism = NoisyGradients(1.0, 100, 0.01, local_steps=1, record_uses=1, shares=20)
    for colluders in (0, 5, 19):
        privacy_model = replace(SHARED, colluders=colluders)
        mu = math.sqrt(7) * 2 / (100 * 0.01 * math.sqrt(20 - colluders))
        assert epsilon(mechanism, 7, privacy_model) == pytest.approx(
            gaussian_epsilon(1 / mu, 1e-4), rel=1e-9
        )
    with pytest.raises(ConfigError):
        epsilon(mechanism, 7, replace(SHARED, colluders=20))


@pytest.mark.parametrize(("uses", "honest"), [(1, 10), (2, 10), (5, 3), (9, 4), (4, 16)])
def test_convex_certificate_takes_the_better_of_two_proofs(uses, honest):
    mechanism = NoisyGradients(1.0, 100, 0.02, 10, uses, honest, LOGISTIC)
    one = 2 / (100 * 0.02)
    mu = one * uses * min(1 / math.sqrt(uses), 1 / math.sqrt(honest))
    assert mechanism.sensitivity(2, honest) == pytest.approx(mu)
    assert epsilon(mechanism, 3, SHARED) == pytest.approx(
        gaussian_epsilon(1 / (mu * math.sqrt(3)), 1e-4), rel=1e-9
    )


@pytest.mark.parametrize(("shift", "rounds"), [(4.0, 1), (0.5, 100), (10.0, 1)])
@pytest.mark.parametrize("shuffled", [False, True])
def test_certified_epsilon_is_above_the_attack_that_refutes_the_paper(shift, rounds, shuffled):
    """Two steps, losses that blow a sign up: one bit leaks whatever the cohort."""
    std = 2 * 1.0 / (1000 * shift)
    attack = bit_attack_epsilon(bit_probability(shift, shuffled=shuffled), rounds, 1e-4)
    mechanism = NoisyGradients(1.0, 1000, std, local_steps=2, record_uses=1, shares=100)
    assert epsilon(mechanism, rounds, LOCAL) > attack
    with pytest.raises(GradientRefused):
        epsilon(mechanism, rounds, SHARED)
    divided = gaussian_epsilon(math.sqrt(100) / (shift * math.sqrt(rounds)), 1e-4)
    if not shuffled:
        assert divided < attack  # what is refused is false


Vector = npt.NDArray[np.float64]


def gradient(loss: Loss, weights: Vector, x: Vector, y: float, clip: float | None) -> Vector:
    if loss is Loss.SQUARED:
        found: Vector = (weights @ x - y) * x
    elif loss is Loss.LOGISTIC:
        found = -y * x / (1 + math.exp(y * (weights @ x)))
    else:
        scores = weights.reshape(3, -1) @ x
        share = np.exp(scores - scores.max())
        share /= share.sum()
        share[int(y)] -= 1
        found = np.outer(share, x).ravel()
    norm = float(np.linalg.norm(found))
    return found if clip is None or norm <= clip else found * (clip / norm)


@pytest.mark.parametrize("loss", list(Loss))
def test_certified_steps_never_bring_two_runs_further_apart(loss):
    """Random pairs of weights, at the largest certified learning rate, penalty included."""
    rng = np.random.default_rng(7)
    radius, penalty = 1.5, 0.1
    clipped = loss is not Loss.SOFTMAX
    share = {Loss.LOGISTIC: 0.25, Loss.SQUARED: 1.0, Loss.SOFTMAX: 0.5}[loss]
    rate = 2 / (share * radius**2 + penalty)
    NonExpansive(loss, radius, (rate,), penalty, clipped)
    size = 12 if loss is Loss.SOFTMAX else 4
    for _ in range(3000):
        one, two = rng.normal(size=size) * 3, rng.normal(size=size) * 3
        x = rng.normal(size=4)
        x *= radius / np.linalg.norm(x)
        y = float(rng.integers(3)) if loss is Loss.SOFTMAX else float(rng.choice([-1, 1]))
        bound = 0.3 if clipped else None
        step_one = one - rate * (gradient(loss, one, x, y, bound) + penalty * one)
        step_two = two - rate * (gradient(loss, two, x, y, bound) + penalty * two)
        assert np.linalg.norm(step_one - step_two) <= np.linalg.norm(one - two) * (1 + 1e-12)


def test_clipped_softmax_steps_can_expand():
    """Why that certificate is refused: a pair of weights that a clipped step drives apart."""
    rng = np.random.default_rng(11)
    found = False
    for _ in range(20000):
        one = rng.normal(size=12) * 3
        two = one + rng.normal(size=12) * 0.3
        x = rng.normal(size=4)
        x *= 1.5 / np.linalg.norm(x)
        y = float(rng.integers(3))
        apart = np.linalg.norm(
            (one - gradient(Loss.SOFTMAX, one, x, y, 0.3))
            - (two - gradient(Loss.SOFTMAX, two, x, y, 0.3))
        )
        found = found or bool(apart > np.linalg.norm(one - two) * (1 + 1e-6))
    assert found
    with pytest.raises(GradientRefused, match="softmax"):
        NonExpansive(Loss.SOFTMAX, 1.5, (0.5,), clipped=True)


@pytest.mark.parametrize(
    "fields",
    [
        {"loss": "neural-network"},
        {"loss": None},
        {"momentum": 0.9},
        {"learning_rates": (8.001,)},
        {"learning_rates": (0.5, 9.0)},
        {"loss": Loss.SQUARED, "learning_rates": (2.001,)},
        {"l2_penalty": 4.0},
        {"loss": Loss.SQUARED, "clipped": False, "learning_rates": (0.1,)},
    ],
)
def test_certificates_that_do_not_hold_cannot_be_made(fields):
    good: dict[str, object] = {
        "loss": Loss.LOGISTIC,
        "input_norm": 1.0,
        "learning_rates": (8.0,),
        "l2_penalty": 0.0,
    }
    NonExpansive(**good)
    with pytest.raises(GradientRefused):
        NonExpansive(**{**good, **fields})


def test_fields_that_contradict_each_other_are_refused():
    with pytest.raises(ConfigError, match="record_uses"):
        NoisyGradients(1.0, 10, 1.0, local_steps=2, record_uses=3)
    assert NoisyGradients(1.0, 10, 1.0, local_steps=2, record_uses=2).record_uses == 2
    for shares in (0, -1, 2.5, True):
        with pytest.raises(ConfigError, match="shares"):
            NoisyGradients(1.0, 10, 1.0, 1, 1, shares=shares)
    with pytest.raises(ConfigError, match="learning_rates"):
        NoisyGradients(1.0, 10, 1.0, 3, 1, 5, NonExpansive(Loss.LOGISTIC, 1.0, (0.5, 0.4)))
    with pytest.raises(ConfigError, match="learning_rates"):
        NonExpansive(Loss.LOGISTIC, 1.0, ())
    softmax = NonExpansive(Loss.SOFTMAX, 1.0, (0.5,), clipped=False)
    with pytest.raises(GradientRefused, match="unclipped"):
        NoisyGradients(1.0, 10, 1.0, 3, 1, 5, softmax)
    assert NoisyGradients(1.4143, 10, 1.0, 3, 1, 5, softmax).shares == 5
    with pytest.raises(ConfigError, match="certificate"):
        NoisyGradients(1.0, 10, 1.0, 3, 1, 5, "trust me")


def test_grid_gradients_converge_to_the_continuous_bound():
    """A finer grid costs less, down to the continuous mechanism's Rényi bound. Several steps in
    floating point are not what was proved, so they are not certified."""
    fields = (1.0, 100, 0.05, 6, 2, 50, LOGISTIC)
    continuous = account(
        [Release(NoisyGradients(*fields), Everyone(), 5)], privacy_model=SHARED, delta=1e-4
    )
    assert not continuous.certified
    limit = account(
        [Release(replace(NoisyGradients(*fields), record_uses=2), Everyone(), 5)],
        privacy_model=SHARED,
        delta=1e-4,
    ).alternatives["rdp"]
    costs = []
    for granularity in (1e-3, 1e-4, 1e-5, 1e-6):
        mechanism = GridGradients(*fields, granularity, 32)
        found = account([Release(mechanism, Everyone(), 5)], privacy_model=SHARED, delta=1e-4)
        assert not found.certified
        assert "floating point" in found.reason
        costs.append(found.epsilon)
    assert costs == sorted(costs, reverse=True)
    assert limit <= costs[-1] <= 1.01 * limit


def test_varying_learning_rates_count_the_largest_steps_over_the_last():
    rates = (0.5, 0.5, 0.25, 0.125)
    certificate = NonExpansive(Loss.LOGISTIC, 1.0, rates)
    mechanism = NoisyGradients(1.0, 100, 0.02, 4, 2, 100, certificate)
    one = 2 / (100 * 0.02)
    assert mechanism.sensitivity(2, 100) == pytest.approx(one * (0.5 + 0.5) / 0.125 / 10)
    constant = replace(mechanism, certificate=LOGISTIC)
    assert mechanism.sensitivity(2, 100) == pytest.approx(4 * constant.sensitivity(2, 100))


def test_noise_of_the_paper_certifies_four_times_what_it_claims():
    """epsilon 10 claimed with r = 10, one use: 39.82 exact without the division."""
    std, participations = 0.0048068, 12.5
    claimed = paper_hu_epsilon(
        delta=1e-4,
        participations=participations,
        local_steps=10,
        gradient_bound=1,
        cohort=10,
        records=2440,
        batch_size=244,
        noise_std=std,
    )
    assert claimed.value == pytest.approx(10, abs=1e-3)
    mechanism = NoisyGradients(1.0, 244, std, 10, 1, 10)
    mu = mechanism.sensitivity(2, None) * math.sqrt(participations)
    assert gaussian_epsilon(1 / mu, 1e-4) == pytest.approx(39.82, abs=0.01)
