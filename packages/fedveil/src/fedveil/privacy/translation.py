"""From releases under a privacy model to steps: the one place where clips become sensitivities.

Every illegal combination of mechanism, sampling, adjacency, unit and trust is refused here, before
any number is computed. What a mechanism's own proof covers, its class says.
"""

from __future__ import annotations

import math
from dataclasses import replace

from fedveil.core.errors import ConfigError
from fedveil.core.units import Adjacency, Trust, Unit
from fedveil.privacy.accountants.steps import Step, checked, with_count
from fedveil.privacy.contract import Mechanism, Use, kind_of
from fedveil.privacy.refusals import (
    AdjacencyRefused,
    AmplificationRefused,
    HonestSharesRefused,
    MechanismRefused,
    UnitRefused,
)
from fedveil.privacy.releases import PrivacyModel, Release
from fedveil.privacy.sampling import (
    Balanced,
    CappedPoisson,
    Everyone,
    FixedSize,
    Poisson,
    RoundRobin,
    Sampling,
)
from fedveil.privacy.sampling import sampling_kind as name_of

_LEAST_RATE = 1e-12  # smaller ones are accounted as this: curves need the room


def step_of(release: Release, model: PrivacyModel) -> Step:
    """The step that a release stands for, or a refusal."""
    check_legal(release, model)
    secret = release.amplified
    use = Use(
        adjacency=model.adjacency,
        sampling=release.sampling if secret else None,
        rate=_rate(release, model),
        # All uses in one round see the same cohort: they are composed inside the sample.
        uses=release.uses if secret else 1,
        honest_shares=honest_shares(release, model),
        honest_std=_honest_std(release, model),
    )
    times = release.rounds if secret else release.counted_participations * release.uses
    step = checked(release.mechanism.step(use)).grouped(model.contributions or 1)
    if step is None:
        raise UnitRefused(
            f"{kind_of(release.mechanism)} with {model.contributions} contributions of one person "
            "has no proved bound",
            "use Gaussian noise, or let each person make one contribution",
        )
    return with_count(checked(step), step.count * times)


def check_legal(release: Release, model: PrivacyModel) -> None:
    """Raise a PrivacyRefusal if no proof covers this release under this privacy model."""
    _check_trust(release, model)
    _check_adjacency(release, model)
    release.mechanism.check(release, model)
    if release.amplified:
        _check_sampling(release.sampling, model)
        _check_amplified(release)


def honest_shares(release: Release, model: PrivacyModel) -> int | None:
    """Noise shares that protect the unit in one sum.

    None if one party adds all the noise, or if the cohort is not known and is taken to be honest.
    """
    shares = _shares(release, model)
    if shares is None:
        return None
    honest = shares - model.colluders
    if model.honest_shares is not None:
        honest = min(honest, model.honest_shares)
    if honest < 1:
        raise HonestSharesRefused(
            f"{shares} shares with {model.colluders} colluders leave {max(honest, 0)} honest "
            "ones, so the adversary can subtract all noise",
            "use a larger cohort, or local trust with full noise at every client",
        )
    return honest


def for_one_record(release: Release, model: PrivacyModel) -> PrivacyModel:
    """The privacy model under which a client-level release is charged to one record of a client.

    One record can turn a clipped update round, from +C to -C. So the client counts as replaced,
    whatever the release's own adjacency hides.
    """
    known = release.mechanism.one_adjacency
    if known and model.adjacency is not Adjacency.REPLACE:
        raise UnitRefused(
            f"{known} is known for a client under {model.adjacency}, and one record can replace "
            "all that its client sends",
            "describe the release for replace",
        )
    if release.amplified and not isinstance(release.sampling, FixedSize):
        raise UnitRefused(
            f"{name_of(release.sampling)} sampling of clients has no proved amplification for one "
            "record: it can replace all that its client sends",
            "use a run with fixed-size sampling under replace, or keep a client-level ledger",
        )
    return replace(model, adjacency=Adjacency.REPLACE)


def population_of(releases: tuple[Release, ...], model: PrivacyModel) -> int | None:
    """Number of protected units, if anything tells it: never fewer than are known to take part."""
    if model.population is None and model.unit is not Unit.CLIENT:
        return None  # clients do not tell how many records or persons they have
    return least_population(releases, model)


def least_population(releases: tuple[Release, ...], model: PrivacyModel) -> int | None:
    """How many protected units there are at least, whatever is said: a client has a record."""
    known = [model.population]
    for release in releases:
        known += [release.sampling.clients, release.mechanism.noise_shares()]
    return max((number for number in known if number is not None), default=None)


def usual_adjacency(
    trust: Trust,
    sampling: Sampling,
    *,
    public_clients: bool = False,
    mechanism: type[Mechanism] | None = None,
) -> Adjacency:
    """The change to hide if nobody chooses one: what is proved without further assumptions.

    Add-remove costs the same as zero-out, but it is true only if the rate and whatever the noisy
    sum is divided by do not follow the number of clients (`public_clients`): the user must say so.
    """
    if trust is Trust.LOCAL or (trust is Trust.CENTRAL and isinstance(sampling, FixedSize)):
        return Adjacency.REPLACE
    if trust is Trust.CENTRAL and sampling.amplifies and mechanism and mechanism.one_adjacency:
        return Adjacency.ADD_REMOVE  # the only one with a proof of amplification
    return Adjacency.ADD_REMOVE if public_clients else Adjacency.ZERO_OUT


def _check_trust(release: Release, model: PrivacyModel) -> None:
    mechanism, sampling, trust = release.mechanism, release.sampling, model.trust
    if trust is not Trust.CENTRAL and release.amplified:
        seen = "every upload" if trust is Trust.LOCAL else "who takes part"
        raise AmplificationRefused(
            f"{name_of(sampling)} sampling under {trust} trust: the server sees {seen}, so "
            "sampling hides nothing from it",
            "count participations (sampling everyone, round-robin or balanced, or an enforced "
            "participations cap), or use central trust",
        )
    varying = isinstance(sampling, (Poisson, CappedPoisson)) and sampling.rate < 1
    if trust is Trust.DISTRIBUTED and varying and model.honest_shares is None:
        raise HonestSharesRefused(
            f"{name_of(sampling)} cohorts vary in size, so the number of noise shares in a sum is "
            "not certain",
            "use sampling balanced, round-robin, fixed or everyone, or state honest_shares",
        )
    if trust not in mechanism.trusts:
        raise MechanismRefused(
            f"{kind_of(mechanism)} noise has no proof under {trust} trust",
            f"use trust {' or '.join(sorted(mechanism.trusts))}, or another mechanism",
        )


def _check_adjacency(release: Release, model: PrivacyModel) -> None:
    sampling, adjacency, mechanism = release.sampling, model.adjacency, release.mechanism
    if adjacency not in mechanism.adjacencies:
        raise AdjacencyRefused(
            f"{kind_of(mechanism)} noise has no proof under {adjacency}",
            f"use adjacency {' or '.join(sorted(mechanism.adjacencies))}",
        )
    if adjacency is not Adjacency.ADD_REMOVE or mechanism.secret_coins:
        return
    instead = "use adjacency zero-out or replace"
    if model.trust is not Trust.CENTRAL:
        raise AdjacencyRefused(
            f"add-remove under {model.trust} trust: the server sees who takes part, so a missing "
            "client is noticed",
            instead,
        )
    if isinstance(sampling, (RoundRobin, Balanced)):
        raise AdjacencyRefused(
            "add-remove with a fixed schedule: one client more moves the turns of all others",
            instead,
        )
    if isinstance(sampling, (FixedSize, CappedPoisson)) and not release.amplified:
        raise AdjacencyRefused(
            f"add-remove with {name_of(sampling)} cohorts: another client takes the free place, so "
            "the sum moves twice as far as the clip",
            instead,
        )


def _check_sampling(sampling: Sampling, model: PrivacyModel) -> None:
    """Whether a secret cohort's amplification is proved for this change."""
    adjacency = model.adjacency
    if model.unit is not Unit.CLIENT:
        raise AmplificationRefused(
            f"{name_of(sampling)} cohorts of clients hide no single {model.unit}: what else its "
            "client sends shows in which rounds it was there",
            f"let each {model.unit} have a secret coin of its own (--batch-rate, PoissonSampled), "
            "or count participations",
        )
    if isinstance(sampling, FixedSize) and adjacency is not Adjacency.REPLACE:
        raise AdjacencyRefused(
            f"fixed-size sampling under {adjacency}: the cohort size is public, so another client "
            "takes a free place",
            "use adjacency replace (it covers zero-out), or Poisson sampling",
        )
    if isinstance(sampling, Poisson | CappedPoisson) and adjacency is Adjacency.REPLACE:
        raise AdjacencyRefused(
            f"{name_of(sampling)} sampling under replace is not covered by the composition proof",
            "use adjacency zero-out, or fixed-size sampling",
        )
    if isinstance(sampling, CappedPoisson) and model.colluders:
        raise AmplificationRefused(
            f"a capped cohort with {model.colluders} colluders: whether they were cut betrays who "
            "else came",
            "use plain Poisson sampling, or an enforced participations cap",
        )


def _check_amplified(release: Release) -> None:
    """Whether the mechanism's own proof covers amplification by this sampling."""
    mechanism, sampling = release.mechanism, release.sampling
    if type(sampling) not in mechanism.amplified_by:
        raise MechanismRefused(
            f"{kind_of(mechanism)} with {name_of(sampling)} sampling has no proved amplification",
            "use Gaussian noise, or plain Poisson sampling"
            if mechanism.amplified_by
            else "use Gaussian noise, or count participations",
        )
    if release.uses > 1 and not mechanism.joint_uses:
        raise MechanismRefused(
            f"several {mechanism.kind} releases on one secret sample have no proved bound",
            "use Gaussian noise, or one release in each round",
        )


def _rate(release: Release, model: PrivacyModel) -> float:
    sampling = release.sampling
    if not release.amplified:
        return 1.0
    if isinstance(sampling, FixedSize):
        # Colluders know whether they were drawn: the others share the remaining places.
        others = sampling.clients - model.colluders
        if others < 1:
            raise HonestSharesRefused(
                f"{model.colluders} colluders among {sampling.clients} clients leave nobody",
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


def _honest_std(release: Release, model: PrivacyModel) -> float:
    """Factor by which colluding and missing shares lower the std of the noise in a sum."""
    shares, honest = _shares(release, model), honest_shares(release, model)
    if shares is None or honest is None or release.mechanism.noise_shares() is not None:
        return 1.0  # a mechanism that fixes its shares counts the honest ones itself
    # The multiplier counts the cohort that is expected, and that need not be a whole number.
    return math.sqrt(honest / max(shares, release.sampling.expected_cohort))


def _shares(release: Release, model: PrivacyModel) -> int | None:
    """Noise shares in one sum."""
    sampling, fixed = release.sampling, release.mechanism.noise_shares()
    if model.trust is Trust.LOCAL:
        return None
    if fixed is not None or model.trust is Trust.CENTRAL:
        return fixed
    unknown = isinstance(sampling, (Everyone, Poisson)) and sampling.clients is None
    if unknown and model.colluders == 0 and model.honest_shares is None:
        return None
    shares = math.floor(sampling.expected_cohort)
    if shares < 1:
        raise ConfigError(f"cohort: an expected size of {sampling.expected_cohort:g} is below one")
    return shares
