"""Frames made to cost memory or work: what they cost is measured in bytes, not in time."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tests.secagg.play import assemble, small_vectors
from tests.secagg.test_wire import KINDS, frame_of

from fedveil.privacy.secure_sums.errors import Forged, Malformed, OutOfTurn, SecureAggregationError
from fedveil_federation.secagg import wire
from fedveil_federation.secagg.layout import longest
from fedveil_federation.secagg.messages import (
    Confirm,
    KeyCard,
    Masked,
    RoundPlan,
    Shares,
    Survivors,
    Unmask,
)

VECTORS = small_vectors()
MEGABYTE = 1 << 20


def allocated(act: Callable[[], object]) -> int:
    """Bytes at the peak beyond what was there before; the act must end in a typed error."""
    tracemalloc.start()
    try:
        with pytest.raises(SecureAggregationError):
            act()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", [Shares, Confirm, Unmask])
def test_only_a_masked_vector_may_be_as_long_as_one(kind):
    assert longest(kind, 11, 10, 8 * MEGABYTE) == longest(kind, 11, 10) < MEGABYTE
    assert longest(Masked, 11, 10, 8 * MEGABYTE) == longest(Masked, 11, 10) + 8 * MEGABYTE


BOMBS = {
    "nested arrays": b"\x91" * (2 * MEGABYTE),
    "zeros": bytes(2 * MEGABYTE),
    "huge lengths": b"\xff\xff\xff\xff" * (MEGABYTE // 2),
}


@pytest.mark.parametrize("name", BOMBS)
def test_unsigned_bombs_cost_nothing_beyond_themselves(name):
    cast = assemble(4)
    play = cast.play()
    stranger = Ed25519PrivateKey.generate()
    joined = cast.devices[10].join(play.server.plan)
    body = BOMBS[name]
    like = play.server.plan[:6] + joined.shares[6:114]
    frames = {kind: frame_of(kind.KIND, body, stranger, like) for kind in KINDS}
    for kind, frame in frames.items():
        receivers = {
            Shares: [play.server.receive],
            Masked: [play.server.receive],
            RoundPlan: [cast.devices[10].join],
            KeyCard: [cast.server.roster.admit],
            Survivors: [joined.confirm],
        }.get(kind, [play.server.receive, cast.devices[10].join, joined.take_sharers])
        for receive in receivers:
            assert allocated(lambda r=receive, f=frame: r(f)) < 64 << 10


@pytest.mark.parametrize("name", BOMBS)
def test_even_a_signed_body_is_parsed_in_memory_of_its_own_size(name):
    # A member or the server may sign what it likes; every kind is tried against every bomb.
    key, body = Ed25519PrivateKey.generate(), BOMBS[name]
    for kind in KINDS:
        frame = frame_of(kind.KIND, body, key)

        def read(kind=kind, frame=frame) -> None:
            wire.read(frame, kind, wire.MAX_FRAME, key.public_key())
            raise Malformed("a bomb that is a message is harmless")

        assert allocated(read) < 2 * len(frame) + (64 << 10)


def test_the_signature_is_checked_before_the_body_is_looked_at(monkeypatch):
    cast = assemble(3)
    play = cast.play()
    stranger = Ed25519PrivateKey.generate()
    looked = []
    monkeypatch.setattr(wire, "parse", lambda *_: looked.append(1))
    for frame in (
        frame_of(RoundPlan.KIND, b"x", stranger),
        frame_of(KeyCard.KIND, b"x", stranger, bytes(14) + bytes(range(32)) + bytes(68)),
    ):
        for receive in (cast.devices[10].join, cast.server.roster.admit):
            with pytest.raises(SecureAggregationError):
                receive(frame)
    like = bytes(6) + (10).to_bytes(8, "little") + play.server.layout.digest
    with pytest.raises(Forged):
        play.server.receive(frame_of(Shares.KIND, b"x", stranger, like))
    assert not looked


def test_a_header_is_enough_to_refuse_what_is_too_long_or_unasked():
    cast = assemble(4)
    play = cast.play()
    server, device = play.server, cast.devices[10]
    rounds = {d: cast.devices[d].join(server.plan) for d in cast.ids}
    shares = rounds[10].shares

    def longer(frame: bytes, size: int) -> bytes:
        return frame[:46] + size.to_bytes(4, "little") + frame[50 : wire.HEADER]

    for receive, start, error in (
        (server.receive, longer(shares, 10**5), Malformed),
        (server.receive, longer(shares, 2**32 - 1), Malformed),
        (device.join, longer(server.plan, 10**6), Malformed),
        (rounds[10].take_sharers, longer(frame_of(5, b""), 10**5), Malformed),
        (server.receive, shares[:6] + (11).to_bytes(8, "little") + shares[14:114], OutOfTurn),
        (server.receive, shares[:14] + bytes(32) + shares[46:114], OutOfTurn),
        (server.receive, shares[:5] + bytes([Masked.KIND]) + shares[6:114], OutOfTurn),
        (server.receive, server.plan[: wire.HEADER], Malformed),
        (server.receive, shares[: wire.HEADER - 1], Malformed),
    ):
        with pytest.raises(error):  # no body is there to be looked at
            receive(start)
