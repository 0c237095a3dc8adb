"""The device's side of one round: a state machine that takes frames and gives frames.

    shares, then take_sharers(frame), mask(vector), confirm(frame), unmask(frame)

Every step checks the rules of the device's own `SecAggParams` before anything leaves it. A frame
that fails a check raises a typed error and changes nothing, one that was answered before gets the
same answer, and a lock makes racing ones come one by one. Above all, for each neighbour a device
gives away either the share of its own mask (it survived) or the share of its pair masks (it is
lost), once, for one list of survivors that most of its neighbours act on as well.
"""

from __future__ import annotations

import hashlib
import threading
from enum import Enum, auto
from typing import TypeVar

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from fedveil.core.errors import ConfigError
from fedveil.secagg import derive, pairs, wire
from fedveil.secagg.dealing import Held, deal, disclosure, fitting_shares
from fedveil.secagg.derive import TAG_BYTES
from fedveil.secagg.errors import Doubted, OutOfTurn, RuleBroken
from fedveil.secagg.keys import DeviceKeys, signed
from fedveil.secagg.layout import Layout, flagged, pack_flags, pieces
from fedveil.secagg.masks import apply_masks
from fedveil.secagg.messages import (
    Confirm,
    Confirmed,
    Masked,
    Sharers,
    Shares,
    Survivors,
    Unmask,
)
from fedveil.secagg.modulus import IntVector, encode
from fedveil.secagg.pairs import MARK_BYTES, SEALED_BYTES, PairKeys
from fedveil.secagg.params import SecAggParams
from fedveil.secagg.roster import Roster
from fedveil.secagg.shares import draw_secret
from fedveil.secagg.sizes import DEALT_BYTES, SLACK, STATEMENT_BYTES, from_server

_FromServerT = TypeVar("_FromServerT", Sharers, Survivors, Confirmed)


class Step(Enum):
    """What a device waits for."""

    SHARERS = auto()
    VECTOR = auto()
    SURVIVORS = auto()
    CONFIRMED = auto()
    DONE = auto()


class DeviceRound:
    """One round of one device; made by `Participant.join`, which has checked the plan."""

    def __init__(
        self,
        layout: Layout,
        keys: DeviceKeys,
        params: SecAggParams,
        server: Ed25519PublicKey,
        roster: Roster,
        pair_keys: dict[int, PairKeys],
    ) -> None:
        self.layout = layout
        self.step = Step.SHARERS
        self._lock = threading.Lock()
        self._id = keys.device
        self._identity = keys.identity
        self._terms = params
        self._server = server
        self._roster = roster
        self._pairs = pair_keys
        self._neighbours = layout.graph.neighbours(self._id)
        self._self_secret = draw_secret()
        self._off: frozenset[int] = frozenset()  # neighbours it does not mask with
        self._partners: list[int] = []  # those it does
        self._held: dict[int, Held] = {}  # the shares of each partner that fit its mark
        self._disputed: dict[int, PairKeys] = {}  # partners whose shares do not
        self._accepted = b""
        self._sharers = b""
        self._survivors = b""
        self._surviving: frozenset[int] = frozenset()
        self._answered: dict[bytes, bytes] = {}  # digest of a frame -> what it was answered with
        dealt = deal(layout, self._id, self._self_secret, pair_keys)
        self.shares = wire.seal(dealt, self._identity)

    def expects(self, start: bytes) -> int:
        """How long the frame is that begins so, or an error: ask before reading on."""
        kinds = {kind.KIND: kind for kind in _STEPS}
        kind = kinds.get(wire.head(start).kind, Sharers)
        return wire.expect(start, kind, self._limit(kind)).size

    def take_sharers(self, frame: bytes) -> None:
        """Learn who has shared, and open the shares sent to this device."""
        with self._lock:
            if self._before(frame) is not None:
                return
            message = self._read(frame, Sharers)
            sharers = self.layout.present(message.present)
            if self._id not in sharers:
                raise RuleBroken(f"device {self._id} is not among the sharers, though it shared")
            self._check_count(len(sharers), "shared")
            off = flagged(message.off, self._neighbours, "Sharers.off") & sharers
            most = self._terms.droppable(self.layout.graph.complete)
            if len(off) > most:
                raise RuleBroken(f"{len(off)} pair masks are to be left out, at most {most} may be")
            partners = [n for n in self._neighbours if n in sharers and n not in off]
            if len(partners) < self.layout.plan.threshold:
                raise RuleBroken(
                    f"{len(partners)} neighbours hold shares, need {self.layout.plan.threshold}"
                )
            sealed = pieces(message.sealed, SEALED_BYTES, partners, "Sharers.sealed")
            marks = pieces(message.marks, MARK_BYTES, partners, "Sharers.marks")
            for dealer in partners:
                key, plan = self._pairs[dealer].seal(dealer, self._id), self.layout.digest
                held = fitting_shares(key, sealed[dealer], marks[dealer], plan, dealer, self._id)
                if held is None:
                    self._disputed[dealer] = self._pairs[dealer]
                else:
                    self._held[dealer] = held
            fitting = b"".join(marks[dealer] for dealer in self._held)
            self._accepted = derive.digest(b"accepted", self.layout.digest, fitting)
            self._off, self._partners, self._sharers = off, partners, message.present
            self.step = Step.VECTOR
            self._keep(frame, b"")

    def mask(self, vector: IntVector) -> bytes:
        """The masked vector, int64 [dimension]; one vector per round, ever.

        Whoever sends the frame keeps it until the survivors are named, to send it again.
        """
        plan = self.layout.plan
        with self._lock:
            if self.step is not Step.VECTOR:
                raise OutOfTurn(f"a vector cannot be masked while waiting for {self.step.name}")
            words = encode(vector, plan.bits)
            if words.size != plan.dimension:
                raise ConfigError(f"vector: {words.size} entries, the plan has {plan.dimension}")
            self.step = Step.SURVIVORS
            added = [pairs.self_mask_key(self._self_secret)]
            subtracted: list[bytes] = []
            for neighbour in self._partners:
                key = pairs.mask_key(self._pairs[neighbour].root)
                (added if self._id < neighbour else subtracted).append(key)
            self._self_secret = b""
            apply_masks(words, added, subtracted)
            content = self.layout.sharers_digest(self._sharers)
            tags = b"".join(self._tag(n, b"upload", self._id, content) for n in self._partners)
            statement = self._identity.sign(self.layout.statement(self._id, self._sharers))
            message = Masked(self.layout.digest, self._id, tags, statement, words.tobytes())
            return wire.seal(message, self._identity)

    def confirm(self, frame: bytes) -> bytes:
        """Commit to one list of survivors, towards the surviving neighbours."""
        with self._lock:
            before = self._before(frame)
            if before is not None:
                return before
            message = self._read(frame, Survivors)
            survivors = self.layout.present(message.present)
            if self._id not in survivors:
                raise RuleBroken(f"device {self._id} was declared lost; it unmasks nothing")
            if not survivors <= self.layout.present(self._sharers):
                raise RuleBroken("a survivor had never shared")
            self._check_count(len(survivors), "survived")
            self._check_vouched(len(survivors) - len(self._off & survivors))
            alive = [n for n in self._partners if n in survivors]
            self._check_uploads(message, alive)
            agreed = self.layout.survivors_digest(self._sharers, message.present)
            own = b"".join(self._tag(n, b"confirm", self._id, agreed) for n in alive)
            bad = [place for place, n in enumerate(self._partners) if n in self._disputed]
            reply = Confirm(
                self.layout.digest,
                self._id,
                agreed,
                own,
                pack_flags(bad, len(self._partners)),
                self._accepted,
            )
            self._surviving, self._survivors = survivors, agreed
            self.step = Step.CONFIRMED
            return self._keep(frame, wire.seal(reply, self._identity))

    def unmask(self, frame: bytes) -> bytes:
        """Give away one share per neighbour, once enough of them act on the same list."""
        with self._lock:
            before = self._before(frame)
            if before is not None:
                return before
            message = self._read(frame, Confirmed)
            confirmed = self.layout.present(message.present)
            if not confirmed <= self._surviving:
                raise RuleBroken("a device confirmed that had not survived")
            claimed = [n for n in self._partners if n in confirmed]
            tags = pieces(message.tags, TAG_BYTES, claimed, "Confirmed.tags")
            agreeing = sum(
                derive.same(tags[n], self._tag(n, b"confirm", n, self._survivors)) for n in claimed
            )
            if agreeing < self.layout.plan.threshold:
                raise RuleBroken(
                    f"{agreeing} neighbours act on these survivors, "
                    f"need {self.layout.plan.threshold}"
                )
            answers = b"".join(
                held.answer(dealer in self._surviving) for dealer, held in self._held.items()
            )
            self._held, self._pairs = {}, {}
            self.step = Step.DONE
            reply = Unmask(self.layout.digest, self._id, answers)
            return self._keep(frame, wire.seal(reply, self._identity))

    def disclose(self, frame: bytes) -> bytes:
        """Show that a neighbour sealed nonsense to this device, given that neighbour's `Shares`.

        The frame is the neighbour's own, under its signature: a server that passed on other bytes
        finds out nothing. The key shown opens what this neighbour sealed, and nothing else.
        """
        with self._lock:
            dealer = wire.expect(frame, Shares, self._limit(Shares)).device
            keys = self._disputed.get(dealer)
            if keys is None:
                raise RuleBroken(f"device {self._id} has no complaint about device {dealer}")
            author = self._roster.get(dealer).identity
            message = wire.read(frame, Shares, self._limit(Shares), author)
            shown = disclosure(self.layout, message, keys, self._id)
            return wire.seal(shown, self._identity)

    def _check_uploads(self, message: Survivors, alive: list[int]) -> None:
        """Each surviving neighbour masked for the same list of sharers, by its tag or signature."""
        tags = pieces(message.tags, TAG_BYTES, alive, "Survivors.tags")
        statements = pieces(
            message.statements, STATEMENT_BYTES, message.doubted, "Survivors.statements"
        )
        content = self.layout.sharers_digest(self._sharers)
        doubted = []
        for neighbour in alive:
            expected = self._tag(neighbour, b"upload", neighbour, content)
            if derive.same(tags[neighbour], expected):
                continue
            stated = self.layout.statement(neighbour, self._sharers)
            author = self._roster.get(neighbour).identity
            if neighbour not in statements or not signed(author, statements[neighbour], stated):
                doubted.append(neighbour)
        if doubted:
            raise Doubted(
                f"device {doubted[0]} was told of other sharers than {self._id}", tuple(doubted)
            )

    def _read(self, frame: bytes, kind: type[_FromServerT]) -> _FromServerT:
        """A frame of the server for this device and round, at the right step."""
        claims = wire.expect(frame, kind, self._limit(kind))
        if claims.context != self.layout.digest or claims.device != self._id:
            raise OutOfTurn(f"{kind.__name__} of another round or for another device")
        if self.step is not _STEPS[kind]:
            raise OutOfTurn(f"{kind.__name__} while waiting for {self.step.name}")
        return wire.read(frame, kind, self._limit(kind), self._server)

    def _limit(self, kind: type[wire.Message]) -> int:
        count = len(self._neighbours)
        if kind is Shares:
            return SLACK + DEALT_BYTES * count
        return from_server(kind, len(self.layout.plan.members), count)

    def _before(self, frame: bytes) -> bytes | None:
        """What this very frame was answered with, if it was."""
        if type(frame) is not bytes or len(frame) > self._limit(Sharers):
            return None
        return self._answered.get(hashlib.sha256(frame).digest())

    def _keep(self, frame: bytes, reply: bytes) -> bytes:
        return self._answered.setdefault(hashlib.sha256(frame).digest(), reply)

    def _tag(self, neighbour: int, label: bytes, author: int, content: bytes) -> bytes:
        key = self._pairs[neighbour].tag
        return derive.tag(key, label, derive.id_bytes(author) + content)

    def _check_count(self, count: int, what: str) -> None:
        plan, cohort = self.layout.plan, len(self.layout.plan.members)
        if count < (fewest := max(self._terms.fewest_survivors(cohort), plan.min_survivors)):
            raise RuleBroken(f"{count} of {cohort} devices {what}, need {fewest}")

    def _check_vouched(self, count: int) -> None:
        """Only neighbours whose upload tag was seen count as survivors whose noise is there."""
        if not self.layout.graph.complete:
            return  # most survivors are no neighbours; see Theorem 2
        fewest = max(self._terms.min_survivors, self.layout.plan.min_survivors)
        if count < fewest:
            raise RuleBroken(f"{count} survivors have shown that they masked, need {fewest}")


_STEPS: dict[type[wire.Message], Step] = {
    Sharers: Step.SHARERS,
    Survivors: Step.SURVIVORS,
    Confirmed: Step.CONFIRMED,
}
