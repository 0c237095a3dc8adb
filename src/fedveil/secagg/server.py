"""The server over many rounds: opens them for enrolled devices, and remembers who spoiled one."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedveil.core.errors import ConfigError
from fedveil.secagg.blame import Fault, proven
from fedveil.secagg.draw import Drawing
from fedveil.secagg.messages import Draft, Plan
from fedveil.secagg.modulus import check_bits
from fedveil.secagg.params import SecAggParams
from fedveil.secagg.ratchet import ROUNDS
from fedveil.secagg.roster import Roster
from fedveil.secagg.server_round import ServerRound

SUSPICIONS = 3  # rounds in which a device was at odds with its neighbours until it must go


class Server:
    """Opens rounds; the signing key is what devices know it by."""

    def __init__(self, key: Ed25519PrivateKey, roster: Roster, params: SecAggParams) -> None:
        self.key = key
        self.roster = roster
        self.params = params
        self.evicted: dict[int, str] = {}  # device -> why
        self._suspicions: Counter[int] = Counter()

    def open(
        self,
        round_number: int,
        members: Iterable[int],
        dimension: int,
        bits: int,
        purpose: str = "update",
    ) -> ServerRound:
        """A round in which everybody is joined to everybody; its `plan` is the frame for all."""
        draft = self._draft(round_number, members, dimension, bits, purpose)
        if draft.degree < len(draft.members) - 1:
            raise ConfigError(
                f"a cohort of {len(draft.members)} gets a sparse graph: `draw` it first"
            )
        plan = Plan(**vars(draft), drawers=(), draws=b"")
        return ServerRound(plan, self.key, self.roster, self.params)

    def draw(
        self,
        round_number: int,
        members: Iterable[int],
        dimension: int,
        bits: int,
        purpose: str = "update",
        drawers: Sequence[int] | None = None,
    ) -> Drawing:
        """Ask devices, one more than there are colluders, to draw the graph of a sparse round.

        If one of them does not answer to the end, draw again with others.
        """
        draft = self._draft(round_number, members, dimension, bits, purpose)
        if draft.degree == len(draft.members) - 1:
            raise ConfigError(f"a cohort of {len(draft.members)} gets a complete graph: `open` it")
        if drawers is None:
            drawers = random.SystemRandom().sample(draft.members, self.params.colluders + 1)
        entries = {device: self.roster.get(device) for device in draft.members}
        return Drawing(draft, self.key, drawers, entries)

    def open_drawn(self, drawing: Drawing) -> ServerRound:
        """The round whose graph was drawn."""
        return ServerRound(drawing.plan(), self.key, self.roster, self.params)

    def judge(self, round_number: ServerRound) -> list[int]:
        """Evict whom a round's evidence convicts, and who is at odds with others time and again.

        Returns the devices evicted now. Evidence convicts at once; being at odds on keys proves
        nothing about either side, so it takes several rounds, and several neighbours in each.
        """
        before = set(self.evicted)
        for fault in round_number.faults:
            self.convict(fault, round_number)
        for device in round_number.suspects:
            self._suspicions[device] += 1
            if self._suspicions[device] >= SUSPICIONS:
                self.evicted.setdefault(device, f"at odds with others in {SUSPICIONS} rounds")
        return sorted(set(self.evicted) - before)

    def convict(self, fault: Fault, round_number: ServerRound) -> None:
        """Evict a device by evidence; `ConfigError` if the evidence proves nothing."""
        if not proven(fault, round_number.layout, round_number.identities):
            raise ConfigError(f"fault: {fault}: the evidence does not prove it")
        self.evicted.setdefault(fault.device, str(fault))

    def _draft(
        self, round_number: int, members: Iterable[int], dimension: int, bits: int, purpose: str
    ) -> Draft:
        check_bits(bits)
        cohort = tuple(sorted(members))
        if len(set(cohort)) != len(cohort):
            raise ConfigError("members: a device is named twice")
        gone = [device for device in cohort if device in self.evicted]
        if gone:
            raise ConfigError(f"members: device {gone[0]} was evicted: {self.evicted[gone[0]]}")
        most = self.params.limits.dimension
        if not 1 <= dimension <= most:
            raise ConfigError(f"dimension = {dimension}: need 1 to {most}")
        if not 0 <= round_number < ROUNDS:
            raise ConfigError(f"round = {round_number}: need a number within 0..2^32 - 1")
        if purpose not in self.params.purposes:
            raise ConfigError(f"purpose = {purpose!r}: the terms name {list(self.params.purposes)}")
        topology = self.params.topology(len(cohort))
        return Draft(
            self.params.federation,
            round_number,
            purpose,
            cohort,
            self.roster.digest(cohort),
            self.params.digest,
            dimension,
            bits,
            topology.degree,
            topology.threshold,
            self.params.min_survivors,
        )
