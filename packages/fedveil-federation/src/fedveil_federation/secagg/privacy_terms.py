"""What taking part in one round costs a device, as the server's plan states it under its signature.

The device holds the plan to it: the noise may count on no more honest shares than the round's graph
guarantees, and the cost is charged to the device's own ledger before it answers. Whoever computes
the device's vector adds the noise of `release.mechanism`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from fedveil.core.canonical import canonical
from fedveil.core.errors import FedveilError
from fedveil.core.units import Trust
from fedveil.privacy.releases import PrivacyModel, Release
from fedveil.privacy.secure_sums.errors import Malformed, RuleBroken
from fedveil.privacy.secure_sums.params import SecAggParams
from fedveil.privacy.translation import honest_shares

MAX_BYTES = 4096


@dataclass(frozen=True)
class PrivacyTerms:
    """One participation: the release, its privacy model, and the run it belongs to."""

    release: Release
    privacy_model: PrivacyModel
    run: str = ""

    def to_bytes(self) -> bytes:
        """The one way to write them."""
        document = {
            "release": self.release.to_dict(),
            "privacy_model": self.privacy_model.to_dict(),
            "run": self.run,
        }
        return canonical(document)

    @staticmethod
    def from_bytes(data: bytes) -> PrivacyTerms | None:
        """The terms of a plan; None if it states none."""
        if not data:
            return None
        if len(data) > MAX_BYTES:
            raise Malformed(f"RoundPlan.privacy: {len(data)} bytes, at most {MAX_BYTES}")
        try:
            document = json.loads(data.decode())
            parts = {"release", "privacy_model", "run"}
            if not isinstance(document, dict) or set(document) != parts:
                raise ValueError("need release, privacy_model and run")
            if type(document["run"]) is not str:
                raise ValueError("run: need text")
            found = PrivacyTerms(
                Release.from_dict(document["release"]),
                PrivacyModel.from_dict(document["privacy_model"]),
                document["run"],
            )
            if found.to_bytes() != data:
                raise ValueError("there is another way to write them")
        except (
            ValueError,
            TypeError,
            KeyError,
            ArithmeticError,
            RecursionError,
            FedveilError,
        ) as error:
            raise Malformed(f"RoundPlan.privacy: {str(error)[:200]}") from None
        return found

    def check(self, params: SecAggParams, dimension: int) -> None:
        """Check that they describe one round of this dimension.

        Args:
            params: What the sum promises.
            dimension: The length of everybody's vector.

        Raises:
            RuleBroken: They describe something else, or count on more honest shares than there are.
        """
        release = self.release
        if release.amplified or release.rounds != 1 or release.counted_participations != 1:
            raise RuleBroken("privacy terms: a plan is for one participation, without sampling")
        stated = getattr(release.mechanism, "dimension", dimension)
        if stated != dimension:
            raise RuleBroken(f"privacy terms: {stated} coordinates, the plan has {dimension}")
        if self.privacy_model.trust is not Trust.DISTRIBUTED:
            return  # the noise does not rest on the sum; whom to trust is the ledger's to say
        try:
            shares = honest_shares(release, self.privacy_model)
        except (FedveilError, ArithmeticError) as error:
            raise RuleBroken(f"privacy terms: {error}") from None
        if shares is None or shares > params.min_honest:
            raise RuleBroken(
                f"privacy terms: noise counts on {shares or 'unstated'} honest shares, this round "
                f"is sure of {params.min_honest}"
            )
