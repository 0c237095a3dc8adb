"""Descriptions of releases for which a smaller epsilon than the truth would come out."""

import numpy as np
import pytest
from scipy.stats import binom, norm

import fedveil as fv
from fedveil.core.errors import PrivacyRefusal

Z, RATE, ROUNDS, DELTA = 1.1, 0.1, 10, 1e-5


def attained_delta(epsilon: float) -> float:
    """Delta where the other records of a client show in which rounds it took part."""
    attained = 0.0
    for times in range(1, ROUNDS + 1):
        mu = np.sqrt(times) / Z
        first, second = norm.cdf(mu / 2 - epsilon / mu), norm.cdf(-mu / 2 - epsilon / mu)
        attained += binom.pmf(times, ROUNDS, RATE) * (first - np.exp(epsilon) * second)
    return attained


@pytest.mark.parametrize(
    "unit", [{"unit": "record"}, {"unit": "person", "contributions": 1}], ids=["record", "person"]
)
def test_a_secret_cohort_of_clients_hides_none_of_their_records(unit: dict[str, object]) -> None:
    """With the credit epsilon is 2.36, where the true delta is 2e-3."""
    clients = fv.PrivacyModel("client", "zero-out", "central")
    release = fv.Release(fv.Gaussian(Z), fv.Poisson(RATE), ROUNDS)
    credited = fv.account([release], privacy_model=clients, delta=DELTA).epsilon
    assert attained_delta(credited) > 100 * DELTA
    model = fv.PrivacyModel(adjacency="zero-out", trust="central", **unit)
    with pytest.raises(PrivacyRefusal, match="batch-rate"):
        fv.account([release], privacy_model=model, delta=DELTA)


@pytest.mark.parametrize("unit", ["client", "record"])
def test_coins_that_were_counted_give_no_credit(unit: str) -> None:
    """Ten counted uses cost 15.8; as ten rounds of secret coins they would cost 0.27."""
    coins = fv.PoissonSampled(0.01, fv.Gaussian(1.1))
    model = fv.PrivacyModel(unit, "zero-out", "central")
    with pytest.raises(PrivacyRefusal, match="participations"):
        fv.account(
            [fv.Release(coins, fv.Everyone(), 1000, participations=10)],
            privacy_model=model,
            delta=1e-5,
        )


def test_colluders_take_their_share_of_zcdp_noise_with_them() -> None:
    """Half of the shares: half of the noise's variance, and so twice rho."""
    release = fv.Release(fv.Zcdp(0.1), fv.Everyone(10), 10)
    twice = fv.Release(fv.Zcdp(0.2), fv.Everyone(10), 10)

    def epsilon(one: fv.Release, colluders: int) -> float:
        model = fv.PrivacyModel("client", "zero-out", "distributed", colluders=colluders)
        return fv.account([one], privacy_model=model, delta=1e-5).epsilon

    assert epsilon(release, 5) == pytest.approx(epsilon(twice, 0), rel=1e-9)
