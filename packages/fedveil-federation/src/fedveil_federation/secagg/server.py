"""The server over many rounds: opens them for enrolled devices, and remembers who spoiled one."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedveil.core.errors import ConfigError
from fedveil.privacy.secure_sums.masks import check_bits
from fedveil.privacy.secure_sums.params import SecAggParams
from fedveil_federation.secagg import wire
from fedveil_federation.secagg.blame import proven
from fedveil_federation.secagg.draw import DRAWN_BYTES, Drawing
from fedveil_federation.secagg.evictions import HeldAgainst
from fedveil_federation.secagg.layout import needed_places
from fedveil_federation.secagg.messages import Cards, Draft, RoundPlan
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
        self._lock = threading.Lock()
        self.roster = roster
        self.params = params
        self._held = HeldAgainst.load(logs)
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
        """A round whose graph no devices draw; its `plan` is the frame for all.

        Everybody is joined to everybody, or the terms trust this server to draw. It then keeps the
        graph as long as the cohort and its keys are the same, so that neighbours agree once.
        """
        draft = self._draft(round_number, members, dimension, bits, purpose, privacy)
        if self.params.drawers(len(draft.members), draft.degree):
            raise ConfigError(
                f"a cohort of {len(draft.members)} gets a sparse graph: `draw` it first"
            )
        draws = b""
        if draft.degree < len(draft.members) - 1:
            if self._graph[0] != draft.roster:
                self._graph = (draft.roster, os.urandom(DRAWN_BYTES))
            draws = self._graph[1]
        plan = RoundPlan(**vars(draft), drawers=(), draws=draws)
        return self._opened(plan)

    def draw(
        self,
        round_number: int,
        members: Iterable[int],
        dimension: int,
        bits: int,
        purpose: str = "update",
        drawers: Sequence[int] | None = None,
        privacy: PrivacyTerms | None = None,
    ) -> Drawing:
        """Ask devices, one more than there are colluders, to draw the graph of a sparse round.

        If one of them does not answer to the end, draw again with others.
        """
        draft = self._draft(round_number, members, dimension, bits, purpose, privacy)
        count = self.params.drawers(len(draft.members), draft.degree)
        if not count:
            raise ConfigError(f"no device draws the graph of {len(draft.members)}: `open` it")
        if drawers is None:
            drawers = random.SystemRandom().sample(draft.members, count)
        entries = {device: self.roster.get(device) for device in draft.members}
        return Drawing(draft, self.key, drawers, entries)

    def open_drawn(self, drawing: Drawing) -> ServerRound:
        """The round whose graph was drawn."""
        return self._opened(drawing.plan())

    def cards_for(self, opened: ServerRound, device: int, known: Collection[int] = ()) -> bytes:
        """For a device that does not have all members' cards: those of its neighbours and of who
        drew the graph, and the proof that the plan is about them.

        `known`: devices whose cards it has; they are left out.
        """
        layout = opened.layout
        tree = self.roster.tree(layout.plan.members)
        if tree.root != layout.plan.roster:
            raise ConfigError("the cohort's cards have changed since the round was opened")
        places = needed_places(layout, device)
        ids = [layout.plan.members[place] for place in places]
        cards = b"".join(self.roster.get(other).card for other in ids if other not in known)
        told = Cards(layout.digest, device, cards, tree.prove(places))
        return wire.seal(told, self.key)

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

    def _opened(self, plan: RoundPlan) -> ServerRound:
        identities = {member: self.roster.get(member).identity_bytes for member in plan.members}
        return ServerRound(plan, self.key, identities, self.params, self.logs)

    @property
    def evicted(self) -> dict[int, str]:
        """Devices that take part no more, and why."""
        return self._held.evicted

    def judge(self, round_number: ServerRound) -> list[int]:
        """Evict whom a round's evidence convicts, and who contradicts too many others.

        Returns the devices evicted now; a round that is judged again counts once. Evidence convicts
        at once. Of two at odds either may lie; but an honest device is at odds with liars only, so
        who contradicts more neighbours than may lie next to it, or over the rounds more devices
        than may collude, lies itself.
        """
        with self._lock:
            before = set(self.evicted)
            for fault in round_number.faults:
                if proven(fault, round_number.layout, round_number.identities):
                    self.evicted.setdefault(fault.device, str(fault))
            for device in tuple(round_number.unsigned):
                self.evicted.setdefault(device, "gave a wrong share that it had not signed")
            if odds := round_number.odds:
                self._graph = (b"", b"")  # liars are not to stay next to whom they have chosen
            plan, liars = round_number.layout.digest, max(1, self.params.colluders)
            self._held.contradictions(plan, odds, round_number.suspects, liars)
            self._held.keep(self.logs)
            return sorted(set(self.evicted) - before)

    def _draft(
        self,
        round_number: int,
        members: Iterable[int],
        dimension: int,
        bits: int,
        purpose: str,
        privacy: PrivacyTerms | None,
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
        if privacy is not None:
            privacy.check(self.params, len(cohort), dimension)
        return Draft(
            self.params.federation,
            round_number,
            purpose,
            cohort,
            self.roster.digest(cohort),
            self.params.digest,
            self._exchange,
            dimension,
            bits,
            topology.degree,
            topology.masks,
            topology.threshold,
            self.params.min_survivors,
            b"" if privacy is None else privacy.to_bytes(),
        )
