"""From releases in a setting to steps: the one place where clip norms become sensitivities.

Every illegal combination of mechanism, sampling, adjacency, unit and trust is refused here, before
any number is computed.
"""

from __future__ import annotations

import math
from dataclasses import replace

from fedveil.core.errors import ConfigError
from fedveil.core.units import Adjacency, Trust, Unit
from fedveil.privacy.accountants.steps import (
    CappedPoissonGaussianStep,
    DiscreteSumStep,
    FixedSizeGaussianStep,
    GaussianStep,
    LaplaceStep,
    PoissonGaussianStep,
    Step,
    ZcdpStep,
    ZeroedCappedPoissonGaussianStep,
)
from fedveil.privacy.gradient_perturbation import GridGradients, NoisyGradients
from fedveil.privacy.legality import check_legal
from fedveil.privacy.mechanisms import (
    DiscreteGaussian,
    DiscreteGaussianSum,
    Gaussian,
    Laplace,
    NoisyVotes,
    Zcdp,
)
from fedveil.privacy.refusals import HonestSharesRefused, UnitRefused
from fedveil.privacy.releases import Release, Setting
from fedveil.privacy.sampling import CappedPoisson, Everyone, FixedSize, Poisson, sampling_kind

_LEAST_RATE = 1e-12  # smaller ones are accounted as this: curves need the room


def step_of(release: Release, setting: Setting) -> Step:
    """The step that a release stands for, or a refusal."""
    check_legal(release, setting)
    mechanism, factor = release.mechanism, setting.adjacency.sensitivity_factor
    rate, secret = _rate(release, setting), release.amplified
    # All uses in one round see the same cohort: they are composed inside the sample.
    uses = release.uses if secret else 1
    count = release.rounds if secret else release.counted_participations * release.uses
    honest = honest_shares(release, setting)
    if isinstance(mechanism, Laplace):
        return LaplaceStep(mechanism.scale_multiplier / factor, rate, count)
    if isinstance(mechanism, DiscreteGaussian):
        return ZcdpStep(uses * factor**2 / (2 * mechanism.noise_multiplier**2), rate, count)
    if isinstance(mechanism, Zcdp):
        return ZcdpStep(uses * mechanism.rho, rate, count)
    if isinstance(mechanism, NoisyGradients):
        return GaussianStep(1 / mechanism.sensitivity(factor, honest), count)
    if isinstance(mechanism, GridGradients):
        l2, l1 = mechanism.grid_sensitivity(factor)
        shares = honest or mechanism.shares
        return DiscreteSumStep(
            l2, l1, mechanism.share_std, shares, mechanism.dimension, uses, rate, count
        )
    if isinstance(mechanism, DiscreteGaussianSum):
        l2, l1 = mechanism.grid_sensitivity()
        std, shares = mechanism.share_std / mechanism.granularity, honest or mechanism.shares
        return DiscreteSumStep(
            l2 * factor, l1 * factor, std, shares, mechanism.dimension, uses, rate, count
        )
    noise = _noise(mechanism, factor) * _honest_std(release, setting) / math.sqrt(uses)
    if not secret or rate == 1:
        return GaussianStep(noise, count)
    if isinstance(release.sampling, CappedPoisson):
        zeroed = setting.adjacency is Adjacency.ZERO_OUT
        kind = ZeroedCappedPoissonGaussianStep if zeroed else CappedPoissonGaussianStep
        return kind(noise, release.sampling.clients, rate, release.sampling.cap, count)
    if isinstance(release.sampling, FixedSize):
        return FixedSizeGaussianStep(noise, rate, count)
    return PoissonGaussianStep(noise, rate, count)


def honest_shares(release: Release, setting: Setting) -> int | None:
    """Noise shares that protect the unit in one sum.

    None if one party adds all the noise, or if the cohort is not known and is taken to be honest.
    """
    shares = _shares(release, setting)
    if shares is None:
        return None
    honest = shares - setting.colluders
    if setting.honest_shares is not None:
        honest = min(honest, setting.honest_shares)
    if honest < 1:
        raise HonestSharesRefused(
            f"{shares} shares with {setting.colluders} colluders leave {max(honest, 0)} honest "
            "ones, so the adversary can subtract all noise",
            "use a larger cohort, or local trust with full noise at every client",
        )
    return honest


def for_one_record(release: Release, setting: Setting) -> Setting:
    """The setting in which a client-level release is charged to one record of a client.

    One record can turn a clipped update round, from +C to -C. So the client counts as replaced,
    whatever the release's own adjacency hides.
    """
    if setting.adjacency is not Adjacency.REPLACE and isinstance(release.mechanism, Zcdp):
        raise UnitRefused(
            f"rho is known for a client under {setting.adjacency}, and one record can replace all "
            "that its client sends",
            "describe the release for replace",
        )
    if release.amplified and not isinstance(release.sampling, FixedSize):
        raise UnitRefused(
            f"{sampling_kind(release.sampling)} sampling of clients has no proved amplification "
            "for one record: it can replace all that its client sends",
            "use a run with fixed-size sampling under replace, or keep a client-level ledger",
        )
    return replace(setting, adjacency=Adjacency.REPLACE)


def population_of(releases: tuple[Release, ...], setting: Setting) -> int | None:
    """Number of protected units, if anything tells it: never fewer than are known to take part."""
    if setting.population is None and setting.unit is Unit.RECORD:
        return None  # clients do not tell how many records they have
    return least_population(releases, setting)


def least_population(releases: tuple[Release, ...], setting: Setting) -> int | None:
    """How many protected units there are at least, whatever is said: a client has a record."""
    known = [setting.population]
    for release in releases:
        known += [release.sampling.clients, getattr(release.mechanism, "shares", None)]
    return max((number for number in known if number is not None), default=None)


def _noise(mechanism: Gaussian | NoisyVotes, factor: int) -> float:
    """Std / sensitivity of a plain Gaussian release."""
    if isinstance(mechanism, NoisyVotes):
        return mechanism.noise_std / math.sqrt(factor)
    return mechanism.noise_multiplier / factor


def _rate(release: Release, setting: Setting) -> float:
    sampling = release.sampling
    if not release.amplified:
        return 1.0
    if isinstance(sampling, FixedSize):
        # Colluders know whether they were drawn: the others share the remaining places.
        others = sampling.clients - setting.colluders
        if others < 1:
            raise HonestSharesRefused(
                f"{setting.colluders} colluders among {sampling.clients} clients leave nobody",
                "name fewer colluders than clients",
            )
        return min(1.0, sampling.cohort / others)
    if isinstance(sampling, CappedPoisson) and sampling.rate == 1:
        raise ConfigError(
            "rate: a capped Poisson cohort at rate 1 is fixed-size sampling; use that"
        )
    if isinstance(sampling, (Poisson, CappedPoisson)):
        return max(sampling.rate, _LEAST_RATE)
    return 1.0


def _honest_std(release: Release, setting: Setting) -> float:
    """Factor by which colluding and missing shares lower the std of the noise in a sum."""
    shares, honest = _shares(release, setting), honest_shares(release, setting)
    if shares is None or honest is None:
        return 1.0
    # The multiplier counts the cohort that is expected, and that need not be a whole number.
    return math.sqrt(honest / max(shares, release.sampling.expected_cohort))


def _shares(release: Release, setting: Setting) -> int | None:
    """Noise shares in one sum."""
    mechanism, sampling = release.mechanism, release.sampling
    if setting.trust is Trust.LOCAL:
        return None
    if isinstance(mechanism, (DiscreteGaussianSum, GridGradients, NoisyGradients)):
        return mechanism.shares
    if setting.trust is Trust.CENTRAL:
        return None
    unknown = isinstance(sampling, (Everyone, Poisson)) and sampling.clients is None
    if unknown and setting.colluders == 0 and setting.honest_shares is None:
        return None
    shares = math.floor(sampling.expected_cohort)
    if shares < 1:
        raise ConfigError(f"cohort: an expected size of {sampling.expected_cohort:g} is below one")
    return shares
