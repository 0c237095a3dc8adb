"""Which mechanism, sampling, adjacency, unit and trust go together: the table of what is proved."""

from __future__ import annotations

from fedveil.core.units import Adjacency, Trust, Unit
from fedveil.privacy.gradient_perturbation import GridGradients, NoisyGradients
from fedveil.privacy.mechanisms import (
    DiscreteGaussian,
    DiscreteGaussianSum,
    Gaussian,
    Laplace,
    NoisyVotes,
    Zcdp,
    kind_of,
)
from fedveil.privacy.refusals import (
    AdjacencyRefused,
    AmplificationRefused,
    GradientRefused,
    HonestSharesRefused,
    MechanismRefused,
)
from fedveil.privacy.releases import Release, Setting
from fedveil.privacy.sampling import Balanced, CappedPoisson, FixedSize, Poisson, RoundRobin
from fedveil.privacy.sampling import sampling_kind as name_of


def check_legal(release: Release, setting: Setting) -> None:
    """Raise a Refused if no proof covers this release in this setting."""
    _check_trust(release, setting)
    _check_adjacency(release, setting)
    if isinstance(release.mechanism, (NoisyGradients, GridGradients)):
        _check_gradients(release, release.mechanism, setting)
    if release.amplified:
        _check_sampling(release, setting)


def _check_trust(release: Release, setting: Setting) -> None:
    mechanism, trust = release.mechanism, setting.trust
    if trust is not Trust.CENTRAL and release.amplified:
        seen = "every upload" if trust is Trust.LOCAL else "who takes part"
        raise AmplificationRefused(
            f"{name_of(release.sampling)} sampling under {trust} trust: the server sees {seen}, so "
            "sampling hides nothing from it",
            "count participations (sampling everyone, round-robin or balanced, or an enforced "
            "participations cap), or use central trust",
        )
    varying = isinstance(release.sampling, (Poisson, CappedPoisson)) and release.sampling.rate < 1
    if trust is Trust.DISTRIBUTED and varying and setting.honest_shares is None:
        raise HonestSharesRefused(
            f"{name_of(release.sampling)} cohorts vary in size, so the number of noise shares in "
            "a sum is not certain",
            "use sampling balanced, round-robin, fixed or everyone, or state honest_shares",
        )
    if trust is Trust.DISTRIBUTED and isinstance(mechanism, (Laplace, DiscreteGaussian)):
        raise MechanismRefused(
            f"{kind_of(mechanism)} noise is not a sum of equal independent shares",
            "use discrete-gaussian-sum (certified) or gaussian shares (idealised)",
        )
    if trust is Trust.LOCAL and isinstance(mechanism, (DiscreteGaussianSum, GridGradients)):
        raise MechanismRefused(
            "a share of the noise does not protect an upload that is seen by itself",
            "use distributed trust, or discrete-gaussian with full noise at every client",
        )


def _check_adjacency(release: Release, setting: Setting) -> None:
    if setting.adjacency is not Adjacency.ADD_REMOVE:
        return
    if setting.trust is not Trust.CENTRAL:
        raise AdjacencyRefused(
            f"add-remove under {setting.trust} trust: the server sees who takes part, so a "
            "missing client is noticed",
            "use adjacency zero-out or replace",
        )
    if isinstance(release.sampling, (RoundRobin, Balanced)):
        raise AdjacencyRefused(
            "add-remove with a fixed schedule: one client more moves the turns of all others",
            "use adjacency zero-out or replace",
        )
    limited = isinstance(release.sampling, (FixedSize, CappedPoisson))
    if limited and not release.amplified:
        raise AdjacencyRefused(
            f"add-remove with {name_of(release.sampling)} cohorts: another client takes the free "
            "place, so the sum moves twice as far as the clip",
            "use adjacency zero-out or replace",
        )


def _check_sampling(release: Release, setting: Setting) -> None:
    adjacency, sampling, mechanism = setting.adjacency, release.sampling, release.mechanism
    if isinstance(sampling, FixedSize) and adjacency is not Adjacency.REPLACE:
        raise AdjacencyRefused(
            f"fixed-size sampling under {adjacency}: the cohort size is public, so another client "
            "takes a free place",
            "use adjacency replace (it covers zero-out), or Poisson sampling",
        )
    if isinstance(sampling, Poisson) and adjacency is Adjacency.REPLACE:
        raise AdjacencyRefused(
            "Poisson sampling under replace is not covered by the composition proof",
            "use adjacency add-remove, or fixed-size sampling",
        )
    if isinstance(sampling, CappedPoisson) and adjacency is Adjacency.REPLACE:
        raise AdjacencyRefused(
            "a capped Poisson cohort under replace is not covered by the composition proof",
            "use adjacency zero-out, or fixed-size sampling",
        )
    if isinstance(sampling, CappedPoisson) and setting.colluders:
        raise AmplificationRefused(
            f"a capped cohort with {setting.colluders} colluders: whether they were cut betrays "
            "who else came",
            "use plain Poisson sampling, or an enforced participations cap",
        )
    if isinstance(mechanism, (Gaussian, NoisyVotes)):
        return
    if not isinstance(sampling, Poisson):
        raise MechanismRefused(
            f"{kind_of(mechanism)} with {name_of(sampling)} sampling has no proved amplification",
            "use Gaussian noise, or plain Poisson sampling",
        )
    if isinstance(mechanism, Zcdp) and setting.adjacency is not Adjacency.ADD_REMOVE:
        raise AdjacencyRefused(
            f"zcdp with Poisson sampling under {adjacency}: amplification is proved for add-remove",
            "use adjacency add-remove",
        )
    if isinstance(mechanism, Laplace) and release.uses > 1:
        raise MechanismRefused(
            "several Laplace releases on one secret sample have no proved bound",
            "use Gaussian noise, or one release in each round",
        )


def _check_gradients(
    release: Release, mechanism: NoisyGradients | GridGradients, setting: Setting
) -> None:
    if release.amplified:
        raise AmplificationRefused(
            "noisy gradients on a secret sample of clients have no proved amplification here",
            "count participations, or clip the whole update and add noise once",
        )
    if setting.unit is not Unit.RECORD:
        raise GradientRefused(
            "per-example clipping bounds one record, not a whole client",
            "use unit record, or clip the whole update and add noise once",
        )
    if setting.adjacency is Adjacency.ADD_REMOVE:
        raise AdjacencyRefused(
            "add-remove of a record changes the batches of all others",
            "use adjacency replace or zero-out",
        )
    if setting.trust is not Trust.LOCAL and mechanism.shares is None:
        raise GradientRefused(
            f"{setting.trust} trust needs the number of noise shares in a sum",
            "give shares, or account under local trust",
        )
