"""A cast of real state machines, and a round played between them one leg at a time."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedveil.privacy.secure_sums.params import SecAggParams
from fedveil_federation.secagg import wire
from fedveil_federation.secagg.device import DeviceRound
from fedveil_federation.secagg.journal import Journal, MemoryJournal
from fedveil_federation.secagg.keys import DeviceKeys, new_keys
from fedveil_federation.secagg.layout import packed
from fedveil_federation.secagg.messages import Confirm, Masked, Shares, Unmask
from fedveil_federation.secagg.participant import Participant
from fedveil_federation.secagg.roster import Roster
from fedveil_federation.secagg.server import Server, ServerRound
from fedveil_federation.secagg.wire import Signer, WireMessage, parse

NOBODY: frozenset[int] = frozenset()
KINDS = {kind.KIND: kind for kind in (Shares, Masked, Confirm, Unmask)}  # of devices, in a round
MessageT = TypeVar("MessageT", bound=WireMessage)


def peek(frame: bytes, kind: type[MessageT], *_: object) -> MessageT:
    """A frame's message, whoever signed it."""
    assert frame[5] == kind.KIND
    return parse(frame, kind)


@dataclass
class Cast:
    params: SecAggParams
    server: Server
    devices: dict[int, Participant]
    pinned: dict[int, bytes]

    @property
    def ids(self) -> list[int]:
        return sorted(self.devices)

    def renew(self, device: int) -> bytes:
        """Start a device again with a fresh X25519 key; its new card."""
        old = self.devices[device]
        public = self.server.key.public_key().public_bytes_raw()
        keys = old.keys.renewed()
        renewed = Participant(keys, old.roster, self.params, public, old._journal)
        self.devices[device] = renewed
        return keys.card()

    def play(
        self, round_number: int = 1, dimension: int = 5, bits: int = 32, **kwargs: object
    ) -> Play:
        members = kwargs.pop("members", self.ids)
        return Play(self, self.server.open(round_number, members, dimension, bits, **kwargs))  # type: ignore


@dataclass
class Play:
    """One round; each leg takes the devices that stay silent in it."""

    cast: Cast
    server: ServerRound
    rounds: dict[int, DeviceRound] = field(default_factory=dict)
    frames: list[bytes] = field(default_factory=list)  # everything the server was sent

    def send(self, frame: bytes) -> None:
        self.frames.append(frame)
        self.server.receive(frame)

    def lie(self, message: Any) -> bytes:
        """What the server would say to a device of the round."""
        return wire.seal(message, self.rounds[message.device]._session.down)

    def bitmap(self, present: Collection[int]) -> bytes:
        return packed(np.isin(self.server.layout.plan.members, list(present)))

    def held(self, device: int) -> list[int]:
        """The partners whose shares a device has taken."""
        one = self.rounds[device]
        assert one._held is not None
        return [p for p, fits in zip(one._partners, one._held.fits, strict=True) if fits]

    def signer(self, device: int, kind: int) -> Signer:
        """What makes a frame of this kind the device's own."""
        if kind == Shares.KIND:
            return self.cast.devices[device].keys.identity
        return self.rounds[device]._session.up

    def resend(self, device: int, frame: bytes, **changes: object) -> bytes:
        """A frame with other content, properly signed by its device all the same."""
        message = replace(peek(frame, KINDS[frame[5]]), **changes)
        return wire.seal(message, self.signer(device, frame[5]))

    def share(self, silent: Collection[int] = NOBODY) -> None:
        self.send_shares(silent)
        self.take_sharers()

    def send_shares(self, silent: Collection[int] = NOBODY) -> None:
        """As far as the server has them, and nobody has been told."""
        for device in self.server.layout.plan.members:
            if device not in silent:
                self.rounds[device] = self.cast.devices[device].join(self.server.plan)
                self.send(self.rounds[device].shares)
        self.server.close_sharing()

    def take_sharers(self) -> None:
        for device in self.server.sharers:
            self.rounds[device].take_sharers(self.server.sharers_for(device))

    def upload(
        self, vectors: Callable[[int], np.ndarray], silent: Collection[int] = NOBODY
    ) -> None:
        for device in self.server.sharers:
            if device not in silent:
                self.send(self.rounds[device].mask(vectors(device)))
        self.server.close_upload()

    def confirm(self, silent: Collection[int] = NOBODY) -> None:
        if not self.server.confirms:
            return
        for device in self.server.survivors:
            if device not in silent:
                self.send(self.rounds[device].confirm(self.server.survivors_for(device)))
        self.server.close_confirmation()

    def unmask(self, silent: Collection[int] = NOBODY) -> np.ndarray:
        for device in self.server.confirmed:
            if device not in silent:
                server = self.server
                told = server.confirmed_for if server.confirms else server.survivors_for
                self.send(self.rounds[device].unmask(told(device)))
        return self.server.finish()


def assemble(
    count: int,
    *,
    min_honest: int = 2,
    colluders: int = 0,
    max_dropout: float = 0.0,
    honest_server: bool = False,
    own_rosters: bool = False,
    journal: Callable[[int], Journal] = lambda _: MemoryJournal(),
    **others: Any,
) -> Cast:
    """`count` enrolled devices with ids 10, 20, ... and a server that knows them.

    An honest server draws sparse graphs for cohorts of more than 32.
    """
    others = {"purposes": ("update", "clip"), "sparse": honest_server} | others
    params = SecAggParams(
        "test", min_honest, colluders, max_dropout, honest_server=honest_server, **others
    )
    keys: dict[int, DeviceKeys] = {10 * i: new_keys("test", 10 * i) for i in range(1, count + 1)}
    pinned = {i: k.identity.public_key().public_bytes_raw() for i, k in keys.items()}
    key = Ed25519PrivateKey.generate()
    public = key.public_key().public_bytes_raw()
    shared = roster_of(pinned, keys)
    devices = {
        i: Participant(
            k, roster_of(pinned, keys) if own_rosters else shared, params, public, journal(i)
        )
        for i, k in keys.items()
    }
    return Cast(params, Server(key, shared, params), devices, pinned)


def agreed(device: Participant, other: int, round_number: int) -> bytes:
    """The key that a device shares with another one in a round."""
    return device._turned(other, round_number)[1].key


def roster_of(pinned: dict[int, bytes], keys: dict[int, DeviceKeys]) -> Roster:
    roster = Roster("test", pinned)
    roster.admit(*(device_keys.card() for device_keys in keys.values()))
    return roster


def small_vectors(dimension: int = 5) -> Callable[[int], np.ndarray]:
    """A different vector for every device, with negative entries."""
    return lambda device: np.arange(dimension, dtype=np.int64) * device - 17 * (device % 3)


def plain_sum(vectors: Callable[[int], np.ndarray], devices: Collection[int]) -> np.ndarray:
    return np.sum([vectors(device) for device in devices], axis=0)
