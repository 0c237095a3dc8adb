"""The device's side of one round: a state machine that takes frames and gives frames.

    shares, then take_sharers(frame), mask(vector), confirm(frame), unmask(frame)

Where the terms trust the server there is no confirmation: `unmask` takes the list of survivors.
Every step checks the rules of the device's own `SecAggParams` before anything leaves it. A frame
that fails a check raises a typed error and changes nothing, one that was answered before gets the
same answer, and a lock makes racing ones come one by one. Above all, for each neighbour a device
gives away either the share of its own mask (it survived) or the share of its pair masks (it is
lost), once, for one list of survivors that most of its neighbours act on as well.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeVar

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from fedveil.core.errors import ConfigError
from fedveil.privacy.secure_sums import derive
from fedveil.privacy.secure_sums.derive import TAG_BYTES
from fedveil.privacy.secure_sums.errors import Doubted, OutOfTurn, RuleBroken
from fedveil.privacy.secure_sums.masks import IntVector, apply_masks, encode
from fedveil.privacy.secure_sums.params import SecAggParams
from fedveil_federation.secagg import pairs, wire
from fedveil_federation.secagg.blame import given
from fedveil_federation.secagg.dealing import (
    Holding,
    contradicts,
    deal,
    dealt_lists,
    disclosure,
    opened,
)
from fedveil_federation.secagg.journal import Journal
from fedveil_federation.secagg.keys import DeviceKeys, signed
from fedveil_federation.secagg.layout import Flags, RoundLayout, packed, piece, rows, unpacked
from fedveil_federation.secagg.messages import (
    Abort,
    Confirm,
    Confirmed,
    Masked,
    Sharers,
    Shares,
    Survivors,
    Unmask,
)
from fedveil_federation.secagg.pairs import MARK_BYTES, NONCE_BYTES, SEALED_BYTES, PairKeys
from fedveil_federation.secagg.privacy_terms import PrivacyTerms
from fedveil_federation.secagg.roster import Roster
from fedveil_federation.secagg.session import Handshake
from fedveil_federation.secagg.shares import draw_secret
from fedveil_federation.secagg.sizes import SLACK, STATEMENT_BYTES, from_device, from_server

_FromServerT = TypeVar("_FromServerT", Sharers, Survivors, Confirmed)


class DeviceStep(Enum):
    """What a device waits for."""

    SHARERS = auto()
    VECTOR = auto()
    SURVIVORS = auto()
    CONFIRMED = auto()
    DONE = auto()


@dataclass(frozen=True)
class Charge:
    """What the device has reserved for a round, if it keeps a ledger."""

    journal: Journal
    reservation: int | None = None
    terms: PrivacyTerms | None = None

    def settle(self, left: bool) -> None:
        """Final once the masked vector leaves; taken back if it never will."""
        if self.reservation is not None:
            self.journal.settle(self.reservation, left)


class DeviceRound:
    """One round of one device; made by `Participant.join`, which has checked the plan.

    `pair_keys`: by neighbour, ascending.
    """

    def __init__(
        self,
        layout: RoundLayout,
        keys: DeviceKeys,
        params: SecAggParams,
        server: Ed25519PublicKey,
        roster: Roster,
        pair_keys: dict[int, PairKeys],
        handshake: Handshake,
        charge: Charge,
    ) -> None:
        self.layout = layout
        self.privacy = charge.terms  # the noise that belongs into the vector
        self._charge = charge
        self.step = DeviceStep.SHARERS
        self._lock = threading.Lock()
        self._id = keys.device
        self._identity = keys.identity
        self._terms = params
        self._server = server
        self._roster = roster
        self._pairs = pair_keys
        self._neighbours = tuple(pair_keys)
        self._place = layout.graph.place(self._id)
        self._near = layout.graph.near(self._place)
        self._self_secret = draw_secret()
        self._liars: set[int] = set()  # neighbours that signed other keys than the two share
        self._partners: list[int] = []  # neighbours whose shares it was sent
        self._partner_places = self._near[:0]
        self._held: Holding | None = None
        self._disputed: dict[int, PairKeys] = {}  # seal keys of partners whose shares do not fit
        self._accepted = b""
        self._sharers = b""
        self._survivors = b""
        self._surviving: Flags = np.zeros(0, dtype=np.bool_)
        self._answered: dict[bytes, bytes] = {}  # digest of a frame -> what it was answered with
        self._session = handshake.session
        dealt = deal(layout, self._id, self._self_secret, pair_keys, handshake.exchange)
        self.shares = wire.seal(dealt, self._identity)

    @property
    def confirms(self) -> bool:
        """Whether this round has confirmations."""
        return not self._terms.honest_server

    def expects(self, start: bytes) -> int:
        """How long the frame is that begins so, or an error: ask before reading on."""
        kinds: dict[int, type[wire.WireMessage]] = {kind.KIND: kind for kind in _STEPS}
        kinds[Shares.KIND] = Shares  # of a neighbour, as evidence
        kind = kinds.get(wire.head(start).kind, Sharers)
        return wire.expect(start, kind, self._limit(kind)).size

    def take_odds(self, frame: bytes) -> None:
        """See by a neighbour's own `Shares` that it lies about the keys that the two share.

        Only with such neighbours this device leaves out its mask: they are corrupt, so the mask
        protects nothing. Honest ones hold the same keys by the plan, and sign nothing else.
        """
        with self._lock:
            message = self._dealt(frame, self._pairs)
            if message.device in self._liars:
                return
            if self.step is not DeviceStep.SHARERS:
                raise OutOfTurn(f"odds while waiting for {self.step.name}")
            if not contradicts(message, self.layout, self._pairs[message.device], self._id):
                raise RuleBroken(f"device {message.device} agrees with this one on their keys")
            self._liars.add(message.device)

    def take_sharers(self, frame: bytes) -> None:
        """Learn who has shared, and open the shares sent to this device."""
        with self._lock:
            if self._before(frame) is not None:
                return
            message = self._read(frame, Sharers)
            sharers = self.layout.present(message.present)
            if not sharers[self._place]:
                raise RuleBroken(f"device {self._id} is not among the sharers, though it shared")
            self._check_count(sharers, "shared")
            near = sharers[self._near]
            off = unpacked(message.off, len(near), "Sharers.off") & near
            for column in np.flatnonzero(off).tolist():
                if (neighbour := self._neighbours[column]) not in self._liars:
                    raise RuleBroken(
                        f"the mask with device {neighbour} is to be left out, and nothing shows "
                        "that it lies"
                    )
            columns = np.flatnonzero(near & ~off).tolist()
            if len(columns) < self.layout.plan.threshold:
                raise RuleBroken(
                    f"{len(columns)} neighbours hold shares, need {self.layout.plan.threshold}"
                )
            partners = [self._neighbours[column] for column in columns]
            for name, size in (
                ("nonces", NONCE_BYTES),
                ("sealed", SEALED_BYTES),
                ("marks", MARK_BYTES),
            ):
                rows(getattr(message, name), size, len(partners), f"Sharers.{name}")
            seals = [self._pairs[dealer].seal for dealer in partners]
            lists = (message.nonces, message.sealed, message.marks)
            held = opened(self.layout.digest, self._id, partners, seals, *lists)
            fitting = rows(message.marks, MARK_BYTES, len(partners), "Sharers.marks")[held.fits]
            self._disputed = {
                partners[at]: PairKeys(seals[at]) for at in np.flatnonzero(~held.fits).tolist()
            }
            dealers = b"".join(
                derive.id_bytes(partners[at]) for at in np.flatnonzero(held.fits).tolist()
            )
            self._held, self._accepted = held, self.layout.accepted(dealers, fitting.tobytes())
            self._partners, self._sharers = partners, message.present
            self._partner_places = self._near[columns]
            self.step = DeviceStep.VECTOR
            self._keep(frame, b"")

    def mask(self, vector: IntVector) -> bytes:
        """The masked vector, int64 [dimension]; one vector per round, ever.

        Whoever sends the frame keeps it until the survivors are named, to send it again.
        """
        plan = self.layout.plan
        with self._lock:
            if self.step is not DeviceStep.VECTOR:
                raise OutOfTurn(f"a vector cannot be masked while waiting for {self.step.name}")
            words = encode(vector, plan.bits)
            if words.size != plan.dimension:
                raise ConfigError(f"vector: {words.size} entries, the plan has {plan.dimension}")
            self._charge.settle(left=True)
            self.step = DeviceStep.SURVIVORS
            added = [pairs.self_mask_key(self._self_secret)]
            subtracted: list[bytes] = []
            for neighbour in self._partners:
                if root := self._pairs[neighbour].root:
                    side = added if self._id < neighbour else subtracted
                    side.append(pairs.mask_key(root))
            self._self_secret = b""
            apply_masks(words, added, subtracted)
            tags = statement = b""
            if self.confirms:
                content = self.layout.sharers_digest(self._sharers)
                tags = self._tags(b"upload", self._partners, content)
                statement = self._identity.sign(self.layout.statement(self._id, self._sharers))
            message = Masked(self.layout.digest, self._id, tags, statement, words.tobytes())
            return wire.seal(message, self._session.up)

    def abandon(self) -> None:
        """Leave the round before a vector was masked: it never will be, and costs nothing."""
        with self._lock:
            if self.step not in (DeviceStep.SHARERS, DeviceStep.VECTOR):
                raise OutOfTurn("the vector has left: this round is paid for")
            self._end()

    def abort(self, frame: bytes) -> None:
        """The server gives the round up: nothing more is answered, and no vector masked."""
        with self._lock:
            claims = wire.expect(frame, Abort, SLACK)
            if claims.context != self.layout.digest:
                raise OutOfTurn("Abort of another round")
            wire.read(frame, Abort, SLACK, self._server)
            self._end()

    def _end(self) -> None:
        unmasked = self.step in (DeviceStep.SHARERS, DeviceStep.VECTOR)
        if unmasked:
            self._charge.settle(left=False)
        self.step = DeviceStep.DONE
        self._self_secret, self._pairs, self._held = b"", {}, None

    def confirm(self, frame: bytes) -> bytes:
        """Commit to one list of survivors, towards the surviving neighbours."""
        with self._lock:
            before = self._before(frame)
            if before is not None:
                return before
            if not self.confirms:
                raise OutOfTurn("this round has no confirmations: unmask")
            message = self._read(frame, Survivors)
            survivors, agreed = self._checked(message)
            alive = self._among(survivors)
            self._check_uploads(message, alive)
            own = self._tags(b"confirm", alive, agreed)
            reply = Confirm(self.layout.digest, self._id, agreed, own)
            self._surviving, self._survivors = survivors, agreed
            self.step = DeviceStep.CONFIRMED
            return self._keep(frame, wire.seal(reply, self._session.up))

    def unmask(self, frame: bytes) -> bytes:
        """Give away one share per neighbour, once enough of them act on the same list."""
        with self._lock:
            before = self._before(frame)
            if before is not None:
                return before
            if self.confirms:
                self._check_confirmed(self._read(frame, Confirmed))
            else:
                self._surviving, self._survivors = self._checked(self._read(frame, Survivors))
            held = self._held
            if held is None:
                raise OutOfTurn("this device holds no shares")
            answers = held.answers(self._surviving[self._partner_places])
            said = (self._survivors, packed(~held.fits), self._accepted, answers)
            stated = given(self.layout.digest, self._id, *said)
            reply = Unmask(self.layout.digest, self._id, *said, self._identity.sign(stated))
            self._held, self._pairs = None, {}
            self.step = DeviceStep.DONE
            return self._keep(frame, wire.seal(reply, self._session.up))

    def disclose(self, frame: bytes) -> bytes:
        """Show that a neighbour sealed nonsense to this device, given that neighbour's `Shares`.

        The frame is the neighbour's own, under its signature: a server that passed on other bytes
        finds out nothing. The key shown opens what the two sealed to each other, and nothing else;
        whoever signs nonsense is corrupt, and could tell the server as much.
        """
        with self._lock:
            message = self._dealt(frame, self._disputed)
            shown = disclosure(self.layout, message, self._disputed[message.device], self._id)
            return wire.seal(shown, self._identity)

    def _dealt(self, frame: bytes, among: Mapping[int, PairKeys]) -> Shares:
        """What a neighbour has signed for this round, if it is one of those."""
        claims = wire.expect(frame, Shares, self._limit(Shares))
        if claims.context != self.layout.digest:
            raise OutOfTurn("Shares of another round")
        if claims.device not in among:
            raise RuleBroken(f"device {self._id} has no complaint about device {claims.device}")
        author = self._roster.get(claims.device).identity
        message = wire.read(frame, Shares, self._limit(Shares), author)
        dealt_lists(message, self.layout.plan)
        return message

    def _checked(self, message: Survivors) -> tuple[Flags, bytes]:
        """The survivors, if this device may act on them, and what stands for that list."""
        survivors = self.layout.present(message.present)
        if not survivors[self._place]:
            raise RuleBroken(f"device {self._id} was declared lost; it unmasks nothing")
        if (survivors & ~self.layout.present(self._sharers)).any():
            raise RuleBroken("a survivor had never shared")
        self._check_count(survivors, "survived")
        # Who is known to lie may have sent no noise: the terms reckon with so many, and no more.
        lying = sum(survivors[self._near[self._neighbours.index(liar)]] for liar in self._liars)
        counted = int(survivors.sum()) - max(0, int(lying) - self._terms.colluders)
        if counted < (fewest := max(self._terms.min_survivors, self.layout.plan.min_survivors)):
            raise RuleBroken(f"{counted} survivors may be honest or collude, need {fewest}")
        return survivors, self.layout.survivors_digest(self._sharers, message.present)

    def _check_uploads(self, message: Survivors, alive: list[int]) -> None:
        """Each surviving neighbour masked for the same list of sharers, by its tag or signature."""
        rows(message.tags, TAG_BYTES, len(alive), "Survivors.tags")
        rows(message.statements, STATEMENT_BYTES, len(message.doubted), "Survivors.statements")
        content = self.layout.sharers_digest(self._sharers)
        doubted = []
        for at, neighbour in enumerate(alive):
            expected = self._tag(neighbour, b"upload", neighbour, content)
            if derive.same(piece(message.tags, TAG_BYTES, at), expected):
                continue
            if neighbour in message.doubted:
                place = message.doubted.index(neighbour)
                statement = piece(message.statements, STATEMENT_BYTES, place)
                author = self._roster.get(neighbour).identity
                if signed(author, statement, self.layout.statement(neighbour, self._sharers)):
                    continue
            doubted.append(neighbour)
        if doubted:
            raise Doubted(
                f"device {doubted[0]} was told of other sharers than {self._id}", tuple(doubted)
            )

    def _check_confirmed(self, message: Confirmed) -> None:
        """Enough neighbours act on the same survivors."""
        confirmed = self.layout.present(message.present)
        if (confirmed & ~self._surviving).any():
            raise RuleBroken("a device confirmed that had not survived")
        claimed = self._among(confirmed)
        rows(message.tags, TAG_BYTES, len(claimed), "Confirmed.tags")
        agreeing = sum(
            derive.same(
                piece(message.tags, TAG_BYTES, at), self._tag(n, b"confirm", n, self._survivors)
            )
            for at, n in enumerate(claimed)
        )
        if agreeing < self.layout.plan.threshold:
            raise RuleBroken(
                f"{agreeing} neighbours act on these survivors, need {self.layout.plan.threshold}"
            )

    def _among(self, present: Flags) -> list[int]:
        """The partners that are present."""
        chosen = present[self._partner_places].tolist()
        return [partner for partner, there in zip(self._partners, chosen, strict=True) if there]

    def _read(self, frame: bytes, kind: type[_FromServerT]) -> _FromServerT:
        """A frame of the server for this device and round, at the right step."""
        claims = wire.expect(frame, kind, self._limit(kind))
        if claims.context != self.layout.digest or claims.device != self._id:
            raise OutOfTurn(f"{kind.__name__} of another round or for another device")
        if self.step is not _STEPS[kind]:
            raise OutOfTurn(f"{kind.__name__} while waiting for {self.step.name}")
        return wire.read(frame, kind, self._limit(kind), self._session.down)

    def _limit(self, kind: type[wire.WireMessage]) -> int:
        count = len(self._neighbours)
        if kind is Shares:
            return from_device(kind, count, 0)
        return from_server(kind, len(self.layout.plan.members), count)

    def _before(self, frame: bytes) -> bytes | None:
        """What this very frame was answered with, if it was."""
        if type(frame) is not bytes or len(frame) > self._limit(Sharers):
            return None
        return self._answered.get(hashlib.sha256(frame).digest())

    def _keep(self, frame: bytes, reply: bytes) -> bytes:
        return self._answered.setdefault(hashlib.sha256(frame).digest(), reply)

    def _tags(self, label: bytes, neighbours: list[int], content: bytes) -> bytes:
        return b"".join(self._tag(n, label, self._id, content) for n in neighbours)

    def _tag(self, neighbour: int, label: bytes, author: int, content: bytes) -> bytes:
        return pairs.tag(self._pairs[neighbour].tag, label, author, content)

    def _check_count(self, present: Flags, what: str) -> None:
        plan, cohort, count = self.layout.plan, len(present), int(present.sum())
        if count < (fewest := max(self._terms.fewest_survivors(cohort), plan.min_survivors)):
            raise RuleBroken(f"{count} of {cohort} devices {what}, need {fewest}")


_STEPS: dict[type[wire.WireMessage], DeviceStep] = {
    Sharers: DeviceStep.SHARERS,
    Survivors: DeviceStep.SURVIVORS,
    Confirmed: DeviceStep.CONFIRMED,
}
