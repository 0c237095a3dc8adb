"""A cast of real state machines, and a round played between them one leg at a time."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedveil.privacy.secure_sums.errors import Doubted
from fedveil.privacy.secure_sums.params import Limits, SecAggParams
from fedveil_federation.secagg import wire
from fedveil_federation.secagg.device import DeviceRound
from fedveil_federation.secagg.journal import Journal, MemoryJournal
from fedveil_federation.secagg.keys import DeviceKeys, new_keys
from fedveil_federation.secagg.layout import packed
from fedveil_federation.secagg.messages import Disclosure, Shares
from fedveil_federation.secagg.participant import Participant
from fedveil_federation.secagg.privacy_terms import PrivacyTerms
from fedveil_federation.secagg.roster import Admission, Roster
from fedveil_federation.secagg.server import Server
from fedveil_federation.secagg.server_round import ServerRound
from fedveil_federation.secagg.wire import Signer, WireMessage, parse

NOBODY: frozenset[int] = frozenset()
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

    def play(
        self, round_number: int = 1, dimension: int = 5, bits: int = 32, **kwargs: object
    ) -> Play:
        members = kwargs.pop("members", self.ids)
        return Play(self, self.open(round_number, members, dimension, bits, **kwargs))  # type: ignore

    def open(
        self,
        round_number: int,
        members,
        dimension: int,
        bits: int,
        purpose: str = "update",
        privacy: PrivacyTerms | None = None,
    ):
        """A round of the server, its graph drawn by devices if it is sparse."""
        details = (round_number, members, dimension, bits, purpose)
        found = self.params.topology(len(members))
        if not self.params.drawers(len(members), found.degree):
            return self.server.open(*details, privacy=privacy)
        drawing = self.server.draw(*details, privacy=privacy)
        for device in drawing.drawers:
            drawing.commit(self.devices[device].offer(drawing.invitation))
        listed = drawing.commitments()
        for device in drawing.drawers:
            drawing.reveal(self.devices[device].reveal(listed))
        return self.server.open_drawn(drawing)


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
        if kind in (Shares.KIND, Disclosure.KIND):
            return self.cast.devices[device].keys.identity
        return self.rounds[device]._session.up

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
            for shown in self.server.odds_for(device):
                if self.server.dealt_by(device) == self.rounds[device].shares:
                    self.rounds[device].take_odds(shown)
                else:  # it has lied itself, and plays along
                    self.rounds[device]._liars.add(wire.head(shown).device)
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
                self.send(self.confirmation(device))
        self.server.close_confirmation()

    def confirmation(self, device: int) -> bytes:
        try:
            return self.rounds[device].confirm(self.server.survivors_for(device))
        except Doubted as refusal:
            frame = self.server.survivors_for(device, refusal.devices)
            return self.rounds[device].confirm(frame)

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
    sparse: bool = True,
    own_rosters: bool = False,
    journal: Callable[[int], Journal] = lambda _: MemoryJournal(),
    limits: Limits | None = None,
    **others: Any,
) -> Cast:
    """`count` enrolled devices with ids 10, 20, ... and a server that knows them."""
    others = {"purposes": ("update", "clip")} | others
    params = SecAggParams("test", min_honest, colluders, max_dropout, sparse=sparse, **others)
    keys: dict[int, DeviceKeys] = {10 * i: new_keys("test", 10 * i) for i in range(1, count + 1)}
    pinned = {i: k.identity.public_key().public_bytes_raw() for i, k in keys.items()}
    key = Ed25519PrivateKey.generate()
    public = key.public_key().public_bytes_raw()
    shared = roster_of(pinned, keys)
    devices = {
        i: Participant(
            k,
            roster_of(pinned, keys) if own_rosters else shared,
            params,
            public,
            journal(i),
            limits=limits,
        )
        for i, k in keys.items()
    }
    return Cast(params, Server(key, shared, params), devices, pinned)


def roster_of(pinned: dict[int, bytes], keys: dict[int, DeviceKeys]) -> Roster:
    roster = Roster("test", Admission(pinned))
    for device_keys in keys.values():
        roster.admit(device_keys.card())
    return roster


def small_vectors(dimension: int = 5) -> Callable[[int], np.ndarray]:
    """A different vector for every device, with negative entries."""
    return lambda device: np.arange(dimension, dtype=np.int64) * device - 17 * (device % 3)


def plain_sum(vectors: Callable[[int], np.ndarray], devices: Collection[int]) -> np.ndarray:
    return np.sum([vectors(device) for device in devices], axis=0)
