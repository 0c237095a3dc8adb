"""What a device insists on, whatever a server asks."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import lru_cache

from fedveil.core.errors import ConfigError
from fedveil.privacy.secure_sums import derive, topology
from fedveil.privacy.secure_sums.errors import RuleBroken
from fedveil.privacy.secure_sums.topology import Topology

MAX_COHORT = 1 << 14
MAX_DIMENSION = 1 << 28


@dataclass(frozen=True)
class Limits:
    """What a round may cost a device.

    `round_step`: how far a round's number may lie above the last one that the device answered.
    `draws`: how often a device helps to draw the graph of one round and purpose.
    """

    members: int = MAX_COHORT
    degree: int = 1 << 10
    dimension: int = MAX_DIMENSION
    round_step: int = 1 << 14
    draws: int = 8

    def __post_init__(self) -> None:
        for spec in fields(self):
            value = getattr(self, spec.name)
            if type(value) is not int or value < 1:
                raise ConfigError(f"limits.{spec.name} = {value}: need a whole number above zero")
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
    The failures are probabilities over the random graph: `security_failure` that a sparse graph
    shows more than the sum, `recovery_failure` that it cannot recover one.
    `honest_shares`: honest devices in the smallest sum that anybody can learn, which is what noise
        is calibrated for; by default what the sparsest graph of these terms gives.
    `honest_server`: the server is trusted to follow the protocol: it draws the graph at random and
        tells the truth about who shared and survived. Nobody confirms it, and masks are fewer.
    `purposes`: all that one round number may be used for.
    """

    federation: str
    min_honest: int
    colluders: int = 0
    max_dropout: float = 0.1
    security_failure: float = 2.0**-64
    recovery_failure: float = 2.0**-20
    sparse: bool = False
    honest_shares: int | None = None
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
        if self.colluders < 0:
            raise ConfigError(f"colluders = {self.colluders}: cannot be negative")
        if not 0 <= self.max_dropout < 1:
            raise ConfigError(f"max_dropout = {self.max_dropout}: need a fraction in [0, 1)")
        for name in ("security_failure", "recovery_failure"):
            value = getattr(self, name)
            if not 0 < value < 1:
                raise ConfigError(f"{name} = {value}: need a probability in (0, 1)")
        if self.honest_shares is not None and not 2 <= self.honest_shares <= self.min_honest:
            raise ConfigError(
                f"honest_shares = {self.honest_shares}: need 2 to min_honest = {self.min_honest}"
            )
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
        """What a plan carries to show that both sides mean the same terms."""
        return _digest(self)

    def losses(self, cohort: int) -> int:
        """How many devices of a cohort may be lost."""
        return math.floor(self.max_dropout * cohort + 1e-9)

    def fewest_survivors(self, cohort: int) -> int:
        """Uploads without which neither the noise nor the graph is what was assumed."""
        return max(self.min_survivors, cohort - self.losses(cohort))

    def liars(self, cohort: int) -> int:
        """Neighbours that may lie about an honest device: those that collude, one in any case."""
        return max(1, self.topology(cohort).colluding_neighbours)

    def group(self, found: Topology) -> int:
        """Honest devices in the smallest sum that anybody can learn on such a graph."""
        if self.honest_server:
            return self.min_honest
        return found.smallest_group(self.min_honest)

    def counted(self, cohort: int) -> int:
        """Noise shares that the guarantee counts on."""
        if self.honest_shares is not None:
            return self.honest_shares
        return self.group(self.topology(cohort))

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
            large_groups=not self.honest_server,
        )
        if found.degree > self.limits.degree:
            raise ConfigError(
                f"cohort = {cohort}: {found.degree} neighbours a device, the limit is "
                f"{self.limits.degree}; take smaller cohorts, a sparse graph or higher limits"
            )
        return found

    def drawers(self, cohort: int, degree: int) -> int:
        """How many devices must draw the graph: one at least is no colluder."""
        return 0 if self.honest_server or degree == cohort - 1 else self.colluders + 1

    def check(
        self, cohort: int, degree: int, threshold: int, min_survivors: int, masks: int | None = None
    ) -> None:
        """Raise `RuleBroken` if a proposed round falls short of these terms."""
        masks = degree if masks is None else masks
        if cohort < max(2, self.min_survivors):
            raise RuleBroken(
                f"cohort of {cohort} is below min_honest + colluders = {self.min_survivors}"
            )
        if min_survivors < self.min_survivors:
            raise RuleBroken(
                f"a sum of {min_survivors} survivors would be released, need {self.min_survivors}"
            )
        if not topology.possible_degree(cohort, degree) or not 1 <= threshold <= degree:
            raise RuleBroken(f"no graph of {cohort} has degree {degree}, threshold {threshold}")
        if masks != degree and (not self.honest_server or masks % 2 or not 2 <= masks < degree):
            raise RuleBroken(f"{masks} masks at degree {degree}: these terms ask for all of them")
        if not self.sparse and degree != cohort - 1:
            raise RuleBroken(f"graph of degree {degree} is too sparse: these terms ask for all")
        chances = (self.colluders, self.losses(cohort), self.security_failure)
        try:
            found = topology.assess(cohort, degree, threshold, *chances, masks)
            counted = self.counted(cohort)
        except ConfigError as error:
            raise RuleBroken(str(error)) from None
        for name in ("security_failure", "recovery_failure"):
            chance, most = getattr(found, name), getattr(self, name)
            if chance > most:
                raise RuleBroken(
                    f"graph of degree {degree} with threshold {threshold} is too sparse: "
                    f"{name} {chance:.1e} > {most:.1e}"
                )
        if self.group(found) < counted:
            raise RuleBroken(
                f"graph of degree {degree} with threshold {threshold} is too sparse: a lying "
                f"server learns sums of {self.group(found)}, noise counts on {counted}"
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
