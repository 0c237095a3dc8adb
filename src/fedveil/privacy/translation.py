"""From releases in a setting to steps: the one place where clip norms become sensitivities.

Every illegal combination of mechanism, sampling, adjacency and trust is refused here, before any
number is computed.
"""

from __future__ import annotations

import math

from fedveil.errors import BadInput
from fedveil.privacy.accountants.steps import (
    CappedPoissonGaussianStep,
    DiscreteSumStep,
    FixedSizeGaussianStep,
    GaussianStep,
    LaplaceStep,
    PoissonGaussianStep,
    Step,
    ZcdpStep,
)
from fedveil.privacy.mechanisms import (
    DiscreteGaussian,
    DiscreteGaussianSum,
    Gaussian,
    Laplace,
    Zcdp,
)
from fedveil.privacy.refusals import (
    AdjacencyRefused,
    AmplificationRefused,
    HonestSharesRefused,
    MechanismRefused,
)
from fedveil.privacy.releases import Release, Setting
from fedveil.privacy.sampling import (
    Balanced,
    CappedPoisson,
    Everyone,
    FixedSize,
    Poisson,
    RoundRobin,
    sampling_kind,
)
from fedveil.privacy.units import Adjacency, Trust


def step_of(release: Release, setting: Setting) -> Step:
    """The step that a release stands for, or a refusal."""
    _check_trust(release, setting)
    _check_adjacency(release, setting)
    mechanism, factor = release.mechanism, setting.adjacency.sensitivity_factor
    rate, secret = _rate(release, setting), amplified(release)
    # All uses in one round see the same cohort: they are composed inside the sample.
    uses = release.uses if secret else 1
    count = release.rounds if secret else release.counted_participations * release.uses
    if isinstance(mechanism, Gaussian):
        noise = mechanism.noise_multiplier * _honest_std(release, setting) / factor
        noise /= math.sqrt(uses)
        if not secret:
            return GaussianStep(noise, count)
        if isinstance(release.sampling, FixedSize):
            return FixedSizeGaussianStep(noise, rate, count)
        if isinstance(release.sampling, CappedPoisson):
            sampling = release.sampling
            return CappedPoissonGaussianStep(
                noise, sampling.clients, sampling.rate, sampling.cap, count
            )
        return PoissonGaussianStep(noise, rate, count)
    if isinstance(mechanism, Laplace):
        return LaplaceStep(mechanism.scale_multiplier / factor, rate, count)
    if isinstance(mechanism, DiscreteGaussian):
        return ZcdpStep(uses * factor**2 / (2 * mechanism.noise_multiplier**2), rate, count)
    if isinstance(mechanism, Zcdp):
        return ZcdpStep(uses * mechanism.rho, rate, count)
    l2, l1 = grid_sensitivity(mechanism)
    share_std = mechanism.share_std / mechanism.granularity
    shares = honest_shares(release, setting) or mechanism.shares
    return DiscreteSumStep(
        l2 * factor, l1 * factor, share_std, shares, mechanism.dimension, uses, rate, count
    )


def amplified(release: Release) -> bool:
    """Whether this release claims credit for a secret random cohort."""
    return release.sampling.amplifies and release.participations is None


def honest_shares(release: Release, setting: Setting) -> int | None:
    """Noise shares that protect the unit in one sum; None if one party adds all the noise, or if
    the cohort is not known and all of it is taken to be honest."""
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


def grid_sensitivity(mechanism: DiscreteGaussianSum) -> tuple[float, float]:
    """L2 and L1 norm bounds of one rounded contribution, in grid units (theory 6.3)."""
    scaled, dimension = mechanism.clip_norm / mechanism.granularity, mechanism.dimension
    l2 = scaled + math.sqrt(dimension)
    if mechanism.rounding_beta > 0:
        slack = math.sqrt(2 * math.log(1 / mechanism.rounding_beta))
        l2 = min(
            l2,
            math.sqrt(scaled**2 + dimension / 4 + slack * (scaled + math.sqrt(dimension) / 2)),
        )
    return l2, min(math.sqrt(dimension) * l2, l2**2)


def _check_trust(release: Release, setting: Setting) -> None:
    mechanism, trust = release.mechanism, setting.trust
    if trust is not Trust.CENTRAL and amplified(release):
        seen = "every upload" if trust is Trust.LOCAL else "who takes part"
        raise AmplificationRefused(
            f"{sampling_kind(release.sampling)} sampling under {trust} trust: the server sees "
            f"{seen}, so sampling hides nothing from it",
            "count participations (sampling everyone, round-robin or balanced, or an enforced "
            "participations cap), or use central trust",
        )
    if trust is Trust.DISTRIBUTED and isinstance(mechanism, (Laplace, DiscreteGaussian)):
        raise MechanismRefused(
            f"{type(mechanism).__name__} noise is not a sum of equal independent shares",
            "use DiscreteGaussianSum (certified) or Gaussian shares (idealised) under "
            "distributed trust",
        )
    if trust is Trust.LOCAL and isinstance(mechanism, DiscreteGaussianSum):
        raise MechanismRefused(
            "a share of the noise does not protect an upload that is seen by itself",
            "use distributed trust, or DiscreteGaussian with full noise at every client",
        )
    if amplified(release) and not isinstance(mechanism, Gaussian):
        if not isinstance(release.sampling, Poisson):
            raise MechanismRefused(
                f"{type(mechanism).__name__} with {sampling_kind(release.sampling)} sampling has "
                "no proved bound",
                "use Gaussian noise, or plain Poisson sampling",
            )
        if isinstance(mechanism, Laplace) and release.uses > 1:
            raise MechanismRefused(
                "several Laplace releases on one secret sample have no proved bound",
                "use Gaussian noise, or one release in each round",
            )


def _check_adjacency(release: Release, setting: Setting) -> None:
    adjacency, sampling = setting.adjacency, release.sampling
    if setting.trust is not Trust.CENTRAL and adjacency is Adjacency.ADD_REMOVE:
        raise AdjacencyRefused(
            f"add-remove under {setting.trust} trust: the server sees who takes part, so a "
            "missing client is noticed",
            "use adjacency zero-out or replace",
        )
    if adjacency is Adjacency.ADD_REMOVE and isinstance(sampling, (RoundRobin, Balanced)):
        raise AdjacencyRefused(
            "add-remove with a fixed schedule: one client more moves the turns of all others",
            "use adjacency zero-out or replace",
        )
    if not amplified(release):
        return
    if isinstance(sampling, FixedSize) and adjacency is not Adjacency.REPLACE:
        raise AdjacencyRefused(
            f"fixed-size sampling under {adjacency}: the cohort size is public and another "
            "client takes the free place",
            "use adjacency replace (it covers zero-out), or Poisson sampling",
        )
    if isinstance(sampling, (Poisson, CappedPoisson)) and adjacency is Adjacency.REPLACE:
        raise AdjacencyRefused(
            "Poisson sampling under replace has no proved tight bound here",
            "use adjacency add-remove, or fixed-size sampling with replace",
        )


def _rate(release: Release, setting: Setting) -> float:
    sampling = release.sampling
    if not amplified(release) or isinstance(sampling, (RoundRobin, Everyone, Balanced)):
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
    return sampling.rate


def _honest_std(release: Release, setting: Setting) -> float:
    """Factor by which colluding and missing shares lower the std of the noise in a sum."""
    shares, honest = _shares(release, setting), honest_shares(release, setting)
    return 1.0 if shares is None or honest is None else math.sqrt(honest / shares)


def _shares(release: Release, setting: Setting) -> int | None:
    """Noise shares in one sum."""
    if isinstance(release.mechanism, DiscreteGaussianSum):
        return release.mechanism.shares
    if setting.trust is not Trust.DISTRIBUTED:
        return None
    sampling = release.sampling
    known = not (isinstance(sampling, (Everyone, Poisson)) and sampling.clients is None)
    if not known and setting.colluders == 0 and setting.honest_shares is None:
        return None
    shares = math.floor(sampling.expected_cohort)
    if shares < 1:
        raise BadInput(f"cohort: an expected size of {sampling.expected_cohort:g} is below one")
    return shares
