"""Each method equals its paper's algorithm, written out with loops, step by step."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.linalg
import torch
from tests.methods.reference import (
    CLASSES,
    FEATURES,
    ROUNDS,
    SEED,
    SIZES,
    batches,
    check,
    clipped,
    gradients,
    planned,
    records,
    rule,
    sgd,
    trajectory,
)

import fedveil as fv
from fedveil.core.randomness import Randomness
from fedveil.privacy.noise.integers import discrete_gaussian
from fedveil.privacy.noise.simulated import gaussian, laplace
from fedveil.training.client.rotation import Rotation

Vector = np.ndarray

FOUR = fv.CohortRule(fv.Scheme.FIXED, size=4)
TURNS = fv.CohortRule(fv.Scheme.ROUND_ROBIN, size=4)
BALANCED = fv.CohortRule(fv.Scheme.BALANCED, size=4)
SILENT_OR_NOT = pytest.mark.parametrize("noise", [0.0, 0.7], ids=["silent", "noisy"])
TOLERANCE = 1e-5


def drawn(purpose: str, round_number: int, count: int, std: float, client: int = -1) -> Vector:
    """The very Gaussians that a run draws for a purpose."""
    return gaussian(Randomness(SEED).stream(purpose, round_number, client), count, std).astype(
        float
    )


@pytest.mark.parametrize("by_examples", [False, True], ids=["uniform", "by examples"])
def test_fedavg(by_examples):
    made = planned(fv.fedavg(rounds=ROUNDS, cohort=FOUR, local=rule(), by_examples=by_examples))

    def step(weights, round_number, cohort):
        shares = np.array([SIZES[c] if by_examples else 1 for c in cohort], dtype=float)
        updates = [sgd(made, weights, c, round_number) for c in cohort]
        return weights + shares @ updates / shares.sum()

    check(made, step, TOLERANCE)


def test_fedsgd_is_one_full_gradient():
    made = planned(fv.fedsgd(rounds=ROUNDS, cohort=FOUR, local=rule(), by_examples=True))

    def step(weights, round_number, cohort):
        rate = made.local.learning_rate.of_round(round_number, 1)[0]
        pool = [records(made, c) for c in cohort]
        everything = [np.concatenate(part) for part in zip(*pool, strict=True)]
        return weights - rate * gradients(weights, *everything).mean(axis=0)

    check(made, step, TOLERANCE)


def test_fedprox_pulls_back_at_every_step():
    made = planned(fv.fedprox(rounds=ROUNDS, cohort=FOUR, local=rule(), penalty=0.8))

    def step(weights, round_number, cohort):
        pulled = [
            sgd(made, weights, c, round_number, lambda g, moved: g + 0.8 * moved) for c in cohort
        ]
        return weights + np.mean(pulled, axis=0)

    check(made, step, TOLERANCE)


@SILENT_OR_NOT
@pytest.mark.parametrize("law", fv.Noise)
def test_fu(law, noise):
    zeta, steps, order = 0.6, 3, 1 if law is fv.Noise.LAPLACE else 2
    local = fv.LocalTraining(fv.LearningRate(0.5, fv.Schedule.INVERSE, 8.0), steps=steps)
    made = planned(
        fv.client_noise(rounds=ROUNDS, cohort=TURNS, local=local, clip_norm=zeta, noise=law), noise
    )

    def step(weights, round_number, cohort):
        rates = [
            0.5 / (1 + k / 8.0) for k in range(round_number * steps, (round_number + 1) * steps)
        ]
        bound = zeta * sum(rates)  # Xi of theory 3, at s = 1
        uploads = []
        for client in cohort:
            theta = weights.copy()
            for rate in rates:
                whole = gradients(theta, *records(made, client)).mean(axis=0)
                theta -= rate * clipped(whole, zeta, order)
            sampler = laplace if law is fv.Noise.LAPLACE else gaussian
            stream = Randomness(SEED).stream("noise", round_number, int(client))
            w = sampler(stream, len(weights), noise * bound)
            uploads.append(theta - weights + w)
        return weights + np.mean(uploads, axis=0)

    assert list(made.sampling.draw(0)) == [0, 1, 2, 3]
    assert list(made.sampling.draw(1)) == [0, 1, 4, 5]
    check(made, step, TOLERANCE)


@SILENT_OR_NOT
@pytest.mark.parametrize("one_step", [False, True], ids=["gradient-noise", "dp-sgd"])
def test_hu_and_dp_sgd(one_step, noise):
    bound, gamma = 0.8, 3
    local = rule(batch_size=gamma, steps=5)
    build = fv.dp_sgd if one_step else fv.gradient_noise
    method = build(
        rounds=ROUNDS, cohort=BALANCED, local=local, clip_norm=bound, secure_sum=one_step
    )
    made = planned(method, noise)

    def step(weights, round_number, cohort):
        models = []
        for client in cohort:
            stream = Randomness(SEED).stream("gradient-noise", round_number, int(client))
            theta = weights.copy()
            taken = 0
            for k, inputs, targets in batches(made, client, round_number):
                each = [clipped(g, bound) for g in gradients(theta, inputs, targets)]
                mean = np.sum(each, axis=0) / gamma  # by gamma also for a short batch
                b = gaussian(stream, len(theta), noise * bound / gamma)
                theta = theta - made.local.learning_rate.of_round(round_number, k + 1)[k] * (
                    mean + b
                )
                taken += 1
            assert taken == (1 if one_step else 5)
            models.append(theta)
        return np.mean(models, axis=0)

    check(made, step, TOLERANCE)


def test_no_batch_of_hu_holds_a_record_twice_and_uses_are_counted_as_drawn():
    from fedveil.methods.parts.local_steps import local_steps

    made = planned(
        fv.gradient_noise(
            rounds=ROUNDS, cohort=BALANCED, local=rule(batch_size=3, steps=5), clip_norm=1.0
        )
    )
    assert made.context is not None
    most = 0
    for client in range(len(SIZES)):
        for round_number in range(4):
            touched = []
            for _, inputs, _ in batches(made, client, round_number):
                rows = [tuple(row) for row in inputs]
                assert len(set(rows)) == len(rows)
                touched += rows
            most = max(most, *(touched.count(row) for row in set(touched)))
    assert local_steps(made.context).uses == most


@SILENT_OR_NOT
@pytest.mark.parametrize("scheme", [fv.Scheme.FIXED, fv.Scheme.POISSON])
@pytest.mark.parametrize("sigma", [None, 0.7], ids=["dp-fed", "laplacian-smoothing"])
def test_liang(sigma, scheme, noise):
    ball = 0.25
    local = fv.LocalTraining(fv.LearningRate(0.4), epochs=2, batch_size=2)
    smoothing = None if sigma is None else fv.Smoothing(sigma)
    cohort = FOUR if scheme is fv.Scheme.FIXED else fv.CohortRule(scheme, rate=0.6)
    made = planned(
        fv.dp_fed(
            rounds=ROUNDS, cohort=cohort, local=local, clip=fv.Clip(ball), smoothing=smoothing
        ),
        noise,
    )
    m = 4 if scheme is fv.Scheme.FIXED else 0.6 * len(SIZES)  # expected, never the realised size

    def smooth(v):  # eq. 2
        d = np.zeros(len(v))
        d[[0, 1, -1]] = -2, 1, 1
        return np.fft.ifft(np.fft.fft(v) / (1 - (sigma or 0) * np.fft.fft(d))).real

    def step(weights, round_number, cohort):
        total = np.zeros_like(weights)
        for client in cohort:
            total += sgd(
                made, weights, client, round_number, after=lambda moved: clipped(moved, ball)
            )
        total += drawn("noise", round_number, len(total), noise * ball)
        parts = np.split(total, [CLASSES * FEATURES])
        return weights + np.concatenate([smooth(part) for part in parts]) / m

    check(made, step, TOLERANCE)


@SILENT_OR_NOT
@pytest.mark.parametrize(
    ("penalty", "sparsity"), [(0.9, 0.0), (0.0, 0.6), (0.9, 0.6)], ids=["BLUR", "LUS", "both"]
)
@pytest.mark.parametrize("shares", [False, True], ids=["central", "shares"])
def test_cheng(penalty, sparsity, shares, noise):
    bound = 0.15
    cohort = BALANCED if shares else fv.CohortRule(fv.Scheme.POISSON, rate=0.6)
    made = planned(
        fv.bounded_sparse(
            rounds=ROUNDS,
            cohort=cohort,
            local=rule(),
            clip=fv.Clip(bound),
            penalty=penalty,
            sparsity=sparsity,
            placement=fv.DistributedNoise() if shares else fv.CentralNoise(),
        ),
        noise,
    )
    expected_cohort = 4 if shares else 0.6 * len(SIZES)

    def blur(gradient, moved):
        return gradient + penalty * moved * (np.linalg.norm(moved) > bound)

    def lus(update, weights, client):
        final = gradients(weights + update, *records(made, client)).mean(axis=0)
        kept = update.copy()
        for part in (slice(0, CLASSES * FEATURES), slice(CLASSES * FEATURES, None)):
            size = len(update[part])
            s = size - math.floor(sparsity * size)
            utility = np.abs(final[part] * update[part])
            kept[part][utility < np.sort(utility)[-s]] = 0
        return kept

    def step(weights, round_number, cohort):
        total = np.zeros_like(weights)
        for client in cohort:
            update = lus(sgd(made, weights, client, round_number, blur), weights, client)
            total += clipped(update, bound)
            if shares:
                std = noise * bound / math.sqrt(len(cohort))
                total += drawn("noise", round_number, len(total), std, int(client))
        if not shares:
            total += drawn("noise", round_number, len(total), noise * bound)
        return weights + total / expected_cohort

    check(made, step, TOLERANCE)


def test_ddgauss():
    """Dense matrices instead of the fast transform, integers instead of tensors."""
    c = 0.2
    made = planned(fv.ddgauss(rounds=ROUNDS, cohort=BALANCED, local=rule(), clip=fv.Clip(c)), 2.0)
    assert made.pipeline.granularity is not None
    assert isinstance(made.noise, fv.DistributedNoise)
    d, width, n = CLASSES * FEATURES + CLASSES, 32, 4
    grid = made.noise.grid(fv.Clip(c))
    g, modulus, s = grid.granularity, 2**grid.bits, 2.0 * c / math.sqrt(n)
    (release,) = made.releases(ROUNDS)
    assert release.mechanism == fv.DiscreteGaussianSum(c, g, s, n, width, math.exp(-0.5))
    reach = release.mechanism.grid_sensitivity()[0]

    def step(weights, round_number, cohort):
        rotate = (
            scipy.linalg.hadamard(width) @ np.diag(signs(round_number, width)) / math.sqrt(width)
        )
        total = np.zeros(width, dtype=object)
        for client in cohort:
            update = np.zeros(width)
            update[:d] = clipped(sgd(made, weights, client, round_number), c)
            scaled = rotate @ update / g
            uniforms = Randomness(SEED).stream("rounding", round_number, int(client))
            while True:
                below = np.floor(scaled)
                rounded = below + (uniforms.uniforms(width) < scaled - below)
                if np.sum(rounded**2) <= reach**2:
                    break
            noise = discrete_gaussian(
                Randomness(SEED).stream("noise", round_number, int(client)), width, s / g
            )
            upload = [(int(x) + int(y)) % modulus for x, y in zip(rounded, noise, strict=True)]
            total = (total + np.array(upload, dtype=object)) % modulus
        centred = np.array([t - modulus if t >= modulus // 2 else t for t in total], dtype=float)
        return weights + (rotate.T @ (centred * g))[:d] / n

    check(made, step, TOLERANCE)


def signs(round_number: int, width: int) -> Vector:
    """A rotated unit vector is a column of the Hadamard matrix, times its sign."""
    rotated = (
        Rotation().forward(torch.eye(width), round_number).numpy()
    )  # rows: rotated unit vectors
    columns = scipy.linalg.hadamard(width) / math.sqrt(width)
    found = np.sign((rotated * columns).sum(axis=1))
    np.testing.assert_allclose(rotated, found[:, None] * columns, atol=1e-6)
    return found


@SILENT_OR_NOT
def test_ae_dpfl(noise):
    voting = fv.Voting(questions=8, epochs=3, batch_size=8, learning_rate=0.05)
    made = planned(fv.ae_dpfl(local=rule(epochs=6, steps=None), voting=voting), noise)
    public = made.federation.validation
    inputs = public.inputs[:8].astype(float)
    start, after = trajectory(made)

    histogram = np.zeros((8, CLASSES))
    for client in range(len(SIZES)):
        own = start + sgd(made, start.astype(float), client, 0)
        matrix, bias = own[: CLASSES * FEATURES].reshape(CLASSES, FEATURES), own[-CLASSES:]
        histogram[np.arange(8), (inputs @ matrix.T + bias).argmax(axis=1)] += 1
        std = noise * math.sqrt(8) / math.sqrt(len(SIZES))
        histogram += drawn("noise", 0, 8 * CLASSES, std, client).reshape(8, CLASSES)
    labels = histogram.argmax(axis=1)

    # Adam on the whole batch, from the public start; one batch holds all questions.
    weights, first, second = start.astype(float), 0.0, 0.0
    for t in range(1, 4):
        g = gradients(weights, inputs, labels).mean(axis=0)
        first, second = 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g**2
        weights = weights - 0.05 * (first / (1 - 0.9**t)) / (
            np.sqrt(second / (1 - 0.999**t)) + 1e-8
        )
    np.testing.assert_allclose(after, weights, rtol=2e-4, atol=1e-5)
