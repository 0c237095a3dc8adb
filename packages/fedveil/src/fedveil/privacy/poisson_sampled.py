"""Secret Poisson samples drawn where the data are: batches of records or persons, clients' coins.

Every unit is in a release by a coin of its own with a public bias, independent of everything else,
drawn at its site from the operating system and shown to nobody. The server learns which sites took
part, which is public, and never which records, persons or secretly sampled clients. So Poisson
amplification holds towards the server, the other sites and readers of the model, also where the
noise comes in shares under a secure sum. The unit's own site knows the coins, and the data as well.

This is not `Release.sampling`, which says how *clients* are chosen for a round. There a server
that sees the cohort gives no credit; here the sample never leaves the site.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any, get_args

from fedveil.core.arguments import check_fields, count, fraction, settle
from fedveil.core.errors import ConfigError
from fedveil.core.units import Adjacency, Trust, Unit
from fedveil.privacy.accountants.discrete_sums import PoissonDiscreteStep
from fedveil.privacy.accountants.poisson_gaussian import ReplacedPoissonGaussianStep
from fedveil.privacy.accountants.steps import Step, with_count
from fedveil.privacy.contract import Mechanism, Use, mechanism, mechanism_from_dict
from fedveil.privacy.mechanisms import (
    EVERY_ADJACENCY,
    EVERY_TRUST,
    DiscreteGaussian,
    DiscreteGaussianSum,
    Gaussian,
    joint_noise_multiplier,
)
from fedveil.privacy.refusals import AdjacencyRefused, AmplificationRefused, MechanismRefused
from fedveil.privacy.rounding import at_most
from fedveil.privacy.sampling import Poisson

if TYPE_CHECKING:
    from fedveil.privacy.releases import PrivacyModel, Release

_Noise = Gaussian | DiscreteGaussian | DiscreteGaussianSum


@mechanism("poisson-sampled")
@dataclass(frozen=True)
class PoissonSampled(Mechanism):
    """One noisy release about a secret Poisson sample, or several that share the sample.

    Formal guarantee: under add-remove and zero-out, T releases are the T-fold adaptive composition
    of the Poisson-sampled Gaussian with this rate and noise multiplier std / D, where std is that
    of the honest shares that arrive, and D bounds one unit *on the grid*.

    Attributes:
        rate: Public probability with which a unit is in the sample.
        mechanisms: The noise of everything that is released about one sample: an update alone, or
            an update, its clip count and its metrics. They share each unit's coin, so they are one
            event and their joint norm counts. All Gaussian, all DiscreteGaussian, or all
            DiscreteGaussianSum.
        local_steps: Releases of a site in one round, each on a *new* sample and with all the noise
            that protects it; more than one is accounted under local trust.

    >>> hospitals = fv.PoissonSampled(256 / 10_000, fv.Gaussian(1.0))
    >>> records = fv.PrivacyModel("record", "zero-out", "central")
    >>> steps = fv.Release(hospitals, fv.Everyone(), rounds=782)
    >>> round(fv.account([steps], privacy_model=records, delta=1e-5).epsilon, 1)
    4.5
    """

    rate: float
    mechanisms: tuple[Mechanism, ...]
    local_steps: int = 1
    law = "noise on secret Poisson samples"
    trusts = EVERY_TRUST
    adjacencies = EVERY_ADJACENCY
    secret_coins = True

    def __post_init__(self) -> None:
        check_fields(self, rate=fraction, local_steps=count)
        given: Any = self.mechanisms
        listed = [given] if isinstance(given, (Mechanism, Mapping)) else list(given)
        parts = tuple(
            mechanism_from_dict(one) if isinstance(one, Mapping) else one for one in listed
        )
        kinds = {type(one) for one in parts}
        if len(kinds) != 1 or not kinds <= set(get_args(_Noise)):
            names = ", ".join(kind.__name__ for kind in get_args(_Noise))
            raise ConfigError(
                f"mechanisms: {parts!r} have no proof on one secret sample. "
                f"Give one or more of the same kind out of {names}."
            )
        if len({one.noise_shares() for one in parts}) != 1:
            raise ConfigError(
                "shares: they differ between the releases of one sample. Give one number."
            )
        settle(self, mechanisms=parts)

    @property
    def noise_multiplier(self) -> float:
        """Std of the noise on the sum / clip of one unit, for all releases of a sample together."""
        noises: Any = self.mechanisms
        return joint_noise_multiplier(*(one.noise_multiplier for one in noises))

    def step(self, use: Use) -> Step:
        if self.rate < 1 and use.adjacency is Adjacency.REPLACE:
            noise = self.noise_multiplier * use.honest_std
            return ReplacedPoissonGaussianStep(noise, self.rate, self.local_steps)
        inside = replace(use, sampling=Poisson(self.rate), rate=self.rate)
        if isinstance(self.mechanisms[0], Gaussian):
            step = Gaussian(self.noise_multiplier).step(inside)
        elif len(self.mechanisms) == 1:
            step = self.mechanisms[0].step(inside)
        else:  # at rate one too, as on a sample: only those can be joined
            below = replace(inside, rate=min(self.rate, math.nextafter(1.0, 0.0)))
            parts: list[Any] = [one.step(below) for one in self.mechanisms]
            step = replace(reduce(PoissonDiscreteStep.joined, parts), rate=self.rate)
        return with_count(step, self.local_steps)

    def check(self, release: Release, model: PrivacyModel) -> None:
        for one in self.mechanisms:
            if model.trust not in one.trusts:
                raise MechanismRefused(
                    f"{one.kind} noise has no proof under {model.trust} trust",
                    f"use trust {' or '.join(sorted(one.trusts))}, or another mechanism",
                )
        if release.amplified:
            raise AmplificationRefused(
                "secret samples inside a secret sample of clients have no proof here",
                "let every site, or a public schedule of sites, take part",
            )
        counted, most = release.participations, release.sampling.max_participations(release.rounds)
        if counted is not None and counted < most:
            raise AmplificationRefused(
                f"{counted} counted participations in {most} rounds of secret samples: whoever "
                "knows how often a coin said yes has no credit for it",
                "leave participations out, or account the mechanism without secret coins",
            )
        if release.uses > 1:
            raise MechanismRefused(
                f"{release.uses} releases in a round: it is not said whether they share coins",
                "list releases that share a coin in `mechanisms`, and count new samples as "
                "rounds or local_steps",
            )
        if self.local_steps > 1 and model.trust is not Trust.LOCAL:
            raise MechanismRefused(
                f"{self.local_steps} noisy local steps under {model.trust} trust: the noise of "
                "others does not cover a unit once the runs have drifted apart",
                "account the site's own noise under local trust, which also covers a secure sum",
            )
        if model.unit is Unit.CLIENT and model.adjacency is not Adjacency.ZERO_OUT:
            raise AdjacencyRefused(
                f"clients with secret coins under {model.adjacency}: who uploads is public, so a "
                "missing client is noticed",
                "use adjacency zero-out",
            )
        continuous = isinstance(self.mechanisms[0], Gaussian)
        central = model.trust is Trust.CENTRAL and continuous
        if self.rate < 1 and model.adjacency is Adjacency.REPLACE and not central:
            raise AdjacencyRefused(
                f"secret samples with {self.mechanisms[0].kind} noise under replace and "
                f"{model.trust} trust have no proof",
                "use adjacency zero-out, or Gaussian noise under central trust",
            )

    def scaled(self, scale: float) -> PoissonSampled:
        return replace(self, mechanisms=tuple(one.scaled(scale) for one in self.mechanisms))

    def noise_shares(self) -> int | None:
        return self.mechanisms[0].noise_shares()

    def not_certified(self, model: PrivacyModel) -> str:
        return self.mechanisms[0].not_certified(model)

    def rests_on(self) -> tuple[str, ...]:
        return (
            "Each unit's coin is its own, drawn at its site, and shown to nobody; neither are the "
            "sizes, losses and times of a sample.",
            "No release is skipped, repeated or delayed because of its sample, empty or not.",
            "Rate, divisor and number of steps are public constants.",
        )

    def describe(self) -> str:
        steps = f", {self.local_steps} local steps" if self.local_steps > 1 else ""
        noise = " and ".join(one.describe() for one in self.mechanisms)
        return f"secret samples at rate {at_most(self.rate, 6)}{steps}, {noise}"

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "mechanisms": [one.to_dict() for one in self.mechanisms]}
