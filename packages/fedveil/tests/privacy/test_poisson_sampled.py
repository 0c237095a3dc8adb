"""Secret Poisson samples: golden numbers, brute force against the proofs, and refusals."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from mpmath import mp, mpf

import fedveil as fv
from fedveil.core.errors import ConfigError, PrivacyRefusal
from fedveil.privacy import budgets
from fedveil.privacy.accountants.discrete_sums import (
    PoissonDiscreteStep,
    log_group_moment,
    log_sampled_moment,
    sum_defect,
)
from fedveil.privacy.accountants.exact import gaussian_epsilon
from fedveil.privacy.accountants.gaussian import GaussianStep
from fedveil.privacy.accountants.pld import pld_epsilon
from fedveil.privacy.accountants.poisson_gaussian import (
    PoissonGroupStep,
    divergences,
    group_divergences,
    replaced,
)
from fedveil.privacy.accountants.rdp import rdp_epsilon
from fedveil.privacy.accounting import person_guarantee
from fedveil.privacy.mechanisms import NoisyVotes
from fedveil.privacy.poisson_sampled import PoissonSampled
from fedveil.privacy.refusals import (
    AdjacencyRefused,
    AmplificationRefused,
    DeltaRefused,
    MechanismRefused,
    UnitRefused,
)

DELTA = 1e-5
RATE, STEPS = 256 / 10_000, 782  # three hospitals of 10,000 patients, batches of 256, 20 epochs
SITES = fv.Everyone(3)


def model(
    unit: str = "record", adjacency: str = "zero-out", trust: str = "central", **more: object
):
    return fv.PrivacyModel(unit, adjacency, trust, **more)


def steps(noise: fv.Mechanism, rate: float = RATE, rounds: int = STEPS, **more: int) -> fv.Release:
    return fv.Release(PoissonSampled(rate, noise, **more), SITES, rounds)


def epsilon(release: fv.Release, **how: object) -> float:
    return fv.account([release], privacy_model=model(**how), delta=DELTA).epsilon


def shares(std: float = 1.0, *, clip: float = 1.0, count: int = 3) -> fv.DiscreteGaussianSum:
    """Shares whose sum has noise multiplier `std`, on a grid fine enough not to matter."""
    return fv.DiscreteGaussianSum(clip, 2.0**-12, std / math.sqrt(count), count, 64, None)


# Golden numbers -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rate", "noise", "rounds", "central", "distributed"),
    [
        (RATE, 1.0, STEPS, 4.517, 5.075),
        (0.01, 1.1, 1000, 1.515, 1.725),
        (1024 / 30162, 1.0, 884, 6.594, 7.333),
    ],
)
def test_published_settings(rate, noise, rounds, central, distributed):
    assert epsilon(steps(fv.Gaussian(noise), rate, rounds)) == pytest.approx(central, abs=0.002)
    found = epsilon(steps(shares(noise), rate, rounds), trust="distributed")
    assert found == pytest.approx(distributed, abs=0.001)


@pytest.mark.parametrize(
    ("noise", "uses", "expected"),
    [(1.0, 20, 28.4), (1.0, 782, 509.3), (1.1, 1000, 534.9), (1.0, 884, 567.9)],
)
def test_without_secret_coins_every_use_counts(noise, uses, expected):
    assert epsilon(fv.Release(fv.Gaussian(noise), SITES, uses)) == pytest.approx(expected, rel=2e-3)


def test_all_records_in_every_step():
    assert epsilon(steps(fv.Gaussian(29.0), 1.0, 60)) == pytest.approx(0.996, abs=1e-3)
    discrete = rdp_epsilon([PoissonDiscreteStep(1 / 29, 1.0, count=60)], DELTA)
    assert discrete == pytest.approx(1.088, abs=1e-3)
    # As a mechanism it is an unsampled sum, which has more orders to choose from.
    assert epsilon(steps(shares(29.0), 1.0, 60), trust="distributed") <= discrete


@pytest.mark.parametrize(("records", "expected"), [(2, 10.20), (4, 24.27), (8, 62.18)])
def test_a_record_level_run_read_for_persons(records, expected):
    guarantee = fv.account([steps(fv.Gaussian(1.0))], privacy_model=model(), delta=DELTA)
    person = person_guarantee(guarantee, records)
    assert person.epsilon == pytest.approx(expected, rel=1e-3)
    assert person.unit is fv.Unit.PERSON


@pytest.mark.parametrize(("sites", "expected"), [(2, 12.5), (4, 30.0)])
def test_persons_at_several_sites_with_shares(sites, expected):
    how = {"unit": "person", "trust": "distributed", "contributions": sites}
    found = epsilon(steps(shares()), **how)
    assert found <= expected * 1.005
    assert found > epsilon(steps(fv.Gaussian(1.0)), unit="person", contributions=sites)


def test_releases_that_share_a_coin_are_one_event():
    together = PoissonSampled(RATE, (fv.Gaussian(1.0), fv.Gaussian(1.0)))
    assert epsilon(fv.Release(together, SITES, STEPS)) == pytest.approx(10.10, abs=0.01)
    wrong = epsilon(steps(fv.Gaussian(1.0), rounds=2 * STEPS))
    assert wrong == pytest.approx(6.51, abs=0.01)
    discrete = fv.Release(PoissonSampled(RATE, (shares(), shares())), SITES, STEPS)
    joint = epsilon(steps(shares(1 / math.sqrt(2))), trust="distributed")
    assert epsilon(discrete, trust="distributed") == pytest.approx(joint, rel=1e-9)


def test_one_coin_for_all_local_steps_of_a_round_costs_more():
    new_coins = steps(fv.Gaussian(2.0), rounds=100, local_steps=8)
    assert epsilon(new_coins, trust="local") == pytest.approx(1.55, abs=0.01)
    one_coin = fv.Release(PoissonSampled(RATE, (fv.Gaussian(2.0),) * 8), SITES, 100)
    assert epsilon(one_coin, trust="local") == pytest.approx(4.46, abs=0.01)


def test_a_scaled_clip_does_not_scale_its_rounding():
    whole = fv.DiscreteGaussianSum(1.0, 1e-3, 1.0, 1, 2**20)
    std = 5 * whole.grid_sensitivity()[0] * whole.granularity  # z = 5 beside the bound on the grid
    noise = replace(whole, share_std=std)
    bound = noise.scaled(0.1).grid_sensitivity()[0] * noise.granularity
    rounds = math.sqrt(60)
    assert gaussian_epsilon(5 / 0.1 / rounds, DELTA) == pytest.approx(0.55, abs=0.01)
    truth = gaussian_epsilon(std / bound / rounds, DELTA)
    assert truth == pytest.approx(3.00, abs=0.01)
    run = [fv.Release(noise, fv.Everyone(), 60)]
    how = {"privacy_model": model("client", trust="distributed"), "delta": DELTA}
    mine = budgets.scaled_guarantee(run, 0.1, **how).epsilon
    assert truth < mine < 1.1 * truth  # discrete noise has no exact curve
    scale = budgets.largest_scale(run, epsilon=mine, **how)
    assert scale == pytest.approx(0.1, rel=1e-2)
    with pytest.raises(ConfigError, match="epsilon"):
        budgets.largest_scale(run, epsilon=0.5, **how)


@pytest.mark.parametrize("noise", [fv.Gaussian(2.0), fv.Laplace(2.0), fv.DiscreteGaussian(2.0)])
def test_a_smaller_clip_costs_less_and_the_others_pay_the_same(noise):
    run = [fv.Release(noise, fv.Everyone(), 5)]
    how = {"privacy_model": model("client"), "delta": DELTA}
    half, full = (budgets.scaled_guarantee(run, s, **how).epsilon for s in (0.5, 1.0))
    assert half < full == fv.account(run, **how).epsilon
    in_full = budgets.scaled_guarantee(run, 0.5, in_full=run, **how).epsilon
    assert in_full > full
    for wrong in (0.0, 1.5, math.nan):
        with pytest.raises(ConfigError, match="scale"):
            budgets.scaled_guarantee(run, wrong, **how)
    votes = [fv.Release(NoisyVotes(2.0), fv.Everyone(), 5)]
    with pytest.raises(MechanismRefused):
        budgets.scaled_guarantee(votes, 0.5, **how)


def test_a_rate_computed_from_true_counts_breaks_its_claim():
    """With B = 1 and q = B/n, a second record halves the first one's rate: +1, against +1 and -1.

    That is why add-remove needs a declared rate.
    """
    from scipy.stats import norm

    x = np.linspace(-12, 12, 100_001)
    alone = norm.pdf(x, 1)
    both = norm.pdf(x, 0) / 2 + norm.pdf(x, 1) / 4 + norm.pdf(x, -1) / 4
    truth = max(
        float(np.sum(np.maximum(one - math.exp(4) * two, 0))) * (x[1] - x[0])
        for one, two in ((alone, both), (both, alone))
    )
    claim = max(float(side[0]) for side in divergences(1.0, 0.5, np.array([4.0])))
    assert truth == pytest.approx(7.4e-3, rel=0.02)
    assert claim == pytest.approx(1.3e-6, rel=0.05)


# Brute force against the proofs -------------------------------------------------------------------


def lattice(std: str, width: int) -> list[mpf]:
    weights = [mp.exp(-(mpf(x) ** 2) / (2 * mpf(std) ** 2)) for x in range(-width, width + 1)]
    return [weight / mp.fsum(weights) for weight in weights]


def shifted(law: list[mpf], shift: int) -> list[mpf]:
    return [law[i - shift] if i >= shift else mpf(0) for i in range(len(law))]


def moment(one: list[mpf], two: list[mpf], order: int) -> mpf:
    return mp.fsum(p**order * q ** (1 - order) for p, q in zip(one, two, strict=True) if p and q)


@pytest.mark.parametrize("std", ["0.4", "0.6", "1", "5"])
@pytest.mark.parametrize("shift", [1, 3])
def test_the_lemma_bounds_both_directions_of_a_sampled_discrete_gaussian(std, shift):
    with mp.workdps(60):
        law = lattice(std, int(40 * float(std)) + 60)
        moved = shifted(law, shift)
        for rate, order in itertools.product(("0.001", "0.3", "0.95"), (2, 5, 12)):
            rate = mpf(rate)
            mixed = [(1 - rate) * q + rate * p for q, p in zip(law, moved, strict=True)]
            bound = log_sampled_moment(order, float(rate), shift / float(std))
            for one, two in ((mixed, law), (law, mixed)):
                found = float(mp.log(moment(one, two, order)))
                assert found <= bound * (1 + 1e-9) + 1e-13


@pytest.mark.parametrize("shares_in_sum", [2, 3])
def test_the_lemma_covers_a_sum_of_shares_by_its_defect(shares_in_sum):
    """At 0.7 grid units the sum is visibly no discrete Gaussian; the defect must cover it."""
    with mp.workdps(40):
        law = lattice("0.7", 40)
        total = law
        for _ in range(shares_in_sum - 1):
            wide = [mpf(0)] * (len(total) + len(law) - 1)
            for i, p in enumerate(total):
                for j, q in enumerate(law):
                    wide[i + j] += p * q
            total = wide
        rate, ratio = mpf("0.3"), 1 / (0.7 * math.sqrt(shares_in_sum))
        mixed = [(1 - rate) * q + rate * p for q, p in zip(total, shifted(total, 1), strict=True)]
        step = PoissonDiscreteStep(ratio, 0.3, sum_defect(0.7, shares_in_sum))
        for order, bound in zip((2, 3, 6), step.renyi((2, 3, 6)), strict=True):
            for one, two in ((mixed, total), (total, mixed)):
                assert float(mp.log(moment(one, two, order))) / (order - 1) <= bound


@pytest.mark.parametrize("rate", ["0.03", "0.4"])
@pytest.mark.parametrize("shifts", [(1, 1), (2, -1), (1, 1, 1)])
def test_joint_convexity_bounds_persons_with_several_contributions(rate, shifts):
    with mp.workdps(50):
        law, largest = lattice("1.5", 120), max(map(abs, shifts))
        mixed = [mpf(0)] * len(law)
        for present in itertools.product((0, 1), repeat=len(shifts)):
            weight, move = mpf(1), 0
            for here, shift in zip(present, shifts, strict=True):
                weight *= mpf(rate) if here else 1 - mpf(rate)
                move += shift * here
            moved = shifted(law, move) if move >= 0 else shifted(law[::-1], -move)[::-1]
            mixed = [one + weight * two for one, two in zip(mixed, moved, strict=True)]
        for order in (2, 3, 8):
            bound, _ = log_group_moment(order, float(rate), largest / 1.5, len(shifts))
            for one, two in ((mixed, law), (law, mixed)):
                assert float(mp.log(moment(one, two, order))) <= bound + 1e-9


def plane(noise: float, *centres: tuple[float, float, float]) -> np.ndarray:
    """A mixture of Gaussians in the plane: weight and centre of each."""
    grid = np.linspace(-5 - 8 * noise, 5 + 8 * noise, 601)
    x, y = np.meshgrid(grid, grid)
    area = (grid[1] - grid[0]) ** 2 / (2 * np.pi * noise**2)
    return sum(
        w * area * np.exp(-((x - a) ** 2 + (y - b) ** 2) / (2 * noise**2)) for w, a, b in centres
    )


def hockey_stick(one: np.ndarray, two: np.ndarray, loss: float) -> float:
    return float(np.sum(np.maximum(one - math.exp(loss) * two, 0)))


LOSSES = np.array([0.0, 0.1, 0.5, 1.5])


@pytest.mark.parametrize("noise", [0.7, 1.5])
@pytest.mark.parametrize("rate", [0.05, 0.4])
def test_the_mixture_dominates_contributions_that_point_anywhere(noise, rate):
    rng, nothing = np.random.default_rng(1), plane(noise, (1.0, 0.0, 0.0))
    for count in (2, 3):
        forward, backward = group_divergences(noise, rate, count, LOSSES)
        for _ in range(3):
            angles, lengths = rng.uniform(0, 7, count), rng.uniform(0.2, 1, count)
            parts = []
            for present in itertools.product((0, 1), repeat=count):
                weight = math.prod(rate if here else 1 - rate for here in present)
                ends = [(here * r, a) for here, r, a in zip(present, lengths, angles, strict=True)]
                x, y = (sum(r * f(a) for r, a in ends) for f in (math.cos, math.sin))
                parts.append((weight, x, y))
            person = plane(noise, *parts)
            for loss, most, least in zip(LOSSES, forward, backward, strict=True):
                assert hockey_stick(person, nothing, loss) <= most + 1e-9
                assert hockey_stick(nothing, person, loss) <= least + 1e-9


@pytest.mark.parametrize("noise", [0.7, 2.0])
@pytest.mark.parametrize("rate", [0.05, 0.6])
def test_the_replacement_pair_dominates_any_two_values(noise, rate):
    pair, rest = replaced(noise, rate, 1e-3), (1 - rate, 0.0, 0.0)
    worst = [plane(noise, rest, (rate, sign, 0.0)) for sign in (1.0, -1.0)]
    for loss in LOSSES:  # the pair on the plane, whose grid is coarse
        ours = pair.get_delta_for_epsilon(loss)
        assert hockey_stick(*worst, loss) == pytest.approx(ours, rel=2e-3, abs=1e-6)
    for angle, old, new in itertools.product((0.0, 1.5, 3.0), (0.3, 1.0), (0.0, 1.0)):
        before = plane(noise, rest, (rate, old, 0.0))
        after = plane(noise, rest, (rate, new * math.cos(angle), new * math.sin(angle)))
        for loss in LOSSES:
            most = hockey_stick(*worst, loss) * (1 + 2e-3)
            assert hockey_stick(before, after, loss) <= most
            assert hockey_stick(after, before, loss) <= most


# Laws ---------------------------------------------------------------------------------------------


def test_persons_cost_more_with_every_contribution_and_less_than_without_coins():
    found = [pld_epsilon([PoissonGroupStep(1.0, RATE, k, 20)], DELTA) for k in (1, 2, 3, 5)]
    assert found == sorted(found)
    assert found[2] < pld_epsilon([GaussianStep(1 / 3, 20)], DELTA)
    moments = [log_group_moment(4, RATE, 0.5, k)[0] for k in (1, 2, 3, 5)]
    assert moments == sorted(moments)


def test_unsampled_persons_have_k_times_the_sensitivity():
    persons = {"unit": "person", "contributions": 3}
    for noise, weaker in (
        (fv.Gaussian(6.0), fv.Gaussian(2.0)),
        (fv.Laplace(6.0), fv.Laplace(2.0)),
        (fv.DiscreteGaussian(6.0), fv.DiscreteGaussian(2.0)),
    ):
        ours = epsilon(fv.Release(noise, SITES, 4), **persons)
        assert ours == pytest.approx(epsilon(fv.Release(weaker, SITES, 4)), rel=1e-9)


def test_honest_shares_alone_count():
    alone = epsilon(steps(shares(1.0, count=4)), trust="distributed", colluders=3)
    assert alone == pytest.approx(
        epsilon(steps(shares(0.5, count=4)), trust="distributed"), rel=1e-9
    )


def test_public_schedules_of_sites_count_participations():
    turns = fv.Release(PoissonSampled(RATE, fv.Gaussian(1.0)), fv.RoundRobin(6, 3), 2 * STEPS)
    assert epsilon(turns) == epsilon(steps(fv.Gaussian(1.0)))


def test_secret_coins_of_clients():
    """Cheng's algorithm: Poisson cohorts and shares, certified towards the server as well."""
    release = fv.Release(PoissonSampled(0.01, shares(1.1, count=3)), fv.Everyone(3), 1000)
    guarantee = fv.account(
        [release], privacy_model=model("client", trust="distributed"), delta=DELTA
    )
    assert guarantee.certified
    assert guarantee.epsilon == pytest.approx(1.725, abs=1e-3)
    seen = epsilon(fv.Release(fv.Gaussian(1.1), SITES, 10))
    assert seen == pytest.approx(15.8, abs=0.1)


def test_replacing_a_record_costs_more_than_zeroing_it_and_less_than_doubling():
    zeroed, swapped = (
        epsilon(steps(fv.Gaussian(1.0)), adjacency=a) for a in ("zero-out", "replace")
    )
    doubled = epsilon(steps(fv.Gaussian(0.5)))
    assert zeroed < swapped < doubled


# Refusals -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("release", "how", "refusal"),
    [
        (steps(shares()), {"trust": "distributed", "adjacency": "replace"}, AdjacencyRefused),
        (steps(fv.DiscreteGaussian(1.0)), {"adjacency": "replace"}, AdjacencyRefused),
        (steps(fv.Gaussian(1.0)), {"trust": "local", "adjacency": "replace"}, AdjacencyRefused),
        (steps(fv.Gaussian(1.0)), {"unit": "client", "adjacency": "add-remove"}, AdjacencyRefused),
        (steps(fv.Gaussian(1.0)), {"unit": "client", "adjacency": "replace"}, AdjacencyRefused),
        (steps(shares()), {"trust": "local"}, MechanismRefused),
        (steps(fv.DiscreteGaussian(1.0)), {"trust": "distributed"}, MechanismRefused),
        (steps(fv.Gaussian(1.0), local_steps=2), {}, MechanismRefused),
        (steps(shares(), local_steps=2), {"trust": "distributed"}, MechanismRefused),
        (
            fv.Release(PoissonSampled(RATE, fv.Gaussian(1.0)), SITES, 10, uses=2),
            {},
            MechanismRefused,
        ),
        (
            fv.Release(PoissonSampled(RATE, fv.Gaussian(1.0)), fv.Poisson(0.1), 10),
            {},
            AmplificationRefused,
        ),
        (
            steps(fv.Gaussian(1.0)),
            {"unit": "person", "adjacency": "replace", "contributions": 2},
            UnitRefused,
        ),
        (
            fv.Release(fv.Gaussian(1.0), fv.FixedSize(10, 2), 10),
            {"unit": "person", "adjacency": "replace", "contributions": 2},
            AmplificationRefused,
        ),
    ],
)
def test_what_has_no_proof_is_refused(release, how, refusal):
    with pytest.raises(refusal):
        epsilon(release, **how)


@pytest.mark.parametrize("trust", ["central", "distributed"])
@pytest.mark.parametrize("adjacency", ["zero-out", "add-remove"])
@pytest.mark.parametrize("unit", [{"unit": "record"}, {"unit": "person", "contributions": 1}])
def test_presence_of_a_record_or_person_is_hidden_too(trust, adjacency, unit):
    noise = fv.Gaussian(1.0) if trust == "central" else shares()
    found = fv.account(
        [steps(noise)], privacy_model=model(adjacency=adjacency, trust=trust, **unit), delta=DELTA
    )
    assert found.certified


@pytest.mark.parametrize(
    "arguments",
    [
        (0.0, fv.Gaussian(1.0)),
        (1.5, fv.Gaussian(1.0)),
        (0.1, ()),
        (0.1, fv.Laplace(1.0)),
        (0.1, (fv.Gaussian(1.0), fv.DiscreteGaussian(1.0))),
        (0.1, (shares(count=2), shares(count=3))),
        (0.1, fv.Gaussian(1.0), 0),
    ],
)
def test_malformed_samples_are_refused(arguments):
    with pytest.raises(ConfigError):
        PoissonSampled(*arguments)


def test_contributions_belong_to_persons_only():
    for unit, contributions in (("person", None), ("record", 2), ("client", 1), ("person", 0)):
        with pytest.raises(ConfigError, match="contributions"):
            model(unit, contributions=contributions)
    clients = fv.account(
        [fv.Release(fv.Gaussian(1.0), SITES, 1)], privacy_model=model("client"), delta=DELTA
    )
    with pytest.raises(UnitRefused):
        person_guarantee(clients, 2)


def test_a_large_delta_is_refused_in_protected_runs_and_a_reason_in_simulations():
    release = steps(fv.Gaussian(1.0))
    ask = {"population": 30_000}
    with pytest.raises(DeltaRefused):
        fv.account([release], privacy_model=model(**ask), delta=1e-4)
    simulated = model(**ask, entropy="seeded")
    found = fv.account([release], privacy_model=simulated, delta=1e-4)
    assert not found.certified
    assert "1/30000" in found.reason
    with pytest.raises(PrivacyRefusal):
        fv.account([release], privacy_model=simulated, delta=0.02)
