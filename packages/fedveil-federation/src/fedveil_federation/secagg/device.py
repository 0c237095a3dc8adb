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
from dataclasses import dataclass
from enum import Enum, auto
from functools import lru_cache
from typing import TypeVar

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from fedveil.core.errors import ConfigError
from fedveil.privacy.secure_sums import derive
from fedveil.privacy.secure_sums.derive import TAG_BYTES
from fedveil.privacy.secure_sums.errors import Forged, OutOfTurn, RuleBroken
from fedveil.privacy.secure_sums.masks import IntVector, apply_masks, encode
from fedveil.privacy.secure_sums.params import SecAggParams
from fedveil_federation.secagg import pairs, wire
from fedveil_federation.secagg.dealing import Holding, deal, opened
from fedveil_federation.secagg.journal import Journal
from fedveil_federation.secagg.keys import DeviceKeys, signed
from fedveil_federation.secagg.layout import (
    STATEMENT_BYTES,
    Flags,
    RoundLayout,
    longest,
    packed,
    piece,
    rows,
)
from fedveil_federation.secagg.messages import (
    Abort,
    Confirm,
    Confirmed,
    Masked,
    Sharers,
    Survivors,
    Unmask,
)
from fedveil_federation.secagg.pairs import MARK_BYTES, NONCE_BYTES, SEALED_BYTES, PairKeys
from fedveil_federation.secagg.privacy_terms import PrivacyTerms
from fedveil_federation.secagg.roster import Roster
from fedveil_federation.secagg.session import Handshake
from fedveil_federation.secagg.shares import draw_secret

_FromServerT = TypeVar("_FromServerT", Sharers, Survivors, Confirmed)


class DeviceStep(Enum):
    """The message that a device waits for."""

    SHARERS = auto()
    VECTOR = auto()
    SURVIVORS = auto()
    CONFIRMED = auto()
    DONE = auto()


@dataclass(frozen=True)
class Charge:
    """A device's reservation for a round, if it keeps a ledger."""

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
        self._partners: list[int] = []  # neighbours whose shares it was sent
        self._partner_places = self._near[:0]
        self._held: Holding | None = None
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

    def take_sharers(self, frame: bytes) -> None:
        """Learn who has shared, and open the shares sent to this device.

        Args:
            frame: The server's `Sharers`.

        Raises:
            SecureAggregationError: It is not the server's, not in turn, or against a rule.
        """
        with self._lock:
            if self._before(frame) is not None:
                return
            message = self._read(frame, Sharers)
            sharers = self.layout.present(message.present)
            if not sharers[self._place]:
                raise RuleBroken(f"device {self._id} is not among the sharers, though it shared")
            self._check_count(sharers, "shared")
            columns = np.flatnonzero(sharers[self._near]).tolist()
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
            self._held = opened(self.layout.digest, self._id, partners, seals, *lists)
            self._partners, self._sharers = partners, message.present
            self._partner_places = self._near[columns]
            self.step = DeviceStep.VECTOR
            self._keep(frame, b"")

    def mask(self, vector: IntVector) -> bytes:
        """Mask this device's vector; one vector per round, ever.

        Args:
            vector: What is summed, int64 [dimension], with the noise that belongs to it.

        Returns:
            The frame for the server. Whoever sends it keeps it until the survivors are named.

        Raises:
            ConfigError: The vector has another shape or type, or does not fit the words.
            OutOfTurn: A vector was masked before, or the sharers are not known yet.
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
            statement = b""
            if self.confirms:
                statement = self._identity.sign(self.layout.statement(self._id, self._sharers))
            message = Masked(self.layout.digest, self._id, statement, words.tobytes())
            return wire.seal(message, self._session.up)

    def abort(self, frame: bytes) -> None:
        """End a round that the server gives up: nothing more is answered, and no vector masked.

        A round that ends before a vector was masked costs nothing.

        Args:
            frame: The server's `Abort`.

        Raises:
            SecureAggregationError: It is not the server's, or of another round.
        """
        with self._lock:
            limit = self._limit(Abort)
            if wire.expect(frame, Abort, limit).context != self.layout.digest:
                raise OutOfTurn("Abort of another round")
            wire.read(frame, Abort, limit, self._server)
            if self.step in (DeviceStep.SHARERS, DeviceStep.VECTOR):
                self._charge.settle(left=False)
            self.step = DeviceStep.DONE
            self._self_secret, self._pairs, self._held = b"", {}, None

    def confirm(self, frame: bytes) -> bytes:
        """Commit to one list of survivors, towards the surviving neighbours.

        Args:
            frame: The server's `Survivors`.

        Returns:
            The frame for the server; the same one if the same list comes again.

        Raises:
            SecureAggregationError: It is not the server's, not in turn, or against a rule.
        """
        with self._lock:
            before = self._before(frame)
            if before is not None:
                return before
            if not self.confirms:
                raise OutOfTurn("this round has no confirmations: unmask")
            message = self._read(frame, Survivors)
            survivors, agreed = self._checked(message)
            alive = self._among(survivors)
            self._check_statements(message.statements, alive)
            own = b"".join(self._tag(n, self._id, agreed) for n in alive)
            reply = Confirm(self.layout.digest, self._id, agreed, own)
            self._surviving, self._survivors = survivors, agreed
            self.step = DeviceStep.CONFIRMED
            return self._keep(frame, wire.seal(reply, self._session.up))

    def unmask(self, frame: bytes) -> bytes:
        """Give away one share per neighbour, once enough of them act on the same list.

        Args:
            frame: The server's `Confirmed`, or its `Survivors` if the terms trust it.

        Returns:
            The frame for the server; the same one if the same frame comes again.

        Raises:
            SecureAggregationError: It is not the server's, not in turn, or against a rule.
        """
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
            said = (self._survivors, packed(~held.fits), answers)
            reply = Unmask(self.layout.digest, self._id, *said)
            self._held, self._pairs = None, {}
            self.step = DeviceStep.DONE
            return self._keep(frame, wire.seal(reply, self._session.up))

    def _checked(self, message: Survivors) -> tuple[Flags, bytes]:
        """The survivors, if this device may act on them, and what stands for that list."""
        survivors = self.layout.present(message.present)
        if not survivors[self._place]:
            raise RuleBroken(f"device {self._id} was declared lost; it unmasks nothing")
        if (survivors & ~self.layout.present(self._sharers)).any():
            raise RuleBroken("a survivor had never shared")
        self._check_count(survivors, "survived")
        return survivors, self.layout.survivors_digest(self._sharers, message.present)

    def _check_statements(self, statements: bytes, alive: list[int]) -> None:
        """Check that each surviving neighbour has signed to have masked for the same sharers."""
        rows(statements, STATEMENT_BYTES, len(alive), "Survivors.statements")
        for at, neighbour in enumerate(alive):
            author = self._roster.get(neighbour).identity_bytes
            stated = self.layout.statement(neighbour, self._sharers)
            if not _signed(author, piece(statements, STATEMENT_BYTES, at), stated):
                raise Forged(f"device {neighbour} was told of other sharers than {self._id}")

    def _check_confirmed(self, message: Confirmed) -> None:
        """Enough neighbours act on the same survivors."""
        confirmed = self.layout.present(message.present)
        if (confirmed & ~self._surviving).any():
            raise RuleBroken("a device confirmed that had not survived")
        claimed = self._among(confirmed)
        rows(message.tags, TAG_BYTES, len(claimed), "Confirmed.tags")
        agreeing = sum(
            derive.same(piece(message.tags, TAG_BYTES, at), self._tag(n, n, self._survivors))
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
        return longest(kind, len(self.layout.plan.members), len(self._neighbours))

    def _before(self, frame: bytes) -> bytes | None:
        """Return the earlier answer to this very frame, if there was one."""
        if type(frame) is not bytes or len(frame) > self._limit(Sharers):
            return None
        return self._answered.get(hashlib.sha256(frame).digest())

    def _keep(self, frame: bytes, reply: bytes) -> bytes:
        return self._answered.setdefault(hashlib.sha256(frame).digest(), reply)

    def _tag(self, neighbour: int, author: int, survivors: bytes) -> bytes:
        return pairs.tag(self._pairs[neighbour].tag, author, survivors)

    def _check_count(self, present: Flags, what: str) -> None:
        plan, cohort, count = self.layout.plan, len(present), int(present.sum())
        if count < (fewest := max(self._terms.fewest_survivors(cohort), plan.min_survivors)):
            raise RuleBroken(f"{count} of {cohort} devices {what}, need {fewest}")


@lru_cache(maxsize=1 << 12)
def _signed(author: bytes, signature: bytes, content: bytes) -> bool:
    """Whether a signature holds; cached, as all devices of a simulation check the same ones."""
    return signed(Ed25519PublicKey.from_public_bytes(author), signature, content)


_STEPS: dict[type[wire.WireMessage], DeviceStep] = {
    Sharers: DeviceStep.SHARERS,
    Survivors: DeviceStep.SURVIVORS,
    Confirmed: DeviceStep.CONFIRMED,
}
