"""Released noise has the planned variance, coordinate by coordinate, in every mode.

Every mode releases an empty sum many times. With seeds fixed the tests are deterministic; before
they were, each had a false-alarm rate of about 1e-7 (Bonferroni over coordinates).
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from tests.engines.sums import sum_of
from tests.methods.reference import SEED, SIZES, planned, rule

import fedveil as fv
from fedveil.core.randomness import Randomness
from fedveil.methods.parts.noise_placement import Drawn
from fedveil.methods.parts.noisy_votes import VoteNoise
from fedveil.run.sums import update_sum
from fedveil.training.client.rotation import Rotation
from fedveil.training.engines.choose import build_engine
from fedveil.training.engines.contract import Job, RoundRequest

Z, C = 0.9, 0.3
N = len(SIZES)
EVERYONE = fv.CohortRule(fv.Scheme.EVERYONE)
FALSE_ALARM = 1e-7

# Noise on the sum over everybody: std / (Z C).
UPDATES: dict[str, tuple[fv.NoisePlacement, float]] = {
    "central gaussian": (fv.CentralNoise(), 1.0),
    "central laplace": (fv.CentralNoise(fv.Noise.LAPLACE), math.sqrt(2)),
    "local gaussian": (fv.LocalNoise(), math.sqrt(N)),
    "local laplace": (fv.LocalNoise(fv.Noise.LAPLACE), math.sqrt(2 * N)),
    "shares": (fv.DistributedNoise(), 1.0),
    "rotated shares": (fv.DistributedNoise(Rotation()), 1.0),
}


def released(made: fv.Plan, count: int) -> np.ndarray:
    """What leaves when everybody's contribution is zero, [count, width]."""
    kind = torch.float64 if made.pipeline.granularity is None else torch.int64
    nothing, clients = torch.zeros(made.pipeline.width(made.layout), dtype=kind), np.arange(N)
    rows = [
        update_sum(made, number, clients, Randomness(SEED), {}).protect(nothing, clients).numpy()
        for number in range(count)
    ]
    return np.array(rows, dtype=float)


def check_std(rows: np.ndarray, std: float, kurtosis: float = 3.0) -> None:
    """Every column has this std, mean zero, and no correlation with its neighbour."""
    count, width = rows.shape
    limit = stats.norm.isf(FALSE_ALARM / (3 * width) / 2)
    spread = math.sqrt((kurtosis - 1) / count)  # of the mean square, relative
    assert np.all(np.abs(np.mean(rows**2, axis=0) / std**2 - 1) < limit * spread)
    assert np.all(np.abs(rows.mean(axis=0)) < limit * std / math.sqrt(count))
    together = np.mean(rows[:, 1:] * rows[:, :-1], axis=0) / std**2
    assert np.all(np.abs(together) < limit / math.sqrt(count))
    assert limit * spread < 0.5  # the test can fail


@pytest.mark.parametrize("arithmetic", fv.Arithmetic)
@pytest.mark.parametrize(("placement", "factor"), UPDATES.values(), ids=UPDATES.keys())
def test_noise_on_updates(placement, factor, arithmetic):
    order = 1 if getattr(placement, "noise", None) is fv.Noise.LAPLACE else 2
    method = fv.dp_fedavg(
        rounds=2, cohort=EVERYONE, local=rule(), clip=fv.Clip(C, order), placement=placement
    )
    made = planned(method, Z, arithmetic)
    assert (made.pipeline.granularity is None) == (
        arithmetic is fv.Arithmetic.IDEALISED and getattr(placement, "rotation", None) is None
    )
    kurtosis = 6.0 if order == 1 else 3.0
    check_std(released(made, 1000 if order == 1 else 320), Z * C * factor, kurtosis)


@pytest.mark.parametrize("tracked", [False, True], ids=["updates", "counts"])
@pytest.mark.parametrize("placement", [p for p, _ in UPDATES.values()], ids=UPDATES.keys())
def test_uploads_across_machines_sum_to_what_one_machine_releases(placement, tracked):
    """Bit for bit: `decode` of all `upload`s is `protect` of the sum, whoever draws the noise."""
    order = 1 if getattr(placement, "noise", None) is fv.Noise.LAPLACE else 2
    clip = fv.Clip(C, order)
    method = fv.dp_fedavg(
        rounds=2,
        cohort=EVERYONE,
        local=rule(),
        clip=clip,
        placement=placement,
        tracking=fv.AdaptiveClipping(clip) if tracked else None,
    )
    made = planned(method, Z, fv.Arithmetic.EXACT)
    at = update_sum(made, 1, np.arange(N), Randomness(SEED), {})
    if tracked:
        assert at.count is not None
        at = at.count
    rows = np.random.default_rng(SEED).integers(-(2**12), 2**12, (N, at.width))
    sent = sum(at.upload(client, row) for client, row in enumerate(rows))
    together = at.protect(torch.from_numpy(rows.sum(axis=0)), at.cohort)
    assert torch.equal(at.decode(sent), together)
    trusted = made.noise.drawn is Drawn.BY_SERVER
    assert np.array_equal(at.upload(0, rows[0]), rows[0]) == trusted  # bare only for a trusted one


@pytest.mark.parametrize("trust", [fv.Trust.CENTRAL, fv.Trust.DISTRIBUTED])
@pytest.mark.parametrize("arithmetic", fv.Arithmetic)
def test_noise_on_votes(trust, arithmetic):
    voting = fv.Voting(questions=4)
    made = planned(
        fv.ae_dpfl(local=rule(), voting=voting, placement=VoteNoise(trust)), Z, arithmetic
    )
    check_std(released(made, 320), Z * math.sqrt(4))


def noisy_updates(made: fv.Plan, count: int) -> np.ndarray:
    """Released sums of rounds that start at the same weights, [count, parameters]."""
    job = Job(
        made.federation, made.module, made.layout, made.local, made.pipeline, Randomness(SEED)
    )
    engine = build_engine(job)
    rows = []
    for round_number in range(count):
        cohort = np.arange(N)
        result = sum_of(engine, RoundRequest(made.start, cohort, round_number, made.pipeline))
        updates = update_sum(made, round_number, cohort, Randomness(SEED), {})
        rows.append(updates.protect(result.total, cohort).numpy())
    return np.array(rows, dtype=float)


@pytest.mark.parametrize("arithmetic", fv.Arithmetic)
@pytest.mark.parametrize("secure", [False, True], ids=["alone", "secure sum"])
def test_noise_on_gradients(secure, arithmetic):
    """One full-batch step is the same in every round but for its noise, of std rate z G / gamma."""
    gamma, bound, rate = max(SIZES), 0.8, 0.4
    local = fv.LocalTraining(fv.LearningRate(rate), steps=1, batch_size=gamma)
    method = fv.dp_sgd(rounds=2, cohort=EVERYONE, local=local, clip_norm=bound, secure_sum=secure)
    rows = noisy_updates(planned(method, Z, arithmetic), 310)
    check_std(rows - rows.mean(axis=0), rate * Z * bound / gamma * math.sqrt(N))


def test_every_local_step_of_hu_draws_noise_of_its_own():
    gamma, bound, rate, steps = max(SIZES), 1e-3, 0.4, 4  # noise far above all gradients
    local = fv.LocalTraining(fv.LearningRate(rate), steps=steps, batch_size=gamma)
    method = fv.gradient_noise(
        rounds=2, cohort=EVERYONE, local=local, clip_norm=bound, secure_sum=False
    )
    rows = noisy_updates(planned(method, 400.0), 310)
    check_std(rows - rows.mean(axis=0), rate * 400 * bound / gamma * math.sqrt(N * steps))


@pytest.mark.parametrize("arithmetic", fv.Arithmetic)
@pytest.mark.parametrize(
    "placement",
    [fv.CentralNoise(), fv.LocalNoise(), fv.DistributedNoise(), fv.DistributedNoise(Rotation())],
    ids=["central", "local", "shares", "rotated"],
)
def test_the_tracked_count_is_noisy_and_accounted(placement, arithmetic):
    tracking = fv.AdaptiveClipping(fv.Clip(C), quantile=0.5, bit_noise=0.5)
    method = fv.dp_fedavg(
        rounds=6,
        cohort=EVERYONE,
        local=rule(),
        clip=fv.Clip(C),
        placement=placement,
        tracking=tracking,
    )
    made = planned(method, Z, arithmetic)
    assert made.context is not None
    norms = torch.full((N,), 2 * C)
    norms[:2] = C / 2  # two of N are inside: the sum of (bit - 1/2) is 2 - N / 2
    counts = [counted(made, tracking, norms, k) for k in range(400)]
    std, limit = 0.5 * N, stats.norm.isf(FALSE_ALARM / 4)
    assert abs(np.mean(counts) - (2 - N / 2)) < limit * std / math.sqrt(400)
    assert abs(np.var(counts) / std**2 - 1) < limit * math.sqrt(2 / 400)

    plain = planned(replace(method, clip_rule=None), Z, arithmetic)
    assert made.guarantee.epsilon > plain.guarantee.epsilon
    if isinstance(placement, fv.CentralNoise):
        # Theory 9: the count adds (0.5 / s_b)^2 to mu^2 of every round.
        joint = (Z**-2 + (0.5 / std) ** 2) ** -0.5
        same = planned(replace(method, clip_rule=None), joint, arithmetic)
        assert made.guarantee.epsilon == pytest.approx(same.guarantee.epsilon, rel=1e-9)


def counted(
    made: fv.Plan, tracking: fv.AdaptiveClipping, norms: torch.Tensor, number: int
) -> float:
    """The noisy count of a round, as a sum that is taken in the open releases it."""
    counts = update_sum(made, number, np.arange(N), Randomness(SEED), {}).count
    halves = tracking.halves(counts, fv.Clip(C), norms)
    return float(counts.protect(halves.sum(dim=0), counts.cohort))


def test_statistics_alone_leave_the_clip_where_it_is():
    tracking = fv.AdaptiveClipping(fv.Clip(0.2), rate=0.0)
    state, _ = tracking.follow(-200.0, 500.0, fv.Clip(0.2), {})
    assert tracking.clip(rule(), 1, state) == fv.Clip(0.2)


def test_a_tracked_clip_moves_by_its_formula_within_a_thousandfold_of_the_first():
    """C exp(-rate (share - quantile)) with the share cut to [0, 1]; the clip in use is the nearest
    of the 8 between C and 2 C, all of which were planned."""
    tracking = fv.AdaptiveClipping(fv.Clip(0.25), quantile=0.3, rate=0.4)
    planned_clips = list(tracking.clips())
    for norm in (None, 0.25, 0.61, 240.0, 250.0, 0.26e-3, 0.25e-3):
        for share in (-3.0, 0.0, 0.1, 0.3, 0.9, 1.0, 2.5):
            state = {} if norm is None else {"clip_norm": torch.tensor([norm], dtype=torch.float64)}
            state, shown = tracking.follow((share - 0.5) * 40, 40.0, fv.Clip(0.25), state)
            moved = (norm or 0.25) * math.exp(-0.4 * (float(np.clip(share, 0, 1)) - 0.3))
            wanted = float(np.clip(moved, 0.25e-3, 250.0))
            assert shown == pytest.approx(share, abs=1e-12)
            assert float(state["clip_norm"]) == pytest.approx(wanted, rel=1e-12)
            used = tracking.clip(rule(), 1, state)
            assert abs(math.log2(used.norm / wanted)) <= 1 / 16 + 1e-9
            assert used in planned_clips
    steps = np.log2([clip.norm / 0.25 for clip in planned_clips]) * 8
    np.testing.assert_allclose(steps, np.arange(-80, 81), atol=1e-9)  # 2^(80 / 8) > 1000
