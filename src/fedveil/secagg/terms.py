"""What a device insists on, whatever a server asks."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedveil.errors import BadInput
from fedveil.secagg import topology
from fedveil.secagg.errors import RuleBroken
from fedveil.secagg.topology import Topology

MAX_COHORT = 1 << 14


@dataclass(frozen=True)
class Terms:
    """The assumptions behind a round: part of what the guarantee states.

    `min_honest`: honest devices whose vectors (and noise shares) the released sum must hold.
    `colluders`: devices of a cohort that may share all they know with the server.
    `max_dropout`: fraction of the cohort that may vanish and still leave an exact sum.
    The failures are probabilities over the random graph: `security_failure` that a sparse graph
    shows more than the sum, `recovery_failure` that it cannot recover one.
    """

    federation: str
    min_honest: int
    colluders: int = 0
    max_dropout: float = 0.1
    security_failure: float = 2.0**-40
    recovery_failure: float = 2.0**-20
    sparse: bool = True

    def __post_init__(self) -> None:
        if not 1 <= len(self.federation.encode()) <= 128:
            raise BadInput(f"federation = {self.federation!r}: need a name of 1 to 128 bytes")
        if self.min_honest < 1:
            raise BadInput(f"min_honest = {self.min_honest}: need at least 1 honest device")
        if self.colluders < 0:
            raise BadInput(f"colluders = {self.colluders}: cannot be negative")
        if not 0 <= self.max_dropout < 1:
            raise BadInput(f"max_dropout = {self.max_dropout}: need a fraction in [0, 1)")
        for name in ("security_failure", "recovery_failure"):
            value = getattr(self, name)
            if not 0 < value < 1:
                raise BadInput(f"{name} = {value}: need a probability in (0, 1)")

    @property
    def min_survivors(self) -> int:
        """Survivors below which no sum may be released: honest ones are then too few."""
        return self.min_honest + self.colluders

    def losses(self, cohort: int) -> int:
        """How many devices of a cohort may be lost."""
        return math.floor(self.max_dropout * cohort + 1e-9)

    def fewest_survivors(self, cohort: int) -> int:
        """Uploads without which neither the noise nor the graph is what was assumed."""
        return max(self.min_survivors, cohort - self.losses(cohort))

    def topology(self, cohort: int) -> Topology:
        """The sparsest graph that meets these terms."""
        if cohort > MAX_COHORT:
            raise BadInput(f"cohort = {cohort}: at most {MAX_COHORT} devices in one round")
        if cohort < self.min_survivors:
            raise BadInput(
                f"cohort = {cohort}: need at least min_honest + colluders = {self.min_survivors}"
            )
        return topology.choose(
            cohort,
            self.colluders,
            self.losses(cohort),
            security_failure=self.security_failure,
            recovery_failure=self.recovery_failure,
            sparse=self.sparse,
        )

    def check(self, cohort: int, degree: int, threshold: int, min_survivors: int) -> None:
        """Raise `RuleBroken` if a proposed round falls short of these terms."""
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
        if not self.sparse and degree != cohort - 1:
            raise RuleBroken(f"graph of degree {degree} is too sparse: these terms ask for all")
        found = topology.assess(cohort, degree, threshold, self.colluders, self.losses(cohort))
        if found.security_failure > self.security_failure:
            raise RuleBroken(
                f"graph of degree {degree} with threshold {threshold} is too sparse: it fails "
                f"with probability {found.security_failure:.1e} > {self.security_failure:.1e}"
            )
