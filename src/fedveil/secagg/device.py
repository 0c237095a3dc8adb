"""The device's side of one round: a state machine that takes frames and gives frames.

    shares, then take_sharers(frame), mask(vector), confirm(frame), unmask(frame)

Every step checks the rules of the device's own `Terms` before anything leaves it; a frame that
fails a check raises a typed error and changes nothing. Above all, for each neighbour a device
gives away either the share of its own mask (it survived) or the share of its pair masks (it is
lost), once, for one list of survivors that most of its neighbours act on as well.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TypeVar

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from fedveil.errors import BadInput
from fedveil.secagg import derive, pairs, wire
from fedveil.secagg.derive import TAG_BYTES
from fedveil.secagg.errors import Forged, OutOfTurn, RuleBroken
from fedveil.secagg.keys import DeviceKeys
from fedveil.secagg.layout import Layout, pieces
from fedveil.secagg.masks import apply_masks
from fedveil.secagg.messages import Confirm, Confirmed, Masked, Sharers, Shares, Survivors, Unmask
from fedveil.secagg.modulus import IntVector, encode
from fedveil.secagg.pairs import SEALED_BYTES, PairKeys
from fedveil.secagg.shares import SHARE_BYTES, draw_secret, split
from fedveil.secagg.terms import Terms

_FromServerT = TypeVar("_FromServerT", Sharers, Survivors, Confirmed)

SLACK = 512  # bytes of a frame besides its lists


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
        terms: Terms,
        server: Ed25519PublicKey,
        pair_keys: dict[int, PairKeys],
    ) -> None:
        self.layout = layout
        self.step = Step.SHARERS
        self._id = keys.device
        self._identity = keys.identity
        self._terms = terms
        self._server = server
        self._pairs = pair_keys
        self._neighbours = layout.graph.neighbours(self._id)
        self._self_secret = draw_secret()
        self._held: dict[int, bytes] = {}  # both shares of each neighbour that has shared
        self._sharers = b""
        self._survivors = b""
        self._surviving: frozenset[int] = frozenset()
        self.shares = self._make_shares()

    def _make_shares(self) -> bytes:
        """The frame that lets the others finish without this device."""
        plan, digest = self.layout.plan, self.layout.digest
        pair_secret = draw_secret()  # not kept: only its shares and what it wraps remain
        both = split([self._self_secret, pair_secret], plan.threshold, len(self._neighbours))
        sealed, wrapped, checks = [], [], []
        for row, neighbour in zip(both, self._neighbours, strict=True):
            keys = self._pairs[neighbour]
            sealed.append(pairs.seal_shares(keys, self._id, neighbour, row.tobytes()))
            wrapped.append(pairs.wrap(keys.root, pair_secret, neighbour))
            checks.append(pairs.check(keys.root))
        commitments = pairs.commitment(b"self", self._self_secret, digest, self._id)
        commitments += pairs.commitment(b"pair", pair_secret, digest, self._id)
        message = Shares(
            digest, self._id, commitments, b"".join(sealed), b"".join(wrapped), b"".join(checks)
        )
        return wire.seal(message, self._identity)

    def take_sharers(self, frame: bytes) -> None:
        """Learn who has shared, and open the shares sent to this device."""
        message = self._read(frame, Sharers, Step.SHARERS, SEALED_BYTES)
        sharers = self.layout.present(message.present)
        if self._id not in sharers:
            raise RuleBroken(f"device {self._id} is not among the sharers, though it shared")
        self._check_count(len(sharers), "shared")
        senders = [n for n in self._neighbours if n in sharers]
        if len(senders) < self.layout.plan.threshold:
            raise RuleBroken(
                f"{len(senders)} neighbours hold shares, need {self.layout.plan.threshold}"
            )
        sealed = pieces(message.sealed, SEALED_BYTES, senders, "Sharers.sealed")
        self._held = {
            sender: pairs.open_shares(self._pairs[sender], sender, self._id, sealed[sender])
            for sender in senders
        }
        self._sharers = message.present
        self.step = Step.VECTOR

    def mask(self, vector: IntVector) -> bytes:
        """The masked vector, int64 [dimension]; one vector per round, ever."""
        plan = self.layout.plan
        if self.step is not Step.VECTOR:
            raise OutOfTurn(f"a vector cannot be masked while waiting for {self.step.name}")
        words = encode(vector, plan.bits)
        if words.size != plan.dimension:
            raise BadInput(f"vector: {words.size} entries, the plan has {plan.dimension}")
        self.step = Step.SURVIVORS
        added = [pairs.self_mask_key(self._self_secret)]
        subtracted: list[bytes] = []
        for neighbour in self._held:
            key = pairs.mask_key(self._pairs[neighbour].root)
            (added if self._id < neighbour else subtracted).append(key)
        apply_masks(words, added, subtracted)
        self._self_secret = b""
        content = self.layout.sharers_digest(self._sharers)
        tags = b"".join(self._tag(n, b"upload", self._id, content) for n in self._held)
        message = Masked(self.layout.digest, self._id, tags, words.tobytes())
        return wire.seal(message, self._identity)

    def confirm(self, frame: bytes) -> bytes:
        """Commit to one list of survivors, towards the surviving neighbours."""
        message = self._read(frame, Survivors, Step.SURVIVORS, TAG_BYTES)
        survivors = self.layout.present(message.present)
        if self._id not in survivors:
            raise RuleBroken(f"device {self._id} was declared lost; it unmasks nothing")
        if not survivors <= self.layout.present(self._sharers):
            raise RuleBroken("a survivor had never shared")
        self._check_count(len(survivors), "survived")
        alive = [n for n in self._held if n in survivors]
        tags = pieces(message.tags, TAG_BYTES, alive, "Survivors.tags")
        content = self.layout.sharers_digest(self._sharers)
        for neighbour in alive:
            expected = self._tag(neighbour, b"upload", neighbour, content)
            if not derive.same(tags[neighbour], expected):
                raise Forged(f"device {neighbour} was told of other sharers than {self._id}")
        self._surviving = survivors
        self._survivors = self.layout.survivors_digest(self._sharers, message.present)
        self.step = Step.CONFIRMED
        own = b"".join(self._tag(n, b"confirm", self._id, self._survivors) for n in alive)
        reply = Confirm(self.layout.digest, self._id, self._survivors, own)
        return wire.seal(reply, self._identity)

    def unmask(self, frame: bytes) -> bytes:
        """Give away one share per neighbour, once enough of them act on the same list."""
        message = self._read(frame, Confirmed, Step.CONFIRMED, TAG_BYTES)
        confirmed = self.layout.present(message.present)
        if not confirmed <= self._surviving:
            raise RuleBroken("a device confirmed that had not survived")
        agreeing = [n for n in self._held if n in confirmed]
        tags = pieces(message.tags, TAG_BYTES, agreeing, "Confirmed.tags")
        for neighbour in agreeing:
            expected = self._tag(neighbour, b"confirm", neighbour, self._survivors)
            if not derive.same(tags[neighbour], expected):
                raise Forged(f"device {neighbour} acts on other survivors than {self._id}")
        if len(agreeing) < self.layout.plan.threshold:
            raise RuleBroken(
                f"{len(agreeing)} neighbours act on these survivors, "
                f"need {self.layout.plan.threshold}"
            )
        shares = b"".join(
            both[:SHARE_BYTES] if neighbour in self._surviving else both[SHARE_BYTES:]
            for neighbour, both in self._held.items()
        )
        self._held, self._pairs = {}, {}
        self.step = Step.DONE
        return wire.seal(Unmask(self.layout.digest, self._id, shares), self._identity)

    def _read(
        self, frame: bytes, kind: type[_FromServerT], step: Step, per_neighbour: int
    ) -> _FromServerT:
        """A frame of the server for this device and round, at the right step."""
        members = len(self.layout.plan.members)
        limit = SLACK + members // 8 + per_neighbour * len(self._neighbours)
        message = wire.read(frame, kind, limit)
        wire.verify(frame, self._server)
        if message.plan != self.layout.digest or message.device != self._id:
            raise OutOfTurn(f"{kind.__name__} of another round or for another device")
        if self.step is not step:
            raise OutOfTurn(f"{kind.__name__} while waiting for {self.step.name}")
        return message

    def _tag(self, neighbour: int, label: bytes, author: int, content: bytes) -> bytes:
        key = self._pairs[neighbour].tag
        return derive.tag(key, label, derive.id_bytes(author) + content)

    def _check_count(self, count: int, what: str) -> None:
        cohort = len(self.layout.plan.members)
        fewest = max(self._terms.fewest_survivors(cohort), self.layout.plan.min_survivors)
        if count < fewest:
            raise RuleBroken(f"{count} of {cohort} devices {what}, need {fewest}")
