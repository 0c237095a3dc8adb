"""A device over many rounds: its keys, its roster, its terms and its memory."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from fedveil.core.errors import ConfigError
from fedveil.privacy.secure_sums import derive
from fedveil.privacy.secure_sums.errors import ForeignKey, Forged, Malformed, OutOfTurn, RuleBroken
from fedveil.privacy.secure_sums.params import Limits, SecAggParams
from fedveil_federation.secagg import draw, merkle, ratchet, session, sizes, wire
from fedveil_federation.secagg.device import Charge, DeviceRound
from fedveil_federation.secagg.journal import Claim, Journal
from fedveil_federation.secagg.keys import DeviceKeys
from fedveil_federation.secagg.layout import RoundLayout, lay_out, needed_places
from fedveil_federation.secagg.messages import (
    Cards,
    Commitment,
    Commitments,
    Draft,
    Invitation,
    Reveal,
    RoundPlan,
)
from fedveil_federation.secagg.pairs import pair_keys, pair_seed
from fedveil_federation.secagg.privacy_terms import PrivacyTerms
from fedveil_federation.secagg.ratchet import Ratchet
from fedveil_federation.secagg.roster import Enrolled, Roster


class Participant:
    """A device that may join rounds. Pairwise seeds are agreed once and kept in memory.

    `server` is the server's Ed25519 public key (32 bytes). Seeds are remembered by the pair's key
    cards, so a renewed key, on either side, makes a new seed and the old one is dropped; at most
    `remembered` of them are kept. `limits` are the device's own, besides those of the terms.
    `charged` turns what a round states into what it costs this device, if that is less.
    """

    def __init__(
        self,
        keys: DeviceKeys,
        roster: Roster,
        params: SecAggParams,
        server: bytes,
        journal: Journal,
        remembered: int = 1 << 14,
        limits: Limits | None = None,
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
        self.limits = params.limits if limits is None else limits
        self._lock = threading.RLock()
        self._server = Ed25519PublicKey.from_public_bytes(server)
        self._journal, self._charged = journal, charged
        self._remembered = remembered
        self._ratchets: dict[int, tuple[bytes, Ratchet]] = {}  # neighbour -> its card, the ratchet
        self._round = -1  # the last one joined, and its open plans
        self._open: dict[bytes, DeviceRound] = {}
        # draft -> its round, and the bytes drawn for it and not yet revealed
        self._offered: dict[bytes, tuple[int, bytes]] = {}
        # list of commitments -> its round, and the reveal for it
        self._revealed: dict[bytes, tuple[int, bytes]] = {}
        self._proven: tuple[bytes, dict[int, bytes]] = (b"", {})  # a roster's root, known leaves

    def renew(self, keys: DeviceKeys | None = None) -> bytes:
        """Replace the X25519 key and forget every seed; returns the new card to send out.

        `keys`: those that a `DeviceStore` has renewed, so that they outlive this process.
        """
        with self._lock:
            self.keys = self.keys.renewed() if keys is None else keys
            self._ratchets.clear()
            return self.keys.card()

    def forget_agreement(self, devices: Iterable[int]) -> None:
        """Agree with these devices for all later rounds, then forget the X25519 key.

        From then on nothing on this device can compute a seed again, and each round that is joined
        turns the seeds' ratchets: what was masked before cannot be unmasked by who breaks in later.
        A device that was not named needs this one to renew its key.
        """
        with self._lock:
            others = {device for device in devices if device != self.keys.device}
            if len(others) > self._remembered:
                raise ConfigError(
                    f"devices: {len(others)} devices, {self._remembered} seeds are remembered"
                )
            at, enrolled = max(0, self._round), self.roster.get
            for device in others:
                self._remember(device, *self._turned(enrolled(device), at, enrolled))
            self.keys = replace(self.keys, agreement=None)

    def agree(self, device: int, round_number: int) -> bytes:
        """The key shared with an enrolled device in a round, agreed on first use."""
        with self._lock:
            return self._turned(self.roster.get(device), round_number, self.roster.get)[1].key

    def _turned(
        self, other: Enrolled, round_number: int, enrolled: Callable[[int], Enrolled]
    ) -> tuple[bytes, Ratchet]:
        """A neighbour's card and the ratchet at this round; nothing is remembered yet."""
        known = self._ratchets.get(other.device)
        if known is not None and known[0] == other.fingerprint:
            return other.fingerprint, ratchet.advance(known[1], round_number)
        if self.keys.agreement is None:
            raise RuleBroken(
                f"device {self.keys.device} has forgotten its X25519 key and knows no seed with "
                f"device {other.device}; renew the key"
            )
        seed = pair_seed(self._own(enrolled), self.keys.agreement, other)
        return other.fingerprint, ratchet.begin(seed, round_number)

    def _own(self, enrolled: Callable[[int], Enrolled]) -> Enrolled:
        """This device's card, if it is about the key that the device has."""
        own = enrolled(self.keys.device)
        if own.agreement.public_bytes_raw() != self.keys.public:
            raise ForeignKey(f"device {self.keys.device}: the roster holds another key of its own")
        return own

    def _remember(self, device: int, card: bytes, turned: Ratchet) -> None:
        self._ratchets.pop(device, None)
        while len(self._ratchets) >= self._remembered:
            self._ratchets.pop(next(iter(self._ratchets)))  # the oldest; agreed anew when needed
        self._ratchets[device] = (card, turned)

    def expects(self, start: bytes) -> int:
        """How long the frame is that begins so, or an error: ask before reading on."""
        kinds: dict[int, type[wire.WireMessage]] = {
            kind.KIND: kind for kind in (RoundPlan, Cards, Invitation, Commitments)
        }
        kind = kinds.get(wire.head(start).kind, RoundPlan)
        return wire.expect(start, kind, self._limit(kind)).size

    def offer(self, frame: bytes) -> bytes:
        """Commit to bytes for the graph of a sparse round that this device would join."""
        invitation = wire.read(frame, Invitation, self._limit(Invitation), self._server)
        with self._lock:
            terms = self._check(invitation)
            if not self.params.drawers(len(invitation.members), invitation.degree):
                raise RuleBroken("no device draws such a graph")
            digest = draw.draft_digest(invitation)
            if digest not in self._offered:
                self._journal.draw(self._claim(invitation, terms), self.params.limits.draws)
                fresh = os.urandom(draw.DRAWN_BYTES)
                self._offered[digest] = (invitation.round_number, fresh)
            hidden = draw.hide(digest, self.keys.device, self._offered[digest][1])
            return wire.seal(Commitment(digest, self.keys.device, hidden), self.keys.identity)

    def reveal(self, frame: bytes) -> bytes:
        """Show the bytes drawn, for one list of commitments that holds this device's own."""
        message = wire.read(frame, Commitments, self._limit(Commitments), self._server)
        own, draft = self.keys.device, message.draft
        if len(message.hidden) != 32 * len(message.devices) or own not in message.devices:
            raise Malformed("Commitments: need 32 bytes of each device, and this one's among them")
        if len(message.devices) != self.params.colluders + 1:
            raise RuleBroken(f"{len(message.devices)} drawers, need {self.params.colluders + 1}")
        hidden = [message.hidden[at : at + 32] for at in range(0, len(message.hidden), 32)]
        commitments = draw.list_digest(draft, message.devices, hidden)
        with self._lock:
            if commitments in self._revealed:
                return self._revealed[commitments][1]
            if draft not in self._offered:
                raise OutOfTurn("commitments for a draft that this device has not offered for")
            at, drawn = self._offered[draft]
            if hidden[message.devices.index(own)] != draw.hide(draft, own, drawn):
                raise Forged("the commitment listed for this device is not its own")
            del self._offered[draft]
            reply = wire.seal(Reveal(draft, own, commitments, drawn), self.keys.identity)
            self._revealed[commitments] = (at, reply)
            return reply

    def join(self, frame: bytes, cards: bytes | None = None) -> DeviceRound:
        """Check a plan against every rule, pay for and claim its round, and share secrets for it.

        `cards`: the frame with the cards of this device's neighbours (`Server.cards_for`), if it
        does not have those of the whole cohort. The same plan again gives the same round again, as
        long as the device runs.
        """
        limit = self._limit(RoundPlan)
        wire.expect(frame, RoundPlan, limit)
        plan, digest = _signed_plan(frame, limit, self._server.public_bytes_raw())
        with self._lock:
            known = self._open.get(digest)
            if known is not None:
                return known
            terms = self._check(plan)
            shown = None if cards is None else self._shown(cards, digest)
            fresh = {} if shown is None else self.roster.examined(wire.split(shown.cards))
            enrolled: Callable[[int], Enrolled] = self.roster.get
            if fresh:  # kept with the round's claim, and not before
                enrolled = lambda device: fresh.get(device) or self.roster.get(device)  # noqa: E731
            identities = {m: enrolled(m).identity_bytes for m in plan.drawers}
            layout = lay_out(plan, digest, draw.drawn_seed(plan, self.params, identities))
            self._check_cards(layout, enrolled, None if shown is None else shown.proof)
            own = self.keys.device
            near = dict(
                zip(
                    layout.graph.neighbours(own),
                    layout.graph.masked(layout.graph.place(own)).tolist(),
                    strict=True,
                )
            )
            turned = {n: self._turned(enrolled(n), plan.round_number, enrolled) for n in near}
            handshake = session.begin(plan.exchange, digest, own)
            cost = None if terms is None else self._charged(terms)
            reservation = self._journal.claim(self._claim(plan, cost))
            self.roster.enrol(list(fresh.values()))
            if plan.round_number > self._round:
                self._round, self._open = plan.round_number, {}
                for drawn in (self._offered, self._revealed):
                    for over in [one for one, (at, _) in drawn.items() if at < self._round]:
                        del drawn[over]
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

    def _shown(self, frame: bytes, plan: bytes) -> Cards:
        """The neighbours' cards that the server passes on, and the proof that comes with them."""
        claims = wire.expect(frame, Cards, self._limit(Cards))
        if claims.context != plan or claims.device != self.keys.device:
            raise OutOfTurn("Cards of another round or for another device")
        return wire.read(frame, Cards, self._limit(Cards), self._server)

    def _check_cards(
        self, layout: RoundLayout, enrolled: Callable[[int], Enrolled], proof: bytes | None
    ) -> None:
        """The plan is about the very cards that this device has of itself and its neighbours.

        Without a proof it has had one for this roster before, or has everybody's cards.
        """
        plan, places = layout.plan, needed_places(layout, self.keys.device)
        self._own(enrolled)
        leaves = {place: enrolled(plan.members[place]).fingerprint for place in places}
        root, proven = self._proven
        if proof is None and root == plan.roster and leaves.items() <= proven.items():
            return
        if proof is None:
            found = self.roster.digest(plan.members)
        else:
            found = merkle.proven_root(len(plan.members), leaves, proof)
        if found != plan.roster:
            raise ForeignKey("the cohort's keys are not the ones this device knows")
        self._proven = (found, leaves)

    def _limit(self, kind: type[wire.WireMessage]) -> int:
        members = min(self.limits.members, self.params.limits.members)
        degree = min(self.limits.degree, self.params.limits.degree)
        return sizes.opening(kind, members, degree, self.params.colluders + 1)

    def _claim(self, plan: Draft, terms: PrivacyTerms | None) -> Claim:
        cohort = derive.digest(b"members", np.array(plan.members, dtype="<u8").tobytes())
        step = min(self.limits.round_step, self.params.limits.round_step)
        return Claim(plan.federation, plan.round_number, plan.purpose, cohort, step, terms)

    def _check(self, plan: Draft) -> PrivacyTerms | None:
        """Hold a plan to every rule; what it says that taking part costs."""
        if plan.federation != self.params.federation:
            raise RuleBroken(f"plan of federation {plan.federation!r}")
        if plan.params != self.params.digest:
            raise RuleBroken("the plan was made under other terms than this device's")
        if plan.purpose not in self.params.purposes:
            raise RuleBroken(f"purpose {plan.purpose!r} is none of {list(self.params.purposes)}")
        if plan.bits not in (32, 64):
            raise Malformed(f"Plan.bits: {plan.bits}, need 32 or 64")
        if self.keys.device not in plan.members:
            raise RuleBroken(f"device {self.keys.device} is not in the cohort")
        for limits in (self.limits, self.params.limits):
            limits.check(len(plan.members), plan.degree, plan.dimension)
        graph = (plan.degree, plan.threshold, plan.min_survivors, plan.masks)
        self.params.check(len(plan.members), *graph)
        terms = PrivacyTerms.from_bytes(plan.privacy)
        if terms is not None:
            terms.check(self.params, len(plan.members), plan.dimension)
        return terms


@lru_cache(maxsize=4)
def _signed_plan(frame: bytes, limit: int, server: bytes) -> tuple[RoundPlan, bytes]:
    """A plan and its digest; cached, because a simulation's devices all read the same one."""
    author = Ed25519PublicKey.from_public_bytes(server)
    return wire.read(frame, RoundPlan, limit, author), wire.message_digest(frame)
