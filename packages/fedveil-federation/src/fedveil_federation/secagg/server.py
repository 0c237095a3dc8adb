"""The server over many rounds: opens them for enrolled devices, and resumes them from its logs."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedveil.core.errors import ConfigError
from fedveil.privacy.secure_sums.masks import check_bits
from fedveil.privacy.secure_sums.params import SecAggParams
from fedveil_federation.secagg.layout import SEED_BYTES
from fedveil_federation.secagg.messages import RoundPlan
from fedveil_federation.secagg.privacy_terms import PrivacyTerms
from fedveil_federation.secagg.ratchet import ROUNDS
from fedveil_federation.secagg.roster import Roster
from fedveil_federation.secagg.round_log import Unopened
from fedveil_federation.secagg.server_round import ServerRound
from fedveil_federation.secagg.session import exchange_key


class Server:
    """Opens rounds; the signing key is what devices know it by. `logs`: where rounds are logged."""

    def __init__(
        self,
        key: Ed25519PrivateKey,
        roster: Roster,
        params: SecAggParams,
        logs: Path | None = None,
    ) -> None:
        self.key = key
        self.logs = logs
        self.roster = roster
        self.params = params
        self._exchange = exchange_key(key).public_key().public_bytes_raw()
        self._graph = (b"", b"")  # the last roster for which this server drew, and what it drew

    def open(
        self,
        round_number: int,
        members: Iterable[int],
        dimension: int,
        bits: int,
        purpose: str = "update",
        privacy: PrivacyTerms | None = None,
    ) -> ServerRound:
        """Open a round; its `plan` is the frame for all members.

        A sparse graph is kept as long as the cohort and its keys are the same, so that neighbours
        agree on their seeds once.

        Args:
            round_number: The round; each number and purpose is used once.
            members: The cohort.
            dimension: The length of everybody's vector.
            bits: The width of its words, 32 or 64.
            purpose: What is summed, one of the terms' purposes.
            privacy: What taking part costs a device; None in simulations.

        Returns:
            The server's side of the round.

        Raises:
            ConfigError: No such round is possible under the terms.
        """
        check_bits(bits)
        cohort = tuple(sorted(members))
        if len(set(cohort)) != len(cohort):
            raise ConfigError("members: a device is named twice")
        most = self.params.limits.dimension
        if not 1 <= dimension <= most:
            raise ConfigError(f"dimension = {dimension}: need 1 to {most}")
        if not 0 <= round_number < ROUNDS:
            raise ConfigError(f"round = {round_number}: need a number within 0..2^32 - 1")
        if purpose not in self.params.purposes:
            raise ConfigError(f"purpose = {purpose!r}: the terms name {list(self.params.purposes)}")
        topology = self.params.topology(len(cohort))
        if privacy is not None:
            privacy.check(self.params, dimension)
        roster = self.roster.digest(cohort)
        if not topology.complete and self._graph[0] != roster:
            self._graph = (roster, os.urandom(SEED_BYTES))
        plan = RoundPlan(
            self.params.federation,
            round_number,
            purpose,
            cohort,
            roster,
            self.params.digest,
            self._exchange,
            dimension,
            bits,
            topology.degree,
            topology.masks,
            topology.threshold,
            self.params.min_survivors,
            b"" if privacy is None else privacy.to_bytes(),
            b"" if topology.complete else self._graph[1],
        )
        identities = {member: self.roster.get(member).identity_bytes for member in cohort}
        return ServerRound(plan, self.key, identities, self.params, self.logs)

    def resume(self) -> list[ServerRound]:
        """The rounds that were under way when the last server on these logs ended, oldest first.

        A log without a whole plan is deleted: no device has seen that round.
        """
        found = []
        for path in sorted(self.logs.glob("*.round")) if self.logs is not None else ():
            try:
                found.append(ServerRound.resume(path, self.key, self.params))
            except Unopened:
                path.unlink()
        return sorted(found, key=lambda one: one.layout.plan.round_number)
