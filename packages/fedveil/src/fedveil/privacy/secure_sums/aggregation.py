"""How a cohort's vectors are summed: plainly, or behind masks that dropouts do not spoil.

A sum that is released holds at least `honest_shares` noise shares of honest clients. That number is
fixed before training; the noise is calibrated for it, and a round that falls short of it is not
released.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial

from fedveil.core.arguments import check_fields, count, flag, one_of, optional, plain_numbers, share
from fedveil.core.errors import ConfigError
from fedveil.privacy.secure_sums.dropouts import planned_dropouts
from fedveil.privacy.secure_sums.mode import SecureMode
from fedveil.privacy.secure_sums.params import MAX_COHORT, Limits, SecAggParams

# What one round's number may be used for: the updates, and the count of a tracked clip.
UPDATE, COUNT = "update", "bits"


_CHECKS = {
    "secure": optional(one_of(SecureMode)),
    "dropout": share,
    "max_dropout": optional(share),
    "min_honest": optional(partial(count, least=2)),
    "sparse": flag,
    "honest_server": flag,
}


@dataclass(frozen=True)
class Aggregation:
    """The sums that a method asks for; `resolve` makes them definite for a cohort.

    Attributes:
        secure: Masked, ideal or none; None: ideal where noise comes in shares, and none elsewhere.
        dropout: Probability with which each device is lost in a simulated round, after it has
            shared its keys and before its vector arrives.
        max_dropout: How many of a cohort may be lost; by default as many as `dropout` exceeds with
            probability 2^-20 at most, or half of them in small cohorts.
        min_honest: Honest noise shares in every released sum; by default all that dropouts and
            colluders leave.
        sparse: Whether devices of large cohorts mask with some neighbours, whom an honest server
            draws, instead of with everybody.
        honest_server: Declares that the server follows the protocol, so that nobody need check whom
            it calls lost.
    """

    secure: SecureMode | None = None
    dropout: float = 0.0
    max_dropout: float | None = None
    min_honest: int | None = None
    sparse: bool = False
    honest_server: bool = False

    def __post_init__(self) -> None:
        plain_numbers(self)
        check_fields(self, "aggregation.", **_CHECKS)
        if self.secure is SecureMode.NONE and replace(self, secure=None) != Aggregation():
            raise ConfigError(
                "aggregation.secure: 'none' leaves the section's other keys no meaning"
            )
        if self.sparse and not self.honest_server:
            raise ConfigError(
                "aggregation.sparse: only a server that is trusted to follow the protocol may draw "
                "a sparse graph. Set aggregation.honest_server, or leave sparse out."
            )

    @property
    def asked(self) -> bool:
        """Whether a secure sum is asked for, by name or by one of its settings."""
        return self != Aggregation() and self.secure is not SecureMode.NONE

    def resolve(
        self, federation: str, cohort: int, colluders: int, honest_shares: int | None = None
    ) -> SecureSums:
        """The sums of cohorts of this size. `honest_shares`, if given, are all that may count."""
        most = (cohort - 2 - colluders) // 2  # dropouts that any graph survives
        if cohort < 2 or most < 0 or cohort > MAX_COHORT:
            raise ConfigError(
                f"training.cohort: a secure sum of {cohort} clients with {colluders} colluders is "
                f"impossible; it takes two honest clients, and at most {MAX_COHORT:,} in a round"
            )
        least = self.min_honest if self.min_honest is not None else honest_shares
        if least is not None and least + colluders > cohort:
            raise ConfigError(
                f"aggregation.min_honest: {least} honest clients and {colluders} colluders are "
                f"more than the cohort of {cohort}"
            )
        if self.max_dropout is not None:
            dropouts = math.floor(self.max_dropout * cohort + 1e-9)
        elif least is not None:
            dropouts = min(most, cohort - colluders - least)
        else:
            dropouts = planned_dropouts(cohort, self.dropout, colluders)
        if dropouts > most:
            raise ConfigError(
                f"aggregation.max_dropout: from a cohort of {cohort} with {colluders} colluders at "
                f"most {most} dropouts ({most / cohort:.2g}) can be made good, not {dropouts}"
            )
        least = cohort - colluders - dropouts if least is None else max(2, least)
        params = SecAggParams(
            federation=_name(federation),
            min_honest=least,
            colluders=colluders,
            max_dropout=dropouts / cohort,
            sparse=self.sparse,
            honest_server=self.honest_server,
            purposes=(UPDATE, COUNT),
            limits=Limits(members=cohort, degree=cohort),
        )
        counted = least if honest_shares is None else min(least, honest_shares)
        return SecureSums(self.secure or SecureMode.IDEAL, params, cohort, counted, self.dropout)


@dataclass(frozen=True)
class SecureSums:
    """Secure sums of cohorts of one size, decided to the last number.

    A round with fewer than `fewest` survivors is not released. The guarantee counts on
    `honest_shares` noise shares in every sum that anybody can learn.
    """

    mode: SecureMode
    params: SecAggParams
    cohort: int
    honest_shares: int
    dropout: float  # simulated

    @property
    def fewest(self) -> int:
        return self.params.fewest_survivors(self.cohort)


def _name(federation: str) -> str:
    """Both sides of a round name their federation, in at most 128 bytes."""
    return b"fedveil/".join((b"", federation.encode()))[:120].decode(errors="ignore")
