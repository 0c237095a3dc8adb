"""Traps of the libraries underneath, and of accounting itself, each with the guard against it."""

from __future__ import annotations

import logging
import math

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from dp_accounting.pld.pld_pmf import DensePLDPmf
from dp_accounting.privacy_accountant import NeighboringRelation, UnsupportedEventError
from dp_accounting.rdp import RdpAccountant, rdp_privacy_accountant

from fedveil.core.units import Adjacency, Trust, Unit
from fedveil.privacy.accountants.exact import gaussian_epsilon
from fedveil.privacy.accountants.fixed_size import (
    FixedSizeGaussianStep,
    fixed_size_curve,
    log_differences,
    symmetrised,
)
from fedveil.privacy.accountants.gaussian import GaussianStep
from fedveil.privacy.accountants.loss_grid import epsilon_at, self_composed
from fedveil.privacy.accountants.pld import LEAST_DELTA_PER_ROUND, interval, pld_epsilon
from fedveil.privacy.accountants.poisson_gaussian import PoissonGaussianStep
from fedveil.privacy.accountants.rdp import composed_curve, rdp_epsilon
from fedveil.privacy.accountants.steps import MIXED, WHOLE
from fedveil.privacy.accounting import account
from fedveil.privacy.mechanisms import Gaussian, Laplace
from fedveil.privacy.releases import PrivacyModel, Release
from fedveil.privacy.sampling import Everyone, FixedSize, Poisson

REPLACE_ONE = NeighboringRelation.REPLACE_ONE
LOCAL = PrivacyModel(Unit.CLIENT, Adjacency.REPLACE, Trust.LOCAL)
ADDED = PrivacyModel(Unit.CLIENT, Adjacency.ADD_REMOVE, Trust.CENTRAL)
REPLACED = PrivacyModel(Unit.CLIENT, Adjacency.REPLACE, Trust.CENTRAL)


def test_replacing_doubles_the_sensitivity_in_one_library_accountant_only():
    event = dp_event.GaussianDpEvent(1.0)
    numeric = PLDAccountant(REPLACE_ONE).compose(event).get_epsilon(1e-5)
    renyi = RdpAccountant(neighboring_relation=REPLACE_ONE).compose(event).get_epsilon(1e-5)
    assert numeric == pytest.approx(9.9973, abs=5e-3)
    assert renyi == pytest.approx(4.7285, abs=5e-3)
    ours = account([Release(Gaussian(1.0), Everyone(), 1)], privacy_model=LOCAL, delta=1e-5)
    assert ours.epsilon == pytest.approx(9.9973, abs=1e-4)
    assert ours.alternatives["rdp"] > 9.9973


def test_laplace_under_replace_is_halved_by_hand():
    event = dp_event.LaplaceDpEvent(1.0)
    with pytest.raises(UnsupportedEventError):
        PLDAccountant(REPLACE_ONE).compose(event)
    one = RdpAccountant(neighboring_relation=REPLACE_ONE).compose(event).get_epsilon(1e-5)
    two = RdpAccountant().compose(event).get_epsilon(1e-5)
    assert one == two  # the library does not notice
    ours = account([Release(Laplace(1.0), Everyone(), 1)], privacy_model=LOCAL, delta=1e-5)
    assert ours.alternatives["pure"] == pytest.approx(2.0)
    assert ours.alternatives["rdp"] > 1.9


def test_fractional_orders_that_fail_drop_out_silently(capfd, caplog):
    step = PoissonGaussianStep(1.0, 0.3, 10)
    with caplog.at_level(logging.WARNING):
        curve = composed_curve([step], MIXED)
        found = rdp_epsilon([step], 1e-5)
    assert np.any(np.isinf(curve))
    assert np.all(np.isfinite(curve[np.isin(MIXED, np.arange(2, 65))]))
    assert found is not None
    assert math.isfinite(found)
    assert capfd.readouterr().err == ""
    assert not caplog.records


def test_a_rounded_negative_divergence_is_not_taken_for_zero_epsilon():
    assert rdp_privacy_accountant.compute_epsilon([2, 3], [-1e-18, 1.0], 1e-9)[0] == 0  # the trap
    event = dp_event.PoissonSampledDpEvent(1e-9, dp_event.GaussianDpEvent(1000.0))
    assert np.any(RdpAccountant(WHOLE).compose(event).rdp < 0)
    truth = np.array(WHOLE) / 2 * 1e-18 * 1e-6
    assert np.all(composed_curve([PoissonGaussianStep(1000.0, 1e-9, 1)], WHOLE) >= truth)


def test_forward_differences_of_the_library_drown_in_rounding():
    """Noise 10: its 20th difference is 4 % too small, its 60th too large by e^27."""

    def moments(x):
        return x * (x + 1) / 200

    library, _ = rdp_privacy_accountant._get_forward_diffs(moments, 64)
    truth = log_differences(10.0, 64)
    assert library[9] == pytest.approx(truth[10], abs=1e-6)
    assert library[19] < truth[20] - 0.01 or library[20] < truth[21] - 0.01
    assert library[60] > truth[61] + 20
    event = dp_event.SampledWithoutReplacementDpEvent(1.0, 0.3, dp_event.GaussianDpEvent(10.0))
    loose = RdpAccountant(range(2, 129), REPLACE_ONE).compose(event).rdp
    ours = fixed_size_curve(10.0, 0.3, np.arange(2.0, 129.0))
    assert loose[-1] > 2 * ours[-1]


def test_noise_relative_to_the_clip_is_not_noise_relative_to_a_replacement():
    """Fixed size with std/C instead of std/(2C) would report 4.3 where 19.8 is attained."""
    release = Release(Gaussian(1.0), FixedSize(2000, 100), 200)
    found = account([release], privacy_model=REPLACED, delta=2000**-1.1).epsilon
    wrong = pld_epsilon([FixedSizeGaussianStep(1.0, 0.05, 200)], 2000**-1.1)
    attained = pld_epsilon([PoissonGaussianStep(0.5, 0.05, 200)], 2000**-1.1)
    assert wrong < 0.25 * attained < attained <= found


def test_the_poisson_curve_is_not_an_upper_bound_for_fixed_size():
    for noise, rate, rounds in ((0.5, 0.05, 200), (1.0, 0.2, 100)):
        poisson = pld_epsilon([PoissonGaussianStep(noise, rate, rounds)], 1e-4)
        fixed = pld_epsilon([FixedSizeGaussianStep(noise, rate, rounds)], 1e-4)
        assert poisson < 0.95 * fixed


def test_the_maximum_of_both_directions_after_composition_is_too_small():
    """Composing each direction and then taking the larger one is below the symmetrised bound."""
    width, rounds = 1e-3, 100
    symmetric = self_composed(symmetrised(0.5, 0.1, width)._pmf_remove, rounds, 1 << 22)
    later = pld_epsilon([PoissonGaussianStep(0.5, 0.1, rounds)], 1e-5)
    assert epsilon_at(symmetric, 1e-5) > later * 1.05


def test_infinite_loss_is_never_lost_in_composition():
    one = DensePLDPmf(0.1, 0, np.array([0.5, 0.49]), 0.01, True)
    three = self_composed(one, 3, 1000)
    assert three._infinity_mass == pytest.approx(1 - 0.99**3, rel=1e-9)
    assert epsilon_at(three, 0.029) == math.inf
    assert epsilon_at(three, 0.03) < math.inf
    assert self_composed(one, 3, 2) is None


@pytest.mark.parametrize("rounds", [1, 1000, 90_000])
def test_round_off_of_the_transform_is_guarded(rounds):
    """Below 1e-13 per round no distribution is asked; just above, the answer is still above."""
    edge = LEAST_DELTA_PER_ROUND * rounds
    noise = 4 * math.sqrt(rounds)
    step = FixedSizeGaussianStep(noise, 1.0, rounds)  # rate 1: a plain Gaussian, known exactly
    assert pld_epsilon([step], 0.99 * edge) is None
    found = pld_epsilon([step], 1.01 * edge)
    assert found >= gaussian_epsilon(4.0, 1.01 * edge)


def test_a_tiny_delta_falls_back_to_accountants_without_a_transform():
    release = Release(Gaussian(1.1), Poisson(0.01), 90_000)
    found = account([release], privacy_model=ADDED, delta=1e-12)
    assert "pld" not in found.alternatives
    assert found.accountant == "rdp"
    assert math.isfinite(found.epsilon)


def test_little_noise_gives_infinity_or_a_bound_but_never_a_clamp():
    for noise in (0.15, 0.05, 0.02, 1e-3, 1e-6):
        privacy_model = PrivacyModel(Unit.CLIENT, Adjacency.REPLACE, Trust.CENTRAL)
        release = Release(Gaussian(2 * noise), FixedSize(2000, 100), 20)
        found = account([release], privacy_model=privacy_model, delta=1e-5).epsilon
        least = 0.5 / noise**2  # one round's mean loss, given that the target was drawn
        assert found > least


def test_a_coarse_grid_is_loose_for_small_rates():
    """Rate 1e-4: 0.0243 on a grid of 1e-3, 0.0142 at 1e-4, 0.0139 at 1e-5."""
    for width, epsilon in ((1e-3, 0.0243), (1e-4, 0.0142)):
        one = symmetrised(1.0, 1e-4, width)._pmf_remove
        assert epsilon_at(self_composed(one, 1000, 1 << 22), 1e-5) == pytest.approx(
            epsilon, abs=1e-4
        )
    step = FixedSizeGaussianStep(1.0, 1e-4, 1000)
    assert 1e-5 <= interval(step) <= 2e-5
    assert pld_epsilon([step], 1e-5) == pytest.approx(0.0139, abs=1e-4)


def test_colluders_shrink_the_crowd_for_fixed_size_but_not_for_poisson():
    def epsilon(sampling, adjacency, colluders):
        privacy_model = PrivacyModel(Unit.CLIENT, adjacency, Trust.CENTRAL, colluders=colluders)
        release = Release(Gaussian(2.0), sampling, 100)
        return account([release], privacy_model=privacy_model, delta=1e-5).epsilon

    fixed = FixedSize(2000, 100)
    half = epsilon(fixed, Adjacency.REPLACE, 1000)
    assert half == epsilon(FixedSize(1000, 100), Adjacency.REPLACE, 0)
    assert half > epsilon(fixed, Adjacency.REPLACE, 0)
    poisson = Poisson(0.05, 2000)
    assert epsilon(poisson, Adjacency.ADD_REMOVE, 1000) == epsilon(poisson, Adjacency.ADD_REMOVE, 0)


def test_all_releases_of_a_run_share_one_delta():
    """The model and a metric at 1e-5 together cost more than the model at 1e-5 alone."""
    model = Release(Gaussian(1.0), Poisson(0.01), 100)
    metric = Release(Gaussian(10.0), Everyone(), 100)
    both = account([model, metric], privacy_model=ADDED, delta=1e-5)
    assert both.epsilon > account([model], privacy_model=ADDED, delta=1e-5).epsilon
    assert both.delta == 1e-5
    assert set(both.alternatives) >= {"pld", "rdp"}


def test_extreme_noise_of_unsampled_gaussians_is_decided():
    assert gaussian_epsilon(1e15, 1e-9) == 0.0
    assert gaussian_epsilon(1e15, 1e-10) < 1e-9
    assert gaussian_epsilon(1e-30, 1e-5) > 1e59
    assert gaussian_epsilon(1.0, 0.0) == math.inf
    values = [gaussian_epsilon(z, 1e-5) for z in (9e-4, 1e-3, 1.1e-3)]
    assert values[0] > values[1] > values[2]
    assert pld_epsilon([GaussianStep(1e-3, 1)], 1e-5) is None
