"""What a device insists on, whatever a server asks."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import lru_cache

from fedveil.core.arguments import check_fields, count, interval, natural, share
from fedveil.core.errors import ConfigError
from fedveil.privacy.secure_sums import derive, topology
from fedveil.privacy.secure_sums.errors import RuleBroken
from fedveil.privacy.secure_sums.topology import Topology

MAX_COHORT = 1 << 14
MAX_DIMENSION = 1 << 28


@dataclass(frozen=True)
class Limits:
    """The most that a round may cost a device.

    `round_step`: how far a round's number may lie above the last one that the device answered.
    """

    members: int = MAX_COHORT
    degree: int = 1 << 10
    dimension: int = MAX_DIMENSION
    round_step: int = 1 << 14

    def __post_init__(self) -> None:
        check_fields(self, "limits.", **{spec.name: count for spec in fields(self)})
        if self.members > MAX_COHORT:
            raise ConfigError(f"limits.members = {self.members}: at most {MAX_COHORT} in one round")

    def check(self, members: int, degree: int, dimension: int) -> None:
        """Raise `RuleBroken` if a round would cost more."""
        for name, value in (("members", members), ("degree", degree), ("dimension", dimension)):
            if value > getattr(self, name):
                raise RuleBroken(f"{name} = {value}: this device takes {getattr(self, name)}")


@dataclass(frozen=True)
class SecAggParams:
    """The assumptions behind a round: part of what the guarantee states.

    `min_honest`: honest devices whose vectors (and noise shares) the released sum must hold.
    `colluders`: corrupted devices of the whole population. The server picks the cohorts, so all of
        them may be in one.
    `max_dropout`: fraction of the cohort that may vanish and still leave an exact sum.
    `honest_server`: the server is trusted to follow the protocol: it tells the truth about who
        shared and survived, and nobody confirms it.
    `sparse`: that server may also draw a sparse graph, at random. The failures are probabilities
        over it: `security_failure` that it shows more than the sum, `recovery_failure` that it
        cannot recover one.
    `purposes`: all that one round number may be used for.
    """

    federation: str
    min_honest: int
    colluders: int = 0
    max_dropout: float = 0.1
    security_failure: float = 2.0**-64
    recovery_failure: float = 2.0**-20
    sparse: bool = False
    honest_server: bool = False
    purposes: tuple[str, ...] = ("update",)
    limits: Limits = Limits()

    def __post_init__(self) -> None:
        if not 1 <= len(self.federation.encode()) <= 128:
            raise ConfigError(f"federation = {self.federation!r}: need a name of 1 to 128 bytes")
        if self.min_honest < 2:
            raise ConfigError(
                f"min_honest = {self.min_honest}: a sum hides its terms among 2 or more"
            )
        chance = interval("(0, 1)")
        check_fields(self, colluders=natural, max_dropout=share)
        check_fields(self, security_failure=chance, recovery_failure=chance)
        if self.sparse and not self.honest_server:
            raise ConfigError("sparse: a sparse graph needs a server that is trusted to draw it")
        names = self.purposes
        if not names or len(set(names)) < len(names) or len(names) > 16:
            raise ConfigError(f"purposes = {names}: need 1 to 16 different names")
        if not all(1 <= len(name.encode()) <= 64 for name in names):
            raise ConfigError(f"purposes = {names}: names have 1 to 64 bytes")

    @property
    def min_survivors(self) -> int:
        """Survivors below which no sum may be released: honest ones are then too few."""
        return self.min_honest + self.colluders

    @property
    def digest(self) -> bytes:
        """Return the digest by which both sides of a plan show that they mean the same terms."""
        return _digest(self)

    def losses(self, cohort: int) -> int:
        """How many devices of a cohort may be lost."""
        return math.floor(self.max_dropout * cohort + 1e-9)

    def fewest_survivors(self, cohort: int) -> int:
        """Uploads without which neither the noise nor the graph is what was assumed."""
        return max(self.min_survivors, cohort - self.losses(cohort))

    def topology(self, cohort: int) -> Topology:
        """The graph that meets these terms, the sparsest one if they allow it."""
        if cohort > self.limits.members:
            raise ConfigError(
                f"cohort = {cohort}: at most {self.limits.members} devices in one round"
            )
        if cohort < self.min_survivors:
            raise ConfigError(
                f"cohort = {cohort}: need at least min_honest + colluders = {self.min_survivors}"
            )
        found = topology.choose(
            cohort,
            self.colluders,
            self.losses(cohort),
            security_failure=self.security_failure,
            recovery_failure=self.recovery_failure,
            sparse=self.sparse,
        )
        if found.degree > self.limits.degree:
            raise ConfigError(
                f"cohort = {cohort}: {found.degree} neighbours a device, the limit is "
                f"{self.limits.degree}; take smaller cohorts or higher limits"
            )
        return found

    def check(
        self, cohort: int, degree: int, threshold: int, min_survivors: int, masks: int | None = None
    ) -> None:
        """Hold a proposed round to these terms.

        Args:
            cohort: Devices in the round.
            degree: Neighbours of each device.
            threshold: Shares that recover a secret.
            min_survivors: Survivors without which the server would release nothing.
            masks: Neighbours with whom a device masks; None means all.

        Raises:
            RuleBroken: The round falls short of the terms.
        """
        if cohort < max(2, self.min_survivors):
            raise RuleBroken(
                f"cohort of {cohort} is below min_honest + colluders = {self.min_survivors}"
            )
        if min_survivors < self.min_survivors:
            raise RuleBroken(
                f"a sum of {min_survivors} survivors would be released, need {self.min_survivors}"
            )
        if degree != cohort - 1 and not self.sparse:
            raise RuleBroken(f"graph of degree {degree} is too sparse: these terms ask for all")
        chances = (self.colluders, self.losses(cohort), self.security_failure)
        try:
            found = topology.assess(cohort, degree, threshold, *chances, masks)
        except ConfigError as error:
            raise RuleBroken(str(error)) from None
        for name in ("security_failure", "recovery_failure"):
            chance, most = getattr(found, name), getattr(self, name)
            if chance > most:
                raise RuleBroken(
                    f"graph of degree {degree} with threshold {threshold} is too sparse: "
                    f"{name} {chance:.1e} > {most:.1e}"
                )


@lru_cache(maxsize=64)
def _digest(params: SecAggParams) -> bytes:
    return derive.digest(b"terms", *(text.encode() for text in _texts(params)))


def _texts(value: SecAggParams | Limits) -> list[str]:
    """The fields in one form that both sides write alike."""
    found = []
    for spec in fields(value):
        item = getattr(value, spec.name)
        if isinstance(item, Limits):
            found += _texts(item)
        elif isinstance(item, float):
            found.append(f"{spec.name}={item.hex()}")
        elif isinstance(item, tuple):
            found.append(f"{spec.name}={len(item)}:" + "".join(f"{len(i)}:{i}" for i in item))
        else:
            found.append(f"{spec.name}={item}")
    return found
