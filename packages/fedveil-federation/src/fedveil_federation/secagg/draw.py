"""How devices draw the order of a sparse graph, so that a server cannot look for a weak one.

    server -> drawers: Invitation      the round as it will be, but for the graph
    drawer -> server:  Commitment      a hash of 32 fresh bytes
    server -> drawers: Commitments     everybody's hashes
    drawer -> server:  Reveal          the bytes, signed together with the list of hashes

The seed hashes the draft, the list and all bytes. With more drawers than colluders one of them is
honest; it reveals its bytes for one list, when that list and the draft are fixed, so the seed is
uniform and comes out once. All drawers must reveal: a list short of one is worthless, and a new one
costs every drawer another of the few draws it has for a round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import lru_cache

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fedveil.core.errors import ConfigError
from fedveil.privacy.secure_sums import derive
from fedveil.privacy.secure_sums.errors import Forged, Malformed, OutOfTurn, RuleBroken
from fedveil.privacy.secure_sums.params import SecAggParams
from fedveil_federation.secagg import wire
from fedveil_federation.secagg.messages import (
    Commitment,
    Commitments,
    Draft,
    Invitation,
    Reveal,
    RoundPlan,
)
from fedveil_federation.secagg.roster import Enrolled

DRAWN_BYTES = 32
DRAW_BYTES = DRAWN_BYTES + 64
SMALL_FRAME = 256  # commitments and reveals are shorter
NO_DRAW = bytes(32)  # the seed of a complete graph, whose order means nothing


def draft_of(plan: Draft) -> dict[str, object]:
    """The fields that a plan has in common with its invitation."""
    return {spec.name: getattr(plan, spec.name) for spec in fields(Draft)}


def draft_digest(plan: Draft) -> bytes:
    """What a draw is for."""
    _, body = wire.encoded(Invitation(**draft_of(plan)))  # type: ignore[arg-type]
    return derive.digest(b"draft", body)


def hide(draft: bytes, device: int, drawn: bytes) -> bytes:
    """The hash by which a device commits to its bytes."""
    return derive.digest(b"draw", draft, derive.id_bytes(device), drawn)


def list_digest(draft: bytes, devices: Sequence[int], hidden: Sequence[bytes]) -> bytes:
    """Stands for a list of commitments."""
    ids = b"".join(derive.id_bytes(device) for device in devices)
    return derive.digest(b"commitments", draft, ids, b"".join(hidden))


def graph_seed(commitments: bytes, drawn: Sequence[bytes]) -> bytes:
    """The seed of the graph that was drawn."""
    return derive.digest(b"graph", commitments, b"".join(drawn))


def drawn_seed(plan: RoundPlan, params: SecAggParams, identities: Mapping[int, bytes]) -> bytes:
    """The seed of a plan's graph; `RuleBroken` or `Forged` unless enough devices drew it.

    `identities`: the identity keys of those who drew. A server that the terms trust draws alone.
    """
    count = params.drawers(len(plan.members), plan.degree)
    if len(plan.drawers) != count:  # fewer may all collude, more cost signatures
        raise RuleBroken(f"{len(plan.drawers)} devices drew the graph, need {count}")
    if not count:
        complete = plan.degree == len(plan.members) - 1
        if len(plan.draws) != (0 if complete else DRAWN_BYTES):
            raise Malformed("Plan.draws: a complete graph is not drawn, others by 32 bytes")
        return NO_DRAW if complete else plan.draws
    if not set(plan.drawers) <= set(plan.members):
        raise RuleBroken("a device drew the graph that is not in the cohort")
    if len(plan.draws) != DRAW_BYTES * len(plan.drawers):
        raise Malformed(f"Plan.draws: need {DRAW_BYTES} bytes of each device that drew")
    keys = tuple(identities[device] for device in plan.drawers)
    return _verified(draft_digest(plan), plan.drawers, plan.draws, keys)


@lru_cache(maxsize=8)  # a simulation asks once per device
def _verified(
    draft: bytes, drawers: tuple[int, ...], draws: bytes, identities: tuple[bytes, ...]
) -> bytes:
    drawn = [draws[at : at + DRAWN_BYTES] for at in range(0, len(draws), DRAW_BYTES)]
    signatures = [
        draws[at + DRAWN_BYTES : at + DRAW_BYTES] for at in range(0, len(draws), DRAW_BYTES)
    ]
    hidden = [hide(draft, device, own) for device, own in zip(drawers, drawn, strict=True)]
    commitments = list_digest(draft, drawers, hidden)
    for device, own, signature, identity in zip(
        drawers, drawn, signatures, identities, strict=True
    ):
        claims, body = wire.encoded(Reveal(draft, device, commitments, own))
        try:
            author = Ed25519PublicKey.from_public_bytes(identity)
            wire.check(author, signature, claims, wire.digest_of(body))
        except Forged:
            raise Forged(f"device {device} did not draw this graph") from None
    return graph_seed(commitments, drawn)


class Drawing:
    """The server's side of one draw; `plan` once everybody has revealed."""

    def __init__(
        self,
        draft: Draft,
        key: Ed25519PrivateKey,
        drawers: Sequence[int],
        entries: Mapping[int, Enrolled],
    ) -> None:
        self.drawers = tuple(sorted(drawers))
        if len(set(self.drawers)) < len(self.drawers) or not self.drawers:
            raise ConfigError("drawers: need different devices, one or more")
        if not set(self.drawers) <= set(draft.members):
            raise ConfigError("drawers: need members of the cohort")
        self._key = key
        self._draft = draft
        self._entries = {device: entries[device] for device in self.drawers}
        self.digest = draft_digest(draft)
        self.invitation = wire.seal(Invitation(**draft_of(draft)), key)  # type: ignore[arg-type]
        self._hidden: dict[int, bytes] = {}
        self._list = b""
        self._draws: dict[int, bytes] = {}

    def commit(self, frame: bytes) -> int:
        """Take one device's commitment; returns its id."""
        message = self._read(frame, Commitment)
        if self._hidden.get(message.device, message.hidden) != message.hidden or self._list:
            raise OutOfTurn(f"device {message.device} has committed before, or too late")
        self._hidden[message.device] = message.hidden
        return message.device

    def commitments(self) -> bytes:
        """The frame for all drawers, once they have committed."""
        if set(self._hidden) != set(self.drawers):
            raise OutOfTurn(f"{len(self._hidden)} of {len(self.drawers)} drawers have committed")
        hidden = [self._hidden[device] for device in self.drawers]
        self._list = list_digest(self.digest, self.drawers, hidden)
        return wire.seal(Commitments(self.digest, self.drawers, b"".join(hidden)), self._key)

    def reveal(self, frame: bytes) -> int:
        """Take the bytes of one device; returns its id."""
        message = self._read(frame, Reveal)
        if not self._list or message.commitments != self._list:
            raise OutOfTurn(f"device {message.device} revealed for another list of commitments")
        if hide(self.digest, message.device, message.drawn) != self._hidden[message.device]:
            raise Forged(f"device {message.device} revealed other bytes than it had committed to")
        self._draws[message.device] = message.drawn + frame[wire.SIGNATURE : wire.HEADER]
        return message.device

    @property
    def missing(self) -> tuple[int, ...]:
        """Who has not revealed yet."""
        return tuple(device for device in self.drawers if device not in self._draws)

    def plan(self) -> RoundPlan:
        """The plan with its graph, once everybody has revealed."""
        if self.missing:
            raise OutOfTurn(f"devices {list(self.missing)} have not revealed: draw with others")
        draws = b"".join(self._draws[device] for device in self.drawers)
        return RoundPlan(**draft_of(self._draft), drawers=self.drawers, draws=draws)  # type: ignore[arg-type]

    def _read(self, frame: bytes, kind: type[wire.MessageT]) -> wire.MessageT:
        found = wire.expect(frame, kind, SMALL_FRAME)
        entry = self._entries.get(found.device)
        if entry is None:
            raise OutOfTurn(f"device {found.device} was not asked to draw")
        if found.context != self.digest:
            raise OutOfTurn(f"{kind.__name__} for another draft")
        return wire.read(frame, kind, SMALL_FRAME, entry.identity)
