"""Which proof a method's guarantee rests on, and the numbers that follow, against closed forms."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from dp_accounting import gaussian_mechanism
from hypothesis import given, settings
from hypothesis import strategies as st

import fedveil as fv
from fedveil.methods.parts.certificate import non_expansive
from fedveil.methods.parts.gradient_noise import ConvexNoise, OneStepNoise
from fedveil.methods.parts.noisy_votes import VoteNoise

EVERYONE = fv.CohortRule(fv.Scheme.EVERYONE)
CLIENTS, RECORDS, FEATURES = 10, 20, 4
DELTA = 1e-5


def epsilon_of(mu: float, delta: float = DELTA) -> float:
    return float(gaussian_mechanism.get_epsilon_gaussian(1 / mu, delta))


def federation(classes: int = 3) -> fv.Federation:
    draw = np.random.default_rng(1)
    count = CLIENTS * RECORDS
    inputs = draw.normal(size=(count, FEATURES)).astype(np.float32)
    targets = draw.integers(0, max(classes, 1), size=count)
    task = fv.Task.CLASSIFICATION if classes else fv.Task.REGRESSION
    examples = fv.Examples(inputs, targets if classes else targets.astype(np.float32))
    public = fv.Examples(
        draw.normal(size=(500, FEATURES)).astype(np.float32), np.zeros(500, np.int64)
    )
    offsets = np.arange(0, count + 1, RECORDS)
    part = public if classes else None
    return fv.Federation(examples, offsets, examples, task, classes, validation=part)


def made(
    method: fv.Method,
    *,
    classes: int = 3,
    model: str = "auto",
    input_norm: float | None = None,
    noise: float | None = 1.0,
    epsilon: float | None = None,
    arithmetic: fv.Arithmetic = fv.Arithmetic.IDEALISED,
    delta: float = DELTA,
) -> fv.Plan:
    data = federation(classes)
    module = fv.build(model, data, input_norm=input_norm)
    budget = fv.Budget(epsilon=epsilon, delta=delta, noise_multiplier=None if epsilon else noise)
    return fv.plan(method, data, module, budget=budget, seed=1, arithmetic=arithmetic)


def hu_method(steps: int, clip: float, rate: float = 0.05, **fields: object) -> fv.Method:
    local = fv.LocalTraining(
        fv.LearningRate(rate), steps=steps, batch_size=5
    )  # four batches an epoch
    chosen = {"rounds": 3, "cohort": EVERYONE, "local": local, "clip_norm": clip} | fields
    return fv.gradient_noise(**chosen)


def proof_of(planned: fv.Plan) -> type:
    return type(planned.noise)


def check(planned: fv.Plan, mu: float, unit: fv.Unit, trust: fv.Trust) -> None:
    guarantee = planned.guarantee
    assert guarantee.epsilon == pytest.approx(epsilon_of(mu, guarantee.delta), rel=1e-6)
    assert (guarantee.unit, guarantee.trust) == (unit, trust)


# G / (gamma sigma) = 1 / z = 1 in all of these; r = 10 devices, 3 rounds.


@pytest.mark.parametrize("secure", [True, False])
def test_hu_variant_1_undivided_for_any_model(secure):
    planned = made(hu_method(6, 0.5, secure_sum=secure), model="mlp")  # e = ceil(6 / 4) = 2
    assert proof_of(planned) is fv.GradientNoise
    check(planned, math.sqrt(3 * 2) * 2, fv.Unit.RECORD, fv.Trust.LOCAL)


@pytest.mark.parametrize("colluders", [0, 4])
def test_hu_variant_2_one_step_counts_honest_shares(colluders):
    planned = made(hu_method(1, 0.5, colluders=colluders), model="mlp")
    assert proof_of(planned) is OneStepNoise
    mu = math.sqrt(3) * 2 / math.sqrt(CLIENTS - colluders)
    check(planned, mu, fv.Unit.RECORD, fv.Trust.DISTRIBUTED)


@pytest.mark.parametrize(("classes", "clip"), [(2, 0.5), (0, 0.5), (3, 3.3)])
@pytest.mark.parametrize("colluders", [0, 4])
def test_hu_variant_3_convex_steps(classes, clip, colluders):
    """mu = 2 e / z * min(1 / sqrt(e), 1 / sqrt(h)), e = 2."""
    planned = made(hu_method(6, clip, colluders=colluders), classes=classes, input_norm=2.0)
    assert proof_of(planned) is ConvexNoise
    mu = math.sqrt(3) * 2 * 2 / math.sqrt(CLIENTS - colluders)
    check(planned, mu, fv.Unit.RECORD, fv.Trust.DISTRIBUTED)


def test_hu_variant_3_with_rates_that_fall_within_a_round():
    rate = fv.LearningRate(0.05, fv.Schedule.INVERSE, 10.0)
    local = fv.LocalTraining(rate, steps=6, batch_size=5)
    planned = made(
        fv.gradient_noise(rounds=3, cohort=EVERYONE, local=local, clip_norm=0.5),
        classes=2,
        input_norm=2.0,
    )
    rates = rate.of_round(0, 6)
    drift = (rates[0] + rates[1]) / rates[-1]  # the two largest of e = 2 uses, over the last
    mu = math.sqrt(3) * 2 * drift / math.sqrt(CLIENTS)
    check(planned, mu, fv.Unit.RECORD, fv.Trust.DISTRIBUTED)


def test_hu_variant_4_the_whole_update_for_any_model():
    planned = made(hu_method(6, 0.5, unit=fv.Unit.CLIENT, colluders=4), model="mlp", noise=2.0)
    check(planned, math.sqrt(3) / 2 * math.sqrt(10 / 6), fv.Unit.CLIENT, fv.Trust.DISTRIBUTED)


FALLBACKS = {
    "no bound on inputs": (hu_method(6, 0.5), 2, None),
    "a step that expands": (hu_method(6, 0.5, rate=5.0), 2, 2.0),
    "momentum": (
        replace(hu_method(6, 0.5), local=replace(hu_method(6, 0.5).local, momentum=0.5)),
        2,
        2.0,
    ),
    "softmax with a clip that acts": (hu_method(6, 0.5), 3, 2.0),
    "fewer honest devices than touches": (
        hu_method(6, 0.5, cohort=fv.CohortRule(fv.Scheme.BALANCED, size=4), colluders=2),
        2,
        2.0,
    ),
}


@pytest.mark.parametrize(("method", "classes", "norm"), FALLBACKS.values(), ids=FALLBACKS.keys())
def test_without_a_certificate_nothing_is_divided(method, classes, norm):
    planned = made(method, classes=classes, input_norm=norm)
    assert proof_of(planned) is fv.GradientNoise
    assert planned.guarantee.trust is fv.Trust.LOCAL


def test_dp_sgd_counts_the_cohort_and_not_the_population():
    local = fv.LocalTraining(fv.LearningRate(0.1), steps=1, batch_size=5)
    cohort = fv.CohortRule(fv.Scheme.BALANCED, size=5)
    planned = made(fv.dp_sgd(rounds=4, cohort=cohort, local=local, clip_norm=0.5))
    check(planned, math.sqrt(2) * 2 / math.sqrt(5), fv.Unit.RECORD, fv.Trust.DISTRIBUTED)


@cache
def hu_context(classes: int) -> fv.NoiseContext:
    """Of a plan that the certificate's own settings take the place in."""
    context = made(hu_method(2, 1.0, rate=1e-9), classes=classes, input_norm=1.0).context
    assert context is not None
    return context


@settings(max_examples=100)
@given(
    st.integers(0, 2**32 - 1),
    st.floats(0.05, 2.0),
    st.floats(0.05, 3.0),
    st.sampled_from(["two classes", "squared", "softmax"]),
)
def test_certified_steps_bring_no_two_weight_vectors_further_apart(seed, norm, clip, kind):
    """One step at the largest certified rate, on a batch of clipped gradients, in numpy."""
    classes = {"two classes": 2, "squared": 0, "softmax": 4}[kind]
    if kind == "softmax":
        clip = math.sqrt(2) * math.hypot(norm, 1.0)
    draw = np.random.default_rng(seed)
    data = federation(classes)
    probe = fv.LocalTraining(
        fv.LearningRate(1e-9),
        steps=2,
        batch_size=5,
        gradient_clip=fv.GradientClip(clip, per_example=True),
    )
    context = replace(hu_context(classes), module=fv.build("auto", data, input_norm=norm))
    certificate = non_expansive(replace(context, local=probe))
    rate = 2 / certificate.smoothness * (1 - 1e-12)
    allowed = replace(probe, learning_rate=fv.LearningRate(rate))
    assert non_expansive(replace(context, local=allowed)) is not None
    refused = replace(probe, learning_rate=fv.LearningRate(1.01 * rate))
    assert non_expansive(replace(context, local=refused)) is None

    outputs = max(classes, 1)
    inputs = draw.normal(size=(5, FEATURES)) * draw.uniform(0.1, 3)
    inputs *= np.minimum(1, norm / np.linalg.norm(inputs, axis=1))[:, None]
    inputs = np.concatenate([inputs, np.ones((5, 1))], axis=1)  # the bias
    targets = draw.integers(0, outputs, size=5) if classes else draw.normal(size=5) * 3

    def step(weights):
        scores = inputs @ weights.T
        if classes:
            odds = np.exp(scores - scores.max(axis=1, keepdims=True))
            errors = odds / odds.sum(axis=1, keepdims=True) - np.eye(outputs)[targets]
        else:
            errors = scores - targets[:, None]
        each = np.einsum("nc,nf->ncf", errors, inputs)
        lengths = np.linalg.norm(each, axis=(1, 2))
        each *= np.minimum(1, clip / np.maximum(lengths, 1e-300))[:, None, None]
        return weights - rate * each.sum(axis=0) / 5

    first = draw.normal(size=(outputs, FEATURES + 1)) * draw.uniform(0.01, 5)
    second = first + draw.normal(size=first.shape) * draw.uniform(1e-3, 5)
    before, after = np.linalg.norm(first - second), np.linalg.norm(step(first) - step(second))
    assert after <= before * (1 + 1e-9)
    assert data.classes == classes


@pytest.mark.parametrize(
    ("adjacency", "factor"), [(fv.Adjacency.REPLACE, 2), (fv.Adjacency.ZERO_OUT, 1)]
)
def test_fu_pays_for_rounded_up_turns_and_for_the_adjacency(adjacency, factor):
    cohort = fv.CohortRule(fv.Scheme.ROUND_ROBIN, size=4)
    local = fv.LocalTraining(fv.LearningRate(0.3, fv.Schedule.INVERSE, 5.0), steps=3)
    method = fv.client_noise(
        rounds=6, cohort=cohort, local=local, clip_norm=0.5, adjacency=adjacency
    )
    turns = 3  # ceil(4 * 6 / 10)
    check(made(method, noise=5.0), math.sqrt(turns) * factor / 5, fv.Unit.CLIENT, fv.Trust.LOCAL)
    laplace = fv.client_noise(
        rounds=6,
        cohort=cohort,
        local=local,
        clip_norm=0.5,
        noise=fv.Noise.LAPLACE,
        adjacency=adjacency,
    )
    pure = made(laplace, noise=7.0, delta=0.0)
    assert pure.guarantee.epsilon == pytest.approx(turns * factor / 7, rel=1e-9)  # golden 13


def test_distributed_noise_on_golden_numbers():
    """Golden 36 and 37: z for (8, 1e-5) and ten participations, and with half the shares."""
    local = fv.LocalTraining(fv.LearningRate(0.1), steps=1)
    method = fv.dp_fedavg(
        rounds=10, cohort=EVERYONE, local=local, clip=fv.Clip(1.0), placement=fv.DistributedNoise()
    )
    planned = made(method, epsilon=8.0)
    assert planned.noise_multiplier == pytest.approx(1.8981, rel=5e-4)
    half = replace(method, placement=fv.DistributedNoise(colluders=CLIENTS // 2))
    missing = made(half, noise=1.8981).guarantee
    assert missing.epsilon == pytest.approx(12.256, rel=5e-4)


@pytest.mark.parametrize(
    ("adjacency", "epsilon"), [(fv.Adjacency.ZERO_OUT, 1.7601), (fv.Adjacency.REPLACE, 2.5944)]
)
def test_ae_dpfl_on_golden_numbers(adjacency, epsilon):
    """Golden 35: 500 questions, noise of std 50 on every count."""
    method = fv.ae_dpfl(
        local=fv.LocalTraining(fv.LearningRate(0.1), steps=1),
        placement=VoteNoise(adjacency=adjacency),
    )
    guarantee = made(method, noise=50 / math.sqrt(500)).guarantee
    assert guarantee.epsilon == pytest.approx(epsilon, rel=5e-4)


def test_momentum_voids_the_certificate():
    method = hu_method(6, 0.5)
    method = replace(method, local=replace(method.local, momentum=0.5))
    assert proof_of(made(method, classes=2, input_norm=2.0)) is fv.GradientNoise


def test_exact_arithmetic_costs_little_more_noise():
    for steps, classes in ((1, 3), (6, 2)):
        method = hu_method(steps, 0.5)
        noises = [
            made(
                method, classes=classes, input_norm=2.0, epsilon=4.0, arithmetic=arithmetic
            ).noise_multiplier
            for arithmetic in (fv.Arithmetic.IDEALISED, fv.Arithmetic.EXACT)
        ]
        # Discrete shares are accounted by Rényi orders: some per cent above the exact Gaussian.
        assert noises[0] < noises[1] < 1.12 * noises[0]
