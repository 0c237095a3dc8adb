"""What runs in round t is at most what was accounted, and whatever cannot be run is not planned."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.methods.reference import federation

import fedveil as fv
from fedveil.core.randomness import Randomness
from fedveil.methods.parts.clip_rule import StepBound
from fedveil.methods.parts.gradient_noise import ConvexNoise
from fedveil.privacy.gradient_perturbation import GridGradients
from fedveil.run.sums import pipeline_in, update_sum

EVERYONE = fv.CohortRule(fv.Scheme.EVERYONE)
FALLING = {
    "inverse": fv.LearningRate(0.3, fv.Schedule.INVERSE, 3.0),
    "inverse-sqrt": fv.LearningRate(0.3, fv.Schedule.INVERSE_SQRT, 2.0),
    "exponential": fv.LearningRate(0.3, fv.Schedule.EXPONENTIAL, 5.0),
    "cosine": fv.LearningRate(0.3, fv.Schedule.COSINE, 40.0),
}
ROUNDS = 40
CLIP = 0.5


def made(
    method: fv.Method,
    *,
    sizes: tuple[int, ...] = (6,) * 12,
    classes: int = 2,
    noise: float = 2.0,
    input_norm: float | None = None,
    model: str = "logistic",
) -> fv.Plan:
    data = federation(classes, sizes)
    module = fv.build(model, data, input_norm=input_norm)
    budget = fv.Budget(noise_multiplier=noise)
    return fv.plan(method, data, module, budget=budget, arithmetic=fv.Arithmetic.EXACT)


def accounted(made: fv.Plan) -> fv.DiscreteGaussianSum | GridGradients:
    (release,) = made.releases(made.method.rounds)
    assert isinstance(release.mechanism, (fv.DiscreteGaussianSum, GridGradients))
    return release.mechanism


def used(made: fv.Plan, number: int, state: dict[str, torch.Tensor]) -> tuple[float, float, float]:
    """Clip, grid and share of noise of a round, from the objects that take its sum."""
    updates = update_sum(made, number, np.zeros(0, np.int64), Randomness(0), state)
    pipeline, integers = updates.pipeline, updates.integers
    assert pipeline.granularity == integers.grid.granularity
    return pipeline.clip.norm, integers.grid.granularity, integers.share_std


@pytest.mark.parametrize("rate", FALLING.values(), ids=FALLING.keys())
def test_no_round_of_one_step_costs_more_than_was_accounted(rate):
    """A falling rate takes clip and noise down alike, but grids come in powers of two."""
    local = fv.LocalTraining(rate, steps=1, batch_size=3)
    planned = made(fv.gradient_noise(rounds=ROUNDS, cohort=EVERYONE, local=local, clip_norm=CLIP))
    assert planned.guarantee.certified
    assert planned.guarantee.trust is fv.Trust.DISTRIBUTED
    charged = accounted(planned)
    assert isinstance(charged, fv.DiscreteGaussianSum)
    root, first = math.sqrt(charged.dimension), rate.of_round(0, 1)[0]
    bound = charged.clip_norm / first  # what a record moves a mean gradient by, rounding included
    assert bound >= CLIP / 3
    most = charged.grid_sensitivity()[0] * charged.granularity / charged.share_std
    for number in range(ROUNDS):
        step = rate.of_round(number, 1)[0]
        _, grid, std = used(planned, number, {})
        assert (step * bound + grid * root) / std <= most
        assert std / grid >= charged.share_std / charged.granularity  # shares as close to Gaussian


@pytest.mark.parametrize("rate", FALLING.values(), ids=FALLING.keys())
@pytest.mark.parametrize("adjacency", [fv.Adjacency.REPLACE, fv.Adjacency.ZERO_OUT])
def test_no_round_of_convex_steps_costs_more_than_was_accounted(rate, adjacency):
    local = fv.LocalTraining(rate, steps=5, batch_size=3)
    method = fv.gradient_noise(
        rounds=ROUNDS, cohort=EVERYONE, local=local, clip_norm=CLIP, adjacency=adjacency
    )
    planned = made(method, input_norm=1.0)
    charged = accounted(planned)
    assert isinstance(charged, GridGradients)
    factor, root = adjacency.sensitivity_factor, math.sqrt(charged.dimension)
    most = charged.grid_sensitivity(factor)[0] / charged.share_std
    for number in range(ROUNDS):
        steps = rate.of_round(number, 5)
        _, grid, std = used(planned, number, {})
        # Three of six records a step: each is used three times at most, at the largest rates.
        apart = factor * math.fsum(sorted(steps)[-3:]) * charged.clip_norm / 3
        assert (apart + grid * root) / std <= most * (1 + 1e-12)
        assert std / grid >= charged.share_std * (1 - 1e-12)
        assert std == pytest.approx(steps[-1] * charged.gradient_std, rel=1e-12)


@pytest.mark.parametrize("sizes", [(6,) * 12, (6,) * 6 + (9,) * 6], ids=["alike", "not alike"])
def test_clients_with_rates_of_their_own_have_no_certificate(sizes):
    """Epochs over batches with a rate that falls from step to step: a small client is ahead.

    It is then further from its neighbour than the smallest noise of the last step covers.
    """
    local = fv.LocalTraining(FALLING["inverse"], epochs=2, batch_size=3)
    planned = made(
        fv.gradient_noise(rounds=ROUNDS, cohort=EVERYONE, local=local, clip_norm=CLIP),
        sizes=sizes,
        input_norm=1.0,
    )
    alike = len(set(sizes)) == 1
    assert type(planned.noise) is (ConvexNoise if alike else fv.GradientNoise)
    # At a constant rate all clients move alike, however many steps they take.
    steady = replace(local, learning_rate=fv.LearningRate(0.3))
    method = fv.gradient_noise(rounds=ROUNDS, cohort=EVERYONE, local=steady, clip_norm=CLIP)
    constant = made(method, sizes=sizes, input_norm=1.0)
    assert type(constant.noise) is ConvexNoise
    if not alike:
        slow, fast = (FALLING["inverse"].of_round(9, steps) for steps in (6, 4))
        assert sum(fast[:2]) / slow[-1] > sum(slow[:2]) / slow[-1] * 1.2


@settings(max_examples=8)
@given(st.floats(1e-3, 1e3), st.floats(0.05, 20.0))
def test_no_tracked_clip_costs_more_than_the_first(first, noise):
    tracking = fv.AdaptiveClipping(fv.Clip(first), bit_noise=2.0)
    common = {"rounds": 2, "cohort": EVERYONE, "local": STEP, "tracking": tracking}
    for method in (
        fv.ddgauss(clip=fv.Clip(first), **common),
        fv.dp_fedavg(clip=fv.Clip(first), placement=fv.DistributedNoise(), **common),
    ):
        planned = made(method, noise=noise)
        update, count = planned.releases(2)
        assert isinstance(count.mechanism, fv.DiscreteGaussianSum)
        assert (count.mechanism.clip_norm, count.mechanism.dimension) == (0.5, 1)
        charged = update.mechanism
        assert isinstance(charged, fv.DiscreteGaussianSum)
        l2, l1 = (s * charged.granularity / charged.share_std for s in charged.grid_sensitivity())
        for clip in tracking.clips():
            state = {"clip_norm": torch.tensor([clip.norm], dtype=torch.float64)}
            norm, grid, std = used(planned, 1, state)
            assert norm == pytest.approx(clip.norm, rel=1e-12)
            now = replace(charged, clip_norm=norm, granularity=grid, share_std=std)
            again, other = (s * grid / std for s in now.grid_sensitivity())
            assert again <= l2 * (1 + 1e-12)
            assert std / grid >= charged.share_std / charged.granularity * (1 - 1e-12)
            if grid / norm == charged.granularity / charged.clip_norm:
                assert other <= l1 * (1 + 1e-12)


STEP = fv.LocalTraining(fv.LearningRate(0.1), steps=1)


@pytest.mark.parametrize("noise", [fv.Noise.GAUSSIAN, fv.Noise.LAPLACE])
@pytest.mark.parametrize("rate", FALLING.values(), ids=FALLING.keys())
def test_noise_follows_the_bound_of_every_round(rate, noise):
    local = fv.LocalTraining(rate, steps=3)
    method = fv.client_noise(
        rounds=ROUNDS, cohort=EVERYONE, local=local, clip_norm=CLIP, noise=noise
    )
    planned = made(method)
    for number in range(ROUNDS):
        updates = update_sum(planned, number, np.zeros(0, np.int64), Randomness(0), {})
        pipeline, steps = updates.pipeline, planned.noise.noise_steps(updates)
        assert pipeline.clip.norm >= CLIP * math.fsum(rate.of_round(number, 3)) * (1 - 1e-12)
        assert steps * pipeline.granularity == pytest.approx(2.0 * pipeline.clip.norm, rel=1e-12)


# ---- what cannot be run is not planned ----------------------------------------------------


def falling_to_zero(name: str, decay: float) -> fv.Method:
    local = fv.LocalTraining(fv.LearningRate(0.3, fv.Schedule.COSINE, decay), steps=1, batch_size=3)
    common = {"rounds": 6, "cohort": EVERYONE, "local": local, "clip_norm": CLIP}
    makers = {
        "client-noise": lambda: fv.client_noise(**common),
        "dp-sgd": lambda: fv.dp_sgd(**common),
        "gradient-noise alone": lambda: fv.gradient_noise(**common, secure_sum=False),
    }
    return makers[name]()


@pytest.mark.parametrize("name", ["client-noise", "dp-sgd", "gradient-noise alone"])
def test_a_rate_that_reaches_zero_is_refused_before_anything_is_spent(name):
    """It used to die in the round itself, after that had been reserved."""
    for decay, first in ((1.0, 2), (5.0, 6)):
        with pytest.raises(fv.ConfigError, match=rf"training\.decay.*round {first} of 6"):
            made(falling_to_zero(name, decay))
    run = fv.Run(made(falling_to_zero(name, 6.0)))
    assert len(list(run)) == 6
    run.close()


UNDERFLOWS = fv.LearningRate(0.3, fv.Schedule.EXPONENTIAL, 1.0)


def averaged(**settings: object) -> fv.Method:
    return fv.dp_fedavg(rounds=2, cohort=EVERYONE, local=STEP, clip=fv.Clip(1.0), **settings)


def local(rate: fv.LearningRate, steps: int = 1, **settings: object) -> dict[str, Any]:
    own = fv.LocalTraining(rate, steps=steps, **settings)
    return {"cohort": EVERYONE, "local": own, "clip_norm": CLIP}


HOPELESS: dict[str, tuple[fv.Method, float, str]] = {
    "a rate that underflows": (
        fv.client_noise(rounds=2000, **local(UNDERFLOWS)),
        2.0,
        "training",
    ),
    "steps finer than single precision": (
        fv.dp_sgd(rounds=100, **local(UNDERFLOWS, batch_size=3)),
        2.0,
        "single precision",
    ),
    "noise that no sampler draws": (
        fv.gradient_noise(
            rounds=2, secure_sum=False, **local(fv.LearningRate(0.3), 3, batch_size=3)
        ),
        1e9,
        "noise_multiplier",
    ),
    "a count beyond integers": (
        averaged(tracking=fv.AdaptiveClipping(fv.Clip(1.0), bit_noise=1e30)),
        2.0,
        "beyond 64-bit",
    ),
}


@pytest.mark.parametrize(("method", "noise", "why"), HOPELESS.values(), ids=HOPELESS.keys())
def test_a_plan_with_a_round_that_cannot_be_run_is_refused(method, noise, why):
    with pytest.raises(fv.FedveilError, match=why):
        made(method, noise=noise)


@pytest.mark.parametrize("batch", [3, 10**6])
def test_no_upload_of_one_step_is_ever_clipped(batch):
    """A clip that acts could bring two rounded uploads further apart than was accounted."""
    local = fv.LocalTraining(fv.LearningRate(0.3), steps=1, batch_size=batch)
    planned = made(fv.dp_sgd(rounds=2, cohort=EVERYONE, local=local, clip_norm=CLIP))
    clip, grid, _ = used(planned, 0, {})
    assert clip > 0.3 * CLIP * 1.01  # the longest mean of clipped gradients, times the rate
    assert clip / grid <= 2.0**29  # squares still add up in 64 bits
    charged = accounted(planned)
    assert grid <= charged.granularity


@pytest.mark.parametrize("batch", [3, 10**6])
def test_uploads_that_are_private_already_fit_their_words(batch):
    local = fv.LocalTraining(fv.LearningRate(0.3), steps=3, batch_size=batch)
    planned = made(
        fv.gradient_noise(rounds=2, cohort=EVERYONE, local=local, clip_norm=CLIP),
        model="mlp",
        classes=3,
    )
    assert planned.guarantee.trust is fv.Trust.LOCAL
    clip, grid, std = used(planned, 0, {})
    assert std == 0.0
    noise = 0.3 * math.sqrt(3) * planned.local.gradient_noise
    assert noise / 2048 <= grid <= noise / 1024  # nothing is lost
    # Room for three clipped gradients with noise, unless words are too short for it.
    wanted = 3 * 0.3 * CLIP
    assert clip == 2.0**29 * grid if batch > 3 else wanted < clip < 2.0**29 * grid


def test_rounding_beside_large_weights_is_why_one_step_goes_without_decay():
    """g + decay * w in single precision: neighbours' uploads come apart by steps of w's size."""
    weights = torch.full((1000,), 3e5)
    mean = torch.zeros(2, 1000)
    mean[1] = 1e-3 / math.sqrt(1000)  # a record moves the mean gradient by 1e-3 in all
    apart = (mean + 0.01 * weights).diff(dim=0).norm()
    assert apart == 0 or apart > 1.5e-3
    local = fv.LocalTraining(fv.LearningRate(0.3), steps=1, batch_size=3, weight_decay=0.01)
    method = fv.dp_sgd(rounds=2, cohort=EVERYONE, local=local, clip_norm=CLIP)
    with pytest.raises(fv.PrivacyRefusal, match="weight_decay"):
        made(method)
    alone = replace(method, placement=fv.GradientNoise(secure_sum=False))
    assert made(alone).guarantee is not None  # there the noise comes before the decay


def test_nothing_may_follow_a_client_s_own_noise_in_a_sum():
    """Projected after its noise, an upload is no longer a summand plus noise."""
    local = fv.LocalTraining(fv.LearningRate(0.3), steps=1, batch_size=3, projection_radius=0.1)
    method = fv.dp_sgd(rounds=2, cohort=EVERYONE, local=local, clip_norm=CLIP)
    data = federation(2, (6,) * 12)
    planned = fv.plan(
        method, data, fv.build("logistic", data), budget=fv.Budget(noise_multiplier=1.0), seed=1,
        arithmetic=fv.Arithmetic.IDEALISED,
    )  # fmt: skip
    assert planned.guarantee.trust is fv.Trust.LOCAL


# ---- clip rules and grids -----------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        *({"quantile": wrong} for wrong in (0.0, 1.0, -0.1, 1.1, math.nan)),
        *({"rate": wrong} for wrong in (-0.1, math.inf, math.nan)),
        *({"bit_noise": wrong} for wrong in (0.0, math.inf, -1.0)),
    ],
    ids=str,
)
def test_clip_tracking_takes_shares_and_noise_within_their_ranges(fields):
    with pytest.raises(fv.FedveilError, match=r"privacy\.clip_"):
        fv.AdaptiveClipping(fv.Clip(1.0), **fields)
    assert fv.AdaptiveClipping(fv.Clip(1.0), rate=0.0).rate == 0.0


def test_a_bound_of_steps_needs_steps_that_are_public_and_no_longer_than_their_clip():
    bound = StepBound(0.5)
    with pytest.raises(fv.PrivacyRefusal, match="batch_size"):
        bound.clip(fv.LocalTraining(fv.LearningRate(0.3), epochs=2, batch_size=3), 0, {})
    for longer in ({"momentum": 0.5}, {"weight_decay": 0.1}, {"penalty": 0.1}):
        with pytest.raises(fv.PrivacyRefusal, match="lengthen"):
            bound.clip(fv.LocalTraining(fv.LearningRate(0.3), steps=2, **longer), 0, {})
    assert bound.clip(
        fv.LocalTraining(fv.LearningRate(0.3), steps=2, batch_size=3), 0, {}
    ) == fv.Clip(0.3)
    assert bound.clip(fv.LocalTraining(fv.LearningRate(0.3), epochs=2), 0, {}) == fv.Clip(0.3)


@pytest.mark.parametrize("rate", [2e3, 1e300])
def test_no_rate_of_a_tracked_clip_ends_a_round_that_was_paid_for(rate):
    tracking = fv.AdaptiveClipping(fv.Clip(2.0), rate=rate)
    for count, end in ((-10.0, 2e3), (10.0, 2e-3)):
        state, _ = tracking.follow(count, 10.0, fv.Clip(2.0), {})
        assert float(state["clip_norm"]) == pytest.approx(end)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_tracked_clip_stays_where_every_grid_was_tried(share):
    tracking = fv.AdaptiveClipping(fv.Clip(2.0), quantile=0.5, rate=3.0)
    allowed = [clip.norm for clip in tracking.clips()]
    assert min(allowed) <= 2.0 / 1000 < 2.0 * 1000 <= max(allowed)
    state: dict[str, torch.Tensor] = {}
    for number in range(30):
        clip = tracking.clip(STEP, number, state)
        assert any(math.isclose(clip.norm, one, rel_tol=1e-12) for one in allowed)
        state, _ = tracking.follow((share - 0.5) * 10, 10, clip, state)
    last = float(state["clip_norm"])
    assert last == pytest.approx(2.0 * 1000 if share == 0.0 else 2.0 / 1000)


@pytest.mark.parametrize("clip", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("noise", [1e-3, 1.0, 1e3])
def test_rounding_adds_next_to_nothing_to_the_noise(clip, noise):
    method = fv.dp_fedavg(rounds=1, cohort=EVERYONE, local=STEP, clip=fv.Clip(clip))
    planned = made(method, noise=noise)
    grid = pipeline_in(planned, 0, {}).granularity
    assert 13 * grid**2 / 12 <= 1e-8 * (noise * clip) ** 2  # twelve updates and the noise itself
    assert grid <= clip * 2.0**-20
    assert np.log2(grid) % 1 == 0


class Unready:
    """A server's step that needs what it never kept."""

    def start(self, weights: torch.Tensor) -> dict[str, torch.Tensor]:
        return {}

    def step(
        self,
        weights: torch.Tensor,
        update: torch.Tensor,
        state: dict[str, torch.Tensor],
        round_number: int,
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        return weights + state["velocity"], state


def test_a_server_that_cannot_take_its_step_is_found_before_anything_is_spent():
    local, clip = STEP, fv.Clip(1.0)
    method = fv.dp_fedavg(rounds=1, cohort=EVERYONE, local=local, clip=clip, optimizer=Unready())
    with pytest.raises(fv.ConfigError, match="server"):
        made(method)
