"""A device over many rounds: its keys, its roster, its terms and its memory."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from fedveil.core.errors import ConfigError
from fedveil.privacy.secure_sums import derive
from fedveil.privacy.secure_sums.errors import ForeignKey, Malformed, RuleBroken
from fedveil.privacy.secure_sums.params import SecAggParams
from fedveil_federation.secagg import ratchet, session, wire
from fedveil_federation.secagg.device import Charge, DeviceRound
from fedveil_federation.secagg.journal import Claim, Journal
from fedveil_federation.secagg.keys import DeviceKeys
from fedveil_federation.secagg.layout import lay_out, longest
from fedveil_federation.secagg.messages import RoundPlan
from fedveil_federation.secagg.pairs import pair_keys, pair_seed
from fedveil_federation.secagg.privacy_terms import PrivacyTerms
from fedveil_federation.secagg.ratchet import Ratchet
from fedveil_federation.secagg.roster import Enrolled, Roster


class Participant:
    """A device that may join rounds. Pairwise seeds are agreed once and kept in memory.

    `server` is the server's Ed25519 public key (32 bytes). Seeds are remembered by the pair's key
    cards, so a renewed key, on either side, makes a new seed and the old one is dropped; at most
    `remembered` of them are kept. `charged` turns what a round states into what it costs this
    device, if that is less.
    """

    def __init__(
        self,
        keys: DeviceKeys,
        roster: Roster,
        params: SecAggParams,
        server: bytes,
        journal: Journal,
        remembered: int = 1 << 14,
        charged: Callable[[PrivacyTerms], PrivacyTerms] = lambda stated: stated,
    ) -> None:
        if not keys.federation == roster.federation == params.federation:
            raise ConfigError(
                "federation: keys, roster and terms name different federations: "
                f"{keys.federation!r}, {roster.federation!r}, {params.federation!r}"
            )
        self.keys = keys
        self.roster = roster
        self.params = params
        self._lock = threading.RLock()
        self._server = Ed25519PublicKey.from_public_bytes(server)
        self._journal, self._charged = journal, charged
        self._remembered = remembered
        self._ratchets: dict[int, tuple[bytes, Ratchet]] = {}  # neighbour -> its card, the ratchet
        self._round = -1  # the last one joined, and its open plans
        self._open: dict[bytes, DeviceRound] = {}

    def _turned(self, device: int, round_number: int) -> tuple[bytes, Ratchet]:
        """A neighbour's card and the ratchet at this round; nothing is remembered yet."""
        other = self.roster.get(device)
        known = self._ratchets.get(device)
        if known is not None and known[0] == other.fingerprint:
            return other.fingerprint, ratchet.advance(known[1], round_number)
        seed = pair_seed(self._own_card(), self.keys.agreement, other)
        return other.fingerprint, ratchet.begin(seed, round_number)

    def _own_card(self) -> Enrolled:
        """This device's card, if it is about the key that the device has."""
        own = self.roster.get(self.keys.device)
        if own.agreement.public_bytes_raw() != self.keys.public:
            raise ForeignKey(f"device {self.keys.device}: the roster holds another key of its own")
        return own

    def _remember(self, device: int, card: bytes, turned: Ratchet) -> None:
        self._ratchets.pop(device, None)
        while len(self._ratchets) >= self._remembered:
            self._ratchets.pop(next(iter(self._ratchets)))  # the oldest; agreed anew when needed
        self._ratchets[device] = (card, turned)

    def join(self, frame: bytes) -> DeviceRound:
        """Check a plan against every rule, pay for and claim its round, and share secrets for it.

        The same plan again gives the same round again, as long as the device runs.

        Args:
            frame: The server's `RoundPlan`.

        Returns:
            The device's side of the round.

        Raises:
            SecureAggregationError: The plan is not the server's, or breaks a rule of this device.
        """
        limits = self.params.limits
        limit = longest(RoundPlan, limits.members, limits.degree)
        wire.expect(frame, RoundPlan, limit)
        plan, digest = _signed_plan(frame, limit, self._server.public_bytes_raw())
        with self._lock:
            known = self._open.get(digest)
            if known is not None:
                return known
            terms = self._check(plan)
            layout = lay_out(plan, digest)
            self._own_card()
            if self.roster.digest(plan.members) != plan.roster:
                raise ForeignKey("the cohort's keys are not the ones this device knows")
            own = self.keys.device
            masked = layout.graph.masked(layout.graph.place(own)).tolist()
            near = dict(zip(layout.graph.neighbours(own), masked, strict=True))
            turned = {n: self._turned(n, plan.round_number) for n in near}
            handshake = session.begin(plan.exchange, digest, own)
            cost = None if terms is None else self._charged(terms)
            reservation = self._journal.claim(self._claim(plan, cost))
            if plan.round_number > self._round:
                self._round, self._open = plan.round_number, {}
            for neighbour, (card, at) in turned.items():
                self._remember(neighbour, card, at)
            keys = {n: pair_keys(at.key, digest, near[n]) for n, (_, at) in turned.items()}
            opened = DeviceRound(
                layout,
                self.keys,
                self.params,
                self._server,
                self.roster,
                keys,
                handshake,
                Charge(self._journal, reservation, terms),
            )
            self._open[digest] = opened
            return opened

    def _claim(self, plan: RoundPlan, terms: PrivacyTerms | None) -> Claim:
        cohort = derive.digest(b"members", np.array(plan.members, dtype="<u8").tobytes())
        step = self.params.limits.round_step
        return Claim(plan.federation, plan.round_number, plan.purpose, cohort, step, terms)

    def _check(self, plan: RoundPlan) -> PrivacyTerms | None:
        """Hold a plan to every rule; what it says that taking part costs."""
        if plan.federation != self.params.federation:
            raise RuleBroken(f"plan of federation {plan.federation!r}")
        if plan.params != self.params.digest:
            raise RuleBroken("the plan was made under other terms than this device's")
        if plan.purpose not in self.params.purposes:
            raise RuleBroken(f"purpose {plan.purpose!r} is none of {list(self.params.purposes)}")
        if plan.bits not in (32, 64):
            raise Malformed(f"RoundPlan.bits: {plan.bits}, need 32 or 64")
        if self.keys.device not in plan.members:
            raise RuleBroken(f"device {self.keys.device} is not in the cohort")
        self.params.limits.check(len(plan.members), plan.degree, plan.dimension)
        graph = (plan.degree, plan.threshold, plan.min_survivors, plan.masks)
        self.params.check(len(plan.members), *graph)
        terms = PrivacyTerms.from_bytes(plan.privacy)
        if terms is not None:
            terms.check(self.params, plan.dimension)
        return terms


@lru_cache(maxsize=4)
def _signed_plan(frame: bytes, limit: int, server: bytes) -> tuple[RoundPlan, bytes]:
    """A plan and its digest; cached, because a simulation's devices all read the same one."""
    author = Ed25519PublicKey.from_public_bytes(server)
    return wire.read(frame, RoundPlan, limit, author), wire.message_digest(frame)
