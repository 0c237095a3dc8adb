"""A device over many rounds: its keys, its roster, its terms and its memory."""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from fedveil.errors import BadInput
from fedveil.secagg import derive, wire
from fedveil.secagg.device import SLACK, DeviceRound
from fedveil.secagg.errors import ForeignKey, Malformed, RuleBroken
from fedveil.secagg.journal import Journal
from fedveil.secagg.keys import DeviceKeys
from fedveil.secagg.layout import lay_out
from fedveil.secagg.messages import Plan
from fedveil.secagg.pairs import PairKeys, pair_keys, pair_seed
from fedveil.secagg.roster import Roster
from fedveil.secagg.terms import MAX_COHORT, Terms

_PLAN_LIMIT = SLACK + 9 * MAX_COHORT


class Participant:
    """A device that may join rounds. Pairwise seeds are agreed once and kept in memory.

    `server` is the server's Ed25519 public key (32 bytes). Seeds are remembered by the pair's key
    cards, so a renewed key, on either side, makes a new seed and the old one is dropped; at most
    `remembered` of them are kept.
    """

    def __init__(
        self,
        keys: DeviceKeys,
        roster: Roster,
        terms: Terms,
        server: bytes,
        journal: Journal,
        remembered: int = 1 << 14,
    ) -> None:
        if not keys.federation == roster.federation == terms.federation:
            raise BadInput(
                "federation: keys, roster and terms name different federations: "
                f"{keys.federation!r}, {roster.federation!r}, {terms.federation!r}"
            )
        self.keys = keys
        self.roster = roster
        self.terms = terms
        self._server = Ed25519PublicKey.from_public_bytes(server)
        self._journal = journal
        self._remembered = remembered
        self._seeds: dict[int, tuple[bytes, bytes]] = {}  # neighbour -> its card, the seed

    def renew(self) -> bytes:
        """Replace the X25519 key and forget every seed; returns the new card to send out."""
        self.keys = self.keys.renewed()
        self._seeds.clear()
        return self.keys.card()

    def agree(self, device: int) -> bytes:
        """The seed shared with an enrolled device, agreed on first use."""
        other = self.roster.get(device)
        known = self._seeds.get(device)
        if known is None or known[0] != other.fingerprint:
            own = self.roster.get(self.keys.device)
            known = (other.fingerprint, pair_seed(own, self.keys.agreement, other))
            self._seeds.pop(device, None)
            while len(self._seeds) >= self._remembered:
                self._seeds.pop(next(iter(self._seeds)))  # the oldest; agreed anew when needed
            self._seeds[device] = known
        return known[1]

    def join(self, frame: bytes) -> DeviceRound:
        """Check a plan against every rule, claim its round for ever, and share secrets for it."""
        plan = wire.read(frame, Plan, _PLAN_LIMIT)
        wire.verify(frame, self._server)
        self._check(plan)
        layout = lay_out(plan, wire.body_digest(frame))
        neighbours = layout.graph.neighbours(self.keys.device)
        keys: dict[int, PairKeys] = {
            neighbour: pair_keys(self.agree(neighbour), layout.digest) for neighbour in neighbours
        }
        members = derive.digest(b"members", *(derive.id_bytes(m) for m in plan.members))
        self._journal.claim(plan.federation, plan.round, plan.purpose, members)
        return DeviceRound(layout, self.keys, self.terms, self._server, keys)

    def _check(self, plan: Plan) -> None:
        if plan.federation != self.terms.federation:
            raise RuleBroken(f"plan of federation {plan.federation!r}")
        if plan.bits not in (32, 64):
            raise Malformed(f"Plan.bits: {plan.bits}, need 32 or 64")
        if self.keys.device not in plan.members:
            raise RuleBroken(f"device {self.keys.device} is not in the cohort")
        self.terms.check(len(plan.members), plan.degree, plan.threshold, plan.min_survivors)
        if self.roster.digest(plan.members) != plan.roster:
            raise ForeignKey("the cohort's keys are not the ones this device knows")
        own = self.roster.get(self.keys.device)
        if own.agreement.public_bytes_raw() != self.keys.agreement.public_key().public_bytes_raw():
            raise ForeignKey(f"device {self.keys.device}: the roster holds another key of its own")
